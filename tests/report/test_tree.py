"""The tree: every client inside the drawing, none above another, at every size."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sfedhp.report.drawing import Area, Target
from sfedhp.report.tree import NARROW, WIDE, Branch, Leaf, tree


def branch(edge, clients):
    leaves = [
        Leaf(f"c{number}", 1234, [0.5, 0.0, 0.5], "81.25", 0.81, number == 0, f"client {number}")
        for number in range(clients)
    ]
    return Branch(f"edge {edge}", "EM 80.00 %", f"edge {edge}", leaves)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("sizes", [[1], [5, 5, 5, 5], [1, 30, 4], [12] * 10, [50] * 20, [400, 1]])
def test_clients_lie_inside_and_beside_each_other(sizes, width):
    drawing = tree(
        "t", "", "cloud", [branch(*each) for each in enumerate(sizes)], width=width, with_edges=True
    )
    boxes = [mark.box for mark in drawing.marks if isinstance(mark, Target)]
    assert len(boxes) == 1 + len(sizes) + sum(sizes)
    for x, y, wide, high in boxes:
        assert x >= 0
        assert y >= 0
        assert x + wide <= width + 0.01
        assert y + high <= drawing.height + 0.01
    clients = sorted(
        (mark.box for mark in drawing.marks if isinstance(mark, Target) and mark.data["tier"] == "client"),
        key=lambda box: (round(box[1], 3), box[0]),
    )
    for one, other in pairwise(clients):
        same_row = abs(one[1] - other[1]) < 0.01
        assert other[0] >= one[0] + one[2] - 0.01 if same_row else other[1] >= one[1] + one[3] - 0.01


def test_the_label_mix_has_a_bar_for_each_label_that_the_client_has():
    drawing = tree("t", "", "cloud", [branch(0, 1)], width=WIDE, with_edges=True)
    (client,) = [m for m in drawing.marks if isinstance(m, Target) and m.data["tier"] == "client"]
    (mix,) = [mark for mark in client.marks if isinstance(mark, Area)]
    first, second = mix.polygons
    assert first[0][0] < second[0][0]
    assert (
        first[1][0] - first[0][0] < second[0][0] - first[0][0]
    )  # the place of the label between stays empty
