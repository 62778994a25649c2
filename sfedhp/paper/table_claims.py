"""The claims that the tables decide: whose models are better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sfedhp.paper.comparisons import COUNTS
from sfedhp.paper.published import METHOD_NAMES, TABLES, cells, in_words, overview, place_of
from sfedhp.paper.rows import Row, table1_rows
from sfedhp.paper.verdicts import BOUND, OURS, Cell, Claim, compare, judge_cells

_OTHERS: Final = ("fedavg", "hierfavg", "fedprox", "pfedme")  # of Table 1
_PERSONAL: Final = ("perfedavg", "pfedme", "heurfedamp", "pfedgp")  # with personalized models
# By how many points the paper says that sFedHP is ahead, in the order of the tables.
_MARGINS: Final = dict(zip(TABLES, (1.0, 2.0, 2.0, 3.0, 19.0, 3.0), strict=True))
# Rivals with as many gradient steps as sFedHP, and the one with as strong a pull: λ̄ = λ₁λ₂/(λ₁ + λ₂) = λ/2.
_EQUAL_WORK: Final[tuple[tuple[str, Callable[[Row, float], bool]], ...]] = (
    ("FedAvg 100 steps", lambda row, _: row.variant == "fedavg 100 steps"),
    ("HierFAVG 20×5 steps", lambda row, _: row.variant == "hierfavg 20×5 steps"),
    ("pFedMe at λ̄", lambda row, lam: row.method == "pfedme" and row.lam == lam / 2),
)


def best_global(rows: Sequence[Row]) -> Claim:
    """Is sFedHP's global model above all others everywhere?"""
    shown = _table1(rows)
    cells = [
        _against(table, _find(shown, table, "sfedhp"), _find(shown, table, other), ("sfedhp", other))
        for table in TABLES
        for other in _OTHERS
    ]
    return judge_cells(
        "Best global model",
        "We find that sFedHP outperforms all compared algorithms in the global model (GM) …",
        f"Table 1, with the paper's λ: sFedHP against each of the four others, in six settings. {COUNTS}.",
        ("table1",),
        cells,
        findings=_papers_own([("sfedhp", other) for other in _OTHERS]),
    )


def margins(rows: Sequence[Row]) -> Claim:
    """Is it above them by as much as the paper says?"""
    shown = _table1(rows)
    cells, reached, known = [], 0, 0
    for table, margin in _MARGINS.items():
        ours = _find(shown, table, "sfedhp")
        mine = [
            _against(table, ours, _find(shown, table, other), ("sfedhp", other), margin) for other in _OTHERS
        ]
        gaps = [cell.difference.mean for cell in mine if cell.difference is not None]
        known += len(gaps) == len(mine)
        reached += len(gaps) == len(mine) and min(gaps) > margin
        cells += mine
    return judge_cells(
        "Six margins",
        "The proposed algorithm, sFedHP, outperforms the comparative algorithms concerning the global model "
        "in all settings by more than 1% (Setting 1 on MNIST), 2% (Setting 2 on MNIST), 2% (Setting 1 on "
        "FMNIST), 3% (Setting 2 on FMNIST), 19% (Setting 1 on CIFAR-10), and 3% (Setting 2 on CIFAR-10).",
        f"As above: each difference is above the margin of its dataset and setting. {COUNTS}.",
        ("table1",),
        cells,
        f"reached in {reached} of {known} settings" if known else "",
    )


def best_tuned(rows: Sequence[Row]) -> Claim:
    """Is it above them if every method chooses its λ on validation data?"""
    cells = []
    for table in TABLES:
        ours = _chosen(rows, table, "sfedhp", "gm")
        cells += [
            _against(table, ours, _chosen(rows, table, other, "gm"), ("sfedhp", other)) for other in _OTHERS
        ]
    return judge_cells(
        "Best global model, every method at its best λ",
        f"{OURS}: the same claim, with every method's best row instead of the paper's choice.",
        "Tables 2 to 7: for every method, the row of the paper's grid with the highest validation accuracy "
        f"(mean of the last five evaluations). {COUNTS}.",
        tuple(TABLES),
        cells,
    )


def equal_work(rows: Sequence[Row]) -> Claim:
    """Is it above rivals with equal work, or an equally strong pull?"""
    shown = _table1(rows)
    cells = []
    for table in TABLES:
        ours = _find(shown, table, "sfedhp")
        for words, same in _EQUAL_WORK:
            known = _known(rows, table, "gm")
            rival = next((row for row in known if ours is not None and same(row, ours.lam or 0.0)), None)
            cells.append(_against(table, ours, rival, ("sfedhp", words)))
    return judge_cells(
        "Best global model at equal work",
        f"{OURS}, but a fairer comparison: sFedHP's global model is above those of FedAvg and HierFAVG with "
        "the same number of gradient steps, and above that of pFedMe at the matched λ̄ = λ/2.",
        f"Table 1's sFedHP row against these three. {COUNTS}.",
        tuple(TABLES),
        cells,
    )


