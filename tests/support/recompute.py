"""The reproduction once more: rows, intervals, corrected p-values and verdicts from the records.

Nothing of the package is imported, so that an error in it cannot hide here. It reads only files: the records,
the experiment files, and the paper's numbers. Statistics are those of scipy.

    python -m tests.support.recompute
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
PLACES = {
    f"table{number}": place
    for number, place in enumerate(
        [(name, setting) for name in ("mnist", "fmnist", "cifar10") for setting in (1, 2)], start=2
    )
}
MARGINS = dict(zip(PLACES, (1, 2, 2, 3, 19, 3), strict=True))
FLAT, PERSONAL = ("fedavg", "fedprox", "pfedme"), ("perfedavg", "pfedme", "heurfedamp", "pfedgp")
TABLE1 = ("fedavg", "hierfavg", "fedprox", "pfedme")


def read_json(name: str) -> Any:
    return json.loads((ROOT / "sfedhp" / "paper" / name).read_text(encoding="utf-8"))


@dataclass
class Runs:
    """The final runs of a variant of a study; none if it was not run."""

    study: str
    table: str
    reading: str
    in_paper: bool
    variant: str
    runs: list[dict[str, Any]]

    @property
    def options(self) -> dict[str, Any]:
        return self.runs[0]["config"]["algorithm"]

    @property
    def method(self) -> str:
        return str(self.options["name"])

    @property
    def lam(self) -> float | None:
        if self.method == "heurfedamp":
            return None
        return self.options.get("client_proximity", self.options.get("proximity"))

    def last_five(self, column: str) -> dict[int, float]:
        """The mean of a column's last five evaluations, by seed."""
        return {
            run["seed"]: float(np.mean([value or 0.0 for value in run["curve"][column]][-5:]))
            for run in self.runs
            if column in run["curve"]
        }


def every_run() -> list[Runs]:
    found = []
    for path in sorted((ROOT / "experiments").glob("*.toml")):
        study = tomllib.loads(path.read_text(encoding="utf-8")).get("reproduce")
        records = ROOT / "results" / f"{path.stem}.jsonl"
        if study is None or "reading" not in study:
            continue
        by_variant = defaultdict(list)
        for line in records.read_text(encoding="utf-8").splitlines() if records.exists() else ():
            record = json.loads(line)
            by_variant[record["variant"]].append(record)
        for variant, words in study["variants"].items():
            mine = by_variant[variant]
            most = max((run["rounds"] for run in mine), default=0)
            only_trials = "," in words and all(run["rounds"] == most for run in mine)
            finals = sorted(
                (run for run in mine if run["rounds"] == most and not only_trials),
                key=lambda run: run["seed"],
            )
            facts = (study["table"], study["reading"], study.get("paper", True), variant)
            if finals or study["table"] not in PLACES:
                found.append(Runs(path.stem, *facts, finals))
    return found


def columns_of(runs: Runs, metric: str) -> list[tuple[str, str | None]]:
    curve: dict[str, Any] = next((run["curve"] for run in runs.runs if run["curve"]), {})
    if f"{metric}_local" in curve:
        return [(f"{metric}_local", "local"), (f"{metric}_averaged", "averaged")]
    return [(metric, None)] if metric in curve else []


def paper_number(runs: Runs, metric: str) -> float | None:
    for cell in read_json("published.json"):
        same = (cell["dataset"], cell["setting"], cell["method"]) == (*PLACES[runs.table], runs.method)
        alpha = runs.options.get("self_weight")
        if same and cell["lam"] in (None, runs.lam) and cell["alpha"] in (None, alpha):
            return cell[metric]
    return None


@dataclass
class Row:
    runs: Runs
    metric: str
    statistics: str | None
    paper: float | None
    tail: dict[int, float]
    numbers: dict[str, float | None] = field(default_factory=dict)
    validation: float = 0.0


