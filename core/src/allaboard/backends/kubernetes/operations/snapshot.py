"""A snapshot of a run: its objects as the API server has them, for who looks at them elsewhere or later
(`observe.snapshot` reads it). What may not be read is left out. Nothing is hidden here:
`allaboard.text.redaction` is the business of who writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allaboard.backends.kubernetes.client.errors import ApiError
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import NODES, PVCS, Resource, resource_for
from allaboard.backends.kubernetes.discovery.components import LOCALQUEUES
from allaboard.backends.kubernetes.observe.lookup import list_events, read_explanations, read_objects
from allaboard.backends.kubernetes.observe.managers import holding_queue
from allaboard.backends.kubernetes.observe.queues import read_workload
from allaboard.backends.kubernetes.operations import foreign
from allaboard.backends.kubernetes.operations.observe import find_run
from allaboard.backends.kubernetes.operations.workspace import Workspace
from allaboard.engines import Engine
from allaboard.text.units import rfc3339

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

MOST_NODES = 200
"""Nodes that a snapshot has; those of its pods first."""


def take(api: Api, workspace: Workspace, run: str) -> dict[str, Any]:
    """Of a run of ours. Raises UnknownRun."""
    objects = read_objects(api, find_run(api, workspace, run))
    objects, _ = read_explanations(api, objects, everything=True)
    workload = objects.workload.body if objects.workload is not None else None
    return _whole(api, objects.job, objects.pods, objects.events, objects.groups, workload, objects.now)


def take_job(api: Api, engine: Engine, name: str) -> dict[str, Any]:
    """Of a job that another tool made."""
    job = api.get(resource_for(engine), name)
    notes: list[str] = []
    pods = foreign.pods_of(api, engine, job, notes)
    events = list_events(api, [each["metadata"]["uid"] for each in (job, *pods)], notes)
    held = read_workload(api, job, notes) if holding_queue(job) is not None else None
    now = api.server_time()
    kind = {"apiVersion": engine.API_VERSION, "kind": engine.KIND}
    return _whole(api, {**job, **kind}, pods, events, (), held.body if held else None, now)


def _whole(
    api: Api,
    job: Json | None,
    pods: Sequence[Json],
    events: Sequence[Json],
    groups: Sequence[Json],
    workload: Mapping[str, Any] | None,
    now: float,
) -> dict[str, Any]:
    nodes = _nodes(api, pods)
    has_claims = any("persistentVolumeClaim" in str(p.get("spec")) for p in pods)
    claims = _readable(api, PVCS) if has_claims else []
    queues = _readable(api, LOCALQUEUES) if workload is not None else []
    parts: dict[str, Any] = {
        "taken": rfc3339(now),
        "job": job,
        "pods": [*pods],
        "events": [*events],
        "nodes": nodes,
        "podgroups": [*groups],
        "workloads": [workload] if workload is not None else [],
        "queues": queues,
        "pvcs": claims,
    }
    return {name: _without_bulk(part) for name, part in parts.items() if part}


def _nodes(api: Api, pods: Sequence[Json]) -> list[Json]:
    """Those that its pods are on; all of a cluster that is not large, where one has no place."""
    own = {str(pod["spec"].get("nodeName")) for pod in pods if pod["spec"].get("nodeName")}
    every = _readable(api, NODES)
    homeless = any(not pod["spec"].get("nodeName") for pod in pods)
    ordered = sorted(every, key=lambda node: node["metadata"]["name"] not in own)
    return [node for node in ordered if homeless or node["metadata"]["name"] in own][:MOST_NODES]


def _readable(api: Api, resource: Resource) -> list[Json]:
    """All of a kind; none where they may not be read, or are not served."""
    try:
        items = api.list(resource)[0]
    except ApiError:
        return []
    return [{**item, "kind": resource.kind} for item in items]


def _without_bulk(part: Any) -> Any:
    """Without what no rule reads, and which is the larger half of an object."""
    if isinstance(part, list):
        return [_without_bulk(item) for item in part]
    if not isinstance(part, dict) or "metadata" not in part:
        return part
    metadata = {k: v for k, v in part["metadata"].items() if k != "managedFields"}
    images = (
        {"status": {k: v for k, v in part["status"].items() if k != "images"}}
        if part.get("kind") == "Node" and isinstance(part.get("status"), dict)
        else {}
    )
    return {**part, "metadata": metadata, **images}
