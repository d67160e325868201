"""A terminal in memory: bytes of a program in, rows of coloured text out.

It knows what our live view and our plain lines write, and refuses the rest: a picture that is silently wrong
would be worse than none. No clock, no file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from rich.cells import get_character_cell_size

_SEQUENCE = re.compile(
    r"\x1b(?:\[(?P<mode>\??)(?P<numbers>[\d;]*)(?P<end>[A-Za-z])|\][^\x07\x1b]*(?:\x07|\x1b\\))"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[\d;?]*|\][^\x07\x1b]*\x1b?)?$")
_NAMED = (
    "#3b4252", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9",
    "#7b869b", "#ff7b86", "#b5e08c", "#ffd68a", "#84c6ff", "#e09cf2", "#7fd8e2", "#ffffff",
)  # fmt: skip
"""The sixteen colours that have names, on a dark ground."""


class UnknownSequence(ValueError):
    """The program wrote what this terminal does not know."""


@dataclass(frozen=True, slots=True)
class Style:
    """``colour``: #rrggbb, None: that of the terminal."""

    colour: str | None = None
    bold: bool = False
    dim: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Text of one style. ``column``: where it begins."""

    column: int
    text: str
    style: Style


Row = tuple[Span, ...]
Picture = tuple[Row, ...]
_Cell = tuple[str, Style]
_BLANK: _Cell = (" ", Style())


@dataclass(slots=True)
class Screen:
    """``columns`` by ``rows``. What scrolls out at the top is gone."""

    columns: int
    rows: int
    _lines: list[list[_Cell]] = field(default_factory=list)
    _row: int = 0
    _column: int = 0
    _style: Style = field(default_factory=Style)
    _rest: str = ""

    def __post_init__(self) -> None:
        self._lines = [[_BLANK] * self.columns for _ in range(self.rows)]

    def feed(self, text: str) -> None:
        """What the program wrote next; a sequence may be cut in two. Raises UnknownSequence."""
        text, self._rest = self._rest + text, ""
        if cut := _UNFINISHED.search(text):
            text, self._rest = text[: cut.start()], cut[0]
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = _SEQUENCE.match(text, at)
                if found is None:
                    raise UnknownSequence(f"{text[at : at + 12]!r} is no sequence that this screen knows")
                self._obey(found)
                at = found.end()
            else:
                self._write(text[at])
                at += 1

    def picture(self) -> Picture:
        """All rows, without blanks at their ends."""
        return tuple(_spans(line) for line in self._lines)

    def _write(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character == "\x07":
            pass
        elif character < " ":
            raise UnknownSequence(f"{character!r} is no character that this screen knows")
        elif (width := get_character_cell_size(character)) > 0:
            if self._column + width > self.columns:
                self._column = 0
                self._down()
            line = self._lines[self._row]
            line[self._column] = (character, self._style)
            for beside in range(self._column + 1, self._column + width):
                line[beside] = ("", self._style)
            self._column += width

    def _down(self) -> None:
        if self._row + 1 < self.rows:
            self._row += 1
        else:
            self._lines = [*self._lines[1:], [_BLANK] * self.columns]

    def _obey(self, found: re.Match[str]) -> None:
        if found["end"] is None or found["mode"]:
            return  # titles and modes: the cursor that is hidden, the paste that is bracketed
        numbers = [int(number or 0) for number in found["numbers"].split(";")]
        if found["end"] == "m":
            self._style = _styled(self._style, numbers)
            return
        act = _ACTS.get(found["end"])
        if act is None:
            raise UnknownSequence(f"{found[0]!r} is no sequence that this screen knows")
        act(self, numbers)

    def _up(self, numbers: Sequence[int]) -> None:
        self._row = max(0, self._row - max(1, numbers[0]))

    def _move_down(self, numbers: Sequence[int]) -> None:
        self._row = min(self.rows - 1, self._row + max(1, numbers[0]))

    def _right(self, numbers: Sequence[int]) -> None:
        self._column = min(self.columns - 1, self._column + max(1, numbers[0]))

    def _left(self, numbers: Sequence[int]) -> None:
        self._column = max(0, self._column - max(1, numbers[0]))

    def _to_column(self, numbers: Sequence[int]) -> None:
        self._column = min(self.columns - 1, max(1, numbers[0]) - 1)

    def _to(self, numbers: Sequence[int]) -> None:
        self._row = min(self.rows - 1, max(1, numbers[0]) - 1)
        self._to_column(numbers[1:] or (1,))

    def _erase_line(self, numbers: Sequence[int]) -> None:
        line, here = self._lines[self._row], self._column
        first, last = {0: (here, self.columns), 1: (0, here + 1), 2: (0, self.columns)}[numbers[0]]
        line[first:last] = [_BLANK] * (min(last, self.columns) - first)

    def _erase_screen(self, numbers: Sequence[int]) -> None:
        self._erase_line(numbers)
        first, last = {0: (self._row + 1, self.rows), 1: (0, self._row), 2: (0, self.rows)}[numbers[0]]
        for row in range(first, last):
            self._lines[row] = [_BLANK] * self.columns


_ACTS: dict[str, Callable[[Screen, Sequence[int]], None]] = {
    "A": Screen._up, "B": Screen._move_down, "C": Screen._right, "D": Screen._left,
    "G": Screen._to_column, "H": Screen._to, "K": Screen._erase_line, "J": Screen._erase_screen,
}  # fmt: skip


def _styled(style: Style, numbers: Sequence[int]) -> Style:
    """``style`` after a sequence of SGR. Grounds, italics and underlines are not drawn."""
    left = list(numbers)
    while left:
        number = left.pop(0)
        if number == 0:
            style = Style()
        elif number == 1:
            style = replace(style, bold=True)
        elif number == 2:
            style = replace(style, dim=True)
        elif number == 22:
            style = replace(style, bold=False, dim=False)
        elif number == 39:
            style = replace(style, colour=None)
        elif 30 <= number <= 37:
            style = replace(style, colour=_NAMED[number - 30])
        elif 90 <= number <= 97:
            style = replace(style, colour=_NAMED[number - 90 + 8])
        elif number in (38, 48):
            colour, left = _colour(left)
            style = replace(style, colour=colour) if number == 38 else style
    return style


def _colour(numbers: list[int]) -> tuple[str, list[int]]:
    """The colour that begins here, and what follows it."""
    if numbers[:1] == [2]:
        red, green, blue = numbers[1:4]
        return f"#{red:02x}{green:02x}{blue:02x}", numbers[4:]
    number = numbers[1]
    if number < 16:
        return _NAMED[number], numbers[2:]
    if number >= 232:
        grey = 8 + 10 * (number - 232)
        return f"#{grey:02x}{grey:02x}{grey:02x}", numbers[2:]
    parts = ((number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6)
    return "#" + "".join(f"{55 + 40 * part if part else 0:02x}" for part in parts), numbers[2:]


def _spans(line: Sequence[_Cell]) -> Row:
    """Stretches of one style; two blanks and more lie between spans and in none."""
    spans: list[Span] = []
    column = 0
    for style, cells in groupby(line, key=lambda cell: cell[1]):
        text = "".join(character or "\0" for character, _ in cells)
        spans += [
            Span(column + piece.start(), piece[0].replace("\0", ""), style)
            for piece in re.finditer(r"\S+(?: \S+)*", text)
        ]
        column += len(text)
    return tuple(spans)
