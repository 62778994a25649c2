"""Shares as actors of Ray. test_actors.py runs this file in a network that is loopback alone."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import sfedhp
from sfedhp.algorithms import ALGORITHMS, HeurFedAMP, PFedMe, SFedHP
from sfedhp.core.engine import EngineOptions
from sfedhp.core.errors import InputError
from sfedhp.data import DataOptions
from sfedhp.engine.ray import on_ray
from sfedhp.engine.ray.actors import Actor
from tests.support.sharing import check_same, some_lost

LOCAL = partial(on_ray, address="", actors=2)
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module", autouse=True)
def one_ray():
    """The first run starts Ray, and it stays for the others."""
    os.environ["STARTED_BY_THIS_TEST"] = str(os.getpid())  # actors inherit it
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) == before, "Ray took the caller's handler away"
    sys.modules["ray"].shutdown()


def actor_processes():
    """The ids of our actors' processes."""
    marker = f"STARTED_BY_THIS_TEST={os.getpid()}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue
        if title.startswith(f"ray::{Actor.__name__}".encode()) and marker in environment:
            found.append(int(process.name))
    return found


def die_once(path, clock, ids):
    """No reply is lost, but the first process that asks so in the second round dies of it."""
    if clock.cloud_round == 1 and clock.edge_round == 1:
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            return ids < 0
        os.kill(os.getpid(), signal.SIGKILL)
    return ids < 0


def raise_here(clock, ids):
    raise InputError("What the work itself refuses.")


def die_always(clock, ids):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_actors_give_the_same_as_one_process(case, name):
    method = ALGORITHMS[name]()
    options = {"sampled": 2 if method.tiers == 3 else 5, "lost": some_lost}
    spread = case.simulator(method, worker_factory=LOCAL, **options)
    check_same(spread, case.simulator(method, **options))
    assert str(spread.graph_status) == "no: the work is done by 2 Ray actors"
    deadline = time.monotonic() + 600
    while actor_processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not actor_processes(), "actors end with the run"


def test_an_actor_that_is_killed_at_work_changes_nothing(case, tmp_path):
    method, killed = SFedHP(edge_rounds=3), tmp_path / "killed"
    spread = case.simulator(method, lost=partial(die_once, killed), worker_factory=LOCAL)
    check_same(spread, case.simulator(method))
    assert killed.exists()


def test_an_actor_that_is_killed_between_rounds_changes_nothing(case, capfd):
    class Killing:
        def __init__(self, simulator):
            self.simulator, self.ledger = simulator, simulator.ledger

        def run(self, rounds):
            for state in self.simulator.run(rounds):
                yield state
                if state.round == 1:
                    before.extend(actor_processes())
                    os.kill(before[0], signal.SIGKILL)
            after.extend(actor_processes())

    before: list[int] = []
    after: list[int] = []
    method = HeurFedAMP(local_steps=3)
    spread = Killing(case.simulator(method, worker_factory=LOCAL))
    check_same(spread, case.simulator(method))
    assert len(before) == 2
    assert before[0] not in after
    # Whether Ray says a word depends on who notices first: it, or the next call of the dead actor.
    assert not capfd.readouterr().out, "standard output is for results"


def test_it_cannot_be_reached_from_outside():
    listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True, check=True).stdout
    addresses = [line.split()[3].rpartition(":")[0] for line in listening.splitlines()]
    assert len(addresses) >= 3
    assert set(addresses) <= {"127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"}
    assert not {"8265", "10001"} & {line.split()[3].rpartition(":")[2] for line in listening.splitlines()}
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.slow
def test_an_actor_that_always_dies_ends_the_run_with_a_sentence(case):
    spread = case.simulator(SFedHP(edge_rounds=1), lost=die_always, worker_factory=LOCAL)
    with pytest.raises(InputError, match="died 4 times over in cloud round 1"):
        next(spread.run(1))


@pytest.mark.slow
def test_an_error_of_the_work_comes_as_it_is(case, capfd):
    spread = case.simulator(SFedHP(edge_rounds=1), lost=raise_here, worker_factory=LOCAL)
    with pytest.raises(InputError, match=r"^What the work itself refuses\.$"):
        next(spread.run(1))
    assert "Traceback" not in capfd.readouterr().err
    time.sleep(1)  # what others raised would be reported a little later
    assert "raise_here" not in capfd.readouterr().err


