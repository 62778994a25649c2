"""The cloud's role: ask the members round by round, keep w, write the records of a run."""

from __future__ import annotations

import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any, Final

import torch

from sfedhp.config import to_dict, to_toml
from sfedhp.core.errors import InputError
from sfedhp.core.files import remove_temporary_files, write_text
from sfedhp.core.keys import ROLES, key
from sfedhp.core.types import Clock
from sfedhp.core.vectors import density, spread
from sfedhp.deploy.event_log import Journal
from sfedhp.deploy.messaging.gather import Circle
from sfedhp.deploy.messaging.traffic import Books, stacked
from sfedhp.deploy.messaging.transport import Post
from sfedhp.deploy.messaging.turns import HopelessError
from sfedhp.deploy.roles.loading import model_of
from sfedhp.deploy.site import Site
from sfedhp.engine.roles import Cloud
from sfedhp.engine.rounds import Served, drawing
from sfedhp.runs import checkpoints
from sfedhp.runs.divergence import explosion, not_finite
from sfedhp.runs.environment import environment
from sfedhp.runs.metrics import metrics_of_reports
from sfedhp.runs.models import save_model
from sfedhp.runs.records import History, Row, read_rows, rows_of_run
from sfedhp.runs.tensor_files import named_tensors, unflatten
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import columns
from sfedhp.wire.link import link_of

_SCORE_SECONDS: Final = 90.0


