"""Whether federating helps: gains, clients that are worse off, and the sentences on them."""

from pathlib import Path
from typing import Any

import pytest

from sfedhp.runs.benefit import benefit_of
from sfedhp.runs.recorded import RecordedRun
from sfedhp.runs.scores import Scores

CLIENTS = 4


def run(method: str, rounds: int = 3, error: str | None = None, validation: Any = None, **kinds: Any):
    """A run whose models of each kind have these accuracies at each client, in every round."""
    means = {kind: sum(values) / len(values) for kind, values in kinds.items()}
    chosen = {} if validation is None else {f"{kind}_validation": validation for kind in kinds}
    history = [
        {"round": turn, "seconds": 1.0, "train_loss": 1.0, **means, **chosen} for turn in range(1, rounds + 1)
    ]
    clients = [
        {"client": client, "labels": "0 1", **dict.fromkeys(("pm", "em", "gm"))}
        | {kind: values[client] for kind, values in kinds.items()}
        for client in range(CLIENTS)
    ]
    scores = Scores(rounds, clients, [{"class": label} for label in range(5)], {})
    config = {"algorithm.name": method, "data.source": "x", "seed": 0, "rounds": 3}
    return RecordedRun(Path(method), config, history, scores, error)


ALONE = run("local", pm=[90.0, 80.0, 70.0, 60.0])  # 75 in the mean
POOLED = run("pooled", gm=[80.0] * 4)
BETTER = run("sfedhp", pm=[95.0, 79.0, 80.0, 60.0], em=[70.0] * 4, gm=[60.0] * 4)  # PM 78.5
WORSE = run("pfedme", pm=[70.0, 60.0, 70.0, 60.0])


def test_the_figures_are_gains_over_both_and_the_clients_that_are_worse_off():
    benefit = benefit_of([ALONE, POOLED, BETTER])
    assert benefit.figures("sfedhp", "pm") == (3.5, -1.5, 1, 4, None)
    assert benefit.figures("sfedhp", "gm") == (-15.0, -20.0, 3, 4, None)
    assert benefit.figures("local", "pm") == (0.0, -5.0, 0, 4, None)
    assert benefit.figures("local", "gm") is None
    found = benefit.as_dict("sfedhp")
    assert (found["alone"], found["pooled"], found["more_rounds"]) == (75.0, 80.0, None)
    assert found["em"]["worse_than_alone"] == 2
    assert benefit.as_dict("fedavg")["pm"] is None
    assert benefit.alone_by_client() == {0: 90.0, 1: 80.0, 2: 70.0, 3: 60.0}


def test_the_sentence_says_what_the_best_model_of_each_tier_gains():
    [sentence] = benefit_of([ALONE, POOLED, WORSE, BETTER]).sentences()
    assert sentence == (
        "Training alone has 75.0 %, one model of all rows in one place 80.0 %: the best personal models "
        "(sfedhp, 78.5 %) are 3.5 points above training alone and 1.5 points below pooled rows, and worse "
        "than alone for 1 of 4 clients; the best edge models (sfedhp, 70.0 %) are 5.0 points below training "
        "alone and 10.0 points below pooled rows; the best global model (sfedhp, 60.0 %) is 15.0 points "
        "below training alone and 20.0 points below pooled rows."
    )


def test_where_training_alone_is_better_it_says_so_and_what_the_other_models_are_for():
    shared = run("hierfavg", em=[74.0] * 4, gm=[75.0] * 4)
    sentences = benefit_of([ALONE, WORSE, shared]).sentences()
    assert (
        "(pfedme, 65.0 %) are 10.0 points below training alone, and worse than alone for 2 of 4"
        in sentences[0]
    )
    assert "(hierfavg, 75.0 %) is as good as training alone." in sentences[0]
    assert sentences[1] == (
        "For the rows that each client holds, training alone is enough here; the edge models and global "
        "model are for what a client alone cannot do: rows with labels that it does not hold (a client "
        "holds 2 of 5), and clients that join later."
    )
    assert benefit_of([ALONE, WORSE]).sentences()[1:] == [
        "For the rows that each client holds, training alone is enough."
    ]
    assert (
        "enough here; the global model is for"
        in benefit_of([ALONE, run("fedavg", gm=[9.0] * 4)]).sentences()[1]
    )
    useful = run("fedavg", gm=[76.0] * 4)
    assert len(benefit_of([ALONE, WORSE, useful]).sentences()) == 1


def test_the_best_method_is_chosen_on_validation_rows():
    one, two = run("pfedme", validation=50.0, pm=[90.0] * 4), run("sfedhp", validation=60.0, pm=[80.0] * 4)
    assert "(sfedhp, 80.0 %)" in benefit_of([ALONE, one, two]).sentences()[0]


def test_rising_accuracy_is_named_with_the_rounds_to_try():
    rising = run("fedavg", gm=[50.0] * 4)
    for step, row in enumerate(rising.history):
        row["gm"] = 40.0 + 5 * step
    benefit = benefit_of([ALONE, rising])
    assert benefit.sentences()[0].endswith("; GM was still rising at the end: try 3 more rounds.")
    assert benefit.as_dict("fedavg")["more_rounds"] == 3
    assert benefit.as_dict("fedavg")["gm"]["still_rising"] == 5.0


@pytest.mark.parametrize(
    "runs",
    [
        [POOLED, BETTER],
        [ALONE],
        [ALONE, POOLED],
        [ALONE, ALONE, BETTER],
        [run("local", error="diverged", pm=[1.0] * 4), BETTER],
        [run("local", rounds=2, pm=[1.0] * 4), BETTER],
    ],
    ids=["no local", "only local", "no method", "a sweep", "diverged", "stopped"],
)
def test_without_a_finished_run_alone_or_a_method_there_is_no_sentence(runs):
    assert benefit_of(runs).sentences() == []
