from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import sfedhp
from sfedhp.algorithms import FedAvg
from tests.support.browser import Browser, find_chromium
from tests.support.short_runs import SMALL


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run `one`, and `several`: two methods with two seeds each."""
    here = tmp_path_factory.mktemp("runs")
    sfedhp.run(replace(SMALL, rounds=4), out=here / "one")
    for seed in (0, 1):
        for name, method in {"sfedhp": SMALL.algorithm, "fedavg": FedAvg()}.items():
            sfedhp.run(replace(SMALL, algorithm=method, seed=seed), out=here / "several" / f"{name}-{seed}")
    return here


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    if (path := find_chromium()) is None:
        pytest.skip("there is no chromium: install it to test pages in a browser")
    with Browser(path) as opened:
        yield opened
