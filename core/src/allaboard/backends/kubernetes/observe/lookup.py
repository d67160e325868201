"""Lookup of a run: its record, the job of the record, and the job's pods.

A job belongs to a record if it carries the launch of the record's attempt and, once the record has its uid,
if its uid is the same: names prove nothing. A look gives a value, `AttemptObjects`, and `observation_of`
reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from allaboard.backends.kubernetes.client.errors import Forbidden, Missing
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import (
    CONFIGMAPS,
    EVENTS,
    NAMESPACES,
    PODS,
    resource_of,
)
from allaboard.backends.kubernetes.discovery.components import VOLCANO_QUEUES
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.backends.kubernetes.observe import observation
from allaboard.backends.kubernetes.observe.containers import ContainerRun, PodRole, container_runs, is_over
from allaboard.backends.kubernetes.observe.deadlines import limit_of
from allaboard.backends.kubernetes.observe.managers import holding_queue
from allaboard.backends.kubernetes.observe.objects import pod_seen
from allaboard.backends.kubernetes.observe.observation import Memory, ProgressState
from allaboard.backends.kubernetes.observe.queues import read_place
from allaboard.backends.kubernetes.state import records
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.engines import ENGINES, Engine
from allaboard.errors import BadInput, Corrupt, UnknownRun
from allaboard.follow.run_record import RunRecord
from allaboard.gangs import GANGS
from allaboard.gangs.kueue import WorkloadSeen
from allaboard.gangs.placement import are_only_echoes
from allaboard.render import labels
from allaboard.runs.layout import Layout
from allaboard.runs.observation import Observation, PodSeen, State
from allaboard.runs.status import CLOCK_IDLE, idle_clock, state_of
from allaboard.text.names import nearest, why_not_an_object_name
from allaboard.text.units import from_rfc3339
from allaboard.text.untrusted import show

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

NUDGED = labels.PREFIX + "nudged"
"""Annotation of a job: the time at which its operator was nudged for its deadline."""
NODE_LOST = "node_lost"
"""Flag of a run some of whose pods do not end."""
LATE = 30.0
"""Seconds beyond its grace that a node has to end a pod."""
ONE_BY_ONE = 12
"""Number of objects up to which events are asked for object by object; the events of more objects are picked
from those of the namespace.
"""
TELLS_FOR_ALL = 3
"""Members that do not start whose events are asked for: mostly all have the same trouble."""
ASKING = (State.QUEUED, State.STARTING, State.UNKNOWN, State.RESTARTING)
"""States in which a look asks why the run goes no further."""


@dataclass(frozen=True, slots=True)
class AttemptObjects:
    """Objects of the attempt of a record. ``job``: its job object; ``other``: another object of the same
    name. ``now``: by the API server's clock. ``workload``: Kueue's; None where nobody has looked.
    """

    stored: Stored
    job: Json | None = None
    other: Json | None = None
    pods: tuple[Json, ...] = ()
    now: float = 0.0
    events: tuple[Json, ...] = ()
    groups: tuple[Json, ...] = ()
    rivals: tuple[Json, ...] = ()
    queue: Json | None = None
    workload: WorkloadSeen | None = None
    nodes: tuple[Node, ...] | None = None

    @property
    def record(self) -> RunRecord:
        return self.stored.record

    @property
    def living(self) -> tuple[Json, ...]:
        """Pods whose containers run, or may yet run."""
        return tuple(p for p in self.pods if not is_over(p))

    @property
    def overdue(self) -> tuple[Json, ...]:
        """Pods that are still there though their grace is over (by their deletionTimestamp): their node is
        gone, or something else keeps them.
        """
        return overdue(self.living, self.now)

    @property
    def was_created(self) -> bool:
        """True when the job was ever there, by all that is known."""
        return self.job is not None or self.record.object_uid is not None

    @property
    def ending(self) -> bool:
        """True when the job is being deleted."""
        return self.job is not None and "deletionTimestamp" in self.job["metadata"]

    @property
    def is_missing(self) -> bool:
        """True when the job was there, and is gone, and the record does not say how it ended."""
        record = self.record
        return self.job is None and self.was_created and record.outcome is None and record.stop is None


def overdue(living: Iterable[Json], now: float) -> tuple[Json, ...]:
    """The pods that should be gone by now."""
    ends = ((p, from_rfc3339(p["metadata"].get("deletionTimestamp"))) for p in living)
    return tuple(p for p, end in ends if end is not None and now - end > LATE)


def read_objects(api: Api, stored: Stored) -> AttemptObjects:
    """Read the job of a record and its pods."""
    record = stored.record
    job = other = None
    try:
        there = api.get(resource_of(stored.job), stored.job["name"])
        job, other = (there, None) if matches_record(there, stored) else (None, there)
    except Missing:
        pass
    of_it = labels.selector(record.run, record.attempt, record.generation)
    pods = api.list(PODS, labels=of_it)[0]
    objects = AttemptObjects(stored, job, other, tuple(pods), api.server_time())
    if objects.is_missing and record.object_uid is not None:
        # A ttl may be shorter than the time between two looks. Events outlive their object by an hour or so.
        objects = replace(objects, events=tuple(list_events(api, [record.object_uid], [])))
    return objects


def reread_pods(api: Api, objects: AttemptObjects) -> AttemptObjects:
    """Read the pods of an attempt again, and leave its other objects as they are."""
    record = objects.record
    of_it = labels.selector(record.run, record.attempt, record.generation)
    return replace(objects, pods=tuple(api.list(PODS, labels=of_it)[0]))


def end_by_events(events: Iterable[Json]) -> State | None:
    """The final state of a job, by the events of its operator; None where they do not tell."""
    ends = {reason: State(word) for engine in ENGINES.values() for reason, word in engine.ENDS.items()}
    states = {ends[e["reason"]] for e in events if e.get("reason") in ends}
    return State.FAILED if State.FAILED in states else next(iter(states), None)


def read_explanations(
    api: Api, objects: AttemptObjects, *, everything: bool = False
) -> tuple[AttemptObjects, tuple[str, ...]]:
    """Add the objects that explain a wait: the object of its gang, its rivals, and the events of the job and
    that object; those of its pods, too, where the pods themselves explain nothing; ``everything``: also those
    of deleted objects. Returns sentences, too, about objects that may not be read here.
    """
    notes: list[str] = []
    groups = _read_gang(api, objects, notes)
    queue = _read_queue(api, groups)
    pods = (
        objects.pods
        if everything or are_only_echoes(map(pod_seen, objects.pods))
        else unexplained_pods(objects.pods)
    )
    about = [t for t in (objects.job, *groups, *pods) if t is not None]
    uids = [t["metadata"]["uid"] for t in about]
    events = list_events(api, [*uids, *(_gone_uids(objects, uids) if everything else ())], notes)
    rivals = _read_rivals(api, objects)
    workload = None
    if objects.job is not None and holding_queue(objects.job) is not None:
        workload = read_place(api, objects.job, notes)
    explained = replace(
        objects,
        groups=tuple(groups),
        queue=queue,
        events=tuple(events),
        rivals=tuple(rivals),
        workload=workload,
    )
    return explained, tuple(notes)


def unexplained_pods(pods: Iterable[Json]) -> list[Json]:
    """Pods that have a node, and whose containers do not say why they do not start: their events may. A few
    stand for all.
    """
    return [pod for pod in pods if _is_silent(pod_seen(pod))][:TELLS_FOR_ALL]


def _is_silent(pod: PodSeen) -> bool:
    begun = any(c.now.state == "running" or c.restarts for c in pod.containers)
    return pod.phase == "Pending" and bool(pod.node) and not begun


def _gone_uids(objects: AttemptObjects, there: Sequence[str]) -> Iterator[str]:
    """The uids of the job and of the pods that were seen and are not there any more: their events are."""
    known = [objects.record.object_uid] if objects.record.object_uid is not None else []
    for pods in (objects.stored.memory.get("pods") or {}).values():
        known += pods
    return (uid for uid in known if uid not in there)


def _read_rivals(api: Api, objects: AttemptObjects) -> list[Json]:
    """Pods of other runs of the namespace, when this one has places for some of its members alone, and no
    gang scheduler that would take them back: others may be in the same deadlock.
    """
    has_place = {"nodeName" in pod["spec"] for pod in objects.living}
    if objects.job is None or objects.stored.gang or has_place != {True, False}:
        return []
    run = objects.record.run
    others = api.list(PODS, labels=f"{labels.selector()},{labels.RUN}!={run}")[0]
    return [{**pod, "metadata": {"labels": pod["metadata"]["labels"]}} for pod in others]


def _read_gang(api: Api, objects: AttemptObjects, notes: list[str]) -> list[Json]:
    gang = objects.stored.gang
    if not gang or objects.job is None:
        return []
    name = gang["name"] or _named_gang(objects)
    if name is None:
        return []
    try:
        return [api.get(resource_of(gang), name)]
    except Missing:
        return []
    except Forbidden:
        notes.append(
            f"the reason why its gang waits is unknown: {resource_of(gang).name} may not be read here"
        )
        return []


def _read_queue(api: Api, groups: Sequence[Json]) -> Json | None:
    """The Queue of Volcano that a PodGroup is in. It is an object of the whole cluster, which few may read:
    without it the reason says less.
    """
    of_volcano = (g for g in groups if g.get("apiVersion") == VOLCANO_QUEUES.api_version)
    name = next(((g.get("spec") or {}).get("queue") for g in of_volcano), None)
    if not name:
        return None
    try:
        return api.get(VOLCANO_QUEUES, name)
    except (Missing, Forbidden):
        return None


def _named_gang(objects: AttemptObjects) -> str | None:
    """The name of the object of its gang, by its members; None: no member has it."""
    gang = GANGS.get(labels.annotation_of(objects.job or {}, labels.GANG) or "none")
    if gang is None or gang.NAMED_BY is None:
        return None
    names = (labels.annotation_of(pod, gang.NAMED_BY) for pod in objects.pods)
    return next(filter(None, names), None)


def list_events(api: Api, uids: Sequence[str], notes: list[str]) -> list[Json]:
    """The events of these objects, as far as the cluster keeps them (an hour, mostly)."""
    events: list[Json] = []
    try:
        if len(uids) > ONE_BY_ONE:
            wanted = set(uids)
            every = api.list(EVENTS)[0]
            return [e for e in every if (e.get("involvedObject") or {}).get("uid") in wanted]
        for uid in dict.fromkeys(uids):
            events += api.list(EVENTS, fields=f"involvedObject.uid={uid}")[0]
    except Forbidden:
        notes.append("events may not be read here, so most reasons are unknown")
    return events


def container_runs_of(engine: Engine, members: Iterable[Ranked], pods: Sequence[Json]) -> list[ContainerRun]:
    """Every try of these pods whose log a node may still have. Pods of no member are left out; a member that
    is not known comes last.
    """
    return container_runs(pods, pod_roles(engine, members, pods))


def pod_roles(engine: Engine, members: Iterable[Ranked], pods: Sequence[Json]) -> dict[str, PodRole]:
    """The member of each pod, by the pod's name; pods of no member are left out."""
    ranks = {member.name: member.rank for member in members}
    named = ((pod["metadata"]["name"], engine.member_of(pod)) for pod in pods)
    return {
        pod: PodRole(member, ranks.get(member, len(ranks)), engine.CONTAINER)
        for pod, member in named
        if member is not None
    }