def test_more_actors_than_cpus_are_refused(case):
    spread = case.simulator(PFedMe(), worker_factory=partial(on_ray, address="", actors=1000))
    with pytest.raises(InputError, match=r"engine\.actors = 1000 is more than the"):
        next(spread.run(1))


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), PFedMe(local_rounds=2)])
def test_edges_with_two_and_four_clients_give_the_same_as_one_process(method):
    experiment = sfedhp.Experiment(
        rounds=2,
        clients_per_edge=(2, 4),
        dtype="float64",
        algorithm=method,
        data=DataOptions(train_per_label=10, test_per_label=10, validation_per_label=5),
        model=sfedhp.ModelOptions(name="mlr"),
    )
    alone = sfedhp.run(experiment)
    spread = sfedhp.run(replace(experiment, engine=EngineOptions(kind="ray", actors=2)))
    assert [len(edge) for edge in spread.client_models] == [2, 4]
    for edge, others in zip(alone.client_models, spread.client_models, strict=True):
        for one, other in zip(edge, others, strict=True):
            assert one is not None
            assert other is not None
            for name, value in one.state_dict().items():
                torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-9, atol=1e-12)
    assert [row["pm"] for row in alone.history] == [row["pm"] for row in spread.history]


def test_a_run_is_recorded_resumed_and_saved_as_in_one_process(tmp_path):
    experiment = sfedhp.Experiment(
        rounds=3,
        edges=2,
        clients_per_edge=2,
        dtype="float64",
        algorithm=SFedHP(edge_rounds=3),
        data=DataOptions(train_per_label=10, test_per_label=10, validation_per_label=5),
        model=sfedhp.ModelOptions(name="mlr"),
        engine=EngineOptions(kind="ray"),
    )
    stopped = sfedhp.run(experiment, out=tmp_path / "ray", stop=lambda: True)
    assert stopped.summary["rounds"] == 1
    spread = sfedhp.resume(tmp_path / "ray")
    alone = sfedhp.run(
        sfedhp.Experiment(**{**vars(experiment), "engine": EngineOptions()}), out=tmp_path / "alone"
    )
    assert len(spread.history) == len(alone.history) == 3
    for row, other in zip(spread.history, alone.history, strict=True):
        assert row.keys() == other.keys()
        for name, value in row.items():
            assert name == "seconds" or value == pytest.approx(other[name], rel=1e-9)
    names = sorted(path.name for path in (tmp_path / "alone/models").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "ray/models").iterdir())
    assert len(names) == 1 + 2 + 4
    for name in names:
        mine, theirs = (load_file(tmp_path / where / "models" / name) for where in ("ray", "alone"))
        for key, value in mine.items():
            assert (value - theirs[key]).norm() <= 1e-9 * theirs[key].norm()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Starts another machine of a cluster: all are this one, but for Ray they are not."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)
    started: list[subprocess.Popen[bytes]] = []

    def start(*words):
        told = tmp_path / f"machine-{len(started)}.txt"
        command = [BIN / "ray", "start", "--block", "--num-cpus=1", "--disable-usage-stats", *words]
        with told.open("w") as file:
            child = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        started.append(child)
        wait_for(lambda: "Ray runtime started" in told.read_text(), told.read_text)
        return child

    yield start
    for child in reversed(started):
        if child.poll() is None:
            child.terminate()
            child.wait(30)


def wait_for(condition, trouble):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, trouble()
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("address", ["auto", "127.0.0.1:46379"])
def test_a_cluster_is_joined_and_may_lose_a_machine(machine, tmp_path, address):
    machine("--head", "--port=46379", "--include-dashboard=false")
    second = machine("--address=127.0.0.1:46379")
    out = tmp_path / "run"
    words = ["rounds=60", "evaluation.every=60", "algorithm.edge_rounds=2", "dtype=float64", "model.name=mlr"]
    command: list[str | Path] = [BIN / "sfedhp", "run", *words, "--json"]
    run = subprocess.Popen(
        [*command, "engine.kind=ray", f"engine.address={address}", f"--out={out}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rows = out / "history.jsonl"
    wait_for(lambda: rows.exists() and len(rows.read_text().splitlines()) > 2, lambda: run.communicate()[1])
    os.killpg(second.pid, signal.SIGKILL)
    machine("--address=127.0.0.1:46379")
    told, errors = run.communicate(timeout=600)
    assert run.returncode == 0, errors
    assert "no: the work is done by 2 Ray actors" in (out / "environment.json").read_text()
    alone = subprocess.run([*command, f"--out={tmp_path / 'alone'}"], capture_output=True, check=True)
    mine, other = json.loads(told), json.loads(alone.stdout)
    assert mine.keys() == other.keys()
    for name in mine.keys() - {"seconds", "folder"}:
        value = other[name]
        assert mine[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)


@pytest.mark.slow
def test_torch_gets_the_number_of_its_threads():
    ray = sys.modules["ray"]
    actor = ray.remote(num_cpus=1)(Actor).remote(1, "cpu")
    threads = ray.get(actor.__ray_call__.remote(lambda self: torch.get_num_threads()))
    ray.kill(actor)
    assert threads == 1
