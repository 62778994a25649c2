"""Charts: values are where their axes say, and odd data is drawn too."""

from __future__ import annotations

import re

import pytest

from sfedhp.algorithms import ALGORITHMS
from sfedhp.report.axes import Scale, step_of, ticks
from sfedhp.report.charts import Bar, Curve, bar_chart, category_chart, line_chart, rank_chart
from sfedhp.report.drawing import Area, Line, Series, Target, Text, svg, svg_file
from sfedhp.report.styles import DARK, LIGHT, STYLES, series_style


def axis(drawing):
    """Where the values on the vertical axis are, from the texts left of the chart."""
    found = [mark for mark in drawing.marks if isinstance(mark, Text) and mark.anchor == "end"]
    return {float(mark.text): mark.y - 4 for mark in found}


def test_points_are_where_the_axis_says():
    drawing = line_chart("a", "A", [Curve("one", [1, 2, 3], [20.0, 40.0, 60.0])])
    (curve,) = [mark for mark in drawing.marks if isinstance(mark, Line) and mark.style == "line0"][1:]
    places = axis(drawing)
    assert [y for _, y in curve.points] == pytest.approx([places[20], places[40], places[60]])
    assert drawing.readout is not None
    assert [x for x, _ in curve.points] == list(drawing.readout.places)


def test_bands_reach_one_deviation_up_and_down():
    drawing = line_chart("a", "A", [Curve("one", [1, 2], [40.0, 40.0], [10.0, 20.0])])
    (band,) = [mark for mark in drawing.marks if isinstance(mark, Area)]
    places = axis(drawing)
    assert [y for _, y in band.polygons[0]] == pytest.approx([places[50], places[60], places[20], places[30]])


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [-3.0, -3.0], [1e-9, 2e-9], [1e12, 3e12]])
def test_any_values_have_an_axis(values):
    drawing = line_chart("a", "A", [Curve("one", list(range(1, len(values) + 1)), values)])
    assert len(axis(drawing)) >= 2
    assert "nan" not in svg(drawing)


def test_losses_over_decades_have_a_logarithmic_axis():
    drawing = line_chart("a", "A", [Curve("one", [1, 2, 3], [100.0, 10.0, 1.0])], log=True)
    places = axis(drawing)
    assert places[100] - places[10] == pytest.approx(places[10] - places[1])


def test_the_worst_tenth_is_marked():
    figures = [Series("PM", [10.0, 50.0, None, 90.0]), Series("GM", [20.0, None, 30.0, 40.0])]
    drawing = rank_chart("a", "A", ["c0", "c1", "c2", "c3"], figures, 1, unit="%")
    areas = {mark.style: mark for mark in drawing.marks if isinstance(mark, Area)}
    assert len(areas["alarm-bar"].polygons) == 1
    assert len(areas["bar"].polygons) == 3
    assert any(isinstance(mark, Text) and mark.text == "worst tenth" for mark in drawing.marks)
    places = axis(drawing)
    assert areas["alarm-bar"].polygons[0][0][1] == pytest.approx(places[0] + (places[100] - places[0]) / 10)


def test_each_category_and_bar_has_a_sentence():
    figures = [Series("PM", [10.0, None])]
    drawing = category_chart("a", "A", ["cat", "dog"], figures, ["3 rows", "4 rows"], unit="%")
    said = [mark.label for mark in drawing.marks if isinstance(mark, Target)]
    assert said == ["cat: PM 10.00 %, 3 rows", "dog: PM –, 4 rows"]
    bars = bar_chart("b", "B", [Bar("up", 0.0, "nothing", "up: nothing")])
    assert [mark.label for mark in bars.marks if isinstance(mark, Target)] == ["up: nothing"]


def test_text_is_escaped_in_drawings():
    bars = bar_chart("b", "<B>", [Bar("<up>", 1.0, "&", '"quoted"')])
    for text in (svg(bars), svg_file(bars)):
        assert "<up>" not in text
        assert "&lt;up&gt;" in text
        assert "&quot;quoted&quot;" in text


def test_ticks_are_round_numbers_inside_the_range():
    assert ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert ticks(1, 3, 6, whole=True) == [1, 2, 3]
    assert step_of(0.7, 5) == pytest.approx(0.2)
    assert Scale(0, 10, 100, 0)(2.5) == 75
    assert Scale(4, 4, 100, 0)(4) == 50


def contrast(one, other):
    def light(color):
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        r, g, b = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted([light(one), light(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_colors_of_text_and_of_series_can_be_seen(palette):
    for ground in ("ground", "panel"):
        for name in ("ink", "soft", "accent", "alarm"):
            assert contrast(palette[name], palette[ground]) >= 4.5, name
        for number in range(8):
            assert contrast(palette[f"c{number}"], palette[ground]) >= 3, number


def test_as_many_series_as_there_are_methods_can_be_told_apart():
    lines = [STYLES[series_style("line", number)] for number in range(len(ALGORITHMS))]
    assert len({(line.stroke, line.dash) for line in lines}) == len(lines)


def test_every_style_of_a_drawing_is_defined():
    figures = [Series("PM", [10.0]), Series("EM", [10.0]), Series("GM", [10.0])]
    curve = Curve("one", [1, 2], [1.0, 2.0], [0.1, 0.1], 11)
    for drawing in (
        line_chart("a", "A", [curve]),
        rank_chart("a", "A", ["c"], figures, 1),
        category_chart("a", "A", ["c"], figures, [""]),
    ):
        used = set(re.findall(r'class="([^"]+)"', svg(drawing))) - {"chart", "target"}
        assert used <= STYLES.keys()
