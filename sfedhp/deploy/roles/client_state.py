"""The state of a client on its disk: after the last step, and before it.

A request that is repeated after a restart must not train twice, so the state before it is kept too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from sfedhp.core.checksums import DamagedError
from sfedhp.core.types import Clock
from sfedhp.deploy.roles.state_files import load_state, save_state
from sfedhp.engine.roles import Before, Client


class SavedClient(NamedTuple):
    """The state of a client as it was saved."""

    run: str
    clock: Clock  # of the last step
    trees: dict[str, Any]

    def restore(self, client: Client) -> None:
        """Put a new client into this state."""
        client.personal, client.statistics = self.trees["personal"], self.trees["statistics"]
        client.before = Before(self.clock, self.trees["before_personal"], self.trees["before_statistics"])


class ClientStateFile:
    """The file with a client's state after its last step, from which a restarted client continues."""

    def __init__(self, folder: Path):
        self._path = folder / "state.safetensors"

    def save(self, client: Client, run: str, *, durable: bool) -> None:
        """Write the state of a client after a step, and the one before it; `durable` as in `save_state`.

        Raises:
            OSError: the disk is full, or the file cannot be written.
        """
        assert client.before is not None
        clock, personal, statistics = client.before
        trees = {
            "personal": client.personal,
            "statistics": client.statistics,
            "before_personal": personal,
            "before_statistics": statistics,
        }
        about = {"run": run, "cloud_round": str(clock.cloud_round), "edge_round": str(clock.edge_round)}
        save_state(self._path, trees, about, durable=durable)

    def load(self, fresh: Client) -> SavedClient | None:
        """The saved state of a client with the same shapes as this new one; None if there is none.

        Raises:
            DamagedError: the file was changed. There is no other copy of the client's own model.
        """
        templates = {"personal": fresh.personal, "statistics": fresh.statistics}
        templates |= {f"before_{name}": tree for name, tree in templates.items()}
        try:
            found = load_state(self._path, templates)
        except DamagedError as error:
            remedy = "restore it from a copy, or move it away to start this client anew"
            raise DamagedError(f"{str(error).rstrip('.')}: {remedy}.") from None
        if found is None:
            return None
        trees, about = found
        clock = Clock(int(about["cloud_round"]), int(about["edge_round"]))
        return SavedClient(about["run"], clock, trees)
