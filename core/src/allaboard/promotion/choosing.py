"""The best of several trainings: which one it is, and why each of the others is not. Values in, values out.

    trained, failed = Candidate("lr=0.1", {"loss": 0.3}), Candidate("lr=1", failure="a member exited with 1")
    choice = best_of([trained, failed], "loss", "min")
    choice.best, choice.reason, choice.standings

The rules:

- Whoever failed is never the best, whatever it reported before.
- A metric that is missing, null, NaN, infinite or no number is never the best. A training that diverged has
  not failed: it counts as one that ran.
- Of equals the first in the order of the candidates is the best.
- With more failures than ``most_failed`` nobody is chosen, as those that ran may be the lesser half.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from allaboard.checkpoints.metrics import check_mode, number, number_trouble, plain
from allaboard.errors import BadInput
from allaboard.text.units import counted
from allaboard.text.untrusted import show

_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Candidate:
    """One training: a name for people, what it reported, and why it failed (empty: it did not)."""

    name: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """A candidate's place. ``rank``: from 1, equal for equal values; None: it cannot be the best, and
    ``trouble`` says why. ``index``: its position among the candidates.
    """

    index: int
    name: str
    rank: int | None
    value: float | None
    trouble: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Choice:
    """``best``: the position of the best candidate, None when nobody is chosen. ``reason``: one sentence.
    ``standings``: best first, then those that cannot be the best in their own order.
    """

    best: int | None
    reason: str
    standings: tuple[Standing, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "reason": self.reason,
            "standings": [standing.to_dict() for standing in self.standings],
        }


def best_of(
    candidates: Sequence[Candidate], metric: str, mode: str, *, most_failed: int | None = None
) -> Choice:
    """Choose by this metric (dotted for one in a mapping); ``mode`` is min or max. ``most_failed``: so many
    may have failed; None: all but one. Raises BadInput for an unknown mode, a negative number, or nobody to
    choose from.
    """
    check_mode(mode)
    if not candidates:
        raise BadInput("there is nothing to choose from; give at least one training")
    if most_failed is not None and most_failed < 0:
        raise BadInput(f"most_failed {most_failed} is negative; give how many trainings may fail, at least 0")
    seen = [_standing(index, candidate, metric) for index, candidate in enumerate(candidates)]
    ranked = _ranked([standing for standing in seen if standing.value is not None], mode)
    standings = (*ranked, *(standing for standing in seen if standing.value is None))
    failed = sum(bool(candidate.failure) for candidate in candidates)
    of_all = f"of {counted(len(candidates), 'training')}"
    if most_failed is not None and failed > most_failed:
        return Choice(None, f"{failed} {of_all} failed, and {most_failed} may", standings)
    if not ranked:
        each = "; ".join(f"{standing.name}: {standing.trouble}" for standing in standings[:3])
        more = f"; and {len(standings) - 3} more" if len(standings) > 3 else ""
        return Choice(
            None, f"none {of_all} has a finite {show(metric, _SHOWN, quote=False)} ({each}{more})", standings
        )
    return Choice(ranked[0].index, _reason(ranked, metric, mode, of_all, len(seen) - len(ranked)), standings)


def _standing(index: int, candidate: Candidate, metric: str) -> Standing:
    name = show(candidate.name, _SHOWN, quote=False)
    if candidate.failure:
        return Standing(index, name, None, None, f"it failed: {show(candidate.failure, _SHOWN, quote=False)}")
    metrics, _ = plain(candidate.metrics)
    value = number(metrics, metric)
    return Standing(index, name, None, value, "" if value is not None else number_trouble(metrics, metric))


def _ranked(standings: Sequence[Standing], mode: str) -> list[Standing]:
    sign = 1 if mode == "min" else -1
    values = [sign * standing.value for standing in standings if standing.value is not None]
    order = sorted(values)
    ranked = [
        replace(standing, rank=1 + bisect_left(order, value))
        for standing, value in zip(standings, values, strict=True)
    ]
    return sorted(ranked, key=lambda standing: (standing.rank, standing.index))


def _reason(ranked: Sequence[Standing], metric: str, mode: str, of_all: str, out: int) -> str:
    best = ranked[0]
    equals = [standing.name for standing in ranked[1:] if standing.rank == best.rank]
    end = "smallest" if mode == "min" else "largest"
    parts = [f"{best.name} has the {end} {show(metric, _SHOWN, quote=False)}, {best.value:.15g}, {of_all}"]
    if equals:
        single = len(equals) == 1
        parts.append(
            f"{equals[0]} has the same, and comes later" if single
            else f"{len(equals)} others have the same, and come later"
        )  # fmt: skip
    if out:
        parts.append(f"{out} cannot be compared")
    return "; ".join(parts)
