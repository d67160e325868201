"""A chart says the truth at its edges: one point, no points, zeros, decades, very many points."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from allaboard.report.chart import Mark, Series, chart, number, smooth, thin_out, ticks


@pytest.mark.parametrize(
    "points",
    [
        [(1, 0.5)],
        [(1, 0.0), (2, 0.0)],
        [(1, -5.0), (2, -5.0)],
        [(5, 1e-9), (6, 1e9)],
        [(n, 1 / (n + 1)) for n in range(100_000)],
        [(0, -1.0), (10, 1.0)],
    ],
    ids=["one", "zeros", "flat and below zero", "decades", "many", "around zero"],
)
def test_every_point_lies_in_the_picture(points: list[tuple[float, float]]) -> None:
    picture = chart("Loss", [Series("loss", points, noisy=True), Series("val", points[:3], dots=True)])
    root = ElementTree.fromstring(picture)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    paths = [e.attrib["d"] for e in root.iter() if e.tag.endswith("path")]
    places = [tuple(map(float, pair)) for d in paths for pair in re.findall(r"(-?[\d.]+) (-?[\d.]+)", d)]
    places += [
        (float(e.attrib["cx"]), float(e.attrib["cy"])) for e in root.iter() if e.tag.endswith("circle")
    ]
    assert places
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)
    assert len(picture) < 60_000


def test_without_points_there_is_no_picture() -> None:
    assert chart("Loss", []) == ""
    assert chart("Loss", [Series("loss", [])]) == ""


def test_a_loss_that_falls_by_decades_is_drawn_on_a_logarithmic_scale() -> None:
    def labels(points: list[tuple[float, float]]) -> set[str]:
        root = ElementTree.fromstring(chart("Loss", [Series("loss", points)]))
        return {e.text or "" for e in root.iter() if e.attrib.get("class") == "tick"}

    assert {"0.01", "0.1", "1"} <= labels([(1, 2.0), (2, 0.008)])
    assert "0.01" not in labels([(1, 2.0), (2, 1.0)])


def test_names_cannot_break_the_picture() -> None:
    picture = chart('"><script>', [Series("<b>&", [(1, 1.0)])], marks=[Mark(1, "<i>")], star=(1, 1.0))
    assert "<script>" not in picture
    ElementTree.fromstring(picture)


def test_thinning_keeps_both_ends_and_the_shape() -> None:
    points = [(float(n), float(n % 2)) for n in range(10_001)]
    few = thin_out(points)
    assert len(few) <= 500
    assert (few[0], few[-1]) == (points[0], points[-1])
    assert all(abs(y - 0.5) < 0.1 for _, y in few[1:-2])  # the last mean is of what was left


def test_a_trend_has_less_noise_the_same_level_and_no_lag() -> None:
    points = [(float(n), n / 1000 + (0.5 if n % 2 else -0.5)) for n in range(1000)]
    assert max(abs(y - x / 1000) for x, y in smooth(points)[50:-50]) < 0.05
    falling = [(float(n), math.exp(-n / 50)) for n in range(1000)]
    assert all(y == pytest.approx(math.exp(-x / 50)) for x, y in smooth(falling, log=True)[50:-50])
    assert smooth([]) == []


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
