"""Starting a run exactly once (core/docs/contract.md, Launch under a key), when every client may be
killed between any two requests.

The record decides. An attempt is made in this order, and each step may be done again by the next client:

1. the record, created or swapped to the new attempt: from here on the attempt is meant, though nothing runs;
2. the claims that it shares with other attempts (`claims`), and those extra objects of the attempt for which
   its operator or scheduler looks (PodGroup, key pair, runtime), without an owner yet;
3. the job, whose name and launch follow from the key and the attempt: a second one cannot be made;
4. the job as owner of the extras, so that they go when it goes; and the ConfigMaps that its pods mount (code,
   helper), which are made with their owner: no container starts before they are there, because its kubelet
   waits for them;
5. the job's uid in the record: the attempt is known to have been created. Before this, a job that is not
   there was never made, and is made by the next launch, and so is what its pods wait for; after it, it was
   deleted: the attempt is lost.

Step 5 is also the fence. A client that slept through its own end (between 1 and 3) finds there that the
record means something else by now, and takes its job away again.

What the cluster refuses (a quota, an admission policy, a name that is taken) is undone backwards
to the record as it was, so that "nothing was started" is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from allaboard.backends.base import Handle, Plan
from allaboard.backends.data import Choice
from allaboard.backends.kubernetes.client.errors import (
    ApiError,
    Conflict,
    Exists,
    Forbidden,
    Invalid,
    Missing,
)
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import resource_of
from allaboard.backends.kubernetes.lifecycle import claims, ssh_keys
from allaboard.backends.kubernetes.lifecycle.field_errors import lacks_extra, problem_of
from allaboard.backends.kubernetes.lifecycle.prepare import PreparedAttempt
from allaboard.backends.kubernetes.lifecycle.stop import (
    carry_out,
    change_object,
    clear_attempt,
    delete_job,
    delete_object,
    owned,
    remove_extras,
    stop_recorded,
)
from allaboard.backends.kubernetes.observe.lookup import (
    AttemptObjects,
    is_of_spec,
    matches_record,
    observation_of,
    read_objects,
)
from allaboard.backends.kubernetes.observe.progress import carried
from allaboard.backends.kubernetes.state import records
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.engines import ENGINES
from allaboard.errors import BadInput, OwnershipConflict, SiteError, SpecChanged
from allaboard.follow import run_record
from allaboard.follow.run_record import RunRecord
from allaboard.job.identity import differences
from allaboard.render import labels
from allaboard.runs.observation import Owner, State, Stop
from allaboard.runs.status import state_of

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

TRIES = 20
STARTING = 60.0
"""Seconds for which a start that is not done counts as under way."""
WEBHOOK_TRIES = 40
"""Quarters of a second within which a webhook's cache must know what a job brings."""
DELETE_TRIES = 120
"""Seconds that an object of the same name may take to go away."""


Prepare = Callable[[Plan, int, int], PreparedAttempt]
"""From a plan, for a generation and an attempt. Raises BadInput for what cannot run here."""


ChooseData = Callable[[RunRecord | None, State], Choice]
"""From the record and the state of its attempt to the data of the next one."""


def unknown_data(record: RunRecord | None, state: State) -> Choice:
    """For a job without data."""
    return Choice()


def launch(
    api: Api,
    plan: Plan,
    owner: Owner,
    prepare: Prepare,
    lease: Callable[[], str] = lambda: "",
    choose: ChooseData = unknown_data,
) -> Handle:
    """Make the run of this key be what the table says, and return its attempt. ``lease``: takes that of this
    process, before the record names it; empty: there is none.
    """
    is_new = plan.key.startswith("once/")
    for _ in range(TRIES):
        stored = None if is_new else records.read_record(api, plan.run)
        is_new = False
        request = _LaunchRequest(plan, owner, prepare, lease, choose)
        handle = _launch_first(api, request) if stored is None else _launch_again(api, request, stored)
        if handle is not None:
            return handle
    raise OwnershipConflict(
        f"run {plan.run} keeps changing hands; nothing was started here, try again in a moment"
    )


