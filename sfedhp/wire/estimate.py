"""Estimates the lengths of encoded messages, for a whole stack at once on its device.

`encoded_length` runs the codec, one message after the other on the host: too slow for the messages between
clients and edges. Here every part of a candidate is counted as the codec would write it, but for Huffman
codes, whose length is taken from the entropy of what they code: without zlib, and within three percent of it.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from sfedhp.wire.header import HEADER_BYTES

_NOISE_BITS: Final = 7.9  # as the codec: a plane with more entropy is not deflated
_LONGEST: Final = 258  # bytes of a match
_BLOCK: Final = 32767  # symbols that share a Huffman table
_TABLE_BITS: Final = 8 * 40  # approximate size of such a table
_MOST_RICE: Final = 24
_SYMBOLS: Final = 512  # 256 literals, and as many classes of match lengths as there are


def estimated_lengths(messages: Tensor, base: Tensor | None = None) -> Tensor:
    """The estimated bytes of each message after encoding.

    Args:
        messages: (..., d), already in the type of the values on the wire.
        base: (..., d) of the same type, models that the receivers hold; None: no differences.
    """
    size = messages.shape[-1]
    words = _words(messages).reshape(-1, size)
    width = messages.element_size()
    lengths = _marked(words, words != 0, None, width)
    if base is not None:
        reference = _words(base.expand_as(messages)).reshape(-1, size)
        changed = words != reference
        flipped = changed ^ (reference != 0)
        relative = torch.minimum(_positions(changed), _positions(flipped))
        lengths = torch.minimum(lengths, relative + _planes(words, changed, width))
        lengths = torch.minimum(lengths, _marked(words ^ reference, changed, relative, width))
    return (HEADER_BYTES + lengths).reshape(messages.shape[:-1])


def _words(values: Tensor) -> Tensor:
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(kinds[values.element_size()])


def _marked(words: Tensor, marked: Tensor, positions: Tensor | None, width: int) -> Tensor:
    """Bytes of marks and of the words there; of all words where that is shorter before deflation."""
    found = _positions(marked) if positions is None else positions
    denser = width * words.shape[-1] <= width * marked.sum(-1) + found
    kept = marked | denser[:, None]
    return torch.where(denser, 0, found) + _planes(words, kept, width)


def _positions(marked: Tensor) -> Tensor:
    """Bytes of the shorter code of a mask: Golomb–Rice codes of the gaps, or a deflated bitmap."""
    rows, size = marked.shape
    count = marked.sum(-1)
    row, place = marked.nonzero(as_tuple=True)
    before = torch.cat([place.new_full((1,), -1), place[:-1]])
    first = torch.ones_like(row, dtype=torch.bool)
    first[1:] = row[1:] != row[:-1]
    gaps = place - torch.where(first, -1, before) - 1
    best = _bytes(count + _sums(gaps, row, rows))
    for rice in range(1, _MOST_RICE + 1):
        length = _bytes(count + _sums(gaps >> rice, row, rows)) + rice * _bytes(count)
        # A low bit for each gap costs more than the zeros it could save where half of all are marked.
        best = torch.minimum(best, torch.where(2 * count >= size, best, length))
        if 2**rice > size // max(int(count.min()), 1) * 4:
            break
    padded = torch.nn.functional.pad(marked.to(torch.uint8), (0, -size % 8)).reshape(rows, -1, 8)
    weights = 2 ** torch.arange(8, device=marked.device, dtype=torch.uint8)
    bitmap = (padded * weights).sum(-1).to(torch.uint8)
    whole = torch.arange(rows, device=marked.device).repeat_interleave(bitmap.shape[1])
    return torch.minimum(best, _deflated(bitmap.flatten(), whole, rows)[0])


def _planes(words: Tensor, kept: Tensor, width: int) -> Tensor:
    """Bytes of the planes of the words that are kept."""
    rows = words.shape[0]
    row, place = kept.nonzero(as_tuple=True)
    content = words[row, place].contiguous().view(torch.uint8).reshape(-1, width)
    count = kept.sum(-1)
    total = torch.zeros_like(count)
    for index in range(width):
        length, entropy = _deflated(content[:, index].contiguous(), row, rows)
        plain = (entropy >= _NOISE_BITS) | (4 + length >= count)
        total += torch.where(plain, count, 4 + length)
    return total


def _deflated(data: Tensor, row: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Bytes of each row's deflate stream with run lengths, and the entropy of a byte of it.

    Args:
        data: the bytes of all rows, one row after the other.
        row: which row each byte is of.
        rows: how many.
    """
    if not len(data):
        return row.new_full((rows,), 2), torch.zeros(rows, device=data.device, dtype=torch.float64)
    starts = torch.ones_like(row, dtype=torch.bool)
    starts[1:] = (data[1:] != data[:-1]) | (row[1:] != row[:-1])
    first = starts.nonzero().flatten()
    runs = torch.diff(first, append=first.new_full((1,), len(data)))
    byte, owner = data[first].long(), row[first]
    # A run is one literal, matches of up to 258 bytes, and a rest: a match, or up to two literals.
    full, rest = (runs - 1) // _LONGEST, (runs - 1) % _LONGEST
    match = rest >= 3
    literals = 1 + torch.where(match, 0, rest)
    counts = torch.zeros(rows * _SYMBOLS, device=data.device, dtype=torch.float64)
    counts.index_add_(0, owner * _SYMBOLS + byte, literals.double())
    kind, extra = _length_code(rest)
    counts.index_add_(0, owner * _SYMBOLS + 256 + kind, match.double())
    counts.index_add_(0, owner * _SYMBOLS + _SYMBOLS - 1, full.double())
    table = counts.reshape(rows, _SYMBOLS)
    symbols = table.sum(-1)
    bits = _code_bits(table, symbols) + _sums(match * (extra + 1), owner, rows) + _sums(full, owner, rows)
    blocks = torch.ceil(symbols / _BLOCK).clamp_min(1)
    used = (table > 0).sum(-1)
    length = torch.ceil((bits + blocks * (_TABLE_BITS / 4 + 5 * used)) / 8).long() + 1
    plain = torch.zeros(rows * 256, device=data.device, dtype=torch.float64)
    plain.index_add_(
        0, row * 256 + data.long(), torch.ones(len(data), device=data.device, dtype=torch.float64)
    )
    shares = plain.reshape(rows, 256)
    sizes = shares.sum(-1)
    return length, _entropy_bits(shares, sizes) / sizes.clamp_min(1)