def best_averaged(rows: Sequence[Row]) -> Claim:
    """Is it first where all clients use the same batch-norm statistics?"""
    local = {(row.table, row.variant) for row in _table1(rows)}
    shown = [row for row in rows if row.statistics == "averaged" and (row.table, row.variant) in local]
    cells = [
        _against(table, _find(shown, table, "sfedhp"), _find(shown, table, other), ("sfedhp", other))
        for table in ("table6", "table7")
        for other in _OTHERS
    ]
    return judge_cells(
        "Best global model with averaged batch-norm statistics",
        f"{OURS}: the same claim on CIFAR-10 with the mean of all clients' batch-norm statistics, which "
        "gives one model for all clients.",
        f"The rows of Table 1 on CIFAR-10. {COUNTS}, with averaged statistics.",
        ("table6", "table7"),
        cells,
    )


def hierarchy(rows: Sequence[Row]) -> Claim:
    """Are the two hierarchical methods above the three flat ones?"""
    shown = _table1(rows)
    pairs = [(ours, other) for ours in ("sfedhp", "hierfavg") for other in ("fedavg", "fedprox", "pfedme")]
    cells = [
        _against(table, _find(shown, table, ours), _find(shown, table, other), (ours, other))
        for table in TABLES
        for ours, other in pairs
    ]
    return judge_cells(
        "Hierarchical methods against flat ones",
        "We found that hierarchical federated learning methods, such as sFedHP and HierFAVG, significantly "
        "outperformed other federated learning methods, including FedAvg, FedProx, and pFedMe, in the "
        "device-cloud structure on non-i.i.d. data.",
        f"Table 1: sFedHP and HierFAVG against each of FedAvg, FedProx and pFedMe. {COUNTS}.",
        ("table1",),
        cells,
        findings=_papers_own(pairs),
    )


def personal(rows: Sequence[Row]) -> Claim:
    """Is sFedHP's personalized model as good as any?"""
    cells = []
    for table in TABLES:
        ours = _chosen(rows, table, "sfedhp", "pm")
        cells += [
            _against(table, ours, _chosen(rows, table, other, "pm"), ("sfedhp", other), -BOUND)
            for other in _PERSONAL
        ]
    return judge_cells(
        "Personalized model",
        "We find that sFedHP … achieves state-of-the-art results in the personalized model (PM).",
        f"Tables 2 to 7: sFedHP's PM is at most {BOUND} points below that of each other method; for each "
        "method, the row with the highest validation accuracy. PM, mean of the last five evaluations.",
        tuple(TABLES),
        cells,
    )


def _against(
    table: str, ours: Row | None, rival: Row | None, names: tuple[str, str], margin: float = 0.0
) -> Cell:
    """One row against another; `names` are used for rows that were not run."""
    words = [
        METHOD_NAMES.get(name, name) if row is None else f"{in_words(row.variant)} {row.ours_tail:.2f}"
        for row, name in zip((ours, rival), names, strict=True)
    ]
    tails = [None if row is None else row.tail for row in (ours, rival)]
    return compare(f"{place_of(table)}: {words[0]} − {words[1]}", tails[0], tails[1], margin)


def _papers_own(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """How many of the comparisons are true in the paper's own table."""
    gm = {(cell.dataset, cell.setting, cell.method): cell.gm for cell in overview()}
    above = [gm[(*place, ours)] > gm[(*place, other)] for place in TABLES.values() for ours, other in pairs]
    return [f"true in {sum(above)} of {len(above)} by the paper's own numbers"]


def _table1(rows: Sequence[Row]) -> list[Row]:
    """The rows of Table 1; all rows are of one reading."""
    return table1_rows(rows, rows[0].reading) if rows else []


def _known(rows: Sequence[Row], table: str, kind: str) -> list[Row]:
    """The rows of a table that count for claims."""
    return [row for row in rows if (row.table, row.kind) == (table, kind) and row.compared]


def _find(rows: Sequence[Row], table: str, method: str) -> Row | None:
    return next((row for row in rows if (row.table, row.method) == (table, method)), None)


def _chosen(rows: Sequence[Row], table: str, method: str, kind: str) -> Row | None:
    """Of a method's rows in the paper the one that is best on validation data; None until all were run."""
    mine = [row for row in _known(rows, table, kind) if row.method == method and row.paper is not None]
    grid = [
        cell for cell in cells() if cell[:3] == (*TABLES[table], method) and cell._asdict()[kind] is not None
    ]
    return max(mine, key=lambda row: row.validation or 0.0) if mine and len(mine) == len(grid) else None
