"""Builders of what a cluster shows: job objects, pods, events. They say only what matters; times are seconds,
0 being when the job was made.

>>> a_pod("worker-0", "Failed", exit_code=137, reason="OOMKilled")["status"]["phase"]
'Failed'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allaboard.backends.kubernetes.client.resources import resource_for
from allaboard.engines import ENGINES
from allaboard.engines.kubeflow import INDEX_LABEL, JOB_LABEL, ROLE_LABEL
from allaboard.render import labels
from allaboard.text.units import rfc3339

Json = dict[str, Any]
BEGUN = 1_790_000_000.0
"""Begin of everything, in epoch seconds."""
JOB = "digits-00000000"
LAUNCH = "0123456789abcdef"
PYTORCHJOBS = resource_for(ENGINES["pytorchjob"])
"""Resource of PyTorchJobs in the API server."""


def at(seconds: float | None) -> str | None:
    """A server's timestamp: whole seconds."""
    text = None if seconds is None else rfc3339(BEGUN + seconds)
    return None if text is None else text[:19] + "Z"


def a_condition_of(
    kind: str, status: str = "True", since: float = 0.0, message: str = "", reason: str = ""
) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason or f"PyTorchJob{kind}",
        "message": message,
        "lastTransitionTime": at(since),
        "lastUpdateTime": at(since),
    }


def a_pytorchjob(
    *conditions: Json | str,
    master: int | None = 1,
    worker: int | None = 1,
    name: str = JOB,
    suspend: bool = False,
    elastic: Mapping[str, Any] | None = None,
    gang: str = "none",
    run_policy: Mapping[str, Any] | None = None,
    deleted: float | None = None,
    annotations: Mapping[str, str] | None = None,
    **status: Any,
) -> Json:
    """A PyTorchJob whose status has these conditions (words are True ones) and fields; without any it has no
    status at all.
    """
    specs = {"Master": master, "Worker": worker}
    listed = [a_condition_of(c) if isinstance(c, str) else c for c in conditions]
    full_status: Json = {**({"conditions": listed} if listed else {}), **status}
    metadata: Json = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-of-{name}",
        "creationTimestamp": at(0),
        "annotations": {labels.LAUNCH: LAUNCH, labels.GANG: gang, **(annotations or {})},
    }
    if deleted is not None:
        metadata["deletionTimestamp"] = at(deleted)
    spec: Json = {
        "runPolicy": {"suspend": suspend, **(run_policy or {})},
        "pytorchReplicaSpecs": {role: {"replicas": n} for role, n in specs.items() if n is not None},
    }
    if elastic is not None:
        spec["elasticPolicy"] = dict(elastic)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": spec,
        **({"status": full_status} if full_status else {}),
    }


def a_pod(
    member: str,
    phase: str = "Running",
    *,
    job: str = JOB,
    created: float = 1.0,
    placed: float | None = 2.0,
    unschedulable: str | None = None,
    started: float | None = 5.0,
    ended: float | None = None,
    exit_code: int | None = None,
    reason: str | None = None,
    waiting: str | None = None,
    message: str | None = None,
    restarts: int = 0,
    last: Mapping[str, Any] | None = None,
    pod_reason: str | None = None,
    deleted: float | None = None,
    uid: str | None = None,
    scheduler: str | None = None,
) -> Json:
    """The pod of a member. ``placed``: when it got its node, None: not scheduled; ``unschedulable``: the
    scheduler's message; ``waiting``: the reason of its waiting container, with ``message``;
    ``last``: how its container ended before; ``reason`` and ``exit_code``: how it has ended now;
    ``pod_reason``: of the pod.
    """
    role, _, index = member.rpartition("-")
    status: Json = {"phase": phase, "conditions": []}
    spec: Json = {"containers": [{"name": "pytorch"}]}
    if scheduler is not None:
        spec["schedulerName"] = scheduler
    if unschedulable is not None:
        pod_status = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": unschedulable,
        }
        status["conditions"].append(
            {**pod_status, "lastTransitionTime": at(placed if placed is not None else created)}
        )
    elif placed is not None:
        spec["nodeName"] = "node-1"
        status["conditions"].append(
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(placed)}
        )
    if pod_reason is not None:
        status["reason"] = pod_reason
    if "nodeName" in spec and pod_reason != "UnexpectedAdmissionError":
        status["containerStatuses"] = [
            _container(phase, started, ended, exit_code, reason, waiting, message, restarts, last)
        ]
    metadata: Json = {
        "name": f"{job}-{member}",
        "namespace": "default",
        "uid": uid or f"uid-of-{member}",
        "creationTimestamp": at(created),
        "labels": {JOB_LABEL: job, ROLE_LABEL: role, INDEX_LABEL: index},
        "annotations": {labels.LAUNCH: LAUNCH},
    }
    if deleted is not None:
        metadata["deletionTimestamp"] = at(deleted)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def _container(
    phase: str,
    started: float | None,
    ended: float | None,
    exit_code: int | None,
    reason: str | None,
    waiting: str | None,
    message: str | None,
    restarts: int,
    last: Mapping[str, Any] | None,
) -> Json:
    state: Json = {"name": "pytorch", "restartCount": restarts, "containerID": "containerd://1"}
    if last is not None:
        times: Json = {name: at(last[name]) for name in ("startedAt", "finishedAt") if name in last}
        state["lastState"] = {"terminated": {**last, **times}}
    if waiting is not None:
        state["state"] = {"waiting": {"reason": waiting, **({"message": message} if message else {})}}
    elif phase == "Pending":
        state = {"name": "pytorch", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
    elif phase == "Running":
        state["state"] = {"running": {"startedAt": at(started)}}
    else:
        code = exit_code if exit_code is not None else (0 if phase == "Succeeded" else 1)
        over = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error")}
        state["state"] = {"terminated": {**over, "startedAt": at(started), "finishedAt": at(ended)}}
    return state


def an_event(
    reason: str,
    message: str = "",
    *,
    about: str = JOB,
    kind: str = "PyTorchJob",
    seconds: float = 0.0,
    type: str = "Normal",
) -> Json:
    """An event of the core group, by a recorder of events.k8s.io: eventTime alone."""
    return {
        "type": type,
        "reason": reason,
        "message": message,
        "involvedObject": {"kind": kind, "name": about},
        "eventTime": rfc3339(BEGUN + seconds),
        "firstTimestamp": None,
        "lastTimestamp": None,
    }
