"""`sfedhp bench`: what is measured for which words, one table, one JSON list, and refusals."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sfedhp.bench.cases import Case
from sfedhp.bench.ceilings import Ceilings
from sfedhp.bench.comparison import LOOP, OURS, Row, row_of
from sfedhp.bench.loop import METHODS
from sfedhp.bench.measurement import Plan, Timing
from sfedhp.bench.rivals import Rival
from sfedhp.cli import arenas, main
from sfedhp.cli.commands import bench as command
from sfedhp.nn.presets import MODELS

LIMITS = Ceilings(copy=1e10, matmul=1e11)
OURS_TAKES, LOOP_TAKES, RIVAL_TAKES = 0.25, 1.0, 0.8
TIMINGS = {
    OURS: Timing(OURS_TAKES, 2, 10**6, 5, 10**9, 10**9),
    LOOP: Timing(LOOP_TAKES, 1, 2 * 10**6, 5, 10**10, 10**10),
    "pfedme": Timing(RIVAL_TAKES, 1, 3 * 10**6, 5, None, None),
}
NEEDED = {
    "algorithm",
    "model",
    "device",
    "against",
    "seconds_per_round",
    "against_seconds_per_round",
    "ratio",
    "peak_bytes",
}


class Measured:
    """What was asked for."""

    cases: list[Case]
    plan: Plan


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Measurements that are made up."""
    asked = Measured()
    asked.cases = []

    def compare(case: Case, rivals: list[Rival], plan: Plan, limits: Ceilings) -> list[Row]:
        asked.cases.append(case)
        asked.plan = plan
        others = [rival.name for rival in rivals if rival.runs(case)]
        return [row_of(case, TIMINGS, against, limits) for against in [LOOP, *others]]

    def grow(case: Case, plan: Plan, limits: Ceilings) -> Iterator[Row]:
        yield row_of(Case(case.method, case.model, edges=200, clients_per_edge=100), TIMINGS, None, limits)

    monkeypatch.setattr(command, "compare", compare)
    monkeypatch.setattr(command, "grow", grow)
    monkeypatch.setattr(command, "ceilings", lambda device, threads: LIMITS)
    monkeypatch.setattr(command, "installed", lambda given, kinds: [])
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    return asked


@pytest.fixture
def sfedhp(measured: Measured) -> Callable[..., Result]:
    def invoke(*words: str) -> Result:
        return CliRunner().invoke(main, ["bench", *words], prog_name="sfedhp")

    return invoke


@pytest.fixture
def checkout(tmp_path: Any) -> str:
    (tmp_path / "FLAlgorithms").mkdir()
    return f"pfedme={tmp_path}"


def test_plain_bench_is_sfedhp_on_three_models(sfedhp: Callable[..., Result], measured: Measured) -> None:
    result = sfedhp()
    assert result.exit_code == 0, result.output
    assert measured.cases == [Case("sfedhp", model) for model in ("mlr", "dnn-small", "dnn")]
    assert measured.cases[0] == Case(
        "sfedhp", "mlr", "cpu", edges=4, clients_per_edge=5, rows=400, batch_size=20
    )
    assert measured.plan.pairs == 5
    assert measured.plan.warmups == 2
    line = next(line for line in result.stdout.splitlines() if "dnn-small" in line)
    figures = "0.2500 1.0000 4.0 2 1 1.0 2.0 4 10 40 100"
    assert " ".join(line.split()) == f"sfedhp dnn-small loop {figures}"
    assert "100 GFLOP/s" in result.stdout
    assert "10.0 GB/s" in result.stdout
    assert "ratio 4.0" in result.stderr, "how far it is"
    assert "busy" not in result.stderr


