"""Rows of the tables, from records: our accuracies (last, validated and best round) beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

from sfedhp.paper.newcomers import NEWCOMER_ROWS
from sfedhp.paper.published import PAPER_KINDS, TABLES, cells, overview
from sfedhp.paper.records import Record
from sfedhp.paper.significance import half_width
from sfedhp.paper.studies import MAIN_READING, Study

EARLY = 200  # a round by which many of the paper's numbers are passed
TAIL = 5  # evaluations at the end of a run; their mean is the figure that counts


@dataclass(frozen=True)
class Row:
    """One accuracy of a table, in percent. Means are over seeds; `sd` are sample standard deviations."""

    table: str
    dataset: str
    setting: int
    method: str
    variant: str
    lam: float | None
    alpha: float | None
    kind: str  # pm or gm
    reading: str  # how the paper's text was understood: balanced, neighbouring or as-written
    statistics: str | None  # of batch norm, for global models: local or averaged; None without
    paper: float | None  # None in every row the paper does not have
    ours_tail: float  # the mean of the last `TAIL` evaluations: the figure that counts
    ours_last: float
    ours_validated: float | None
    ours_best: float
    ci: float | None  # half the width of the 95 % interval of `ours_tail`
    sd_tail: float | None
    sd: float | None  # of the last round
    sd_validated: float | None
    sd_best: float | None
    seeds: int
    rounds: int
    diverged: int  # how many of the runs ended early
    tail: Mapping[int, float]  # the figure that counts by seed, for tests between methods
    last: Mapping[int, float]  # the last round by seed
    validation: float | None  # as `ours_tail` on validation data, to choose between rows
    reached: int | None = None  # the first evaluated round whose mean over seeds is not below the paper's
    early: float | None = None  # the mean over seeds in round `EARLY`

    @property
    def metric(self) -> str:
        """`kind`, by its name in the JSON of `sfedhp reproduce --json`."""
        return self.kind

    @property
    def gap(self) -> float | None:
        """Ours − paper, by the paper's likely convention: the best evaluated round."""
        return None if self.paper is None else self.ours_best - self.paper

    @property
    def evaluated(self) -> bool:
        """Whether any run was evaluated; False if all diverged before their first evaluation."""
        return self.diverged < self.seeds or any(self.last.values())

    @property
    def compared(self) -> bool:
        """Whether it is compared with the paper: batch-norm statistics, where there are any, are local."""
        return self.statistics != "averaged"


def rows(studies: Sequence[Study], records: Sequence[Record]) -> list[Row]:
    """The rows of the tables among these studies, in the order of their files."""
    return [
        row
        for study in studies
        if study.table in TABLES
        for variant in study.variants
        for row in _variant_rows(study, variant, final_records(study, variant, records))
    ]


def final_records(study: Study, variant: str, records: Sequence[Record]) -> list[Record]:
    """The runs whose numbers are shown: those with the most rounds, without the trials before a choice."""
    mine = [each for each in records if (each.study, each.variant) == (study.name, variant)]
    longest = max((each.rounds for each in mine), default=0)
    # Before a point was chosen, a variant of several points has only trials, all with the same rounds.
    if len(study.variants[variant]) > 1 and all(each.rounds == longest for each in mine):
        return []
    return sorted((each for each in mine if each.rounds == longest), key=lambda each: each.seed)


def table1_rows(detail: Sequence[Row], reading: str = MAIN_READING) -> list[Row]:
    """The rows of Table 1: of each of five methods the row of its detail table that the paper shows."""
    detail = [row for row in detail if row.reading == reading and row.kind == "gm" and row.paper is not None]
    chosen = []
    for cell in overview():
        for row in detail:
            same = (row.dataset, row.setting, row.method) == (cell.dataset, cell.setting, cell.method)
            if same and row.lam == cell.lam:
                chosen.append(row)
    return chosen


def _newcomer_rows(study: Study, runs: Sequence[Record]) -> Iterator[Row]:
    """The rows of clients that join after training: one accuracy per run."""
    for name, (words, kind) in NEWCOMER_ROWS.items():
        values = {run.seed: run.newcomers[name] for run in runs if name in run.newcomers}
        if values:
            figures = {seed: _Figures(value, value, value, None, None) for seed, value in values.items()}
            yield _row(study, runs, f"{runs[0].variant}: {words}", kind, None, None, figures)


def _variant_rows(study: Study, variant: str, runs: Sequence[Record]) -> Iterator[Row]:
    if not runs:
        return
    yield from _newcomer_rows(study, runs)
    for kind in PAPER_KINDS:
        for column, statistics in _columns(_with_curve(runs), kind):
            paper = _paper(study, runs[0], kind) if study.paper and statistics != "averaged" else None
            figures = {run.seed: _figures(run, column) for run in runs}
            row = _row(study, runs, variant, kind, statistics, paper, figures)
            means = _means(runs, column)
            passed = (turn for turn, mean in means.items() if paper is not None and mean >= paper)
            yield replace(row, reached=next(passed, None), early=means.get(EARLY))