def rows(every: Iterable[Runs]) -> list[Row]:
    found = []
    for runs in every:
        if runs.table not in PLACES:
            continue
        for metric in ("pm", "gm"):
            for column, kind in columns_of(runs, metric):
                paper = paper_number(runs, metric) if runs.in_paper and kind != "averaged" else None
                row = Row(runs, metric, kind, paper, runs.last_five(column))
                curves = [np.array([value or 0.0 for value in run["curve"][column]]) for run in runs.runs]
                reported = runs.runs[0]["config"]["evaluation"]["norm_statistics"]
                judged = f"{metric}_validation" if kind in (None, reported) else f"{column}_validation"
                tails = np.array(list(row.tail.values()))
                row.numbers = {
                    "ours_tail": tails.mean(),
                    "ours_last": np.mean([curve[-1] for curve in curves]),
                    "ours_best": np.mean([curve.max() for curve in curves]),
                    "ci": None,
                }
                if len(tails) > 1:
                    low, high = stats.t.interval(0.95, len(tails) - 1, tails.mean(), stats.sem(tails))
                    row.numbers["ci"] = (high - low) / 2
                if judged in runs.runs[0]["curve"]:
                    known = [np.array(run["curve"][judged], dtype=float) for run in runs.runs]
                    chosen = [curve[int(np.argmax(each))] for curve, each in zip(curves, known, strict=True)]
                    row.numbers["ours_validated"] = np.mean(chosen)
                    row.validation = float(np.mean([each[-5:].mean() for each in known]))
                found.append(row)
    return found


@dataclass
class Comparison:
    mean: float | None = None
    half: float | None = None
    raw: float | None = None
    corrected: float | None = None
    outcome: str = "not run yet"


def compare(
    left: dict[int, float] | None,
    right: dict[int, float] | None,
    margin: float = 0.0,
    bound: float | None = None,
) -> tuple[Comparison, float, float | None]:
    seeds = sorted(set(left or ()) & set(right or ()))
    found = Comparison()
    if left is not None and right is not None and seeds:
        gaps = np.array([left[seed] - right[seed] for seed in seeds])
        found.mean = float(gaps.mean())
        if len(gaps) > 1:
            half = stats.t.ppf(0.975, len(gaps) - 1) * stats.sem(gaps)
            found.half = float(half)
            # Without any spread a difference is certain; scipy divides by zero there.
            certain = 0.0 if found.mean != margin else 1.0
            spread = len(set(gaps.tolist())) > 1
            found.raw = float(stats.ttest_1samp(gaps, margin).pvalue) if spread else certain
    return found, margin, bound


def decide(cells: list[tuple[Comparison, float, float | None]]) -> tuple[str, list[Comparison]]:
    """The verdict, after Holm's correction: step down, from the smallest p-value."""
    tested = sorted((cell for cell, _, _ in cells if cell.raw is not None), key=lambda cell: cell.raw or 0.0)
    before = 0.0
    planned = sum(cell.mean is not None or cell.outcome == "not run yet" for cell, _, _ in cells)
    for place, cell in enumerate(tested):
        before = cell.corrected = max(before, min(1.0, (cell.raw or 0.0) * (planned - place)))
    for cell, margin, bound in cells:
        if cell.mean is None:
            continue
        cell.outcome = "not decided"
        if cell.corrected is not None and cell.corrected < 0.05:
            cell.outcome = "true" if cell.mean > margin else "false"
        elif cell.half is not None and bound and abs(cell.mean) + cell.half <= bound:
            cell.outcome = "level"
    counts = Counter(cell.outcome for cell, _, _ in cells)
    total = len(cells)
    if counts["not run yet"] == total:
        verdict = "not run yet"
    elif counts["false"] or counts["level"] == total:
        verdict = "does not hold"
    elif counts["not decided"] or counts["not run yet"]:
        verdict = "not decided"
    else:
        verdict = "holds partly" if counts["level"] else "holds"
    return verdict, [cell for cell, _, _ in cells]


def tail_of(row: Row | None) -> dict[int, float] | None:
    return None if row is None else row.tail


