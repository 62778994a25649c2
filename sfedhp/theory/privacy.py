"""What differential privacy would cost a run: ε of its settings, and the noise beside the signal."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from sfedhp.privacy.options import NoiseTier, PrivacyOptions, Unit
from sfedhp.runs.prepare import Prepared
from sfedhp.runs.privacy import Spending, spending_of
from sfedhp.theory.line import Line

TARGETS: Final = (1.0, 3.0, 10.0)  # ε
_USUAL: Final = 3.0  # ε to find settings for, if the user has named none
_WHAT: Final = {"row": "a row", "client": "a client"}
_FEW: Final = 10  # a tenth of the rounds, or of the weights, is about as far as a user may go
_ALONE: Final = "would work, with nothing else changed: the noise of a step is no longer than its signal"
_SIGNAL: Final = {"row": "the longest clipped gradient", "client": "the longest clipped change"}


def privacy_lines(prepared: Prepared, budget: float) -> list[Line]:
    """ε of the settings, the noise that some ε need, and the nearest settings with which that would work.

    Without noise these are forecasts: for rows with noise at the clients, for whole clients at their server.

    Args:
        prepared: a run of a method that is supported, without a budget.
        budget: ε at which the run stops; 0: none.
    """
    options = prepared.experiment.privacy
    lines = _own_lines(prepared, budget) if options.active else []
    units: tuple[Unit, ...] = (options.unit,) if options.active else ("row", "client")
    for unit in units:
        spending = _spending(prepared, unit)
        lines += [_noise_line(prepared, spending, target) for target in sorted({*TARGETS, budget} - {0.0})]
    if "row" in units:
        lines += _nearest_lines(prepared, _spending(prepared, "row"), budget or _USUAL)
    return lines


def noise_to_signal(prepared: Prepared, options: PrivacyOptions, noise: float) -> float:
    """How many times longer the noise is, in a step or in a mean, than the signal can be: σ √d / (how many).

    Args:
        prepared: the run.
        options: whom the noise protects, and where it is added.
        noise: σ.
    """
    weights, sizes = math.sqrt(prepared.simulator.initial.shape[-1]), prepared.simulator.task.sizes
    experiment = prepared.experiment
    if options.unit == "row":
        least = int(sizes[sizes > 0].min())
        return noise * weights / (min(experiment.batch_size, least) or least)
    if options.tier == "client":
        return noise * weights
    if options.tier == "cloud" and experiment.algorithm.tiers == 3:
        sizes = sizes.sum(-1)
    shares = sizes.double() if experiment.algorithm.weighting == "size" else (sizes > 0).double()
    largest = float((shares.amax(-1) / shares.sum(-1).clamp_min(1)).max())
    if options.tier == "cloud" and experiment.sampled_members:
        largest = max(largest, 1 / experiment.sampled_members)
    return noise * weights * largest


def _own_lines(prepared: Prepared, budget: float) -> list[Line]:
    """ε at the user's own noise, for both units, and how far a budget goes."""
    experiment = prepared.experiment
    options, rounds = experiment.privacy, experiment.rounds
    spending = _spending(prepared, options.unit)
    ratio = noise_to_signal(prepared, options, options.noise)
    what = f"ε of {_WHAT[options.unit]} after {rounds} rounds, δ = {options.delta:g}"
    note, spent = _in_words(options.unit, ratio), spending.epsilon(rounds)
    lines = [Line("privacy", "epsilon", what, spent, budget or None, note=note)]
    if options.unit == "row":
        whole = spending.epsilon_of_client(rounds)
        note = "all its rows together; noise for single rows hardly protects them"
        lines.append(Line("privacy", "epsilon_client", "ε of a whole client", whole, note=note))
    else:
        lines.append(Line("privacy", "epsilon_row", "ε of a row: at most that", lines[0].value))
    if budget:
        within = spending.rounds_within(budget, rounds)
        what = f"rounds within ε = {budget:g}"
        note = "all" if within == rounds else "the run stops there"
        lines.append(Line("privacy", "budget_rounds", what, within, note=note))
    return lines


def _noise_line(prepared: Prepared, spending: Spending, target: float) -> Line:
    """σ that an ε needs, and how long the noise then is."""
    options = spending.options
    noise = spending.noise_for(target, prepared.experiment.rounds)
    ratio = noise_to_signal(prepared, options, noise)
    name = f"noise_{options.unit}_{target:g}"
    where = "" if options.unit == "row" else f", noise by the {options.tier}"
    what = f"σ for ε = {target:g} of {_WHAT[options.unit]}{where}"
    return Line("privacy", name, what, noise, note=_in_words(options.unit, ratio))


def _nearest_lines(prepared: Prepared, spending: Spending, target: float) -> list[Line]:
    """The changes of single settings after which the noise would be no longer than the signal.

    If no single change is enough, several settings are changed together.
    """
    experiment, weights = prepared.experiment, prepared.simulator.initial.shape[-1]
    sizes = prepared.simulator.task.sizes
    least = int(sizes[sizes > 0].min())
    batch = min(experiment.batch_size, least) or least
    fits = batch / math.sqrt(weights)  # σ with which a step's noise is as long as the signal
    noise = spending.noise_for(target, experiment.rounds)
    if noise <= fits:
        return []
    found = {
        "rounds": spending.rounds_within(target, experiment.rounds, fits),
        "batch_size": _larger_batch(spending, target, weights, batch, least),
        "weights that train": math.floor((batch / noise) ** 2),
    }
    if found["weights that train"] < weights / _FEW:
        found["weights that train"] = 0
    lines = [
        Line("privacy", f"works_{name.partition(' ')[0]}", f"{name} for ε = {target:g}", value, note=_ALONE)
        for name, value in found.items()
        if value
    ]
    if lines:
        return lines
    rounds = max(1, experiment.rounds // _FEW)
    wide = Spending(replace(experiment, batch_size=0), spending.sizes, spending.draw)
    together = math.floor((least / wide.noise_for(target, rounds)) ** 2)
    what = f"weights that train for ε = {target:g}, rounds={rounds} batch_size=0"
    note = "no single setting is enough; these three together are" if together else "nor are these three"
    return [Line("privacy", "works_together", what, together, note=note)]


def _larger_batch(spending: Spending, target: float, weights: int, batch: int, least: int) -> int:
    """The first of B, 2 B, 4 B, …, all rows with which the noise is no longer than the signal; 0: none."""
    rounds = spending.experiment.rounds
    while batch < least:
        batch = min(2 * batch, least)
        wider = Spending(replace(spending.experiment, batch_size=batch), spending.sizes, spending.draw)
        if wider.epsilon(rounds, batch / math.sqrt(weights)) <= target:
            return batch
    return 0


def _spending(prepared: Prepared, unit: Unit) -> Spending:
    """What the run spends of the privacy of rows or of clients, or would where that is not asked for."""
    experiment = prepared.experiment
    options = experiment.privacy
    if options.unit != unit:
        three_tiers = experiment.algorithm.tiers == 3
        tier: NoiseTier = "client" if unit == "row" else "edge" if three_tiers else "cloud"
        options = replace(options, unit=unit, tier=tier)
    return spending_of(prepared.simulator, replace(experiment, privacy=options))


def _in_words(unit: Unit, ratio: float) -> str:
    """How long the noise is, and what to do where it is too long."""
    words = f"its noise is {ratio:.3g} times {_SIGNAL[unit]}"
    if ratio <= 1:
        return words
    if unit == "row":
        return f"{words}: fewer rounds, larger batches, a smaller or mostly frozen model"
    return f"{words}: fewer rounds, more clients, a smaller or mostly frozen model"
