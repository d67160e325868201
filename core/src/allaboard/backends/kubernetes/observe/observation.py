"""Observation of a job object, its pods, its events and its gang. Values in, values out; the time is that of
the API server.

A field that no object shows any more is None, unless a follower hands in its memory of earlier looks
(`Memory`): the times of phases, and the ends of members whose pods are gone.

Each phase has its own clock, which begins at the end of the phase before:

admitted      the job (or its resume) -> its first pod. In a queue of Kueue: the seconds in the queue, those
              before the job was taken back included, which its clock does not count
scheduled     -> as many members as start together have a node
image         -> their containers that train have started: images, volumes and init containers are there
rendezvous    always None: no object shows it, and rank 0 need not write a line about it
first_step    -> the first line of rank 0 that reports progress; None where its log is not read
training      -> the end

On one machine the connections to the rendezvous port are seen; those of pods are not. torchrun logs the end
of its rendezvous at a level that is off by default, and the first line of progress proves that the members
have met, but may come minutes later. So the clock of the first step begins with the start of the members
here, and a limit of the rendezvous gives a warning (`allaboard.render.manifests`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from allaboard.backends.kubernetes.client.values import at
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.backends.kubernetes.observe import images
from allaboard.backends.kubernetes.observe.containers import is_over
from allaboard.backends.kubernetes.observe.lost_nodes import stall_of_lost_node
from allaboard.backends.kubernetes.observe.managers import holding_queue, runs_elsewhere
from allaboard.backends.kubernetes.observe.objects import (
    event_seen,
    from_nodes,
    object_seen,
    objects_of,
    pod_seen,
)
from allaboard.backends.kubernetes.observe.obstacles import is_over_quota, obstacle_of
from allaboard.backends.kubernetes.observe.scene import Scene, refusal
from allaboard.engines import ENGINES, Engine, engine_of, engine_of_object
from allaboard.engines.base import JobSeen, restarts_in_all
from allaboard.engines.kubeflow import NOT_STARTED
from allaboard.follow.printed import ProgressReader
from allaboard.follow.progress import add_flags, add_report, flags_of, progress_of_trainer
from allaboard.follow.run_record import RunRecord
from allaboard.gangs import GANGS, is_gang_scheduler
from allaboard.gangs.base import GangView
from allaboard.gangs.kueue import PENDING, Held, WorkloadSeen, sent_away, waited_since, why_held
from allaboard.gangs.placement import (
    cannot_rejoin_reason,
    gang_places,
    has_half_started,
    has_too_few_members,
    unknown_scheduler_reason,
    unnoticed_reason,
)
from allaboard.job.training_job import TrainingJob
from allaboard.render import labels
from allaboard.runs.layout import Layout
from allaboard.runs.observation import (
    PHASES,
    Condition,
    ContainerSeen,
    Doubt,
    Event,
    EventSeen,
    MemberSeen,
    Objects,
    Observation,
    Obstacle,
    PodSeen,
    Progress,
    Stop,
    in_order,
)
from allaboard.text.units import counted, from_rfc3339

Json = Mapping[str, Any]
HALF_STARTED = "gang_partial_scheduling"
_NOT_HERE = ("pending", "deleted")
"""Phases of a member without a pod."""
PODS_KEPT = 8
"""Pods of one member whose restarts are kept one by one."""


@dataclass(frozen=True, slots=True)
class ProgressState:
    """State of rank 0's reports. ``first``: the time of the first line of progress in this attempt;
    ``doubts``: about its success, by the logs at its end.
    """

    progress: Progress = field(default_factory=Progress)
    flags: tuple[str, ...] = ()
    first: float | None = None
    doubts: tuple[Doubt, ...] = ()


def apply_reports(
    before: ProgressState,
    lines: Iterable[tuple[float | None, str]],
    now: float,
    own: str | None = None,
    reader: ProgressReader | None = None,
) -> ProgressState:
    """The state after more lines of one try of rank 0, each with its time; ``now`` is the time of lines
    without. ``own``: the folder of the run's checkpoints; ``reader``: of that try, None: of one that begins
    here.
    """
    reader = reader or ProgressReader()
    progress, flags, first = before.progress, dict.fromkeys(before.flags, ""), before.first
    for when, report in ((when, report) for when, line in lines for report in reader.read(line)):
        flags |= add_flags(flags, flags_of(report, progress, own))
        progress = add_report(progress, report, now if when is None else when, own)
        if report.kind == "progress" and first is None:
            first = now if when is None else when
    return replace(before, progress=progress, flags=tuple(flags), first=first)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of earlier looks at an attempt, whose objects may be gone. ``since``: the time at which its
    clocks began; ``held``: a queue held it back at the last look, ``resumed``: the time at which its operator
    had last resumed it then; ``waited``: seconds that it was in its queue before ``since``, each time until
    its members were made; ``taken``: the time at which its operator took it up (its startTime); ``admitted``
    to ``started``: the ends of these phases; ``begun``: the members have started, even where the time is
    unknown; ``members``: each as it was last seen with a pod; ``pods``: member -> uid of its pod -> restarts
    of that pod's containers; ``earlier``: restarts before those, and before the last resume.
    """

    since: float | None = None
    held: bool = False
    resumed: float | None = None
    waited: float = 0.0
    taken: float | None = None
    admitted: float | None = None
    scheduled: float | None = None
    started: float | None = None
    begun: bool = False
    members: Mapping[str, MemberSeen] = field(default_factory=dict)
    pods: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    earlier: Mapping[str, int] = field(default_factory=dict)

    def restarts(self, member: str) -> int:
        """Restarts of a member: those of its containers, and each time that its pod was made anew."""
        tries = self.pods.get(member, {})
        return self.earlier.get(member, 0) + sum(tries.values()) + max(0, len(tries) - 1)

    def before(self, pods: Collection[str]) -> dict[str, int]:
        """Restarts of every member before these pods (uids) were made."""
        left = {
            name: {uid: n for uid, n in tries.items() if uid not in pods} for name, tries in self.pods.items()
        }
        older = replace(self, pods=left)
        return {name: older.restarts(name) for name in {**self.earlier, **left}}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Memory:
        """The inverse of `to_dict`; fields of a newer writer are left out."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        fields = MemberSeen.__dataclass_fields__
        known["members"] = {
            name: MemberSeen(**{k: v for k, v in values.items() if k in fields})
            for name, values in data.get("members", {}).items()
        }
        return cls(**known)


def observation(
    record: RunRecord,
    job: Json | None,
    *,
    now: float,
    submitted: bool,
    pods: Sequence[Json] = (),
    events: Sequence[Json] = (),
    groups: Sequence[Json] = (),
    rivals: Sequence[Json] = (),
    nodes: Sequence[Node] | None = None,
    workload: WorkloadSeen | None = None,
    queue: Json | None = None,
    layout: Layout | None = None,
    report: ProgressState | None = None,
    memory: Memory | None = None,
    notes: tuple[str, ...] = (),
    tails: Mapping[str, str] | None = None,
) -> Observation:
    """The observation of the attempt of a record. ``job``: its object, None when it is not there;
    ``submitted``: it is known to have been there once; ``pods``: those of the attempt; ``events``: those of
    the job, its pods and its gang; ``groups``: the objects of its gang; ``rivals``: pods of other runs;
    ``nodes``: None when they are not known; ``workload``: Kueue's, as in `_held`; ``queue``: that of the gang
    scheduler; ``layout``: the layout of the job, which names the members when the job is gone; ``report``:
    None when rank 0's log is not read; ``memory``: of `remembered`, this look included.
    """
    engine = _engine(record, job, layout)
    gone = layout.name if layout is not None else ""
    beside = (gone, nodes, workload, queue)
    base = _of_job(engine, job, pods, events, groups, report, memory, now, rivals, *beside)
    stop = record.stop or base.stop
    seen = replace(
        base,
        run=record.run,
        key=record.key,
        job=record.job,
        attempt=record.attempt,
        generation=record.generation,
        interruptions=record.interruptions,
        uid=record.uid,
        spec_hash=record.spec_hash,
        owner=record.owner,
        created=base.created if base.created is not None else record.created,
        stop=stop,
        notes=(*base.notes, *notes),
        tails=dict(tails or {}),
        handed_over=record.handed_over,
        objects=None if tails is None else _objects(engine, job, pods, events, groups, nodes, workload, now),
    )
    if job is not None:
        return seen
    without_job = _without_job(seen, record, pods, submitted, now)
    if layout is None:
        return without_job
    members = _all_members(layout, without_job.members, memory, "deleted" if submitted else "pending")
    scope = engine.rules(layout).scope
    return replace(
        without_job, members=members, restarts=restarts_in_all([m.restarts for m in members], scope)
    )


def _all_members(
    layout: Layout, members: tuple[MemberSeen, ...], memory: Memory | None, phase: str
) -> tuple[MemberSeen, ...]:
    """Every member of a job that is gone: those with a pod as they are, the others as they were last seen."""
    there = {member.name: member for member in members}
    remembered_so_far = memory if memory is not None else Memory()
    return tuple(
        replace(there[m.name], rank=m.rank)
        if m.name in there
        else _with_memory(MemberSeen(m.group, m.index, m.rank, phase), remembered_so_far)
        for m in layout.members
    )


def of_object(
    job: Json,
    *,
    now: float,
    pods: Sequence[Json] = (),
    events: Sequence[Json] = (),
    groups: Sequence[Json] = (),
    workload: WorkloadSeen | None = None,
    tails: Mapping[str, str] | None = None,
) -> Observation:
    """The observation of a job that another tool made: it has no record, and its run is its name. Raises
    KeyError for a kind that no engine knows.
    """
    engine = engine_of_object(job)
    if engine is None:
        raise KeyError(f"{job.get('apiVersion')}/{job.get('kind')}")
    seen = _of_job(engine, job, pods, events, groups, None, None, now, workload=workload)
    name = str(job["metadata"]["name"])
    objects = None if tails is None else _objects(engine, job, pods, events, groups, None, workload, now)
    uid = job["metadata"].get("uid")
    return replace(seen, run=name, job=name, uid=uid, tails=dict(tails or {}), objects=objects)


def _objects(
    engine: Engine,
    job: Json | None,
    pods: Sequence[Json],
    events: Sequence[Json],
    groups: Sequence[Json],
    nodes: Sequence[Node] | None,
    workload: WorkloadSeen | None,
    now: float,
) -> Objects:
    """The objects as values for the rules; pods have the names of their members."""
    workloads = None if workload is None else [*([workload.body] if workload.body is not None else ())]
    objects = objects_of(
        now=now,
        job=job,
        pods=[*_by_member(engine, pods).values()],
        events=events,
        groups=groups,
        workloads=workloads,
        engine=engine,
        by_member=True,
    )
    return replace(objects, nodes=from_nodes(nodes))


def _engine(record: RunRecord, job: Json | None, layout: Layout | None) -> Engine:
    """The engine of the job object, else that of its layout or record: a job file may name no engine."""
    engine = engine_of_object(job) if job is not None else None
    if engine is None and layout is not None:
        engine = ENGINES.get(layout.engine)
    return engine or engine_of(TrainingJob.of(record.spec))


# A job object and what belongs to it.


def _of_job(
    engine: Engine,
    job: Json | None,
    pods: Sequence[Json],
    events: Sequence[Json],
    groups: Sequence[Json],
    report: ProgressState | None,
    memory: Memory | None,
    now: float,
    rivals: Sequence[Json] = (),
    gone: str = "",
    nodes: Sequence[Node] | None = None,
    workload: WorkloadSeen | None = None,
    queue: Json | None = None,
) -> Observation:
    """``gone``: the name of a job that is not there any more."""
    read = _read_job(engine, job, pods).seen
    seen_events = [event_seen(event) for event in events]
    refused = refusal(seen_events)
    body = workload.body if workload is not None else None
    known = memory if memory is not None else remembered(Memory(), job, pods, engine, body)
    members = tuple(_with_memory(member, known) for member in read.members)
    ended = any(c.type in ("Succeeded", "Failed") and c.status == "True" for c in read.conditions)
    gang_view, waiting, obstacle, stall = None, None, None, None
    elsewhere = job is not None and runs_elsewhere(job) and not read.suspended
    if elsewhere:
        # No pod of it is here, and that means nothing.
        members = tuple(replace(m, phase="unknown") if m.phase in _NOT_HERE else m for m in members)
    elif job is not None and not ended and not read.suspended:
        gang_view = _read_gang(engine, job, read, pods, seen_events, groups, now, rivals, queue)
        waiting = _waiting(job, gang_view, refused)
        obstacle = _obstacle(engine, job, read, gang_view, pods, nodes)
        stall = stall_of_lost_node(pods, engine.member_of)
    flags = list(report.flags) if report is not None else []
    flags += [images.DIFFER] if images.differ(_seen(engine, pods), engine.CONTAINER) else []
    held = None if job is None or ended or not read.suspended else _held(job, workload, now)
    if held is not None:
        waiting = held.text
        flags.append(held.code)
    if held is not None and held.never:
        obstacle = Obstacle(held.code, held.text, never=True)
    if gang_view is not None and job is not None:
        code = _held_by(job, gang_view, waiting, refused)
        # "When there is room" is not to be said of what never fits.
        hopeless = obstacle is not None and obstacle.never and code == "gang_unschedulable"
        flags += [code] if code and not hopeless else []
    metadata = (job or {}).get("metadata") or {}
    return Observation(
        run=str(metadata.get("name", "")),
        conditions=_conditions(job, read),
        members=members,
        restarts=restarts_in_all([m.restarts for m in members], read.scope),
        created=from_rfc3339(metadata.get("creationTimestamp")),
        # The operator keeps the start of a job that its queue has taken back; no deadline counts its wait.
        started=None if held is not None else _first(read.started, known.taken),
        finished=read.finished if ended else None,
        suspended=read.suspended and not ended and held is None,
        stop=_stop(metadata),
        waiting=waiting,
        obstacle=obstacle,
        stall=stall,
        phases=phases(
            known,
            report,
            read.finished if ended else now,
            on=not ended and job is not None,
            # A job that is just being taken back counts, too: its members' phases are over.
            elsewhere=elsewhere or held is not None,
        ),
        queued_before=known.waited,
        elsewhere=elsewhere,
        progress=_progress(job, report),
        doubts=report.doubts if report is not None else (),
        flags=tuple(flags),
        notes=(sent_away(body),) if elsewhere else (),
        events=tuple(in_order(_to_events(engine, str(metadata.get("name", gone)), pods, seen_events))),
    )


def _conditions(job: Json | None, read: JobSeen) -> tuple[Condition, ...]:
    """The conditions of the job. A job that its queue has admitted is not suspended any more, even if its
    operator has not updated the status yet.
    """
    if job is None or read.suspended or holding_queue(job) is None:
        return read.conditions
    return tuple(c for c in read.conditions if (c.type, c.status) != ("Suspended", "True"))


def _progress(job: Json | None, report: ProgressState | None) -> Progress:
    """The reports of rank 0; where it reports no steps, those of the job object's status."""
    own = report.progress if report is not None else Progress()
    if own.step is not None or own.result is not None:
        return own
    by_trainer = progress_of_trainer(((job or {}).get("status") or {}).get("trainerStatus"))
    if by_trainer is None:
        return own
    return replace(
        own,
        step=by_trainer.step,
        total=by_trainer.total,
        heartbeat=own.heartbeat or by_trainer.heartbeat,
        metrics={**by_trainer.metrics, **own.metrics},
    )


