"""The progress of an edge on its disk, from which it continues after a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from sfedhp.core.checksums import DamagedError
from sfedhp.deploy.event_log import EventLog
from sfedhp.deploy.messaging.protocol import Envelope
from sfedhp.deploy.messaging.traffic import Traffic
from sfedhp.deploy.roles.state_files import load_state, save_state
from sfedhp.engine.roles import EdgeProgress


class SavedProgress(NamedTuple):
    """How far an edge is in a cloud round, as its file says."""

    run: str
    cloud_round: int
    progress: EdgeProgress
    traffic: dict[str, Any]  # with the clients in this cloud round, as `Traffic.to_dict`


class EdgeStateFile:
    """The file with an edge's state after its last edge round.

    Without it, an edge repeats the edge rounds of a cloud round. So a damaged file is logged and replaced.
    """

    def __init__(self, folder: Path, log: EventLog):
        self._path, self._log = folder / "state.safetensors", log

    def save(self, request: Envelope, progress: EdgeProgress, traffic: Traffic, *, durable: bool) -> None:
        """Write the state.

        Args:
            request: of the cloud, that the edge works on.
            progress: after an edge round.
            traffic: with the clients since the request came.
            durable: wait until it is on the disk.

        Raises:
            OSError: the disk is full, or the file cannot be written.
        """
        about = {
            "run": request.run,
            "cloud_round": str(request.clock.cloud_round),
            "done": str(progress.rounds_done),
            "books": json.dumps(traffic.to_dict()),
        }
        trees = {"served": progress.served, "last": progress.weights}
        save_state(self._path, trees, about, durable=durable)

    def load(self, like: EdgeProgress) -> SavedProgress | None:
        """The state in the file; None if there is none, or it cannot be read.

        Args:
            like: any progress of the same algorithm and model.
        """
        found = self._read({"served": like.served, "last": like.weights})
        if found is None:
            return None
        trees, about = found
        if trees["last"].shape != like.weights.shape:
            return None  # a seat was added since: the round is repeated
        progress = EdgeProgress(int(about["done"]), trees["served"], trees["last"])
        return SavedProgress(about["run"], int(about["cloud_round"]), progress, json.loads(about["books"]))

    def run(self) -> str | None:
        """The run that the file belongs to; None if there is none."""
        found = self._read({})
        return None if found is None else found[1]["run"]

    def _read(self, templates: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]] | None:
        try:
            return load_state(self._path, templates)
        except DamagedError as error:
            self._log.write("trouble", reason=str(error))
            return None
