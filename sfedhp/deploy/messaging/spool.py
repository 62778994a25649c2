"""The durable hand-over between an edge's two halves: files that are renamed into place.

The half that faces the cloud puts questions in, the half that faces the clients answers. A question that was
answered once is answered from the file, so asking twice, or a restart of either half, costs nothing.
"""

from __future__ import annotations

from pathlib import Path

from sfedhp.core.files import remove_temporary_files, write_atomically
from sfedhp.deploy.messaging.protocol import Envelope, unseal
from sfedhp.wire import DecodeError

Key = tuple[str, int, int]  # run, cloud round, kind


class Spool:
    """A folder with the questions of the cloud and the answers to them."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, question: bytes, key: Key) -> None:
        """Put a question in; older ones are given up."""
        self._write("question", key, question)
        for kind in ("question", "answer"):
            for path, other in self._all(kind):
                if other != key and not (kind == "answer" and other[:2] == key[:2]):
                    path.unlink(missing_ok=True)

    def newest(self) -> tuple[Key, Envelope] | None:
        """The question to be answered now: the last one put in, if it has no answer."""
        for path, key in self._all("question"):
            if self.answer(key) is None:
                try:
                    return key, unseal(path.read_bytes())
                except (OSError, DecodeError):
                    path.unlink(missing_ok=True)  # half of it was lost with the power; it will be sent again
        return None

    def asked(self, key: Key) -> bool:
        """Whether the question still stands."""
        return self._path("question", key).exists()

    def finish(self, key: Key, answer: bytes) -> None:
        """Answer a question."""
        self._write("answer", key, answer)

    def answer(self, key: Key) -> bytes | None:
        """The answer, once it is there."""
        try:
            return self._path("answer", key).read_bytes()
        except FileNotFoundError:
            return None

    def forget(self, key: Key) -> None:
        """Take an answer away, so that the question must be answered anew."""
        self._path("answer", key).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what killed processes left half-written."""
        remove_temporary_files(self.folder)

    def _write(self, kind: str, key: Key, data: bytes) -> None:
        write_atomically(self._path(kind, key), lambda beside: beside.write_bytes(data))

    def _path(self, kind: str, key: Key) -> Path:
        run, turn, what = key
        return self.folder / f"{kind}-{run}-{turn:08d}-{what}"

    def _all(self, kind: str) -> list[tuple[Path, Key]]:
        found = []
        for path in sorted(self.folder.glob(f"{kind}-*")):
            _, run, turn, what = path.name.split("-")
            found.append((path, (run, int(turn), int(what))))
        return found


def key_of(question: Envelope) -> Key:
    """By what a question of the cloud is known."""
    return question.run, int(question.clock.cloud_round), int(question.kind)
