"""What rank 0 reported, as the run record keeps it. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from allaboard.backends.kubernetes.reading import Told
from allaboard.observation import Progress


def to_dict(told: Told) -> dict[str, Any]:
    return {"progress": asdict(told.progress), "flags": list(told.flags), "first": told.first}


def from_dict(data: Mapping[str, Any]) -> Told:
    """The inverse of `to_dict`; fields of a newer writer are left out. Of nothing, nothing is told."""
    said = {k: v for k, v in data.get("progress", {}).items() if k in Progress.__dataclass_fields__}
    return Told(Progress(**said), tuple(data.get("flags", ())), data.get("first"))


def carried(data: Mapping[str, Any]) -> dict[str, Any]:
    """The report with which the next attempt goes on: it counts lost steps from where the one before stopped,
    and has no result of its own yet.
    """
    said = data.get("progress")
    return {"progress": {**said, "result": None, "heartbeat": None, "resumed_from": None}} if said else {}
