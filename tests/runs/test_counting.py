"""Every metric, against scikit-learn: from the sums of clients, and from the reports of a deployment."""

from typing import Any

import numpy as np
import pytest
import sklearn.metrics as oracle
import torch
from numpy.typing import NDArray

from sfedhp.nn.problems import METRICS, PROBLEMS
from sfedhp.nn.row_losses import LossOptions, row_loss_of
from sfedhp.runs.counting import Counting, add
from sfedhp.runs.metrics import client_metrics, metrics_of_reports, micro, over_clients, report_of, value_of

CLIENTS, ROWS, OUTPUTS = (2, 3), 40, 4
DRAW = np.random.default_rng(3)
SIZES = torch.tensor([[40, 25, 33], [0, 7, 18]])
REAL = torch.arange(ROWS) < SIZES.unsqueeze(-1)
UNIT = torch.tensor([2.0, 0.5, 10.0, 1.0], dtype=torch.float64)
Array = NDArray[Any]


def case(problem: str) -> tuple[Counting, torch.Tensor, torch.Tensor]:
    """Counting everything, scores and labels of a problem; scores know something of the labels."""
    known = PROBLEMS[problem]
    metrics = known.metrics((*known.reported, *known.extra))
    loss = row_loss_of(LossOptions(), known, ())
    noise = torch.from_numpy(DRAW.normal(size=(*CLIENTS, ROWS, OUTPUTS)))
    if problem == "classification":
        labels = torch.from_numpy(DRAW.integers(0, OUTPUTS, (*CLIENTS, ROWS)))
        return Counting(known, metrics, loss), noise + torch.nn.functional.one_hot(labels, OUTPUTS), labels
    if problem == "multilabel":
        labels = torch.from_numpy(DRAW.integers(0, 2, (*CLIENTS, ROWS, OUTPUTS)).astype(np.uint8))
        return Counting(known, metrics, loss), noise + labels - 0.5, labels
    labels = torch.from_numpy(DRAW.normal(size=(*CLIENTS, ROWS, OUTPUTS)))
    unit = UNIT if problem == "regression" else 1.0
    return Counting(known, metrics, loss, unit), labels + 0.5 * noise, labels


def expected(problem: str, scores: Array, labels: Array) -> dict[str, float]:
    """The metrics of rows, by scikit-learn."""
    if problem == "classification":
        chosen, chances = scores.argmax(-1), torch.from_numpy(scores).softmax(-1).numpy()
        each = [oracle.roc_auc_score(labels == place, chances[:, place]) for place in range(OUTPUTS)]
        return {
            "accuracy": 100 * oracle.accuracy_score(labels, chosen),
            "balanced_accuracy": 100 * oracle.balanced_accuracy_score(labels, chosen),
            "macro_f1": 100 * oracle.f1_score(labels, chosen, average="macro"),
            "auroc": 100 * float(np.mean(each)),
            "log_loss": oracle.log_loss(labels, chances, labels=list(range(OUTPUTS))),
        }
    if problem == "multilabel":
        chosen = (scores > 0).astype(int)
        return {
            "macro_f1": 100 * oracle.f1_score(labels, chosen, average="macro"),
            "label_accuracy": 100 - 100 * oracle.hamming_loss(labels, chosen),
            "subset_accuracy": 100 * oracle.accuracy_score(labels, chosen),
            "auroc": 100 * oracle.roc_auc_score(labels, scores, average="macro"),
            "log_loss": float(
                torch.nn.functional.binary_cross_entropy_with_logits(
                    torch.from_numpy(scores), torch.from_numpy(labels).double()
                )
            ),
        }
    if problem == "regression":
        true, guess = labels * UNIT.numpy() + 7, scores * UNIT.numpy() + 7
        return {
            "rmse": oracle.root_mean_squared_error(true, guess),
            "mae": oracle.mean_absolute_error(true, guess),
            "r2": oracle.r2_score(true, guess),
        }
    return {
        "rmse": oracle.root_mean_squared_error(labels.ravel(), scores.ravel()),
        "mae": oracle.mean_absolute_error(labels, scores),
    }


