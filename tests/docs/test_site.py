"""The site is built from docs/ without a warning, opens from the disk, and asks nothing of the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sfedhp
from sfedhp.algorithms import ALGORITHMS
from sfedhp.cli import COMMANDS
from tests.support.browser import Browser, find_chromium
from tests.support.pages import DOCS
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return folder


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


def test_every_page_and_every_command_is_there(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).exists(), page
    for command in COMMANDS:
        assert f"Usage: sfedhp {command}" in text_of(site / f"reference/commands/{command}.html")
    assert "algorithm.client_proximity=15.0" in text_of(site / "reference/commands/run.html")
    assert "Usage: sfedhp data get" in text_of(site / "reference/commands/data.html")


def test_the_api_has_every_public_name(site: Path) -> None:
    page = (site / "reference/api/sfedhp.html").read_text(encoding="utf-8")
    headed = set(re.findall(r'<h2 id="sfedhp\.[\w.]*?(\w+)"', page))
    constants = {"ALGORITHMS", "Count", "Rate", "Share", "Strength", "__version__"}
    assert set(sfedhp.__all__) - headed == constants
    assert "T, number of cloud rounds" in page
    assert {kind.__name__ for kind in ALGORITHMS.values()} <= headed


def test_links_to_files_of_the_repository_lead_to_their_pages(site: Path) -> None:
    page = (site / "algorithms/fedavg.html").read_text(encoding="utf-8")
    assert 'href="../source/sfedhp/algorithms/fedavg.py.html"' in page
    assert "class FedAvg" in text_of(site / "source/sfedhp/algorithms/fedavg.py.html")
    assert 'href="project/contributing.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_the_search_works_from_the_disk_without_a_network(site: Path) -> None:
    if (path := find_chromium()) is None:
        pytest.skip("there is no chromium: install it to test pages in a browser")
    with Browser(path) as browser, browser.open(site / "index.html") as opened:
        opened.page.locator("input[name=query]").click()
        opened.page.keyboard.type("quorum")
        found = opened.page.locator(".md-search-result__list a[href*='deployment.html']").first
        found.wait_for(timeout=60_000)
        assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert opened.errors == []
