"""What each method of the Kubernetes backend does, as an operation: the blocking backend and the async one
carry out the same ones.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from allaboard.backends.base import Handle, NotYours, Plan, Selection, Stopped
from allaboard.backends.checkpoints import with_checkpoints
from allaboard.backends.kubernetes.client import effects
from allaboard.backends.kubernetes.client.effects import Json, Operation
from allaboard.backends.kubernetes.client.errors import Forbidden, Missing
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS, Resource, resource_of
from allaboard.backends.kubernetes.discovery import installed
from allaboard.backends.kubernetes.lifecycle import launch, orphans, stop
from allaboard.backends.kubernetes.lifecycle.prepare import PreparedAttempt, ready
from allaboard.backends.kubernetes.logs import archive
from allaboard.backends.kubernetes.logs.cache import AttemptLogs
from allaboard.backends.kubernetes.logs.capture import (
    SECONDS,
    PodCapture,
    asnatch,
    asnatch_all,
    snatch,
    snatch_all,
)
from allaboard.backends.kubernetes.logs.collector import (
    PEERS,
    PROGRESS_EVERY,
    EvidenceCollector,
    aattend,
    collect,
)
from allaboard.backends.kubernetes.logs.history import AttemptHistory, HistoryCache
from allaboard.backends.kubernetes.observe import progress
from allaboard.backends.kubernetes.observe.containers import ContainerRun, PodRole
from allaboard.backends.kubernetes.observe.lookup import (
    ASKING,
    AttemptObjects,
    check_namespace,
    find,
    look,
    look_at_pods,
    look_closer,
    matches_record,
    readable,
    seen,
    takes_rank_0,
    tries_of,
)
from allaboard.backends.kubernetes.observe.observation import Memory
from allaboard.backends.kubernetes.observe.obstacles import is_unschedulable
from allaboard.backends.kubernetes.operations import foreign
from allaboard.backends.kubernetes.state import records
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.backends.selection import refuse_strangers
from allaboard.engines import ENGINES, engine_of_kind
from allaboard.errors import AllaboardError, BadInput, UnknownRun
from allaboard.follow.run_record import keep_seconds
from allaboard.gangs.placement import condition
from allaboard.layout import Layout
from allaboard.names import attempt_name
from allaboard.observation import Event, MemberSeen, Observation, Owner, State, in_order
from allaboard.redaction import secret_values
from allaboard.render import labels
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.spec.site import Site
from allaboard.status import state_of
from allaboard.units import from_rfc3339

SOON, SELDOM = 5.0, 600.0
"""Seconds between two times at which it is asked why a run goes no further while no row of it changes: a
tenth of its age, within these.
"""
NODES_STAND = 60.0
"""Seconds for which what was read of the nodes is good."""
SAVED_EVERY = 0.05
"""Seconds between two looks at whether what is being read of a pod that goes has been."""
LAST_TRIES, LAST_REST = 2, 2.0
"""How often a busy node is asked again for the last lines of rank 0, and the seconds before each time."""


@dataclass(frozen=True, slots=True)
class CachedObservation:
    """What the last look at a run found, for whoever knows whether anything of it has changed since.
    ``asked``: when it was last asked why it goes no further, by the API server's clock.
    """

    found: AttemptObjects
    notes: tuple[str, ...] = ()
    asked: float = 0.0

    def explains(self, now: float) -> bool:
        """Whether what was said then is still good."""
        age = now - max(self.found.record.created, _newest(self.found))
        return now - self.asked < min(SELDOM, max(SOON, age / 10))


def _newest(found: AttemptObjects) -> float:
    """When its newest pod was made or got its node: what keeps it shows soon after that."""
    times = [pod["metadata"].get("creationTimestamp") for pod in found.pods]
    times += [(condition(pod, "PodScheduled") or {}).get("lastTransitionTime") for pod in found.pods]
    return max((from_rfc3339(at) or 0.0 for at in times if at), default=0.0)


def _slim(found: AttemptObjects) -> AttemptObjects:
    """The same without what nobody reads and which is the larger half of an object."""

    def slim(thing: Json) -> Json:
        metadata = {k: v for k, v in thing["metadata"].items() if k != "managedFields"}
        return {**thing, "metadata": metadata}

    job = None if found.job is None else slim(found.job)
    return replace(found, job=job, pods=tuple(slim(pod) for pod in found.pods))


@dataclass(frozen=True, slots=True)
class Readable:
    """The logs of an attempt. ``over``: nothing more will be written; ``kept``: what this process has read of
    it, for whoever looks at it and whoever prints its logs, and once it is over what others have.
    """

    attempt: int
    found: list[ContainerRun]
    over: bool
    kept: AttemptLogs


class Verbs:
    """``facts``: what the place says of the cluster; the cluster is asked for the rest at the first launch,
    unless they are ``known``. ``progress_every``: seconds between two looks at what rank 0 reports; 0: none.
    """

    def __init__(
        self,
        namespace: str,
        site: Site,
        facts: ClusterFacts,
        environ: Mapping[str, str],
        *,
        known: bool = False,
        progress_every: float = PROGRESS_EVERY,
    ) -> None:
        self.namespace, self.site, self.facts, self.environ = namespace, site, facts, environ
        self.known = known
        self._pruned = False
        self.pasts = HistoryCache(progress_every)
        self._lock = threading.Lock()
        self._saving: Counter[str] = Counter()
        self._seen_nodes: tuple[float | None, tuple[installed.Node, ...] | None] = (None, None)

    # Launching.

    def launch(
        self,
        plan: Plan,
        owner: Owner,
        lease: str = "",
        on_ready: Callable[[PreparedAttempt], None] | None = None,
    ) -> Operation[Handle]:
        """``lease``: of this process, by which it is seen that it lives; empty: it follows nothing.
        ``on_ready`` is told what is about to be made.
        """

        def prepare(plan: Plan, generation: int, attempt: int) -> Operation[PreparedAttempt]:
            made = yield from self._prepare(plan, generation, attempt)
            if on_ready is not None:
                on_ready(made)
            return made

        try:
            handle = yield from launch.launch(plan, owner, prepare, lease)
        except Missing as error:
            yield from check_namespace(self.namespace)
            raise BadInput(f"run {plan.run} was not started: {error}") from error
        if not self._pruned:
            self._pruned = True
            with suppress(AllaboardError):  # the run is started, whatever becomes of old ones
                yield from self.prune()
        return handle

    def _prepare(self, plan: Plan, generation: int, attempt: int) -> Operation[PreparedAttempt]:
        if not self.known:
            self.facts = yield from installed.known(self.facts)
            self.known = True
        facts = self.facts
        return (
            yield from effects.work(
                lambda: ready(plan, generation, attempt, self.site, facts, self.environ),
            )
        )

    # Looking.

    def find(self, run: str) -> Operation[Stored]:
        """The record of a run by its id, a unique prefix of it, or a job's name. Raises UnknownRun."""
        try:
            return (yield from find(run))
        except UnknownRun:
            yield from check_namespace(self.namespace)
            raise

    def observe(
        self, run: str, evidence: bool = False, last: CachedObservation | None = None
    ) -> Operation[tuple[Observation, CachedObservation | None]]:
        """What is seen now. The first look that finds a run at its end writes that down.

        ``last``: of this run, where nothing that it found has changed since; then nothing is asked but what
        no row tells: what rank 0 reports, and now and then why a run goes no further. Returned with what is
        seen; None once the run is over.
        """
        while True:
            found = yield from self._look(run, last)
            past = self.pasts.with_look(found)
            looked = seen(found, memory=past.memory)
            if not state_of(looked).is_final:
                return (yield from self._live(found, past, looked, evidence, last))
            # An end is looked at, not remembered; and so is what was started anew or forgotten in between.
            if last is None and (told := (yield from self._over(found, past, looked, evidence))) is not None:
                return told, None
            last = None

    def _look(self, run: str, last: CachedObservation | None) -> Operation[AttemptObjects]:
        if last is not None:
            return replace(last.found, now=(yield from effects.server_time()))
        return (yield from look((yield from self.find(run))))

    def _live(
        self,
        found: AttemptObjects,
        past: AttemptHistory,
        looked: Observation,
        evidence: bool,
        last: CachedObservation | None,
    ) -> Operation[tuple[Observation, CachedObservation]]:
        """What is told of a run that goes on."""
        yield from _attended(past.witness, found, over=False, asked=evidence)
        notes: tuple[str, ...] = ()
        asked = 0.0
        if evidence or (state_of(looked) in ASKING and found.job is not None):
            if last is not None and not evidence and last.explains(found.now):
                notes, asked = last.notes, last.asked
            else:
                if last is not None:
                    # No row tells that a scheduler has found no place for a pod.
                    found = yield from look_at_pods(found)
                    past = self.pasts.with_look(found)
                asked = found.now
                found, notes = yield from self._closer(found, evidence)
        told = yield from self._told(found, past, notes, evidence)
        return told, CachedObservation(_slim(found), notes, asked)

    def _closer(
        self, found: AttemptObjects, evidence: bool
    ) -> Operation[tuple[AttemptObjects, tuple[str, ...]]]:
        """With what explains a wait; and with the nodes, where a scheduler has found no place."""
        found, notes = yield from look_closer(found, everything=evidence)
        if any(is_unschedulable(pod) for pod in found.living):
            found = replace(found, nodes=(yield from self._nodes(found.now)))
        return found, notes

    def _nodes(self, now: float) -> Operation[tuple[installed.Node, ...] | None]:
        """Those of the cluster, of some time ago at most; None when they may not be read."""
        at, known = self._seen_nodes
        if at is None or now - at >= NODES_STAND:
            known = yield from installed.nodes()
            self._seen_nodes = (now, known)
        return known

    def _over(
        self, found: AttemptObjects, past: AttemptHistory, looked: Observation, evidence: bool
    ) -> Operation[Observation | None]:
        """What is told of a run that has ended. Whoever sees that first writes down how, and what was read of
        its logs. None when it is not this attempt any more.
        """
        stored = found.stored
        is_first = stored.record.outcome is None
        goes = takes_rank_0(stored)
        notes: tuple[str, ...] = ()
        if is_first:
            yield from self._saved(stored.record.run)
            past = self.pasts.with_look(found)
        if is_first or evidence:
            yield from _attended(past.witness, found, over=True, asked=evidence or goes)
            if is_first and state_of(looked) is State.SUCCEEDED:
                yield from _heard_out(past.witness, found)
            if evidence:
                found, notes = yield from look_closer(found, everything=True)
            if not is_first:
                yield from _shared(stored, past)
            if looked.restarts or state_of(looked) is not State.SUCCEEDED or goes:
                yield from archive.save(stored, past.witness.kept.tries(), past.memory, looked.finished)
        if is_first:
            now = yield from stop.recorded(found, state_of(looked), past.to_dict())
            if now is None or now.record.uid != stored.record.uid:
                return None
            found = replace(found, stored=now)
        return (yield from self._told(found, past, notes, evidence))

    def _told(
        self, found: AttemptObjects, past: AttemptHistory, notes: tuple[str, ...], evidence: bool
    ) -> Operation[Observation]:
        tails = past.witness.tails() if evidence else None
        looked = seen(found, memory=past.memory, report=past.report, tails=tails, notes=notes)
        return (yield from self._with_checkpoints(found.stored, looked)) if evidence else looked

    def observe_job(
        self, kind: str, name: str, evidence: bool = False, uid: str | None = None
    ) -> Operation[Observation]:
        """What is seen now of a job that somebody else made (`foreign`)."""
        engine = engine_of_kind(kind)
        try:
            return (yield from foreign.observe(engine, name, evidence=evidence, uid=uid))
        except UnknownRun:
            yield from check_namespace(self.namespace)
            raise

    def rescue(self, run: str, pod: str, version: str | None) -> Operation[None]:
        """A pod of this run ails: what it wrote is read before anything else is asked, then what rank 0 and
        two peers did. The next look makes something of it. ``version`` None: it is only being deleted, and
        no peer is read.
        """
        with self._lock:
            self._saving[run] += 1
        try:
            yield from self._rescues(run, pod, version)
        finally:
            with self._lock:
                self._saving[run] -= 1
                self._saving += Counter()  # without those that are through

    def _saved(self, run: str) -> Operation[None]:
        """Wait for what is just being read of pods that go."""
        for _ in range(int(SECONDS / SAVED_EVERY)):
            if not self._saving[run]:
                return
            yield from effects.sleep(SAVED_EVERY)

    def _rescues(self, run: str, pod: str, version: str | None) -> Operation[None]:
        first: PodCapture = yield effects.StreamIO(
            lambda api: snatch(api, None, pod, version=version),
            lambda api: asnatch(api, None, pod, version=version),
        )
        stored = yield from self.find(run)
        layout = Layout.from_dict(stored.layout)
        container = ENGINES[layout.engine].CONTAINER
        seats = {f"{layout.name}-{m.name}": PodRole(m.name, m.rank, container) for m in layout.members}
        if pod not in seats:
            return
        is_first = not self.pasts.has_rescued(stored.record.uid)
        self.pasts.rescue(stored.record.uid, (first,), seats)
        if version is None:
            return
        wanted: list[tuple[str, str, str | None]]
        wanted = [(pod, container, version)] if first.data is None else []
        if is_first:
            beside = sorted((n for n in seats if n != pod), key=lambda name: seats[name].rank)
            wanted += [(name, container, None) for name in beside[: PEERS + 1]]
        more: list[PodCapture] = yield effects.StreamIO(
            lambda api: snatch_all(api, None, wanted), lambda api: asnatch_all(api, None, wanted)
        )
        self.pasts.rescue(stored.record.uid, more, seats)

    def _with_checkpoints(self, stored: Stored, looked: Observation) -> Operation[Observation]:
        """The checkpoints that are really there, if they are in a bucket: members' folders are not ours."""
        saving = Layout.from_dict(stored.layout).saving
        if saving is None or "://" not in saving.uri:
            return looked
        found = yield from effects.work(lambda: with_checkpoints(looked.progress, saving, self.environ))
        return replace(looked, progress=found)

    def runs(self) -> Operation[list[Observation]]:
        """Every run that has a record, newest first: a few lists, however many runs there are. Records past
        their age go on the way.
        """
        bodies = yield from effects.list_all(CONFIGMAPS, labels=records.selector())
        every = [*readable(bodies)]
        if not bodies:
            yield from check_namespace(self.namespace)
        yield from self.prune(every)
        yield from orphans.forgotten_leases()
        # After the records: what a record knows to have been created is in these lists, or is gone.
        jobs = yield from _by_uid({resource_of(s.job) for s in every})
        pods: dict[tuple[str, ...], list[Json]] = {}
        for pod in (yield from effects.list_all(PODS, labels=labels.selector())):
            pods.setdefault(_attempt_of(pod), []).append(pod)
        now = yield from effects.server_time()
        looked = [
            seen(_found(one, jobs, pods, now), memory=_kept(one), report=progress.from_dict(one.report))
            for one in every
        ]
        return sorted(looked, key=lambda s: (s.created or 0, s.run), reverse=True)

    def events(self, run: str) -> Operation[list[Event]]:
        """What the cluster still knows to have happened, and how earlier attempts ended, oldest first."""
        stored = yield from self.find(run)
        found, _ = yield from look_closer((yield from look(stored)), everything=True)
        return in_order([*_ends(stored), *seen(found).events])

    def saving(self, run: str) -> Operation[str | None]:
        """Where the run keeps its checkpoints: its own folder. None when its job says nothing of
        checkpoints.
        """
        stored = yield from self.find(run)
        saving = Layout.from_dict(stored.layout).saving
        return None if saving is None else saving.uri

    def secrets_of(self, run: str) -> Operation[tuple[str, ...]]:
        """Those of its job. What a Secret of the cluster holds is read by the members alone."""
        return secret_values((yield from self.find(run)).record.spec)

    def readable(
        self, run: str, selection: Selection, last: CachedObservation | None = None
    ) -> Operation[Readable]:
        """Every log of the run's attempt that can be read. Raises BadInput for what the run does not have.
        ``last``: as for `observe`.
        """
        stored = (yield from self.find(run)) if last is None else last.found.stored
        record = stored.record
        attempt = selection.attempt or record.attempt
        if attempt > record.attempt:
            raise BadInput(f"run {record.run} has no attempt {attempt}; it is on attempt {record.attempt}")
        layout = Layout.from_dict(stored.layout)
        known = [MemberSeen(m.group, m.index, m.rank, "unknown") for m in layout.members]
        refuse_strangers(selection, known)
        if attempt < record.attempt:
            return (yield from self._readable_earlier(stored, attempt))
        found = (yield from look(stored)) if last is None else last.found
        over = state_of(seen(found)).is_final and not found.living
        past = self.pasts.with_words(stored)
        here = _tries(layout, found.pods)
        if record.outcome is not None and not record.deleted:
            yield from _shared(stored, past)
            met = [*here, *(one.one for one in past.witness.kept.tries())]
            container = ENGINES[layout.engine].CONTAINER
            past.witness.kept.restore(archive.lost(past.memory, layout, met, container))
        return Readable(attempt, here, over, past.witness.kept)

    def _readable_earlier(self, stored: Stored, attempt: int) -> Operation[Readable]:
        record = stored.record
        pods = yield from effects.list_all(
            PODS, labels=labels.selector(record.run, attempt, record.generation)
        )
        past = self.pasts.earlier(record, attempt)
        yield from _shared(stored, past)
        return Readable(attempt, _tries(Layout.from_dict(stored.layout), pods), True, past.witness.kept)

    # Owning and ending.

    def adopt(self, handle: Handle, old: Owner, new: Owner, lease: str = "") -> Operation[Handle]:
        now = yield from effects.server_time()
        stored = yield from stop.adopt(handle, old, new, lease, now)
        return launch.handle_of(stored.record, adopted=True)

    def stop(
        self, handle: Handle, owner: Owner, by: str, reason: str, kill: bool = False
    ) -> Operation[Stopped | NotYours]:
        return stop.stop(handle, owner, by, reason, kill)

    def suspend(self, run: str, by: str) -> Operation[None]:
        yield from stop.suspend((yield from look((yield from self.find(run)))), True, by)

    def resume(self, run: str, by: str) -> Operation[None]:
        yield from stop.suspend((yield from look((yield from self.find(run)))), False, by)

    def delete(self, run: str) -> Operation[None]:
        yield from stop.delete((yield from look((yield from self.find(run)))))

    def hand_over(self, handle: Handle) -> Operation[None]:
        return stop.hand_over(handle)

    def enforce(self, run: str, owner: Owner) -> Operation[None]:
        stored = yield from records.read(run)
        if stored is None or stored.record.owner.id != owner.id:
            return
        found, _ = yield from self._closer((yield from look(stored)), False)
        yield from stop.enforce(found, seen(found, memory=self.pasts.with_look(found).memory))

    def watch_over(self, run: str, lease: str) -> Operation[None]:
        """From now on this process follows the run for its owner."""
        now = yield from effects.server_time()

        def followed(stored: Stored) -> Stored | None:
            if stored.record.owner.kind == "detached" or stored.record.outcome is not None:
                return None
            return replace(stored, lease=lease, followed=now)

        if lease:
            yield from records.change(run, followed)

    # Housekeeping.

    def prune(self, every: Iterable[Stored] | None = None) -> Operation[None]:
        """Remove records past their age, and what may be left of their jobs; a few at a time."""
        now, keep = (yield from effects.server_time()), keep_seconds(self.environ)
        if every is None:
            bodies = yield from effects.list_all(CONFIGMAPS, labels=records.overdue(now, keep))
            every = readable(bodies)
        old = [s for s in every if records.is_overdue(s, now, keep)]
        for stored in old[: records.PRUNE_AT_ONCE]:
            try:
                for thing in stored.objects:
                    yield from stop.remove_all(thing, stored.record.run)
                yield from records.forget(stored)
            except (Forbidden, Missing):
                break  # whoever may not delete leaves it to others


