"""Each kind of job on a real cluster, with members that are real processes: its operator tells them what
`Engine.environment` says, and the job ends as they do.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.checking import require_valid
from allaboard.engines import ENGINES, engine_of
from allaboard.engines.base import Address, Place
from allaboard.engines.kubeflow import KubeflowEngine
from allaboard.layout import Layout, lay_out
from tests.cluster.kubelet.handle import NodeSpec, nodes_on
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, ROOT, Terminal

OWN = "allaboard.test/engines"
EXAMPLES = ROOT / "dags_examples" / "engines"
SHOWS = """
import json, os, sys
print(json.dumps(dict(os.environ)), flush=True)
sys.exit(int(sys.argv[1]))
"""
PORTS = {"tensorflow": 2222, "xgboost": 9999, "paddle": 36543, "jax": 6666}
GROUPS: dict[str, dict[str, Any]] = {
    "tensorflow": {"chief": 1, "worker": 2, "ps": 1},
    "xgboost": {"master": 1, "worker": 2},
    "paddle": {"worker": 3},
    "paddle, with servers": {"master": 1, "worker": 1},
    "jax": {"worker": 3},
}

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def pod(plane_of_nodes: ControlPlane) -> Iterator[dict[str, Any]]:
    """What brings members to a node of these tests' own."""
    mark = f"engines-{secrets.token_hex(3)}"
    spec = NodeSpec(mark, {"cpu": "16", "memory": "32Gi"}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))
    with nodes_on(plane_of_nodes, [spec], code=CODE):
        yield {
            "spec": {
                "nodeSelector": {OWN: mark},
                "tolerations": [{"key": OWN, "operator": "Exists"}],
                "terminationGracePeriodSeconds": 2,
            }
        }


@pytest.fixture
def ab(plane: ControlPlane, namespace: str, tmp_path: Path) -> Terminal:
    return Terminal.on(plane.kubeconfig, namespace, tmp_path)


def a_kind(name: str, code: int, pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "digits",
        "framework": name.partition(",")[0],
        "groups": GROUPS[name],
        "command": ["python", "-c", SHOWS, str(code)],
        "policy": {"restart": "never", "clean_pods": "none"},
        "pod": pod,
    }


def services(layout: Layout, namespace: str) -> Place:
    """Where the operator's Services put the members. It tells TensorFlow whole names."""
    port, rest = PORTS[layout.framework], f".{namespace}.svc" if layout.framework == "tensorflow" else ""
    return {m.name: Address(f"{layout.name}-{m.name}{rest}", port) for m in layout.members}


@pytest.mark.parametrize("name", GROUPS)
def test_members_get_what_the_engine_says(
    ab: Terminal, namespace: str, pod: dict[str, Any], tmp_path: Path, name: str
) -> None:
    job = a_kind(name, 0, pod)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    body = ab("run", "job.yaml", "--key", "k", "--json").json
    assert body["state"] == "succeeded"
    layout = lay_out(require_valid(job), engine_of(require_valid(job)), body["run"])
    engine = ENGINES[layout.engine]
    assert isinstance(engine, KubeflowEngine)
    assert [m["rank"] for m in body["members"]] == [m.rank for m in layout.members]
    for member in layout.members:
        (line,) = ab("logs", body["run"], member.name, "--json").out.splitlines()
        real = json.loads(json.loads(line)["text"])
        said = engine.environment(layout, member, services(layout, namespace))
        told = {name: value for name, value in real.items() if name in engine.INJECTED}
        if layout.framework == "paddle" and (member.name,) in engine.listeners(layout):
            # Where the others meet it is told its own address.
            own = told.pop("POD_IP_DUMMY")
            assert told.pop("PADDLE_MASTER") == f"{own}:36543"
            del said["PADDLE_MASTER"]
        assert told == said, member.name
        assert real["ALLABOARD_MEMBER"] == member.name


@pytest.mark.parametrize("name", GROUPS)
def test_a_job_fails_with_its_members(ab: Terminal, pod: dict[str, Any], tmp_path: Path, name: str) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(a_kind(name, 3, pod)))
    said = ab("run", "job.yaml", "--key", "k", "--json", code=1)
    assert said.json["state"] == "failed"
    assert {m["exit_code"] for m in said.json["members"]} <= {3, None}
    assert any("exit code: 3" in str(d) or "exited with 3" in str(d) for d in said.json["diagnoses"])


@pytest.mark.parametrize(
    ("example", "metrics"),
    [
        ("xgboost", {"accuracy": 1.0}),
        ("jax", {"slope": 3.0, "intercept": 0.5}),
        ("paddle", {"slope": 3.0, "intercept": 0.5}),
    ],
)
def test_the_examples_train_with_their_frameworks(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path, example: str, metrics: dict[str, float]
) -> None:
    if example != "paddle":  # whose script needs none
        pytest.importorskip(example)
    job = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
    (script,) = job["code"]
    shutil.copy(EXAMPLES / script, tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "pod": pod}))
    body = ab("run", "job.yaml", "--key", "k", "--json").json
    assert body["state"] == "succeeded" and body["metrics"] == metrics
    assert body["progress"]["step"] == body["progress"]["total"]


def test_a_kind_is_stopped_suspended_and_resumed_like_any_other(
    ab: Terminal, pod: dict[str, Any], tmp_path: Path
) -> None:
    job = a_kind("xgboost", 0, pod) | {"command": ["sleep", "600"]}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    run = ab("run", "job.yaml", "--key", "k", "--detach", "--json").json["run"]
    ab.until_it_runs(run)
    assert ab("suspend", run, "--json").json["state"] == "suspended"
    ab("resume", run)
    ab.until_it_runs(run)
    assert ab("stop", run, "--json").json["state"] == "stopped"
    assert {m["phase"] for m in ab.seen(run)["members"]} == {"deleted"}
