"""All claims of the paper that records can decide, in its order."""

from __future__ import annotations

from collections.abc import Sequence

from sfedhp.paper import figure_claims, saving_claims, table_claims
from sfedhp.paper.comparisons import Figures
from sfedhp.paper.rows import Row
from sfedhp.paper.studies import MAIN_READING
from sfedhp.paper.verdicts import Claim


def judge(rows: Sequence[Row], figures: Figures, reading: str = MAIN_READING) -> list[Claim]:
    """Each claim with its verdict by the records of one reading; of what was not run yet it says so."""
    rows = [row for row in rows if row.reading == reading]
    return [
        table_claims.best_global(rows),
        table_claims.margins(rows),
        table_claims.best_tuned(rows),
        table_claims.equal_work(rows),
        table_claims.best_averaged(rows),
        table_claims.hierarchy(rows),
        table_claims.personal(rows),
        figure_claims.order_convex(figures),
        figure_claims.faster(figures, "fig2", "sfedhp", "strongly convex"),
        figure_claims.order_dense(figures),
        figure_claims.faster(figures, "fig3", "sfedhp dense", "non-convex"),
        saving_claims.fewer_bytes(figures),
        saving_claims.cheaper(figures),
        saving_claims.hierarchy_saves(figures),
        saving_claims.sparse_accuracy(figures),
        saving_claims.sparse_convergence(figures),
        figure_claims.larger_proximity(figures),
        figure_claims.larger_sparsity(figures),
        figure_claims.speedup(figures),
    ]
