"""Hand-written passes of convolutional networks give what autograd gives."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sfedhp.core.keys import key
from sfedhp.core.types import Clock
from sfedhp.inner.minimize import Descent, minimize
from sfedhp.nn.conv.convolve import DirectConvolution, Im2colConvolution
from sfedhp.nn.conv.match import match_convnet
from sfedhp.nn.models import build
from sfedhp.nn.network import Network
from sfedhp.nn.task import Task
from tests.support.tensors import normal

LEAD, ROWS, SHAPE, CLASSES = (2, 3), 5, (2, 7, 6), 3
SIZES = torch.tensor([[5, 3, 3], [1, 0, 5]])
CLOCK = Clock(1, 2)


def block(inputs, outputs, *norms, bias=True, pools=True):
    parts = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias), *norms, nn.ReLU()]
    return [*parts, nn.MaxPool2d(2)] if pools else parts


def batch_norm(channels):
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.3)


def network(*parts):
    return Network(nn.Sequential(*parts).double())


NETWORKS = {
    "batch norm": network(
        *block(2, 4, batch_norm(4)),
        *block(4, 4, batch_norm(4), bias=False, pools=False),
        nn.Flatten(),
        nn.Linear(36, CLASSES),
    ),
    "group norm": network(
        *block(2, 4, nn.GroupNorm(2, 4)),
        *block(4, 6, nn.GroupNorm(3, 6, 1e-2), bias=False, pools=False),
        nn.Flatten(),
        nn.Linear(54, CLASSES),
    ),
    "both": network(
        nn.Sequential(*block(2, 6, nn.GroupNorm(1, 6), pools=False)),
        *block(6, 4, batch_norm(4)),
        nn.Flatten(),
        nn.Sequential(nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, CLASSES)),
    ),
    "windows": network(
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0)),
        batch_norm(4),
        nn.MaxPool2d(3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, CLASSES),
    ),
    "dropout": network(
        nn.Conv2d(2, 3, 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.3),
        nn.Conv2d(3, 4, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(24, 5),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(5, CLASSES),
    ),
    "neither": network(*block(2, 3), *block(3, 5, pools=False), nn.Flatten()),
}


def task(name="batch norm", **options):
    labels = torch.randint(CLASSES, (*LEAD, ROWS), generator=torch.Generator().manual_seed(1))
    running_stats = normal(*LEAD, NETWORKS[name].s).square() + 0.1
    stream = key(5, torch.arange(6).reshape(LEAD))
    given = {"statistics": running_stats, **options}
    return Task(NETWORKS[name], normal(*LEAD, ROWS, *SHAPE), labels, SIZES, stream, 4, **given)


def models(name="batch norm", seed=2):
    return normal(*LEAD, NETWORKS[name].d, seed=seed)


@pytest.fixture(params=[DirectConvolution, Im2colConvolution])
def way(request, monkeypatch):
    """Either way to convolve, as if it were this device's; what is short is split too."""
    monkeypatch.setattr("sfedhp.nn.conv.network.convolution_for", lambda device: request.param())
    monkeypatch.setattr(Im2colConvolution, "split_above", 8)
    monkeypatch.setattr(DirectConvolution, "rows_at_once", 16)
    return request.param


def squared(scores, labels, real):
    return torch.where(real, scores.sub(labels.unsqueeze(-1)).square().sum(-1), 0.0).sum(-1)


def close(found, wanted):
    assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sizes", [SIZES, torch.full(LEAD, ROWS)])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_statistics_are_those_of_autograd(way, name, sizes):
    stack = replace(task(name, min_rows=int(sizes[sizes > 0].min()), weight_decay=0.3), sizes=sizes)
    plain = replace(stack, force_autograd=True)
    assert str(stack.gradient_path) == "convolutions by hand"
    assert str(plain.gradient_path) == "autograd"
    for batch in (stack.batch(CLOCK), stack.everything()):
        close(stack.gradient(models(name), batch), plain.gradient(models(name), batch))
        close(stack.statistics, plain.statistics)
        own = stack.gradient(models(name), batch, squared)
        close(own, plain.gradient(models(name), batch, squared))
        close(stack.statistics, plain.statistics)


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_are_those_of_the_modules(way, name, monkeypatch):
    for max_columns in (2**22, 1, 3000):
        monkeypatch.setattr(way, "max_columns", max_columns)
        stack = task(name)
        scores = stack.scores(models(name), stack.inputs)
        for place in ((0, 0), (1, 2)):
            module = stack.network.build(models(name)[place], stack.statistics[place])
            close(scores[place], module(stack.inputs[place]))


