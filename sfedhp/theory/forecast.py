"""What a run will cost and how sparse it will get, before it is run."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sfedhp.algorithms import Algorithm, SFedHP
from sfedhp.runs.prepare import Prepared
from sfedhp.theory.line import Line
from sfedhp.theory.overshoot import overshoot
from sfedhp.theory.settings import Settings
from sfedhp.wire.direction import Direction
from sfedhp.wire.ledger import columns
from sfedhp.wire.link import link_of

SHORT = 2.0  # seconds; after a first round that took less, a second one is measured


class Measured(NamedTuple):
    """What one round and one evaluation of a run took here."""

    round_seconds: float
    evaluation_seconds: float
    sums: dict[str, float]  # columns of bytes of the round


def measure(prepared: Prepared) -> Measured:
    """Run a round or two of what is prepared."""
    simulator = prepared.simulator
    seconds, sums = math.inf, {}
    for turn in (1, 2):
        began = time.perf_counter()
        for state in simulator.run(turn):
            float(state.statistics.sum())  # waits for a device
        seconds = min(seconds, time.perf_counter() - began)
        entries = columns(simulator.ledger.close(), simulator.initial.shape[-1], simulator.runs)
        sums = {name: float(total) for name, total in entries.items()}
        if seconds > SHORT:
            break
    began = time.perf_counter()
    prepared.evaluator.measure()
    return Measured(seconds, time.perf_counter() - began, sums)


def densities(
    algorithm: Algorithm,
    initial: Tensor,
    rounds: int,
    threshold: float,
    *,
    zeroed: bool = False,
    count: int = 101,
) -> list[tuple[int, float]]:
    """The expected share of non-zero weights, at some rounds, if no weight has a gradient from the data.

    The penalties move w towards zero by the same amount every round (`_shrinkage`), until a weight is below
    the threshold. With the smooth penalty it then overshoots zero in every step: a smaller threshold counts
    no zeros, unless messages are cut there (`zeroed`), since a zero stays zero.
    """
    size = initial.abs().double().sort().values

    def share(shrunk: float) -> float:
        level = torch.tensor(threshold + shrunk, dtype=size.dtype, device=size.device)
        # With a threshold of 0, weights that are exactly zero still count as zeros.
        below = int(torch.searchsorted(size, level, right=not threshold))
        return 1 - below / len(size)

    gaps = min(count - 1, rounds)
    marks = [round(rounds * place / gaps) for place in range(gaps + 1)]
    if not isinstance(algorithm, SFedHP) or _overshoots(algorithm, threshold, zeroed):
        return [(turn, share(0.0)) for turn in marks]
    settings = Settings.of(algorithm)
    own, edge = _shrinkage(settings)
    acting = settings.edge_sparsity_rounds or rounds  # for how many rounds the edge's penalty acts
    floor = settings.sparsity_floor if settings.client_sparsity else 0.0
    # The clients' penalty acts until the floor is reached. Found by halves: there may be very many rounds.
    until = bisect_left(
        range(rounds), True, key=lambda turn: share(own * turn + edge * min(turn, acting)) <= floor
    )
    held = min(floor, share(0.0))
    return [(turn, max(share(own * min(turn, until) + edge * min(turn, acting)), held)) for turn in marks]


def forecast_lines(prepared: Prepared, measured: Measured) -> list[Line]:
    """Time, bytes of each link and direction, and density at the end."""
    experiment, simulator = prepared.experiment, prepared.simulator
    rounds, evaluations = experiment.rounds, math.ceil(experiment.rounds / experiment.evaluation.every)
    seconds = rounds * measured.round_seconds + evaluations * measured.evaluation_seconds
    zeroed = experiment.wire.threshold  # weights below it are sent as zeros; τ does not matter
    level = max(experiment.density_threshold, zeroed)
    foreseen = partial(densities, simulator.algorithm, simulator.initial, rounds, zeroed=zeroed > 0)
    curve = foreseen(level)
    sent = curve if level == zeroed else foreseen(zeroed)
    lines = [
        Line(
            "forecast",
            "seconds",
            "seconds in all",
            seconds,
            note=f"{measured.round_seconds:.3g} s a round and {measured.evaluation_seconds:.3g} s an "
            f"evaluation, measured here",
        ),
        Line(
            "forecast",
            "density",
            "density after the last round",
            curve[-1][1],
            note=_density_note(simulator.algorithm, curve, level, zeroed > 0),
        ),
    ]
    for direction in Direction.sent_in(measured.sums):
        total = measured.sums[f"bytes_{direction}"]
        lines += _byte_lines(direction, total, measured.sums, sent, prepared)
    return lines


def _shrinkage(settings: Settings) -> tuple[float, float]:
    """How much the clients' and the edge's penalty take off every weight of w in a cloud round."""
    # If steps overshoot, a power of 1 − η₂λ₁ would grow without bound.
    left = max(-1.0, 1 - settings.personal_rate * settings.client_proximity)
    pulled = settings.client_sparsity / settings.client_proximity * (1 - left**settings.personal_steps)
    return _lost(settings, pulled, 0.0), _lost(settings, 0.0, settings.edge_rate * settings.edge_sparsity)


def _lost(settings: Settings, pulled: float, stepped: float) -> float:
    """What w loses in R edge rounds from φ_i = w on, where θ is `pulled` below φ_i and w_i steps down."""
    part = settings.client_proximity / (settings.client_proximity + settings.edge_proximity)
    pull = settings.edge_rate * settings.edge_proximity
    apart = lost = 0.0  # φ_i − w_i, and how far w_i is below w
    for _ in range(settings.edge_rounds):
        # φ_i = w_i + λ₁/(λ₁+λ₂) (θ − w_i), then w_i ← w_i − η₁λ₂ (w_i − φ_i) − η₁γ₂
        apart = part * (apart - pulled)
        lost += stepped - pull * apart
        # For an edge that overshoots nothing can be forecast; a bounded number replaces it.
        apart = max(-1.0, 1 - pull) * apart + stepped
    return lost * settings.cloud_mixing


def _overshoots(algorithm: SFedHP, threshold: float, zeroed: bool) -> bool:
    """Whether weights that were brought to zero still count, because they overshoot it."""
    return not zeroed and threshold < overshoot(algorithm).client


def _density_note(
    algorithm: Algorithm, curve: Sequence[tuple[int, float]], threshold: float, zeroed: bool
) -> str:
    if not isinstance(algorithm, SFedHP) or not (algorithm.client_sparsity or algorithm.edge_sparsity):
        return "no sparsity penalty: the density does not change"
    if _overshoots(algorithm, threshold, zeroed):
        reach = f"the smooth ℓ1 leaves weights within {overshoot(algorithm).client:.2g} of zero"
        return f"the density does not change: {reach}; a threshold of {threshold:g} counts few as zeros"
    half = next((turn for turn, share in curve if share < curve[0][1] / 2), None)
    when = f"half of the weights are near zero by round {half}; " if half is not None else ""
    return f"{when}weights that the data hold are not modelled, and the global model may fall below the floor"


def _byte_lines(
    direction: Direction,
    total: float,
    sums: dict[str, float],
    curve: Sequence[tuple[int, float]],
    prepared: Prepared,
) -> list[Line]:
    """The messages of one direction: as they will be sent, and by the paper's count."""
    experiment, size = prepared.experiment, prepared.simulator.initial.shape[-1]
    rounds = experiment.rounds
    zeros = link_of(experiment.wire, direction).options
    masked = experiment.secure and direction is Direction.from_client(experiment.algorithm.tiers)
    # The paper's count of a round gives the number of messages: 63 s + 2 d bits each.
    messages = 8 * sums[f"formula_{direction}"] / (size * (63 * sums[f"density_{direction}"] + 2))
    share = 1.0
    note = "64 bits per weight, d for positions; zeros are not counted without wire.threshold or wire.count"
    if not masked and (zeros.threshold or zeros.count != "off"):
        # Rounding of values may zero more, which the first rounds have shown.
        share = min(sum(part for _, part in curve) / len(curve), sums[f"density_{direction}"])
        note = f"64 bits per non-zero weight, 1 per zero, d for positions, at a mean density of {share:.3g}"
    counted = messages * rounds * size * (63 * share + 2) / 8
    real = "dense messages"
    if masked:
        real = "masked words, dense, with keys and shares"
    elif zeros.count != "off":
        first = sums[f"density_{direction}"]
        total *= _bits(share, experiment.dtype) / _bits(first, experiment.dtype)
        real = f"the encoder's lengths in the first rounds, at density {share:.3g} for their {first:.3g}"
    return [
        Line("forecast", f"bytes_{direction}", f"{direction.text}, bytes in all", total * rounds, note=real),
        Line(
            "forecast",
            f"formula_{direction}",
            f"{direction.text}, by the paper's count",
            counted,
            note=note,
        ),
    ]


def _bits(share: float, dtype: str) -> float:
    """The bits of a weight in a message in which this share is not zero: its value, and where it is."""
    where = sum(-part * math.log2(part) for part in (share, 1 - share) if part)
    return share * (64 if dtype == "float64" else 32) + where
