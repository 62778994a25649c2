"""The files of a report: what is written where, and that all formats draw the same charts."""

from __future__ import annotations

import io
import sys
from xml.etree import ElementTree

import pytest
from PIL import Image

from sfedhp.core.errors import InputError
from sfedhp.report.content import drawings
from sfedhp.report.facts import read_facts
from sfedhp.report.files import report_run, write_report
from sfedhp.report.raster import png_file
from tests.support.run_folders import write_run

NAMES = ["bytes", "classes", "clients", "curves", "density", "loss", "seconds", "tree"]


def test_tables_and_charts_are_beside_the_page(tmp_path):
    facts = read_facts([write_run(tmp_path / "one")])
    written = write_report(facts, tmp_path / "new/page.html", ["csv", "latex", "svg", "png"])
    assert all(path.exists() for path in written)
    below = sorted(str(path.relative_to(tmp_path / "new")) for path in written)
    charts = [f"page-charts/{name}.{kind}" for name in NAMES for kind in ("png", "svg")]
    assert below == sorted(["page.html", "page.csv", "page.tex", *charts])


def test_svg_and_png_have_the_same_size_and_the_svg_is_xml(tmp_path):
    facts = read_facts([write_run(tmp_path / "one")])
    write_report(facts, tmp_path / "page.html", ["svg", "png"])
    for name in NAMES:
        root = ElementTree.parse(tmp_path / f"page-charts/{name}.svg").getroot()
        with Image.open(tmp_path / f"page-charts/{name}.png") as image:
            wanted = (2 * float(root.attrib["width"]), 2 * float(root.attrib["height"]))
            assert image.size == pytest.approx(wanted, abs=2)
            assert len(image.convert("RGB").getcolors(10**6) or ()) > 5  # not empty


def test_bars_of_the_png_are_where_the_drawing_has_them(tmp_path):
    facts = read_facts([write_run(tmp_path / "one")])
    drawing = next(each for each in drawings(facts) if each.name == "clients")
    with Image.open(io.BytesIO(png_file(drawing))) as image:
        picture = image.convert("RGB")
    (worst,) = [mark for mark in drawing.marks if getattr(mark, "style", "") == "alarm-bar"]
    (left, top), (right, _), (_, bottom), _ = worst.polygons[0]  # type: ignore[union-attr]
    inside = picture.getpixel((int(left + right), int(bottom + top + 60)))
    assert isinstance(inside, tuple)
    assert inside[0] > inside[2] + 40  # reddish


def test_several_runs_have_no_tree_of_one(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"s{seed}", seed=seed)
    assert [each.name for each in drawings(read_facts([tmp_path]))] == [
        *("curves", "loss", "density", "bytes", "seconds"),
    ]


def test_the_page_of_a_sweep_is_in_its_folder(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"s{seed}", seed=seed)
    assert report_run(tmp_path) == tmp_path / "report.html"
    assert "2 seeds" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_png_without_matplotlib_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    facts = read_facts([write_run(tmp_path / "one")])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'sfedhp\[report\]'"):
        write_report(facts, tmp_path / "page.html", ["png"])
    assert not (tmp_path / "page.html").exists()


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    facts = read_facts([write_run(tmp_path / "one")])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(facts, tmp_path / "file/page.html")
