"""Orphans, left behind by clients that died: found, told, and tidied up on request (core/docs/contract.md,
Orphans).

An orphan is one of

- ``run``: a live run that a process must follow (attached or orchestrated), and whose follower's Lease has
  run out; a detached run needs no follower, but one whose client died before it made what its members mount;
- ``stop``: a run whose stop is recorded, and whose job is not ended;
- ``start``: an attempt that a record means, and whose job is not created;
- ``end``: a run that is over, and whose end is not recorded;
- ``job``: a live job of ours that no record means;
- ``extra``: code or a PodGroup of ours that no job owns;
- ``claim``: a claim of a run that has no record, and that no record owns: with its owner it would have gone.

It is tidied up only after a time in which its client could have come back (``policy.orphan`` of a run's job,
else `SAFE`), and only if nothing about it has changed since it was found. Where a reaper is at work the time
is the one that the reaper has counted (`waiting`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from allaboard.backends.kubernetes.client.errors import Conflict, Forbidden, Missing
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import (
    CONFIGMAPS,
    PODS,
    PVCS,
    SECRETS,
    Resource,
    extra_kinds,
    job_kinds,
    resource_of,
)
from allaboard.backends.kubernetes.client.values import at, mapping
from allaboard.backends.kubernetes.lifecycle import stop, waiting
from allaboard.backends.kubernetes.lifecycle.launch import is_mounted
from allaboard.backends.kubernetes.lifecycle.waiting import Waiting
from allaboard.backends.kubernetes.observe.lookup import (
    AttemptObjects,
    check_namespace,
    matches_record,
    observation_of,
    parse_records,
    read_objects,
)
from allaboard.backends.kubernetes.state import leases, records
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.engines import engine_of_object
from allaboard.follow.run_record import RunRecord
from allaboard.gangs import GANGS
from allaboard.job.training_job import ORPHAN_AFTER_MAX
from allaboard.render import labels
from allaboard.runs.observation import State, Stop
from allaboard.runs.status import state_of
from allaboard.text.names import key_hash
from allaboard.text.units import from_rfc3339, rfc3339, seconds, show_seconds

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

JANITOR, REAPER = "the janitor", "the reaper"
"""The names under which a person who tidies up, and a reaper, stop a run."""
ATTACHED_SECONDS = 600.0
ORCHESTRATED_SECONDS = 3600.0
"""An orchestrator may be restarted or upgraded, and its runs go on meanwhile."""
SAFE: Mapping[str, float] = {
    "attached": ATTACHED_SECONDS,
    "orchestrated": ORCHESTRATED_SECONDS,
    "stop": 60.0,
    "start": 600.0,
    "end": 0.0,
    "job": 600.0,
    "extra": 600.0,
    "claim": 600.0,
}
"""Seconds after the last sign of life from which on something is tidied up."""


LOOKED_AT = 60.0
"""Seconds between two looks of a reaper whether a run has ended that it does not end."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """``since``: when its client was last heard of; ``left``: seconds until it may be tidied up, None: its
    job says that it goes on to its end; ``patience``: those in all. ``name``: of the object; ``mark``:
    changed by whoever takes up the run.
    """

    kind: str
    name: str
    run: str
    reason: str
    since: float | None
    left: float | None
    patience: float = 0.0
    mark: str = ""
    stored: Stored | None = field(default=None, repr=False, compare=False)
    body: Json | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "run": self.run,
            "why": self.reason,
            "since": rfc3339(self.since),
            "tidied_up_in": None if self.left is None else max(0.0, round(self.left, 3)),
        }


@dataclass(frozen=True, slots=True)
class Tidied:
    """The fate of an orphan. ``done``: it is an orphan no more; ``action``: what was done, or why nothing
    was.
    """

    orphan: Orphan
    done: bool
    action: str

    def to_dict(self) -> dict[str, Any]:
        return {**self.orphan.to_dict(), "done": self.done, "what": self.action}


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything of ours in a namespace. ``leases``: None when they may not be read."""

    stored: tuple[Stored, ...]
    jobs: tuple[Json, ...]
    pods: tuple[Json, ...]
    extras: tuple[Json, ...]
    claims: tuple[Json, ...]
    leases: Mapping[str, Json] | None
    now: float


def orphans(api: Api, namespace: str) -> list[Orphan]:
    """All of them, runs first. Raises BadInput for a namespace that is not there."""
    orphans_here = [*found_in(take_picture(api))]
    if not orphans_here:
        check_namespace(api, namespace)
    return orphans_here


def tidy_up(api: Api, namespace: str) -> list[Tidied]:
    """Tidy up all that may be, and say what was done about each."""
    done = []
    for orphan in orphans(api, namespace):
        done.append(tidied(api, orphan, JANITOR))
    leases.remove_dead(api)
    return done


