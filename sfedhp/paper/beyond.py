"""Tables of the studies beyond the paper: all three tiers at their best, and two public arenas."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sfedhp.nn.problems import KINDS
from sfedhp.paper.records import Record
from sfedhp.paper.rows import TAIL, final_records
from sfedhp.paper.studies import Study
from sfedhp.paper.tables import NOT_RUN, TextTable

OURS: Final = "sfedhp-plus"
_WORST: Final = "pm_worst"
_COLUMNS: Final = (*KINDS, _WORST)
_WITHIN: Final = 0.3  # points from the best method of a tier
_WITHIN_WORST: Final = 0.5  # the same of PM's worst decile
_WITHIN_PUBLISHED: Final = 0.7  # points from PFLlib's figure
_LEVEL: Final = 0.2  # points; a curve that rose less in the last quarter of its rounds has levelled off


def beyond_table(study: Study, records: Sequence[Record]) -> TextTable:
    """The table of a study, from the records that there are."""
    runs = {variant: final_records(study, variant, records) for variant in study.variants}
    table = _of_pfllib if study.table == "pfllib" else _of_tiers
    return table(study, runs)


def last_five(runs: Sequence[Record], column: str) -> float | None:
    """The mean of the last five evaluations and of all seeds; None if a run lacks the column."""
    curves = [run.curve.get(column) for run in runs]
    tails = [[each for each in curve[-TAIL:] if each is not None] for curve in curves if curve]
    return statistics.fmean(map(statistics.fmean, tails)) if tails and len(tails) == len(runs) else None


def gradient_steps(algorithm: Mapping[str, Any]) -> str:
    """Gradients of a client in a cloud round, as a config has them: a number, or passes over its rows."""
    name, rounds = algorithm["name"], algorithm.get("edge_rounds", 1)
    each = {"apfl": 2, "ditto": 2, "perfedavg": 2, "feddbe": 3}.get(name, 1)
    if algorithm.get("local_epochs"):
        passes = each * algorithm["local_epochs"] * rounds * (2 if name == "fedrep" else 1)
        return f"{passes} passes" if passes > 1 else "1 pass"
    if "personal_steps" in algorithm:
        return str(algorithm.get("local_rounds", rounds) * algorithm["personal_steps"])
    steps = (
        algorithm.get("local_steps", 0) + algorithm.get("head_steps", 0) + algorithm.get("weight_steps", 0)
    )
    return str(each * steps * rounds)


def verdicts(study: Study, runs: Mapping[str, Sequence[Record]]) -> dict[str, tuple[float, str] | None]:
    """How many points ours is from the best method of each tier, and that method; None: not known yet."""
    found: dict[str, tuple[float, str] | None] = {}
    for column in _COLUMNS:
        figures = {name: last_five(mine, column) for name, mine in runs.items() if mine}
        known = {name: figure for name, figure in figures.items() if figure is not None}
        best = max(known, key=lambda name: known[name], default=None)
        complete = all(runs[name] for name in study.variants)
        found[column] = (known[OURS] - known[best], best) if complete and best and OURS in known else None
    return found


def _of_tiers(study: Study, runs: Mapping[str, Sequence[Record]]) -> TextTable:
    lines: list[tuple[str, ...]] = []
    for variant, mine in runs.items():
        if not mine:
            lines.append((variant, *(NOT_RUN, "–", "–", "–", "–", "–", "0")))
            continue
        tiers = [_shown(last_five(mine, column)) for column in _COLUMNS]
        seconds = statistics.fmean(run.seconds for run in mine)
        steps = gradient_steps(mine[0].config["algorithm"])
        lines.append((variant, *tiers, steps, f"{seconds:.0f}", _seeds(mine)))
    heads = ("method", "PM", "EM", "GM", "worst PM", "steps", "seconds", "seeds")
    return TextTable(f"{study.name}: {len(study.variants)} methods", heads, tuple(lines), _note(study, runs))


def _note(study: Study, runs: Mapping[str, Sequence[Record]]) -> str:
    """The text under the table: what its columns are, and the verdict of each tier."""
    note = (
        "Means of the last five evaluations and of all seeds; worst PM: the mean of the worst tenth of "
        "clients; steps: gradients of a client in a cloud round, without finishing steps. "
    )
    parts = []
    for column, verdict in verdicts(study, runs).items():
        name, limit = ("PM's worst decile", _WITHIN_WORST) if column == _WORST else (column.upper(), _WITHIN)
        if verdict is None:
            parts.append(f"{name}: {NOT_RUN}")
            continue
        gap, best = verdict
        held = "within" if gap >= -limit else "NOT within"
        parts.append(f"{name}: {gap:+z.2f} to {best}, {held} {limit}")
    return f"{note}{OURS} against the best of each tier: {'; '.join(parts)}."


def _of_pfllib(study: Study, runs: Mapping[str, Sequence[Record]]) -> TextTable:
    lines: list[tuple[str, ...]] = []
    near = judged = 0
    for variant, mine in runs.items():
        published = study.published.get(variant)
        paper = "–" if published is None else f"{published:.2f}"
        if not mine:
            lines.append((variant, paper, NOT_RUN, *["–"] * 10, "0", NOT_RUN))
            continue
        column = "pm" if last_five(mine, "pm") is not None else "gm"
        best = statistics.fmean(max(_known(run, column), default=0.0) for run in mine)
        rise = _rise(mine, column)
        verdict = "–"
        if published is not None:
            within, level = abs(best - published) <= _WITHIN_PUBLISHED, rise < _LEVEL
            verdict = f"within {_WITHIN_PUBLISHED}" if within else "off"
            verdict += "" if level else ", still rising"
            near, judged = near + (level and within), judged + level
        lines.append(
            (
                *(variant, paper, f"{best:.2f}"),
                _shown(_validated(mine, column)),
                _shown(statistics.fmean(_known(run, column)[-1] for run in mine)),
                "–" if published is None else f"{best - published:+z.2f}",
                f"{rise:+z.2f}",
                *(_shown(last_five(mine, each)) for each in ("em", "gm")),
                _shown(last_five(mine, "pm_worst" if column == "pm" else "gm_worst")),
                f"{_gigabytes(mine):.1f}",
                f"{statistics.fmean(run.seconds / run.rounds for run in mine):.2g}",
                _newcomer(mine),
                _seeds(mine),
                verdict,
            )
        )
    heads = (
        *("method", "published", "best", "validated", "last", "gap", "rise", "EM", "GM", "worst decile"),
        *("GB", "s/round", "newcomer", "seeds", "verdict"),
    )
    share = NOT_RUN
    if judged:
        share = f"{near} of {judged} cells that have levelled off are within {_WITHIN_PUBLISHED} points"
    note = (
        "best: of the evaluated rounds on test rows, PFLlib's convention; rise: of the curve over the last "
        f"quarter of its rounds, levelled off below {_LEVEL}; GB: sent on all links; s/round: of a run, its "
        "share if several were stacked; newcomer: a client that "
        f"joins later, personalized from the global model. {share}. Cost of the table: {_cost(study, runs)}."
    )
    return TextTable(f"{study.name}: PFLlib's leaderboard", heads, tuple(lines), note, text_columns=1)


def _cost(study: Study, runs: Mapping[str, Sequence[Record]]) -> str:
    """The time of the runs so far, and what 2 000 rounds of every method would take."""
    seconds = sum(run.seconds for mine in runs.values() for run in mine)
    rounds = sum(run.rounds for mine in runs.values() for run in mine)
    if not rounds:
        return NOT_RUN
    whole = seconds / rounds * 2000 * study.seeds * len(study.variants)
    return f"{seconds / 60:.0f} minutes so far, {whole / 3600:.1f} hours for 2 000 rounds of each"


def _known(run: Record, column: str) -> list[float]:
    return [each for each in run.curve.get(column, []) if each is not None] or [0.0]


def _validated(runs: Sequence[Record], column: str) -> float | None:
    """The test accuracy of the round with the best validation accuracy, mean over seeds."""
    chosen = []
    for run in runs:
        pairs = zip(run.curve.get(f"{column}_validation", []), run.curve.get(column, []), strict=False)
        known = [(mine, test) for mine, test in pairs if mine is not None and test is not None]
        if not known:
            return None
        chosen.append(max(known, key=lambda pair: pair[0])[1])
    return statistics.fmean(chosen)


def _rise(runs: Sequence[Record], column: str) -> float:
    """By how much the best accuracy grew in the last quarter of the evaluations, mean over seeds."""
    rises = []
    for run in runs:
        curve = _known(run, column)
        before = curve[: max(len(curve) * 3 // 4, 1)]
        rises.append(max(curve) - max(before))
    return statistics.fmean(rises)


def _gigabytes(runs: Sequence[Record]) -> float:
    return statistics.fmean((run.curve.get("sent_all") or [0])[-1] for run in runs) / 1e9


def _newcomer(runs: Sequence[Record]) -> str:
    values = [run.newcomers["global_own"] for run in runs if "global_own" in run.newcomers]
    return f"{statistics.fmean(values):.2f}" if values else "–"


def _shown(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.2f}"


def _seeds(runs: Sequence[Record]) -> str:
    diverged = sum(run.trouble is not None for run in runs)
    return f"{len(runs)}, {diverged} diverged" if diverged else str(len(runs))
