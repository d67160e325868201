"""The history of a run from the reports of rank 0: curves, checkpoints, and where it resumed. Values in,
values out.

A run that resumed repeats some steps: the later values replace the earlier ones. Memory is bounded, whatever
a script prints: a long curve keeps the lowest and the highest of neighbours, and only the newest
checkpoints are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from allaboard.checkpoints.manifest import STEP_FROM_EPOCH, STEP_FROM_TIME
from allaboard.follow.printed import ProgressReader
from allaboard.follow.printed.counting import SPEED
from allaboard.follow.progress import goes_on, pace
from allaboard.runs.observation import Measured
from allaboard.runs.points import thin_out
from allaboard.text.reportline import HANDED, Report, is_beginning

Points = list[tuple[int, float]]
_NO_CURVES = frozenset({"step", "total", "epoch"})
MOST_POINTS = 20_000
MOST_CURVES = 200
_MOST_IN_ALL = 400_000
"""Points of all curves together: many curves keep fewer points each."""
MOST_SAVED = 1000
_LONGEST_NAME, _LONGEST_TEXT, _LONGEST_URI = 100, 200, 2000


@dataclass(frozen=True, slots=True)
class Saved:
    """One reported checkpoint. ``at``: when it was reported, in epoch seconds; ``size``: in bytes; ``place``:
    the step of the training at which it was saved, None where that is not known: ``step`` may be an epoch or
    a time.
    """

    step: int
    uri: str
    metrics: dict[str, Any]
    best: bool
    at: float | None = None
    size: int | None = None
    place: int | None = None


@dataclass(slots=True)
class History:
    """``curves``: numbers reported with the progress; ``measured``: numbers reported with checkpoints, by
    name. ``resumed``: steps at which the run continued after a restart, and ``resumed_at`` when.
    ``nonfinite``: step and name of values that were not finite. ``clock``: when a step was reported, in epoch
    seconds, as far as known; ``breaks``: steps of the clock after which the run began again; ``gaps``: steps
    after which lines are lost. ``tracked``: the page of the run, by the tracker that the script uses.
    ``format``: whose format the progress was read from, "" for reports of the script's own; ``files``: the
    file of each curve that was read from one; ``ends``: the last step that was reported of each epoch;
    ``pace_from``, ``jumped``: as in a `Progress`.
    """

    curves: dict[str, Points] = field(default_factory=dict)
    measured: dict[str, Points] = field(default_factory=dict)
    saved: list[Saved] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    resumed_at: list[float | None] = field(default_factory=list)
    nonfinite: list[tuple[int, str]] = field(default_factory=list)
    clock: list[tuple[int, float]] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    tracked: dict[str, str] = field(default_factory=dict)
    last_step: int = 0
    format: str = ""
    files: dict[str, str] = field(default_factory=dict)
    ends: dict[float, int] = field(default_factory=dict)
    pace_from: tuple[float, ...] = ()
    jumped: bool = False

    def with_files(self, measured: Measured | None) -> History:
        """The same with the curves of files, whose names the script has neither reported nor printed."""
        if measured is None:
            return self
        more = {name: [*points] for name, points in measured.curves.items() if name not in self.curves}
        bad = [(step, name) for step, name in measured.nonfinite if name not in self.curves]
        return replace(
            self,
            curves={**self.curves, **more},
            nonfinite=[*self.nonfinite, *bad][:MOST_SAVED],
            files={name: measured.files[name] for name in more},
        )

    def add(self, report: Report, time: float | None = None) -> None:
        """Take in one more report. ``time``: of its line, in epoch seconds."""
        fields = report.fields
        step = fields.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            return
        if report.kind == HANDED or (is_beginning(report) and self.last_step):
            self.pace_from, self.jumped = (), True
            return
        if report.kind == "progress":
            if report.printed != self.format:  # numbers of two formats do not mix
                self.curves, self.nonfinite, self.clock, self.breaks, self.gaps = {}, [], [], [], []
                self.ends, self.pace_from = {}, ()
                self.format, self.last_step = report.printed, step
            if step < self.last_step:  # a script that resumes without saying so, or trains once more
                self._back_to(step - 1, time, resumed=not report.again)
                self.pace_from, self.jumped = (), not report.again and goes_on(step)
            if self.jumped:
                fields = self._paced(fields, step, time)
            self.last_step = step
            room = max(0, MOST_SAVED - len(self.nonfinite))
            self.nonfinite += [(step, name) for name in report.nonfinite if len(name) <= _LONGEST_NAME][:room]
            _add_points(self.curves, step, fields, _NO_CURVES)
            self._tick(step, time)
            epoch = fields.get("epoch")
            if _is_number(epoch) and (epoch in self.ends or len(self.ends) < MOST_POINTS):
                self.ends[epoch] = step
        elif report.kind == "resumed":
            self._back_to(step, time)
            self.jumped = False
        elif report.kind == "checkpoint":
            metrics = fields.get("metrics")
            metrics = _short_metrics(metrics) if isinstance(metrics, dict) else {}
            uri = str(fields.get("uri") or "")
            size = fields.get("bytes")
            size = size if isinstance(size, int) and not isinstance(size, bool) and size >= 0 else None
            uri = uri if len(uri) <= _LONGEST_URI else ""
            place = self._place_of(step, fields)
            saved = Saved(step, uri, metrics, bool(fields.get("best")), time, size, place)
            self.saved = [*(s for s in self.saved if s.step != step), saved][-MOST_SAVED:]
            if place is None:
                return
            for points in self.measured.values():
                points[:] = [p for p in points if p[0] != place]
            _add_points(self.measured, place, metrics)
            self._tick(place, time)

    def _paced(self, fields: Mapping[str, Any], step: int, time: float | None) -> dict[str, Any]:
        """The numbers with the speed of the steps that were done in the place of the one that is told."""
        others = {name: value for name, value in fields.items() if name != SPEED}
        if time is None:
            return others
        self.pace_from, speed = pace(self.pace_from, step, time)
        return others if speed is None else {**others, SPEED: speed}

    def _place_of(self, step: int, fields: Mapping[str, Any]) -> int | None:
        """The step of the training at which a checkpoint was saved. One that is dated by its epoch lies at
        the end of that, and where no line told of epochs, the epochs are the steps.
        """
        flags = fields.get("flags")
        flags = flags if isinstance(flags, (list, tuple)) else ()
        if STEP_FROM_TIME in flags:
            return None
        if STEP_FROM_EPOCH in flags and self.ends:
            epoch = fields.get("epoch")
            return self.ends.get(epoch) if _is_number(epoch) else None
        return step

    def _tick(self, step: int, time: float | None) -> None:
        """Times never go back, whatever the clock of a machine did."""
        if time is None or (self.clock and (step <= self.clock[-1][0] or time < self.clock[-1][1])):
            return
        self.clock.append((step, time))
        if len(self.clock) > MOST_POINTS:
            self.clock = thin_out(self.clock, MOST_POINTS // 2)

    def miss(self) -> None:
        """Lines are lost after what was added last."""
        if self.curves and self.last_step not in self.gaps[-1:]:
            self.gaps = [*self.gaps, self.last_step][-MOST_SAVED:]

    def _back_to(self, step: int, time: float | None, *, resumed: bool = True) -> None:
        for curves in (self.curves, self.measured):
            for points in curves.values():
                points[:] = [p for p in points if p[0] <= step]
        self.saved = [s for s in self.saved if s.place is None or s.place <= step]
        self.ends = {epoch: end for epoch, end in self.ends.items() if end <= step}
        self.nonfinite = [n for n in self.nonfinite if n[0] <= step]
        self.clock = [tick for tick in self.clock if tick[0] <= step]
        self.breaks = [at for at in self.breaks if at < step]
        self.gaps = [at for at in self.gaps if at < step]
        if self.clock:
            self.breaks = [*self.breaks, self.clock[-1][0]][-MOST_SAVED:]
        if step > 0 and resumed:
            self.resumed = [*self.resumed, step][-MOST_SAVED:]
            self.resumed_at = [*self.resumed_at, time][-MOST_SAVED:]
        self.last_step = step


def history(lines: Iterable[str]) -> History:
    """The history from lines of rank 0's log, oldest first."""
    made, reader = History(), ProgressReader()
    for line in lines:
        for report in reader.read(line):
            made.add(report)
    return made


def _add_points(
    curves: dict[str, Points], step: int, fields: Any, leave: frozenset[str] = frozenset()
) -> None:
    for name, value in fields.items():
        if name in leave or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if name not in curves and (len(curves) >= MOST_CURVES or len(name) > _LONGEST_NAME):
            continue
        points = curves.setdefault(name, [])
        if points and points[-1][0] == step:  # drawn again, or a try begins where one ended
            points.pop()
        points.append((step, float(value)))
        most = min(MOST_POINTS, _MOST_IN_ALL // len(curves))
        if len(points) > most:
            points[:] = thin_out(points, most // 2)


def _short_metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    """Numbers and short texts, as many as a page shows."""
    short = {
        name: value
        for name, value in metrics.items()
        if len(name) <= _LONGEST_NAME
        and (value is None or isinstance(value, (int, float)) or _is_short(value))
    }
    return dict([*short.items()][:MOST_CURVES])


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT
