"""Private runs: what is refused, what is spent, and how they end and go on."""

import warnings
from dataclasses import replace

import pytest
import torch

import sfedhp
from sfedhp.algorithms import Ditto, FedAvg, FedAvgTuned, HierFAVG, SFedHP
from sfedhp.config import CheckpointOptions, from_dict, to_dict
from sfedhp.core.aggregation import AggregationOptions
from sfedhp.core.errors import InputError, Note
from sfedhp.nn.models import ModelOptions
from sfedhp.privacy.accounting import Release, epsilon
from sfedhp.privacy.options import PrivacyOptions
from sfedhp.runs.method_options import check_used
from sfedhp.runs.prepare import prepare
from sfedhp.runs.privacy import spending_of
from sfedhp.runs.sweep import sweep
from tests.support.json_lines import json_lines, without_seconds
from tests.support.short_runs import TO_PROTECT, after

pytest.importorskip("dp_accounting")

SMALL = replace(
    TO_PROTECT,
    rounds=4,
    algorithm=SFedHP(edge_rounds=2, personal_steps=3),
    privacy=PrivacyOptions(noise=8.0),
    checkpoint=CheckpointOptions(every=1),
)
FEDAVG = replace(SMALL, algorithm=FedAvg(local_steps=2))
CLIENT = PrivacyOptions(unit="client", tier="cloud", noise=2.0)


@pytest.mark.parametrize(
    ("experiment", "words"),
    [
        (replace(SMALL, algorithm=Ditto()), "not supported by ditto"),
        (replace(SMALL, algorithm=FedAvgTuned()), "not supported by fedavg-tuned"),
        (replace(SMALL, privacy=PrivacyOptions(noise=1.0, tier="edge")), "cannot protect single rows"),
        (replace(FEDAVG, privacy=replace(CLIENT, tier="edge")), "fedavg has no edges"),
        (replace(SMALL, algorithm=SFedHP(finish_steps=2)), "finish_steps uses rows"),
        (replace(SMALL, privacy=CLIENT, algorithm=SFedHP(anchor="client")), "algorithm.anchor uses single"),
        (replace(SMALL, privacy=CLIENT, aggregation=AggregationOptions(rule="median")), "cannot both change"),
    ],
)
def test_what_would_not_be_protected_is_refused(experiment, words):
    with pytest.raises(InputError, match=words):
        check_used(experiment)
    check_used(replace(experiment, privacy=PrivacyOptions()))


def test_batch_norm_is_refused():
    experiment = replace(SMALL, model=ModelOptions(name="tests.support.small_modules:normalized"))
    with pytest.raises(InputError, match="running statistics travel without noise"):
        prepare(experiment)


def test_epsilon_is_in_the_history_and_the_summary(tmp_path):
    run = sfedhp.run(SMALL, out=tmp_path / "run")
    rows = min(sizes(SMALL))
    expected = [epsilon(Release(2 * turn, rows, 8, 3), 8.0, 1e-5) for turn in (1, 2, 3, 4)]
    assert [row["epsilon"] for row in json_lines(tmp_path / "run/history.jsonl")] == expected
    assert run.summary["epsilon"] == expected[-1]


def sizes(experiment):
    return [int(each) for each in prepare(experiment).simulator.task.sizes.flatten() if each]


def test_a_run_stops_when_its_budget_is_spent_and_a_resume_changes_nothing(tmp_path):
    three = prepare(SMALL).budgets[0].spending.epsilon(3)
    bounded = replace(SMALL, privacy=replace(SMALL.privacy, epsilon=three + 1e-6))
    with pytest.warns(
        Note, match=r"budget is spent: ε = .* after round 3, .*All 4 rounds need privacy\.noise"
    ):
        run = sfedhp.run(bounded, out=tmp_path / "run")
    assert not run.finished
    assert len(run.history) == 3
    assert run.summary["epsilon"] == three
    with pytest.warns(Note, match="budget is spent"):
        again = sfedhp.resume(tmp_path / "run")
    assert len(again.history) == 3
    whole = sfedhp.run(SMALL)
    assert without_seconds(run.history) == without_seconds(whole.history)[:3]


