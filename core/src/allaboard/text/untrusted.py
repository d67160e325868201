"""Text that a person, a member, another user or another program wrote, read within bounds.

Every JSON text from outside this process passes through `parse_json`, every YAML text through
`allaboard.text.untrusted_yaml.parse_yaml`, and a value that was made in Python through `find_flaws`. All
three hold one set of `Limits`: bytes, depth, number of values (aliases counted each time they are used),
digits of a number. What comes back is plain: ``None``, ``bool``, ``int``, ``float``, ``str``, ``list``,
and ``dict`` with text as keys. Text holds no lone surrogate and no NUL, every number is finite, and no
mapping names a key twice.

A number keeps how it was spelled (`SpelledInt`, `SpelledFloat`) where Python would write it otherwise:
``1.10`` in a command means the text ``1.10``. `spelled` gives that text.

Time and memory grow linearly with the text. Values in, values out; the trouble is one sentence in
`Unreadable`, which the caller turns into its own error and puts the name of the thing before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a text that is read: its size, and that of its values."""

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

ANSWERS = Limits(size=256 * 2**20, depth=200, values=20_000_000)
"""For what an API server answers: the lists of a large cluster, and schemas of custom resources."""


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


def parse_json(
    data: bytes | str,
    limits: Limits = LIMITS,
    *,
    nonfinite: bool = False,
    spelling: bool = True,
    any_text: bool = False,
    unique: bool = True,
) -> Any:
    """The value of a JSON text. ``nonfinite``: take NaN, Infinity and numbers beyond a float as None instead
    of refusing them (for metrics, where a writer in Python leaves them). ``spelling``: whether numbers keep
    theirs, which nobody asks of a record. ``any_text``: take NUL and half surrogate pairs in text, for what
    quotes the output of others. ``unique``: refuse a field that appears twice; without it the last one
    counts, and the reading takes little longer than that of the standard library. Raises `Unreadable`.
    """
    text = decode(data, limits)
    # The decoder of the standard library recurses, and millions of values are small as text and large in
    # memory: what is too deep or too much is refused before it is entered.
    _check_growth(text, limits)
    try:
        value = _decoder(limits, nonfinite, spelling, unique).decode(text)
    except json.JSONDecodeError as error:
        raise Unreadable(f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise Unreadable(TOO_DEEP.format(limits.depth)) from None
    for path, trouble in () if any_text else find_flaws(value, limits):
        raise Unreadable(f"is not valid: {path}: {trouble}" if path else f"is not valid: {trouble}")
    return value


@lru_cache
def _decoder(limits: Limits, nonfinite: bool, spelling: bool, unique: bool) -> json.JSONDecoder:
    def whole(word: str) -> int | float:
        _check_digits(word, limits)
        return spell(SpelledInt(word), word) if spelling else int(word)

    def number(word: str) -> float | None:
        _check_digits(word, limits)
        if math.isfinite(float(word)):
            return spell(SpelledFloat(word), word) if spelling else float(word)
        if not nonfinite:
            raise Unreadable(f"is not valid: the number {show(word)} is too large")
        return None

    def constant(word: str) -> None:
        if not nonfinite:
            raise Unreadable(f"holds {word}, which JSON does not have; write null")

    return json.JSONDecoder(
        object_pairs_hook=_unique if unique else None,
        parse_int=whole,
        parse_float=number,
        parse_constant=constant,
        strict=True,
    )


TOO_DEEP = "is nested more than {} deep"
_NO_MARKS = bytes(set(range(256)) - set(b'"[]{},'))
_AS_BRACES = bytes.maketrans(b"[]", b"{}")


def _check_growth(text: str, limits: Limits) -> None:
    """Refuses what is nested too deep or holds too many values, by the marks outside of its texts alone."""
    # Few brackets in all cannot be deep, few commas cannot part many values: most texts end here.
    if text.count("[") + text.count("{") <= limits.depth and text.count(",") < limits.values:
        return
    data = text.encode()
    # Pairs of backslashes go first, so that what is left before a quote escapes it.
    marks = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
    marks = b"".join(marks.split(b'"')[::2])
    if marks.count(b",") >= limits.values:
        raise Unreadable(f"holds more than {limits.values:,} values")
    # Each round takes away the innermost level, as text that balances has as many levels as rounds.
    marks = marks.translate(_AS_BRACES, b",")
    for _ in range(limits.depth):
        inner, marks = marks, marks.replace(b"{}", b"")
        if len(marks) == len(inner):
            break
    # What never balances is refused by the decoder, which gets at most twice as deep until it sees that.
    if b"{}" in marks or marks.count(b"{") > limits.depth:
        raise Unreadable(TOO_DEEP.format(limits.depth))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Unreadable(f"is not valid: the field {show(key)} appears twice")
            seen.add(key)
    return mapping


def spell(number: SpelledInt | SpelledFloat, word: str) -> int | float:
    """The number; with its spelling where Python would write it otherwise, which is rare."""
    if str(number) == word:
        return plain_number(number)
    number.spelling = word
    return number


def _check_digits(word: str, limits: Limits) -> None:
    if len(word) > limits.digits:
        raise Unreadable(f"is not valid: a number has {len(word)} characters; {limits.digits} are allowed")


# --- values of a known form ---------------------------------------------------------------------------------

T = TypeVar("T")

_EARLIEST, _LATEST = -62_135_424_000.0, 253_402_128_000.0
"""The years 1 and 9999 in epoch seconds, less a day for the zones: no clock shows other times."""
_LARGEST = 2**63
_NOWHERE = object()


def read_value(kind: type[T], data: object) -> T:
    """The dataclass ``kind`` out of plain values, those of its fields included, each of its declared type.
    Fields that it does not have, of a newer writer, are left out. Every number is finite, and none is beyond
    what a time, a step or a count can be. Raises `Unreadable` with the first field that is not so.
    """
    reader: Reader = _reader(kind)  # type: ignore[arg-type]
    return reader(data, "")  # type: ignore[no-any-return]


Reader = Callable[[Any, str], Any]
"""Of a value and its path."""


def _refuse(at: str, kind: str) -> Unreadable:
    return Unreadable(f"holds no {kind} ({at})" if at else f"holds no {kind}")


@lru_cache
def _reader(kind: Any, times: bool = True) -> Reader:
    """The reader of a type: a dataclass, a plain type, or tuples, mappings and unions of these. ``times``:
    whether a float may be one; those of a mapping are metrics.
    """
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        needed = tuple(f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
        return partial(_read_fields, kind, {f.name: hints[f.name] for f in fields(kind) if f.init}, needed)
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        readers = tuple(_reader(member, times) for member in inside if member is not NoneType)
        return partial(_read_union, readers, NoneType in inside)
    if origin is tuple:
        return partial(_read_tuple, _reader(inside[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return partial(_read_mapping, _reader(inside[1], False))
    return partial(_read_plain, kind, times) if kind in (str, bool, int, float) else lambda value, _: value


def _read_fields(kind: Any, hints: Mapping[str, Any], needed: tuple[str, ...], data: Any, at: str) -> Any:
    if not isinstance(data, Mapping):
        raise _refuse(at, "mapping")
    fields = {}
    for name, hint in hints.items():
        value = data.get(name, _NOWHERE)
        if value is not _NOWHERE:
            fields[name] = _reader(hint)(value, f"{at}.{name}" if at else name)
        elif name in needed:
            raise _refuse(at, f"field {name}")
    return kind(**fields)


def _read_union(readers: tuple[Reader, ...], optional: bool, value: Any, at: str) -> Any:
    if value is None and optional:
        return None
    for reader in readers[:-1]:
        try:
            return reader(value, at)
        except Unreadable:
            continue
    return readers[-1](value, at)


def _read_tuple(reader: Reader, value: Any, at: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _refuse(at, "list")
    return tuple(reader(item, f"{at}[{n}]") for n, item in enumerate(value))


def _read_mapping(reader: Reader, value: Any, at: str) -> Any:
    if not isinstance(value, Mapping):
        raise _refuse(at, "mapping")
    return {name: reader(item, f"{at}.{show(str(name), 40, quote=False)}") for name, item in value.items()}


def _read_plain(kind: type, times: bool, value: Any, at: str) -> Any:
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if _EARLIEST < value < _LATEST or (not times and abs(value) < math.inf):
            return value
    elif type(value) is kind and not (type(value) is int and abs(value) >= _LARGEST):
        return value
    raise _refuse(at, {str: "text", bool: "true or false"}.get(kind, "number that can be one"))


# --- values -----------------------------------------------------------------------------------------------


def decode(data: bytes | str, limits: Limits = LIMITS) -> str:
    """The text of some bytes, UTF-8 with or without a byte order mark. Raises `Unreadable`."""
    if isinstance(data, str) and len(data) <= limits.size:
        try:
            data = data.encode()
        except UnicodeEncodeError:
            raise Unreadable("holds half of a surrogate pair, which is not a character") from None
    if isinstance(data, str) or len(data) > limits.size:
        raise Unreadable(f"has more than the {limits.size:,} bytes that are allowed")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not UTF-8 text (byte {error.start})") from None
    return text[1:] if text.startswith("\ufeff") else text


def find_flaws(value: Any, limits: Limits = LIMITS) -> Iterator[tuple[str, str]]:
    """(path, trouble) of everything in a value that no text of JSON could hold or that exceeds the limits, in
    order; nothing for a plain one. For values that were made in Python (a job in a DAG file).

    It stops after the first flaw of depth or number, never recurses, and never enters what holds itself.
    """
    for path, trouble, _ in _walk(value, limits, _leaf_flaw):
        yield path, trouble


def size_flaw(value: Any, limits: Limits = LIMITS) -> tuple[str, str] | None:
    """(path, trouble) of what is too deep or too much, or holds itself: the flaws that keep a value from
    being copied or printed. None for a value that may hold other ones.
    """
    flaw = _walk(value, limits, _digits_flaw)
    return next(((path, trouble) for path, trouble, of in flaw if of != "key"), None)


def _walk(
    value: Any, limits: Limits, leaf_flaw: Callable[[Any, Limits], str | None]
) -> Iterator[tuple[str, str, str]]:
    """(path, trouble, of what: key, leaf or size). A path is put together for a flaw alone."""
    count = 0
    names: list[str] = []
    open_: list[Iterator[tuple[str, str | None, Any]]] = [iter([("", None, value)])]
    while open_:
        step = next(open_[-1], None)
        if step is None:
            open_.pop()
            if names:
                names.pop()
            continue
        name, trouble, item = step
        count += 1
        if trouble is not None:
            yield _joined([*names, name]), trouble, "key"
        if count > limits.values:
            yield _joined([*names, name]), f"holds more than {limits.values:,} values", "size"
            return
        if isinstance(item, (Mapping, list, tuple)):
            if len(open_) > limits.depth:
                yield _joined([*names, name]), TOO_DEEP.format(limits.depth), "size"
                return
            open_.append(_inner(item))
            names.append(name)
        elif (flaw := leaf_flaw(item, limits)) is not None:
            yield _joined([*names, name]), flaw, "leaf"


def _inner(item: Any) -> Iterator[tuple[str, str | None, Any]]:
    """(step of the path, what is wrong with the key, value) of each entry."""
    if not isinstance(item, Mapping):
        yield from ((f"[{n}]", None, entry) for n, entry in enumerate(item))
        return
    for key, entry in item.items():
        if not isinstance(key, str):
            yield "", f"the field's name {show(_shown(key), quote=False)} is not text; quote it", entry
            continue
        flaw = text_flaw(key)
        yield key, f"its name {flaw}" if flaw else None, entry


def _joined(names: list[str]) -> str:
    path = ""
    for name in names:
        step = show(name, quote=False)
        path += step if not path or not step or step.startswith("[") else f".{step}"
    return path


def _leaf_flaw(item: Any, limits: Limits) -> str | None:
    if isinstance(item, str):
        return text_flaw(item)
    if item is None or isinstance(item, bool):
        return None
    if isinstance(item, int):
        return _digits_flaw(item, limits)
    if isinstance(item, float):
        return None if math.isfinite(item) else f"{float(item)!r} is not a finite number"
    return f"a {type(item).__name__} is not a plain value; write text or a number"


def _digits_flaw(item: Any, limits: Limits) -> str | None:
    if isinstance(item, int) and item.bit_length() > limits.digits * 3.33:
        return f"a number has more than {limits.digits} digits"
    return None


def _shown(value: Any) -> str:
    """Any value as text; one whose own text cannot be had by its type."""
    try:
        return repr(value)
    except Exception:  # a foreign __repr__, or a number with too many digits
        return f"a {type(value).__name__}"


def text_flaw(text: str) -> str | None:
    """Return why a text cannot be written as UTF-8 or passed to a process; None: it can."""
    if "\0" in text:
        return "holds a NUL byte"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds half of a surrogate pair, which is not a character"
    return None


def show(text: str, most: int = 60, *, quote: bool = True) -> str:
    """A foreign text in a message: quoted, cut, with everything that is not printable as an escape."""
    cut = text if len(text) <= most else text[: most - 3] + "..."
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in cut
    )
    return repr(cut) if quote else shown
