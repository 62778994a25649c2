"""The certificate of a member that is connected to a FLARE server."""

from __future__ import annotations

from typing import Any

from cryptography import x509

from sfedhp.deploy.certificates import serial


def peer_serial(cell: Any, name: str) -> str | None:
    """The serial number of the certificate that a member is connected with; None if it is not known.

    FLARE provides only the name in a certificate. gRPC and the WebSocket have the certificate itself.
    """
    endpoint = cell.core_cell.communicator.conn_manager.sfm_endpoints.get(name)
    for connection in list(getattr(endpoint, "connections", ())):
        websocket = getattr(connection.conn, "websocket", None)
        if websocket is not None:
            found = serial_of_websocket(websocket)
        else:
            found = serial_of_rpc(getattr(connection.conn, "context", None))
        if found is not None:
            return found
    return None


def serial_of_rpc(context: Any) -> str | None:
    """The serial number of the certificate of a gRPC call's other side; None if it has none."""
    try:
        (pem, *_) = context.auth_context()["x509_pem_cert"]
        return serial(x509.load_pem_x509_certificate(pem))
    except (AttributeError, KeyError, ValueError):  # without TLS, or just closed
        return None


def serial_of_websocket(websocket: Any) -> str | None:
    """The serial number of the certificate of a WebSocket's other side; None if it has none."""
    certificate = websocket.get_extra_info("peercert")
    return f"{int(certificate['serialNumber'], 16):x}" if certificate else None
