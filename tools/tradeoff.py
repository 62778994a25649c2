"""Accuracy against bytes in the paper's sparse setting: many ways to send less, one record per run.

    python tools/tradeoff.py                 run what has no record in results/tradeoff.jsonl
    python tools/tradeoff.py --show          only table and plot, from the records
    python tools/tradeoff.py --links all     the same with every link coded, in results/tradeoff-all.jsonl

MNIST, Setting 2 (900/300 images per label and client), `dnn-small`, λ₁ = λ₂ = 25, R = 20, T = 800, three
seeds. Bytes are those of the encoder on the edge–cloud link, both directions, summed over the run; an edge
holds neighbouring labels. With `--links all` they are of all links, counted by the encoder in one round of
40, and edges hold all ten labels (`data.rule=blocks`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sfedhp import Experiment, sweep
from sfedhp.algorithms import SFedHP
from sfedhp.config import EvaluationOptions, to_dict
from sfedhp.data import DataOptions
from sfedhp.engine.simulator import Simulator
from sfedhp.nn.models import ModelOptions
from sfedhp.runs.loop import Progress, RunInStack, drive
from sfedhp.runs.prepare import prepare_stack
from sfedhp.runs.records import History
from sfedhp.runs.results import Outcome
from sfedhp.runs.sweep import plan
from sfedhp.wire.cost import PRESETS
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import Ledger
from sfedhp.wire.link import WireOptions, link_of

RECORDS = Path("results/tradeoff.jsonl")
ALL_LINKS = Path("results/tradeoff-all.jsonl")
BASE = Experiment(
    rounds=800,
    data=DataOptions(source="mnist", train_per_label=900, test_per_label=300),
    model=ModelOptions(name="dnn-small"),
    evaluation=EvaluationOptions(every=20),
)
COUNTED: dict[str, Any] = {"count": "size", "tiers": "cloud"}
COUNTED_EVERY = 40  # rounds, on all links
CURVE = ("round", "gm", "em", "pm", "gm_validation", "train_loss", "density_global", "density_client")


@dataclass(frozen=True)
class Variant:
    """One way to send less."""

    about: str
    method: dict[str, Any] = field(default_factory=dict)
    wire: dict[str, Any] = field(default_factory=dict)


def _sparse(about: str, wire: dict[str, Any] | None = None, **method: Any) -> Variant:
    return Variant(about, _both(1e-3) | method, {"threshold": 5e-4} | (wire or {}))


def _both(strength: float) -> dict[str, float]:
    return {"client_sparsity": strength, "edge_sparsity": strength}


FLOAT16: dict[str, Any] = {"values": "float16"}
DIFFERENCE: dict[str, Any] = {"difference": True}
VARIANTS: dict[str, Variant] = {
    "dense": Variant("γ = 0, lossless: the reference"),
    "dense-float16": Variant("γ = 0, values as float16", wire={"values": "float16"}),
    "dense-float16-difference": Variant("γ = 0, float16 and differences", wire=FLOAT16 | DIFFERENCE),
    "dense-bfloat16-difference": Variant(
        "γ = 0, bfloat16 and differences", wire={"values": "bfloat16"} | DIFFERENCE
    ),
    "dense-int8": Variant("γ = 0, values as int8", wire={"values": "int8"}),
    "literal": _sparse("the paper's schedule, smooth ℓ1, threshold 5e-4"),
    "literal-1e-3": _sparse("threshold 1e-3", {"threshold": 1e-3}),
    "literal-3e-3": _sparse("threshold 3e-3", {"threshold": 3e-3}),
    "literal-1e-2": _sparse("threshold 1e-2", {"threshold": 1e-2}),
    "literal-difference": _sparse("differences against what both sides hold", DIFFERENCE),
    "literal-float16": _sparse("values as float16", {"values": "float16"}),
    "literal-int8": _sparse("values as int8", {"values": "int8"}),
    "half-float16": _sparse("γ₁ = γ₂ = 5e-4, float16", FLOAT16, **_both(5e-4)),
    "quarter-float16": _sparse("γ₁ = γ₂ = 2.5e-4, float16", FLOAT16, **_both(2.5e-4)),
    "eighth-float16": _sparse("γ₁ = γ₂ = 1.25e-4, float16", FLOAT16, **_both(1.25e-4)),
    "short-float16": _sparse("γ₂ in the first 30 rounds only, float16", FLOAT16, edge_sparsity_rounds=30),
    "client-only-float16": _sparse("γ₁ alone, float16", FLOAT16, edge_sparsity=0.0),
    "l1": _sparse("exact ℓ1, the paper's schedule", penalty="l1"),
    "high-floor-float16": _sparse(
        "floor .4, γ₂ in the first 30 rounds, float16", FLOAT16, sparsity_floor=0.4, edge_sparsity_rounds=30
    ),
    "quarter-int8": _sparse("γ₁ = γ₂ = 2.5e-4, int8", {"values": "int8"}, **_both(2.5e-4)),
    "literal-float16-difference": _sparse("float16 and differences", FLOAT16 | DIFFERENCE),
    "l1-float16": _sparse("exact ℓ1, float16", FLOAT16, penalty="l1"),
}
BFLOAT16: dict[str, Any] = {"values": "bfloat16"}
# On all links: nearly all bytes are between clients and edges, so fewer edge rounds send less too.
OF_ALL_LINKS: dict[str, Variant] = {
    **{
        name: VARIANTS[name]
        for name in (
            *("dense", "dense-float16", "dense-float16-difference", "dense-bfloat16-difference"),
            *("literal", "literal-float16", "literal-float16-difference", "eighth-float16"),
        )
    },
    "eighth-float16-difference": _sparse(
        "γ₁ = γ₂ = 1.25e-4, float16 and differences", FLOAT16 | DIFFERENCE, **_both(1.25e-4)
    ),
    "10-rounds-float16-difference": Variant(
        "γ = 0, R = 10, float16 and differences", {"edge_rounds": 10}, FLOAT16 | DIFFERENCE
    ),
    "10-rounds-bfloat16-difference": Variant(
        "γ = 0, R = 10, bfloat16 and differences", {"edge_rounds": 10}, BFLOAT16 | DIFFERENCE
    ),
    "5-rounds-bfloat16-difference": Variant(
        "γ = 0, R = 5, bfloat16 and differences", {"edge_rounds": 5}, BFLOAT16 | DIFFERENCE
    ),
    "5-rounds-float16-difference": Variant(
        "γ = 0, R = 5, float16 and differences", {"edge_rounds": 5}, FLOAT16 | DIFFERENCE
    ),
}
# Links that clients and edges might have: between client and edge, between edge and cloud.
PLACES = {"lan": ("lan", "wan"), "wifi": ("wifi", "wan"), "lte-m": ("lte-m", "wan")}


def experiment(
    variant: Variant, seed: int, rounds: int, device: str, *, all_links: bool = False
) -> Experiment:
    """The run of a variant."""
    method = SFedHP(client_proximity=25.0, edge_proximity=25.0, **variant.method)
    wire = WireOptions(**({} if all_links else COUNTED) | variant.wire)
    data = replace(BASE.data, rule="blocks") if all_links else BASE.data
    return replace(BASE, seed=seed, rounds=rounds, device=device, algorithm=method, wire=wire, data=data)


Traffic = Counter[Direction]  # bytes of all members


def sweep_with_all_links(
    experiments: Sequence[Experiment], report: Callable[[Progress], None], every: int = COUNTED_EVERY
) -> list[tuple[Outcome, list[Traffic]]]:
    """The runs of a stack, and the bytes of each round on all links: counted once in so many rounds."""
    prepared = prepare_stack(experiments)
    every = min(every, experiments[0].rounds)
    counted: list[list[Traffic]] = [[] for _ in experiments]

    def after_round(progress: Progress) -> None:
        if progress.row["round"] % every == every // 2:
            for traffic, found in zip(
                counted, count_round(prepared.simulator, experiments[0].wire), strict=True
            ):
                traffic.append(found)
        report(progress)

    runs = [RunInStack(index, History()) for index in range(len(experiments))]
    outcomes = drive(prepared, runs, after_round, None)
    return [
        (
            outcome,
            [traffic[min(place // every, len(traffic) - 1)] for place in range(len(outcome.run.history))],
        )
        for outcome, traffic in zip(outcomes, counted, strict=True)
    ]


def count_round(simulator: Simulator, wire: WireOptions) -> list[Traffic]:
    """What the next round of each run of a stack sends by the encoder, played in a copy of the simulator."""
    counting = replace(wire, count="size")
    links = {direction: link_of(counting, direction) for direction in Direction}
    copy = replace(simulator, links=links, ledger=Ledger(), graphs=False)
    copy.state = simulator.state
    next(copy.run(simulator.state.round + 1))
    sums = {key: entry.bytes.flatten(1).sum(1) for key, entry in copy.ledger.close().items()}
    return [Counter({key: int(each[run]) for key, each in sums.items()}) for run in range(len(copy.initial))]


def record(name: str, outcome: Outcome, traffic: Sequence[Traffic] | None = None) -> dict[str, Any]:
    """The record of a run: config, curve with accumulated bytes, summary.

    Args:
        name: of the variant.
        outcome: of its run.
        traffic: bytes of each round; None: as its history has them.
    """
    run = outcome.run
    sent, curve = 0, []
    if traffic is None:
        traffic = [Counter({key: row.get(f"bytes_{key}", 0) for key in Direction}) for row in run.history]
    for row, bytes_of in zip(run.history, traffic, strict=True):
        sent += sum(bytes_of[key] for key in Direction if key.at_cloud)
        if "gm" in row:
            curve.append({key: row.get(key) for key in CURVE} | {"bytes": sent})
    # Up and down, four edges, 79 510 float32 weights.
    edges = run.experiment.edges
    dense = 2 * edges * len(run.history) * 79_510 * 4
    return {
        "traffic": {str(key): sum(each[key] for each in traffic) for key in Direction},
        "variant": name,
        "seed": run.experiment.seed,
        "rounds": run.experiment.rounds,
        "trouble": outcome.error,
        "commit": os.environ.get("SFEDHP_COMMIT"),
        "config": to_dict(run.experiment),
        "summary": {key: value for key, value in run.summary.items() if key != "folder"},
        "bytes": sent,
        "dense_bytes": dense,
        "curve": curve,
    }


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file; none if it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Run the variants without a record and print the table; with --show only print and plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--show", action="store_true", help="only table and plot from the records; run nothing"
    )
    parser.add_argument("--links", choices=("cloud", "all"), default="cloud", help="links that are coded")
    parser.add_argument("--records", type=Path, help="default: results/tradeoff.jsonl or tradeoff-all.jsonl")
    parser.add_argument("--plot", type=Path, default=Path("docs/images/tradeoff.svg"))
    parser.add_argument("--rounds", type=int, default=BASE.rounds)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="comma-separated variants")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    every = arguments.links == "all"
    arguments.records = arguments.records or (ALL_LINKS if every else RECORDS)
    if not arguments.show:
        _run(arguments)
    records = read(arguments.records)
    print(table_of_all_links(records) if every else table(records))
    if arguments.show and not every:
        draw(records, arguments.plot)
        print(f"plot: {arguments.plot}", file=sys.stderr)


def _run(arguments: argparse.Namespace) -> None:
    """Run what has no record yet; the records of a stack are appended when it ends."""
    done = {(each["variant"], each["seed"], each["rounds"]) for each in read(arguments.records)}
    every = arguments.links == "all"
    known = OF_ALL_LINKS if every else VARIANTS
    names = arguments.only.split(",") if arguments.only else list(known)
    wanted = [
        (name, experiment(known[name], seed, arguments.rounds, arguments.device, all_links=every))
        for name in names
        for seed in range(arguments.seeds)
        if (name, seed, arguments.rounds) not in done
    ]
    arguments.records.parent.mkdir(exist_ok=True)
    for stack in plan([each for _, each in wanted]):
        together = [wanted[place] for place in stack]
        title = ", ".join(dict.fromkeys(name for name, _ in together))
        start = time.perf_counter()

        def report(progress: Progress, title: str = title) -> None:
            if progress.row["round"] % 100 == 0:
                print(
                    f"{title}: round {progress.row['round']} GM {progress.row.get('gm', 0):.2f}",
                    file=sys.stderr,
                )

        asked = [each for _, each in together]
        if every:
            ended = sweep_with_all_links(asked, report)
            made = [record(name, *run) for (name, _), run in zip(together, ended, strict=True)]
        else:
            outcomes = sweep(asked, at_once=len(together), report=report)
            made = [record(name, outcome) for (name, _), outcome in zip(together, outcomes, strict=True)]
        with arguments.records.open("a") as file:
            file.writelines(json.dumps(each) + "\n" for each in made)
        print(f"{title}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


def table(records: list[dict[str, Any]]) -> str:
    """A Markdown table with a line per variant: last GM, its gap to the dense run, and the saved bytes."""
    names = [name for name in VARIANTS if any(each["variant"] == name for each in records)]
    mean = {name: mean_of(records, name) for name in names}
    lines = [
        "| variant | GM last | to dense | GM validated | PM last | density of w | fewer bytes | what |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        row = mean[name]
        gap = row["gm"] - mean["dense"]["gm"] if "dense" in mean else float("nan")
        lines.append(
            f"| `{name}` | {row['gm']:.2f} ± {row['sd']:.2f} | {gap:+.2f} | {row['validated']:.2f} "
            f"| {row['pm']:.2f} | {row['density']:.3f} | {row['factor']:.2f} × | {VARIANTS[name].about} |"
        )
    return "\n".join(lines)


def table_of_all_links(records: list[dict[str, Any]]) -> str:
    """A Markdown table: gaps to the dense run, bytes saved on all links and the cloud's, hours on real links.

    Fewer bytes are against dense float32 messages of R = 20. A last line names the variants without records.
    """
    lines = [
        "| variant | GM | PM | EM | fewer bytes, all links | cloud's links | "
        + " | ".join(f"hours, {place}" for place in PLACES)
        + " | what |",
        f"| --- |{' ---: |' * (5 + len(PLACES))} --- |",
    ]
    for name in OF_ALL_LINKS:
        mine = [each for each in records if each["variant"] == name]
        if not mine:
            continue
        ends = _last_five(records, name)
        shown = [f"{ends[key]:.2f} ({gap:+.2f})" for key, gap in gaps(records, name).items()]
        hours = [statistics.fmean(_hours(each, *place) for each in mine) for place in PLACES.values()]
        lines.append(
            f"| `{name}` | {' | '.join(shown)} | {fewer_bytes(records, name):.2f} × | "
            f"{fewer_bytes(records, name, at_cloud=True):.2f} × | "
            f"{' | '.join(f'{each:.2f}' for each in hours)} | {OF_ALL_LINKS[name].about} |"
        )
    missing = [f"`{name}`" for name in OF_ALL_LINKS if all(each["variant"] != name for each in records)]
    if missing:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    return "\n".join(lines)


def fewer_bytes(records: list[dict[str, Any]], name: str, *, at_cloud: bool = False) -> float:
    """How many times fewer bytes a variant sends, on all links or the cloud's, than dense ones, R = 20."""
    whole = {
        direction: 4 * 79_510 * messages
        for direction, messages in (
            *((Direction.CLIENT_EDGE, 20 * 20), (Direction.EDGE_CLIENT, 20 * 20)),
            *((Direction.EDGE_CLOUD, 4), (Direction.CLOUD_EDGE, 4)),
        )
    }
    links = [direction for direction in whole if direction.at_cloud or not at_cloud]
    return statistics.fmean(
        each["rounds"] * sum(whole[key] for key in links) / sum(each["traffic"][key] for key in links)
        for each in records
        if each["variant"] == name
    )


