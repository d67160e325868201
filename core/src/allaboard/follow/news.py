"""Decision to say again in a log why a run is held: one for the command line, KFP steps and Airflow tasks.

A state is said at once. Within a state a reason is said at once, unless the log has it from the last minute,
and a reason whose numbers alone change (a place in a queue, an amount, who holds the slots) once a minute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from allaboard.runs.observation import Observation

EVERY = 60.0
"""Seconds until a reason is said again."""
MOST_REASONS = 3
"""Reasons that are said within that time; more of them would alternate."""

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_PLACE = re.compile(r", (next in line|[0-9]+ before it)")
_AMOUNT = re.compile(r"it needs [^;:()]*? use(s)?\b")
_WHOM = re.compile(r"it would delay (that one|those)")


@dataclass(frozen=True, slots=True)
class Said:
    """State of a run as a log has said it last. ``reasons``: when each kind of reason was said last."""

    state: str | None = None
    kind: str | None = None
    reason: str | None = None
    at: float = 0.0
    reasons: Mapping[str, float] = field(default_factory=dict)


def news(before: Said, state: str, kind: str | None, sentence: str | None, now: float) -> Said | None:
    """Return what a log has said after it says this; None: it is not said now. ``kind``: of `kind_of_reason`;
    ``now``: seconds of one clock, whichever.
    """

    def is_recent(at: float | None) -> bool:
        # A clock that was set back must not silence a log.
        return at is not None and abs(now - at) < EVERY

    recent = {reason: at for reason, at in before.reasons.items() if is_recent(at)}
    if state != before.state:
        recent = {}
    elif kind != before.kind:
        # That nothing holds it any more is said at once.
        if kind is not None and (kind in recent or len(recent) >= MOST_REASONS):
            return None
    elif sentence == before.reason or is_recent(before.at):
        return None
    return replace(
        before,
        state=state,
        kind=kind,
        reason=sentence,
        at=now,
        reasons=recent if kind is None else {**recent, kind: now},
    )


def kind_of_reason(seen: Observation) -> str | None:
    """The kind of `Observation.held_by`, without what changes while nothing happens: a try, a place in a
    queue, an amount, names of those who hold it.
    """
    if seen.obstacle is not None:
        return f"{seen.obstacle.code}, never" if seen.obstacle.never else seen.obstacle.code
    if seen.waiting is None and seen.held_by is not None and seen.stall is not None:
        return f"{seen.stall.code}, {seen.stall.blame}"
    if seen.waiting is None:
        return None
    plain = _WHOM.sub("it would delay others", _AMOUNT.sub("it needs more", _PLACE.sub("", seen.waiting)))
    return _NUMBER.sub("0", plain)


def reason_of(seen: Observation) -> str | None:
    """The part of `Observation.held_by` that is said again when it changes: the words of a queue. The text of
    an obstacle or a stall changes with each try, and its kind stays.
    """
    return seen.waiting if seen.obstacle is None else None
