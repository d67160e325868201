"""The process kubelet does with pods of a real API server and scheduler what a kubelet does, and what a test asks."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest

from tests.cluster.api import ApiError, until
from tests.cluster.kubelet.handle import NodeSpec, ProcessKubelet
from tests.cluster.kubelet.obstacles import obstacle
from tests.cluster.plane import ControlPlane

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
OWN = "allaboard.test/kubelet"
"""Label and taint of the nodes of these tests: nobody else's pods get there."""


class Nodes:
    """The nodes of these tests and the pods on them."""

    def __init__(self, plane: ControlPlane, kubelet: ProcessKubelet, mark: str) -> None:
        self.plane, self.kubelet, self.mark = plane, kubelet, mark

    def name(self, number: int) -> str:
        return f"{self.mark}-{number}"

    def spec(self, number: int, **resources: str) -> NodeSpec:
        mine = {OWN: self.mark}
        return NodeSpec(self.name(number), resources, mine, (f"{OWN}={self.mark}:NoSchedule",))


class Pods:
    """Pods of one test, in its namespace."""

    def __init__(self, nodes: Nodes, namespace: str) -> None:
        self._nodes, self.namespace = nodes, namespace
        self._api = nodes.plane.api

    def create(
        self,
        name: str,
        script: str = "sleep 1000",
        *,
        node: int | None = None,
        image: str = "alpine",
        container: Object | None = None,
        labels: dict[str, str] | None = None,
        **spec: Any,
    ) -> str:
        """A pod with one container, `main`, that runs a shell script; the real scheduler places it. Its name."""
        selector = {OWN: self._nodes.mark}
        if node is not None:
            selector["kubernetes.io/hostname"] = self._nodes.name(node)
        main = {"name": "main", "image": image, "command": ["sh", "-c", script], **(container or {})}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels or {}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "nodeSelector": selector,
                "tolerations": [{"key": OWN, "operator": "Exists"}],
                "containers": [main],
                **spec,
            },
        }
        self._api.create(body)
        return name

    def make(self, kind: str, name: str, version: str = "v1", **content: Any) -> None:
        meta = {"name": name, "namespace": self.namespace}
        self._api.create({"apiVersion": version, "kind": kind, "metadata": meta, **content})

    def get(self, name: str) -> Object | None:
        return self._api.get("v1", "Pod", name, self.namespace)

    def status(self, name: str) -> Object:
        found = self.get(name)
        assert found is not None, f"pod {name} is gone"
        return found.get("status") or {}

    def container(self, name: str, container: str = "main") -> Object:
        """The container's status; empty while there is none."""
        status = self.status(name)
        every = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
        return next((c for c in every if c["name"] == container), {"state": {}})

    def until(self, what: str, look: Callable[[], Any], timeout: float = 15) -> Any:
        return until(what, look, timeout, 0.02)

    def until_phase(self, name: str, *phases: str, timeout: float = 15) -> Object:
        self.until(f"{name} to be {phases}", lambda: self.status(name).get("phase") in phases, timeout)
        return self.status(name)

    def until_waiting(self, name: str, reason: str, container: str = "main") -> Object:
        def look() -> Object | None:
            waiting: Object = self.container(name, container)["state"].get("waiting") or {}
            return waiting if waiting.get("reason") == reason else None

        found: Object = self.until(f"{name} to wait for {reason}", look)
        return found

    def run(self, name: str, script: str, **options: Any) -> tuple[int, str]:
        """To its end: exit code and log."""
        self.create(name, script, **options)
        self.until_phase(name, "Succeeded", "Failed", timeout=options.pop("timeout", 20))
        return self.container(name)["state"]["terminated"]["exitCode"], self.log(name)

    def log(self, name: str, **query: Any) -> str:
        """Through the API server."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/log?{urlencode(query)}"
        command = ["kubectl", f"--kubeconfig={self._nodes.plane.kubeconfig}", "get", "--raw", path]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(done.stderr)
        return done.stdout

    def condition(self, name: str, kind: str) -> Object:
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def events(self, name: str) -> list[Object]:
        found = self._api.list("v1", "Event", self.namespace, fieldSelector=f"involvedObject.name={name}")
        return [e for e in found if e.get("source", {}).get("component") == "kubelet"]

    def reasons(self, name: str) -> set[str]:
        return {event["reason"] for event in self.events(name)}

    def delete(self, name: str, grace: int | None = None) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        self._api.request("DELETE", path, None if grace is None else {"gracePeriodSeconds": grace})
