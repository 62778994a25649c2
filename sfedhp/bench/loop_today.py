"""Rounds of the methods beyond the paper's as a plain loop over the clients; see `bench.loop`.

As in public code, a client's gradient is what autograd leaves in its module's parameters, and each method
changes it before the step. Methods under edges, schedules and other options than the defaults are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sfedhp.algorithms import (
    APFL,
    MTGC,
    SCAFFOLD,
    Algorithm,
    Ditto,
    FedALA,
    FedBABU,
    FedBN,
    FedDBE,
    FedDyn,
    FedPer,
    FedRep,
    LGFedAvg,
)
from sfedhp.algorithms.partly_personal import PartlyPersonal
from sfedhp.bench.client import Client, Pair, Parameters, copied, mean
from sfedhp.core.scalars import number
from sfedhp.nn.parts import NORMS


def ditto(
    algorithm: Ditto, clients: list[Client], model: Parameters, kept: list[Parameters]
) -> list[Parameters]:
    """The models that clients send; `kept` are their own."""
    uploads = []
    for place, client in enumerate(clients):
        batches = [client.batch() for _ in range(algorithm.local_steps)]
        uploads.append(descend(client, model, batches, number(algorithm.local_rate)))
        pull = number(algorithm.proximity)
        kept[place] = descend(
            client, kept[place], batches, number(algorithm.local_rate), center=model, pull=pull
        )
    return uploads


def partly_personal(
    algorithm: PartlyPersonal, clients: list[Client], model: Parameters, kept: list[Parameters]
) -> list[Parameters]:
    """A round of FedPer, FedRep, LG-FedAvg or FedBN: one part is sent, the other kept."""
    own = in_part(clients[0].module, algorithm.own)
    rate, uploads = number(algorithm.local_rate), []
    for place, client in enumerate(clients):
        start = chosen(own, kept[place], model)
        if isinstance(algorithm, FedRep):
            start = descend(client, start, draws(client, algorithm.head_steps), rate, moving=own)
            body = [not each for each in own]
            kept[place] = descend(client, start, draws(client, algorithm.local_steps), rate, moving=body)
        else:
            kept[place] = descend(client, start, draws(client, algorithm.local_steps), rate)
        uploads.append(chosen(own, model, kept[place]))
    return uploads


def fedbabu(
    algorithm: FedBABU, clients: list[Client], model: Parameters, kept: list[Any]
) -> list[Parameters]:
    """A round of FedBABU: clients train only the body."""
    body, rate = in_part(clients[0].module, "body"), number(algorithm.local_rate)
    return [
        descend(client, model, draws(client, algorithm.local_steps), rate, moving=body) for client in clients
    ]


def apfl(algorithm: APFL, clients: list[Client], model: Parameters, kept: list[Any]) -> list[Parameters]:
    """A round of APFL: two gradients a step, and the share from the first."""
    rate, uploads = number(algorithm.local_rate), []
    for place, client in enumerate(clients):
        own, share = kept[place] if isinstance(kept[place], tuple) else (kept[place], number(algorithm.share))
        local = copied(model)
        for step in range(algorithm.local_steps):
            batch = client.batch()
            mixed = [share * one + (1 - share) * two for one, two in zip(own, local, strict=True)]
            grads = gradient(client, mixed, batch)
            if not step:
                gaps = zip(own, local, grads, strict=True)
                share -= rate * sum(float(((one - two) * grad).sum()) for one, two, grad in gaps)
                share = min(max(share, 0.0), 1.0)
            own = [each - rate * share * grad for each, grad in zip(own, grads, strict=True)]
            grads = gradient(client, local, batch)
            local = [each - rate * grad for each, grad in zip(local, grads, strict=True)]
        kept[place] = (own, share)
        uploads.append(local)
    return uploads


def fedala(algorithm: FedALA, clients: list[Client], model: Parameters, kept: list[Any]) -> list[Parameters]:
    """A round of FedALA: a client trains the mixing weights of the head before its steps."""
    head, rate, uploads = in_part(clients[0].module, "head"), number(algorithm.local_rate), []
    for place, client in enumerate(clients):
        fresh = (kept[place], [torch.ones_like(part) for part in model])
        old, weights = kept[place] if isinstance(kept[place], tuple) else fresh

        def between(weights: Parameters, old: Parameters = old) -> Parameters:
            parts = zip(old, model, weights, strict=True)
            return chosen(head, [one + (two - one) * weight for one, two, weight in parts], model)

        for _ in range(algorithm.weight_steps):
            grads = gradient(client, between(weights), client.batch())
            parts = zip(weights, grads, model, old, strict=True)
            step = number(algorithm.weight_rate)
            weights = [(weight - step * grad * (two - one)).clamp(0, 1) for weight, grad, two, one in parts]
        trained = descend(client, between(weights), draws(client, algorithm.local_steps), rate)
        kept[place] = (trained, weights)
        uploads.append(trained)
    return uploads


def feddbe(algorithm: FedDBE, clients: list[Client], model: Parameters, kept: list[Any]) -> list[Parameters]:
    """A round of FedDBE; `kept` ends with the consensus, which is known after the first round."""
    rate, share, uploads, measured = number(algorithm.local_rate), number(algorithm.mean_share), [], []
    consensus = kept[len(clients)] if len(kept) > len(clients) else None
    for place, client in enumerate(clients):
        head = [part for part in client.module.modules() if isinstance(part, nn.Linear)][-1]
        zero = torch.zeros(head.in_features, dtype=head.weight.dtype, device=client.device)
        shift, average = kept[place] if isinstance(kept[place], tuple) else (zero, zero)
        client.receive(model)
        for inputs, labels in draws(client, algorithm.local_steps):
            shift = shift.detach().requires_grad_()
            seen: list[Tensor] = []

            def add_shift(_: nn.Module, args: Any, shift: Tensor = shift, seen: Any = seen) -> Any:
                seen.append(args[0])
                return args[0] + shift

            hook = head.register_forward_pre_hook(add_shift)
            client.optimizer.zero_grad()
            loss = cross_entropy(client.module(inputs), labels)
            hook.remove()
            average = (1 - share) * average.detach() + share * seen[0].mean(0)
            if consensus is not None:
                loss = loss + number(algorithm.mean_pull) * ((average - consensus) ** 2).mean() / 2
            loss.backward()  # type: ignore[no-untyped-call]
            client.optimizer.step()
            assert shift.grad is not None
            shift = shift.detach() - rate * shift.grad
        kept[place] = (shift.detach(), average.detach())
        measured.append([average.detach()])
        uploads.append(copied(client.parameters))
    if consensus is None:
        kept += mean(measured, [float(client.size) for client in clients])
    return uploads


def feddyn(
    algorithm: FedDyn, clients: list[Client], model: Parameters, kept: list[Parameters]
) -> list[Parameters]:
    """The cloud's next model, alone; `kept` are the clients' last gradients, and the cloud's at the end."""
    pull, rate, models = number(algorithm.proximity), number(algorithm.local_rate), []
    for place, client in enumerate(clients):
        linear = [-part for part in kept[place]]
        batches = draws(client, algorithm.local_steps)
        models.append(descend(client, model, batches, rate, center=model, pull=pull, linear=linear))
        moved = zip(kept[place], models[-1], model, strict=True)
        kept[place] = [old - pull * (now - before) for old, now, before in moved]
    average = mean(models, [1.0] * len(models))
    parts = zip(kept[-1], average, model, strict=True)
    kept[-1] = [old - pull * (now - before) for old, now, before in parts]
    return [[part - old / pull for part, old in zip(average, kept[-1], strict=True)]]


