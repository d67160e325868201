"""Ending a run of this owner alone: the record first (who, why), then the job, then its members.

Deletion is in the foreground: the job stays, marked as ending, until its members have had their grace and are
gone; its operator makes nothing for it any more from the first moment on. So "the job is gone" says that
the GPUs are free. It names the uid, and the version that was looked at: a job that ends by itself in the
same moment has ended by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allaboard.backends.base import Handle, NotYours, Stopped
from allaboard.backends.kubernetes.client.errors import ApiError, Conflict, Forbidden, Missing
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import EVENTS, PODS, SECRETS, resource_of
from allaboard.backends.kubernetes.lifecycle import claims
from allaboard.backends.kubernetes.logs import archive
from allaboard.backends.kubernetes.observe.containers import is_over
from allaboard.backends.kubernetes.observe.lookup import (
    NUDGED,
    AttemptObjects,
    describe_stuck,
    observation_of,
    read_objects,
)
from allaboard.backends.kubernetes.observe.managers import queue_of
from allaboard.backends.kubernetes.observe.queues import refuse_suspension
from allaboard.backends.kubernetes.state import records
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.engines import engine_of_object
from allaboard.errors import BackendUnreachable, BadInput, OwnershipConflict, SiteError, UnknownRun
from allaboard.render import labels
from allaboard.runs.layout import Layout
from allaboard.runs.observation import Observation, Owner, State, Stop
from allaboard.runs.status import state_of
from allaboard.text.units import from_rfc3339, rfc3339

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

TRIES = 20
POLL = 1.0
PATIENCE = 120.0
"""Seconds beyond the members' grace after which a pod that does not go counts as stuck."""


def stop(
    api: Api, handle: Handle, owner: Owner, by: str, reason: str, kill: bool = False
) -> Stopped | NotYours:
    """Stop the attempt if it is still the handle's and still ``owner``'s. It is under way, not over, when
    this returns.
    """
    for _ in range(TRIES):
        stored = records.read_record(api, handle.run)
        if stored is None or stored.record.uid != handle.uid or stored.record.owner.id != owner.id:
            return NotYours(stored.record.owner.id if stored is not None else "nobody")
        answer = stop_as_seen(api, read_objects(api, stored), by, reason, kill)
        if answer is not None:
            return answer
    raise _always_changing(handle.run)


def stop_as_seen(
    api: Api, objects: AttemptObjects, by: str, reason: str, kill: bool = False
) -> Stopped | None:
    """Stop the attempt of these objects. None: another client has written the record since it was read, and
    nothing is done.
    """
    state = state_of(observation_of(objects))
    if state.is_final:
        record_end(api, objects, state)
        _end_members(api, objects, kill)
        remove_extras(api, objects.stored)
        return Stopped(already=True)
    wanted = objects.record.stop or Stop(by, reason, objects.now)
    if stop_recorded(api, objects, wanted) is None:
        return None
    carry_out(api, objects, wanted, kill)
    return Stopped()


def stop_from(api: Api, handle: Handle, old: Owner, new: Owner, by: str, reason: str) -> bool:
    """As `stop`, of an attempt that is still ``old``'s and becomes ``new``'s with the same write. Whether it
    was stopped: one that has ended by itself is left to whoever takes its result.
    """
    for _ in range(TRIES):
        stored = records.read_record(api, handle.run)
        if stored is None or stored.record.uid != handle.uid or stored.record.owner not in (old, new):
            return False
        objects = read_objects(api, stored)
        if state_of(observation_of(objects)).is_final:
            return False
        wanted = stored.record.stop or Stop(by, reason, objects.now)
        if stop_recorded(api, objects, wanted, new) is not None:
            carry_out(api, objects, wanted)
            return True
    raise _always_changing(handle.run)


def _always_changing(run: str) -> OwnershipConflict:
    return OwnershipConflict(f"the record of run {run} keeps changing; it was not stopped, try again")


def stop_recorded(api: Api, objects: AttemptObjects, stop: Stop, owner: Owner | None = None) -> Stored | None:
    """The record that says so, and whose it is from now on; None: another client was faster, look again. What
    never ran ends with this.
    """
    stored = objects.stored if owner is None else owned(objects.stored, owner, "", objects.now)
    record = stored.record
    if record.stop is None:
        uid = record.object_uid or (objects.job["metadata"]["uid"] if objects.job is not None else None)
        record = replace(record, stop=stop, object_uid=uid)
        if not objects.was_created:
            record = record.ended(State.STOPPED, objects.now)
    if record == objects.record:
        return objects.stored
    try:
        return records.swap(api, stored, record=record)
    except (Conflict, Missing):
        return None