class Ranked(Protocol):
    """A member, planned or seen."""

    @property
    def name(self) -> str: ...

    @property
    def rank(self) -> int: ...


def takes_rank_0(stored: Stored) -> bool:
    """True when the operator deletes the pod of rank 0, whose log has the result, once the run has succeeded:
    under ``clean_pods: all``, and for elastic gangs, which end with any worker that succeeds
    (training-operator 1.9.4, pkg/controller.v1/pytorch).
    """
    layout = stored.layout
    return bool(layout.get("elastic")) or layout.get("policy", {}).get("clean_pods") == "all"


def keeps_pods(stored: Stored) -> bool:
    """True when the operator deletes no pod of a run that has ended."""
    return not takes_rank_0(stored) and stored.layout.get("policy", {}).get("clean_pods") == "none"


def pods_that_go(objects: AttemptObjects) -> frozenset[str]:
    """The uids of the pods that the operator deletes of a run that has succeeded: all of them, or by
    ``clean_pods: running`` those that have not ended.
    """
    if takes_rank_0(objects.stored):
        going = objects.pods
    else:
        going = () if keeps_pods(objects.stored) else objects.living
    return frozenset(pod["metadata"]["uid"] for pod in going)


def matches_record(job: Json, stored: Stored) -> bool:
    """True when this object is the job of the record's attempt."""
    record = stored.record
    if record.object_uid is not None:
        return bool(job["metadata"]["uid"] == record.object_uid)
    return labels.is_ours(job, record.uid, stored.created) and is_of_spec(job, record)


