"""The files of a report: the page, and beside it tables and charts in other formats."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from sfedhp.core.files import remove_temporary_files, write_atomically, write_text, writing
from sfedhp.report.content import drawings
from sfedhp.report.drawing import svg_file
from sfedhp.report.facts import Facts, read_facts
from sfedhp.report.page import NAME, render
from sfedhp.report.raster import png_file
from sfedhp.report.tables import csv_table, latex_table

FORMATS: Final = ("csv", "latex", "svg", "png")


def write_report(facts: Facts, page: Path, formats: Collection[str] = ()) -> list[Path]:
    """Write the page of these runs, and the other formats beside it; return what was written.

    Everything is computed before the first file is written.

    Args:
        facts: of the runs.
        page: the file; its folder is made.
        formats: of `FORMATS`. Tables are named as the page, with another ending; charts are in a folder that
            is named as the page with `-charts`.

    Raises:
        InputError: a file cannot be written, or PNG files are asked for without matplotlib.
    """
    charts = page.with_name(f"{page.stem}-charts")
    content: dict[Path, str | bytes] = {page: render(facts)}
    if "csv" in formats:
        content[page.with_suffix(".csv")] = csv_table(facts)
    if "latex" in formats:
        content[page.with_suffix(".tex")] = latex_table(facts)
    drawn = drawings(facts) if {"svg", "png"} & set(formats) else []
    content |= {charts / f"{each.name}.svg": svg_file(each) for each in drawn if "svg" in formats}
    content |= {charts / f"{each.name}.png": png_file(each) for each in drawn if "png" in formats}
    for path, data in content.items():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, data)
    return list(content)


def report_run(folder: Path) -> Path:
    """Write the page of the run, or of the runs, in a folder into it; return its path.

    Raises:
        InputError: the folder holds no run, or cannot be written.
    """
    remove_temporary_files(folder, shared=True)  # of a page that a killed command began
    write_report(read_facts([folder]), folder / NAME)
    return folder / NAME


def _write(path: Path, data: str | bytes) -> None:
    if isinstance(data, str):
        write_text(path, data)
    else:
        write_atomically(path, lambda beside: beside.write_bytes(data))
