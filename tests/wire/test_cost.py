"""Links that cost: bytes become seconds and joules."""

import re
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sfedhp
from sfedhp import InputError
from sfedhp.algorithms import FedAvg, HierFAVG, SFedHP
from sfedhp.config import CheckpointOptions
from sfedhp.runs.sweep import sweep
from sfedhp.wire.cost import PRESETS, Channel, ChannelOptions, LinksOptions, joules, seconds
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import Entry
from sfedhp.wire.link import WireOptions
from tests.support import short_runs
from tests.support.paths import ROOT

SLOW = ChannelOptions(bandwidth=8000, uplink=4000, latency=0.5, transmit_power=2, receive_power=1)
SMALL = replace(
    short_runs.SMALL,
    rounds=2,
    dtype="float32",
    algorithm=SFedHP(edge_rounds=3),
    checkpoint=CheckpointOptions(every=2),
)
DENSE = 7850 * 4  # bytes of an `mlr`


def entry(lengths, messages=1):
    lengths = torch.tensor(lengths)
    return Entry(lengths, torch.full_like(lengths, messages) * (lengths > 0), torch.zeros_like(lengths))


def numbers(columns):
    return {name: column.tolist() for name, column in columns.items()}


def test_two_tiers_by_hand():
    booked = {Direction.CLOUD_CLIENT: entry([1000, 2000, 0]), Direction.CLIENT_CLOUD: entry([500, 4000, 0])}
    links = LinksOptions(client_cloud=SLOW)
    # 0.5 + 8000/8000 + 0.5 + 4000/4000 = 3, 0.5 + 16000/8000 + 0.5 + 32000/4000 = 11; the third was not there
    assert numbers(seconds(booked, links, 0)) == {"link_seconds_client_cloud": 11.0, "link_seconds": 11.0}
    # 1 W · 1 s + 2 W · 1 s, 1 W · 2 s + 2 W · 8 s: nothing for the latency
    assert numbers(joules(booked, links, 0)) == {"link_joules_client_cloud": 21.0, "link_joules": 21.0}


THREE = {
    Direction.CLOUD_EDGE: entry([100, 200]),
    Direction.EDGE_CLIENT: entry([[4000, 1000], [1000, 1000]], messages=2),
    Direction.CLIENT_EDGE: entry([[1000, 1000], [1000, 0]], messages=2),
    Direction.EDGE_CLOUD: entry([100, 300]),
}


def test_three_tiers_by_hand():
    links = LinksOptions(client_edge=SLOW, edge_cloud=ChannelOptions(bandwidth=800, receive_power=3))
    assert numbers(seconds(THREE, links, 0)) == {
        # 4 messages of 0.5 s: 2 + 32000/8000 + 8000/4000 = 8 and 2 + 1 + 2; edge 1: 2 + 1 + 2 and 1 + 1
        "link_seconds_client_edge": 8.0,
        # edge 0: (800 + 800)/800 = 2, edge 1: (1600 + 2400)/800 = 5
        "link_seconds_edge_cloud": 5.0,
        # the slowest client is not under the slowest edge: 8 + 2 and 5 + 5
        "link_seconds": 10.0,
    }
    assert numbers(joules(THREE, links, 0)) == {
        "link_joules_client_edge": 1 * (4 + 1 + 1 + 1) + 2 * (2 + 2 + 2),
        # a power that is not known is not counted: only receiving, 1 s and 2 s
        "link_joules_edge_cloud": 9.0,
        "link_joules": 28.0,
    }


def test_only_links_with_a_channel_are_counted():
    assert seconds(THREE, LinksOptions(), 0) == joules(THREE, LinksOptions(), 0) == {}
    only = LinksOptions(edge_cloud=ChannelOptions(bandwidth=800), client_cloud=SLOW)
    assert numbers(seconds(THREE, only, 0)) == {"link_seconds_edge_cloud": 5.0, "link_seconds": 5.0}
    assert joules(THREE, only, 0) == {}, "no power is known"


def test_half_lost_is_twice_the_bits_and_no_more_latency():
    sure = LinksOptions(client_edge=SLOW)
    lossy = LinksOptions(client_edge=replace(SLOW, loss=0.5))
    once, twice = seconds(THREE, sure, 0)["link_seconds"], seconds(THREE, lossy, 0)["link_seconds"]
    assert twice - 2.0 == 2 * (once - 2.0)
    assert joules(THREE, lossy, 0)["link_joules"] == 2 * joules(THREE, sure, 0)["link_joules"]


sizes = st.integers(0, 10**7)
rates = st.floats(1e3, 1e9)


@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=4), rates, st.floats(1, 1e3), st.floats(0, 0.9))
def test_a_faster_or_safer_link_is_never_slower(pairs, bandwidth, factor, loss):
    down, up = zip(*pairs, strict=True)
    booked = {Direction.CLOUD_CLIENT: entry(list(down)), Direction.CLIENT_CLOUD: entry(list(up))}

    def cost(count, **options):
        channel = ChannelOptions(latency=0.1, transmit_power=2, receive_power=1, **options)
        return list(count(booked, LinksOptions(client_cloud=channel), 0).values())[-1]

    for count in (seconds, joules):
        slow = cost(count, bandwidth=bandwidth, loss=loss)
        assert cost(count, bandwidth=bandwidth * factor, loss=loss) <= slow
        assert cost(count, bandwidth=bandwidth, uplink=bandwidth * factor, loss=loss) <= slow
        assert cost(count, bandwidth=bandwidth, loss=loss / factor) <= slow