def carry_out(api: Api, objects: AttemptObjects, stop: Stop, kill: bool = False) -> None:
    """End the job of a run whose record says that it is stopped, unless it ends by itself first."""
    if objects.job is not None and not objects.ending:
        delete_stopped_job(api, objects.job, stop, lambda job: _has_ended(replace(objects, job=job)))
    if kill:
        _end_members(api, objects, kill)
    remove_extras(api, objects.stored)


def delete_stopped_job(api: Api, job: Json, stop: Stop, has_ended: Callable[[Json], bool]) -> None:
    """Delete this very job, unless it ends by itself first; who did it stands on it, and in an event of it,
    which outlives it.
    """
    ending = _deleted(api, job, has_ended)
    if ending is not None:
        annotations = {labels.STOPPED_BY: stop.by, labels.STOP_REASON: stop.reason}
        emit_event(api, ending, "Stopped", f"stopped by {stop.by}: {stop.reason}", annotations=annotations)
        _marked(api, ending, annotations)


def stop_from_events(events: Iterable[Json]) -> Stop | None:
    """The stop of a job by the event of `delete_stopped_job`: for when nothing else is left."""
    for event in events:
        by = labels.annotation_of(event, labels.STOPPED_BY)
        at = from_rfc3339(event.get("lastTimestamp"))
        if event.get("reason") == "Stopped" and by is not None and at is not None:
            return Stop(by, labels.annotation_of(event, labels.STOP_REASON) or "", at)
    return None


def _deleted(api: Api, job: Json, has_ended: Callable[[Json], bool]) -> Json | None:
    """The job, being deleted; None when it is gone or has ended by itself."""
    resource, metadata = resource_of(job), job["metadata"]
    for tries in range(TRIES):
        # A job whose status never rests is ended all the same.
        version = job["metadata"]["resourceVersion"] if tries < TRIES - 1 else None
        try:
            api.delete(
                resource,
                metadata["name"],
                uid=metadata["uid"],
                resource_version=version,
                propagation=propagation_of(job),
            )
            return job
        except Conflict:
            pass
        try:
            job = api.get(resource, metadata["name"])
        except Missing:
            return None
        if job["metadata"]["uid"] != metadata["uid"] or has_ended(job):
            return None
    return job


def _has_ended(objects: AttemptObjects) -> bool:
    """True if the job's own status says that it has ended."""
    without = replace(objects, stored=replace(objects.stored, record=replace(objects.record, stop=None)))
    return state_of(observation_of(without)).is_final


def _marked(api: Api, job: Json, annotations: Mapping[str, str]) -> None:
    """On the job too, for those who look at it with other tools while it ends."""
    try:
        change_object(api, job, {"metadata": {"annotations": annotations}})
    except (ApiError, BackendUnreachable):
        return  # it is gone already, or a webhook of its operator does not answer: the record has it


def emit_event(
    api: Api,
    job: Json,
    reason: str,
    message: str,
    *,
    again: bool = False,
    annotations: Mapping[str, str] | None = None,
) -> None:
    """An event of the job; ``again``: of what may happen to it more than once; ``said``: its annotations.
    A client that may not write events does without.
    """
    now = api.server_time()
    body = event(job, reason, message, now, which=str(now) if again else "")
    if annotations:
        body["metadata"]["annotations"] = dict(annotations)
    try:
        api.create(EVENTS, body)
    except (ApiError, BackendUnreachable):
        return


