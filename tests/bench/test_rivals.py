"""Rivals: how they are named and found, and that each adapter runs a round of what it finds.

The rivals themselves are not installed where tests run: small stand-ins have the names that adapters call.
`SFEDHP_RIVALS="pfedme=PATH pfl=PATH"` measures real ones.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sfedhp.bench import rivals, worker
from sfedhp.bench.arenas import ARENAS, Arena
from sfedhp.bench.cases import Case
from sfedhp.bench.rivals import OF_CLONE, Rival, has_adapters, installed, layer_widths, parse, read_kinds
from sfedhp.config import to_dict
from sfedhp.core.errors import InputError

KINDS = read_kinds(OF_CLONE)
REAL = os.environ.get("SFEDHP_RIVALS", "").split()


def made(name: str, path: str) -> Rival:
    return Rival(name, path, KINDS[name])


def test_every_rival_has_an_adapter_and_a_folder_without_any_says_where_they_are(tmp_path: Path) -> None:
    assert list(KINDS) == ["pfedme", "pfllib", "pfl", "pfl-5", "fluke", "flower"]
    assert all(kind.adapter.is_file() for kind in KINDS.values())
    assert {*OF_CLONE.glob("*.py")} == {kind.adapter for kind in KINDS.values()}
    assert not has_adapters(tmp_path)
    with pytest.raises(InputError, match="not installed with the package") as refusal:
        read_kinds(tmp_path)
    assert "--adapters CLONE/benchmarks/rivals" in str(refusal.value)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("nothing", "--rival nothing is not known: use pfedme, pfllib, pfl, pfl-5, fluke, flower."),
        ("pfedme", "is not installed here: write --rival pfedme=PATH with a checkout of it."),
        ("flower", "is not installed here: write --rival flower=PATH with the interpreter"),
        ("pfedme=.", "there is no FLAlgorithms in that folder"),
        ("pfl=nowhere", "that is not an interpreter"),
    ],
)
def test_what_is_not_there_is_refused(
    word: str, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as refusal:
        parse(word, KINDS)
    assert sentence in str(refusal.value)


def test_rivals_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "pfl" or None)
    (tmp_path / "FLAlgorithms").mkdir()
    given = parse(f"pfedme={tmp_path}", KINDS)
    assert given == made("pfedme", str(tmp_path))
    assert parse("pfl", KINDS) == made("pfl", sys.executable)
    assert parse(f"fluke={sys.executable}", KINDS).path == sys.executable
    assert installed([given], KINDS) == [made("pfl", sys.executable), made("pfl-5", sys.executable)]
    assert installed([made("pfl", "elsewhere"), made("pfl-5", "elsewhere")], KINDS) == []


def test_a_rival_runs_what_it_has() -> None:
    assert made("pfl", "").runs(Case("fedavg", "dnn")) == "FederatedAveraging"
    assert made("pfl", "").runs(Case("pfedgp", "dnn")) is None
    assert made("pfl", "").runs(Case("fedavg", "vgg")) is None
    assert made("pfl", "").runs(Case("fedavg", "dnn", device="cuda")) is None
    assert made("pfedme", "").runs(Case("sfedhp", "dnn", device="cuda")) == "pFedMe"


def test_models_are_described_by_their_widths() -> None:
    assert layer_widths(Case("fedavg", "dnn")) == [784, 500, 200, 10]
    assert layer_widths(Case("fedavg", "mlr")) == [784, 10]


def test_unused_modules_that_are_missing_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "no_such_module", raising=False)
    monkeypatch.delitem(sys.modules, "no_such_module.part", raising=False)
    worker._stub_missing(["json", "no_such_module", "no_such_module.part"])
    from no_such_module.part import anything  # type: ignore[import-not-found]

    assert anything is not None
    assert importlib.util.find_spec("no_such_module") is not None
    assert sys.modules["json"] is json
    for name in ("no_such_module", "no_such_module.part"):
        del sys.modules[name]


Talk = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Two rounds of an adapter in this process; a job as `Rival.side` would send it."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def rounds(name: str, method: str, folder: Path | None = None) -> list[dict[str, Any]]:
        case = Case(method, "mlr", edges=1, clients_per_edge=2, rows=40, batch_size=2)
        source = tmp_path / "data.npz"
        case.write_data(source)
        sent: list[dict[str, Any]] = []
        monkeypatch.setattr(rivals, "Side", lambda name, job, python: sent.append(job))
        made(name, str(folder)).side(case, source)
        requests = [*sent, {"threads": 1}, {"threads": 1}]
        answers = io.StringIO()
        worker.serve(io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), answers)
        assert json.loads(json.dumps(to_dict(case.experiments(source)[0])))["algorithm"] == sent[0]["options"]
        return [json.loads(line) for line in answers.getvalue().splitlines()]

    return rounds


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **parts: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(parts)
    monkeypatch.setitem(sys.modules, name, module)


class Server:
    """What pFedMe's and PFLlib's servers have in common."""

    log: list[str]
    local_epochs: int
    users: list[Any]
    global_model: Any
    select_clients: Callable[[], list[Any]]

    def __getattr__(self, name: str) -> Any:
        return lambda *words: self.log.append(name)


@pytest.mark.parametrize(
    ("method", "theirs", "module"),
    [
        ("pfedme", "pFedMe", "serverpFedMe"),
        ("sfedhp", "pFedMe", "serverpFedMe"),
        ("fedavg", "FedAvg", "serveravg"),
        ("perfedavg", "PerAvg", "serverperavg"),
    ],
)
def test_the_pfedme_code(
    method: str, theirs: str, module: str, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    made: list[dict[str, Any]] = []

    def make(**options: Any) -> Server:
        code = sys.modules[f"FLAlgorithms.servers.{module}"]
        server = Server()
        server.log = log
        server.local_epochs = options["local_epochs"]
        data = code.read_data("Mnist")
        held = [code.read_user_data(index, data, "Mnist") for index in range(len(data[0]))]
        server.users = [
            SimpleNamespace(train=lambda epochs, rows=rows: log.append(f"train {len(rows)}"))
            for _, rows, _ in held
        ]
        output = options["model"][0](torch.ones(1, 28, 28))
        assert output.exp().sum().item() == pytest.approx(1, abs=1e-5), "log-probabilities"
        made.append(options)
        return server

    stand_in(monkeypatch, f"FLAlgorithms.servers.{module}", **{theirs: make})
    ready, first, _ = talk("pfedme", method, Path("checkout"))
    assert ready == {"ready": True}
    assert first["seconds"] > 0
    last = "persionalized_aggregate_parameters" if theirs == "pFedMe" else "aggregate_parameters"
    assert log == 2 * ["send_parameters", "select_users", "train 40", "train 40", last]
    assert made[0]["local_epochs"] == 20
    assert made[0]["algorithm"] == theirs
    if theirs == "pFedMe":
        assert made[0]["K"] == 5
    assert "checkout" in sys.path


@pytest.mark.parametrize(
    ("method", "theirs", "module"),
    [("fedprox", "FedProx", "serverprox"), ("pfedme", "pFedMe", "serverpFedMe")],
)
def test_pfllib(method: str, theirs: str, module: str, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def make(arguments: Namespace, times: int) -> Server:
        server = Server()
        server.log = log
        server.global_model = arguments.model
        rows = sys.modules["flcore.clients.clientbase"].read_client_data(
            "MNIST", 1, is_train=True, few_shot=0
        )
        server.select_clients = lambda: [SimpleNamespace(train=lambda: log.append(f"train {len(rows)}"))]
        assert arguments.local_epochs == 1, "40 rows in batches of 2 are the 20 steps"
        return server

    for name in ("flcore.clients.clientbase", "flcore.servers.serverbase"):
        stand_in(monkeypatch, name)
    stand_in(monkeypatch, f"flcore.servers.{module}", **{theirs: make})
    talk("pfllib", method, Path("checkout"))
    end = ["beta_aggregate_parameters"] if theirs == "pFedMe" else []
    assert log == 2 * ["send_models", "train 40", "receive_models", "aggregate_parameters", *end]
    assert str(Path("checkout") / "system") in sys.path


def test_pfllib_in_an_arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the epochs and the share of clients; the worker scores the module that it trains."""
    arena = Arena("tiny", "mnist", (1, 28, 28), ARENAS["flute-lr-mnist"].layers, 4, 20, 2, 3, 2, 10, 0.03, 1)
    data, initial = tmp_path / "data.npz", tmp_path / "initial.pt"
    arena.write_data(data, synthetic=True)
    torch.save(arena.network().state_dict(), initial)
    given: list[Namespace] = []

    def make(arguments: Namespace, times: int) -> Server:
        given.append(arguments)
        server = Server()
        server.log = []
        server.global_model = arguments.model
        server.select_clients = lambda: [SimpleNamespace(train=lambda: None)]
        return server

    for name in ("flcore.clients.clientbase", "flcore.servers.serverbase"):
        stand_in(monkeypatch, name)
    stand_in(monkeypatch, "flcore.servers.serveravg", FedAvg=make)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(rivals, "Side", lambda name, job, python: sent.append(job))
    made("pfllib", "checkout").arena_side(arena, "cpu", data, initial)
    answers = io.StringIO()
    requests = [*sent, {"threads": 1}, {"accuracy": True}]
    worker.serve(io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), answers)
    told = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert (given[0].local_epochs, given[0].join_ratio, given[0].batch_size) == (2, 0.5, 10)
    with np.load(data) as file:
        images = torch.from_numpy(file["test_inputs"].astype("float32") / 255)
        right = arena.network()(images).argmax(1).numpy() == file["test_labels"]
    assert told[2]["accuracy"] == pytest.approx(100 * right.mean())


