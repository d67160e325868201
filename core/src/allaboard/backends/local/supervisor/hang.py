"""Detector of hangs: it watches the logs and checkpoints of the members of an attempt and, once both stand
still for long enough, reads the stacks of their processes.

A healthy run costs one comparison of numbers at each look. Time is that of a clock which stands still while
the machine sleeps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from allaboard.backends.local.host.stacks import TwoLooks
from allaboard.diagnosis.stacks import ProcessLook
from allaboard.follow.stall import (
    ROUNDS,
    Movement,
    is_late_from_the_start,
    is_overdue,
    patience,
    stall_before_progress,
    stall_of,
)
from allaboard.runs.observation import Stall

AGAIN, LONGEST = 30.0, 3600.0
"""Seconds until the stacks of a run that stands are looked at again, doubling each time up to the longest:
every look makes its processes write, into their own memory.
"""
_AT_FIRST, _OFTEN = 2.0, 120.0
"""Seconds between two looks at a run that has shown no progress yet, and for how long it is looked at so
often.
"""
_UNWATCHED = 20.0
"""Seconds between two looks after which the supervisor itself stood still."""
_MOST_FILES = 20_000


@dataclass(slots=True)
class HangWatch:
    """``after``: seconds that the run may be silent, None: by its own history; ``mark``: of its processes;
    ``checkpoints``: its own folder of them, if that is on a disk; ``stall``: what is known of a run that
    stands; ``before``: tells the longest pause of the last good run of this job, asked once and only of a run
    that is silent for longer than its own history allows.
    """

    after: float | None
    mark: str
    checkpoints: str | None = None
    before: Callable[[], float] = lambda: 0.0
    movement: Movement | None = None
    stall: Stall | None = None
    written: int = 0
    moved_at: float = 0.0
    looked: float = 0.0
    due: float = 0.0
    pause: float = AGAIN
    looks: TwoLooks | None = None
    has_asked: bool = False
    rounds: tuple[tuple[ProcessLook, ...], ...] = ()
    """The last looks at a run that has shown no progress yet."""

    def look(self, written: int, trains: bool, now: float, wall: float) -> Stall | float | None:
        """A stall that is new, or the seconds after which a run that stood moves again; None: no news.

        ``written``: bytes in all logs; ``trains``: whether all members run; ``now``: by a clock that only
        goes on; ``wall``: epoch seconds.
        """
        movement, moved = self.movement or Movement(now), written != self.written
        if self.looked and now - self.looked > _UNWATCHED:
            movement = movement.paused(now - self.looked)
        self.looked, self.written = now, written
        if not trains:
            self._forget(movement.started_again(now))
            return None
        if moved:
            return self._move(movement, now, wall)
        self.movement = movement
        if is_late_from_the_start(self.after, movement, now):
            return self._look_before_progress(movement, now, wall)
        if not is_overdue(self.after, movement, now) or now < self.due:
            return None
        if self.after is None and not self.has_asked:
            self.has_asked, self.movement = True, movement.allowing(self.before())
            return None
        if self.looks is None:
            saved = newest_file(self.checkpoints) if self.checkpoints is not None else 0.0
            if saved > self.moved_at:
                return self._move(movement, now - max(0.0, wall - saved), saved)
            self.looks = TwoLooks(self.mark)
        processes = self.looks.step()
        return None if processes is None else self._judge(processes, now)

    def _look_before_progress(self, movement: Movement, now: float, wall: float) -> Stall | None:
        """Look again and again at a run that has shown no progress since its members run."""
        if now < self.due or self.stall is not None:
            return None
        if self.looks is None:
            self.looks = TwoLooks(self.mark)
        processes = self.looks.step()
        if processes is None:
            return None
        late = now - movement.since - patience(self.after, movement)
        self.pause = _AT_FIRST if late < _OFTEN else min(LONGEST, 2 * self.pause)
        self.looks, self.due = None, now + self.pause
        self.rounds = (*self.rounds, processes)[-ROUNDS:]
        self.stall = stall_before_progress(self.rounds, wall - (now - movement.since))
        return self.stall

    def _judge(self, processes: tuple[ProcessLook, ...], now: float) -> Stall | None:
        self.looks, self.due = None, now + self.pause
        self.pause = min(LONGEST, 2 * self.pause)
        stall, before = stall_of(processes, self.moved_at, sure=self.after is not None), self.stall
        if stall is None or (before and (stall.code, stall.blame) == (before.code, before.blame)):
            return None
        self.stall = stall
        return stall

    def _move(self, movement: Movement, at: float, wall: float) -> float | None:
        stood = self.stall is not None
        silent = at - movement.since
        self._forget(movement.moved(at))
        self.moved_at = wall
        return silent if stood else None

    def _forget(self, movement: Movement) -> None:
        self.movement, self.stall, self.looks, self.due, self.pause = movement, None, None, 0.0, AGAIN
        self.rounds = ()


def newest_file(folder: str) -> float:
    """Time of the last write to a file below a folder, epoch seconds; 0 if no file is visible."""
    newest, seen = 0.0, 0
    for place, _, files in os.walk(folder):
        for name in files:
            try:
                newest = max(newest, (Path(place) / name).stat().st_mtime)
            except OSError:
                continue
            seen += 1
            if seen >= _MOST_FILES:
                return newest
    return newest
