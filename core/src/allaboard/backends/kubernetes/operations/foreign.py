"""Looking at a job that another tool made. It has no run record: the job that has the name is meant. Nothing
here changes anything (`adoption` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from allaboard.backends.base import Selection
from allaboard.backends.kubernetes.client.errors import Forbidden, Missing
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import PODS, resource_for
from allaboard.backends.kubernetes.client.values import at, dicts
from allaboard.backends.kubernetes.lifecycle.stop import stop_from_events
from allaboard.backends.kubernetes.logs.collector import EvidenceCollector, collect
from allaboard.backends.kubernetes.observe import observation
from allaboard.backends.kubernetes.observe.containers import ContainerRun, is_over
from allaboard.backends.kubernetes.observe.lookup import (
    ASKING,
    NODE_LOST,
    container_runs_of,
    describe_lasting_pods,
    end_by_events,
    list_events,
    overdue,
)
from allaboard.backends.kubernetes.observe.managers import holding_queue, managers
from allaboard.backends.kubernetes.observe.queues import read_place
from allaboard.backends.selection import refuse_strangers
from allaboard.engines import ENGINES, Engine, engine_of_object
from allaboard.errors import BadInput, UnknownRun
from allaboard.render import labels
from allaboard.runs.observation import Event, Observation
from allaboard.runs.status import state_of

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api


def observe(
    api: Api, engine: Engine, name: str, *, evidence: bool = False, uid: str | None = None, only: bool = False
) -> Observation:
    """The job of this name as it is now. ``uid``: of the job that was seen there before; once it is gone, its
    end is seen; ``only``: also where another job has its name now. Raises UnknownRun when no job is there,
    and BadInput where its kind is not served.
    """
    try:
        job = api.get(resource_for(engine), name)
    except Missing as error:
        if error.unserved:
            kinds = resource_for(engine).name
            raise BadInput(
                f"this cluster serves no {kinds}; `allaboard cluster` shows what it serves"
            ) from None
        return _observe_gone(api, engine, name, uid)
    if only and job["metadata"]["uid"] != uid:
        return _observe_gone(api, engine, name, uid)
    notes = [*managers(job)]
    pods = pods_of(api, engine, job, notes)
    now = api.server_time()
    seen = observation.of_object(job, now=now, pods=pods)
    if evidence or state_of(seen) in ASKING:
        about = [each["metadata"]["uid"] for each in (job, *(pods if evidence else ()))]
        events = list_events(api, about, notes)
        tails, wrote = _tails(api, engine, seen, pods) if evidence else ({}, {})
        workload = read_place(api, job, notes) if holding_queue(job) is not None else None
        seen = observation.of_object(job, now=now, pods=pods, events=events, workload=workload, tails=tails)
        seen = replace(seen, looked=now, wrote=wrote) if evidence else seen
    late = overdue([pod for pod in pods if not is_over(pod)], now)
    if late:
        seen = replace(seen, flags=(*seen.flags, NODE_LOST))
        notes.append(describe_lasting_pods(f"members of {engine.KIND} {name}", late))
    return replace(seen, notes=tuple(notes))


def find_engine(api: Api, name: str) -> Engine:
    """The engine of the job of this name, among the kinds that this cluster serves. Raises UnknownRun where
    no such job is there, or it is an attempt of a run of ours.
    """
    for engine in ENGINES.values():
        try:
            job = api.get(resource_for(engine), name)
        except (Missing, Forbidden):
            continue
        if not _is_ours(job) and not _is_part(job):
            return engine
    raise UnknownRun(f"there is no job {name!r} here")


def job_objects(api: Api) -> list[Json]:
    """The job objects that others made in this namespace, of every kind that is served, without those that
    another job made.
    """
    objects: list[Json] = []
    for engine in ENGINES.values():
        try:
            jobs = api.list(resource_for(engine))[0]
        except (Missing, Forbidden):
            continue
        kind = {"apiVersion": engine.API_VERSION, "kind": engine.KIND}
        objects += [{**job, **kind} for job in jobs if not (_is_ours(job) or _is_part(job))]
    return objects


def list_jobs(api: Api) -> list[Observation]:
    """All jobs that others made in this namespace, newest first: two lists for each kind that is served."""
    observations: list[Observation] = []
    for engine in ENGINES.values():
        try:
            jobs = [job for job in api.list(resource_for(engine))[0] if not (_is_ours(job) or _is_part(job))]
        except (Missing, Forbidden):
            continue
        if not jobs:
            continue
        try:
            pods = api.list(PODS, labels=engine.JOB_LABEL)[0]
        except Forbidden:
            pods = []
        now = api.server_time()
        for job in jobs:
            name, uid = job["metadata"]["name"], job["metadata"]["uid"]
            its = [
                pod
                for pod in pods
                if labels.label_of(pod, engine.JOB_LABEL) == name
                and not _is_of_another(pod, engine.KIND, uid)
            ]
            observations.append(observation.of_object(job, now=now, pods=its))
    return sorted(observations, key=lambda seen: (seen.created or 0, seen.run), reverse=True)


def list_job_events(api: Api, engine: Engine, name: str) -> list[Event]:
    """The events of a job and its pods that the cluster still knows, oldest first."""
    job = api.get(resource_for(engine), name)
    pods = pods_of(api, engine, job, [])
    about = list_events(api, [each["metadata"]["uid"] for each in (job, *pods)], [])
    now = api.server_time()
    return [*observation.of_object(job, now=now, pods=pods, events=about).events]


def readable_job_logs(
    api: Api, engine: Engine, name: str, selection: Selection
) -> tuple[list[ContainerRun], bool]:
    """Every log of a job that can be read, and whether nothing more will be written. Raises BadInput for
    what the job does not have.
    """
    if selection.attempt not in (None, 1):
        raise BadInput(f"{engine.KIND} {name} is not a run of ours: it has one attempt")
    try:
        job = api.get(resource_for(engine), name)
    except Missing:  # by its ttl, while it was read
        return [], True
    pods = pods_of(api, engine, job, [])
    now = api.server_time()
    seen = observation.of_object(job, now=now, pods=pods)
    refuse_strangers(selection, seen.members)
    over = state_of(seen).is_final and not any(member.phase == "running" for member in seen.members)
    return container_runs_of(engine, seen.members, pods), over


def _is_ours(job: Json) -> bool:
    return labels.label_of(job, labels.RUN) is not None


def _is_part(job: Json) -> bool:
    """True if another job made this one, as a TrainJob makes its JobSet."""
    owners = dicts(at(job, "metadata", "ownerReferences"))
    return any(owner.get("controller") and engine_of_object(owner) is not None for owner in owners)


def _observe_gone(api: Api, engine: Engine, name: str, uid: str | None) -> Observation:
    if uid is None:
        raise UnknownRun(f"there is no {engine.KIND} {name!r} here")
    # A ttl may be shorter than the time between two looks. Events outlive their object by an hour or so.
    events = list_events(api, [uid], [])
    end, stop = end_by_events(events), stop_from_events(events)
    seen = Observation(run=name, job=name, uid=uid)
    if end is None and stop is not None:
        note = f"the job is gone; an event tells why: stopped by {stop.by}: {stop.reason}"
        return replace(seen, stop=stop, stopped=True, finished=stop.at, notes=(note,))
    if end is None:
        note = "the job is gone: its ttl is over or somebody deleted it; nobody saw how it ended"
        return replace(seen, deleted=True, notes=(note,))
    note = "the job is gone; an event of its operator says how it ended"
    return replace(seen, recorded=end.value, notes=(note,))


def pods_of(api: Api, engine: Engine, job: Json, notes: list[str]) -> list[Json]:
    """Those that its operator made for it, and not for one of the same name that was there before."""
    metadata = job["metadata"]
    try:
        pods = api.list(PODS, labels=f"{engine.JOB_LABEL}={metadata['name']}")[0]
    except Forbidden:
        notes.append("pods may not be read here, so the state of each member is unknown")
        return []
    return [pod for pod in pods if not _is_of_another(pod, engine.KIND, metadata["uid"])]


def _is_of_another(pod: Json, kind: str, uid: str) -> bool:
    owners = dicts(pod["metadata"].get("ownerReferences"))
    return any(owner["kind"] == kind and owner["uid"] != uid for owner in owners)


def _tails(
    api: Api, engine: Engine, seen: Observation, pods: Sequence[Json]
) -> tuple[dict[str, str], dict[str, float]]:
    """The ends of what its members wrote, as far as nodes still have them; and when each wrote last."""
    collector, readable = EvidenceCollector(progress_every=0), container_runs_of(engine, seen.members, pods)
    if readable:
        collect(api, None, collector, readable, asked=True)
    return collector.tails(), collector.wrote()
