"""Each hint, when it is true and when it is not."""

import pytest

from sfedhp.runs.hints import SeenClasses, hints, hints_of_classes, never_moved, still_rising, was_better
from sfedhp.runs.hints import one_class as one_class_of
from sfedhp.runs.scores import Scores


def history(*accuracies, kind="gm", **others):
    """A row per round; None: a round without evaluation."""
    columns = {kind: accuracies, **others}
    return [
        {"round": number}
        | {name: values[number - 1] for name, values in columns.items() if values[number - 1]}
        for number in range(1, len(accuracies) + 1)
    ]


def one_class(confusion):
    return one_class_of({kind: SeenClasses.of(matrix) for kind, matrix in confusion.items()})


def test_one_class_for_every_row():
    constant, mixed = [[0, 0, 5], [0, 0, 3], [0, 0, 2]], [[4, 0, 1], [0, 1, 2], [0, 0, 2]]
    assert one_class({"pm": mixed, "gm": constant}) == (
        "All predictions of GM (class 2) are one class: "
        "check the scale of the inputs (data.scale) and the rates (`sfedhp check`)."
    )
    assert "PM (class 2), EM (class 0) and GM (class 2)" in str(
        one_class({"pm": constant, "em": [[4, 0, 0], [1, 0, 0], [0, 0, 0]], "gm": constant})
    )
    assert one_class({"pm": mixed}) is None
    assert one_class({"pm": [[4, 0, 0], [1, 0, 0], [0, 1, 0]]}) is None


def test_one_class_is_right_where_there_is_only_one():
    assert one_class({"gm": [[0, 0], [0, 9]]}) is None
    assert one_class({"gm": [[0, 0], [9, 0]]}) is None
    assert one_class({"gm": [[0, 0], [0, 0]]}) is None
    assert one_class({}) is None


def test_accuracy_that_never_moved():
    assert never_moved(history(62.5, 62.5, None, 62.5)) == (
        "The accuracy of GM (62.50 %) never moved from its first evaluation: "
        "check the scale of the inputs (data.scale) and the rates (`sfedhp check`)."
    )
    assert "of PM (40.00 %) never" in str(never_moved(history(50, 60, pm=[40, 40])))
    assert "of PM (40.00 %) and GM (50.00 %) never moved from their first" in str(
        never_moved(history(50, 50, pm=[40, 40]))
    )


def test_a_model_that_learns_without_moving_gets_no_hint():
    """Such as one that has all test rows but one right from the start."""
    rows = history(97.5, 97.5, train_loss=[0.05, 0.044])
    several, one = (SeenClasses(frozenset({0, 1}), frozenset(labels)) for labels in ({0, 1}, {1}))
    assert never_moved(rows, {"gm": several}) is None
    assert "of GM (97.50 %) never moved from its" in str(never_moved(rows, {"gm": one}))
    assert never_moved(history(97.5, 97.5, train_loss=[0.05, 0.046]), {"gm": several}) is not None
    assert never_moved(rows) is not None


@pytest.mark.parametrize("accuracies", [[], [50], [50, None], [50, 50.1, 50], [50, 50, 49], [100, 100, 100]])
def test_accuracy_that_moved_or_cannot(accuracies):
    assert never_moved(history(*accuracies)) is None


def test_still_rising():
    assert still_rising(history(10, 20, 30, 40, 45, 50)) == (
        "Accuracy was still rising at the end (GM by 10.0 points in the last third): "
        "use more rounds, for example rounds=12."
    )
    assert "PM by 2.0 points and GM by 1.5 points" in str(
        still_rising(history(10, 50, 51.5, pm=[70, 80, 82]))
    )
    # Rounds without evaluation do not count, and the best of a third does, not its last.
    assert "GM by 5.0 points" in str(still_rising(history(10, None, 20, 30, None, 31, 36, 20)))


@pytest.mark.parametrize(
    "accuracies",
    [
        [],
        [10, 90],  # too few evaluations
        [10, 90, 91],  # a point is not more than a point
        [10, 60, 90, 80, 85, 90.5],
        [50, 40, 30, 20, 10, 5],
        [10, None, 90, None, None, None],
    ],
)
def test_not_rising(accuracies):
    assert still_rising(history(*accuracies)) is None


def test_better_earlier():
    assert was_better(history(50, 67.1, 66, 64, 61, 61.5)) == (
        "The best accuracy was earlier (GM 67.10 % before and 61.50 % in the last third), perhaps because "
        "the models overfit: use fewer rounds, and data.validation_per_label=1 to see after how many on "
        "rows that are not for testing."
    )
    # The best value anywhere before the last third counts, and the best of the third.
    assert "PM 90.00 %" in str(was_better(history(50, 60, 70, pm=[90, 80, 87.9])))
    assert was_better(history(50, 60, 70, pm=[90, 80, 88])) is None  # two points are not more than two
    assert was_better(history(90, 10)) is None  # too few evaluations
    assert was_better(history(50, 67, 66, 30, 30, 65.5)) is None


def test_an_error_that_was_lower_earlier():
    rows = [{"round": n, "train_loss": 1.0, "gm_rmse": each} for n, each in enumerate((9.0, 5.0, 5.2), 1)]
    assert "The best RMSE was earlier (GM 5 before and 5.2 in the last third)" in str(was_better(rows))
    rows[-1]["gm_rmse"] = 5.1
    assert was_better(rows) is None


def test_a_run_with_rounds_left_is_not_advised_to_use_more():
    rows = history(10, 50, 90)
    assert hints(rows, None, finished=False) == []
    assert hints(rows, None, finished=True) == [still_rising(rows)]
    falling = history(90, 90, 50)
    assert hints(falling, None, finished=False) == []
    assert hints(falling, None, finished=True) == [was_better(falling)]


def test_every_rule_is_asked():
    scores = Scores(3, [], [], {"gm": [[0, 3], [0, 3]]})
    rows = history(50, 50, 50, pm=[10, 20, 30])
    assert hints(rows, scores, finished=True) == [
        one_class(scores.confusion),
        never_moved(rows),
        still_rising(rows),
    ]
    assert hints(history(50, 60, 60.5), Scores(3, [], [], {"gm": [[2, 1], [0, 3]]}), finished=True) == []


def test_classes_without_scores():
    """As in a deployment, where each client knows those of its own rows."""
    rows = history(50, 50)
    first, second = SeenClasses({0}, {1}), SeenClasses({1}, {1})
    assert first | second == SeenClasses({0, 1}, {1})
    found = hints_of_classes(rows, {"gm": first | second}, ["ill", "well"], finished=False)
    assert found == [
        "All predictions of GM (class well) are one class: "
        "check the scale of the inputs (data.scale) and the rates (`sfedhp check`).",
        never_moved(rows),
    ]
    assert hints_of_classes(rows, {"gm": first}, finished=False) == [never_moved(rows)]


def test_a_regression_that_is_no_better_than_the_mean_is_not_told_to_go_on():
    errors = [
        {"round": place, "gm_rmse": 90.0 - place, "gm_r2": -5.0, "train_loss": 1.0} for place in range(1, 10)
    ]
    (sentence,) = hints(errors, None, finished=True)
    assert sentence.startswith("The models are no better than predicting the mean (GM R² -5")
    better = [row | {"gm_r2": 0.5} for row in errors]
    assert all("no better" not in each for each in hints(better, None, finished=True))


def test_what_was_as_good_before_is_not_rising():
    assert still_rising(history(50, 40, 30, 30, 45, 50)) is None
