"""Time short runs of two checkouts in turns, and say how much slower the second one is.

python tools/compare_speed.py ../before .                     # five pairs of processes for each case
python tools/compare_speed.py ../before . --pairs 9 --only mlr
python tools/compare_speed.py ../before . --cpu               # CPU seconds, on a busy machine

A figure is the median time of a cloud round without its evaluation; with --cpu it is the CPU time of a round,
from a run and one of two rounds. Processes of the two checkouts alternate on one thread, so that both see the
same machine; the ratio is the median over the pairs. Only ratios count.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from compare_bits import make_data, sfedhp

EMBEDDED = ["edges=2", "clients_per_edge=5"]
COLORS = ["data.source=colors.npz", "edges=2", "clients_per_edge=2", "model.name=vgg"]
CASES = {
    "mlr": ["model.name=mlr", "rounds=60", *EMBEDDED],
    "dnn": ["model.name=dnn", "rounds=12", *EMBEDDED],
    "vgg": ["rounds=6", "algorithm.edge_rounds=4", *COLORS],
    "dnn-fedavg": ["algorithm=fedavg", "model.name=dnn", "rounds=40", *EMBEDDED],
    "dnn-pfedme": ["algorithm=pfedme", "model.name=dnn", "rounds=12", *EMBEDDED],
    "mlr-wire": ["model.name=mlr", "rounds=12", "wire.count=encode", "algorithm.edge_rounds=5", *EMBEDDED],
}


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", help="cases to run, separated by commas")
    parser.add_argument("--cpu", action="store_true", help="compare CPU seconds, also of a busy machine")
    parser.add_argument("--most", type=float, default=1.03, help="the largest ratio that is still fine")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(CASES)
    slower = []
    with tempfile.TemporaryDirectory() as scratch:
        make_data(Path(scratch))
        for name in names:
            ratios = []
            for pair in range(given.pairs):
                sides = [given.before, given.after] if pair % 2 else [given.after, given.before]
                of = round_cpu_time if given.cpu else round_time
                times = {side: of(side.resolve(), Path(scratch), CASES[name]) for side in sides}
                ratios.append(times[given.after] / times[given.before])
            ratio = statistics.median(ratios)
            shown = " ".join(f"{each:.3f}" for each in sorted(ratios))
            print(f"{name}: {ratio:.3f} times the time ({shown})", flush=True)
            if ratio > given.most:
                slower.append(name)
    sys.exit(f"slower: {', '.join(slower)}" if slower else 0)


def round_time(checkout: Path, folder: Path, words: list[str]) -> float:
    """The median time of a round, the first ones and the last left out."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        sfedhp(checkout, folder, "run", *words, "evaluation.every=1000", "--out", f"{out}/run", quiet=True)
        lines = (Path(out) / "run" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return statistics.median(json.loads(line)["seconds"] for line in lines[2:-1])


def round_cpu_time(checkout: Path, folder: Path, words: list[str]) -> float:
    """The CPU seconds of a round: those of a run, less those of one of two rounds."""
    rounds = int(next(word for word in words if word.startswith("rounds=")).removeprefix("rounds="))
    used = []
    for count in (2, rounds + 2):
        before = children_seconds()
        with tempfile.TemporaryDirectory(dir=folder) as out:
            more = [f"rounds={count}", "evaluation.every=1000", "--out", f"{out}/run"]
            kept = [word for word in words if not word.startswith("rounds=")]
            sfedhp(checkout, folder, "run", *kept, *more, quiet=True)
        used.append(children_seconds() - before)
    return (used[1] - used[0]) / rounds


def children_seconds() -> float:
    """CPU seconds of the processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