@dataclass(frozen=True, slots=True)
class _LaunchRequest:
    """One launch: the plan and its owner, and, once that is chosen, what it trains on."""

    plan: Plan
    owner: Owner
    prepare: Prepare
    lease: Callable[[], str]
    choose: ChooseData
    choice: Choice = field(default_factory=Choice)

    def chosen(self, record: RunRecord | None, state: State) -> _LaunchRequest:
        """With the data for the next attempt."""
        choice = self.choose(record, state)
        shards = choice.data.uri if choice.data is not None else self.plan.shards
        return replace(self, choice=choice, plan=replace(self.plan, shards=shards))

    def prepared(self, generation: int, attempt: int) -> PreparedAttempt:
        """Raises BadInput for what cannot run here, SiteError for what cannot be made here."""
        ready = self.prepare(self.plan, generation, attempt)
        ssh_keys.require_maker(ready.extras)
        return ready

    def noted(self, stored: Stored, now: float) -> Stored:
        """The record with who owns it from here on, and by which Lease it is seen that they live."""
        return owned(stored, self.owner, self.lease(), now)


# The rows of the table.


def _launch_first(api: Api, request: _LaunchRequest) -> Handle | None:
    """Nothing is there."""
    request = request.chosen(None, State.UNKNOWN)
    plan = request.plan
    ready = request.prepared(1, 1)
    record = RunRecord(
        plan.run,
        plan.key,
        plan.job.name,
        plan.spec,
        plan.spec_hash,
        request.owner,
        _uid(plan, 1, 1),
        0.0,
        data=request.choice.data,
    )
    record = replace(record, secrets=plan.secrets)
    now = api.server_time()
    wanted = request.noted(meant_record(Stored(record), record, ready), now)
    try:
        stored = records.create(api, wanted)
    except Exists:
        return None
    return _make(api, stored, ready, None)


def _launch_again(api: Api, request: _LaunchRequest, stored: Stored) -> Handle | None:
    """The key is known. None: something was done first, and the table is looked at again."""
    plan, record = request.plan, stored.record
    if record.key != plan.key:
        raise BadInput(
            f"the keys {record.key!r} and {plan.key!r} give the same run name {plan.run}; use another key"
        )
    objects = read_objects(api, stored)
    if not objects.was_created and record.outcome is None and record.stop is None:
        request = request.chosen(record, State.UNKNOWN)
        return _complete(api, request, objects)
    # How it ended stands, whatever a client that came too late has started since: `_next` clears that away.
    state = state_of(observation_of(objects)) if record.outcome is None else State(record.outcome.state)
    if state is State.STOPPING:
        # Its client may have died before it was done; it is neither adopted nor left half done.
        if record.stop is not None:
            carry_out(api, objects, record.stop)
        clear_attempt(api, objects)
        return None
    request = request.chosen(record, state)
    decision = run_record.decide(record, state, request.owner, plan.spec, request.choice.data)
    match decision:
        case run_record.Refuse(changes):
            raise SpecChanged.of(plan.run, changes)
        case run_record.Adopt():
            return _adopt(api, request, objects)
        case run_record.HandOver():
            return _hand_over(api, request, objects, state)
        case run_record.StopFirst(_, reason):
            stop = Stop(
                request.owner.id, f"started anew: {reason}" if reason else "started anew", objects.now
            )
            stopped = stop_recorded(api, objects, stop)
            if stopped is not None:
                carry_out(api, replace(objects, stored=stopped), stop)
            return None
        case run_record.NewAttempt() | run_record.NewGeneration():
            return _launch_next(api, request, objects, state, decision)
    raise AssertionError(decision)


def _adopt(api: Api, request: _LaunchRequest, objects: AttemptObjects) -> Handle | None:
    assert objects.job is not None
    if objects.record.object_uid is None:  # its client died before the last two steps
        _complete_extras(api, request, objects.stored, objects.job)
    record = replace(objects.record, object_uid=_object_uid(objects))
    stored = _swapped(api, request.noted(replace(objects.stored, record=record), objects.now))
    return None if stored is None else handle_of(stored.record, adopted=True)


