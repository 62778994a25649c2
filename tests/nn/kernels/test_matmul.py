"""Kernels for products of few terms give what torch gives, also as Triton's interpreter runs them."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

pytest.importorskip("triton", reason="Triton, which the kernels are written with, is not installed")

from sfedhp.core.factored import dense
from sfedhp.core.keys import key
from sfedhp.core.scalars import PerRun
from sfedhp.core.types import Clock
from sfedhp.core.vectors import spread
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn import matmul as products
from sfedhp.nn.kernels import available
from sfedhp.nn.kernels import matmul as kernels
from sfedhp.nn.mlp import LinearSlice
from sfedhp.nn.network import Network
from sfedhp.nn.precision import _current
from sfedhp.nn.task import Task
from tests.support.tensors import normal

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLIENTS = 2
# Rows, terms and columns: less than a program takes, odd ones, and more.
SIZES = [(1, 1, 1), (20, 10, 33), (35, 20, 70), (3, 32, 5)]
EXACT = {torch.float32: 1e-6, torch.float64: 1e-14}
CLOCK = Clock(1, 2)


def some(*shape, seed=0, dtype=torch.float64):
    return normal(*shape, seed=seed).to(DEVICE, dtype)


def close(found, wanted):
    """To rounding, as large as the numbers are."""
    exact = EXACT[wanted.dtype] * (1 + float(wanted.abs().nan_to_num().max()))
    assert_close(found, wanted, rtol=0, atol=exact, equal_nan=True)


def each(shared):
    """What is shared by groups, for every client."""
    return shared.repeat_interleave(CLIENTS // len(shared), 0)


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("size", SIZES)
def test_products_with_what_follows_them_are_those_of_torch(size, dtype):
    rows, terms, columns = size
    left = some(CLIENTS, rows, terms, dtype=dtype)
    gate = some(CLIENTS, rows, columns, seed=3, dtype=dtype)
    gate[0, 0, 0] = 0.0  # a ReLU that is just off
    for groups, base in itertools.product(
        (1, CLIENTS), (None, some(CLIENTS, rows, columns, seed=2, dtype=dtype))
    ):
        right = some(groups, terms, columns, seed=1, dtype=dtype)
        whole = left @ each(right) if base is None else base + left @ each(right)
        close(kernels.matmul(left, right, base), whole)
        close(kernels.matmul(left, right, base, relu=True), whole.relu())
        close(kernels.matmul(left, right, base, gate), products.relu_backward(whole, gate))


def test_a_row_may_be_added_to_all():
    left, right, base = some(CLIENTS, 3, 5), some(CLIENTS, 5, 7, seed=1), some(CLIENTS, 1, 7, seed=2)
    close(kernels.matmul(left, right, base), base + left @ right)


def test_matrices_may_have_any_strides_and_output_memory():
    left, right = some(CLIENTS, 6, 20).mT[:, 1:], some(CLIENTS, 40, 6, seed=1).mT[:, :, ::2]
    base, gate = some(20, CLIENTS, 19, seed=2).movedim(0, 2), some(CLIENTS, 20, 19, seed=3).mT
    table = torch.zeros(CLIENTS, 60, 20, dtype=torch.float64, device=DEVICE)
    buffer = table[:, 19:38]
    found = kernels.matmul(left, right, base, gate, out=buffer)
    assert found is buffer
    close(buffer, torch.where(gate <= 0, 0, base + left @ right))
    assert not table[:, :19].any()
    assert not table[:, 38:].any()
    before = base.clone()
    kernels.matmul(left, right, base, relu=True, out=base)
    close(base, (before + left @ right).relu())


def test_nan_stays_nan():
    left, right, gate = some(CLIENTS, 3, 5), some(CLIENTS, 5, 40, seed=1), -torch.ones(CLIENTS, 3, 40)
    left[1, 2, 0], gate[0, 0, 0] = torch.nan, torch.nan
    gate = gate.to(left)
    activated, gated = kernels.matmul(left, right, relu=True), kernels.matmul(left, right, activation=gate)
    assert activated[1, 2].isnan().all()
    assert int(activated.isnan().sum()) == 40
    # As in torch, an activation of NaN passes the gradient, and one of 0 or less stops even NaN.
    assert int((gated != 0).sum()) == 1
    close(gated, products.relu_backward(left @ right, gate))


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("size", SIZES)
def test_a_layer_is_decayed_pulled_to_its_anchor_and_updated(size, dtype):
    outputs, terms, inputs = size
    weight, bias = some(CLIENTS, outputs, inputs, dtype=dtype), some(CLIENTS, 1, outputs, seed=1, dtype=dtype)
    # Gradients are column-major, rows a slice of a table, anchors views of flat vectors.
    grads = some(CLIENTS, outputs, terms, seed=2, dtype=dtype).mT
    rows = some(CLIENTS, 2 * terms, inputs, seed=3, dtype=dtype)[:, terms:]
    own = some(2, CLIENTS, 1, 1, seed=4, dtype=dtype)
    place = LinearSlice(3, inputs, outputs)
    for groups, keep, pull in (
        (1, 0.3, 0.7),
        (CLIENTS, 0, 0.9),
        (1, *own),
        (CLIENTS, own[0, :1].expand_as(own[0]), 0.4),
        (0, 0.3, 0.0),
        (0, *own),
    ):
        flat = some(groups, place.end + 2, seed=5, dtype=dtype)
        anchors = (place.weight(flat), place.bias(flat)) if groups else None
        moved = weight.clone(), bias.clone()
        kernels.update_layer(*moved, grads, rows, keep, anchors, pull)
        changes = grads.mT @ rows, grads.sum(1, keepdim=True)
        for turn, (found, before, change) in enumerate(zip(moved, (weight, bias), changes, strict=True)):
            pulled = pull * each(anchors[turn]) if anchors else 0
            close(found, keep * before + pulled + change)


def test_a_weight_that_is_not_kept_is_not_read():
    weight, bias = torch.full((CLIENTS, 3, 40), torch.nan), torch.full((CLIENTS, 1, 3), torch.nan)
    grads, rows = some(CLIENTS, 5, 3), some(CLIENTS, 5, 40, seed=1)
    moved = weight.to(rows), bias.to(rows)
    kernels.update_layer(*moved, grads, rows, 0.0)
    close(moved[0], grads.mT @ rows)
    close(moved[1], grads.sum(1, keepdim=True))


@pytest.fixture
def calls(monkeypatch):
    """As if every device had kernels, with what is asked of them."""
    found = []

    def counted(kernel):
        def call(*given, **options):
            found.append(kernel.__name__)
            return kernel(*given, **options)

        return call

    for kernel in (kernels.matmul, kernels.update_layer):
        monkeypatch.setattr(kernels, kernel.__name__, counted(kernel))
    monkeypatch.setattr(available, "kernels_run_on", lambda device: True)
    return found


def task(lead=(2, 2), sizes=(40, 20, 18, 3), rows=3, dtype=torch.float64, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(sizes):
            parts += [nn.Linear(inputs, outputs), nn.ReLU()]
        network = Network(nn.Sequential(*parts[:-1]).to(dtype))
    count, total = 2 * rows, torch.Size(lead).numel()
    stream, labels = torch.arange(total).reshape(lead), torch.arange(total * count).reshape(*lead, count)
    full = torch.full(lead, count)
    inputs = some(*lead, count, sizes[0], dtype=dtype)
    made = Task(network, inputs, labels % sizes[-1], full, key(1, stream), rows, min_rows=count, **options)
    return made.to(torch.device(DEVICE))


def models(whole, shared, seed=1):
    """Small ones, an edge's clients sharing theirs or not."""
    lead, dtype = whole.lead, whole.inputs.dtype
    own = 0.3 * some(*lead, whole.network.d, seed=seed, dtype=dtype)
    return spread(own[..., 0, :], lead[-1]) if shared else own


