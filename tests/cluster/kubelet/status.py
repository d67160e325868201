"""A pod's status as a kubelet writes it: values in, values out.

What the kubelet knows of a container is a ``Container``; the status of the pod follows from these and the few
facts in ``Sandbox``; nothing of it is remembered elsewhere but the times at which conditions turned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]

OURS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
"""Conditions that the kubelet owns; the others of a pod are left as they are."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container as the kubelet sees it now. ``state`` and ``last`` are in the words of the API."""

    name: str
    image: str
    state: Object
    last: Object = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""
    image_id: str = ""
    is_init: bool = False
    is_sidecar: bool = False
    """An init container with restartPolicy Always: runs beside the others."""

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def terminated(self) -> Object | None:
        found: Object | None = self.state.get("terminated")
        return found

    @property
    def waiting(self) -> str:
        return str((self.state.get("waiting") or {}).get("reason", ""))


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What the kubelet knows of the pod as a whole."""

    host_ip: str
    pod_ip: str = ""
    start_time: str = ""
    phase: str = ""
    """Set once it is decided for good, by an eviction, a deadline or a rejection."""
    reason: str = ""
    message: str = ""
    conditions: tuple[Object, ...] = ()
    """Further conditions that the kubelet adds, DisruptionTarget for instance."""


EPOCH = "1970-01-01T00:00:00Z"
"""When something happened that did not."""


def waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def stamp(when: float) -> str:
    """RFC 3339 in whole seconds, as metav1.Time is."""
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp_micro(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def should_restart(pod: Object, name: str, code: int) -> bool:
    """Whether a container that ended with this code is started again: the container's own rules and policy,
    where it has some, before the pod's.
    """
    spec = pod["spec"]
    container = next(
        c for c in [*(spec.get("initContainers") or []), *spec["containers"]] if c["name"] == name
    )
    for rule in container.get("restartPolicyRules") or []:
        codes = rule.get("exitCodes") or {}
        if (code in (codes.get("values") or [])) == (codes.get("operator") == "In"):
            return bool(rule["action"] == "Restart")
    policy = container.get("restartPolicy") or spec.get("restartPolicy", "Always")
    return bool(policy == "Always" or (policy == "OnFailure" and code != 0))


def phase_of(pod: Object, containers: Sequence[Container], *, stopping: bool = False) -> str:
    """Pending, Running, Succeeded or Failed, by the rule of the kubelet's getPhase.

    ``stopping``: nothing will be started any more, since the pod is being deleted or is over.
    """
    uninitialized = False
    for container in containers:
        if not container.is_init:
            continue
        if container.is_sidecar:
            uninitialized |= not container.started and not container.last and not container.terminated
            continue
        ended = container.terminated or container.last.get("terminated")
        if ended is None or container.running:
            uninitialized = True
        elif ended["exitCode"] != 0:
            if not should_restart(pod, container.name, ended["exitCode"]):
                return "Failed"
            uninitialized = True
    main = [c for c in containers if not c.is_init]
    initialized_once = any(c.running or c.terminated or c.last for c in main)
    never_ran = [c for c in main if not c.running and not c.terminated and not c.last]
    if (uninitialized and not initialized_once) or never_ran:
        return "Pending"
    if any(c.running for c in containers):  # also a sidecar that is still ending
        return "Running"
    codes = [(c.name, (c.terminated or c.last["terminated"])["exitCode"]) for c in main]
    # One that waits for its next run has not succeeded, whatever its last run did.
    succeeded = all(c.terminated is not None for c in main) and all(code == 0 for _, code in codes)
    if not stopping and any(should_restart(pod, name, code) for name, code in codes):
        return "Running"
    return "Succeeded" if succeeded else "Failed"


def status_of(
    pod: Object, containers: Sequence[Container], sandbox: Sandbox, now: float, *, stopping: bool = False
) -> Object:
    """The whole status. Times of conditions that did not turn are taken from the pod's present ones."""
    if sandbox.phase and any(c.running for c in containers):
        # Decided, but not told yet: a pod is not over while a container may still run.
        sandbox = replace(sandbox, phase="", reason="", message="", conditions=())
    phase = sandbox.phase or phase_of(pod, containers, stopping=stopping)
    status: Object = {
        "phase": phase,
        "conditions": _conditions(pod, containers, sandbox, phase, now),
        "hostIP": sandbox.host_ip,
        "hostIPs": [{"ip": sandbox.host_ip}],
    }
    if generation := pod["metadata"].get("generation"):
        status["observedGeneration"] = generation
    if sandbox.start_time:
        status["startTime"] = sandbox.start_time
    if sandbox.pod_ip:
        status |= {"podIP": sandbox.pod_ip, "podIPs": [{"ip": sandbox.pod_ip}]}
    if sandbox.reason:
        status["reason"] = sandbox.reason
    if sandbox.message:
        status["message"] = sandbox.message
    if init := [c for c in containers if c.is_init]:
        status["initContainerStatuses"] = [_container_status(c) for c in init]
    status["containerStatuses"] = [_container_status(c) for c in containers if not c.is_init]
    return status


