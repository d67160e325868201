"""Text that a person, a member, another user or another program wrote, read within bounds.

Every JSON text that did not come from this very process passes through `parse_json`, every YAML text through
`allaboard.untrusted_yaml.parse_yaml`, and a value that was made in Python through `flaws`. All three hold one
set of `Limits`: bytes, depth, number of values (aliases counted each time they are used), digits of a number.
What comes back is plain: ``None``, ``bool``, ``int``, ``float``, ``str``, ``list``, and ``dict`` with text as
keys. Text holds no lone surrogate and no NUL, every number is finite, and no mapping names a key twice.

A number keeps how it was spelled (`SpelledInt`, `SpelledFloat`) where Python would write it otherwise:
``1.10`` in a command means the text ``1.10``. `spelled` gives that text.

Time and memory grow linearly with the text. Values in, values out; the trouble is one sentence in
`Unreadable`, which the caller turns into its own error and puts the name of the thing before.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """What a text may ask of its reader."""

    size: int = 8 * 2**20
    """Bytes of the text, as UTF-8."""
    depth: int = 64
    """Lists and mappings within each other."""
    values: int = 200_000
    """Values in all; one that is used again by an alias counts again."""
    digits: int = 100
    """Characters of one number."""


LIMITS = Limits()
"""For what a person writes: jobs, metrics, kubeconfigs."""

RECORDS = Limits(size=64 * 2**20, values=4_000_000)
"""For what programs write, and what grows with the data: indexes, manifests, journals."""


class Unreadable(ValueError):
    """The text cannot be taken; the message is the rest of a sentence: ``is not JSON: ... (line 3)``."""


class SpelledInt(int):
    """A whole number that knows how its author wrote it."""

    spelling: str


class SpelledFloat(float):
    """A number that knows how its author wrote it."""

    spelling: str


def spelled(number: int | float) -> str:
    """The number as its author wrote it; Python's own text for one that was made in Python."""
    return number.spelling if isinstance(number, (SpelledInt, SpelledFloat)) else str(number)


def plain_number(number: int | float) -> int | float:
    """The number without its spelling."""
    if isinstance(number, bool):
        return number
    return int(number) if isinstance(number, int) else float(number)


# --- JSON -------------------------------------------------------------------------------------------------


