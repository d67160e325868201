"""What the backend does to runs of ours, and what it lists of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from allaboard.backends.base import Handle, Plan, StartedWith
from allaboard.backends.kubernetes.client import effects
from allaboard.backends.kubernetes.client.effects import Json, Operation
from allaboard.backends.kubernetes.client.errors import Forbidden, Missing
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS, Resource, resource_of
from allaboard.backends.kubernetes.lifecycle import launch as launching
from allaboard.backends.kubernetes.lifecycle import stop
from allaboard.backends.kubernetes.lifecycle.prepare import PreparedAttempt
from allaboard.backends.kubernetes.observe import progress
from allaboard.backends.kubernetes.observe.deadlines import with_stall
from allaboard.backends.kubernetes.observe.lookup import (
    AttemptObjects,
    check_namespace,
    matches_record,
    observation_of,
    parse_records,
    read_explanations,
    read_objects,
)
from allaboard.backends.kubernetes.observe.observation import Memory
from allaboard.backends.kubernetes.operations.observe import (
    collect_logs,
    explain,
    find_run,
    look_for_hang,
    session_of,
)
from allaboard.backends.kubernetes.operations.workspace import Workspace
from allaboard.backends.kubernetes.state import leases, records
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.errors import AllaboardError, BadInput
from allaboard.follow.run_record import keep_seconds
from allaboard.render import labels
from allaboard.runs.layout import Layout
from allaboard.runs.observation import Event, Observation, Owner, in_order
from allaboard.text.names import attempt_name

# Launching.


def launch(
    workspace: Workspace,
    plan: Plan,
    owner: Owner,
    lease: str = "",
    on_ready: Callable[[PreparedAttempt], None] | None = None,
) -> Operation[Handle]:
    """``lease``: of this process, by which it is seen that it lives; empty: it follows nothing. ``on_ready``
    is told what is about to be made.
    """

    def prepare(plan: Plan, generation: int, attempt: int) -> Operation[PreparedAttempt]:
        prepared = yield from workspace.prepare(plan, generation, attempt)
        if on_ready is not None:
            on_ready(prepared)
        return prepared

    choose = yield from workspace.choose_data(plan)
    try:
        handle = yield from launching.launch(plan, owner, prepare, lease, choose)
    except Missing as error:
        yield from check_namespace(workspace.namespace)
        raise BadInput(f"run {plan.run} was not started: {error}") from error
    if not workspace.has_pruned:
        workspace.has_pruned = True
        with suppress(AllaboardError):  # the run is started, whatever becomes of old ones
            yield from prune(workspace)
            yield from leases.remove_dead()
    return handle


# Looking.


def list_runs(workspace: Workspace) -> Operation[list[Observation]]:
    """Every run that has a record, newest first: a few lists, however many runs there are. Records past their
    age go on the way.
    """
    bodies = yield from effects.list_all(CONFIGMAPS, labels=records.selector())
    every = [*parse_records(bodies)]
    if not bodies:
        yield from check_namespace(workspace.namespace)
    yield from prune(workspace, every)
    yield from leases.remove_dead()
    # After the records: what a record knows to have been created is in these lists, or is gone.
    jobs = yield from _jobs_by_uid({resource_of(stored.job) for stored in every})
    pods: dict[tuple[str, ...], list[Json]] = {}
    for pod in (yield from effects.list_all(PODS, labels=labels.selector())):
        pods.setdefault(_attempt_of(pod), []).append(pod)
    now = yield from effects.server_time()
    observations = [
        observation_of(
            _attempt_objects(stored, jobs, pods, now),
            memory=Memory.from_dict(stored.memory) if stored.memory else None,
            report=progress.from_dict(stored.report),
        )
        for stored in every
    ]
    return sorted(observations, key=lambda o: (o.created or 0, o.run), reverse=True)


def list_namespaces() -> Operation[list[str]]:
    """The namespaces in which runs have records. Raises Forbidden for who may not look at all of them."""
    bodies = yield from effects.list_all(CONFIGMAPS, namespace="", labels=records.selector())
    return sorted({body["metadata"]["namespace"] for body in bodies})


def _jobs_by_uid(resources: Iterable[Resource]) -> Operation[dict[str, Json]]:
    """All jobs of ours of these kinds."""
    jobs: dict[str, Json] = {}
    for resource in resources:
        try:
            for job in (yield from effects.list_all(resource, labels=labels.selector())):
                whole = {"apiVersion": resource.api_version, "kind": resource.kind, **job}
                jobs[job["metadata"]["uid"]] = whole
        except Missing:
            continue  # its kind is not served any more
    return jobs


def _attempt_objects(
    stored: Stored, jobs: Mapping[str, Json], pods: Mapping[tuple[str, ...], Sequence[Json]], now: float
) -> AttemptObjects:
    record = stored.record
    uid = record.object_uid
    job = jobs.get(uid) if uid else next((j for j in jobs.values() if matches_record(j, stored)), None)
    attempt = (record.run, str(record.attempt), str(record.generation))
    return AttemptObjects(stored, job, None, tuple(pods.get(attempt, ())), now)


def _attempt_of(pod: Json) -> tuple[str, ...]:
    return tuple(labels.label_of(pod, name) or "" for name in (labels.RUN, labels.ATTEMPT, labels.GENERATION))


def list_events(workspace: Workspace, run: str) -> Operation[list[Event]]:
    """What the cluster still knows to have happened, and how earlier attempts ended, oldest first."""
    stored = yield from find_run(workspace, run)
    objects, _ = yield from read_explanations((yield from read_objects(stored)), everything=True)
    return in_order([*_attempt_ends(stored), *observation_of(objects).events])


def _attempt_ends(stored: Stored) -> Iterator[Event]:
    """How earlier attempts ended, as events: their objects may be gone."""
    record = stored.record
    for ended in record.history:
        if ended.attempt == record.attempt and ended.generation == record.generation:
            continue
        name = attempt_name(record.run, ended.attempt, ended.generation)
        yield Event(ended.at, "Normal", "Ended", name, f"attempt {ended.attempt} {ended.state}")


def saving_uri(workspace: Workspace, run: str) -> Operation[str | None]:
    """Where the run keeps its checkpoints: its own folder. None when its job says nothing of checkpoints."""
    stored = yield from find_run(workspace, run)
    saving = Layout.from_dict(stored.layout).saving
    return None if saving is None else saving.uri


def secrets_of(workspace: Workspace, run: str) -> Operation[tuple[str, ...]]:
    """Those of its job. What a Secret of the cluster holds is read by the members alone."""
    return (yield from find_run(workspace, run)).record.secret_values


def started_with(workspace: Workspace, run: str) -> Operation[StartedWith]:
    """As `Backend.started_with`. Its code goes with its job object."""
    record = (yield from find_run(workspace, run)).record
    name = labels.code_name(attempt_name(record.run, record.attempt, record.generation))
    try:
        code = (yield from effects.get(CONFIGMAPS, name)).get("data") or {}
    except (Missing, Forbidden):
        code = {}
    return StartedWith(record.spec, code)


# Owning and ending.


def adopt(handle: Handle, old: Owner, new: Owner, lease: str = "") -> Operation[Handle]:
    now = yield from effects.server_time()
    stored = yield from stop.adopt(handle, old, new, lease, now)
    return launching.handle_of(stored.record, adopted=True)


def suspend(workspace: Workspace, run: str, wanted: bool, by: str) -> Operation[None]:
    """Suspend a run, or resume it."""
    yield from stop.suspend((yield from read_objects((yield from find_run(workspace, run)))), wanted, by)


def delete(workspace: Workspace, run: str) -> Operation[None]:
    yield from stop.delete((yield from read_objects((yield from find_run(workspace, run)))))


def enforce(workspace: Workspace, run: str, owner: Owner) -> Operation[None]:
    """End what is past its limit."""
    stored = yield from records.read_record(run)
    if stored is None or stored.record.owner.id != owner.id:
        return
    objects, _ = yield from explain(workspace, (yield from read_objects(stored)), False)
    history = session_of(workspace, stored).add_look(objects)
    seen, policy = observation_of(objects, memory=history.memory), Layout.from_dict(stored.layout).policy
    if policy.hang_then in ("restart", "fail"):
        # Who saw that it stands may have been another process.
        yield from collect_logs(history.collector, objects, over=False, asked=False)
        seen = observation_of(objects, memory=history.memory, report=history.report)
        yield from look_for_hang(history, objects, seen)
    yield from stop.enforce(objects, with_stall(seen, history.stall, policy))


def watch_over(run: str, lease: str) -> Operation[None]:
    """From now on this process follows the run for its owner."""
    now = yield from effects.server_time()

    def followed(stored: Stored) -> Stored | None:
        if stored.record.owner.kind == "detached" or stored.record.outcome is not None:
            return None
        return replace(stored, lease=lease, followed=now)

    if lease:
        yield from records.change(run, followed)


# Housekeeping.


def prune(workspace: Workspace, every: Iterable[Stored] | None = None) -> Operation[None]:
    """Remove records past their age, and what may be left of their jobs; a few at a time."""
    now, keep = (yield from effects.server_time()), keep_seconds(workspace.environ)
    if every is None:
        bodies = yield from effects.list_all(CONFIGMAPS, labels=records.overdue(now, keep))
        every = parse_records(bodies)
    old = [s for s in every if records.is_overdue(s, now, keep)]
    for stored in old[: records.PRUNE_AT_ONCE]:
        try:
            for thing in stored.objects:
                yield from stop.remove_all(thing, stored.record.run)
            yield from records.forget(stored)
        except (Forbidden, Missing):
            break  # a client that may not delete leaves it to others
