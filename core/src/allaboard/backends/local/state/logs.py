"""Reads the members' logs. Every try has its own file; times come from the supervisor's notes beside it.

Files are read in blocks and long lines in pieces, so memory is bounded. The last lines are searched from the
end, and lines since a time by bisecting the notes. All lines between two notes have the same time, so blocks
are merged, not lines.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

from allaboard.backends.base import Cursor, LogLine, Selection
from allaboard.backends.local.state.paths import AttemptFolder, open_plain
from allaboard.backends.selection import refuse_strangers
from allaboard.runs.observation import MemberSeen

LONGEST = 256 << 10
"""Bytes of a line; a longer one comes in pieces."""
_AT_ONCE = 4 << 20
"""Bytes that are held of all files together; those of one are its share, within these bounds."""
_SMALLEST, _LARGEST = 16 << 10, 256 << 10
_NOTES = 64 << 10
"""Bytes of notes that are read at a time, and that bisecting leaves for reading."""


@dataclass(frozen=True, slots=True)
class MemberTry:
    """One try of one member."""

    member: str
    rank: int
    number: int
    path: Path

    @property
    def id(self) -> str:
        return f"{self.member}.{self.number}"


def list_tries(attempt: AttemptFolder, members: Sequence[MemberSeen]) -> list[MemberTry]:
    """Every log of an attempt, by rank and try."""
    ranks = {m.name: m.rank for m in members}
    tries_of_member = []
    for path in attempt.logs.glob("*.log"):
        member, _, number = path.stem.rpartition(".")
        if number.isdecimal():
            tries_of_member.append(MemberTry(member, ranks.get(member, 0), int(number), path))
    return sorted(tries_of_member, key=lambda t: (t.rank, t.member, t.number))


def read_logs(
    attempt: AttemptFolder, members: Sequence[MemberSeen], selection: Selection, cursor: Cursor | None
) -> Iterator[LogLine | Cursor]:
    """The selected lines after the cursor, merged by time. The last item is the new cursor (log id ->
    offset).

    Raises BadInput for a member or rank that the run does not have.
    """
    refuse_strangers(selection, members)
    every = list_tries(attempt, members)
    live = attempt.is_live()
    newest = {part.member: part.number for part in every}
    positions: dict[str, int] = dict(cursor or {})
    spans = [
        _span(part, positions.get(part.id), selection.since, open=live and part.number == newest[part.member])
        for part in every
        if _is_chosen(part, selection)
    ]
    positions |= {span.member_try.id: span.end for span in spans}
    return chain(_lines(spans, selection.tail if cursor is None else None), iter([positions]))


def _is_chosen(member_try: MemberTry, selection: Selection) -> bool:
    return (
        (selection.members is None or member_try.member in selection.members)
        and (selection.ranks is None or member_try.rank in selection.ranks)
        and (selection.restart is None or member_try.number == selection.restart)
    )


class _Span(NamedTuple):
    """The bytes of a try that are to be read: from a line's start to the end of a line, of a try that has
    ended, or of a piece of a line that is longer than `LONGEST` (``cut``).
    """

    member_try: MemberTry
    start: int
    end: int
    cut: bool = False


def _span(member_try: MemberTry, position: int | None, since: float | None, *, open: bool) -> _Span:
    """The new bytes of a try. ``open``: the try may still write, so an unfinished last line is left for
    later.
    """
    try:
        size = member_try.path.stat().st_size
    except FileNotFoundError:  # the run is being deleted
        return _Span(member_try, position or 0, position or 0)
    if position is None:
        start = (
            0
            if since is None
            else _line_after(member_try.path, _TimeNotes(member_try.path).since(since, size), size)
        )
    else:
        start = min(position, size)
    if not open or start == size:
        return _Span(member_try, start, size)
    tail = _read_range(member_try.path, max(start, size - LONGEST), size)
    ends = tail.rfind(b"\n") + 1
    if ends:
        return _Span(member_try, start, size - len(tail) + ends)
    if len(tail) < LONGEST:
        return _Span(member_try, start, start)
    return _Span(member_try, start, size - len(tail) + _whole_characters(tail), cut=True)


# --- which lines --------------------------------------------------------------------------------------------


def _lines(spans: Sequence[_Span], tail: int | None) -> Iterator[LogLine]:
    if tail is None:
        return _merge_spans(spans)
    return _last_of_merged(spans, tail)


def _merge_spans(spans: Sequence[_Span]) -> Iterator[LogLine]:
    """By time; lines of one member keep their order, and lines of one moment stay together by rank."""
    members = [list(group) for _, group in groupby(spans, key=lambda span: span.member_try.member)]
    step = min(_LARGEST, max(_SMALLEST, _AT_ONCE // max(1, len(members))))
    sources = [chain.from_iterable(_blocks(span, step) for span in group) for group in members]
    blocks = sources[0] if len(sources) == 1 else heapq.merge(*map(_with_rising_times, sources), key=_key)
    for member_try, when, texts, more in blocks:
        member, rank, number = member_try.member, member_try.rank, member_try.number
        last = [LogLine(member, rank, number, when, texts.pop(), more=True)] if more else ()
        yield from [LogLine(member, rank, number, when, text) for text in texts]
        yield from last


def _last_of_merged(spans: Sequence[_Span], most: int) -> Iterator[LogLine]:
    """The last so many lines of the merged ones. They are among the last so many of each member."""
    if not most:
        return
    ends: list[_Span] = []
    total = 0
    for _, group in groupby(spans, key=lambda span: span.member_try.member):
        counted, chosen = 0, []
        for span in reversed([*group]):
            start, lines = _last_lines(span, most - counted)
            chosen.append(span._replace(start=start))
            counted += lines
            if counted >= most:
                break
        ends += reversed(chosen)
        total += counted
    over = max(0, total - most)
    for line in _merge_spans(ends):
        if not over:
            yield line
        elif not line.more:
            over -= 1


def _last_lines(span: _Span, most: int) -> tuple[int, int]:
    """Offset of the last ``most`` lines of a span, and the number of these lines."""
    count, at = 0, span.end
    while at > span.start:
        low = max(span.start, at - _LARGEST)
        data = _read_range(span.member_try.path, low, at)
        upto = len(data) - (1 if at == span.end else 0)  # the end of the last line begins no other
        ends = data.count(b"\n", 0, upto)
        if count + ends >= most:
            for _ in range(most - count):
                upto = data.rfind(b"\n", 0, upto)
            return low + upto + 1, most
        count, at = count + ends, low
    return span.start, count + (1 if span.end > span.start else 0)


def _line_after(path: Path, offset: int, size: int) -> int:
    """The start of the first line that begins at the offset or later."""
    at = offset - 1
    while 0 <= at < size:
        ends = _read_range(path, at, min(size, at + _LARGEST)).find(b"\n")
        if ends >= 0:
            return at + ends + 1
        at += _LARGEST
    return 0 if offset <= 0 else size


# --- reading ------------------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """Lines of one time. ``more``: the last one goes on in the next block."""

    member_try: MemberTry
    when: float | None
    texts: list[str]
    more: bool = False


def _key(block: _Block) -> float:
    return block.when or 0.0


def _with_rising_times(blocks: Iterable[_Block]) -> Iterator[_Block]:
    """The same with times that never go back, as those of a clock that was set may."""
    latest = 0.0
    for block in blocks:
        latest = max(latest, block.when or 0.0)
        yield block if block.when is None or block.when == latest else block._replace(when=latest)


def _blocks(span: _Span, step: int) -> Iterator[_Block]:
    """Content of a span, ``step`` bytes at a time: a member may have more tries than files may be open."""
    notes = _TimeNotes(span.member_try.path).walk(span.start)
    when, until = next(notes, (None, None))
    rest, at, inside = b"", span.start, False
    while at < span.end:
        data = _read_range(span.member_try.path, at, min(span.end, at + step))
        if not data:  # the file was truncated
            return
        begin, at, data = at - len(rest), at + len(data), rest + data
        over = at >= span.end
        ends = len(data) if over else data.rfind(b"\n") + 1
        low = 0
        if inside or (not ends and len(data) >= LONGEST):  # a piece has the time of its line
            if not inside:
                when, until = _note_for(begin, when, until, notes)
            low = data.find(b"\n", 0, ends) + 1 or ends or _whole_characters(data)
            inside = data[low - 1 : low] != b"\n" and not (over and not span.cut)
            yield _Block(span.member_try, when, _split_lines(data[:low]), more=inside)
        while low < ends:
            when, until = _note_for(begin + low, when, until, notes)
            # What begins before the next note has the time of this one.
            high = ends if until is None else data.find(b"\n", min(ends, until - begin - 1), ends) + 1 or ends
            cut = span.cut and over and high == ends
            yield _Block(span.member_try, when, _split_lines(data[low:high]), more=cut)
            low = high
        rest = data[low:]


def _note_for(offset: int, when: float | None, until: int | None, notes: Iterator[TimeRange]) -> TimeRange:
    """The note that holds for this byte, from the one that held before it on."""
    while until is not None and until <= offset:
        when, until = next(notes)
    return when, until


def _split_lines(data: bytes) -> list[str]:
    """The lines, without their ends."""
    texts = data.decode("utf-8", "replace").split("\n")
    if not texts[-1]:
        del texts[-1]
    return [text.rstrip("\r") for text in texts] if b"\r" in data else texts


def _whole_characters(data: bytes) -> int:
    """Number of bytes that hold whole characters: a character cut at the end belongs to the next piece."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) - back if length > back else len(data)
    return len(data)