# Finding.


def take_picture(api: Api) -> Picture:
    """A picture of the namespace. Records come first, so that a job that is younger than they are is not
    taken for one without a record: its own is looked for before anything is done.
    """
    bodies = api.list(CONFIGMAPS, labels=records.selector())[0]
    stored = [*parse_records(bodies)]
    kinds = {*job_kinds(), *(resource_of(s.job) for s in stored)}
    jobs = _list_objects(api, kinds)
    pods = _list_objects(api, {PODS})
    extras = _list_objects(api, _extra_kinds())
    claims = _list_objects(api, {PVCS}, f"{labels.KEEP}=run")
    held = leases.read_leases(api)
    now = api.server_time()
    return Picture(tuple(stored), tuple(jobs), tuple(pods), tuple(extras), tuple(claims), held, now)


def _extra_kinds() -> set[Resource]:
    """Code, and every kind of object that a gang scheduler or a job of ours is given, but Secrets: who may
    list them reads those of others. They go with the start that they are part of.
    """
    ours = [gang for gang in GANGS.values() if gang.NAMED_BY is None]
    named = (kind.rpartition("/")[::2] for gang in ours for kind in (*gang.KINDS, *gang.COMPOSITE))
    of_gangs = (resource_of({"apiVersion": version, "kind": kind}) for version, kind in named)
    return {CONFIGMAPS, *extra_kinds(), *of_gangs} - {SECRETS}


def _list_objects(api: Api, kinds: set[Resource], marked: str = labels.ATTEMPT) -> list[Json]:
    """Objects of ours of these kinds with this label, as far as they are served and may be read."""
    objects: list[Json] = []
    for resource in sorted(kinds, key=lambda r: r.name):
        try:
            things = api.list(resource, labels=f"{labels.selector()},{marked}")[0]
        except (Missing, Forbidden):
            continue
        objects += [{"apiVersion": resource.api_version, "kind": resource.kind, **t} for t in things]
    return objects


def found_in(picture: Picture) -> Iterator[Orphan]:
    """The orphans of a picture."""
    meant = {}
    for stored in picture.stored:
        job = next((j for j in picture.jobs if _is_of(j, stored) and matches_record(j, stored)), None)
        if job is not None:
            meant[job["metadata"]["uid"]] = stored
        mine = tuple(p for p in picture.pods if _is_of(p, stored))
        yield from orphans_of_record(AttemptObjects(stored, job, None, mine, picture.now), picture)
    records_of = {s.record.run: s for s in picture.stored}
    for job in picture.jobs:
        if job["metadata"]["uid"] not in meant:
            yield from _of_job(job, records_of.get(labels.label_of(job, labels.RUN) or ""), picture.now)
    for extra in picture.extras:
        yield from _of_extra(extra, picture.now)
    for claim in picture.claims:
        if labels.label_of(claim, labels.RUN) not in records_of:
            yield from _of_claim(claim, picture.now)


