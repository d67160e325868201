"""Decision to try the whole job again, as another attempt that resumes. The engine restarts single members.

An attempt that was interrupted (a preemption, an eviction, a drain, a node that is gone) is none of the
job's: another one follows and does not count. Only `INTERRUPTIONS` bounds them, for a place that never lets
the job train.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allaboard.diagnosis import Diagnosis
from allaboard.diagnosis.faults import was_interrupted
from allaboard.runs.observation import State
from allaboard.text.units import counted

INTERRUPTIONS = 20
"""Number of interruptions of one generation that do not count. Later ones count as attempts."""
REPEATS = "another attempt would repeat it"
UNKNOWN = "the cause is not known, so another attempt would probably repeat it"
FREE = "it was interrupted, which does not count as an attempt"


@dataclass(frozen=True, slots=True)
class Restart:
    """Launch attempt ``attempt``. ``interrupted``: the one before does not count; ``reason`` for people."""

    attempt: int
    interrupted: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """No further attempt; ``reason`` for people."""

    reason: str


def may_restart(
    attempts: int,
    attempt: int,
    state: State,
    diagnoses: Sequence[Diagnosis],
    *,
    interruptions: int = 0,
    most_interruptions: int = 0,
) -> Restart | Refusal:
    """``attempts``: how many the policy allows in all; ``attempt``: the one that just ended;
    ``interruptions``: how many of the earlier ones do not count; ``most_interruptions``: how many need not.
    """
    if state not in (State.FAILED, State.LOST):
        return Refusal(f"the run {state}")
    interrupted = was_interrupted(diagnoses)
    if interrupted and interruptions < most_interruptions:
        return Restart(attempt + 1, True, FREE)
    used = attempt - interruptions
    first = diagnoses[0] if diagnoses else None
    if state is State.FAILED and (first is None or not first.retryable):
        return Refusal(UNKNOWN if first is None or first.code == "unknown" else REPEATS)
    if used >= attempts:
        beside = f", beside {counted(interruptions, 'interruption')}" if interruptions else ""
        return Refusal(f"{used} of {attempts} attempts used{beside}")
    return Restart(attempt + 1, False, f"{used} of {attempts} attempts used")
