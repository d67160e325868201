"""One file of safetensors, whose header says how long it is."""

from __future__ import annotations

from allaboard.checkpoints.foreign.files import check_safetensors
from allaboard.checkpoints.foreign.unit import Facts, Unit, name_epoch, name_metrics, name_step

FORMAT = "safetensors"


def claims(unit: Unit) -> bool:
    return unit.is_file and unit.base.endswith(".safetensors")


def facts(unit: Unit) -> Facts:
    name = unit.base
    check_safetensors(unit, name)
    return Facts(name_step(name), name_epoch(name), name_metrics(name))
