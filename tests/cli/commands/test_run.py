"""`sfedhp run`: results, files, messages, and how it ends."""

from __future__ import annotations

import json
import re
from datetime import datetime

import numpy as np
import pytest

import sfedhp as library
from sfedhp.cli import paths, progress
from sfedhp.cli.output.console import print_json
from sfedhp.runs.loop import Progress
from sfedhp.runs.settings import read_settings


def test_the_summary_is_the_only_thing_on_stdout(sfedhp, tiny, here):
    result = sfedhp("run", *tiny, "--json", "--out", "one", "algorithm.local_steps=3")
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    run = library.run(read_settings(tiny).experiment())
    expected = {**run.summary, "folder": "one", "source": str(here / "tiny.npz")}
    assert summary.keys() == expected.keys()
    assert {**summary, "seconds": 0} == {**expected, "seconds": 0}
    assert "algorithm.local_steps is ignored" in result.stderr
    assert "sfedhp: round 3/3  GM " in result.stderr


@pytest.mark.parametrize("command", ["run", "sweep", "compare"])
def test_an_even_number_of_steps_under_a_stiff_spring_gets_a_sentence(sfedhp, tiny, command):
    only = ["--only", "fedavg,sfedhp"] if command == "compare" else []
    names = "sfedhp: " if command == "compare" else ""
    for steps, said in ((4, f"{names}K = 4 is even and ηλ = 1 is not below 1: "), (3, "")):
        result = sfedhp(command, *tiny, f"algorithm.personal_steps={steps}", *only)
        assert result.exit_code == 0
        assert said in result.stderr
        assert ("is even" in result.stderr) is bool(said)


def test_the_table_shows_every_figure_and_the_folder(sfedhp, tiny):
    words = [*tiny, "data.validation_per_label=1", "--out", "one"]
    result = sfedhp("run", *words)
    assert result.exit_code == 0
    summary = json.loads(sfedhp("resume", "one", "--json").stdout)
    lines = {line.split(",")[0].strip(): line for line in result.stdout.splitlines()}
    for kind in ("pm", "em", "gm"):
        figures = re.findall(r"[\d.]+", lines[kind.upper()])
        names = ("last", "best", "validated", "validated_round", "macro_last", "spread_last", "worst_last")
        assert [float(figure) for figure in figures] == pytest.approx(
            [summary[f"{kind}_{name}"] for name in names], abs=0.006
        )
    assert "chosen on the test data" in result.stdout
    assert re.search(r"sent +client → edge 1\.4 kB, cloud → edge 360 bytes", result.stdout)
    assert re.search(r"density +client [01]\.\d+, edge [01]\.\d+, global [01]\.\d+ .*0\.0005", result.stdout)
    assert re.search(r"folder +one\n", result.stdout)
    assert "models/                      7 models" in result.stdout


def test_the_table_shows_what_the_links_cost_where_they_are_set(sfedhp, tiny):
    words = [
        "links.client_edge.bandwidth=9600",
        "links.client_edge.latency=10",
        "links.edge_cloud.preset=wan",
    ]
    result = sfedhp("run", *tiny, *words)
    # 3 · 2 messages of 60 bytes each way: 6 · 2 · (10 + 480/9600) = 120.6 s, and 0.1 s to and from the cloud
    assert (
        "links     0:02:01, 0.0 J without computing (client ↔ edge 0:02:01, edge ↔ cloud 0.1 s, 0.0 J)\n"
        in (result.stdout)
    )
    assert "links  " not in sfedhp("run", *tiny).stdout


def test_a_method_without_some_models_has_dashes(sfedhp, tiny):
    result = sfedhp("run", *tiny, "algorithm=fedavg")
    assert re.search(r"PM, personal models( +–){6}", result.stdout)
    assert "client → cloud" in result.stdout


def test_batch_norm_shows_both_statistics(sfedhp, here):
    # One client's images are dark, the other's bright: the mean of their statistics fits neither.
    labels, client = np.arange(48) % 2, np.arange(48) // 24
    inputs = np.random.default_rng(0).random((48, 3, 32, 32)) + labels[:, None, None, None]
    inputs += 20 * client[:, None, None, None]
    np.savez("images.npz", inputs=inputs.astype("f4"), labels=labels, client=client)
    words = "data.source=images.npz model.name=vgg edges=1 clients_per_edge=2 rounds=3 algorithm=hierfavg"
    result = sfedhp("run", *words.split(), "batch_size=8", "evaluation.every=3")
    assert result.exit_code == 0
    row = json.loads(next(here.glob("runs/*/history.jsonl")).read_text().splitlines()[-1])
    assert row["gm_local"] != row["gm_averaged"]
    assert (
        f"GM with each client's own batch-norm statistics {row['gm_local']:.2f}, "
        f"with averaged ones {row['gm_averaged']:.2f}." in result.stdout
    )


