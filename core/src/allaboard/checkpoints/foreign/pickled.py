"""Words of a pickle, read without loading it: its opcodes are text to us, and nothing is ever called.

`pickletools.genops` of the standard library reads the opcodes; the strings and numbers among them, in their
order, are enough to find ``'global_step', 4``.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Union

Word = Union[str, int, float, bool, None]  # noqa: UP007  (Python 3.8)
_CONSTANTS: dict[str, Word] = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}
_GETS, _PUTS = ("BINGET", "LONG_BINGET", "GET"), ("BINPUT", "LONG_BINPUT", "PUT")
_NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT")
_MOST_WORDS = 2_000_000
_OTHER = object()


def pickle_words(data: bytes) -> tuple[list[Word], bool]:
    """Strings, numbers, booleans and None of a pickle in their order, and whether it comes to its end; of one
    that is cut or not valid, those before that.
    """
    sequence: list[Word] = []
    try:
        for word in _words(data):
            sequence.append(word)
            if len(sequence) >= _MOST_WORDS:
                return sequence, False
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError):
        return sequence, False
    return sequence, True


def _words(data: bytes) -> Iterator[Word]:
    memo: dict[int, object] = {}
    last: object = _OTHER
    argument: Any
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name == "MEMOIZE":
            memo[len(memo)] = last
            continue
        if name in _PUTS:
            memo[int(argument)] = last
            continue
        if name in _GETS:
            last = memo.get(int(argument), _OTHER)
        elif name in _CONSTANTS:
            last = _CONSTANTS[name]
        elif name in _NUMBERS or "UNICODE" in name:
            last = argument
        else:
            last = _OTHER
            continue
        if last is None or isinstance(last, (str, int, float)):
            yield last


def value_after(sequence: Sequence[Word], key: str) -> Word:
    """The word that follows the first ``key``; None when there is none."""
    return next((after for before, after in pairwise(sequence) if before == key), None)


def count_after(sequence: Sequence[Word], *keys: str) -> int | None:
    """The whole number that follows the first of these keys that has one."""
    values = (value_after(sequence, key) for key in keys)
    return next(
        (v for v in values if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 10**12), None
    )
