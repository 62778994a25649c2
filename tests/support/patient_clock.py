"""A clock for roles that are threads of this process: what slows them down slows it down too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_STEP = 0.02  # s that pass at most each time the clock's thread gets the processor


class PatientClock:
    """Seconds that pass only while this process runs.

    On a busy machine threads wait for the processor for seconds, and a member that could send nothing would
    count as silent. This clock's thread waits with them, so that time limits last as long as they need to.
    A test that needs time to pass does not wait for it: it skips it.
    """

    def __init__(self) -> None:
        self._now = 0.0  # without what was skipped
        self._skipped = 0.0
        self._started, self._skipping = threading.Lock(), threading.Lock()

    def __call__(self) -> float:
        """The seconds that have passed since the first call."""
        if self._started.acquire(blocking=False):
            threading.Thread(target=self._run, name="patient clock", daemon=True).start()
        return self._now + self._skipped

    def skip(self, seconds: float) -> float:
        """Let this many seconds pass at once; the time after them.

        For these seconds nobody has sent anything: with more than a server's `silent_seconds`, all its
        members are silent until their next heartbeats.
        """
        with self._skipping:
            self._skipped += seconds
        return self()

    def wait_for(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait until something is so.

        Raises:
            AssertionError: it was not so within this time.
        """
        until = self() + seconds
        while not condition():
            assert self() < until, "it did not happen"
            time.sleep(_STEP / 2)

    def _run(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(_STEP / 2)
            now = time.monotonic()
            self._now += min(now - before, _STEP)
            before = now


CLOCK = PatientClock()
wait_for = CLOCK.wait_for
