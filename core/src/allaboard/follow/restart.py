"""Whether the whole job is tried again, as another attempt that resumes. The engine restarts
single members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allaboard.diagnosis import Diagnosis
from allaboard.observation import State

REPEATS = "another attempt would repeat it"


@dataclass(frozen=True, slots=True)
class Restart:
    """Launch attempt ``attempt``."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """No further attempt; ``reason`` for people."""

    reason: str


def may_restart(
    attempts: int, attempt: int, state: State, diagnoses: Sequence[Diagnosis]
) -> Restart | Refusal:
    """``attempts``: how many the policy allows in all; ``attempt``: the one that just ended."""
    if state not in (State.FAILED, State.LOST):
        return Refusal(f"the run {state}")
    if attempt >= attempts:
        return Refusal(f"{attempt} of {attempts} attempts used")
    first = diagnoses[0] if diagnoses else None
    if state is State.FAILED and (first is None or not first.retryable):
        cause = first.summary if first else "the cause is not known"
        return Refusal(f"{REPEATS}: {cause}")
    return Restart(attempt + 1)