def _hand_over(api: Api, request: _LaunchRequest, objects: AttemptObjects, state: State) -> Handle | None:
    record = replace(objects.record.ended(state, objects.now), object_uid=_object_uid(objects))
    stored = _swapped(api, request.noted(replace(objects.stored, record=record), objects.now))
    return None if stored is None else replace(handle_of(stored.record), hand_over=True)


def _complete(api: Api, request: _LaunchRequest, objects: AttemptObjects) -> Handle | None:
    """The record means an attempt whose job is not made yet. With another spec that is the start of another
    client, unless it was abandoned.
    """
    plan, record, data = request.plan, objects.record, request.choice.data
    changes = run_record.spec_changes(record, plan.spec, data)
    if changes and objects.now - (objects.stored.followed or record.created) < STARTING:
        raise SpecChanged.of(plan.run, changes)
    if record.attempt > 1 and run_record.why_from_scratch(record.data, data):  # it would resume
        uid = _uid(plan, record.generation + 1, 1)
        record = record.next_generation(uid, request.owner, plan.spec, plan.spec_hash)
    ready = request.prepared(record.generation, record.attempt)
    record = replace(
        record, spec=plan.spec, spec_hash=plan.spec_hash, data=data or record.data, secrets=plan.secrets
    )
    stored = _swapped(api, request.noted(meant_record(objects.stored, record, ready), objects.now))
    if stored is None:
        return None
    return _make(api, stored, ready, () if record.history else None)


def _launch_next(
    api: Api,
    request: _LaunchRequest,
    objects: AttemptObjects,
    state: State,
    decision: run_record.NewAttempt | run_record.NewGeneration,
) -> Handle | None:
    """Another attempt, or another generation, once nothing of the one before can run any more."""
    plan = request.plan
    old = replace(objects.record.ended(state, objects.now), object_uid=_object_uid(objects))
    ready = _prepared_next(request, old, decision)
    clear_attempt(api, objects)
    layout = ready.layout
    uid = _uid(plan, layout.generation, layout.attempt)
    anew = (uid, request.owner, plan.spec, plan.spec_hash)
    record = (
        old.next_attempt(*anew, interrupted=plan.interrupted)
        if isinstance(decision, run_record.NewAttempt)
        else old.next_generation(*anew)
    )
    record = replace(record, data=request.choice.data, secrets=plan.secrets)
    stored = _swapped(api, request.noted(meant_record(objects.stored, record, ready), objects.now))
    if stored is None:
        return None
    before = replace(objects.stored, record=old)
    handle = _make(api, stored, ready, before)
    notes = [*_launch_notes(plan, old, decision), *([request.choice.note] if request.choice.note else [])]
    return replace(handle, notes=(*notes, *handle.notes))


def _prepared_next(
    request: _LaunchRequest,
    old: RunRecord,
    decision: run_record.NewAttempt | run_record.NewGeneration,
) -> PreparedAttempt:
    if isinstance(decision, run_record.NewGeneration):
        return request.prepared(old.generation + 1, 1)
    return request.prepared(old.generation, old.attempt + 1)


def _launch_notes(
    plan: Plan, old: RunRecord, decision: run_record.NewAttempt | run_record.NewGeneration
) -> list[str]:
    if isinstance(decision, run_record.NewGeneration) and decision.reason:
        notes = [f"{plan.run}: {decision.reason}"]
    elif isinstance(decision, run_record.NewGeneration):
        notes = [f"{plan.run} succeeded before and its result was taken; it trains again from scratch"]
    else:
        how = old.outcome.state if old.outcome is not None else "ended"
        notes = [f"attempt {old.attempt + 1} of {plan.run}: the one before {how}"]
    return notes + (["the job has changed: " + "; ".join(decision.changes)] if decision.changes else [])


def meant_record(stored: Stored, record: RunRecord, ready: PreparedAttempt) -> Stored:
    """The record that means this attempt."""
    return replace(
        stored,
        record=record,
        layout=ready.layout.to_dict(),
        objects=ready.objects,
        gang=ready.gang_object,
        memory={},
        report=carried(stored.report, stored.record, record),
    )