@pytest.mark.parametrize("problem", list(PROBLEMS))
def test_metrics_are_those_of_scikit_learn(problem: str) -> None:
    counting, scores, labels = case(problem)
    counts = counting.count(scores, labels, REAL).counts
    together = expected(problem, scores[REAL].numpy(), labels[REAL].numpy())
    assert list(together) == [metric.name for metric in counting.metrics]
    total = over_clients(0, 2)
    for metric in counting.metrics:
        # The bins of the AUROC are narrow but not exact.
        tolerance = 0.02 if metric.name == "auroc" else 1e-9
        assert micro(metric, counts, total).item() == pytest.approx(together[metric.name], abs=tolerance)
        each = value_of(metric, counts)
        alone = [
            expected(problem, scores[place][: SIZES[place]].numpy(), labels[place][: SIZES[place]].numpy())
            for place in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2))
        ]
        own = np.array([one[metric.name] for one in alone])
        if metric.name == "auroc":
            tolerance = 1.0  # a pair in one bin weighs more among few rows
        found = each[SIZES > 0].numpy()
        np.testing.assert_allclose(found, own, atol=tolerance)
        varied = client_metrics(metric, "gm", counts, total)
        column = metric.column("gm")
        assert varied[f"{column}_macro"].item() == pytest.approx(own.mean(), abs=tolerance)
        assert varied[f"{column}_spread"].item() == pytest.approx(own.std(), abs=tolerance)
        worst = own.min() if metric.higher_is_better else own.max()
        assert varied[f"{column}_worst"].item() == pytest.approx(worst, abs=tolerance)


@pytest.mark.parametrize("problem", list(PROBLEMS))
def test_rows_in_parts_and_reports_of_clients_give_the_same(problem: str) -> None:
    counting, scores, labels = case(problem)
    whole = counting.count(scores, labels, REAL).counts
    halves = [
        counting.count(*(part[:, :, some] for part in (scores, labels, REAL))).counts
        for some in (slice(0, 16), slice(16, ROWS))
    ]
    reports = []
    for place in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2)):
        size = int(SIZES[place])
        alone = (part[place][:size] for part in (scores, labels, REAL))
        reports.append({"test": {"gm": report_of(counting.count(*alone).counts)}})
    columns = metrics_of_reports(reports, counting.metrics)
    for metric in counting.metrics:
        value = micro(metric, whole, over_clients(0, 2)).item()
        assert micro(metric, add(*halves), over_clients(0, 2)).item() == pytest.approx(value, abs=1e-10)
        assert columns[metric.column("gm")] == pytest.approx(value, abs=1e-10)
        for name, other in client_metrics(metric, "gm", whole, over_clients(0, 2)).items():
            assert columns[name] == pytest.approx(other.item(), abs=1e-10)


@pytest.mark.parametrize(
    ("center", "spread", "error"),
    [(0, 0.01, 0.5), (0, 0.1, 0.05), (0, 1, 0.02), (0, 5, 0.02), (-2.2, 0.1, 0.3), (-2.2, 1, 0.03)],
)
def test_bins_are_narrow_where_scores_of_a_young_model_are(
    center: float, spread: float, error: float
) -> None:
    counting, _, _ = case("multilabel")
    errors = []
    for seed in range(10):
        draw = np.random.default_rng(seed)
        labels = draw.integers(0, 2, 1000)
        scores = center + spread * (draw.normal(size=1000) + labels)
        given = torch.from_numpy(scores).view(1, -1, 1), torch.from_numpy(labels).view(1, -1, 1)
        counts = counting.count(*given, torch.ones(1, 1000, dtype=torch.bool)).counts
        exact = 100 * oracle.roc_auc_score(labels, scores)
        errors.append(abs(value_of(METRICS["auroc"], counts).item() - exact))
    assert np.mean(errors) < error


def test_equal_scores_count_half() -> None:
    counting, _, _ = case("multilabel")
    scores = torch.tensor([[[0.0], [0.0], [1.0], [-1.0]]], dtype=torch.float64)
    labels = torch.tensor([[[1], [0], [1], [0]]])
    counts = counting.count(scores, labels, torch.ones(1, 4, dtype=torch.bool)).counts
    assert value_of(METRICS["auroc"], counts).item() == 100 * oracle.roc_auc_score(
        [1, 0, 1, 0], [0, 0, 1, -1]
    )


def test_a_metric_that_is_not_defined_for_a_client_leaves_it_out() -> None:
    counting, scores, labels = case("regression")
    labels[0, 1] = 3.25  # all rows equal
    counts = counting.count(scores, labels, REAL).counts
    r2 = METRICS["r2"]
    assert value_of(r2, counts).isnan().sum() == 2  # and the client without rows
    own = value_of(r2, counts)[~value_of(r2, counts).isnan()]
    varied = client_metrics(r2, "gm", counts, over_clients(0, 2))
    assert varied["gm_r2_macro"].item() == pytest.approx(own.mean().item())
    assert varied["gm_r2_worst"].item() == pytest.approx(own.min().item())
