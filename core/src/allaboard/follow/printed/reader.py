"""The reader of what an ordinary training script prints: lines in, reports out.

One reader reads one stream, a try of a member from its beginning, and belongs to whoever holds the cursor of
that stream. It reads no clock and touches nothing. The first line that is surely of one format chooses it;
from then on lines of other formats are output. A format that is no library's own (a bar, a loop of one's
own) gives way to a library's. With the first explicit report of progress all of this stands back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from allaboard.follow.printed import expression
from allaboard.follow.printed.candidates import lines_with, thin_out
from allaboard.follow.printed.counting import Counting
from allaboard.follow.printed.form import Format
from allaboard.follow.printed.prefixes import rank_in
from allaboard.text.expressions import SECONDS, compiled
from allaboard.text.reportline import HANDED, PREFIX, Report, decode, whole

LONGEST = 2000
"""Characters of a line that may be progress."""
OWN = "the expression of the job"
TOO_SLOW = "progress_expression_slow"
_MOST_SLOW = 5
"""Searches that take too long before an expression is given up."""
_MOST_SHAPES = 4096
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")

_GLUED = re.compile(r"[^|]{0,200}%\|[^|]{0,400}\|[^\[]{0,80}\[[^\]]{0,400}\](?=[A-Za-z{\[])")
_ROOTS = (
    "loss", "epoch", "step", "iter", "%|", "it/s", "s/it", "━", "]\t", "\tlearn: ", "\ttest: ", "acc@1",
    "prec@1", "nll", "ppl", "perplexity", "reward", "entropy", "cost", "num_updates", "v_num", "gpu_mem",
    "  all ", "[train]", "[eval]", "train: ", "test: ", "test (", "logging_writer.py", "[lightgbm]", "'s ",
    " : up. ", "validation accuracy",
)  # fmt: skip
"""Small letters of which each needle of a format holds some: what a line is asked for at first."""
_NEEDLES = tuple(root.encode() for root in _ROOTS)
_PREFIX = PREFIX.strip().encode()
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))


class ProgressReader:
    """Reads one stream. ``spec``: the field ``progress`` of its job: None reads the formats that are known,
    ``off`` explicit reports alone, anything else is a regular expression. ``name``: whose format was
    recognised, "" until one is.
    """

    __slots__ = ("_counting", "_expression", "_format", "_known", "_shapes", "_slow", "explicit", "name")

    def __init__(self, spec: str | None = None) -> None:
        self.name = ""
        self.explicit = spec == expression.OFF
        self._expression: Any = None if spec in (None, expression.OFF) else compiled(spec, "step")
        if spec is not None and self._expression is None:
            self.explicit = True
        self._format: Format | None = None
        self._counting = Counting()
        # Lines without their digits: those that no format reads, and those that the chosen one alone reads.
        self._shapes: set[str] = set()
        self._known: set[str] = set()
        self._slow = 0

    def candidates(self, data: bytes, most: int | None = None) -> list[tuple[int, bytes]]:
        """(where it begins, the line) of those of some whole lines that are worth to be read; a carriage
        return ends one, too. ``most``: of more lines of progress only about so many, evenly.
        """
        if self.explicit:
            return lines_with(data, (_PREFIX,))
        if self._expression is not None or (self._is_open and _families().tables.has_head(data)):
            lines = lines_with(data, ())  # rows of a table have no letters
        else:
            lines = lines_with(data, (_PREFIX, *self._needles()))
        return lines if most is None or not self.name else thin_out(lines, most, _PREFIX)

    @property
    def _is_open(self) -> bool:
        """True as long as a library's format may be recognised."""
        return self._format is None or self._format.plain

    def _needles(self) -> Sequence[bytes]:
        if self._format is None or self._format.plain:
            return _NEEDLES
        return [needle.encode() for needle in self._format.needles]

    def read(self, line: str) -> list[Report]:
        """The reports in a line: an explicit one, or what each state of a redrawn line tells."""
        if PREFIX in line and (report := decode(line)) is not None:
            if report.kind == "progress":
                self.explicit = True
            elif report.kind == HANDED:
                self._counting.handed = whole(report.fields.get("step"))
            return [report]
        if self.explicit:
            return []
        return [report for piece in _pieces(line) if (report := self._piece(piece)) is not None]

    def _piece(self, text: str) -> Report | None:
        if not text or text.isspace() or len(text) > LONGEST:
            return None
        if self._expression is not None:
            return self._by_expression(text)
        text = text.rstrip()
        low = text.lower()
        if self._format is None or self._format.plain:
            return self._choose(text, low)
        return self._by(self._format, text, low)

    def _choose(self, text: str, low: str) -> Report | None:
        """The report of a line as long as no library's format is chosen."""
        shape = text.translate(_NO_DIGITS)
        if shape in self._shapes:
            return None
        text, chosen = _without_escapes(text), self._format
        if chosen is not None and shape in self._known:
            printed = chosen.read(text, low)
            return self._counting.report(chosen, printed) if printed is not None else None
        if not any(root in low for root in _ROOTS):
            return None
        for format in _families().LIBRARIES if chosen is not None else _families().FORMATS:
            printed = format.read(text, low)
            if printed is None or not _counts(format, text):
                continue
            if not (printed.sure or (format.plain and printed.metrics and self._counting.is_in_epoch)):
                # The beginning of an epoch and a bar count once their format is known.
                self._counting.note(printed)
                continue
            if chosen is not None:
                self._counting.begin_again()
            self._format, self.name = format, format.name
            self._shapes, self._known = set(), set()
            return self._counting.report(format, printed)
        if chosen is not None and (printed := chosen.read(text, low)) is not None:
            if not _counts(chosen, text):
                return None
            if len(self._known) < _MOST_SHAPES:
                self._known.add(shape)
            return self._counting.report(chosen, printed)
        if len(self._shapes) < _MOST_SHAPES and not any(
            format.read(text, low) for format in _families().FORMATS
        ):
            self._shapes.add(shape)
        return None

    def _by(self, format: Format, text: str, low: str) -> Report | None:
        text = _without_escapes(text)
        printed = format.read(text, low)
        return (
            None if printed is None or not _counts(format, text) else self._counting.report(format, printed)
        )

    def _by_expression(self, text: str) -> Report | None:
        try:
            printed = expression.read(self._expression, _without_escapes(text))
        except TimeoutError:
            self._slow += 1
            if self._slow < _MOST_SLOW:
                return None
            self.explicit = True
            trouble = f"the expression of the field progress takes more than {SECONDS} s for a line"
            return Report("flag", {"code": TOO_SLOW, "text": f"{trouble}; it is not used any more"})
        if printed is None:
            return None
        self.name = OWN
        return self._counting.made(OWN, printed.step, printed.total, printed)


def _families() -> Any:
    """The formats that are known. They are some hundred expressions: who reads no line compiles none."""
    from allaboard.follow.printed import families

    return families


def _pieces(line: str) -> Iterator[str]:
    """The states of a line that is redrawn, and what is written behind a bar without a new line."""
    for state in line.split("\r"):
        glued = _GLUED.match(state) if "%|" in state else None
        if glued is not None:
            yield glued[0]
            yield state[glued.end() :]
        else:
            yield state


def _counts(format: Format, text: str) -> bool:
    """True if a line is of the rank that speaks for a member."""
    return format.any_rank or text[:1].isalpha() or rank_in(text) in (None, 0)


def _without_escapes(text: str) -> str:
    return _ESCAPES.sub("", text) if "\x1b" in text else text
