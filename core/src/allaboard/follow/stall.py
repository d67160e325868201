"""Detection of a run that makes no progress: it is silent for longer than its policy, or its own history,
allows.

A fold over moments: `Movement.moved` when a line, a step or a checkpoint came, `is_overdue` asks. Progress
before the first line is the phase clocks' business (`policy.clocks`). What a silent run waits for is read
from the stacks of its ranks, and one whose ranks all compute is not called hung unless its policy names a
time: an evaluation and an endless loop look alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from allaboard.diagnosis.stacks import COMPUTES, HangCause, ProcessLook, cause_of_hang, positions
from allaboard.runs.observation import Stall
from allaboard.text.units import rfc3339

FLOOR = 600.0
FACTOR = 3.0
"""Without a time in its policy a run may be silent for this many seconds, or so many times as long as it, or
the last good run of its job, ever was between two signs of progress, whichever is longer.
"""


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
    return all(place.look.busy >= COMPUTES for place in positions(looks))
