"""The run record on a cluster: a ConfigMap that is created first, outlives the job, and has no owner.

It is changed by compare-and-swap alone: a write carries the resourceVersion that was read, and a late writer
reads again. ``data.record`` is the record of `allaboard.follow.run_record`; ``data.objects`` names the
objects of its attempt, the job last (so that a release which names objects otherwise still finds them);
``data.gang`` the object that holds its members together; ``data.layout`` is its layout; and ``data.memory``
and ``data.report``, once it has ended, are the last look at its members and the reports of its rank 0. Keys
of a newer release are kept.

The labels are for selection: the job's name; that it is a record; and, once it has ended, the day, so that
the API server itself can pick the records that are past their age.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from allaboard.backends.kubernetes.client.errors import Conflict, Missing
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS
from allaboard.errors import Corrupt, OwnershipConflict
from allaboard.follow.run_record import VERSION, RunRecord
from allaboard.render import labels
from allaboard.runs.layout import Layout
from allaboard.text.units import from_rfc3339
from allaboard.text.untrusted import RECORDS, parse_json

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

RECORD = labels.PREFIX + "record"
"""Label of every record; its value is the format."""
ENDED = labels.PREFIX + "ended"
"""Label: the day (UTC) on which it was known to have ended."""
LEASE = labels.PREFIX + "lease"
"""Annotation: the Lease of the process that follows the run for its owner; empty: no process need follow."""
FOLLOWED = labels.PREFIX + "followed"
"""Annotation: the time at which its owner last acted on it, epoch seconds of the server."""

US = "allaboard"
TRIES = 20
"""Swaps in a row that may be lost to other writers before an error is raised."""
PRUNE_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it was read. ``body``: the ConfigMap, with the version that a swap compares."""

    record: RunRecord
    layout: Mapping[str, Any] = field(default_factory=dict)
    objects: tuple[Mapping[str, str], ...] = ()
    gang: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    lease: str = ""
    followed: float | None = None
    body: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return labels.record_name(self.record.run)

    @property
    def job(self) -> Mapping[str, str]:
        """The apiVersion, kind and name of the object that runs the attempt."""
        return self.objects[-1]

    @property
    def created(self) -> str | None:
        """The time at which the record was made, as the API server writes it."""
        stamp = self.body.get("metadata", {}).get("creationTimestamp")
        return None if stamp is None else str(stamp)


