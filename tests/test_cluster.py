"""Shares of a simulation: in this process for their arithmetic, then as actors of Ray for the rest."""

import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sfedhp.algorithms import ALGORITHMS, FedAvg, HeurFedAMP, HierFAVG, PFedMe, SFedHP
from sfedhp.capture import stored
from sfedhp.checks.problem import EDGES, leaves
from sfedhp.cluster import actors, check_reachable, on_ray
from sfedhp.cluster.parcels import packed, side_by_side, unpacked
from sfedhp.cluster.shares import Share, Spread, divided, parts_of
from sfedhp.config import EngineOptions, Experiment
from sfedhp.networks import Network
from sfedhp.preparation import prepare, prepare_stack
from sfedhp.runs import checkpoints
from sfedhp.types import InputError
from sfedhp.vectors import Factored, Layer, dense
from sfedhp.wire.links import Link, WireOptions

ROUNDS = 3


def through(tree):
    """As it comes out at the other end of a connection."""
    return pickle.loads(pickle.dumps(tree))


def in_shares(count, asked=None):
    """Whoever works instead of the simulator: shares that live in this process."""

    def elsewhere(simulator):
        pieces = divided(simulator.members, count)
        shares = [Share(through(parts_of(simulator, piece))) for piece in pieces]

        def ask(what, turn, calls):
            if asked is not None:
                asked.append((what, turn, list(calls)))
            return [
                through(getattr(shares[index], what)(turn, through(call))) for index, call in calls.items()
            ]

        return nullcontext(Spread(simulator, pieces, ask, "no: in shares"))

    return elsewhere


def some_lost(clock, ids):
    """Half of the clients are silent in every second round; one is in all of them, and so is an edge."""
    return ((ids % 2 == 0) & ((clock.cloud_round + clock.edge_round) % 2 == 0)) | (ids == 1) | (ids > 7)


def everything(state):
    return leaves(
        (state.served, state.edges or (), state.personal, state.statistics, (*state.sent.values(),))
    )


def check_same(one, other):
    """Round by round the same state within rounding, and the same book."""
    for first, second in zip(one.run(ROUNDS), other.run(ROUNDS), strict=True):
        assert first.round == second.round
        for mine, theirs in zip(everything(first), everything(second), strict=True):
            assert mine.shape == theirs.shape
            assert mine.dtype == theirs.dtype
            assert (mine - theirs).norm() <= 1e-9 * theirs.norm()
        booked, others = one.ledger.close(), other.ledger.close()
        assert booked.keys() == others.keys()
        for direction, entry in booked.items():
            for mine, theirs in zip(entry, others[direction], strict=True):
                assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("part", "lost"), [(False, None), (True, None), (True, some_lost)])
def test_shares_give_the_same_as_the_whole(case, name, part, lost):
    method = ALGORITHMS[name]()
    sampled = (2 if method.tiers == 3 else 5) if part else 0
    asked = []
    spread = case.simulator(method, sampled=sampled, lost=lost, elsewhere=in_shares(2, asked))
    check_same(spread, case.simulator(method, sampled=sampled, lost=lost))
    assert spread.captured == "no: in shares"
    what = "edge_rounds" if method.tiers == 3 else "client_steps"
    assert [call[:2] for call in asked] == [(what, turn) for turn in range(ROUNDS)]


def test_members_are_divided_evenly():
    assert [(piece.first, piece.width) for piece in divided(7, 3)] == [(0, 2), (2, 2), (4, 3)]
    assert [piece.width for piece in divided(3, 3)] == [1, 1, 1]


@pytest.mark.parametrize("count", [1, 3, 12])
def test_any_number_of_shares_will_do(case, count):
    for method in (FedAvg(local_steps=2), HeurFedAMP(local_steps=2)):
        check_same(case.simulator(method, elsewhere=in_shares(count)), case.simulator(method))
    if count <= EDGES:
        method = SFedHP(edge_rounds=2)
        check_same(case.simulator(method, elsewhere=in_shares(count)), case.simulator(method))


def test_a_share_of_whom_nobody_was_drawn_is_not_asked(case):
    asked = []
    method = PFedMe(local_rounds=2)
    spread = case.simulator(method, sampled=2, elsewhere=in_shares(12, asked))
    check_same(spread, case.simulator(method, sampled=2))
    for _, turn, shares in asked:
        assert shares == spread.draw(turn).nonzero().flatten().tolist()


