"""Parser of a kubelet's answers: new lines of one log. Values in, values out: bytes and times in, lines
out.

A log is asked for with its times: each line begins with the moment at which the container runtime wrote it,
in nanoseconds. It can be asked for from a whole second on and no finer (``sinceTime``). So a position is
the time of the last line and the number of lines that were read since its second began; the second is asked
for again, and exactly that many lines of it are passed over. No line comes twice, and none is lost, not
even where several have the same time or where two streams of one container (stdout, stderr) wrote a few
microseconds out of order.

Where the line of the position is not in the answer any more, the node has rotated the log in between: one
`LogGap` stands for the lost lines, from the old position to the first line that is there.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, NamedTuple, TypeVar

SECOND = 1_000_000_000
HOLD = 2.0
"""Seconds for which merging holds a line back, so that one that was written before it and comes later still
goes first.
"""
HELD_BYTES = 8 << 20
"""Bytes that merging holds at most; above it the oldest lines go at once."""

LONGEST = 1 << 20
"""Bytes of a line; a longer one comes in pieces."""

_NO_LOG = (
    b"unable to retrieve container logs",
    b"failed to try resolving symlinks",
    b"failed to open log file",
)
"""Beginnings of a kubelet's message, with status 200 and in place of the lines, that it cannot read a log."""


class LogGap(NamedTuple):
    """Lines after ``since`` and before ``until`` were written and cannot be read any more."""

    since: int
    until: int


@dataclass(frozen=True, slots=True)
class Position:
    """``at``: the latest time of a line that was read, 0 at the start. ``lines``: the number of lines that
    were read since that second began. ``counted``: that number is known (it is not where reading began in
    the middle of the second).
    """

    at: int = 0
    lines: int = 0
    counted: bool = True

    @property
    def second(self) -> int | None:
        """The whole second to ask from; None at the start."""
        return self.at // SECOND if self.at else None

    def after(self, at: int) -> Position:
        """The position after one more line."""
        begun = self.at // SECOND * SECOND
        if at >= begun + SECOND:
            return Position(at, 1)
        if at < begun:  # written out of order, over the edge of a second: it will not be asked for again
            return self
        return Position(max(at, self.at), self.lines + 1, self.counted)


START = Position()


class Stamped(NamedTuple):
    """A line, its time in nanoseconds since the epoch, and the position of the reader after it. ``more``: a
    piece of a line that is longer than `LONGEST`, and not the last.
    """

    at: int
    text: str
    position: Position = START
    more: bool = False