def _with_memory(member: MemberSeen, memory: Memory) -> MemberSeen:
    """A member whose pod is gone, as it was last seen; and the restarts of all its pods."""
    before = memory.members.get(member.name)
    if before is not None and member.phase in ("deleted", "pending") and member.log is None:
        if member.phase == "deleted":
            member = replace(before, rank=member.rank, phase=member.phase)
        else:
            member = replace(
                member, exit_code=before.exit_code, ended=before.ended, end_reason=before.end_reason
            )
    return replace(member, restarts=max(member.restarts, memory.restarts(member.name)))


def _seen_member_memory(member: MemberSeen, memory: Memory) -> MemberSeen:
    """The member for the memory: a member that is made anew keeps its end until it has started again."""
    return replace(_with_memory(member, memory), restarts=member.restarts)


def _stop(metadata: Mapping[str, Any]) -> Stop | None:
    """The stop of a job that is being deleted, by its annotations; None: it is not being deleted."""
    deleted = from_rfc3339(metadata.get("deletionTimestamp"))
    annotations = metadata.get("annotations") or {}
    if deleted is None:
        return None
    by = annotations.get(labels.STOPPED_BY) or "somebody"
    return Stop(
        str(by), str(annotations.get(labels.STOP_REASON) or "the job object is being deleted"), deleted
    )


