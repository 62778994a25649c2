"""The cost of traffic on a real link: seconds and joules of a round, without computing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.core.options import Bounds, Help, check_options
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import Entry

_LINKS: Final = tuple(direction for direction in Direction if direction.is_up)  # as the config names them


class Channel(NamedTuple):
    """A link between a member and its server, with all its numbers; `ChannelOptions` says what they are."""

    bandwidth: float
    uplink: float
    latency: float
    loss: float
    transmit_power: float | None = None  # unknown
    receive_power: float | None = None

    def receiving(self, received: Entry) -> Tensor:
        """Seconds each member takes to receive its bits, with retransmissions."""
        return 8 * received.bytes.double() / (self.bandwidth * (1 - self.loss))

    def sending(self, sent: Entry) -> Tensor:
        """Seconds each member takes to send its bits, with retransmissions."""
        return 8 * sent.bytes.double() / (self.uplink * (1 - self.loss))


# docs/links.md says where each number comes from.
PRESETS: Final = {
    "lan": Channel(949e6, 949e6, 5e-4, 0.0, 1.0, 1.0),
    "wifi": Channel(50e6, 50e6, 0.01, 0.0, 0.66, 0.21),
    "wan": Channel(100e6, 20e6, 0.0175, 0.004, 10.0, 10.0),
    "lte-m": Channel(300e3, 375e3, 0.1, 0.1, 0.62, 0.17),
    "nb-iot": Channel(26e3, 62e3, 1.6, 0.1, 0.79, 0.17),
}


@dataclass(frozen=True)
class ChannelOptions:
    """The section of one link, such as [links.client_edge]."""

    preset: Annotated[
        Literal["none", "lan", "wifi", "wan", "lte-m", "nb-iot"],
        Help("a preset link; the keys below override its values"),
    ] = "none"
    bandwidth: Annotated[
        Annotated[float, Bounds(0, exclusive=True)] | None, Help("bit/s down; unset: as in the preset")
    ] = None
    uplink: Annotated[
        Annotated[float, Bounds(0, exclusive=True)] | None,
        Help("bit/s up; unset: as bandwidth if set, otherwise as in the preset"),
    ] = None
    latency: Annotated[
        Annotated[float, Bounds(0)] | None, Help("seconds, one way, per message; unset: as in the preset")
    ] = None
    loss: Annotated[
        Annotated[float, Bounds(0, 0.99)] | None, Help("share of packets that are lost and sent again")
    ] = None
    transmit_power: Annotated[
        Annotated[float, Bounds(0)] | None, Help("watts of the lower member while it sends")
    ] = None
    receive_power: Annotated[
        Annotated[float, Bounds(0)] | None, Help("watts of the lower member while it receives")
    ] = None

    def resolve(self) -> Channel | None:
        """The channel: given values, else those of the preset; None if neither has a bandwidth."""
        given = {name: value for name in Channel._fields if (value := getattr(self, name)) is not None}
        if self.bandwidth is not None:
            given.setdefault("uplink", self.bandwidth)
        if self.preset != "none":
            return PRESETS[self.preset]._replace(**given)
        return None if self.bandwidth is None else Channel(**{"latency": 0.0, "loss": 0.0, **given})


@dataclass(frozen=True)
class LinksOptions:
    """The [links] section: the speed of each link. It changes the reported cost; models only with `late`."""

    client_edge: Annotated[ChannelOptions, Help("three tiers: between a client and its edge")] = field(
        default_factory=ChannelOptions
    )
    edge_cloud: Annotated[ChannelOptions, Help("three tiers: between an edge and the cloud")] = field(
        default_factory=ChannelOptions
    )
    client_cloud: Annotated[ChannelOptions, Help("two tiers: between a client and the cloud")] = field(
        default_factory=ChannelOptions
    )

    def __post_init__(self) -> None:
        check_options(self, "links.")
        for name in _LINKS:
            options = getattr(self, name)
            check_options(options, f"links.{name}.")
            if options.resolve() is None and options != ChannelOptions():
                raise InputError(
                    f"links.{name} has no bandwidth: set links.{name}.bandwidth in bit/s, "
                    f"or links.{name}.preset to a real link."
                )


def seconds(
    entries: Mapping[Direction, Entry], links: LinksOptions, runs: int, exchanges: int = 1
) -> dict[str, Tensor]:
    """How long a round's messages take, (runs,) or () each, as columns of the history.

    Members work in parallel, and a server waits for its slowest member. `link_seconds_` of a link is the time
    of its slowest member. `link_seconds` is that of the slowest path through all links: of an edge and its
    slowest client. Entries are sums over a cloud round, so if different clients are the slowest in different
    edge rounds, both are lower bounds.

    Args:
        entries: by direction.
        links: those without a bandwidth are left out.
        runs: how many leading axes are runs.
        exchanges: messages there and back that clients need for one model.
    """
    each = dict(_seconds(entries, links, exchanges))
    found = {f"link_seconds_{name}": spent.flatten(runs).amax(-1) for name, spent in each.items()}
    if each:
        found["link_seconds"] = path_seconds(entries, links, exchanges).amax(-1)
    return found


def path_seconds(entries: Mapping[Direction, Entry], links: LinksOptions, exchanges: int = 1) -> Tensor:
    """Seconds (..., members of the cloud) on each path through all links that have a bandwidth."""
    paths = [
        spent.amax(-1) if name is Direction.CLIENT_EDGE else spent
        for name, spent in _seconds(entries, links, exchanges)
    ]
    return torch.stack(paths).sum(0)


def clock_of(links: LinksOptions, exchanges: int = 1) -> Callable[[Mapping[Direction, Entry]], Tensor]:
    """The clock of a simulation whose cloud does not wait for all edges: `path_seconds` of a round.

    Raises:
        InputError: no link of a three-tier method has a bandwidth.
    """
    if links.client_edge.resolve() is None and links.edge_cloud.resolve() is None:
        raise InputError(
            "late.quorum needs a clock, which is the link model: set links.edge_cloud.preset or "
            "links.client_edge.preset."
        )
    return lambda entries: path_seconds(entries, links, exchanges)


def _seconds(
    entries: Mapping[Direction, Entry], links: LinksOptions, exchanges: int
) -> Iterator[tuple[Direction, Tensor]]:
    """The seconds of each member, by link."""
    for name, channel, received, sent in _counted(entries, links):
        messages = received.messages.double() + sent.messages.double()
        messages = messages if name is Direction.EDGE_CLOUD else exchanges * messages
        yield name, messages * channel.latency + channel.receiving(received) + channel.sending(sent)


def joules(entries: Mapping[Direction, Entry], links: LinksOptions, runs: int) -> dict[str, Tensor]:
    """The energy that the members' radios take for a round's messages, summed over members, as columns.

    Only sending and receiving are counted, not waiting. A power that is not known counts as 0; a link with no
    known power is left out.

    Args:
        entries: by direction.
        links: those without a bandwidth are left out.
        runs: how many leading axes are runs.
    """
    found: dict[str, Tensor] = {}
    for name, channel, received, sent in _counted(entries, links):
        if channel.transmit_power is not None or channel.receive_power is not None:
            receiving = channel.receiving(received) * (channel.receive_power or 0.0)
            sending = channel.sending(sent) * (channel.transmit_power or 0.0)
            found[f"link_joules_{name}"] = (receiving + sending).flatten(runs).sum(-1)
    if found:
        found["link_joules"] = torch.stack(list(found.values())).sum(0)
    return found


def _counted(
    entries: Mapping[Direction, Entry], links: LinksOptions
) -> Iterator[tuple[Direction, Channel, Entry, Entry]]:
    """The links that have a channel and were used, with the entries of their directions down and up."""
    for up in _LINKS:
        channel = getattr(links, up).resolve()
        if channel is not None and up in entries:
            yield up, channel, entries[up.down], entries[up]
