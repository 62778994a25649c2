"""Kill runs at random, resume them, and compare the results bit for bit.

    python -m tests.support.kills --kills 300
    python -m tests.support.kills --each-operation    before every operation on a file, one after another

A simulation, one with differences on the wire, a sweep and a study are each killed several times: at a random
moment, just before a random operation on a file, or within a write, after a random byte of a file. The fault
points are installed in the process before the command starts. Then the commands run to their end. Records,
models and checkpoints must be those of a run that was not killed: weights to the bit, figures to five digits.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sfedhp.cli import main
from tests.support.commands import CONTEXT
from tests.support.json_lines import json_lines
from tests.support.studies import TINY

ROUNDS = 8
_OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.truncate")
_TINY = ["data.source=tiny.npz", "edges=2", "clients_per_edge=3", "model.name=mlr", "algorithm.edge_rounds=2"]
_LONG = [*_TINY, f"rounds={ROUNDS}", "checkpoint.every=2"]
_ERRORS = "errors.txt"  # of the last command
_VARYING = ("seconds", "commit")  # of records


@dataclass(frozen=True)
class Scenario:
    """A command that can be killed."""

    name: str
    words: list[str]  # of the command, with {out} for the folder of its results
    resume: list[str] | None = None  # of the command that continues it; None: the same again

    def next_words(self, out: Path) -> list[str]:
        """The command that starts or continues it."""
        started = (out / "config.toml").exists()
        words = self.resume if self.resume is not None and started else self.words
        return [word.format(out=out) for word in words]


SCENARIOS = (
    Scenario("simulation", ["run", *_LONG, "sampled_edges=1", "--out", "{out}"], ["resume", "{out}"]),
    Scenario(
        "differences",
        ["run", *_LONG, "wire.difference=true", "wire.count=size", "--out", "{out}"],
        ["resume", "{out}"],
    ),
    Scenario("sweep", ["sweep", *_TINY, "rounds=3", "algorithm.edge_rate=0.01,0.05", "--out", "{out}"]),
    Scenario(
        "reproduce",
        ["reproduce", "table2", "--seeds", "1", "--device", "cpu", "--records", "{out}"],
    ),
)


def prepare(folder: Path) -> None:
    """Write the data and the study that the commands read, and go there."""
    generator, labels = np.random.default_rng(0), np.arange(90) % 3
    np.savez(folder / "tiny.npz", inputs=generator.normal(size=(90, 4)) + labels[:, None], labels=labels)
    (folder / "experiments").mkdir()
    (folder / "experiments" / "table2.toml").write_text(TINY, encoding="utf-8")
    os.chdir(folder)


def command(words: Sequence[str], out: str, fault: int, cut: int | None, counted: Any) -> None:
    """Be the command; kill yourself before the operation `fault` on a file below `out` (0: never).

    Where there is a `cut`, the kernel writes no file beyond that many bytes, and ends the process within the
    write that tries to.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(_ERRORS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _OPERATIONS or not _place(event, arguments).startswith(out):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        counted.value += 1
        if counted.value == fault:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    if cut is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (cut, cut))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    main(list(words), prog_name="sfedhp")


def _place(event: str, arguments: tuple[Any, ...]) -> str:
    """The path of an operation; `shutil.rmtree` removes names in a folder that it has opened."""
    folder = arguments[-1] if event in ("os.remove", "os.rmdir") and sys.platform == "linux" else -1
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else "", str(arguments[0]))


@dataclass
class Attempt:
    """One process of a command."""

    ended: bool  # by itself
    operations: int  # on files
    seconds: float


def attempt(
    scenario: Scenario, out: Path, *, fault: int = 0, cut: int | None = None, after: float | None = None
) -> Attempt:
    """Start or continue a command, and kill it before an operation, within a write, or after some seconds.

    Raises:
        AssertionError: the command failed.
    """
    counted = CONTEXT.Value("q", 0, lock=False)
    words = scenario.next_words(out)
    child = CONTEXT.Process(target=command, args=(words, str(out), fault, cut, counted))
    started = time.monotonic()
    child.start()
    child.join(after if after is not None else 600)
    if child.is_alive():
        child.kill()
        child.join()
    killed = child.exitcode in (-signal.SIGKILL, -signal.SIGXFSZ)
    assert killed or child.exitcode == 0, f"sfedhp {' '.join(words)}: {Path(_ERRORS).read_text()}"
    return Attempt(not killed, counted.value, time.monotonic() - started)