def test_a_share_holds_its_own_members_data_and_no_more(case):
    for method in (FedAvg(), SFedHP()):
        simulator = case.simulator(method, clients_at_once=3)
        pieces = divided(simulator.members, 3)
        sizes = [len(pickle.dumps(parts_of(simulator, piece)["task"].inputs)) for piece in pieces]
        assert sum(sizes) < 1.1 * len(pickle.dumps(case.task.inputs.clone()))
        shares = [Share(parts_of(simulator, piece))._simulator for piece in pieces]
        assert torch.equal(torch.cat([share.ids for share in shares]), simulator.ids)
        assert all(share.clients_at_once == 3 for share in shares)


def test_personal_models_stay_factored_on_their_way(case):
    inputs = case.task.inputs.repeat(1, 1, 1, 20)
    network = Network(nn.Sequential(nn.Linear(120, 40), nn.ReLU(), nn.Linear(40, 3)).double())
    initial, tail = network.initial()
    case = replace(case, task=replace(case.task, network=network, inputs=inputs), initial=initial, tail=tail)
    spread, whole = (case.simulator(SFedHP(edge_rounds=2), elsewhere=where) for where in (in_shares(2), None))
    check_same(spread, whole)
    assert isinstance(whole.state.personal, Factored)
    assert isinstance(spread.state.personal, Factored)
    assert spread.state.personal.anchor.shape == whole.state.personal.anchor.shape


@pytest.mark.parametrize(
    "method",
    [
        SFedHP(edge_rounds=3, start="carried", anchor="client"),
        SFedHP(edge_rounds=3, client_sparsity=1e-3, edge_sparsity=1e-3, edge_sparsity_rounds=2),
    ],
)
def test_what_clients_and_edges_carry_on_arrives(case, method):
    check_same(case.simulator(method, elsewhere=in_shares(2)), case.simulator(method))


@pytest.mark.parametrize("lost", [None, some_lost])
@pytest.mark.parametrize("method", [HierFAVG(edge_rounds=2, local_steps=2), FedAvg(local_steps=2)])
def test_links_code_and_count_as_in_one_process(case, method, lost):
    options = {
        "links": dict.fromkeys(
            ("cloud_edge", "edge_cloud", "edge_client", "client_edge", "cloud_client", "client_cloud"),
            Link(WireOptions(count="encode", difference=True)),
        ),
        "lost": lost,
    }
    spread = case.simulator(method, elsewhere=in_shares(2), **options)
    check_same(spread, case.simulator(method, **options))
    if method.tiers == 3:
        assert stored(spread.state.sent["edge_client"]).shape[:2] == (EDGES, 1)


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), FedAvg(local_steps=3)])
@pytest.mark.parametrize("lost", [None, some_lost])
def test_batch_norm_statistics_are_the_same(case, method, lost):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()
    network = Network(module)
    initial, tail = network.initial()
    case = replace(case, task=replace(case.task, network=network), initial=initial, tail=tail)
    simulators = [case.simulator(method, lost=lost, elsewhere=where) for where in (in_shares(2), None)]
    check_same(*simulators)
    assert (simulators[0].state.statistics != tail).any()


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), PFedMe(local_rounds=2)])
def test_clients_in_pieces_and_empty_seats(case, method):
    sizes = case.task.sizes.clone()
    sizes[1, 2] = 0
    sizes[2] = 0
    case = replace(case, task=replace(case.task, sizes=sizes))
    spread = case.simulator(method, clients_at_once=3, elsewhere=in_shares(2))
    check_same(spread, case.simulator(method, clients_at_once=3))


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), HeurFedAMP(local_steps=2)])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, 0), (0, 2)])
def test_a_checkpoint_goes_on_in_shares_or_without(case, method, before, after, tmp_path):
    links = {"edge_client": Link(WireOptions(count="size", difference=True))}

    def simulator(count):
        return case.simulator(method, links=links, elsewhere=in_shares(count) if count else None)

    stopped, resumed, straight = simulator(before), simulator(after), simulator(0)
    next(stopped.run(1))
    next(straight.run(1))
    straight.ledger.close()
    checkpoints.save(stopped.state, tmp_path)
    resumed.state = checkpoints.load(resumed, tmp_path)
    check_same(resumed, straight)
    assert resumed.state.round == ROUNDS


