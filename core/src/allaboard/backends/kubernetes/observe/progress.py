"""Reports of rank 0, as the run record keeps them. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from allaboard.backends.kubernetes.observe.observation import ProgressState
from allaboard.diagnosis.ends import MOST_DOUBTS
from allaboard.follow.progress import MOST_FLAGS, progress_of, thrown_away
from allaboard.follow.run_record import RunRecord
from allaboard.runs.observation import Doubt
from allaboard.text.untrusted import Unreadable, read_value


def to_dict(state: ProgressState) -> dict[str, Any]:
    body = {"progress": asdict(state.progress), "flags": list(state.flags), "first": state.first}
    return {**body, "doubts": [asdict(doubt) for doubt in state.doubts]} if state.doubts else body


def from_dict(data: Mapping[str, Any]) -> ProgressState:
    """The inverse of `to_dict`. Fields of a newer writer and values of the wrong type are left out; empty
    input gives an empty state.
    """
    flags, first = data.get("flags"), data.get("first")
    return ProgressState(
        progress_of(data.get("progress")),
        tuple(flag for flag in flags if isinstance(flag, str))[: 2 * MOST_FLAGS]
        if isinstance(flags, list)
        else (),
        first if isinstance(first, (int, float)) else None,
        tuple(_doubts(data.get("doubts"))),
    )


def _doubts(value: Any) -> Iterator[Doubt]:
    for body in value[:MOST_DOUBTS] if isinstance(value, list) else ():
        with suppress(Unreadable):
            yield read_value(Doubt, body)


def carried(data: Mapping[str, Any], old: RunRecord, new: RunRecord) -> dict[str, Any]:
    """The report with which the next attempt goes on: it counts lost steps from the last step of the attempt
    before, and has no result of its own yet. A new generation starts at zero.
    """
    reported = data.get("progress")
    if not isinstance(reported, Mapping):
        return {}
    if old.generation != new.generation:
        return {"progress": asdict(thrown_away(progress_of(reported), old))}
    left_out = {"result": None, "heartbeat": None, "resumed_from": None, "pace_from": ()}
    return {"progress": {**reported, **left_out}}
