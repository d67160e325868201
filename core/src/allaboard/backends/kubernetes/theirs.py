"""Looking at a job that somebody else made. It has no run record: whoever has its name is meant. Nothing here
changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from allaboard.backends.kubernetes import reading, talk
from allaboard.backends.kubernetes.errors import Forbidden, Missing
from allaboard.backends.kubernetes.evidence import Witness, aattend, attend
from allaboard.backends.kubernetes.looking import ASKING, happened, last_word, resource_of, tries_of
from allaboard.backends.kubernetes.resources import PODS, Resource
from allaboard.backends.kubernetes.talk import Json, Talk
from allaboard.engines import Engine
from allaboard.errors import BadInput, UnknownRun
from allaboard.observation import Observation
from allaboard.status import state_of


def resource_for(engine: Engine) -> Resource:
    """Where the API server keeps the jobs of this engine."""
    return resource_of({"apiVersion": engine.API_VERSION, "kind": engine.KIND})


def observe(
    engine: Engine, name: str, *, evidence: bool = False, uid: str | None = None
) -> Talk[Observation]:
    """What is seen now of the job of this name. ``uid``: of the one that was seen there before; should it be
    gone, that is seen. Raises UnknownRun when none is there, and BadInput where its kind is not served.
    """
    try:
        job = yield from talk.get(resource_for(engine), name)
    except Missing as error:
        if error.unserved:
            kinds = resource_for(engine).name
            raise BadInput(
                f"this cluster serves no {kinds}; `allaboard cluster` shows what it does"
            ) from None
        return (yield from _gone(engine, name, uid))
    notes: list[str] = []
    pods = yield from _pods(engine, job, notes)
    now = yield from talk.server_time()
    seen = reading.of_object(job, now=now, pods=pods)
    if evidence or state_of(seen) in ASKING:
        about = [thing["metadata"]["uid"] for thing in (job, *(pods if evidence else ()))]
        events = yield from happened(about, notes)
        tails = (yield from _tails(engine, seen, pods)) if evidence else {}
        seen = reading.of_object(job, now=now, pods=pods, events=events, tails=tails)
    return replace(seen, notes=tuple(notes))


def _gone(engine: Engine, name: str, uid: str | None) -> Talk[Observation]:
    if uid is None:
        raise UnknownRun(f"there is no {engine.KIND} {name!r} here")
    # A ttl may be shorter than the time between two looks. Events outlive their object by an hour or so.
    end = last_word((yield from happened([uid], [])))
    seen = Observation(run=name, job=name, uid=uid)
    if end is None:
        words = "the job is gone, by its ttl or by somebody's hand, and how it ended was not seen"
        return replace(seen, deleted=True, notes=(words,))
    words = "the job is gone; how it ended is told by an event of its operator"
    return replace(seen, recorded=end.value, notes=(words,))


def _pods(engine: Engine, job: Json, notes: list[str]) -> Talk[list[Json]]:
    """Those that its operator made for it, and not for one of the same name that was there before."""
    metadata = job["metadata"]
    try:
        found = yield from talk.list_all(PODS, labels=f"{engine.JOB_LABEL}={metadata['name']}")
    except Forbidden:
        notes.append("pods may not be read here, and with them how each member is")
        return []
    return [pod for pod in found if not _is_of_another(pod, engine.KIND, metadata["uid"])]


def _is_of_another(pod: Json, kind: str, uid: str) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner["kind"] == kind and owner["uid"] != uid for owner in owners)


def _tails(engine: Engine, seen: Observation, pods: Sequence[Json]) -> Talk[dict[str, str]]:
    """The ends of what its members wrote, as far as nodes still have them."""
    witness, readable = Witness(progress_every=0), tries_of(engine, seen.members, pods)
    if readable:
        yield talk.Reading(
            lambda api: attend(api, None, witness, readable, asked=True),
            lambda api: aattend(api, None, witness, readable, asked=True),
        )
    return witness.tails()
