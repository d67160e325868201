"""Events as a kubelet writes them: one object per (what, reason, message), whose count grows."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.cluster.kubelet.api import MERGE, Api, ApiError
from tests.cluster.kubelet.status import stamp

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Event:
    node: str
    about: tuple[tuple[str, str], ...]
    kind: str
    reason: str
    message: str


class Events:
    """Writes them in the order in which they were told, beside the work that they tell of."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._queue: asyncio.Queue[tuple[_Event, float]] = asyncio.Queue()
        self._known: dict[_Event, tuple[str, int]] = {}
        """The name of its object, and how often it was told."""
        self.silent: set[str] = set()
        """Nodes that cannot reach the API server: what they would tell is lost."""

    def on_pod(
        self, node: str, pod: Object, kind: str, reason: str, message: str, container: Object | None = None
    ) -> None:
        """``kind``: Normal or Warning. ``container``: the one of the pod's spec that it is about."""
        meta = pod["metadata"]
        about = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        }
        if container is not None:
            is_init = container in (pod["spec"].get("initContainers") or [])
            about["fieldPath"] = (
                f"spec.{'initContainers' if is_init else 'containers'}{{{container['name']}}}"
            )
        self._tell(node, about, kind, reason, message)

    def on_node(self, node: str, kind: str, reason: str, message: str) -> None:
        self._tell(node, {"kind": "Node", "name": node, "uid": node}, kind, reason, message)

    def _tell(self, node: str, about: dict[str, str], kind: str, reason: str, message: str) -> None:
        if node not in self.silent:
            event = _Event(node, tuple(about.items()), kind, reason, message[:1024])
            self._queue.put_nowait((event, time.time()))

    async def write(self) -> None:
        """For ever."""
        while True:
            event, when = await self._queue.get()
            # An event that the server does not take is lost, as a kubelet's is.
            with suppress(ApiError, ConnectionError):
                await self._write(event, when)
            self._queue.task_done()

    async def written(self) -> None:
        """Until all that was told is written."""
        await self._queue.join()

    async def _write(self, event: _Event, when: float) -> None:
        about = dict(event.about)
        namespace = about.get("namespace", "default")
        path = f"/api/v1/namespaces/{namespace}/events"
        if event in self._known:
            name, count = self._known[event]
            self._known[event] = (name, count + 1)
            try:
                await self._api.patch(
                    f"{path}/{name}", {"count": count + 1, "lastTimestamp": stamp(when)}, MERGE
                )
                return
            except ApiError as error:
                if error.status != 404:
                    raise
        name = f"{about['name'][:200]}.{time.time_ns():x}{random.getrandbits(16):04x}"
        self._known[event] = (name, 1)
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": about,
            "type": event.kind,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": "kubelet", "host": event.node},
            "reportingComponent": "kubelet",
            "reportingInstance": event.node,
            "firstTimestamp": stamp(when),
            "lastTimestamp": stamp(when),
            "count": 1,
        }
        await self._api.create(path, body)
