"""The reaper: a process that ends runs in a namespace whose clients do not come back, by ``policy.orphan`` of
their jobs (core/docs/contract.md, Orphans).

A look lists the records of runs that are not over, and the Leases; it counts (`waiting`), writes its own
Lease, and only then reads the objects of those whose time is up, and acts: `AT_ONCE` runs in a look, so that
looks stay near each other however many clients are gone. Killed between any two
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
    Picture,
    Suspect,
    Tidied,
    orphans_of_record,
    suspect_of,
    tidied,
)
from allaboard.backends.kubernetes.observe.lookup import parse_records, read_objects
from allaboard.backends.kubernetes.state import leases, records
from allaboard.errors import AllaboardError, SiteError
from allaboard.render import labels
from allaboard.text.units import show_seconds

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

EVERY = leases.EVERY
"""Seconds between two looks."""
AT_ONCE = 50
"""Runs on which a look acts."""


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
    suspects = {s.record.run: each for s in stored if (each := suspect_of(s, held, now)) is not None}
    seen = [(run, suspect.mark, suspect.since) for run, suspect in suspects.items()]
    known = waiting.count(waiting.read(lease), seen, gap)
    due = {run: w.counted for run, w in known.items() if w.counted >= suspects[run].patience}
    due = dict(sorted(due.items(), key=lambda item: -item[1])[:AT_ONCE])
    anew = {run: replace(known[run], counted=0.0) for run in due if suspects[run].stays}
    if not _written(api, lease, waiting.lease_body(holder, now, known | anew, lease)):
        return Look(notes=("another reaper looked in the same moment",))
    acts = _act(api, [(suspects[run], counted) for run, counted in due.items()], held, notes)
    return Look(tuple(acts), tuple(notes))


def _act(
    api: Api, due: Sequence[tuple[Suspect, float]], held: Mapping[str, Json], notes: list[str]
) -> Iterator[Tidied]:
    """Tidy up those of the suspects that are orphans, each with the seconds that were waited for it."""
    starts = any(suspect.stored.record.object_uid is None for suspect, _ in due)
    of_attempts = f"{labels.selector()},{labels.ATTEMPT}"
    code = api.list(CONFIGMAPS, labels=of_attempts)[0] if starts else []
    mounted = tuple({"kind": CONFIGMAPS.kind, **body} for body in code)
    for suspect, counted in due:
        try:
            objects = read_objects(api, suspect.stored)
            picture = Picture((), (), (), mounted, (), held, objects.now)
            for orphan in orphans_of_record(objects, picture):
                if orphan.left is not None and orphan.patience <= counted:
                    yield tidied(api, replace(orphan, left=0.0), REAPER)
        except ApiError as error:  # of one run, which is no trouble of the others
            notes.append(f"{suspect.stored.record.run} cannot be looked at: {error}")


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
