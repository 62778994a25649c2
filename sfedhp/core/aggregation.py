"""Robust aggregation: uploads are changed before the mean, so that a few malicious ones have little effect.

Methods do not change. Their weighted mean of the changed uploads is the coordinate-wise median or trimmed
mean of the original ones: a coordinate that is cut is replaced by the mean of the others.

Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
D. Yin, Y. Chen, K. Ramchandran, P. Bartlett. ICML 2018. https://arxiv.org/abs/1803.01498
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

import torch
from torch import Tensor

from sfedhp.core.options import Bounds, Help

_ROUNDING: Final = 1e-9  # 0.29 · 100 is a little less than 29 as a float, and 29 are meant


@dataclass(frozen=True)
class AggregationOptions:
    """The [aggregation] section: how servers combine what members upload; robust rules are off by default."""

    rule: Annotated[
        Literal["mean", "median", "trimmed-mean"],
        Help("how a server combines uploads, coordinate by coordinate"),
    ] = "mean"
    trim: Annotated[
        float, Bounds(0, 0.5), Help("trimmed-mean: share of the members cut at each end of a coordinate")
    ] = 0.2
    clip: Annotated[
        float,
        Bounds(0),
        Help("longest change of an upload, as a multiple of the members' median change; 0: any"),
    ] = 0.0

    @property
    def robust(self) -> bool:
        """Whether a robust rule or clipping is on."""
        return self.rule != "mean" or self.clip > 0


MEAN: Final = AggregationOptions()  # the method's own mean, unchanged


class Cut(NamedTuple):
    """How much of each member's upload was trimmed, and whether it was clipped."""

    trimmed: Tensor  # (..., members), the share of its coordinates
    clipped: Tensor  # (..., members) bool, whether its change was shortened


def aggregate(
    options: AggregationOptions, uploads: Tensor, weights: Tensor, sent: Tensor
) -> tuple[Tensor, Cut]:
    """Uploads whose weighted mean is robust, and what was cut.

    Args:
        options: the rule.
        uploads: (..., members, d); of a member of weight zero nothing is read, not even NaN.
        weights: (..., members).
        sent: (..., members, d), what the members received.
    """
    present = weights > 0
    uploads = torch.where(present.unsqueeze(-1), uploads, sent)
    clipped = torch.zeros_like(present)
    if options.clip:
        uploads, clipped = _clipped(uploads, present, sent, options.clip)
    uploads, trimmed = trim(options, uploads, weights)
    return uploads, Cut(trimmed, clipped)


def trim(options: AggregationOptions, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the rule to values (..., members, n), without clipping; also the share (..., members) cut."""
    if options.rule == "mean":
        return values, torch.zeros_like(weights)
    present = weights > 0
    members = present.sum(-1)
    middle = ((members - 1) // 2).clamp_min(0)  # cut at each end; the middle one or two remain
    if options.rule == "median":
        cut, weights = middle, present.to(values.dtype)
    else:
        cut = torch.minimum((options.trim * members + _ROUNDING).to(members.dtype), middle)
    masked = torch.where(present.unsqueeze(-1), values, torch.inf)  # those who are absent come last
    ranked, order = masked.sort(dim=-2, stable=True)
    rank = torch.arange(values.shape[-2], device=values.device)
    kept = ((rank >= cut.unsqueeze(-1)) & (rank < (members - cut).unsqueeze(-1))).unsqueeze(-1)
    kept = kept.expand_as(ranked)
    shares = weights.to(values.dtype).unsqueeze(-1).expand_as(ranked).gather(-2, order) * kept
    total = shares.sum(-2).clamp_min(torch.finfo(values.dtype).tiny)
    center = (torch.where(kept, ranked, 0.0) * shares).sum(-2) / total
    lost = torch.zeros_like(kept).scatter(-2, order, ~kept) & present.unsqueeze(-1)
    share = lost.to(values.dtype).mean(-1) if values.shape[-1] else torch.zeros_like(weights)
    center = center.unsqueeze(-2).expand_as(values)
    if options.rule == "median":
        return center, share
    return torch.where(lost, center, values), share


def _clipped(uploads: Tensor, present: Tensor, sent: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """Uploads whose change is at most `most` medians of all changes, and which were longer."""
    change = uploads - sent
    length = torch.linalg.vector_norm(change, dim=-1)
    ranked = torch.where(present, length, torch.inf).sort(-1).values
    middle = ((present.sum(-1, keepdim=True) - 1) // 2).clamp_min(0)  # of an even number, the smaller one
    limit = most * ranked.gather(-1, middle)
    longer = present & (length > limit)
    factor = torch.where(longer, limit / length, 1.0)
    # A change that overflows has no direction to keep.
    shortened = torch.where(factor.unsqueeze(-1) > 0, sent + factor.unsqueeze(-1) * change, sent)
    return torch.where(longer.unsqueeze(-1), shortened, uploads), longer
