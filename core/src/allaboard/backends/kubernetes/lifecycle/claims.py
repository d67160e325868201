"""The claims that are made for a job: before its members, found again by the next attempt, dropped with the
run.

A claim of ``keep: run`` is owned by the record of its run: with the record it goes, whoever removes that.
`drop` is for `delete`, which keeps the record. A claim of ``keep: always`` has no owner, and nothing here
deletes it. Made again by another client it is the same claim, because its name follows from the run or the
job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allaboard.backends.kubernetes.client.errors import Conflict, Exists, Missing
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import PVCS
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.errors import SiteError
from allaboard.follow.run_record import RunRecord
from allaboard.gangs.requests import amount
from allaboard.render import labels

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

DELETE_TRIES = 120
"""Seconds that a claim of this name may take to go away."""


def ensure(api: Api, stored: Stored, wanted: Json) -> Json:
    """The claim that has this name in the end: ours, or somebody's (`is_ours` tells)."""
    body, name = _owned(wanted, stored), wanted["metadata"]["name"]
    for _ in range(DELETE_TRIES):
        try:
            return api.create(PVCS, body)
        except Exists:
            pass
        try:
            there = api.get(PVCS, name)
        except Missing:
            continue
        if not is_ours(there, wanted) or not _goes(there, body):
            return there
        api.pause(1.0)
    raise SiteError(
        f"claim {name} is being deleted and does not go away: a pod may still mount it (kubectl describe "
        f"persistentvolumeclaim {name})"
    )


def is_ours(there: Json, wanted: Json) -> bool:
    """True if this claim was made for the same run, or for the same job."""
    wanted_labels = wanted["metadata"]["labels"]
    return all(labels.label_of(there, name) == value for name, value in wanted_labels.items())


def difference(there: Json, wanted: Json) -> str | None:
    """A sentence about how a claim that is there differs from the job: it cannot be made anew."""
    has, asks = there.get("spec") or {}, wanted["spec"]
    size, least = (((s.get("resources") or {}).get("requests") or {}).get("storage") for s in (has, asks))
    unlike = [
        f"its {field} is {_shown(old)}, the job says {_shown(new)}"
        for field, old, new in (
            ("access mode", has.get("accessModes"), asks["accessModes"]),
            ("storage class", has.get("storageClassName"), asks.get("storageClassName")),
        )
        if new is not None and old != new
    ]
    if size is None or amount(size) < amount(least):
        unlike.insert(0, f"its size is {size}, the job says {least}")
    if not unlike:
        return None
    name = wanted["metadata"]["name"]
    return (
        f"claim {name} was made before and stays as it is: {'; '.join(unlike)}; grow it with kubectl edit "
        "where its class allows that, or mount another one"
    )


def drop(api: Api, record: RunRecord) -> None:
    """Delete the claims of a run that is deleted, those of earlier attempts too. Raises Forbidden."""
    recorded = [volume["claim"] for volume in record.spec.get("storage") or () if "claim" in volume]
    if all(claim.get("keep") == "always" for claim in recorded):
        return
    wanted = f"{labels.selector(record.run)},{labels.KEEP}=run"
    for there in api.list(PVCS, labels=wanted)[0]:
        metadata = there["metadata"]
        try:
            api.delete(PVCS, metadata["name"], uid=metadata["uid"])
        except Conflict:
            continue


def _owned(wanted: Json, stored: Stored) -> Json:
    if labels.label_of(wanted, labels.KEEP) != "run":
        return wanted
    owner = labels.owner_reference({"apiVersion": "v1", "kind": "ConfigMap", **stored.body})
    return {**wanted, "metadata": {**wanted["metadata"], "ownerReferences": [owner]}}


def _goes(there: Json, body: Json) -> bool:
    """True if it is being deleted, or will be: the record that owned it is gone."""
    owners = {ref["uid"] for ref in there["metadata"].get("ownerReferences") or ()}
    ours = {ref["uid"] for ref in body["metadata"].get("ownerReferences") or ()}
    return "deletionTimestamp" in there["metadata"] or bool(owners and ours and not owners & ours)


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
