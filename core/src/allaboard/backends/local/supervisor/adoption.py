"""Checkpoints of other libraries: adopted as members write them, and handed to members that start.

Their bytes are read by a process of its own, of a low priority, while the supervisor goes on.
"""

from __future__ import annotations

import time
from typing import Any

from allaboard.backends.local.supervisor.background import Task, reports_in, start_task
from allaboard.checkpoints.foreign.adopting import Places
from allaboard.checkpoints.foreign.changes import times_below
from allaboard.checkpoints.foreign.handing import Handed, hand_over
from allaboard.runs.layout import Layout, Saving
from allaboard.storage import open_store
from allaboard.text.reportline import Report

_EVERY, _EVERY_IN_A_BUCKET, _AFTER_A_FAILURE = 3.0, 60.0, 10.0
_LONGEST = 600.0
"""Seconds that the end of a run's members waits for the sums of its last checkpoints."""


class Adoption:
    """``since``: when this generation of the run began, epoch seconds."""

    def __init__(self, layout: Layout, saving: Saving, since: float) -> None:
        self.saving, self.since = saving, since
        self.own = saving.saved_into
        self.manifest: dict[str, Any] = {
            "run": layout.run,
            "attempt": layout.attempt,
            "generation": layout.generation,
            "world_size": layout.total,
        }
        self._places = Places(open_store(self.own), True, since)
        self._task: Task | None = None
        self._seen: object = None
        self._due = 0.0

    def look(self, moment: float) -> list[Report]:
        """The checkpoints adopted since the last look; starts adopting where something has changed.
        ``moment``: of the monotonic clock. Raises nothing.
        """
        if self._task is not None and self._task.is_over:
            return self._results()
        if self._task is None and moment >= self._due:
            seen = self._look_of_places()
            self._due = moment + (_EVERY if seen is not None else _EVERY_IN_A_BUCKET)
            if seen is None or seen != self._seen:
                self._seen = seen
                self._start()
        return []

    def finish(self) -> list[Report]:
        """The checkpoints adopted until now, of all that is there. Blocks, within a bound; raises nothing."""
        deadline = time.monotonic() + _LONGEST
        reports = self._wait(deadline)
        self._start()
        return reports + self._wait(deadline)

    def hand_over(self, *, move_aside: bool, taken: Handed | None) -> Handed:
        """The newest whole checkpoint of this run, or the one ``taken`` by members that wait for this one;
        without any that which the job says to start from. Raises StorageError.
        """
        return hand_over(self._places, self.saving.start_from, move_aside=move_aside, taken=taken)

    def _start(self) -> None:
        self._task = start_task(
            {"do": "adopt", "own": self.own, "job": True, "since": self.since, "manifest": self.manifest}
        )

    def _wait(self, deadline: float) -> list[Report]:
        if self._task is None:
            return []
        self._task.wait(deadline - time.monotonic())
        if not self._task.is_over:
            self._task.kill()
        return self._results()

    def _results(self) -> list[Report]:
        assert self._task is not None
        answer, self._task = self._task.answer(), None
        if isinstance(answer, str):  # it was killed, or the place fails for a while
            self._seen = None
            self._due = time.monotonic() + _AFTER_A_FAILURE
            return []
        return reports_in(answer)

    def _look_of_places(self) -> object:
        """Names and times, which change when a checkpoint is written. None: the place is no disk."""
        own = self._places.own.local_path()
        return None if own is None else times_below(str(own), str(own.parent))
