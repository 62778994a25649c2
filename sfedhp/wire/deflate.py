"""Deflate (RFC 1951) for sections of a message: fast to write, and bounded in memory when read.

Run lengths with Huffman codes (`Z_RLE`) and no search for longer matches: on the bitmaps of trained models
that is both the fastest and the smallest of zlib's strategies, and on noise it is ten times faster.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from sfedhp.wire.header import DecodeError

_RAW_WINDOW = -zlib.MAX_WBITS  # a raw stream: the message has its own checksum
_MEMORY_LEVEL = 9  # the maximum: fewer, longer blocks, so fewer code tables


def deflate(data: NDArray[np.uint8]) -> bytes:
    """The bytes as a deflate stream."""
    stream = zlib.compressobj(1, zlib.DEFLATED, _RAW_WINDOW, _MEMORY_LEVEL, zlib.Z_RLE)
    return stream.compress(data.data) + stream.flush()


def inflate(data: memoryview, length: int) -> NDArray[np.uint8]:
    """The `length` bytes of a whole deflate stream; never allocates more, even if the stream is forged."""
    stream = zlib.decompressobj(_RAW_WINDOW)
    try:
        # one byte more than wanted lets zlib see the end of an honest stream and shows a longer one
        content = stream.decompress(data, length + 1)
    except zlib.error:
        raise DecodeError("The message is malformed: a compressed section cannot be read.") from None
    if len(content) != length or not stream.eof or stream.unused_data:
        raise DecodeError("The message is malformed: a compressed section has another length than it should.")
    return np.frombuffer(content, np.uint8)
