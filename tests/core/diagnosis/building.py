"""Snapshots for the doctor, in few words: a job, its pods, events, nodes and logs. Times are minutes after
noon."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
REGISTRY = "registry.lab/ml/train:7"
CONTAINERS = {
    "PyTorchJob": "pytorch",
    "MPIJob": "mpi",
    "TFJob": "tensorflow",
    "TrainJob": "node",
    "JAXJob": "jax",
}


def at(minutes: float) -> str:
    seconds = round(minutes * 60)
    return f"2026-05-20T{12 + seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}Z"


def condition(
    kind: str, status: str = "True", reason: str = "", message: str = "", since: float = 1.0
) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(since),
    }


def job(
    *conditions: Json | str,
    kind: str = "PyTorchJob",
    workers: int = 2,
    spec: Json | None = None,
    container: str | None = None,
    template: Json | None = None,
    labels: Json | None = None,
    age: float = 0.0,
) -> Json:
    """A job ``net``. Words are conditions that are True."""
    version = {"TrainJob": "trainer.kubeflow.org/v1alpha1", "MPIJob": "kubeflow.org/v2beta1"}.get(
        kind, "kubeflow.org/v1"
    )
    own = {
        "name": container or CONTAINERS.get(kind, "main"),
        "image": REGISTRY,
        **(template or {}).pop("container", {}),
    }
    pods = {"template": {"spec": {"containers": [own], **(template or {})}}}
    body: Json = {"runPolicy": {}}
    if kind == "PyTorchJob":
        roles = {
            "Master": {"replicas": 1, **pods},
            **({"Worker": {"replicas": workers, **pods}} if workers else {}),
        }
        body["pytorchReplicaSpecs"] = roles
    elif kind == "MPIJob":
        body["mpiReplicaSpecs"] = {
            "Launcher": {"replicas": 1, **pods},
            "Worker": {"replicas": workers, **pods},
        }
    elif kind == "TFJob":
        body["tfReplicaSpecs"] = {"Worker": {"replicas": workers, **pods}}
    elif kind == "TrainJob":
        body = {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": workers}}
    made = [c if isinstance(c, dict) else condition(c, reason=f"{kind}{c}") for c in conditions]
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {
            "name": "net",
            "namespace": "ml",
            "uid": "u-job",
            "creationTimestamp": at(age),
            "labels": labels or {},
        },
        "spec": {**body, **(spec or {})},
        **({"status": {"conditions": made}} if made else {}),
    }


FAILED = condition(
    "Failed",
    reason="PyTorchJobFailed",
    message="PyTorchJob net is failed because 1 Worker replica(s) failed.",
    since=40,
)


def pod(
    name: str = "worker-0",
    phase: str = "Running",
    *,
    exit_code: int | None = None,
    reason: str = "Error",
    said: str = "",
    waiting: str | None = None,
    message: str = "",
    last: int | None = None,
    last_reason: str = "Error",
    restarts: int = 0,
    node: str | None = "n1",
    begun: float = 1.0,
    ended: float = 30.0,
    made: float = 0.1,
    disruption: tuple[str, str] | None = None,
    unschedulable: str | None = None,
    init: Json | None = None,
    sidecar: Json | None = None,
    status: Json | None = None,
    spec: Json | None = None,
    labels: Json | None = None,
    container: str = "pytorch",
    digest: str = "sha256:aa",
    gpus: int = 8,
    deleted: float | None = None,
    silent: bool = False,
) -> Json:
    """The pod ``net-NAME``."""
    role, _, index = name.rpartition("-")
    if exit_code is not None:
        state: Json = {
            "terminated": {
                "exitCode": exit_code,
                "reason": reason,
                "message": said,
                "startedAt": at(begun),
                "finishedAt": at(ended),
            }
        }
    elif waiting is not None:
        state = {"waiting": {"reason": waiting, "message": message}}
    else:
        state = {"running": {"startedAt": at(begun)}}
    before = (
        {
            "terminated": {
                "exitCode": last,
                "reason": last_reason,
                "message": said,
                "startedAt": at(begun),
                "finishedAt": at(ended),
            }
        }
        if last is not None
        else {}
    )
    main = {
        "name": container,
        "image": REGISTRY,
        "imageID": f"{REGISTRY}@{digest}",
        "restartCount": restarts,
        "state": state,
        "lastState": before,
    }
    conditions = [condition("PodScheduled", "True", since=0.2)] if node and not silent else []
    if unschedulable is not None:
        conditions, node = [condition("PodScheduled", "False", "Unschedulable", unschedulable, 0.2)], None
    if disruption is not None:
        conditions.append(condition("DisruptionTarget", "True", *disruption, since=ended))
    if phase == "Running" and exit_code is None and waiting is None:
        conditions.append(condition("Ready", "True", since=begun))
    runs = (
        unschedulable is None
        and not silent
        and (status or {}).get("containerStatuses") is None
        and phase != "Rejected"
    )
    own = {
        "name": container,
        "image": REGISTRY,
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        **((spec or {}).pop("container", {})),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"net-{name}",
            "namespace": "ml",
            "uid": f"u-{name}",
            "creationTimestamp": at(made),
            **({"deletionTimestamp": at(deleted)} if deleted is not None else {}),
            "labels": {
                "training.kubeflow.org/job-name": "net",
                "training.kubeflow.org/replica-type": role,
                "training.kubeflow.org/replica-index": index,
                **({"training.kubeflow.org/job-role": "master"} if role == "master" else {}),
                **(labels or {}),
            },
        },
        "spec": {
            "containers": [own, *([{"name": sidecar["name"], "image": "x"}] if sidecar else [])],
            **(
                {"initContainers": [{"name": init["name"], "image": init.get("image", "alpine:3.10")}]}
                if init
                else {}
            ),
            **({"nodeName": node} if node else {}),
            "schedulerName": "default-scheduler",
            **(spec or {}),
        },
        "status": {
            "phase": "Failed" if phase == "Rejected" else phase,
            "conditions": conditions,
            **({"initContainerStatuses": [{k: v for k, v in init.items() if k != "image"}]} if init else {}),
            **({"containerStatuses": [main, *([sidecar] if sidecar else [])]} if runs else {}),
            **(status or {}),
        },
    }


def event(
    reason: str,
    message: str,
    on: str = "pod/worker-0",
    *,
    when: float = 5.0,
    kind: str | None = None,
    type: str = "Warning",
    count: int = 1,
) -> Json:
    what, _, name = on.partition("/")
    word = {
        "pod": "Pod",
        "node": "Node",
        "job": "PyTorchJob",
        "pvc": "PersistentVolumeClaim",
        "podgroup": "PodGroup",
        "workload": "Workload",
    }.get(what, what)
    name = f"net-{name}" if what == "pod" else name
    return {
        "involvedObject": {
            "kind": kind or word,
            "name": name or "net",
            **({"uid": f"u-{on.partition('/')[2]}"} if what == "pod" else {}),
        },
        "type": type,
        "reason": reason,
        "message": message,
        "count": count,
        "firstTimestamp": at(when),
        "lastTimestamp": at(when),
    }


def node(
    name: str = "n1",
    *,
    gpus: int | None = 8,
    full: int | None = None,
    ready: str = "True",
    taints: tuple[str, ...] = (),
    labels: Json | None = None,
    cordoned: bool = False,
    conditions: tuple[Json, ...] = (),
) -> Json:
    own = {} if gpus is None else {"nvidia.com/gpu": str(gpus)}
    whole = {} if (full or gpus) is None else {"nvidia.com/gpu": str(full if full is not None else gpus)}
    told = "Kubelet stopped posting node status." if ready == "Unknown" else "kubelet is posting ready status"
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {
            "taints": [dict(zip(("key", "value", "effect"), t.split("="), strict=True)) for t in taints],
            **({"unschedulable": True} if cordoned else {}),
        },
        "status": {
            "allocatable": {"cpu": "90", **own},
            "capacity": {"cpu": "96", **whole},
            "conditions": [
                condition(
                    "Ready", ready, "NodeStatusUnknown" if ready == "Unknown" else "KubeletReady", told, 20
                ),
                *conditions,
            ],
        },
    }


def workload(*conditions: Json, queue: str = "team-a", active: bool = True) -> Json:
    return {
        "kind": "Workload",
        "metadata": {"name": "pytorchjob-net-1a2b3", "namespace": "ml", "creationTimestamp": at(0)},
        "spec": {"queueName": queue, "active": active},
        "status": {"conditions": [*conditions]},
    }


def podgroup(
    phase: str = "Pending", *conditions: Json, queue: str = "research", members: int = 3, gpus: str = "24"
) -> Json:
    return {
        "kind": "PodGroup",
        "metadata": {"name": "net"},
        "spec": {"minMember": members, "queue": queue, "minResources": {"nvidia.com/gpu": gpus}},
        "status": {"phase": phase, "conditions": [*conditions]},
    }


def snapshot(job: Json | None = None, *pods: Json, **parts: Any) -> Json:
    """``logs``: member -> text."""
    logs = {f"net-{name}": text for name, text in parts.pop("logs", {}).items()}
    return {
        **({"job": job} if job is not None else {}),
        "pods": [*pods],
        "events": parts.pop("events", []),
        "logs": logs,
        **parts,
    }


def traceback(
    error: str,
    where: str = "/app/train.py",
    line: int = 42,
    rank: int | None = None,
    library: str | None = None,
) -> str:
    frames = [f'  File "{where}", line {line}, in main', "    step(batch)"]
    if library is not None:
        frames += [f'  File "/usr/lib/python3.11/site-packages/{library}", line 9, in call', "    raise"]
    text = ["Traceback (most recent call last):", *frames, *error.split("\n")]
    return "\n".join(f"[rank{rank}]: {one}" if rank is not None else one for one in text)


WATCHDOG = (
    "[rank{rank}]:[E520 12:{minute}:00.{fraction} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog "
    "caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran "
    "for 600048 milliseconds before timing out."
)


def watchdog(rank: int, number: int = 812, op: str = "ALLREDUCE", numel: int = 4096, minute: int = 40) -> str:
    return WATCHDOG.format(
        rank=rank, number=number, op=op, numel=numel, minute=minute, fraction="123456789"
    ).replace("[E520", "[E0520")