def test_on_80_columns_the_figures_are_whole(
    sfedhp: Callable[..., Result], checkout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    words = ["--methods", "heurfedamp,pfedme", "--models", "dnn-small", "--rival", checkout, "--scale"]
    text = re.sub(r"\x1b\[[\d;]*m", "", sfedhp(*words).stdout)
    lines = text.splitlines()
    assert "…" not in text
    assert max(len(line) for line in lines[1:]) <= 80  # the first is about this machine
    assert ["heurfedamp", "dnn-small", "loop", "0.2500", "1.0000", "4.0"] in [
        line.split()[:6] for line in lines
    ]
    assert any(line.startswith("(no room for: ") and "% of copying" in line for line in lines)
    # clients, runs, s/round, ms/client and run, threads, rounds, MB, % of matmul, % of copying
    assert ["20,000", "1", "0.2500", "0.013", "2", "5", "1.0", "4", "40"] in [line.split() for line in lines]
    assert "heurfedamp, dnn-small, 20 clients, 1 run: 0.2500 s" in sfedhp(*words).stderr


def test_json_is_one_list_and_nothing_else(sfedhp: Callable[..., Result]) -> None:
    rows = json.loads(sfedhp("--models", "mlr", "--scale", "--json").stdout)
    assert all(row.keys() >= NEEDED for row in rows)
    first, grown = rows
    assert {name: first[name] for name in NEEDED} == {
        "algorithm": "sfedhp",
        "model": "mlr",
        "device": "cpu",
        "against": "loop",
        "seconds_per_round": OURS_TAKES,
        "against_seconds_per_round": LOOP_TAKES,
        "ratio": LOOP_TAKES / OURS_TAKES,
        "peak_bytes": 10**6,
    }
    assert (grown["clients"], grown["against"], grown["ratio"]) == (20_000, None, None)


def test_growth_has_a_table_of_its_own(sfedhp: Callable[..., Result]) -> None:
    text = sfedhp("--models", "mlr", "--scale").stdout
    line = next(line for line in text.splitlines() if "20,000" in line)
    # 0.25 s for 20 000 clients
    assert line.split()[:4] == ["20,000", "1", "0.2500", "0.013"]


def test_the_pfedme_code_also_judges_the_loop(
    sfedhp: Callable[..., Result], measured: Measured, checkout: str
) -> None:
    result = sfedhp("--models", "dnn", "--rival", checkout)
    assert [case.method for case in measured.cases] == ["sfedhp", "pfedme"]
    assert "pfedme, dnn: the loop takes 1.25 times as long as pfedme." in result.stdout
    assert result.stdout.count("times as long") == 1
    lines = [line.split()[:3] for line in result.stdout.splitlines()]
    assert ["sfedhp", "dnn", "pfedme"] in lines
    measured.cases.clear()
    sfedhp("--methods", "pfedme", "--models", "dnn", "--rival", checkout)
    assert len(measured.cases) == 1


def test_methods_models_and_everything(sfedhp: Callable[..., Result], measured: Measured) -> None:
    sfedhp("--methods", "fedavg, pfedgp,fedavg", "--models", "vgg", "--pairs", "2")
    assert [(case.method, case.model) for case in measured.cases] == [("fedavg", "vgg"), ("pfedgp", "vgg")]
    assert measured.plan.pairs == 2
    measured.cases.clear()
    result = sfedhp("--all")
    assert "20,000" in result.stdout
    assert [(case.method, case.model) for case in measured.cases] == [
        (method, model) for model in MODELS for method in METHODS
    ]


def test_without_the_adapters_rivals_are_refused_and_everything_else_is_measured(
    sfedhp: Callable[..., Result], measured: Measured, checkout: str, tmp_path: Path
) -> None:
    there = ["--adapters", str(tmp_path)]  # as in an installed package
    refused = sfedhp("--rival", checkout, *there)
    assert refused.exit_code == 2
    assert "the adapters of rivals are not installed with the package" in refused.stderr
    assert not measured.cases
    assert sfedhp(*there).exit_code == 0
    result = sfedhp("--all", *there)
    assert result.exit_code == 0
    assert "Other code bases are left out: there are no adapters in" in result.stderr
    assert "left out" not in sfedhp("--all").stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "fedavgg"], "--methods fedavgg is not known: use sfedhp, fedavg"),
        (["--models", "mlr,resnet"], "--models resnet is not known: use mlp, mlr, dnn"),
        (["--rival", "nothing=x"], "--rival nothing is not known"),
        (["--device", "nowhere"], "device = 'nowhere' is not available here"),
        (["--pairs", "0"], "0 is not in the range"),
    ],
)
def test_bad_words_are_refused(sfedhp: Callable[..., Result], words: list[str], sentence: str) -> None:
    result = sfedhp(*words)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--rounds 2", "--rounds has no effect without --arena or --population: leave it out."),
        ("--cohort 2", "--cohort has no effect without --arena or --population: leave it out."),
        ("--record a.json", "--record has no effect without --arena or --population: leave it out."),
        ("--synthetic", "--synthetic has no effect without --arena: leave it out."),
        ("--precision float32", "--precision has no effect without --arena: leave it out."),
        ("--population 9 --whole", "--whole has no effect with --population: leave it out."),
        ("--population 9 --arena blazefl", "--arena has no effect with --population: leave it out."),
        ("--arena blazefl --pairs 2", "--pairs has no effect with --arena: leave it out."),
        ("--arena blazefl --models mlr", "--models has no effect with --arena: leave it out."),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    sfedhp: Callable[..., Result], measured: Measured, words: str, sentence: str
) -> None:
    result = sfedhp(*words.split())
    assert (result.exit_code, result.stderr) == (2, f"error: {sentence}\n")
    assert measured.cases == []


def test_every_option_of_other_measurements_is_known_to_be_one() -> None:
    assert {option.name for option in command.bench.params} >= set(arenas._USED)


def test_a_busy_machine_is_reported(sfedhp: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (2.5, 2.0, 1.0))
    result = sfedhp("--models", "mlr")
    assert "The machine is busy (load 2.50)" in result.stderr


def test_threads_are_one_and_two_where_there_are_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert command._threads("cpu") == (1, 2)
    assert command._threads("cuda") == (1,)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert command._threads("cpu") == (1,)