def _without_job(
    seen: Observation, record: RunRecord, pods: Sequence[Json], submitted: bool, now: float
) -> Observation:
    """The observation of a missing job: it was stopped, it ended and was cleared away, a person deleted it,
    or it was never made.
    """
    living = not all(map(is_over, pods))
    if record.outcome is not None:
        ended = record.outcome
        return replace(seen, recorded=ended.state, finished=ended.at, deleted=record.deleted)
    if not submitted:
        # It is not made yet: the next launch under this key makes it.
        return replace(seen, stopped=record.stop is not None)
    if record.stop is not None:
        return replace(seen, stopped=not living, finished=None if living else record.stop.at)
    if living:
        return replace(seen, stop=Stop("somebody", "the job object was deleted", now))
    if (record.spec.get("policy") or {}).get("ttl") is not None:
        # Its ttl may have removed it in the moment between its end and our look.
        note = "the job is gone: its ttl is over or somebody deleted it; nobody saw how it ended"
        return replace(seen, alive=False, notes=(*seen.notes, note))
    return replace(seen, deleted=True, notes=(*seen.notes, "somebody deleted the job object"))


# Waiting.


def _held(job: Json, workload: WorkloadSeen | None, now: float) -> Held | None:
    """The reason for which a queue holds a suspended job back; None: no queue does. ``workload``: None where
    nobody has looked.
    """
    queue = holding_queue(job)
    if queue is None:
        return None
    if workload is None:
        return Held(PENDING, f"Kueue holds it back in queue {queue}")
    return why_held(queue, workload.body, now - (object_seen(job).created or 0.0), now, workload.position)


