"""The one number of a step that a pipeline can branch on: ``dsl.If(train(...).outputs["value"] > 0.97)``.

An output of Kubeflow must be there, and holds neither nothing nor NaN. So a metric that was not told, or was
no finite number, becomes the worst there is, in the direction that the author says: a branch for what is good
is not taken by accident.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from allaboard.errors import BadInput
from allaboard.names import nearest

WORST = 1e308
"""Stands for "no number": negative where larger is better. Any JSON reader takes it, as no infinity."""
_MODES = ("min", "max")


@dataclass(frozen=True, slots=True)
class Wanted:
    """``metric``: its name, dotted for one in a mapping; empty: the only number there is. ``mode``: which end
    of it is better.
    """

    metric: str = ""
    mode: str = "max"

    @classmethod
    def of(cls, metric: str, mode: str, best: Mapping[str, Any] | None = None) -> Wanted:
        """``best``: how the job chooses its best checkpoint, for what is not said. Raises BadInput."""
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
                "not tell it counts as the worst, not as the best"
            )
        return cls(metric, mode)

    @property
    def worst(self) -> float:
        return WORST if self.mode == "min" else -WORST

    def value(self, *sources: Mapping[str, Any]) -> tuple[float, str]:
        """The number, from the first of ``sources`` that has the metric, and what people should know if it is
        none. Without a metric: the only number of the first.
        """
        told = [dict(_leaves(source)) for source in sources]
        if not self.metric:
            numbers = {name: value for name, value in told[0].items() if _is_finite(value)}
            if len(numbers) == 1:
                return float(next(iter(numbers.values()))), ""
            several = (
                f"several numbers were told ({', '.join(sorted(numbers))}); name one as metric, and its mode"
            )
            return self.worst, f"the output value is {self.worst:g}: {several}" if numbers else ""
        found = next((values[self.metric] for values in told if self.metric in values), None)
        if _is_finite(found):
            return float(found), ""
        known = sorted({name for values in told for name, value in values.items() if _is_finite(value)})
        near = nearest(self.metric, known)
        hint = f"did you mean {near!r}?" if near else f"told were: {', '.join(known) or 'none'}"
        trouble = f"no finite number {self.metric!r} was told ({hint})"
        return self.worst, f"{trouble}; the output value is {self.worst:g}, the worst"


def _leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _is_finite(value: Any) -> TypeGuard[int | float]:
    """Also of an int too large for a float, of which `math.isfinite` raises."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -WORST <= value <= WORST