def test_what_is_packed_comes_back_and_shared_rows_travel_once():
    shared = torch.randn(1, 5).expand(3, 5)
    tree = (Factored(shared, (Layer(torch.randn(3, 2, 4), torch.randn(3, 2, 1)),)), torch.tensor(True), (), 5)
    parcel = packed(tree)
    assert parcel[0].anchor.rows.shape == (1, 5)
    other = unpacked(through(parcel))
    for mine, theirs in zip(leaves(other[:2]), leaves(tree[:2]), strict=True):
        assert torch.equal(mine, theirs)
    assert other[0].anchor.stride(0) == 0
    assert other[2:] == ((), 5)


def test_a_slice_travels_without_the_rest():
    whole = torch.zeros(1000, 100)
    assert len(pickle.dumps(packed(whole[3:4]))) < 2000


def test_arrays_that_may_not_be_written_to_are_copied():
    parcel = packed(torch.ones(3))
    parcel.rows.flags.writeable = False
    unpacked(parcel).add_(1)
    assert parcel.rows.tolist() == [1, 1, 1]


def factored(members, anchor):
    layer = Layer(torch.randn(members, 2, 3), torch.randn(members, 2, 1))
    return Factored(anchor, (layer, torch.randn(members, 2)))


def test_models_of_members_side_by_side():
    anchor = torch.randn(1, 6)
    one, two = factored(2, anchor), factored(1, anchor.clone())
    for parts, kept in (
        ([one, two], True),  # one anchor for all
        ([one, factored(1, torch.randn(1, 6))], False),  # an anchor for some only
        ([one, dense(two)], False),
        ([one, Factored(anchor, (two.layers[1].new_zeros(1, 4), two.layers[1]))], False),
        ([factored(2, torch.randn(2, 6)), two], False),
    ):
        joined = side_by_side(parts)
        assert isinstance(joined, Factored) == kept
        assert torch.equal(dense(joined), torch.cat([dense(part) for part in parts]))


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__("a long trace")
        self.cause = cause