def _read_gang(
    engine: Engine,
    job: Json,
    read: JobSeen,
    pods: Sequence[Json],
    events: Sequence[EventSeen],
    groups: Sequence[Json],
    now: float,
    rivals: Sequence[Json],
    queue: Json | None,
) -> GangView:
    others: dict[str, list[PodSeen]] = {}
    for pod in rivals:
        others.setdefault(labels.label_of(pod, labels.RUN) or "", []).append(pod_seen(pod))
    return GangView(
        needed=_read_job(engine, job, pods).needed,
        total=read.total,
        now=now,
        pods=_newest(_seen(engine, pods)),
        groups=groups,
        events=events,
        rivals=others,
        queue=queue,
    )


def _obstacle(
    engine: Engine,
    job: Json,
    read: JobSeen,
    gang_view: GangView,
    pods: Sequence[Json],
    nodes: Sequence[Node] | None,
) -> Obstacle | None:
    order = {member.name: member.rank for member in read.members}
    return obstacle_of(
        Scene(
            job=job,
            container=engine.CONTAINER,
            pods=dict(sorted(gang_view.pods.items(), key=lambda item: order.get(item[0], len(order)))),
            now=gang_view.now,
            total=gang_view.total,
            needed=gang_view.needed,
            events=gang_view.events,
            nodes=nodes,
            specs={} if nodes is None else {m: at(p, "spec") for m, p in _by_member(engine, pods).items()},
            has_status=bool(job.get("status")),
            suspended=read.suspended,
        )
    )


