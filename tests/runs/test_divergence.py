"""Values that are not finite, and losses that explode."""

from typing import Any

import pytest
import torch

from sfedhp.runs.divergence import EXPLOSION, explosion, is_overflow, not_finite


def test_a_loss_that_is_not_finite_is_a_divergence():
    rows: list[dict[str, Any]] = [{"round": 1, "train_loss": 2.0}, {"round": 2, "train_loss": None}]
    assert explosion(rows) == "diverged in round 2: the training loss is not finite"
    assert explosion(rows[:1]) is None
    assert explosion([*rows[:1], {"round": 2}]) is None


def test_a_loss_far_above_the_first_is_a_divergence():
    rows: list[dict[str, Any]] = [
        {"round": 1, "train_loss": 2.0},
        {"round": 2},
        {"round": 3, "train_loss": 2.0 * EXPLOSION},
    ]
    assert explosion(rows) is None
    rows[-1]["train_loss"] += 1
    said = explosion(rows)
    assert said is not None
    assert said.startswith("diverged in round 3: the training loss went from 2 to 201, more than")


def test_the_first_tree_that_is_not_finite_is_named():
    good, bad = torch.ones(3), torch.tensor([1.0, torch.nan, 1.0])
    assert not_finite({"a": good, "b": (good, ())}) == [None]
    assert not_finite({"a": (good, good), "b": (good, bad), "c": bad}) == ["b has values that are not finite"]
    assert not_finite({"a": torch.tensor(torch.inf)}) == ["a has values that are not finite"]


def test_each_run_of_a_stack_is_judged_alone():
    served, personal = torch.ones(3, 2), torch.ones(3, 4, 5)
    served[2, 1], personal[0, 3, 3] = torch.inf, torch.nan
    found = not_finite({"the cloud's model": served, "a client's model": (personal, torch.ones(3))}, runs=1)
    assert found == [
        "a client's model has values that are not finite",
        None,
        "the cloud's model has values that are not finite",
    ]


def test_an_overflow_is_distinguished_from_other_errors():
    with pytest.raises(RuntimeError) as error:
        torch.add(torch.ones(2), torch.ones(2), alpha=1e300)
    assert is_overflow(error.value)
    assert not is_overflow(RuntimeError("out of memory"))
