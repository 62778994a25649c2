"""The tables and the picture of docs/performance.md, from the records in results/bench.

python tools/speed.py    draw docs/images/performance.svg

`python tools/measured.py` writes the tables.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sfedhp.core.formats import counted
from sfedhp.paper.figures import canvas, to_svg
from sfedhp.paper.published import METHOD_NAMES

ROOT: Final = Path(__file__).parents[1]
RECORDS: Final = ROOT / "results" / "bench"
PICTURE: Final = ROOT / "docs" / "images" / "performance.svg"
Record = dict[str, Any]
_OURS: Final = "sfedhp"
_COLORS: Final = {_OURS: "#c2410c", "loop": "#94a3b8"}
_RIVAL: Final = "#1d4ed8"


def records(key: str) -> dict[str, Record]:
    """The records that have this key, by the names of their files."""
    found = {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json"))
    }
    return {name: record for name, record in found.items() if key in record}


def circumstances(name: str, record: Record) -> str:
    """Where and when a record was measured."""
    threads = record.get("threads", record.get("terms", {}).get("threads"))
    words = f"{record['machine']}, {record['date']}, load {record['load']:.1f} at the end"
    return f"{words}{f', threads: {threads}' if threads else ''}. Record: `results/bench/{name}`."


def wrapped(text: str) -> str:
    """A paragraph as the pages have it."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def arenas() -> str:
    """A table for each record of an arena."""
    return "\n\n".join(_arena(name, record) for name, record in records("arena").items())


def _arena(name: str, record: Record) -> str:
    arena, terms = record["arena"], record["terms"]
    data = "random images" if terms["synthetic"] else arena["source"]
    lines = [
        f"### `{arena['name']}`, cohort {arena['cohort']}, {terms['device']}{_precision(record)}",
        wrapped(
            f"{arena['clients']} clients × {arena['rows']} rows of {data}, {arena['cohort']} per round, "
            f"{counted(arena['epochs'], 'epoch')} with batches of {arena['batch_size']}; "
            f"{_digits(record['weights'])} weights. {circumstances(name, record)}"
        ),
        "| side | s per round | ratio | whole run, s | peak, MB | accuracy, % | rounds | precision |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    rows = [
        f"| {each['side']} | {each['seconds_per_round']:.3g} | {each['ratio']:.2f} | "
        f"{'≈ ' if each['extrapolated'] else ''}{_digits(round(each['whole_run_seconds']))} | "
        f"{each['peak_bytes'] / 1e6:.0f} | {each['accuracy']:.1f} | {each['rounds']} | {each['precision']} |"
        for each in record["entries"]
    ]
    return "\n\n".join(lines) + "\n" + "\n".join(rows)


def populations() -> str:
    """A table for each record of a population."""
    parts = []
    for name, record in records("rows").items():
        if "draw_seconds" not in record["rows"][0]:
            continue
        lines = [
            "| model | clients | drawn per round | s per round | of which the draw | with 1 000 clients | "
            "ratio without draws | peak, MB |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
        ]
        lines += [
            f"| `{row['model']}` | {_digits(row['clients'])} | {row['cohort']} | "
            f"{row['seconds_per_round']:.3g} | {row['draw_seconds']:.2g} | "
            f"{row['small_seconds_per_round']:.3g} | {row['ratio']:.2f} | {row['peak_bytes'] / 1e6:.0f} |"
            for row in record["rows"]
        ]
        parts.append("\n".join(lines) + "\n\n" + wrapped(circumstances(name, record)))
    return "\n\n".join(parts)


def networks() -> str:
    """A table for each record of local steps on several networks."""
    parts = []
    for name, record in records("networks").items():
        first = record["networks"][0]
        lines = [
            "| network | weights | stack, ms | loop, ms | loop / stack | path |\n"
            "| --- | ---: | ---: | ---: | ---: | --- |"
        ]
        lines += [
            f"| `{row['model']}` | {_digits(row['weights'])} | {1e3 * row['seconds']:.0f} | "
            f"{1e3 * row['loop_seconds']:.0f} | {row['ratio']:.2f} | {row['path']} |"
            for row in record["networks"]
        ]
        about = f"{first['clients']} clients, {first['steps']} steps of {first['batch_size']} rows, CPU time."
        parts.append("\n".join(lines) + "\n\n" + wrapped(f"{about} {circumstances(name, record)}"))
    return "\n\n".join(parts)


def draw() -> str:
    """Seconds of a round of every side of every arena, as bars on a log scale."""
    bars = list(_bars())
    with canvas("performance"):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 0.6 + 0.34 * len(bars)), layout="constrained")
        axes = figure.add_subplot()
        for place, (_, side, seconds) in enumerate(bars):
            axes.barh(place, seconds, color=_COLORS.get(side, _RIVAL), height=0.72)
            axes.text(seconds * 1.06, place, f"{seconds:.3g} s", va="center", fontsize=8)
        axes.set_yticks(range(len(bars)), [label for label, _, _ in bars])
        axes.invert_yaxis()
        axes.set(xscale="log", xlabel="seconds per round (log scale); lower is better")
        sizes = [seconds for _, _, seconds in bars]
        axes.set_xlim(min(sizes) / 4, max(sizes) * 3)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        return to_svg(figure)


def _bars() -> Iterator[tuple[str, str, float]]:
    """The bars of the chart: a label, the side, its seconds a round."""
    names = {_OURS: "sfedhp", "loop": "plain loop"}
    for record in records("arena").values():
        arena, device = record["arena"], record["terms"]["device"]
        device += _precision(record)
        for place, each in enumerate(record["entries"]):
            own = names.get(each["side"], each["side"])
            label = f"{arena['name']} ({arena['cohort']} a round, {device}): {own}" if not place else own
            yield label, each["side"], each["seconds_per_round"]


def _precision(record: Record) -> str:
    """The precision of an arena's products, where it is not torch's usual one."""
    precision = record["terms"]["precision"]
    return "" if precision == "float32" else f", {precision}"


def stacks() -> str:
    """A table for each record of stacks of runs."""
    parts = []
    for name, record in records("rows").items():
        if "gain" not in record["rows"][0]:
            continue
        widths = list(dict.fromkeys(row["runs"] for row in record["rows"]))
        heads = " | ".join(f"{counted(width, 'run')}, ms" for width in widths)
        lines = [f"| method, model | {heads} | gain |\n| --- |{' ---: |' * (len(widths) + 1)}"]
        cases = dict.fromkeys((row["method"], row["model"]) for row in record["rows"])
        for case in cases:
            mine = [row for row in record["rows"] if (row["method"], row["model"]) == case]
            taken = " | ".join(f"{1e3 * row['seconds_per_run']:.0f}" for row in mine)
            lines.append(f"| {METHOD_NAMES[case[0]]}, `{case[1]}` | {taken} | {mine[-1]['gain']:.2f} |")
        about = f"CPU time per round and run. {circumstances(name, record)}"
        parts.append("\n".join(lines) + "\n\n" + wrapped(about))
    return "\n\n".join(parts)


def _digits(number: int) -> str:
    return f"{number:,}".replace(",", " ")


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"picture: {PICTURE.relative_to(ROOT)}")
