"""The number of a step that a pipeline can branch on: ``dsl.If(train(...).outputs["value"] > 0.97)``.

An output parameter of Kubeflow is required, and holds neither null nor NaN. So a metric without a finite
value becomes the worst number, in the direction of ``mode``: no branch for good values is taken by accident.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from allaboard.errors import BadInput
from allaboard.text.names import nearest

WORST = 1e308
"""Stands for "no number"; negative where larger is better. Every JSON reader takes it, unlike infinity."""
_MODES = ("min", "max")


@dataclass(frozen=True, slots=True)
class OutputMetric:
    """Metric that becomes the value. ``metric``: its name, dotted for a metric in a mapping; empty: the only
    number. ``mode``: min or max, which end is better.
    """

    metric: str = ""
    mode: str = "max"

    @classmethod
    def of(cls, metric: str, mode: str, best: Mapping[str, Any] | None = None) -> OutputMetric:
        """``best``: how the job chooses its best checkpoint, the default of both. Raises BadInput."""
        best = best or {}
        if mode and mode not in _MODES:
            raise BadInput(f"mode {mode!r} is not known; write min or max")
        if not metric:
            metric, mode = (
                str(best.get("metric", "")),
                mode or str(best.get("mode", "min" if best else "max")),
            )
        elif not mode and metric == best.get("metric"):
            mode = str(best.get("mode", "min"))
        elif not mode:
            raise BadInput(
                f"metric {metric!r} is given without mode; say mode: max or min, so that a run which does "
                "not report it counts as the worst, not as the best"
            )
        return cls(metric, mode)

    @property
    def worst(self) -> float:
        return WORST if self.mode == "min" else -WORST

    def value(self, *sources: Mapping[str, Any]) -> tuple[float, str]:
        """The number, from the first of ``sources`` that has the metric, and a sentence if there is none.
        Without a metric: the only number of the first source.
        """
        flat = [dict(_leaves(source)) for source in sources]
        if not self.metric:
            numbers = {name: value for name, value in flat[0].items() if _is_finite(value)}
            if len(numbers) == 1:
                return float(next(iter(numbers.values()))), ""
            names = ", ".join(sorted(numbers))
            several = f"several numbers were reported ({names}); name one as metric, and give its mode"
            return self.worst, f"the output value is {self.worst:g}: {several}" if numbers else ""
        value = next((values[self.metric] for values in flat if self.metric in values), None)
        if _is_finite(value):
            return float(value), ""
        known = sorted({name for values in flat for name, value in values.items() if _is_finite(value)})
        near = nearest(self.metric, known)
        hint = f"did you mean {near!r}?" if near else f"reported were: {', '.join(known) or 'none'}"
        trouble = f"no finite number {self.metric!r} was reported ({hint})"
        return self.worst, f"{trouble}; the output value is {self.worst:g}, the worst"


def _leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _is_finite(value: Any) -> TypeGuard[int | float]:
    """Return whether it is a finite number. `math.isfinite` raises for an int that is too large for a
    float.
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -WORST <= value <= WORST
