"""Time that a test moves: waiting takes no real time, and what is scheduled happens in order."""

from __future__ import annotations

import heapq
import itertools
import queue
from collections import deque


class Timeline:
    """A clock (call it for the time) and what is to happen when."""

    def __init__(self):
        self.now = 1000.0
        self._events = []
        self._order = itertools.count()

    def __call__(self):
        return self.now

    def after(self, seconds, action, *arguments):
        heapq.heappush(self._events, (self.now + seconds, next(self._order), action, arguments))

    def step(self, until):
        """Let the next event happen; False, and the time is `until`, where there is none before."""
        if not self._events or self._events[0][0] > until:
            self.now = until
            return False
        when, _, action, arguments = heapq.heappop(self._events)
        self.now = max(self.now, when)
        action(*arguments)
        return True


class TimedInbox:
    """An inbox whose `get` waits on a timeline."""

    def __init__(self, timeline):
        self._timeline = timeline
        self._messages: deque[tuple[str, bytes]] = deque()

    def put(self, message):
        self._messages.append(message)

    def get(self, block=True, timeout=None):
        until = self._timeline.now + timeout
        while not self._messages:
            if not self._timeline.step(until):
                raise queue.Empty
        return self._messages.popleft()
