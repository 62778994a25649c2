"""The folder of the cloud's run: its identity, config and environment, its records and its checkpoints."""

from __future__ import annotations

import json
import secrets
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from sfedhp.core.checksums import DamagedError, checked, reading, with_checksum
from sfedhp.core.errors import InputError
from sfedhp.core.files import remove_temporary_files, write_text
from sfedhp.core.parsing import parse_json
from sfedhp.deploy.roles.loading import Model
from sfedhp.deploy.site import REVOKED, Site
from sfedhp.engine.rounds import Served
from sfedhp.runs import checkpoints
from sfedhp.runs.environment import environment
from sfedhp.runs.folder import write_config, write_environment
from sfedhp.runs.record_file import RecordFile
from sfedhp.runs.records import History, read_rows, rows_of_run
from sfedhp.runs.tensor_files import named_tensors, unflatten


class CloudFolder:
    """Reads and writes the folder. A cloud that is restarted continues the run it finds there."""

    def __init__(self, path: Path, site: Site):
        self.path, self._site = path, site

    def run_id(self, model: Model) -> str:
        """The id of the run in this folder; a new run, with its config and environment, if there is none.

        Raises:
            InputError: the folder holds a run of another config, or its file is damaged or missing.
        """
        file = self.path / "run.json"
        remove_temporary_files(self.path, "checkpoint", "models")
        if file.exists():
            run, config = self._known(file)
            if config != self._site.config:
                raise InputError(
                    f"{self.path} holds a run of another config: start a new one with "
                    f"`sfedhp cloud {self.path.parent} --new`."
                )
            return run
        if self._recorded() or checkpoints.rounds_in(self.path / "checkpoint"):  # a kill cannot leave this
            raise InputError(
                f"{file}, with the id of the run, is missing beside finished rounds: restore it from a copy, "
                f"or {self._anew()}."
            )
        write_config(self.path, self._site.experiment)
        about = environment(
            model.initial.device, model.network.d, engine="NVIDIA FLARE", federation=self._site.federation
        )
        write_environment(self.path, about)
        run = secrets.token_hex(8)
        write_text(file, json.dumps(with_checksum({"run": run, "config": self._site.config})) + "\n")
        return run

    def _known(self, file: Path) -> tuple[str, str]:
        """The id and the config of the run in this folder; with another id, all members would start again."""
        with reading(file, "with the id of the run", f"restore it from a copy, or {self._anew()}"):
            known = checked(file, parse_json(file.read_bytes()))
            return str(known["run"]), str(known["config"])

    def _anew(self) -> str:
        """The remedy if files of the run cannot be restored."""
        return f"start a new run with `sfedhp cloud {self.path.parent} --new`, which keeps this one"

    def _recorded(self) -> int:
        """How many rounds the records hold, by their whole lines; whether they are damaged is not checked."""
        found = 0
        for name in ("history.jsonl", "ledger.jsonl"):
            with suppress(FileNotFoundError), (self.path / name).open("rb") as file:
                found = max(found, sum(line.endswith(b"\n") for line in file))
        return found

    def revoked(self) -> dict[str, Any]:
        """The list of revoked certificates, which the cloud adds to its requests so that edges refuse too."""
        try:
            return {"revoked": parse_json((self.path.parent / REVOKED).read_bytes())}
        except (OSError, ValueError):
            return {}

    def history(self, rounds: int) -> History:
        """The records, which have to hold every round up to the one of the checkpoint.

        Raises:
            DamagedError: a line is not as it was written; nothing was changed.
            InputError: some rounds are missing; nothing was changed.
        """
        path, ledger = self.path / "history.jsonl", self.path / "ledger.jsonl"
        try:
            rows = rows_of_run(path, rounds)
        except DamagedError as error:
            raise DamagedError(f"{str(error).rstrip('.')}: restore it from a copy.") from None
        recorded = [row["round"] for row in read_rows(ledger, sys.maxsize)]
        # A ledger that was moved away starts with a later round, and is complete from there on.
        complete = not recorded or recorded == list(range(recorded[0], max(recorded[-1], rounds) + 1))
        if not complete or (not recorded and ledger.exists() and ledger.stat().st_size):
            remedy = "restore it from a copy, or move it away to continue with a new one"
            try:
                deque(RecordFile(ledger).rows(), maxlen=0)
            except DamagedError as error:
                raise DamagedError(f"{str(error).rstrip('.')}: {remedy}.") from None
            raise InputError(f"{ledger} does not hold each round up to {rounds} once, in order: {remedy}.")
        return History(path, rows)

    def save(self, rounds: int, served: Served) -> None:
        """Write the checkpoint of a round."""
        checkpoints.write(self.path / "checkpoint", rounds, {"cloud": served})

    def restore(self, start: Served) -> tuple[int, Served]:
        """The rounds done and the state of the newest checkpoint; 0 and the start if there is none.

        Raises:
            InputError: no checkpoint can be read, or all are missing; nothing was changed.
        """
        folder, remedy = self.path / "checkpoint", f"restore one from a copy, or {self._anew()} beside it"
        needs = [name for name, _ in named_tensors(start, "cloud")]
        found = checkpoints.read(folder, needs=needs, remedy=remedy)
        if found is None:
            # The first round is recorded before its checkpoint is written, so a kill can leave one row alone.
            if (rounds := self._recorded()) > 1:
                raise InputError(
                    f"There is no checkpoint in {folder}, but {self.path} has records of {rounds} rounds: "
                    f"{remedy}."
                )
            return 0, start
        return found.round, unflatten(start, found.tensors, "cloud")
