"""A model of XGBoost: JSON or universal binary JSON, which has to close what it opens."""

from __future__ import annotations

import re
from typing import Any

from allaboard.checkpoints.foreign.files import as_mapping
from allaboard.checkpoints.foreign.unit import MOST_READ, Facts, NotKnown, NotWhole, Unit, name_step

FORMAT = "xgboost"
_JSON, _BINARY = b'{"learner"', b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner{"
_WIDTHS = {"Z": 0, "T": 0, "F": 0, "N": 0, "i": 1, "U": 1, "C": 1, "I": 2, "l": 4, "d": 4, "L": 8, "D": 8}
_WHOLE = "iUIlL"
_ENDS = re.compile(rb"\x10iteration_indptr\[(?:\$[A-Za-z])?#L(.{8})", re.DOTALL)
"""Number of ends of rounds in binary JSON: one more than there are rounds."""
_DEEPEST = 64


def claims(unit: Unit) -> bool:
    if not unit.is_file or unit.base.rpartition(".")[2] not in ("json", "ubj", "model"):
        return False
    head = unit.read(unit.base, 0, 64)
    return b"".join(head.split()).startswith(_JSON) or head.startswith(_BINARY)


def facts(unit: Unit) -> Facts:
    name = unit.base
    if unit.size(name) > MOST_READ:
        raise NotKnown(f"{name}: {unit.size(name)} bytes are too many to look at")
    rounds: int | None = None
    if unit.read(name, 0, 2) == b"{L":
        data = unit.read(name)
        if _skip(data, 0, 0) != len(data):
            raise NotWhole(f"{name} does not end where its content does")
        ends = _ENDS.search(data)
        rounds = int.from_bytes(ends[1], "big") - 1 if ends else None
    else:
        model = as_mapping(unit.json(name))
        if "version" not in model:
            raise NotWhole(f"{name} says no version")
        rounds = _rounds(model)
    # The log numbers rounds from 0; names of files by hand may count them.
    return Facts(rounds - 1 if rounds else name_step(name))


def _rounds(model: Any) -> int | None:
    """Boosted rounds."""
    for level in ("learner", "gradient_booster", "model"):
        model = as_mapping(as_mapping(model).get(level))
    ends = model.get("iteration_indptr")
    return len(ends) - 1 if isinstance(ends, list) and ends else None


def _skip(data: bytes, at: int, depth: int) -> int:
    """The end of the value at ``at``. Raises NotWhole, NotKnown."""
    if depth > _DEEPEST:
        raise NotKnown("it is nested too deep to look at")
    kind, at = _take(data, at)
    if kind in _WIDTHS:
        return _within(data, at + _WIDTHS[kind])
    if kind == "S":
        size, at = _whole(data, at)
        return _within(data, at + size)
    if kind == "{":
        while data[at : at + 1] != b"}":
            size, at = _whole(data, at)
            at = _skip(data, _within(data, at + size), depth + 1)
        return at + 1
    if kind == "[":
        return _skip_array(data, at, depth)
    raise NotWhole(f"it has no value at byte {at - 1}")


def _skip_array(data: bytes, at: int, depth: int) -> int:
    item, count = None, None
    if data[at : at + 1] == b"$":
        item, at = _take(data, at + 1)
        if item not in _WIDTHS:
            raise NotKnown(f"it has an array of {item!r}")
    if data[at : at + 1] == b"#":
        count, at = _whole(data, at + 1)
    if item is not None:
        if count is None:
            raise NotWhole("it has an array of a kind without a length")
        return _within(data, at + count * _WIDTHS[item])
    if count is not None:
        if count > len(data):
            raise NotWhole("it has an array that is longer than the file")
        for _ in range(count):
            at = _skip(data, at, depth + 1)
        return at
    while data[at : at + 1] != b"]":
        at = _skip(data, at, depth + 1)
    return at + 1


def _whole(data: bytes, at: int) -> tuple[int, int]:
    kind, at = _take(data, at)
    if kind not in _WHOLE:
        raise NotWhole(f"it has no length at byte {at - 1}")
    end = _within(data, at + _WIDTHS[kind])
    value = int.from_bytes(data[at:end], "big", signed=kind != "U")
    if value < 0:
        raise NotWhole(f"it has a negative length at byte {at}")
    return value, end


def _take(data: bytes, at: int) -> tuple[str, int]:
    _within(data, at + 1)
    return chr(data[at]), at + 1


def _within(data: bytes, at: int) -> int:
    if at > len(data):
        raise NotWhole("it ends within a value")
    return at
