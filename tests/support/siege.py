"""A deployed federation of 2 × 3 with one malicious member, and random kills of the others."""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]

import sfedhp
from sfedhp.deploy.federation_file import Limits
from tests.support.deploy_memory import experiment
from tests.support.deploy_processes import Fleet
from tests.support.malicious import PAUSE, corrupt
from tests.support.paths import ROOT

MALICIOUS: Final = "client-1-2"
_RECOVERY: Final = 45.0  # s for a killed process to be restarted, to register and to answer
_REJOINING: Final = 30.0  # s for a started process to register and to answer
_ROUNDS: Final = 20  # at least, so that there is something to compare
_LONGER: Final = 600.0  # s that a busy machine may take for them
_GROWTH: Final = 64 * 2**20  # bytes that a server may grow in the second half
_WORSE: Final = 3.0  # standard deviations of the GM between seeds
_SEEDS: Final = range(2, 7)  # of the runs whose GM says how large that is ...
_NOISE_ROUNDS: Final = 60  # ... after so many rounds at most: more change it little
_LIMITS: Final = Limits(
    client_seconds=60.0, start_seconds=300.0, silent_seconds=15.0, max_rows=1000, max_change=100.0
)


def besieged_experiment(**more: Any) -> Any:
    """What the federation trains: honest clients are alike, and changes are clipped."""
    return experiment(
        "hierfavg",
        **{"rounds": 10**6, "dtype": "float32"} | more,
        edges=2,
        clients_per_edge=3,
        data={"partition": "iid", "train_per_label": 20, "test_per_label": 10},
        aggregation={"rule": "median", "clip": 1.0},
        evaluation={"every": 5},
    )


@dataclass
class Kill:
    """A process that was killed, and started again."""

    name: str
    at: float
    started_at: float = 0.0

    def concerns(self, member: str) -> bool:
        """Whether a member may be missing for it: itself, and all that are below."""
        below = f"client-{self.name.removeprefix('edge-')}-" if "edge" in self.name else "no"
        return self.name in ("cloud", member) or member.startswith(below)

    def excuses(self, when: float) -> bool:
        """Whether a round that ended then may be without it.

        What the start took says how busy the machine is.
        """
        rejoining = max(_REJOINING, 2 * (self.started_at - self.at))
        return self.at <= when < max(self.at + _RECOVERY, self.started_at + rejoining)


