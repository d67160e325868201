"""Members whose image has neither allaboard nor its Python: stacks and progress come by the helper."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import until
from tests.cluster.own_nodes import OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import LONG, Terminal
from tests.core.inside.containers import python_of

pytestmark = [
    pytest.mark.needs("training-operator", "jobset", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(900),
]
TRAIN = """\
import json, os, sys, time, urllib.request
try:
    import allaboard
    sys.exit("this image has allaboard")
except ImportError:
    print("python", sys.version.split()[0], "pid", os.getpid(), flush=True)
def post(step):
    with open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]) as file:
        token = file.read()
    metrics = [{"name": "loss", "value": str(1 / step)}, {"name": "current_step", "value": str(step)},
               {"name": "total_steps", "value": "50"}]
    body = json.dumps({"trainerStatus": {"progressPercentage": 2 * step, "metrics": metrics}})
    request = urllib.request.Request(os.environ["KUBEFLOW_TRAINER_SERVER_URL"], body.encode(),
                                     {"Authorization": "Bearer " + token})
    assert urllib.request.urlopen(request, timeout=5).status == 200
def load():
    time.sleep(3600)
if os.environ.get("RANK", "0") == "0":
    for step in (1, 5, 10):
        post(step)
print("loads", flush=True)
load()
"""
"""All wait at line 19."""


@pytest.fixture(scope="module")
def nodes(plane_of_nodes: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnNodes]:
    environment = tmp_path_factory.mktemp("image") / "python3.8"
    python = python_of("3.8") / "bin" / "python3.8"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    with own_nodes(plane_of_nodes, {"cpu": "8"}, python=environment / "bin" / "python3") as nodes:
        yield nodes


@pytest.mark.parametrize(
    ("engine", "command"),
    [("pytorchjob", ["python", "train.py"]), ("jobset", ["sh", "-c", "exec python3 train.py"])],
)
def test_an_old_python_tells_its_progress_and_its_stacks(
    engine: str, command: list[str], plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path
) -> None:
    nodes.serve(namespace)
    ab = Terminal.on(plane.kubeconfig, namespace, tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    job: dict[str, Any] = {
        "name": "old",
        "engine": engine,
        "framework": "pytorch",
        "command": command,
        "code": ["train.py"],
        "workers": 2,
        "policy": {"hang": {"after": 30}},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    ab("run", "job.yaml", "--detach")
    run = ab.run_of()
    until("all ranks to write", lambda: ab("logs", run, code=None).out.count("loads") == 2, LONG)
    assert ab("logs", run).out.count("python 3.8.") == 2 and "pid 1\n" in ab("logs", run).out

    def progress() -> Any:
        return ab("status", run, "--json").json

    status = until("its progress to be read", lambda: (s := progress())["progress"]["step"] == 10 and s, 120)
    assert status["progress"]["total"] == 50 and status["metrics"]["loss"] == 0.1

    def stacks() -> Any:
        ab("snapshot", run, "-o", "case.json")
        looks = json.loads((tmp_path / "case.json").read_text()).get("stacks") or []
        return looks if {look["rank"] for look in looks} == {0, 1} else None

    def helpers() -> list[str]:
        names = [m["metadata"]["name"] for m in plane.api.list("v1", "ConfigMap", namespace)]
        return [name for name in names if name.endswith("-helper")]

    assert helpers() == [f"{run}-helper"]
    looks = until("their stacks to be read", stacks, 120)
    assert "load" in json.dumps(looks) and "train.py" in json.dumps(looks)
    ab("stop", run)
    until("its objects to be gone", lambda: not plane.api.list("v1", "Pod", namespace) and not helpers(), 120)
