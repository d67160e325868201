"""Reading of a task's run for its pages: where the run lives, else from the snapshot that the task left.

A task may name any run in its XCom, also that of a DAG whose readers are others. So a run is shown only if
its own record says that it belongs to this very task instance.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from allaboard.backends.base import Backend
from allaboard.backends.local.backend import LocalBackend
from allaboard.errors import UnknownRun
from allaboard.report.page_data import PAGE
from allaboard.runs.observation import Observation
from allaboard.text.names import why_not_an_object_name
from allaboard.text.printable import visible
from allaboard_provider.hooks.allaboard import AllaboardHook, callers_environment
from allaboard_provider.identity import is_of_task
from allaboard_provider.pages import Output, last_seen, outcome_of, page_value, seen_at, unpack, words_of
from allaboard_provider.places import Place, ThisMachine, place_of
from allaboard_provider.ui.database import Task, Where, named_run

VERSION = 1
_READING = 6.0
"""Seconds that reading the output of a run may take for a page that somebody waits for."""
_FRESH, _KEPT = 2.0, 60.0
"""Seconds for which what was read of a run that goes on, and of one that ended, is told again."""
_REMEMBERED = 3600.0
"""Seconds for which it is kept what a run wrote: a page that is shown again reads only what came since."""
SHARE = 5
"""A page that took a second to read is told again for so many."""
NOT_OURS = (
    "This task started no run of allaboard. A task of TrainingJobOperator or EvaluateOperator shows here how "
    "its training goes: its phases, curves, members and checkpoints, and why it waits or failed."
)


class Cache:
    """Values for a while, at most ``size``; a value is made once, whoever asks meanwhile."""

    def __init__(self, size: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._size, self._clock = size, clock
        self._held: OrderedDict[Any, tuple[float, Any]] = OrderedDict()
        self._lock, self._locks = threading.Lock(), [threading.Lock() for _ in range(16)]

    def get(self, key: Any, make: Callable[[], tuple[Any, float]]) -> Any:
        """The value of ``key``; ``make`` gives one, and for how many seconds it is good."""
        with self._locks[hash(key) % len(self._locks)]:
            with self._lock:
                until, value = self._held.get(key, (0.0, None))
                if self._clock() < until:
                    return value
            value, seconds = make()
            with self._lock:
                self._held[key] = (self._clock() + seconds, value)
                self._held.move_to_end(key)
                while len(self._held) > self._size:
                    self._held.popitem(last=False)
            return value


def page_of(task: Task, now: float, cache: Cache, outputs: Cache) -> dict[str, Any]:
    """``source``: live, snapshot or none; ``run``: a value of `page_data`; ``note``: why it is not live;
    ``empty``: what to say where there is no run. ``outputs``: what runs wrote, kept from page to page.
    """
    about = {
        "version": VERSION,
        "task": {
            "dag_id": task.where.dag_id,
            "run_id": task.where.run_id,
            "task_id": task.where.task_id,
            "map_index": task.where.map_index,
            "state": task.state,
            "try_number": task.try_number,
        },
    }
    named = named_run(task.named)
    if named is None:
        return {**about, "source": "none", "run": None, "note": None, "empty": _why_none(task)}
    source, run, note = cache.get(
        (task.where, named["run"], str(named.get("uid")), task.state),
        lambda: _read(task, named, now, outputs),
    )
    empty = None if run is not None else f"Run {named['run']} cannot be shown: {note}."
    return {**about, "source": source, "run": run, "note": note if run is not None else None, "empty": empty}


def _why_none(task: Task) -> str:
    if task.state in (None, "scheduled", "queued"):
        return "This task has not begun. Once it starts a training, this page shows how it goes."
    if task.state in ("running", "deferred", "restarting") and _is_ours(task):
        return "The run of this task is about to start."
    if _is_ours(task):
        return "This try ended before there was a run; the log of the task says why."
    return NOT_OURS


def _is_ours(task: Task) -> bool:
    return task.operator in ("TrainingJobOperator", "EvaluateOperator")


def _read(
    task: Task, named: Mapping[str, Any], now: float, outputs: Cache
) -> tuple[tuple[str, dict[str, Any] | None, str | None], float]:
    left = unpack(task.left)
    if left is not None and left["run"] != named["run"]:
        left = None
    if left is not None and left.get("is_final") and named.get("cluster"):
        # It has all that the cluster might have deleted since.
        return ("snapshot", left, None), _KEPT
    began = time.monotonic()
    try:
        run = _live(task, named, now, outputs)
    except Exception as error:
        reason = words_of(error).rstrip(".")
        if left is None:
            return ("none", None, reason), _FRESH
        host = host_of(named)
        seen = last_seen(left, host, task.state)
        note = f"As it was at {seen_at(left)}; it cannot be read from here now: {reason}"
        return ("snapshot", seen, note), _FRESH
    seconds = _KEPT if run["is_final"] else max(_FRESH, SHARE * (time.monotonic() - began))
    return ("live", run, None), seconds


def _live(task: Task, named: Mapping[str, Any], now: float, outputs: Cache) -> dict[str, Any]:
    kind = "evaluation" if "evaluat" in (task.operator or "").lower() else "training"
    with opened(named) as place:
        backend = place.backend
        seen = seen_of(backend, named, task.where, evidence=True)
        output: Output = outputs.get((task.where, seen.run, seen.uid), lambda: (Output(), _REMEMBERED))
        with output.lock:
            return page_value(
                backend, outcome_of(seen), now,
                at=place.at, bounds=PAGE, kind=kind, seconds=_READING, output=output,
            )  # fmt: skip


@contextmanager
def opened(named: Mapping[str, Any]) -> Iterator[Place]:
    """The place that a task names: this machine, or the cluster of a connection. Raises AllaboardError."""
    if not named.get("cluster"):
        yield ThisMachine(LocalBackend(callers_environment()))
        return
    place = place_of(AllaboardHook(str(named.get("connection"))))
    try:
        yield place
    finally:
        place.close()


def host_of(named: Mapping[str, Any]) -> str | None:
    """The host that a task names for its run."""
    host = named.get("host")
    return visible(host)[:255] if isinstance(host, str) else None


def seen_of(backend: Backend, named: Mapping[str, Any], where: Where, *, evidence: bool) -> Observation:
    """The run that a task names. Raises UnknownRun also for a run of somebody else."""
    run = str(named["run"])
    host = host_of(named)
    there = f"it is on {host}" if host else "it is elsewhere"
    elsewhere = UnknownRun(f"{there}, or was deleted, and this web server sees no such run")
    if why_not_an_object_name(run) is not None:
        raise elsewhere
    try:
        seen = backend.observe(run, evidence)
    except UnknownRun:
        raise elsewhere from None
    if seen.run != run or not is_of_task(
        seen.key, where.dag_id, where.run_id, where.task_id, where.map_index
    ):
        raise elsewhere
    return seen