def gaps(records: list[dict[str, Any]], name: str) -> dict[str, float]:
    """By how many points GM, PM and EM of a variant are above the dense run's."""
    first, own = _last_five(records, "dense"), _last_five(records, name)
    return {key: own[key] - first[key] for key in own}


def _last_five(records: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Means over seeds of the last five evaluations."""
    mine = [each["curve"][-5:] for each in records if each["variant"] == name]
    return {key: statistics.fmean(row[key] for curve in mine for row in curve) for key in ("gm", "pm", "em")}


def _hours(record: dict[str, Any], client_edge: str, edge_cloud: str) -> float:
    """How long all messages take on these links, if every member's are of the mean length."""
    edges, clients = record["config"]["edges"], record["config"]["clients_per_edge"]
    turns = record["rounds"] * record["config"]["algorithm"]["edge_rounds"]
    spent = 0.0
    for up, members, preset, messages in (
        (Direction.CLIENT_EDGE, edges * clients, client_edge, 2 * turns),
        (Direction.EDGE_CLOUD, edges, edge_cloud, 2 * record["rounds"]),
    ):
        channel = PRESETS[preset]
        sent, received = (record["traffic"][direction] / members for direction in (up, up.down))
        received_seconds = 8 * received / (channel.bandwidth * (1 - channel.loss))
        spent += (
            messages * channel.latency + 8 * sent / (channel.uplink * (1 - channel.loss)) + received_seconds
        )
    return spent / 3600


def mean_of(records: list[dict[str, Any]], name: str) -> dict[str, float]:
    """The means over seeds of a variant's figures."""
    mine = [each for each in records if each["variant"] == name]
    summaries = [each["summary"] for each in mine]

    def over(key: str) -> float:
        return statistics.fmean(summary[key] for summary in summaries)

    return {
        "gm": over("gm_last"),
        "sd": statistics.stdev([summary["gm_last"] for summary in summaries]) if len(summaries) > 1 else 0.0,
        "validated": over("gm_validated"),
        "pm": over("pm_last"),
        "density": over("density_global"),
        "factor": statistics.fmean(each["dense_bytes"] / each["bytes"] for each in mine),
    }


DRAWN = {  # variant: color and dashes; variants too close to another are only in the table
    "dense": ("black", "-"),
    "dense-float16": ("tab:blue", "-"),
    "dense-float16-difference": ("tab:blue", "--"),
    "dense-bfloat16-difference": ("tab:cyan", "--"),
    "dense-int8": ("tab:purple", "-"),
    "literal": ("tab:red", "-"),
    "literal-float16": ("tab:orange", "-"),
    "literal-float16-difference": ("tab:orange", "--"),
    "literal-int8": ("tab:brown", "-"),
    "eighth-float16": ("tab:green", "-"),
}


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Accuracy of the global model against accumulated bytes, mean over seeds."""
    import matplotlib as mpl

    mpl.use("svg")
    # The same records give the same file.
    mpl.rcParams |= {"svg.hashsalt": "tradeoff", "svg.fonttype": "none", "font.size": 9}
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for name, (color, dashes) in DRAWN.items():
        curves = [each["curve"] for each in records if each["variant"] == name]
        if not curves:
            continue
        points = list(zip(*curves, strict=True))
        sent = [statistics.fmean(row["bytes"] for row in point) / 1e6 for point in points]
        best = [statistics.fmean(row["gm"] for row in point) for point in points]
        axes.plot(sent, best, dashes, color=color, label=name, linewidth=1.4)
    axes.set(xscale="log", ylim=(80, 96), xlabel="bytes between edges and cloud so far, MB", ylabel="GM, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
