"""Recording a round without a GPU: a stand-in runs the function on the graph's buffers at every replay."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from sfedhp.algorithms import ALGORITHMS, FedAvg, HeurFedAMP, HierFAVG, PFedMe, SFedHP
from sfedhp.algorithms.schedule import ScheduleOptions
from sfedhp.checks.problem import problem
from sfedhp.core.factored import Factored, Layer
from sfedhp.core.keys import ROLES, key
from sfedhp.core.scalars import PerRun
from sfedhp.core.trees import copied, tree_map
from sfedhp.engine import cuda_graphs as capture
from sfedhp.engine.cuda_graphs import GraphState, GraphStatus, Recorder, form_of
from sfedhp.engine.simulator import Simulator
from sfedhp.runs import checkpoints
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import Link, WireOptions
from tests.support.capturing import dropping
from tests.support.states import check_same_traffic, tensors_of

CPU = torch.device("cpu")
ROUNDS = 5


@pytest.fixture
def recordings(monkeypatch):
    """Graphs without a GPU; the list has one item for each recording."""
    made = []

    def record(function, device):
        made.append(function)
        # As with a graph, nothing is computed while it is recorded.
        outputs = tree_map(lambda leaf: leaf.fill_(-1) if leaf.numel() else leaf, copied(function()))

        def replay():
            tree_map(capture._copy_into, outputs, function())

        return replay, outputs

    monkeypatch.setattr(capture, "record", record)
    monkeypatch.setattr(capture, "no_device_sync", nullcontext)
    monkeypatch.setattr(Simulator, "_graph_obstacle", lambda self: "" if self.graphs else "compared")
    return made


def double(turn, given, mask):
    assert mask is None
    return given * 2 + turn, given


def test_the_second_call_is_recorded_and_the_others_replay_it(recordings):
    recorder = Recorder(double, CPU)
    states, results = [], []
    for turn in range(4):
        given = torch.full((3,), 10.0 * turn)
        results.append(recorder(turn, given, None))
        states.append(recorder.status.state)
        assert torch.equal(given, torch.full((3,), 10.0 * turn))
    assert states == [GraphState.PENDING, *[GraphState.RECORDED] * 3]
    assert len(recordings) == 1
    # Later replays do not change earlier results.
    assert [first[0].item() for first, _ in results] == [0, 21, 42, 63]
    assert [second[0].item() for _, second in results] == [0, 10, 20, 30]


def test_arguments_of_another_form_are_tried_and_recorded_anew(recordings):
    recorder = Recorder(double, CPU)
    for turn, size in enumerate([2, 2, 3, 3, 3]):
        first, _ = recorder(turn, torch.ones(size), None)
        assert first.tolist() == [2.0 + turn] * size
    assert len(recordings) == 2
    assert recorder.status == GraphStatus(GraphState.RECORDED)


def test_what_is_known_to_be_impossible_is_not_tried(recordings):
    recorder = Recorder(double, CPU, "the weather")
    for turn in range(3):
        assert recorder(turn, torch.ones(1), None)[0].item() == 2 + turn
    assert recorder.status == GraphStatus.off("the weather")
    assert not recordings


def test_a_function_that_waits_for_the_device_is_called_as_it_is(recordings, monkeypatch):
    def waiting():
        raise RuntimeError("called a synchronizing operation\nsomewhere")

    monkeypatch.setattr(capture, "no_device_sync", waiting)
    recorder = Recorder(double, CPU)
    for turn in range(3):
        assert recorder(turn, torch.ones(1), None)[0].item() == 2 + turn
    assert recorder.status == GraphStatus.off("called a synchronizing operation")


def test_a_recording_that_fails_leaves_the_function(recordings, monkeypatch):
    for error, reason in ((RuntimeError("out of memory"), "out of memory"), (RuntimeError(), "RuntimeError")):

        def record(function, device, error=error):
            raise error

        monkeypatch.setattr(capture, "record", record)
        recorder = Recorder(double, CPU)
        for turn in range(3):
            assert recorder(turn, torch.ones(1), None)[0].item() == 2 + turn
        assert recorder.status == GraphStatus.off(reason)


def test_an_error_of_the_function_itself_is_raised(recordings):
    def broken(turn, given):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        Recorder(broken, CPU)(0, torch.ones(1))


def test_the_status_reads_as_in_the_records_of_a_run():
    assert str(GraphStatus()) == "to be tried"
    assert str(GraphStatus(GraphState.RECORDED)) == "cuda graph"
    assert str(GraphStatus.off("the device is a cpu")) == "no: the device is a cpu"


def test_copies_keep_what_is_shared():
    shared = torch.randn(1, 4).expand(3, 4)
    layer = Layer(torch.randn(3, 2, 4), torch.randn(3, 2, 1))
    models = Factored(shared, (layer,))
    tree: Any = (models, shared, None, ())
    other = copied(tree)
    assert form_of(other) == form_of(tree)
    assert torch.equal(other[1], shared)
    assert other[1].stride(0) == 0
    assert other[1] is other[0].anchor
    assert other[1].data_ptr() != shared.data_ptr()
    assert torch.equal(other[0].layers[0].inputs, layer.inputs)


def test_forms_tell_apart_what_a_graph_could_not_hold():
    given = torch.zeros(3, 4)
    others = [
        given[:1].expand(3, 4),  # one row for all
        given.double(),
        given[:2],
        (given,),
        Factored(given, ()),
        None,
    ]
    forms = {form_of(other) for other in [given, *others]}
    assert len(forms) == 1 + len(others)
    assert form_of(torch.ones(3, 4)) == form_of(given)


def both(simulator, other):
    """Both run; the state and the bytes of every round must be the same."""
    kept = []
    for state, expected in zip(simulator.run(ROUNDS), other.run(ROUNDS), strict=True):
        assert equal(state, expected)
        kept.append((state, [tensor.clone() for tensor in tensors_of(state)]))
        check_same_traffic(simulator, other)
    for state, before in kept:
        for tensor, copy in zip(tensors_of(state), before, strict=True):
            assert torch.equal(tensor, copy)


def equal(state, other):
    pairs = zip(tensors_of(state), tensors_of(other), strict=True)
    return state.round == other.round and all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_on_a_graphs_buffers_are_the_same(name, case, recordings):
    method = ALGORITHMS[name]()
    simulator = case.simulator(method)
    both(simulator, case.simulator(method, graphs=False))
    assert simulator.graph_status.state is GraphState.RECORDED
    assert len(recordings) == 1


@pytest.mark.parametrize(
    ("method", "sampled"),
    [
        (FedAvg(local_steps=2), 5),
        (HeurFedAMP(local_steps=2), 5),
        (SFedHP(edge_rounds=2, client_sparsity=1e-3, edge_sparsity=1e-3, edge_sparsity_rounds=3), 2),
        (HierFAVG(edge_rounds=2, local_steps=2), 1),
    ],
)
def test_sampled_rounds_are_the_same(method, sampled, case, recordings):
    simulator = case.simulator(method, sampled=sampled)
    both(simulator, case.simulator(method, sampled=sampled, graphs=False))
    assert simulator.graph_status.state is GraphState.RECORDED


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(local_epochs=2, momentum=0.9, clip=1.0),
        FedAvg(local_steps=2),
        HierFAVG(edge_rounds=2, local_steps=2),
        SFedHP(edge_rounds=2, edge_sparsity=1e-3),
        PFedMe(local_rounds=2),
    ],
)
def test_rates_follow_a_schedule_within_a_graph(method, case, recordings):
    schedule = ScheduleOptions("step", warmup=1, every=1, factor=0.5)
    simulator = case.simulator(method, schedule=schedule)
    for state, other in zip(
        simulator.run(5), case.simulator(method, schedule=schedule, graphs=False).run(5), strict=True
    ):
        for pair in zip(tensors_of(state), tensors_of(other), strict=True):
            assert_close(*pair, rtol=0, atol=1e-12)
    assert simulator.graph_status.state is GraphState.RECORDED
    constant = list(case.simulator(method).run(5))[-1]
    assert not torch.equal(tensors_of(constant)[0], tensors_of(state)[0])


def test_a_link_to_the_cloud_that_reads_messages_is_outside_the_graph(case, recordings):
    looking, zeroing = Link(WireOptions(count="size", difference=True)), Link(WireOptions(threshold=0.05))
    links = {
        Direction.CLOUD_EDGE: looking,
        Direction.EDGE_CLOUD: looking,
        Direction.EDGE_CLIENT: zeroing,
        Direction.CLIENT_EDGE: zeroing,
    }
    method = SFedHP(edge_rounds=2)
    simulator = case.simulator(method, links=links)
    both(simulator, case.simulator(method, links=links, graphs=False))
    assert simulator.graph_status.state is GraphState.RECORDED


def test_an_empty_edge_keeps_its_state(case, recordings):
    sizes = case.task.sizes.clone()
    sizes[1] = 0
    case = replace(case, task=replace(case.task, sizes=sizes))
    method = SFedHP(edge_rounds=2)
    simulator = case.simulator(method)
    both(simulator, case.simulator(method, graphs=False))
    before = simulator.state.served.state
    for state in simulator.run(ROUNDS + 1):
        assert torch.equal(state.edges.state.model[1], before)
    assert simulator.graph_status.state is GraphState.PENDING


@pytest.mark.parametrize(
    "method", [FedAvg(local_epochs=1, momentum=0.9, clip=1.0), SFedHP(edge_rounds=2, personal_steps=3)]
)
def test_recurrent_layers_attention_and_dropout_are_the_same(method, recordings):
    """Their masks are keyed by the turn's number, which a graph gets as a tensor."""
    case = dropping()
    simulator = case.simulator(method)
    both(simulator, case.simulator(method, graphs=False))
    assert simulator.graph_status.state is GraphState.RECORDED


