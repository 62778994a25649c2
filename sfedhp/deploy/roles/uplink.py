"""The half of an edge that faces the cloud: it passes questions on to the spool and answers back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from sfedhp.deploy.event_log import Journal, read_status
from sfedhp.deploy.messaging.protocol import Envelope, Kind, seal
from sfedhp.deploy.messaging.responder import Desk
from sfedhp.deploy.messaging.spool import Spool, key_of
from sfedhp.deploy.messaging.transport import SERVER, Post
from sfedhp.deploy.site import Site

_GLANCE: Final = 0.01  # s between two looks into the spool


class BridgeRole:
    """Moves bytes; what they mean is the other half's business."""

    def __init__(self, site: Site, kit: Path, post: Post):
        self.folder = kit / "run"
        self.journal = Journal(self.folder / "bridge", site.name)
        self._post, self._spool = post, Spool(self.folder / "spool")
        self._parting = False
        self._desk = Desk(post, site.seat, site.config, self.journal, self._about)

    def work(self) -> None:
        """Until the run is over."""
        self.journal.write("up")
        self._desk.open()
        open_: Envelope | None = None
        while True:
            question = self._desk.take(_GLANCE)
            if question is not None and self._put(question):
                open_ = question
            answer = None if open_ is None else self._spool.answer(key_of(open_))
            if open_ is not None and answer is not None:
                self._post.send(SERVER, answer)
                self._desk.answered()
                if open_.kind is Kind.FAREWELL:
                    break
                open_ = None
        time.sleep(0.5)  # the last answer is on its way
        self._desk.close()
        self.journal.write("over")

    def _put(self, question: Envelope) -> bool:
        try:
            if question.kind is Kind.FAREWELL and not self._parting:
                # An answer of before a restart says nothing about the other half's clients now.
                self._spool.forget(key_of(question))
                self._parting = True
            if self._spool.answer(key_of(question)) is None:
                self._spool.put(seal(question), key_of(question))
        except OSError as error:
            # The cloud asks again, as long as it hears that the question is not here.
            self.journal.write("trouble", reason=f"the spool cannot be written: {error.strerror}")
            time.sleep(1.0)
            return False
        self._desk.took(question)
        return True

    def _about(self) -> dict[str, Any]:
        """How the other half stands, for the cloud's status; it leaves its work for a newer question."""
        status = read_status(self.folder) or {}
        about: dict[str, Any] = {name: status[name] for name in ("edge_round", "members") if name in status}
        return about | {"yields": True}
