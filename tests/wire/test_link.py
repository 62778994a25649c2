"""Links: what arrives, and how many bytes it took."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from sfedhp.algorithms import FedAvg, HeurFedAMP, SFedHP
from sfedhp.checks.problem import finish, leaves
from sfedhp.core.factored import Factored, Layer
from sfedhp.engine.client_stack import ClientStack
from sfedhp.wire import encode
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import Ledger, columns
from sfedhp.wire.link import Link, WireOptions, link_of


def sparse(members=3, size=40, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    messages = torch.randn(members, size, generator=generator, dtype=dtype)
    return torch.where(torch.rand(members, size, generator=generator) < 0.6, 0.0, messages)


def built(messages: Tensor | Factored) -> Tensor:
    """Messages that must not be factored."""
    assert isinstance(messages, Tensor)
    return messages


@pytest.mark.parametrize("count", ["size", "encode"])
@pytest.mark.parametrize("values", ["exact", "float16", "bfloat16", "int8"])
def test_lengths_are_those_of_the_encoder(values, count):
    messages = sparse()
    arrived, lengths, _ = Link(WireOptions(values=values, count=count)).carry(messages, 36)
    short = None if values == "exact" else values
    expected = [len(encode(row[:36], values=short)) + len(encode(row[36:])) for row in messages]
    assert lengths.tolist() == expected
    assert torch.equal(built(arrived)[:, 36:], messages[:, 36:])
    assert torch.equal(built(arrived), messages) == (values == "exact")


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8"])
def test_counting_does_not_change_what_arrives(values):
    messages = sparse()
    results = [
        built(Link(WireOptions(values=values, count=count)).carry(messages, 40).messages)
        for count in ("off", "size", "encode")
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], messages)


@pytest.mark.parametrize("values", ["float32", "float16", "bfloat16"])
def test_float64_is_rounded_alike_with_and_without_the_codec(values):
    """Values beside the middle between two float16: rounded to float32 first, they would lie in it."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-30, 16, (4000,), generator=generator)
    halves = torch.randn(4000, generator=generator).half().double() * 2.0**exponents
    middles = (halves.half().double() + halves.half().double().nextafter(torch.tensor(torch.inf))) / 2
    ulp = halves.abs() * 2.0**-11
    near = [halves + ulp, halves + ulp + ulp * 2.0**-30, halves + ulp - ulp * 2.0**-30, middles, halves]
    whole = torch.cat(near)
    whole = torch.cat([whole, whole * 2.0**-20, torch.tensor([0.0, -0.0, 5e-324, -(2.0**-25), 65519.999])])
    messages = whole[whole.abs() < 65520].expand(1, -1)
    size = messages.shape[-1]
    plain, coded = (
        built(Link(WireOptions(values=values, count=count)).carry(messages, size).messages)
        for count in ("off", "encode")
    )
    assert torch.equal(plain, coded)


def test_dense_sizes_without_counting():
    messages = sparse(dtype=torch.float64)
    sizes: dict[Literal["exact", "float32", "float16", "bfloat16"], int]
    sizes = {"exact": 8, "float32": 4, "float16": 2, "bfloat16": 2}
    for values, length in sizes.items():
        _, lengths, _ = Link(WireOptions(values=values)).carry(messages, 36)
        assert lengths.tolist() == [36 * length + 4 * 8] * 3
    _, lengths, _ = Link(WireOptions(values="int8")).carry(messages, 36)
    assert lengths.tolist() == [36 + 4 + 4 * 8] * 3


def test_float32_of_float32_is_exact():
    messages = sparse()
    for count in ("off", "size", "encode"):
        arrived, *_ = Link(WireOptions(values="float32", count=count)).carry(messages, 40)
        assert torch.equal(built(arrived), messages)


def test_one_message_to_all_is_coded_once_and_counted_for_each():
    message = sparse(1)[0].expand(5, 40)
    arrived, lengths, _ = Link(WireOptions(count="encode")).carry(message, 40)
    assert built(arrived).stride(-2) == 0
    assert lengths.tolist() == [len(encode(message[0]))] * 5


def test_a_factored_upload_is_built_only_where_it_must_be():
    layers = (Layer(torch.randn(3, 2, 4), torch.randn(3, 2, 5)),)
    factored = Factored(torch.zeros(1, 25), layers)
    arrived, lengths, _ = Link().carry(factored, 25)
    assert arrived is factored
    assert lengths.tolist() == [100] * 3
    arrived, *_ = Link(WireOptions(threshold=0.1)).carry(factored, 25)
    assert built(arrived).shape == (3, 25)


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), FedAvg(local_steps=2), HeurFedAMP(local_steps=2)])
def test_a_run_through_the_lossless_wire_gives_the_same_bits(case, method):
    case = replace(case, task=replace(case.task, force_autograd=True))
    links = {direction: Link(WireOptions(count="encode")) for direction in Direction}
    through, never = case.simulator(method, links=links), case.simulator(method)
    finish(through)
    finish(never)
    for first, second in zip(leaves(through.state.served), leaves(never.state.served), strict=True):
        assert torch.equal(first, second)
    assert through.ledger.close().keys() == never.ledger.close().keys()


