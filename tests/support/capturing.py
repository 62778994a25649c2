"""Checks of recorded rounds on a real GPU. Without pytest: `python -m tests.support.capturing`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sfedhp import Experiment
from sfedhp.algorithms import ALGORITHMS, Algorithm, FedAvg, HeurFedAMP, HierFAVG, PFedGP, PFedMe, SFedHP
from sfedhp.checks.equalities import reload_state
from sfedhp.checks.problem import Problem, problem
from sfedhp.core.factored import Factored
from sfedhp.core.keys import ROLES, key
from sfedhp.data import DataOptions
from sfedhp.engine.cuda_graphs import GraphState
from sfedhp.engine.simulator import Simulator
from sfedhp.engine.state import State
from sfedhp.nn.models import ModelOptions
from sfedhp.nn.network import Network
from sfedhp.privacy.ring import SecureOptions
from sfedhp.runs.prepare import prepare, prepare_stack
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import Link, WireOptions
from tests.support.small_modules import with_batch_norm
from tests.support.states import check_same_traffic, tensors_of

ROUNDS = 5
_SECURE = SecureOptions(10.0, 1e-6)
TOLERANCE = 1e-9  # the design's, in float64
SPARSE: dict[str, Any] = {"client_sparsity": 1e-3, "edge_sparsity": 1e-3, "sparsity_floor": 0.5}


def compare(captured: Simulator, plain: Simulator) -> None:
    """Both run: states to rounding, traffic to the byte, and what was yielded stays as it was."""
    kept: list[tuple[State, list[Tensor]]] = []
    for state, expected in zip(captured.run(ROUNDS), plain.run(ROUNDS), strict=True):
        for first, second in zip(tensors_of(state), tensors_of(expected), strict=True):
            gap, scale = float((first - second).norm()), float(second.norm())
            assert gap <= TOLERANCE * scale, f"round {state.round}: {gap:.1e} of {scale:.1e}"
            assert scale > 0 or not second.numel()
        kept.append((state, [tensor.clone() for tensor in tensors_of(state)]))
        check_same_traffic(captured, plain)
    for state, before in kept:
        for tensor, copy in zip(tensors_of(state), before, strict=True):
            assert torch.equal(tensor, copy), f"the state of round {state.round} was written over"
    assert captured.graph_status.state is GraphState.RECORDED, captured.graph_status


def small(case: Problem, method: Algorithm, **options: Any) -> Simulator:
    """A simulator of a small federation, on the GPU."""
    device = torch.device("cuda")
    stream = key(case.seed, ROLES["draw"]).to(device)
    given = (case.ids.to(device), case.initial.to(device), case.statistics.to(device), stream)
    case.task.network.module.to(device)
    return Simulator(method, case.task.to(device), *given, **options)


def rounds(method: Algorithm, case: Problem | None = None, **options: Any) -> None:
    """Recorded rounds are the eager ones."""
    case = case or problem()
    compare(small(case, method, **options), small(case, method, graphs=False, **options))


def normed() -> Problem:
    """A federation whose network has batch norm, with clients of one size."""
    network = Network(with_batch_norm())
    case = problem()
    sizes = torch.full_like(case.task.sizes, case.task.labels.shape[-1])
    task = replace(case.task, network=network, sizes=sizes, min_rows=case.task.labels.shape[-1])
    initial, statistics = network.initial()
    return replace(case, task=task, initial=initial, statistics=statistics)


class Series(nn.Module):
    """Dropout, an LSTM and attention over rows of six numbers, read as three times two."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 4, num_layers=2, dropout=0.2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        """Class scores of rows (rows, 6)."""
        scores: Tensor = self.head(self.layer(self.lstm(rows.view(-1, 3, 2))[0]).mean(1))
        return scores


def dropping() -> Problem:
    """A federation whose network has dropout, recurrent layers and attention."""
    torch.manual_seed(0)
    network, case = Network(Series().double()), problem()
    initial, statistics = network.initial()
    return replace(case, task=replace(case.task, network=network), initial=initial, statistics=statistics)


def with_empty_edge() -> Problem:
    """A federation in which one edge has no clients."""
    case = problem()
    sizes = case.task.sizes.clone()
    sizes[1], sizes[0, 2] = 0, 0
    return replace(case, task=replace(case.task, sizes=sizes))


def experiment(method: Algorithm, seed: int = 0) -> Experiment:
    """A real model on the embedded data: wide enough for models that stay factored."""
    return Experiment(
        algorithm=method,
        seed=seed,
        rounds=7,
        dtype="float64",
        device="cuda",
        data=DataOptions(train_per_label=20, test_per_label=5, validation_per_label=0),
        model=ModelOptions(name="dnn-small"),
    )


def factored_models() -> None:
    """Personal models that are never built come out of a graph as they come out of the eager round."""
    one, other = (prepare(experiment(SFedHP(edge_rounds=3))).simulator for _ in range(2))
    other.graphs = False
    compare(one, other)
    assert isinstance(one.state.personal, Factored)


def stack_of_runs() -> None:
    """Runs with hyper-parameters of their own."""
    methods = [SFedHP(edge_rounds=3, client_proximity=pull, edge_proximity=pull) for pull in (15.0, 20.0)]
    experiments = [experiment(method, seed) for method in methods for seed in (0, 1)]
    one, other = (prepare_stack(experiments).simulator for _ in range(2))
    other.graphs = False
    compare(one, other)
    for index, each in enumerate(experiments):
        alone = prepare(each).simulator
        for state in alone.run(ROUNDS):
            expected = state.served.state
        gap = float((one.state.served.state[index] - expected).norm() / expected.norm())
        assert gap <= TOLERANCE, f"run {index} differs by {gap:.1e} from that run alone"


def resumed(method: Algorithm) -> None:
    """Stop, save, load and continue gives the bits of the unbroken run, wherever recording begins."""
    straight, stopped, again = (prepare(experiment(method)).simulator for _ in range(3))
    for simulator, until in ((straight, 7), (stopped, 4)):
        for _ in simulator.run(until):
            pass
    reload_state(stopped, again)
    for _ in again.run(7):
        pass
    for simulator in (again, straight):
        assert simulator.graph_status.state is GraphState.RECORDED, simulator.graph_status
    for first, second in zip(tensors_of(again.state), tensors_of(straight.state), strict=True):
        assert torch.equal(first, second), f"bits differ by {(first - second).norm():.1e}"


def refused(method: Algorithm, word: str, **options: Any) -> None:
    """What cannot be recorded runs all the same, to the same bits, and says why; the next one can."""
    one, other = small(problem(), method, **options), small(problem(), method, graphs=False, **options)
    for simulator in (one, other):
        for _ in simulator.run(3):
            pass
    assert one.graph_status.state is GraphState.OFF, one.graph_status
    assert word in one.graph_status.reason, one.graph_status
    for first, second in zip(tensors_of(one.state), tensors_of(other.state), strict=True):
        assert torch.equal(first, second)
    torch.rand(3, device="cuda")
    rounds(FedAvg(local_steps=2))


def keys_are_the_same() -> None:
    """Keys and draws on the GPU are those of the CPU."""
    parts = (torch.arange(-50, 50).reshape(20, 5) * 2**57, 7, 0, 2**62, torch.tensor(12345))
    here = key(*parts)
    there = key(*(part.cuda() if isinstance(part, Tensor) else part for part in parts))
    assert torch.equal(here, there.cpu())
    assert torch.equal(key(3, 4, torch.arange(5)), key(3, 4, torch.arange(5, device="cuda")).cpu())


_THRESHOLD = Link(WireOptions(threshold=0.05))
_COUNTED = Link(WireOptions(count="size", threshold=0.05))

CHECKS: dict[str, Callable[[], None]] = {
    "keys": keys_are_the_same,
    **{name: partial(rounds, kind()) for name, kind in ALGORITHMS.items() if kind is not PFedGP},
    "sfedhp sparse": partial(rounds, SFedHP(edge_rounds=3, edge_sparsity_rounds=3, **SPARSE)),
    "sfedhp l1": partial(rounds, SFedHP(edge_rounds=3, edge_sparsity_rounds=3, penalty="l1", **SPARSE)),
    "sfedhp carried": partial(rounds, SFedHP(edge_rounds=3, start="carried")),
    "sfedhp client anchor": partial(rounds, SFedHP(edge_rounds=3, anchor="client")),
    "sfedhp nesterov": partial(rounds, SFedHP(edge_rounds=3, solver="nesterov", tolerance=1e-3)),
    "sfedhp plain": lambda: rounds(
        SFedHP(edge_rounds=3), replace(problem(), task=replace(problem().task, force_autograd=True))
    ),
    "edges sampled": partial(rounds, SFedHP(edge_rounds=2), sampled=2),
    "clients sampled": partial(rounds, PFedMe(local_rounds=3), sampled=5),
    "members kept": partial(rounds, HeurFedAMP(local_steps=3), sampled=5),
    "in pieces": partial(rounds, FedAvg(local_steps=3), clients_at_once=5),
    "empty edge": lambda: rounds(HierFAVG(edge_rounds=2, local_steps=2), with_empty_edge()),
    "batch norm": lambda: rounds(SFedHP(edge_rounds=2), normed()),
    "batch norm, two tiers": lambda: rounds(FedAvg(local_steps=3), normed()),
    "dropout": lambda: rounds(SFedHP(edge_rounds=2, personal_steps=3), dropping()),
    "dropout, two tiers": lambda: rounds(FedAvg(local_steps=3), dropping()),
    "secure": partial(rounds, SFedHP(edge_rounds=2), secure=_SECURE),
    "secure, batch norm": lambda: rounds(SFedHP(edge_rounds=2), normed(), secure=_SECURE),
    "secure, empty edge": lambda: rounds(HierFAVG(edge_rounds=2), with_empty_edge(), secure=_SECURE),
    "thresholds": partial(
        rounds,
        SFedHP(edge_rounds=2),
        links=dict.fromkeys((Direction.EDGE_CLIENT, Direction.CLIENT_EDGE), _THRESHOLD),
    ),
    "counted at the cloud": partial(
        rounds,
        SFedHP(edge_rounds=2),
        links={Direction.EDGE_CLOUD: _COUNTED, Direction.CLIENT_EDGE: _THRESHOLD},
    ),
    "counted, two tiers": partial(rounds, FedAvg(local_steps=2), links={Direction.CLIENT_CLOUD: _COUNTED}),
    "factored": factored_models,
    "stack": stack_of_runs,
    "resumed sfedhp": partial(resumed, SFedHP(edge_rounds=3)),
    "resumed pfedme": partial(resumed, PFedMe(local_rounds=3)),
    "pfedgp": partial(refused, PFedGP(), "synchroniz"),
    "lost": partial(refused, FedAvg(local_steps=2), "lost", lost=lambda clock, ids: ids < 2),
    "counted below": partial(
        refused, SFedHP(edge_rounds=1), "coded", links={Direction.CLIENT_EDGE: _COUNTED}
    ),
}


def main() -> None:
    """Run all checks and say how each went."""
    failed = 0
    for name, check in CHECKS.items():
        began = time.perf_counter()
        try:
            check()
            word = "ok"
        except Exception as error:
            failed += 1
            word = f"FAILED {type(error).__name__}: {str(error)[:300]}"
        print(f"{name}: {word} ({time.perf_counter() - began:.1f} s)", flush=True)
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
