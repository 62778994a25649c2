"""Actors of Ray: hired, replaced and dismissed; a stand-in for Ray, then a real one."""

import importlib.util
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import coverage
import pytest
import torch

import sfedhp
from sfedhp.algorithms import FedAvg, SFedHP
from sfedhp.config import Experiment
from sfedhp.core.engine import EngineOptions
from sfedhp.core.errors import InputError
from sfedhp.engine.client_stack import ClientStack
from sfedhp.engine.ray import actors, check_reachable, cluster, on_ray
from sfedhp.engine.ray.actors import Actor
from sfedhp.runs.prepare import prepare, prepare_stack
from tests.support.paths import ROOT
from tests.support.sharing import check_same, through


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__("a long trace")
        self.cause = cause


class Stand:
    """In place of Ray: calls are answered at once, in this process."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, cpus=(2, 2), gpus=(0, 0), room=True, found=None, **failures):
        self.gpus = gpus
        self.cpus, self.room, self.found, self.greeted = cpus, room, found, []
        self.failures = {name: list(errors) for name, errors in failures.items()}  # by what is called
        self.options, self.killed, self.given, self.asked = None, 0, None, []

    def is_initialized(self):
        return self.given is not None

    def init(self, **options):
        for error in self.failures.get("init", []):
            raise error
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.given = options

    def find(self, address):
        assert address == "auto"
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def greet(self, address):
        for error in self.failures.get("greet", []):
            raise error
        self.greeted.append(address)

    def nodes(self):
        alive = [
            {"Alive": True, "Resources": {"CPU": float(cpus), "GPU": float(gpus)}}
            for cpus, gpus in itertools.zip_longest(self.cpus, self.gpus, fillvalue=0)
        ]
        return [*alive, {"Alive": True, "Resources": {}}, {"Alive": False, "Resources": {"CPU": 9.0}}]

    def remote(self, **options):
        self.options = options
        return lambda kind: SimpleNamespace(remote=lambda *given: self.handle(kind(*given)))

    def handle(self, actor):
        def call(name, *given):
            self.asked.append(name)
            return name, partial(getattr(actor, name), *given)

        return SimpleNamespace(
            **{name: SimpleNamespace(remote=partial(call, name)) for name in ("work", "ready")}
        )

    def put(self, value):
        return through(value)

    def wait(self, calls, num_returns, timeout):
        return (calls, []) if self.room else ([], calls)

    def get(self, reference):
        if isinstance(reference, ClientStack):
            return reference
        name, call = reference
        failing = self.failures.get(name, [])
        if failing:
            raise failing.pop(0)
        return call()

    def kill(self, actor):
        self.killed += 1


@pytest.fixture
def stand(monkeypatch):
    """Puts a stand-in for Ray in its place."""
    monkeypatch.setattr(actors, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(actors, "_POLL_INTERVAL", 0.0)
    for name in cluster._QUIET | cluster._LOOPBACK_ONLY:
        monkeypatch.setenv(name, "unset")

    def put(**options):
        ray = Stand(**options)
        monkeypatch.setitem(sys.modules, "ray", ray)
        inside = {
            "_private.worker": SimpleNamespace(print_to_stdstream=print),
            "_private.services": SimpleNamespace(canonicalize_bootstrap_address=ray.find),
            "_raylet": SimpleNamespace(GcsClient=ray.greet),
        }
        for name, module in inside.items():
            monkeypatch.setitem(sys.modules, f"ray.{name}", module)
        return ray

    return put


@pytest.mark.parametrize(("count", "hired", "threads"), [(0, 3, 1), (2, 2, 2), (1, 1, 2)])
def test_actors_are_hired_and_dismissed(case, stand, count, hired, threads):
    ray = stand()
    before = torch.get_num_threads()
    spread = case.simulator(SFedHP(edge_rounds=2), worker_factory=partial(on_ray, address="", actors=count))
    try:
        check_same(spread, case.simulator(SFedHP(edge_rounds=2)))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert str(spread.graph_status) == f"no: the work is done by {hired} Ray actors"
    assert ray.killed == hired
    assert ray.options == {"num_cpus": threads, "num_gpus": 0.0, "max_restarts": -1}
    assert ray.given["address"] == "local"
    assert not ray.given["include_dashboard"]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_a_run_that_is_left_dismisses_its_actors(case, stand):
    ray = stand(cpus=(1, 1))
    for _ in case.simulator(FedAvg(local_steps=1), worker_factory=partial(on_ray, address="", actors=0)).run(
        5
    ):
        break
    assert ray.killed == 2


def test_ray_prints_errors_to_standard_error(stand, capsys):
    stand()
    cluster.connect("")
    sys.modules["ray._private.worker"].print_to_stdstream({"is_err": False, "pid": "raylet"}, end="")
    assert capsys.readouterr().out == "{'is_err': True, 'pid': 'raylet'}"


def test_a_cluster_is_joined_and_the_callers_signals_are_left_alone(stand):
    ray = stand()
    before = signal.getsignal(signal.SIGTERM)
    assert cluster.connect("head:6379") is ray
    assert ray.given["address"] == "head:6379"
    assert "include_dashboard" not in ray.given
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "unset"
    assert signal.getsignal(signal.SIGTERM) == before
    ray.given = {"kept": True}
    thread = threading.Thread(target=cluster.connect, args=("head:6379",))
    thread.start()
    thread.join()
    assert ray.given == {"kept": True}


DEAD = RayError("The actor died.\nmore")


def test_a_call_to_a_dead_actor_is_repeated_on_its_replacement(case, stand):
    ray = stand(cpus=(1, 1), work=[DEAD] * 3, ready=[DEAD])
    method = SFedHP(edge_rounds=1)
    spread = case.simulator(method, worker_factory=partial(on_ray, address="", actors=0))
    check_same(spread, case.simulator(method))
    # Both start, one of them at the second try; both die, then one of them again.
    assert ray.asked[:3] == ["ready"] * 3
    assert ray.asked[3:10] == ["work", "work", "ready", "ready", "work", "work", "ready"]
    assert ray.asked[10:] == ["work"] * 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"room": False}, "no room for 2 actors of 1 CPUs each: wait"),
        ({"ready": [DEAD] * 2}, "no room"),
        ({"work": [DEAD] * 8}, r"^An actor died 4 times over in cloud round 1 \(The actor died\.\): give"),
        (
            {"work": [RayTaskError(RayError("trace\nModuleNotFoundError: 'mine'\n"))]},
            r"cannot read what it is sent \(ModuleNotFoundError: 'mine'\): install",
        ),
        ({"work": [RayTaskError(InputError("as it was"))]}, "^as it was$"),
    ],
)
def test_a_failure_at_work_is_reported_and_actors_end(case, stand, monkeypatch, options, words):
    ray = stand(cpus=(1, 1), **options)
    if "ready" in options:
        monkeypatch.setattr(actors, "_START_TIMEOUT", 0.0)
    spread = case.simulator(SFedHP(edge_rounds=1), worker_factory=partial(on_ray, address="", actors=0))
    with pytest.raises(InputError, match=words):
        next(spread.run(1))
    assert ray.killed == 2


@pytest.mark.parametrize(
    ("options", "count", "words"),
    [
        (
            {"cpus": (1, 2)},
            4,
            r"^engine\.actors = 4 is more than the 3 CPUs of the Ray cluster: .* machines\.$",
        ),
        ({"cpus": (0,)}, 0, "more than the 0 CPUs"),
        ({"init": [ConnectionError("nobody\nthere")]}, 0, r"^Ray cannot be started \(nobody\): check"),
    ],
)
def test_a_failure_to_start_is_reported(case, stand, options, count, words):
    stand(**options)
    spread = case.simulator(SFedHP(edge_rounds=1), worker_factory=partial(on_ray, address="", actors=count))
    with pytest.raises(InputError, match=words):
        next(spread.run(1))


def test_every_actor_gets_what_its_machine_has():
    assert actors._cpus_for_each(4, [16, 16, 16]) == 8
    assert actors._cpus_for_each(3, [16, 16, 16]) == 16
    assert actors._cpus_for_each(4, [2, 1, 0, 1]) == 1


def test_actors_divide_the_gpus():
    assert actors._gpu_for_each(2, 4) == 1
    assert actors._gpu_for_each(4, 4) == 1
    assert actors._gpu_for_each(4, 2) == 0.5
    assert actors._gpu_for_each(5, 2) == pytest.approx(1 / 3)


@pytest.mark.parametrize(("count", "hired", "part"), [(0, 2, 1.0), (3, 3, 0.5)])
def test_actors_ask_for_gpus_where_the_run_has_one(case, stand, monkeypatch, count, hired, part):
    ray = stand(gpus=(1, 1))
    # There is no GPU here: what an actor is told is kept, and its share computes on the CPU.
    told: list[str] = []

    def hire(threads, device):
        told.append(device)
        return Actor(threads, "cpu")

    monkeypatch.setattr(actors, "Actor", hire)
    simulator: Any = OnGpu(case.simulator(SFedHP(edge_rounds=2)))
    with on_ray(simulator, "", count) as worker:
        assert worker.device.type == "cuda"
        assert str(worker.status) == f"no: the work is done by {hired} Ray actors on GPUs"
    assert told == ["cuda"] * hired
    assert ray.options["num_gpus"] == part


def test_a_cluster_without_gpus_is_refused_where_the_run_has_one(case, stand):
    stand()
    simulator: Any = OnGpu(case.simulator(SFedHP(edge_rounds=2)))
    with pytest.raises(InputError, match="No machine of the Ray cluster has a GPU"), on_ray(simulator, "", 0):
        pass


class OnGpu:
    """A simulator that says that it is on a GPU."""

    def __init__(self, simulator):
        self._simulator, self.initial = simulator, SimpleNamespace(device=SimpleNamespace(type="cuda"))

    def __getattr__(self, name):
        return getattr(self._simulator, name)


def test_ray_must_be_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'sfedhp\[ray\]'"):
        prepare(Experiment(engine=EngineOptions(kind="ray")))


def test_addresses_are_checked_before_anything_is_loaded(stand, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    check_reachable("")
    ray = stand()
    for address in ("head", "ray://head:10001x", ":6379"):
        with pytest.raises(InputError, match="is not known: use host:port"):
            check_reachable(address)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable(f"127.0.0.1:{port}")
        assert ray.greeted == [f"127.0.0.1:{port}"]
    for wrong in (port, 70000):
        with pytest.raises(InputError, match=f"No Ray cluster answers at 127.0.0.1:{wrong}"):
            check_reachable(f"127.0.0.1:{wrong}")
    assert len(ray.greeted) == 1


def test_who_listens_but_is_no_ray_is_refused(stand, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    ray = stand(greet=[RayError("Timed out.\nmore")])
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match=rf"^No Ray cluster answers at {address} \(Timed out\): start"):
            check_reachable(address)
        ray.given = {}  # this process is in a cluster, however it came there
        check_reachable(address)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("127.0.0.1:1", r"^No Ray cluster answers at 127\.0\.0\.1:1 \(.*\): .* is started here\)\.$"),
        (ConnectionError("Nobody.\nmore"), r"^This machine is part of no Ray cluster \(Nobody\): start one"),
        (ValueError("Invalid"), r"^This machine is part of no Ray cluster \(Invalid\): start one"),
    ],
)
def test_the_cluster_of_this_machine_may_be_gone(stand, monkeypatch, tmp_path, found, words):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    ray = stand(found=found)
    experiment = Experiment(engine=EngineOptions(kind="ray", address="auto"))
    with pytest.raises(InputError, match=words):
        sfedhp.run(experiment, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "unset"
    ray.given = {}
    check_reachable("auto")


def test_a_cluster_that_ray_would_start_is_not_looked_for(stand, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    ray = stand(found=None)
    check_reachable("auto")
    assert ray.greeted == []


def test_what_ray_does_not_do_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    experiment = Experiment(engine=EngineOptions(kind="ray"))
    with pytest.raises(InputError, match="one experiment at a time"):
        prepare_stack([experiment, replace(experiment, seed=1)])
    both = EngineOptions(kind="ray", devices="cpu,cpu")
    with pytest.raises(InputError, match="leave one of them out"):
        prepare(replace(experiment, engine=both))
    assert prepare(experiment).simulator.initial.device.type == "cpu"


# A network of loopback alone, with an address that looks like the machine's own: Ray would listen there.
NAMESPACE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
LOOPBACK = 'ip link set lo up && ip addr add 10.9.9.1/24 dev lo && ip route add default dev lo && exec "$@"'


@pytest.fixture
def alone():
    """The words before a command that runs it in a network, and among processes, of its own."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    words = [*NAMESPACE, "sh", "-c", LOOPBACK, "sh"]
    try:
        subprocess.run([*words, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces are not permitted here")
    return words


def test_a_cluster_that_died_is_not_waited_for(alone, tmp_path):
    """The files that Ray left still name it."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("10.9.9.1:6379")
    run = [str(Path(sys.executable).parent / "sfedhp"), "run", "engine.kind=ray", "engine.address=auto"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [*alone, *run, "--out", "run"],
        cwd=tmp_path,
        env={**environment, "HOME": str(tmp_path), "RAY_TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: No Ray cluster answers at 10.9.9.1:6379 (")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_actors_of_a_real_ray(alone, marked):
    """What on_ray.py tests."""
    root = ROOT
    measured = ["-m", "coverage", "run"] if coverage.Coverage.current() else []
    inner = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        marked,
        str(root / "tests/support/on_ray.py"),
    ]
    # Short, for the paths of sockets must be.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        done = subprocess.run(
            [*alone, sys.executable, *measured, *inner],
            cwd=root,
            env={
                **os.environ,
                "HOME": folder,
                "RAY_TMPDIR": folder,
                "PYTHONPATH": str(root),
                "OMP_NUM_THREADS": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