@dataclass(frozen=True, slots=True)
class _JobRead:
    """A job as its engine reads it. ``needed``: members that start together, 0 for a job that is gone."""

    job: Json | None
    pods: tuple[Json, ...]
    seen: JobSeen
    needed: int


_READ: dict[tuple[str, tuple[tuple[int, str], ...]], _JobRead] = {}
"""The last few jobs that were read."""
_MOST_READ = 64
"""Jobs: one look reads its job several times, and several threads look at the same time."""


def _read_job(engine: Engine, job: Json | None, pods: Sequence[Json]) -> _JobRead:
    """Read a job and its pods. What is the same object of the same version is read once by a look."""
    bodies = () if job is None else (job, *pods)
    key = (engine.NAME, tuple((id(body), _version(body)) for body in bodies))
    if (known := _READ.get(key)) is not None:
        return known
    read = _JobRead(job, tuple(pods), engine.read(job, pods), 0 if job is None else engine.needed(job))
    if bodies and all(version for _, version in key[1]):
        if len(_READ) >= _MOST_READ:
            _READ.clear()
        _READ[key] = read
    return read


def _version(body: Json) -> str:
    return str((body.get("metadata") or {}).get("resourceVersion") or "")


def _seen(engine: Engine, pods: Sequence[Json]) -> list[PodSeen]:
    return [pod_seen(pod, engine.CONTAINER, engine.member_of(pod)) for pod in pods]


