"""The claims that the figures decide about accuracy and speed: their order, and what λ, γ and edges do."""

from __future__ import annotations

import itertools

from sfedhp.paper.comparisons import (
    COUNTS,
    NEAR,
    SUMMARY,
    Figures,
    families,
    find,
    lower_ends,
    mean,
    more_accurate,
    saved,
    words,
    zeros,
)
from sfedhp.paper.curves import Curve
from sfedhp.paper.verdicts import Cell, Claim, compare, judge_cells


def order_convex(figures: Figures) -> Claim:
    """Is the order of accuracies in Figure 2 the paper's?"""
    pairs = [("sfedhp", "hierfavg"), ("pfedme", "hierfavg"), ("sfedhp", "pfedme")]
    return judge_cells(
        "Accuracy, strongly convex",
        "… both sFedHP and pFedMe perform better than hierarchical FedAvg, while sFedHP obtain higher test "
        "accuracy …",
        f"Figure 2: sFedHP and pFedMe above HierFAVG, sFedHP above pFedMe. {COUNTS}.",
        ("fig2",),
        [more_accurate(figures, "fig2", *pair) for pair in pairs],
    )


def order_dense(figures: Figures) -> Claim:
    """Is dense sFedHP above the others in Figure 3?"""
    return judge_cells(
        "Accuracy, non-convex, dense",
        "sFedHP … obtain higher performance when using a non-sparsity setting.",
        f"Figure 3: sFedHP with γ = 0 above each of the others. {COUNTS}.",
        ("fig3",),
        [more_accurate(figures, "fig3", "sfedhp dense", other) for other in ("fedavg", "hierfavg", "pfedme")],
    )


def faster(figures: Figures, figure: str, ours: str, case: str) -> Claim:
    """Does sFedHP need fewer rounds?"""
    cells, findings = [], []
    for other in ("fedavg", "hierfavg", "pfedme"):
        mine, theirs = (find(figures, figure, name) for name in (ours, other))
        about = f"rounds that {words(other)} needs, minus those of {words(ours)}"
        cells.append(Cell(about, unit="rounds"))
        if mine is not None and theirs is not None:
            goals = {seed: end - NEAR for seed, end in theirs.tails("gm").items() if seed in mine.runs}
            needed, rivals = mine.rounds_to("gm", goals), theirs.rounds_to("gm", goals)
            cells[-1] = compare(about, rivals, needed, unit="rounds")
            if goals:
                spent, others = (
                    _in_thousands(sum(each.values()) / len(each) * steps)
                    for each, steps in ((needed, mine.steps), (rivals, theirs.steps))
                )
                findings.append(
                    f"gradient steps of a client to {words(other)}'s accuracy: {spent} against {others}"
                )
    return judge_cells(
        f"Convergence, {case}",
        SUMMARY if figure == "fig3" else "… sFedHP obtain higher test accuracy and convergence speed …",
        f"Figure {figure[3:]}: cloud rounds to half a point below the other method's GM (mean of the last "
        "five evaluations), seed by seed. A run that does not reach it counts as if it did so one "
        "evaluation after its last. FedAvg is in the figure's caption, but not in the sentence.",
        (figure,),
        cells,
        findings=findings,
    )


def larger_proximity(figures: Figures) -> Claim:
    """Does a larger λ help until it explodes?"""
    cells: list[Cell] = []
    findings = []
    for family in families(figures, "fig4"):
        stable = list(itertools.takewhile(lambda curve: not curve.diverged, family))
        cells += [_higher(after, before) for before, after in itertools.pairwise(stable)]
        cells += [_sooner(after, before) for before, after in itertools.pairwise(stable)]
        findings.append(", ".join(f"{curve.variant} {_end(curve)}" for curve in family))
    return judge_cells(
        "Effect of λ",
        "… properly increasing λ can effectively improve the test accuracy and convergence rate for sFedHP. "
        "And we find that an oversize λ₁ and λ₂ may cause gradient explosion.",
        "Figure 4, in each of its families, until a run diverges: with every λ the GM (mean of the last five "
        "evaluations) is above that with the one before, and needs fewer rounds to half a point below the "
        "lower of the two. And at some λ a run diverges; if none does, that is not decided, as a larger λ "
        "might.",
        ("fig4",),
        [*(cells or [Cell("λ against the one before")]), _explosion(figures)],
        findings=findings,
    )


