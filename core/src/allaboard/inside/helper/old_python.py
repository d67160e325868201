"""Additions to the standard library of Python 3.8 to 3.10 that modules of allaboard import: for a process of
the helper's own, in which nothing else runs.

Syntax and methods of built-in types cannot be put anywhere: modules that come with the helper do without what
is newer than Python 3.8.
"""

# mypy: disable-error-code="assignment, misc, method-assign, attr-defined, return-value"
# ruff: noqa: B905, PTH115, RUF007, UP017, UP042  (an old Python)

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import itertools
import os
import pathlib
import re
import types
from functools import partial, wraps

TYPE_CHECKING = False  # slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

_POSSESSIVE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|([*+?}])\+", re.DOTALL)
"""An escape, a set, or a repetition that gives nothing back, which is Python 3.11's."""


class _StrEnum(str, enum.Enum):
    def __str__(self) -> str:
        return str(self.value)


class _NoUnion:
    """Type of unions as ``int | None`` makes them: no value is of it."""


def _pairwise(items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    listed = list(items)
    return zip(listed, listed[1:])


def _without_slots(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def dataclass(cls: type | None = None, **options: Any) -> Any:
        options.pop("slots", None)
        return partial(plain, **options) if cls is None else plain(cls, **options)

    return dataclass


def without_possessive(pattern: str | bytes) -> str | bytes:
    """An expression that finds the same, and may try longer."""
    if isinstance(pattern, bytes):
        return str(without_possessive(pattern.decode("latin-1"))).encode("latin-1")
    return _POSSESSIVE.sub(lambda match: match[1] or match[0], pattern)


def _with_possessive(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def taking(pattern: Any, *rest: Any, **options: Any) -> Any:
        is_text = isinstance(pattern, (str, bytes))
        return plain(without_possessive(pattern) if is_text else pattern, *rest, **options)

    return taking


def complete() -> None:
    """Put there what is missing."""
    for name in ("Callable", "Collection", "Iterable", "Iterator", "Mapping", "Sequence"):
        kind = getattr(collections.abc, name)
        if not hasattr(kind, "__class_getitem__"):
            kind.__class_getitem__ = classmethod(lambda cls, item: cls)
    if not hasattr(pathlib.PurePath, "is_relative_to"):
        pathlib.PurePath.is_relative_to = lambda path, other: path == other or other in path.parents
        pathlib.Path.readlink = lambda path: pathlib.Path(os.readlink(path))
    if not hasattr(types, "NoneType"):
        types.NoneType, types.UnionType = type(None), _NoUnion
        itertools.pairwise = _pairwise
        dataclasses.dataclass = _without_slots(dataclasses.dataclass)
    if not hasattr(enum, "StrEnum"):
        enum.StrEnum = _StrEnum
        datetime.UTC = datetime.timezone.utc
        for name in (
            "compile",
            "findall",
            "finditer",
            "fullmatch",
            "match",
            "search",
            "split",
            "sub",
            "subn",
        ):
            setattr(re, name, _with_possessive(getattr(re, name)))