@pytest.mark.parametrize("name", NETWORKS)
def test_shared_models_are_those_models_for_each(way, name):
    own = models(name)
    apart = own.transpose(0, 1).contiguous().transpose(0, 1)
    for given in (own[0, 0].expand(*LEAD, -1), own[1, 1], own[:, :1].expand(*LEAD, -1), apart):
        stack, plain = task(name), task(name, force_autograd=True)
        for sizes in (SIZES, torch.full(LEAD, ROWS)):
            stack, plain = replace(stack, sizes=sizes), replace(plain, sizes=sizes)
            batch = stack.batch(CLOCK)
            close(stack.gradient(given, batch), plain.gradient(given, batch))
        for running_stats in (stack.statistics, stack.statistics[:1, :1].expand(*LEAD, -1)):
            stack, plain = replace(stack, statistics=running_stats), replace(plain, statistics=running_stats)
            close(stack.scores(given, stack.inputs), plain.scores(given, stack.inputs))


def test_a_client_alone_has_no_leading_axes(way):
    stack = task().map(lambda tensor: tensor[0, 1])
    batch = stack.batch(CLOCK)
    plain = replace(stack, force_autograd=True)
    close(stack.gradient(models()[0, 1], batch), plain.gradient(models()[0, 1], batch))
    close(stack.scores(models()[0, 1], stack.inputs), plain.scores(models()[0, 1], stack.inputs))


def test_padding_has_no_influence(way):
    stack = task()
    batch = stack.batch(CLOCK)
    spoiled = batch._replace(inputs=torch.where(batch.real[..., None, None, None], batch.inputs, 1e6))
    assert torch.equal(task().gradient(models(), spoiled), stack.gradient(models(), batch))
    changed = task()
    changed.gradient(models(), spoiled)
    assert torch.equal(changed.statistics, stack.statistics)
    assert torch.equal(stack.statistics[1, 1], task().statistics[1, 1])  # of a client without rows


def test_a_batch_without_any_rows_is_allowed(way):
    empty = replace(task(), sizes=torch.zeros(LEAD, dtype=torch.int64))
    batch = empty.everything()
    assert not empty.gradient(models(), batch).any()
    assert not empty.gradient(models(), batch, squared).any()
    assert torch.equal(empty.statistics, task().statistics)


def test_what_is_given_is_not_changed(way):
    stack, given = task(), models()
    before = [tensor.clone() for tensor in (given, stack.inputs, stack.statistics)]
    running_stats = stack.statistics
    stack.gradient(given, stack.batch(CLOCK))
    stack.scores(given, stack.inputs)
    for tensor, old in zip((given, stack.inputs, running_stats), before, strict=True):
        assert torch.equal(tensor, old)


def test_steps_are_those_of_the_plain_path(way):
    descent = Descent(steps=3, rate=0.05, proximity=2.0)
    anchor = models()[:, :1].expand(*LEAD, -1) / 4
    stack, plain = task(), task(force_autograd=True)
    close(minimize(stack, CLOCK, anchor, descent), minimize(plain, CLOCK, anchor, descent))
    close(stack.statistics, plain.statistics)