def both(whole, monkeypatch, calls, descent, **problem):
    """What the kernels make of an inner problem, and the torch way; how often kernels were called."""
    found = dense(minimize(whole, CLOCK, descent=descent, **problem))
    count = len(calls)
    with monkeypatch.context() as patch:
        patch.setattr(available, "kernels_run_on", lambda device: False)
        wanted = dense(minimize(whole, CLOCK, descent=descent, **problem))
    assert len(calls) == count
    return found, wanted


PULLS: dict[str, float | PerRun] = {"pulled": 3.0, "forgetful": 10.0, "each run its own": PerRun([3.0, 1.0])}
# What is like each of them in its inner problem.
KINDS = {
    "sFedHP": lambda whole: {"anchor": models(whole, shared=True), "factored": True},
    "pFedMe": lambda whole: {
        "anchor": models(whole, shared=False),
        "start": models(whole, shared=False, seed=2),
    },
    "FedProx": lambda whole: {"anchor": models(whole, shared=True), "first_batch": 2},
}


# Without weight decay, each kind has one pull in each type; `make test-slow` has all.
WITHOUT_DECAY = [
    pytest.param(
        *(kind, pull, dtype, 0.0),
        marks=[pytest.mark.no_cover, *([] if pull == often else [pytest.mark.slow])],
    )
    for dtype, often in ((torch.float32, "pulled"), (torch.float64, "forgetful"))
    for kind, pull in itertools.product(KINDS, PULLS)
]
WITH_DECAY = [(kind, pull, torch.float64, 0.2) for kind, pull in itertools.product(KINDS, PULLS)]


