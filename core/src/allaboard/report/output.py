"""Output of the members of a run, read on from where the last look stopped.

The report, the tab, a step of a pipeline and a task log read by the one class here. It asks no backend by
itself where the caller awaits: `OutputReader.ask` says what to read, `OutputReader.take` takes each item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from allaboard.backends.base import Backend, Cursor, LogLine, Selection
from allaboard.errors import AllaboardError
from allaboard.follow.printed import ProgressReader
from allaboard.report.commands import Place
from allaboard.report.history import History
from allaboard.report.page_data import LinesOfTry, Try
from allaboard.report.tracking import MOST, tracking_link
from allaboard.text.printable import last_state, visible
from allaboard.text.redaction import redact_text
from allaboard.text.units import counted

RANK_0 = Selection(ranks=(0,))
MOST_LINES, MOST_BYTES, LONGEST = 300, 1 << 16, 2000
"""Of the lines that are told at once; the characters of one."""
KEPT = 50
"""The last lines of a try that are kept."""
_PER_SECOND = 20.0
"""Lines that may be told in the long run."""
_WORTH_READING = 60
"""In a flood nothing is read until so many lines may be told: each look costs a line about those left out."""
_HELD = 64 << 10
"""Characters of a line of output that are held."""
_MOST_TRIES = 1000
_MOST_TRIES_TOLD = 4
"""The newest tries whose last lines are kept."""


class _Newest:
    """The newest of some lines, and how many there were."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=MOST_LINES)
        self.count = 0

    def append(self, line: str) -> None:
        self.lines.append(line)
        self.count += 1

    def extend(self, more: _Newest) -> None:
        self.lines.extend(more.lines)
        self.count += more.count
        more.clear()

    def clear(self) -> None:
        self.lines.clear()
        self.count = 0


