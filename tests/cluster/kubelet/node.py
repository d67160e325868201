"""A node: its object, its heartbeat, the pods that are bound to it."""

from __future__ import annotations

import asyncio
import os
import platform
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tests.cluster.kubelet.api import MERGE, ApiError
from tests.cluster.kubelet.pod import Pod
from tests.cluster.kubelet.quantity import quantity
from tests.cluster.kubelet.status import stamp, stamp_micro

if TYPE_CHECKING:
    from tests.cluster.kubelet.kubelet import Kubelet

Object = dict[str, Any]

VERSION = "v1.36.3"
LEASE_SECONDS = 40
ADDRESSES = range(2, 255)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node that a test asks for: what it has, in Kubernetes quantities."""

    name: str
    resources: Mapping[str, str] = field(default_factory=dict)
    """On top of, or instead of: 4 cpu, 8Gi memory, 110 pods."""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    """``key=value:Effect`` or ``key:Effect``."""

    @property
    def text(self) -> str:
        """As ``parse_node`` reads it."""
        parts = [f"{name}={value}" for name, value in self.resources.items()]
        parts += [f"label:{name}={value}" for name, value in self.labels.items()]
        parts += [f"taint:{taint}" for taint in self.taints]
        return f"{self.name}:{','.join(parts)}"

    @property
    def allocatable(self) -> dict[str, str]:
        return {"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "100Gi", **self.resources}


class Node:
    """One node of the kubelet."""

    def __init__(self, kubelet: Kubelet, spec: NodeSpec, number: int) -> None:
        self.kubelet, self.wanted, self.number = kubelet, spec, number
        self.name = spec.name
        self.address = kubelet.network.node_address(number)
        self.allocatable = spec.allocatable
        self.pods: dict[str, Pod] = {}
        """By uid, also those that are over, until their object is gone."""
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._numbers = 0
        self._reachable = asyncio.Event()
        self._reachable.set()
        self.lost = ""
        """How it was lost, by request; empty while it is not."""

    async def register(self) -> None:
        """Make its object, or take over the one that is there."""
        meta = {"name": self.name, "labels": self._labels()}
        taints = [_taint(text) for text in self.wanted.taints]
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": meta,
            "spec": {"taints": taints} if taints else {},
        }
        path = f"/api/v1/nodes/{self.name}"
        try:
            await self.kubelet.api.create("/api/v1/nodes", body)
        except ApiError as error:
            if error.status != 409:
                raise
            await self.kubelet.api.patch(path, {"metadata": {"labels": meta["labels"]}}, MERGE)
        await self.tell_status()
        await self._renew()
        self.kubelet.events.on_node(
            self.name, "Normal", "NodeReady", f"Node {self.name} status is now: NodeReady"
        )

    async def tell_status(self, *, if_it_differs: bool = False) -> None:
        """Write what it has and that it is ready."""
        path = f"/api/v1/nodes/{self.name}"
        present = (await self.kubelet.api.get(path)).get("status") or {}
        status = self._status(present.get("conditions") or [])
        if if_it_differs and _tells(present, status):
            return
        await self.kubelet.api.patch(f"{path}/status", {"status": status})

    def _status(self, present: list[Object]) -> Object:
        """As it is now; of these conditions those that hold still hold since then."""
        now, before = stamp(time.time()), {c["type"]: c for c in present}

        def condition(kind: str, status: str, reason: str, message: str) -> Object:
            old = before.get(kind) or {}
            since = old["lastTransitionTime"] if old.get("status") == status else now
            return {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since,
            }

        uname = platform.uname()
        return {
            "capacity": dict(self.allocatable),
            "allocatable": dict(self.allocatable),
            "conditions": [
                condition(
                    "MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory"
                ),
                condition(
                    "DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"
                ),
                condition(
                    "PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"
                ),
                condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            ],
            "addresses": [{"type": "InternalIP", "address": self.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelet.port}},
            "nodeInfo": {
                "machineID": self.name,
                "systemUUID": self.name,
                "bootID": f"{self.kubelet.boot}",
                "kernelVersion": uname.release,
                "osImage": "the machine of the harness",
                "containerRuntimeVersion": "processes://1",
                "kubeletVersion": VERSION,
                "kubeProxyVersion": VERSION,
                "operatingSystem": "linux",
                "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(uname.machine, uname.machine),
            },
            # Exec by WebSocket is ours to serve; the API server need not translate it to SPDY.
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
        }

    async def beat(self) -> None:
        """Renew the lease and right the status, for ever, while the node is not lost."""
        looked = 0.0
        while True:
            await asyncio.sleep(self.kubelet.settings.lease)
            await self.reachable()
            with suppress(ConnectionError):
                try:
                    await self._renew()
                    if time.monotonic() - looked >= self.kubelet.settings.status:
                        # The node controller calls a node Unknown that it did not hear of, be it for the API
                        # server's sake; the lease alone does not take that back.
                        await self.tell_status(if_it_differs=True)
                        looked = time.monotonic()
                except ApiError as error:
                    if error.status == 404:  # the node's object was deleted, or the cluster begun anew
                        with suppress(ApiError):
                            await self.register()

    async def _renew(self) -> None:
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {
            "holderIdentity": self.name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": stamp_micro(time.time()),
        }
        try:
            await self.kubelet.api.patch(f"{path}/{self.name}", {"spec": spec}, MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
            node = await self.kubelet.api.get(f"/api/v1/nodes/{self.name}")
            owner = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": node["metadata"]["uid"]}
            meta = {"name": self.name, "namespace": "kube-node-lease", "ownerReferences": [owner]}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
            with suppress(ApiError):
                await self.kubelet.api.create(path, body)

    async def follow(self) -> None:
        """Live the life of every pod that is bound to it; for ever."""
        selector = f"spec.nodeName={self.name}"
        async for kind, found in self.kubelet.api.follow("/api/v1/pods", fieldSelector=selector):
            await self.reachable()
            if kind == "RESET":
                here = {item["metadata"]["uid"] for item in found["items"]}
                for uid, pod in self.pods.items():
                    if uid not in here:
                        pod.gone()
                for item in found["items"]:
                    self._saw(item)
            elif kind == "DELETED":
                if pod := self.pods.get(found["metadata"]["uid"]):  # type: ignore[assignment]
                    pod.gone()
            else:
                self._saw(found)

    def _saw(self, manifest: Object) -> None:
        uid = manifest["metadata"]["uid"]
        if uid not in self.pods:
            self.pods[uid] = Pod(self, manifest, self._free_number())
            self._lives[uid] = asyncio.create_task(self._live(self.pods[uid]))
        self.pods[uid].update(manifest)

    async def _live(self, pod: Pod) -> None:
        try:
            await pod.live()
        except Exception:
            # A mistake of ours, or an API server that went away for good: the other pods live on.
            traceback.print_exc()
        finally:
            del self.pods[pod.uid], self._lives[pod.uid]

    def _free_number(self) -> int:
        """Of an address that no pod of the node has; the one that was free the longest."""
        taken = {pod.address_number for pod in self.pods.values()}
        for _ in ADDRESSES:
            self._numbers = self._numbers + 1 if self._numbers + 1 in ADDRESSES else ADDRESSES.start
            if self._numbers not in taken:
                return self._numbers
        raise RuntimeError(f"node {self.name} has no address left")

    # --- admission ------------------------------------------------------------------------------------------

    def refusal(self, pod: Pod) -> tuple[str, str] | None:
        """The reason and the message when the node has no room for a pod that somebody bound to it."""
        wanted = requests_of(pod.manifest)
        others = [p for p in self.pods.values() if p is not pod and not p.stopping and not p.sandbox.phase]
        for resource, amount in {**wanted, "pods": Fraction(1)}.items():
            if amount == 0:
                continue
            used = sum((requests_of(p.manifest).get(resource, Fraction(0)) for p in others), Fraction(0))
            if resource == "pods":
                used = Fraction(len(others))
            capacity = quantity(self.allocatable.get(resource, "0"))
            if used + amount > capacity:
                scale = 1000 if resource == "cpu" else 1
                return (
                    f"OutOf{resource}",
                    f"Node didn't have enough resource: {resource}, requested: {int(amount * scale)}, "
                    f"used: {int(used * scale)}, capacity: {int(capacity * scale)}",
                )
        return None

    def service_variables(self) -> dict[str, str]:
        """What every container knows of the API server."""
        if self.kubelet.api_address is None:
            return {}
        host, port = self.kubelet.api_address
        return {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
            "KUBERNETES_PORT": f"tcp://{host}:{port}",
        }

    # --- loss -----------------------------------------------------------------------------------------------

    async def reachable(self) -> None:
        """Until it is not lost: what a lost node would tell the API server waits here."""
        await self._reachable.wait()

    async def lose(self, how: str) -> None:
        """No heartbeat, no status, no log from here on. ``how``: what becomes of its pods' processes: they
        ``run`` on, are ``frozen``, ``cut`` off the network, or ``killed`` (the machine died).
        """
        self.lost = how
        self._reachable.clear()
        self.kubelet.events.silent.add(self.name)
        if how == "cut":
            await self.kubelet.network.isolate(self.kubelet.network.pod_range(self.number))
        for pod in self.pods.values():
            for run in pod.live_runs():
                if how == "frozen":
                    run.freeze(True)
                elif how == "killed":
                    run.send(9)

    async def find(self) -> None:
        """The node is back; what had happened meanwhile is heard of now."""
        for pod in self.pods.values():
            for run in pod.live_runs():
                run.freeze(False)
        if self.lost == "cut":
            await self.kubelet.network.mend(self.kubelet.network.pod_range(self.number))
        self.lost = ""
        self.kubelet.events.silent.discard(self.name)
        self._reachable.set()
        try:
            await self._renew()
            await self.tell_status()
        except ApiError as error:
            if error.status != 404:
                raise
            await self.register()

    def _labels(self) -> dict[str, str]:
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
        return {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": machine,
            **self.wanted.labels,
        }

    async def close(self) -> None:
        """Kill the pods' processes; their objects stay as they are."""
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)


