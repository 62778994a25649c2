"""What `sfedhp check` says of privacy before a run."""

import math
from dataclasses import replace

import pytest

from sfedhp.algorithms import Ditto, FedAvg
from sfedhp.nn.models import ModelOptions
from sfedhp.privacy.options import PrivacyOptions
from sfedhp.runs.prepare import prepare
from sfedhp.runs.privacy import spending_of
from sfedhp.theory import check
from sfedhp.theory.privacy import noise_to_signal
from tests.support.short_runs import TO_PROTECT as SMALL

pytest.importorskip("dp_accounting")


def lines_of(experiment):
    return {line.name: line for line in check(experiment).lines if line.group == "privacy"}


def test_without_noise_it_says_what_an_epsilon_needs_and_that_is_true():
    found = lines_of(SMALL)
    assert {f"noise_{unit}_{target}" for unit in ("row", "client") for target in (1, 3, 10)} <= found.keys()
    for options in (PrivacyOptions(), PrivacyOptions(unit="client", tier="edge")):
        noise = found[f"noise_{options.unit}_3"].value
        prepared = prepare(replace(SMALL, privacy=replace(options, noise=noise)))
        assert 2.85 < spending_of(prepared.simulator, prepared.experiment).epsilon(3) <= 3
    assert "times the longest clipped gradient: fewer rounds, larger batches" in found["noise_row_1"].note


def test_with_noise_it_says_epsilon_of_rows_and_clients_and_how_far_a_budget_goes():
    private = replace(SMALL, privacy=PrivacyOptions(noise=6.0, epsilon=1.5))
    found = lines_of(private)
    prepared = prepare(replace(private, privacy=PrivacyOptions(noise=6.0)))
    spending = spending_of(prepared.simulator, prepared.experiment)
    assert found["epsilon"].value == spending.epsilon(3)
    assert found["epsilon"].inside is (spending.epsilon(3) < 1.5)
    assert found["epsilon_client"].value > found["epsilon"].value
    assert found["budget_rounds"].value == spending.rounds_within(1.5, 3)
    assert "noise_client_1" not in found, "the noise is for rows"
    assert "noise_row_1.5" in found
    whole = lines_of(replace(SMALL, privacy=PrivacyOptions(unit="client", tier="edge", noise=6.0)))
    assert whole["epsilon_row"].value == whole["epsilon"].value
    assert not any(name.startswith("works") for name in whole)


def test_the_nearest_settings_would_work():
    """Each is taken, and its noise is then no longer than its signal."""
    base = replace(
        SMALL,
        algorithm=FedAvg(local_steps=2),
        rounds=90,
        batch_size=30,
        data=replace(SMALL.data, train_per_label=600),
        model=ModelOptions(name="tests.support.small_modules:narrow"),
    )
    found = lines_of(base)
    for name in ("rounds", "batch_size"):
        value = int(found[f"works_{name}"].value)
        changed = replace(base, rounds=value) if name == "rounds" else replace(base, batch_size=value)
        prepared = prepare(changed)
        noise = spending_of(prepared.simulator, changed).noise_for(3.0, changed.rounds)
        assert noise_to_signal(prepared, PrivacyOptions(), noise) <= 1.02
    noise = found["noise_row_3"].value
    assert found["works_weights"].value == math.floor((30 / noise) ** 2)


def test_a_method_that_is_not_supported_has_no_such_lines():
    assert not lines_of(replace(SMALL, algorithm=Ditto()))