def _container_status(container: Container) -> Object:
    found: Object = {
        "name": container.name,
        "image": container.image,
        "imageID": container.image_id,
        "ready": container.ready,
        "restartCount": container.restarts,
        "started": container.started,
        "state": container.state,
        "lastState": container.last,
    }
    if container.container_id:
        found["containerID"] = container.container_id
    return found


def _conditions(
    pod: Object, containers: Sequence[Container], sandbox: Sandbox, phase: str, now: float
) -> list[Object]:
    main = [c for c in containers if not c.is_init]
    over = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
    unready = [c.name for c in [*main, *(s for s in containers if s.is_sidecar)] if not c.ready]
    readiness = _false(over) if over else _unready(unready, "ContainersNotReady", "unready")
    gates = [g["conditionType"] for g in pod["spec"].get("readinessGates") or []]
    unmet = [g for g in gates if not _is_true(pod, g)]
    ready = readiness
    if readiness["status"] == "True" and unmet:
        ready = {"status": "False", "reason": "ReadinessGatesNotReady"}
    init_left = [c.name for c in containers if c.is_init and not _initialized(c)]
    initialized = _unready(init_left, "ContainersNotInitialized", "incomplete")
    if over == "PodCompleted":
        initialized = {"status": "True", "reason": over}
    wanted: list[tuple[str, Object]] = [
        ("PodReadyToStartContainers", {"status": "True" if sandbox.pod_ip and not over else "False"}),
        ("Initialized", initialized),
        ("Ready", ready),
        ("ContainersReady", readiness),
        ("PodScheduled", {"status": "True"}),
    ]
    wanted += [(c["type"], {k: v for k, v in c.items() if k != "type"}) for c in sandbox.conditions]
    present = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or []}
    return [_turned(kind, new, present.get(kind), now) for kind, new in wanted]


def _turned(kind: str, new: Object, old: Mapping[str, Any] | None, now: float) -> Object:
    same = old is not None and old.get("status") == new["status"] and old.get("lastTransitionTime")
    since = old["lastTransitionTime"] if same and old is not None else stamp(now)
    return {"type": kind, "lastProbeTime": None, "lastTransitionTime": since, **new}


def _initialized(container: Container) -> bool:
    if container.is_sidecar:
        return container.started
    return container.terminated is not None and container.terminated["exitCode"] == 0


def _unready(names: Sequence[str], reason: str, word: str) -> Object:
    if not names:
        return {"status": "True"}
    text = f"containers with {word} status: [{' '.join(names)}]"
    return {"status": "False", "reason": reason, "message": text}


def _false(reason: str) -> Object:
    return {"status": "False", "reason": reason}


def _is_true(pod: Object, kind: str) -> bool:
    present = (pod.get("status") or {}).get("conditions") or []
    return any(c["type"] == kind and c["status"] == "True" for c in present)
