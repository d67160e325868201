"""Changes to a job that another tool made, when a person asks for just that (``--adopt``).

It has no record: who acted and why stands on the object and in an event of it. The object that was looked at
is meant, by its uid; another one that has its name meanwhile stays as it is. So does a run of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allaboard.backends.base import Stopped
from allaboard.backends.kubernetes.client.errors import Conflict, Missing
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import resource_for
from allaboard.backends.kubernetes.lifecycle.stop import (
    PATIENCE,
    POLL,
    TRIES,
    delete_job,
    delete_stopped_job,
    emit_event,
    end_pod,
)
from allaboard.backends.kubernetes.observe import observation
from allaboard.backends.kubernetes.observe.containers import is_over
from allaboard.backends.kubernetes.observe.queues import refuse_suspension
from allaboard.backends.kubernetes.operations import foreign
from allaboard.backends.kubernetes.state import records
from allaboard.engines import Engine
from allaboard.errors import BadInput, OwnershipConflict, SiteError, UnknownRun
from allaboard.render import labels
from allaboard.runs.observation import Stop
from allaboard.runs.status import state_of

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

GRACE = 30.0
"""Seconds that a pod has to end where it says nothing else: Kubernetes' own default."""


def stop(api: Api, engine: Engine, name: str, uid: str, by: str, reason: str, kill: bool = False) -> Stopped:
    """Delete it in the foreground, unless it has ended; what is left of one that has is ended. It is under
    way, not over, when this returns. ``kill``: without grace.
    """
    job = _read_meant_job(api, engine, name, uid)
    now = api.server_time()
    ended = _has_ended(job)
    if not ended and not _is_ending(job):
        delete_stopped_job(api, job, Stop(by, reason, now), _has_ended)
    if ended or kill:
        for pod in foreign.pods_of(api, engine, job, []):
            end_pod(api, pod, kill)
    return Stopped(already=ended)


def suspend(api: Api, engine: Engine, name: str, uid: str, wanted: bool, by: str) -> None:
    """Suspend or resume it. Raises BadInput when it does not live, or when Kueue would undo that."""
    word = "suspended" if wanted else "resumed"
    for _ in range(TRIES):
        job = _read_meant_job(api, engine, name, uid)
        if _has_ended(job) or _is_ending(job):
            state = state_of(observation.of_object(job, now=0.0))
            raise BadInput(f"{engine.KIND} {name} is {state}; only a live job can be {word}")
        refuse_suspension(api, engine, job, wanted)
        # The version, too: Kueue may have been given it since it was read.
        metadata = {key: job["metadata"][key] for key in ("uid", "resourceVersion")}
        marking = {"annotations": {labels.SUSPENDED_BY: by if wanted else None}}
        change = {"metadata": {**metadata, **marking}, **engine.suspension(wanted)}
        try:
            api.patch(resource_for(engine), name, change)
        except (Conflict, Missing):
            continue
        emit_event(api, job, word.title(), f"{word} by {by}", again=True)
        return
    raise OwnershipConflict(f"{engine.KIND} {name} keeps changing; it was not {word}, try again")


def delete(api: Api, engine: Engine, name: str, uid: str, by: str) -> None:
    """Remove it with its pods, and wait until they are gone. Raises SiteError when something does not go."""
    job = _read_meant_job(api, engine, name, uid)
    begun = api.server_time()
    pods = foreign.pods_of(api, engine, job, [])
    if _has_ended(job) or _is_ending(job):
        # The event of a live one says that it was stopped.
        emit_event(api, job, "Deleted", f"deleted by {by}")
        delete_job(api, job)
    else:
        # Also if it ends in this very moment: it is to go.
        delete_stopped_job(api, job, Stop(by, "allaboard delete", begun), lambda _: False)
    patience = _grace(pods) + PATIENCE
    while (left := _describe_remains(api, engine, job)) is not None:
        if api.server_time() - begun > patience:
            raise SiteError(left)
        api.pause(POLL)


def _read_meant_job(api: Api, engine: Engine, name: str, uid: str) -> Json:
    """The job, if it is still the one that was looked at, and no run of ours."""
    try:
        job = api.get(resource_for(engine), name)
    except Missing:
        raise UnknownRun(f"{engine.KIND} {name} is gone: somebody deleted it meanwhile, or its ttl") from None
    if job["metadata"]["uid"] != uid:
        raise OwnershipConflict(
            f"{engine.KIND} {name} is not the object that was looked at: that one was deleted, and another "
            "was made under its name; nothing was done, look again"
        )
    run = labels.label_of(job, labels.RUN)
    if run is not None and _is_of_run(api, job, run):
        raise BadInput(f"{engine.KIND} {name} is an attempt of a run of ours; name the run: {run}")
    return job


def _is_of_run(api: Api, job: Json, run: str) -> bool:
    """True if it is an attempt of a run that has a record; labels alone may be copied with the object."""
    stored = records.read_record(api, run)
    attempt, generation = (labels.label_of(job, name) or "" for name in (labels.ATTEMPT, labels.GENERATION))
    if stored is None or not (attempt.isdecimal() and generation.isdecimal()):
        return False
    return labels.is_ours(job, labels.launch_uid(stored.record.key, int(generation), int(attempt)))


def _describe_remains(api: Api, engine: Engine, job: Json) -> str | None:
    """A sentence about the rest of a job that is being deleted; None: nothing is left."""
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    pods = [pod for pod in foreign.pods_of(api, engine, job, []) if not is_over(pod)]
    if pods:
        names = ", ".join(str(pod["metadata"]["name"]) for pod in pods[:5])
        return f"{engine.KIND} {name} is being deleted, and its pods do not end: {names}; look at their nodes"
    try:
        there = api.get(resource_for(engine), name)
    except Missing:
        return None
    if there["metadata"]["uid"] != uid:
        return None
    finalizers = ", ".join(there["metadata"].get("finalizers") or ())
    return (
        f"{engine.KIND} {name} is being deleted and does not go; its finalizers are waited for: {finalizers}"
    )


def _has_ended(job: Json) -> bool:
    return state_of(observation.of_object(job, now=0.0)).is_final


def _is_ending(job: Json) -> bool:
    return "deletionTimestamp" in job["metadata"]


def _grace(pods: Sequence[Json]) -> float:
    graces = (pod["spec"].get("terminationGracePeriodSeconds") for pod in pods)
    return max((GRACE if seconds is None else float(seconds) for seconds in graces), default=GRACE)
