"""Detection of a run that makes no progress: it is silent for longer than its policy, or its own history,
allows.

A fold over moments: `Movement.moved` when a line, a step or a checkpoint came, `is_overdue` asks. What a
silent run waits for is read from the stacks of its ranks. Unless its policy names a time, one whose ranks all
compute is not called hung, and ranks that wait for one that computes are told to wait: an evaluation and an
endless loop look alike.

Before the first sign of progress silence alone is no hang: a gang compiles, loads and downloads. Then only
several looks that show ranks which wait for one another, while none of them moves, are one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from allaboard.diagnosis.stacks import (
    COMPUTES,
    HangCause,
    ProcessLook,
    cause_of_hang,
    hang_over,
    positions,
)
from allaboard.runs.observation import RANKS_WAIT, Stall
from allaboard.text.units import rfc3339

ROUNDS = 3
"""Looks that must show the same before a run that has never shown progress is called hung."""
FLOOR = 600.0
FACTOR = 3.0
"""Without a time in its policy a run may be silent for this many seconds, or so many times as long as it, or
the last good run of its job, ever was between two signs of progress, whichever is longer.
"""


_NOISE = re.compile(
    r"^\W*(rank\d+\W+)?W\d{4} |^\s+warnings?\.warn|\bwarn(ing)?\b|\w+Warning\b|\bNCCL (INFO|WARN)\b|"
    r"^\W*(W\d|\*{5})|OMP_NUM_THREADS|\bGloo\b",
    re.IGNORECASE,
)
_STEP = re.compile(r"\b(step|epoch|iter(ation)?|batch)\b\W{0,3}\d", re.IGNORECASE)


def is_sign(line: str) -> bool:
    """True if a line is a sign of progress: anything but the warnings of libraries."""
    text = line.strip()[:1000]
    return bool(text) and (_STEP.search(text) is not None or _NOISE.search(text) is None)


@dataclass(frozen=True, slots=True)
class Movement:
    """Signs of progress so far. ``since``: the last one, or when its members began; ``longest``: the longest
    time between two; ``has_begun``: there was one at all; ``allowed``: the longest time between two of the
    last good run of this job, 0 where that is not known.
    """

    since: float
    longest: float = 0.0
    has_begun: bool = False
    allowed: float = 0.0

    def moved(self, now: float) -> Movement:
        longest = max(self.longest, now - self.since) if self.has_begun else self.longest
        return replace(self, since=now, longest=longest, has_begun=True)

    def started_again(self, now: float) -> Movement:
        """Its members start, or do not run: what it wrote before says nothing of them."""
        return replace(self, since=now, has_begun=False)

    def allowing(self, seconds: float) -> Movement:
        """The last good run of this job was silent for so long."""
        return replace(self, allowed=seconds)

    def paused(self, seconds: float) -> Movement:
        """Nobody looked for so long, as while the machine slept."""
        return replace(self, since=self.since + seconds)


def patience(after: float | None, movement: Movement) -> float:
    """Seconds that a run may be silent. ``after``: what its policy says, None: by its own history."""
    return after if after is not None else max(FLOOR, FACTOR * max(movement.longest, movement.allowed))


def is_overdue(after: float | None, movement: Movement, now: float) -> bool:
    return movement.has_begun and now - movement.since >= patience(after, movement)


def is_late_from_the_start(after: float | None, movement: Movement, now: float) -> bool:
    """True if all members run, and no sign of progress has come for as long as the run may be silent."""
    return not movement.has_begun and now - movement.since >= patience(after, movement)


def stall_before_progress(rounds: Sequence[Sequence[ProcessLook]], since: float) -> Stall | None:
    """The hang of a run that has never shown progress, by several looks. ``since``: when all of its members
    ran, epoch seconds. None: something moves, or no rank waits for another.
    """
    cause = hang_over(rounds) if len(rounds) >= ROUNDS else None
    if cause is None:
        return None
    return _stall(cause, rounds[-1], f"no progress was seen since its members ran, {rfc3339(since)}", since)


def stall_of(looks: Sequence[ProcessLook], since: float, *, sure: bool) -> Stall | None:
    """Return what a silent run waits for, by the stacks of its ranks. ``since``: when it last moved, epoch
    seconds; ``sure``: its policy says how long it may be silent. None: not sure, and every rank computes.
    """
    cause, silent = cause_of_hang(looks), f"nothing was written since {rfc3339(since)}"
    if cause is None:
        sentence = "no process of it reports stacks (Python on Linux does)"
        return Stall("rank_stalled", f"{silent}, and {sentence}", since)
    if not (sure or cause.blame or cause.mismatch) and _all_compute(looks):
        return None
    stall = _stall(cause, looks, silent, since)
    return replace(stall, code=RANKS_WAIT) if cause.works and not sure else stall


def _stall(cause: HangCause, looks: Sequence[ProcessLook], silent: str, since: float) -> Stall:
    first = cause.blame[0] if cause.blame else None
    member = next((p.look.member for p in positions(looks) if p.rank == first), None)
    blame = f"rank {first}" if first is not None else None
    return Stall(code_of(cause), f"{cause.summary}; {silent}", since, blame, member or None)


def stall_of_silence(last: Mapping[int, float], why_no_stacks: str) -> Stall:
    """Stall of a silent run whose stacks cannot be read. ``last``: rank -> time of its last line."""
    since = max(last.values())
    order = sorted(last, key=lambda rank: (last[rank], rank))
    ranks = ", ".join(f"rank {rank} since {rfc3339(last[rank])}" for rank in order[:4])
    more = f" and {len(order) - 4} more" if len(order) > 4 else ""
    text = f"no member has written for long: {ranks}{more}; {why_no_stacks}"
    return Stall("rank_stalled", text, since)


def code_of(cause: HangCause) -> str:
    return "collective_mismatch" if cause.mismatch else "rank_stalled"


def _all_compute(looks: Sequence[ProcessLook]) -> bool:
    return all(place.operation is None and place.look.busy >= COMPUTES for place in positions(looks))
