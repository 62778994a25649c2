"""The identity of a member for other members: its key for secure aggregation, signed with its certificate.

Servers forward these cards. A member does not trust its server: it checks the certificate against the
authority in its own kit.
"""

from __future__ import annotations

import struct
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.utils import CryptographyDeprecationWarning

from sfedhp.core.errors import InputError
from sfedhp.deploy.certificates import common_name, read_certificate
from sfedhp.privacy import masks

_LENGTHS: Final = struct.Struct("<HH")  # of the certificate and of the signature
_KEY_BYTES: Final = 32
_LARGEST: Final = 2**13  # bytes of a card
_ROOT: Final = Path("startup", "rootCA.pem")


@dataclass(frozen=True)
class Identity:
    """The certificate of a member, with its private key."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey

    @classmethod
    def read(cls, kit: Path) -> Identity:
        """The identity in a client's kit.

        Raises:
            InputError: the kit has none.
        """
        path = kit / "startup" / "client.key"
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not a private key ({error}): copy the kit again.") from None
        if not isinstance(key, rsa.RSAPrivateKey):
            raise InputError(f"{path} is not an RSA key: copy the kit again.")
        return cls(read_certificate(kit / "startup" / "client.crt"), key)

    def card(self, public: bytes, config: str) -> bytes:
        """A public key with what shows that it is this member's.

        Args:
            public: the key, 32 bytes.
            config: the hash of what is computed; a card is of no use elsewhere.
        """
        certificate = self.certificate.public_bytes(serialization.Encoding.DER)
        signature = self.key.sign(_content(public, config), padding.PKCS1v15(), hashes.SHA256())
        return b"".join((_LENGTHS.pack(len(certificate), len(signature)), certificate, signature, public))


@dataclass(frozen=True)
class CardReader:
    """Checks the cards of members."""

    root: x509.Certificate
    config: str

    @classmethod
    def of(cls, workspace: Path, config: str) -> CardReader:
        """A reader with the authority of a kit, or of the server in an edge's kit.

        Raises:
            InputError: its certificate cannot be read.
        """
        return cls(read_certificate(workspace / _ROOT), config)

    def public_key(self, card: bytes, name: str) -> bytes:
        """The key on a member's card.

        Args:
            card: untrusted bytes.
            name: of the member, as in its certificate.

        Raises:
            ValueError: it is not the card of that member.
        """
        try:
            return self._checked(card, name)
        except (UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension) as error:
            # A member may send any bytes, also of keys and signatures that are unknown here.
            raise ValueError(f"the card of {name} cannot be checked ({error})") from None

    def _checked(self, card: bytes, name: str) -> bytes:
        certificate, signature, public = _split(card)
        key = certificate.public_key()
        now = datetime.now(UTC)
        if common_name(certificate) != name or not isinstance(key, rsa.RSAPublicKey):
            raise ValueError(f"a card is not of {name}")
        try:
            certificate.verify_directly_issued_by(self.root)
            key.verify(signature, _content(public, self.config), padding.PKCS1v15(), hashes.SHA256())
        except (InvalidSignature, TypeError, ValueError):
            raise ValueError(f"the card of {name} has an invalid signature") from None
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise ValueError(f"the certificate of {name} has expired")
        masks.derive(masks.new_key(), public, b"")  # raises an error for numbers that are not keys
        return public


def _split(card: bytes) -> tuple[x509.Certificate, bytes, bytes]:
    """The parts of a card: certificate, signature, public key."""
    if not _LENGTHS.size <= len(card) <= _LARGEST:
        raise ValueError("a card has a wrong length")
    first, second = _LENGTHS.unpack_from(card)
    rest = card[_LENGTHS.size :]
    if len(rest) != first + second + _KEY_BYTES:
        raise ValueError("a card has a wrong length")
    with warnings.catch_warnings():  # of odd certificates, which are not of this authority
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        certificate = x509.load_der_x509_certificate(rest[:first])
    return certificate, rest[first : first + second], rest[first + second :]


def _content(public: bytes, config: str) -> bytes:
    """The bytes that are signed."""
    return b"sfedhp key for secure aggregation 1" + bytes.fromhex(config) + public
