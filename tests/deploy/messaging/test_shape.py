"""Shapes of JSON that comes from other machines."""

from __future__ import annotations

import pytest

from sfedhp.deploy.messaging.shape import (
    Record,
    any_float,
    count,
    dict_of,
    flag,
    list_of,
    number,
    optional,
    text,
    tuple_of,
)

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (count, [0, 7], [-1, 1.0, True, "1", None, 2**53, 10**400]),
        (number, [0, -1.5], [True, "1", None, NAN, INFINITY, -INFINITY, 2**53, 10**400]),
        (any_float, [1, 1.5, NAN, INFINITY], [True, "1", None, 10**400]),
        (text, ["", "x"], [None, 1, []]),
        (flag, [True, False], [None, 0, 1, "true"]),
        (optional(count), [None, 1], ["1"]),
        (list_of(count), [[], [1, 2]], [None, {}, [1, "2"], "12"]),
        (tuple_of(text, count), [["a", 1]], [None, [], ["a"], ["a", "b"], ["a", 1, 2], {"a": 1}]),
        (dict_of(flag), [{}, {"a": True}], [None, [], {"a": 1}]),
        (Record({"a": count}), [{}, {"a": 1}, {"b": "x"}], [None, [], {"a": "1"}]),
        (Record({"a": count}, exact=True), [{"a": 1}], [{}, {"a": 1, "b": 2}, {"a": "1"}]),
    ],
)
def test_what_has_a_shape(shape, good, bad):
    assert [shape(value) for value in good] == [True] * len(good)
    assert [shape(value) for value in bad] == [False] * len(bad)


def test_a_record_keeps_what_it_knows():
    assert Record({"a": count, "b": text}).known({"b": "x", "c": 1}) == {"b": "x"}