def results(out: Path) -> dict[str, Any]:
    """Everything that must not depend on kills, by file; what is left over from one is in it too."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.suffix == ".jsonl":
            rows = json_lines(path)
            found[name] = [{key: _shown(row[key]) for key in row if key not in _VARYING} for row in rows]
        elif path.suffix == ".safetensors" or path.name in ("confusion.json", "clients.csv"):
            # Which checkpoint is kept beside the last one depends on where a run was stopped.
            older = path.parent.name == "checkpoint" and path != max(path.parent.iterdir())
            if not older:
                found[name] = path.read_bytes()
        elif path.name.startswith("."):
            found[name] = "left over"
    return found


def _shown(value: Any) -> Any:
    """A value of a record, to five digits.

    A sweep may compute a run alone that was killed in a stack. Its weights are then the same, and its losses,
    which are sums of float32, differ in their last digits.
    """
    return float(f"{value:.5g}") if isinstance(value, float) else value


def suite(kills: int, seed: int, folder: Path, say: Callable[[str], object] = print) -> Counter[str]:
    """Kill until there were this many kills; how many of each kind there were.

    Raises:
        AssertionError: a result differs from the one of a command that was not killed.
    """
    begin(folder)
    draw, done = random.Random(seed), Counter[str]()
    unbroken: dict[str, tuple[Attempt, dict[str, Any]]] = {}
    for number in range(10**9):
        if done.total() >= kills:
            return done
        scenario = SCENARIOS[number % len(SCENARIOS)]
        if scenario.name not in unbroken:
            out = folder / f"{scenario.name}-unbroken"
            unbroken[scenario.name] = attempt(scenario, out), results(out)
        whole, expected = unbroken[scenario.name]
        files = (folder / f"{scenario.name}-unbroken").rglob("*")
        largest = max(path.stat().st_size for path in files if path.is_file())
        out = folder / f"{scenario.name}-{number}"
        for _ in range(draw.randint(2, 6)):
            kind = draw.choice(("before an operation", "within a write", "at a moment"))
            if kind == "before an operation":
                fault = round(whole.operations ** draw.random())  # what is continued has fewer operations
                ended = attempt(scenario, out, fault=fault).ended
            elif kind == "within a write":
                ended = attempt(scenario, out, cut=round(largest ** draw.random()) - 1).ended
            else:
                ended = attempt(scenario, out, after=draw.uniform(0.05, whole.seconds)).ended
            done[f"{scenario.name}, {kind}"] += not ended
            if ended:
                break
        finish(scenario, out, expected, f"seed {seed}, case {number}")
        say(f"{done.total():4d} kills: {scenario.name} ends as if nothing had happened")
    raise AssertionError("unreachable")


def each_operation(folder: Path, say: Callable[[str], object] = print) -> Counter[str]:
    """Kill once before each operation of a command on a file; how many kills there were of each command.

    Raises:
        AssertionError: as of `suite`.
    """
    begin(folder)
    done = Counter[str]()
    for scenario in SCENARIOS:
        out = folder / f"{scenario.name}-unbroken"
        whole, expected = attempt(scenario, out), results(out)
        for fault in range(1, whole.operations + 1):
            out = folder / f"{scenario.name}-{fault}"
            assert not attempt(scenario, out, fault=fault).ended
            finish(scenario, out, expected, f"operation {fault}")
            done[scenario.name] += 1
        say(f"{scenario.name}: killed before each of {whole.operations} operations on files")
    return done


def begin(folder: Path) -> None:
    """Write what the commands read, and start the server that forks: what comes next is timed."""
    prepare(folder)
    attempt(SCENARIOS[0], folder / "first")


def finish(scenario: Scenario, out: Path, expected: dict[str, Any], case: str) -> None:
    """Run a command that was killed to its end, and compare what it gives.

    Raises:
        AssertionError: it fails, or gives something else.
    """
    assert attempt(scenario, out).ended
    found = results(out)
    different = [name for name in expected | found if expected.get(name) != found.get(name)]
    assert not different, f"{case}: {scenario.name} differs in {different}"
    shutil.rmtree(out)


def run() -> int:
    """Run the suite as a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=300, help="how many processes to kill")
    parser.add_argument("--seed", type=int, default=0, help="the same seed kills before the same operations")
    parser.add_argument("--each-operation", action="store_true", help="kill once before each operation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        done = each_operation(place) if options.each_operation else suite(options.kills, options.seed, place)
        os.chdir("/")
    for kind, count in sorted(done.items()):
        print(f"{count:5d}  {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(run())
