"""Write the figures of README.md and of pages in docs/ from the records, between their marks.

    python tools/measured.py           write them
    python tools/measured.py --check   exit with 1 if a page says something else

A block begins with `<!-- measured: NAME -->` and ends with `<!-- /measured -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

from sfedhp.paper import STUDIES, Claim, Results, Row, read_records, read_results, read_studies
from sfedhp.paper.agreement import GROUPS, agreement, in_both
from sfedhp.paper.beyond import last_five
from sfedhp.paper.page import coverage
from sfedhp.paper.published import METHOD_NAMES, TABLES, in_words, place_of
from sfedhp.paper.rows import final_records, table1_rows
from sfedhp.paper.studies import MAIN_READING, OTHER_READING
from sfedhp.paper.verdicts import Verdict

sys.path.insert(0, str(Path(__file__).parent))
import left
import shared_images
import speed
import tradeoff

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/results.md", "docs/which-method.md", "docs/performance.md")
GB = 1e9
# As `sfedhp check model.name=dnn rounds=100`: 494 710 float32 weights, 20 clients, 4 edges, R = 20.
MODEL, CLIENTS, EDGES, EDGE_ROUNDS, ROUNDS = 4 * 494_710, 20, 4, 20, 100


_EQUAL_WORK = "Best global model at equal work"


def readme_paper(results: Results) -> str:
    """The first point of README's results."""
    nets, cifar = (agreement(results.rows, tables) for tables in GROUPS.values())
    own = agreement(results.rows, GROUPS["tables 2–5"], ["sfedhp"])
    verdicts = Counter(claim.verdict for claim in results.claims)
    judged = ", ".join(f"“{word}” {verdicts[word]}" for word in get_args(Verdict) if verdicts[word])
    best = _claim(results, "Best global model")
    beside = next(claim for claim in results.claims_beside if claim.name.startswith(_EQUAL_WORK))
    added = sum(claim.name != claim.title for claim in results.claims)
    return _point(
        f"**The paper, reproduced** (T = 800, label-balanced edges): {len(nets.rows)} of the {nets.wanted} "
        f"cells of the paper's MNIST and Fashion-MNIST tables were run. By the best round, "
        f"{nets.within(2.5)} of these are within 2.5 points of the paper, and {nets.within(1)} within 1. Of "
        f"sFedHP's own {len(own.rows)} cells that were run, {own.within(2)} are within 2. Not run yet: "
        f"{nets.missing} cells of these tables, and {cifar.missing} of CIFAR-10's {cifar.wanted}. Verdicts "
        f"on {len(results.claims)} [claims](docs/reproduction.md) ({added} of them not the paper's): "
        f"{judged}. The claim that sFedHP's global model is better than those of four other methods is "
        f"judged “{best.verdict}”: {best.number}. There, as in the paper, sFedHP takes 100 gradient steps a "
        f"round and most others 20. At equal work, the claim was run only under the other label rule, where "
        f"it is judged “{beside.verdict}” ({beside.number})."
    )


def readme_bytes(results: Results) -> str:
    """The last point of README's results."""
    del results
    whole, cloud, rival = traffic()
    records = tradeoff.read(ROOT / tradeoff.RECORDS)
    same, sparse = (
        tradeoff.mean_of(records, name) for name in ("dense-float16-difference", "literal-float16-difference")
    )
    cost = sparse["gm"] - tradeoff.mean_of(records, "dense")["gm"]
    of_all = tradeoff.read(ROOT / tradeoff.ALL_LINKS)
    saved = tradeoff.fewer_bytes(of_all, "dense-float16-difference")
    gaps = tradeoff.gaps(of_all, "dense-float16-difference").values()
    return _point(
        f"**Bytes**: over all links, sFedHP sends {whole / rival:.0f} times as many bytes as pFedMe "
        f"({whole / GB:.1f} against {rival / GB:.1f} GB in {ROUNDS} rounds of `dnn`), nearly all of them "
        f"between clients and edges. Float16 and differences on all links send {saved:.0f} times fewer "
        f"bytes (MNIST, `dnn-small`), at {-max(gaps):.1f} to {-min(gaps):.1f} points less. On the cloud's "
        f"links alone, which carry {100 * cloud / whole:.0f} % of the bytes, they send "
        f"{same['factor']:.1f} times fewer at the same accuracy. With sparse models it is "
        f"{sparse['factor']:.0f} times fewer, at {-cost:.1f} points "
        f"less. [Results](docs/results.md#accuracy-against-bytes)"
    )