def test_the_default_folder_is_always_new(sfedhp, tiny, here, monkeypatch):
    class Noon(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2025, 1, 2, 12, 0, 0)

    monkeypatch.setattr(paths, "datetime", Noon)
    for _ in range(3):
        assert sfedhp("run", *tiny, "rounds=1").exit_code == 0
    names = sorted(path.name for path in (here / "runs").iterdir())
    assert names == [f"sfedhp-tiny-20250102-120000{more}" for more in ("", "-2", "-3")]


def test_notes_on_the_data_come_before_the_run(sfedhp, here):
    words = (
        "data.partition=paper-as-written data.train_per_label=60 data.test_per_label=20 rounds=1 "
        "data.validation_per_label=0 model.name=mlr algorithm.edge_rounds=1"
    )
    lines = sfedhp("run", *words.split()).stderr.splitlines()
    assert "overlap factor" in lines[0]
    assert any("round 1/1" in line for line in lines[1:])


def test_a_models_module_is_found_in_the_current_folder(sfedhp, tiny, here):
    (here / "my_nets.py").write_text(
        "import torch\ndef small(shape, classes):\n    return torch.nn.Linear(shape[0], classes)\n"
    )
    assert sfedhp("run", *tiny, "model.name=my_nets:small").exit_code == 0


def test_a_terminal_gets_a_bar(sfedhp, tiny, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    result = sfedhp("run", *tiny, "--json")
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", result.stderr)
    assert re.search(r"sfedhp ━+ 3/3 GM [\d.]+  PM [\d.]+ 0:00:00 left", shown)
    json.loads(result.stdout)


def test_elsewhere_a_line_now_and_then(capsys, monkeypatch):
    time = iter([0.0, 4.0, 11.0, 12.0, 13.0])
    monkeypatch.setattr("sfedhp.cli.progress.time.monotonic", lambda: next(time))
    with progress.round_progress("fedavg") as report:
        for number in range(1, 6):
            row = {"round": number, "gm": 10.0 * number} if number != 3 else {"round": number}
            report(Progress(row, 5))
    # 11 s for two rounds: two more take another 11.
    assert capsys.readouterr().err.splitlines() == [
        "fedavg: round 1/5  GM 10.00",
        "fedavg: round 3/5  GM 20.00  0:00:11 left",
        "fedavg: round 5/5  GM 50.00",
    ]


def test_lines_of_a_sweep_name_the_stack_and_mix_no_figures(capsys):
    with progress.round_progress("sweep") as report:
        report(Progress({"round": 3, "gm": 45.5, "pm": 50.0}, 3, "batch_size=5,seed=0 and 1 more"))
        report(Progress({"round": 3, "gm": 40.6}, 3, "batch_size=10,seed=0 and 1 more"))
    assert capsys.readouterr().err.splitlines() == [
        "sweep batch_size=5,seed=0 and 1 more: round 3/3  GM 45.50  PM 50.00",
        "sweep batch_size=10,seed=0 and 1 more: round 3/3  GM 40.60",
    ]


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_divergence_is_exit_code_3_and_a_sentence(sfedhp, tiny, here, words):
    result = sfedhp("run", *tiny, "algorithm=fedavg", "algorithm.local_rate=1e38", "--out", "gone", *words)
    assert result.exit_code == 3
    remedy = r"set smaller rates \(`sfedhp check` shows what is too large\)\."
    sentence = rf"^error: diverged in round \d: .* are kept: {remedy}$"
    assert re.search(sentence, result.stderr, re.MULTILINE)
    assert "NaN" not in result.stdout
    assert (here / "gone" / "models" / "global.safetensors").exists()
    if words:
        assert json.loads(result.stdout)["finished"] is False
    else:
        assert "not finished" in result.stdout


def test_what_is_not_finite_is_null_in_json(capsys):
    print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": "é"})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": "é"}


def test_on_a_narrow_terminal_the_models_keep_their_names(sfedhp, tiny, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    result = sfedhp("run", *tiny, "data.validation_per_label=1")
    lines = re.sub(r"\x1b\[[\d;]*m", "", result.stdout).splitlines()
    for name in ("PM, ?", "EM, edge", "GM, ?"):
        assert any(re.match(rf"{name}.* \d+\.\d\d \(\d\)", line) for line in lines), name
    assert "(no room for: macro, spread; a wider" in [line.rstrip() for line in lines]
