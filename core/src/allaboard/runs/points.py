"""Points of a curve: which few of many are kept. Values in, values out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

X = TypeVar("X", int, float)


def thin_out(points: Sequence[tuple[X, float]], most: int) -> list[tuple[X, float]]:
    """At most ``most`` points (never fewer than four): both ends, and the lowest and the highest of each of
    equally wide stretches, at their own places. No extreme is lost, and however often it is done, old points
    lie as close as new ones. ``points``: in order of their places.
    """
    if len(points) <= max(4, most):
        return list(points)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    count, (begin, end) = max(1, (most - 2) // 2), (xs[1], xs[-2])
    kept: list[tuple[X, float]] = [points[0]]
    low, last = 1, len(points) - 1
    for n in range(count):
        high = (
            last if n == count - 1 else bisect_right(xs, begin + (end - begin) * (n + 1) / count, low, last)
        )
        if low < high:
            values = ys[low:high]
            kept += [
                points[low + at] for at in sorted({values.index(min(values)), values.index(max(values))})
            ]
        low = high
    kept.append(points[-1])
    return kept
