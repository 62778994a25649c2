"""What a round's work is counted as, what a machine can do, and how memory is measured."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from sfedhp.bench import ceilings, worker
from sfedhp.bench.meter import Meter


def count(work: Callable[[], object]) -> tuple[int, int]:
    meter = Meter()
    with meter:
        work()
    return meter.operations, meter.bytes


def test_matrix_products_are_counted_as_2mnk() -> None:
    left, right, batch = torch.ones(2, 3), torch.ones(3, 4), torch.ones(5, 2, 3)
    assert count(lambda: left @ right) == (2 * 2 * 3 * 4, 4 * (6 + 12 + 8))
    assert count(lambda: torch.bmm(batch, batch.mT))[0] == 5 * 2 * 2 * 3 * 2
    assert count(lambda: torch.addmm(torch.ones(4), left, right))[0] == 48
    assert count(lambda: torch.zeros(5, 2, 2).baddbmm_(batch, batch.mT))[0] == 5 * 2 * 2 * 3 * 2


def test_what_is_not_there_is_not_counted() -> None:
    wide = torch.ones(1, 3).expand(100, 3)
    assert count(lambda: wide.view(100, 3).mT) == (0, 0)
    assert count(lambda: torch.empty(100)) == (0, 0)
    # One row is read, a hundred are written.
    assert count(lambda: wide + 1) == (0, 4 * (3 + 300))
    table = torch.ones(1000, 3)
    assert count(lambda: table.index_select(0, torch.tensor([1, 2])))[1] == 4 * (6 + 6)


def test_convolutions_are_counted_forward_and_backward() -> None:
    image = torch.ones(2, 3, 8, 8, requires_grad=True)
    weight = torch.ones(4, 3, 3, 3, requires_grad=True)
    forward = 2 * (2 * 4 * 8 * 8) * (3 * 3 * 3)
    result: list[Tensor] = []
    assert count(lambda: result.append(conv2d(image, weight, padding=1)))[0] == forward
    total = result[0].sum()
    assert count(lambda: total.backward())[0] == 2 * forward
    first = conv2d(image.detach(), weight, padding=1).sum()
    assert count(lambda: first.backward())[0] == forward, "the gradient of the input is not needed"


def test_factorizations_are_counted() -> None:
    matrix = torch.eye(6).expand(2, 6, 6).contiguous()
    assert count(lambda: torch.linalg.cholesky(matrix))[0] == 2 * 6**3 // 3
    right = torch.ones(2, 6, 5)
    assert count(lambda: torch.linalg.solve_triangular(matrix, right, upper=False))[0] == 2 * 6 * 5 * 6
    assert count(lambda: torch.cholesky_solve(right, matrix))[0] == 2 * 2 * 6 * 5 * 6


def test_the_ceilings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_SIDE", 64)
    monkeypatch.setattr(ceilings, "_COPIED", 2**16)
    before = torch.get_num_threads()
    limits = ceilings.ceilings("cpu", 1)
    assert limits.copy > 1e6
    assert limits.matmul > 1e6
    assert torch.get_num_threads() == before
    assert f"torch {torch.__version__}" in ceilings.machine("cpu")


def test_a_machine_without_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ceilings, "_NAMES", tmp_path / "nothing")
    assert ceilings.machine("cpu")


def test_memory_is_what_is_taken_beyond_the_start() -> None:
    held = torch.ones(2**22)
    memory = worker.Memory("cpu")
    before = memory.peak()
    assert before < 2**22, "what was taken before does not count"
    # Memory of its own: an array might lie where a freed one was.
    with mmap.mmap(-1, 2**26) as taken:
        taken.write(b"\1" * 2**26)
    assert 2**26 - 2**20 <= memory.peak() < 2**27, "the peak stays"
    assert held.sum() > 0


def test_memory_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker, "_STATUS", tmp_path / "nothing")
    assert worker.Memory("cpu").peak() == 0
