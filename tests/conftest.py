"""What tests share: one thread, so that numbers and times do not depend on the machine's cores."""

import os

import pytest
import torch
from hypothesis import settings

from sfedhp.checks.problem import problem

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes that tests start
# A busy machine is no failure: how long an example takes decides nothing.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # GPU kernels are run by Triton's interpreter


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto` one worker more than there are cores: some tests wait for processes that they start.

    pytest-xdist itself counts physical cores, which is one on many machines with two.
    """
    return (os.cpu_count() or 1) + 1


@pytest.fixture
def becoming(monkeypatch):
    """The processes that a command would have become: program, words and environment of each."""
    become = []
    monkeypatch.setattr("sfedhp.cli.roles.os.execve", lambda *given: become.append(given))
    return become


@pytest.fixture
def case():
    """A small federation of clients of different sizes."""
    return problem()
