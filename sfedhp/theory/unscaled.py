"""Inputs that are not scaled, and so large that steps with the run's rates would overshoot."""

from __future__ import annotations

from typing import Final

import numpy as np

from sfedhp.runs.prepare import Prepared
from sfedhp.theory.curvature import batch_curvature
from sfedhp.theory.limits import stable_below

_LARGE: Final = 10.0  # root mean square of a feature; below it the curvature is not measured


def unscaled_inputs(prepared: Prepared) -> str | None:
    """A sentence on inputs that would break the steps of a run, before its first round; None: they do not.

    It is the practical limit η(λ + h) < 2 of `sfedhp check` for half of the clients. The curvature h is only
    measured where inputs are not scaled and have a feature of large values.

    Args:
        prepared: one run, not a stack.
    """
    federation, simulator = prepared.federation, prepared.simulator
    algorithm = simulator.algorithm
    if federation.scaling.kind != "none" or algorithm.predicts_from_features:
        return None
    rows = federation.scaled(np.unique(np.concatenate(federation.train)), np.float64)
    if np.sqrt((rows**2).mean(0)).max() <= _LARGE:
        return None
    curvature = batch_curvature(simulator.task, simulator.initial)
    if curvature.bounded:
        return None
    for rule in algorithm.step_rules():
        pull = rule.pull.value if rule.pull is not None else 0.0
        value, limit = rule.rate.value * (pull + curvature.median), stable_below(rule)
        if rule.uses_data and not value < limit:  # a curvature that is NaN counts too
            return (
                f"The inputs are not scaled and range from {rows.min():.3g} to {rows.max():.3g}: steps with "
                f"{rule.rate.name} = {rule.rate.value:g} would overshoot (η(λ + h) is {value:.2g}, and must "
                f"be below {limit:.2g}): set data.scale=standard, or scale the inputs yourself."
            )
    return None
