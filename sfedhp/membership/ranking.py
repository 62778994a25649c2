"""How well a score separates members from others: the area under the ROC curve, with DeLong's interval.

Comparing the Areas under Two or More Correlated Receiver Operating Characteristic Curves: A Nonparametric
Approach. E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson. Biometrics 44, 1988.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
_NORMAL_95: Final = 1.959963984540054


class Area(NamedTuple):
    """An area under the ROC curve with its 95 % interval over rows."""

    value: float
    low: float
    high: float


def area_over(groups: Iterable[tuple[Numbers, Numbers]]) -> Area:
    """The area over pairs of a member and another row of the same group, such as a client.

    Rows are compared only within their group, because differences between clients say nothing about
    membership. Groups are independent given their models, and weighted by their number of pairs.

    Args:
        groups: the scores of members and of others; larger ones speak for membership.

    Raises:
        ValueError: no group has both.
    """
    pairs, areas, variances = [], [], []
    for members, others in groups:
        if not len(members) or not len(others):
            continue
        wins = _placements(members, others)  # of each member, the share of others below it
        losses = _placements(-others, -members)
        pairs.append(len(members) * len(others))
        areas.append(wins.mean())
        variances.append(sum(_variance(each) / len(each) for each in (wins, losses)))
    if not pairs:
        raise ValueError("there is no group with members and others")
    shares = np.array(pairs) / sum(pairs)
    value = float(shares @ np.array(areas))
    reach = _NORMAL_95 * math.sqrt(float(shares**2 @ np.array(variances)))
    return Area(value, max(0.0, value - reach), min(1.0, value + reach))


def share_found(members: Numbers, others: Numbers, wrong: float) -> float:
    """The share of members above a threshold that at most this share of the others is above."""
    ranked = np.sort(others)[::-1]
    threshold = ranked[min(int(wrong * len(ranked)), len(ranked) - 1)]
    return float((members > threshold).mean())


def _placements(ones: Numbers, others: Numbers) -> Numbers:
    """For each of some scores, the share of the others below it; equal ones count half."""
    ranked = np.sort(others)
    below, upto = np.searchsorted(ranked, ones, "left"), np.searchsorted(ranked, ones, "right")
    shares: Numbers = (below + upto) / (2 * len(ranked))
    return shares


def _variance(values: Numbers) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.25
