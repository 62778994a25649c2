"""The edge's role, the half that faces its clients: R edge rounds for every question of the cloud."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import torch

from sfedhp.core.errors import InputError
from sfedhp.core.vectors import density, spread
from sfedhp.deploy.event_log import Journal
from sfedhp.deploy.messaging.gather import Circle
from sfedhp.deploy.messaging.protocol import REPLIES, Envelope, Kind, pack, seal, unpack
from sfedhp.deploy.messaging.spool import Key, Spool
from sfedhp.deploy.messaging.traffic import Books
from sfedhp.deploy.messaging.transport import Post
from sfedhp.deploy.messaging.turns import HopelessError
from sfedhp.deploy.roles.loading import model_of
from sfedhp.deploy.roles.state_files import load_state, save_state
from sfedhp.deploy.site import Site
from sfedhp.engine.roles import Edge, EdgeProgress
from sfedhp.engine.rounds import Served
from sfedhp.runs.models import save_model
from sfedhp.wire import DecodeError
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import link_of

_GLANCE: Final = 0.02  # s between two looks into the spool
_SCORE_SECONDS: Final = 60.0


class SupersededError(Exception):
    """The cloud has gone on: the question need not be answered any more."""


class EdgeRole:
    """An edge at work. It writes its state after every edge round, and goes on from it when restarted."""

    def __init__(self, site: Site, kit: Path, post: Post):
        self.site, self.folder = site, kit / "run"
        self.journal = Journal(self.folder, site.name)
        self._network, self._initial, self._tail = model_of(site, kit)
        self._spool = Spool(self.folder / "spool")
        self._spool.clear()
        experiment, limits = site.experiment, site.limits
        self._circle = Circle(
            post,
            site.below,
            "",
            site.config,
            self._initial,
            self._tail,
            link_of(experiment.wire, Direction.EDGE_CLIENT).options,
            limits.client_quorum,
            limits.client_seconds,
            limits.silent_seconds,
            self.journal,
            look=self._look,
        )
        self._edge = Edge(experiment.algorithm, self._circle, self._tail)
        self._key: Key | None = None  # the question at work
        self._progress: EdgeProgress | None = None
        self._round = 0  # the cloud's

    def work(self) -> None:
        """Until the run is over."""
        self.journal.write("up")
        while True:
            found = self._spool.newest()
            if found is None:
                self._circle.attend(_GLANCE)
                self._tell()
                continue
            self._key, question = found
            self._enter(question.run)
            try:
                answer = self._answer(question)
            except SupersededError:
                self.journal.write("superseded", round=question.clock.cloud_round)
                continue
            except (DecodeError, InputError, HopelessError) as error:
                self.journal.write("trouble", reason=str(error))
                answer = self._sealed(question, facts={"trouble": str(error)})
            self._finish(answer)
            if question.kind is Kind.FAREWELL:
                break
        self._round += self._progress is not None  # the last one is done
        self._tell(now=True, finished=True)
        self.journal.write("over")

    def _enter(self, run: str) -> None:
        """Begin with a run, where it is not the one at work; nothing of another is taken into it.

        In a run that neither this process nor the disk knows, everybody is given time to come up. That time
        runs from here, for nobody can be missed before there is a question.
        """
        if run == self._circle.run:
            return
        if self._circle.run:
            self._circle.facts.clear()  # who was there in the last run may be on its way
        self._circle.run, self._progress, self._round = run, None, 0
        self._circle.close_books()
        found = load_state(self._state_path, {})
        if found is None or found[1]["run"] != run:
            self._circle.fresh_until = time.monotonic() + self.site.limits.start_seconds

    def _answer(self, question: Envelope) -> bytes:
        if question.kind is Kind.FAREWELL:
            self._circle.farewell(self.site.limits.start_seconds)
            return self._sealed(question)
        if question.kind is Kind.SCORE:
            return self._sealed(question, facts=self._score(question))
        return self._train(question)

    def _train(self, question: Envelope) -> bytes:
        """The edge rounds, from where the disk says they are."""
        began, clock = time.perf_counter(), question.clock
        received = unpack(question.parts, self._initial, self._tail[:0])
        progress = self._progress = self._restored(question, self._edge.begin(received))
        self._round = int(clock.cloud_round)
        for progress in self._edge.run(progress, clock):  # noqa: B020
            self._progress = progress
            self._save(question, progress)
            self._tell()
        reply = self._edge.conclude(progress)
        books = self._circle.close_books()
        facts = {"books": books.saved(), "seconds": time.perf_counter() - began}
        model = self.site.experiment.algorithm.edge_model(progress.served.state)
        if model is not None:
            path = self.folder / "models" / f"{self.site.name}.safetensors"
            self.journal.attempt(
                lambda: save_model(path, self._network.build(model, progress.served.statistics))
            )
        if reply is None:
            return self._sealed(question, facts={**facts, "trouble": "no client answered"})
        link = link_of(self.site.experiment.wire, Direction.EDGE_CLOUD).options
        parts, _ = pack(reply.upload, len(self._initial), link, received)
        return self._sealed(question, weight=reply.weight, facts=facts, parts=parts)

    def _score(self, question: Envelope) -> dict[str, Any]:
        """Ask the clients how good the cloud's and the edge's models are."""
        names, algorithm = question.facts["models"], self.site.experiment.algorithm
        width, size, members = len(question.parts) // len(names), len(self._initial), len(self._circle)
        given = {
            name: unpack(question.parts[width * index : width * (index + 1)], self._initial, self._tail)
            for index, name in enumerate(names)
        }
        received = given["next"][:size]
        sent = algorithm.edge_message(algorithm.edge_start(received, members), members)
        models = {name: spread(model, members) for name, model in given.items()}
        if not torch.equal(sent, spread(received, members)):
            models = {name: models[name] for name in models if name != "next"}
            models |= {other: spread(given["next"], members) for other in question.facts["same"]}
            models["next"] = torch.cat([sent, spread(given["next"][size:], members)], -1)
        served = self._last_served(question)
        model = None if served is None else algorithm.edge_model(served.state)
        if model is not None and served is not None:
            models["em"] = spread(torch.cat([model, served.statistics]), members)
        same = {name: other for name, other in question.facts["same"].items() if name not in models}
        found = self._circle.score(models, same, question.clock, _SCORE_SECONDS)
        clients = {self.site.below[seat]: counts for seat, counts in found.items()}
        facts: dict[str, Any] = {"clients": clients, "books": self._circle.close_books().saved()}
        if model is not None:
            facts["density"] = float(density(model, self.site.experiment.density_threshold))
        return facts

    def _last_served(self, question: Envelope) -> Served | None:
        """What the edge held at the end of its last cloud round, also after a restart."""
        if self._progress is None:
            template = self._edge.begin(self._initial)
            found = load_state(self._state_path, {"served": template.served, "last": template.weights})
            if found is None or found[1]["run"] != question.run:
                return None
            trees, about = found
            self._progress = EdgeProgress(int(about["done"]), trees["served"], trees["last"])
        return self._progress.served

    def _look(self) -> None:
        """Give up when the cloud has asked something else meanwhile."""
        self._tell()
        if self._key is not None and not self._spool.asked(self._key):
            raise SupersededError

    def _tell(self, now: bool = False, **more: Any) -> None:
        self.journal.status(
            now,
            run=self._circle.run,
            round=self._round,
            edge_round=self._progress and self._progress.rounds_done,
            members=self._circle.present(),
            **more,
        )

    def _sealed(self, question: Envelope, **content: Any) -> bytes:
        kind = REPLIES[question.kind]
        return seal(Envelope(kind, question.run, self.site.config, self.site.seat, question.clock, **content))

    def _finish(self, answer: bytes) -> None:
        """Hand the answer over; a full disk is waited for, as long as the cloud has not gone on."""
        key = self._key
        assert key is not None
        while self._spool.asked(key):
            if self.journal.attempt(lambda: self._spool.finish(key, answer)):
                return
            self._circle.attend(1.0)

    @property
    def _state_path(self) -> Path:
        return self.folder / "state.safetensors"

    def _save(self, question: Envelope, progress: EdgeProgress) -> None:
        about = {
            "run": question.run,
            "cloud_round": str(question.clock.cloud_round),
            "done": str(progress.rounds_done),
            "books": json.dumps(self._circle.books.saved()),
        }
        trees = {"served": progress.served, "last": progress.weights}
        last = progress.rounds_done == self.site.experiment.algorithm.edge_rounds
        self.journal.attempt(lambda: save_state(self._state_path, trees, about, durable=last))

    def _restored(self, question: Envelope, start: EdgeProgress) -> EdgeProgress:
        """How far the edge was in this very round before it was restarted; else the start."""
        found = load_state(self._state_path, {"served": start.served, "last": start.weights})
        if found is None:
            return start
        trees, about = found
        if (about["run"], about["cloud_round"]) != (question.run, str(question.clock.cloud_round)):
            return start
        self.journal.write("resumed", round=question.clock.cloud_round, edge_round=int(about["done"]))
        self._circle.books = Books(len(self._circle), json.loads(about["books"]))
        return EdgeProgress(int(about["done"]), trees["served"], trees["last"])
