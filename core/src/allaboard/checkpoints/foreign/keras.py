"""A model of Keras: a ``.keras`` archive, whose directory stands at its end, or HDF5."""

from __future__ import annotations

from allaboard.checkpoints.foreign.files import check_hdf5, open_archive
from allaboard.checkpoints.foreign.unit import Facts, NotWhole, Unit, name_epoch, name_metrics, name_step

FORMAT = "keras"
BACKUP, METADATA = "latest.weights.h5", "training_metadata.json"
"""The two files of `BackupAndRestore`."""
_MEMBERS = ("metadata.json", "config.json", "model.weights.h5")


def claims(unit: Unit) -> bool:
    return unit.is_file and unit.base.rpartition(".")[2] in ("keras", "h5", "hdf5")


def facts(unit: Unit) -> Facts:
    if unit.base.endswith(".keras"):
        members = open_archive(unit, unit.base).namelist()
        missing = [name for name in _MEMBERS if name not in members]
        if missing:
            raise NotWhole(f"{missing[0]} is missing in {unit.base}")
    else:
        check_hdf5(unit, unit.base)
    name = unit.base
    return Facts(name_step(name), name_epoch(name), name_metrics(name))
