"""A model of XGBoost: JSON or universal binary JSON, which has to close what it opens."""

from __future__ import annotations

from allaboard.checkpoints.foreign.files import open_file
from allaboard.checkpoints.foreign.unit import Facts, NotWhole, Unit, name_step
from allaboard.checkpoints.foreign.walking import walk_binary, walk_json

FORMAT = "xgboost"
_JSON, _BINARY = b'{"learner"', b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner{"
_ENDS = "iteration_indptr"
"""The list of the ends of rounds: one more than there are rounds."""


def claims(unit: Unit) -> bool:
    if not unit.is_file or unit.base.rpartition(".")[2] not in ("json", "ubj", "model"):
        return False
    head = unit.read(unit.base, 0, 64)
    return b"".join(head.split()).startswith(_JSON) or head.startswith(_BINARY)


def facts(unit: Unit) -> Facts:
    name = unit.base
    is_binary = unit.read(name, 0, 2) == b"{L"
    with open_file(unit, name) as file:
        walked = walk_binary(file, unit.size(name), _ENDS) if is_binary else walk_json(file, _ENDS)
    if "version" not in walked.keys:
        raise NotWhole(f"{name} says no version")
    # The log numbers rounds from 0; names of files by hand may count them.
    return Facts(walked.items - 2 if walked.items and walked.items > 1 else name_step(name))
