"""The durable queue between the two processes of an edge: files that are renamed into place.

The process that talks to the cloud adds requests, the process that talks to the clients adds replies. A
request with a reply is answered from its file, so a repeated request, or a restart of either process, costs
nothing. A damaged file is removed when it is read; then the request is put in, or worked on, again.
"""

from __future__ import annotations

from pathlib import Path

from sfedhp.core.files import remove_temporary_files, write_atomically, write_private
from sfedhp.deploy.messaging.protocol import Envelope, decode_message
from sfedhp.wire import DecodeError
from sfedhp.wire.header import split_header

Key = tuple[str, int, int]  # run, cloud round, kind
_REQUEST, _REPLY = "question", "answer"  # how file names begin


class Spool:
    """A folder with the requests of the cloud and the replies to them."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)

    def put(self, request: bytes, key: Key) -> None:
        """Put a request in; older ones are dropped."""
        self._write(_REQUEST, key, request)
        for kind in (_REQUEST, _REPLY):
            for path, other in self._all(kind):
                if other != key and not (kind == _REPLY and other[:2] == key[:2]):
                    path.unlink(missing_ok=True)

    def newest(self) -> tuple[Key, Envelope] | None:
        """The request to work on: the last one put in, if it has no reply."""
        for path, key in self._all(_REQUEST):
            if not self._path(_REPLY, key).exists():
                try:
                    return key, _undamaged(path.read_bytes())
                except (OSError, DecodeError):
                    path.unlink(missing_ok=True)  # for example cut off by a power failure
        return None

    def requested(self, key: Key) -> bool:
        """Whether the request is still there."""
        return self._path(_REQUEST, key).exists()

    def finish(self, key: Key, reply: bytes) -> None:
        """Put the reply to a request in."""
        self._write(_REPLY, key, reply)

    def reply(self, key: Key) -> bytes | None:
        """The reply to a request; None before it is there. A damaged one is forgotten."""
        try:
            data = self._path(_REPLY, key).read_bytes()
            _undamaged(data)
        except FileNotFoundError:
            return None
        except DecodeError:
            self.forget(key)
            return None
        return data

    def forget(self, key: Key) -> None:
        """Remove a reply, so that the request has to be worked on again."""
        self._path(_REPLY, key).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove unfinished files of killed processes."""
        remove_temporary_files(self.folder)

    def _write(self, kind: str, key: Key, data: bytes) -> None:
        write_atomically(self._path(kind, key), lambda beside: write_private(beside, data))

    def _path(self, kind: str, key: Key) -> Path:
        run, cloud_round, what = key
        return self.folder / f"{kind}-{run}-{cloud_round:08d}-{what}"

    def _all(self, kind: str) -> list[tuple[Path, Key]]:
        found = []
        for path in sorted(self.folder.glob(f"{kind}-*")):
            _, run, cloud_round, what = path.name.split("-")
            found.append((path, (run, int(cloud_round), int(what))))
        return found


def _undamaged(data: bytes) -> Envelope:
    """The message, of which every part is a model.

    Raises:
        DecodeError: the checksum of its header, or of a part, is wrong.
    """
    message = decode_message(data)
    for part in message.parts:
        split_header(memoryview(part))
    return message


def key_of(request: Envelope) -> Key:
    """The key of a request of the cloud."""
    return request.run, int(request.clock.cloud_round), int(request.kind)
