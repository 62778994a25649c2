"""`sfedhp sweep`: the grammar of a grid, stacks, one table, and going on where it was stopped."""

import importlib
import json
import os
import re
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest

import sfedhp as library
from sfedhp.cli.commands import sweep as module
from sfedhp.core.files import locked
from sfedhp.runs.results import Outcome


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of this width; gives what it shows as plain lines."""

    def of(width):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(width))
        return lambda text: re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text).splitlines()

    return of


@pytest.fixture
def stopped_at(monkeypatch):
    """Sends a signal when this many rounds were reported; one more round is then under way."""

    def at(rounds):
        left = [rounds]

        @contextmanager
        def shown(title):
            def report(progress):
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGINT)

            yield report

        monkeypatch.setattr(module, "round_progress", shown)

    return at


def test_the_config_of_a_run_of_a_sweep_can_be_swept(sfedhp, tiny, here):
    joined = "algorithm.client_proximity+algorithm.edge_proximity=5,9"
    assert sfedhp("sweep", *tiny, joined, "--out", "grid").exit_code == 0
    file = "grid/client_proximity=5,edge_proximity=5,seed=0/config.toml"
    result = sfedhp("sweep", file, "rounds=2", "seeds=2", "--out", "again")
    assert result.exit_code == 0, result.stderr
    assert sorted(path.parent.name for path in (here / "again").glob("*/config.toml")) == [
        "run,seed=0",
        "run,seed=1",
    ]
    assert "client_proximity = 5.0" in (here / "again/run,seed=1/config.toml").read_text()


def test_a_sweep_prints_one_line_a_setting(sfedhp, tiny, here):
    result = sfedhp("sweep", *tiny, "algorithm.edge_rate=0.01,0.05", "seeds=2", "--out", "grid")
    assert result.exit_code == 0, result.stderr
    assert "4 runs in 1 stack\n" in result.stderr
    lines = [line for line in result.stdout.splitlines() if " ± " in line]
    assert [line.split()[0] for line in lines] == ["0.01", "0.05"]
    assert sorted(path.parent.name for path in (here / "grid").glob("*/config.toml")) == [
        f"edge_rate={rate},seed={seed}" for rate in ("0.01", "0.05") for seed in (0, 1)
    ]
    assert (here / "grid/edge_rate=0.01,seed=1/history.jsonl").exists()


def test_progress_names_the_stack(sfedhp, tiny):
    result = sfedhp("sweep", *tiny, "batch_size=5,10", "seeds=2", "--out", "grid")
    for size in (5, 10):
        assert f"sweep batch_size={size},seed=0 and 1 more: round 3/3  GM " in result.stderr


def test_a_sweep_over_methods_as_json(sfedhp, tiny):
    result = sfedhp("sweep", *tiny, "algorithm=fedavg,sfedhp", "--out", "methods", "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [row["algorithm"] for row in rows] == ["fedavg", "sfedhp"]
    assert "2 runs in 2 stacks" in result.stderr


def test_a_run_that_diverges_is_marked(sfedhp, tiny):
    result = sfedhp("sweep", *tiny, "algorithm.edge_rate=0.05,1e30", "--out", "wild")
    assert result.exit_code == 3
    assert "diverged in round" in result.stdout
    assert "0 of 1" in result.stdout


def test_a_run_that_diverged_is_marked_again_and_not_repeated(sfedhp, tiny, here):
    words = ["sweep", *tiny, "algorithm.edge_rate=1e30,0.05", "--out", "wild", "--json"]
    first, again = sfedhp(*words), sfedhp(*words)
    assert (first.exit_code, again.exit_code) == (3, 3)
    assert json.loads(first.stdout) == json.loads(again.stdout)
    assert "1 finished before" in again.stderr
    result = sfedhp("resume", "wild/edge_rate=1e30,seed=0")
    assert result.exit_code == 2
    assert "there is nothing to resume" in result.stderr


def test_a_second_sweep_of_the_same_folder_is_refused(sfedhp, tiny, here):
    words = ["sweep", *tiny, "seeds=2", "--out", "grid"]
    assert sfedhp(*words).exit_code == 0
    with locked(here / "grid/run,seed=1"):
        result = sfedhp(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: grid/run,seed=1 is in use by a run that is under way: wait until")


def test_an_unknown_key_is_refused(sfedhp, tiny):
    result = sfedhp("sweep", *tiny, "algorithm.edge_rat=1,2")
    assert result.exit_code == 2
    assert "algorithm.edge_rate" in result.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["algorithm.edge_rate=0.1,0.1"], "has the same value twice"),
        (["algorithm.edge_rate=0.1,0.10"], "edge_rate=0.10 and edge_rate=0.1 are the same run"),
        (["algorithm.edge_rate=0.1,0.2", "sfedhp.edge_rate=0.3"], "edge_rate=0.2 and edge_rate=0.1 are the"),
        (["data.source=tiny.npz,mnits"], "There is no data source 'mnits'"),
        (["data.source=tiny.npz,nowhere.npz"], "There is no file"),
        (["model.name=mlr,vgg"], "The vgg models need images"),
        (["data.source=a/b.npz,a_b.npz"], "Two of the runs would have the folder source=a_b.npz,seed=0"),
        (["seeds=2", "engine.kind=ray"], "sweep with --at-once 1"),
        (["batch_size=2,3", "--at-once", "1", "model.initial=none.safetensors"], "there is no file none"),
    ],
)
@pytest.mark.parametrize("out", [["--out", "grid"], []])
def test_nothing_is_written_before_everything_is_checked(sfedhp, tiny, here, words, sentence, out):
    varied = {word.partition("=")[0] for word in words}
    result = sfedhp("sweep", *(word for word in tiny if word.partition("=")[0] not in varied), *words, *out)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert sorted(path.name for path in here.iterdir()) == ["tiny.npz"]


def test_a_method_may_lack_what_varies_for_another(sfedhp, tiny):
    words = ["algorithm=fedavg,sfedhp", "algorithm.client_proximity=5,15", "--out", "both", "--json"]
    result = sfedhp("sweep", *tiny, *words)
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)) == 4
    assert (
        "algorithm.client_proximity is ignored: it is a key of sfedhp, pfedme, sfedhp-plus, not of fedavg."
        in result.stderr
    )


@pytest.mark.parametrize("words", [["--out", ""], ["--out", " "]])
def test_no_name_is_no_folder(sfedhp, tiny, here, words):
    result = sfedhp("sweep", *tiny, *words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "--out is empty: name a folder or file, or leave it out." in result.stderr
    assert [path.name for path in here.iterdir()] == ["tiny.npz"]


GRID = ["algorithm.client_proximity+algorithm.edge_proximity=5,15", "batch_size=5,10", "seeds=2"]


def test_on_80_columns_no_line_is_wider_and_no_value_broken(sfedhp, tiny, terminal):
    plain = terminal(80)
    lines = plain(sfedhp("sweep", *tiny, *GRID, "--out", "grid").stdout)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    assert [line.split()[:3] for line in lines if " ± " in line] == [
        ["5", "5", "2"],
        ["5", "10", "2"],
        ["15", "5", "2"],
        ["15", "10", "2"],
    ]
    assert [line.split()[0] for line in lines[:4]] == ["client_", "proximity+", "edge_", "proximity"]
    assert lines[3].split()[1:3] == ["batch_size", "runs"]
    assert any(line.startswith("(no room for: ") and "GM best*" in line for line in lines)
    assert "GM last" in lines[3]


def test_where_nothing_more_can_go_a_line_is_a_list(sfedhp, tiny, terminal):
    plain = terminal(40)
    lines = plain(sfedhp("sweep", *tiny, *GRID, "--out", "grid").stdout)
    assert "client_proximity+edge_proximity 5," in lines
    assert all(len(line) <= 40 for line in lines if "grid" not in line)
    assert sum(line.strip().startswith("GM best* ") for line in lines) == 4


def test_in_a_file_nothing_is_left_out(sfedhp, tiny, monkeypatch):
    def run_first(experiments, folders, **_):
        """One run is used for all: only the table matters here."""
        run = library.run(experiments[0])
        return [Outcome(replace(run, folder=folder), None) for folder in folders]

    monkeypatch.setattr(module, "run_all", run_first)
    monkeypatch.setenv("COLUMNS", "80")
    wide = [*GRID, "algorithm.personal_rate=0.01234567,0.02", "algorithm.edge_rate=0.0123456789,0.02"]
    wide += ["data.test_share=0.25,0.3", "algorithm.personal_steps=2,3", "algorithm.cloud_mixing=0.5,0.75"]
    lines = sfedhp("sweep", *tiny, "rounds=1", *wide, "--out", "grid").stdout.splitlines()
    head = next(line for line in lines if "GM best*" in line)
    assert len(head) > 120
    for name in ("PM last", "EM last", "GM last", "validated", "edge_rate", "runs"):
        assert name in head
    assert sum("0.0123456789" in line for line in lines) == 64
    assert "room" not in "".join(lines)


def test_keys_are_called_by_their_last_part_where_one_has_it(sfedhp, tiny):
    result = sfedhp("sweep", *tiny, "checkpoint.every=5,6", "evaluation.every=1,2", "--out", "grid")
    assert "checkpoint." in result.stdout
    assert "evaluation." in result.stdout


def test_a_stopped_sweep_continues_and_repeats_nothing(sfedhp, tiny, here, stopped_at, monkeypatch):
    words = [*tiny, "algorithm.edge_rate=0.01,0.05", "batch_size=5,10", "seeds=2"]
    straight = sfedhp("sweep", *words, "--out", "straight", "--json")
    assert straight.exit_code == 0
    stopped_at(4)  # three rounds of the first stack, then in the second of the second
    result = sfedhp("sweep", *words, "--out", "grid", "--at-once", "4")
    assert result.exit_code == 130
    lines = [line.split() for line in result.stdout.splitlines() if " ± " in line]
    # rate, batch size, runs, and the round it was stopped in where it was
    assert [line[:2] for line in lines] == [["0.01", "5"], ["0.01", "10"], ["0.05", "5"], ["0.05", "10"]]
    assert [line[2] for line in lines] == ["2", "0", "2", "0"]
    assert [line[2:6] for line in lines[1::2]] == [["0", "of", "2", "2"]] * 2
    assert "stopped in" in result.stdout
    assert (
        "A line without a finished run shows the numbers of the round in which it was stopped."
        in result.stdout
    )
    hint = re.search(
        r"Stopped, and saved; 4 of 8 runs not finished. Resume with: sfedhp (.*)$", result.stderr
    )
    assert hint is not None
    again = hint[1].split()
    assert again[-4:] == ["--at-once", "4", "--out", "grid"]
    monkeypatch.undo()
    monkeypatch.chdir(here)
    done: dict[str, list[int]] = {}

    @contextmanager
    def counting(title):
        yield lambda progress: done.setdefault("rounds", []).append(progress.row["round"])

    monkeypatch.setattr(module, "round_progress", counting)
    resumed = sfedhp(*again, "--json")
    assert resumed.exit_code == 0
    assert "8 runs in 2 stacks; 4 finished before" in resumed.stderr
    assert done == {"rounds": [3]}
    figures = [json.loads(each.stdout) for each in (straight, resumed)]
    for row in figures[0] + figures[1]:
        del row["folder"], row["seconds"]
        assert (row["finished"], row["trouble"], row["stopped_after"]) == (True, None, None)
    assert figures[0] == figures[1]
    name = "edge_rate=0.05,batch_size=10,seed=1"
    both = [
        (here / sweep / name / "models/client-1-1.safetensors").read_bytes() for sweep in ("straight", "grid")
    ]
    assert both[0] == both[1]
    # Each is an ordinary run.
    assert "was already finished" in sfedhp("resume", f"grid/{name}").stderr


def test_json_says_which_runs_were_stopped_and_where(sfedhp, tiny, stopped_at):
    stopped_at(1)
    result = sfedhp("sweep", *tiny, "batch_size=5,10", "--out", "grid", "--json")
    assert result.exit_code == 130
    [row] = json.loads(result.stdout)
    assert (row["stopped_after"], row["finished"], row["rounds"]) == (2, False, 2)
    assert "2 of 2 runs not finished" in result.stderr


def test_runs_that_never_began_are_named(sfedhp, tiny, stopped_at):
    stopped_at(3)  # the last round of the first
    result = sfedhp("sweep", *tiny, "batch_size=5,10", "--out", "grid")
    assert result.exit_code == 130
    assert [line.split()[1:5] for line in result.stdout.splitlines()[3:5]][1] == ["0", "of", "1", "not"]
    assert "1 of 2 runs not finished" in result.stderr


def test_a_signal_in_the_very_last_round_stops_nothing(sfedhp, tiny, stopped_at):
    stopped_at(6)
    assert sfedhp("sweep", *tiny, "batch_size=5,10", "--out", "grid").exit_code == 0


@pytest.mark.parametrize(
    ("word", "contrast"),
    [
        ("rounds=4", "rounds = 4, but the run was computed with 3"),
        ("algorithm.edge_rounds=3", "algorithm.edge_rounds = 3, but the run was computed with 2"),
        ("data.source=other.npz", "other.npz', but the run was computed with"),
    ],
)
def test_another_sweep_is_not_taken_for_this_one(sfedhp, tiny, here, word, contrast):
    assert sfedhp("sweep", *tiny, "seeds=2", "--out", "grid").exit_code == 0
    (here / "other.npz").write_bytes((here / "tiny.npz").read_bytes())
    result = sfedhp("sweep", *tiny, word, "seeds=3", "--out", "grid")
    assert result.exit_code == 2
    assert "grid/run,seed=0 holds another run: here is " in result.stderr
    assert contrast in result.stderr
    assert not (here / "grid/run,seed=2").exists()


def test_more_seeds_are_added_to_those_there_are(sfedhp, tiny, monkeypatch):
    assert sfedhp("sweep", *tiny, "seeds=2", "--out", "grid").exit_code == 0
    result = sfedhp("sweep", *tiny, "seeds=3", "--out", "grid", "device=cpu")
    assert result.exit_code == 0
    assert "3 runs in 2 stacks; 2 finished before" in result.stderr


def test_other_data_under_the_same_name_is_refused(sfedhp, tiny, here):
    import numpy as np

    assert sfedhp("sweep", *tiny, "seeds=2", "--out", "grid").exit_code == 0
    with np.load("tiny.npz") as arrays:
        changed = {name: arrays[name] for name in arrays.files}
    changed["inputs"] = changed["inputs"] + 1
    np.savez("tiny.npz", **changed)
    result = sfedhp("sweep", *tiny, "seeds=2", "--out", "grid")
    assert result.exit_code == 2
    assert "is not what the run in grid/run,seed=0 was computed with" in result.stderr


def test_what_is_not_shown_is_not_explained(sfedhp, tiny, terminal):
    words = ["sweep", *tiny, "algorithm.edge_rate=0.01,0.05", "seeds=2", "--out"]
    plain = terminal(45)
    lines = " ".join(" ".join(plain(sfedhp(*words, "narrow").stdout)).split())
    assert "GM best*; a wider" in lines
    assert "* best of all rounds" not in lines
    plain = terminal(120)
    assert any(line.startswith("* best of all") for line in plain(sfedhp(*words, "wide").stdout))


def test_a_seed_is_named_once_and_the_deviation_is_explained(sfedhp, tiny, here):
    result = sfedhp("sweep", *tiny, "seed=7,8", "--out", "seeds")
    assert result.exit_code == 0
    assert sorted(path.parent.name for path in (here / "seeds").glob("*/config.toml")) == ["seed=7", "seed=8"]
    assert "±" not in result.stdout
    repeated = sfedhp("sweep", *tiny, "seeds=2", "--out", "repeated")
    assert "± is the standard deviation over the runs of a line" in repeated.stdout


def test_a_model_that_was_edited_meanwhile_is_refused(sfedhp, tiny, here, monkeypatch):
    source = "from torch import nn\ndef make(*_):\n    return nn.Sequential(nn.Linear(4, 3), nn.{}())\n"
    words = [*tiny, "model.name=edited_model:make", "--out", "grid"]
    for activation, code in (("Tanh", 0), ("ReLU", 2)):
        (here / "edited_model.py").write_text(source.format(activation))
        monkeypatch.delitem(sys.modules, "edited_model", raising=False)
        importlib.invalidate_caches()
        result = sfedhp("sweep", *words)
        assert result.exit_code == code
    assert "The model edited_model:make is not the one of the run in grid/run,seed=0" in result.stderr
