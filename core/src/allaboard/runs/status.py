"""State of an observation, by ordered early returns. Conditions are read by type, never by position.

Sources: Training Operator pkg/util/status.go (Succeeded and Failed can both be True: Failed decides;
Restarting can stay beside them; after a resume the last condition is Suspended=False).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from allaboard.errors import ExitCode
from allaboard.runs.observation import PHASES, Observation, State
from allaboard.text.units import rfc3339, show_seconds

TIME_REASONS = frozenset({"DeadlineExceeded", "ClockExceeded"})
WORDS = frozenset({"Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"})
"""Condition types that affect the state."""


def state_of(seen: Observation) -> State:
    """The state of a run. A terminal condition wins. A run without a supervisor or operator is lost. Unknown
    conditions mean `State.UNKNOWN`.
    """
    if seen.stopped:
        return State.STOPPED
    if seen.holds("Failed"):
        return State.TIMED_OUT if _time_state(seen) else State.FAILED
    if seen.holds("Succeeded"):
        return State.SUCCEEDED
    if seen.recorded is not None:
        return State(seen.recorded)
    if seen.deleted:
        return State.STOPPED
    # Before "stopping": without a supervisor or operator a stop is not under way.
    if seen.alive is False:
        return State.LOST
    if seen.stop is not None:
        return State.STOPPING
    # A queue suspends what it holds back, and says why.
    if seen.suspended or (seen.holds("Suspended") and seen.waiting is None):
        return State.SUSPENDED
    # A member that is restarted in place shows in no condition of the job, and its pod stays Running.
    if seen.holds("Restarting") or any(m.reason == "CrashLoopBackOff" for m in seen.members):
        return State.RESTARTING
    if seen.holds("Running"):
        # The operator reports Running as soon as one member runs. While others are unscheduled, no training
        # happens.
        if seen.waiting is not None:
            return State.QUEUED
        return State.RUNNING if seen.obstacle is None else State.STARTING
    # Quota first: while a queue holds the job there are no members, and "no members" below would read as
    # starting.
    if seen.waiting is not None:
        return State.QUEUED
    if seen.conditions and not any(c.type in WORDS for c in seen.conditions):
        return State.UNKNOWN
    if seen.conditions or seen.members or seen.alive:
        return State.STARTING
    return State.UNKNOWN


def _time_state(seen: Observation) -> bool:
    failed = seen.condition("Failed")
    return failed is not None and (
        failed.reason in TIME_REASONS or "longer than specified deadline" in failed.message
    )


def has_released_slots(seen: Observation) -> bool:
    """True if a suspended run has released its slots: the operator reports it suspended, and its members are
    gone. Pending members of a run that never began hold no slots.
    """
    holding = {"running"} if seen.started is None else {"running", "pending"}
    return seen.holds("Suspended") and not any(m.phase in holding for m in seen.members)


DOUBTFUL = "success_doubtful"
"""The flag of a run whose success is doubted, and the code of its diagnosis."""
CLOCK_IDLE = "clock_training_idle"
CLOCK_PATIENCE = 600.0


def idle_clock(phases: Mapping[str, float | None], clocks: Mapping[str, float]) -> str | None:
    """Return why the training clock has not begun although its limit has passed: the script reports no steps.
    The start of such a training is never guessed. ``clocks``: limits of phases in seconds.
    """
    limit, met, waited = clocks.get("training"), phases.get("rendezvous"), phases.get("first_step")
    if limit is None or phases.get("training") is not None or (met is None and waited is None):
        return None
    so_far = (met or 0.0) + (waited or 0.0)
    if so_far < min(limit, CLOCK_PATIENCE):
        return None
    return (
        f"policy.clocks.training ({show_seconds(limit)}) has not begun: no step was reported since its "
        f"members started {show_seconds(so_far)} ago, and the clock counts from the first; report steps "
        "(allaboard.inside.report), or bound the run with policy.deadline"
    )


EXIT_CODES: Mapping[State, ExitCode] = {
    State.SUCCEEDED: ExitCode.OK,
    State.FAILED: ExitCode.FAILED,
    State.LOST: ExitCode.FAILED,
    State.STOPPED: ExitCode.STOPPED,
    State.TIMED_OUT: ExitCode.TIMED_OUT,
}


def summary(seen: Observation, diagnoses: tuple[Any, ...] = ()) -> dict[str, Any]:
    """The JSON object of ``run`` and ``status`` (core/docs/contract.md, Status object)."""
    progress = seen.progress
    return {
        "run": seen.run,
        "name": seen.job,
        "key": seen.key,
        "state": state_of(seen).value,
        "attempt": seen.attempt,
        "restarts": seen.restarts,
        "started": rfc3339(seen.started),
        "finished": rfc3339(seen.finished),
        "phases": {phase: _rounded(seen.phases.get(phase)) for phase in PHASES},
        "members": [
            {
                "group": m.group,
                "index": m.index,
                "rank": m.rank,
                "phase": m.phase,
                "exit_code": m.exit_code,
                "restarts": m.restarts,
                "log": m.log,
            }
            for m in seen.members
        ],
        "conditions": [
            {
                "type": c.type,
                "status": c.status,
                "reason": c.reason,
                "message": c.message,
                "lastTransitionTime": rfc3339(c.since),
            }
            for c in seen.conditions
        ],
        "checkpoints": {"latest": progress.checkpoint, "best": progress.best_checkpoint},
        "metrics": dict(progress.result if progress.result is not None else progress.metrics),
        "progress": {"step": progress.step, "total": progress.total, "lost_steps": progress.lost_steps},
        "flags": flags_of(seen, diagnoses),
        "diagnoses": [d.to_dict() for d in diagnoses],
        "progress_format": progress.format,
        "metrics_from": {
            name: file for name, file in progress.files.items() if name == "step" or progress.result is None
        },
    }


def flags_of(seen: Observation, diagnoses: Iterable[Any] = ()) -> list[str]:
    """The flags of a run: those that its backend saw, and the doubt about its success."""
    doubted = bool(seen.doubts) or any(d.code == DOUBTFUL for d in diagnoses)
    return list(dict.fromkeys((*seen.flags, *((DOUBTFUL,) if doubted else ()))))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
