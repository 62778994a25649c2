"""Key agreement, encryption, and masks of random words: X25519, HKDF-SHA256, ChaCha20(-Poly1305)."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sfedhp.privacy.ring import MaskedFormat, Words

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16  # added to the length of a sealed text
_ONCE: Final = bytes(12)  # every key is used for one text and one mask


def new_key() -> X25519PrivateKey:
    """Generate a private X25519 key from the system's random generator."""
    return X25519PrivateKey.generate()


def public_bytes(key: X25519PrivateKey) -> bytes:
    """The public half of a key, 32 bytes."""
    return key.public_key().public_bytes_raw()


def derive(own: X25519PrivateKey, other: bytes, context: bytes) -> bytes:
    """A secret (32 bytes) that only the holders of two keys know; other contexts give other secrets.

    Raises:
        ValueError: the other's public key cannot be one.
    """
    shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=context).derive(shared)


def commitment(secret: bytes) -> bytes:
    """A hash by which a random secret is recognized without revealing it."""
    return hashlib.sha256(b"sfedhp commitment" + secret).digest()


def seal(key: bytes, text: bytes, context: bytes) -> bytes:
    """Encrypt a text, so that only a holder of the key can read or write it, in this context only."""
    return ChaCha20Poly1305(key).encrypt(_ONCE, text, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """Decrypt a sealed text.

    Raises:
        ValueError: it was not sealed with this key in this context.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_ONCE, sealed, context)
    except InvalidTag:
        raise ValueError("a share was not sealed by the member that is named as its sender") from None


def mask(seed: bytes, form: MaskedFormat) -> tuple[Words, Words]:
    """Random words from a seed, the same on every machine."""
    cipher = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None)
    return form.unpack(cipher.encryptor().update(bytes(form.length)))


def add(total: tuple[Words, Words], more: tuple[Words, Words], sign: int = 1) -> None:
    """Add or subtract words in place, modulo 2^64, which does not change a sum modulo 2^k."""
    operation = np.add if sign > 0 else np.subtract
    for each, other in zip(total, more, strict=True):
        operation(each, other, out=each)