def _read_range(path: Path, start: int, end: int) -> bytes:
    try:
        with open_plain(path) as file:
            return os.pread(file.fileno(), end - start, start)
    except FileNotFoundError:
        return b""


# --- when ---------------------------------------------------------------------------------------------------


TimeRange = tuple[float | None, int | None]
"""A time, None where it is not known, and the byte up to which it holds; None: the end."""


class _TimeNotes:
    """The times of a log's bytes: lines of "offset epoch", both rising. The file may be large."""

    def __init__(self, log: Path) -> None:
        self.path = log.with_suffix(".times")
        try:
            self.size = self.path.stat().st_size
        except OSError:
            self.size = 0

    def walk(self, offset: int) -> Iterator[TimeRange]:
        """From the one that holds for this byte on."""
        when: float | None = None
        for at, then in self._read(self._before(lambda at, _: at <= offset)):
            if at > offset:
                yield when, at
            when = then
        yield when, None

    def since(self, epoch: float, size: int) -> int:
        """The byte from which on everything was written at this time or later."""
        if not self.size:
            return 0
        note = self._read(self._before(lambda _, then: then < epoch))
        return next((at for at, then in note if then >= epoch), size)

    def _before(self, holds: Callable[[int, float], bool]) -> int:
        """Offset to read from: the last note for which this still holds, or one close to it."""
        low, high = 0, self.size
        while high - low > _NOTES:
            middle = (low + high) // 2
            note = next(self._read(middle), None)
            low, high = (middle, high) if note is not None and holds(*note) else (low, middle)
        return low

    def _read(self, start: int) -> Iterator[tuple[int, float]]:
        """The notes from the first one that begins after this byte of them."""
        rest, at, skip = b"", start, start > 0
        while at < self.size:
            data = _read_range(self.path, at, min(self.size, at + _NOTES))
            if not data:
                return
            at += len(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines[1:] if skip else lines:
                if (note := _parse_note(line)) is not None:
                    yield note
            skip = skip and not lines


def _parse_note(line: bytes) -> tuple[int, float] | None:
    offset, _, when = line.partition(b" ")
    try:
        return int(offset), float(when)
    except ValueError:
        return None
