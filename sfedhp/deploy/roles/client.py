"""The client's role: answer its server, keep θ_ij on its own disk, count right and wrong on its own rows."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sfedhp.core.errors import InputError
from sfedhp.core.factored import Factored, dense
from sfedhp.core.types import Clock
from sfedhp.core.vectors import density
from sfedhp.data import DataOptions
from sfedhp.deploy.event_log import Journal
from sfedhp.deploy.messaging.protocol import NO_RUN, REPLIES, Envelope, Kind, pack, unpack
from sfedhp.deploy.messaging.responder import Desk
from sfedhp.deploy.messaging.transport import Post
from sfedhp.deploy.roles.loading import holdings_of, model_of
from sfedhp.deploy.roles.scoring import count
from sfedhp.deploy.roles.state_files import load_state, save_state
from sfedhp.deploy.site import Site
from sfedhp.engine.roles import Before, Client
from sfedhp.runs.build import Rows
from sfedhp.runs.models import Predictor, save_model
from sfedhp.wire import DecodeError
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import link_of


def check_start(site: Site, kit: Path, data: DataOptions | None) -> None:
    """Refuse a client whose data or kit cannot be used, before it connects to anybody.

    Args:
        site: the client's.
        kit: its folder.
        data: the options of its own data; None: its share of the experiment's.

    Raises:
        InputError: says what is wrong with them.
    """
    holdings_of(site, model_of(site, kit).network, data)


class ClientRole:
    """A client at work. What it keeps is written before its answer is sent, so no answer is lost with it.

    While its disk is full it goes on in memory, and says so in its log.
    """

    def __init__(self, site: Site, kit: Path, post: Post, data: DataOptions | None = None):
        self.site, self.folder = site, kit / "run"
        self.journal = Journal(self.folder, site.name)
        self._network, self._initial, self._tail = model_of(site, kit)
        self._task, self._test, self._validation = holdings_of(site, self._network, data)
        up = Direction.from_client(site.experiment.algorithm.tiers)
        self._link = link_of(site.experiment.wire, up).options
        self._desk = Desk(post, site.seat, site.config, self.journal)
        self._run, self._client = NO_RUN, self._new()
        self._last: tuple[str, Clock, dict[str, Any]] | None = None  # the last answer
        self._restore()

    def work(self) -> None:
        """Until the run is over."""
        self.journal.write("up", rows=int(self._task.sizes))
        self._desk.open()
        while True:
            question = self._desk.take(1.0)
            if question is None:
                continue
            self._desk.took(question)
            if question.kind is Kind.FAREWELL:
                self._desk.answer(Kind.BYE, question)
                break
            try:
                self.answer(question)
            except (DecodeError, InputError, RuntimeError) as error:
                # A model that cannot be read, computed or sent: the server is told, and counts it as silence.
                self.journal.write("trouble", reason=str(error))
                self._desk.answer(REPLIES[question.kind], question, facts={"trouble": str(error)})
        self._desk.close()
        before = self._client.before
        self.journal.status(
            now=True, run=self._run, round=before.clock.cloud_round + 1 if before else 0, finished=True
        )
        self.journal.write("over")

    def answer(self, question: Envelope) -> None:
        """Answer one question."""
        if question.run != self._run:
            self._run, self._client = question.run, self._new()  # nothing of an earlier run is in this one
        if question.kind is Kind.SCORE:
            self._desk.answer(Kind.SCORES, question, facts=self._score(question))
        elif question.kind is Kind.WORK:
            if self._last is None or self._last[:2] != (question.run, question.clock):
                self._last = (question.run, question.clock, self._step(question))
            self._desk.answer(Kind.REPLY, question, **self._last[2])

    def _step(self, question: Envelope) -> dict[str, Any]:
        """One step of the method; what goes back."""
        began = time.perf_counter()
        received = unpack(question.parts, self._initial, self._tail[:0])
        reply = self._client.reply(received, question.clock)
        assert reply is not None
        parts, _ = pack(reply.upload, len(self._initial), self._link, received)
        self._save(question.clock)
        self.journal.status(
            run=self._run,
            round=question.clock.cloud_round,
            edge_round=question.clock.edge_round,
            seconds=time.perf_counter() - began,
        )
        return {"weight": reply.weight, "parts": parts}

    def _score(self, question: Envelope) -> dict[str, Any]:
        """Right and wrong on the client's own rows, of the models in the question and of its own."""
        names = question.facts["models"]
        width = len(question.parts) // len(names)
        models = {
            name: unpack(question.parts[width * index : width * (index + 1)], self._initial, self._tail)
            for index, name in enumerate(names)
        }
        models |= {name: models[other] for name, other in question.facts["same"].items()}
        size, own = len(self._initial), self._client.statistics
        local = self.site.experiment.evaluation.norm_statistics == "local"
        worn: dict[str, tuple[Any, Tensor]] = {
            kind: (models[kind][:size], own if local else models[kind][size:])
            for kind in ("gm", "em")
            if kind in models
        }
        personal = self._personal(models["next"][:size], question.clock)
        if personal is not None:
            worn = {"pm": (personal, own), **worn}
            self._save_model(personal)
        algorithm, task = self.site.experiment.algorithm, self._task
        found: dict[str, Any] = {
            name: {kind: count(algorithm, *model, task, rows) for kind, model in worn.items()}
            for name, rows in (("test", self._test), ("validation", self._validation))
            if int(rows.sizes)
        }
        if isinstance(self._client.personal, Tensor | Factored):
            own_density = density(dense(self._client.personal), self.site.experiment.density_threshold)
            found["density"] = float(own_density)
        trained = worn.get("gm") or worn.get("pm")
        if trained is not None:
            rows = Rows(task.inputs, task.labels, task.sizes)
            found["train"] = {"loss": count(algorithm, *trained, task, rows)}
        return found

    def _personal(self, received: Tensor, clock: Clock) -> Any:
        """What the client predicts with; its statistics are only lent."""
        lent = replace(self._task, statistics=self._client.statistics.clone())
        return self.site.experiment.algorithm.personalize(received, self._client.personal, lent, clock)

    def _save_model(self, personal: Any) -> None:
        path = self.folder / "models" / f"{self.site.name}.safetensors"
        if isinstance(personal, Tensor | Factored):
            model = self._network.build(dense(personal), self._client.statistics)
        else:
            model = Predictor(self.site.experiment.algorithm, self._task, personal)
        self.journal.attempt(lambda: save_model(path, model))

    def _new(self) -> Client:
        algorithm = self.site.experiment.algorithm
        return Client(algorithm, self._task, algorithm.client_start(self._initial, self._task), self._tail)

    def _save(self, clock: Clock) -> None:
        """What it keeps, and what it held before: asked again after a restart, it must not train twice."""
        before = self._client.before
        assert before is not None
        trees = {
            "personal": self._client.personal,
            "statistics": self._client.statistics,
            "before_personal": before.personal,
            "before_statistics": before.statistics,
        }
        about = {"run": self._run, "cloud_round": str(clock.cloud_round), "edge_round": str(clock.edge_round)}
        last = clock.edge_round == self.site.experiment.algorithm.edge_rounds - 1
        path = self.folder / "state.safetensors"
        self.journal.attempt(lambda: save_state(path, trees, about, durable=last))

    def _restore(self) -> None:
        fresh = self._client
        templates = {"personal": fresh.personal, "statistics": fresh.statistics}
        templates |= {f"before_{name}": tree for name, tree in templates.items()}
        found = load_state(self.folder / "state.safetensors", templates)
        if found is None:
            return
        trees, about = found
        clock = Clock(int(about["cloud_round"]), int(about["edge_round"]))
        fresh.personal, fresh.statistics = trees["personal"], trees["statistics"]
        fresh.before = Before(clock, trees["before_personal"], trees["before_statistics"])
        self._run = about["run"]
        self.journal.write("resumed", cloud_round=clock.cloud_round, edge_round=clock.edge_round)
