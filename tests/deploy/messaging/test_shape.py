"""Shapes of JSON that comes from other machines."""

from __future__ import annotations

import pytest

from sfedhp.deploy.messaging import shape

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("fits", "good", "bad"),
    [
        (shape.count, [0, 7], [-1, 1.0, True, "1", None, 2**53, 10**400]),
        (shape.number, [0, -1.5], [True, "1", None, NAN, INFINITY, -INFINITY, 2**53, 10**400]),
        (shape.any_float, [1, 1.5, NAN, INFINITY], [True, "1", None, 10**400]),
        (shape.text, ["", "x"], [None, 1, []]),
        (shape.flag, [True, False], [None, 0, 1, "true"]),
        (shape.optional(shape.count), [None, 1], ["1"]),
        (shape.list_of(shape.count), [[], [1, 2]], [None, {}, [1, "2"], "12"]),
        (
            shape.tuple_of(shape.text, shape.count),
            [["a", 1]],
            [None, [], ["a"], ["a", "b"], ["a", 1, 2], {"a": 1}],
        ),
        (shape.dict_of(shape.flag), [{}, {"a": True}], [None, [], {"a": 1}]),
        (shape.Record({"a": shape.count}), [{}, {"a": 1}, {"b": "x"}], [None, [], {"a": "1"}]),
        (shape.Record({"a": shape.count}, exact=True), [{"a": 1}], [{}, {"a": 1, "b": 2}, {"a": "1"}]),
    ],
)
def test_what_has_a_shape(fits, good, bad):
    assert [fits(value) for value in good] == [True] * len(good)
    assert [fits(value) for value in bad] == [False] * len(bad)


def test_a_record_keeps_what_it_knows():
    assert shape.Record({"a": shape.count, "b": shape.text}).known({"b": "x", "c": 1}) == {"b": "x"}