# Making an attempt, from step 2 on.


def _make(api: Api, stored: Stored, ready: PreparedAttempt, before: Stored | tuple[()] | None) -> Handle:
    """``before``: the record to go back to when the cluster refuses; None: there was none; ``()``: it is not
    known any more, and the attempt stays one that is to be made.
    """
    try:
        notes = _ensure_claims(api, stored, ready)
        job = _create(api, stored, ready)
    except (Invalid, Forbidden, Missing, _Taken) as error:
        _undo(api, stored, before)
        raise _refusal(error, stored, ready) from error
    stored = _confirm(api, stored, job)
    alone = ready.gang.alone
    return replace(
        handle_of(stored.record),
        notes=tuple(note for note in (*ready.notes, *notes) if note != alone),
        warnings=(alone,) if alone is not None else (),
    )


def _ensure_claims(api: Api, stored: Stored, ready: PreparedAttempt) -> list[str]:
    """The claims are there; notes about those that are not what the job says. Raises _Taken."""
    notes = []
    for claim in ready.claims:
        there = claims.ensure(api, stored, claim)
        if not claims.is_ours(there, claim):
            raise _Taken(there, claim)
        notes += [note] if (note := claims.difference(there, claim)) is not None else []
    return notes


def _create(api: Api, stored: Stored, ready: PreparedAttempt) -> Json:
    *extras, body = ready.manifests
    made = [_ensure(api, stored, extra) for extra in extras if not is_mounted(extra)]
    job = _create_job(api, stored, body, extras)
    for created in made:
        _own(api, created, job)
    try:
        _create_owned(api, stored, filter(is_mounted, extras), job)
    except (Invalid, Forbidden, Missing, _Taken):
        delete_job(api, job)  # its members wait for what they mount
        raise
    return job


def _create_owned(api: Api, stored: Stored, extras: Iterable[Json], job: Json) -> None:
    """The extras, with the job as their owner from the first moment on."""
    for extra in extras:
        metadata = {**extra["metadata"], "ownerReferences": [labels.owner_reference(job)]}
        _own(api, _ensure(api, stored, {**extra, "metadata": metadata}), job)


def _create_job(api: Api, stored: Stored, body: Json, extras: Sequence[Json]) -> Json:
    """The job object; tried again while a webhook does not know yet what the job brings."""
    for _ in range(WEBHOOK_TRIES):
        try:
            return _ensure(api, stored, body)
        except (Forbidden, Invalid) as error:
            if not lacks_extra(error.message, extras):
                raise
        api.pause(0.25)
    return _ensure(api, stored, body)


def _ensure(api: Api, stored: Stored, body: Json) -> Json:
    """The object, made by us or by another client that makes this attempt. Raises _Taken."""
    resource, name = resource_of(body), body["metadata"]["name"]
    for _ in range(DELETE_TRIES):
        try:
            return api.create(resource, ssh_keys.filled(body))
        except Exists:
            pass
        try:
            there = api.get(resource, name)
        except Missing:
            continue
        if "deletionTimestamp" not in there["metadata"]:
            if _usable(there, stored, body):
                return there
            if labels.label_of(there, labels.RUN) != stored.record.run:
                raise _Taken(there, body)
            # Of this run, and not what this attempt needs: a client that came too late has made it, or one
            # that died before it was used, or its record was pruned. Unless it is us who come too late.
            _still_meant(api, stored)
            if is_job(there, stored):
                delete_job(api, there)
            else:
                delete_object(api, there)
        api.pause(1.0)
    raise SiteError(
        f"{resource.name} {name} of an earlier attempt does not go away; look at its finalizers: "
        f"kubectl get {resource.name} {name} -o yaml"
    )


def _usable(there: Json, stored: Stored, body: Json) -> bool:
    """True if the object that is there equals the object that would be created."""
    if is_job(body, stored):
        return matches_record(there, stored) or _survived(there, stored)
    # Of a client that died, and whose files may have been others; or owned by a job that takes it along.
    ours = labels.annotation_of(there, labels.LAUNCH) == stored.record.uid
    free = _owners(there) <= _owners(body)
    return ours and free and _holds(there, body) and ssh_keys.is_whole(there)


