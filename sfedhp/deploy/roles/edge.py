"""The process of an edge that talks to its clients: R edge rounds for every request of the cloud."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.core.vectors import density, spread
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.messaging.member import states_of
from sfedhp.deploy.messaging.metadata import models_of
from sfedhp.deploy.messaging.payload import pack, unpack, unpack_models
from sfedhp.deploy.messaging.protocol import REPLIES, Envelope, Kind, encode_message
from sfedhp.deploy.messaging.request import AllMembersFailedError
from sfedhp.deploy.messaging.spool import Key, Spool
from sfedhp.deploy.messaging.traffic import Traffic
from sfedhp.deploy.messaging.transport import Transport
from sfedhp.deploy.roles.cards import site_card
from sfedhp.deploy.roles.cut_log import CutLog
from sfedhp.deploy.roles.edge_state import EdgeStateFile
from sfedhp.deploy.roles.figures import Figures
from sfedhp.deploy.roles.loading import acceptance, check_totals_arrived, load_model, read_totals, schema_of
from sfedhp.deploy.roles.members import member_group
from sfedhp.deploy.roles.private_noise import member_noise
from sfedhp.deploy.roles.totals_file import TotalsFile
from sfedhp.deploy.site import Site
from sfedhp.engine.blank_messages import blank_messages
from sfedhp.engine.roles import Edge, EdgeProgress
from sfedhp.engine.rounds import Served
from sfedhp.nn.problems import problem_of
from sfedhp.runs.models import save_model
from sfedhp.wire import DecodeError
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import link_of

if TYPE_CHECKING:
    from sfedhp.deploy.revocations import Revocations

_POLL: Final = 0.02  # s between two reads of the spool
_SCORE_TIMEOUT: Final = 60.0  # s
_RETRY: Final = 1.0  # s before the next try if the disk is full


class SupersededError(Exception):
    """The cloud has sent a newer request, so this one need not be answered."""


class EdgeRole:
    """Runs an edge. It saves its state after every edge round, and continues from there when restarted."""

    def __init__(
        self, site: Site, kit: Path, transport: Transport, clock: Callable[[], float] = time.monotonic
    ):
        self.site, self.folder = site, kit / "run"
        self.log = EventLog(self.folder, site.name, site.names)
        self._network, self._initial, self._statistics = load_model(site, kit)
        self._blank = blank_messages(site.experiment.algorithm, self._initial)
        self._spool = Spool(self.folder / "spool")
        self._spool.clear()
        self._state, self._totals_file = EdgeStateFile(self.folder, self.log), TotalsFile(self.folder)
        experiment, limits = site.experiment, site.limits
        self._members = member_group(
            site,
            kit,
            transport,
            run="",
            config=site.config,
            model=self._blank.of_clients,
            statistics=self._statistics,
            link=link_of(experiment.wire, Direction.EDGE_CLIENT).options,
            quorum=limits.client_quorum,
            timeout=limits.client_seconds,
            silent_seconds=limits.silent_seconds,
            log=self.log,
            accept=acceptance(site, self._network),
            on_wait=self._on_wait,
            clock=clock,
        )
        self._cuts = CutLog(self.log, site.below)
        self._edge = Edge(
            experiment.algorithm,
            self._members,
            self._statistics,
            aggregation=experiment.aggregation,
            on_cut=self._cuts.add,
            schedule=experiment.schedule,
            privacy=experiment.privacy,
            noise=member_noise("edge", self.folder, experiment, lambda: self._members.run),
        )
        self._key: Key | None = None  # of the request it works on
        self._progress: EdgeProgress | None = None
        self._round = 0  # the cloud's
        self._revocations: Revocations | None = None
        self._figures = Figures(problem_of(experiment.problem).main, Direction.CLIENT_EDGE)

    def work(self) -> None:
        """Run until the cloud says that the run is over."""
        self.log.write("up")
        while True:
            if (found := self._spool.newest()) is None:
                self._members.listen(_POLL)
                self._write_status()
                continue
            self._key, request = found
            if "revoked" in request.metadata:
                self._adopt_revoked(request.metadata["revoked"])
            self._enter(request.run)
            try:
                self._receive_totals(request)
                reply = self._reply_to(request)
            except SupersededError:
                self.log.write("superseded", round=request.clock.cloud_round)
                continue
            except (DecodeError, InputError, AllMembersFailedError) as error:
                self.log.write("trouble", reason=str(error))
                reply = self._encoded(request, metadata={"trouble": str(error)})
            self._finish(reply)
            if request.kind is Kind.FAREWELL:
                break
        self._round += self._progress is not None  # the last one is done
        self._write_status(now=True, finished=True)
        self.log.write("over")

    def _adopt_revoked(self, values: Any) -> None:
        """Refuse the certificates that the cloud says are revoked; the allowlist reads the file."""
        from sfedhp.deploy.revocations import Revocations  # cryptography comes with FLARE

        if self._revocations is None:
            self._revocations = Revocations(self.folder.parent, self.log)
        self._revocations.adopt(values)

    def _enter(self, run: str) -> None:
        """Switch to a run, if it is not the current one; no state of another run is used in it.

        In a run that neither this process nor the disk knows, all clients get time to start. That time begins
        here, because no client can be missed before there is a request.
        """
        if run == self._members.run:
            return
        if self._members.run:
            self._members.forget()  # clients of the last run may be restarting
        self._members.run, self._progress, self._round = run, None, 0
        self._members.totals = self._totals_file.read(run)
        self._members.take_traffic()
        if self._state.run() != run:
            self._members.wait_for_all(self.site.limits.start_seconds)

    def _receive_totals(self, request: Envelope) -> None:
        """Keep the totals of all clients' rows that a request brings, to pass them on."""
        totals = request.metadata.get("totals") if self.site.sums else None
        if totals is not None and totals != self._members.totals:
            read_totals(self.site, totals)
            self._members.totals = totals
            self.log.try_write(lambda: self._totals_file.write(request.run, totals))

    def _reply_to(self, request: Envelope) -> bytes:
        if request.kind is Kind.SUM:
            totals = self._members.sum_up().to_dict()
            return self._encoded(request, metadata={"totals": totals, "books": self._take_traffic()})
        if request.kind in (Kind.WORK, Kind.SCORE):
            check_totals_arrived(self.site, self._members.totals)
        if request.kind is Kind.FAREWELL:
            self._members.farewell(self.site.limits.start_seconds)
            return self._encoded(request)
        if request.kind is Kind.SCORE:
            return self._encoded(request, metadata=self._score(request))
        return self._train(request)

    def _train(self, request: Envelope) -> bytes:
        """The reply after all edge rounds, continued from the state on disk."""
        started, clock = time.perf_counter(), request.clock
        experiment = self.site.experiment
        received = unpack(request.parts, self._blank.of_cloud, self._statistics[:0])
        progress = self._progress = self._restored(request, self._edge.begin(received))
        self._round = int(clock.cloud_round)
        for progress in self._edge.run(progress, clock):  # noqa: B020
            self._progress = progress
            self._save(request, progress)
            self._write_status()
        reply = self._edge.conclude(progress)
        self._cuts.write(self._round + 1)
        seconds = time.perf_counter() - started
        traffic = self._take_traffic()
        metadata = {"books": traffic, "seconds": seconds}
        self._figures.trained(seconds, traffic["missing"])
        self._save_model(progress.served)
        if reply is None:
            return self._encoded(request, metadata={**metadata, "trouble": "no client answered"})
        link = link_of(experiment.wire, Direction.EDGE_CLOUD).options
        parts, _ = pack(reply.upload, len(self._blank.of_cloud), link, received)
        return self._encoded(request, weight=reply.weight, metadata=metadata, parts=parts)

    def _score(self, request: Envelope) -> dict[str, Any]:
        """Scores of the cloud's and the edge's models on the clients' own rows."""
        sent, same = models_of(request.metadata)
        given = unpack_models(sent, request.parts, self._initial, self._statistics, self._blank.of_cloud)
        models = self._models_for_clients(given, same)
        served = self._last_served(request)
        model = None if served is None else self.site.experiment.algorithm.edge_model(served.state)
        if model is not None and served is not None:
            models["em"] = spread(torch.cat([model, served.statistics]), len(self._members))
        still_same = {name: other for name, other in same.items() if name not in models}
        found = self._members.score(models, still_same, request.clock, _SCORE_TIMEOUT)
        clients = {self.site.below[seat]: scores for seat, scores in found.items()}
        self._figures.scored(list(clients.values()))
        metadata: dict[str, Any] = {"clients": clients, "books": self._take_traffic()}
        if model is not None:
            metadata["density"] = float(density(model, self.site.experiment.density_threshold))
        return metadata

    def _take_traffic(self) -> dict[str, Any]:
        """What was sent and missed since the last reply, for the cloud."""
        traffic = self._members.take_traffic()
        self._figures.count(traffic)
        return traffic.to_dict()

    def _models_for_clients(self, given: dict[str, Tensor], same: dict[str, str]) -> dict[str, Tensor]:
        """The cloud's models (clients, d + s) as clients get them: "next" is what this edge would send them.

        Where that differs from what the cloud sent, models that were the same as the cloud's are sent too.
        """
        algorithm, clients = self.site.experiment.algorithm, len(self._members)
        received, statistics = given["next"].tensor_split([len(self._blank.of_cloud)])
        message = algorithm.edge_message(algorithm.edge_start(received, clients), clients)
        models = {name: spread(model, clients) for name, model in given.items()}
        if not torch.equal(message, spread(received, clients)):
            del models["next"]
            models |= {name: spread(given["next"], clients) for name in same}
            models["next"] = torch.cat([message, spread(statistics, clients)], -1)
        return models

    def _last_served(self, request: Envelope) -> Served | None:
        """The edge's state after its last cloud round, from disk after a restart."""
        if self._progress is None:
            saved = self._state.load(self._edge.begin(self._blank.of_cloud))
            if saved is None or saved.run != request.run:
                return None
            self._progress = saved.progress
        return self._progress.served

    def _on_wait(self) -> None:
        """Write the status; give up the request if the cloud has sent a newer one."""
        self._write_status()
        if self._key is not None and not self._spool.requested(self._key):
            raise SupersededError

    def _write_status(self, now: bool = False, **more: Any) -> None:
        self.log.write_status(
            now,
            run=self._members.run,
            round=self._round,
            edge_round=self._progress and self._progress.rounds_done,
            members=self._members.present(),
            states=states_of(self._members.members, self._members.clock()),
            **self._figures.to_dict(),
            **more,
        )

    def _encoded(self, request: Envelope, **content: Any) -> bytes:
        site, kind = self.site, REPLIES[request.kind]
        return encode_message(Envelope(kind, request.run, site.config, site.seat, request.clock, **content))

    def _finish(self, reply: bytes) -> None:
        """Put the reply into the spool; while the disk is full, retry until there is a newer request."""
        key = self._key
        assert key is not None
        while self._spool.requested(key):
            if self.log.try_write(lambda: self._spool.finish(key, reply)):
                return
            self._members.listen(_RETRY)

    def _save_model(self, served: Served) -> None:
        model = self.site.experiment.algorithm.edge_model(served.state)
        if model is not None:
            path = self.folder / "models" / f"{self.site.name}.safetensors"
            module = self._network.build(model, served.statistics)
            known = self._members.totals
            totals = None if known is None else read_totals(self.site, known)
            card = site_card(self.site, schema_of(self.site, totals), self._round + 1)
            self.log.try_write(lambda: save_model(path, module, self.site.classes, card))

    def _save(self, request: Envelope, progress: EdgeProgress) -> None:
        last = progress.rounds_done == self.site.experiment.algorithm.edge_rounds
        traffic = self._members.traffic
        self.log.try_write(lambda: self._state.save(request, progress, traffic, durable=last))

    def _restored(self, request: Envelope, start: EdgeProgress) -> EdgeProgress:
        """The progress of the edge in this round before a restart; else the start of the round."""
        saved = self._state.load(start)
        if saved is None or (saved.run, saved.cloud_round) != (request.run, request.clock.cloud_round):
            return start
        self.log.write("resumed", round=request.clock.cloud_round, edge_round=saved.progress.rounds_done)
        self._members.traffic = Traffic(len(self._members), saved.traffic)
        return saved.progress
