"""The logs of members as rules search them: fast over megabytes, within bounds, each hit with its rank and
time.

A pattern is searched only where a literal piece of it occurs, so that seventy rules over ten megabytes cost
less than a second. Values in, values out.
"""

from __future__ import annotations

import datetime as _dt
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from allaboard.diagnosis.json_lines import unfold
from allaboard.diagnosis.tracebacks import (
    Line,
    RaisedException,
    find_exceptions,
    last_of_each_rank,
    strip_lines,
    strip_prefixes,
)

HEAD, TAIL = 64 << 10, 512 << 10
"""Characters of the beginning and of the end of a log that are searched."""
MOST_HITS = 12
PARSED = 128 << 10
"""Characters of the end of a log in which tracebacks are read."""
LONGEST_LINE = 2000
OFTEN, KEPT = 12, 4
"""Lines of one shape that are many, and how many of their beginning and of their end are searched then."""
_NO_DIGITS = str.maketrans("", "", "0123456789.")
_TELLS = re.compile(r'raceback|File "|rror|xception')


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that a pattern fits: as its program wrote it, and its number of characters from the start."""

    text: str
    position: int
    match: re.Match[str]
    rank: int | None = None
    time: float | None = None


@dataclass(frozen=True)
class LinePattern:
    """A pattern of one line. ``hints``: lower-case pieces of which each match has at least one; empty:
    none is known."""

    pattern: re.Pattern[str]
    hints: tuple[str, ...]


@lru_cache(maxsize=1024)
def line_pattern(pattern: str) -> LinePattern:
    """A pattern, whatever its case. Alternatives stand between bars at its top level."""
    return LinePattern(re.compile(pattern, re.IGNORECASE), tuple(dict.fromkeys(_hints(pattern) or ())))


def _hints(pattern: str) -> list[str] | None:
    """Pieces of which whatever it finds has at least one; None: none is known."""
    hints: list[str] = []
    for alternative in _alternatives(pattern):
        own = _hint(alternative)
        inner = None if own is not None else _group_hints(alternative)
        if own is None and inner is None:
            return None
        hints += [own] if own is not None else inner or []
    return hints


def _group_hints(alternative: str) -> list[str] | None:
    """Of its first group, where it must be there and each of its own alternatives has a hint."""
    match = re.match(r"\((?!\?)", alternative)
    depth = 0
    for n, c in enumerate(alternative if match is not None else ""):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            optional = alternative[n + 1 : n + 2] in ("?", "*", "{")
            return None if optional else _hints(alternative[1:n])
    return None


def _alternatives(pattern: str) -> Iterator[str]:
    depth, begun, n, in_class = 0, 0, 0, False
    while n < len(pattern):
        c = pattern[n]
        if c == "\\":
            n += 1
        elif in_class:
            in_class = c != "]"
        elif c == "[":
            in_class = True
        elif c in "()":
            depth += 1 if c == "(" else -1
        elif c == "|" and depth == 0:
            yield pattern[begun:n]
            begun = n + 1
        n += 1
    yield pattern[begun:]


def _hint(alternative: str) -> str | None:
    """The longest piece of plain characters of a pattern without bars; None: it has none to speak of."""
    runs, run, n, depth = [], "", 0, 0
    while n < len(alternative):
        c = alternative[n]
        literal: str | None = c
        if c == "\\":
            n += 1
            escaped = alternative[n] if n < len(alternative) else ""
            literal = None if escaped.isalnum() else escaped
        elif c == "(":
            depth, literal = depth + 1, None
        elif c == ")":
            depth, literal = depth - 1, None
        elif c == "[":
            n = alternative.find("]", n + 2)
            n = len(alternative) if n < 0 else n
            literal = None
        elif c in ".^$+":
            literal = None
        elif c in "?*{":
            run, literal = run[:-1], None
            if c == "{":
                n = alternative.find("}", n)
        if literal is None or depth:
            runs.append(run)
            run = ""
        else:
            run += literal
        n += 1
    best = max([*runs, run], key=len)
    return best.lower() if len(best) >= 3 or (len(best) == 2 and not best.isalnum()) else None


_GLOG = re.compile(r"\[?[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(\.\d{1,9})?")
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_TIME_OF_DAY = re.compile(r"(?:^|[\s>\]\[:])([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?=[\s.,\]])")
_HEAD_OF_LINE = 60
AHEAD = 300.0
"""Seconds by which a clock may be ahead."""
LOOK_BACK = 2000
"""Characters before a line in which its time may stand, where it has none of its own."""


@dataclass(frozen=True)
class Log:
    """One member's log. ``year``: of its times that do not tell theirs; ``most``: characters of it that are
    searched."""

    text: str
    year: int = 1970
    most: int = HEAD + TAIL

    @cached_property
    def body(self) -> str:
        """The part that is searched: of lines that differ in their numbers alone, as a training prints them
        by the thousand, the first and the last."""
        text, head = self.text, self.most // 8
        if len(text) > self.most:
            text = f"{text[:head]}\n{text[head - self.most :]}"
        text = unfold(text)
        shapes = text.translate(_NO_DIGITS).split("\n")
        counts = Counter(shapes)
        often = {shape for shape, n in counts.items() if n > OFTEN and not _TELLS.search(shape)}
        if not often:
            return text
        seen: Counter[str] = Counter()
        kept = []
        for line, shape in zip(text.split("\n"), shapes, strict=True):
            if shape in often:
                seen[shape] += 1
                if KEPT < seen[shape] <= counts[shape] - KEPT:
                    continue
            kept.append(line)
        return "\n".join(kept)

    @cached_property
    def _lower(self) -> str:
        # Of some characters the lower case is longer, and every position behind them would be off.
        lower = self.body.lower()
        return (
            lower if len(lower) == len(self.body) else self.body.encode("ascii", "replace").decode().lower()
        )

    def hits(self, wanted: LinePattern, most: int = MOST_HITS) -> list[Hit]:
        """Lines that fit, in their order; of very many the first."""
        hits: list[Hit] = []
        for begin, end in self._candidates(wanted):
            line = self._line(begin, end)
            match = wanted.pattern.search(line.text)
            if match is not None:
                hits.append(Hit(line.text.strip(), begin, match, line.rank, self.time_at(begin)))
                if len(hits) >= most:
                    break
        return hits

    @cached_property
    def shape(self) -> int:
        """The same of logs that differ in numbers alone."""
        return hash(self.body.translate(_NO_DIGITS))

    def _line(self, begin: int, end: int) -> Line:
        if begin not in self._lines:
            self._lines[begin] = strip_prefixes(self.body[begin : min(end, begin + 2 * LONGEST_LINE)])
        return self._lines[begin]

    @cached_property
    def _lines(self) -> dict[int, Line]:
        return {}

    def has(self, wanted: LinePattern) -> bool:
        return bool(self.hits(wanted, 1))

    def last(self, wanted: LinePattern) -> Hit | None:
        hits = self.hits(wanted, 200)
        return hits[-1] if hits else None

    def _candidates(self, wanted: LinePattern) -> Iterator[tuple[int, int]]:
        body = self.body
        if not wanted.hints:
            for match in re.finditer(r"[^\n]+", body):
                yield match.span()
            return
        begins: set[int] = set()
        for hint in wanted.hints:
            at, tries = self._lower.find(hint), 0
            while at >= 0 and tries < 2000:
                begins.add(body.rfind("\n", 0, at) + 1)
                end = body.find("\n", at)
                tries += 1
                at = self._lower.find(hint, end) if end >= 0 else -1
        for begin in sorted(begins):
            end = body.find("\n", begin)
            yield begin, len(body) if end < 0 else end

    def time_at(self, position: int) -> float | None:
        """The time of the line there, by itself or by the nearest line before it that tells one."""
        own = self._times(self._raw_line(position))
        if own:
            return own[0]
        before = self._times(self.body[max(0, position - LOOK_BACK) : position])
        return before[-1] if before else None

    def own_time(self, position: int, now: float) -> float | None:
        """The time that the line there tells itself; a time of day is that of the day before ``now``."""
        line = self._raw_line(position)
        dated = self._times(line)
        if dated:
            return dated[0]
        match = _TIME_OF_DAY.search(line[:_HEAD_OF_LINE])
        if match is None:
            return None
        seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
        return now - (now + AHEAD - seconds) % 86400.0 + AHEAD

    def _raw_line(self, position: int) -> str:
        end = self.body.find("\n", position)
        return self.body[position : min(len(self.body) if end < 0 else end, position + 200)]

    def _times(self, text: str) -> list[float]:
        moments: list[tuple[int, float]] = []
        for match in _ISO.finditer(text):
            y, mo, d, h, mi, s = (int(g) for g in match.groups()[:6])
            moments += self._moment(match.start(), y, mo, d, h, mi, s, match[7])
        for match in _GLOG.finditer(text):
            mo, d, h, mi, s = (int(g) for g in match.groups()[:5])
            moments += self._moment(match.start(), self.year, mo, d, h, mi, s, (match[6] or "").lstrip("."))
        return [when for _, when in sorted(moments)]

    @staticmethod
    def _moment(
        at: int, y: int, mo: int, d: int, h: int, mi: int, s: int, part: str | None
    ) -> list[tuple[int, float]]:
        try:
            when = _dt.datetime(y, mo, d, h, mi, s, tzinfo=_dt.UTC).timestamp()
        except (ValueError, OverflowError):
            return []
        return [(at, when + (float(f"0.{part}") if part else 0.0))]

    @cached_property
    def last_time(self) -> float | None:
        times = self._times(self.body[-4000:])
        return times[-1] if times else None

    @cached_property
    def first_time(self) -> float | None:
        times = self._times(self.body[:4000])
        return times[0] if times else None

    @cached_property
    def _exceptions(self) -> list[RaisedException]:
        if "traceback (most recent call last)" not in self._lower and 'file "' not in self._lower:
            return []
        lines = strip_lines(self.body[-PARSED:])
        return find_exceptions(lines, chains=True)

    @cached_property
    def fatal(self) -> list[RaisedException]:
        """The last exception of each rank, in the order in which they ended; not those of launchers."""
        return last_of_each_rank(e for e in self._exceptions if not e.chained)

    @cached_property
    def before_fatal(self) -> list[RaisedException]:
        """The exceptions that others were raised from."""
        return [e for e in self._exceptions if e.chained]

    @cached_property
    def last_lines(self) -> list[str]:
        """Its last lines that say something, the newest last."""
        lines = (strip_prefixes(line).text.strip() for line in self.body[-8000:].split("\n"))
        return [line for line in lines if line][-20:]