def _owners(body: Json) -> set[str]:
    return {reference["uid"] for reference in body["metadata"].get("ownerReferences") or ()}


def is_mounted(extra: Mapping[str, Any]) -> bool:
    """True of what only the pods of an attempt need: they wait for it."""
    return bool(extra["kind"] == "ConfigMap")


def is_job(body: Json, stored: Stored) -> bool:
    """True if this is the job of the attempt, by kind and name."""
    return (body["kind"], body["metadata"]["name"]) == (stored.job["kind"], stored.job["name"])


def _holds(there: Any, wanted: Any) -> bool:
    """True if all that is wanted is there; the server adds fields of its own."""
    if isinstance(wanted, dict):
        rest = {k: v for k, v in wanted.items() if k != "metadata"}
        return isinstance(there, dict) and all(_holds(there.get(k), v) for k, v in rest.items())
    if isinstance(wanted, list):
        return isinstance(there, list) and len(there) == len(wanted) and all(map(_holds, there, wanted))
    return bool(there == wanted)


def _still_meant(api: Api, stored: Stored) -> None:
    """Raises Lost when the record no longer means what we are making."""
    now = records.read_record(api, stored.record.run)
    if now is None or _claim(now) != _claim(stored):
        raise OwnershipConflict(_overtaken(stored, now))


def _claim(stored: Stored) -> tuple[Any, ...]:
    record = stored.record
    return record.uid, record.spec_hash, record.object_uid, record.stop, record.outcome, stored.created


def _survived(job: Json, stored: Stored) -> bool:
    """A job of this very launch that is older than the record: the record was deleted of a run that
    lives. It is the run; a second one is not started.
    """
    record = stored.record
    same = labels.annotation_of(job, labels.LAUNCH) == record.uid and is_of_spec(job, record)
    return same and not state_of(observation_of(AttemptObjects(stored, job))).is_final


def _complete_extras(api: Api, request: _LaunchRequest, stored: Stored, job: Json) -> None:
    """Step 4 for a job whose client died before it."""
    lacking = set[str]()
    for extra in stored.objects[:-1]:
        try:
            there = api.get(resource_of(extra), extra["name"])
        except Missing:
            lacking |= {extra["name"]} if is_mounted(extra) else set()
            continue
        except Forbidden:
            continue
        if labels.annotation_of(there, labels.LAUNCH) == stored.record.uid:
            lacking |= set() if ssh_keys.is_whole(there) else {extra["name"]}
            _own(api, there, job)
    if lacking:
        ready = request.prepared(stored.record.generation, stored.record.attempt)
        anew = (extra for extra in ready.extras if extra["metadata"]["name"] in lacking)
        _create_owned(api, stored, anew, job)


def _own(api: Api, body: Json, job: Json) -> None:
    owner = labels.owner_reference(job)
    if owner["uid"] in _owners(body):
        return
    # Where it went, so did its job.
    change_object(api, body, {"metadata": {"ownerReferences": [owner]}})


def _confirm(api: Api, stored: Stored, job: Json) -> Stored:
    """Step 5. Raises Lost when the record means something else by now; then the job is taken away again, and
    its extras go with it.
    """
    uid = job["metadata"]["uid"]

    def known(now: Stored) -> Stored | None:
        record = now.record
        if record.object_uid is not None or record.stop is not None or record.outcome is not None:
            return None
        if (record.uid, record.spec_hash) != (stored.record.uid, stored.record.spec_hash):
            return None
        return replace(now, record=replace(record, object_uid=uid))

    now = records.change(api, stored.record.run, known, stored)
    if now is not None and now.record.object_uid == uid:
        return now
    delete_job(api, job)
    if now is not None and now.record.uid == stored.record.uid and now.record.stop is not None:
        return now  # stopped before it began; its follower is told so
    raise OwnershipConflict(_overtaken(stored, now))


