"""The values that all gang schedulers share: the planned gang, and the view of a waiting gang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allaboard.runs.observation import EventSeen, PodSeen


@dataclass(frozen=True, slots=True)
class GangPlan:
    """Members that start together. ``how``: ``marks`` (labels and objects of ours), ``natively`` (the job's
    operator makes the objects) or ``none``. ``name``: of the object that holds them together; ``members``
    of ``total`` must have a place before any of them starts; ``scheduler``: the schedulerName they carry.
    ``groups``: role -> members; ``kind``: group/version/Kind of the object; ``timeout`` in seconds;
    ``local_queue``: that of Kueue which admits the job, whoever places it then; ``priority``: a
    PriorityClass; ``queue_priority``: a WorkloadPriorityClass, by which that queue orders it; ``require`` and
    ``prefer``: the domain within which all members are placed; ``placed_by_queue``: the annotations of
    members by which Kueue sees to that; ``annotations``: what the job says of its job object;
    ``job_annotations``: what its gang scheduler reads there beside that; ``placed_by_scheduler``: among it,
    the domains; ``elsewhere``: something else than the job says who places its pods; ``alone``: why its
    members start one by one, where the job has not asked for that; ``constrained``: its object may name the
    required domain; ``pods``: role -> the spec of its pods, without marks, with the containers that their
    operator may add.
    """

    gang: str
    how: str
    name: str
    namespace: str
    members: int
    total: int
    kind: str = ""
    scheduler: str | None = None
    timeout: float | None = None
    queue: str | None = None
    local_queue: str | None = None
    priority: str | None = None
    queue_priority: str | None = None
    require: str | None = None
    prefer: str | None = None
    placed_by_queue: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    job_annotations: Mapping[str, str] = field(default_factory=dict)
    placed_by_scheduler: bool = False
    elsewhere: bool = False
    alone: str | None = None
    constrained: bool = False
    pods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def least(self) -> dict[str, int]:
        """Role -> how many of its members must have a place: all; of an elastic gang the last roles, whose
        members come and go, have fewer, and one at least.
        """
        left, counts = self.total - self.members, dict(self.groups)
        for role in reversed(counts):
            fewer = min(left, max(0, counts[role] - 1))
            counts[role] -= fewer
            left -= fewer
        return counts


@dataclass(frozen=True, slots=True)
class GangView:
    """The present state of a gang: the pod of each member that has one, by member name; the objects that hold
    it together; events of the pods and these objects, oldest first. ``needed`` of ``total`` members start
    together. ``rivals``: pods of other runs, by run, if they were read; ``queue``: the queue of the gang
    scheduler that the gang is in, if it may be read.
    """

    needed: int
    total: int
    now: float
    pods: Mapping[str, PodSeen] = field(default_factory=dict)
    groups: Sequence[Mapping[str, Any]] = ()
    events: Sequence[EventSeen] = ()
    rivals: Mapping[str, Sequence[PodSeen]] = field(default_factory=dict)
    queue: Mapping[str, Any] | None = None