def _row(
    study: Study,
    runs: Sequence[Record],
    variant: str,
    kind: str,
    statistics: str | None,
    paper: float | None,
    by_seed: Mapping[int, _Figures],
) -> Row:
    dataset, setting = TABLES[study.table]
    options = runs[0].config["algorithm"]
    figures = by_seed.values()
    tail = [each.tail for each in figures]
    last, best = [each.last for each in figures], [each.best for each in figures]
    known = [each.validated for each in figures if each.validated is not None]
    judged = [each.validation for each in figures if each.validation is not None]
    return Row(
        table=study.table,
        dataset=dataset,
        setting=setting,
        method=options["name"],
        variant=variant,
        lam=_strength(runs[0]),
        alpha=options.get("self_weight"),
        kind=kind,
        reading=study.reading,
        statistics=statistics,
        paper=paper,
        ours_tail=fmean(tail),
        ours_last=fmean(last),
        ours_validated=fmean(known) if known else None,
        ours_best=fmean(best),
        ci=half_width(tail),
        sd_tail=_standard_deviation(tail),
        sd=_standard_deviation(last),
        sd_validated=_standard_deviation(known),
        sd_best=_standard_deviation(best),
        seeds=len(figures),
        rounds=runs[0].rounds,
        diverged=sum(run.trouble is not None for run in runs),
        tail={seed: each.tail for seed, each in by_seed.items()},
        last={seed: each.last for seed, each in by_seed.items()},
        validation=fmean(judged) if judged else None,
    )


def _strength(run: Record) -> float | None:
    """The value that the paper's tables print as λ."""
    options = run.config["algorithm"]
    names = () if options["name"] == "heurfedamp" else ("client_proximity", "proximity")
    return next((options[name] for name in names if name in options), None)


def _with_curve(runs: Sequence[Record]) -> Record:
    """A run that has a curve, if there is one."""
    return next((run for run in runs if run.curve), runs[0])


def _columns(run: Record, kind: str) -> Iterator[tuple[str, str | None]]:
    """The columns of a kind of model, each with its batch-norm statistics: with batch norm, GM has two."""
    if f"{kind}_local" in run.curve:
        yield from ((f"{kind}_{each}", each) for each in ("local", "averaged"))
    elif kind in run.curve or (kind == "gm" and not run.curve):
        # A run that diverged before its first evaluation has no column and no accuracy, but is shown.
        yield kind, None


class _Figures(NamedTuple):
    """The accuracies of one run."""

    tail: float  # the mean of the last `TAIL` evaluations
    last: float
    best: float
    validated: float | None  # the test accuracy of the round chosen on validation data
    validation: float | None  # as `tail` on validation data


def _figures(run: Record, column: str) -> _Figures:
    """The accuracies of a run in one column; a missing value counts as 0."""
    values = [0.0 if value is None else float(value) for value in run.curve.get(column, ())]
    if not values:
        return _Figures(0.0, 0.0, 0.0, None, None)
    tail = fmean(values[-TAIL:])
    kind, _, statistics = column.partition("_")
    reported = run.config["evaluation"]["norm_statistics"]
    judged = run.curve.get(f"{kind}_validation" if statistics in ("", reported) else f"{column}_validation")
    if judged is None:
        return _Figures(tail, values[-1], max(values), None, None)
    ranked = [0.0 if value is None else float(value) for value in judged]
    chosen = values[ranked.index(max(ranked))]
    return _Figures(tail, values[-1], max(values), chosen, fmean(ranked[-TAIL:]))


def _means(runs: Sequence[Record], column: str) -> dict[int, float]:
    """The mean over runs, by evaluated round."""
    curves = [run.curve[column] for run in runs if column in run.curve]
    together = zip(_with_curve(runs).curve.get("round", ()), *curves, strict=False)
    return {int(turn): fmean(value or 0.0 for value in values) for turn, *values in together}


def _paper(study: Study, run: Record, kind: str) -> float | None:
    """The paper's number for the settings of this run."""
    options = run.config["algorithm"]
    for cell in cells():
        same = (cell.dataset, cell.setting, cell.method) == (*TABLES[study.table], options["name"])
        if same and cell.lam in (None, _strength(run)) and cell.alpha in (None, options.get("self_weight")):
            number: float | None = getattr(cell, kind)
            return number
    return None


def _standard_deviation(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def row_to_dict(row: Row) -> Mapping[str, Any]:
    """The row as a flat JSON object; accuracies are None if no run was evaluated."""
    names = ["metric" if name == "kind" else name for name in Row.__dataclass_fields__]
    values = {name: getattr(row, name) for name in (*names, "gap")}
    missing = ("ours_tail", "ours_last", "ours_best", "ci", "sd_tail", "sd", "sd_best", "gap")
    return values if row.evaluated else values | dict.fromkeys(missing)
