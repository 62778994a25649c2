"""`sfedhp bench`: measure speed against a plain loop over the clients."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from sfedhp.bench.cases import Case
from sfedhp.bench.ceilings import Ceilings, ceilings, machine
from sfedhp.bench.comparison import Row, compare, grow, loop_against_rivals
from sfedhp.bench.loop import METHODS
from sfedhp.bench.measurement import Plan
from sfedhp.bench.rivals import OF_CLONE, Rival, has_adapters, installed, parse, read_kinds
from sfedhp.cli.options import json_option
from sfedhp.cli.output.columns import Column, print_table
from sfedhp.cli.output.console import print_json, results
from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.nn.presets import MODELS
from sfedhp.runs.environment import device_of

_METHODS = ("sfedhp",)
_MODELS = ("mlr", "dnn-small", "dnn")
_NAME = 12  # the longest name
_BUSY = 0.7  # load average above which the numbers are not reliable


@click.command()
@click.option(
    "--methods",
    metavar="A,B,…",
    help=f"Methods to measure, of {', '.join(METHODS)}; by default {', '.join(_METHODS)}.",
)
@click.option(
    "--models",
    metavar="A,B,…",
    help=f"Models to measure, of {', '.join(MODELS)}; by default {', '.join(_MODELS)}.",
)
@click.option(
    "--rival",
    "rivals",
    multiple=True,
    metavar="NAME[=PATH]",
    help="Also measure another code base; PATH: its checkout, or the python that has it. See --adapters.",
)
@click.option(
    "--adapters",
    type=click.Path(file_okay=False, path_type=Path),
    default=OF_CLONE,
    metavar="DIR",
    help="Folder with the adapters of other code bases; by default benchmarks/rivals of the clone.",
)
@click.option(
    "--scale",
    is_flag=True,
    help="Also measure how the cost grows, up to 20 000 clients and 64 runs in a batch.",
)
@click.option(
    "--all", "everything", is_flag=True, help="All methods, models and installed rivals; takes hours."
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, or auto.")
@click.option(
    "--pairs", type=click.IntRange(min=1), default=Plan().pairs, show_default=True, help="Rounds to measure."
)
@json_option("Print the rows as one JSON list.")
def bench(
    methods: str | None,
    models: str | None,
    rivals: tuple[str, ...],
    adapters: Path,
    scale: bool,
    everything: bool,
    device: str,
    pairs: int,
    as_json: bool,
) -> None:
    """Measure the time of training rounds on this machine against a plain loop over the clients.

    The loop has a module, an optimizer and a DataLoader for each client, like most public code. All sides get
    the same data (synthetic, in MNIST's shape), model, mini-batches and number of gradient steps in the
    paper's setting: 4 edges with 5 clients each, 400 rows per client, batch 20, R = 20, K = 5. They run in
    separate processes, one round each in turn. The median counts, with one or two threads (the faster one).

    \b
    Examples:
      sfedhp bench
      sfedhp bench --methods fedavg,pfedme --models dnn
      sfedhp bench --rival pfedme=../pFedMe --rival pfl=../venv/bin/python --json
      sfedhp bench --scale
    """
    chosen = _rivals(rivals, adapters, everything)
    names = _names("--methods", methods, METHODS if everything else _METHODS, METHODS)
    networks = _names("--models", models, tuple(MODELS) if everything else _MODELS, MODELS)
    if any(rival.name == "pfedme" for rival in chosen) and "pfedme" not in names:
        names.append("pfedme")  # to show that the loop is as fast as the public code it replaces
    device = device_of(device).type
    plan = Plan(pairs=pairs, threads=_threads(device))
    load = os.getloadavg()[0]
    if load > _BUSY:
        click.echo(f"The machine is busy (load {load:.2f}): these numbers are not reliable.", err=True)
    limits = ceilings(device, max(plan.threads))
    click.echo(_heading(device, limits, load), err=as_json)
    rows: list[Row] = []
    for model in networks:
        for method in names:
            rows += _announce(compare(Case(method, model, device), chosen, plan, limits))
    grown: list[Row] = []
    if scale or everything:
        for row in grow(Case("sfedhp", "dnn-small", device), plan, limits):
            grown += _announce([row])
    if as_json:
        print_json([asdict(row) for row in rows + grown])
        return
    _print_rows(rows)
    for row, times in loop_against_rivals(rows):
        click.echo(
            f"{row.algorithm}, {row.model}: the loop takes {times:.2f} times as long as {row.against}."
        )
    if grown:
        _print_growth(grown)


def _rivals(words: Sequence[str], adapters: Path, everything: bool) -> list[Rival]:
    """The rivals of these words, and with `everything` those that are installed.

    Raises:
        InputError: a rival is not there, or the adapters are not.
    """
    if not words and not everything:
        return []
    if not words and not has_adapters(adapters):
        click.echo(f"Other code bases are left out: there are no adapters in {adapters}.", err=True)
        return []
    kinds = read_kinds(adapters)
    chosen = [parse(word, kinds) for word in words]
    return chosen + (installed(chosen, kinds) if everything else [])


def _names(option: str, given: str | None, default: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names of an option, separated by commas, each checked.

    Raises:
        InputError: one is unknown.
    """
    if given is None:
        return list(default)
    names = list(dict.fromkeys(name.strip() for name in given.split(",")))
    for name in names:
        if name not in known:
            raise InputError(f"{option} {name} is not known: use {', '.join(known)}.")
    return names


def _threads(device: str) -> tuple[int, ...]:
    """The numbers of threads to try: one and two on a CPU; on a GPU the host only launches kernels."""
    cores = os.cpu_count() or 1
    return (1, 2) if device == "cpu" and cores > 1 else (1,)


def _heading(device: str, limits: Ceilings, load: float) -> str:
    now = datetime.now(UTC).date().isoformat()
    return (
        f"{machine(device)}; {now}; load {load:.2f}\n"
        f"Ceilings: {limits.matmul / 1e9:.0f} GFLOP/s of float32 matrix products, "
        f"{limits.copy / 1e9:.1f} GB/s read and written."
    )


def _announce(rows: list[Row]) -> list[Row]:
    """Print measured rows to stderr while others are being measured."""
    for row in rows:
        size = f"{counted(row.clients, 'client')}, {counted(row.runs, 'run')}"
        words = f"{row.algorithm}, {row.model}, {size}: "
        words += f"{row.seconds_per_round:.4f} s per round"
        if row.ratio is not None:
            words += f", {row.against} {row.against_seconds_per_round:.4f} s, ratio {row.ratio:.1f}"
        click.echo(words, err=True)
    return rows


def _print_rows(rows: Sequence[Row]) -> None:
    columns = [
        *(Column("method", words=_NAME), Column("model", words=_NAME), Column("against", words=_NAME)),
        *(Column("ours s/round"), Column("theirs s/round"), Column("ratio"), Column("threads", spare=1)),
        *(Column("ours MB"), Column("theirs MB"), Column("% of matmul", spare=2)),
        Column("% of copying", spare=3),
    ]
    lines = [
        (
            row.algorithm,
            row.model,
            row.against or "–",
            _seconds(row.seconds_per_round),
            _seconds(row.against_seconds_per_round),
            "–" if row.ratio is None else f"{row.ratio:.1f}",
            f"{row.threads} {row.against_threads}",
            _megabytes(row.peak_bytes),
            _megabytes(row.against_peak_bytes),
            f"{_percent(row.matmul_share)} {_percent(row.against_matmul_share):>3}",
            f"{_percent(row.copy_share)} {_percent(row.against_copy_share):>3}",
        )
        for row in rows
    ]
    console = results()
    print_table(console, columns, lines)
    console.print(
        "ratio: theirs / ours. Two numbers in a column: ours, theirs. MB: peak memory, without the "
        "interpreter and its imports. % of matmul, of copying: the share of this machine's ceilings that a "
        "round reaches; its operations and bytes are counted by formula. Data in caches can exceed the "
        "ceiling of copying."
    )


def _print_growth(rows: Sequence[Row]) -> None:
    columns = [
        *(Column("clients"), Column("runs"), Column("s/round"), Column("ms/client and run")),
        *(Column("threads", spare=1), Column("rounds", spare=4), Column("MB")),
        *(Column("% of matmul", spare=2), Column("% of copying", spare=3)),
    ]
    lines = [
        (
            f"{row.clients:,}",
            str(row.runs),
            _seconds(row.seconds_per_round),
            f"{1e3 * row.seconds_per_round / row.clients / row.runs:.3f}",
            str(row.threads),
            str(row.rounds),
            _megabytes(row.peak_bytes),
            _percent(row.matmul_share),
            _percent(row.copy_share),
        )
        for row in rows
    ]
    print_table(results(), columns, lines)


def _megabytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e6:,.1f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"
