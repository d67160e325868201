"""The queue of this machine: the slots of its pool, and the runs that wait for them, whoever started them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allaboard.backends.local.host.machine import capacity
from allaboard.backends.local.pool.pool import Pool, default_path
from allaboard.backends.local.pool.waiting import FIRST_COME
from allaboard.runs.queues import Amount, Queue, Waiter

NOTE = f"{FIRST_COME}: a job's gang.queue and gang.priority have no meaning here"


def read_queue(environ: Mapping[str, str]) -> Queue:
    """The one queue that there is. Raises SiteError where the pool cannot be read."""
    pool = Pool(default_path(environ), capacity(environ, with_gpus=True))
    try:
        return machine_queue(pool.describe())
    finally:
        pool.close()


def machine_queue(described: Mapping[str, Any]) -> Queue:
    """Of what `Pool.describe` says. Runs that state no resources hold no slots, and are not counted."""
    whole, free = described["capacity"], described["free"]
    amounts = [
        Amount("cpu", round(whole["cpu"] - free["cpu"], 3), whole["cpu"]),
        Amount("memory", whole["memory"] - free["memory"], whole["memory"]),
    ]
    if whole["gpus"]:
        amounts.append(Amount("gpus", len(whole["gpus"]) - len(free["gpus"]), len(whole["gpus"])))
    waiters = tuple(
        Waiter(each["run"], each["since"], each["position"], user=each["user"], why=each["why"])
        for each in described["queue"]
    )
    holders = [g for g in described["gangs"] if g["cpu"] or g["memory"] or g["gpus"]]
    return Queue(
        "machine",
        "machine",
        tuple(amounts),
        running=len(holders),
        waiting=len(waiters),
        waiters=waiters,
    )