def _is_of(body: Json, stored: Stored) -> bool:
    record = stored.record
    wanted = (record.run, str(record.attempt), str(record.generation))
    return tuple(labels.label_of(body, n) for n in (labels.RUN, labels.ATTEMPT, labels.GENERATION)) == wanted


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record that may be an orphan's, by itself and the Leases; its objects tell. ``patience``: seconds
    from which on they are worth a look; ``stays``: its job says that it goes on to its end.
    """

    stored: Stored
    mark: str
    since: float
    patience: float
    stays: bool = False


def suspect_of(stored: Stored, held: Mapping[str, Json] | None, now: float) -> Suspect | None:
    """The suspect that a record is; None: its client lives, or it is over. ``held``: the Leases."""
    record, mark = stored.record, _mark(stored)
    if record.outcome is not None:
        return None
    if record.stop is not None:
        return Suspect(stored, mark, record.stop.at, _stop_patience(record.stop))
    patience, stays = _patience(record)
    last = None if record.owner.kind == "detached" else last_seen(stored, held, now)
    if record.object_uid is None:
        begun, starting = _start(stored, last, patience)
        return Suspect(stored, mark, begun or 0.0, starting)
    if last is None:
        return None
    return Suspect(stored, mark, last, min(patience, LOOKED_AT) if stays else patience, stays)


def _stop_patience(stop: Stop) -> float:
    """Seconds for which a stop may lack its effect."""
    # Who has stopped it may be about to end the job. A reaper was killed at that: the next one goes on.
    return 0.0 if stop.by == REAPER else SAFE["stop"]


def _start(stored: Stored, last: float | None, patience: float) -> tuple[float | None, float]:
    """The time since which a start stands still, and the seconds for which it may. Of a start that takes long
    it is not known whether it stands still, unless its client is gone (``last``: when that was last seen).
    """
    if last is None:
        return stored.followed, SAFE["start"]
    return max(last, stored.followed or 0.0), min(SAFE["start"], patience)


def orphans_of_record(objects: AttemptObjects, picture: Picture) -> Iterator[Orphan]:
    """The orphan that a record and its objects are, if they are one. Of the picture it reads the Leases, the
    ConfigMaps and the time.
    """
    stored, record, now = objects.stored, objects.record, picture.now

    def orphan(kind: str, reason: str, since: float | None, patience: float, stays: bool = False) -> Orphan:
        mark = _mark(stored)
        left = _left(picture, Waiting(mark, since or 0.0), record.run, patience)
        return Orphan(
            kind, stored.name, record.run, reason, since, None if stays else left, patience, mark, stored
        )

    if record.outcome is not None:
        return
    observation = observation_of(objects)
    patience, stays = _patience(record)
    last = None if record.owner.kind == "detached" else last_seen(stored, picture.leases, now)
    begun, starting = _start(stored, last, patience)
    if record.stop is not None and objects.job is not None and not objects.ending and not _is_over(objects):
        reason = f"{record.stop.by} stopped it ({record.stop.reason}), but its job is not ended"
        yield orphan("stop", reason, record.stop.at, _stop_patience(record.stop))
    elif not objects.was_created and record.stop is None:
        reason = f"{record.owner.id} began to start it, but its job is not created"
        yield orphan("start", reason, begun, starting)
    elif record.stop is None and _lacks_mounted(objects, picture):
        reason = f"{record.owner.id} began to start it, but what its members mount is not created"
        yield orphan("run", reason, begun, starting)
    elif state_of(observation).is_final:
        yield orphan(
            "end", f"it {state_of(observation)}, but that is not recorded", observation.finished, 0.0
        )
    elif last is not None:
        reason = f"{record.owner.id} no longer follows it; last seen {show_seconds(now - last)} ago"
        yield orphan("run", reason, last, patience, stays)


def _patience(record: RunRecord) -> tuple[float, bool]:
    """Seconds for which the client of a run may stay away, and whether the run goes on to its end then."""
    stated = mapping(at(record.spec, "policy", "orphan"))
    after, usual = stated.get("after"), SAFE.get(record.owner.kind, ORCHESTRATED_SECONDS)
    if isinstance(after, str | int | float):
        with suppress(ValueError):  # a person has changed the record by hand
            usual = min(seconds(after), ORPHAN_AFTER_MAX)
    return usual, stated.get("then") == "finish"


def _mark(stored: Stored) -> str:
    """Changed by whoever takes the run up, and by a stop."""
    record, owner = stored.record, stored.record.owner
    state = "" if record.stop is None else "stopped"
    parts = (state, record.uid, owner.id, owner.phase, owner.kind, stored.lease, f"{stored.followed}")
    return key_hash("\0".join(parts))


def _left(picture: Picture, orphan: Waiting, run: str, patience: float) -> float:
    """Seconds until it may be tidied up: by what the reaper has counted where one is at work, else by the
    clock.
    """
    lease = (picture.leases or {}).get(waiting.LEASE)
    if lease is not None and leases.is_held(lease, picture.now):
        known = waiting.count(waiting.read(lease), [(run, orphan.mark, orphan.since)], 0.0)
        return patience - known[run].counted
    return patience if not orphan.since else orphan.since + patience - picture.now


def _lacks_mounted(objects: AttemptObjects, picture: Picture) -> bool:
    """True of a job whose client died before it made what the members wait for."""
    if objects.job is None or objects.record.object_uid is not None:
        return False
    there = {(extra["kind"], extra["metadata"]["name"]) for extra in picture.extras}
    wanted = filter(is_mounted, objects.stored.objects[:-1])
    return any((extra["kind"], extra["name"]) not in there for extra in wanted)


def last_seen(stored: Stored, held: Mapping[str, Json] | None, now: float) -> float | None:
    """The time at which its follower was last seen; None: it lives, or that is not known."""
    if held is None or not stored.lease:
        return None
    lease = held.get(stored.lease)
    if lease is None:
        return stored.followed or stored.record.created
    return None if leases.is_held(lease, now) else max(leases.seen_at(lease), stored.followed or 0.0)


def _is_over(objects: AttemptObjects) -> bool:
    without = replace(objects.record, stop=None)
    return state_of(observation_of(replace(objects, stored=replace(objects.stored, record=without)))).is_final


def _of_job(job: Json, stored: Stored | None, now: float) -> Iterator[Orphan]:
    if "deletionTimestamp" in job["metadata"] or _job_has_ended(job):
        return  # it goes, or it is kept for its logs
    since = from_rfc3339(job["metadata"].get("creationTimestamp"))
    reason = (
        "it has no run record: somebody deleted the record"
        if stored is None
        else f"its run is on attempt {stored.record.attempt}; a client that came too late made this job"
    )
    left = SAFE["job"] if since is None else since + SAFE["job"] - now
    run = labels.label_of(job, labels.RUN) or ""
    yield Orphan("job", job["metadata"]["name"], run, reason, since, left, body=job)


def _job_has_ended(job: Json) -> bool:
    engine = engine_of_object(job)
    conditions = engine.read(job, ()).conditions if engine is not None else ()
    return any(c.type in ("Succeeded", "Failed") and c.status == "True" for c in conditions)


def _of_extra(extra: Json, now: float) -> Iterator[Orphan]:
    metadata = extra["metadata"]
    if metadata.get("ownerReferences") or "deletionTimestamp" in metadata:
        return
    since = from_rfc3339(metadata.get("creationTimestamp"))
    left = SAFE["extra"] if since is None else since + SAFE["extra"] - now
    run = labels.label_of(extra, labels.RUN) or ""
    reason = f"{extra['kind']} of an attempt whose job does not own it: its client died during the start"
    yield Orphan("extra", metadata["name"], run, reason, since, left, body=extra)


def _of_claim(claim: Json, now: float) -> Iterator[Orphan]:
    metadata = claim["metadata"]
    if metadata.get("ownerReferences") or "deletionTimestamp" in metadata:
        return  # it goes with its owner
    since = from_rfc3339(metadata.get("creationTimestamp"))
    left = SAFE["claim"] if since is None else since + SAFE["claim"] - now
    run = labels.label_of(claim, labels.RUN) or ""
    reason = "it was kept for a run that no longer has a record, and holds what the run wrote"
    yield Orphan("claim", metadata["name"], run, reason, since, left, body=claim)


# Tidying up.


def tidied(api: Api, orphan: Orphan, by: str) -> Tidied:
    """Tidy up one orphan, if it may be and has not changed meanwhile."""
    if orphan.left is None:
        return Tidied(orphan, False, "left alone: it goes on to its end (policy.orphan.then: finish)")
    if orphan.left > 0:
        rest = show_seconds(orphan.left)
        return Tidied(orphan, False, f"left alone: its client may come back for another {rest}")
    try:
        if orphan.stored is None:
            done = _without_record(api, orphan)
        else:
            done = _with_record(api, orphan, orphan.stored, by)
    except Forbidden as error:
        return Tidied(orphan, False, f"left alone: {error}")
    return Tidied(orphan, done is not None, done or "left alone: it has changed meanwhile")


def _with_record(api: Api, orphan: Orphan, stored: Stored, by: str) -> str | None:
    """None: it is not what it was."""
    now = records.read_record(api, orphan.run)
    if now is None or (now.record, now.lease, now.followed) != (stored.record, stored.lease, stored.followed):
        return None
    objects = read_objects(api, now)
    record = now.record
    if orphan.kind == "stop":
        assert record.stop is not None
        stop.carry_out(api, objects, record.stop)
        return "its job is being ended"
    if orphan.kind == "start":
        if objects.was_created:
            return None
        try:  # as it was read: another client may take up the start in this moment
            lost = records.swap(api, now, record=record.ended(State.LOST, objects.now))
        except (Conflict, Missing):
            return None
        stop.remove_extras(api, lost)
        return "it counts as lost; launch it again under its key"
    if orphan.kind == "end":
        state = state_of(observation_of(objects))
        if not state.is_final:
            return None
        stop.record_end(api, objects, state)
        return f"written down: it {state}"
    # A client that stood still for as long may have come back, and has written no record for it.
    held = leases.read_leases(api, now.lease)
    if record.object_uid is not None and last_seen(now, held, objects.now) is None:
        return None
    return None if stop.stop_as_seen(api, objects, by, orphan.reason) is None else "stopped"


def _without_record(api: Api, orphan: Orphan) -> str | None:
    body = orphan.body
    assert body is not None
    stored = records.read_record(api, orphan.run)
    metadata = body["metadata"]
    if stored is not None and orphan.kind == "job" and matches_record(body, stored):
        return None
    if stored is not None and orphan.kind == "claim":
        return None  # it has a record by now
    if stored is not None and orphan.kind == "extra" and _is_being_started(stored) and _is_of(body, stored):
        return None  # it is part of a start; that is told, and tidied up, as such
    resource = resource_of(body)
    try:
        api.delete(
            resource,
            metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            propagation=stop.propagation_of(body) if orphan.kind == "job" else "Background",
        )
    except Conflict:
        return None
    return "deleted"


def _is_being_started(stored: Stored) -> bool:
    record = stored.record
    return not AttemptObjects(stored).was_created and record.outcome is None and record.stop is None