def manifest(stored: Stored) -> Json:
    """The ConfigMap of a record. Everything in ``body`` that is not ours stays."""
    record, body = stored.record, stored.body
    metadata = body.get("metadata", {})
    own_labels = {
        **metadata.get("labels", {}),
        labels.MANAGED_BY: US,
        labels.RUN: record.run,
        labels.JOB: record.job,
        RECORD: f"v{VERSION}",
    }
    own_labels.pop(ENDED, None)
    if record.outcome is not None:
        own_labels[ENDED] = _day(record.outcome.at)
    annotations = {**metadata.get("annotations", {}), LEASE: stored.lease}
    if stored.followed is not None:
        annotations[FOLLOWED] = f"{stored.followed:.0f}"
    own_metadata: Json = {
        "name": stored.name,
        "labels": own_labels,
        "annotations": annotations,
        **{k: v for k, v in metadata.items() if k in ("resourceVersion", "uid", "finalizers")},
    }
    data = {
        **body.get("data", {}),
        "record": _text(record.to_dict()),
        "objects": _text(stored.objects),
        "gang": _text(stored.gang),
        "layout": _text(stored.layout),
        "memory": _text(stored.memory),
        "report": _text(stored.report),
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": own_metadata, "data": data}


def parse(body: Json) -> Stored:
    """The record in a ConfigMap. Raises Corrupt."""
    metadata = body.get("metadata", {})
    data = body.get("data") or {}
    try:
        written = _read_json(data["record"])
        record = RunRecord.from_dict(written)
        if not record.created and metadata.get("creationTimestamp"):
            record = replace(record, created=from_rfc3339(metadata["creationTimestamp"]) or 0.0)
        objects, layout = tuple(_read_json(data["objects"])), _read_json(data["layout"])
        rest = {name: _read_json(data[name]) for name in ("gang", "memory", "report") if name in data}
        _check(layout, objects)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(_corrupt(metadata, data, error)) from error
    annotations = metadata.get("annotations") or {}
    return Stored(
        record,
        layout,
        objects,
        **rest,
        lease=annotations.get(LEASE, ""),
        followed=_number(annotations.get(FOLLOWED)),
        body=body,
    )


def _read_json(text: Any) -> Any:
    return parse_json(text, RECORDS, nonfinite=True, spelling=False, any_text=True)


def _check(layout: Any, objects: Any) -> None:
    """Check that they can be read when they are needed. Raises LookupError or TypeError."""
    Layout.from_dict(layout)
    for body in objects[-1:] or [{}]:
        body["apiVersion"], body["kind"], body["name"]


def _corrupt(metadata: Json, data: Mapping[str, Any], error: Exception) -> str:
    where = f"ConfigMap {metadata.get('name')} in namespace {metadata.get('namespace')}"
    try:
        version = _read_json(data["record"])["version"]
    except (KeyError, TypeError, ValueError):
        version = None
    if isinstance(version, int) and version > VERSION:
        return (
            f"{where} holds a run record of format {version}, which this allaboard (format {VERSION}) cannot "
            "read; use the release that wrote it, or a newer one"
        )
    return (
        f"{where} holds no run record that can be read ({type(error).__name__}: {error}); if you do not need "
        f"that run any more, delete it: kubectl delete configmap {metadata.get('name')}"
    )


# Reading and changing.


def read_record(api: Api, run: str) -> Stored | None:
    """The record of a run; None when it has none. Raises Corrupt."""
    try:
        return parse(api.get(CONFIGMAPS, labels.record_name(run)))
    except Missing:
        return None


def create(api: Api, stored: Stored) -> Stored:
    """Create the record. Raises Exists when the run has a record."""
    return parse(api.create(CONFIGMAPS, manifest(stored)))


def swap(api: Api, stored: Stored, **changes: Any) -> Stored:
    """Write the record with these fields, if nobody has changed it since it was read. Raises errors.Conflict
    or Missing.
    """
    changed = replace(stored, **changes)
    return parse(api.replace(CONFIGMAPS, manifest(changed)))


def change(
    api: Api, run: str, how: Callable[[Stored], Stored | None], known: Stored | None = None
) -> Stored | None:
    """Apply ``how`` to the record until no other writer comes between; None from it changes nothing. Returns
    the record as it stands then; None when there is no record. ``known``: the record as it was read a moment
    ago.
    """
    for _ in range(TRIES):
        stored = known or read_record(api, run)
        known = None
        if stored is None:
            return None
        changed = how(stored)
        if changed is None or changed == stored:
            return stored
        try:
            return parse(api.replace(CONFIGMAPS, manifest(changed)))
        except Missing:
            return None
        except Conflict:
            continue
    raise OwnershipConflict(f"the record of run {run} changes all the time; try again in a moment")


def forget(api: Api, stored: Stored) -> bool:
    """Delete the record, if nobody has changed it since it was read; False: somebody has."""
    metadata = stored.body["metadata"]
    try:
        api.delete(
            CONFIGMAPS, metadata["name"], uid=metadata["uid"], resource_version=metadata["resourceVersion"]
        )
    except Conflict:
        return False
    return True


# Selectors.


def selector(job: str | None = None, run: str | None = None) -> str:
    """The label selector of records, of all of them or of one job's."""
    parts = [f"{labels.MANAGED_BY}={US}", RECORD]
    parts += [f"{labels.JOB}={job}"] if job else []
    parts += [f"{labels.RUN}={run}"] if run else []
    return ",".join(parts)


def overdue(now: float, keep: float) -> str:
    """The label selector of records that ended more than ``keep`` seconds ago, by the day. When ``keep`` is
    longer than a year, it selects all ended records, and `is_overdue` decides.
    """
    today = datetime.fromtimestamp(now, UTC)
    days = range(-1, math.ceil(keep / 86400) + 1)
    ended = f"{selector()},{ENDED}"
    if len(days) > 366:
        return ended
    days_kept = [_day((today - timedelta(days=n)).timestamp()) for n in days]
    return f"{ended},{ENDED} notin ({','.join(days_kept)})"


def is_overdue(stored: Stored, now: float, keep: float) -> bool:
    outcome = stored.record.outcome
    return outcome is not None and now - outcome.at >= keep


def _day(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d")


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
