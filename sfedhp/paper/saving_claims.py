"""The claims about what sparsity and the hierarchy save, and what that costs."""

from __future__ import annotations

from sfedhp.paper.comparisons import (
    NEAR,
    SUMMARY,
    Figures,
    find,
    lower_ends,
    mean,
    more_accurate,
    saved,
    words,
    zeros,
)
from sfedhp.paper.verdicts import BOUND, Cell, Claim, compare, judge_cells

SLOWER = 80.0  # rounds: a tenth of a run


def fewer_bytes(figures: Figures) -> Claim:
    """Does sparse sFedHP need 80 % fewer bytes than pFedMe at a similar accuracy?"""
    ours, rival, full = (find(figures, "fig3", name) for name in ("sfedhp sparse", "pfedme", "sfedhp dense"))
    fewer, findings, number = None, [], ""
    if ours is not None and rival is not None:
        fewer = saved(ours, rival, "formula")
        number = (
            f"{mean(fewer):.0f} % fewer at {mean(ours.tails('gm')) - mean(rival.tails('gm')):+z.1f} points"
        )
        findings.append(
            f"encoded messages of all members on the cloud's links: "
            f"{mean(saved(ours, rival, 'sent')):.1f} % fewer"
        )
        if full is not None:
            findings.append(
                f"of these, {mean(saved(full, rival, 'sent')):.1f} % without any sparsity, because only "
                "sFedHP's edges talk to the cloud"
            )
    return judge_cells(
        "80 % fewer bytes at a similar accuracy",
        "… sFedHP obtain similar performance in a global model with pFedMe while reducing communication "
        "costs by 80% …",
        "Figure 3, both halves: sparse sFedHP's GM (mean of the last five evaluations) is at most one point "
        "below pFedMe's, and the bytes of one edge, by the paper's count and over all rounds, are at least "
        "80 % fewer than those of one client of pFedMe.",
        ("fig3",),
        [
            more_accurate(figures, "fig3", "sfedhp sparse", "pfedme", -1.0),
            compare("bytes saved", fewer, zeros(fewer), 80.0, "%"),
        ],
        number,
        findings,
    )


def cheaper(figures: Figures) -> Claim:
    """Does sFedHP reach the others' accuracy with fewer bytes?"""
    cells = []
    for figure, ours in (("fig2", "sfedhp"), ("fig3", "sfedhp sparse")):
        for other in ("hierfavg", "pfedme"):
            mine, theirs = (find(figures, figure, name) for name in (ours, other))
            fewer = None
            if mine is not None and theirs is not None and mine.has("formula") and theirs.has("formula"):
                goals = {seed: end - NEAR for seed, end in theirs.tails("gm").items() if seed in mine.runs}
                spent, rivals = (each.spent_to("gm", goals, "formula") for each in (mine, theirs))
                fewer = {seed: 100 * (1 - spent[seed] / rivals[seed]) for seed in goals}
            about = f"Figure {figure[3:]}, bytes saved to {words(other)}'s accuracy"
            cells.append(compare(about, fewer, zeros(fewer), unit="%"))
    return judge_cells(
        "Communication cost",
        SUMMARY,
        "Figures 2 and 3 (sparse): the bytes of one edge or client, by the paper's count, until the GM is "
        "half a point below the other method's (mean of the last five evaluations), seed by seed. A run that "
        "does not reach it counts all its bytes. Accuracy and convergence have claims of their own.",
        ("fig2", "fig3"),
        cells,
    )


def hierarchy_saves(figures: Figures) -> Claim:
    """Does the hierarchy save bytes, on the cloud's links and in all?"""
    ours, rival = (find(figures, "fig3", name) for name in ("sfedhp dense", "pfedme"))
    cells, number = [], ""
    for about, column in (("on the cloud's links", "sent"), ("on all links", "sent_all")):
        fewer = None
        if ours is not None and rival is not None and ours.has(column) and rival.has(column):
            fewer = saved(ours, rival, column)
        cells.append(compare(f"bytes saved {about}", fewer, zeros(fewer), 0.0, "%"))
        if fewer is not None:
            number += f"{', ' if number else ''}{mean(fewer):+z.0f} % {about}"
    return judge_cells(
        "Fewer bytes by the hierarchy",
        "The hierarchical architecture of sFedHP reduces direct communication between clients and the cloud "
        "server, leading to a significant decrease in communication overhead.",
        "Figure 3: bytes of dense sFedHP against pFedMe over all rounds, of all members and both directions; "
        "on the cloud's links (encoded), and on all links, with those between clients and edges (float32).",
        ("fig3",),
        cells,
        number,
    )


def sparse_accuracy(figures: Figures) -> Claim:
    """Is the sparse model as good as any, with 80 % fewer weights?"""
    ours, full = (find(figures, "fig3", name) for name in ("sfedhp sparse", "sfedhp dense"))
    zero = None
    if ours is not None:
        zero = {seed: 100 * (1 - density) for seed, density in ours.tails("density_global").items()}
    cells = [
        *(
            more_accurate(figures, "fig3", "sfedhp sparse", other, -BOUND)
            for other in ("fedavg", "hierfavg", "pfedme")
        ),
        compare("weights of w that are zero", zero, zeros(zero), 80.0, "%"),
    ]
    gaps = [cell.difference.mean for cell in cells[:3] if cell.difference is not None]
    findings = []
    if ours is not None and full is not None:
        findings.append(
            f"sparse − dense sFedHP: {mean(ours.tails('gm')) - mean(full.tails('gm')):+z.2f} points"
        )
    return judge_cells(
        "State of the art with 80 % fewer parameters",
        "sFedHP obtained the state-of-the-art performance while greatly reducing the number of parameters by "
        "80%.",
        f"Figure 3, both halves: sparse sFedHP's GM (mean of the last five evaluations) is at most {BOUND} "
        "points below that of each other method, and at least 80 % of the weights of w are zero.",
        ("fig3",),
        cells,
        f"{mean(zero):.0f} % fewer at {min(gaps):+z.1f} to {max(gaps):+z.1f} points" if gaps else "",
        findings,
    )


def sparse_convergence(figures: Figures) -> Claim:
    """Does sparsity slow sFedHP down by little, and does it save bytes?"""
    ours, full = (find(figures, "fig3", name) for name in ("sfedhp sparse", "sfedhp dense"))
    about = ("rounds that dense sFedHP needs, minus those of sparse sFedHP", "bytes saved by sparsity")
    cells, number = [Cell(about[0], unit="rounds"), Cell(about[1], unit="%")], ""
    if ours is not None and full is not None:
        goals = lower_ends(ours, full)
        needed, dense = (each.rounds_to("gm", goals) for each in (ours, full))
        fewer = saved(ours, full, "formula")
        cells = [
            compare(about[0], dense, needed, -SLOWER, "rounds"),
            compare(about[1], fewer, zeros(fewer), unit="%"),
        ]
        number = f"{mean(needed) - mean(dense):+z.0f} rounds, {mean(fewer):.0f} % fewer bytes"
    return judge_cells(
        "Cost of sparsity",
        "… the sparse constraint only reduces the convergence rate to a small extent while significantly "
        "reducing the communication cost.",
        "Figure 3, both halves: to half a point below the lower of the two GMs (mean of the last five "
        f"evaluations), sparse sFedHP needs at most {SLOWER:g} rounds more than dense sFedHP, a tenth of the "
        "run; and it sends fewer bytes over all rounds, by the paper's count.",
        ("fig3",),
        cells,
        number,
    )
