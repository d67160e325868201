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
