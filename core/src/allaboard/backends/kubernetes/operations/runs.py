"""Changes of the backend to runs of ours, and the lists of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from allaboard.backends.base import Handle, Plan, StartedWith
from allaboard.backends.kubernetes.client.errors import Forbidden, Missing
from allaboard.backends.kubernetes.client.protocol import Json
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
    tries_of,
)
from allaboard.backends.kubernetes.operations.workspace import Workspace
from allaboard.backends.kubernetes.state import leases, records
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.backends.packing import is_to_be_packed, with_archive
from allaboard.backends.repository import is_to_be_pinned, with_commit
from allaboard.errors import AllaboardError, BadInput
from allaboard.follow.run_record import keep_seconds
from allaboard.render import labels
from allaboard.runs.layout import Layout
from allaboard.runs.observation import Event, Observation, Owner, in_order
from allaboard.text.names import attempt_name

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

# Launching.


def launch(
    api: Api,
    workspace: Workspace,
    plan: Plan,
    owner: Owner,
    lease: Callable[[], str] = lambda: "",
    on_ready: Callable[[PreparedAttempt], None] | None = None,
) -> Handle:
    """``lease``: takes that of this process, by which it is seen that it lives; empty: it follows nothing.
    ``on_ready`` is told what is about to be made.
    """

    def prepare(plan: Plan, generation: int, attempt: int) -> PreparedAttempt:
        prepared = workspace.prepare(api, plan, generation, attempt)
        if on_ready is not None:
            on_ready(prepared)
        return prepared

    if is_to_be_pinned(plan):
        stored = records.read_record(api, plan.run)
        plan = with_commit(plan, None if stored is None else stored.record, workspace.environ)
    if is_to_be_packed(plan):
        plan = with_archive(plan, workspace.site, workspace.environ)
    choose = workspace.choose_data(plan)
    try:
        handle = launching.launch(api, plan, owner, prepare, lease, choose)
    except Missing as error:
        check_namespace(api, workspace.namespace)
        raise BadInput(f"run {plan.run} was not started: {error}") from error
    if not workspace.has_pruned:
        workspace.has_pruned = True
        with suppress(AllaboardError):  # the run is started, whatever becomes of old ones
            prune(api, workspace)
            leases.remove_dead(api)
    return handle


# Looking.


def list_runs(api: Api, workspace: Workspace) -> list[Observation]:
    """Every run that has a record, newest first: a few lists, however many runs there are. Records past their
    age go on the way.
    """
    bodies = api.list(CONFIGMAPS, labels=records.selector())[0]
    every = [*parse_records(bodies)]
    if not bodies:
        check_namespace(api, workspace.namespace)
    prune(api, workspace, every)
    leases.remove_dead(api)
    # After the records: what a record knows to have been created is in these lists, or is gone.
    jobs = _jobs_by_uid(api, {resource_of(stored.job) for stored in every})
    pods: dict[tuple[str, ...], list[Json]] = {}
    for pod in api.list(PODS, labels=labels.selector())[0]:
        pods.setdefault(_attempt_of(pod), []).append(pod)
    now = api.server_time()
    observations = [
        observation_of(
            _attempt_objects(stored, jobs, pods, now),
            memory=Memory.from_dict(stored.memory) if stored.memory else None,
            report=progress.from_dict(stored.report),
        )
        for stored in every
    ]
    return sorted(observations, key=lambda o: (o.created or 0, o.run), reverse=True)


def list_namespaces(api: Api) -> list[str]:
    """The namespaces in which runs have records. Raises Forbidden for who may not look at all of them."""
    bodies = api.list(CONFIGMAPS, namespace="", labels=records.selector())[0]
    return sorted({body["metadata"]["namespace"] for body in bodies})


def _jobs_by_uid(api: Api, resources: Iterable[Resource]) -> dict[str, Json]:
    """All jobs of ours of these kinds."""
    jobs: dict[str, Json] = {}
    for resource in resources:
        try:
            for job in api.list(resource, labels=labels.selector())[0]:
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


def list_events(api: Api, workspace: Workspace, run: str) -> list[Event]:
    """The events that the cluster still knows, and the ends of earlier attempts, oldest first."""
    stored = find_run(api, workspace, run)
    objects, _ = read_explanations(api, read_objects(api, stored), everything=True)
    return in_order([*_attempt_ends(stored), *observation_of(objects).events])


def _attempt_ends(stored: Stored) -> Iterator[Event]:
    """The ends of earlier attempts as events: their objects may be gone."""
    record = stored.record
    for ended in record.history:
        if ended.attempt == record.attempt and ended.generation == record.generation:
            continue
        name = attempt_name(record.run, ended.attempt, ended.generation)
        yield Event(ended.at, "Normal", "Ended", name, f"attempt {ended.attempt} {ended.state}")


def saving_uri(api: Api, workspace: Workspace, run: str) -> str | None:
    """The run's own folder of checkpoints. None when its job asks for no checkpoints."""
    stored = find_run(api, workspace, run)
    saving = Layout.from_dict(stored.layout).saving
    return None if saving is None else saving.uri


