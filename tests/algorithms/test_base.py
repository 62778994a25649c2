"""The contract of a method: names that it once had are refused, not ignored."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, final

import pytest
from torch import Tensor

from sfedhp import Algorithm, Clock, Count, FedAvg, InputError, Task
from sfedhp.algorithms import ClientResult

RENAMED = {
    "features": "predicts_from_features",
    "keeps_members": "state_per_member",
    "remembers": "needs_personal_state",
    "caution": r"step_rules\(\)",
}


class Method(Algorithm):
    def client_step(self, received: Tensor, personal: Any, task: Task, clock: Clock) -> ClientResult:
        return ClientResult(received)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_refused_with_the_new_one(old: str, new: str) -> None:
    for value in (True, property(lambda method: False)):
        with pytest.raises(
            InputError, match=rf"^Mine\.{old} is now called {new}: rename it in your class\.$"
        ):
            type("Mine", (Method,), {old: value})


def test_an_old_name_with_a_type_is_refused() -> None:
    with pytest.raises(InputError, match=r"Mine\.features is now called predicts_from_features"):

        class Mine(Method):
            features: ClassVar[bool] = True


def test_a_hyper_parameter_may_have_such_a_name() -> None:
    @final
    @dataclass(frozen=True)
    class Mine(Method):
        features: Count = 3

    assert [field.name for field in fields(Mine)] == ["features"]
    assert not Mine().predicts_from_features


def test_new_names_are_accepted() -> None:
    for old in RENAMED:
        assert not hasattr(FedAvg, old)
    new = type("Mine", (Method,), {"predicts_from_features": True, "state_per_member": True})
    assert issubclass(new, Algorithm)
