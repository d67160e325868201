"""The queue of this machine: the slots of its pool, and the runs that wait for them, whoever started them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allaboard.backends.local.host.machine import capacity
from allaboard.backends.local.pool.pool import Pool, default_path
from allaboard.queues import Amount, Queue, Waiter


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
    queue = described["queue"]
    waiters = (
        Waiter(each["run"], each["since"], position, why=f"waits for {_asked(each)}, as {each['user']}")
        for position, each in enumerate(queue, 1)
    )
    holders = [g for g in described["gangs"] if g["cpu"] or g["memory"] or g["gpus"]]
    return Queue(
        "machine",
        "machine",
        tuple(amounts),
        running=len(holders),
        waiting=len(queue),
        waiters=tuple(waiters),
    )


def _asked(ticket: Mapping[str, Any]) -> str:
    amounts = [Amount(name, ticket[name]) for name in ("cpu", "memory", "gpus") if ticket[name]]
    return ", ".join(f"{each.show(each.used)} {each.resource}" for each in amounts) or "its turn"
