"""Results: the rows, curves and claims that the records of studies give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sfedhp.core.errors import InputError
from sfedhp.paper.claims import judge
from sfedhp.paper.curves import Curve, curves
from sfedhp.paper.packaged import RECORDS, records_folder
from sfedhp.paper.published import TABLES
from sfedhp.paper.records import read_records_of
from sfedhp.paper.rows import Row, rows, table1_rows
from sfedhp.paper.studies import MAIN_READING, OTHER_READING, Study
from sfedhp.paper.verdicts import Claim


@dataclass(frozen=True)
class Results:
    """What the records of studies hold."""

    tables: Mapping[str, str]  # the table each study belongs to
    rows_by_study: Mapping[str, Sequence[Row]]
    curves: Mapping[str, Sequence[Curve]]  # by study that is a figure
    table_curves: Mapping[str, Sequence[Curve]]  # by study that is a table
    claims: Sequence[Claim]  # every claim of the paper with its verdict, by the main reading
    claims_beside: Sequence[Claim]  # the same by the other reading
    devices: Mapping[str, Mapping[str, int]]  # by study: how many of its runs each device made

    @property
    def rows(self) -> list[Row]:
        """The rows of all studies."""
        return [row for each in self.rows_by_study.values() for row in each]

    def with_variants(self, prefixes: Sequence[str]) -> Results:
        """The same with only the rows of variants that begin with one of the prefixes, if there are any."""
        if not prefixes:
            return self
        kept = {
            name: [row for row in each if row.variant.startswith(tuple(prefixes))]
            for name, each in self.rows_by_study.items()
        }
        return replace(self, rows_by_study=kept)

    def by_table(self, targets: Sequence[str] = ("all",)) -> dict[str, list[Row]]:
        """The rows of the targets, by table; of tables 2 to 7 those of the studies that were named.

        Args:
            targets: tables, studies, or `all`. A table means all its studies.
        """
        names: list[str] = []
        for target in targets:
            names += ["table1", *self.tables.values()] if target == "all" else [self._table(target)]
        return {table: self._rows_of(table, targets) for table in dict.fromkeys(names)}

    def lacks(self, target: str) -> bool:
        """Whether there is no row of a table or study, and no curve of a figure."""
        if self.curves.get(target) or target == "all":
            return False
        return not self._rows_of(self._table(target), [target])

    def _table(self, target: str) -> str:
        return self.tables.get(target, target)

    def _rows_of(self, table: str, targets: Sequence[str]) -> list[Row]:
        if table == "table1":
            return [replace(row, table="table1") for row in table1_rows(self.rows)]
        whole = {"all", table} & set(targets)
        return [
            row
            for name, each in self.rows_by_study.items()
            if self.tables[name] == table and (whole or name in targets)
            for row in each
        ]


def read_results(studies: Sequence[Study], records: str | Path | None = None) -> Results:
    """Read the records of studies and judge the paper's claims by them.

    Args:
        studies: as the runs were made.
        records: the folder of the records; None: `results` here where it holds some, else the package's.

    Raises:
        InputError: the records cannot be read, or were run with other settings than the studies have.
    """
    known = read_records_of(studies, records_folder() if records is None else records)
    by_study = {study.name: rows([study], known) for study in studies}
    every = {
        study.name: curves(study, known) for study in studies if study.paper or study.table not in TABLES
    }
    figures = {study.name: every[study.name] for study in studies if study.table not in TABLES}
    main, beside = (
        judge(
            [row for each in by_study.values() for row in each],
            {
                study.table: curves(study, known, whole=True)
                for study in studies
                if study.name in figures and study.reading == reading
            },
            reading,
        )
        for reading in (MAIN_READING, OTHER_READING)
    )
    return Results(
        {study.name: study.table for study in studies},
        by_study,
        figures,
        {name: lines for name, lines in every.items() if name not in figures},
        main,
        beside,
        {
            study.name: Counter(each.versions["device"] for each in known if each.study == study.name)
            for study in studies
        },
    )


def check_records(folder: str | Path) -> None:
    """Refuse a folder without records.

    Raises:
        InputError: there is no such folder, or it holds no records.
    """
    if not any(Path(folder).glob(RECORDS)):
        raise InputError(
            f"{folder} holds no records: name their folder with --records, or run something first, for "
            f"example `sfedhp reproduce table2 --fast`."
        )