def besiege(
    folder: Path,
    seconds: float,
    kill_every: float,
    seed: int,
    after: Callable[[Fleet], None] = lambda fleet: None,
    pause: float = 0.0,
) -> dict[str, Any]:
    """Run the federation for this long; what was seen, with what was wrong as sentences.

    Args:
        folder: for the kits.
        seconds: from the first finished round on; longer, if few rounds were run or attacks tried by then.
        kill_every: seconds between two kills of honest sites; 0: none is killed.
        seed: of the choice of whom to kill.
        after: called at the end, while the federation is still running.
        pause: seconds that the malicious member takes for each reply, so that the others need less of the
            processor.
    """
    chance, kills = random.Random(seed), list[Kill]()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with Fleet(folder / "kits", besieged_experiment(), _LIMITS) as fleet:
        corrupt(fleet.kits / MALICIOUS)
        fleet.processes[MALICIOUS].env[PAUSE] = str(pause)
        fleet.start()
        fleet.until(lambda: bool(fleet.rows()))
        memory: dict[str, list[int]] = {name: [] for name in ("cloud", "edge-0", "edge-1")}
        started = last = time.monotonic()
        honest = [name for name in fleet.processes if name != MALICIOUS]
        while (now := time.monotonic()) - started < seconds or (
            now - started < seconds + _LONGER and not _seen_enough(fleet)
        ):
            fleet.poll()
            calm = seconds - (now - started) < _RECOVERY + 10
            if kill_every and now - last > kill_every and not calm:
                last, name = now, chance.choice([each for each in honest if fleet.runs(each)])
                kills.append(Kill(name, time.time()))
                fleet.send(name)
            for name, sizes in memory.items():
                if fleet.runs(name):
                    with contextlib.suppress(psutil.Error):  # it ends just now
                        sizes.append(psutil.Process(fleet.pid(name)).memory_info().rss)
            time.sleep(0.2)
        rows, log, tried = fleet.rows(), fleet.events("cloud", "round"), _tried(fleet)
        for kill in kills:
            kill.started_at = min(
                (when for when in map(_time, fleet.events(kill.name, "up")) if when > kill.at),
                default=time.time(),
            )
        refused = fleet.events("edge-1", "refused")
        status = fleet.status() or {}
        after(fleet)
        logs = sum(path.stat().st_size for path in fleet.kits.glob("*/run/log.jsonl"))
    seen: dict[str, Any] = {
        "rounds": len(rows),
        "kills": len(kills),
        "gm": _last_gm(rows),
        "gm_without": _last_gm(sfedhp.run(besieged_experiment(rounds=len(rows))).history),
        "gm_noise": _noise(len(rows)),
        "attacks": tried,
        "refused": sorted({line["reason"][:60] for line in refused}),
        "log_bytes": logs,
        "mib": {
            name: [size >> 20 for size in sizes[:: max(len(sizes) // 8, 1)]] for name, sizes in memory.items()
        },
        "growth": {name: _growth(sizes) for name, sizes in memory.items()},
    }
    seen["wrong"] = _wrong(seen, log, kills, status, seconds)
    return seen


def _seen_enough(fleet: Fleet) -> bool:
    return len(fleet.rows()) >= _ROUNDS and all(_tried(fleet).values())


def _tried(fleet: Fleet) -> dict[str, int]:
    """How often the malicious member tried what."""
    path = fleet.kits / MALICIOUS / "tried.json"
    return json.loads(path.read_text()) if path.exists() else {"anything": 0}


def _time(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(line["time"]).timestamp()


def _wrong(
    seen: dict[str, Any], log: list[Any], kills: list[Kill], status: dict[str, Any], seconds: float
) -> list[str]:
    wrong = []
    if status.get("trouble") or status.get("finished"):
        wrong.append(f"the run ended: {status.get('trouble')}")
    if seen["rounds"] < seconds / 10:
        wrong.append(f"only {seen['rounds']} rounds")
    if seen["gm"] < seen["gm_without"] - _WORSE * seen["gm_noise"]:
        wrong.append(f"GM {seen['gm']:.1f} instead of {seen['gm_without']:.1f} ± {seen['gm_noise']:.1f}")
    wrong += [f"{name} grew by {grown} bytes" for name, grown in seen["growth"].items() if grown > _GROWTH]
    for line in log:
        excused = [kill for kill in kills if kill.excuses(_time(line))]
        lost = line["missing"].keys() - {MALICIOUS}
        lost = {name for name in lost if not any(kill.concerns(name) for kill in excused)}
        if lost:
            wrong.append(f"{', '.join(lost)} missed round {line['round']} without having been down")
    untried = [name for name, times in seen["attacks"].items() if not times]
    if untried:
        wrong.append(f"not tried: {', '.join(untried)}")
    return wrong


def _last_gm(rows: list[Any]) -> float:
    """The mean of the last three evaluations."""
    found = [row["gm"] for row in rows if "gm" in row][-3:]
    return sum(found) / max(len(found), 1)


def _noise(rounds: int) -> float:
    """The standard deviation of the GM between seeds, in runs without attacks."""
    what = besieged_experiment(rounds=min(rounds, _NOISE_ROUNDS))
    return statistics.stdev(_last_gm(sfedhp.run(replace(what, seed=seed)).history) for seed in _SEEDS)


def _growth(sizes: list[int]) -> int:
    """Bytes that a process grew in the second half of the time."""
    half = sizes[len(sizes) // 2 :]
    tail = max(len(half) // 4, 1)
    return int(sum(half[-tail:]) / tail - sum(half[:tail]) / tail) if half else 0
