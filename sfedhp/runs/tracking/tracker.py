"""The interface of a tracker, and what it gets about a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Subject:
    """The run that is tracked."""

    folder: Path
    name: str  # that people read: the last two parts of the folder's path
    config: Mapping[str, Any]  # with dots in the keys of sections
    toml: str  # the same as a file

    @property
    def models(self) -> Sequence[Path]:
        """The files of its models; none before it ends."""
        return sorted((self.folder / "models").glob("*.safetensors"))


class Tracker(Protocol):
    """One run in one tracker. A method may raise anything: the packages have many errors of their own."""

    id: str  # with which the same run is continued there

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        """Add a row of the history."""

    def end(self, *, finished: bool) -> None:
        """Add the models, and close; a run that is not finished may be continued."""
