"""Detector of a rank that holds up the others in each step. It asks seldom, and more seldom the longer all is
well, because every rank writes its last collectives at each question.

A rank is called slow once two looks in a row found it. Time is that of a clock which stands still while the
machine sleeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

from allaboard.backends.local.host.arrivals import AskedArrivals
from allaboard.backends.local.host.machine import load_text
from allaboard.backends.local.host.stacks import TwoLooks
from allaboard.diagnosis.stacks import ProcessLook
from allaboard.diagnosis.stragglers import SlowRank, slow_of, slow_rank
from allaboard.runs.observation import Slow

FIRST, AGAIN, LONGEST = 20.0, 30.0, 120.0
"""Seconds until the first look, and between two, doubling while all is well."""
CONFIRM = 8.0
"""Seconds from the first look that found a slow rank to the one that makes sure."""
LOOKS, BETWEEN = 5, 0.3
"""Number of looks at where a slow rank is, and the seconds of one such look."""
_STEPS, _STEP_EVERY = 4096, 0.5


@dataclass(slots=True)
class SlowWatch:
    """``mark``: of the run's processes; ``slow``: what is known of a run that one rank holds up."""

    mark: str
    slow: Slow | None = None
    suspect: SlowRank | None = None
    due: float = 0.0
    pause: float = AGAIN
    arrivals: AskedArrivals | None = None
    looks: TwoLooks | None = None
    seen: list[tuple[ProcessLook, ...]] = field(default_factory=list)
    steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_STEPS))

    def reached(self, step: int, wall: float) -> None:
        """Rank 0 has reported a step, at ``wall`` epoch seconds."""
        if not self.steps or wall - self.steps[-1][0] >= _STEP_EVERY:
            self.steps.append((wall, step))

    def look(self, trains: bool, now: float) -> Slow | str | None:
        """A slow rank that is new, or who keeps up again, in words; None: no news. ``trains``: whether all
        members run; ``now``: by a clock that only goes on.
        """
        if not trains or not self.due:
            self.forget()
            self.due = now + FIRST if trains else 0.0
            return None
        if now < self.due:
            return None
        if self.looks is not None:
            return self._say(self.looks, now)
        if self.arrivals is None:
            self.arrivals = AskedArrivals(self.mark)
        arrivals = self.arrivals.step()
        if arrivals is None:
            return None
        self.arrivals = None
        return self._judge(slow_rank(arrivals), now)

    def forget(self) -> None:
        """Its members start again, or it is over."""
        self.slow = self.suspect = self.arrivals = self.looks = None
        self.due, self.pause, self.seen = 0.0, AGAIN, []
        self.steps.clear()

    def _judge(self, suspect: SlowRank | None, now: float) -> str | None:
        before, self.suspect = self.suspect, suspect
        again = suspect is not None and before is not None and suspect.rank == before.rank
        known = self.slow is not None and suspect is not None and self.slow.rank == suspect.rank
        if again and not known:
            self.looks = TwoLooks(self.mark, BETWEEN, records=False)
            return None
        sure = known if suspect is not None else self.slow is None or before is None
        self.due = now + (self.pause if sure else CONFIRM)
        self.pause = AGAIN if suspect is not None else min(LONGEST, 2 * self.pause)
        if suspect is not None or self.slow is None or before is not None:
            return None  # that it keeps up is as sure as that it does not: two looks say so
        text, self.slow = f"rank {self.slow.rank} keeps up with the others again", None
        return text

    def _say(self, looks: TwoLooks, now: float) -> Slow | None:
        look = looks.step()
        if look is None or self.suspect is None:
            return None
        self.seen.append(look)
        if len(self.seen) < LOOKS:
            self.looks = TwoLooks(self.mark, BETWEEN, records=False)
            return None
        self.slow = slow_of(self.suspect, self.seen, self._step_at(self.suspect), load_text())
        self.looks, self.seen, self.due = None, [], now + self.pause
        return self.slow

    def _step_at(self, suspect: SlowRank) -> int | None:
        """The step at which it began, by those that rank 0 reported before and after; None: not known."""
        place = bisect_right(self.steps, (suspect.at, 1 << 62))
        if suspect.since is None or not 0 < place < len(self.steps):
            return None
        (before, first), (after, last) = self.steps[place - 1], self.steps[place]
        return first + round((last - first) * (suspect.at - before) / (after - before))