def _by_member(engine: Engine, pods: Sequence[Json]) -> dict[str, Json]:
    """Member -> its pod: the newest, where an old one is still ending."""
    every = zip(_seen(engine, pods), pods, strict=True)
    ordered = sorted(every, key=lambda pair: _newest_last(pair[0]))
    return {seen.member: pod for seen, pod in ordered if seen.member is not None}


def _newest(pods: Sequence[PodSeen]) -> dict[str, PodSeen]:
    return {pod.member: pod for pod in sorted(pods, key=_newest_last) if pod.member is not None}


def _newest_last(pod: PodSeen) -> tuple[bool, float]:
    return pod.deleted is None, _created(pod)


def _waiting(job: Json, gang_view: GangView, refused: str | None) -> str | None:
    """The reason why it does not start, in a sentence: a refusal of its pods, else the state of its gang."""
    if len(gang_view.pods) < gang_view.needed and refused is not None:
        of = counted(gang_view.total, "member")
        return f"{gang_view.total - len(gang_view.pods)} of {of} cannot be made: {refused}"
    name = labels.annotation_of(job, labels.GANG) or "none"
    gang = GANGS.get(name)
    return unknown_scheduler_reason(gang_view, name) if gang is None else gang.read(gang_view)


def _held_by(job: Json, gang_view: GangView, waiting: str | None, refused: str | None) -> str | None:
    """The code of the obstacle to its start; None for a wait that every start has."""
    at = gang_places(gang_view)
    gang = GANGS.get(labels.annotation_of(job, labels.GANG) or "none")
    is_gang = gang is not None and is_gang_scheduler(gang)
    if is_gang and cannot_rejoin_reason(gang_view, at, "") is not None:
        return "gang_bereft"
    if has_half_started(gang_view):
        return HALF_STARTED
    if waiting is None:
        return None
    if len(gang_view.pods) < gang_view.needed and is_over_quota(refused or ""):
        return "resource_quota_exceeded"
    if unnoticed_reason(gang_view, at) is not None:
        return "gang_scheduler_missing"
    # All its members exist, and a scheduler that knows them for a gang has found no room.
    full = is_gang and at.waiting and not at.missing and not has_too_few_members(gang_view)
    return "gang_unschedulable" if full else None


# Time.


