"""Queues of a place: what they have, how much of it is taken, and who waits. Values only: a cluster's are
read by `allaboard.backends.kubernetes.operations.queues`, this machine's by
`allaboard.backends.local.queues`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from allaboard.text.units import show_bytes


@dataclass(frozen=True, slots=True)
class Amount:
    """One resource of a queue, in cores, bytes or pieces. ``used``: by all that share the quota; ``quota``:
    None where there is no limit, or it is not known; ``flavor``: of Kueue, a kind of nodes with a quota of
    its own.
    """

    resource: str
    used: float
    quota: float | None = None
    flavor: str | None = None

    @property
    def free(self) -> float | None:
        """Rest of the quota; 0 if more is used, as borrowers do."""
        return None if self.quota is None else max(0.0, self.quota - self.used)

    def show(self, value: float) -> str:
        """A value of this resource, for people: ``1.5``, ``64.0 GiB``."""
        is_bytes = "memory" in self.resource or "storage" in self.resource
        return show_bytes(value) if is_bytes else f"{value:g}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "free": self.free}


@dataclass(frozen=True, slots=True)
class Waiter:
    """A job that waits. ``position``: 1 is next, None where the queue does not tell; ``since``: seconds since
    1970; ``user``: whose it is, of a machine's; ``boost``: what Kueue adds to the priority
    (`allaboard.runs.boost`), where it does; ``why``: one sentence.
    """

    name: str
    since: float | None = None
    position: int | None = None
    priority: int | None = None
    user: str | None = None
    boost: int | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """``kind``: LocalQueue (Kueue), Queue (Volcano), ResourceQuota, or machine. ``parent``: the
    ClusterQueue that a LocalQueue hands its jobs to; ``cohort``: the queues that lend each other what they
    do not use. ``running`` and ``waiting``: how many jobs, those of other namespaces included where the
    queue counts them; None: it does not count. ``waiters``: those that may be seen here, the next first.
    ``closed``: why it admits nothing.
    """

    name: str
    kind: str
    amounts: tuple[Amount, ...] = ()
    parent: str | None = None
    cohort: str | None = None
    running: int | None = None
    waiting: int | None = None
    waiters: tuple[Waiter, ...] = ()
    closed: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "parent": self.parent,
            "cohort": self.cohort,
            "closed": self.closed,
            "running": self.running,
            "waiting": self.waiting,
            "resources": [amount.to_dict() for amount in self.amounts],
            "waiters": [asdict(waiter) for waiter in self.waiters],
        }
