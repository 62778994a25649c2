"""Networks that are no chain of known layers: client by client, and their convolutions under vmap."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from sfedhp.core.keys import key
from sfedhp.nn import stacked_conv
from sfedhp.nn.network import Network
from sfedhp.nn.presets import MODELS
from sfedhp.nn.task import GradientMethod, Task

LEAD = (2, 2)
SIZES = torch.tensor([[3, 2], [0, 3]])
GENERATOR = torch.Generator().manual_seed(0)


class Odd(nn.Module):
    """Convolutions with every option, of one and of two axes, and a batch norm between them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
        self.norm = nn.BatchNorm2d(4)
        self.same = nn.Conv2d(4, 3, 3, padding="same", bias=False)
        self.even = nn.Conv2d(3, 3, 2, padding="same")
        self.line = nn.Conv1d(3, 2, 3, padding="valid")
        self.drop = nn.Dropout(0.3)
        self.head = nn.LazyLinear(3)

    def forward(self, images):
        inner = self.even(self.same(self.norm(self.first(images)).relu()))
        return self.head(self.drop(self.line(inner.flatten(2))).flatten(1))


def odd():
    module = Odd()
    module(torch.zeros(2, 2, 6, 6))
    return module


def recurrent():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.series = nn.GRU(4, 5, num_layers=2, dropout=0.4, batch_first=True)
            self.line = nn.LSTM(5, 3, batch_first=True, bidirectional=True)

        def forward(self, rows):
            return self.line(self.series(rows)[0])[0][:, -1]

    return nn.Sequential(Last(), nn.Linear(6, 3))


NETWORKS = {
    "odd": ((2, 6, 6), odd),
    "residual": ((3, 8, 8), lambda: MODELS["resnet-gn"]((3, 8, 8), 3)),
    "recurrent": ((6, 4), recurrent),
}


def task(name):
    shape, make = NETWORKS[name]
    torch.manual_seed(0)
    network = Network(make().double())
    inputs = torch.randn(*LEAD, 3, *shape, generator=GENERATOR, dtype=torch.float64)
    labels = torch.randint(0, 3, (*LEAD, 3), generator=GENERATOR)
    ids = torch.arange(4).view(LEAD)
    statistics = network.initial()[1].double().expand(*LEAD, -1).clone()
    return Task(network, inputs, labels, SIZES, key(7, ids), 0, statistics=statistics, min_rows=2)


def models(network):
    start = network.initial()[0].double()
    return start + 0.1 * torch.randn(*LEAD, network.d, generator=GENERATOR, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", NETWORKS)
def test_clients_in_turn_are_those_of_a_stack(name):
    in_turn = task(name)
    stack = replace(in_turn, force_autograd=True)
    before = {part: value.clone() for part, value in in_turn.network.module.state_dict().items()}
    if name != "recurrent":
        assert in_turn.gradient_path.method is GradientMethod.CLIENT_BY_CLIENT
    assert stack.gradient_path.method is GradientMethod.AUTOGRAD
    batch = in_turn.everything()._replace(keys=in_turn.stream)
    weights = models(in_turn.network)
    real = SIZES > 0
    assert_close(in_turn.gradient(weights, batch)[real], stack.gradient(weights, batch)[real])
    assert_close(in_turn.statistics[real], stack.statistics[real])
    after = in_turn.network.module.state_dict()
    assert all(torch.equal(after[part], value) for part, value in before.items())


def test_a_model_that_all_share_is_read_where_it_is():
    one = task("residual")
    model = one.network.initial()[0].double()
    batch = one.everything()
    grads = one.gradient(model, batch)
    assert_close(grads, one.gradient(model.expand(*LEAD, -1).clone(), batch))
    assert not grads[1, 0].any()  # a client without rows


@pytest.mark.parametrize("columns", [False, True])
def test_convolutions_under_vmap_are_torchs(columns, monkeypatch):
    if columns:
        monkeypatch.setattr(
            stacked_conv,
            "by_columns",
            lambda rows, geometry: len(geometry.stride) == 2 and geometry.groups == 1,
        )
        monkeypatch.setattr(stacked_conv, "_KEPT_COLUMNS", 200)
    shape = (2, 7, 6)
    torch.manual_seed(1)
    for options in (
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0)},
        {"kernel_size": 3, "dilation": 2, "padding": "same", "bias": False},
        {"kernel_size": 1},
        {"kernel_size": 3, "groups": 2},
    ):
        first = nn.Conv2d(2, 4, 3, padding=1)
        module = nn.Sequential(first, nn.Tanh(), nn.Conv2d(4, 4, **options), nn.Flatten(), nn.LazyLinear(3))
        module(torch.zeros(1, *shape))
        network = Network(module.double())
        rows = torch.randn(3, 4, *shape, dtype=torch.float64)
        labels = torch.arange(12).view(3, 4) % 3
        stack = Task(network, rows, labels, torch.full((3,), 4), key(torch.arange(3)), 0, force_autograd=True)
        weights = network.initial()[0].double().expand(3, -1) * torch.tensor([[1.0], [0.9], [1.1]]).double()
        found = stack.gradient(weights, stack.everything())
        for client in range(3):
            alone = network.build(weights[client], torch.zeros(0)).train()
            functional.cross_entropy(alone(rows[client]), labels[client]).backward()
            wanted = torch.cat([part.grad.flatten() for part in alone.parameters() if part.grad is not None])
            assert_close(found[client], wanted)
        curved = stack.curvature(weights, stack.everything(), found)
        assert curved.isfinite().all()  # which is differentiated twice


class Viewing(nn.Module):
    """It joins all pixels by `view`, which refuses images whose channels are the last in memory."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 4, 3), nn.Linear(144, 3)

    def forward(self, images):
        return self.head(self.first(images).tanh().view(len(images), -1))


def standardizing():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.InstanceNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3))


@pytest.mark.parametrize(
    ("make", "channels_last"),
    [(lambda: MODELS["resnet-gn"]((3, 8, 8), 3), True), (Viewing, False), (standardizing, False)],
)
def test_images_have_their_channels_last_where_that_is_possible_and_faster(make, channels_last):
    torch.manual_seed(0)
    network, shape = Network(make()), torch.Size([3, 8, 8])
    assert network.dry_run(shape, torch.float32).channels_last is channels_last
    seen = []
    first = next(part for part in network.module.modules() if isinstance(part, nn.Conv2d))
    hook = first.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    rows, labels = torch.randn(2, 3, *shape), torch.tensor([[0, 1, 2], [2, 2, 0]])
    stack = Task(network, rows, labels, torch.full((2,), 3), key(torch.arange(2)), 0, min_rows=3)
    weights = network.initial()[0] + 0.1 * torch.randn(2, network.d)
    grads = stack.gradient(weights, stack.everything())
    assert seen == [channels_last] * 2
    hook.remove()
    plain = replace(stack, force_autograd=True).gradient(weights, stack.everything())
    assert_close(grads, plain, rtol=1e-4, atol=1e-5)
