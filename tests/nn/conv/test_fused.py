"""Fused kernels, run by Triton's interpreter where there is no GPU, give what autograd gives."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import nn
from torch.testing import assert_close

pytest.importorskip("triton", reason="Triton, which the fused kernels are written with, is not installed")

from sfedhp.core.keys import key
from sfedhp.core.types import Clock
from sfedhp.nn.conv import fused
from sfedhp.nn.conv.convolve import Im2colConvolution
from sfedhp.nn.kernels import available
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task
from tests.support.paths import ROOT
from tests.support.tensors import normal

LEAD, ROWS, SHAPE, CLASSES = (2, 2), 3, (3, 4, 8), 4
CLOCK = Clock(1, 2)
UNAVAILABLE_REASON = available.unavailable_reason
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def block(inputs, outputs, bias=True, groups=0):
    norm: nn.Module = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.3)
    if groups:
        norm = nn.GroupNorm(groups, outputs, eps=1e-2)
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias), norm, nn.ReLU(), nn.MaxPool2d(2)]


def network(*blocks):
    blocks = blocks or BATCH_NORMS
    head = [nn.Linear(2 * blocks[-1][0].out_channels, 6), nn.ReLU(), nn.Linear(6, CLASSES)]
    return Network(nn.Sequential(*chain(*blocks), nn.Flatten(), *head).double())


BATCH_NORMS = block(3, 16), block(16, 5, bias=False)
NETWORKS = {
    "batch norm": network(),
    "few channels": network(block(3, 3), block(3, 5)),
    "group norm": network(block(3, 16, groups=2), block(16, 4, bias=False, groups=4)),
    "both": network(block(3, 4, groups=1), block(4, 5)),
    "both, the other way": network(block(3, 6), block(6, 8, groups=4)),
}


def task(net, **options):
    labels = torch.randint(CLASSES, (*LEAD, ROWS), generator=torch.Generator().manual_seed(1))
    stream, sizes = key(5, torch.arange(4).reshape(LEAD)), torch.full(LEAD, ROWS)
    running_stats = normal(*LEAD, net.s).square() + 0.1
    made = Task(
        net,
        normal(*LEAD, ROWS, *SHAPE),
        labels,
        sizes,
        stream,
        2,
        statistics=running_stats,
        min_rows=ROWS,
        **options,
    )
    return made.to(torch.device(DEVICE))


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """As if every device had kernels, with passes counted."""
    can_fuse, passes = fused.can_fuse, []  # no GPU is asked for
    monkeypatch.setattr(
        fused, "can_fuse", lambda blocks, shape, _: can_fuse(blocks, shape, torch.device("cuda"))
    )
    monkeypatch.setattr(available, "unavailable_reason", lambda device: "")

    class Counted(fused.FusedPass):
        def __init__(self, *given):
            passes.append(self)
            super().__init__(*given)

    monkeypatch.setattr(fused, "FusedPass", Counted)
    monkeypatch.setattr("sfedhp.nn.conv.network.convolution_for", lambda device: Im2colConvolution())
    return passes


@pytest.fixture(params=[pytest.param(1024, marks=pytest.mark.slow), 64])
def tile(request, monkeypatch):
    """Also so small that sums have several chunks, and more than are added at once."""
    monkeypatch.setattr("sfedhp.nn.kernels.tiles.TILE", request.param)
    monkeypatch.setattr("sfedhp.nn.kernels.tiles.CHUNKS_AT_ONCE", 4)
    monkeypatch.setattr("sfedhp.nn.conv.convolve.Im2colConvolution.split_above", request.param)
    return request.param


# Coverage makes the interpreter twice as slow; one network runs the lines of the others.
EACH = [name if name == "both" else pytest.param(name, marks=pytest.mark.no_cover) for name in NETWORKS]


@pytest.mark.parametrize("name", EACH)
def test_gradients_and_statistics_are_those_of_autograd(tile, name, everywhere):
    net = NETWORKS[name]
    stack, plain = task(net), task(net, force_autograd=True)
    own = normal(*LEAD, net.d, seed=2).to(DEVICE)
    # The interpreter is slow, most of all under coverage: one network is enough for models that are shared.
    shared = tile == 1024 or name == "few channels"
    models = (own, own[:, :1].expand(*LEAD, -1), own[0, 0]) if shared else (own,)
    for model in models:
        batch = stack.batch(CLOCK)
        assert_close(stack.gradient(model, batch), plain.gradient(model, batch), rtol=1e-10, atol=1e-10)
        assert_close(stack.statistics, plain.statistics, rtol=1e-10, atol=1e-10)
    assert len(everywhere) == len(models)


def test_what_is_given_is_not_changed():
    net = network()
    stack, model = task(net), normal(*LEAD, net.d, seed=2).to(DEVICE)
    before = [tensor.clone() for tensor in (model, stack.inputs)]
    stack.gradient(model, stack.everything())
    assert torch.equal(model, before[0])
    assert torch.equal(stack.inputs, before[1])


def test_a_gain_of_zero_lets_nothing_pass():
    net = network()
    model = normal(*LEAD, net.d, seed=2).to(DEVICE)
    gain = net.convnet.blocks[0].norm.start
    model[..., gain : gain + 2] = torch.tensor([0.0, -0.0])
    stack, plain = task(net), task(net, force_autograd=True)
    batch = stack.batch(CLOCK)
    weights = net.convnet.blocks[0].start
    found, wanted = stack.gradient(model, batch), plain.gradient(model, batch)
    assert not found[..., weights : weights + 2 * 27].any()
    assert_close(found[..., gain + 2 :], wanted[..., gain + 2 :], rtol=1e-10, atol=1e-10)


def test_what_is_not_a_number_does_not_vanish():
    net = network()
    model, stack = normal(*LEAD, net.d, seed=2).to(DEVICE), task(net)
    model[0, 0, 0] = torch.nan  # one weight of the first block
    found = stack.gradient(model, stack.batch(CLOCK))
    above = found[..., net.convnet.head[-1].start :]
    assert above[0, 0].isnan().any()
    assert not above[1].isnan().any()


def test_other_networks_and_ragged_stacks_are_not_fused(everywhere):
    net = network()
    ragged = replace(task(net), sizes=torch.tensor([[3, 2], [1, 3]]).to(DEVICE), min_rows=1)
    ragged.gradient(normal(*LEAD, net.d).to(DEVICE), ragged.everything())
    assert not everywhere
    blocks = net.convnet.blocks
    cuda = torch.device("cuda")
    assert fused.can_fuse(blocks, torch.Size(SHAPE), cuda)
    assert not fused.can_fuse(blocks, torch.Size((3, 6, 8)), cuda)  # the second block would pool 3 × 4
    for other in (nn.GroupNorm(2, 6), None):
        parts = [nn.Conv2d(3, 6, 3, padding=1), *([other] if other else []), nn.ReLU(), nn.MaxPool2d(2)]
        there = Network(nn.Sequential(*parts, nn.Flatten(), nn.Linear(48, 2))).convnet
        assert there is not None
        assert not fused.can_fuse(there.blocks, torch.Size(SHAPE), cuda)


def test_the_reason_why_kernels_cannot_run_is_named(monkeypatch):
    here = torch.device(DEVICE)
    UNAVAILABLE_REASON.cache_clear()
    assert not UNAVAILABLE_REASON(here)
    UNAVAILABLE_REASON.cache_clear()
    monkeypatch.setattr("sfedhp.nn.kernels.norm_forward.pool_with_moments", lambda raw: raw.reshape(7))
    assert UNAVAILABLE_REASON(here).startswith("Triton cannot run here (shape '[7]'")
    UNAVAILABLE_REASON.cache_clear()
    monkeypatch.setattr(available, "find_spec", lambda name: None)
    assert UNAVAILABLE_REASON(here) == "Triton is not installed"
    UNAVAILABLE_REASON.cache_clear()


def test_the_gradient_path_says_whether_kernels_are_used(everywhere, monkeypatch):
    stack = task(network())
    assert str(stack.gradient_path) == "convolutions by hand, fused kernels"
    assert replace(stack, min_rows=2).gradient_path == stack.gradient_path  # a mini-batch has two rows
    assert str(replace(stack, min_rows=1).gradient_path) == "convolutions by hand"


def test_the_kernels_compile_for_a_gpu():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/support/compiling.py")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(": ")[1].split() == [
        "_im2col",
        "_matmul",
        "_norm_coefficients",
        "_norm_grad_coefficients",
        "_pool_grad",
        "_pool_with_moments",
        "_raw_grad",
        "_scatter_weight_grad",
        "_update_layer",
        "_weight_matrices",
    ]
