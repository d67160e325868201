"""The card on the dashboard: what trains now, what waits and why, and how full the queues there are."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Any, cast

from allaboard.backends.base import Backend
from allaboard.backends.local.backend import LocalBackend
from allaboard.errors import AllaboardError, UnknownRun
from allaboard.report import phrases
from allaboard.runs.observation import Observation
from allaboard.runs.queues import Amount, Queue
from allaboard.runs.status import state_of
from allaboard_provider.pages import seen_at, unpack, words_of
from allaboard_provider.ui.database import Task, named_run
from allaboard_provider.ui.reading import SHARE, VERSION, Cache, host_of, opened, seen_of

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.backend import KubernetesBackend

_LOOKING = 4.0
"""Seconds that looking at all runs of a card may take."""
_QUEUES = 15.0
"""Seconds for which the queues of a namespace are told again, whoever asks."""
_QUEUES_SHOWN, _AMOUNTS_SHOWN = 5, 5
_LONGEST_REASON = 300


def now_of(tasks: list[Task], now: float, cache: Cache) -> dict[str, Any]:
    """The trainings of these task instances: a line for each, those that wait first; and the queues of their
    places.
    """
    end = time.monotonic() + _LOOKING
    rows: list[dict[str, Any]] = []
    queues: list[dict[str, Any]] = []
    by_place: dict[str | None, list[Task]] = {}
    for task in tasks:
        named = named_run(task.named)
        if named is not None:
            # What is no name of a connection is none that could be read: a task may name anything.
            place = str(named.get("connection")) if named.get("cluster") else None
            by_place.setdefault(place, []).append(task)
    for connection, those in by_place.items():
        looked, there = _look(connection, those, end, now, cache)
        rows += looked
        queues += there
    rows.sort(key=lambda row: (row["held_by"] is None, row["dag_id"], row["run_id"], row["task_id"]))
    # Two connections may lead to one namespace.
    distinct = list({(q["server"], q["where"], q["kind"], q["name"]): q for q in queues}.values())
    return {"version": VERSION, "looked_at": now, "runs": rows, "queues": distinct}


def _look(
    connection: str | None, tasks: list[Task], end: float, now: float, cache: Cache
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One look at each run of one place, and at the queues there; a run that cannot be seen is told as its
    task left it, or has a state of None and says why. Queues are told only to somebody who sees a run there.
    """
    rows: list[dict[str, Any]] = []
    queues: list[dict[str, Any]] = []
    reason = "there was no time to look"
    try:
        with opened(named_run(tasks[0].named) or {}) as place:
            backend = place.backend
            for task in tasks:
                if time.monotonic() > end:
                    break
                try:
                    seen = seen_of(backend, named_run(task.named) or {}, task.where, evidence=False)
                    rows.append(_row(task, seen, now))
                except UnknownRun as error:
                    rows.append(_row_elsewhere(task, now, words_of(error)))
            if (
                any(row["state"] is not None and row["note"] is None for row in rows)
                and time.monotonic() < end
            ):
                queues = _queues(backend, connection, cache)
    except Exception as error:
        reason = words_of(error)
    return [*rows, *(_row(task, None, now, reason) for task in tasks[len(rows) :])], queues


def _row(task: Task, seen: Observation | None, now: float, note: str | None = None) -> dict[str, Any]:
    where, named = task.where, named_run(task.named) or {}
    row = {
        "dag_id": where.dag_id, "run_id": where.run_id, "task_id": where.task_id,
        "map_index": where.map_index, "run": str(named.get("run")), "task_state": task.state, "note": note,
    }  # fmt: skip
    if seen is None:
        return {**row, "job": None, "state": None, "held_by": None, "how": "", "share": None}
    state = state_of(seen)
    return {
        **row,
        "job": seen.job,
        "state": str(state),
        "held_by": None if state.is_final else seen.held_by,
        "how": ", ".join(
            filter(None, [phrases.progress_phrase(seen, brief=True), phrases.duration_phrase(seen, now)])
        ),
        "share": phrases.share_done(seen),
    }


FOLLOWED = ("running", "deferred", "restarting")
"""States of a task whose run somebody follows, or is about to."""


