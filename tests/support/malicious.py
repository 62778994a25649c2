"""A member of a deployed federation that sends anything: FLARE loads this into its process."""

from __future__ import annotations

import itertools
import json
import os
import struct
import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.message import Message

from sfedhp.deploy.flare import component
from sfedhp.deploy.flare.allowlist import CHANNEL, TOPIC
from sfedhp.deploy.flare.cell_transport import CellTransport
from sfedhp.deploy.messaging.protocol import Envelope, Kind, decode_message, encode_message
from sfedhp.wire import decode, encode

HONEST_COMPONENT = "sfedhp.deploy.flare.component.RoleComponent"
COMPONENT = "tests.support.malicious.MaliciousComponent"
HONEST = "client-1-1"  # of the same edge
PAUSE = "SFEDHP_MALICIOUS_PAUSE"  # s before each reply


def model(envelope: Envelope, change: Any) -> Envelope:
    """The reply with another model."""
    return replace(envelope, parts=(raw_model(change(decode(envelope.parts[0]))), *envelope.parts[1:]))


def raw_model(values: torch.Tensor) -> bytes:
    """A model on the wire, also one with values that no honest member can encode."""
    finite = torch.nan_to_num(values, nan=1.0, posinf=1.0, neginf=1.0)
    if values.isfinite().all():
        return encode(finite)
    data = encode(torch.rand_like(finite))
    body = values.numpy().tobytes()
    return data[: len(data) - len(body)] + body


def deep(envelope: Envelope) -> bytes:
    """A heartbeat whose JSON is nested a hundred thousand times."""
    whole = encode_message(replace(envelope, kind=Kind.HELLO, metadata={}, parts=()))
    text = b'{"a":' * 100_000
    head = whole[:-8] + struct.pack("<I", len(text)) + text
    return head + struct.pack("<I", zlib.crc32(head))


ATTACKS: dict[str, Any] = {
    "NaN": lambda it: [model(it, lambda values: values * torch.nan)],
    "infinity": lambda it: [model(it, lambda values: values * torch.inf)],
    "3e38": lambda it: [model(it, lambda values: torch.full_like(values, 3e38))],
    "scaled": lambda it: [model(it, lambda values: 1000 * values)],
    "sign": lambda it: [model(it, lambda values: -values)],
    "size": lambda it: [model(it, lambda values: values[:5])],
    "no parts": lambda it: [replace(it, parts=())],
    "weight": lambda it: [replace(it, weight=1e30)],
    "negative weight": lambda it: [replace(it, weight=-5.0)],
    "seat": lambda it: [replace(it, member=it.member - 1)],
    "round": lambda it: [replace(it, clock=it.clock._replace(cloud_round=it.clock.cloud_round + 1))],
    "deep JSON": lambda it: [deep(it)],
    "huge hello": lambda it: [
        replace(it, kind=Kind.HELLO, parts=(), metadata={"members": {str(n): True for n in range(200_000)}})
    ],
    "flood": lambda it: [encode_message(replace(it, parts=()))] * 20_000,
    "trouble": lambda it: [
        replace(it, parts=(), weight=0.0, metadata={"trouble": "\x1b[2J[red]" + "x" * 10_000})
    ],
    "honest": lambda it: [it],
}


class MaliciousTransport(CellTransport):
    """Replies to each request with the next attack, and lies about losses and counts."""

    def __init__(self, cell: Any, *given: Any):
        super().__init__(cell, *given)
        self._next = itertools.cycle(ATTACKS)
        self._last: bytes | None = None
        self.tried: dict[str, int] = dict.fromkeys((*ATTACKS, "replay", "to another member", "scores"), 0)

    def send(self, to: str, data: bytes) -> None:
        """Send what an honest member would have sent, changed."""
        envelope = decode_message(data)
        if envelope.kind is Kind.REPLY:
            self._attack(to, envelope)
        elif envelope.kind is Kind.SCORES:
            self._tally("scores")
            lies = {part: {kind: [0, 9, 1e300] for kind in of} for part, of in _counts(envelope).items()}
            super().send(to, encode_message(replace(envelope, metadata={**envelope.metadata, **lies})))
        else:
            super().send(to, data)

    def _attack(self, to: str, envelope: Envelope) -> None:
        time.sleep(float(os.environ.get(PAUSE, "0")))
        name = next(self._next)
        self._tally(name)
        if self._last is not None:
            self._tally("replay")
            super().send(to, self._last)
        self._last = encode_message(envelope)
        self._to_another(self._last)
        for message in ATTACKS[name](envelope):
            super().send(to, message if isinstance(message, bytes) else encode_message(message))

    def _to_another(self, data: bytes) -> None:
        """A reply to another member, through the server that both have, and one under its name."""
        self._tally("to another member")
        core = self._cell.core_cell
        endpoint = core.agents["server"].endpoint
        for origin, destination in ((core.my_info.fqcn, HONEST), ("server", HONEST), (HONEST, "server")):
            headers = {
                MessageHeaderKey.MSG_TYPE: MessageType.REPLY,
                MessageHeaderKey.CHANNEL: CHANNEL,
                MessageHeaderKey.TOPIC: TOPIC,
                MessageHeaderKey.ORIGIN: origin,
                MessageHeaderKey.DESTINATION: destination,
                MessageHeaderKey.FROM_CELL: core.my_info.fqcn,
                MessageHeaderKey.TO_CELL: "server",
                MessageHeaderKey.REQ_ID: "0",
                MessageHeaderKey.ROUTE: [(origin, time.time())],
            }
            message = Message(headers, data)
            core._filter_outgoing_request(CHANNEL, TOPIC, message)  # the token that the server checks
            core.communicator.send(endpoint, 1, message)

    def _tally(self, name: str) -> None:
        self.tried[name] += 1
        Path("tried.new").write_text(json.dumps(self.tried))
        Path("tried.new").replace("tried.json")


def _counts(envelope: Envelope) -> dict[str, Any]:
    return {part: envelope.metadata[part] for part in ("test", "train") if part in envelope.metadata}


class MaliciousComponent(component.RoleComponent):
    """Starts the role of a client with the transport above."""

    def __init__(self, role: str, site: str):
        setattr(component, "CellTransport", MaliciousTransport)  # noqa: B010
        threading.current_thread().name = "malicious"
        super().__init__(role, site)


def corrupt(kit: Path) -> None:
    """Let a kit start the malicious component: its owner may change it."""
    _replace(kit, HONEST_COMPONENT, COMPONENT)


def repair(kit: Path) -> None:
    """Let a kit start the honest component again."""
    _replace(kit, COMPONENT, HONEST_COMPONENT)


def _replace(kit: Path, old: str, new: str) -> None:
    path = kit / "local" / "resources.json"
    path.write_text(path.read_text().replace(old, new))
