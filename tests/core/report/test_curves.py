"""Few points say what many did: no extreme is lost, the trend does not lag, the clock is right."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from allaboard.report.curves import at, gone, retold, straighten, trend
from allaboard.runs.points import thin_out


def test_thinning_keeps_both_ends_and_every_extreme() -> None:
    chance = random.Random(3)
    points = [(float(n), chance.random()) for n in range(10_001)]
    odd = {500: 90.0, 501: -90.0, 7777: 50.0}
    points = [(x, odd.get(int(x), y)) for x, y in points]
    few = thin_out(points, 300)
    assert len(few) <= 300
    assert (few[0], few[-1]) == (points[0], points[-1])
    assert {(float(x), y) for x, y in odd.items()} <= {*few}
    assert few == sorted(few) and {*few} <= {*points}


def test_thinning_again_and_again_leaves_old_points_as_close_as_new_ones() -> None:
    kept: list[tuple[float, float]] = []
    for n in range(100_000):
        kept.append((float(n), float(n % 7)))
        if len(kept) > 2000:
            kept = thin_out(kept, 1000)
    early = sum(x < 10_000 for x, _ in kept)
    assert early > 50 and max(b[0] - a[0] for a, b in pairwise(kept)) < 1000


def test_few_points_stay_as_they_are() -> None:
    assert thin_out([(1, 2.0), (2, 3.0)], 4) == [(1, 2.0), (2, 3.0)]
    assert thin_out([], 4) == [] and trend([], 4) == []


def test_a_trend_has_less_noise_the_same_level_and_no_lag() -> None:
    points = [(float(n), n / 1000 + (0.5 if n % 2 else -0.5)) for n in range(1000)]
    assert max(abs(y - x / 1000) for x, y in trend(points, 200)[10:-10]) < 0.05
    falling = [(float(n), math.exp(-n / 50)) for n in range(1000)]
    assert all(y == pytest.approx(math.exp(-x / 50)) for x, y in trend(falling, 200)[10:-10])
    assert trend([(1, 5.0)], 10) == [(1, 5.0)]


def test_a_clock_in_few_points_tells_every_time_within_its_tolerance() -> None:
    chance = random.Random(5)
    ticks, time = [], 0.0
    for step in range(5000):
        time += chance.random() * 0.2 + (300 if step in (1000, 3210) else 0)
        ticks.append((float(step), time))
    few = straighten(ticks, 2.0)
    assert len(few) < 200
    assert max(abs(at(few, step) - time) for step, time in ticks) <= 2.0 + 1e-9


def test_time_that_passed_leaves_out_what_holds_a_break() -> None:
    ticks = [(1, 0.0), (2, 1.0), (3, 2.0), (4, 90.0), (5, 91.0)]
    assert gone(ticks, []) == 91.0
    assert gone(ticks, [3]) == 3.0
    assert gone(ticks, [3, 5, 9]) == 3.0 and gone(ticks[:1], []) == 0.0


def test_beyond_its_ends_a_curve_has_the_value_of_the_end() -> None:
    assert (at([(1, 5.0), (3, 7.0)], 0), at([(1, 5.0), (3, 7.0)], 2), at([(1, 5.0), (3, 7.0)], 9)) == (
        5,
        6,
        7,
    )


@pytest.mark.parametrize(
    ("few", "expected"),
    [
        ([(20, 0.3125)], True),
        ([(20, 0.3125), (40, 1.2e-07)], True),
        ([(20, 0.312)], True),
        ([(20, 0.3)], False),  # 0.30, with two digits
        ([(20, 0.31249)], True),
        ([(20, 0.3119)], False),
        ([(40, 1.19e-07)], True),
        ([(40, 1.1e-07)], False),
        ([(40, 0.0)], False),
        ([(60, 0.0)], True),
        ([(80, -math.inf)], True),
        ([(80, 1.0)], False),
        ([(30, 0.3125)], False),
        ([], True),
    ],
    ids=str,
)
def test_numbers_are_the_same_as_far_as_the_digits_of_both_go(
    few: list[tuple[int, float]], expected: bool
) -> None:
    assert retold(few, [(20, 0.3125), (40, 1.2e-07), (60, 0.0), (80, -math.inf)]) is expected
