"""A cloud that does not wait for its slowest edge counts what that sends later."""

from __future__ import annotations

import pytest
import torch

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.core.late import LateOptions
from sfedhp.engine.late import at_start
from sfedhp.runs.prepare import prepare
from tests.support.deploy_memory import experiment

LINKS = {"edge_cloud": {"bandwidth": 1e6}}


def simulated(name="hierfavg", rounds=6, **late):
    more = {"late": late} if late else {}
    return experiment(name, rounds=rounds, edges=3, links=LINKS, **more)


def waited(arrivals, quorum, decay=0.5, turn=3, clock=0.0, started=(3, 3, 3)):
    """The time, what each of three edges weighs, and who is idle, after the wait."""
    late = at_start(torch.zeros(2), torch.zeros(0), 3)._replace(
        weights=torch.ones(3),
        started=torch.tensor(started),
        arrival=torch.tensor(arrivals, dtype=torch.float64),
        clock=torch.tensor(clock, dtype=torch.float64),
    )
    after, weights = late.wait(LateOptions(quorum, decay), turn)
    return float(after.clock), weights.tolist(), after.idle.tolist()


def test_a_round_ends_with_the_quorum():
    assert waited([1.0, 9.0, 2.0], 2) == (2.0, [1.0, 0.0, 1.0], [True, False, True])
    assert waited([1.0, 9.0, 2.0], 3) == (9.0, [1.0, 1.0, 1.0], [True, True, True])


def test_an_upload_weighs_less_the_later_it_is():
    assert waited([3.0, 1.5, 2.0], 3, started=(3, 1, 2))[1] == [1.0, 0.25, 0.5]
    assert waited([3.0, 1.5, 2.0], 3, 0.0, started=(3, 1, 2))[1] == [1.0, 0.0, 0.0]
    assert waited([1.0, 1.5, 0.5], 1, started=(3, 1, 2))[1] == [1.0, 0.0, 0.5]


def test_late_ones_do_not_make_a_quorum():
    """A round of stale uploads alone would turn the model back."""
    assert waited([4.0, 1.0, 5.0], 2, started=(3, 1, 3))[:2] == (5.0, [1.0, 0.25, 1.0])
    assert waited([4.0, 1.0, 9.0], 2, started=(3, 1, 2))[:2] == (4.0, [1.0, 0.25, 0.0])


def test_what_was_counted_before_is_not_counted_again():
    clock, weights, _ = waited([4.0, 9.0, 7.0], 2, clock=5.0, started=(2, 3, 3))
    assert (clock, weights) == (9.0, [0.0, 1.0, 1.0])


def test_a_late_upload_counts_as_a_change_of_the_model_of_now():
    late = at_start(torch.zeros(2), torch.zeros(0), 2)._replace(
        model=torch.tensor([[5.0, 5.0], [7.0, 7.0]]),
        sent=torch.tensor([[4.0, 4.0], [4.0, 4.0]]),
        started=torch.tensor([1, 3]),
    )
    assert late.moved_to(torch.full((2, 2), 10.0), 3).tolist() == [[11.0, 11.0], [7.0, 7.0]]


def test_to_wait_for_all_is_to_wait_for_all():
    plain, patient = sfedhp.run(simulated()), sfedhp.run(simulated(quorum=3, slow_edges=1))
    assert plain.global_model is not None
    assert patient.global_model is not None
    for one, other in zip(
        plain.global_model.state_dict().values(), patient.global_model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)
    assert [row["gm"] for row in plain.history] == [row["gm"] for row in patient.history]
    assert "link_clock" not in plain.history[0]
    assert patient.history[-1]["link_clock"] == pytest.approx(6 * 10 * plain.history[0]["link_seconds"])


@pytest.mark.parametrize("name", ["hierfavg", "sfedhp"])
def test_a_slow_edge_counts_every_few_rounds(name):
    """Nearly three times as slow: it counts in the third round, as an upload to the model of the first."""
    simulator = prepare(simulated(name, quorum=2, decay=0.5, slow_edges=1, slow_factor=2.9)).simulator
    clocks, idle = [], []
    for state in simulator.run(6):
        assert state.late is not None
        clocks.append(float(state.late.clock))
        idle.append(state.late.idle.tolist())
    assert [each[0] for each in idle] == [False, False, True, False, False, True]
    assert all(each[1:] == [True, True] for each in idle)
    assert clocks == pytest.approx([clocks[0] * turn for turn in range(1, 7)])
    alone = prepare(simulated(name, quorum=2, decay=0.0, slow_edges=1, slow_factor=2.9)).simulator
    lost = [state.served.state for state in alone.run(3)]
    again = prepare(simulated(name, quorum=2, decay=0.5, slow_edges=1, slow_factor=2.9)).simulator
    kept = [state.served.state for state in again.run(3)]
    same = [torch.equal(one, other) for one, other in zip(kept, lost, strict=True)]
    assert same == [True, True, False], "the third round has the late upload"


def test_a_stack_and_a_resumed_run_give_the_same(tmp_path):
    late = {"quorum": 2, "slow_edges": 1, "slow_factor": 3.0}
    whole = sfedhp.run(simulated(rounds=6, **late), out=tmp_path / "whole")
    sfedhp.run(simulated(rounds=4, **late), out=tmp_path / "parts")
    text = (tmp_path / "parts" / "config.toml").read_text()
    (tmp_path / "parts" / "config.toml").write_text(text.replace("rounds = 4", "rounds = 6", 1))
    resumed = sfedhp.resume(tmp_path / "parts")
    (stacked, _) = sfedhp.sweep([simulated(rounds=6, **late), simulated(rounds=6, **late)])
    for other in (resumed, stacked.run):
        for row, expected in zip(other.history, whole.history, strict=True):
            assert (row["gm"], row["link_clock"]) == (expected["gm"], expected["link_clock"])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"name": "fedavg", "late": {"quorum": 1}}, "has no edges"),
        ({"late": {"quorum": 5}}, "more than the 2 edges"),
        ({"late": {"quorum": 1}, "sampled_edges": 1}, "cannot be used together"),
        ({"late": {"quorum": 1}}, "needs a clock"),
    ],
)
def test_what_cannot_be_late(config, said):
    with pytest.raises(InputError, match=said):
        sfedhp.run(experiment(**{"name": "hierfavg", **config}))
