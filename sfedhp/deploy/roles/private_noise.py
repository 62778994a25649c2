"""The noise of a deployed role: from its own secret, and counted on disk before it is used."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from sfedhp.config import Experiment
from sfedhp.core.checksums import checked, reading, with_checksum
from sfedhp.core.errors import InputError
from sfedhp.core.files import write_atomically, write_private
from sfedhp.core.noise import SecretNormals
from sfedhp.core.parsing import parse_json
from sfedhp.deploy.site import PRIVACY_FILE
from sfedhp.privacy.accounting import Release, epsilon
from sfedhp.privacy.options import NoiseTier
from sfedhp.runs.privacy import budget_is_spent, releases_of_row, releases_per_round

_BYTES: Final = 32


class PrivateNoise:
    """Gives the noise of each release, and refuses a release that would exceed the budget.

    A release that is repeated unchanged gets the same noise and counts once. So a restart spends nothing
    twice, and a server that asks again with another model spends budget. Releases of all runs with a kit are
    counted, because they use the same data, and a server can start any number of runs.
    """

    def __init__(self, folder: Path, experiment: Experiment, context: Callable[[], str], rows: int = 0):
        """Read the secret and the count, or create them.

        Args:
            folder: of the role.
            experiment: with the section [privacy].
            context: what a release follows from beside the values given to `bound_to`: the run, and by what
                inputs are scaled.
            rows: training rows of a client; 0: the role is a server.

        Raises:
            InputError: the file cannot be read or written, so the noise could not be recorded.
        """
        self._path, self._rows = folder / PRIVACY_FILE, rows
        self._experiment, self._context = experiment, context
        content = "with what this site has spent of its privacy"
        try:
            with reading(self._path, content, "put it back from a copy, or start a new run in a new kit"):
                self._held: dict[str, Any] = checked(self._path, parse_json(self._path.read_bytes()))
                bytes.fromhex(self._held["secret"])
        except FileNotFoundError:
            self._held = {"secret": secrets.token_bytes(_BYTES).hex(), "count": 0, "last": ""}
            self._write()

    def bound_to(self, *values: Tensor) -> SecretNormals:
        """The noise of a release that follows from these values.

        Raises:
            InputError: it would spend more than the budget, or cannot be counted.
        """
        secret = hmac.digest(bytes.fromhex(self._held["secret"]), self._context().encode(), "sha256")
        found = SecretNormals(secret).bound_to(*values)
        mark = hashlib.sha256(b"mark" + found.secret).hexdigest()
        if mark == self._held["last"]:
            return found
        budget, after = self._experiment.privacy.epsilon, self.epsilon(1)
        if budget and after > budget:
            counted = "in all runs with this kit"
            raise InputError(budget_is_spent(self.epsilon(), counted, "reply", after, budget))
        self._held |= {"count": self._held["count"] + 1, "last": mark}
        self._write()
        return found

    def epsilon(self, more: int = 0) -> float:
        """ε of all releases so far, and of some more."""
        count, options = self._held["count"] + more, self._experiment.privacy
        if options.unit == "row":
            return epsilon(releases_of_row(self._experiment, self._rows, count), options.noise, options.delta)
        return epsilon(Release(count, 1, 1), options.noise, options.delta)

    def report(self) -> list[float]:
        """ε now, and after another cloud round."""
        return [self.epsilon(), self.epsilon(releases_per_round(self._experiment))]

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            data = json.dumps(with_checksum(self._held)).encode() + b"\n"
            write_atomically(self._path, lambda beside: write_private(beside, data))
        except OSError as error:
            raise InputError(
                f"{self._path} cannot be written ({error.strerror or error}), and a reply whose noise is not "
                f"recorded must not be sent: free disk space."
            ) from None


def member_noise(
    tier: NoiseTier, folder: Path, experiment: Experiment, context: Callable[[], str], rows: int = 0
) -> PrivateNoise | None:
    """The noise of a role of a tier; None if it adds none. Arguments as of `PrivateNoise`."""
    options = experiment.privacy
    if not options.active or options.tier != tier:
        return None
    return PrivateNoise(folder, experiment, context, rows)
