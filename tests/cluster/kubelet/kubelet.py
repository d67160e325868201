"""The kubelet of a few nodes: everything that they share, and their beginning and end."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.kubelet import relay
from tests.cluster.kubelet.api import Api, ApiError
from tests.cluster.kubelet.cgroups import Cgroups
from tests.cluster.kubelet.claims import provision
from tests.cluster.kubelet.events import Events
from tests.cluster.kubelet.images import Image, Images
from tests.cluster.kubelet.names import Names
from tests.cluster.kubelet.network import Network
from tests.cluster.kubelet.node import Node, NodeSpec
from tests.cluster.kubelet.pod import Pod
from tests.cluster.kubelet.processes import Spawner
from tests.cluster.kubelet.server import Server
from tests.cluster.kubelet.settings import Settings


class Kubelet:
    """Everything in one process and one loop. ``folder``: empty, on a disk, the kubelet's alone."""

    def __init__(
        self,
        kubeconfig: Path,
        nodes: Iterable[NodeSpec],
        images: Iterable[Image],
        folder: Path,
        settings: Settings,
        claims: Path | None = None,
        buckets: Path | None = None,
    ) -> None:
        self.folder, self.settings = folder, settings
        self.claims = claims or folder / "claims"
        """Where the folders of persistent volumes lie; those outside of ``folder`` outlive the kubelet."""
        self.buckets = buckets
        """Where the buckets of a store lie, for the CSI driver."""
        self.boot = uuid.uuid4()
        self.api = Api(kubeconfig)
        self.events = Events(self.api)
        self.images = Images(folder / "images", images)
        self.cgroups: Cgroups
        self.spawner: Spawner
        self.network: Network
        self.names: Names
        self.nodes: dict[str, Node] = {}
        self.port = 0
        """Of its HTTPS API, on every node's address."""
        self.api_address: tuple[str, int] | None = None
        """The service address of the API server, as pods know it."""
        self._wanted = list(nodes)
        self._server = Server(self)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Until every node is ready. Raises NoNetwork, ApiError, ConnectionError."""
        self.claims.mkdir(parents=True, exist_ok=True)
        self.cgroups = Cgroups()
        self.spawner = Spawner()
        self.network = Network(self.spawner)
        await asyncio.to_thread(self.images.prepare)
        self.api_address = await self._api_address()
        await self.network.start(api=self.api_address)
        self.names = Names(self.api, self.network.host)
        await self.names.serve(self.network.dns_udp, self.network.dns_tcp)
        if self.network.api is not None:
            await relay.serve(self.network.api, self.api.host, self.api.port)
        self.port = await self._server.start()
        self._run(self.events.write())
        self._run(self.names.follow())
        self._run(provision(self.api, self.claims))
        for spec in self._wanted:
            await self.add_node(spec)

    async def add_node(self, spec: NodeSpec) -> None:
        node = Node(self, spec, len(self.nodes))
        await self.network.add_node(node.number)
        await self._server.listen(node.address)
        await node.register()
        self.nodes[spec.name] = node
        self._run(node.beat())
        self._run(node.follow())

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name that is here; of two (one is still ending) the younger."""
        found = [
            p
            for n in self.nodes.values()
            for p in n.pods.values()
            if (p.namespace, p.name) == (namespace, name)
        ]
        return max(found, key=lambda pod: pod.created, default=None)

    async def _api_address(self) -> tuple[str, int] | None:
        with suppress(ApiError):
            service = await self.api.get("/api/v1/namespaces/default/services/kubernetes")
            return service["spec"]["clusterIP"], service["spec"]["ports"][0]["port"]
        return None

    def _run(self, forever: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(forever)
        task.add_done_callback(_tell_of_death)
        self._tasks.append(task)

    async def close(self) -> None:
        """Kill every process, remove every folder and group. The objects on the API server stay."""
        for node in self.nodes.values():
            await node.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.close()
        with suppress(AttributeError):
            self.network.close()
        with suppress(AttributeError):
            self.spawner.close()
        with suppress(AttributeError):
            self.cgroups.close()
        self.api.close()
        await asyncio.to_thread(shutil.rmtree, self.folder, True)


def _tell_of_death(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"a task of the kubelet died: {task.get_coro()}", "exception": error}
        )
