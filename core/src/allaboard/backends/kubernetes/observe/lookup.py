"""Finding a run and looking at it: its record, the job that the record means, and the job's pods.

A job is the one that is meant if it carries the launch of the record's attempt and, once the record knows it,
if its uid is the one that was made: names prove nothing. What is looked at is a value, `AttemptObjects`; what
it means is `seen`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from allaboard.backends.kubernetes.client import effects
from allaboard.backends.kubernetes.client.effects import Json, Operation
from allaboard.backends.kubernetes.client.errors import Forbidden, Missing
from allaboard.backends.kubernetes.client.resources import (
    CONFIGMAPS,
    EVENTS,
    NAMESPACES,
    PODS,
    resource_of,
)
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.backends.kubernetes.observe import observation
from allaboard.backends.kubernetes.observe.containers import ContainerRun, PodRole, is_over, tries
from allaboard.backends.kubernetes.observe.deadlines import limit_of
from allaboard.backends.kubernetes.observe.observation import Memory, ProgressState
from allaboard.backends.kubernetes.state import records
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.engines import ENGINES, Engine
from allaboard.errors import BadInput, Corrupt, UnknownRun
from allaboard.follow.run_record import RunRecord
from allaboard.gangs.placement import are_only_echoes
from allaboard.layout import Layout
from allaboard.names import nearest, why_not_an_object_name
from allaboard.observation import Observation, State
from allaboard.render import labels
from allaboard.status import CLOCK_IDLE, idle_clock, state_of
from allaboard.units import from_rfc3339
from allaboard.untrusted import show

NUDGED = labels.PREFIX + "nudged"
"""Annotation of a job: when its operator was told of its deadline."""
NODE_LOST = "node_lost"
"""Flag of a run some of whose pods do not end."""
LATE = 30.0
"""Seconds beyond its grace that a node has to end a pod."""
ONE_BY_ONE = 12
"""Objects whose events are asked for one by one; the events of more are picked from those of the namespace.
"""
TELLS_FOR_ALL = 3
"""Members that do not start whose events are asked for: mostly it is the same with all of them."""
ASKING = (State.QUEUED, State.STARTING, State.UNKNOWN, State.RESTARTING)
"""States in which whoever looks wants to know why it goes no further."""


@dataclass(frozen=True, slots=True)
class AttemptObjects:
    """What is there of the attempt that a record means. ``job``: its object; ``other``: one that has its name
    and is not it. ``now``: by the API server's clock.
    """

    stored: Stored
    job: Json | None = None
    other: Json | None = None
    pods: tuple[Json, ...] = ()
    now: float = 0.0
    events: tuple[Json, ...] = ()
    groups: tuple[Json, ...] = ()
    rivals: tuple[Json, ...] = ()
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
        """Pods that are still there though their grace is over (that is what deletionTimestamp says): their
        node is gone, or something else keeps them.
        """
        return overdue(self.living, self.now)

    @property
    def was_created(self) -> bool:
        """Whether the job was ever there, by all that is known."""
        return self.job is not None or self.record.object_uid is not None

    @property
    def ending(self) -> bool:
        """Whether the job is being deleted."""
        return self.job is not None and "deletionTimestamp" in self.job["metadata"]

    @property
    def is_missing(self) -> bool:
        """Whether the job was there, and is not, and nobody has written down how it ended."""
        record = self.record
        return self.job is None and self.was_created and record.outcome is None and record.stop is None


def overdue(living: Iterable[Json], now: float) -> tuple[Json, ...]:
    """Those of these pods that should be gone by now."""
    ends = ((p, from_rfc3339(p["metadata"].get("deletionTimestamp"))) for p in living)
    return tuple(p for p, end in ends if end is not None and now - end > LATE)


def look(stored: Stored) -> Operation[AttemptObjects]:
    """What is there now of the job and its pods."""
    record = stored.record
    job = other = None
    try:
        there = yield from effects.get(resource_of(stored.job), stored.job["name"])
        job, other = (there, None) if matches_record(there, stored) else (None, there)
    except Missing:
        pass
    of_it = labels.selector(record.run, record.attempt, record.generation)
    pods = yield from effects.list_all(PODS, labels=of_it)
    found = AttemptObjects(stored, job, other, tuple(pods), (yield from effects.server_time()))
    if found.is_missing and record.object_uid is not None:
        # A ttl may be shorter than the time between two looks. Events outlive their object by an hour or so.
        found = replace(found, events=tuple((yield from list_events([record.object_uid], []))))
    return found


def look_at_pods(found: AttemptObjects) -> Operation[AttemptObjects]:
    """The same with its pods as they are now."""
    record = found.record
    of_it = labels.selector(record.run, record.attempt, record.generation)
    return replace(found, pods=tuple((yield from effects.list_all(PODS, labels=of_it))))


def last_word(events: Iterable[Json]) -> State | None:
    """How a job ended, by the events of its operator."""
    ends = {reason: State(word) for engine in ENGINES.values() for reason, word in engine.ENDS.items()}
    found = {ends[e["reason"]] for e in events if e.get("reason") in ends}
    return State.FAILED if State.FAILED in found else next(iter(found), None)


def look_closer(
    found: AttemptObjects, *, everything: bool = False
) -> Operation[tuple[AttemptObjects, tuple[str, ...]]]:
    """The same with what explains a wait: the object of its gang, its rivals, and the events of the job and
    that object; of its pods too, where these say nothing else; ``everything``: and of what is gone. With it,
    sentences about what may not be read here.
    """
    notes: list[str] = []
    groups = yield from _gang(found, notes)
    pods = found.pods if everything or are_only_echoes(found.pods) else unexplained(found.pods)
    about = [t for t in (found.job, *groups, *pods) if t is not None]
    uids = [t["metadata"]["uid"] for t in about]
    events = yield from list_events([*uids, *(_gone(found, uids) if everything else ())], notes)
    rivals = yield from _rivals(found)
    return replace(found, groups=tuple(groups), events=tuple(events), rivals=tuple(rivals)), tuple(notes)


def unexplained(pods: Iterable[Json]) -> list[Json]:
    """Pods that have a node, and whose containers do not say why they do not start: their events may. Some of
    them tell for all.
    """
    found = []
    for pod in pods:
        status = pod.get("status") or {}
        every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        begun = any((c.get("state") or {}).get("running") or c.get("restartCount") for c in every)
        if status.get("phase") == "Pending" and "nodeName" in pod["spec"] and not begun:
            found.append(pod)
    return found[:TELLS_FOR_ALL]


def _gone(found: AttemptObjects, there: Sequence[str]) -> Iterator[str]:
    """The uids of the job and of the pods that were seen and are not there any more: their events are."""
    known = [found.record.object_uid] if found.record.object_uid is not None else []
    for pods in (found.stored.memory.get("pods") or {}).values():
        known += pods
    return (uid for uid in known if uid not in there)


def _rivals(found: AttemptObjects) -> Operation[list[Json]]:
    """Pods of other runs of the namespace, when this one has places for some of its members alone, and nobody
    who would take them back: others may be in the same trap.
    """
    has_place = {"nodeName" in pod["spec"] for pod in found.living}
    if found.job is None or found.stored.gang or has_place != {True, False}:
        return []
    run = found.record.run
    others = yield from effects.list_all(PODS, labels=f"{labels.selector()},{labels.RUN}!={run}")
    return [{**pod, "metadata": {"labels": pod["metadata"]["labels"]}} for pod in others]


def _gang(found: AttemptObjects, notes: list[str]) -> Operation[list[Json]]:
    gang = found.stored.gang
    if not gang or found.job is None:
        return []
    try:
        return [(yield from effects.get(resource_of(gang), gang["name"]))]
    except Missing:
        return []
    except Forbidden:
        notes.append(f"why its gang waits cannot be told: {resource_of(gang).name} may not be read here")
        return []


def list_events(uids: Sequence[str], notes: list[str]) -> Operation[list[Json]]:
    """The events of these objects, as far as the cluster keeps them (an hour, mostly)."""
    found: list[Json] = []
    try:
        if len(uids) > ONE_BY_ONE:
            wanted = set(uids)
            every = yield from effects.list_all(EVENTS)
            return [e for e in every if (e.get("involvedObject") or {}).get("uid") in wanted]
        for uid in dict.fromkeys(uids):
            found += yield from effects.list_all(EVENTS, fields=f"involvedObject.uid={uid}")
    except Forbidden:
        notes.append("events may not be read here, and with them most reasons")
    return found


def tries_of(engine: Engine, members: Iterable[Ranked], pods: Sequence[Json]) -> list[ContainerRun]:
    """Every try of these pods whose log a node may still have. Pods of no member are left out; a member that
    is not known comes last.
    """
    ranks = {member.name: member.rank for member in members}
    seats = {}
    for pod in pods:
        member = engine.member_of(pod)
        if member is not None:
            seats[pod["metadata"]["name"]] = PodRole(member, ranks.get(member, len(ranks)), engine.CONTAINER)
    return tries(pods, seats)


class Ranked(Protocol):
    """A member, planned or seen."""

    @property
    def name(self) -> str: ...

    @property
    def rank(self) -> int: ...


def takes_rank_0(stored: Stored) -> bool:
    """Whether the operator deletes the pod of rank 0, whose log tells what was achieved, once the run has
    succeeded: under ``clean_pods: all``, and of elastic gangs, which end with any one worker that succeeds
    (training-operator 1.9.4, pkg/controller.v1/pytorch).
    """
    layout = stored.layout
    return bool(layout.get("elastic")) or layout.get("policy", {}).get("clean_pods") == "all"


def matches_record(job: Json, stored: Stored) -> bool:
    """Whether this object is the job of the attempt that the record means."""
    record = stored.record
    if record.object_uid is not None:
        return bool(job["metadata"]["uid"] == record.object_uid)
    return labels.is_ours(job, record.uid, stored.created) and is_of_spec(job, record)


def is_of_spec(job: Json, record: RunRecord) -> bool:
    """What a client that comes too late made from a spec which the record has given up is not meant."""
    said = labels.annotation_of(job, labels.SPEC_HASH)
    return said is None or said == record.spec_hash


def seen(
    found: AttemptObjects,
    *,
    memory: Memory | None = None,
    report: ProgressState | None = None,
    tails: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> Observation:
    """What is seen of a run: what its objects say, and what its record knows beyond them."""
    record = found.record
    if found.overdue:
        notes = (*notes, stuck(found))
    looked = observation.observation(
        record,
        found.job,
        now=found.now,
        submitted=found.was_created,
        pods=found.pods,
        events=found.events,
        groups=found.groups,
        rivals=found.rivals,
        nodes=found.nodes,
        layout=Layout.from_dict(found.stored.layout) if found.job is None and found.stored.layout else None,
        report=report,
        memory=memory,
        notes=notes,
        tails=tails,
    )
    if found.overdue:
        looked = replace(looked, flags=(*looked.flags, NODE_LOST))
    if record.outcome is not None:
        # The first word stands: also over a job that a client which came too late has made.
        outcome = record.outcome
        said = (*looked.notes, outcome.why) if outcome.why else looked.notes
        stopped = outcome.state == State.STOPPED
        return replace(looked, recorded=outcome.state, stopped=stopped, notes=said)
    if looked.stopped and record.stop is not None and (record.stop.timed_out or record.stop.code):
        ended = State.TIMED_OUT if record.stop.timed_out else State.FAILED
        return replace(looked, stopped=False, recorded=ended.value)
    if not found.was_created and record.stop is None:
        return replace(looked, waiting=NOT_CREATED)
    if found.is_missing and (end := last_word(found.events)) is not None:
        notes = ("its job is gone; how it ended is told by an event of its operator",)
        return replace(looked, alive=None, deleted=False, recorded=end.value, notes=notes)
    if found.job is None:
        return looked
    policy = Layout.from_dict(found.stored.layout).policy
    idle = not state_of(looked).is_final and idle_clock(looked.phases, policy.clocks) is not None
    return replace(
        looked,
        limit=limit_of(looked, policy, found.now, nudged(found.job), found.ending),
        flags=(*looked.flags, *((CLOCK_IDLE,) if idle else ())),
    )


def stuck(found: AttemptObjects) -> str:
    """What keeps an attempt from being gone, and what to do about it."""
    record = found.record
    pods = found.overdue or found.living
    if not pods:
        return (
            f"run {record.run}: its attempt {record.attempt} is being deleted and does not go; look at the "
            f"finalizers of {found.stored.job['name']}"
        )
    return do_not_end(f"run {record.run}: members of attempt {record.attempt}", pods)


def do_not_end(members: str, pods: Sequence[Json]) -> str:
    """The sentence about pods that should be gone."""
    names = [f"{p['metadata']['name']} on node {p.get('spec', {}).get('nodeName', 'none')}" for p in pods[:5]]
    return (
        f"{members} do not end: {', '.join(names)}; if their "
        f"node is gone for good: kubectl delete pod --force --grace-period=0 {pods[0]['metadata']['name']}"
    )


def nudged(job: Json) -> float | None:
    """When the operator of a job was last told of its deadline."""
    said = labels.annotation_of(job, NUDGED)
    return from_rfc3339(said) if said else None


NOT_CREATED = "its job is not created yet; if nobody is starting it any more, run it again under its key"


# Finding.


def find(run: str) -> Operation[Stored]:
    """The record of a run by its id, a unique prefix of it, or a job's name (its newest run). Raises
    UnknownRun.
    """
    if why_not_an_object_name(run) is None:
        stored = yield from records.read(run)
        if stored is not None:
            return stored
    if _is_label(run):
        named = yield from _records(records.selector(job=run))
        if named:
            return max(named, key=lambda s: (s.record.created, s.record.run))
    every = yield from _records(records.selector())
    begun = [s for s in every if run and s.record.run.startswith(run)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        some = ", ".join(sorted(s.record.run for s in begun)[:5])
        raise UnknownRun(f"{show(run)} fits {len(begun)} runs: {some}; write more of it")
    near = nearest(run, [s.record.run for s in every] + [s.record.job for s in every])
    hint = f"did you mean {near!r}?" if near else "`allaboard list` shows the runs of this namespace"
    raise UnknownRun(f"there is no run {show(run)} here; {hint}")


def check_namespace(name: str) -> Operation[None]:
    """Raises BadInput, with the nearest name, for a namespace that is known not to be there."""
    try:
        yield from effects.get(NAMESPACES, name)
    except Forbidden:
        return
    except Missing:
        try:
            there = yield from effects.list_all(NAMESPACES)
        except Forbidden:
            there = []
        near = nearest(name, [n["metadata"]["name"] for n in there])
        hint = f"did you mean {near!r}?" if near else "name another with --namespace, or create it"
        raise BadInput(f"namespace {name!r} does not exist; {hint}") from None


def _is_label(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", text))


def _records(selector: str) -> Operation[list[Stored]]:
    """Those of these records that can be read."""
    bodies = yield from effects.list_all(CONFIGMAPS, labels=selector)
    return [*readable(bodies)]


def readable(bodies: Iterable[Json]) -> Iterator[Stored]:
    """Records out of ConfigMaps; one that is damaged is no reason not to see the others."""
    for body in bodies:
        try:
            yield records.parse(body)
        except Corrupt:
            continue
