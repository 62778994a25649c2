"""The claims that the figures decide: accuracy and speed, bytes, and what λ and γ do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from sfedhp.paper.curves import Curve
from sfedhp.paper.published import METHOD_NAMES
from sfedhp.paper.verdicts import Cell, Claim, compare, judge_cells

Figures = Mapping[str, Sequence[Curve]]  # by table or figure
_COUNTS = "GM, mean of the last five evaluations"


def order_convex(figures: Figures) -> Claim:
    """Is the order of accuracies in Figure 2 the paper's?"""
    pairs = [("sfedhp", "hierfavg"), ("pfedme", "hierfavg"), ("sfedhp", "pfedme")]
    return judge_cells(
        "Accuracy, strongly convex",
        "Both sFedHP and pFedMe perform better than hierarchical FedAvg, while sFedHP obtains higher test "
        "accuracy.",
        f"Figure 2: sFedHP and pFedMe above HierFAVG, sFedHP above pFedMe. {_COUNTS}.",
        ("fig2",),
        [_more_accurate(figures, "fig2", *pair) for pair in pairs],
    )


def order_dense(figures: Figures) -> Claim:
    """Is dense sFedHP above the others in Figure 3?"""
    return judge_cells(
        "Accuracy, non-convex, dense",
        "sFedHP obtains higher performance when using a non-sparsity setting.",
        f"Figure 3: sFedHP with γ = 0 above each of the others. {_COUNTS}.",
        ("fig3",),
        [
            _more_accurate(figures, "fig3", "sfedhp dense", other)
            for other in ("fedavg", "hierfavg", "pfedme")
        ],
    )


def faster(figures: Figures, figure: str, ours: str, case: str) -> Claim:
    """Does sFedHP need fewer rounds?"""
    cells, findings = [], []
    for other in ("fedavg", "hierfavg", "pfedme"):
        mine, theirs = (_find(figures, figure, name) for name in (ours, other))
        about = f"rounds that {_words(other)} needs, less those of {_words(ours)}"
        cells.append(Cell(about, unit="rounds"))
        if mine is not None and theirs is not None:
            goals = {seed: end - 0.5 for seed, end in theirs.tails("gm").items() if seed in mine.runs}
            needed, rivals = mine.rounds_to("gm", goals), theirs.rounds_to("gm", goals)
            cells[-1] = compare(about, rivals, needed, unit="rounds")
            if goals:
                spent, others = (
                    _in_thousands(sum(each.values()) / len(each) * steps)
                    for each, steps in ((needed, mine.steps), (rivals, theirs.steps))
                )
                findings.append(
                    f"to {_words(other)}'s accuracy in gradient steps of a client: {spent} against {others}"
                )
    return judge_cells(
        f"Convergence, {case}",
        "sFedHP obtains higher convergence speed than hierarchical FedAvg, FedAvg and pFedMe.",
        f"Figure {figure[3:]}: cloud rounds to half a point below the other method's GM (mean of the last "
        "five evaluations), seed by seed. A run that does not reach it counts as if it did one evaluation "
        "later.",
        (figure,),
        cells,
        findings=findings,
    )


def fewer_bytes(figures: Figures) -> Claim:
    """Does sparse sFedHP need 80 % fewer bytes than pFedMe at a similar accuracy?"""
    ours, rival, full = (_find(figures, "fig3", name) for name in ("sfedhp sparse", "pfedme", "sfedhp dense"))
    saved, findings, number = None, [], ""
    if ours is not None and rival is not None:
        saved = _saved(ours, rival, "formula")
        number = (
            f"{_mean(saved):.0f} % fewer at {_mean(ours.tails('gm')) - _mean(rival.tails('gm')):+.1f} points"
        )
        findings.append(
            f"encoded messages of all members on the cloud's links: "
            f"{_mean(_saved(ours, rival, 'sent')):.1f} % fewer"
        )
        if full is not None:
            findings.append(
                f"of that, {_mean(_saved(full, rival, 'sent')):.1f} % without any sparsity: only sFedHP's "
                "edges talk to the cloud"
            )
    return judge_cells(
        "80 % fewer bytes at a similar accuracy",
        "sFedHP obtains similar performance in a global model with pFedMe while reducing communication costs "
        "by 80 %.",
        "Figure 3, both halves: sparse sFedHP's GM (mean of the last five evaluations) is at most one point "
        "below pFedMe's, and the bytes of one edge, by the paper's count and over all rounds, are at least "
        "80 % fewer than those of one client of pFedMe.",
        ("fig3",),
        [
            _more_accurate(figures, "fig3", "sfedhp sparse", "pfedme", -1.0),
            compare("bytes saved", saved, _zeros(saved), 80.0, "%"),
        ],
        number,
        findings,
    )


