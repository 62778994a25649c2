"""How precise pFedGP's predictions are with different numbers of Gibbs chains, and what they cost.

python benchmarks/gibbs.py              # two minutes
python benchmarks/gibbs.py --seeds 100

The error is the largest of 16 queries of a problem with 20 rows, against 200 000 chains: its median and its
maximum over the seeds. CPU seconds are of one prediction for 20 problems with 200 rows and 200 queries each,
on one thread.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from functools import partial

import torch
from timing import duration
from torch import Tensor
from torch.nn.functional import normalize

from sfedhp.core.keys import key
from sfedhp.gaussian.binary import Rows, augment, log_probability

STEPS = 5
EXACT = 200_000
PREDICTIONS = ((20, False), (100, False), (150, False), (20, True), (30, True), (40, True))


def main() -> None:
    """Print one row for each kind of prediction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    rows, queries = toy()
    expected = probability(rows, queries, key(-1, torch.arange(20)), EXACT, stratify=False)
    print("| chains that predict | error, median | largest | CPU seconds |")
    print("| --- | ---: | ---: | ---: |")
    for chains, stratify in PREDICTIONS:
        found = [
            probability(rows, queries, key(seed, torch.arange(20)), chains, stratify=stratify)
            for seed in range(seeds)
        ]
        errors = (torch.stack(found) - expected).abs().amax(-1)
        kind = "stratified" if stratify else "independent"
        print(
            f"| {chains} {kind} | {float(errors.median()):.3f} | {float(errors.max()):.3f} "
            f"| {seconds(chains, stratify):.2f} |"
        )


def toy() -> tuple[Rows, Tensor]:
    """Twenty directions in the plane with noisy signs, and sixteen queries."""
    draw = torch.Generator().manual_seed(3)
    angles = 2 * math.pi * torch.rand(20, dtype=torch.float64, generator=draw)
    positive = torch.rand(20, dtype=torch.float64, generator=draw) < torch.sigmoid(2 * angles.sin())
    asked = torch.arange(16, dtype=torch.float64) * 2 * math.pi / 16
    return Rows(unit(angles), 2.0 * positive.double() - 1), unit(asked)


def unit(angles: Tensor) -> Tensor:
    """Unit vectors (..., 2) of the plane, in the directions of the angles."""
    return torch.stack([angles.cos(), angles.sin()], -1)


def probability(rows: Rows, queries: Tensor, keys: Tensor, chains: int, *, stratify: bool) -> Tensor:
    """P(y* = 1) of the queries."""
    omega = augment(rows, keys, chains, STEPS, stratify=stratify)
    return log_probability(rows, omega, queries)[1].exp()


def seconds(chains: int, stratify: bool) -> float:
    """CPU seconds of a prediction for 20 problems: the median of three."""
    draw = torch.Generator().manual_seed(0)
    features = normalize(torch.randn(20, 400, 50, generator=draw), dim=-1)
    rows = Rows(features[:, :200], features[:, :200, 0].sign())
    keys = key(torch.arange(20).unsqueeze(-1), torch.arange(200))
    work = partial(probability, rows, features[:, 200:], keys, chains, stratify=stratify)
    return statistics.median(duration(work, time.process_time) for _ in range(3))


if __name__ == "__main__":
    main()