def _row_elsewhere(task: Task, now: float, reason: str) -> dict[str, Any]:
    """A run that cannot be seen from here, as its task left it last."""
    named = named_run(task.named) or {}
    row, left = _row(task, None, now, reason), unpack(task.left)
    if left is None or left["run"] != named.get("run"):
        return row
    progress = left["progress"]
    step, total = (progress.get(n) if is_whole(progress.get(n)) else None for n in ("step", "total"))
    host = host_of(named)
    words_of_it = [
        shorten(left["state"].replace("_", " "), 30) if task.state not in FOLLOWED else "",
        phrases.step_phrase(step, total),
        f"as seen at {seen_at(left)}" + (f" from {host}" if host else ""),
    ]
    note = ", ".join(filter(None, words_of_it))
    if task.state not in FOLLOWED:
        return {**row, "note": f"last {note}"}
    held_by, share = left.get("held_by"), progress.get("share")
    return {
        **row,
        "note": note,
        "job": str(left["job"]) if isinstance(left.get("job"), str) else None,
        "state": shorten(left["state"], 30),
        "held_by": shorten(held_by, _LONGEST_REASON) if isinstance(held_by, str) else None,
        "share": share if isinstance(share, (int, float)) and 0 <= share <= 1 else None,
    }


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _queues(backend: Backend, connection: str | None, cache: Cache) -> list[dict[str, Any]]:
    """The queues of a place in which something is; none where they cannot be read. What one connection may
    see is not told to those who see runs by another.
    """
    if isinstance(backend, LocalBackend):
        return queues_shown(_slots(), "this machine", None)
    on_cluster = cast("KubernetesBackend", backend)
    api = on_cluster.api

    def read() -> tuple[list[dict[str, Any]], float]:
        began = time.monotonic()
        try:
            queues, _ = on_cluster.queues()
        except AllaboardError:
            queues = []
        shown = queues_shown(queues, f"namespace {api.namespace}", api.server)
        return shown, max(_QUEUES, SHARE * (time.monotonic() - began))

    shown: list[dict[str, Any]] = cache.get(("queues", connection, api.server, api.namespace), read)
    return shown


def _slots() -> list[Queue]:
    from allaboard.backends.local.queues import read_queue

    try:
        return [read_queue(os.environ)]
    except (AllaboardError, OSError):
        return []


def queues_shown(queues: Iterable[Queue], where: str, server: str | None) -> list[dict[str, Any]]:
    """Those in which something is, the fullest first: amounts and counts alone, for who holds and who
    waits may be others' business.
    """
    busy = [queue for queue in queues if _is_busy(queue)]
    busy.sort(key=lambda queue: (-(queue.waiting or 0), -_fullness(queue), queue.name))
    return [
        {
            "name": queue.name,
            "kind": queue.kind,
            "where": where,
            "server": server,
            "parent": queue.parent,
            "closed": queue.closed and shorten(queue.closed, _LONGEST_REASON),
            "running": queue.running,
            "waiting": queue.waiting,
            "amounts": [_amount(amount) for amount in _most_telling(queue.amounts)],
        }
        for queue in busy[:_QUEUES_SHOWN]
    ]


def _is_busy(queue: Queue) -> bool:
    return bool(queue.running or queue.waiting or any(amount.used for amount in queue.amounts))


def _fullness(queue: Queue) -> float:
    return max((amount.used / amount.quota for amount in queue.amounts if amount.quota), default=0.0)


def _most_telling(amounts: Sequence[Amount]) -> list[Amount]:
    """Devices before cores and memory, then what is used most; without what nobody uses."""
    used = [amount for amount in amounts if amount.used]
    used.sort(
        key=lambda a: ("/" not in a.resource and a.resource != "gpus", -(a.used / (a.quota or math.inf)))
    )
    return used[:_AMOUNTS_SHOWN]


def _amount(amount: Amount) -> dict[str, Any]:
    limit = "" if amount.quota is None else f" of {amount.show(amount.quota)}"
    return {
        "resource": amount.resource, "flavor": amount.flavor, "used": amount.used, "limit": amount.quota,
        "words": amount.show(amount.used) + limit,
    }  # fmt: skip