def table_claims(found: list[Row], reading: str) -> dict[str, tuple[str, list[Comparison]]]:
    mine = [row for row in found if row.runs.reading == reading]
    first: dict[tuple[str, str, str | None], Row] = {}
    for cell in read_json("overview.json"):
        table = next(name for name, place in PLACES.items() if place == (cell["dataset"], cell["setting"]))
        for row in mine:
            same = (row.runs.table, row.runs.method, row.metric) == (table, cell["method"], "gm")
            if same and row.runs.in_paper and row.runs.lam == cell["lam"]:
                first[table, cell["method"], row.statistics] = row

    def of_table1(table: str, method: str, kind: str = "local") -> dict[int, float] | None:
        return tail_of(first.get((table, method, kind)) or first.get((table, method, None)))

    def chosen(table: str, method: str, metric: str) -> dict[int, float] | None:
        known = [
            row
            for row in mine
            if (row.runs.table, row.runs.method, row.metric) == (table, method, metric)
            and row.paper is not None
        ]
        grid = [
            cell
            for cell in read_json("published.json")
            if (cell["dataset"], cell["setting"], cell["method"]) == (*PLACES[table], method)
            and cell[metric] is not None
        ]
        return tail_of(max(known, key=lambda row: row.validation)) if 0 < len(grid) == len(known) else None

    def extra(table: str, words: str) -> dict[int, float] | None:
        known = [row for row in mine if row.runs.table == table and row.metric == "gm"]
        known = [row for row in known if row.statistics != "averaged"]
        if words == "λ̄":
            lam = next(
                cell["lam"]
                for cell in read_json("overview.json")
                if (cell["dataset"], cell["setting"], cell["method"]) == (*PLACES[table], "sfedhp")
            )
            same = [row for row in known if (row.runs.method, row.runs.lam) == ("pfedme", lam / 2)]
        else:
            same = [row for row in known if row.runs.variant == words]
        return same[0].tail if same and of_table1(table, "sfedhp") else None

    ours = {table: of_table1(table, "sfedhp") for table in PLACES}
    works = ("fedavg 100 steps", "hierfavg 20×5 steps", "λ̄")
    return {
        "Best global model": decide(
            [compare(ours[table], of_table1(table, other), 0, 0.5) for table in PLACES for other in TABLE1]
        ),
        "Six margins": decide(
            [
                compare(ours[table], of_table1(table, other), MARGINS[table])
                for table in PLACES
                for other in TABLE1
            ]
        ),
        "Best global model, every method at its best λ": decide(
            [
                compare(chosen(table, "sfedhp", "gm"), chosen(table, other, "gm"), 0, 0.5)
                for table in PLACES
                for other in TABLE1
            ]
        ),
        "Best global model at equal work": decide(
            [compare(ours[table], extra(table, words), 0, 0.5) for table in PLACES for words in works]
        ),
        "Best global model with averaged batch-norm statistics": decide(
            [
                compare(
                    tail_of(first.get((table, "sfedhp", "averaged"))),
                    tail_of(first.get((table, other, "averaged"))),
                    0,
                    0.5,
                )
                for table in ("table6", "table7")
                for other in TABLE1
            ]
        ),
        "Hierarchical methods against flat ones": decide(
            [
                compare(of_table1(table, upper), of_table1(table, other), 0, 0.5)
                for table in PLACES
                for upper in ("sfedhp", "hierfavg")
                for other in FLAT
            ]
        ),
        "Personalized model": decide(
            [
                compare(chosen(table, "sfedhp", "pm"), chosen(table, other, "pm"), -0.5)
                for table in PLACES
                for other in PERSONAL
            ]
        ),
    }


def first_round(run: dict[str, Any], goal: float) -> float:
    turns, values = run["curve"]["round"], run["curve"]["gm"]
    reached = [turn for turn, value in zip(turns, values, strict=True) if (value or 0.0) >= goal]
    return float(reached[0] if reached else run["rounds"] + turns[-1] - turns[-2])


def bytes_until(run: dict[str, Any], goal: float) -> float:
    reached = [place for place, value in enumerate(run["curve"]["gm"]) if (value or 0.0) >= goal]
    return float(run["curve"]["formula"][reached[0] if reached else -1])