@pytest.mark.parametrize(("kind", "pull", "dtype", "weight_decay"), [*WITHOUT_DECAY, *WITH_DECAY])
def test_inner_steps_are_those_of_the_torch_way(kind, pull, dtype, weight_decay, monkeypatch, calls):
    whole = task(dtype=dtype, weight_decay=weight_decay)
    descent = Descent(steps=3, rate=0.1, proximity=PULLS[pull], new_batch_each_step=kind == "FedProx")
    found, wanted = both(whole, monkeypatch, calls, descent, **KINDS[kind](whole))
    assert set(calls) == {"matmul", "update_layer"}
    gap = (found - wanted).norm() / wanted.norm()
    assert gap <= (1e-6 if dtype == torch.float32 else 1e-12)


MORE: dict[str, dict[str, Any]] = {
    "plain steps": {"new_batch_each_step": True},
    "ahead": {"lookahead": 0.1},
    "sparse": {"sparsity": 0.1, "smoothing": 0.3, "proximity": 2.0},
}


@pytest.mark.parametrize("more", MORE)
def test_other_steps_are_those_of_the_torch_way(more, monkeypatch, calls):
    whole = task()
    descent = Descent(steps=2, rate=0.1, **MORE[more])
    found, wanted = both(whole, monkeypatch, calls, descent, anchor=models(whole, True))
    assert (found - wanted).norm() <= 1e-12 * wanted.norm()
    assert ("update_layer" in calls) == (more != "sparse")
    assert "matmul" in calls


def test_a_single_layer_and_long_products_are_left_as_they_are(monkeypatch, calls):
    single = task(sizes=(40, 3))
    descent = Descent(steps=3, rate=0.1, proximity=2.0)
    found, wanted = both(single, monkeypatch, calls, descent, anchor=models(single, True))
    assert (found - wanted).norm() <= 1e-12 * wanted.norm()
    assert set(calls) == {"matmul"}
    calls.clear()
    wide = task(sizes=(40, 34, 33), rows=33)  # neither rows nor classes are few
    fresh = replace(descent, new_batch_each_step=True)
    both(wide, monkeypatch, calls, fresh, anchor=models(wide, False))
    assert not calls


@pytest.mark.parametrize("fused", [True, False])
def test_results_are_written_to_the_given_memory(fused, monkeypatch, calls):
    monkeypatch.setattr(available, "kernels_run_on", lambda device: fused)
    left, right, base = some(CLIENTS, 3, 5), some(CLIENTS, 5, 20, seed=1), some(CLIENTS, 3, 20, seed=2)
    buffer, activation = some(CLIENTS, 9, 20)[:, 3:6], some(CLIENTS, 3, 20, seed=3)
    found = products.matmul_add(base, left, right, relu=True, out=buffer)
    assert found.data_ptr() == buffer.data_ptr()
    close(buffer, (base + left @ right).relu())
    found = products.matmul_backward(left, right, activation=activation, out=buffer)
    assert found.data_ptr() == buffer.data_ptr()
    close(buffer, torch.where(activation <= 0, 0, left @ right))
    assert len(calls) == 2 * fused


def test_the_kernel_takes_few_terms_of_float32_or_float64(calls):
    assert products.fits_kernel(torch.zeros(1, 50, 32))
    assert products.fits_kernel(torch.zeros(1, 50, 32, dtype=torch.float64))
    assert not products.fits_kernel(torch.zeros(1, 50, 33))
    assert not products.fits_kernel(torch.zeros(1, 50, 32, dtype=torch.float16))


def test_kernels_run_on_a_gpu_only(monkeypatch):
    monkeypatch.setattr(available, "unavailable_reason", lambda device: "")
    assert available.kernels_run_on(torch.device("cuda"))
    assert not available.kernels_run_on(torch.device("cpu"))
    monkeypatch.setattr(available, "unavailable_reason", lambda device: "Triton is not installed")
    assert not available.kernels_run_on(torch.device("cuda"))


def test_the_gradient_path_names_the_fused_products(calls):
    assert str(task().gradient_path) == "linear layers by hand, small products fused"
    assert str(replace(task(), force_autograd=True).gradient_path) == "autograd"


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_kernels_round_factors_as_the_run_asks(precision):
    left, right = (
        some(CLIENTS, 20, 10, dtype=torch.float32),
        some(CLIENTS, 10, 33, seed=1, dtype=torch.float32),
    )
    token = _current.set(precision)
    try:
        found = kernels.matmul(left, right)
    finally:
        _current.reset(token)
    if precision == "tf32":  # Triton's interpreter multiplies in full
        assert_close(found, left @ right, rtol=2e-3, atol=2e-2)
        return
    assert_close(found, left @ right, rtol=0, atol=0.1)  # the interpreter cuts where a GPU rounds
    assert not torch.equal(found, left @ right)