class OutputReader:
    """The output of members, as far as it was read: the reports as a history, the times at which each try
    wrote, and the last lines of each that are no reports. Another call reads on from where the last one
    stopped; memory is bounded. ``whose``: by default rank 0's, which speaks for a run. ``secrets``: the
    run's, which no line shows. ``progress``: the field of its job; None: none.
    """

    def __init__(
        self, whose: Selection = RANK_0, secrets: Iterable[str] = (), progress: str | None = None
    ) -> None:
        self.whose, self.secrets, self.progress = whose, secrets, progress
        self._printed: dict[tuple[int, int], ProgressReader] = {}
        self.history = History()
        self.cursors: dict[int, Cursor] = {}
        self._lines: dict[tuple[int, int], deque[str]] = {}
        self._tries: dict[tuple[int, int], Try] = {}
        self._gaps: dict[int, str] = {}
        self._left_out: list[str] = []
        self._newest = 0
        self._pending = ""
        self._coming, self._new = _Newest(), _Newest()
        self._allowance, self._refilled_at = float(MOST_LINES), float("-inf")

    # All of it, for a page.

    @property
    def tries(self) -> list[Try]:
        return [*self._tries.values()]

    @property
    def last_lines(self) -> list[str]:
        """Those of the newest try of the newest attempt; empty where that wrote none, whatever others did."""
        return [*self._lines.get(self._newest_try, ())]

    @property
    def earlier_lines(self) -> list[LinesOfTry]:
        """Those of the tries before, the newest first."""
        before = sorted(
            (of for of, kept in self._lines.items() if kept and of < self._newest_try), reverse=True
        )
        return [LinesOfTry(*of, [*self._lines[of]]) for of in before]

    @property
    def _newest_try(self) -> tuple[int, int]:
        return max((of for of in self._lines if of[0] == self._newest), default=(self._newest, 0))

    @property
    def gaps(self) -> list[str]:
        return [*self._left_out, *self._gaps.values()]

    @property
    def can_go_on(self) -> bool:
        """True if `read_all` may be called again: a read that broke off may have been taken in part."""
        return not self._gaps

    def read_all(self, backend: Backend, run: str, attempt: int, tail: int | None = None) -> None:
        """Read what came since, up to this attempt. ``tail``: at first, read no more than so many of the last
        lines of this attempt. An attempt that cannot be read is a gap.
        """
        if tail is not None:
            self._newest = attempt
            note = f"only the last {tail:,} lines that rank 0 wrote in attempt {attempt} were read"
            self._left_out = [f"{note}; `allaboard report {run}` on the command line reads all"]
        for each in range(max(1, self._newest), attempt + 1):
            try:
                self.read(backend, run, each, tail)
            except AllaboardError as error:  # an attempt whose logs are gone
                self._gaps[each] = f"what rank 0 wrote in attempt {each} cannot be read: {error}"

    # What is new, for a log.

    def is_due(self, now: float) -> bool:
        """True if a read is worth its time now. ``now``: seconds that never go back."""
        if self._refilled_at > float("-inf"):
            room = self._allowance + (now - self._refilled_at) * _PER_SECOND
            self._allowance = min(float(MOST_LINES), room)
        self._refilled_at = now
        return self._allowance >= _WORTH_READING

    def new_lines(self, run: str, at: Place, *, last: bool = False) -> list[str]:
        """The lines since the last call that are no reports, without secrets, each cut to `LONGEST`: the
        newest, after a line that counts those left out. ``last``: no call follows, so that the end is told
        in any case.
        """
        if last:
            self._new.extend(self._coming)
        room = min(MOST_LINES if last else int(self._allowance), len(self._new.lines))
        lines = [self.shown(line) for line in [*self._new.lines][len(self._new.lines) - room :]]
        bytes_left, kept = MOST_BYTES, 0
        for line in reversed(lines):
            bytes_left -= len(line.encode("utf-8", "replace"))
            if bytes_left < 0:
                break
            kept += 1
        lines = lines[len(lines) - kept :]
        left_out = self._new.count - kept
        self._allowance = max(0.0, self._allowance - kept)
        self._new.clear()
        if left_out:
            where = at.command("logs", run, "--rank", "0")
            lines.insert(0, f"({counted(left_out, 'line')} of rank 0 left out here: {where})")
        return lines

    def shown(self, line: str) -> str:
        """One line of output as a log shows it. Secrets are removed before it is cut: nobody knows half of
        one.
        """
        text = redact_text(last_state(line), self.secrets)
        cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
        return visible(cut, tabs=True)

    # The reading.

    def read(self, backend: Backend, run: str, attempt: int, tail: int | None = None) -> None:
        """Read what came of this attempt since the last look; ``tail``: at first only so many lines. Blocks.
        Raises AllaboardError.
        """
        for item in backend.logs(run, *self.ask(attempt, tail)):
            self.take(item)

    def ask(self, attempt: int, tail: int | None = None) -> tuple[Selection, Cursor | None]:
        """The selection to ask a backend's ``logs`` for; each item of the answer goes to `take`."""
        self._newest, self._pending = attempt, ""
        self._coming.clear()  # of an answer that broke off: they come again
        cursor = self.cursors.get(attempt)
        return replace(self.whose, attempt=attempt, tail=tail if cursor is None else None), cursor

    def take(self, item: LogLine | Cursor) -> None:
        """The next item of the answer. Lines of init containers are left out; a line in pieces is put
        together as far as a report may be long.
        """
        if not isinstance(item, LogLine):
            self.cursors[self._newest] = item
            self._new.extend(self._coming)
        elif not item.container:
            self._pending += item.text
            if not item.more:
                text, self._pending = self._pending, ""
                self._take(item, text)
            elif len(self._pending) > _HELD:
                states, end, rest = self._pending.rpartition("\r")
                if end:  # a bar that is drawn without end: its states are read as they come
                    self._read_reports(item, states)
                self._pending = rest[: 2 * _HELD]

    def _read_reports(self, line: LogLine, text: str) -> bool:
        """Take in the reports of a line, or of the states of its bar so far; true for output."""
        of_try = self._newest, line.restart
        if of_try not in self._printed:
            newest = sorted(self._printed)[-_MOST_TRIES_TOLD:]
            self._printed = {of: self._printed[of] for of in newest}
            self._printed[of_try] = ProgressReader(self.progress)
        is_output = True
        for report in self._printed[of_try].read(text) if line.gap is None else ():
            is_output = bool(report.printed)
            self.history.add(report, line.time)
        return is_output

    def _take(self, line: LogLine, text: str) -> None:
        of_try = self._newest, line.restart
        if line.time is not None:
            if of_try not in self._tries and len(self._tries) < _MOST_TRIES:
                self._tries[of_try] = Try(*of_try, line.time, line.time)
            if of_try in self._tries:
                self._tries[of_try].ended = line.time
        if of_try not in self._lines:
            self._lines[of_try] = deque(maxlen=KEPT)
            for old in sorted(self._lines)[:-_MOST_TRIES_TOLD]:
                del self._lines[old]
        if line.gap is not None:
            self.history.miss()
        is_output = self._read_reports(line, text)
        if not is_output:
            return
        if (link := tracking_link(text)) and (
            link[0] in self.history.tracked or len(self.history.tracked) < MOST
        ):
            self.history.tracked[link[0]] = link[1]
        self._coming.append(text[:_HELD])
        if (kept := self._lines.get(of_try)) is not None:  # else an older try than those that are told
            kept.append(last_state(text)[:_HELD])


def last_lines_of(backend: Backend, run: str, whose: Selection, attempt: int) -> list[str]:
    """The last lines of a member that are no reports. Blocks. Raises AllaboardError."""
    reader = OutputReader(whose)
    reader.read(backend, run, attempt, KEPT)
    return reader.last_lines
