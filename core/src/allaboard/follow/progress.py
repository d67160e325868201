"""The progress of a run from its reports: the step, the metrics, the steps lost to restarts, and flags.

A fold over decoded lines: `after(progress, report, now)`. Nothing is counted twice when a run restarts,
because a line that goes back in steps says how many were lost: those between the last step reported and the
one it resumed from.

Only lines of rank 0 count: any member can print such a line, and the caller selects rank 0's. Memory is
bounded, whatever a script prints and however long it runs.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from allaboard.follow.run_record import RunRecord
from allaboard.runs.observation import Measured, Progress, State
from allaboard.text.reportline import HANDED, MOST_STEPS, OF_OBSERVERS, Report, is_beginning, whole
from allaboard.text.units import from_rfc3339
from allaboard.text.untrusted import show

MOST_METRICS = 200
MOST_FLAGS = 50
MOST_INPUTS = 60
_LONGEST_NAME, _LONGEST_TEXT, _LONGEST_URI = 100, 500, 2000
_NOT_METRICS = frozenset({"step", "total"})
_SPEED, _SPEEDS = "steps_per_second", (1e-6, 1e9)
_PACE_AFTER = 2.0
"""Seconds from which a speed is told that was counted by the times of lines."""
_ALWAYS = frozenset({"nan_loss", "checkpoint_elsewhere", "too_many_metrics"})
"""Flags that are kept however many a script raises."""


def add_report(progress: Progress, report: Report, now: float, own: str | None = None) -> Progress:
    """The progress after one more line of rank 0. ``own``: the folder of the run's checkpoints; a checkpoint
    reported elsewhere is ignored.
    """
    fields = report.fields
    step = whole(fields.get("step"))
    if report.kind == HANDED or (is_beginning(report) and progress.step):
        heartbeat = progress.heartbeat if report.kind == HANDED else now
        return replace(progress, heartbeat=heartbeat, pace_from=(), jumped=True)
    if report.kind == "progress":
        if (progress.format or "") != report.printed:
            progress = _as_printed(progress, report.printed)
        # Strictly less: one step may be reported twice, with a loss and then with an evaluation.
        back = progress.step is not None and step is not None and step < progress.step and not report.again
        jumped = progress.jumped and not report.again
        if back and step is not None:
            jumped = goes_on(step)
        numbers = _read_numbers(fields)
        if jumped:
            numbers.pop(_SPEED, None)
        moved = replace(
            progress,
            step=progress.step if step is None else step,
            total=whole(fields.get("total")) or (None if report.again else progress.total),
            # Steps that go back show that a script resumed without reporting it.
            lost_steps=_lost_steps(progress, (progress.step or 0) - (step or 0) + 1 if back else 0),
            heartbeat=now,
            metrics=_with_metrics(progress.metrics, numbers),
            jumped=jumped,
        )
        is_counted = jumped or (report.printed and _SPEED not in fields)
        if step is None or not is_counted:
            return moved
        return _paced(moved, step, now, back or report.again)
    if report.kind == "resumed" and step is not None:
        lost = _lost_steps(progress, max(0, (progress.step or 0) - step))
        # A script that says so itself measures its speed in the steps that it does.
        return replace(
            progress, step=step, lost_steps=lost, resumed_from=step, heartbeat=now, pace_from=(), jumped=False
        )
    if report.kind == "checkpoint":
        uri = fields.get("uri")
        if not isinstance(uri, str) or own is None or not is_below(uri, own):
            return replace(progress, heartbeat=now)
        best = uri if fields.get("best") else progress.best_checkpoint
        return replace(progress, checkpoint=uri, best_checkpoint=best, heartbeat=now)
    if report.kind == "result":
        metrics = fields.get("metrics")
        return replace(progress, result=metrics if isinstance(metrics, Mapping) else None, heartbeat=now)
    if report.kind == "inputs":
        data = {f"data {uri}": content for uri, content in (fields.get("data") or {}).items()}
        more = {**(fields.get("versions") or {}), **data}
        return replace(progress, inputs=_with_inputs(progress.inputs, more))
    return progress


def _as_printed(progress: Progress, format: str) -> Progress:
    """The progress once another format tells it: steps and numbers of the one before do not mix with it."""
    return replace(progress, format=format or None, step=None, total=None, metrics={}, pace_from=())


def _paced(progress: Progress, step: int, now: float, anew: bool) -> Progress:
    """The progress with its speed since the first step that was read of this process."""
    start, speed = pace(() if anew else progress.pace_from, step, now)
    metrics = {} if speed is None else _read_numbers({_SPEED: speed})
    return replace(progress, pace_from=start, metrics=_with_metrics(progress.metrics, metrics))


def goes_on(step: int) -> bool:
    """True if a process whose first step comes before the last one of its run goes on from a checkpoint;
    False: it begins from scratch.
    """
    return step > 1


def pace(start: tuple[float, ...], step: int, now: float) -> tuple[tuple[float, ...], float | None]:
    """(the step and time from which steps are counted, steps per second since then; None: too few as yet).
    ``start``: as this returned it for the step before, empty for the first one.
    """
    if len(start) != 2 or not start[0] <= step or not start[1] <= now:
        return (float(step), now), None
    steps, seconds = step - start[0], now - start[1]
    return start, steps / seconds if steps > 0 and seconds >= _PACE_AFTER else None


def with_measured(progress: Progress, measured: Measured) -> Progress:
    """The progress with what files say of steps and metrics that its script has not reported or printed."""
    fresh = {name: value for name, value in measured.last.items() if name not in progress.metrics}
    metrics = _with_metrics(progress.metrics, _read_numbers(fresh))
    files = {name: file for name, file in measured.files.items() if name in fresh and name in metrics}
    if progress.step is not None or measured.step is None:
        return replace(progress, metrics=metrics, files=files)
    files = {"step": measured.step_file, **files}
    total = progress.total or measured.total
    return replace(progress, step=measured.step, total=total, metrics=metrics, files=files)


def thrown_away(progress: Progress, record: RunRecord) -> Progress:
    """The progress with which a new generation begins: all steps of one that did not succeed are lost.
    ``record``: of the generation before.
    """
    succeeded = record.outcome is not None and record.outcome.state == State.SUCCEEDED.value
    return Progress(lost_steps=0 if succeeded else _lost_steps(progress, progress.step or 0))


def _lost_steps(progress: Progress, more: int) -> int:
    return min(progress.lost_steps + more, MOST_STEPS)


def flags_of(report: Report, before: Progress = Progress(), own: str | None = None) -> dict[str, str]:  # noqa: B008  (frozen)
    """The flags that a line raises: code -> text. ``before``, ``own``: as for `add_report`."""
    flags: dict[str, str] = {}
    code = report.fields.get("code")
    if report.kind == "flag" and isinstance(code, str) and not OF_OBSERVERS.match(code):
        flags[code] = _shorten(str(report.fields.get("text") or ""))
    bad = [name for name in report.nonfinite if "loss" in name.lower()]
    if bad:
        where = _shorten(f"step {report.fields.get('step')}: {', '.join(bad)}")
        flags["nan_loss"] = f"{where} is not a finite number"
    uri = report.fields.get("uri")
    if report.kind == "checkpoint" and own is not None and isinstance(uri, str) and not is_below(uri, own):
        flags["checkpoint_elsewhere"] = (
            f"a checkpoint was reported at {_shorten(uri)}, which is not below the run's own folder {own}; "
            "it is ignored"
        )
    if report.kind == "progress":
        more = _read_numbers(report.fields)
        if len(before.metrics.keys() | more.keys()) > MOST_METRICS:
            flags["too_many_metrics"] = (
                f"the script reports more than {MOST_METRICS} metrics; the rest is left out"
            )
    return flags


def add_flags(known: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The known flags with the new ones of ``more``. Flags of a script are limited in number."""
    fresh = {code: text for code, text in more.items() if code not in known}
    return fresh if len(known) < MOST_FLAGS else {c: text for c, text in fresh.items() if c in _ALWAYS}


