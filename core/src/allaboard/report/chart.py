"""A line chart as HTML with an SVG in it: nothing fetched, readable at any width. Values in, text out.

The picture is stretched to the room that there is, and words stand beside it, so that they keep their size.
Colours are CSS classes (``s0``, ``s1`` ...), which the page defines for light and dark. The coordinates are
whole numbers from 0 to `SIZE`, from which the script of the page (`page.js`) reads what it zooms and tells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allaboard.report.curves import Points
from allaboard.report.html import escape

SIZE = 10_000


@dataclass(frozen=True, slots=True)
class Line:
    """One line. ``trend``: drawn on top of its points, which are pale then; ``dots``: each point is marked;
    ``breaks``: places over which no line is drawn; ``colour``: a number.
    """

    name: str
    points: Points
    trend: Points = ()
    dots: bool = False
    breaks: Sequence[float] = ()
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at ``x`` and what it means. ``best``: that of the best checkpoint."""

    x: float
    text: str
    best: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """The horizontal axis, which charts of a page share. ``key``: charts with the same are zoomed together;
    ``per``: how much of the points' own unit is one of ``unit``.
    """

    key: str
    unit: str
    low: float
    high: float
    per: float = 1.0


@dataclass(frozen=True, slots=True)
class Frame:
    """Maps values to coordinates of the picture."""

    x0: float
    x1: float
    y0: float
    y1: float
    log: bool

    def x(self, value: float) -> int:
        return round(SIZE * (value - self.x0) / (self.x1 - self.x0))

    def y(self, value: float) -> int:
        return round(SIZE * (1 - self.share(value)))

    def share(self, value: float) -> float:
        if not self.log:
            return (value - self.y0) / (self.y1 - self.y0)
        return math.log(max(value, self.y0) / self.y0) / math.log(self.y1 / self.y0)


def steps_axis(low: float, high: float) -> Axis:
    """The axis of steps, from 0 unless the first lies far from it."""
    return Axis("step", "step", 0.0 if 0 <= low < high / 2 else low, high if high > low else low + 1)


def time_axis(low: float, high: float, since: str = "since creation") -> Axis:
    """The axis of seconds, in the unit that suits its length."""
    length = max(high, 1e-3)
    units = ((120, 1, "seconds"), (7200, 60, "minutes"), (172_800, 3600, "hours"), (math.inf, 86_400, "days"))
    per, unit = next((per, unit) for most, per, unit in units if length <= most)
    low = 0.0 if 0 <= low < high / 2 else low
    return Axis("time", f"{unit} {since}", low, high if high > low else low + 1, per)


def chart(
    title: str,
    lines: Sequence[Line],
    axis: Axis,
    *,
    marks: Sequence[Mark] = (),
    best: tuple[float, float] | None = None,
    wide: bool = True,
) -> str:
    """The HTML of the chart; empty when no line has a point. ``best``: a highlighted point; ``wide``: there
    is room for many labels.
    """
    shown = [line for line in lines if line.points]
    if not shown:
        return ""
    frame = frame_of(shown, axis)
    values = _log_ticks(frame, 6 if wide else 4) if frame.log else ticks(frame.y0, frame.y1, 5 if wide else 4)
    grid = "".join(f"M0 {frame.y(value)}H{SIZE}" for value in values)
    body = [
        f'<path class="grid" d="{grid}"/>',
        *(_mark(frame, mark) for mark in marks if frame.x0 <= mark.x <= frame.x1),
        *(part for line in shown for part in _line(frame, line)),
        *([f'<path class="star" d="{_dots(frame, [best])}"/>'] if best else []),
    ]
    along = ticks(axis.low / axis.per, axis.high / axis.per, 8 if wide else 4)
    label = escape(f"{title}: " + "; ".join(_in_words(line) for line in shown))
    return (
        f'<div class="plot" data-axis="{axis.key}" data-per="{axis.per:g}" '
        f'data-x="{axis.low!r} {axis.high!r}" data-y="{frame.y0!r} {frame.y1!r}"{" data-log" * frame.log}>'
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f"{''.join(body)}</svg>"
        + "".join(
            f'<i class="y" style="bottom:{100 * frame.share(value):.4g}%">{text}</i>'
            for value, text in zip(values, labels(values), strict=True)
        )
        + "".join(
            f'<i class="x" style="left:{frame.x(value * axis.per) / SIZE * 100:.4g}%">{text}</i>'
            for value, text in zip(along, labels(along), strict=True)
        )
        + f'<i class="unit">{escape(axis.unit)}</i></div>'
    )


