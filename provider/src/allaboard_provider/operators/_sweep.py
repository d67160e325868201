"""The early end of a sweep: once a run of a mapped task has reached what was asked for, the rest is stopped.

The run that reached it leaves a mark, then stops the others that it sees. Each other one looks for a mark
before its launch and right after it. So whichever comes first, one of the two sees the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allaboard.backends.base import Backend, Handle, NotYours
from allaboard.errors import AllaboardError, BadInput
from allaboard.promotion.gate import Gate, judge
from allaboard.runs.status import state_of
from allaboard_provider.identity import task_of

MARK = "allaboard_reached"
"""XCom of the task instance whose run has reached what the sweep is for: ``{"run", "reason"}``."""
BY = "airflow: stop_rest_when"
"""The word for who stopped a run of the rest, in its record."""
_TRIES = 3
"""Times that a run is stopped whose owner changes meanwhile: it goes from a worker to a trigger, or back."""


class Sweep:
    """The mapped task instances of a task in one DAG run. ``when``: thresholds (`Gate`). Raises BadInput for
    a threshold that is none, and for a task that is not mapped.
    """

    def __init__(self, when: Any, ti: Any, log: Any) -> None:
        self._gate = Gate.parse(thresholds=when)
        self._ti, self._log = ti, log
        if ti.map_index is None or ti.map_index < 0:
            raise BadInput(
                "stop_rest_when: this task is not mapped, so there is no rest; leave it out, or expand the "
                "task"
            )

    def reached(self) -> str | None:
        """The sentence of another run that has reached it; None: none has."""
        pulled = self._ti.xcom_pull(task_ids=self._ti.task_id, key=MARK)
        marks = [pulled] if isinstance(pulled, Mapping) else pulled or ()
        return next(
            (str(mark["reason"]) for mark in marks if isinstance(mark, Mapping) and "reason" in mark), None
        )

    def end(self, backend: Backend, key: str, result: Mapping[str, Any]) -> None:
        """Stop the rest if this result reaches it. ``key``: of this run."""
        metrics = result.get("metrics")
        verdict = judge(self._gate, metrics if isinstance(metrics, Mapping) else {})
        if not verdict.passed:
            return
        reason = f"run {result.get('run')} has reached what the sweep is for: {verdict.reason}"
        self._ti.xcom_push(MARK, {"run": result.get("run"), "reason": reason})
        own = task_of(key)
        for seen in backend.list():
            other = task_of(seen.key)
            if own is None or other is None or other[:4] != own[:4] or other == own:
                continue
            if not state_of(seen).is_final:
                self._stop(backend, seen.run, reason)

    def _stop(self, backend: Backend, run: str, reason: str) -> None:
        try:
            for _ in range(_TRIES):
                seen = backend.observe(run)
                if state_of(seen).is_final or seen.owner is None or seen.uid is None:
                    return
                handle = Handle(run, seen.attempt, seen.generation, seen.uid)
                if not isinstance(backend.stop(handle, seen.owner, BY, reason), NotYours):
                    self._log.info("stopped run %s: %s", run, reason)
                    return
        except AllaboardError as error:
            self._log.warning("run %s goes on, and could be stopped: %s", run, error)
