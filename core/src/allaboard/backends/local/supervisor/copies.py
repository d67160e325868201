"""Copies of the checkpoints of ``checkpoints.folder`` at the uri: made behind the training, and brought back
before it starts where the folder lacks the newest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from allaboard.backends.local.supervisor.background import MOST_TEXT, Task, reports_in, start_task
from allaboard.runs.layout import Saving
from allaboard.text.printable import visible
from allaboard.text.reportline import Report

_LONGEST = 3600.0
"""Seconds that the end of an attempt waits for the copy of its last checkpoint."""
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
"""Seconds until a place that failed is tried again, doubling each time."""
_PATIENCE = 300.0
"""Seconds for which a start waits for a place that does not answer."""
_LAST_TRIES, _STEP = 3, 0.1
_NOT_COPIED = "CheckpointNotCopied"


class Copies:
    """The copies of a run, one at a time. ``since``: when this generation of it began, epoch seconds;
    ``notes``: (type, reason, sentence) of each event since they were taken; ``problem``: the failure of the
    last try.
    """

    def __init__(self, saving: Saving, since: float) -> None:
        self._saving, self._since = saving, since
        self._fetch: Task | None = None
        self._copy: Task | None = None
        self._is_ready, self._is_due = False, True
        self._begun: float | None = None
        self._next, self._pause = 0.0, _FIRST_PAUSE
        self._failures = 0
        self._newest: str | None = None
        self._passed: frozenset[int] = frozenset()
        self.problem: str | None = None
        self.notes: list[tuple[str, str, str]] = []

    def is_ready(self, moment: float) -> bool:
        """Return whether members may start: the folder has what the uri has, or the uri has not answered for
        too long. ``moment``: of the monotonic clock. Raises nothing.
        """
        if self._is_ready:
            return True
        self._begun = moment if self._begun is None else self._begun
        if self._fetch is None:
            if moment >= self._next:
                self._fetch = start_task(self._given("fetch", job=True, since=self._since))
            return False
        if not self._fetch.is_over:
            return False
        answer, self._fetch = self._fetch.answer(), None
        if isinstance(answer, str):
            self._fail(f"whether it has a newer checkpoint is not known: {answer}", moment)
            self._is_ready = moment - self._begun > _PATIENCE
        else:
            self._succeed()
            for note in answer.get("notes", ()):
                self.notes.append(("Warning", "TornCheckpoint", visible(str(note), most=MOST_TEXT)))
            if answer.get("files"):
                text = f"step {answer.get('step')} of {self._saving.uri} is in {answer['files']} now"
                self.notes.append(("Normal", "CheckpointFetched", text))
            self._is_ready = True
        return self._is_ready

    def look(self, moment: float, *, has_new: bool) -> list[Report]:
        """The copy that was made since the last look; starts the next. ``has_new``: a checkpoint was adopted.
        Raises nothing.
        """
        self._is_due = self._is_due or has_new
        reports = self._results(moment)
        if self._copy is None and self._is_due and moment >= self._next:
            saving = self._saving
            best = [saving.metric, saving.mode] if saving.metric else None
            self._copy = start_task(self._given("copy", keep=saving.keep, best=best))
            self._is_due = self._copy is None
        return reports

    def finish(self, grace: float, is_hurried: Callable[[], bool]) -> list[Report]:
        """The last copies of an attempt that has ended. Blocks, within an hour, or from when it is hurried
        within ``grace`` seconds; what is missing then is copied by the next attempt. Raises nothing.
        """
        deadline = time.monotonic() + _LONGEST
        self._failures, self._next, self._pause = 0, 0.0, _FIRST_PAUSE
        reports = self.look(time.monotonic(), has_new=True)
        while self._copy is not None or (self._is_due and self._failures < _LAST_TRIES):
            if time.monotonic() > deadline:
                break
            if is_hurried():
                deadline = min(deadline, time.monotonic() + grace)
                is_hurried = bool  # once
            time.sleep(_STEP)
            reports += self.look(time.monotonic(), has_new=False)
        if self._copy is not None:
            self._copy.kill()
            self._copy.answer()
            self._copy = None
            text = f"its last checkpoint is not at {self._saving.uri} yet; the next attempt copies it"
            self.notes.append(("Warning", _NOT_COPIED, text))
        return reports

    def _given(self, do: str, **more: Any) -> dict[str, Any]:
        return {"do": do, "own": self._saving.folder, "bucket": self._saving.uri, **more}

    def _results(self, moment: float) -> list[Report]:
        if self._copy is None or not self._copy.is_over:
            return []
        answer, self._copy = self._copy.answer(), None
        if isinstance(answer, str):
            self._is_due = True
            self._fail(f"the newest checkpoint is not copied: {answer}", moment)
            return []
        self._succeed()
        passed = {step for step in answer.get("passed", ()) if isinstance(step, int)} - self._passed
        if passed:
            self._passed |= passed
            steps = ", ".join(map(str, sorted(passed)))
            text = f"copies to {self._saving.uri} fall behind the training: no copy of step {steps}"
            self.notes.append(("Warning", "CopyPassedOver", visible(text, most=MOST_TEXT)))
        fresh = [report for report in reports_in(answer) if report.fields.get("uri") != self._newest]
        for report in fresh:
            self._newest = report.fields.get("uri")
        return fresh

    def _fail(self, trouble: str, moment: float) -> None:
        if self.problem is None:
            text = f"{self._saving.uri}: {trouble}; it is tried again"
            self.notes.append(("Warning", _NOT_COPIED, text))
        self.problem, self._failures = trouble, self._failures + 1
        self._next, self._pause = moment + self._pause, min(_LONGEST_PAUSE, 2 * self._pause)

    def _succeed(self) -> None:
        if self.problem is not None:
            self.notes.append(("Normal", "CopiesAgain", f"{self._saving.uri} takes copies again"))
        self.problem, self._pause, self._failures = None, _FIRST_PAUSE, 0
