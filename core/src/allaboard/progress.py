"""What the report lines of a run add up to: the step, the metrics, the steps lost to restarts, what looks
wrong.

A fold over decoded lines: `after(progress, report, now)`. Nothing is counted twice when a run restarts,
because a line that goes back in steps says how many were lost: those between the last step reported and the
one it resumed from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from allaboard.observation import Progress
from allaboard.reportline import Report

_NOT_METRICS = frozenset({"step", "total"})


def after(progress: Progress, report: Report, now: float) -> Progress:
    """The progress after one more line from the training process."""
    fields = report.fields
    step = _whole(fields.get("step"))
    if report.kind == "progress":
        # Strictly: one step may be reported twice, with a loss and then with an evaluation.
        back = progress.step is not None and step is not None and step < progress.step
        return replace(
            progress,
            step=progress.step if step is None else step,
            total=_whole(fields.get("total")) or progress.total,
            # A script that resumes without saying so is seen by its steps going back.
            lost_steps=progress.lost_steps + ((progress.step or 0) - (step or 0) + 1 if back else 0),
            heartbeat=now,
            metrics={**progress.metrics, **_numbers(fields)},
        )
    if report.kind == "resumed" and step is not None:
        lost = max(0, (progress.step or 0) - step)
        return replace(
            progress, step=step, lost_steps=progress.lost_steps + lost, resumed_from=step, heartbeat=now
        )
    if report.kind == "checkpoint":
        uri = fields.get("uri")
        best = uri if fields.get("best") else progress.best_checkpoint
        return replace(progress, checkpoint=uri or progress.checkpoint, best_checkpoint=best, heartbeat=now)
    if report.kind == "result":
        found = fields.get("metrics")
        return replace(progress, result=found if isinstance(found, Mapping) else None, heartbeat=now)
    return progress


def flags_of(report: Report) -> dict[str, str]:
    """What a line shows to be wrong though the run goes on: flag code -> the words."""
    found: dict[str, str] = {}
    if report.kind == "flag" and isinstance(report.fields.get("code"), str):
        found[report.fields["code"]] = str(report.fields.get("text", ""))
    bad = [name for name in report.nonfinite if "loss" in name.lower()]
    if bad:
        found["nan_loss"] = f"step {report.fields.get('step')}: {', '.join(bad)} is not a finite number"
    return found


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value)


def _numbers(fields: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        name: value
        for name, value in fields.items()
        if name not in _NOT_METRICS
        and (value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)))
    }
