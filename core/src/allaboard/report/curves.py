"""Curves in few points, which still say what many did. Values in, values out."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from decimal import Decimal
from itertools import accumulate, pairwise

Points = Sequence[tuple[float, float]]
_DECADES = 50
"""The highest is so many times the lowest: only a logarithmic scale shows the lower end."""
_FEWEST_DIGITS = 2
"""Digits by which two numbers are compared, where one of them has fewer."""


def spread(points: Points) -> bool:
    """True if the values lie so far apart that a logarithmic scale shows them best."""
    values = [y for _, y in points]
    return bool(values) and (low := min(values)) > 0 and max(values) / low > _DECADES


def trend(points: Points, most: int) -> list[tuple[float, float]]:
    """The trend, at ``most`` of the points: each value is the mean of a centred window of a thirtieth of the
    whole width, so nothing lags. Values that are `spread` are averaged by their logarithms.
    """
    if not points:
        return []
    log = spread(points)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    sums = [0.0, *accumulate(map(math.log, ys) if log else ys)]
    half, begin, width = (xs[-1] - xs[0]) / 60, xs[0], xs[-1] - xs[0]
    count = min(len(points), max(2, most))
    places = {
        min(len(xs) - 1, bisect_left(xs, begin + width * n / (count - 1))) for n in range(count) if count > 1
    } or {0}
    smooth = []
    for n in sorted(places):
        first, last = bisect_left(xs, xs[n] - half), bisect_right(xs, xs[n] + half)
        mean = (sums[last] - sums[first]) / (last - first)
        smooth.append((points[n][0], math.exp(mean) if log else mean))
    return smooth


def straighten(points: Points, tolerance: float) -> list[tuple[float, float]]:
    """The few of the points between which straight lines are never farther than ``tolerance`` from any other
    point, by value. ``points``: in order of their places.
    """
    if len(points) <= 2:
        return [*points]
    kept: list[tuple[float, float]] = [points[0]]
    low, high = -math.inf, math.inf
    for before, (x, y) in pairwise(points):
        x0, y0 = kept[-1]
        if not low <= (y - y0) / (x - x0) <= high:
            kept.append(before)
            (x0, y0), low, high = before, -math.inf, math.inf
        low = max(low, (y - tolerance - y0) / (x - x0))
        high = min(high, (y + tolerance - y0) / (x - x0))
    return [*kept, points[-1]]


def retold(few: Points, many: Points) -> bool:
    """True if each of ``few`` is a point of ``many``, too, as far as the digits of both go: what is printed
    is rounded, and so is what stands in the name of a file.
    """
    known = dict(many)
    return all(x in known and _agree(y, known[x]) for x, y in few)


def _agree(value: float, other: float) -> bool:
    largest = max(abs(value), abs(other))
    if value == other or not math.isfinite(largest):
        return value == other
    digits = max(_FEWEST_DIGITS, min(_digits(value), _digits(other)))
    unit = 10.0 ** (math.floor(math.log10(largest)) + 1 - digits)
    return abs(value - other) <= unit * (0.5 + 1e-6)


def _digits(value: float) -> int:
    return len(Decimal(repr(value)).normalize().as_tuple().digits)


def at(points: Points, x: float) -> float:
    """The value at ``x`` on straight lines through the points; beyond their ends, that of the end."""
    n = bisect_left(points, x, key=lambda point: point[0])
    if n == 0 or n == len(points):
        return points[min(n, len(points) - 1)][1]
    (x0, y0), (x1, y1) = points[n - 1], points[n]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def gone(points: Points, breaks: Sequence[float]) -> float:
    """The amount that passed along the points, by value, without the stretches that begin at or
    hold a break.
    """
    if len(points) < 2:
        return 0.0
    xs = [x for x, _ in points]
    skipped = {n for x in breaks if 0 <= (n := bisect_right(xs, x) - 1) < len(points) - 1}
    whole = points[-1][1] - points[0][1]
    return whole - sum(points[n + 1][1] - points[n][1] for n in skipped)
