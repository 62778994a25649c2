"""The claims that the figures decide: speed, bytes, and what λ and γ do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from sfedhp.paper.curves import Curve
from sfedhp.paper.significance import LEVEL, format_p, paired_t_test
from sfedhp.paper.verdicts import Claim, Decision, Verdict, claim_of_cells

Figures = Mapping[str, Sequence[Curve]]  # by study


def faster(figures: Figures, study: str, case: str) -> Claim:
    """Does sFedHP need fewer rounds?"""
    curves = {curve.variant: curve for curve in figures.get(study, ())}
    ours = curves.get("sfedhp") or curves.get("sfedhp dense")
    cells: list[Decision] = []
    for name in ("fedavg", "hierfavg", "pfedme"):
        rival = curves.get(name)
        if ours is not None and rival is not None:
            cells.append(_needs_fewer_rounds(ours, rival))
    return claim_of_cells(
        f"sFedHP converges faster than FedAvg, HierFAVG and pFedMe: {case}.",
        "To half a point below the other method's last GM, seed by seed, sFedHP needs fewer rounds, by a "
        f"paired t-test with p < {LEVEL}.",
        cells,
        3,
    )


def _needs_fewer_rounds(ours: Curve, rival: Curve) -> Decision:
    """Whether sFedHP needs fewer rounds to half a point below the rival's last GM, seed by seed."""
    goals = {seed: end - 0.5 for seed, end in _last_gm(rival).items() if seed in ours.runs}
    if not goals:
        return None, f"sFedHP and {rival.variant} have no seed in common"
    mine, theirs = ours.rounds_to("gm", goals), rival.rounds_to("gm", goals)
    reached = all(map(math.isfinite, mine.values()))
    p = paired_t_test(mine, theirs) if reached else None
    test = format_p(p) if reached else "not in every seed"
    significant = p is not None and p < LEVEL
    line = (
        f"sFedHP in rounds {_join(mine)}, {rival.variant} in rounds {_join(theirs)} "
        f"({test}{'' if significant or p is None else ', not significant'})"
    )
    if reached:
        spent, others = (
            _to_hundreds(sum(each.values()) / len(each) * steps)
            for each, steps in ((mine, ours.steps), (theirs, rival.steps))
        )
        line += f"; in gradient steps of a client {spent} against {others}"
    return significant and sum(mine.values()) < sum(theirs.values()), line


def _to_hundreds(steps: float) -> str:
    return f"{round(steps, -2):,.0f}".replace(",", " ")


def _join(turns: Mapping[int, float]) -> str:
    return ", ".join(f"{turn:.0f}" if math.isfinite(turn) else "never" for turn in turns.values())


def _last_gm(curve: Curve) -> dict[int, float]:
    """The last GM by seed."""
    return {seed: run["gm"][-1] for seed, run in curve.runs.items()}


def fewer_bytes(figures: Figures) -> Claim:
    """Does sparse sFedHP need 80 % fewer bytes than pFedMe?"""
    curves = {curve.variant: curve for curve in figures.get("fig3", ())}
    ours, rival = curves.get("sfedhp sparse"), curves.get("pfedme")
    findings: list[str] = []
    verdict: Verdict = "not run yet"
    if ours is not None and rival is not None:
        similar = ours.last("gm") >= rival.last("gm") - 1
        saved = 100 * (1 - ours.last("formula") / rival.last("formula"))
        goal = rival.last("gm") - 0.5
        mine, theirs = ours.value_at_goal("formula", "gm", goal), rival.value_at_goal("formula", "gm", goal)
        findings.append(
            f"last GM: sparse sFedHP {ours.last('gm'):.2f}, pFedMe {rival.last('gm'):.2f}; "
            f"{saved:.1f} % fewer bytes over all rounds by the paper's count for one edge and one client"
        )
        if mine is not None and theirs is not None:
            findings.append(f"to GM {goal:.1f} %: {100 * (1 - mine / theirs):.1f} % fewer by the same count")
        else:
            findings.append(f"half a point below pFedMe's last GM, {goal:.1f} %, is not reached")
        real = 100 * (1 - ours.last("sent") / rival.last("sent"))
        findings.append(
            f"encoded messages, all members and both directions of the cloud link: {real:.1f} % fewer"
        )
        full = curves.get("sfedhp dense")
        if full is not None:
            dense = 100 * (1 - full.last("sent") / rival.last("sent"))
            findings.append(
                f"of that, {dense:.1f} % without any sparsity: only sFedHP's edges talk to the cloud; "
                f"messages between its clients and edges are not in this count"
            )
        verdict = "holds" if similar and saved >= 80 else "holds partly" if saved >= 70 else "does not hold"
    return Claim(
        "sFedHP needs 80 % fewer bytes than pFedMe at a similar global accuracy.",
        "Figure 3, last round: sparse sFedHP's GM at most one point below pFedMe's and at least 80 % fewer "
        "bytes by the paper's count. Partly: at least 70 % fewer, at any accuracy.",
        verdict,
        tuple(findings),
    )


