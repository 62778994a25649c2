"""`sfedhp bench`: measure speed against a plain loop over the clients."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import click
import torch

from sfedhp.bench.arena import Terms
from sfedhp.bench.arenas import ARENAS
from sfedhp.bench.cases import Case
from sfedhp.bench.ceilings import Ceilings, ceilings, machine
from sfedhp.bench.comparison import Row, compare, grow, loop_against_rivals
from sfedhp.bench.loop import METHODS
from sfedhp.bench.measurement import Plan
from sfedhp.bench.rivals import OF_CLONE, Rival, has_adapters, installed, parse, read_kinds
from sfedhp.cli.arenas import check_used, show_arena, show_populations
from sfedhp.cli.options import json_option
from sfedhp.cli.output.bench import print_growth, print_rows
from sfedhp.cli.output.console import print_json
from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted
from sfedhp.core.types import Precision
from sfedhp.nn.precision import check_precision
from sfedhp.nn.presets import MODELS
from sfedhp.runs.environment import device_of

_METHODS = ("sfedhp",)
_MODELS = ("mlr", "dnn-small", "dnn")
_ROUNDS = 10  # of an arena, or a population
_COHORT = 50  # of a population
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
@click.option(
    "--arena",
    type=click.Choice([*ARENAS]),
    help="Run a workload on which others publish their speed, with its protocol, instead of the paper's.",
)
@click.option(
    "--population",
    type=click.IntRange(min=1),
    metavar="N",
    help="Measure rounds that draw --cohort of N clients, which are never in memory together; with --models.",
)
@click.option(
    "--synthetic", is_flag=True, help="Random images of the arena's shape instead of its image set."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Rounds of the arena to measure; by default 10. Fewer than a whole run are extrapolated.",
)
@click.option("--whole", is_flag=True, help="All rounds of the arena, with its evaluations.")
@click.option("--no-loop", is_flag=True, help="Leave the plain loop out of the arena.")
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    default="float32",
    show_default=True,
    help="Of products in the arena, as engine.precision; rivals run with torch's own settings.",
)
@click.option(
    "--at-once",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Clients of the arena that are computed together, as engine.clients_at_once.",
)
@click.option(
    "--cohort",
    type=click.IntRange(min=1),
    metavar="N",
    help="Clients a round, of an arena or a population (50).",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the arena's record as JSON, with machine and date; ours are in results/bench.",
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
    arena: str | None,
    synthetic: bool,
    rounds: int | None,
    whole: bool,
    no_loop: bool,
    precision: Precision,
    at_once: int,
    cohort: int | None,
    record: Path | None,
    population: int | None,
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
      sfedhp bench --arena pfl-cifar10 --synthetic --rival pfl=../venv/bin/python
    """
    check_used(click.get_current_context())
    if population is not None:
        chosen_models = _names("--models", models, ("mlr", "cnn"), MODELS)
        show_populations(
            chosen_models, population, cohort or _COHORT, device, rounds or _ROUNDS, record, as_json
        )
        return
    chosen = _rivals(rivals, adapters, everything)
    if arena is not None:
        device = device_of(device).type
        entered = ARENAS[arena] if cohort is None else replace(ARENAS[arena], cohort=cohort)
        if entered.cohort > entered.clients:
            raise InputError(f"--cohort {cohort} is more than the {entered.clients} clients of {arena}.")
        check_precision(precision, torch.float32, torch.device(device))
        measured = entered.rounds if whole else min(rounds or _ROUNDS, entered.rounds)
        threads = torch.get_num_threads() if device == "cpu" else 1
        terms = Terms(measured, synthetic, device, precision, threads, at_once, not no_loop)
        show_arena(entered, terms, chosen, record, as_json)
        return
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
    print_rows(rows)
    for row, times in loop_against_rivals(rows):
        click.echo(
            f"{row.algorithm}, {row.model}: the loop takes {times:.2f} times as long as {row.against}."
        )
    if grown:
        print_growth(grown)


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
