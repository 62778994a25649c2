"""Metrics of counts, against a count by hand; a stack's are those of each run alone."""

import pytest
import torch

from sfedhp.nn.problems import CLASSIFICATION, KINDS
from sfedhp.runs.metrics import (
    Counts,
    client_metrics,
    mean_loss,
    metrics_of_reports,
    micro,
    over_clients,
)

METRICS = ("macro", "spread", "worst")
ACCURACY = CLASSIFICATION.main


def test_metrics_of_the_reports_of_a_deployment():
    first = {"test": {"gm": [8, 10, 2.0]}, "train": {"loss": [1, 4, 2.0]}}
    second = {"test": {"gm": [1, 2, 1.0], "pm": [2, 2, 0.0]}, "validation": {"gm": [1, 4, 0.0]}}
    found = metrics_of_reports([first, second, {}])
    assert found["gm"] == pytest.approx(75.0)
    assert found["gm_macro"] == pytest.approx(65.0)
    assert found["gm_spread"] == pytest.approx(15.0)
    assert found["gm_worst"] == pytest.approx(50.0)
    assert found["gm_loss"] == pytest.approx(0.25)
    assert found["gm_validation"] == pytest.approx(25.0)
    assert found["pm"] == 100.0
    assert found["train_loss"] == 0.5
    assert "em" not in found
    assert metrics_of_reports([]) == {}


def test_a_client_without_rows_does_not_count():
    empty = {"test": {"gm": [0, 0, 0.0]}, "validation": {"gm": [0, 0, 0.0]}, "train": {"loss": [0, 0, 0.0]}}
    full = {"test": {"gm": [1, 2, 1.0]}}
    assert metrics_of_reports([empty]) == {}
    assert metrics_of_reports([empty, full, empty]) == metrics_of_reports([full])


def test_a_stack_has_the_metrics_of_each_run():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(1, 9, (3, 4, 5), generator=generator).double()
    rows[:, 0, 2] = 0
    correct = (rows * torch.rand(3, 4, 5, generator=generator)).floor()
    loss = rows * torch.rand(3, 4, 5, generator=generator, dtype=torch.float64)
    stack = Counts({"correct": correct}, loss, rows)
    for kind in KINDS:
        together = client_metrics(ACCURACY, kind, stack, over_clients(1))
        for run in range(3):
            one = stack.map(lambda each, run=run: each[run])  # type: ignore[misc]
            alone = client_metrics(ACCURACY, kind, one, over_clients(0))
            assert list(alone) == list(together) == [f"{kind}_{name}" for name in METRICS]
            for name, value in alone.items():
                assert together[name][run].item() == pytest.approx(value.item())
    assert micro(ACCURACY, stack, over_clients(1)).shape == mean_loss(stack, over_clients(1)).shape == (3,)
    ranked = sorted(100 * c / r for c, r in zip(correct[1].flatten(), rows[1].flatten(), strict=True) if r)
    worst = client_metrics(ACCURACY, "pm", stack, over_clients(1))["pm_worst"][1].item()
    assert worst == pytest.approx(float(sum(ranked[:2]) / 2))


@pytest.mark.parametrize(("clients", "tenth"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_the_worst_tenth_is_rounded_up_and_empty_seats_are_in_no_figure(clients, tenth):
    shares = torch.linspace(20, 90, clients, dtype=torch.float64)
    rows = torch.full((clients,), 100.0, dtype=torch.float64)
    bare = client_metrics(ACCURACY, "gm", Counts({"correct": shares}, rows, rows), over_clients(0))
    assert bare["gm_worst"].item() == pytest.approx(shares[:tenth].mean().item())
    assert bare["gm_spread"].item() == pytest.approx(shares.std(correction=0).item())
    # Empty seats among them: as if they were not there. Their counts may hold anything.
    seats = torch.zeros(2 * clients + 1, dtype=torch.float64)
    filled = [torch.full_like(seats, 7.0), torch.full_like(seats, 5.0), seats]
    for whole, own in zip(filled, (shares, rows, rows), strict=True):
        whole[1::2] = own
    counts = Counts({"correct": filled[0]}, filled[1], filled[2])
    for name, value in client_metrics(ACCURACY, "gm", counts, over_clients(0)).items():
        assert value.item() == pytest.approx(bare[name].item()), name