def is_below(uri: str, folder: str) -> bool:
    """True if a checkpoint lies in a run's folder of checkpoints, by comparing the uris. The member makes a
    relative folder (or one below ``~``) absolute; then the end of the path decides.
    """
    place, own = place_of(uri), place_of(folder, trusted=True)
    if place is None or own is None or place[0] != own[0]:
        return False
    path = own[1].rstrip("/") + "/"
    if path.startswith("/") or own[0]:
        return place[1].startswith(path) and len(place[1]) > len(path)
    return f"/{path.removeprefix('~/').rpartition('../')[2]}" in place[1]


def place_of(uri: str, *, trusted: bool = False) -> tuple[str, str] | None:
    """(scheme and bucket, path) of a place; None for one that is not written plainly: steps back, empty
    steps, characters that nobody sees.
    """
    if len(uri) > _LONGEST_URI or not uri.isprintable():
        return None
    scheme, sign, rest = uri.partition("://")
    if not sign:
        scheme, rest = "", uri
        if rest.startswith("file:/"):
            scheme, rest = "file", rest.removeprefix("file:")
    scheme = scheme.lower()
    if scheme == "file":
        scheme, rest = "", _unquoted(rest.removeprefix("localhost"))
    if not trusted and any(part in ("", ".", "..") for part in rest.strip("/").split("/")):
        return None
    if not scheme:
        return "", posixpath.normpath(rest)
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}", "/".join(part for part in path.split("/") if part)