def remembered(
    memory: Memory,
    job: Json | None,
    pods: Sequence[Json],
    engine: Engine | None = None,
    workload: Json | None = None,
) -> Memory:
    """The memory after one more look. ``workload``: Kueue's, where it was read."""
    engine = engine or (engine_of_object(job) if job is not None else None)
    if engine is None:
        return memory
    job_read, seen = _read_job(engine, job, pods), _seen(engine, pods)
    read = job_read.seen
    since, held = _since(memory, job, read, workload), is_held(job, read)
    if since is not None and since != memory.since:
        # Created, resumed, or taken back by its queue: its clocks begin anew, and pods that are made again
        # are no restarts. The operator makes them before it says that the job is resumed: they may have been
        # seen already.
        made = [pod for pod in seen if pod.deleted is None]
        anew = {pod.uid for pod in made if not (held and _created(pod) < since)}
        waited = _waited(memory, since) if job is not None and holding_queue(job) is not None else 0.0
        earlier = memory.before(anew)
        memory = Memory(since=since, waited=waited, members=memory.members, earlier=earlier)
    says_suspended = any(c.type == "Suspended" and c.status == "True" for c in read.conditions)
    waits = held and (says_suspended or memory.admitted is None)
    memory = replace(memory, held=waits, resumed=_resumed(read))
    if read.suspended and not read.finished:
        return memory
    # A pass of the operator that does not know yet that the job has ended may make pods anew.
    seen = [pod for pod in seen if not _is_late(memory, pod, read.finished)]
    named = _newest(seen)
    needed = job_read.needed if job is not None else len(named)
    own = [pod for pod in named.values() if _created(pod) >= (memory.since or 0.0)]
    elsewhere = job is not None and runs_elsewhere(job)
    admitted = read.started if elsewhere else _nth([_created(pod) for pod in own], 1)
    scheduled = _nth([at for pod in own if (at := _placed(pod)) is not None], needed)
    started = _nth([at for pod in own if (at := _first_start(engine, pod)) is not None], needed)
    return replace(
        memory,
        taken=_first(read.started, memory.taken),
        admitted=_first(memory.admitted, admitted),
        scheduled=_first(memory.scheduled, scheduled),
        started=_first(memory.started, started),
        begun=memory.begun or started is not None or sum(_has_started(engine, p) for p in own) >= needed > 0,
        members={
            **memory.members,
            **{m.name: _seen_member_memory(m, memory) for m in read.members if m.name in named},
        },
        **_restarts(memory, seen),
    )


def _restarts(memory: Memory, pods: Sequence[PodSeen]) -> dict[str, Any]:
    """``pods`` and ``earlier`` of the memory after one more look. A member that is made anew again and again
    keeps its oldest pods as a number.
    """
    restarts = {name: dict(tries) for name, tries in memory.pods.items()}
    earlier = dict(memory.earlier)
    for pod in pods:
        name, uid = pod.member, pod.uid
        if name is None or not uid:
            continue
        is_old = pod.deleted is not None and _created(pod) < (memory.since or 0.0)
        if is_old and uid not in restarts.get(name, {}):
            continue  # of before the last resume: it has been counted
        tries = restarts.setdefault(name, {})
        tries[uid] = pod.restarts
        while len(tries) > PODS_KEPT:
            earlier[name] = earlier.get(name, 0) + 1 + tries.pop(next(iter(tries)))
    return {"pods": restarts, "earlier": earlier}


def _is_late(memory: Memory, pod: PodSeen, finished: float | None) -> bool:
    """True when a pod was made after the end, or in the second of the end in place of another pod."""
    if finished is None or _created(pod) < finished:
        return False
    others = {*memory.pods.get(pod.member or "", {})} - {pod.uid}
    return _created(pod) > finished or bool(others)


def _since(memory: Memory, job: Json | None, read: JobSeen, workload: Json | None) -> float | None:
    """The time at which the clocks began: with the job, or with its last resume; in a queue of Kueue, with
    its arrival or its return. None: nobody saw that.
    """
    resumed = _resumed(read)
    created = from_rfc3339(((job or {}).get("metadata") or {}).get("creationTimestamp"))
    if job is None or holding_queue(job) is None:
        return resumed or created
    taken = next((c.since for c in read.conditions if c.type == "Suspended" and c.status == "True"), None)
    if is_held(job, read):
        if memory.since is not None and (memory.held or taken is None):
            return memory.since  # the same stay; or its operator has not said yet that it was taken back
        return taken or created
    if resumed is None:
        return created  # it was let in before its operator knew of it
    if memory.since is not None and (memory.held or resumed == memory.resumed):
        return memory.since  # its wait is over
    asked = None if workload is None else waited_since(workload)
    return asked or (None if memory.since is None else resumed)


def _resumed(read: JobSeen) -> float | None:
    return next((c.since for c in read.conditions if c.type == "Suspended" and c.status == "False"), None)


def _waited(memory: Memory, until: float) -> float:
    """Seconds that it had been in its queue before it came into it at this time."""
    if memory.since is None:
        return memory.waited
    return memory.waited + max(0.0, (until if memory.admitted is None else memory.admitted) - memory.since)


