"""The three tiers as a tree: the cloud, its edges, and their clients with label mix, rows and main metric."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sfedhp.report.axes import shortened
from sfedhp.report.drawing import Area, Drawing, Line, Mark, Rect, Target, Text

WIDE, NARROW = 1160.0, 344.0
WITH_ROWS, WITH_MIX = 40, 300  # clients, up to which there is room for rows, and for label mixes
FAILING = ("absent", "silent", "late", "refused")  # states of members of a deployed federation
_GAP = 14.0  # between edges
_EDGE_HEIGHT = 44.0
_MARGIN = 16.0  # of the trunk to the rows of edges after the first
_BARS = 26  # most bars of a label mix; more labels share bars


@dataclass(frozen=True)
class Leaf:
    """A client of the tree."""

    name: str
    rows: int | None  # None where only its state is known
    mix: Sequence[float]  # the share of each label of the run in its rows; empty if unknown
    figure: str  # of the model that it uses, in words
    share: float | None  # length of its bar: the percentage, or the share of the largest figure
    worst: bool  # one of the worst tenth
    label: str  # everything about it, in a sentence
    state: str = ""  # up, late, … of a deployed client


@dataclass(frozen=True)
class Branch:
    """An edge of the tree."""

    name: str
    figure: str  # of its model, in words
    label: str
    leaves: Sequence[Leaf]
    state: str = ""


class _Size(NamedTuple):
    """The size of a client in the tree."""

    width: float
    height: float
    mix: float  # height of the label mix
    numbers: bool  # whether the figure is written
    rows: bool  # whether rows are written


_LARGE = _Size(55, 74, 22, True, True)
_MIDDLE = _Size(31, 42, 14, True, False)
_SMALL = _Size(14, 16, 0, False, False)


def tree(
    title: str, cloud: str, cloud_label: str, branches: Sequence[Branch], *, width: float, with_edges: bool
) -> Drawing:
    """Draw the cloud, its edges and their clients as a tree.

    Args:
        title: of the drawing.
        cloud: the text in the cloud's node, below its name.
        cloud_label: everything about the cloud, in a sentence.
        branches: the edges, at least one.
        width: of the drawing.
        with_edges: whether edges take part; otherwise the lines to them are dashed.
    """
    leaves = sum(len(branch.leaves) for branch in branches)
    size = _LARGE if leaves <= WITH_ROWS else _MIDDLE if leaves <= WITH_MIX else _SMALL
    most = max(len(branch.leaves) for branch in branches)
    least = min(max(most, 1), 8 if size is _SMALL else 5)  # least number of clients in one row
    beside = max(
        (count for count in range(1, len(branches) + 1) if (_room(width, count)) / size.width >= least),
        default=1,
    )
    beside = math.ceil(len(branches) / math.ceil(len(branches) / beside))  # rows of the same length
    block = _room(width, beside)
    columns = max(1, min(most, int(block / size.width)))
    link = "link" if with_edges else "thin-link"
    middle, top = width / 2, 8.0
    node = Target(
        [
            Rect(middle - 85, top, 170, 42, "node", 8),
            Text(middle, top + 18, "cloud", "strong-text", "middle"),
            Text(middle, top + 34, cloud, "text", "middle"),
        ],
        cloud_label,
        (middle - 85, top, 170, 42),
        {"tier": "cloud"},
    )
    marks: list[Mark] = []
    y = top + 42 + 26
    rows = math.ceil(len(branches) / beside)
    for row in range(rows):
        part = branches[row * beside : (row + 1) * beside]
        margin = _MARGIN if rows > 1 else 0.0
        offset = margin + (width - margin - len(part) * block - (len(part) - 1) * _GAP) / 2
        centers = [offset + place * (block + _GAP) + block / 2 for place in range(len(part))]
        bus = y - 13
        if row == 0:
            marks.append(Line([(middle, top + 42), (middle, bus)], link))
            ends = [min(*centers, middle), max(*centers, middle)]
            if rows > 1:
                ends[0] = 4.0
                marks.append(Line([(4.0, bus), (4.0, bus)], link))
            marks.append(Line([(ends[0], bus), (ends[1], bus)], link))
            first_bus = bus
        else:
            marks.append(Line([(4.0, first_bus), (4.0, bus), (max(centers), bus)], link))
        height = 0.0
        for center, branch in zip(centers, part, strict=True):
            marks.append(Line([(center, bus), (center, y)], link))
            marks.append(_edge(branch, center, y, min(block, 190.0)))
            below = y + _EDGE_HEIGHT + 10
            marks.append(Line([(center, y + _EDGE_HEIGHT), (center, below)], link))
            across = min(columns, max(len(branch.leaves), 1))
            left = center - across * size.width / 2
            if across > 1:
                marks.append(Line([(left + 4, below), (left + across * size.width - 4, below)], link))
            for place, leaf in enumerate(branch.leaves):
                down, right = divmod(place, columns)
                marks.append(_leaf(leaf, left + right * size.width, below + 4 + down * size.height, size))
            height = max(height, math.ceil(len(branch.leaves) / columns) * size.height)
        y += _EDGE_HEIGHT + 14 + height + 30
    return Drawing("tree", title, width, y - 22, [node, *marks])


def _room(width: float, beside: int) -> float:
    """The width of an edge, if `beside` edges share a row."""
    return (width - _MARGIN - (beside - 1) * _GAP) / beside


def _edge(branch: Branch, center: float, y: float, width: float) -> Target:
    left = center - width / 2
    letters = int(width / 7.5)
    style = "worst-cell" if branch.state in FAILING else "node"
    inner: list[Mark] = [
        Rect(left, y, width, _EDGE_HEIGHT, style, 6),
        Text(center, y + 18, shortened(branch.name, letters), "strong-text", "middle"),
        Text(center, y + 35, shortened(branch.figure, letters), "text", "middle"),
    ]
    return Target(inner, branch.label, (left, y, width, _EDGE_HEIGHT), {"tier": "edge"})


def _leaf(leaf: Leaf, x: float, y: float, size: _Size) -> Target:
    width, height = size.width - 3, size.height - 3
    alarming = leaf.worst or leaf.state in FAILING
    inner: list[Mark] = [Rect(x + 1.5, y + 1.5, width, height, "worst-cell" if alarming else "cell", 3)]
    inset = 5.0 if size is _LARGE else 3.5
    left, room = x + 1.5 + inset, width - 2 * inset
    base = y + 4 + size.mix
    if size.mix and leaf.mix:
        inner.append(Area(list(_bars(leaf.mix, left, base, room, size.mix - 2)), "mix"))
    fill = "alarm-fill" if alarming else "fill0"
    if leaf.rows is None:
        inner += _unscored(leaf, x, y, size)
        return Target(inner, leaf.label, (x, y, size.width, size.height), {"tier": "client"})
    if size is _SMALL:
        # Filled from below, as high as the figure.
        tall = (height - 4) * (leaf.share or 0)
        inner.append(Rect(x + 3.5, y + 1.5 + height - 2 - tall, width - 4, tall, fill))
    else:
        inner.append(Rect(left, base + 4, room, 5, "track", 1))
        if leaf.share:
            inner.append(Rect(left, base + 4, room * leaf.share, 5, fill, 1))
    if size.numbers:
        large = size.rows
        text = _number(leaf.figure, 5 if large else 3)
        style = "strong-text" if large else "small-text"
        inner.append(Text(x + size.width / 2, base + (23 if large else 18.5), text, style, "middle"))
    if size.rows:
        inner.append(Text(x + size.width / 2, base + 38, _short_count(leaf.rows), "small-text", "middle"))
    return Target(inner, leaf.label, (x, y, size.width, size.height), {"tier": "client"})


def _unscored(leaf: Leaf, x: float, y: float, size: _Size) -> list[Mark]:
    """A client without figures: its seat, and its state where there is room."""
    if not size.numbers:
        return []
    middle, style = x + size.width / 2, "strong-text" if size.rows else "small-text"
    marks: list[Mark] = [Text(middle, y + size.height / 2, leaf.figure, style, "middle")]
    if size.rows:
        marks.append(Text(middle, y + size.height / 2 + 16, shortened(leaf.state, 8), "small-text", "middle"))
    return marks


def _bars(
    mix: Sequence[float], left: float, base: float, width: float, height: float
) -> Iterator[list[tuple[float, float]]]:
    """A bar for each label that the client has, always at the label's place; the highest fills the height."""
    bars = min(len(mix), _BARS)
    sums = [0.0] * bars
    for label, share in enumerate(mix):
        sums[label * bars // len(mix)] += share
    wide, most = width / bars, max(sums) or 1.0
    for place, share in enumerate(sums):
        if share:
            x, top = left + place * wide, base - height * share / most
            right = x + max(wide - 0.6, 0.8)
            yield [(x, top), (right, top), (right, base), (x, base)]


def _number(text: str, most: int) -> str:
    """A figure in at most this many characters: 81.25 becomes 81.2, or 81."""
    try:
        value = float(text)
    except ValueError:
        return text
    decimals = max(0, min(most - 1 - len(f"{abs(value):.0f}"), 1 if abs(value) >= 10 else 3))
    return f"{value:.{decimals}f}"


def _short_count(number: int) -> str:
    """A number that fits below a client: 950, 1.2k, 38k."""
    if number < 1000:
        return str(number)
    return f"{number / 1000:.1f}k" if number < 10_000 else f"{number / 1000:.0f}k"
