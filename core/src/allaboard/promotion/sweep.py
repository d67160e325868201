"""The best of a sweep's runs. Values in, values out.

A run takes part with the finite number that it reported last under the metric's name (``val.loss`` finds a
nested one). A number that is missing, null, NaN or infinite never wins. Of equals the first one wins: of a
grid, the one that stands first in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allaboard.checkpoints.metrics import best_of, find, number
from allaboard.text.untrusted import show

Result = Mapping[str, Any]
"""``allaboard status --json`` of a run."""
_LISTED = 50


@dataclass(frozen=True, slots=True)
class Pick:
    """``ranking``: the results that take part, best first; ``left_out``: a sentence for each other one."""

    metric: str
    mode: str
    ranking: tuple[Result, ...]
    left_out: tuple[str, ...]

    @property
    def best(self) -> Result | None:
        return self.ranking[0] if self.ranking else None

    def to_dict(self) -> dict[str, Any]:
        """The choice as plain JSON, with the first runs of the ranking."""
        return {
            "metric": self.metric,
            "mode": self.mode,
            "runs": len(self.ranking),
            "ranking": [
                {"run": result.get("run"), "value": number(_metrics(result), self.metric)}
                for result in self.ranking[:_LISTED]
            ],
            "left_out": list(self.left_out[:_LISTED]),
        }


def pick_best(results: Sequence[Result], metric: str, mode: str) -> Pick:
    """Rank the results by a metric; ``mode`` is min or max. Raises BadInput for another mode."""
    # `best_of` puts the later of equals first.
    ranking = best_of(reversed(results), _metrics, metric, mode)
    left_out = tuple(
        _why_left_out(result, metric) for result in results if number(_metrics(result), metric) is None
    )
    return Pick(metric, mode, tuple(ranking), left_out)


def _metrics(result: Result) -> Mapping[str, Any]:
    metrics = result.get("metrics")
    return metrics if isinstance(metrics, Mapping) else {}


def _why_left_out(result: Result, metric: str) -> str:
    absent = object()
    value = find(_metrics(result), metric, absent)
    if value is absent:
        known = ", ".join(sorted(map(str, _metrics(result)))[:10]) or "none"
        reason = f"reported no {show(metric)}; its metrics: {known}"
    else:
        reason = f"{show(metric)} is {'no finite number' if value is None else show(str(value))}"
    return f"run {result.get('run')}: {reason}"