def _tries(layout: Layout, pods: Sequence[Json]) -> list[ContainerRun]:
    return tries_of(ENGINES[layout.engine], layout.members, pods)


def _shared(stored: Stored, past: AttemptHistory) -> Operation[None]:
    """What others have read of the logs of an attempt that is over is known here, too."""
    if not past.shared:
        past.shared = True
        _, generation, attempt = past.which
        past.witness.kept.restore((yield from archive.load(stored, attempt, generation)))


def _attended(
    witness: EvidenceCollector, found: AttemptObjects, *, over: bool, asked: bool
) -> Operation[None]:
    """Read what must be read of the logs now: ends of what failed, and what rank 0 reports."""
    if not found.pods and not over:
        return
    readable = _tries(Layout.from_dict(found.stored.layout), found.pods)
    yield effects.StreamIO(
        lambda api: collect(api, None, witness, readable, over=over, asked=asked),
        lambda api: aattend(api, None, witness, readable, over=over, asked=asked),
    )


def _heard_out(witness: EvidenceCollector, found: AttemptObjects) -> Operation[None]:
    """What rank 0 achieved stands in its last lines: a node that is busy is asked for them again."""
    for _ in range(LAST_TRIES):
        if not witness.behind:
            return
        yield from effects.sleep(LAST_REST)
        yield from _attended(witness, found, over=True, asked=False)


def _by_uid(resources: Iterable[Resource]) -> Operation[dict[str, Json]]:
    """All jobs of ours of these kinds."""
    found: dict[str, Json] = {}
    for resource in resources:
        try:
            for job in (yield from effects.list_all(resource, labels=labels.selector())):
                whole = {"apiVersion": resource.api_version, "kind": resource.kind, **job}
                found[job["metadata"]["uid"]] = whole
        except Missing:
            continue  # its kind is not served any more
    return found


def _found(
    stored: Stored, jobs: Mapping[str, Json], pods: Mapping[tuple[str, ...], Sequence[Json]], now: float
) -> AttemptObjects:
    record = stored.record
    uid = record.object_uid
    job = jobs.get(uid) if uid else next((j for j in jobs.values() if matches_record(j, stored)), None)
    mine = (record.run, str(record.attempt), str(record.generation))
    return AttemptObjects(stored, job, None, tuple(pods.get(mine, ())), now)


def _attempt_of(pod: Json) -> tuple[str, ...]:
    return tuple(labels.label_of(pod, name) or "" for name in (labels.RUN, labels.ATTEMPT, labels.GENERATION))


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