def requests_of(pod: Object) -> dict[str, Fraction]:
    """What a pod asks of a node: the sum of its containers, or the largest init container where that is
    more.
    """
    spec = pod["spec"]
    total: dict[str, Fraction] = {}
    for container in spec["containers"]:
        for resource, amount in _requests(container).items():
            total[resource] = total.get(resource, Fraction(0)) + amount
    for container in spec.get("initContainers") or []:
        for resource, amount in _requests(container).items():
            if container.get("restartPolicy") == "Always":
                total[resource] = total.get(resource, Fraction(0)) + amount
            else:
                total[resource] = max(total.get(resource, Fraction(0)), amount)
    return total


def _requests(container: Object) -> dict[str, Fraction]:
    resources = container.get("resources") or {}
    given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(value) for name, value in given.items()}


def _tells(present: Any, wanted: Any) -> bool:
    """Whether all that a status shall say is said in it, whenever that was written."""
    if isinstance(wanted, dict):
        return isinstance(present, dict) and all(
            _tells(present.get(name), value) for name, value in wanted.items() if not name.endswith("Time")
        )
    if isinstance(wanted, list):
        return isinstance(present, list) and all(any(_tells(p, w) for p in present) for w in wanted)
    return bool(present == wanted)


def _taint(text: str) -> Object:
    what, _, effect = text.rpartition(":")
    key, _, value = what.partition("=")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def parse_node(text: str) -> NodeSpec:
    """``name:cpu=4,memory=8Gi,nvidia.com/gpu=2,label:zone=a,taint:spot=yes:NoSchedule``. Raises
    ValueError.
    """
    name, _, rest = text.partition(":")
    resources, labels, taints = {}, {}, []
    for part in filter(None, rest.split(",")):
        if part.startswith("label:"):
            key, _, value = part.removeprefix("label:").partition("=")
            labels[key] = value
        elif part.startswith("taint:"):
            taints.append(part.removeprefix("taint:"))
        else:
            key, _, value = part.partition("=")
            quantity(value)
            resources[key] = value
    return NodeSpec(name, resources, labels, tuple(taints))
