"""The server of the live page: the current content of folders, for a polling browser and for Prometheus."""

from __future__ import annotations

import hashlib
import json
import statistics
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sfedhp.core.errors import InputError
from sfedhp.core.formats import counted, duration
from sfedhp.deploy.loopback import Answer, LoopbackServer
from sfedhp.deploy.monitor import Sample, byte_samples, exposition, kit_samples, row_samples
from sfedhp.report.facts import Facts, ReportedRun, group, read_run_of, runs_below
from sfedhp.report.federation import kits_beside, member_names, member_states, refused
from sfedhp.report.html import paragraph
from sfedhp.report.page import Content, Live, render_content, title_of, wrap
from sfedhp.report.sections import member_list
from sfedhp.runs.score_files import SCORE_FILES

EVERY: Final = 1.0  # s between two requests of a page
_CONTENT: Final = "/content.json"
_FILES: Final = ("config.toml", "history.jsonl", "environment.json", "checkpoint", *SCORE_FILES)
_ROUNDS_OF_ESTIMATE: Final = 10


class Watcher:
    """Reads folders on request, and caches what has not changed."""

    def __init__(self, folders: Sequence[Path]):
        self.folders = folders
        self._lock = threading.Lock()
        self._runs: dict[Path, tuple[Any, ReportedRun]] = {}  # by folder, with what its files were
        self._rendered: tuple[Any, Content, str] = (None, Content("", {}), "")  # with key and version

    def page(self) -> Answer:
        """The answer to a request for the page: its whole HTML, as things are now."""
        with self._lock:
            facts, problems = self._read()
            content, version = self._content(facts, problems)
        title = title_of(facts) if facts else ", ".join(folder.name for folder in self.folders)
        text = wrap(title, content, Live(_CONTENT, EVERY, version))
        return Answer("text/html; charset=utf-8", text.encode())

    def content(self) -> Answer:
        """The content of the page's body as JSON, which the page loads again and again."""
        with self._lock:
            facts, problems = self._read()
            content, version = self._content(facts, problems)
        values = {
            "version": version,
            "html": content.html,
            "readouts": content.readouts,
            "state": f"{state_of_runs(facts)}; {datetime.now():%H:%M:%S}",
        }
        return Answer("application/json", json.dumps(values).encode())

    def metrics(self) -> Answer:
        """The figures of all runs for Prometheus."""
        with self._lock:
            facts, _ = self._read()
        return exposition(sample for run in (facts.runs if facts else ()) for sample in samples(run))

    def _read(self) -> tuple[Facts | None, list[str]]:
        """The runs that can be read now, and why others cannot."""
        found: dict[Path, ReportedRun] = {}
        problems = []
        for folder in self.folders:
            try:
                below = runs_below(folder)
            except InputError as error:
                problems.append(str(error))
                continue
            for run in below:
                try:
                    found[run] = self._run(run)
                except InputError as error:  # it has just begun, or is being written
                    problems.append(str(error))
        self._runs = {folder: kept for folder, kept in self._runs.items() if folder in found}
        runs = [
            replace(run, states=member_states(folder), names=member_names(folder)) if run.deployed else run
            for folder, run in found.items()
        ]
        return (Facts(runs, group(runs)) if runs else None), problems

    def _run(self, folder: Path) -> ReportedRun:
        """The run of a folder, read again if one of its files has changed."""
        key = [_stamp(folder / name) for name in _FILES]
        if folder not in self._runs or self._runs[folder][0] != key:
            self._runs[folder] = key, read_run_of(folder)
        return self._runs[folder][1]

    def _content(self, facts: Facts | None, problems: Sequence[str]) -> tuple[Content, str]:
        """What is inside the page, rendered again if something has changed; and its version."""
        runs = facts.runs if facts else []
        key = ([(id(self._runs[run.record.folder][1]), tuple(run.states.items())) for run in runs], problems)
        if self._rendered[0] != key:
            members = "".join(member_list(run, refused(run.record.folder)) for run in runs if run.states)
            content = Content("", {}) if facts is None else render_content(facts, members)
            notes = "".join(paragraph(f"Waiting: {each}", "note") for each in problems)
            content = Content(f"{notes}{content.html}", content.readouts)
            version = hashlib.sha256(content.html.encode()).hexdigest()[:16]
            self._rendered = (key, content, version)
        return self._rendered[1:]


def watch(folders: Sequence[Path], port: int = 0) -> LoopbackServer:
    """A server of the live page of these folders, which listens already; call its `run` or `start`.

    Raises:
        InputError: a folder does not exist, or the port cannot be used.
    """
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder: name the folder of a run, a sweep or a kit.")
    watcher = Watcher(folders)
    return LoopbackServer({"/": watcher.page, _CONTENT: watcher.content, "/metrics": watcher.metrics}, port)


def state_of_runs(facts: Facts | None) -> str:
    """The progress of the runs, in a line."""
    if facts is None:
        return "no run yet"
    if len(facts.runs) > 1:
        ended = sum(run.record.finished or run.record.error is not None for run in facts.runs)
        left = [seconds for run in facts.runs if (seconds := seconds_left(run)) is not None]
        more = f", about {duration(sum(left))} left" if left else ""
        return f"{ended} of {counted(len(facts.runs), 'run')} ended{more}"
    (run,) = facts.runs
    done = f"round {run.record.rounds_done} of {run.record.config['rounds']}"
    if run.record.error or run.record.finished:
        return f"{done}, ended"
    left_of_one = seconds_left(run)
    return done if left_of_one is None else f"{done}, about {duration(left_of_one)} left"


def seconds_left(run: ReportedRun) -> float | None:
    """How long the rounds that are left take, if they take as long as the last ones; None if none is done."""
    left = run.record.config["rounds"] - run.record.rounds_done
    last = [row["seconds"] for row in run.record.history[-_ROUNDS_OF_ESTIMATE:]]
    if not last or run.record.error or left <= 0:
        return None
    return float(left * statistics.median(last))


def samples(run: ReportedRun) -> Iterator[Sample]:
    """The figures of a run for Prometheus, with those of the kits of its federation on this machine."""
    labels = {"run": run.name, "folder": str(run.record.folder)}
    record = run.record
    if not (kits := kits_beside(record.folder)):
        yield Sample("sfedhp_round", record.rounds_done, labels)
        yield Sample("sfedhp_rounds", record.config["rounds"], labels)
        yield Sample("sfedhp_finished", float(record.finished or record.error is not None), labels)
        if run.evaluated:
            yield from row_samples(run.evaluated[-1], labels)
        yield from byte_samples(record.history, labels)
        return
    yield from byte_samples(record.history, {**labels, "site": "cloud"})
    for kit in kits:
        yield from kit_samples(kit, {**labels, "site": kit.name})


def _stamp(path: Path) -> tuple[int, int] | None:
    """When a file or folder was changed, and its size; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