def test_a_difference_is_coded_against_what_both_sides_hold():
    base = sparse(3)
    messages = base.clone()
    messages[:, ::9] += 0.25
    plain, shorter = (
        Link(WireOptions(count="encode", difference=difference)).carry(messages, 40, base)
        for difference in (False, True)
    )
    assert torch.equal(built(shorter.messages), messages)
    assert shorter.lengths.tolist() == [
        len(encode(row, held)) for row, held in zip(messages, base, strict=True)
    ]
    assert (shorter.lengths < plain.lengths).all()


def test_one_message_against_different_bases_is_coded_for_each():
    message = sparse(1)[0].expand(3, 40)
    base = sparse(3)
    carried = Link(WireOptions(count="size", difference=True)).carry(message, 40, base)
    assert carried.lengths.tolist() == [len(encode(message[0], held)) for held in base]
    alike = Link(WireOptions(count="size", difference=True)).carry(message, 40, base[:1].expand(3, 40))
    assert built(alike.messages).stride(-2) == 0


@pytest.mark.parametrize("sampled", [0, 4])
def test_differences_down_are_against_what_a_member_last_received(case, sampled):
    links = {Direction.CLOUD_CLIENT: Link(WireOptions(count="encode", difference=True))}
    simulator = case.simulator(FedAvg(local_steps=1), links=links, sampled=sampled)
    held = None
    for turn, _ in enumerate(simulator.run(3)):
        drawn = torch.ones(12, dtype=torch.bool) if not sampled else simulator.draw(turn)
        entry = simulator.ledger.close()[Direction.CLOUD_CLIENT]
        assert (entry.bytes[drawn] > 0).all()
        assert (entry.bytes[~drawn] == 0).all()
        sent = simulator.state.sent[Direction.CLOUD_CLIENT]
        before = torch.zeros_like(sent) if held is None else held
        assert torch.equal(sent[~drawn], before[~drawn])
        assert (sent[drawn] != before[drawn]).any(-1).all()
        held = sent


def test_columns_hold_sums_the_papers_formula_and_densities():
    ledger = Ledger()
    lengths, nonzeros = torch.tensor([[10, 20], [30, 40]]), torch.tensor([[1, 2], [3, 4]])
    ledger.add_messages(Direction.CLIENT_EDGE, lengths, nonzeros, torch.tensor([[1.0, 0.0], [2.0, 3.0]]))
    ledger.add_messages(Direction.CLIENT_EDGE, lengths, nonzeros, None)
    sums = columns(ledger.close(), 8, 0)
    assert sums["bytes_client_edge"].item() == 80 + 100
    assert sums["density_client_edge"].item() == pytest.approx((8 + 10) / (7 * 8))
    # 64 bits for each of 18 non-zeros, 1 for each of 38 zeros, 8 for each of 7 position maps
    assert sums["formula_client_edge"].item() == (64 * 18 + 38 + 7 * 8) // 8
    ledger.add_messages(Direction.CLIENT_EDGE, lengths, nonzeros, None)
    assert columns(ledger.close(), 8, 1)["bytes_client_edge"].tolist() == [30, 70]


def test_only_the_cloud_links_are_coded_where_asked():
    options = WireOptions(threshold=0.1, values="int8", count="size", difference=True, tiers="cloud")
    assert link_of(options, Direction.EDGE_CLOUD).options == options
    assert link_of(options, Direction.CLIENT_EDGE).options == WireOptions(threshold=0.1, tiers="cloud")
    assert link_of(replace(options, tiers="all"), Direction.CLIENT_EDGE).options.count == "size"


def test_a_density_has_the_precision_of_float64():
    ledger = Ledger()
    lengths, nonzeros = torch.tensor([5]), torch.tensor([1])
    ledger.add_messages(Direction.CLOUD_EDGE, lengths, nonzeros, None)
    found = columns(ledger.close(), 3, 0)["density_cloud_edge"]
    assert found.item() == 1 / 3


def test_a_weight_at_the_threshold_is_sent():
    messages = torch.tensor([[0.25, -0.25, 0.2499, -0.2499, 0.3, 0.1]])
    arrived, _, nonzeros = Link(WireOptions(threshold=0.25)).carry(messages, 5)
    assert built(arrived).tolist() == torch.tensor([[0.25, -0.25, 0.0, 0.0, 0.3, 0.1]]).tolist()
    assert nonzeros.tolist() == [3]


@pytest.mark.parametrize("method", [SFedHP(edge_rounds=2), FedAvg(local_steps=2)])
def test_uploads_are_differences_to_what_was_received(case, method):
    """A client that changed nothing sends a difference of almost no bytes, and one to zeros many."""
    seen = []

    class Watched(Link):
        def carry(self, messages, size, base=None):
            seen.append((messages, base))
            return super().carry(messages, size, base)

    up, down = (
        (Direction.CLIENT_EDGE, Direction.EDGE_CLIENT)
        if method.tiers == 3
        else (Direction.CLIENT_CLOUD, Direction.CLOUD_CLIENT)
    )
    options = WireOptions(difference=True, count="size")
    simulator = case.simulator(method, links={up: Watched(options), down: Link(options)})
    received = []
    step = ClientStack.step

    def watch(self, message, *rest):
        received.append(message.clone())
        return step(self, message, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientStack, "step", watch)
        next(simulator.run(1))
    assert len(seen) == len(received) > 0
    for (_, base), message in zip(seen, received, strict=True):
        assert base is not None
        assert torch.equal(base, message)