def half_below(*several: dict[int, float]) -> dict[int, float]:
    """By seed, half a point below the lowest."""
    seeds = set.intersection(*(set(each) for each in several))
    return {seed: min(each[seed] for each in several) - 0.5 for seed in sorted(seeds)}


def by_seed(runs: Runs, goals: dict[int, float], of: Any) -> dict[int, float]:
    return {run["seed"]: of(run, goals[run["seed"]]) for run in runs.runs if run["seed"] in goals}


def figure_claims(every: list[Runs], reading: str) -> dict[str, tuple[str, list[Comparison]]]:
    planned = {(runs.table, runs.variant): runs for runs in every if runs.reading == reading}
    mine = {key: runs for key, runs in planned.items() if runs.runs}
    open_cell = compare(None, None)

    def gm(figure: str, variant: str) -> dict[int, float] | None:
        runs = mine.get((figure, variant))
        return None if runs is None else runs.last_five("gm")

    def above(figure: str, pairs: list[tuple[str, str]], margin: float = 0.0) -> Any:
        bound = None if margin else 0.5
        return [compare(gm(figure, left), gm(figure, right), margin, bound) for left, right in pairs]

    def against(values: dict[int, float] | None, margin: float) -> Any:
        return compare(values, None if values is None else dict.fromkeys(values, 0.0), margin)

    def rounds(figure: str, name: str) -> Any:
        cells = []
        for other in ("fedavg", "hierfavg", "pfedme"):
            ours, rival = mine.get((figure, name)), mine.get((figure, other))
            if ours is None or rival is None:
                cells.append(compare(None, None))
                continue
            goals = half_below(rival.last_five("gm"))
            cells.append(compare(by_seed(rival, goals, first_round), by_seed(ours, goals, first_round)))
        return cells

    def share(less: dict[int, float], more: dict[int, float]) -> dict[int, float]:
        return {seed: 100 * (1 - less[seed] / more[seed]) for seed in less if seed in more}

    def ends(runs: Runs, column: str) -> dict[int, float]:
        return {run["seed"]: run["curve"][column][-1] for run in runs.runs if column in run["curve"]}

    def saved(left: str, column: str, right: str = "pfedme") -> dict[int, float] | None:
        ours, rival = (mine.get(("fig3", name)) for name in (left, right))
        if ours is None or rival is None:
            return None
        return share(ends(ours, column), ends(rival, column)) or None

    def cheaper(figure: str, name: str, other: str) -> Any:
        ours, rival = mine.get((figure, name)), mine.get((figure, other))
        if ours is None or rival is None:
            return compare(None, None)
        goals = half_below(rival.last_five("gm"))
        return against(share(by_seed(ours, goals, bytes_until), by_seed(rival, goals, bytes_until)), 0)

    def pairs_along(figure: str) -> list[tuple[Runs, Runs]]:
        """Neighbours on the axis of a figure, in each of its families; a divergence ends that of Figure 4."""
        families = defaultdict(list)
        for (table, variant), runs in planned.items():
            if table == figure:
                strength, _, kind = variant.partition(" ")
                families[kind].append((float(strength.partition("=")[2]), runs))
        found = []
        for family in families.values():
            ordered = [runs for _, runs in sorted(family, key=lambda each: each[0])]
            for before, after in itertools.pairwise(ordered):
                if figure == "fig4" and any(run["trouble"] for each in (before, after) for run in each.runs):
                    break
                found.append((before, after))
        return found

    along = []
    for before, after in pairs_along("fig4"):
        tails = [runs.last_five("gm") for runs in (before, after)]
        goals = half_below(*tails)
        needed = [by_seed(runs, goals, first_round) for runs in (before, after)]
        along += [compare(tails[1], tails[0], 0, 0.5), compare(needed[0], needed[1])]
    at_fig4 = [runs for (table, _), runs in planned.items() if table == "fig4"]
    if any(run["trouble"] for runs in at_fig4 for run in runs.runs):
        explosion = "true"
    else:
        explosion = "not decided" if all(runs.runs for runs in at_fig4) else "not run yet"
    exploded: Any = (Comparison(outcome=explosion), 0.0, None)
    falling = []
    for before, after in pairs_along("fig5"):
        falling += [
            compare(before.last_five("gm"), after.last_five("gm"), 0, 0.5),
            against(share(ends(after, "formula"), ends(before, "formula")), 0),
        ]
    sparse, dense = (mine.get(("fig3", f"sfedhp {kind}")) for kind in ("sparse", "dense"))
    zeros = None if sparse is None else sparse.last_five("density_global")
    zeros = None if zeros is None else {seed: 100 * (1 - density) for seed, density in zeros.items()}
    slower = open_cell
    if sparse is not None and dense is not None:
        goals = half_below(sparse.last_five("gm"), dense.last_five("gm"))
        slower = compare(by_seed(dense, goals, first_round), by_seed(sparse, goals, first_round), -80.0)
    edges = {count: mine.get(("speedup", f"S={count}")) for count in (1, 2, 4)}
    gains: dict[int, dict[int, float] | None] = {2: None, 4: None}
    if all(edges.values()):
        goals = half_below(*(runs.last_five("gm") for runs in edges.values() if runs))
        turns = {count: by_seed(runs, goals, first_round) for count, runs in edges.items() if runs}
        gains = {count: {seed: turns[1][seed] / turns[count][seed] for seed in goals} for count in (2, 4)}
    others = ("fedavg", "hierfavg", "pfedme")
    convex_pairs = [("sfedhp", "hierfavg"), ("pfedme", "hierfavg"), ("sfedhp", "pfedme")]
    like_pfedme = above("fig3", [("sfedhp sparse", "pfedme")], -1)
    costs = [("fig2", "sfedhp"), ("fig3", "sfedhp sparse")]
    tiers = [against(saved("sfedhp dense", column), 0) for column in ("sent", "sent_all")]
    return {
        "Accuracy, strongly convex": decide(above("fig2", convex_pairs)),
        "Convergence, strongly convex": decide(rounds("fig2", "sfedhp")),
        "Accuracy, non-convex, dense": decide(above("fig3", [("sfedhp dense", other) for other in others])),
        "Convergence, non-convex": decide(rounds("fig3", "sfedhp dense")),
        "80 % fewer bytes at a similar accuracy": decide(
            [*like_pfedme, against(saved("sfedhp sparse", "formula"), 80)]
        ),
        "Communication cost": decide(
            [cheaper(*ours, other) for ours in costs for other in ("hierfavg", "pfedme")]
        ),
        "Fewer bytes by the hierarchy": decide(tiers),
        "State of the art with 80 % fewer parameters": decide(
            [*above("fig3", [("sfedhp sparse", other) for other in others], -0.5), against(zeros, 80)]
        ),
        "Cost of sparsity": decide([slower, against(saved("sfedhp sparse", "formula", "sfedhp dense"), 0)]),
        "Effect of λ": decide([*(along or [open_cell]), exploded]),
        "Effect of γ": decide(falling or [open_cell]),
        "Linear speed-up": decide([against(gains[count], 0.75 * count) for count in (2, 4)]),
    }


def claims(every: list[Runs], reading: str) -> dict[str, tuple[str, list[Comparison]]]:
    """Verdict and comparisons of every claim under a reading, by its title."""
    return table_claims(rows(every), reading) | figure_claims(every, reading)


def distances(found: Iterable[Row], reading: str) -> list[float]:
    """Ours − paper by the best round, of all cells that were run."""
    return [
        (row.numbers["ours_best"] or 0.0) - row.paper
        for row in found
        if row.paper is not None and row.runs.reading == reading
    ]


def main() -> None:
    every = every_run()
    for reading in ("balanced", "neighbouring"):
        gaps = distances(rows(every), reading)
        print(f"{reading}: {len(gaps)} cells, {sum(abs(gap) <= 2.5 for gap in gaps)} within 2.5 points")
        for title, (verdict, cells) in claims(every, reading).items():
            print(f"  {title}: {verdict} ({dict(Counter(cell.outcome for cell in cells))})")


if __name__ == "__main__":
    main()
