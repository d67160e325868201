"""Readers of JSON that anybody may have written. A value of the wrong kind is left out: nothing here raises.
Values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from allaboard.gangs.requests import amount
from allaboard.text.units import from_rfc3339

Json = Mapping[str, Any]
LONGEST = 4096
"""Characters of a text that are kept."""
MOST_ENTRIES = 600
"""Entries of a mapping that are kept."""
MOST_ITEMS = 2000
"""Objects of a list that are looked at."""
_NOTHING: Json = {}


def dicts(value: Any, most: int = MOST_ITEMS) -> list[Json]:
    """The mappings of a list, or of a List object."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = value.get("items")
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return []
    return [item for item in value[:most] if type(item) is dict or isinstance(item, Mapping)]


def scalars(value: Any) -> tuple[str, ...]:
    """The scalars of a list as text."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return ()
    return tuple(as_text(item) for item in value[:MOST_ITEMS] if is_scalar(item))


def mapping(value: Any) -> Json:
    """A mapping; an empty one in the place of anything else."""
    return value if type(value) is dict or isinstance(value, Mapping) else _NOTHING


def at(value: Any, *path: str) -> Any:
    """The value at a path of mappings; None where it is not there."""
    for key in path:
        if type(value) is not dict and not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def text(value: Any) -> str:
    """A text, shortened; empty in the place of anything else."""
    return value[:LONGEST] if isinstance(value, str) else ""


def whole(value: Any) -> int | None:
    """A whole number of 32 bits; None in the place of anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31 else None


def moment(value: Any) -> float | None:
    """Epoch seconds of an RFC 3339 time; None in the place of anything else."""
    if not isinstance(value, str):
        return None
    try:
        return from_rfc3339(value)
    except (ValueError, OverflowError):
        return None


def texts(value: Any) -> dict[str, str]:
    """The scalars of a mapping as text."""
    if not isinstance(value, Mapping):
        return {}
    pairs = list(value.items())[:MOST_ENTRIES]
    return {str(k)[:300]: as_text(v) for k, v in pairs if is_scalar(v)}


def is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def as_text(value: Any) -> str:
    """A scalar as text, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) > 1 << 63:
        return ""
    return str(value)[:LONGEST]


def quantity(value: Any) -> Decimal | None:
    """An amount of a resource; None in the place of anything else."""
    try:
        return amount(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None
