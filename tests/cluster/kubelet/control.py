"""Faults on request: one JSON object per line on a Unix socket, one per line back.

``{"do": "lose_node", "node": "n1", "how": "frozen"}`` is answered by ``{"ok": ...}`` or ``{"error": "..."}``.
The verbs are the methods of ``Control`` whose names do not begin with an underscore; ``handle.py`` is the
client.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.kubelet.api import MERGE, ApiError
from tests.cluster.kubelet.network import Flaw
from tests.cluster.kubelet.node import Node, NodeSpec
from tests.cluster.kubelet.pod import Pod

if TYPE_CHECKING:
    from tests.cluster.kubelet.kubelet import Kubelet


class Unknown(Exception):
    """No such node, pod or verb here."""


class Control:
    """What a test may ask of a running kubelet."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet

    async def listen(self, path: Path) -> None:
        await asyncio.start_unix_server(self._serve, path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                asked = json.loads(line)
                verb = asked.pop("do")
                try:
                    method = None if verb.startswith("_") else getattr(self, verb, None)
                    if method is None:
                        raise Unknown(f"no verb {verb!r}")
                    answer: dict[str, Any] = {"ok": await method(**asked)}
                except (Unknown, ApiError, ConnectionError, TypeError, ValueError) as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    # --- nodes ----------------------------------------------------------------------------------------------

    async def add_node(
        self, name: str, resources: dict[str, str], labels: dict[str, str], taints: list[str]
    ) -> None:
        """One more node."""
        await self._kubelet.add_node(NodeSpec(name, resources, labels, tuple(taints)))

    async def lose_node(self, node: str, how: str = "run") -> None:
        """See ``Node.lose``."""
        if how not in ("run", "frozen", "cut", "killed"):
            raise ValueError(f"a node is lost with its pods run, frozen, cut or killed, not {how!r}")
        await self._node(node).lose(how)

    async def find_node(self, node: str) -> None:
        await self._node(node).find()

    async def drain_node(self, node: str, grace: int | None = None) -> list[str]:
        """Cordon, then evict every pod through the Eviction API, as `kubectl drain`; the names of the
        pods.
        """
        api = self._kubelet.api
        await api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}, MERGE)
        pods = list(self._node(node).pods.values())
        for pod in pods:
            options = {} if grace is None else {"deleteOptions": {"gracePeriodSeconds": grace}}
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                **options,
            }
            await api.create(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", body)
        return [pod.name for pod in pods]

    async def uncordon_node(self, node: str) -> None:
        await self._kubelet.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}}, MERGE)

    # --- images ---------------------------------------------------------------------------------------------

    async def fail_pull(self, image: str, message: str = "not found") -> None:
        self._kubelet.images.fail(image, message)

    async def slow_pull(self, image: str, seconds: float) -> None:
        self._kubelet.images.slow(image, seconds)

    async def mend_pulls(self) -> None:
        self._kubelet.images.mend()

    # --- pods -----------------------------------------------------------------------------------------------

    async def evict(self, namespace: str, name: str, message: str = "", grace: float = 0.0) -> None:
        """For want of a resource of the node, by the kubelet itself: phase Failed, reason Evicted; the object
        stays.
        """
        pod = self._pod(namespace, name)
        message = message or (
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 64Mi. "
            f"Container {pod.spec['containers'][0]['name']} was using 1Gi, request is 0, "
            "has larger consumption of memory. "
        )
        target = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "TerminationByKubelet",
            "message": message,
        }
        pod.evict(message, grace, (target,))

    async def kill(
        self, namespace: str, name: str, container: str | None = None, signal: int = 9, reason: str = ""
    ) -> None:
        """A signal to the first process of a container (None: of each); with SIGKILL all its processes die.
        ``reason``: what the status will say (OOMKilled).
        """
        for run in self._pod(namespace, name).live_runs():
            if container in (None, run.spec["name"]):
                run.killed_as = reason
                run.send(signal)

    async def freeze(self, namespace: str, name: str, frozen: bool = True) -> None:
        """Stop all processes of a pod where they are, or let them go on. Nobody is told."""
        for run in self._pod(namespace, name).live_runs():
            run.freeze(frozen)

    async def pids(self, namespace: str, name: str) -> dict[str, list[int]]:
        """The processes of a pod's containers, in this machine's numbers."""
        pod = self._pod(namespace, name)
        return {run.spec["name"]: run.cgroup.pids() or [run.pid] for run in pod.live_runs()}

    # --- the network ----------------------------------------------------------------------------------------

    async def cut(self, one: list[str], other: list[str] | None = None) -> None:
        """Let no packet through between two pods ([namespace, name]), or from a pod to anybody. Silently."""
        first = self._pod(*one).address
        if other is None:
            await self._kubelet.network.isolate(first)
        else:
            await self._kubelet.network.cut(first, self._pod(*other).address)

    async def flaw(
        self, one: list[str], other: list[str], delay: float = 0.0, loss: float = 0.0, twice: float = 0.0
    ) -> None:
        """See ``network.Flaw``; holds for both directions."""
        pair = self._pod(*one).address, self._pod(*other).address
        await self._kubelet.network.flaw(*pair, Flaw(delay, loss, twice))

    async def mend(self, *, one: list[str] | None = None) -> None:
        """Take back the network faults of a pod, or all."""
        await self._kubelet.network.mend(*([self._pod(*one).address] if one else []))

    # --- looking --------------------------------------------------------------------------------------------

    async def facts(self) -> dict[str, Any]:
        """What a test needs to know of this kubelet."""
        kubelet = self._kubelet
        return {
            "host": kubelet.network.host,
            "router": kubelet.network.router,
            "folder": str(kubelet.folder),
            "limits_memory": kubelet.cgroups.limits_memory,
            "freezes": kubelet.cgroups.freezes,
            "nodes": {node.name: node.address for node in kubelet.nodes.values()},
            "pods": {
                f"{p.namespace}/{p.name}": p.address for n in kubelet.nodes.values() for p in n.pods.values()
            },
        }

    def _node(self, name: str) -> Node:
        try:
            return self._kubelet.nodes[name]
        except KeyError:
            raise Unknown(f"no node {name!r} here") from None

    def _pod(self, namespace: str, name: str) -> Pod:
        pod = self._kubelet.pod(namespace, name)
        if pod is None:
            raise Unknown(f"no pod {namespace}/{name} here")
        return pod
