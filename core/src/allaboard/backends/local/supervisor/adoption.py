"""Checkpoints of other libraries: adopted as members write them, and handed to members that start.

Their bytes are read by a process of its own, of a low priority, while the supervisor goes on.
"""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress
from typing import Any

from allaboard.backends.local.host.isolated import isolated_command
from allaboard.checkpoints.foreign.adopting import Places
from allaboard.checkpoints.foreign.changes import times_below
from allaboard.checkpoints.foreign.handing import Handed, hand_over
from allaboard.runs.layout import Layout, Saving
from allaboard.storage import open_store
from allaboard.text.reportline import Report

_EVERY, _EVERY_IN_A_BUCKET = 3.0, 60.0
_LONGEST = 600.0
"""Seconds that the end of a run's members waits for the sums of its last checkpoints."""
_MOST_OUTPUT = 2**24


class Adoption:
    """``since``: when this generation of the run began, epoch seconds."""

    def __init__(self, layout: Layout, saving: Saving, since: float) -> None:
        self.saving, self.since = saving, since
        self.manifest: dict[str, Any] = {
            "run": layout.run,
            "attempt": layout.attempt,
            "generation": layout.generation,
            "world_size": layout.total,
        }
        self._places = Places(open_store(saving.uri), True, since)
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: object = None
        self._due = 0.0

    def look(self, moment: float) -> list[Report]:
        """The checkpoints adopted since the last look; starts adopting where something has changed.
        ``moment``: of the monotonic clock. Raises nothing.
        """
        if self._process is not None and self._process.poll() is not None:
            return self._results(self._process)
        if self._process is None and moment >= self._due:
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
        return hand_over(self._places, self.saving.start_from, move_aside=move_aside)

    def _start(self) -> None:
        given = {"own": self.saving.uri, "job": True, "since": self.since, "manifest": self.manifest}
        with suppress(OSError):  # the next look tries again
            self._process = subprocess.Popen(
                isolated_command("allaboard.checkpoints.foreign", json.dumps(given)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _wait(self, deadline: float) -> list[Report]:
        process = self._process
        if process is None:
            return []
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        if process.poll() is None:
            process.kill()
            process.wait()
        return self._results(process)

    def _results(self, process: subprocess.Popen[bytes]) -> list[Report]:
        self._process = None
        assert process.stdout is not None
        with process.stdout as output:
            text = output.read(_MOST_OUTPUT)
        try:
            added = json.loads(text)["added"] if process.returncode == 0 else []
        except (ValueError, KeyError):
            return []
        return [Report("checkpoint", body) for body in added]

    def _look_of_places(self) -> object:
        """Names and times, which change when a checkpoint is written. None: the place is no disk."""
        own = self._places.own.local_path()
        return None if own is None else times_below(str(own), str(own.parent))