def test_a_resumed_run_spends_and_learns_the_same(tmp_path):
    straight = sfedhp.run(FEDAVG, out=tmp_path / "straight")
    sfedhp.run(FEDAVG, out=tmp_path / "broken", stop=after(2))
    resumed = sfedhp.resume(tmp_path / "broken")
    assert [row["epsilon"] for row in resumed.history] == [row["epsilon"] for row in straight.history]
    states = [run.global_model.state_dict() for run in (straight, resumed) if run.global_model is not None]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_runs_of_a_stack_end_each_at_its_own_budget():
    """Their seeds divide the rows differently: the smallest clients differ."""
    base = replace(
        FEDAVG, data=replace(FEDAVG.data, partition="dirichlet"), privacy=PrivacyOptions(noise=5.0)
    )
    spent = [prepare(replace(base, seed=seed)).budgets[0].spending for seed in (0, 1)]
    middle = (spent[0].epsilon(3) + spent[1].epsilon(3)) / 2
    assert spent[0].epsilon(3) != spent[1].epsilon(3)
    bounded = replace(base, privacy=replace(base.privacy, epsilon=middle))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stacked = sweep([replace(bounded, seed=seed) for seed in (0, 1)], at_once=2)
        alone = [sfedhp.run(replace(bounded, seed=seed)) for seed in (0, 1)]
    assert any("budget" in str(each.message) for each in caught)
    for outcome, run in zip(stacked, alone, strict=True):
        assert len(outcome.run.history) == len(run.history)
        assert outcome.run.history[-1]["epsilon"] == run.history[-1]["epsilon"]
        assert outcome.run.history[-1]["gm"] == run.history[-1]["gm"]


def test_a_budget_that_allows_nothing_says_what_noise_it_needs():
    with pytest.raises(InputError, match=r"allows no round with privacy\.noise = 0 \(no noise\)") as caught:
        prepare(replace(SMALL, privacy=PrivacyOptions(epsilon=2.0)))
    noise = float(str(caught.value).rpartition("privacy.noise=")[2].rstrip("."))
    prepared = prepare(replace(SMALL, privacy=PrivacyOptions(epsilon=2.0, noise=noise)))
    assert prepared.budgets[0].rounds == 4
    with pytest.raises(InputError, match="the first round would spend"):
        prepare(replace(SMALL, privacy=PrivacyOptions(epsilon=0.1, noise=1.0)))


def test_clients_count_for_the_rounds_in_which_they_were_drawn():
    drawn = replace(FEDAVG, sampled_clients=2, rounds=9)
    prepared = prepare(drawn)
    spending = spending_of(prepared.simulator, prepared.experiment)
    drawn_in = [prepared.simulator.draw(turn) for turn in range(9)]
    times = torch.stack([each for each in drawn_in if each is not None]).sum(0)
    each = [
        epsilon(Release(2 * int(asked), int(rows), 8), 8.0, 1e-5)
        for asked, rows in zip(times, prepared.simulator.task.sizes, strict=True)
    ]
    assert spending.epsilon(9) == max(each)
    assert len(set(times.tolist())) > 1


def test_what_is_counted_for_whole_clients():
    def release(experiment, rounds=3):
        prepared = prepare(experiment)
        return spending_of(prepared.simulator, prepared.experiment).of_clients(rounds)

    three = replace(SMALL, algorithm=HierFAVG(edge_rounds=4), privacy=CLIENT)
    assert release(replace(three, privacy=replace(CLIENT, tier="edge"))) == Release(12, 1, 1)
    assert release(replace(three, privacy=replace(CLIENT, tier="client"))) == Release(12, 1, 1)
    assert release(three) == Release(3, 1, 1)
    equal = replace(SMALL, privacy=CLIENT, sampled_edges=1)  # sFedHP's edges weigh the same
    assert release(equal) == Release(3, 2, 1)
    ragged = replace(
        FEDAVG, privacy=CLIENT, sampled_clients=2, data=replace(FEDAVG.data, partition="dirichlet")
    )
    assert release(ragged).population == 1, "members of other weights: no gain from sampling"


def test_epochs_use_every_row_once():
    prepared = prepare(replace(SMALL, algorithm=FedAvg(local_epochs=3)))
    spending = spending_of(prepared.simulator, prepared.experiment)
    rows = int(prepared.simulator.task.sizes.min())
    assert spending.of_rows(2)[0] == Release(6, rows, rows)


def test_the_section_travels_in_configs():
    assert from_dict(to_dict(SMALL)).privacy == SMALL.privacy
