"""The loss of a whole node: its processes die at once, and nobody tells the API server. The gang goes on, on
another node, from the newest whole checkpoint; meanwhile allaboard says which node is gone, and since when.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import until
from tests.cluster.kubelet.handle import NodeSpec, nodes_on
from tests.cluster.own_nodes import OWN, OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import LONG, Terminal
from tests.cluster.test_helper import TUNES, claimed, ended
from tests.core.checkpoints.foreign.test_samples import SAMPLES
from tests.core.cli.killed import PYTHON, script_and_job
from tests.core.inside.containers import python_of

CPUS = {"cpu": "4"}
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
#: Kubernetes waits 50 s for a node, and its pods stay for 5 minutes.
SOON = {"kube-controller-manager": ["--node-monitor-grace-period=8s", "--node-monitor-period=1s"]}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
"""The word of an administrator that a node is off: Kubernetes then removes its pods."""


@dataclass(frozen=True)
class Team:
    """A terminal of a team whose gang runs on one node, which `replaced` takes away. ``out``: the folder of
    the claim that members mount at /out.
    """

    plane: ControlPlane
    nodes: OwnNodes
    ab: Terminal
    out: Path
    options: Mapping[str, Any]

    def adopted(self, folder: Path) -> list[int]:
        """Steps of the checkpoints that are adopted."""
        listed = self.ab("checkpoints", "list", str(folder), "--json", code=None)
        return [item["step"] for item in listed.json["checkpoints"]] if listed.code == 0 else []

    @contextmanager
    def replaced(self) -> Iterator[NodeSpec]:
        """Another node, which the scheduler may use."""
        taint = f"{OWN}={self.nodes.mark}:NoSchedule"
        spare = NodeSpec(f"{self.nodes.mark}-spare", CPUS, {OWN: self.nodes.mark}, (taint,))
        with nodes_on(self.plane, [spare], **self.options):
            yield spare

    def declare_off(self) -> None:
        """Say, as an administrator does, that the node is off."""
        [node] = self.nodes.names
        known = self.plane.api.get("v1", "Node", node)
        assert known is not None
        self.plane.api.patch(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}},
            {"spec": {"taints": [*(known["spec"].get("taints") or ()), OUT_OF_SERVICE]}},
        )


@contextmanager
def a_team(
    new_plane_in: Callable[..., AbstractContextManager[ControlPlane]], tmp_path: Path, python: Path
) -> Iterator[Team]:
    """A team with one node, whose members have this ``python``."""
    options = {"python": python, "claims": tmp_path / "claims"}
    with (
        new_plane_in(tmp_path / "plane", "training-operator", "jobset", flags=SOON) as plane,
        own_nodes(plane, CPUS, prefix="lost", **options) as nodes,
    ):
        plane.make_namespace("team")
        nodes.serve("team")
        (tmp_path / "work").mkdir()
        ab = Terminal.on(plane.kubeconfig, "team", tmp_path / "work")
        yield Team(plane, nodes, ab, claimed(plane, "team", nodes), options)


@pytest.mark.parametrize("engine", ["pytorchjob", "jobset"])
def test_a_gang_goes_on_from_its_checkpoint_on_another_node(
    engine: str, new_plane_in: Callable[..., AbstractContextManager[ControlPlane]], tmp_path: Path
) -> None:
    environment = tmp_path / "python3.8"
    python = python_of("3.8") / "bin" / "python3.8"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    with a_team(new_plane_in, tmp_path, environment / "bin" / "python3") as team:
        ab, plane, out = team.ab, team.plane, team.out
        shutil.copytree(SAMPLES / "hugging_face_trainer" / "checkpoint-4", out / "sample")
        (ab.folder / "train.py").write_text(TUNES)
        job: dict[str, Any] = {
            "name": "tune",
            "engine": engine,
            "framework": "pytorch",
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
        own = out / "tune" / run
        until("both ranks to write", lambda: ab("logs", run, code=None).out.count("given []") == 2, LONG)
        until("the first checkpoint to be adopted", lambda: team.adopted(own) == [2], LONG)
        [node] = team.nodes.names
        with team.replaced():
            team.nodes.kubelet.destroy()
            first = until("the doctor to say that the node is lost", lambda: _node_lost(ab, run), 60)
            until("the pods to be taken away", lambda: _all_leave(plane), 60)
            status = ab("status", run).out
            team.declare_off()
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
        assert state["attempt"] == 1 and state["progress"]["step"] == 6
        assert team.adopted(own) == [2, 3, 4, 5, 6]
        assert (out / "tune" / "checkpoint-4.torn").exists()


@pytest.mark.skipif(not PYTHON.exists(), reason="the libraries are not installed here: make frameworks")
@pytest.mark.parametrize(
    ("page", "engine", "lasts"), [("trainer", "pytorchjob", "200"), ("lightning", "jobset", "6")]
)
def test_a_script_of_a_library_goes_on_on_another_node(
    page: str,
    engine: str,
    lasts: str,
    new_plane_in: Callable[..., AbstractContextManager[ControlPlane]],
    tmp_path: Path,
) -> None:
    """The script of the library's page, unchanged, by two members."""
    script, made = script_and_job(page)
    words = [*made["command"][2:]]
    words[words.index("--max_steps" if page == "trainer" else "--max_epochs") + 1] = lasts
    launch = (
        "cd /out && exec torchrun --nnodes 2 --nproc_per_node 1 --node_rank $RANK "
        '--master_addr $MASTER_ADDR --master_port $MASTER_PORT /allaboard/code/train.py "$@"'
    )
    with a_team(new_plane_in, tmp_path, PYTHON) as team:
        ab, out = team.ab, team.out / "out"
        (ab.folder / "train.py").write_text(script)
        job: dict[str, Any] = {
            "name": page,
            "engine": engine,
            "framework": "pytorch",
            "command": ["sh", "-c", launch, "sh", *words],
            "environment": {"TTY_COMPATIBLE": "1"},
            "code": ["train.py"],
            "workers": 2,
            "resources": {"cpu": 1},
            "storage": [{"mount": "/out", "pvc": "out"}],
            "checkpoints": {"uri": "/out/out", "format": "auto"},
            "pod": {"spec": {"tolerations": [{**UNREACHABLE, "tolerationSeconds": 3}]}},
        }
        (ab.folder / "job.yaml").write_text(yaml.safe_dump(job))
        ab("run", "job.yaml", "--detach")
        run = ab.run_of()
        until("some checkpoints to be adopted", lambda: len(team.adopted(out / run)) >= 2, 3 * LONG)
        with team.replaced():
            team.nodes.kubelet.destroy()
            before = team.adopted(out / run)
            until("the pods to be taken away", lambda: _all_leave(team.plane), 60)
            team.declare_off()
            state = until("the run to end", lambda: ended(ab, run), 400)
            logs = ab("logs", run).out
        assert state["state"] == "succeeded" and state["attempt"] == 1, logs
        assert "goes on from /out/out/" in logs, logs
        after = team.adopted(out / run)
        assert set(before) < set(after), (before, after)
        assert state["progress"]["step"] and any("loss" in name for name in state["metrics"]), state
        ab("checkpoints", "verify", str(out / run))


def _node_lost(ab: Terminal, run: str) -> Any:
    first = ab("doctor", run, "--json").json["diagnoses"][0]
    return first if first["code"] == "node_lost" else None


def _all_leave(plane: ControlPlane) -> bool:
    return all("deletionTimestamp" in pod["metadata"] for pod in plane.api.list("v1", "Pod", "team"))
