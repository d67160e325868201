"""Names, labels and annotations that identify objects on a cluster. Values in, values out.

Every object of ours carries the run, the job's name, the attempt and the generation as labels, so that one
watch on a label finds them all, and the launch as an annotation. A name alone proves nothing: an object of
that name may be foreign, or left over from a run whose record was pruned.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from allaboard.text.names import key_hash

if TYPE_CHECKING:
    from allaboard.runs.layout import Layout

_RECORD = "allaboard-"
_MOUNT_MAX = 20
"""Characters of a mount in the name of its claim."""
PREFIX = "allaboard.io/"
RUN = PREFIX + "run"
JOB = PREFIX + "job"
ATTEMPT = PREFIX + "attempt"
GENERATION = PREFIX + "generation"
MANAGED_BY = "app.kubernetes.io/managed-by"
LAUNCH = PREFIX + "launch"
"""The uid of the attempt in the record: distinguishes objects of allaboard from foreign ones."""
SPEC_HASH = PREFIX + "spec-hash"
GANG = PREFIX + "gang"
"""The gang scheduler that the job was rendered for, for later readers."""
KEEP = PREFIX + "keep"
"""Of a claim that was made for a job: ``run`` or ``always``."""
ASKED = "asked"
"""The key of a run's record with what its members are asked (``policy.hang.ask: file``)."""
STOPPED_BY = PREFIX + "stopped-by"
STOP_REASON = PREFIX + "stop-reason"
SUSPENDED_BY = PREFIX + "suspended-by"


def launch_uid(key: str, generation: int, attempt: int) -> str:
    """The uid of an attempt: a function of its identity, so that a dry run prints the same bytes
    as a launch.
    """
    identity = f"{generation}\0{attempt}\0{key}"
    return hashlib.blake2s(identity.encode(), digest_size=8).hexdigest()


def labels(layout: Layout) -> dict[str, str]:
    """Of every object of an attempt, and of its pods."""
    return {
        MANAGED_BY: "allaboard",
        RUN: layout.run,
        JOB: layout.job,
        ATTEMPT: str(layout.attempt),
        GENERATION: str(layout.generation),
    }


def selector(run: str | None = None, attempt: int | None = None, generation: int | None = None) -> str:
    """The label selector of a run's objects, or of one attempt's; without a run: of all objects
    of allaboard.
    """
    wanted = {MANAGED_BY: "allaboard", RUN: run, ATTEMPT: attempt, GENERATION: generation}
    return ",".join(f"{name}={value}" for name, value in wanted.items() if value is not None)


def record_name(run: str) -> str:
    """The ConfigMap of the run record."""
    return f"{_RECORD}{run}"


def run_of_record(name: str) -> str:
    """The run whose record has this name."""
    return name.removeprefix(_RECORD)


def lease_name(owner: str) -> str:
    """The Lease of one follower process."""
    return f"allaboard-{key_hash(owner)}"


def code_name(name: str) -> str:
    """The ConfigMap of an attempt's code; ``name``: what the attempt's objects are called."""
    return f"{name}-code"


def helper_name(name: str) -> str:
    """The ConfigMap of the helper of an attempt's members."""
    return f"{name}-helper"


def logs_name(name: str) -> str:
    """The ConfigMap of what was read of an attempt's logs."""
    return f"{name}-logs"


def claim_name(owner: str, mount: str) -> str:
    """The claim that is mounted there; ``owner``: the run, or the job where all its runs share it. Another
    mount has another name.
    """
    path = "/".join(part for part in mount.split("/") if part not in ("", "."))
    plain = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[:_MOUNT_MAX].strip("-")
    return f"{owner}-{plain}" if plain == path else f"{owner}-{plain or 'volume'}-{key_hash(path)}"


def gang_name(name: str) -> str:
    """The PodGroup of an attempt. Never the job's own name: an operator whose gang flag is turned on makes
    one of that name itself, and rewrites it.
    """
    return f"{name}-gang"


def label_of(obj: Mapping[str, Any], name: str) -> str | None:
    value = ((obj.get("metadata") or {}).get("labels") or {}).get(name)
    return None if value is None else str(value)


def annotation_of(obj: Mapping[str, Any], name: str) -> str | None:
    value = ((obj.get("metadata") or {}).get("annotations") or {}).get(name)
    return None if value is None else str(value)


def is_ours(obj: Mapping[str, Any], uid: str, record_created: str | None = None) -> bool:
    """True if an object belongs to the attempt of this uid. ``record_created``: the creationTimestamp of the
    run record, which is always made first; an older object is left over from a record that was pruned.
    """
    if annotation_of(obj, LAUNCH) != uid:
        return False
    created = (obj.get("metadata") or {}).get("creationTimestamp")
    # Both are RFC 3339 in UTC with whole seconds, as the API server writes them: they compare as text.
    return record_created is None or created is None or str(created) >= record_created


def owner_reference(job: Mapping[str, Any]) -> dict[str, Any]:
    """Owner reference of an attempt's extra objects once its job exists: they are removed with it. Not the
    controller: the job's operator is not to take them for its own.
    """
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
    }