def _overtaken(stored: Stored, now: Stored | None) -> str:
    who = f"taken over by {now.record.owner.id}" if now is not None else "forgotten: its record was deleted"
    return f"run {stored.record.run} was {who} while it was being started here; nothing of this start is left"


def _undo(api: Api, stored: Stored, before: Stored | tuple[()] | None) -> None:
    """The cluster as it was, unless another client has gone on with this attempt: the record first, by which
    that is known.
    """
    if before is None:
        alone = records.forget(api, stored)
    elif isinstance(before, Stored):
        alone = _swapped(api, replace(before, body=stored.body)) is not None
    else:
        return
    if alone:
        remove_extras(api, stored)


def _swapped(api: Api, stored: Stored, **changes: object) -> Stored | None:
    """The record written, or None: another client was faster, look again."""
    try:
        return records.swap(api, stored, **changes)
    except (Conflict, Missing):
        return None


# Words.


class _Taken(Exception):
    """Another object has the name."""

    def __init__(self, there: Json, body: Json) -> None:
        super().__init__(there["metadata"]["name"])
        self.there, self.body = there, body


def handle_of(record: RunRecord, adopted: bool = False) -> Handle:
    return Handle(record.run, record.attempt, record.generation, record.uid, adopted=adopted)


def _uid(plan: Plan, generation: int, attempt: int) -> str:
    return labels.launch_uid(plan.key, generation, attempt)


def _object_uid(objects: AttemptObjects) -> str | None:
    return objects.record.object_uid or (objects.job["metadata"]["uid"] if objects.job is not None else None)


def _refusal(error: ApiError | _Taken, stored: Stored, ready: PreparedAttempt) -> BadInput | SiteError:
    """The reason for which the cluster did not take an attempt, and what to do."""
    run = stored.record.run
    if isinstance(error, _Taken):
        return BadInput(_describe_taken_name(run, error.there, error.body), code="name_taken")
    if isinstance(error, Missing) and error.unserved:
        kind = ready.manifests[-1]["kind"]
        return SiteError(
            f"run {run} was not started: this cluster does not serve {kind} ({error}); install its operator, "
            "`allaboard cluster` prints how",
            code="crd_missing",
        )
    if isinstance(error, Invalid) and error.causes:
        engine = ENGINES[ready.layout.engine]
        problems = [*dict.fromkeys(problem_of(cause, engine) for cause in error.causes)]
        return BadInput(f"run {run} was not started: the cluster refuses its objects:", problems)
    if isinstance(error, Forbidden):
        return SiteError(f"run {run} was not started: {error}", code=error.code)
    return BadInput(f"run {run} was not started: {error}")


def _describe_taken_name(run: str, there: Json, body: Json) -> str:
    """A sentence about the owner of the name, and the differences between their object and ours."""
    metadata = there["metadata"]
    kind, name = body["kind"], metadata["name"]
    makers = [f["manager"] for f in metadata.get("managedFields", ()) if f.get("manager")]
    by = f" by {makers[0]}" if makers else ""
    launch = labels.annotation_of(there, labels.LAUNCH)
    who = f"run {labels.label_of(there, labels.RUN)}" if launch else "no run that allaboard knows"
    unlike = [
        line
        for n in body
        if n not in ("metadata", "apiVersion", "kind")
        for line in _unlike(there.get(n), body[n], n)
    ]
    lines = "".join(f"\n  {line}" for line in unlike[:8])
    return (
        f"run {run} was not started: a {kind} named {name} is there already, made{by} at "
        f"{metadata.get('creationTimestamp')} for {who}; delete it (kubectl delete {kind.lower()} {name}) or "
        f"use another key{'. It differs from ours:' if lines else ''}{lines}"
    )


def _unlike(there: Any, ours: Any, path: str) -> list[str]:
    """The differences of their object in the fields that ours has."""
    if isinstance(ours, dict) and isinstance(there, dict):
        return [line for k, v in ours.items() for line in _unlike(there.get(k), v, f"{path}.{k}")]
    return differences(there, ours, path)
