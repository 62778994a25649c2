"""The client's process: reply to its server, keep θ_ij on its own disk, score models on its own rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.core.factored import Factored, dense
from sfedhp.core.types import Clock
from sfedhp.core.vectors import density
from sfedhp.data import DataOptions
from sfedhp.data.totals import Totals
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.messaging.metadata import models_of
from sfedhp.deploy.messaging.payload import pack, unpack, unpack_models
from sfedhp.deploy.messaging.protocol import NO_RUN, REPLIES, Envelope, Kind
from sfedhp.deploy.messaging.responder import Responder
from sfedhp.deploy.messaging.transport import Transport
from sfedhp.deploy.roles.cards import site_card
from sfedhp.deploy.roles.client_state import ClientStateFile
from sfedhp.deploy.roles.figures import Figures
from sfedhp.deploy.roles.loading import check_totals_arrived, load_client, load_model, read_totals
from sfedhp.deploy.roles.private_noise import member_noise
from sfedhp.deploy.roles.scoring import count
from sfedhp.deploy.roles.totals_file import TotalsFile
from sfedhp.deploy.site import Site
from sfedhp.engine.blank_messages import blank_messages
from sfedhp.engine.roles import Client, Reply
from sfedhp.privacy.accounting import library
from sfedhp.privacy.secure_messages import PeerError
from sfedhp.runs.build import Rows
from sfedhp.runs.metrics import metrics_of_reports
from sfedhp.runs.models import Predictor, save_model
from sfedhp.wire import DecodeError
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import link_of

if TYPE_CHECKING:
    from sfedhp.deploy.roles.secure_replies import SecureReplies


class _Last(NamedTuple):
    """A step that was made, kept to reply to a request that is repeated."""

    run: str
    clock: Clock
    reply: Reply
    received: Tensor  # (d,)


def check_start(site: Site, kit: Path, data: DataOptions | None) -> None:
    """Check a client's kit and data before it connects.

    Args:
        site: the client's.
        kit: its folder.
        data: the options of its own data; None: its share of the experiment's.

    Raises:
        InputError: one of them cannot be used.
    """
    load_client(site, load_model(site, kit).network, data)
    if site.experiment.privacy.active:
        library()


class ClientRole:
    """Runs a client. It saves its state before it sends a reply, so that no reply is ahead of the disk.

    While its disk is full it continues in memory, and says so in its log.
    """

    def __init__(
        self,
        site: Site,
        kit: Path,
        transport: Transport,
        data: DataOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.site, self.folder = site, kit / "run"
        self.log = EventLog(self.folder, site.name, site.names)
        self._network, self._initial, self._statistics = load_model(site, kit)
        self._data, self._totals_file = data, TotalsFile(self.folder)
        self._totals: Any = None  # of all clients' rows, from the server, where inputs are scaled by them
        self._load(None)
        # Any message of the run on the client's link, without statistics.
        self._message = blank_messages(site.experiment.algorithm, self._initial).of_clients
        up = Direction.from_client(site.experiment.algorithm.tiers)
        self._link = link_of(site.experiment.wire, up).options
        held = (self._task, self._test, self._validation)
        rows: dict[str, Any] = {"rows": [int(part.sizes) for part in held]}
        self._secure: SecureReplies | None = None  # if its server learns only sums
        if site.experiment.secure:
            from sfedhp.deploy.roles.secure_replies import SecureReplies  # cryptography comes with FLARE

            self._secure = SecureReplies(site, kit, len(self._message), len(self._statistics), self.log)
            rows["key"] = self._secure.key_id
        self._figures = Figures(self._counting.metrics[0], up)
        self._responder = Responder(transport, site.seat, site.config, self.log, lambda: rows, clock)
        self._run: str = NO_RUN
        context, rows_held = (lambda: f"{self._run} {self._totals}"), int(self._task.sizes)
        self._noise = member_noise("client", self.folder, site.experiment, context, rows_held)
        self._client, self._state = self._new(), ClientStateFile(self.folder)
        self._last: _Last | None = None  # the last reply
        self._restore()

    def work(self) -> None:
        """Reply to requests until the server says that the run is over."""
        self.log.write("up", rows=int(self._task.sizes))
        self._responder.start()
        while True:
            request = self._responder.receive(1.0)
            if request is None:
                continue
            self._responder.acknowledge(request)
            if request.kind is Kind.FAREWELL:
                self._responder.reply(Kind.BYE, request)
                break
            try:
                self.reply_to(request)
            except (DecodeError, InputError, PeerError, RuntimeError) as error:
                # A model that cannot be read, computed or sent: tell the server, which counts it as missing.
                self.log.write("trouble", reason=str(error))
                accused = {"accused": error.seats} if isinstance(error, PeerError) else {}
                metadata = {"trouble": str(error), **accused}
                self._responder.reply(REPLIES[request.kind], request, metadata=metadata)
        self._responder.stop()
        before = self._client.before
        self._write_status(int(before.clock.cloud_round) + 1 if before else 0, now=True, finished=True)
        self.log.write("over")

    def reply_to(self, request: Envelope) -> None:
        """Compute and send the reply to one request; save the state before a step's reply is sent."""
        if request.run != self._run:
            self._totals = None
            self._run, self._client = request.run, self._new()  # state of an earlier run is not used
        self._receive_totals(request)
        if request.kind is Kind.SCORE:
            self._responder.reply(Kind.SCORES, request, metadata=self._score(request))
        elif request.kind is Kind.SUM:
            self._responder.reply(Kind.SUMS, request, metadata={"totals": self._own_totals.to_dict()})
        elif request.kind is Kind.WORK:
            if self._last is None or self._last[:2] != (request.run, request.clock):
                self._last = self._step(request)
            self._responder.reply(Kind.REPLY, request, **self._content(request, self._last))
        elif self._secure is not None and request.kind in REPLIES:
            self._responder.reply(REPLIES[request.kind], request, **self._secure.reply_to(request))

    def _load(self, totals: Totals | None) -> None:
        """Load the client's rows, scaled by the totals of all clients' rows if they are known."""
        loaded = load_client(self.site, self._network, self._data, totals)
        self._task, self._test, self._validation, self._schema, self._counting, self._own_totals = loaded

    def _receive_totals(self, request: Envelope) -> None:
        """Keep the totals of all rows that a request brings, and scale the client's own rows by them.

        Raises:
            InputError: they cannot be used, or a model is to be trained or scored and they are not known.
        """
        totals = request.metadata.get("totals") if self.site.sums else None
        if totals is not None and totals != self._totals:
            self._totals = None
            known = read_totals(self.site, totals)
            try:
                self._load(known)
            except ValueError as error:
                raise InputError(f"The server's totals cannot be used ({error}).") from None
            self._totals, self._client = totals, self._new()
            self.log.try_write(lambda: self._totals_file.write(request.run, totals))
        if request.kind is not Kind.SUM:
            check_totals_arrived(self.site, self._totals)

    def _step(self, request: Envelope) -> _Last:
        """One step of the method."""
        started = time.perf_counter()
        received = unpack(request.parts[:1], self._message, self._statistics[:0])
        reply = self._client.reply(received, request.clock)
        assert reply is not None
        self._save(request.clock)
        seconds = time.perf_counter() - started
        self._figures.trained(seconds)
        clock = request.clock
        self._write_status(int(clock.cloud_round), edge_round=clock.edge_round, seconds=seconds)
        return _Last(request.run, request.clock, reply, received)

    def _content(self, request: Envelope, last: _Last) -> dict[str, Any]:
        """The content of a reply: the upload, masked if the server learns only sums."""
        if self._secure is not None:
            parts = self._secure.masked(request, last.reply, last.received)
        else:
            parts, _ = pack(last.reply.upload, len(self._message), self._link, last.received)
        return {"weight": last.reply.weight, "parts": parts}

    def _write_status(self, round_: int, *, now: bool = False, **more: Any) -> None:
        self._figures.count(self._responder.take_traffic())
        more |= {} if self._noise is None else {"epsilon": self._noise.epsilon()}
        self.log.write_status(now, run=self._run, round=round_, **self._figures.to_dict(), **more)

    def _score(self, request: Envelope) -> dict[str, Any]:
        """Scores of the models in the request, and of the client's own, on the client's rows."""
        names, same = models_of(request.metadata)
        models = unpack_models(names, request.parts, self._initial, self._statistics, self._message)
        models |= {name: models[other] for name, other in same.items()}
        size, own = len(self._initial), self._client.statistics
        local = self.site.experiment.evaluation.norm_statistics == "local"
        evaluated: dict[str, tuple[Any, Tensor]] = {
            kind: (models[kind][:size], own if local else models[kind][size:])
            for kind in ("gm", "em")
            if kind in models
        }
        personal = self._personal(models["next"][: len(self._message)], request.clock)
        if personal is not None:
            evaluated = {"pm": (personal, own), **evaluated}
        algorithm, task = self.site.experiment.algorithm, self._task
        counting = self._counting
        counted = {
            name: {kind: count(algorithm, model, task, rows, counting) for kind, model in evaluated.items()}
            for name, rows in (("test", self._test), ("validation", self._validation))
            if int(rows.sizes)
        }
        found: dict[str, Any] = {
            name: {kind: each.report for kind, each in kinds.items()} for name, kinds in counted.items()
        }
        if personal is not None:
            self._save_model(personal, int(request.clock.cloud_round), found.get("test", {}).get("pm"))
        if isinstance(self._client.personal, Tensor | Factored):
            own_density = density(dense(self._client.personal), self.site.experiment.density_threshold)
            found["density"] = float(own_density)
        if self._noise is not None:
            found["epsilon"] = self._noise.report()
        trained = evaluated.get("gm") or evaluated.get("pm")
        if trained is not None:
            rows = Rows(task.inputs, task.labels, task.sizes)
            found["train"] = {"loss": count(algorithm, trained, task, rows, counting).report}
        self._figures.scored([found])
        self._figures.predicted({kind: each.classes for kind, each in counted.get("test", {}).items()})
        self._write_status(int(request.clock.cloud_round))
        return found

    def _personal(self, received: Tensor, clock: Clock) -> Any:
        """The model that the client predicts with, computed on a copy of the statistics."""
        task = replace(self._task, statistics=self._client.statistics.clone())
        return self.site.experiment.algorithm.personalize(received, self._client.personal, task, clock)

    def _save_model(self, personal: Any, rounds: int, counted: Sequence[Any] | None) -> None:
        """Write the client's model, with its main metric on the client's test rows, if it has any."""
        path = self.folder / "models" / f"{self.site.name}.safetensors"
        if isinstance(personal, Tensor | Factored):
            model = self._network.build(dense(personal), self._client.statistics)
        else:
            model = Predictor(self.site.experiment.algorithm, self._task, personal)
        metrics: dict[str, float] = {}
        if counted:
            main = self._counting.metrics[0]
            found = metrics_of_reports([{"test": {"pm": counted}}], [main])
            metrics = {main.name: found[main.column("pm")], "test_rows": counted[1]}
        card = site_card(self.site, self._schema, rounds, metrics)
        self.log.try_write(lambda: save_model(path, model, self.site.classes, card))

    def _new(self) -> Client:
        algorithm, schedule = self.site.experiment.algorithm, self.site.experiment.schedule
        personal = algorithm.client_start(self._initial, self._task)
        return Client(
            algorithm,
            self._task,
            personal,
            self._statistics,
            schedule=schedule,
            privacy=self.site.experiment.privacy,
            noise=self._noise,
        )

    def _save(self, clock: Clock) -> None:
        last = clock.edge_round == self.site.experiment.algorithm.edge_rounds - 1
        self.log.try_write(lambda: self._state.save(self._client, self._run, durable=last))

    def _restore(self) -> None:
        found = self._state.load(self._client)
        if found is None:
            return
        self._totals = self._totals_file.read(found.run)
        if self.site.sums and self._totals is None:
            return  # the state is useless without them
        if self._totals is not None:
            self._load(read_totals(self.site, self._totals))
            self._client = self._new()
        found.restore(self._client)
        self._run = found.run
        self.log.write("resumed", cloud_round=found.clock.cloud_round, edge_round=found.clock.edge_round)