class Stand:
    """Stands for Ray: calls are answered at once, in this process."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, cpus=(2, 2), room=True, **failures):
        self.cpus, self.room = cpus, room
        self.failures = {name: list(errors) for name, errors in failures.items()}  # by what is called
        self.options, self.killed, self.given, self.asked = None, 0, None, []

    def is_initialized(self):
        return self.given is not None

    def init(self, **options):
        for error in self.failures.get("init", []):
            raise error
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.given = options

    def nodes(self):
        alive = [{"Alive": True, "Resources": {"CPU": float(count)}} for count in self.cpus]
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
        if isinstance(reference, dict):
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
    monkeypatch.setattr(actors, "_PAUSE", 0.0)
    for name in actors._QUIET | actors._LOOPBACK_ALONE:
        monkeypatch.setenv(name, "unset")

    def put(**options):
        ray = Stand(**options)
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray._private.worker", SimpleNamespace(print_to_stdstream=print))
        return ray

    return put


@pytest.mark.parametrize(("count", "hired", "threads"), [(0, 3, 1), (2, 2, 2), (1, 1, 2)])
def test_actors_are_hired_and_dismissed(case, stand, count, hired, threads):
    ray = stand()
    before = torch.get_num_threads()
    spread = case.simulator(SFedHP(edge_rounds=2), elsewhere=partial(on_ray, address="", actors=count))
    try:
        check_same(spread, case.simulator(SFedHP(edge_rounds=2)))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert spread.captured == f"no: the work is done by {hired} Ray actors"
    assert ray.killed == hired
    assert ray.options == {"num_cpus": threads, "max_restarts": -1}
    assert ray.given["address"] == "local"
    assert not ray.given["include_dashboard"]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_a_run_that_is_left_dismisses_its_actors(case, stand):
    ray = stand(cpus=(1, 1))
    for _ in case.simulator(FedAvg(local_steps=1), elsewhere=partial(on_ray, address="", actors=0)).run(5):
        break
    assert ray.killed == 2


def test_ray_tells_of_errors_elsewhere_than_on_standard_output(stand, capsys):
    stand()
    actors._connected("")
    sys.modules["ray._private.worker"].print_to_stdstream({"is_err": False, "pid": "raylet"}, end="")
    assert capsys.readouterr().out == "{'is_err': True, 'pid': 'raylet'}"


def test_a_cluster_is_joined_and_the_callers_signals_are_left_alone(stand):
    ray = stand()
    before = signal.getsignal(signal.SIGTERM)
    assert actors._connected("head:6379") is ray
    assert ray.given["address"] == "head:6379"
    assert "include_dashboard" not in ray.given
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "unset"
    assert signal.getsignal(signal.SIGTERM) == before
    ray.given = {"kept": True}
    thread = threading.Thread(target=actors._connected, args=("head:6379",))
    thread.start()
    thread.join()
    assert ray.given == {"kept": True}


DEAD = RayError("The actor died.\nmore")


def test_whoever_takes_a_dead_actors_place_is_asked_again(case, stand):
    ray = stand(cpus=(1, 1), work=[DEAD] * 3, ready=[DEAD])
    method = SFedHP(edge_rounds=1)
    spread = case.simulator(method, elsewhere=partial(on_ray, address="", actors=0))
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
def test_what_goes_wrong_at_work_is_said_and_actors_end(case, stand, monkeypatch, options, words):
    ray = stand(cpus=(1, 1), **options)
    if "ready" in options:
        monkeypatch.setattr(actors, "_PATIENCE", 0.0)
    spread = case.simulator(SFedHP(edge_rounds=1), elsewhere=partial(on_ray, address="", actors=0))
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
def test_what_cannot_start_is_said(case, stand, options, count, words):
    stand(**options)
    spread = case.simulator(SFedHP(edge_rounds=1), elsewhere=partial(on_ray, address="", actors=count))
    with pytest.raises(InputError, match=words):
        next(spread.run(1))


def test_every_actor_gets_what_its_machine_has():
    assert actors._cpus_for_each(4, [16, 16, 16]) == 8
    assert actors._cpus_for_each(3, [16, 16, 16]) == 16
    assert actors._cpus_for_each(4, [2, 1, 0, 1]) == 1


def test_ray_must_be_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'sfedhp\[ray\]'"):
        prepare(Experiment(engine=EngineOptions(kind="ray")))


def test_addresses_are_checked_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    for address in ("", "auto"):
        check_reachable(address)
    for address in ("head", "ray://head:10001x", ":6379"):
        with pytest.raises(InputError, match="is not known: use host:port"):
            check_reachable(address)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable(f"127.0.0.1:{port}")
    for wrong in (port, 70000):
        with pytest.raises(InputError, match=f"No Ray cluster answers at 127.0.0.1:{wrong}"):
            check_reachable(f"127.0.0.1:{wrong}")


def test_what_ray_does_not_do_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    experiment = Experiment(engine=EngineOptions(kind="ray"))
    with pytest.raises(InputError, match="one experiment at a time"):
        prepare_stack([experiment, replace(experiment, seed=1)])
    with pytest.raises(InputError, match="set device = cpu instead of cuda"):
        prepare(replace(experiment, device="cuda"))
    assert prepare(experiment).simulator.initial.device.type == "cpu"


# A network of loopback alone, with an address that looks like the machine's own: Ray would listen there.
NAMESPACE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
LOOPBACK = 'ip link set lo up && ip addr add 10.9.9.1/24 dev lo && ip route add default dev lo && exec "$@"'


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_actors_of_a_real_ray(marked):
    """What cluster_on_ray.py tests."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    alone = [*NAMESPACE, "sh", "-c", LOOPBACK, "sh"]
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces are not permitted here")
    here = Path(__file__).parent
    measured = ["-m", "coverage", "run"] if os.environ.get("COVERAGE_RUN") else []
    inner = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked, str(here / "cluster_on_ray.py")]
    # Short, for the paths of sockets must be.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        done = subprocess.run(
            [*alone, sys.executable, *measured, *inner],
            cwd=here.parent,
            env={
                **os.environ,
                "HOME": folder,
                "RAY_TMPDIR": folder,
                "PYTHONPATH": str(here),
                "OMP_NUM_THREADS": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
