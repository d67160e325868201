"""The limits of a run that only its follower can keep. Values in, values out.

The v1 operator knows a job's deadline and has no timer for it: it looks when something else happens to the
job. So it is nudged with an annotation, and has a minute to act; one that is away
does not, and then the run is ended from here. Clocks of phases are known to no operator at all. What can
never start (`obstacles`, and what Kueue can never admit: `Held.never`) has failed once the clock of its
phase is over, or `PATIENCE` where it has none, and sooner where some of its members run and hold places that
the rest can never join (`HOLDING`), and at the first look where no node can ever hold it. Who only waits in
a queue waits without end, but where `policy.clocks.admitted` says how long; each time that a queue takes a
job back that clock begins anew. No clock counts what another cluster does (MultiKueue).
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
    """The next limit that its follower has to keep; None: there is none. ``nudged``: when the operator was
    told of the deadline; ``ending``: its job is being deleted.
    """
    if state_of(seen).is_final or ending:
        return None
    if seen.stop is not None:
        # The client that asked for it may have died before it was done.
        return Limit(seen.stop.at + CARRIED_OUT - now, "it was told to stop, but its job is not ended")
    if seen.suspended:
        return None
    return min(_limits(seen, policy, now, nudged), key=lambda limit: limit.left, default=None)


def _limits(seen: Observation, policy: Policy, now: float, nudged: float | None) -> Iterator[Limit]:
    if policy.deadline is not None and seen.started is not None:
        due = seen.started + policy.deadline
        is_told = nudged is not None and nudged >= due
        due = nudged + REACTS if is_told and nudged is not None else due
        why = f"it was active longer than its deadline of {show_seconds(policy.deadline)}"
        # An operator that cannot be told, because its webhook does not answer, will not act either.
        yield Limit(due - now, why, nudge=not is_told and now < due + REACTS)
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
    why = f"its phase {on} took longer than its clock of {show_seconds(clock)}"
    why += f": {seen.held_by}" if seen.held_by else ""
    why += "; the script reported no step (allaboard.inside.report)" if on == "first_step" else ""
    yield Limit(clock - spent, why)


def with_stall(seen: Observation, stall: Stall | None, policy: Policy) -> Observation:
    """The same run, which makes no progress. Unless it is only told of, its follower ends the attempt; what
    comes next is for `policy.attempts` to say.
    """
    if stall is None or state_of(seen) is not State.RUNNING:
        return seen
    limit = seen.limit if policy.hang_then == "tell" else Limit(0.0, stall.text, code=stall.code)
    return replace(seen, stall=stall, flags=(*seen.flags, stall.code), limit=limit)


def phase_of(phases: Mapping[str, float | None]) -> str | None:
    """The phase that is on: the last of which something was seen."""
    return next((name for name in reversed(PHASES) if phases.get(name) is not None), None)
