"""A model of LightGBM: text that says how long each tree is, and ends with its parameters."""

from __future__ import annotations

import re

from allaboard.checkpoints.foreign.unit import MOST_READ, Facts, NotKnown, NotWhole, Unit, name_step

FORMAT = "lightgbm"
_BEGIN = b"tree\nversion="
_SIZES = re.compile(rb"^tree_sizes=([\d ]*)$", re.MULTILINE)
_END = re.compile(rb"^end of parameters\n\npandas_categorical:.*\n\Z", re.MULTILINE)
_HEAD, _TAIL = 2**20, 2**20
_MOST_DIGITS = 18


def claims(unit: Unit) -> bool:
    return (
        unit.is_file
        and unit.base.endswith((".txt", ".model", ".lgb"))
        and unit.read(unit.base, 0, len(_BEGIN)) == _BEGIN
    )


def facts(unit: Unit) -> Facts:
    name, size = unit.base, unit.size(unit.base)
    head = unit.read(name, 0, min(_HEAD, MOST_READ))
    sizes = _SIZES.search(head)
    if sizes is None:
        if size > _HEAD:
            raise NotKnown(f"{name} has a header that is too long to look at")
        raise NotWhole(f"{name} ends within its header")
    lengths = sizes[1].split()
    if any(len(length) > _MOST_DIGITS for length in lengths) or sum(map(int, lengths)) > size:
        raise NotWhole(f"{name} has trees that are longer than the file")
    trees = [int(length) for length in lengths]
    start = head.find(b"Tree=0\n", sizes.end())
    if start >= 0 and unit.read(name, start + sum(trees), 12) != b"end of trees":
        raise NotWhole(f"{name} does not have its trees where its header says")
    tail = unit.read(name, max(0, size - _TAIL), _TAIL)
    if not _END.search(tail):
        raise NotWhole(f"{name} ends before its parameters do")
    step = name_step(name)
    return Facts(step if step is not None else len(trees))