def parse_json(data: bytes | str, limits: Limits = LIMITS, *, nonfinite: bool = False) -> Any:
    """The value of a JSON text. ``nonfinite``: take NaN, Infinity and numbers beyond a float as None instead
    of refusing them (for metrics, where a writer in Python leaves them). Raises `Unreadable`.
    """
    text = decode(data, limits)

    def number(word: str) -> float | None:
        return _float(word, limits) if not nonfinite else _float_or_none(word, limits)

    def constant(word: str) -> None:
        if not nonfinite:
            raise Unreadable(f"holds {word}, which JSON has not; write null")

    decoder = json.JSONDecoder(
        object_pairs_hook=_unique,
        parse_int=lambda word: _int(word, limits),
        parse_float=number,
        parse_constant=constant,
        strict=True,
    )
    # The decoder of the standard library recurses; what is too deep is refused before it is entered.
    _check_nesting(text, limits)
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise Unreadable(f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise Unreadable(TOO_DEEP.format(limits.depth)) from None
    for path, trouble in flaws(value, limits):
        raise Unreadable(f"{path}: {trouble}" if path else trouble)
    return value


TOO_DEEP = "is nested more than {} deep"
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def _check_nesting(text: str, limits: Limits) -> None:
    # Few brackets in all cannot be deep: most texts end here.
    if text.count("[") + text.count("{") <= limits.depth:
        return
    depth = 0
    for match in _BRACKETS.finditer(text):
        mark = match[0]
        if mark in "[{":
            depth += 1
            if depth > limits.depth:
                raise Unreadable(TOO_DEEP.format(limits.depth))
        elif mark in "]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Unreadable(f"the field {show(key)} stands twice")
            seen.add(key)
    return found


def _int(word: str, limits: Limits) -> int | float:
    _check_digits(word, limits)
    return spell(SpelledInt(word), word)


def _float(word: str, limits: Limits) -> float:
    _check_digits(word, limits)
    number = SpelledFloat(word)
    if not math.isfinite(number):
        raise Unreadable(f"the number {show(word)} is too large")
    return spell(number, word)


def _float_or_none(word: str, limits: Limits) -> float | None:
    _check_digits(word, limits)
    number = float(word)
    return number if math.isfinite(number) else None


def spell(number: SpelledInt | SpelledFloat, word: str) -> int | float:
    """The number; with its spelling where Python would write it otherwise, which is rare."""
    if str(number) == word:
        return plain_number(number)
    number.spelling = word
    return number


def _check_digits(word: str, limits: Limits) -> None:
    if len(word) > limits.digits:
        raise Unreadable(f"a number has {len(word)} characters; {limits.digits} are allowed")


# --- values -----------------------------------------------------------------------------------------------


def decode(data: bytes | str, limits: Limits = LIMITS) -> str:
    """The text of some bytes, UTF-8 with or without a byte order mark. Raises `Unreadable`."""
    if len(data) > limits.size:
        raise Unreadable(f"has {len(data):,} bytes; {limits.size:,} are allowed")
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not UTF-8 text (byte {error.start})") from None


def flaws(value: Any, limits: Limits = LIMITS) -> Iterator[tuple[str, str]]:
    """(path, trouble) of everything in a value that no text of JSON could hold or that exceeds the limits, in
    order; nothing for a plain one. For values that were made in Python (a job in a DAG file).

    It stops after the first flaw of depth or number, never recurses, and never enters what holds itself.
    """
    count = 0
    stack: list[tuple[str, Any, int]] = [("", value, 1)]
    while stack:
        path, item, depth = stack.pop()
        count += 1
        if count > limits.values:
            yield path, f"holds more than {limits.values:,} values"
            return
        if isinstance(item, str):
            trouble = text_flaw(item)
            if trouble:
                yield path, trouble
        elif item is None or isinstance(item, bool):
            pass
        elif isinstance(item, int):
            if item.bit_length() > limits.digits * 4:
                yield path, f"a number has more than {limits.digits} digits"
        elif isinstance(item, float):
            if not math.isfinite(item):
                yield path, f"{item!r} is not a finite number"
        elif isinstance(item, (Mapping, list, tuple)):
            if depth > limits.depth:
                yield path, TOO_DEEP.format(limits.depth)
                return
            inner = _inner(path, item)
            yield from ((where, trouble) for where, trouble, _ in inner if trouble)
            stack.extend(reversed([(where, entry, depth + 1) for where, _, entry in inner]))
        else:
            yield path, f"a {type(item).__name__} is no plain value; write text or a number"


def _inner(path: str, item: Any) -> list[tuple[str, str | None, Any]]:
    """(path, what is wrong with the key, value) of each entry."""
    if not isinstance(item, Mapping):
        return [(f"{path}[{n}]", None, entry) for n, entry in enumerate(item)]
    entries: list[tuple[str, str | None, Any]] = []
    for key, entry in item.items():
        if not isinstance(key, str):
            trouble = f"the field's name {show(repr(key), quote=False)} is not text; quote it"
            entries.append((path, trouble, entry))
            continue
        where = f"{path}.{show(key, quote=False)}" if path else show(key, quote=False)
        flaw = text_flaw(key)
        entries.append((where, f"its name {flaw}" if flaw else None, entry))
    return entries


def text_flaw(text: str) -> str | None:
    """What keeps a text from being written anywhere as UTF-8 and passed to a process; None for nothing."""
    if "\0" in text:
        return "holds a NUL byte"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds half of a surrogate pair, which is no character"
    return None


def show(text: str, most: int = 60, *, quote: bool = True) -> str:
    """A foreign text in a message: quoted, cut, with everything that is not printable as an escape."""
    cut = text if len(text) <= most else text[: most - 3] + "..."
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in cut
    )
    return repr(cut) if quote else shown