def hierarchy_saves(figures: Figures) -> Claim:
    """Does the hierarchy save bytes, on the cloud's links and in all?"""
    ours, rival = (_find(figures, "fig3", name) for name in ("sfedhp dense", "pfedme"))
    cells, number = [], ""
    for about, column in (("on the cloud's links", "sent"), ("on all links", "sent_all")):
        known = ours is not None and rival is not None and column in ours.columns and column in rival.columns
        saved = _saved(ours, rival, column) if known and ours is not None and rival is not None else None
        cells.append(compare(f"bytes saved {about}", saved, _zeros(saved), 0.0, "%"))
        if saved is not None:
            number += f"{', ' if number else ''}{_mean(saved):+.0f} % {about}"
    return judge_cells(
        "Fewer bytes by the hierarchy",
        "The hierarchical architecture reduces direct communication between clients and the cloud server, "
        "leading to a significant decrease in communication overhead.",
        "Figure 3: encoded bytes of dense sFedHP against pFedMe over all rounds, of all members and both "
        "directions; on the cloud's links, and on all links, those between clients and edges included.",
        ("fig3",),
        cells,
        number,
    )


def cheap_sparsity(figures: Figures) -> Claim:
    """Do 80 % fewer weights cost little accuracy?"""
    ours = _find(figures, "fig3", "sfedhp sparse")
    zeros = (
        None
        if ours is None
        else {seed: 100 * (1 - end) for seed, end in ours.tails("density_global").items()}
    )
    cells = [
        _more_accurate(figures, "fig3", "sfedhp sparse", "sfedhp dense", -1.0),
        compare("weights of w that are zero", zeros, _zeros(zeros), 80.0, "%"),
    ]
    gap = cells[0].difference
    return judge_cells(
        "80 % fewer parameters at little cost",
        "sFedHP obtained the state-of-the-art performance while greatly reducing the number of parameters by "
        "80 %.",
        "Figure 3, both halves: the sparse run's GM (mean of the last five evaluations) is at most one point "
        "below the dense run's, and at least 80 % of the weights of w are zero.",
        ("fig3",),
        cells,
        f"{_mean(zeros):.0f} % fewer at {gap.mean:+.1f} points" if zeros and gap else "",
    )


def larger_proximity(figures: Figures) -> Claim:
    """Does a larger λ help until it explodes?"""
    cells: list[Cell] = []
    findings = []
    for family in _families(figures, "fig4"):
        stable = list(itertools.takewhile(lambda curve: not curve.diverged, family))
        cells += _steps(stable, "gm", rising=True)
        ends = ", ".join(f"{curve.variant} {_mean(curve.tails('gm')):.1f}" for curve in family)
        which = "none" if len(stable) == len(family) else family[len(stable)].variant
        findings.append(f"{ends}; {which} diverged")
    return judge_cells(
        "Effect of λ",
        "Properly increasing λ can effectively improve the test accuracy; an oversize λ may cause gradient "
        "explosion.",
        "Figure 4, in each of its families: every λ above the one before, until a run diverges. Whether one "
        f"did is said below. {_COUNTS}.",
        ("fig4",),
        cells or [Cell("λ against the one before")],
        findings=findings,
    )


def larger_sparsity(figures: Figures) -> Claim:
    """Does a larger γ lower accuracy and bytes?"""
    cells: list[Cell] = []
    findings = []
    for family in _families(figures, "fig5"):
        cells += _steps(family, "gm", rising=False)
        cells += _steps(family, "density_global", rising=False)
        findings.append(
            ", ".join(
                f"{curve.variant}: GM {_mean(curve.tails('gm')):.1f}, density of w "
                f"{_mean(curve.tails('density_global')):.3f}"
                for curve in family
            )
        )
    return judge_cells(
        "Effect of γ",
        "Increasing γ will reduce the communication cost and global accuracy.",
        "Figure 5, without the schedule and with it: with every larger γ the GM and the density of w are "
        "below those of the one before. Means of the last five evaluations.",
        ("fig5",),
        cells or [Cell("γ against the one before")],
        findings=findings,
    )


