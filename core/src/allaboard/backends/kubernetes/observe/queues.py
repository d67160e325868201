"""Kueue's data of a job, and the operations that Kueue would undo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from allaboard.backends.kubernetes.client.errors import ApiError, Forbidden, Missing
from allaboard.backends.kubernetes.client.protocol import Json, Patience
from allaboard.backends.kubernetes.discovery.components import KUEUE_WORKLOADS
from allaboard.backends.kubernetes.observe import managers
from allaboard.engines import Engine
from allaboard.errors import BackendUnreachable, BadInput
from allaboard.gangs.kueue import WorkloadSeen
from allaboard.text.untrusted import show

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of the Workload that Kueue makes for a job."""
_POSITIONS = (
    "/apis/visibility.kueue.x-k8s.io/{version}/namespaces/{namespace}/localqueues/{queue}/pendingworkloads"
)
_QUICK = Patience(budget=1.0)
"""A position is worth no more waiting: Kueue itself answers that request, and it may be off or away."""


def read_workload(api: Api, job: Json, notes: list[str]) -> WorkloadSeen | None:
    """Read the Workload of this job; None, and a sentence in ``notes``, where it may not be read."""
    try:
        workloads = api.list(KUEUE_WORKLOADS, labels=f"{JOB_UID}={job['metadata']['uid']}")[0]
    except Missing:
        return WorkloadSeen()
    except Forbidden:
        notes.append("the reason why its queue holds it back is unknown: workloads may not be listed here")
        return None
    return WorkloadSeen(workloads[0]) if workloads else WorkloadSeen()


def read_place(api: Api, job: Json, notes: list[str]) -> WorkloadSeen | None:
    """Read the Workload with its position in the queue, where it waits in one and Kueue serves positions."""
    seen = read_workload(api, job, notes)
    queue = managers.queue_of(job)
    if seen is None or seen.body is None or queue is None or not seen.waits:
        return seen
    positions = read_positions(api, queue, job["metadata"]["namespace"])
    return replace(seen, position=positions.get(seen.body["metadata"]["name"]))


def read_positions(api: Api, queue: str, namespace: str) -> dict[str, int]:
    """Workload -> its position in a LocalQueue, 0 is next, for the first 1,000 that wait. Empty where Kueue
    does not serve positions.
    """
    for version in ("v1beta2", "v1beta1"):
        place = {"version": version, "namespace": quote(namespace, safe=""), "queue": quote(queue, safe="")}
        path = _POSITIONS.format(**place)
        try:
            with api.twin(_QUICK) as quick:
                answer = quick.raw("GET", path)
        except Missing:
            continue
        except (ApiError, BackendUnreachable):
            return {}
        return dict(_positions(answer))
    return {}


def _positions(answer: Any) -> Iterator[tuple[str, int]]:
    """Positions of a PendingWorkloadsSummary, which counts from 0."""
    for item in (answer.get("items") or ()) if isinstance(answer, Mapping) else ():
        name, place = (item.get("metadata") or {}).get("name"), item.get("positionInClusterQueue")
        if isinstance(name, str) and isinstance(place, int):
            yield name, place


def refuse_suspension(api: Api, engine: Engine, job: Json, wanted: bool) -> None:
    """Raises BadInput for a job that Kueue holds back or lets run: Kueue alone decides that, and undoes the
    changes of others.
    """
    queue = managers.queue_of(job)
    seen = read_workload(api, job, [])
    workload = seen.body["metadata"]["name"] if seen is not None and seen.body is not None else None
    if queue is None and workload is None and not managers.is_sent_away(job):
        return
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    where = f"by its queue {show(queue)}" if queue is not None else "by its Workload"
    about = f"{engine.KIND} {name} is admitted by Kueue, {where}"
    if not wanted:
        raise BadInput(
            f"{about}: it starts when Kueue admits it, and not before; it was not resumed; to see why it "
            f"waits: kubectl -n {namespace} describe workloads {workload or ''}".rstrip()
        )
    raise BadInput(
        f"{about}: Kueue would start it again at once; it was not suspended; to hold it back: "
        f"kubectl -n {namespace} patch workload {workload or 'ITS-WORKLOAD'} --type merge "
        '-p \'{"spec":{"active":false}}\''
    )
