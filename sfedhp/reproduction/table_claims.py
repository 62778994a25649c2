"""The claims that the tables decide: which global and which personalized model is best."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sfedhp.reproduction.paper import TABLES
from sfedhp.reproduction.rows import Row, first_table
from sfedhp.reproduction.significance import LEVEL
from sfedhp.reproduction.verdicts import Claim, compare, of_cells

# Who makes as many gradient steps as sFedHP, and who is pulled as strongly: λ̄ = λ₁λ₂/(λ₁ + λ₂) = λ/2.
_EQUAL: tuple[Callable[[Row, Row], bool], ...] = (
    lambda row, ours: row.variant == "fedavg 100 steps",
    lambda row, ours: row.variant == "hierfavg 20×5 steps",
    lambda row, ours: row.method == "pfedme" and row.lam == (ours.lam or 0.0) / 2,
)
NAMES = {"mnist": "MNIST", "fmnist": "FMNIST", "cifar10": "CIFAR-10"}


def _cell(rows: Sequence[Row], table: str, method: str) -> Row | None:
    dataset, setting = TABLES[table]
    found = [row for row in rows if (row.dataset, row.setting, row.method) == (dataset, setting, method)]
    return found[0] if found else None


def best_global(rows: Sequence[Row]) -> Claim:
    """Is sFedHP's global model first everywhere?"""
    overview = first_table(rows)
    outcomes: list[bool | None] = []
    findings: list[str] = []
    for table, (dataset, setting) in TABLES.items():
        ours = _cell(overview, table, "sfedhp")
        others = [
            row
            for row in overview
            if (row.dataset, row.setting) == (dataset, setting) and row.method != "sfedhp"
        ]
        rival = max(others, key=lambda row: row.ours_last, default=None)
        outcome, line = compare(ours, rival)
        outcomes.append(outcome)
        findings.append(f"{NAMES[dataset]}, Setting {setting}: {line}")
    return Claim(
        "The global model of sFedHP is the best on every dataset and setting.",
        "For each of the six: sFedHP's row of Table 1 against the best other row, GM of the last round; "
        f"paired t-test over seeds, p < {LEVEL}. Holds: above in all six. Partly: in some.",
        of_cells(outcomes, len(TABLES)),
        tuple(findings),
    )


def best_tuned(rows: Sequence[Row]) -> Claim:
    """Is it first where every method may choose its row on validation data?"""
    outcomes: list[bool | None] = []
    findings: list[str] = []
    for table, (dataset, setting) in TABLES.items():
        mine = [
            row
            for row in rows
            if (row.table, row.metric) == (table, "gm")
            and row.reading in ("2-label", "2-label, local")
            and row.paper is not None
        ]
        ours = max((row for row in mine if row.method == "sfedhp"), key=_judged, default=None)
        rival = max((row for row in mine if row.method != "sfedhp"), key=_judged, default=None)
        outcome, line = compare(ours, rival)
        outcomes.append(outcome)
        findings.append(f"{NAMES[dataset]}, Setting {setting}: {line}")
    return Claim(
        "The same with every method's best row instead of the paper's choice.",
        "As above, but the rows of sFedHP and of the best other method are those with the highest validation "
        "accuracy of the detail tables.",
        of_cells(outcomes, len(TABLES)),
        tuple(findings),
    )


def _judged(row: Row) -> float:
    return row.validation or 0.0


def equal_work(rows: Sequence[Row]) -> Claim:
    """Is sFedHP's global model first where the others work as much, or are pulled as strongly?"""
    overview = first_table(rows)
    outcomes: list[bool | None] = []
    findings: list[str] = []
    for table, (dataset, setting) in TABLES.items():
        ours = _cell(overview, table, "sfedhp")
        for rival in _EQUAL:
            found = [
                row
                for row in rows
                if (row.table, row.metric) == (table, "gm")
                and row.reading in ("2-label", "2-label, local")
                and ours is not None
                and rival(row, ours)
            ]
            outcome, line = compare(ours, found[0] if found else None)
            outcomes.append(outcome)
            if outcome is not None:
                findings.append(f"{NAMES[dataset]}, Setting {setting}: {line}")
    return Claim(
        "Not the paper's, but fair: sFedHP's global model is above FedAvg and HierFAVG with as many gradient "
        "steps, and above pFedMe at the matched λ̄.",
        "GM of the last round of Table 1's sFedHP row against the three, in all 18 comparisons; "
        f"paired t-test over seeds, p < {LEVEL}.",
        of_cells(outcomes, 18),
        tuple(findings),
    )


def hierarchy(rows: Sequence[Row]) -> Claim:
    """Does HierFAVG beat the flat methods?"""
    overview = first_table(rows)
    outcomes: list[bool | None] = []
    findings: list[str] = []
    for table, (dataset, setting) in TABLES.items():
        for flat in ("fedavg", "pfedme"):
            if flat == "pfedme" and dataset == "cifar10":
                continue  # where the paper itself has pFedMe above
            outcome, line = compare(_cell(overview, table, "hierfavg"), _cell(overview, table, flat))
            outcomes.append(outcome)
            findings.append(f"{NAMES[dataset]}, Setting {setting}: {line}")
    return Claim(
        "Hierarchy beats flat: HierFAVG is above FedAvg everywhere, and above pFedMe except on CIFAR-10.",
        "GM of the last round of Table 1's rows, in all ten comparisons; paired t-test over seeds, "
        f"p < {LEVEL}.",
        of_cells(outcomes, 10),
        tuple(findings),
    )


def personal(rows: Sequence[Row]) -> Claim:
    """Is sFedHP's personalized model as good as any?"""
    outcomes: list[bool | None] = []
    findings: list[str] = []
    for table, (dataset, setting) in TABLES.items():
        mine = [
            row
            for row in rows
            if (row.table, row.metric) == (table, "pm") and row.paper is not None and row.ours_validated
        ]
        ours = max((row for row in mine if row.method == "sfedhp"), key=_validated, default=None)
        rival = max((row for row in mine if row.method != "sfedhp"), key=_validated, default=None)
        if ours is None or rival is None:
            outcomes.append(None)
            findings.append(f"{NAMES[dataset]}, Setting {setting}: not run yet")
            continue
        gap = _validated(ours) - _validated(rival)
        outcomes.append(gap > -0.5)
        findings.append(
            f"{NAMES[dataset]}, Setting {setting}: {ours.variant} {_validated(ours):.2f}, "
            f"best other {rival.variant} {_validated(rival):.2f} ({gap:+.2f})"
        )
    return Claim(
        "The personalized model of sFedHP is state of the art.",
        "For each of the six: the best sFedHP row's PM is at most half a point below the best PM of all "
        "other methods, rounds chosen on validation data.",
        of_cells(outcomes, len(TABLES)),
        tuple(findings),
    )


def _validated(row: Row) -> float:
    return row.ours_validated or 0.0
