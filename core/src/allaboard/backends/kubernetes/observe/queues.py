"""What Kueue knows of a job, and what may not be done to one behind its back."""

from __future__ import annotations

from typing import Any

from allaboard.backends.kubernetes.client import effects
from allaboard.backends.kubernetes.client.effects import Json, Operation
from allaboard.backends.kubernetes.client.errors import Forbidden, Missing
from allaboard.backends.kubernetes.discovery.components import KUEUE_WORKLOADS
from allaboard.backends.kubernetes.observe import managers
from allaboard.engines import Engine
from allaboard.errors import BadInput
from allaboard.untrusted import show

JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of the Workload that Kueue makes for a job."""


def read_workload(job: Json, notes: list[str]) -> Operation[dict[str, Any] | None]:
    """The Workload of this job; empty where there is none; None where it may not be read, which ``notes``
    then say.
    """
    try:
        found = yield from effects.list_all(KUEUE_WORKLOADS, labels=f"{JOB_UID}={job['metadata']['uid']}")
    except Missing:
        return {}
    except Forbidden:
        notes.append("why its queue holds it back cannot be told: workloads may not be listed here")
        return None
    return dict(found[0]) if found else {}


def refuse_suspension(engine: Engine, job: Json, wanted: bool) -> Operation[None]:
    """Raises BadInput for a job that Kueue holds back or lets run: it alone decides that, and undoes what
    others do about it.
    """
    queue = managers.queue_of(job)
    workload = ((yield from read_workload(job, [])) or {}).get("metadata", {}).get("name")
    if queue is None and workload is None and not managers.is_sent_away(job):
        return
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    where = f"by its queue {show(queue)}" if queue is not None else "by its Workload"
    about = f"{engine.KIND} {name} is admitted by Kueue, {where}"
    if not wanted:
        raise BadInput(
            f"{about}: it starts when Kueue admits it, and not before; it was not resumed, and why it waits "
            f"is told by: kubectl -n {namespace} describe workloads {workload or ''}".rstrip()
        )
    raise BadInput(
        f"{about}: Kueue would start it again at once; it was not suspended, and what holds it back is: "
        f"kubectl -n {namespace} patch workload {workload or 'ITS-WORKLOAD'} --type merge "
        '-p \'{"spec":{"active":false}}\''
    )