def larger_sparsity(figures: Figures) -> Claim:
    """Does a larger γ lower accuracy and bytes?"""
    cells: list[Cell] = []
    findings = []
    for family in families(figures, "fig5"):
        cells += [_higher(before, after) for before, after in itertools.pairwise(family)]
        cells += [_fewer(after, before) for before, after in itertools.pairwise(family)]
        findings.append(
            ", ".join(
                f"{curve.variant}: GM {_end(curve)}"
                + (f", density of w {mean(curve.tails('density_global')):.3f}" if curve.runs else "")
                for curve in family
            )
        )
    return judge_cells(
        "Effect of γ",
        "… increasing γ will reduce the communication speed and global accuracy.",
        "Figure 5, without the schedule and with it: with every larger γ the GM (mean of the last five "
        "evaluations) and the bytes of one edge (by the paper's count, all rounds) are below those of the "
        "one before. We read the communication speed as the communication cost.",
        ("fig5",),
        cells or [Cell("γ against the one before")],
        findings=findings,
    )


def speedup(figures: Figures) -> Claim:
    """Do S times the edges need S times fewer rounds?"""
    curves = figures.get("speedup", ())
    goals = lower_ends(*curves)
    needed = {curve.strength: curve.rounds_to("gm", goals) for curve in curves}
    cells = []
    for count in (2.0, 4.0):
        both = goals and {1.0, count} <= needed.keys()
        gain = {seed: needed[1.0][seed] / needed[count][seed] for seed in goals} if both else None
        cells.append(compare(f"speed-up by {count:g} edges", gain, zeros(gain), 0.75 * count, "times"))
    gaps = [f"{cell.difference.mean:.2f}" for cell in cells if cell.difference is not None]
    return judge_cells(
        "Linear speed-up",
        "Convergence analysis shows that sFedHP's convergence rate is state-of-the-art with linear speedup …",
        "Rounds with one edge per round, divided by those with two and with four, to half a point below the "
        "lowest of the three GMs (mean of the last five evaluations), seed by seed: above three quarters of "
        "linear, that is 1.5 and 3.",
        ("speedup",),
        cells,
        f"{' and '.join(gaps)} times with 2 and 4 edges" if gaps else "",
    )


def _higher(high: Curve, low: Curve) -> Cell:
    return compare(f"GM, {high.variant} − {low.variant}", high.tails("gm"), low.tails("gm"))


def _sooner(soon: Curve, late: Curve) -> Cell:
    goals = lower_ends(soon, late)
    about = f"rounds that {late.variant} needs, minus those of {soon.variant}"
    return compare(about, late.rounds_to("gm", goals), soon.rounds_to("gm", goals), unit="rounds")


def _fewer(small: Curve, large: Curve) -> Cell:
    fewer = saved(small, large, "formula")
    return compare(f"bytes saved, {small.variant} against {large.variant}", fewer, zeros(fewer), unit="%")


def _explosion(figures: Figures) -> Cell:
    """That a run of Figure 4 diverged; not a test, because one run is enough, and none decides nothing."""
    curves = figures.get("fig4", ())
    exploded = [curve.variant for curve in curves if curve.diverged]
    whole = bool(curves) and all(curve.runs for curve in curves)
    which = ", ".join(exploded) or ("none" if whole else "none yet")
    return Cell(
        f"values of λ at which a run diverges: {which}",
        outcome="true" if exploded else "not decided" if whole else "not run yet",
    )


def _end(curve: Curve) -> str:
    """The GM that counts, in words."""
    if not curve.runs:
        return "not run yet"
    return f"{mean(curve.tails('gm')):.1f}{' (diverged)' if curve.diverged else ''}"


def _in_thousands(steps: float) -> str:
    return f"{round(steps, -2):,.0f}".replace(",", " ")
