"""The lines of a log that may tell of progress, out of whole chunks of it: most lines of most logs are passed
over without being looked at one by one. Bytes in, bytes out.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_LINE = re.compile(rb"[^\n]+")


def lines_with(data: bytes, needles: Collection[bytes]) -> list[tuple[int, bytes]]:
    """(where it begins, the line) of those that hold one of some texts of small letters, in any case. A
    carriage return ends a line as a newline does, because bars redraw theirs. Without texts: all lines that
    are not empty.
    """
    if b"\r" in data:
        data = data.replace(b"\r", b"\n")
    if not needles:
        return [(match.start(), match[0]) for match in _LINE.finditer(data)]
    small = data.lower()
    places: dict[int, int] = {}
    for needle in needles:
        at = small.find(needle)
        while at >= 0:
            start = small.rfind(b"\n", 0, at) + 1
            end = small.find(b"\n", at)
            end = end if end >= 0 else len(small)
            places[start] = end
            at = small.find(needle, end)
    return [(start, data[start : places[start]]) for start in sorted(places)]


_BARS = (b"%|", b"\xe2\x94\x81")


def thin_out(lines: list[tuple[int, bytes]], most: int, keep: bytes) -> list[tuple[int, bytes]]:
    """About so many of the lines, evenly, and of bars fewer, of which each tells what the one before did. The
    last of each kind stays, and whatever holds ``keep``.
    """
    if len(lines) <= most:
        return lines
    bars = [any(mark in line for mark in _BARS) for _, line in lines]
    every = {kind: max(1, -(-part * bars.count(kind) // most)) for kind, part in ((False, 2), (True, 8))}
    left = {kind: bars.count(kind) for kind in (False, True)}
    kept = []
    for place, is_bar in zip(lines, bars, strict=True):
        left[is_bar] -= 1
        if left[is_bar] % every[is_bar] == 0 or keep in place[1]:
            kept.append(place)
    return kept
