"""Bounds of options and the sentences they speak."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import pytest
import torch

from sfedhp.algorithms import FedAvg, SFedHP
from sfedhp.config import Experiment
from sfedhp.core.engine import EngineOptions
from sfedhp.core.errors import InputError
from sfedhp.core.options import Bounds, Rate, check_options
from sfedhp.core.scalars import PerRun
from sfedhp.data import DataOptions


class Shape(Protocol):
    def area(self) -> float: ...


@dataclass
class Inner:
    pass


@dataclass
class Options:
    count: Annotated[int, Bounds(1)] = 1
    share: Annotated[float, Bounds(0, 1)] = 0.5
    part: Annotated[float, Bounds(0, 0.9, exclusive=True)] = 0.5
    rate: Rate = 0.1
    kind: Literal["a", "b", "c"] = "a"
    maybe: Annotated[int, Bounds(2)] | None = None
    chosen: Literal["only"] | None = None
    word: str = ""
    text: str | None = None
    switch: bool = False
    number: float = 0.0
    turn: int = 0
    sizes: tuple[int, ...] = ()
    inner: Inner = field(default_factory=Inner)
    anything: Any = None
    shape: Shape | None = None


def test_defaults_pass():
    check_options(Options())
    check_options(Options(rate=PerRun([0.1, 0.2]), maybe=2))
    check_options(Options(rate=1, share=1, number=1))
    check_options(Options(chosen="only", text="a", switch=True, sizes=(1, 2), anything=3))


def test_numbers_of_numpy_that_are_floats_pass():
    check_options(Options(rate=np.float64(0.1), number=np.float64(0.1)))


def test_what_cannot_be_asked_of_a_value_is_not_asked():
    check_options(Options(shape=3))  # type: ignore[arg-type]


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
        ({"count": "3"}, "x.count = '3' is not a whole number: it must be at least 1."),
        ({"count": True}, "x.count = True is not a whole number: it must be at least 1."),
        ({"count": 6.0}, "x.count = 6.0 is not a whole number: it must be at least 1."),
        ({"maybe": 2.5}, "x.maybe = 2.5 is not a whole number: it must be at least 2."),
        ({"rate": "fast"}, "x.rate = 'fast' is not a number: it must be above 0."),
        ({"rate": None}, "x.rate = None is not a number: it must be above 0."),
        ({"rate": [0.1]}, "x.rate = [0.1] is not a number: it must be above 0."),
        (
            {"rate": torch.tensor(0.5)},
            "x.rate = tensor(0.5000) is a scalar of NumPy or torch: convert it with .item().",
        ),
        ({"count": None}, "x.count = None is not a whole number: it must be at least 1."),
        (
            {"count": np.int64(3)},
            f"x.count = {np.int64(3)!r} is a scalar of NumPy or torch: convert it with .item().",
        ),
        (
            {"switch": np.True_},
            f"x.switch = {np.True_!r} is a scalar of NumPy or torch: convert it with .item().",
        ),
        (
            {"count": PerRun([1, 2])},
            "x.count = PerRun([1.0, 2.0]) is not a whole number: it must be at least 1.",
        ),
        ({"maybe": "2"}, "x.maybe = '2' is not a whole number: it must be at least 2."),
        ({"number": "3"}, "x.number = '3' is not a number: write one."),
        ({"number": False}, "x.number = False is not a number: write one."),
        ({"turn": 1.0}, "x.turn = 1.0 is not a whole number: write one."),
        ({"turn": None}, "x.turn = None is not a whole number: write one."),
        ({"kind": 5}, "x.kind = 5 is not known: use a, b or c."),
        ({"kind": None}, "x.kind = None is not known: use a, b or c."),
        ({"kind": False}, "x.kind = False is not known: use a, b or c."),
        ({"chosen": 1}, "x.chosen = 1 is not known: use only."),
        ({"word": 5}, "x.word = 5 is not text: write it in quotes."),
        ({"word": True}, "x.word = True is not text: write it in quotes."),
        ({"word": None}, "x.word = None is not text: write it in quotes."),
        ({"text": 5}, "x.text = 5 is not text: write it in quotes."),
        ({"switch": 1}, "x.switch = 1 is neither true nor false: use one of them."),
        ({"switch": "no"}, "x.switch = 'no' is neither true nor false: use one of them."),
        ({"sizes": 3}, "x.sizes = 3 is not a list of whole numbers: write one such as [2, 4]."),
        ({"inner": "b"}, "x.inner = 'b' cannot be used: it must be of the type Inner."),
        ({"inner": None}, "x.inner = None cannot be used: it must be of the type Inner."),
    ],
)
def test_each_wrong_value_gets_its_sentence(wrong, sentence):
    with pytest.raises(InputError) as error:
        check_options(Options(**wrong), "x.")
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SFedHP(start=None), "algorithm.start = None is not known: use anchor or carried."),  # type: ignore[arg-type]
        (lambda: SFedHP(solver=3), "algorithm.solver = 3 is not known: use gradient or nesterov."),  # type: ignore[arg-type]
        (lambda: SFedHP(edge_rounds=None), "algorithm.edge_rounds = None is not a whole number"),  # type: ignore[arg-type]
        (lambda: Experiment(device=True), "device = True is not text"),  # type: ignore[arg-type]
        (lambda: Experiment(engine=EngineOptions(address=5)), "engine.address = 5 is not text"),  # type: ignore[arg-type]
        (lambda: Experiment(engine=EngineOptions(inner=False)), "engine.inner = False is not known"),  # type: ignore[arg-type]
    ],
)
def test_the_options_of_a_run_are_checked(make, sentence):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"algorithm": "fedavg"}, "did you mean sfedhp.FedAvg()?"),
        ({"algorithm": "FedAvg"}, "did you mean sfedhp.FedAvg()?"),
        ({"algorithm": "xyz"}, "write an instance, such as sfedhp.FedAvg()."),
        ({"algorithm": FedAvg}, "cannot be used: write FedAvg(), an instance instead of the class."),
        ({"data": DataOptions}, "cannot be used: write DataOptions(), an instance instead of the class."),
        ({"data": "patients.csv"}, "cannot be used: write DataOptions(source='patients.csv')."),
        ({"model": "mlr"}, "cannot be used: write ModelOptions(name='mlr')."),
        ({"evaluation": 5}, "cannot be used: write EvaluationOptions(every=5)."),
        ({"data": FedAvg()}, "cannot be used: it must be of the type DataOptions."),
        ({"model": FedAvg}, "cannot be used: it must be of the type ModelOptions."),
    ],
)
def test_what_is_no_section_and_no_method_gets_a_remedy(wrong, remedy):
    with pytest.raises(InputError) as error:
        Experiment(**wrong)
    assert str(error.value).endswith(remedy)
