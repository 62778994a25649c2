"""The claims that the tables decide: which global and which personalized model is best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sfedhp.paper.published import DATASET_NAMES, TABLES
from sfedhp.paper.rows import Row, table1_rows
from sfedhp.paper.significance import LEVEL
from sfedhp.paper.verdicts import Claim, Decision, claim_of_cells, compare

# Rivals with as many gradient steps as sFedHP, and the one with as strong a pull: λ̄ = λ₁λ₂/(λ₁ + λ₂) = λ/2.
_EQUAL_EFFORT: tuple[Callable[[Row, Row], bool], ...] = (
    lambda row, ours: row.variant == "fedavg 100 steps",
    lambda row, ours: row.variant == "hierfavg 20×5 steps",
    lambda row, ours: row.method == "pfedme" and row.lam == (ours.lam or 0.0) / 2,
)


def best_global(rows: Sequence[Row]) -> Claim:
    """Is sFedHP's global model first everywhere?"""
    overview = table1_rows(rows)

    def of_table(table: str) -> Iterator[Decision]:
        mine = _rows_of(overview, table)
        yield compare(_best(mine, _last, "sfedhp"), _best(mine, _last))

    return _claim(
        "The global model of sFedHP is the best on every dataset and setting.",
        "For each of the six: sFedHP's row of Table 1 against the best other row, GM of the last round; "
        f"above it, by a paired t-test over seeds with p < {LEVEL}.",
        of_table,
        6,
    )


def best_averaged(rows: Sequence[Row]) -> Claim:
    """Is it first where all clients use the same batch-norm statistics?"""
    shown = {(row.table, row.variant) for row in table1_rows(rows)}

    def of_table(table: str) -> Iterator[Decision]:
        mine = [row for row in rows if (row.table, row.statistics) == (table, "averaged")]
        mine = [row for row in mine if (table, row.variant) in shown]
        if mine:
            yield compare(_best(mine, _last, "sfedhp"), _best(mine, _last))

    return _claim(
        "The same on CIFAR-10 with averaged statistics: one model for all clients.",
        "As above, for the two tables with batch norm, whose global models use each client's own statistics "
        "in all other claims.",
        of_table,
        2,
    )


def best_tuned(rows: Sequence[Row]) -> Claim:
    """Is it first if every method chooses its row on validation data?"""

    def of_table(table: str) -> Iterator[Decision]:
        mine = [row for row in _rows_of(rows, table) if row.paper is not None]
        yield compare(_best(mine, _validation_accuracy, "sfedhp"), _best(mine, _validation_accuracy))

    return _claim(
        "The same with every method's best row instead of the paper's choice.",
        "As above, but the rows of sFedHP and of the best other method are those with the highest validation "
        "accuracy of the detail tables.",
        of_table,
        6,
    )


def equal_work(rows: Sequence[Row]) -> Claim:
    """Is sFedHP's global model first against rivals with equal work, or an equally strong pull?"""
    overview = table1_rows(rows)

    def of_table(table: str) -> Iterator[Decision]:
        ours = _best(_rows_of(overview, table), _last, "sfedhp")
        for rival in _EQUAL_EFFORT:
            matches = [row for row in _rows_of(rows, table) if ours is not None and rival(row, ours)]
            if matches:
                yield compare(ours, matches[0])

    return _claim(
        "Not the paper's, but fair: sFedHP's global model is above FedAvg and HierFAVG with as many gradient "
        "steps, and above pFedMe at the matched λ̄.",
        "GM of the last round of Table 1's sFedHP row against the three: above, by a paired t-test over "
        f"seeds with p < {LEVEL}.",
        of_table,
        18,
    )


def hierarchy(rows: Sequence[Row]) -> Claim:
    """Does HierFAVG beat the flat methods?"""
    overview = table1_rows(rows)

    def of_table(table: str) -> Iterator[Decision]:
        mine = _rows_of(overview, table)
        ours, fedavg, pfedme = (_best(mine, _last, name) for name in ("hierfavg", "fedavg", "pfedme"))
        yield compare(ours, fedavg)
        yield compare(pfedme, ours) if TABLES[table][0] == "cifar10" else compare(ours, pfedme)

    return _claim(
        "Hierarchy beats flat: HierFAVG is above FedAvg everywhere, and above pFedMe but for CIFAR-10, where "
        "it is below.",
        f"GM of the last round of Table 1's rows: so, by a paired t-test over seeds with p < {LEVEL}.",
        of_table,
        12,
    )


def personal(rows: Sequence[Row]) -> Claim:
    """Is sFedHP's personalized model as good as any?"""

    def of_table(table: str) -> Iterator[Decision]:
        mine = [row for row in _rows_of(rows, table, "pm") if row.paper is not None and row.ours_validated]
        ours, rival = _best(mine, _validation_accuracy, "sfedhp"), _best(mine, _validation_accuracy)
        if ours is None or rival is None:
            yield None, "not run yet"
            return
        gap = _validated(ours) - _validated(rival)
        others = sorted({row.method for row in mine} - {"sfedhp"})
        yield (
            gap > -0.5,
            f"{ours.variant} {_validated(ours):.2f}, best other of {', '.join(others)}: {rival.variant} "
            f"{_validated(rival):.2f} ({gap:+.2f})",
        )

    return _claim(
        "The personalized model of sFedHP is state of the art.",
        "For each of the six: sFedHP's PM is at most half a point below the best other method's; rows and "
        "rounds are chosen on validation data.",
        of_table,
        6,
    )


def _claim(statement: str, rule: str, of_table: Callable[[str], Iterator[Decision]], wanted: int) -> Claim:
    """A claim decided table by table; `wanted` is the number of cells it is about."""
    cells = [
        (outcome, f"{DATASET_NAMES[dataset]}, Setting {setting}: {line}")
        for table, (dataset, setting) in TABLES.items()
        for outcome, line in of_table(table)
    ]
    return claim_of_cells(statement, rule, cells, wanted)


def _rows_of(rows: Sequence[Row], table: str, metric: str = "gm") -> list[Row]:
    """The rows of a table that count for claims; by default those of the global models."""
    return [row for row in rows if (row.table, row.metric) == (table, metric) and row.compared]


def _best(rows: Sequence[Row], by: Callable[[Row], float], method: str | None = None) -> Row | None:
    """The best row of a method; without one, the best row of all methods but sFedHP."""
    mine = [row for row in rows if (row.method == method if method else row.method != "sfedhp")]
    return max(mine, key=by, default=None)


def _last(row: Row) -> float:
    return row.ours_last


def _validation_accuracy(row: Row) -> float:
    return row.validation or 0.0


def _validated(row: Row) -> float:
    return row.ours_validated or 0.0