def is_of_spec(job: Json, record: RunRecord) -> bool:
    """True unless the job was made from another spec than the record's, by a client that came too late."""
    written = labels.annotation_of(job, labels.SPEC_HASH)
    return written is None or written == record.spec_hash


def observation_of(
    objects: AttemptObjects,
    *,
    memory: Memory | None = None,
    report: ProgressState | None = None,
    tails: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> Observation:
    """The observation of a run, by its objects and its record."""
    record = objects.record
    if objects.overdue:
        notes = (*notes, describe_stuck(objects))
    observed = observation.observation(
        record,
        objects.job,
        now=objects.now,
        submitted=objects.was_created,
        pods=objects.pods,
        events=objects.events,
        groups=objects.groups,
        rivals=objects.rivals,
        queue=objects.queue,
        nodes=objects.nodes,
        workload=objects.workload,
        layout=Layout.from_dict(objects.stored.layout)
        if objects.job is None and objects.stored.layout
        else None,
        report=report,
        memory=memory,
        notes=notes,
        tails=tails,
    )
    if objects.overdue:
        observed = replace(observed, flags=(*observed.flags, NODE_LOST))
    if record.outcome is not None:
        # The recorded outcome stands, even over a job that a late client has made.
        outcome = record.outcome
        all_notes = (*observed.notes, outcome.why) if outcome.why else observed.notes
        stopped = outcome.state == State.STOPPED
        return replace(observed, recorded=outcome.state, stopped=stopped, notes=all_notes)
    if observed.stopped and record.stop is not None and (record.stop.timed_out or record.stop.code):
        ended = State.TIMED_OUT if record.stop.timed_out else State.FAILED
        return replace(observed, stopped=False, recorded=ended.value)
    if not objects.was_created and record.stop is None:
        return replace(observed, waiting=NOT_CREATED)
    if objects.is_missing and (end := end_by_events(objects.events)) is not None:
        notes = ("its job is gone; an event of its operator says how it ended",)
        return replace(observed, alive=None, deleted=False, recorded=end.value, notes=notes)
    if objects.job is None:
        return observed
    policy = Layout.from_dict(objects.stored.layout).policy
    idle = not state_of(observed).is_final and idle_clock(observed.phases, policy.clocks) is not None
    return replace(
        observed,
        limit=limit_of(observed, policy, objects.now, nudged_at(objects.job), objects.ending),
        flags=(*observed.flags, *((CLOCK_IDLE,) if idle else ())),
    )


def describe_stuck(objects: AttemptObjects) -> str:
    """The sentence about an attempt that does not go: the objects that remain, and a remedy."""
    record = objects.record
    pods = objects.overdue or objects.living
    if not pods:
        return (
            f"run {record.run}: its attempt {record.attempt} is being deleted and does not go; look at the "
            f"finalizers of {objects.stored.job['name']}"
        )
    return describe_lasting_pods(f"run {record.run}: members of attempt {record.attempt}", pods)


def describe_lasting_pods(members: str, pods: Sequence[Json]) -> str:
    """The sentence about pods that should be gone."""
    names = [f"{p['metadata']['name']} on node {p.get('spec', {}).get('nodeName', 'none')}" for p in pods[:5]]
    return (
        f"{members} do not end: {', '.join(names)}; if their "
        f"node is gone for good: kubectl delete pod --force --grace-period=0 {pods[0]['metadata']['name']}"
    )


def nudged_at(job: Json) -> float | None:
    """The time at which the operator of a job was last nudged; None: never."""
    written = labels.annotation_of(job, NUDGED)
    return from_rfc3339(written) if written else None


NOT_CREATED = "its job is not created yet; if no client is starting it any more, run it again under its key"


# Search.


def find_record(api: Api, run: str) -> Stored:
    """The record of a run by its id, a unique prefix of it, or a job's name (its newest run). Raises
    UnknownRun.
    """
    if why_not_an_object_name(run) is None:
        stored = records.read_record(api, run)
        if stored is not None:
            return stored
    if _is_label(run):
        named = _records(api, records.selector(job=run))
        if named:
            return max(named, key=lambda s: (s.record.created, s.record.run))
    every = _records(api, records.selector())
    begun = [s for s in every if run and s.record.run.startswith(run)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        some = ", ".join(sorted(s.record.run for s in begun)[:5])
        raise UnknownRun(f"{show(run)} matches {len(begun)} runs: {some}; give a longer prefix")
    near = nearest(run, [s.record.run for s in every] + [s.record.job for s in every])
    hint = f"did you mean {near!r}?" if near else "`allaboard list` shows the runs of this namespace"
    raise UnknownRun(f"there is no run {show(run)} here; {hint}")


def check_namespace(api: Api, name: str) -> None:
    """Raises BadInput, with the nearest name, for a namespace that is known not to be there."""
    try:
        api.get(NAMESPACES, name)
    except Forbidden:
        return
    except Missing:
        try:
            there = api.list(NAMESPACES)[0]
        except Forbidden:
            there = []
        near = nearest(name, [n["metadata"]["name"] for n in there])
        hint = f"did you mean {near!r}?" if near else "name another with --namespace, or create it"
        raise BadInput(f"namespace {name!r} does not exist; {hint}") from None


def _is_label(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", text))


def _records(api: Api, selector: str) -> list[Stored]:
    """The records that can be read."""
    bodies = api.list(CONFIGMAPS, labels=selector)[0]
    return [*parse_records(bodies)]


def parse_records(bodies: Iterable[Json]) -> Iterator[Stored]:
    """Records out of ConfigMaps; damaged ones are left out."""
    for body in bodies:
        try:
            yield records.parse(body)
        except Corrupt:
            continue
