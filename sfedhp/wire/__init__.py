"""Messages between tiers: models as bytes, directions, links, traffic and its cost."""

from sfedhp.wire.codec import decode, encode, encoded_length
from sfedhp.wire.header import DecodeError

__all__ = ["DecodeError", "decode", "encode", "encoded_length"]
