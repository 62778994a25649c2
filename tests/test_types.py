"""Bounds of options and the sentences they speak."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from sfedhp.scalars import PerRun, Rate
from sfedhp.types import Bounds, InputError, check_bounds


@dataclass
class Options:
    count: Annotated[int, Bounds(1)] = 1
    share: Annotated[float, Bounds(0, 1)] = 0.5
    part: Annotated[float, Bounds(0, 0.9, exclusive=True)] = 0.5
    rate: Rate = 0.1
    kind: Literal["a", "b", "c"] = "a"
    maybe: Annotated[int, Bounds(2)] | None = None


def test_defaults_pass():
    check_bounds(Options())
    check_bounds(Options(rate=PerRun([0.1, 0.2]), maybe=2))
    check_bounds(Options(rate=1, share=1))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"count": 0}, "x.count = 0 is out of range: it must be at least 1."),
        ({"share": 1.5}, "x.share = 1.5 is out of range: it must be from 0 to 1."),
        ({"part": 0.0}, "x.part = 0.0 is out of range: it must be above 0 and at most 0.9."),
        ({"rate": 0.0}, "x.rate = 0.0 is out of range: it must be above 0."),
        ({"rate": float("nan")}, "x.rate = nan is out of range: it must be above 0."),
        ({"rate": PerRun([0.1, -1.0])}, "x.rate = -1.0 is out of range: it must be above 0."),
        ({"kind": "d"}, "x.kind = 'd' is not known: use a, b or c."),
        ({"maybe": 1}, "x.maybe = 1 is out of range: it must be at least 2."),
        ({"count": "3"}, "x.count = '3' is not a number: it must be a whole number, at least 1."),
        ({"count": True}, "x.count = True is not a number: it must be a whole number, at least 1."),
        ({"count": 6.0}, "x.count = 6.0 is not a whole number: it must be at least 1."),
        ({"maybe": 2.5}, "x.maybe = 2.5 is not a whole number: it must be at least 2."),
        ({"rate": "fast"}, "x.rate = 'fast' is not a number: it must be above 0."),
    ],
)
def test_each_wrong_value_gets_its_sentence(wrong, sentence):
    with pytest.raises(InputError) as error:
        check_bounds(Options(**wrong), "x.")
    assert str(error.value) == sentence
