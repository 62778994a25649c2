"""Which tests are expensive, also on a busy machine: CPU seconds of folders and of the most expensive tests.

pytest -n 0 -p tests.support.cpu_seconds tests/docs

Seconds of the processes that a test starts and waits for are its own. The tables come at the end.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import PurePosixPath
from typing import Final

import psutil  # type: ignore[import-untyped]
import pytest

_SHOWN: Final = 20
_SECONDS: dict[str, float] = {}  # of each test


def _used() -> float:
    """CPU seconds of this process, of those it has waited for, and of those that the fork server has."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is not None and psutil.pid_exists(server):
        forked = psutil.Process(server).cpu_times()
        total += forked.user + forked.system + forked.children_user + forked.children_system
    return total


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count a test with its fixtures."""
    before = _used()
    found = yield
    _SECONDS[item.nodeid] = _used() - before
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seconds of each folder, then of the most expensive tests."""
    folders: dict[str, float] = defaultdict(float)
    for name, seconds in _SECONDS.items():
        folders["/".join(PurePosixPath(name.partition("::")[0]).parts[:2])] += seconds
    terminalreporter.section("CPU seconds")
    sorted_lists = [sorted(each.items(), key=lambda item: -item[1]) for each in (folders, _SECONDS)]
    for name, seconds in [*sorted_lists[0], *sorted_lists[1][:_SHOWN]]:
        terminalreporter.write_line(f"{seconds:8.1f}  {name}")
    terminalreporter.write_line(f"{sum(_SECONDS.values()):8.1f}  in all, of {len(_SECONDS)} tests")