def is_held(job: Json | None, read: JobSeen) -> bool:
    """True when a queue holds this job back, as far as the job object shows: also while its operator has not
    updated the status yet.
    """
    if job is None or holding_queue(job) is None or read.finished:
        return False
    says_suspended = any(c.type == "Suspended" and c.status == "True" for c in read.conditions)
    return read.suspended or says_suspended


def _created(pod: PodSeen) -> float:
    return pod.created or 0.0


def _placed(pod: PodSeen) -> float | None:
    scheduled = pod.condition("PodScheduled")
    return scheduled.since if scheduled is not None and scheduled.status == "True" else None


def _first_start(engine: Engine, pod: PodSeen) -> float | None:
    """The first start of the container that trains; None where a pod, which shows only its last two starts,
    has lost it.
    """
    main = _trains(engine, pod)
    if main.restarts > 1:
        return None
    tries = [t for t in (main.last, main.now) if t is not None and t.reason not in NOT_STARTED]
    return next((t.started for t in tries if t.started is not None), None)


def _has_started(engine: Engine, pod: PodSeen) -> bool:
    main = _trains(engine, pod)
    if main.now.state == "running":
        return True
    ended = [t for t in (main.now, main.last) if t is not None and t.state == "terminated"]
    if ended:
        return any(t.reason not in NOT_STARTED for t in ended)
    return main.restarts > 0


def _trains(engine: Engine, pod: PodSeen) -> ContainerSeen:
    """The container that trains; an empty one where there is none."""
    named = (c for c in pod.containers if c.name == engine.CONTAINER and c.role in ("main", "sidecar"))
    return next(named, ContainerSeen(engine.CONTAINER))


def _nth(times: list[float], n: int) -> float | None:
    """The moment at which n of them had come."""
    return sorted(times)[n - 1] if 0 < n <= len(times) else None


def _first(earlier: float | None, now: float | None) -> float | None:
    return earlier if earlier is not None else now


def phases(
    memory: Memory, report: ProgressState | None, until: float | None, *, on: bool, elsewhere: bool = False
) -> dict[str, float | None]:
    """Seconds in each phase, the current one included; None: not seen. ``until``: the end of the run, or now;
    ``on``: it goes on; ``elsewhere``: no member is here that could be in a later phase.
    """
    seconds: dict[str, float | None] = dict.fromkeys(PHASES)
    stepped = report.first if report is not None else None
    steps: list[tuple[str, float | None, float | None, bool]] = [
        ("admitted", memory.since, memory.admitted, memory.admitted is not None),
        ("scheduled", memory.admitted, memory.scheduled, memory.scheduled is not None),
        ("image", memory.scheduled, memory.started, memory.begun),
    ]
    if elsewhere:
        del steps[1:]
    elif report is not None:
        steps.append(("first_step", memory.started, stepped, stepped is not None))
        steps.append(("training", stepped, None if on else until, False))
    for name, begun, ended, over in steps:
        # A phase that has no end is on, unless it is known to be over or the job has ended in it.
        last = ended if ended is not None or over or not on else until
        if begun is not None and last is not None:
            seconds[name] = max(0.0, last - begun)
        if not over:
            break
    if seconds["admitted"] is not None:
        seconds["admitted"] += memory.waited
    return seconds


# Events.


def _to_events(
    engine: Engine, job: str, pods: Sequence[Json], events: Sequence[EventSeen]
) -> Iterator[Event]:
    """Events as values: those of a pod have the member's name, those of the job its own."""
    names = {(pod.get("metadata") or {}).get("name"): engine.member_of(pod) for pod in pods}
    for event in events:
        # The name of a deleted pod shows its member: it begins with the job's name.
        member = (names.get(event.name) or _tail(event.name, job)) if event.kind == "Pod" else None
        own = event.name if event.kind in (engine.KIND, "") else f"{event.kind.lower()}/{event.name}"
        yield Event(event.time, event.type, event.reason, member or own, event.message, event.id)


def _tail(name: str, job: str) -> str | None:
    """``digits-1-worker-0`` of the job ``digits-1`` -> ``worker-0``."""
    match = re.fullmatch(r"[a-z]+-\d+", name.removeprefix(f"{job}-"))
    return match[0] if match and job and name.startswith(f"{job}-") else None
