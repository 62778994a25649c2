"""Shares in processes of this machine. What shares compute is in test_shares.py."""

import os
import pickle
import signal
from typing import Any

import pytest
import torch

from sfedhp.algorithms import SFedHP
from sfedhp.core.errors import InputError
from sfedhp.engine import processes
from sfedhp.engine.packing import pack
from sfedhp.engine.processes import on_processes
from sfedhp.engine.shares import clients_of, split_evenly
from tests.support.sharing import everything


def die_in_the_second_round(clock, ids):
    if clock.cloud_round == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ids < 0


def test_processes_give_the_same_as_one_and_a_lost_one_is_named(case):
    method = SFedHP(edge_rounds=2)
    spread = case.simulator(
        method,
        lost=die_in_the_second_round,
        worker_factory=lambda simulator: on_processes(simulator, ("cpu", "cpu")),
    )
    rounds, alone = spread.run(2), case.simulator(method).run(1)
    for mine, theirs in zip(everything(next(rounds)), everything(next(alone)), strict=True):
        assert mine.shape == theirs.shape
        assert (mine - theirs).norm() <= 1e-9 * theirs.norm()
    assert str(spread.graph_status) == "no: the work is done by 2 processes on cpu, cpu"
    with pytest.raises(InputError, match=r"^The process on cpu ended with exit code -9: .*`sfedhp resume`"):
        next(rounds)


class Pipe:
    """The end of a process: what it is sent, and what it answers."""

    def __init__(self, *sent):
        self.sent, self.answers = list(map(pickle.dumps, sent)), []

    def recv_bytes(self):
        if not self.sent:
            raise EOFError
        return self.sent.pop(0)

    def send_bytes(self, content):
        self.answers.append(pickle.loads(content))


def refuse(clock, ids):
    raise InputError("What the work refuses.")


def fail(clock, ids):
    raise ZeroDivisionError("by zero")


@pytest.mark.parametrize(
    ("lost", "answer"),
    [
        (refuse, ("refused", "What the work refuses.")),
        (fail, ("failed", "ZeroDivisionError: by zero")),
    ],
)
def test_an_error_of_the_work_is_reported(case, monkeypatch, lost, answer):
    monkeypatch.setattr(signal, "signal", lambda *words: None)
    monkeypatch.setattr(processes, "keep_freed_memory", lambda: None)
    simulator = case.simulator(SFedHP(edge_rounds=1), lost=lost)
    (part,) = split_evenly(simulator.members, 1)
    served = simulator.state.served
    message = simulator.algorithm.cloud_message(served.state, simulator.members)
    trees = pack((message, served.statistics, simulator.state.clients, ()))
    pipe = Pipe(clients_of(simulator.client_stack, part), ("edge_rounds", 0, trees))
    processes._work(pipe, "cpu", torch.get_num_threads())
    assert pipe.answers == [answer]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (("refused", "As it was."), InputError, r"^As it was\.$"),
        (("failed", "KeyError: 'a'"), RuntimeError, r"^The process on cuda:1 failed: KeyError: 'a'$"),
    ],
)
def test_an_error_is_raised_where_the_run_was_started(answer, kind, words):
    pool: Any = object.__new__(processes.ProcessPool)
    pool._devices, pool._pipes = ("cuda:0", "cuda:1"), [Pipe(), Pipe(answer)]
    with pytest.raises(kind, match=words):
        pool.call("edge_rounds", 0, {1: ()})