def speedup(figures: Figures) -> Claim:
    """Do S times the edges need S times fewer rounds?"""
    curves = figures.get("speedup", ())
    ends = [curve.tails("gm") for curve in curves]
    common = [seed for seed in (ends[0] if ends else ()) if all(seed in each for each in ends)]
    goals = {seed: min(each[seed] for each in ends) - 0.5 for seed in common}
    needed = {curve.strength: curve.rounds_to("gm", goals) for curve in curves}
    cells = []
    for count in (2.0, 4.0):
        both = goals and {1.0, count} <= needed.keys()
        gain = {seed: needed[1.0][seed] / needed[count][seed] for seed in goals} if both else None
        cells.append(compare(f"speed-up by {count:g} edges", gain, _zeros(gain), 0.75 * count, "times"))
    gaps = [f"{cell.difference.mean:.2f}" for cell in cells if cell.difference is not None]
    return judge_cells(
        "Linear speed-up",
        "sFedHP's convergence rate is state-of-the-art with linear speedup.",
        "Rounds with one edge per round, divided by those with two and with four, to half a point below the "
        "lowest of the three GMs (mean of the last five evaluations), seed by seed: above three quarters of "
        "linear, that is 1.5 and 3.",
        ("speedup",),
        cells,
        f"{' and '.join(gaps)} times with 2 and 4 edges" if gaps else "",
    )


def _families(figures: Figures, figure: str) -> Iterator[list[Curve]]:
    """The curves of a figure by family, each along its λ or γ."""
    curves = figures.get(figure, ())
    for kind in dict.fromkeys(curve.kind for curve in curves):
        yield sorted((curve for curve in curves if curve.kind == kind), key=lambda curve: curve.strength)


def _steps(family: Sequence[Curve], column: str, *, rising: bool) -> Iterator[Cell]:
    """Each curve of a family against the one before."""
    unit = "points" if column == "gm" else "of 1"
    for before, after in itertools.pairwise(family):
        high, low = (after, before) if rising else (before, after)
        name = "GM" if column == "gm" else "density"
        yield compare(
            f"{name}, {high.variant} − {low.variant}", high.tails(column), low.tails(column), unit=unit
        )


def _more_accurate(figures: Figures, figure: str, left: str, right: str, margin: float = 0.0) -> Cell:
    """That one curve's GM is above another's."""
    curves = [_find(figures, figure, name) for name in (left, right)]
    words = [
        _words(name) if curve is None else f"{_words(name)} {_mean(curve.tails('gm')):.2f}"
        for name, curve in zip((left, right), curves, strict=True)
    ]
    tails = [None if curve is None else curve.tails("gm") for curve in curves]
    return compare(f"{words[0]} − {words[1]}", tails[0], tails[1], margin)


def _saved(ours: Curve, rival: Curve, column: str) -> dict[int, float]:
    """By how many percent less of a column ours ends with, by seed."""
    theirs = rival.ends(column)
    return {seed: 100 * (1 - end / theirs[seed]) for seed, end in ours.ends(column).items() if seed in theirs}


def _find(figures: Figures, figure: str, variant: str) -> Curve | None:
    return next((curve for curve in figures.get(figure, ()) if curve.variant == variant), None)


def _words(variant: str) -> str:
    """The paper's name of a method, with what follows it before: "sparse sFedHP"."""
    method, _, kind = variant.partition(" ")
    return " ".join(filter(None, (kind, METHOD_NAMES.get(method, method))))


def _zeros(values: Mapping[int, float] | None) -> dict[int, float] | None:
    return None if values is None else dict.fromkeys(values, 0.0)


def _mean(values: Mapping[int, float] | None) -> float:
    return sum(values.values()) / len(values) if values else 0.0


def _in_thousands(steps: float) -> str:
    return f"{round(steps, -2):,.0f}".replace(",", " ")
