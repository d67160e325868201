"""A kubelet for a test: starts one as a process of its own, asks it for faults, ends it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.cluster.kubelet.node import NodeSpec
from tests.cluster.kubelet.obstacles import FOLDER_PREFIX, obstacle

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
START_LIMIT = 30.0
"""Seconds until every node is ready."""
END_LIMIT = 20.0
ANSWER_LIMIT = 30.0
STARTED_BY = "allaboard.test/started-by"
"""A label of nodes: the process whose they are. Those of one that is gone are nobody's."""


class KubeletError(Exception):
    """It did not start, or refused what it was asked."""


class ProcessKubelet:
    """The nodes of a test. A context manager; its methods block.

    ``python``: the interpreter of the environment that python images hold. ``code``: folders of Python
    packages by name, which these images have too. ``images``: further names (patterns) of python images.
    ``buckets``: the folder of the buckets that the CSI driver mounts. ``claims``: where persistent volumes
    lie that others' nodes see, too, and that outlive this one.
    """

    def __init__(
        self,
        kubeconfig: Path,
        nodes: Iterable[NodeSpec],
        *,
        python: Path | None = None,
        code: Mapping[str, Path] | None = None,
        images: Sequence[str] = (),
        real_times: bool = False,
        buckets: Path | None = None,
        claims: Path | None = None,
    ) -> None:
        # A socket's path must be short, which the folders of pytest are not.
        self._folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        self._control_path = self._folder / "control"
        self._claims = claims or self._folder / "claims"
        self._log = self._folder / "log"
        self._command = [
            sys.executable, "-m", "tests.cluster.kubelet",
            "--kubeconfig", str(kubeconfig),
            "--folder", str(self._folder),
            "--python", str(python or sys.executable),
            *(word for node in nodes for word in ("--node", _signed(node).text)),
            *(word for name, path in (code or {}).items() for word in ("--code", f"{name}={path}")),
            *(word for pattern in images for word in ("--image", pattern)),
            *(["--real-times"] if real_times else []),
            *(["--buckets", str(buckets)] if buckets else []),
            *(["--claims", str(claims)] if claims else []),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._one_at_a_time = threading.Lock()

    def start(self) -> None:
        """Until every node is ready. Raises KubeletError."""
        if (trouble := obstacle()) is not None:
            raise KubeletError(trouble)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,
            )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_LIMIT)
        if not ready or self._process.stdout.readline() != b"ready\n":
            told = self._log.read_text()[-4000:] if self._log.exists() else ""
            self.stop()
            raise KubeletError(f"the kubelet did not start:\n{told}")

    def stop(self) -> None:
        """End it and every process of its pods. Their objects stay as they are."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(END_LIMIT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def kill(self) -> None:
        """As if its machine lost power: no word to anybody."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def destroy(self) -> None:
        """As if its machine burned: `kill`, and what its disk held is gone."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> ProcessKubelet:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def folder_of(self, volume: str) -> Path:
        """The folder that holds a persistent volume."""
        return self._claims / volume

    # --- nodes ----------------------------------------------------------------------------------------------

    def add_node(self, node: NodeSpec) -> None:
        node = _signed(node)
        self._ask(
            "add_node",
            name=node.name,
            resources=dict(node.resources),
            labels=dict(node.labels),
            taints=list(node.taints),
        )

    def lose_node(self, node: str, how: str = "run") -> None:
        """No heartbeat, status or log of the node from now on; its pods' processes ``run`` on, are
        ``frozen``, ``cut`` off the network or ``killed``.
        """
        self._ask("lose_node", node=node, how=how)

    def find_node(self, node: str) -> None:
        """The lost node is back."""
        self._ask("find_node", node=node)

    def drain_node(self, node: str, grace: int | None = None) -> list[str]:
        """Cordon it and evict its pods through the Eviction API; their names."""
        drained: list[str] = self._ask("drain_node", node=node, grace=grace)
        return drained

    def uncordon_node(self, node: str) -> None:
        self._ask("uncordon_node", node=node)

    # --- images ---------------------------------------------------------------------------------------------

    def fail_pull(self, image: str, message: str = "not found") -> None:
        """Pulls of images of this name (a pattern) fail from now on."""
        self._ask("fail_pull", image=image, message=message)

    def slow_pull(self, image: str, seconds: float) -> None:
        self._ask("slow_pull", image=image, seconds=seconds)

    def mend_pulls(self) -> None:
        self._ask("mend_pulls")

    # --- pods -----------------------------------------------------------------------------------------------

    def evict(self, namespace: str, name: str, message: str = "", grace: float = 0.0) -> None:
        """For want of memory of the node: phase Failed, reason Evicted."""
        self._ask("evict", namespace=namespace, name=name, message=message, grace=grace)

    def kill_container(
        self, namespace: str, name: str, container: str | None = None, signal: int = 9, reason: str = ""
    ) -> None:
        """A signal to its first process (of every container when none is named); SIGKILL takes the whole
        tree. ``reason``: what the status says of it.
        """
        self._ask("kill", namespace=namespace, name=name, container=container, signal=signal, reason=reason)

    def kill_for_memory(self, namespace: str, name: str, container: str | None = None) -> None:
        """As the kernel does when a container passes its limit: 137, OOMKilled."""
        self.kill_container(namespace, name, container, reason="OOMKilled")

    def freeze(self, namespace: str, name: str, frozen: bool = True) -> None:
        """Stop the pod's processes where they are; nobody is told."""
        self._ask("freeze", namespace=namespace, name=name, frozen=frozen)

    def pids(self, namespace: str, name: str) -> dict[str, list[int]]:
        """Container: its processes, in this machine's numbers."""
        found: dict[str, list[int]] = self._ask("pids", namespace=namespace, name=name)
        return found

    # --- the network ----------------------------------------------------------------------------------------

    def cut(self, one: tuple[str, str], other: tuple[str, str] | None = None) -> None:
        """Between two pods (namespace, name), or around one, packets vanish."""
        self._ask("cut", one=one, other=other)

    def flaw(
        self,
        one: tuple[str, str],
        other: tuple[str, str],
        delay: float = 0.0,
        loss: float = 0.0,
        twice: float = 0.0,
    ) -> None:
        """Between two pods every packet is late by ``delay`` seconds, and lost or doubled so often (0 to
        1).
        """
        self._ask("flaw", one=one, other=other, delay=delay, loss=loss, twice=twice)

    def mend(self, one: tuple[str, str] | None = None) -> None:
        """Take back the network faults of a pod, or all of them."""
        self._ask("mend", one=one)

    def facts(self) -> dict[str, Any]:
        """``host``: this machine as pods see it. ``nodes``, ``pods``: addresses by name. ``limits_memory``,
        ``freezes``: whether control groups do these here.
        """
        found: dict[str, Any] = self._ask("facts")
        return found

    def _ask(self, verb: str, **what: Any) -> Any:
        with self._one_at_a_time:
            if self._control is None:
                self._control = socket.socket(socket.AF_UNIX)
                self._control.settimeout(ANSWER_LIMIT)
                self._control.connect(str(self._control_path))
            self._control.sendall(json.dumps({"do": verb, **what}).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                more = self._control.recv(65536)
                if not more:
                    raise KubeletError("the kubelet is gone")
                answer += more
        told = json.loads(answer)
        if "error" in told:
            raise KubeletError(told["error"])
        return told["ok"]


@contextmanager
def nodes_on(cluster: Cluster, nodes: Sequence[NodeSpec], **options: Any) -> Iterator[ProcessKubelet]:
    """Nodes on a cluster that others use too: at the end the kubelet is gone, and the nodes with it. Its
    ``options`` are those of ProcessKubelet.
    """
    try:
        with ProcessKubelet(cluster.kubeconfig, nodes, **options) as kubelet:
            yield kubelet
    finally:
        for node in nodes:
            cluster.api.delete("v1", "Node", node.name)


def _signed(node: NodeSpec) -> NodeSpec:
    return replace(node, labels={**node.labels, STARTED_BY: str(os.getpid())})


__all__ = ["STARTED_BY", "KubeletError", "NodeSpec", "ProcessKubelet", "nodes_on"]
