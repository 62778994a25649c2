"""What travels between tiers: models as bytes, links, and the account of every byte."""

from sfedhp.wire.codec import decode, encode, encoded_length
from sfedhp.wire.header import DecodeError

__all__ = ["DecodeError", "decode", "encode", "encoded_length"]