def _unquoted(path: str) -> str:
    """The path of a file URI. Only there a '%' is an escape."""
    plain = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes.fromhex(match[1].decode()), path.encode())
    return plain.decode("utf-8", "replace")


def progress_of(data: Any) -> Progress:
    """The progress in a record of any version. Damaged fields are left out."""
    body = data if isinstance(data, Mapping) else {}
    metrics, result = body.get("metrics"), body.get("result")

    def text(name: str) -> str | None:
        return value if isinstance(value := body.get(name), str) else None

    heartbeat = body.get("heartbeat")
    return Progress(
        step=whole(body.get("step")),
        total=whole(body.get("total")),
        lost_steps=whole(body.get("lost_steps")) or 0,
        heartbeat=heartbeat if isinstance(heartbeat, (int, float)) else None,
        metrics=_with_metrics({}, _read_numbers(metrics)) if isinstance(metrics, Mapping) else {},
        result=dict(result) if isinstance(result, Mapping) else None,
        checkpoint=text("checkpoint"),
        best_checkpoint=text("best_checkpoint"),
        resumed_from=whole(body.get("resumed_from")),
        inputs=_with_inputs({}, inputs) if isinstance(inputs := body.get("inputs"), Mapping) else {},
        longest_pause=_as_seconds(body.get("longest_pause")),
        format=text("format"),
        pace_from=_as_pair(body.get("pace_from")),
        jumped=body.get("jumped") is True,
        expression=text("expression"),
    )


def _as_pair(value: Any) -> tuple[float, ...]:
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    return (
        (_as_seconds(value[0]), float(value[1]))
        if is_pair and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value)
        else ()
    )


def _as_seconds(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e9 else 0.0


def progress_of_trainer(status: Any) -> Progress | None:
    """Progress from the ``trainerStatus`` of a TrainJob, which a process of the job writes (KEP-2779): its
    percentage as steps of 100, its remaining time as their pace, its metrics, the time of writing. None:
    nothing was written.
    """
    if not isinstance(status, Mapping) or not status:
        return None
    percentage = whole(status.get("progressPercentage"))
    step = percentage if percentage is not None and percentage <= 100 else None
    metrics: dict[str, Any] = {}
    for metric in status.get("metrics") or () if isinstance(status.get("metrics"), list) else ():
        if isinstance(metric, Mapping) and isinstance(metric.get("name"), str):
            metrics[metric["name"]] = _as_number(metric.get("value"))
    rest = whole(status.get("estimatedRemainingSeconds"))
    metrics[_SPEED] = (100 - step) / rest if step is not None and rest else None
    return Progress(
        step=step,
        total=None if step is None else 100,
        heartbeat=_as_time(status.get("lastUpdatedTime")),
        metrics=_with_metrics({}, _read_numbers({n: v for n, v in metrics.items() if v is not None})),
    )


def _as_time(text: Any) -> float | None:
    try:
        return from_rfc3339(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _as_number(text: Any) -> float | None:
    """A metric's text; None if JSON has no such number."""
    try:
        value = float(text) if isinstance(text, str) and len(text) <= 40 else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _with_metrics(
    known: Mapping[str, float | None], more: Mapping[str, float | None]
) -> dict[str, float | None]:
    """The metrics with newer values; new names are left out once there are too many."""
    metrics = dict(known)
    for name, value in more.items():
        if name in metrics or len(metrics) < MOST_METRICS:
            metrics[name] = value
    return metrics


def _with_inputs(known: Mapping[str, str], more: Mapping[Any, Any]) -> dict[str, str]:
    """Inputs of a run with newer values; new names are left out once there are too many."""
    inputs = dict(known)
    for name, value in more.items():
        if isinstance(name, str) and isinstance(value, str) and (name in inputs or len(inputs) < MOST_INPUTS):
            inputs[name[:_LONGEST_TEXT]] = value[:_LONGEST_NAME]
    return inputs


def _read_numbers(fields: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        name: value
        for name, value in fields.items()
        if isinstance(name, str)
        and name not in _NOT_METRICS
        and len(name) <= _LONGEST_NAME
        and name.isprintable()
        and (value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)))
        and (name != _SPEED or (value is not None and _SPEEDS[0] <= value <= _SPEEDS[1]))
    }


def _shorten(text: str) -> str:
    return show(text, _LONGEST_TEXT, quote=False)
