"""The reaper: a process that ends runs in a namespace whose clients do not come back, by ``policy.orphan`` of
their jobs (core/docs/contract.md, Orphans).

A look lists the records of runs that are not over, and the Leases; it reads the objects of the few whose
clients are gone, counts (`waiting`), writes its own Lease, and only then acts. Killed between any two
requests it has done nothing that the next look does not finish. A run is stopped by a write of its record
that names the version which was read: whoever takes up the run before that write keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from allaboard.backends.kubernetes.client.errors import ApiError, Conflict, Exists, Missing
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, LEASES
from allaboard.backends.kubernetes.lifecycle import waiting
from allaboard.backends.kubernetes.lifecycle.orphans import (
    REAPER,
    Orphan,
    Picture,
    Tidied,
    last_seen,
    orphans_of_record,
    tidied,
)
from allaboard.backends.kubernetes.observe.lookup import parse_records, read_objects
from allaboard.backends.kubernetes.state import leases, records
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.errors import AllaboardError, SiteError
from allaboard.render import labels
from allaboard.text.units import show_seconds

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

EVERY = leases.EVERY
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a namespace: what was done, and notes for people."""

    tidied: tuple[Tidied, ...] = ()
    notes: tuple[str, ...] = ()


def look(api: Api, holder: str) -> Look:
    """Look at all runs of the client's namespace, and act on those whose time is up. ``holder``: the process
    that looks. Raises ApiError, BackendUnreachable, and SiteError where Leases may not be listed.
    """
    stored = [*parse_records(api.list(CONFIGMAPS, labels=f"{records.selector()},!{records.ENDED}")[0])]
    held = leases.read_leases(api)
    now = api.server_time()
    if held is None:
        role = f"allaboard cluster --reaper -n {api.namespace}"
        raise SiteError(f"this account may not list Leases in namespace {api.namespace}; see: {role}")
    lease = held.get(waiting.LEASE)
    notes: list[str] = []
    gap = None if lease is None else now - leases.seen_at(lease)
    if gap is not None and abs(gap) > waiting.GAP:
        ago = show_seconds(abs(gap))
        notes.append(f"the last look was {ago} ago: each client gets its whole patience again")
    seen = [*_orphans(api, stored, held, now, notes)]
    known = waiting.count(waiting.read(lease), [(o.run, o.mark, o.since or 0.0) for o in seen], gap)
    if not _written(api, lease, waiting.lease_body(holder, now, known, lease)):
        return Look(notes=("another reaper looked in the same moment",))
    due = [
        replace(orphan, left=0.0)
        for orphan in seen
        if orphan.left is not None and orphan.run in known and orphan.patience <= known[orphan.run].counted
    ]
    return Look(tuple(_act(api, due, notes)), tuple(notes))


def _orphans(
    api: Api, stored: Sequence[Stored], held: Mapping[str, Json], now: float, notes: list[str]
) -> Iterator[Orphan]:
    """The orphans among these records. The objects of a run are read only where its client is gone, or its
    start or its stop is not finished.
    """
    some = [
        each
        for each in stored
        if each.record.stop is not None
        or each.record.object_uid is None
        or last_seen(each, held, now) is not None
    ]
    starts = any(each.record.object_uid is None for each in some)
    of_attempts = f"{labels.selector()},{labels.ATTEMPT}"
    code = api.list(CONFIGMAPS, labels=of_attempts)[0] if starts else []
    mounted = tuple({"kind": CONFIGMAPS.kind, **body} for body in code)
    for each in some:
        try:
            objects = read_objects(api, each)
        except ApiError as error:  # of one run, which is no trouble of the others
            notes.append(f"{each.record.run} cannot be looked at: {error}")
            continue
        yield from orphans_of_record(objects, Picture((), (), (), mounted, (), held, now))


def _act(api: Api, due: Sequence[Orphan], notes: list[str]) -> Iterator[Tidied]:
    for orphan in due:
        try:
            yield tidied(api, orphan, REAPER)
        except ApiError as error:
            notes.append(f"{orphan.run} cannot be tidied up: {error}")


def _written(api: Api, lease: Json | None, body: Json) -> bool:
    """Write the reaper's Lease. False: another reaper has written it since it was read."""
    try:
        if lease is None:
            api.create(LEASES, body)
        else:
            api.replace(LEASES, body)
    except (Conflict, Exists, Missing):
        return False
    return True


# Whether there is one.


def is_at_work(api: Api) -> bool | None:
    """True if a reaper looks after the client's namespace; None: that is not known."""
    try:
        held = leases.read_leases(api, waiting.LEASE)
        now = api.server_time()
    except AllaboardError:
        return None
    return None if held is None else any(leases.is_held(lease, now) for lease in held.values())