class Recorded:
    """Something that is made, and remembers how."""

    made: list[Recorded]

    def __init__(self, *words: Any, **options: Any):
        self.words, self.options = words, options
        self.runs: list[Any] = []
        Recorded.made.append(self)

    def run(self, *words: Any, **options: Any) -> None:
        self.runs.append((words, options))


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_pfl(method: str, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    Recorded.made = []
    names = {
        "pfl.model.pytorch": ["PyTorchModel"],
        "pfl.data.pytorch": ["PyTorchTensorDataset"],
        "pfl.data.federated_dataset": ["FederatedDataset"],
        "pfl.data.sampling": ["get_user_sampler"],
        "pfl.aggregate.simulate": ["SimulatedBackend"],
        "pfl.algorithm.base": ["NNAlgorithmParams"],
        "pfl.algorithm.federated_averaging": ["FederatedAveraging"],
        "pfl.algorithm.fedprox": ["FedProx", "FedProxParams"],
        "pfl.hyperparam.base": ["NNTrainHyperParams"],
        "pfl.metrics": ["Weighted"],
    }
    for name, parts in names.items():
        stand_in(monkeypatch, name, **dict.fromkeys(parts, Recorded))
    talk("pfl", method)
    runs = next(each.runs for each in Recorded.made if each.runs)
    iterations = [words[0].options["central_num_iterations"] for words, _ in runs]
    assert iterations == [1, 2], "each round continues by one"
    backend, model, how = runs[0][0][1:]
    assert how.options["local_num_steps"] == 20
    network = model.options["model"]
    loss = network.loss(torch.ones(2, 28, 28), torch.tensor([0, 1]))
    assert network.metrics(torch.ones(2, 28, 28), torch.tensor([0, 1]))["loss"].words == (2 * loss.item(), 2)
    assert backend.options["training_data"].words[0]("1").words[0][0].shape == (40, 28, 28)
    assert ("mu" in runs[0][0][0].options) == (method == "fedprox")


FAKE_PFL = '''
import os
from pathlib import Path


class Anything:
    """Takes what it is given; `run` notes the process and the iteration."""

    def __init__(self, *words, **options):
        self.options = options

    def run(self, parameters, *words, **options):
        iteration = parameters.options["central_num_iterations"]
        addresses = os.environ["PFL_WORKER_ADDRESSES"].split(",")
        Path(os.environ["NOTES"], f"{os.environ['PFL_WORKER_RANK']}-{iteration}-{len(addresses)}").touch()


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything
'''


PFL_MODULES = (
    *("model.pytorch", "data.pytorch", "data.federated_dataset", "data.sampling", "aggregate.simulate"),
    *("hyperparam.base", "algorithm.base", "algorithm.federated_averaging"),
)


@pytest.mark.slow
def test_processes_of_pfl_run_every_round_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made("pfl-5", "").kind.processes == 5
    for name in PFL_MODULES:
        module = tmp_path / "pfl" / f"{name.replace('.', '/')}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(FAKE_PFL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NOTES", str(notes := tmp_path / "notes"))
    notes.mkdir()
    case = Case("fedavg", "mlr", edges=1, clients_per_edge=2, rows=4, batch_size=2)
    source = tmp_path / "data.npz"
    case.write_data(source)
    wanted = {f"{rank}-{turn}-2" for rank in (0, 1) for turn in (1, 2)}
    rival = Rival("pfl-2", sys.executable, KINDS["pfl-5"]._replace(processes=2))
    with rival.side(case, source) as side:
        side.round(1)
        side.round(1)
        deadline = time.monotonic() + 60
        while {path.name for path in notes.iterdir()} != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
    assert {path.name for path in notes.iterdir()} == wanted


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_fluke(method: str, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    Recorded.made = []
    settings: list[Any] = []
    environment = SimpleNamespace(
        set_device=settings.append, set_eval_cfg=lambda **flags: settings.append(list(flags.values()))
    )
    stand_in(monkeypatch, "fluke", DDict=dict, FlukeENV=lambda: environment)
    stand_in(monkeypatch, "fluke.data", FastDataLoader=Recorded)
    stand_in(monkeypatch, "fluke.algorithms.fedavg", FedAVG=Recorded)
    stand_in(monkeypatch, "fluke.algorithms.fedprox", FedProx=Recorded)
    talk("fluke", method)
    assert settings == ["cpu", [False] * 4], "nothing is evaluated"
    algorithm = next(each for each in Recorded.made if each.runs)
    assert algorithm.runs == 2 * [((), {"n_rounds": 1, "eligible_perc": 1, "finalize": False})]
    client = algorithm.options["hyper_params"]["client"]
    assert client["local_epochs"] == 1
    assert ("mu" in client) == (method == "fedprox")
    (loaders, tests), server = algorithm.options["data_splitter"].assign(2, 2)
    assert [len(loader.words[1]) for loader in loaders] == [40, 40]
    assert (tests, server) == ([None, None], None)


def test_flower(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server is a thread that waits for a start signal; the stand-in runs two rounds of it."""
    monkeypatch.delitem(sys.modules, "bench_rows", raising=False)
    fitted: list[Any] = []

    class NumPyClient:
        def to_client(self) -> Any:
            return self

    class FedAvg:
        def __init__(self, **options: Any):
            self.options = options

        def configure_fit(self, turn: int) -> Any:
            return turn

        def aggregate_fit(self, results: Any) -> Any:
            fitted.append(results)

    def simulate(server_app: Any, client_app: Any, num_supernodes: int, backend_config: Any) -> None:
        strategy = server_app(None)["strategy"]
        weights = strategy.options["initial_parameters"]
        for turn in range(2):
            strategy.configure_fit(turn)
            people = [
                client_app(SimpleNamespace(node_config={"partition-id": index}))
                for index in range(num_supernodes)
            ]
            results = [person.fit([part.copy() for part in weights], {}) for person in people]
            strategy.aggregate_fit([(len(new), size) for new, size, _ in results])

    stand_in(monkeypatch, "flwr.client", NumPyClient=NumPyClient, ClientApp=lambda client_fn: client_fn)
    stand_in(monkeypatch, "flwr.common", ndarrays_to_parameters=list)
    stand_in(
        monkeypatch,
        "flwr.server",
        ServerApp=lambda server_fn: server_fn,
        ServerConfig=dict,
        ServerAppComponents=dict,
    )
    stand_in(monkeypatch, "flwr.server.strategy", FedAvg=FedAvg)
    stand_in(monkeypatch, "flwr.simulation", run_simulation=simulate)
    talk("flower", "fedavg")
    assert fitted == 2 * [[(2, 40), (2, 40)]]
    del sys.modules["bench_rows"]


def test_a_round_that_does_not_finish_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins = {"flwr.client": "NumPyClient", "flwr.common": "_", "flwr.server": "_", "flwr.simulation": "_"}
    for name, part in stand_ins.items():
        stand_in(monkeypatch, name, **{part: object})
    stand_in(monkeypatch, "flwr.server.strategy", FedAvg=object)
    gate: Any = worker._function(str(KINDS["flower"].adapter), "Gate")
    monkeypatch.setitem(gate.round.__globals__, "_TOO_LONG", 0.01)
    with pytest.raises(TimeoutError, match="did not finish"):
        gate().round()


@pytest.mark.skipif(not REAL, reason="SFEDHP_RIVALS names no rival, such as pfedme=PATH")
@pytest.mark.parametrize("word", REAL)
def test_a_real_rival_runs(word: str, tmp_path: Path) -> None:
    rival = parse(word, KINDS)
    source = tmp_path / "data.npz"
    for method in rival.kind.methods:
        case = Case(method, "mlr")
        case.write_data(source)
        with rival.side(case, source) as side:
            assert side.round(1) > 0
