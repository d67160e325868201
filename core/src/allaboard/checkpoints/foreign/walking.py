"""Walks over one nested value, JSON or universal binary JSON, from its first byte to its last, in bounded
memory: a file that was cut never closes what it opens. Each raises NotWhole and NotKnown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import BinaryIO

from allaboard.checkpoints.foreign.unit import NotKnown, NotWhole

_DEEPEST = 64
_MOST_VALUES = 10_000_000
"""Values that are walked over; a list of numbers of one kind is one."""
_LONGEST_KEY = 1000
_SHORT = 2**16
"""Bytes that are read over; more are jumped over."""

_WIDTHS = {"Z": 0, "T": 0, "F": 0, "N": 0, "i": 1, "U": 1, "C": 1, "I": 2, "l": 4, "d": 4, "L": 8, "D": 8}
_WHOLE = "iUIlL"


@dataclass(slots=True)
class Walked:
    """``keys``: of the object that is the whole value; ``items``: of the list that was asked for, by its key
    at whatever depth; None: there is none.
    """

    keys: set[str] = field(default_factory=set)
    items: int | None = None


@dataclass(slots=True)
class _Open:
    """A value that is not closed yet. ``left``: items to come, None: until its closing bracket; ``key``: that
    of an object's value which comes next; ``is_asked``: its items are counted in ``items``.
    """

    is_object: bool
    left: int | None = None
    key: str = ""
    is_asked: bool = False
    items: int = 0


# Universal binary JSON.


def walk_binary(file: BinaryIO, size: int, asked: str) -> Walked:
    """Walk over binary JSON of ``size`` bytes that is one object. ``asked``: the key of the list whose items
    are counted.
    """
    return _Binary(file, size).walk(asked)


class _Binary:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size, self._at = file, size, 0

    def walk(self, asked: str) -> Walked:
        walked, stack = Walked(), [_Open(is_object=True)]
        if self._take(1) != b"{":
            raise NotWhole("it does not begin with an object")
        for _ in range(_MOST_VALUES):
            if not stack:
                if self._at != self._size:
                    raise NotWhole("it does not end where its content does")
                return walked
            inner = stack[-1]
            kind = self._next(inner)
            if kind is None:
                stack.pop()
                continue
            if len(stack) == 1 and inner.is_object:
                walked.keys.add(inner.key)
            opened = self._value(kind)
            if opened is None:
                continue
            if inner.is_object and inner.key == asked and opened.left is not None and walked.items is None:
                walked.items = opened.items
            if opened.left != 0:
                if len(stack) >= _DEEPEST:
                    raise NotKnown("it is nested too deep to look at")
                stack.append(opened)
        raise NotKnown(f"it has more than {_MOST_VALUES:,} values, which are too many to look at")

    def _next(self, inner: _Open) -> str | None:
        """The kind of the next value in what is open; None: it is closed."""
        if inner.is_object:
            mark = self._mark()
            if mark == "}":
                return None
            inner.key = self._key(self._whole(mark))
            return self._mark()
        if inner.left is None:
            mark = self._mark()
            return None if mark == "]" else mark
        if inner.left == 0:
            return None
        inner.left -= 1
        return self._mark()

    def _value(self, kind: str) -> _Open | None:
        """Pass over a value without items, or begin one that has some. ``left`` 0: nothing of it is left."""
        if kind in _WIDTHS:
            self._skip(_WIDTHS[kind])
        elif kind == "S":
            self._skip(self._whole(self._mark()))
        elif kind == "{":
            return _Open(is_object=True)
        elif kind == "[":
            return self._list()
        else:
            raise NotWhole(f"it has no value at byte {self._at - 1}")
        return None

    def _list(self) -> _Open:
        mark, item = self._peek(), ""
        if mark == "$":
            self._skip(1)
            item = self._mark()
            if item not in _WIDTHS:
                raise NotKnown(f"it has an array of {item!r}")
            mark = self._peek()
        if mark != "#":
            if item:
                raise NotWhole("it has an array of a kind without a length")
            return _Open(is_object=False)
        self._skip(1)
        count = self._whole(self._mark())
        if item:
            self._skip(count * _WIDTHS[item])
            return _Open(is_object=False, left=0, items=count)
        if count > self._size:
            raise NotWhole("it has an array that is longer than the file")
        return _Open(is_object=False, left=count, items=count)

    def _whole(self, kind: str) -> int:
        if kind not in _WHOLE:
            raise NotWhole(f"it has no length at byte {self._at - 1}")
        value = int.from_bytes(self._take(_WIDTHS[kind]), "big", signed=kind != "U")
        if value < 0:
            raise NotWhole(f"it has a negative length at byte {self._at}")
        return value

    def _key(self, length: int) -> str:
        if length > _LONGEST_KEY:
            self._skip(length)
            return ""
        return self._take(length).decode(errors="replace")

    def _mark(self) -> str:
        return chr(self._take(1)[0])

    def _peek(self) -> str:
        mark = self._mark()
        self._at -= 1
        self._file.seek(self._at)
        return mark

    def _take(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise NotWhole("it ends within a value")
        self._at += count
        return data

    def _skip(self, count: int) -> None:
        if self._at + count > self._size:
            raise NotWhole("it ends within a value")
        if count <= _SHORT:
            self._take(count)
            return
        self._at += count
        self._file.seek(self._at)


# JSON.

_CHUNK = 2**20
_AHEAD = 2**16
"""Bytes that are at hand before a part is read: none is longer, a string up to `_LONGEST_STRING` apart."""
_LONGEST_STRING = 2**22
_NUMBER = rb"-?(?:\d[\d.eE+-]{0,60}|Infinity)|NaN"
_NUMBERS = re.compile(rb"(?:\s*(?:%s)\s*,)++" % _NUMBER)
_PART = re.compile(
    rb'\s*(?:(?P<mark>[{}\[\],:])|"(?P<string>(?:[^"\\\x00-\x1f]|\\.)*)"|(?P<scalar>%s|true|false|null))'
    % _NUMBER
)
_SPACE = re.compile(rb"\s*")


def walk_json(file: BinaryIO, asked: str) -> Walked:
    """The same of text."""
    return _Text(file).walk(asked)


class _Text:
    def __init__(self, file: BinaryIO) -> None:
        self._file, self._data, self._at, self._is_all = file, b"", 0, False
        self._dropped = 0

    def walk(self, asked: str) -> Walked:
        walked, stack = Walked(), [_Open(is_object=True)]
        if self._part()[0] != b"{":
            raise NotWhole("it does not begin with an object")
        is_after_value, is_first = False, True
        for _ in range(_MOST_VALUES):
            if not stack:
                return self._ended(walked)
            inner = stack[-1]
            if not inner.is_object and not is_after_value:
                is_first = self._numbers(inner) and is_first
            mark, text = self._part()
            if is_after_value and mark == b",":
                is_after_value, is_first = False, False
                inner.items += 1
                continue
            if mark == (b"}" if inner.is_object else b"]") and (is_after_value or is_first):
                if inner.is_asked and walked.items is None:
                    walked.items = inner.items + is_after_value
                stack.pop()
                is_after_value = True
                continue
            if is_after_value:
                raise NotWhole(f"it has neither a comma nor an end before byte {self._place}")
            if inner.is_object:
                if text is None or self._part()[0] != b":":
                    raise NotWhole(f"it has no key before byte {self._place}")
                inner.key = text[:_LONGEST_KEY].decode(errors="replace")
                if len(stack) == 1:
                    walked.keys.add(inner.key)
                mark, text = self._part()
            if mark in (b"{", b"["):
                if len(stack) >= _DEEPEST:
                    raise NotKnown("it is nested too deep to look at")
                is_list = mark == b"["
                is_asked = is_list and inner.is_object and inner.key == asked
                stack.append(_Open(is_object=not is_list, is_asked=is_asked))
                is_first = True
                continue
            if mark is not None:
                raise NotWhole(f"it has no value before byte {self._place}")
            is_after_value = True
        raise NotKnown(f"it has more than {_MOST_VALUES:,} values, which are too many to look at")

    def _numbers(self, inner: _Open) -> bool:
        """Pass over numbers of a list, each with its comma; True if there are none."""
        self._fill(_AHEAD)
        numbers = _NUMBERS.match(self._data, self._at)
        if numbers is None:
            return True
        self._at = numbers.end()
        inner.items += self._data.count(b",", numbers.start(), numbers.end())
        return False

    def _part(self) -> tuple[bytes | None, bytes | None]:
        """(a bracket, comma or colon, None for another part; a string without its quotes, None for what is
        none).
        """
        self._fill(_AHEAD)
        part = _PART.match(self._data, self._at)
        if part is None or part.end() == len(self._data):  # it may go on
            self._fill(_LONGEST_STRING)
            part = _PART.match(self._data, self._at)
        if part is None:
            if not self._is_all:
                raise NotKnown(f"it has a part of more than {_LONGEST_STRING:,} bytes")
            raise NotWhole(f"it is no JSON after byte {self._place}, or ends there")
        self._at = part.end()
        return part["mark"], part["string"]

    def _ended(self, walked: Walked) -> Walked:
        while True:
            self._fill(1)
            space = _SPACE.match(self._data, self._at)
            self._at = space.end() if space is not None else self._at
            if self._at < len(self._data):
                raise NotWhole("it does not end where its content does")
            if self._is_all:
                return walked

    def _fill(self, least: int) -> None:
        """Have so many bytes at hand, or all that are left."""
        while len(self._data) - self._at < least and not self._is_all:
            more = self._file.read(_CHUNK)
            self._dropped += self._at
            self._data, self._at, self._is_all = self._data[self._at :] + more, 0, not more

    @property
    def _place(self) -> int:
        return self._dropped + self._at