def traffic() -> tuple[int, int, int]:
    """Dense bytes of sFedHP on all links and on the cloud's, and of pFedMe."""
    cloud = 2 * EDGES * MODEL * ROUNDS
    return cloud + 2 * CLIENTS * EDGE_ROUNDS * MODEL * ROUNDS, cloud, 2 * CLIENTS * MODEL * ROUNDS


def bytes_of_all_links(results: Results) -> str:
    """Dense bytes by link, of sFedHP and pFedMe."""
    del results
    whole, cloud, rival = traffic()
    return "\n".join(
        [
            f"| dense messages, {ROUNDS} rounds of `dnn` | cloud's links | clients and edges | all |",
            "| --- | ---: | ---: | ---: |",
            f"| sFedHP | {cloud / GB:.1f} GB | {(whole - cloud) / GB:.1f} GB | {whole / GB:.1f} GB |",
            f"| pFedMe | {rival / GB:.1f} GB | – | {rival / GB:.1f} GB |",
        ]
    )


def short(results: Results) -> str:
    """How many cells were run, and how many are within a distance of the paper."""
    lines = [
        "| cells of the paper | run | within 0.5 | within 1 | within 2 | within 2.5 |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for reading in (MAIN_READING, OTHER_READING):
        for group, tables in GROUPS.items():
            for whose, methods in (("all methods", tuple(METHOD_NAMES)), ("sFedHP", ("sfedhp",))):
                found = agreement(results.rows, tables, methods, reading=reading)
                near = " | ".join(str(found.within(points)) for points in (0.5, 1, 2, 2.5))
                run = f"{len(found.rows)} of {found.wanted}"
                lines.append(f"| `{reading}`, {group}, {whose} | {run} | {near} |")
    for reading, found in zip(
        (MAIN_READING, OTHER_READING), in_both(results.rows, OTHER_READING), strict=True
    ):
        near = " | ".join(str(found.within(points)) for points in (0.5, 1, 2, 2.5))
        lines.append(f"| `{reading}`, the cells that were run with both | {len(found.rows)} | {near} |")
    return "\n\n".join([speed.wrapped(coverage(results)), "\n".join(lines)])


def claims(results: Results) -> str:
    """Each claim about the paper, with its verdict and number."""
    lines = [f"| claim | verdict | number | `{OTHER_READING}` |", "| --- | --- | --- | --- |"]
    for claim, beside in zip(results.claims, results.claims_beside, strict=True):
        lines.append(f"| {claim.name} | **{claim.verdict}** | {claim.number} | {beside.verdict} |")
    return "\n".join(lines)


def labels(results: Results) -> str:
    """Agreement of the cells that were run with both two and five labels per client."""
    five = [row for row in results.rows if row.reading == "as-written" and row.paper is not None]
    keys = {(row.table, row.variant, row.kind) for row in five if row.table in GROUPS["tables 2–5"]}
    lines = ["| cells of tables 2–5 within 2.5 points of the paper | two labels | five labels |"]
    lines.append("| --- | ---: | ---: |")
    by_reading = {
        reading: [
            row
            for row in results.rows
            if row.reading == reading and row.paper is not None and (row.table, row.variant, row.kind) in keys
        ]
        for reading in (OTHER_READING, "as-written")
    }
    groups: dict[str, Callable[[Row], bool]] = {
        "all that were run both ways": lambda row: True,
        "of these, Fashion-MNIST": lambda row: row.dataset == "fmnist",
        "of these, sFedHP's global model": lambda row: (row.method, row.kind) == ("sfedhp", "gm"),
    }
    for words, wanted in groups.items():
        both = [[row for row in rows if wanted(row)] for rows in by_reading.values()]
        near = [f"{sum(abs(row.gap or 0) <= 2.5 for row in rows)} of {len(rows)}" for rows in both]
        lines.append(f"| {words} | {near[0]} | {near[1]} |")
    return "\n".join(lines)


def norms(results: Results) -> str:
    """Global models on CIFAR-10 with both statistics, and with group norm."""
    reading = MAIN_READING if _cifar(results.rows, MAIN_READING) else OTHER_READING
    lines = [
        f"| GM on CIFAR-10, last five, `{reading}` | local | averaged |",
        "| --- | ---: | ---: |",
    ]
    for row in _cifar(results.rows, reading):
        (other,) = [
            each
            for each in results.rows
            if (each.table, each.variant, each.reading) == (row.table, row.variant, reading)
            and each.statistics == "averaged"
        ]
        lines.append(
            f"| {_place(row)} {in_words(row.variant)} | {row.ours_tail:.1f} | {other.ours_tail:.1f} |"
        )
    lines += ["", f"| GM with group norm, last five, `{OTHER_READING}` | |", "| --- | ---: |"]
    lines += [
        f"| {_place(row)} {in_words(row.variant)} | {row.ours_tail:.1f} |"
        for row in results.rows
        if "vgg-gn" in row.variant and row.kind == "gm" and row.reading == OTHER_READING
    ]
    return "\n".join(lines)


def pixels(results: Results) -> str:
    """Global models of runs whose pixels were standardized."""
    lines = [f"| standardized pixels, `{OTHER_READING}` | GM, last five | seeds |", "| --- | ---: | ---: |"]
    for study in ("table2-per-pixel", "table3-per-pixel"):
        for row in results.rows_by_study.get(study, ()):
            if row.kind == "gm":
                end = f"{row.ours_tail:.1f}" if row.diverged < row.seeds else "diverged"
                lines.append(f"| {_place(row)} {in_words(row.variant)} | {end} | {row.seeds} |")
    return "\n".join(lines)


def newcomers(results: Results) -> str:
    """Accuracy of clients that joined after training, with and without personalizing."""
    reading = MAIN_READING if _joined(results.rows, MAIN_READING) else OTHER_READING
    lines = [
        f"| newcomers, `{reading}` | global model as is: sFedHP, HierFAVG | personalized from it: sFedHP, "
        "HierFAVG |",
        "| --- | ---: | ---: |",
    ]
    found = _joined(results.rows, reading)
    for table in TABLES:
        cells = []
        for words in ("global model as is", "personalized from the global model"):
            ends = {row.method: row.ours_last for row in found if row.table == table and words in row.variant}
            cells.append(
                ", ".join(f"{ends[name]:.1f}" if name in ends else "–" for name in ("sfedhp", "hierfavg"))
            )
        lines.append(f"| {place_of(table)} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def runtime(results: Results) -> str:
    """Minutes of all recorded runs on an H200, by group of studies."""
    del results
    taken = {
        name: sum(
            each.seconds
            for each in read_records(ROOT / "results", [name])
            if "H200" in each.versions["device"]
        )
        / 60
        for name in STUDIES
    }
    groups = {
        "tables 2–5": r"table[2-5]",
        "tables 6–7": r"table[67]",
        "figures and speed-up": r"fig\d|speedup",
        "extras of all tables": r"table\d-extras",
    }
    lines = [f"| minutes on an H200 | `{MAIN_READING}` | `{OTHER_READING}` |", "| --- | ---: | ---: |"]
    for words, pattern in groups.items():
        minutes = [
            sum(taken[name] for name in taken if re.fullmatch(f"({pattern}){suffix}", name))
            for suffix in ("", f"-{OTHER_READING}")
        ]
        lines.append(f"| {words} | {minutes[0]:.0f} | {minutes[1]:.0f} |")
    return "\n".join(lines)


def tiers(results: Results) -> str:
    """Each kind of model on Fashion-MNIST: of a method the λ whose tiers are best on validation rows."""
    del results
    lines = []
    for table in ("table4", "table5"):
        (study,) = read_studies(ROOT / "experiments", [table])
        records = read_records(ROOT / "results", [table])
        found: dict[str, tuple[float, str, list[float | None]]] = {}
        for variant in study.variants:
            runs = final_records(study, variant, records)
            if not runs:
                continue
            columns = ("pm", "em", "gm", "pm_worst")
            figures = [last_five(runs, column) for column in columns]
            if runs[0].config["algorithm"]["name"] == "perfedavg":
                figures[2] = None  # w is only the start of one step; it is not used to predict
            judged = [last_five(runs, f"{kind}_validation") for kind in columns[:3]]
            known = [each for each, shown in zip(judged, figures, strict=False) if None not in (each, shown)]
            method = variant.split()[0]
            found[method] = max(
                found.get(method, (0.0, "", [])),
                (sum(known) / len(known), variant, figures),
                key=lambda x: x[0],
            )
        lines += [
            f"| {place_of(table)} | PM | EM | GM | PM, worst tenth |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for _, variant, figures in found.values():
            shown = " | ".join("–" if each is None else f"{each:.1f}" for each in figures)
            lines.append(f"| {in_words(variant)} | {shown} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def all_methods(results: Results) -> str:
    """All methods on the embedded images with default settings, the best personal models first."""
    del results
    record = json.loads((ROOT / "results" / "methods-embedded.json").read_text(encoding="utf-8"))
    found: dict[str, list[dict[str, Any]]] = {}
    for row in record["rows"]:
        found.setdefault(row["algorithm"], []).append(row)
    columns = ("pm_last", "pm_worst_last", "em_last", "gm_last")

    def mean(name: str, column: str) -> float | None:
        values = [row[column] for row in found[name]]
        return None if None in values else statistics.fmean(values)

    lines = ["| method | PM | PM, worst tenth | EM | GM |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in sorted(
        found, key=lambda name: (-(mean(name, "pm_last") or 0), -(mean(name, "gm_last") or 0))
    ):
        cells = []
        for column in columns:
            value, known = mean(name, column), [row[column] for row in found[name]]
            hidden = value is None or (name == "perfedavg" and column == "gm_last")
            cells.append("–" if hidden else f"{value:.1f} ± {statistics.stdev(known):.1f}")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cifar(rows: Iterable[Row], reading: str) -> list[Row]:
    return [row for row in table1_rows(list(rows), reading) if row.statistics == "local"]


def _joined(rows: Iterable[Row], reading: str) -> list[Row]:
    return [row for row in rows if "newcomer" in row.variant and row.reading == reading]


def _place(row: Row) -> str:
    return place_of(row.table)


def _claim(results: Results, title: str) -> Claim:
    return next(claim for claim in results.claims if claim.title == title)


def _point(text: str) -> str:
    return textwrap.fill(
        f"- {text}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


BLOCKS: dict[str, Callable[[Results], str]] = {
    "readme-paper": readme_paper,
    "readme-bytes": readme_bytes,
    "all-links": bytes_of_all_links,
    "all-links-tradeoff": lambda results: tradeoff.table_of_all_links(
        tradeoff.read(ROOT / tradeoff.ALL_LINKS)
    ),
    "short": short,
    "claims": claims,
    "labels": labels,
    "shared-images": lambda results: shared_images.table(shared_images.read()),
    "norms": norms,
    "pixels": pixels,
    "newcomers": newcomers,
    "runtime": runtime,
    "tiers": tiers,
    "all-methods": all_methods,
    "left": lambda results: left.table(left.left()),
    "arenas": lambda results: speed.arenas(),
    "populations": lambda results: speed.populations(),
    "networks": lambda results: speed.networks(),
    "stacks": lambda results: speed.stacks(),
}


def fill(text: str, results: Results) -> str:
    """The text of a page with its blocks replaced by the current figures."""

    def block(found: re.Match[str]) -> str:
        return f"<!-- measured: {found[1]} -->\n\n{BLOCKS[found[1]](results)}\n\n<!-- /measured -->"

    return re.sub(r"<!-- measured: ([\w-]+) -->.*?<!-- /measured -->", block, text, flags=re.DOTALL)


def main() -> None:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    results = read_results(read_studies(ROOT / "experiments"), ROOT / "results")
    stale = []
    for name in PAGES:
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = fill(before, results)
        if before != after:
            stale.append(name)
            if not arguments.check:
                path.write_text(after, encoding="utf-8")
    print(f"{'stale' if arguments.check else 'written'}: {', '.join(stale) or 'nothing'}")
    if arguments.check and stale:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
