"""The cloud's process: request a step of its members round by round, keep w, write the records of a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sfedhp.core.errors import InputError
from sfedhp.core.keys import ROLES, key
from sfedhp.core.late import NOBODY_LATE
from sfedhp.data.totals import Totals
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.messaging.member import states_of
from sfedhp.deploy.messaging.request import AllMembersFailedError
from sfedhp.deploy.messaging.traffic import bytes_of
from sfedhp.deploy.messaging.transport import Transport
from sfedhp.deploy.roles.cards import site_card
from sfedhp.deploy.roles.cloud_evaluation import evaluate
from sfedhp.deploy.roles.cloud_folder import CloudFolder
from sfedhp.deploy.roles.cloud_privacy import CloudPrivacy
from sfedhp.deploy.roles.cloud_traffic import RoundTraffic
from sfedhp.deploy.roles.cut_log import CutLog
from sfedhp.deploy.roles.loading import acceptance, load_model, read_totals, schema_of
from sfedhp.deploy.roles.loss_watch import LossWatch
from sfedhp.deploy.roles.members import member_group
from sfedhp.deploy.roles.private_noise import member_noise
from sfedhp.deploy.roles.totals_file import TotalsFile
from sfedhp.deploy.site import Site
from sfedhp.engine.blank_messages import blank_messages
from sfedhp.engine.roles import Cloud
from sfedhp.engine.rounds import Draw, drawing
from sfedhp.engine.secure_sum import exchanges
from sfedhp.nn.problems import problem_of
from sfedhp.runs.divergence import explosion, not_finite
from sfedhp.runs.models import save_model
from sfedhp.runs.record_file import Row
from sfedhp.runs.records import History
from sfedhp.runs.tracking.follow import Tracking
from sfedhp.wire.direction import Direction
from sfedhp.wire.link import link_of


class CloudRole:
    """Runs the cloud. It writes a checkpoint after every round, and continues from there when restarted."""

    def __init__(
        self,
        site: Site,
        kit: Path,
        transport: Transport,
        tracking: Tracking | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.site = site
        experiment, limits, algorithm = site.experiment, site.limits, site.experiment.algorithm
        three_tiers = algorithm.tiers == 3
        self.log = EventLog(kit / "run", site.name, site.names)
        self._folder = CloudFolder(kit / "run", site)
        self._model = load_model(site, kit)
        self._traffic = RoundTraffic(site, len(self._model.initial))
        self._members = member_group(
            site,
            kit,
            transport,
            run=self._folder.run_id(self._model),
            config=site.config,
            model=blank_messages(algorithm, self._model.initial).of_cloud,
            statistics=self._model.statistics,
            link=link_of(experiment.wire, Direction.to_cloud(algorithm.tiers).down).options,
            quorum=limits.edge_quorum if three_tiers else limits.client_quorum,
            timeout=limits.of_edges(algorithm.edge_rounds * exchanges(experiment.secure))
            if three_tiers
            else limits.client_seconds,
            silent_seconds=limits.silent_seconds,
            log=self.log,
            accept=acceptance(site, self._model.network),
            on_wait=self._write_status,
            on_metadata=self._traffic.add,
            notice=self._folder.revoked,
            late=experiment.late if three_tiers else NOBODY_LATE,
            clock=clock,
        )
        self._cuts = CutLog(self.log, site.below)
        self._cloud = Cloud(
            algorithm,
            self._members,
            self._model.initial,
            self._model.statistics,
            _draw(site),
            aggregation=experiment.aggregation,
            on_cut=self._cuts.add,
            schedule=experiment.schedule,
            privacy=experiment.privacy,
            noise=member_noise("cloud", self._folder.path, experiment, lambda: self._members.run),
        )
        self._privacy = CloudPrivacy(experiment)
        self._round = 0  # rounds done
        self._finite = self._cloud.served  # the last state in which everything is finite
        self._last_row: Row = {"round": 0}
        self._sent: Counter[str] = Counter()  # bytes of all rounds by direction
        self._losses = LossWatch()
        self._tracking = tracking or Tracking()
        self._totals: Totals | None = None  # of all clients' training rows, where inputs are scaled so

    def work(self) -> None:
        """Run all rounds that are left, save the model, and tell the members that the run is over."""
        self._round, self._cloud.served = self._folder.restore(self._cloud.served)
        self._finite = self._cloud.served
        history = self._folder.history(self._round)
        if not self._round:
            self._members.wait_for_all(self.site.limits.start_seconds)
        self._last_row = history.last or {"round": self._round}
        for row in history.rows:
            self._sent.update(bytes_of(row))
        error = self._request_totals() if self.site.sums else None
        self.log.write("up", round=self._round, rounds=self.site.experiment.rounds)
        error = error or self._run_rounds(history)
        history.close()
        model = self.site.experiment.algorithm.global_model(self._finite.state)
        if model is not None:
            path = self._folder.path / "models" / "global.safetensors"
            module = self._model.network.build(model, self._finite.statistics)
            main = problem_of(self.site.experiment.problem).main
            value = self._last_row.get(main.column("gm"))
            metrics = {} if value is None else {main.name: value}
            card = site_card(self.site, schema_of(self.site, self._totals), self._round, metrics)
            save_model(path, module, self.site.classes, card)
        self._tracking.close()
        if error:
            self.log.write("trouble", reason=error)
        self._write_status(now=True, finished=True, trouble=error)
        self._members.farewell(self.site.limits.start_seconds)
        self._write_status(now=True, finished=True, trouble=error)
        self.log.write("over", round=self._round)

    def _request_totals(self) -> str | None:
        """Request the totals of all clients' rows before the first round; a message if there are none."""
        file, run = TotalsFile(self._folder.path), self._members.run
        totals = file.read(run)
        try:
            if totals is None:
                totals = self._members.sum_up().to_dict()
                self.log.try_write(lambda: file.write(run, totals))
            self._totals = read_totals(self.site, totals)
        except (AllMembersFailedError, ValueError) as error:
            return f"no round could begin: {error}"
        self._members.totals = totals
        return None

    def _run_rounds(self, history: History) -> str | None:
        """Run the remaining rounds; a message if the run ended before the last of them, else None."""
        started = time.perf_counter()
        self._privacy.note(self._round, {})
        try:
            if (ended := self._privacy.ended(self._round)) and self._round < self.site.experiment.rounds:
                return ended  # it was started again after its last round
            for served in self._cloud.run(self.site.experiment.rounds, self._round):
                (sentence,) = not_finite({"the cloud's model": served})
                if sentence:
                    return f"diverged in round {self._round + 1}: {sentence}"
                self._finite, self._round = served, self._round + 1
                row, bytes_by_member = self._row()
                now = time.perf_counter()
                row["seconds"], started = now - started, now
                self._last_row = row
                self._sent.update(bytes_of(row))
                history.append(row, bytes_by_member)
                history.fsync()
                self._folder.save(self._round, served)
                self._tracking.update()
                self._cuts.write(self._round)
                self.log.write("round", **{name: row[name] for name in ("round", "seconds", "missing")})
                self._write_status(now=True)
                if ended := self._privacy.ended(self._round):
                    return ended if self._round < self.site.experiment.rounds else None
                exploded = explosion(history.ends)
                if exploded and self._losses.most_exploded():
                    return exploded
        except AllMembersFailedError as error:
            return f"diverged in round {self._round + 1}: no member can answer ({error})"
        except InputError as error:  # for example because earlier runs have spent its privacy budget
            return str(error)
        return None

    def _row(self) -> tuple[Row, dict[str, Any]]:
        """The round's metrics, bytes and missing members, and its bytes by member."""
        experiment = self.site.experiment
        row: Row = {"round": self._round}
        reports: dict[str, Any] = {}
        if self._round % experiment.evaluation.every == 0 or self._round == experiment.rounds:
            found, reports = evaluate(self.site, self._members, self._cloud.served, self._round)
            self._losses.note(reports)
            row |= found
        row |= self._privacy.note(self._round, reports)
        traffic, bytes_by_member = self._traffic.close(self._members.take_traffic())
        return row | traffic, bytes_by_member

    def _write_status(self, now: bool = False, **more: Any) -> None:
        metadata = self._members.metadata()
        members = {
            name: {"up": up, **(metadata[name] if up else {})} for name, up in self._members.present().items()
        }
        self.log.write_status(
            now,
            run=self._members.run,
            # While a round is evaluated, it is done, but its accuracies are not known yet.
            round=self._last_row["round"],
            rounds=self.site.experiment.rounds,
            row=self._last_row,
            sent=dict(self._sent),
            members=members,
            states=states_of(self._members.members, self._members.clock()),
            **more,
        )


def _draw(site: Site) -> Draw:
    """Which members take part in which round."""
    experiment = site.experiment
    ids = torch.tensor(site.clients or range(len(site.below)))
    return drawing(key(experiment.seed, ROLES["draw"]), experiment.sampled_members, ids, ids >= 0)
