"""A federation in this process: every role a thread, the transport a dictionary of queues."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from sfedhp.config import from_dict
from sfedhp.deploy.federation_file import FederationFile, Limits
from sfedhp.deploy.messaging.protocol import Kind, decode_message
from sfedhp.deploy.roles.client import ClientRole
from sfedhp.deploy.roles.cloud import CloudRole
from sfedhp.deploy.roles.edge import EdgeRole
from sfedhp.deploy.roles.uplink import UplinkRole
from sfedhp.deploy.topology import Layout, lay_out
from tests.support.json_lines import json_lines
from tests.support.member_certificates import write_certificates
from tests.support.patient_clock import CLOCK

HEARTBEAT = 0.1  # s
QUICK = Limits(client_seconds=20.0, start_seconds=20.0, silent_seconds=3.0)


def experiment(name="sfedhp", **more):
    """A run that takes a second."""
    small = {"train_per_label": 6, "test_per_label": 4, "validation_per_label": 2}
    method = {"name": name, **({"edge_rounds": 2} if name in ("sfedhp", "hierfavg") else {})}
    if name == "pfedgp":
        method |= {"chains": 2, "gibbs_steps": 2}
    config = {
        "rounds": 3,
        "edges": 2,
        "clients_per_edge": 2,
        "seed": 1,
        "dtype": "float64",
        "data": small,
        "model": {"name": "mlr"},
        "algorithm": method | more.pop("algorithm", {}),
    }
    return from_dict(config | more)


class Box:
    """The transport of one role."""

    def __init__(self, exchange: Exchange, federation: str, name: str):
        self.exchange, self.federation, self.name = exchange, federation, name
        self.inbox: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()

    def send(self, to: str, data: bytes) -> None:
        self.exchange.deliver(self, to, data)


class Exchange:
    """Brings messages; `change` may alter, repeat or drop them, and bytes are counted by kind and way."""

    def __init__(self, change=lambda box, to, data: [data]):
        self.boxes: dict[tuple[str, str], Box] = {}
        self.change = change
        self.counted: Counter[tuple[str, str, str, str]] = Counter()
        self.messages: Counter[tuple[str, str]] = Counter()  # to whom, of which kind
        self._lock = threading.Lock()

    def box(self, federation: str, name: str) -> Box:
        box = self.boxes[federation, name] = Box(self, federation, name)
        return box

    def deliver(self, box: Box, to: str, data: bytes) -> None:
        if self.boxes.get((box.federation, box.name)) is not box:
            return  # it was cut off
        for message in self.change(box, to, data):
            target = self.boxes.get((box.federation, to))
            if target is None:
                continue
            with self._lock:
                kind = decode_message(data).kind
                self.counted[box.federation, box.name, to, kind.name] += len(message)
                self.messages[to, kind.name] += 1
            target.inbox.put((box.name, message))

    def bytes_of(self, *kinds: Kind, federation: str, to=None, sender=None) -> int:
        names = {kind.name for kind in kinds}
        return sum(
            size
            for (where, one, other, kind), size in self.counted.items()
            if where == federation and kind in names and to in (None, other) and sender in (None, one)
        )


class Federation:
    """All roles of a layout; each can be lost and started again."""

    def __init__(self, folder: Path, experiment, limits: Limits = QUICK, change=None, data=None, **file):
        self.folder = folder
        self.layout: Layout = lay_out(FederationFile(limits=limits, **file), experiment)
        self.data = data or {}  # the options of clients' own data, by name
        self.exchange = Exchange(change) if change else Exchange()
        self.threads: dict[str, threading.Thread] = {}
        self.roles: dict[str, Any] = {}
        self.prepared: dict[str, Any] = {}
        for site in self.layout.sites:
            self.layout.write(site, folder / site.name)
        if experiment.secure:
            write_certificates(self.layout, folder)

    @property
    def names(self):
        halves = [f"{site.name}/{half}" for site in self.layout.edges for half in ("bridge", "edge")]
        return ["cloud", *halves, *(site.name for site in self.layout.clients)]

    def prepare(self, *names):
        """Load what these roles need, so that `start` takes no time."""
        self.prepared |= {name: self._role(name) for name in names if name not in self.prepared}

    def start(self, *names):
        names = names or self.names
        self.prepare(*names)  # all before the first one waits for the others
        for name in names:
            role = self.roles[name] = self.prepared.pop(name)
            thread = self.threads[name] = threading.Thread(target=role.work, daemon=True, name=name)
            thread.start()

    def lose(self, name):
        """As if its machine were switched off: nothing reaches it, and nothing it says reaches anybody."""
        del self.exchange.boxes[self._place(name)]

    def finish(self, seconds=60.0, *without):
        threads = {name: thread for name, thread in self.threads.items() if name not in without}
        until = CLOCK() + seconds
        for name, thread in threads.items():
            while thread.is_alive():
                assert CLOCK() < until, f"{name} is still at work"
                thread.join(0.1)

    def models(self, name):
        from safetensors.torch import load_file

        kit, file = ("cloud", "global") if name == "global" else (name, name)
        return load_file(self.folder / kit / "run" / "models" / f"{file}.safetensors")

    def rows(self):
        from sfedhp.runs.records import read_rows

        return read_rows(self.folder / "cloud" / "run" / "history.jsonl", 10**6)

    def events(self, name, event):
        lines = json_lines(self.folder / name / "run" / "log.jsonl")
        return [line for line in lines if line["event"] == event]

    def _place(self, name):
        if name == "cloud":
            return ("cloud", "server")
        site, _, half = name.partition("/")
        if half:
            return ("cloud", site) if half == "bridge" else (site, "server")
        edge = f"edge-{site.split('-')[1]}" if self.layout.edges else "cloud"
        return (edge, site)

    def _role(self, name):
        site = next(site for site in self.layout.sites if site.name == name.partition("/")[0])
        kind = {"cloud": CloudRole, "client": ClientRole}.get(site.role)
        kind = kind or (UplinkRole if name.endswith("bridge") else EdgeRole)
        own = [self.data[name]] if name in self.data else []
        box = self.exchange.box(*self._place(name))
        role = kind(site, self.folder / site.name, box, *own, clock=CLOCK)
        if isinstance(role, ClientRole | UplinkRole):
            role._responder.heartbeat = HEARTBEAT
        return role


def finished(folder, what, *args, **options):
    """The federation of an experiment after its run, with the arguments of `Federation`."""
    federation = Federation(folder, what, *args, **options)
    federation.start()
    federation.finish()
    return federation


TOLERANCE = 1e-9


def close(first, second):
    first, second = first.double(), second.double()
    return (first - second).norm() <= TOLERANCE * second.norm()


def same_models(federation, run):
    """The final w and every θ_ij of a federation are the simulator's."""
    if run.global_model is not None:
        found = federation.models("global")
        assert all(close(found[name], value) for name, value in run.global_model.state_dict().items())
    compared = 0
    for site in federation.layout.clients:
        model = run.client_models[site.edge][int(site.name.rpartition("-")[2])]
        if model is not None:
            found = federation.models(site.name)
            for name, value in model.state_dict().items():
                assert close(found[name], value), (site.name, name)
                compared += 1
    for edge, site in enumerate(federation.layout.edges):
        model = run.edge_models[edge]
        if model is not None:
            found = federation.models(site.name)
            assert all(close(found[name], value) for name, value in model.state_dict().items())
    return compared
