"""Membership inference against the models of a run: do they reveal which rows they were trained on?

Two attackers ask a released model about rows of which half may be training rows: one compares losses with a
threshold, one compares them with those of shadow runs, which it trains itself on data of the same kind:

Membership Inference Attacks From First Principles.
N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis, F. Tramèr. IEEE S&P 2022. https://arxiv.org/abs/2112.03570
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from sfedhp.algorithms import Algorithm, Pooled
from sfedhp.core.errors import InputError
from sfedhp.data import Federation
from sfedhp.membership.ranking import Area, area_over, share_found
from sfedhp.membership.shadows import Pools, division, losses, pools_of, shadow_losses
from sfedhp.nn.problems import KINDS
from sfedhp.runs.build import Model
from sfedhp.runs.federation import Data
from sfedhp.runs.model_card import TIER_OF_KIND
from sfedhp.runs.prepare import Prepared
from sfedhp.runs.run import restore

_WRONG: Final = 0.01  # the share of others that an attacker may take for members
_FEWEST: Final = 4  # shadow runs: enough that some have trained on a row and some have not


@dataclass(frozen=True)
class Finding:
    """The result of one attacker on the models of one tier."""

    tier: str  # client, edge or global
    attack: str  # threshold, or likelihood-ratio
    area: Area  # under the ROC curve; 0.5: the models reveal nothing
    found: float  # share of members found where one in a hundred others is taken for one
    members: int
    others: int


@dataclass(frozen=True)
class Audit:
    """What the models of a run reveal about membership."""

    findings: tuple[Finding, ...]
    rounds: int
    shadows: int

    def as_dict(self) -> dict[str, Any]:
        """The audit as JSON can hold it."""
        return {
            "rounds": self.rounds,
            "shadows": self.shadows,
            "findings": [{**asdict(each), "area": each.area._asdict()} for each in self.findings],
        }


def audit(
    folder: Path | str,
    *,
    shadows: int = 16,
    algorithm: Algorithm | None = None,
    data: Data | None = None,
    model: Model | None = None,
    report: Callable[[int], None] | None = None,
) -> Audit:
    """Attack the models of a run in a folder.

    Args:
        folder: the run's; its data must be there as well.
        shadows: runs that the stronger attacker trains; 0: only losses are compared with a threshold.
        algorithm: the method, if it is the user's own.
        data: the data, if the run was started with data from Python.
        model: the module, if the run was started with one from Python.
        report: called after each shadow run with how many are done.

    Raises:
        InputError: there is no such run, its data is missing, or it cannot be attacked.
    """
    prepared = restore(Path(folder), algorithm, data, model, None)
    if not prepared.simulator.state.round:
        raise InputError(
            f"The run in {folder} has no round in a checkpoint: continue it with `sfedhp resume`."
        )
    return audit_run(prepared, shadows=shadows, model=model, report=report)


def audit_run(
    prepared: Prepared,
    *,
    shadows: int = 16,
    model: Model | None = None,
    report: Callable[[int], None] | None = None,
) -> Audit:
    """Attack the models of a run in its current state; see `audit`.

    Raises:
        InputError: it cannot be attacked.
    """
    federation, rounds = prepared.federation, prepared.simulator.state.round
    _check(prepared, shadows)
    pools = pools_of(federation)
    target = {kind: _confidence(each) for kind, each in losses(prepared, pools).items()}
    ratios: dict[str, Tensor] = {}
    if shadows:
        bounded = replace(prepared.experiment.privacy, epsilon=0.0)
        experiment = replace(prepared.experiment, privacy=bounded)
        seed = experiment.seed
        divided = [division(federation, shadow, seed) for shadow in range(shadows)]
        found = []
        for done, each in enumerate(shadow_losses(experiment, divided, pools, rounds, model)):
            found.append({kind: _confidence(loss) for kind, loss in each.items()})
            if report is not None:
                report(done + 1)
        ratios = _ratios(target, found, _inside(pools, divided, target))
    sizes = [len(held) for held in federation.train]
    findings = []
    for kind in [kind for kind in KINDS if kind in target]:
        findings.append(_finding(kind, "threshold", target[kind], sizes))
        if kind in ratios:
            findings.append(_finding(kind, "likelihood-ratio", ratios[kind], sizes))
    return Audit(tuple(findings), rounds, shadows)


def _check(prepared: Prepared, shadows: int) -> None:
    """Reject runs that cannot be attacked in this way."""
    federation = prepared.federation
    if federation.problem != "classification" or prepared.simulator.algorithm.predicts_from_features:
        raise InputError("Membership is audited for models that give scores of classes: choose another run.")
    if isinstance(prepared.simulator.algorithm, Pooled):
        raise InputError("Pooled rows have no clients: audit a run of a method that federates.")
    if not any(
        len(train) and len(test) for train, test in zip(federation.train, federation.test, strict=True)
    ):
        raise InputError("No client has both training and test rows to compare: set data.test_share.")
    if 0 < shadows < _FEWEST:
        raise InputError(f"shadows = {shadows} is too few: use at least {_FEWEST}, or 0 for none.")


def _confidence(loss: Tensor) -> Tensor:
    """log(p/(1 − p)) of the true class, given −log p: about normal, where p itself is near 0 or 1."""
    loss = loss.clamp(1e-12, 700.0)
    return -loss - torch.log(-torch.expm1(-loss))


def _inside(pools: Pools, divided: Sequence[Federation], target: Mapping[str, Tensor]) -> Tensor:
    """Whether each row of the pools is a training row of each shadow run: (shadows, clients, rows)."""
    shape = next(iter(target.values())).shape
    found = torch.zeros(len(divided), *shape, dtype=torch.bool)
    for shadow, federation in enumerate(divided):
        for client, pool in enumerate(pools):
            inside = np.isin(pool, federation.train[client])
            found[shadow, client, : len(pool)] = torch.from_numpy(inside)
    return found


def _ratios(
    target: Mapping[str, Tensor], shadows: Sequence[Mapping[str, Tensor]], inside: Tensor
) -> dict[str, Tensor]:
    """log N(x; in) − log N(x; out) of each row: means of its own, one deviation for all rows.

    The gap between the two means is uncertain if few shadow runs contain the row, or few do not. It is shrunk
    towards the gap of all rows, by the part of its variance between rows that chance explains.
    """
    found = {}
    for kind, value in target.items():
        each = torch.stack([shadow[kind] for shadow in shadows])
        there = ~each.isnan()
        counts = [(chosen & there).sum(0).double() for chosen in (inside, ~inside)]
        means, squares, freedom = [], 0.0, 0.0
        for chosen, count in zip((inside & there, ~inside & there), counts, strict=True):
            mean = torch.where(chosen, each, 0.0).sum(0) / count.clamp_min(1)
            squares += float(torch.where(chosen, (each - mean).square(), 0.0).sum())
            freedom += float((count - 1).clamp_min(0).sum())
            means.append(mean)
        variance = max(squares / max(freedom, 1.0), 1e-12)
        known = (counts[0] > 0) & (counts[1] > 0)
        gaps, chance = means[0] - means[1], variance * (1 / counts[0] + 1 / counts[1])
        usual = gaps[known].mean()
        real = max(float((gaps[known] - usual).square().mean() - chance[known].mean()), 0.0)
        weight = torch.where(known, real / (real + chance), 0.0)
        gap = usual + weight * torch.where(known, gaps - usual, 0.0)
        middle = torch.where(known, (means[0] + means[1]) / 2, means[0] - gap / 2)
        middle = torch.where(counts[0] > 0, middle, means[1] + gap / 2)
        found[kind] = gap * (value - middle) / variance
    return found


def _finding(kind: str, attack: str, scores: Tensor, sizes: Sequence[int]) -> Finding:
    """What scores (clients, rows) of the pools tell, of which the first `sizes` rows are members."""
    groups = []
    for client, size in enumerate(sizes):
        row = scores[client].numpy()
        row = row[~np.isnan(row)]
        groups.append((row[:size], row[size:]))
    # One threshold for all clients: each client's scores are taken relative to its others.
    centered = [
        (ones - np.median(others), others - np.median(others)) for ones, others in groups if len(others)
    ]
    members, others = (np.concatenate(part) for part in zip(*centered, strict=True))
    found = share_found(members, others, _WRONG)
    return Finding(TIER_OF_KIND[kind], attack, area_over(groups), found, len(members), len(others))