def secrets_of(api: Api, workspace: Workspace, run: str) -> tuple[str, ...]:
    """Those of its job. What a Secret of the cluster holds is read by the members alone."""
    return find_run(api, workspace, run).record.secret_values


def started_with(api: Api, workspace: Workspace, run: str) -> StartedWith:
    """As `Backend.started_with`. Its code goes with its job object."""
    record = find_run(api, workspace, run).record
    name = labels.code_name(attempt_name(record.run, record.attempt, record.generation))
    try:
        code = api.get(CONFIGMAPS, name).get("data") or {}
    except (Missing, Forbidden):
        code = {}
    return StartedWith(record.spec, code)


# Owning and ending.


def adopt(api: Api, handle: Handle, old: Owner, new: Owner, lease: str = "") -> Handle:
    now = api.server_time()
    stored = stop.adopt(api, handle, old, new, lease, now)
    return launching.handle_of(stored.record, adopted=True)


def suspend(api: Api, workspace: Workspace, run: str, wanted: bool, by: str) -> None:
    """Suspend a run, or resume it."""
    stop.suspend(api, read_objects(api, find_run(api, workspace, run)), wanted, by)


def delete(api: Api, workspace: Workspace, run: str) -> None:
    stop.delete(api, read_objects(api, find_run(api, workspace, run)))


def enforce(api: Api, workspace: Workspace, run: str, owner: Owner) -> None:
    """End what is past its limit."""
    stored = records.read_record(api, run)
    if stored is None or stored.record.owner.id != owner.id:
        return
    objects, _ = explain(api, workspace, read_objects(api, stored), False)
    history = session_of(workspace, stored).add_look(objects)
    seen, policy = observation_of(objects, memory=history.memory), Layout.from_dict(stored.layout).policy
    if policy.hang_then in ("restart", "fail"):
        # Who saw that it stands may have been another process.
        collect_logs(api, history.collector, objects, tries_of(objects), over=False, asked=False)
        seen = observation_of(objects, memory=history.memory, report=history.report)
        look_for_hang(api, history, objects, seen)
    stop.enforce(api, objects, with_stall(seen, history.stall, policy))


def watch_over(api: Api, run: str, lease: str) -> None:
    """From now on this process follows the run for its owner."""
    now = api.server_time()

    def followed(stored: Stored) -> Stored | None:
        if stored.record.owner.kind == "detached" or stored.record.outcome is not None:
            return None
        return replace(stored, lease=lease, followed=now)

    if lease:
        records.change(api, run, followed)


# Housekeeping.


def prune(api: Api, workspace: Workspace, every: Iterable[Stored] | None = None) -> None:
    """Remove records past their age, and what may be left of their jobs; a few at a time."""
    now, keep = api.server_time(), keep_seconds(workspace.environ)
    if every is None:
        bodies = api.list(CONFIGMAPS, labels=records.overdue(now, keep))[0]
        every = parse_records(bodies)
    old = [s for s in every if records.is_overdue(s, now, keep)]
    for stored in old[: records.PRUNE_AT_ONCE]:
        try:
            for reference in stored.objects:
                stop.remove_all(api, reference, stored.record.run)
            records.forget(api, stored)
        except (Forbidden, Missing):
            break  # a client that may not delete leaves it to others
