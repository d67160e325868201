"""The limits of a run that only its follower can keep. Values in, values out.

The v1 operator knows a job's deadline and has no timer for it: it looks when something else happens to the
job. So it is nudged with an annotation, and has a minute to act; if it does not, the run is ended from here.
No operator knows the clocks of phases. A run that can never start (`obstacles`, and a job that Kueue never
admits: `Held.never`) fails once the clock of its phase is over, or `PATIENCE` where it has none; sooner where
some of its members run and hold places that the rest can never join (`HOLDING`), and at the first look where
no node can ever hold it. A job that waits in a queue waits without end, unless `policy.clocks.admitted` sets
a limit; that clock begins anew each time that a queue takes the job back. No clock counts the time on another
cluster (MultiKueue).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from allaboard.backends.kubernetes.observe.scene import PATIENCE
from allaboard.runs.layout import Policy
from allaboard.runs.observation import PHASES, Limit, Observation, Stall, State
from allaboard.runs.status import state_of
from allaboard.text.units import show_seconds

REACTS = 60.0
"""Seconds that an operator which was nudged has to end its job."""


HOLDING = 60.0
"""Seconds for which members of a gang that can never start hold their places: others wait for those."""
CARRIED_OUT = 15.0
"""Seconds after which a stop that is recorded, and whose job does not end, is carried out by the follower."""


def limit_of(
    seen: Observation, policy: Policy, now: float, nudged: float | None, ending: bool = False
) -> Limit | None:
    """The next limit that its follower has to keep; None: there is none. ``nudged``: the time at which the
    operator was nudged; ``ending``: its job is being deleted.
    """
    if state_of(seen).is_final or ending:
        return None
    if seen.stop is not None:
        # The client that asked for it may have died before it was done.
        return Limit(seen.stop.at + CARRIED_OUT - now, "a stop was asked for, but its job has not ended")
    if seen.suspended:
        return None
    return min(_limits(seen, policy, now, nudged), key=lambda limit: limit.left, default=None)


def _limits(seen: Observation, policy: Policy, now: float, nudged: float | None) -> Iterator[Limit]:
    if policy.deadline is not None and seen.started is not None:
        due = seen.started + policy.deadline
        is_told = nudged is not None and nudged >= due
        due = nudged + REACTS if is_told and nudged is not None else due
        reason = f"it was active longer than its deadline of {show_seconds(policy.deadline)}"
        # An operator that cannot be nudged, because its webhook does not answer, does not act either.
        yield Limit(due - now, reason, nudge=not is_told and now < due + REACTS)
    on = phase_of(seen.phases)
    if on is None or seen.elsewhere:
        return
    stuck, spent = seen.obstacle, seen.phases[on] or 0.0
    spent -= seen.queued_before if on == "admitted" else 0.0
    holds = any(member.phase == "running" for member in seen.members)
    if stuck is not None and stuck.never:
        patience = 0.0 if stuck.certain else HOLDING if holds else PATIENCE
        longest = policy.clocks.get(on, patience)
        yield Limit((min(longest, patience) if holds else longest) - spent, stuck.text, code=stuck.code)
        return
    clock = policy.clocks.get(on)
    if clock is None:
        return
    reason = f"its phase {on} took longer than its clock of {show_seconds(clock)}"
    reason += f": {seen.held_by}" if seen.held_by else ""
    reason += "; the script reported no step (allaboard.inside.report)" if on == "first_step" else ""
    yield Limit(clock - spent, reason)


def with_stall(seen: Observation, stall: Stall | None, policy: Policy) -> Observation:
    """The observation with a stall. Of one that is a hang the follower ends the attempt, unless the policy
    only reports it; `policy.attempts` decides whether another follows.
    """
    if stall is None or state_of(seen) is not State.RUNNING:
        return seen
    if not stall.is_hang:
        return replace(seen, stall=stall)
    limit = seen.limit if policy.hang_then == "tell" else Limit(0.0, stall.text, code=stall.code)
    return replace(seen, stall=stall, flags=(*seen.flags, stall.code), limit=limit)


def phase_of(phases: Mapping[str, float | None]) -> str | None:
    """The current phase: the last that has a time."""
    return next((name for name in reversed(PHASES) if phases.get(name) is not None), None)
