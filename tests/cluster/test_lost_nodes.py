"""The loss of a whole node: its processes die at once, and nobody tells the API server. The gang goes on, on
another node, from the newest whole checkpoint; meanwhile allaboard says which node is gone, and since when.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import until
from tests.cluster.kubelet.handle import NodeSpec, nodes_on
from tests.cluster.own_nodes import OWN, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import LONG, Terminal
from tests.cluster.test_helper import TUNES, claimed, ended
from tests.core.checkpoints.foreign.test_samples import SAMPLES
from tests.core.inside.containers import python_of

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]
#: Kubernetes waits 50 s for a node, and its pods stay for 5 minutes.
SOON = {"kube-controller-manager": ["--node-monitor-grace-period=8s", "--node-monitor-period=1s"]}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
"""The word of an administrator that a node is off: Kubernetes then removes its pods."""


def test_a_gang_goes_on_from_its_checkpoint_on_another_node(
    new_plane_in: Callable[..., AbstractContextManager[ControlPlane]],
    tmp_path: Path,
) -> None:
    environment = tmp_path / "python3.8"
    python = python_of("3.8") / "bin" / "python3.8"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    shared = {"python": environment / "bin" / "python3", "claims": tmp_path / "claims"}
    with (
        new_plane_in(tmp_path / "plane", "training-operator", flags=SOON) as plane,
        own_nodes(plane, {"cpu": "4"}, prefix="lost", **shared) as nodes,
    ):
        plane.make_namespace("team")
        nodes.serve("team")
        out = claimed(plane, "team", nodes)
        shutil.copytree(SAMPLES / "hugging_face_trainer" / "checkpoint-4", out / "sample")
        (tmp_path / "work").mkdir()
        ab = Terminal.on(plane.kubeconfig, "team", tmp_path / "work")
        (ab.folder / "train.py").write_text(TUNES)
        job: dict[str, Any] = {
            "name": "tune",
            "engine": "pytorchjob",
            "command": ["python3", "train.py", "--resume", "{checkpoint}"],
            "code": ["train.py"],
            "workers": 2,
            "resources": {"cpu": 1},
            "storage": [{"mount": "/out", "pvc": "out"}],
            "checkpoints": {"uri": "/out/tune", "format": "auto"},
            "pod": {"spec": {"tolerations": [{**UNREACHABLE, "tolerationSeconds": 3}]}},
        }
        (ab.folder / "job.yaml").write_text(yaml.safe_dump(job))
        client = ab.start("run", "job.yaml", "--key", "k")
        run = ab.run_of()
        own = str(out / "tune" / run)

        def adopted() -> list[int]:
            listed = ab("checkpoints", "list", own, "--json", code=None)
            return [item["step"] for item in listed.json["checkpoints"]] if listed.code == 0 else []

        until("both ranks to write", lambda: ab("logs", run, code=None).out.count("given []") == 2, LONG)
        until("the first checkpoint to be adopted", lambda: adopted() == [2], LONG)
        [node] = nodes.names
        spare = NodeSpec(
            f"{nodes.mark}-spare", {"cpu": "4"}, {OWN: nodes.mark}, (f"{OWN}={nodes.mark}:NoSchedule",)
        )
        with nodes_on(plane, [spare], **shared):
            nodes.kubelet.destroy()
            first = until("the doctor to say that the node is lost", lambda: _node_lost(ab, run), 60)
            until("the pods to be taken away", lambda: _all_leave(plane, run), 60)
            status = ab("status", run).out
            plane.api.patch(
                {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}},
                {"spec": {"taints": [*_taints(plane, node), OUT_OF_SERVICE]}},
            )
            state = until("the run to end", lambda: ended(ab, run), 90)
            said, err = client.communicate(timeout=60)
            logs = ab("logs", run).out
        assert state["state"] == "succeeded" and client.returncode == 0, logs
        assert first["retryable"] and node in json.dumps(first) and "master-0" in json.dumps(first)
        # At once, and with the time at which Kubernetes took note.
        assert f"node {node} does not answer since 20" in said + err
        assert f"node {node} does not answer since 20" in first["summary"]
        assert "master-0, worker-0 are lost with it" in status
        assert "goes on from /out/tune/checkpoint-2 (step 2)" in logs
        assert "given ['--resume', '/out/tune/checkpoint-2']" in logs, logs
        assert state["attempt"] == 1 and state["progress"]["step"] == 6 and adopted() == [2, 3, 4, 5, 6]
        assert (out / "tune" / "checkpoint-4.torn").exists()


def _node_lost(ab: Terminal, run: str) -> Any:
    first = ab("doctor", run, "--json").json["diagnoses"][0]
    return first if first["code"] == "node_lost" else None


def _all_leave(plane: ControlPlane, run: str) -> bool:
    return all("deletionTimestamp" in pod["metadata"] for pod in plane.api.list("v1", "Pod", "team"))


def _taints(plane: ControlPlane, node: str) -> list[Any]:
    found = plane.api.get("v1", "Node", node)
    assert found is not None
    return list(found["spec"].get("taints") or ())
