"""A line chart as SVG text: no script, no font, nothing fetched. Values in, text out.

Colours are CSS classes (``s0``, ``s1`` ...), which the page defines for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from allaboard.report.html import escape

Points = Sequence[tuple[float, float]]

MOST_POINTS = 500
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 16, 34
_ROOM_FOR_NOTES = 600


@dataclass(frozen=True, slots=True)
class Series:
    """One line. ``dots``: each point is marked. ``noisy``: drawn pale, with its trend on top."""

    name: str
    points: Points
    dots: bool = False
    noisy: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at ``x`` and what it means."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Maps values to coordinates of the picture."""

    width: int
    height: int
    x0: float
    x1: float
    y0: float
    y1: float
    log: bool

    @property
    def right(self) -> int:
        return self.width - _RIGHT

    @property
    def bottom(self) -> int:
        return self.height - _BOTTOM

    def x(self, value: float) -> float:
        share = (value - self.x0) / (self.x1 - self.x0)
        return _LEFT + share * (self.right - _LEFT)

    def y(self, value: float) -> float:
        low, high = (math.log10(self.y0), math.log10(self.y1)) if self.log else (self.y0, self.y1)
        at = math.log10(max(value, self.y0)) if self.log else value
        return _TOP + (high - at) / (high - low) * (self.bottom - _TOP)


def chart(
    title: str,
    series: Sequence[Series],
    *,
    marks: Sequence[Mark] = (),
    star: tuple[float, float] | None = None,
    size: tuple[int, int] = (880, 320),
    unit: str = "step",
) -> str:
    """The SVG of the chart; empty when no series has a point. ``star``: a highlighted point."""
    shown = [s for s in series if s.points]
    if not shown:
        return ""
    width, height = size
    frame = _frame(shown, width, height)
    body = [
        *_grid_svg(frame),
        *(_mark_svg(frame, mark) for mark in marks),
        *(part for n, line in enumerate(shown) for part in _line_svg(frame, line, n)),
        *([_star_svg(frame, star)] if star else []),
        # Drawn last, so that a curve at the axis does not cross it.
        _unit_svg(frame, unit),
    ]
    label = escape(f"{title}: " + ", ".join(s.name for s in shown))
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'
    )


def thin_out(points: Points, most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most ``most`` points: each is the mean of its neighbours. The first and the last stay unchanged."""
    if len(points) <= most:
        return list(points)
    inner, size = points[1:-1], math.ceil((len(points) - 2) / (most - 2))
    groups = [inner[n : n + size] for n in range(0, len(inner), size)]
    means = [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]
    return [points[0], *means, points[-1]]


def smooth(points: Points, log: bool = False) -> list[tuple[float, float]]:
    """The smoothed points: each is the mean of a centred window of a thirtieth of all points, so nothing
    lags.

    ``log``: the mean of the logarithms, for a logarithmic scale.
    """
    half = max(1, len(points) // 60)
    values = [math.log(y) if log else y for _, y in points]
    sums = [0.0, *accumulate(values)]
    smoothed = []
    for n, (x, _) in enumerate(points):
        first, last = max(0, n - half), min(len(points), n + half + 1)
        mean = (sums[last] - sums[first]) / (last - first)
        smoothed.append((x, math.exp(mean) if log else mean))
    return smoothed


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between low and high."""
    step = 10 ** math.floor(math.log10((high - low) / about))
    for factor in (1, 2, 5, 10):
        if (high - low) / (step * factor) <= about:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A short number: ``0.05``, ``1.2k``, ``3e-06``."""
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1000 if letter == 'k' else limit):g}{letter}"
    return f"{value:.4g}"


def _frame(series: Sequence[Series], width: int, height: int) -> Frame:
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points]
    low, high = min(ys), max(ys)
    # Only a logarithmic scale shows the end of a loss that falls by more than fifty times.
    log = low > 0 and high / low > 50
    if log:
        low, high = low / 1.15, high * 1.15
    else:
        room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        low, high = (0.0 if 0 <= low < (high - low) * 0.5 else low - room), high + room
    x0, x1 = min(xs), max(xs)
    if x0 == x1:
        x0, x1 = (0.0, x1) if x1 > 0 else (x0, x0 + 1)
    return Frame(width, height, x0, x1, low, high, log)


def _grid_svg(frame: Frame) -> Iterator[str]:
    bottom = frame.bottom
    for value in _log_ticks(frame.y0, frame.y1) if frame.log else ticks(frame.y0, frame.y1):
        y = frame.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>'
    for value in ticks(frame.x0, frame.x1, 8):
        x = frame.x(value)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{number(value)}</text>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{frame.right}" y1="{bottom}" y2="{bottom}"/>'


def _unit_svg(frame: Frame, unit: str) -> str:
    place = f'x="{frame.right}" y="{frame.bottom - 9}" text-anchor="end"'
    return f'<text class="tick unit" {place}>{escape(unit)}</text>'


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    few = len(decades) <= 4
    candidates = [10.0**d * f for d in decades for f in ((1, 2, 5) if few else (1,))]
    return [value for value in candidates if low <= value <= high]


def _line_svg(frame: Frame, series: Series, n: int) -> Iterator[str]:
    colour = f"s{n % 6}"
    points = thin_out(series.points)
    if series.noisy and len(points) > 20:
        yield f'<path class="raw {colour}" d="{_path(frame, points)}"/>'
        points = thin_out(smooth(series.points, frame.log))
    if len(points) > 1:
        yield f'<path class="line {colour}" d="{_path(frame, points)}"/>'
    for x, y in points if series.dots or len(points) == 1 else ():
        words = escape(f"{series.name} {y:.4g} at {x:g}")
        place = f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"'
        yield f'<circle class="dot {colour}" {place} r="3.5"><title>{words}</title></circle>'


def _path(frame: Frame, points: Points) -> str:
    return "M" + "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in points)


def _mark_svg(frame: Frame, mark: Mark) -> str:
    x, words = frame.x(mark.x), escape(mark.text)
    place = f'x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{frame.bottom}"'
    line = f'<line class="mark" {place}><title>{words}</title></line>'
    if frame.width < _ROOM_FOR_NOTES:
        return line
    anchor, dx = ("end", -5) if x > frame.width * 0.8 else ("start", 5)
    return line + f'<text class="note" x="{x + dx:.1f}" y="{_TOP + 9}" text-anchor="{anchor}">{words}</text>'


def _star_svg(frame: Frame, at: tuple[float, float]) -> str:
    x, y = frame.x(at[0]), frame.y(at[1])
    # The text goes to the side of the point that has room.
    anchor, dx = ("end", -11) if x > frame.width * 0.7 else ("start", 11)
    below = y < frame.height * 0.3
    words = escape(f"best {at[1]:.4g}")
    place = f'x="{x + dx:.1f}" y="{y + (20 if below else -11):.1f}" text-anchor="{anchor}"'
    return f'<circle class="star" cx="{x:.1f}" cy="{y:.1f}" r="7"/><text class="best" {place}>{words}</text>'
