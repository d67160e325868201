"""What a run told over its time, from the lines of rank 0: curves, checkpoints, where it resumed. Values
in, values out.

A run that resumed has walked some steps twice; the second walk is the one that counts, and the first is
taken back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from allaboard.reportline import Report, decode

Points = list[tuple[int, float]]
_NO_CURVES = frozenset({"step", "total"})


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint, as it was told."""

    step: int
    uri: str
    metrics: dict[str, Any]
    best: bool


@dataclass(slots=True)
class History:
    """``curves``: numbers that came with the progress; ``measured``: numbers that came with checkpoints, by
    name. ``resumed``: steps at which the run went on after a restart. ``nonfinite``: step and name of what
    was no number.
    """

    curves: dict[str, Points] = field(default_factory=dict)
    measured: dict[str, Points] = field(default_factory=dict)
    saved: list[Saved] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    nonfinite: list[tuple[int, str]] = field(default_factory=list)
    last_step: int = 0

    def add(self, report: Report) -> None:
        fields = report.fields
        step = fields.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            return
        if report.kind == "progress":
            if step < self.last_step:  # a script that resumes without saying so
                self._back_to(step - 1)
            self.last_step = step
            self.nonfinite += [(step, name) for name in report.nonfinite]
            _take(self.curves, step, fields, _NO_CURVES)
        elif report.kind == "resumed":
            self._back_to(step)
        elif report.kind == "checkpoint":
            metrics = fields.get("metrics")
            metrics = dict(metrics) if isinstance(metrics, dict) else {}
            self.saved = [s for s in self.saved if s.step != step]
            self.saved.append(Saved(step, str(fields.get("uri") or ""), metrics, bool(fields.get("best"))))
            for points in self.measured.values():
                points[:] = [p for p in points if p[0] != step]
            _take(self.measured, step, metrics)

    def _back_to(self, step: int) -> None:
        for curves in (self.curves, self.measured):
            for points in curves.values():
                points[:] = [p for p in points if p[0] <= step]
        self.saved = [s for s in self.saved if s.step <= step]
        self.nonfinite = [n for n in self.nonfinite if n[0] <= step]
        if step > 0:
            self.resumed.append(step)
        self.last_step = step


def history(lines: Iterable[str]) -> History:
    """The history that these lines of rank 0's log tell, oldest first."""
    made = History()
    for line in lines:
        report = decode(line)
        if report is not None:
            made.add(report)
    return made


def _take(curves: dict[str, Points], step: int, fields: Any, leave: frozenset[str] = frozenset()) -> None:
    for name, value in fields.items():
        if name not in leave and isinstance(value, (int, float)) and not isinstance(value, bool):
            curves.setdefault(name, []).append((step, float(value)))