def cheap_sparsity(figures: Figures) -> Claim:
    """Does sparsity cost little accuracy?"""
    curves = {curve.variant: curve for curve in figures.get("fig3", ())}
    sparse, full = curves.get("sfedhp sparse"), curves.get("sfedhp dense")
    verdict: Verdict = "not run yet"
    findings: tuple[str, ...] = ()
    if sparse is not None and full is not None:
        cost = full.last("gm") - sparse.last("gm")
        verdict = "holds" if cost <= 1 else "holds partly" if cost <= 3 else "does not hold"
        findings = (
            f"GM {sparse.last('gm'):.2f} sparse (density of w {sparse.last('density_global'):.3f}), "
            f"{full.last('gm'):.2f} dense: {cost:.2f} points",
        )
    return Claim(
        "Sparsity costs little accuracy.",
        "Figure 3, last GM: at most 1 point below the dense run; partly: at most 3.",
        verdict,
        findings,
    )


def larger_proximity(figures: Figures) -> Claim:
    """Does a larger λ help until it explodes?"""

    def line(curve: Curve) -> str:
        return f"{curve.variant}: GM {curve.last('gm'):.2f}, best {curve.best('gm'):.2f}"

    return _trend(
        figures,
        "fig4",
        "A larger λ helps until it explodes.",
        "Figure 4, GM of the last round, mean over seeds. Holds: in each of its families every larger λ is "
        "above the one before, until a run diverges. Partly: in one of them.",
        line,
        rising=True,
    )


def larger_sparsity(figures: Figures) -> Claim:
    """Does a larger γ lower accuracy?"""

    def line(curve: Curve) -> str:
        return f"{curve.variant}: GM {curve.last('gm'):.2f}, density of w {curve.last('density_global'):.3f}"

    return _trend(
        figures,
        "fig5",
        "A larger γ lowers accuracy.",
        "Figure 5, GM of the last round, mean over seeds. Holds: every larger γ is below the one before, "
        "without the schedule and with it. Partly: in one of the two.",
        line,
        rising=False,
    )


def _trend(
    figures: Figures,
    study: str,
    statement: str,
    rule: str,
    line: Callable[[Curve], str],
    rising: bool,
) -> Claim:
    curves = figures.get(study, ())
    held: list[bool] = []
    findings: list[str] = []
    for kind in dict.fromkeys(curve.kind for curve in curves):
        family = sorted((curve for curve in curves if curve.kind == kind), key=lambda curve: curve.strength)
        findings += map(line, family)
        stable = list(itertools.takewhile(lambda curve: not curve.diverged, family))
        steps = [
            ((after.last("gm") > before.last("gm")) == rising, _differ(before, after))
            for before, after in itertools.pairwise(stable)
        ]
        held.append(all(right for right, _ in steps))
        findings.append(
            f"true in {sum(right for right, _ in steps)} of {len(steps)} steps, significant in "
            f"{sum(right and significant for right, significant in steps)} of them; "
            + ("none diverged" if len(stable) == len(family) else f"{family[len(stable)].variant} diverged")
        )
    verdict: Verdict = "not run yet"
    if held:
        verdict = "holds" if all(held) else "holds partly" if any(held) else "does not hold"
    return Claim(statement, rule, verdict, tuple(findings))


def _differ(before: Curve, after: Curve) -> bool:
    """Whether two curves end significantly apart, by a paired t-test."""
    p = paired_t_test(_last_gm(before), _last_gm(after))
    return p is not None and p < LEVEL


def speedup(figures: Figures) -> Claim:
    """Do S times the edges need S times fewer rounds?"""
    curves = figures.get("speedup", ())
    ends = [_last_gm(curve) for curve in curves]
    common = [seed for seed in (ends[0] if ends else ()) if all(seed in each for each in ends)]
    goals = {seed: min(each[seed] for each in ends) - 0.5 for seed in common}
    needed = [curve.rounds_to("gm", goals) for curve in curves]
    findings = [
        f"{curve.variant}: in rounds {_join(each)}, seed by seed, last GM {curve.last('gm'):.2f}"
        for curve, each in zip(curves, needed, strict=True)
    ]
    verdict: Verdict = "not run yet"
    if len(needed) > 1 and common:
        gain = sum(needed[0].values()) / sum(needed[-1].values())
        p = paired_t_test(needed[0], needed[-1])
        findings.append(f"one edge needs {gain:.2f} times the rounds of four ({format_p(p)})")
        verdict = "holds" if gain >= 3 else "holds partly" if gain >= 1.5 else "does not hold"
    return Claim(
        "Linear speed-up: S times the edges, S times fewer rounds.",
        "Rounds to half a point below the lowest last GM of S ∈ {1, 2, 4}, seed by seed: with four edges at "
        "least 3 times fewer than with one, in their sum over seeds; partly: 1.5 times.",
        verdict,
        tuple(findings),
    )