@pytest.mark.parametrize("name", ["vgg", "vgg-gn"])
@pytest.mark.parametrize("features", [False, True])
def test_the_models_of_the_paper_have_a_hand_written_pass(way, name, features):
    vgg = build(name, shape=(3, 32, 32), classes=10, seed=0, dtype=torch.float32, features=features)
    inputs, labels = normal(2, 3, 3, 32, 32).float(), torch.tensor([[1, 2, 3], [0, 9, 9]])
    running_stats = vgg.initial()[1].expand(2, -1).clone()
    stack = Task(
        vgg, inputs, labels, torch.tensor([3, 3]), key(0, torch.arange(2)), 3, statistics=running_stats
    )
    assert str(stack.gradient_path) == "convolutions by hand"
    given, batch, plain = (
        vgg.initial()[0].expand(2, -1),
        stack.everything(),
        replace(stack, force_autograd=True),
    )
    found, wanted = stack.gradient(given, batch), plain.gradient(given, batch)
    assert found.dtype == torch.float32
    assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert_close(stack.scores(given, inputs), plain.scores(given, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_im2col_never_reads_a_value_from_the_device(name):
    """A meta tensor has no values: reading one is an error, as a CUDA graph would give."""
    stack = task(name).to(torch.device("meta"))
    batch, given = stack.everything(), models(name).to("meta")
    assert stack.gradient(given, batch).shape == given.shape
    assert stack.scores(given, stack.inputs).shape[:3] == (*LEAD, ROWS)


def _hooked():
    module = nn.Sequential(*block(2, 4), nn.Flatten())
    module[1].register_forward_hook(lambda *_: None)
    return module


def _twice():
    convolution = nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(convolution, nn.ReLU(), convolution, nn.ReLU(), nn.Flatten())


def convolution_with(**options):
    return nn.Sequential(
        nn.Conv2d(2, 4, **{"kernel_size": 3, "padding": 1, **options}), nn.ReLU(), nn.Flatten()
    )


def normed(norm):
    return nn.Sequential(*block(2, 4, norm), nn.Flatten())


def pooled(pooling):
    return nn.Sequential(*block(2, 4, pools=False), pooling, nn.Flatten())


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(4, 3),
        nn.Sequential(*block(2, 4)),
        nn.Sequential(*block(2, 4), nn.Flatten(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3)),
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Flatten()),
        nn.Sequential(*block(2, 4), *block(3, 4), nn.Flatten()),
        nn.Sequential(*block(2, 4), nn.Flatten(), nn.Tanh()),
        nn.Sequential(*block(2, 4), nn.Flatten(), nn.Flatten(), nn.Linear(36, 3)),
        convolution_with(padding="same"),
        convolution_with(dilation=2),
        convolution_with(groups=2),
        convolution_with(padding_mode="circular"),
        normed(nn.BatchNorm2d(4, affine=False)),
        normed(nn.BatchNorm2d(4, track_running_stats=False)),
        normed(nn.GroupNorm(2, 4, affine=False)),
        normed(nn.InstanceNorm2d(4, affine=True)),
        nn.Sequential(*block(2, 4, batch_norm(4)), *block(4, 4, nn.BatchNorm2d(4)), nn.Flatten()),
        pooled(nn.MaxPool2d(2, dilation=2)),
        pooled(nn.Dropout(1.0)),
        nn.Sequential(*block(2, 4), nn.Dropout(0.1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(36, 3)),
        nn.Sequential(*block(2, 4), nn.Flatten(), nn.Linear(36, 3), nn.Dropout(0.1)),
        nn.Sequential(*block(2, 4), nn.Flatten(), nn.Linear(36, 3), nn.Dropout(0.1), nn.ReLU()),
        nn.Sequential(nn.Unflatten(1, (2, 3)), *block(2, 4), nn.Flatten()),
        pooled(nn.MaxPool2d(2, ceil_mode=True)),
        pooled(nn.AvgPool2d(2)),
        _hooked(),
        _twice(),
    ],
)
def test_other_modules_are_not_matched(module):
    assert match_convnet(module) is None


@pytest.mark.parametrize("shape", [(2, 7), (3, 7, 6), (2, 3, 3), (2, 8, 8), (2, 1, 1)])
def test_inputs_of_another_shape_are_not_accepted(shape):
    assert not NETWORKS["batch norm"].convnet.accepts(torch.Size(shape))


def test_one_pixel_cannot_be_normalized_over_rows():
    single = match_convnet(
        nn.Sequential(*block(2, 4), *block(4, 4, batch_norm(4), pools=False), nn.Flatten())
    )
    assert single is not None
    assert single.accepts(torch.Size((2, 4, 2)))
    assert not single.accepts(torch.Size((2, 3, 2)))
    assert NETWORKS["neither"].convnet.accepts(torch.Size((2, 3, 2)))
    assert not NETWORKS["neither"].convnet.accepts(torch.Size((2, 1, 2)))


def test_images_without_an_axis_of_channels_get_one(way):
    parts = nn.Unflatten(1, (1, 7)), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40, CLASSES)
    own = network(*parts)
    stack = replace(task(), network=own, inputs=normal(*LEAD, ROWS, 7, 6), statistics=None)
    assert str(stack.gradient_path) == "convolutions by hand"
    given = normal(*LEAD, own.d, seed=3)
    plain = replace(stack, force_autograd=True)
    close(stack.gradient(given, stack.everything()), plain.gradient(given, plain.everything()))
    close(stack.scores(given, stack.inputs), plain.scores(given, stack.inputs))
    assert not own.convnet.accepts(torch.Size((2, 2)))
