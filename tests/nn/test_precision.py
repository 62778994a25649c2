"""Precision of products: what is rounded, what is not, and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d
from torch.testing import assert_close

import sfedhp
from sfedhp.core.errors import InputError
from sfedhp.core.keys import key
from sfedhp.core.types import Clock, Precision
from sfedhp.nn import precision
from sfedhp.nn.network import Network
from sfedhp.nn.precision import check_precision, computing, current
from sfedhp.nn.presets import MODELS
from sfedhp.nn.task import Task

CPU = torch.device("cpu")
ROUNDING = 2.0**-8  # of bfloat16


def some(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(tensor):
    return tensor.bfloat16().float()


def test_products_round_their_factors_and_nothing_else():
    left, right, base = some(2, 3, 4), some(2, 4, 5, seed=1), some(2, 3, 5, seed=2)
    product = (rounded(left) @ rounded(right)).bfloat16().float()
    into, place = torch.empty(2, 3, 5), base.clone()
    with computing("bf16", CPU):
        assert current() == "bf16"
        assert_close(torch.bmm(left, right), product, rtol=ROUNDING, atol=1e-6)
        assert torch.bmm(left, right).dtype == torch.float32
        assert_close(torch.bmm(left, right, out=into), into, rtol=0, atol=0)
        added = torch.baddbmm(base, left, right, beta=0.5, alpha=2)
        assert place.baddbmm_(left, right) is place
        assert torch.equal(left + 1, some(2, 3, 4) + 1)
    assert current() == "float32"
    assert_close(into, product, rtol=ROUNDING, atol=1e-6)
    assert_close(added - 0.5 * base, 2 * product, rtol=2 * ROUNDING, atol=1e-5)
    assert_close(place - base, product, rtol=2 * ROUNDING, atol=1e-5)
    assert not torch.equal(into, left @ right)


def test_convolutions_and_their_gradients_round():
    rows, weight = some(2, 3, 8, 8).requires_grad_(), some(4, 3, 3, 3, seed=1).requires_grad_()
    exact = torch.autograd.grad(conv2d(rows, weight).square().sum(), (rows, weight))
    with computing("bf16", CPU):
        grads = torch.autograd.grad(conv2d(rows, weight).square().sum(), (rows, weight))
    for grad, wanted in zip(grads, exact, strict=True):
        assert grad.dtype == torch.float32
        assert not torch.equal(grad, wanted)
        assert (grad - wanted).norm() < 4 * ROUNDING * wanted.norm()


def test_integers_and_other_types_are_left_alone():
    whole, double = torch.ones(2, 2, dtype=torch.int64), some(2, 2).double()
    with computing("bf16", CPU):
        assert torch.equal(whole @ whole, torch.full((2, 2), 2))
        assert torch.equal(double @ double, double.mm(double))
        assert (double @ double).dtype == torch.float64


@pytest.mark.parametrize("model", ["mlr", "dnn-small", "vgg", "cnn"])
def test_every_path_to_a_gradient_rounds(model):
    torch.manual_seed(0)
    network = Network(MODELS[model]((3, 32, 32), 4))
    labels = torch.arange(12).view(3, 4) % 4
    task = Task(network, some(3, 4, 3, 32, 32), labels, torch.full((3,), 4), key(torch.arange(3)), 0)
    weights = network.initial()[0]
    exact = task.gradient(weights, task.everything())
    with replace(task, precision="bf16").training():
        short = task.gradient(weights, task.everything())
    assert short.dtype == torch.float32
    assert 0 < (short - exact).norm() < 0.3 * exact.norm()


def test_float32_on_a_cpu_enters_nothing():
    with computing("float32", CPU):
        assert current() == "float32"
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_a_gpu_gets_tf32_or_not_and_its_settings_back():
    before = precision._read_tf32()
    cases: tuple[tuple[Precision, str], ...] = (("tf32", "tf32"), ("float32", "ieee"))
    for asked, value in cases:
        with computing(asked, torch.device("cuda")):
            assert current() == asked
            assert precision._read_tf32() in ((value, value), (asked == "tf32",) * 2)
        assert precision._read_tf32() == before


def test_what_cannot_be_is_refused():
    check_precision("float32", torch.float64, CPU)
    check_precision("bf16", torch.float32, CPU)
    with pytest.raises(InputError, match="dtype = float64"):
        check_precision("bf16", torch.float64, CPU)
    with pytest.raises(InputError, match="mode of NVIDIA GPUs from Ampere on, and the device is a cpu"):
        check_precision("tf32", torch.float32, CPU)


def experiment(**engine):
    return sfedhp.Experiment(
        rounds=1,
        edges=1,
        clients_per_edge=2,
        algorithm=sfedhp.FedAvg(local_steps=2),
        model=sfedhp.ModelOptions(name="mlr"),
        engine=sfedhp.EngineOptions(**engine),
        device="cpu",
    )


def test_a_run_is_evaluated_in_full_and_says_its_precision(tmp_path):
    full, short = (sfedhp.run(experiment(precision=each)).summary for each in ("float32", "bf16"))
    assert full["train_loss_last"] != short["train_loss_last"]
    assert abs(full["gm_last"] - short["gm_last"]) < 5
    sfedhp.run(experiment(precision="bf16"), out=tmp_path / "run")
    assert '"precision": "bf16"' in (tmp_path / "run" / "environment.json").read_text()
    assert 'precision = "bf16"' in (tmp_path / "run" / "config.toml").read_text()


def test_gaussian_processes_stay_in_full():
    asked = replace(experiment(precision="bf16"), algorithm=sfedhp.PFedGP())
    with pytest.raises(InputError, match="Gaussian processes"):
        sfedhp.run(asked)


def test_a_module_with_attention_rounds():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    network = Network(nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 3)))
    task = Task(
        network,
        some(2, 6, 5, 8),
        torch.zeros(2, 6, dtype=torch.int64),
        torch.full((2,), 6),
        key(torch.arange(2)),
        0,
    )
    exact = task.gradient(network.initial()[0], task.everything())
    with replace(task, precision="bf16").training():
        short = task.gradient(network.initial()[0], task.everything())
    assert 0 < (short - exact).norm() < 0.3 * exact.norm()
    assert task.batch(Clock(0)).keys is not None
