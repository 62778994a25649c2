"""Signals, and going on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from sfedhp.cli import execution
from tests.support.json_lines import json_lines


@pytest.fixture
def signals_after(monkeypatch):
    """Send this process a signal after a round."""

    def arrange(number, sent):
        @contextmanager
        def shown(title):
            def report(progress):
                if progress.row["round"] == number:
                    os.kill(os.getpid(), sent)

            yield report

        monkeypatch.setattr(execution, "round_progress", shown)

    return arrange


def bits(folder):
    history = json_lines(folder / "history.jsonl")
    files = [*folder.glob("models/*"), *folder.glob("checkpoint/*")]
    contents = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    for row in history:
        del row["seconds"]
    return history, contents


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_resumed_run_has_the_same_bits(
    sfedhp, tiny, here, signals_after, monkeypatch, number, code
):
    before = signal.getsignal(number)
    words = [*tiny, "rounds=4", "checkpoint.every=3"]
    assert sfedhp("run", *words, "--out", "unbroken").exit_code == 0
    with monkeypatch.context():
        signals_after(1, number)
        result = sfedhp("run", *words, "--out", "a folder")
    assert result.exit_code == code
    # The signal came after round 1 had asked whether to stop.
    assert "Stopped after round 2 of 4, and saved. Resume with: sfedhp resume 'a folder'" in result.stderr
    assert "not finished" in result.stdout
    assert signal.getsignal(number) == before
    monkeypatch.undo()
    monkeypatch.chdir(here)
    result = sfedhp("resume", "a folder")
    assert result.exit_code == 0
    assert "round 4/4" in result.stderr
    history, contents = bits(here / "unbroken")
    assert len(history) == 4
    resumed_history, resumed = bits(here / "a folder")
    assert resumed_history == history
    # The run that stopped keeps the checkpoint of its stop beside the last one.
    last = {name for name in contents if "models" in name or "000004" in name}
    assert len(last) == 8
    assert {name: resumed[name] for name in last} == {name: contents[name] for name in last}


def test_a_second_signal_ends_at_once():
    with execution.Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.requested()
        with pytest.raises(SystemExit) as ending:
            os.kill(os.getpid(), signal.SIGTERM)
    assert ending.value.code == 143


def test_a_signal_in_the_last_round_changes_nothing(sfedhp, tiny, signals_after):
    signals_after(3, signal.SIGINT)
    assert sfedhp("run", *tiny).exit_code == 0


def test_a_finished_run_says_so_and_prints_its_summary_again(sfedhp, tiny):
    first = sfedhp("run", *tiny, "--out", "one", "--json")
    again = sfedhp("resume", "one", "--json")
    assert again.exit_code == 0
    assert again.stderr == "The run in one was already finished.\nPage: one/report.html\n"
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert "GM, global model" in sfedhp("resume", "one").stdout


def test_a_run_that_diverged_is_not_resumed(sfedhp, tiny):
    wild = ["algorithm.edge_rate=100", "algorithm.edge_rounds=30"]
    assert sfedhp("run", *tiny, *wild, "--out", "one").exit_code == 3
    result = sfedhp("resume", "one")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: The run in one diverged in round 1: ")
    assert "there is nothing to resume: start a new run with smaller rates" in result.stderr


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "rounds = 3",
            "rounds = 6.0",
            "In one/config.toml: rounds = 6.0 is not a whole number: it must be at",
        ),
        (
            "rounds = 3",
            'rounds = "6"',
            "rounds = '6' is not a whole number: it must be at least 1.",
        ),
        (
            "clients_at_once = 4",
            "clients_at_once = 1.5",
            "engine.clients_at_once = 1.5 is not a whole number",
        ),
        ('kind = "process"', "kind = 5", "engine.kind = 5 is not known: use process or ray."),
        ('inner = "auto"', "inner = false", "engine.inner = False is not known: use auto or plain."),
        ('address = ""', "address = 5", "engine.address = 5 is not text: write it in quotes."),
        ('device = "auto"', "device = true", "device = True is not text: write it in quotes."),
        ('source = "', 'source = 5  # "', "data.source = 5 is not text: write it in quotes."),
        ("rounds = 3", "rounds 3", "one/config.toml cannot be read (Expected '=' after a key"),
        ("rounds = 3", "rounds 3", "): correct it, or restore it from a copy.\n"),
    ],
)
def test_a_damaged_config_is_reported(sfedhp, tiny, here, old, new, sentence):
    assert sfedhp("run", *tiny, "rounds=3", "--out", "one").exit_code == 0
    path = here / "one/config.toml"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    result = sfedhp("resume", "one")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert sentence in result.stderr


@pytest.mark.parametrize("spoilt", [b"x\n", b"", b"[1]\n", b"\xff\xfe"])
def test_a_spoilt_environment_is_written_anew(sfedhp, tiny, here, spoilt):
    assert sfedhp("run", *tiny, "--out", "one").exit_code == 0
    (here / "one/environment.json").write_bytes(spoilt)
    result = sfedhp("resume", "one")
    assert result.exit_code == 0
    assert "one/environment.json is damaged: " in result.stderr
    assert json.loads((here / "one/environment.json").read_text()).keys() == {"captured", "checksum"}


def test_a_damaged_history_is_reported(sfedhp, tiny, here):
    assert sfedhp("run", *tiny, "--out", "one").exit_code == 0
    (here / "one/history.jsonl").write_text("[1,2]\n")
    result = sfedhp("resume", "one")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("error: one/history.jsonl is damaged in line 1: its checksum is wrong. ")


def test_a_run_under_way_is_not_resumed(sfedhp, process, tiny, here):
    child = process("run", *tiny, "rounds=1000000", "checkpoint.every=1", "--out", "long")
    wait_for(lambda: any((here / "long").glob("checkpoint/round-*")), child)
    result = sfedhp("resume", "long")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: long is in use by a run that is under way: ")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=600)
    assert child.returncode == 130


def test_ctrl_c_before_the_first_round_is_reported(sfedhp, tiny, here, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("sfedhp.cli.commands.run.prepare", interrupted)
    result = sfedhp("run", *tiny, "--out", "one")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "Stopped before the first round; nothing was saved.\n"
    assert not (here / "one").exists()


def test_ctrl_c_outside_of_any_round_is_reported(sfedhp, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("sfedhp.cli.commands.check.read_settings", interrupted)
    result = sfedhp("check")
    assert (result.exit_code, result.stderr) == (130, "Stopped.\n")
    monkeypatch.setattr("sfedhp.cli.import_module", interrupted)
    result = sfedhp("run")
    assert (result.exit_code, result.stderr) == (130, "Stopped before anything was done.\n")


def test_ctrl_c_during_imports_is_reported():
    code = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from sfedhp.cli import main
main(["run"], prog_name="sfedhp")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "Stopped before anything was done.\n"


def wait_for(condition, child):
    deadline = time.monotonic() + 600
    while not condition():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_process_finishes_the_round(process, tiny, here, number, code):
    child = process("run", *tiny, "rounds=1000000", "--out", "long", "--json")
    history = here / "long" / "history.jsonl"
    wait_for(lambda: history.exists() and history.read_text().count("\n") > 2, child)
    child.send_signal(number)
    out, err = child.communicate(timeout=600)
    assert child.returncode == code
    summary = json.loads(out)
    rounds = summary["rounds"]
    assert not summary["finished"]
    assert history.read_text().count("\n") == rounds
    assert (here / "long" / "checkpoint" / f"round-{rounds:06d}.safetensors").exists()
    assert re.search(
        rf"Stopped after round {rounds} of 1000000, and saved\. Resume with: sfedhp resume long\n", err
    )
    assert "Traceback" not in err


def test_a_second_signal_ends_the_process_within_the_round(process, tiny, here):
    child = process("run", *tiny, "algorithm.edge_rounds=1000000", "--out", "long")
    wait_for((here / "long" / "history.jsonl").exists, child)
    child.send_signal(signal.SIGINT)
    assert "a second signal exits at once" in child.stderr.readline() + child.stderr.readline()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=600)
    assert child.returncode == 130
    assert (out, "Traceback" in err) == ("", False)
