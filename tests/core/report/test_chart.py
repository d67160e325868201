"""A chart says the truth at its edges: one point, no points, zeros, decades, very many points."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from allaboard.report.chart import SIZE, Line, Mark, chart, labels, number, steps_axis, ticks, time_axis

AXIS = steps_axis(0, 100_000)


def svg(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture[picture.index("<svg") : picture.index("</svg>") + len("</svg>")])


def places(path: str) -> list[tuple[int, int]]:
    """What a reader of SVG makes of a path of ours."""
    found: list[tuple[int, int]] = []
    for part in path.split("M")[1:]:
        numbers = [int(n) for n in re.findall(r"-?\d+", part.replace("h0", ""))]
        assert len(numbers) % 2 == 0 and ("l" in part) == (len(numbers) > 2)
        pairs = [*zip(numbers[::2], numbers[1::2], strict=True)]
        x, y = pairs[0]
        found.append((x, y))
        for dx, dy in pairs[1:]:
            x, y = x + dx, y + dy
            found.append((x, y))
    return found


def drawn(picture: str, kind: str) -> list[list[tuple[int, int]]]:
    paths = [e for e in svg(picture).iter() if (e.attrib.get("class") or "").split()[:1] == [kind]]
    return [places(e.attrib["d"]) for e in paths]


@pytest.mark.parametrize(
    "points",
    [
        [(1, 0.5)],
        [(1, 0.0), (2, 0.0)],
        [(1, -5.0), (2, -5.0)],
        [(5, 1e-9), (6, 1e9)],
        [(n, 1 / (n + 1)) for n in range(10_000)],
        [(0, -1.0), (10, 1.0)],
    ],
    ids=["one", "zeros", "flat and below zero", "decades", "many", "around zero"],
)
def test_every_point_lies_in_the_picture(points: list[tuple[float, float]]) -> None:
    picture = chart("Loss", [Line("loss", points), Line("val", points[:3], dots=True)], AXIS)
    found = [place for kind in ("line", "dots") for path in drawn(picture, kind) for place in path]
    assert len(found) >= len(points) + len(points[:3])
    assert all(0 <= x <= SIZE and 0 <= y <= SIZE for x, y in found)


def test_a_path_holds_its_points_without_adding_up_errors() -> None:
    points = [(float(n), (n * 7919 % 1000) / 1000) for n in range(0, 100_000, 10)]
    (found,) = drawn(chart("x", [Line("x", points)], AXIS), "line")
    assert [x for x, _ in found] == [round(SIZE * x / 100_000) for x, _ in points]


def test_no_line_is_drawn_over_a_break() -> None:
    points = [(float(n), 1.0) for n in range(6)]
    picture = chart("x", [Line("x", points, breaks=[2.0, 4.5])], steps_axis(0, 5))
    (path,) = [e.attrib["d"] for e in svg(picture).iter() if "data-name" in e.attrib]
    assert path.count("M") == 3 and len(places(path)) == 6


def test_without_points_there_is_no_picture() -> None:
    assert chart("Loss", [], AXIS) == ""
    assert chart("Loss", [Line("loss", [])], AXIS) == ""


def test_a_loss_that_falls_by_decades_is_drawn_on_a_logarithmic_scale() -> None:
    def words(points: list[tuple[float, float]]) -> list[str]:
        return re.findall(r'<i class="y"[^>]*>([^<]*)</i>', chart("Loss", [Line("loss", points)], AXIS))

    assert {"0.01", "0.1", "1"} <= {*words([(1, 2.0), (2, 0.008)])}
    assert "0.01" not in words([(1, 2.0), (2, 1.0)])


def test_names_cannot_break_the_picture() -> None:
    picture = chart('"><script>', [Line("<b>&\"'", [(1, 1.0)])], AXIS, marks=[Mark(1, "<i>")], best=(1, 1.0))
    assert "<script>" not in picture and "<b>" not in picture
    assert [e.attrib["data-name"] for e in svg(picture).iter() if "data-name" in e.attrib] == ["<b>&\"'"]


def test_marks_outside_of_the_axis_are_not_drawn() -> None:
    marks = [Mark(5, "in"), Mark(50, "out"), Mark(7, "the best", best=True)]
    picture = chart("x", [Line("x", [(0, 1.0), (10, 2.0)])], steps_axis(0, 10), marks=marks)
    assert "in</title>" in picture and "out</title>" not in picture and 'class="mark best"' in picture


@pytest.mark.parametrize(
    ("high", "unit"), [(90, "seconds"), (600, "minutes"), (9000, "hours"), (400_000, "days")]
)
def test_the_axis_of_time_has_the_unit_that_suits_it(high: float, unit: str) -> None:
    assert time_axis(0, high).unit == f"{unit} since creation"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3, 317), (-2.5, 7.1), (1e-9, 2e-9), (0, 1e12)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 6
    assert all(low - 1e-12 <= value <= high * (1 + 1e-9) for value in found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.05, "0.05"),
        (317, "317"),
        (20_000, "20k"),
        (3e-6, "3e-6"),
        (1.5e6, "1.5M"),
        (-0.25, "-0.25"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_neighbours_on_an_axis_have_words_of_their_own() -> None:
    assert labels([0.981201, 0.981202]) == ["0.981201", "0.981202"]
