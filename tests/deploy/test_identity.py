"""Keys of members: only who has the certificate can have signed one, and only the kit's authority counts."""

from __future__ import annotations

import struct

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from sfedhp.core.errors import InputError
from sfedhp.deploy.certificates import write_certificate, write_key
from sfedhp.deploy.identity import CardReader, Identity
from sfedhp.privacy import masks
from tests.support.member_certificates import certificate, key_of

CONFIG, PUBLIC = "ab" * 8, masks.public_bytes(masks.new_key())
READER = CardReader(certificate("root", "root"), CONFIG)


def card(name="client-0-1", authority="root", key=None, config=CONFIG, public=PUBLIC, **more):
    return Identity(certificate(name, authority, **more), key or key_of(name)).card(public, config)


def test_a_card_tells_the_key():
    assert READER.public_key(card(), "client-0-1") == PUBLIC


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (card("client-0-2"), "not of client-0-1"),
        (card(authority="another"), "invalid signature"),
        (card(key=key_of("client-0-2")), "invalid signature"),
        (card(config="cd" * 8), "invalid signature"),
        (card()[:-1] + b"x", "invalid signature"),
        (card(days=-1), "expired"),
        (card(public=bytes(32)), "shared key"),
        (card()[:-1], "wrong length"),
        (b"", "wrong length"),
        (bytes(2**14), "wrong length"),
        (struct.pack("<HH", 4, 0) + bytes(36), "parsing"),
    ],
)
def test_a_wrong_card_is_refused(wrong, sentence):
    with pytest.raises(ValueError, match=f"(?i){sentence}|error"):
        READER.public_key(wrong, "client-0-1")


def test_a_certificate_with_a_key_of_another_kind_is_refused():
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    with pytest.raises(ValueError, match="not of client-0-1"):
        READER.public_key(_card_of(other), "client-0-1")


def test_kinds_of_keys_that_no_one_knows_are_refused():
    """A server that ended with another error would end the run of all its members."""
    rsa_keys = bytes.fromhex("2a864886f70d010101")
    whole = card()
    assert whole.count(rsa_keys) == 1
    for last in (0x00, 0x55, 0x7F):
        with pytest.raises(ValueError, match=r"the card of client-0-1 cannot be checked \(Unknown key type"):
            READER.public_key(whole.replace(rsa_keys, rsa_keys[:-1] + bytes([last])), "client-0-1")


def _card_of(public_key):
    return Identity(certificate("client-0-1", "root", public_key), key_of("client-0-1")).card(PUBLIC, CONFIG)


def test_what_a_kit_has_to_hold(tmp_path):
    startup = tmp_path / "startup"
    with pytest.raises(InputError, match="not a private key"):
        Identity.read(tmp_path)
    startup.mkdir()
    write_key(startup / "client.key", key_of("client-0-1"))
    with pytest.raises(InputError, match="not a certificate"):
        Identity.read(tmp_path)
    write_certificate(startup / "client.crt", certificate("client-0-1", "root"))
    with pytest.raises(InputError, match="not a certificate"):
        CardReader.of(tmp_path, CONFIG)
    write_certificate(startup / "rootCA.pem", READER.root)
    made = Identity.read(tmp_path).card(PUBLIC, CONFIG)
    assert CardReader.of(tmp_path, CONFIG).public_key(made, "client-0-1") == PUBLIC
