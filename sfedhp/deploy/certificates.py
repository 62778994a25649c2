"""Certificates of sites after the kits were made: when they expire, new ones, and those that are revoked."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

from sfedhp.core.errors import InputError
from sfedhp.core.files import write_atomically, write_private, write_text
from sfedhp.core.parsing import parse_json
from sfedhp.deploy.site import MEMBER, REVOKED, SERVER, Role, startup_folders

_STATE: Final = Path("state", "cert.json")  # FLARE's file of an authority
_EARLIER: Final = "earlier"  # beside a certificate there: the serial numbers of those that it replaced
_KEY_BITS: Final = 2048
_CLOCK_SKEW: Final = timedelta(minutes=5)
_WARN: Final = timedelta(days=30)  # before it expires
_ANEW: Final = "make the kits of a new federation with `sfedhp provision`"
_PEM: Final = serialization.Encoding.PEM


@dataclass(frozen=True)
class RevocationList:
    """Serial numbers of revoked certificates, signed by the cloud's authority; the highest version counts."""

    version: int = 0
    serials: Mapping[str, str] = field(default_factory=dict)  # serial number, hexadecimal -> name
    signature: str = ""

    @classmethod
    def parse(cls, values: Any, root: x509.Certificate) -> RevocationList:
        """The list of untrusted JSON values.

        Args:
            values: as `to_dict` gives them.
            root: the certificate of the cloud's authority.

        Raises:
            InputError: it is not a list of this federation.
        """
        key = root.public_key()
        try:
            found = cls(int(values["version"]), dict(values["serials"]), str(values["signature"]))
            assert isinstance(key, rsa.RSAPublicKey)
            signature = base64.b64decode(found.signature)
            key.verify(signature, found._content(), padding.PKCS1v15(), hashes.SHA256())
        except (KeyError, TypeError, ValueError, OverflowError, InvalidSignature):
            raise InputError(
                "The list of revoked certificates was not signed by this federation's authority: copy "
                f"{REVOKED} from the folder of the kits."
            ) from None
        return found

    def to_dict(self) -> dict[str, Any]:
        """The list as JSON values, for a file or a message."""
        return {"version": self.version, "serials": dict(self.serials), "signature": self.signature}

    def with_serials(self, more: Mapping[str, str], key: rsa.RSAPrivateKey) -> RevocationList:
        """The next version, with these serial numbers too, signed by the cloud's authority."""
        serials = {**self.serials, **more}
        found = RevocationList(self.version + 1, serials)
        signature = key.sign(found._content(), padding.PKCS1v15(), hashes.SHA256())
        return RevocationList(found.version, serials, base64.b64encode(signature).decode("ascii"))

    def _content(self) -> bytes:
        """The bytes that the authority signs: the version and the serial numbers."""
        return json.dumps(["sfedhp-revoked", self.version, dict(self.serials)], sort_keys=True).encode()


@dataclass
class Authority:
    """The certificate authority of one server, in the folder `authorities`."""

    folder: Path
    content: dict[str, Any]  # of FLARE's file: its key, and the newest certificate of each holder

    @classmethod
    def read(cls, folder: Path) -> Authority:
        """The authority in a folder.

        Raises:
            InputError: there is none, or it is damaged.
        """
        path = folder / _STATE
        try:
            found = cls(folder, parse_json(path.read_bytes()))
            if found.root.public_key() != found.key.public_key():
                raise ValueError("its key is not that of its certificate")
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror}): give the folder with the kits and `authorities` "
                f"by --out."
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InputError(f"{path} is damaged: restore it from a copy.") from None
        return found

    @property
    def root(self) -> x509.Certificate:
        """The certificate of the authority, which it has signed itself."""
        return x509.load_pem_x509_certificate(self.content["root_cert"].encode())

    @property
    def key(self) -> rsa.RSAPrivateKey:
        """The private key, with which the authority signs certificates."""
        key = serialization.load_pem_private_key(self.content["root_pri_key"].encode(), password=None)
        assert isinstance(key, rsa.RSAPrivateKey)
        return key

    def issue(self, old: x509.Certificate, public_key: rsa.RSAPublicKey, days: int) -> x509.Certificate:
        """A certificate for the holder of another, with a new key; it never outlives the authority's own.

        Raises:
            InputError: the authority's own has expired.
        """
        now, last = datetime.now(UTC), self.root.not_valid_after_utc
        if last <= now:
            raise InputError(f"The authority {self.folder.name} expired on {last:%Y-%m-%d}: {_ANEW}.")
        until = min(now + timedelta(days=days), last)
        builder = (
            x509.CertificateBuilder()
            .subject_name(old.subject)
            .issuer_name(self.root.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(until)
        )
        for extension in old.extensions:
            value = extension.value
            if isinstance(value, x509.SubjectKeyIdentifier):
                value = x509.SubjectKeyIdentifier.from_public_key(public_key)
            builder = builder.add_extension(value, extension.critical)
        return builder.sign(self.key, hashes.SHA256())

    def record(self, certificate: x509.Certificate, key: rsa.RSAPrivateKey | None) -> None:
        """Keep a certificate that it issued, and its key where that is known, for kits made later."""
        name = common_name(certificate)
        entry: dict[str, Any] = {"cert": _text(certificate), _EARLIER: sorted(self.serials(name))}
        if key is not None:
            entry["pri_key"] = _key_bytes(key).decode("ascii")
        self.content[name] = entry
        self.write(self.folder)

    def serials(self, name: str) -> set[str]:
        """The serial numbers of all certificates that a holder ever got."""
        entry = self.content.get(name)
        if entry is None:
            return set()
        newest = x509.load_pem_x509_certificate(entry["cert"].encode())
        return {serial(newest), *entry.get(_EARLIER, ())}

    def write(self, folder: Path) -> None:
        """Write it into a folder."""
        path = folder / _STATE
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.content)
        write_atomically(path, lambda beside: write_private(beside, text.encode()))