class CloudRole:
    """The cloud at work. A checkpoint is written after every round, and a restarted cloud goes on from it."""

    def __init__(self, site: Site, kit: Path, post: Post):
        self.site, self.folder = site, kit / "run"
        self.journal = Journal(self.folder, site.name)
        self._network, self._initial, self._tail = model_of(site, kit)
        experiment, limits = site.experiment, site.limits
        self._algorithm = experiment.algorithm
        self._up = Direction.to_cloud(self._algorithm.tiers)
        edges = self._algorithm.tiers == 3
        self._circle = Circle(
            post,
            site.below,
            self._identity(),
            site.config,
            self._initial,
            self._tail,
            link_of(experiment.wire, self._up.down).options,
            limits.edge_quorum if edges else limits.client_quorum,
            limits.of_edges(self._algorithm.edge_rounds) if edges else limits.client_seconds,
            limits.silent_seconds,
            self.journal,
            look=self._tell,
            told=self._take_books,
        )
        self._edges: dict[str, Books] = {}  # what the edges booked in this round
        self._cloud = Cloud(self._algorithm, self._circle, self._initial, self._tail, self._draw())
        self._row: Row = {}
        self._round, self._good = 0, self._cloud.served

    def work(self) -> None:
        """Until the run is over."""
        experiment = self.site.experiment
        self._round = self._restore()
        history = self._history()
        if not self._round:
            self._circle.fresh_until = time.monotonic() + self.site.limits.start_seconds
        self._row = history.rows[-1] if history.rows else {}
        self.journal.write("up", round=self._round, rounds=experiment.rounds)
        trouble = self._rounds(history)
        history.close()
        model = self._algorithm.global_model(self._good.state)
        if model is not None:
            path = self.folder / "models" / "global.safetensors"
            save_model(path, self._network.build(model, self._good.statistics))
        if trouble:
            self.journal.write("trouble", reason=trouble)
        self._tell(now=True, finished=True, trouble=trouble)
        self._circle.farewell(self.site.limits.start_seconds)
        self._tell(now=True, finished=True, trouble=trouble)
        self.journal.write("over", round=self._round)

    def _rounds(self, history: History) -> str | None:
        """All rounds that are left; what diverged, in a sentence."""
        began, self._good = time.perf_counter(), self._cloud.served
        try:
            for served in self._cloud.run(self.site.experiment.rounds, self._round):
                (sentence,) = not_finite({"the cloud's model": served})
                if sentence:
                    return f"diverged in round {self._round + 1}: {sentence}"
                self._good, self._round = served, self._round + 1
                row = self._recorded()
                now = time.perf_counter()
                row["seconds"], began = now - began, now
                self._row = {name: value for name, value in row.items() if name != "members"}
                history.append(self._row, row["members"])
                history.fsync()
                self._save(served)
                facts = {name: row[name] for name in ("round", "seconds", "missing")}
                self.journal.write("round", **facts)
                self._tell(now=True)
                if exploded := explosion(history.rows):
                    return exploded
        except HopelessError as error:
            return f"diverged in round {self._round + 1}: no member can answer ({error})"
        return None

    def _recorded(self) -> Row:
        """The round's figures, bytes and missing members."""
        experiment, tiers = self.site.experiment, self._algorithm.tiers
        row: Row = {"round": self._round}
        if self._round % experiment.evaluation.every == 0 or self._round == experiment.rounds:
            row |= self._scores()
        own = self._circle.close_books()
        missing = own.missing
        ways = {"down": self._up.down, "up": self._up}
        booked = {name: own.entry(way) for way, name in ways.items()}
        counted = {f"score_{name}": own.entry(f"score_{way}") for way, name in ways.items()}
        if tiers == 3:
            blank = Books(experiment.clients_per_edge)
            edges = [self._edges.pop(name, blank) for name in self.site.below]
            for way, name in {"down": Direction.EDGE_CLIENT, "up": Direction.CLIENT_EDGE}.items():
                booked[name], counted[f"score_{name}"] = (
                    stacked(edges, way),
                    stacked(edges, f"score_{way}"),
                )
            for each in edges:
                missing.update(each.missing)
        row |= {name: total.item() for name, total in columns(booked, len(self._initial), 0).items()}
        row |= {f"bytes_{name}": int(entry.bytes.sum()) for name, entry in counted.items()}
        row["missing"] = dict(missing)
        row["members"] = {name: entry.bytes.tolist() for name, entry in (booked | counted).items()}
        return row

    def _scores(self) -> dict[str, float]:
        """Ask the members, and through them the clients, how good the models are."""
        served, members = self._cloud.served, len(self._circle)
        tail = spread(served.statistics, members)
        message = self._algorithm.cloud_message(served.state, members)
        models, same = {"next": _beside(message, tail)}, {}
        model = self._algorithm.global_model(served.state)
        if model is not None and torch.equal(message, spread(model, members)):
            same = {"gm": "next"}
        elif model is not None:
            models["gm"] = _beside(spread(model, members), tail)
        found = self._circle.score(models, same, Clock(self._round), _SCORE_SECONDS)
        below: list[Any] = list(found.values())
        clients, edges = below, []
        if self._algorithm.tiers == 3:
            clients = [counts for facts in below for counts in facts.get("clients", {}).values()]
            edges = below
        row = metrics_of_reports(clients)
        if model is not None:
            row["density_global"] = float(density(model, self.site.experiment.density_threshold))
        for name, group in (("edge", edges), ("client", clients)):
            held = [facts["density"] for facts in group if "density" in facts]
            if held:
                row[f"density_{name}"] = sum(held) / len(held)
        return row

    def _take_books(self, seat: int, facts: dict[str, Any]) -> None:
        """What an edge booked of its clients, added to what it had said of this round before."""
        if "books" in facts:
            name = self.site.below[seat]
            books = self._edges.setdefault(name, Books(self.site.experiment.clients_per_edge))
            books.add(facts["books"])

    def _tell(self, now: bool = False, **more: Any) -> None:
        members = {
            name: {"up": up, **(self._circle.facts[name] if up else {})}
            for name, up in self._circle.present().items()
        }
        self.journal.status(
            now,
            run=self._circle.run,
            round=self._round,
            rounds=self.site.experiment.rounds,
            row=self._row,
            members=members,
            **more,
        )

    def _draw(self) -> Any:
        experiment = self.site.experiment
        sampled = experiment.sampled_edges if self._algorithm.tiers == 3 else experiment.sampled_clients
        ids = torch.tensor(self.site.clients or range(len(self.site.below)))
        return drawing(key(experiment.seed, ROLES["draw"]), sampled, ids, ids >= 0)

    def _identity(self) -> str:
        """The run of this folder, a new one where there is none."""
        path = self.folder / "run.json"
        remove_temporary_files(self.folder)
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["config"] != self.site.config:
                raise InputError(
                    f"{self.folder} holds a run of another config: start a new one with `sfedhp cloud --new`."
                )
            return str(known["run"])
        experiment = self.site.experiment
        write_text(self.folder / "config.toml", to_toml(to_dict(experiment)))
        about = environment(
            self._initial.device, self._network.d, engine="NVIDIA FLARE", federation=self.site.federation
        )
        write_text(self.folder / "environment.json", json.dumps(about, indent=2) + "\n")
        run = secrets.token_hex(8)
        write_text(path, json.dumps({"run": run, "config": self.site.config}) + "\n")
        return run

    def _history(self) -> History:
        """The records of the rounds that the checkpoint counts on.

        Raises:
            InputError: some of them are lost; nothing was changed.
        """
        path, ledger = self.folder / "history.jsonl", self.folder / "ledger.jsonl"
        rows = rows_of_run(path, self._round)
        booked = [row["round"] for row in read_rows(ledger, sys.maxsize)]
        # One that was moved away began anew with a later round; from there on it is whole as well.
        whole = not booked or booked == list(range(booked[0], max(booked[-1], self._round) + 1))
        if not whole or (not booked and ledger.exists() and ledger.stat().st_size):
            raise InputError(
                f"{ledger} does not hold each round up to {self._round} once, in order: put it back from a "
                f"copy, or move it away to go on with a new one."
            )
        return History(path, rows)

    def _save(self, served: Served) -> None:
        checkpoints.write(self.folder / "checkpoint", self._round, {"cloud": served})

    def _restore(self) -> int:
        """Take up the newest checkpoint that can be read; how many rounds are done.

        Raises:
            InputError: there are checkpoints and none of them can be read; nothing was changed.
        """
        found = checkpoints.read(
            self.folder / "checkpoint",
            needs=[name for name, _ in named_tensors(self._cloud.served, "cloud")],
            remedy=f"put one back from a copy, or begin anew with `sfedhp cloud {self.folder.parent} --new`, "
            f"which keeps this run beside the new one",
        )
        if found is None:
            return 0
        self._cloud.served = unflatten(self._cloud.served, found.tensors, "cloud")
        return found.round


def _beside(models: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
    """Models and statistics as one message each; one message to all stays one."""
    if models.stride(0) == 0:
        return spread(torch.cat([models[0], tails[0]]), len(models))
    return torch.cat([models, tails], -1)
