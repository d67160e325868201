"""Checkpoints of other libraries: adopted as members write them, and handed to members that start.

Their bytes are read by a process of its own, of a low priority, while the supervisor goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from allaboard.backends.local.supervisor.background import Task, reports_in, start_task
from allaboard.checkpoints import checkpoint_at, step_of
from allaboard.checkpoints.foreign.adopting import Places
from allaboard.checkpoints.foreign.handing import Handed, hand_over
from allaboard.checkpoints.listing import RUN_FOLDER
from allaboard.errors import AllaboardError
from allaboard.runs.layout import Layout, Saving
from allaboard.storage import open_store
from allaboard.text.reportline import Report

_EVERY, _EVERY_IN_A_BUCKET, _AFTER_A_FAILURE = 3.0, 60.0, 10.0
_LONGEST = 600.0
"""Seconds that the end of a run's members waits for the sums of its last checkpoints."""
_LEVELS, _MOST_NAMES = 3, 2000


class Adoption:
    """``since``: when this generation of the run began, epoch seconds."""

    def __init__(self, layout: Layout, saving: Saving, since: float) -> None:
        self.saving, self.since = saving, since
        self.own = saving.folder or saving.uri
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

    def hand_over(self, *, move_aside: bool) -> Handed:
        """The newest whole checkpoint of this run; without one that which the job says to start from. Raises
        StorageError.
        """
        handed = hand_over(self._places, move_aside=move_aside)
        start = self.saving.start_from
        if handed.files is not None or start is None or "://" in start:
            return handed
        with suppress(AllaboardError):  # the script says what it needs
            item = checkpoint_at(start)[1]
            return Handed(item.files, item.step, handed.moved)
        return handed

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
        if own is None:
            return None
        return [*islice(chain(_times(own, _LEVELS), _times(own.parent, _LEVELS)), _MOST_NAMES)]


def _times(folder: Path, levels: int) -> Iterator[tuple[str, int, int]]:
    """(path, time, size) of what is in a folder, and in those in it; without what we write ourselves."""
    try:
        with os.scandir(folder) as listing:
            items = sorted(listing, key=lambda item: item.name)[:_MOST_NAMES]
    except OSError:
        return
    for item in items:
        if step_of(item.name) is not None or RUN_FOLDER.fullmatch(item.name):
            continue
        with suppress(OSError):
            status = item.stat(follow_symlinks=False)
            yield item.path, status.st_mtime_ns, status.st_size
            if levels > 1 and item.is_dir(follow_symlinks=False):
                yield from _times(Path(item.path), levels - 1)