def common_name(certificate: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """The name in a certificate, or in a request for one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def serial(certificate: x509.Certificate) -> str:
    """The serial number, as lists of revoked certificates have it."""
    return f"{certificate.serial_number:x}"


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a certificate ({error}): copy the kit again.") from None


def read_key(path: Path) -> PrivateKeyTypes:
    """The private key in a file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path} is not a private key ({error}): copy the kit again.") from None


def new_key() -> rsa.RSAPrivateKey:
    """Generate an RSA key for a certificate."""
    return rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)


def write_key(path: Path, key: rsa.RSAPrivateKey) -> None:
    """Write a private key that only its owner may read."""
    write_atomically(path, lambda beside: write_private(beside, _key_bytes(key)))


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    """Write a certificate as PEM."""
    write_text(path, _text(certificate))


def signing_request(name: str, key: rsa.RSAPrivateKey) -> bytes:
    """A request (CSR) for the certificate of a seat, as PEM."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(_PEM)


def read_request(path: Path) -> tuple[str, rsa.RSAPublicKey]:
    """The name and the public key of a request.

    Raises:
        InputError: it cannot be read, or its signature is wrong.
    """
    try:
        request = x509.load_pem_x509_csr(path.read_bytes())
        key = request.public_key()
        valid = request.is_signature_valid and isinstance(key, rsa.RSAPublicKey)
    except (OSError, ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise InputError(
            f"{path} is not a request for a certificate ({error}): see `sfedhp request`."
        ) from None
    if not valid or not isinstance(key, rsa.RSAPublicKey) or key.key_size < _KEY_BITS:
        raise InputError(f"{path} is not a valid request for a certificate: make it with `sfedhp request`.")
    return common_name(request), key


def certificates_of(kit: Path) -> list[Path]:
    """The certificates of a kit; an edge has two."""
    return sorted(path for startup in startup_folders(kit) for path in startup.glob("*.crt"))


def expected_certificates(kit: Path, role: Role) -> list[Path]:
    """Where a whole kit has its certificates, whether they are there or not."""
    if role == "edge":
        return [kit / MEMBER / "startup" / "client.crt", kit / SERVER / "startup" / "server.crt"]
    return [kit / "startup" / ("server.crt" if role == "cloud" else "client.crt")]


def expiry(kit: Path) -> datetime | None:
    """When the first certificate of a kit expires; None if it has none that can be read."""
    found = []
    for path in certificates_of(kit):
        with contextlib.suppress(InputError):
            found.append(read_certificate(path).not_valid_after_utc)
    return min(found, default=None)


def expiry_warning(kit: Path) -> str | None:
    """A warning if a certificate of a kit expires within 30 days, or has expired; else None."""
    until, now = expiry(kit), datetime.now(UTC)
    if until is None or until - now > _WARN:
        return None
    what = "expires" if until > now else "expired"
    remedy = f"make a new one with `sfedhp provision --renew {kit.name}`, and copy it to this kit"
    if until >= _last_day(kit):
        remedy = f"its authority can make none that is valid longer: {_ANEW}"
    return f"The certificate of {kit.name} {what} on {until:%Y-%m-%d}: {remedy}."


def _last_day(kit: Path) -> datetime:
    """When the first authority of a kit expires, after which it can make no certificates."""
    found = [datetime.max.replace(tzinfo=UTC)]
    for startup in startup_folders(kit):
        with contextlib.suppress(InputError):
            found.append(read_certificate(startup / "rootCA.pem").not_valid_after_utc)
    return min(found)


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(_PEM).decode("ascii")


def _key_bytes(key: rsa.RSAPrivateKey) -> bytes:
    form, none = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    return key.private_bytes(_PEM, form, none)
