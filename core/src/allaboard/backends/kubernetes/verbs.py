"""What each method of the Kubernetes backend does, as a talk: the blocking backend and the async one carry
out the same ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from allaboard import marks
from allaboard.backends.base import Handle, NotYours, Plan, Selection, Stopped
from allaboard.backends.choosing import refuse_strangers
from allaboard.backends.kubernetes import ending, launching, records, talk
from allaboard.backends.kubernetes.errors import Forbidden, Missing
from allaboard.backends.kubernetes.looking import (
    Found,
    find,
    is_meant,
    look,
    look_closer,
    readable,
    resource_of,
    seen,
)
from allaboard.backends.kubernetes.placing import Ready, ready
from allaboard.backends.kubernetes.reading import Memory, remembered
from allaboard.backends.kubernetes.records import Stored
from allaboard.backends.kubernetes.resources import CONFIGMAPS, PODS, Resource
from allaboard.backends.kubernetes.talk import Json, Talk
from allaboard.backends.kubernetes.tries import Seat, Try, tries
from allaboard.engines import ENGINES
from allaboard.errors import BadInput
from allaboard.facts import ClusterFacts
from allaboard.layout import Layout
from allaboard.names import attempt_name
from allaboard.observation import Event, MemberSeen, Observation, Owner, State
from allaboard.site import Site
from allaboard.status import state_of

ASKING = (State.QUEUED, State.STARTING, State.UNKNOWN, State.RESTARTING)
"""States in which whoever looks wants to know why it goes no further."""
REMEMBERED = 20_000
"""Runs whose past is kept in a process; those that were looked at longest ago are forgotten."""


class Verbs:
    """``lease``: of this process, by which it is seen that it lives; empty: it follows nothing."""

    def __init__(self, site: Site, facts: ClusterFacts, environ: Mapping[str, str], lease: str = "") -> None:
        self.site, self.facts, self.environ, self.lease = site, facts, environ, lease
        self._memory: OrderedDict[str, Memory] = OrderedDict()

    # Launching.

    def launch(self, plan: Plan, owner: Owner) -> Talk[Handle]:
        return launching.launch(plan, owner, self._prepare, self.lease)

    def _prepare(self, plan: Plan, generation: int, attempt: int) -> Talk[Ready]:
        def make() -> Ready:
            return ready(plan, generation, attempt, self.site, self.facts, self.environ)

        return talk.work(make)

    # Looking.

    def observe(self, run: str, evidence: bool = False) -> Talk[Observation]:
        """What is seen now. The first look that finds a run at its end writes that down."""
        while True:
            stored = yield from find(run)
            found = yield from look(stored)
            memory = self._remember(found)
            looked = seen(found, memory=memory)
            notes: tuple[str, ...] = ()
            if evidence or (state_of(looked) in ASKING and found.job is not None):
                found, notes = yield from look_closer(found, everything=evidence)
                looked = seen(found, memory=memory, notes=notes)
            if not state_of(looked).is_final:
                return looked
            now = yield from ending.recorded(found, state_of(looked), memory.to_dict())
            if now is None or now.record.uid == stored.record.uid:
                return looked if now is None else seen(replace(found, stored=now), memory=memory, notes=notes)

    def _remember(self, found: Found) -> Memory:
        """What was seen of this attempt so far, by this process or by the record, with this look."""
        uid = found.record.uid
        before = self._memory.pop(uid, None)
        if before is None:
            before = Memory.from_dict(found.stored.memory) if found.stored.memory else Memory()
        memory = remembered(before, found.job, found.pods)
        if found.record.outcome is None:
            self._memory[uid] = memory
            if len(self._memory) > REMEMBERED:
                self._memory.popitem(last=False)
        return memory

    def runs(self) -> Talk[list[Observation]]:
        """Every run that has a record, newest first: a few lists, however many runs there are. Records past
        their age go on the way.
        """
        bodies = yield from talk.list_all(CONFIGMAPS, labels=records.selector())
        every = [*readable(bodies)]
        yield from self.prune(every)
        # After the records: what a record knows to have been created is in these lists, or is gone.
        jobs = yield from _by_uid({resource_of(s.job) for s in every if s.job is not None})
        pods: dict[tuple[str, ...], list[Json]] = {}
        for pod in (yield from talk.list_all(PODS, labels=marks.selector())):
            pods.setdefault(_attempt_of(pod), []).append(pod)
        now = yield from talk.server_time()
        looked = [seen(_found(stored, jobs, pods, now), memory=_kept(stored)) for stored in every]
        return sorted(looked, key=lambda s: (s.created or 0, s.run), reverse=True)

    def events(self, run: str) -> Talk[list[Event]]:
        """What the cluster still knows to have happened, and how earlier attempts ended, oldest first."""
        stored = yield from find(run)
        found, _ = yield from look_closer((yield from look(stored)), everything=True)
        return [*_ends(stored), *seen(found).events]

    def saving(self, run: str) -> Talk[str | None]:
        """Where the run keeps its checkpoints: its own folder. None when its job says nothing of
        checkpoints.
        """
        stored = yield from find(run)
        saving = Layout.from_dict(stored.layout).saving
        return None if saving is None else saving.uri

    def tries(self, run: str, selection: Selection) -> Talk[list[Try]]:
        """Every log of the run's attempt that can be read. Raises BadInput for a selection that fits
        nothing.
        """
        stored = yield from find(run)
        record = stored.record
        attempt = selection.attempt or record.attempt
        if attempt > record.attempt:
            raise BadInput(f"run {record.run} has no attempt {attempt}; it is on attempt {record.attempt}")
        of_it = marks.selector(record.run, attempt, record.generation)
        pods = yield from talk.list_all(PODS, labels=of_it)
        layout = Layout.from_dict(stored.layout)
        engine = ENGINES[layout.engine]
        ranks = {member.name: member.rank for member in layout.members}
        seats = {}
        for pod in pods:
            member = engine.member_of(pod)
            if member is not None:
                seats[pod["metadata"]["name"]] = Seat(member, ranks.get(member, len(ranks)), engine.CONTAINER)
        known = [MemberSeen(m.group, m.index, m.rank, "unknown") for m in layout.members]
        refuse_strangers(selection, known)
        return tries(pods, seats)

    # Owning and ending.

    def adopt(self, handle: Handle, old: Owner, new: Owner) -> Talk[Handle]:
        now = yield from talk.server_time()
        stored = yield from ending.adopt(handle, old, new, self.lease, now)
        return launching.handle_of(stored.record, adopted=True)

    def stop(
        self, handle: Handle, owner: Owner, by: str, reason: str, kill: bool = False
    ) -> Talk[Stopped | NotYours]:
        return ending.stop(handle, owner, by, reason, kill)

    def suspend(self, run: str) -> Talk[None]:
        yield from ending.suspend((yield from look((yield from find(run)))), True)

    def resume(self, run: str) -> Talk[None]:
        yield from ending.suspend((yield from look((yield from find(run)))), False)

    def delete(self, run: str) -> Talk[None]:
        yield from ending.delete((yield from look((yield from find(run)))))

    def hand_over(self, handle: Handle) -> Talk[None]:
        return ending.hand_over(handle)

    def enforce(self, run: str, owner: Owner) -> Talk[None]:
        stored = yield from records.read(run)
        if stored is None or stored.record.owner.id != owner.id:
            return
        found = yield from look(stored)
        yield from ending.enforce(found, seen(found, memory=self._remember(found)))

    # Housekeeping.

    def prune(self, every: Iterable[Stored] | None = None) -> Talk[None]:
        """Remove records that ended 30 days ago, and what may be left of their jobs; a few at a time."""
        now = yield from talk.server_time()
        if every is None:
            bodies = yield from talk.list_all(CONFIGMAPS, labels=records.overdue(now))
            every = readable(bodies)
        old = [s for s in every if records.is_overdue(s, now)]
        for stored in old[: records.PRUNE_AT_ONCE]:
            try:
                for thing in stored.objects:
                    yield from ending.remove_all(thing, stored.record.run)
                yield from records.forget(stored)
            except (Forbidden, Missing):
                return  # whoever may not delete leaves it to others


def _by_uid(resources: Iterable[Resource]) -> Talk[dict[str, Json]]:
    """All jobs of ours of these kinds."""
    found: dict[str, Json] = {}
    for resource in resources:
        try:
            for job in (yield from talk.list_all(resource, labels=marks.selector())):
                whole = {"apiVersion": resource.api_version, "kind": resource.kind, **job}
                found[job["metadata"]["uid"]] = whole
        except Missing:
            continue  # its kind is not served any more
    return found


def _found(
    stored: Stored, jobs: Mapping[str, Json], pods: Mapping[tuple[str, ...], Sequence[Json]], now: float
) -> Found:
    record = stored.record
    uid = record.object_uid
    job = jobs.get(uid) if uid else next((j for j in jobs.values() if is_meant(j, stored)), None)
    mine = (record.run, str(record.attempt), str(record.generation))
    return Found(stored, job, None, tuple(pods.get(mine, ())), now)


def _attempt_of(pod: Json) -> tuple[str, ...]:
    return tuple(marks.label_of(pod, name) or "" for name in (marks.RUN, marks.ATTEMPT, marks.GENERATION))


def _kept(stored: Stored) -> Memory | None:
    return Memory.from_dict(stored.memory) if stored.memory else None


def _ends(stored: Stored) -> Iterator[Event]:
    """How the attempts ended that are known to have, as events: their objects may be gone."""
    record = stored.record
    for ended in record.history:
        if ended.attempt == record.attempt and ended.generation == record.generation:
            continue
        name = attempt_name(record.run, ended.attempt, ended.generation)
        yield Event(ended.at, "Normal", "Ended", name, f"attempt {ended.attempt} {ended.state}")
