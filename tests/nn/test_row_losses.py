"""The losses of rows, against torch; and what is refused of a user's own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from sfedhp.core.errors import InputError
from sfedhp.nn.losses import cross_entropy, cross_entropy_of_rows, mean_of
from sfedhp.nn.problems import CLASSIFICATION, METRICS, PROBLEMS
from sfedhp.nn.row_losses import LossOptions, OwnLoss, probe_loss, row_loss_of

GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.randn(2, 5, 3, generator=GENERATOR, dtype=torch.float64)
CLASSES = torch.randint(3, (2, 5), generator=GENERATOR)
BITS = torch.randint(2, (2, 5, 3), generator=GENERATOR, dtype=torch.uint8)
NUMBERS = 3 * torch.randn(2, 5, 3, generator=GENERATOR, dtype=torch.float64)


def loss(problem: str, name: str = "auto", class_rows: Any = (), **options: Any) -> Any:
    return row_loss_of(LossOptions(name, **options), PROBLEMS[problem], class_rows)


@pytest.mark.parametrize("problem", ["regression", "reconstruction"])
def test_losses_of_numbers_are_those_of_torch(problem: str) -> None:
    for name, expected in (("mse", nn.MSELoss), ("mae", nn.L1Loss), ("auto", nn.MSELoss)):
        each = expected(reduction="none")(SCORES, NUMBERS).mean(-1)
        assert_close(loss(problem, name)(SCORES, NUMBERS), each, rtol=0, atol=1e-12)
    own = nn.HuberLoss(reduction="none", delta=0.5)(SCORES, NUMBERS).mean(-1)
    assert_close(loss(problem, "huber", huber_delta=0.5)(SCORES, NUMBERS), own, rtol=0, atol=1e-12)


def test_the_loss_of_labels_is_the_binary_cross_entropy() -> None:
    each = nn.BCEWithLogitsLoss(reduction="none")(SCORES, BITS.double()).mean(-1)
    assert_close(loss("multilabel")(SCORES, BITS), each, rtol=0, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_weights_and_smoothing_are_those_of_torch(smoothing: float) -> None:
    rows = [6, 3, 1]
    weights = torch.tensor([10 / (3 * count) for count in rows], dtype=torch.float64)
    own = loss("classification", class_rows=rows, label_smoothing=smoothing, class_weights="balanced")
    flat = SCORES.flatten(0, 1), CLASSES.flatten()
    each = functional.cross_entropy(*flat, weight=weights, reduction="none", label_smoothing=smoothing)
    assert_close(own(SCORES, CLASSES).flatten(), each, rtol=0, atol=1e-12)
    plain = loss("classification", label_smoothing=smoothing)
    each = functional.cross_entropy(*flat, reduction="none", label_smoothing=smoothing)
    assert_close(plain(SCORES, CLASSES).flatten(), each, rtol=0, atol=1e-12)


def test_a_class_without_rows_has_no_weight_and_does_not_change_the_others() -> None:
    own = loss("classification", class_rows=[6, 0, 2], class_weights="balanced")
    assert own.weights == pytest.approx((8 / 12, 0, 2))


def test_the_default_keeps_the_fast_path() -> None:
    assert loss("classification") is cross_entropy_of_rows
    assert mean_of(loss("classification")) is cross_entropy


def test_a_mean_leaves_padding_out() -> None:
    real = torch.tensor([[True, True, False, False, False], [False] * 5])
    found = mean_of(loss("regression"))(SCORES, NUMBERS, real)
    assert_close(found[0], functional.mse_loss(SCORES[0, :2], NUMBERS[0, :2]), rtol=0, atol=1e-12)
    assert found[1] == 0


# --- a user's own


def quantile(scores: Tensor, targets: Tensor) -> Tensor:
    off = (targets - scores)[:, 0]
    return torch.maximum(0.9 * off, -0.1 * off)


def matrix(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores - targets) ** 2


def mixing(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores - targets).square().mean(-1) / scores.std()


def number(scores: Tensor, targets: Tensor) -> float:
    return 1.0


def constant(scores: Tensor, targets: Tensor) -> Tensor:
    return torch.ones(len(scores))


def failing(scores: Tensor, targets: Tensor) -> Tensor:
    raise ValueError("no such loss")


NOTHING = None


def test_a_users_loss_gets_rows_of_all_clients_at_once() -> None:
    own = loss("regression", f"{__name__}:quantile")
    probe_loss(own, SCORES[0], NUMBERS[0])
    assert_close(own(SCORES, NUMBERS)[1], quantile(SCORES[1], NUMBERS[1]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("matrix", "returns shape (5, 3) for 5 rows: it must return one loss for each row, shape (5,)"),
        ("number", "returns a float for 5 rows"),
        ("constant", "has no gradient with respect to the scores"),
        ("mixing", "gives a row another loss when it is alone in a batch"),
        (
            "failing",
            "fails for scores of shape (5, 3) and targets of shape (5, 3) (ValueError: no such",
        ),
    ],
)
def test_what_is_refused_of_a_users_loss(name: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        probe_loss(OwnLoss(f"{__name__}:{name}"), SCORES[0], NUMBERS[0])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("problem", "options", "words"),
    [
        ("regression", {"name": "bce"}, "'bce' does not fit problem = regression: use mse, mae, huber or"),
        ("regression", {"name": "msr"}, "'msr' is not known"),
        ("multilabel", {"class_weights": "balanced"}, "class_weights is for loss.name = cross_entropy"),
        ("regression", {"name": "nowhere:loss"}, "cannot be imported (ModuleNotFoundError"),
        ("regression", {"name": f"{__name__}:NOTHING"}, "is not a function of scores and targets"),
    ],
)
def test_what_is_refused_of_the_options(problem: str, options: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        loss(problem, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.33966, "0.3397"),
        (363.42, "363.4"),
        (9999.6, "10000"),
        (54321.2, "54321"),
        (-2e5, "-200000"),
        (3e12, "3e+12"),
    ],
)
def test_a_metric_has_all_its_digits_before_the_point(value: float, text: str) -> None:
    assert METRICS["rmse"].text(value) == text


def test_metrics_of_a_problem() -> None:
    found = CLASSIFICATION.metrics(("auroc", "accuracy"))
    assert [metric.name for metric in found] == ["accuracy", "auroc"]
    assert [metric.column("gm") for metric in found] == ["gm", "gm_auroc"]
    with pytest.raises(InputError, match="'rmse' does not fit problem = classification: use accuracy"):
        CLASSIFICATION.metrics(("rmse",))