def test_each_run_of_a_stack_has_its_own_costs():
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return Entry(*torch.randint(1, 10**6, (3, 2, *shape), generator=generator))

    booked = {Direction.CLOUD_EDGE: drawn(4), Direction.EDGE_CLIENT: drawn(4, 5)}
    booked |= {Direction.CLIENT_EDGE: drawn(4, 5), Direction.EDGE_CLOUD: drawn(4)}
    links = LinksOptions(ChannelOptions("lte-m"), ChannelOptions("wan"))
    for count in (seconds, joules):
        stacked = numbers(count(booked, links, 1))
        for run in range(2):
            alone = {name: Entry(*(part[run] for part in each)) for name, each in booked.items()}
            for name, value in numbers(count(alone, links, 0)).items():
                assert stacked[name][run] == pytest.approx(value, rel=1e-14)
        assert all(first != second for first, second in stacked.values())


@pytest.mark.parametrize(
    ("options", "channel"),
    [
        (ChannelOptions(), None),
        (ChannelOptions(bandwidth=5.0), Channel(5.0, 5.0, 0.0, 0.0)),
        (ChannelOptions(bandwidth=5.0, uplink=2.0, latency=1.0), Channel(5.0, 2.0, 1.0, 0.0)),
        (ChannelOptions("wan"), PRESETS["wan"]),
        (ChannelOptions("wan", bandwidth=5.0), PRESETS["wan"]._replace(bandwidth=5.0, uplink=5.0)),
        (ChannelOptions("wan", uplink=5.0, loss=0.0), PRESETS["wan"]._replace(uplink=5.0, loss=0.0)),
        (ChannelOptions("lan", transmit_power=0.0), PRESETS["lan"]._replace(transmit_power=0.0)),
    ],
)
def test_what_is_given_is_stronger_than_the_preset(options, channel):
    assert options.resolve() == channel


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"bandwidth": 0.0}, "links.edge_cloud.bandwidth = 0.0 is out of range: it must be above 0."),
        ({"bandwidth": 1.0, "loss": 1.0}, "links.edge_cloud.loss = 1.0 is out of range"),
        (
            {"preset": "lte"},
            "links.edge_cloud.preset = 'lte' is not known: use none, lan, wifi, wan, lte-m or",
        ),
        ({"latency": 0.1}, "links.edge_cloud has no bandwidth: set links.edge_cloud.bandwidth in bit/s, or"),
        ({"uplink": 1e6}, "links.edge_cloud has no bandwidth"),
    ],
)
def test_channels_that_make_no_sense_are_refused(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        LinksOptions(edge_cloud=ChannelOptions(**wrong))


def test_every_preset_can_be_chosen_and_is_documented_with_its_numbers():
    assert get_args(get_type_hints(ChannelOptions)["preset"]) == ("none", *PRESETS)
    page = (ROOT / "docs" / "links.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|((?: [\d.e+-]+ \|)+)$", page, re.MULTILINE)
    documented = {name: tuple(map(float, re.findall(r"[\d.e+-]+", cells))) for name, cells in rows}
    assert documented == PRESETS


def test_a_run_records_what_its_links_cost():
    links = LinksOptions(client_edge=ChannelOptions("lte-m"), edge_cloud=ChannelOptions(bandwidth=1e6))
    run = sfedhp.run(replace(SMALL, links=links))
    bits = 8 * DENSE
    clients = 3 * (0.1 + bits / 270e3 + 0.1 + bits / 337.5e3)
    for row in run.history:
        assert row["link_seconds_client_edge"] == pytest.approx(clients)
        assert row["link_seconds_edge_cloud"] == pytest.approx(2 * bits / 1e6)
        assert row["link_seconds"] == pytest.approx(clients + 2 * bits / 1e6)
        assert row["link_joules"] == pytest.approx(6 * 3 * bits * (0.17 / 270e3 + 0.62 / 337.5e3))
        assert "link_joules_edge_cloud" not in row
    assert run.summary["link_seconds"] == pytest.approx(2 * (clients + 2 * bits / 1e6))
    assert run.summary["link_joules"] == pytest.approx(2 * run.history[0]["link_joules"])


def test_links_change_nothing_else():
    plain = sfedhp.run(SMALL)
    costly = sfedhp.run(replace(SMALL, links=LinksOptions(client_edge=ChannelOptions("nb-iot"))))
    for first, second in zip(plain.history, costly.history, strict=True):
        more = {name: value for name, value in second.items() if name.startswith("link_")}
        assert more
        assert {**first, **more, "seconds": 0} == {**second, "seconds": 0}
    assert not [name for name in plain.summary if name.startswith("link_")]


def test_two_tier_methods_use_the_link_from_client_to_cloud():
    links = LinksOptions(*3 * [ChannelOptions(bandwidth=1e6)])
    run = sfedhp.run(replace(SMALL, algorithm=FedAvg(local_steps=1), sampled_clients=2, links=links))
    costs = {name: value for name, value in run.history[0].items() if name.startswith("link_")}
    each = pytest.approx(2 * 8 * DENSE / 1e6)
    assert costs == {"link_seconds_client_cloud": each, "link_seconds": each}


def test_a_stack_records_the_costs_of_each_run():
    links = LinksOptions(ChannelOptions("wifi"), ChannelOptions("wan"))
    method = HierFAVG(local_steps=1, edge_rounds=2)
    wire = WireOptions(threshold=0.02, count="size")
    first = replace(SMALL, algorithm=method, links=links, wire=wire)
    experiments = [first, replace(first, seed=1)]
    stacked = [outcome.run.history[-1] for outcome in sweep(experiments)]
    alone = [sfedhp.run(experiment).history[-1] for experiment in experiments]
    for name in ("link_seconds", "link_joules", "link_seconds_client_edge"):
        assert [row[name] for row in stacked] == pytest.approx([row[name] for row in alone])
        assert stacked[0][name] != stacked[1][name]