class LogParser:
    """The lines of one try after a position, out of the bytes that answer a request for them.

    ``whole``: the answer begins with a second (or with the log); False for a request of the last n lines.
    ``refused``: the kubelet's message when it had no log to give.
    """

    def __init__(self, position: Position = START, *, whole: bool = True) -> None:
        self.position = position
        self.refused: str | None = None
        self._whole = whole
        self._rest = b""
        self._last = 0
        self._skip = position.lines if position.counted else 0
        self._by_time = position.at > 0 and not position.counted
        self._anchored = position.at == 0
        self._clock = _Clock()

    def feed(self, data: bytes) -> list[Stamped | LogGap]:
        """The new lines that these bytes complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        items = [item for raw in lines for item in self._long_line(raw)]
        while len(self._rest) > LONGEST:  # always cut at the same places, so that pieces can be counted
            items += self._line(self._rest[:LONGEST], more=True)
            self._rest = self._rest[LONGEST:]
        return items

    @property
    def is_anchored(self) -> bool:
        """True when the line of the position that it began with is still there."""
        return self._anchored

    def unfinished(self) -> tuple[int, str] | None:
        """(time, text) of the beginning of a line that has no end yet; it will come again, whole."""
        at, text = self._clock.read(self._rest)
        return None if at is None or at < self.position.at else (at, text)

    def close(self) -> list[Stamped | LogGap]:
        """Take the rest of an ended try: a last line without its end is a line too."""
        rest, self._rest = self._rest, b""
        return list(self._long_line(rest)) if rest else []

    def _long_line(self, raw: bytes) -> Iterator[Stamped | LogGap]:
        while len(raw) > LONGEST:
            yield from self._line(raw[:LONGEST], more=True)
            raw = raw[LONGEST:]
        yield from self._line(raw)

    def _line(self, raw: bytes, *, more: bool = False) -> Iterator[Stamped | LogGap]:
        at, text = self._clock.read(raw)
        if at is None:
            if raw.startswith(_NO_LOG):
                self.refused = text
                return
            at = self._last or self.position.at  # the rest of a line too long for one record
        self._last = at
        if self._is_known(at):
            return
        if not self._anchored:
            self._anchored = True
            yield LogGap(self.position.at, at)
        if self.position.at == 0 and not self._whole:
            self.position = Position(at, 1, counted=False)
        else:
            self.position = self.position.after(at)
        yield Stamped(at, text, self.position, more)

    def _is_known(self, at: int) -> bool:
        """True when this line was read before, by another request."""
        if not self._skip and not self._by_time:
            return False
        if at > self.position.at:  # no known line is left behind this one
            self._skip, self._by_time = 0, False
            return False
        self._anchored = self._anchored or at == self.position.at
        if self._skip and at >= self.position.at // SECOND * SECOND:
            self._skip -= 1
        return True


class _Clock:
    """Reads the times in front of lines; most lines share their second with the one before."""

    def __init__(self) -> None:
        self._prefix = b""
        self._seconds = 0

    def read(self, raw: bytes) -> tuple[int | None, str]:
        """Nanoseconds since the epoch, and the line without its time; None when it bears none."""
        stamp, _, text = raw.partition(b" ")
        at = self._at(stamp)
        return at, (raw if at is None else text).decode("utf-8", "replace").rstrip("\r")

    def _at(self, stamp: bytes) -> int | None:
        # 2026-11-21T12:00:02.250000000Z, 2026-11-21T13:00:02.250000000+01:00, 2026-11-21T12:00:02Z
        if len(stamp) < 20 or stamp[10:11] != b"T":
            return None
        digits, zone = stamp[20:], b"Z"
        if stamp[19:20] == b".":
            end = len(digits) - len(digits.lstrip(b"0123456789"))
            digits, zone = digits[:end], digits[end:]
        else:
            digits, zone = b"", stamp[19:]
        prefix = stamp[:19] + zone
        if prefix != self._prefix:
            try:
                moment = datetime.fromisoformat(prefix.decode().replace("Z", "+00:00"))
            except ValueError:
                return None
            if moment.tzinfo is None:
                return None
            self._prefix, self._seconds = prefix, int(moment.timestamp())
        return self._seconds * SECOND + int(digits.ljust(9, b"0")[:9])


T = TypeVar("T")


class Merge(Generic[T]):
    """Puts items of several sources into the order of their times. An item leaves ``hold`` seconds after it
    was put in, and with it all items of earlier times; an item that comes later still leaves at once, out of
    order.

    Items of one source keep their order: give them keys that never go back. ``now`` is any clock that does
    not go back.
    """

    def __init__(self, hold: float = HOLD, most: int = HELD_BYTES) -> None:
        self.hold, self.most = hold, most
        self._heap: list[tuple[int, int, int, T]] = []
        self._came: deque[tuple[float, int, int]] = deque()
        self._number = 0
        self._bytes = 0

    def put(self, key: int, item: T, size: int, now: float) -> None:
        self._number += 1
        heapq.heappush(self._heap, (key, self._number, size, item))
        self._came.append((now, key, self._number))
        self._bytes += size

    def take(self, now: float, *, everything: bool = False) -> Iterator[T]:
        """Items that may leave, in order."""
        until = (0, 0)
        while self._came and (everything or self._came[0][0] + self.hold <= now):
            _, key, number = self._came.popleft()
            until = max(until, (key, number))
        while self._heap and (self._heap[0][:2] <= until or self._bytes > self.most):
            _, _, size, item = heapq.heappop(self._heap)
            self._bytes -= size
            yield item

    def due(self) -> float | None:
        """The time at which the next item leaves; None while none is held."""
        return self._came[0][0] + self.hold if self._heap and self._came else None

    def __len__(self) -> int:
        return len(self._heap)


def stamp(at: int) -> str:
    """``2026-11-21T12:00:02.250Z``, for people and for ``sinceTime`` alike."""
    return (
        datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        + f"{at // 1_000_000 % 1000:03d}Z"
    )
