"""Tables of the runs in folders: the figures, clients and classes of one, or a line for each of several."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from sfedhp.cli.output.columns import Column, print_table
from sfedhp.cli.output.console import results
from sfedhp.cli.output.run import print_accuracies, print_folder, print_privacy
from sfedhp.core.formats import percent
from sfedhp.nn.problems import KINDS
from sfedhp.privacy.options import PrivacyOptions
from sfedhp.runs.provenance import METHOD
from sfedhp.runs.record_file import Row
from sfedhp.runs.recorded import RecordedRun
from sfedhp.runs.scores import Scores

AT_MOST = 30  # clients that are printed without --all
MOST_CLASSES = 20  # of a confusion matrix that is printed
_NAME = 20  # least width of the names of runs
_NAME_OF_ONE = 8  # of those of clients, edges and classes
_LABELS = 8  # least width of the labels of a client


def print_recorded(run: RecordedRun, *, all_clients: bool) -> None:
    """Print what was run, the final figures, the clients, the classes and where the files are."""
    console = results()
    console.print(run.sentence, style="bold", soft_wrap=True)
    print_accuracies(console, run.summary)
    print_privacy(console, run.summary, PrivacyOptions.of_config(run.config))
    console.print()
    if run.scores is not None:
        _print_clients(console, run.scores, all_clients=all_clients)
        if run.scores.classes:
            _print_classes(console, run.scores)
            _print_confusion(console, run.scores)
    else:
        console.print(run.missing_scores, soft_wrap=True)
    print_folder(console, run.folder)


def print_recorded_runs(runs: Sequence[RecordedRun]) -> None:
    """Print one line per run; with its metric if the runs have different ones."""
    several = len({run.problem.main for run in runs}) > 1
    columns = [
        *(Column("run", words=_NAME), Column("method", words=6, spare=2), Column("rounds")),
        *([Column("metric", words=len("accuracy, %"))] if several else []),
        *(Column("PM last"), Column("EM last", spare=1), Column("GM last")),
    ]
    lines = []
    for run in runs:
        summary, rounds, metric = run.summary, run.config["rounds"], run.problem.main
        done = str(rounds) if run.finished else f"{run.rounds_done} of {rounds}"
        lines.append(
            [
                run.folder.name,
                run.config[METHOD],
                "diverged" if run.error else done,
                *([f"{metric.title}{', %' if metric.percent else ''}"] if several else []),
                *(metric.text(summary[f"{metric.column(kind)}_last"]) for kind in KINDS),
            ]
        )
    print_table(results(), columns, lines)


def _print_clients(console: Console, scores: Scores, *, all_clients: bool) -> None:
    alone = ["alone"] if any("alone" in row for row in scores.clients) else []
    labels = [Column("labels", words=_LABELS, spare=2)] if scores.classes else []
    named = [
        _NAME_OF_ONE if any(key in row for row in scores.clients) else 0 for key in ("name", "edge_name")
    ]
    columns = [
        *(Column("client", words=named[0]), Column("edge", words=named[1])),
        *(Column("rows", spare=3), Column("test rows", spare=4)),
        *(*labels, Column("PM"), Column("EM"), Column("GM")),
        *(Column("alone") for _ in alone),
        *(Column("loss", spare=1), Column("", words=len("worst decile"))),
    ]
    ranked = scores.ranked_clients()
    shown = ranked if all_clients else ranked[:AT_MOST]
    rows = [
        [
            *(row.get("name", str(row["client"])), row.get("edge_name", str(row["edge"]))),
            *(str(row["rows"]), str(row["test_rows"]), *(_labels(row, scores) for _ in labels)),
            *(scores.metric.text(row[kind]) for kind in (*KINDS, *alone)),
            "–" if row["loss"] is None else f"{row['loss']:.3f}",
            "worst decile" if row["worst_decile"] else "",
        ]
        for row in shown
    ]
    what = "accuracy in %" if scores.metric.name == "accuracy" else scores.metric.heading
    print_table(console, columns, rows, f"Clients after round {scores.round}, worst first; {what}")
    if len(shown) < len(ranked):
        console.print(f"({len(ranked) - len(shown)} more clients; --all shows them)\n")


def _print_classes(console: Console, scores: Scores) -> None:
    named = _NAME_OF_ONE if any("name" in row for row in scores.classes) else 0
    columns = [Column("class", words=named), Column("test rows"), Column("PM"), Column("EM"), Column("GM")]
    rows = [
        [row.get("name", str(row["class"])), str(row["test_rows"]), *(percent(row[kind]) for kind in KINDS)]
        for row in scores.classes
    ]
    print_table(console, columns, rows, f"Classes after round {scores.round}; accuracy in %")


def _print_confusion(console: Console, scores: Scores) -> None:
    """Print the confusion matrix of the model that clients would use."""
    if scores.used not in scores.confusion:
        return
    if len(scores.classes) > MOST_CLASSES:
        console.print(f"(confusion.json has the confusion matrix of all {len(scores.classes)} classes)\n")
        return
    names = [str(row.get("name", row["class"])) for row in scores.classes]
    rows = [
        [name, *map(str, counts)] for name, counts in zip(names, scores.confusion[scores.used], strict=True)
    ]
    named = _NAME_OF_ONE if any("name" in row for row in scores.classes) else 0
    columns = [Column("class", words=named), *map(Column, names)]
    what = f"Confusion of {scores.used.upper()} after round {scores.round}"
    title = f"{what}: test rows of the class of the line, by the class that is predicted"
    console.print(title, style="italic", soft_wrap=True)  # a table of two classes is narrower
    print_table(console, columns, rows)


def _labels(row: Row, scores: Scores) -> str:
    """The labels that a client trains on, by name where they have names."""
    names = {str(each["class"]): each["name"] for each in scores.classes if "name" in each}
    labels = row["labels"].split()
    return ", ".join(names[label] for label in labels) if names else row["labels"]
