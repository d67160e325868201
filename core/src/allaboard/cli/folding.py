"""Folds the output of init containers, which repeat the same few lines while a run waits. Lines in, lines
out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from allaboard.backends.base import LogLine
from allaboard.report.localtime import clock
from allaboard.runs.observation import MemberSeen

SHOWN_UNFOLDED = 3
"""Up to so many lines of one try of an init container are shown unfolded."""
SHOWN_ON_FAILURE = 10
"""Number of lines shown below the fold of a failed container."""


@dataclass(slots=True)
class _Fold:
    first: LogLine
    lines: int = 0
    shown: int = 0
    last: deque[LogLine] = field(default_factory=lambda: deque(maxlen=SHOWN_ON_FAILURE))


class Folds:
    """``eager``: the first line of each try is shown at once, for a live view. ``members``: the observed
    members by name.
    """

    def __init__(self, members: Mapping[str, MemberSeen], *, eager: bool) -> None:
        self.members, self.eager = members, eager
        self._open: dict[str, dict[tuple[str, int], _Fold]] = {}

    def add(self, line: LogLine) -> Iterator[LogLine]:
        """Add a line; yields the lines to show now."""
        if not line.container or line.gap is not None:
            yield from self._close(line.member)
            yield line
            return
        folds = self._open.setdefault(line.member, {})
        key = (line.container, line.restart)
        if key not in folds:
            yield from self._close(line.member)
            folds = self._open.setdefault(line.member, {})
        fold = folds.setdefault(key, _Fold(line))
        fold.last.append(line._replace(text=line.text[:2000]))
        if not line.more:
            fold.lines += 1
        if self.eager and not fold.shown:
            fold.shown = 0 if line.more else 1
            yield line

    def close_all(self) -> Iterator[LogLine]:
        """The last lines, after the end of the input."""
        for member in [*self._open]:
            yield from self._close(member)

    def _close(self, member: str) -> Iterator[LogLine]:
        for fold in self._open.pop(member, {}).values():
            count = fold.lines - fold.shown
            if count <= SHOWN_UNFOLDED:
                yield from [*fold.last][-count:] if count > 0 else ()
                continue
            last = fold.last[-1]
            more = "more " if fold.shown else ""
            summary = f"{count} {more}lines from {clock(fold.first.time)} to {clock(last.time)}"
            yield fold.first._replace(text=f"{summary}, folded (--init shows them): {last.text}", more=False)
            if self._has_failed(member):
                yield from fold.last

    def _has_failed(self, member: str) -> bool:
        seen = self.members.get(member)
        return seen is not None and (seen.phase == "failed" or seen.exit_code not in (None, 0))
