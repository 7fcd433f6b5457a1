"""Plots are well-formed SVG without scripts, show every name, and keep everything within the page."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.versus.plots import Bar, Line, line_plot, ratio_plot
from woolly.measure.roofline_plot import Mark, Roof, roofline_plot

SVG = "{http://www.w3.org/2000/svg}"
rates = st.floats(1e-3, 1e6)
names = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)


def parse(text):
    """The page, with every number of it checked."""
    page = ElementTree.fromstring(text)
    _, _, width, height = map(float, page.get("viewBox").split())
    assert not list(page.iter(f"{SVG}script"))
    for element in page.iter():
        for name in ("x", "x1", "x2", "cx", "y", "y1", "y2", "cy"):
            if element.get(name) is not None:
                value = float(element.get(name))
                assert math.isfinite(value)
                assert -1 <= value <= (width if "x" in name else height) + 1, (element.tag, name, value)
    return page


def texts(page):
    return ["".join(element.itertext()) for element in page.iter(f"{SVG}text")]


@given(st.lists(st.tuples(names, rates, rates, rates), min_size=1, max_size=12))
def test_every_ratio_is_a_labelled_bar(entries):
    bars = [Bar(name, b, min(a, b, c), max(a, b, c), "1 and 2") for name, a, b, c in entries]
    page = parse(ratio_plot('A "title" <of> & things', ["a note"], bars))
    shown = texts(page)
    assert [text for text in shown if text.endswith("x1 and 2")] == [f"{bar.ratio:.2f}x1 and 2" for bar in bars]
    assert len([rect for rect in page.iter(f"{SVG}rect") if rect.get("class") in ("f0", "worse")]) == len(bars)
    assert 'A "title" <of> & things' in shown


def test_bars_are_as_long_as_their_ratios_and_show_the_faster_side():
    page = parse(ratio_plot("t", [], [Bar("a", 2.0, 2.0, 2.0, ""), Bar("b", 0.5, 0.5, 0.5, "")]))
    widths = {r.get("class"): float(r.get("width")) for r in page.iter(f"{SVG}rect") if r.get("class") != "page"}
    assert widths["f0"] == pytest.approx(4 * widths["worse"], abs=1)


@given(st.lists(st.tuples(st.integers(1, 4096), rates, rates), min_size=1, max_size=8, unique_by=lambda p: p[0]))
def test_lines_have_a_point_for_every_value(points):
    ordered = sorted(points)
    lines = [
        Line("ours", tuple((x, a, min(a, b), max(a, b)) for x, a, b in ordered)),
        Line("theirs", tuple((x, b, b, b) for x, _, b in ordered)),
    ]
    page = parse(line_plot("t", ["n"], "sequences", "tokens/s", lines))
    assert len(list(page.iter(f"{SVG}circle"))) == 2 * len(points)
    assert {"ours", "theirs", "sequences", "tokens/s"} <= set(texts(page))


@given(
    bandwidth=st.floats(0.5, 1000),
    heights=st.lists(st.floats(0.1, 1e5), min_size=1, max_size=4),
    points=st.lists(st.tuples(names, st.floats(0.01, 1e4), st.floats(1e-3, 1e5), st.integers(0, 2)), max_size=20),
)
def test_roofline_names_roofs_and_places_marks(bandwidth, heights, points):
    roofs = [Roof(f"roof {i}", height) for i, height in enumerate(heights)]
    marks = [Mark(*point) for point in points]
    page = parse(roofline_plot("t", ["n"], bandwidth, roofs, ["a", "b", "c"], marks))
    assert len(list(page.iter(f"{SVG}circle"))) == len(marks) + 3
    assert {roof.name for roof in roofs} <= set(texts(page))


def test_both_color_schemes_are_defined():
    text = ratio_plot("t", [], [Bar("a", 1.0, 1.0, 1.0, "")])
    assert "prefers-color-scheme: dark" in text