def frame_of(lines: Sequence[Line], axis: Axis) -> Frame:
    """The frame that holds every point. The scale is logarithmic where only that shows the end of a loss
    which falls by more than fifty times.
    """
    ys = [y for line in lines for _, y in (*line.points, *line.trend)]
    low, high = min(ys), max(ys)
    log = low > 0 and high / low > 50
    if log:
        low, high = low / 1.15, high * 1.15
    else:
        room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        low, high = (0.0 if 0 <= low < (high - low) * 0.5 else low - room), high + room
    return Frame(axis.low, axis.high, low, high, log)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between low and high."""
    step = 10 ** math.floor(math.log10((high - low) / about))
    for factor in (1, 2, 5, 10):
        if (high - low) / (step * factor) <= about:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def labels(values: Sequence[float]) -> list[str]:
    """The values in words, with as many digits as tell them apart."""
    short = [number(value) for value in values]
    return short if len({*short}) == len(short) else [f"{value:.8g}" for value in values]


def number(value: float) -> str:
    """A short number: ``0.05``, ``1.2k``, ``3e-06``."""
    if value and abs(value) < 1e-3:
        return f"{value:.2g}".replace("e-0", "e-")
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1000 if letter == 'k' else limit):.4g}{letter}"
    return f"{value:.4g}"


def _log_ticks(frame: Frame, about: int) -> list[float]:
    low, high = math.log10(frame.y0), math.log10(frame.y1)
    decades = range(math.floor(low), math.ceil(high) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [10.0**d * f for d in decades for f in factors if frame.y0 <= 10.0**d * f <= frame.y1]
        if len(ticks) <= about + 1:
            return ticks
    return ticks[:: math.ceil(len(ticks) / about)]


def _in_words(line: Line) -> str:
    low, high = min(y for _, y in line.points), max(y for _, y in line.points)
    first, last = line.points[0][1], line.points[-1][1]
    return f"{line.name} from {first:.4g} to {last:.4g}, lowest {low:.4g}, highest {high:.4g}"


def _line(frame: Frame, line: Line) -> Iterator[str]:
    colour, name = f"s{line.colour % 6}", f' data-name="{escape(line.name)}"'
    if len(line.points) > 1:
        pale = "raw" if line.trend else "line"
        yield f'<path class="{pale} {colour}"{name} d="{_path(frame, line.points, line.breaks)}"/>'
        name = ""
    if line.trend:
        yield f'<path class="line {colour}" d="{_path(frame, line.trend, line.breaks)}"/>'
    if line.dots or len(line.points) == 1:
        yield f'<path class="dots {colour}"{name} d="{_dots(frame, line.points)}"/>'


def _path(frame: Frame, points: Points, breaks: Sequence[float]) -> str:
    """Absolute at the begin of each stretch, relative after it: half as long."""
    parts: list[str] = []
    cuts, cut, before = sorted(breaks), 0, (0, 0)
    apart = begins = True
    for x, y in points:
        place = frame.x(x), frame.y(y)
        while cut < len(cuts) and cuts[cut] < x:
            cut, apart = cut + 1, True
        if apart:
            parts.append(f"M{place[0]} {place[1]}")
        else:
            parts.append(f"{'l' if begins else ' '}{place[0] - before[0]} {place[1] - before[1]}")
        begins, apart, before = apart, False, place
    return "".join(parts).replace(" -", "-")


def _dots(frame: Frame, points: Points) -> str:
    return "".join(f"M{frame.x(x)} {frame.y(y)}h0" for x, y in points)


def _mark(frame: Frame, mark: Mark) -> str:
    kind = "mark best" if mark.best else "mark"
    return f'<path class="{kind}" d="M{frame.x(mark.x)} 0V{SIZE}"><title>{escape(mark.text)}</title></path>'