def _length_code(length: Tensor) -> tuple[Tensor, Tensor]:
    """Deflate's symbol of a match length (from 0), and its extra bits."""
    over = (length - 3).clamp_min(0)
    extra = (torch.floor(torch.log2(over.double().clamp_min(1))).long() - 2).clamp_min(0)
    return 4 * extra + (over >> extra), extra


def _code_bits(table: Tensor, totals: Tensor) -> Tensor:
    """Bits of a Huffman code, about: the most frequent symbol takes one bit, however frequent it is."""
    most = table.max(-1)
    others = table.scatter(-1, most.indices[:, None], 0.0)
    rest = totals - most.values
    split = totals + _entropy_bits(others, rest)
    return torch.where(2 * most.values > totals, split, _entropy_bits(table, totals))


def _entropy_bits(table: Tensor, totals: Tensor) -> Tensor:
    """Bits of an ideal code of symbols that occur so often."""
    shares = table / totals.clamp_min(1)[:, None]
    return -(table * torch.log2(shares.clamp_min(math.ulp(0.0)))).sum(-1)


def _sums(values: Tensor, row: Tensor, rows: int) -> Tensor:
    return torch.zeros(rows, device=values.device, dtype=torch.int64).index_add_(0, row, values.long())


def _bytes(bits: Tensor) -> Tensor:
    return -(-bits // 8)