def scaffold(
    algorithm: SCAFFOLD, clients: list[Client], model: Parameters, kept: list[Parameters]
) -> list[Parameters]:
    """A round of SCAFFOLD; `kept` are the clients' control variates, and the cloud's at the end."""
    rate, steps, models, cloud = number(algorithm.local_rate), algorithm.local_steps, [], kept[-1]
    for place, client in enumerate(clients):
        linear = [one - two for one, two in zip(cloud, kept[place], strict=True)]
        models.append(descend(client, model, draws(client, steps), rate, linear=linear))
        parts = zip(kept[place], cloud, model, models[-1], strict=True)
        kept[place] = [own - all_ + (old - new) / (rate * steps) for own, all_, old, new in parts]
    kept[-1] = mean(kept[:-1], [1.0] * len(clients))  # c = mean c_i, where all answer
    average = mean(models, [1.0] * len(models))
    share = number(algorithm.server_rate)
    return [[old + share * (new - old) for old, new in zip(model, average, strict=True)]]


def mtgc(
    algorithm: MTGC, edges: list[list[Client]], model: Parameters, kept: list[Parameters]
) -> list[Parameters]:
    """A round of MTGC; `kept` are the corrections y_j of the edges."""
    rate, steps, models = number(algorithm.local_rate), algorithm.local_steps, []
    for place, clients in enumerate(edges):
        here, own = model, [[torch.zeros_like(part) for part in model] for _ in clients]
        for _ in range(algorithm.edge_rounds):
            sent = []
            for client, control in zip(clients, own, strict=True):
                linear = [one + two for one, two in zip(control, kept[place], strict=True)]
                sent.append(descend(client, here, draws(client, steps), rate, linear=linear))
            here = mean(sent, [1.0] * len(sent))
            own = [
                _corrected(control, each, here, rate * steps) for control, each in zip(own, sent, strict=True)
            ]
        models.append(here)
    average = mean(models, [1.0] * len(models))
    time = rate * steps * algorithm.edge_rounds
    kept[:] = [_corrected(control, each, average, time) for control, each in zip(kept, models, strict=True)]
    return [average]