def event(job: Json, reason: str, message: str, now: float, kind: str = "Normal", which: str = "") -> Json:
    """Its name follows from what it says, so that told twice it is there once; ``which`` tells apart what
    happens more than once.
    """
    metadata = job["metadata"]
    identity = "\0".join((metadata["uid"], reason, message, *([which] if which else [])))
    at = rfc3339(float(int(now)))
    assert at is not None
    at = at.replace(".000", "")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{hashlib.blake2s(identity.encode(), digest_size=8).hexdigest()}",
            "namespace": metadata["namespace"],
            "labels": {k: v for k, v in metadata.get("labels", {}).items() if k.startswith(labels.PREFIX)},
        },
        "involvedObject": {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": "allaboard"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _end_members(api: Api, objects: AttemptObjects, kill: bool) -> None:
    """Members that live though their job has ended (clean_pods: none), or that are to have no grace."""
    for pod in objects.living:
        end_pod(api, pod, kill)


def end_pod(api: Api, pod: Json, kill: bool) -> None:
    """This very pod, unless it ends already; ``kill``: at once, whatever it does."""
    metadata = pod["metadata"]
    if is_over(pod) or ("deletionTimestamp" in metadata and not kill):
        return
    try:
        api.delete(PODS, metadata["name"], uid=metadata["uid"], grace=0 if kill else None)
    except Conflict:
        return  # another pod has the name: one of another attempt


def record_end(
    api: Api, objects: AttemptObjects, state: State, history: Mapping[str, Any] | None = None
) -> Stored | None:
    """The outcome in the record, with what was seen on the way (``history``: its ``memory`` and ``report``).
    The first outcome stands. A client that may not write leaves it to others.
    """
    uid = objects.job["metadata"]["uid"] if objects.job is not None else None

    observation = observation_of(objects)
    # What its objects no longer say: who deleted them, or that it is not known.
    reason = (
        observation.notes[-1]
        if objects.job is None and objects.record.stop is None and observation.notes
        else ""
    )

    def ended(now: Stored) -> Stored | None:
        record = now.record
        if record.uid != objects.record.uid or record.outcome is not None:
            return None
        record = record.ended(state, observation.finished or objects.now, reason)
        return replace(now, record=replace(record, object_uid=record.object_uid or uid), **(history or {}))

    if objects.record.outcome is not None:
        return objects.stored
    try:
        return records.change(api, objects.record.run, ended, objects.stored)
    except Forbidden:
        return objects.stored


def clear_attempt(api: Api, objects: AttemptObjects) -> AttemptObjects:
    """Wait until nothing of this attempt can run any more, and end what does. What is left. Raises SiteError
    when something does not go.
    """
    begun = objects.now
    grace = Layout.from_dict(objects.stored.layout).grace
    while True:
        job_lives = objects.job is not None and not _has_ended(objects)
        if not job_lives and not objects.living:
            remove_extras(api, objects.stored)
            return objects
        if not job_lives:
            _end_members(api, objects, False)
        elif objects.job is not None and not objects.ending:
            delete_job(api, objects.job)
        if objects.now - begun > grace + PATIENCE:
            raise SiteError(describe_stuck(objects))
        api.pause(POLL)
        objects = read_objects(api, objects.stored)


def remove_extras(api: Api, stored: Stored) -> None:
    """Those of an attempt that has no use for them any more and that no job owns, because who started it died
    before that: nothing else would remove them.
    """
    for extra in stored.objects[:-1]:
        resource = resource_of(extra)
        try:
            there = api.get(resource, extra["name"])
        except (Missing, Forbidden):
            continue
        metadata = there["metadata"]
        if labels.annotation_of(there, labels.LAUNCH) != stored.record.uid or metadata.get("ownerReferences"):
            continue
        version = metadata["resourceVersion"]
        try:
            api.delete(resource, metadata["name"], uid=metadata["uid"], resource_version=version)
        except (Conflict, Forbidden):
            continue  # another client has gone on with it meanwhile, or housekeeping will


def delete_job(api: Api, job: Json) -> None:
    """This very job, and all that hangs off it. It is under way when this returns."""
    delete_object(api, job, propagation_of(job))


def propagation_of(job: Json) -> str:
    """The propagation policy with which a job is deleted."""
    engine = engine_of_object(job)
    return "Foreground" if engine is None else engine.PROPAGATION


def change_object(api: Api, body: Json, change: Json) -> bool:
    """Merge a change into this very object, as often as others change it in the same moment. Whether it was
    there. Raises Conflict when they never let us.
    """
    resource, metadata = resource_of(body), body["metadata"]
    meant = {**change, "metadata": {**change.get("metadata", {}), "uid": metadata["uid"]}}
    for tries in range(TRIES):
        try:
            api.patch(resource, metadata["name"], meant)
            return True
        except Missing:
            return False
        except Conflict:
            if tries == TRIES - 1:
                raise
        try:
            there = api.get(resource, metadata["name"])
        except Missing:
            return False
        if there["metadata"]["uid"] != metadata["uid"]:
            return False
    raise AssertionError


def delete_object(api: Api, body: Json, propagation: str = "Background") -> None:
    """This very object; another one of its name stays."""
    metadata = body["metadata"]
    try:
        api.delete(resource_of(body), metadata["name"], uid=metadata["uid"], propagation=propagation)
    except Conflict:
        return


# Limits.


def enforce(api: Api, objects: AttemptObjects, observation: Observation) -> None:
    """Act on the limit that has passed: nudge the operator where it knows of the limit, else end the run: as
    failed where it could never start, as out of time otherwise.
    """
    job, passed = objects.job, observation.limit
    if job is None or passed is None or passed.left > 0:
        return
    if objects.record.stop is not None:
        carry_out(api, objects, objects.record.stop)
    elif passed.nudge:
        # Where it is not the job that it was, the next look says what it is.
        change_object(api, job, {"metadata": {"annotations": {NUDGED: rfc3339(objects.now)}}})
    else:
        stop = Stop("allaboard", passed.why, objects.now, timed_out=passed.code is None, code=passed.code)
        stored = stop_recorded(api, objects, stop)
        if stored is not None:
            carry_out(api, replace(objects, stored=stored), stop)


# The other verbs.


def adopt(api: Api, handle: Handle, old: Owner, new: Owner, lease: str, now: float) -> Stored:
    """Change the owner, if it is ``old`` and the attempt is still the handle's. Raises Lost or UnknownRun."""

    def swap(stored: Stored) -> Stored | None:
        record = stored.record
        if record.uid != handle.uid:
            raise OwnershipConflict(
                f"run {handle.run} is on attempt {record.attempt} now, not on {handle.attempt}"
            )
        if record.owner == new and new != old:
            return None  # written already; the answer to it was lost
        if record.owner != old:
            raise OwnershipConflict(f"run {handle.run} belongs to {record.owner.id} now")
        return owned(stored, new, lease, now)

    stored = records.change(api, handle.run, swap)
    if stored is None:
        raise UnknownRun(f"there is no run {handle.run!r} here")
    return stored


def owned(stored: Stored, owner: Owner, lease: str, now: float) -> Stored:
    """The record with its owner, and the Lease by which it is seen that they live: that of this process where
    it is this one that follows. Who will take up a run that is left to a triggerer is not known yet: until
    then the Lease before stands.
    """
    held = "" if owner.kind == "detached" else lease if owner.phase == "worker" else stored.lease
    return replace(stored, record=replace(stored.record, owner=owner), lease=held, followed=now)


def hand_over(api: Api, handle: Handle) -> None:
    """Record that the result was taken."""

    def taken(stored: Stored) -> Stored | None:
        if stored.record.uid != handle.uid or stored.record.handed_over:
            return None
        return replace(stored, record=replace(stored.record, handed_over=True))

    records.change(api, handle.run, taken)


def suspend(api: Api, objects: AttemptObjects, wanted: bool, by: str) -> None:
    """Suspend or resume the job; who did it stands on the job and in an event of it. Raises BadInput when it
    does not live.
    """
    state = state_of(observation_of(objects))
    word = "suspended" if wanted else "resumed"
    if state.is_final or objects.job is None or objects.ending:
        raise BadInput(f"run {objects.record.run} {state}; only a live run can be {word}")
    engine = engine_of_object(objects.job)
    assert engine is not None, "the record of a run names the kind of one of our engines"
    if queue_of(objects.job) is not None:
        refuse_suspension(api, engine, objects.job, wanted)
    change = {
        "metadata": {"annotations": {labels.SUSPENDED_BY: by if wanted else None}},
        **engine.suspension(wanted),
    }
    if not change_object(api, objects.job, change):
        raise OwnershipConflict(f"run {objects.record.run} was started anew or deleted meanwhile; look again")
    emit_event(api, objects.job, word.title(), f"{word} by {by}", again=True)


def delete(api: Api, objects: AttemptObjects) -> None:
    """Stop it if it lives, then remove its jobs, of all attempts, with pods, logs and the claims that are
    kept for the run alone. The record stays.
    """
    state = state_of(observation_of(objects))
    if not state.is_final:
        handle = Handle(
            objects.record.run, objects.record.attempt, objects.record.generation, objects.record.uid
        )
        stop(api, handle, objects.record.owner, "delete", "the run is deleted")
        stored = records.read_record(api, objects.record.run)
        if stored is None:
            return
        objects = read_objects(api, stored)
    objects = clear_attempt(api, objects)
    stored = record_end(api, objects, state_of(observation_of(objects)))
    if stored is None or stored.record.uid != objects.record.uid:
        raise OwnershipConflict(f"run {objects.record.run} has been started anew; it was not deleted")
    for reference in stored.objects:
        remove_all(api, reference, stored.record.run)
    claims.drop(api, stored.record)
    archive.forget(api, stored.record.run)

    def deleted(now: Stored) -> Stored | None:
        if now.record.uid != objects.record.uid:
            return None
        return replace(now, record=replace(now.record, deleted=True))

    records.change(api, objects.record.run, deleted)


def remove_all(api: Api, reference: Mapping[str, str], run: str) -> None:
    """Every object of this kind that carries the run's label: those of earlier attempts too. Secrets are not
    listed: they go with the job that owns them.
    """
    resource = resource_of(reference)
    if resource == SECRETS:
        return
    for there in api.list(resource, labels=f"{labels.selector(run)},{labels.ATTEMPT}")[0]:
        metadata = there["metadata"]
        try:
            api.delete(resource, metadata["name"], uid=metadata["uid"], propagation="Background")
        except Conflict:
            continue