def test_a_stack_of_runs_is_the_same(recordings):
    cases = [problem(seed) for seed in (0, 1)]
    names = ("inputs", "labels", "sizes", "stream")
    stacked: dict[str, Any] = {
        name: torch.stack([getattr(case.task, name) for case in cases]) for name in names
    }
    task = replace(cases[0].task, **stacked)
    streams = torch.stack([key(case.seed, ROLES["draw"]) for case in cases])
    initial, statistics = (
        torch.stack([getattr(case, name) for case in cases]) for name in ("initial", "statistics")
    )
    method = PFedMe(local_rounds=2, client_proximity=PerRun([15.0, 10.0]))
    simulator, other = (
        Simulator(method, task, cases[0].ids, initial, statistics, streams, sampled=5, graphs=graphs)
        for graphs in (True, False)
    )
    both(simulator, other)
    assert simulator.graph_status.state is GraphState.RECORDED


def test_a_resumed_run_ends_with_the_same_bits(case, recordings, tmp_path):
    method = SFedHP(edge_rounds=2)
    straight, stopped, resumed = (case.simulator(method) for _ in range(3))
    for simulator, rounds in ((straight, 7), (stopped, 3)):
        for _ in simulator.run(rounds):
            pass
    checkpoints.save(stopped.state, tmp_path)
    resumed.state = checkpoints.load(resumed, tmp_path)
    for _ in resumed.run(7):
        pass
    assert equal(resumed.state, straight.state)
    assert resumed.graph_status.state is GraphState.RECORDED


def test_obstacles_to_a_graph_are_known_beforehand(case):
    def obstacle(method, **options):
        simulator = case.simulator(method, **options)
        # The device is only named: nothing is computed here.
        simulator.initial = SimpleNamespace(device=torch.device("cuda"))
        return simulator._graph_obstacle()

    assert case.simulator(FedAvg())._graph_obstacle() == "the device is a cpu"
    assert case.simulator(FedAvg(), graphs=False)._graph_obstacle() == "not asked for"
    assert obstacle(FedAvg()) == ""
    assert "lost" in obstacle(FedAvg(), lost=lambda clock, ids: ids < 0)
    for options in (WireOptions(count="size"), WireOptions(values="int8"), WireOptions(difference=True)):
        assert "coded on the host" in obstacle(SFedHP(), links={Direction.CLIENT_EDGE: Link(options)})
        assert obstacle(SFedHP(), links={Direction.EDGE_CLOUD: Link(options)}) == ""
        assert obstacle(FedAvg(), links={Direction.CLIENT_CLOUD: Link(options)}) == ""
    assert obstacle(SFedHP(), links={Direction.EDGE_CLIENT: Link(WireOptions(threshold=1e-3))}) == ""