def descend(
    client: Client,
    start: Parameters,
    batches: Sequence[Pair],
    rate: float,
    *,
    center: Parameters | None = None,
    pull: float = 0.0,
    linear: Parameters | None = None,
    moving: Sequence[bool] | None = None,
) -> Parameters:
    """SGD from a model, with a pull to a center and a linear term; some parameters may be fixed."""
    client.receive(start)
    for batch in batches:
        client.differentiate(batch)
        for place, own in enumerate(client.parameters):
            if moving is not None and not moving[place]:
                continue
            assert own.grad is not None
            grad = own.grad.data
            if center is not None:
                grad = grad + pull * (own.data - center[place].data)
            if linear is not None:
                grad = grad + linear[place]
            own.data.add_(grad, alpha=-rate)
    return copied(client.parameters)


def gradient(client: Client, model: Parameters, batch: Pair) -> Parameters:
    """The gradient of the loss at a model."""
    client.receive(model)
    client.differentiate(batch)
    return [own.grad.data.clone() for own in client.parameters if own.grad is not None]


def draws(client: Client, count: int) -> list[Pair]:
    """This many mini-batches of a client, the next ones that it draws."""
    return [client.batch() for _ in range(count)]


def in_part(module: nn.Module, name: str) -> list[bool]:
    """Which parameters are of the head, the body or layers that normalize."""
    names = [each for each, _ in module.named_parameters()]
    owners = [each.rpartition(".")[0] for each in names]
    if name == "norm":
        return [isinstance(module.get_submodule(owner), NORMS) for owner in owners]
    return [(owner == owners[-1]) == (name == "head") for owner in owners]


def chosen(inside: Sequence[bool], one: Parameters, other: Parameters) -> Parameters:
    """The parameters of one model in a part, and of another elsewhere."""
    return [first if here else second for here, first, second in zip(inside, one, other, strict=True)]


def _corrected(control: Parameters, model: Parameters, average: Parameters, time: float) -> Parameters:
    """The control variate after a step, from the drift of a model from the mean."""
    return [old + (now - all_) / time for old, now, all_ in zip(control, model, average, strict=True)]


# Set by methods: what clients send; the cloud averages it, weighted by rows.
UPLOADS: dict[type[Algorithm], Callable[..., list[Parameters]]] = {
    Ditto: ditto,
    FedPer: partly_personal,
    FedRep: partly_personal,
    LGFedAvg: partly_personal,
    FedBN: partly_personal,
    FedBABU: fedbabu,
    APFL: apfl,
    FedALA: fedala,
    FedDBE: feddbe,
}
# By methods: the next model of the cloud.
CONTROLLED: dict[type[Algorithm], Callable[..., list[Parameters]]] = {
    FedDyn: feddyn,
    SCAFFOLD: scaffold,
    MTGC: mtgc,
}
