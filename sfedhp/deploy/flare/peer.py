"""The certificate of a member that is connected to a FLARE server."""

from __future__ import annotations

from typing import Any

from cryptography import x509

from sfedhp.deploy.certificates import serial


def peer_serial(cell: Any, name: str) -> str | None:
    """The serial number of the certificate that a member is connected with; None where it is not known.

    FLARE passes on the name in a certificate only. gRPC has the certificate itself.
    """
    endpoint = cell.core_cell.communicator.conn_manager.sfm_endpoints.get(name)
    for connection in list(getattr(endpoint, "connections", ())):
        try:
            (pem, *_) = connection.conn.context.auth_context()["x509_pem_cert"]
            return serial(x509.load_pem_x509_certificate(pem))
        except (AttributeError, KeyError, ValueError):  # another driver than gRPC
            continue
    return None
