"""Certificates for kits that FLARE did not make: an authority for each server, as provisioning has it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from sfedhp.deploy.certificates import new_key, write_certificate, write_key

key_of = cache(lambda name: new_key())  # drawing one takes a tenth of a second


def certificate(name: str, authority: str, public: Any = None, days: int = 30) -> x509.Certificate:
    """A certificate, signed by an authority; with the same name it is the authority's own."""
    now = datetime.now(UTC)
    subject, issuer = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, authority)
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public or key_of(name).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + timedelta(days=days))
        .sign(key_of(authority), hashes.SHA256())
    )


def write_certificates(layout: Any, folder: Path) -> None:
    """Write what secure aggregation reads of kits."""
    for site in layout.clients:
        server = f"edge-{site.edge}" if layout.edges else "cloud"
        startup = folder / site.name / "startup"
        startup.mkdir(parents=True, exist_ok=True)
        write_key(startup / "client.key", key_of(site.name))
        write_certificate(startup / "client.crt", certificate(site.name, f"authority-{server}"))
        above = folder / server / ("server" if layout.edges else "") / "startup"
        above.mkdir(parents=True, exist_ok=True)
        for place in (startup, above):
            root = certificate(f"authority-{server}", f"authority-{server}")
            write_certificate(place / "rootCA.pem", root)
