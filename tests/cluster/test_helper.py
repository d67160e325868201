"""Members whose image has neither allaboard nor its Python: stacks and progress come by the helper, and so do
the checkpoints that their library writes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import until
from tests.cluster.own_nodes import OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import LONG, ROOT, Terminal
from tests.core.checkpoints.foreign.test_frameworks import PYTHON
from tests.core.checkpoints.foreign.test_samples import SAMPLES
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


#: As Hugging Face's Trainer saves. At its first start it saves step 2 and a torn step 4, and waits; at
#: SIGTERM it saves step 3, if it is let. Started again it trains to step 6.
TUNES = """\
import os, signal, sys, time
rank, given = int(os.environ.get("RANK") or os.environ["ALLABOARD_INDEX"]), sys.argv[1:]
print("rank", rank, "python", sys.version.split()[0], "given", given, flush=True)
def save(step, whole=True):
    into = "/out/tune/checkpoint-%d" % step
    os.makedirs(into)
    for name in sorted(os.listdir("/out/sample"), key=lambda name: name == "trainer_state.json"):
        with open("/out/sample/" + name, "rb") as file:
            content = file.read()
        if name == "trainer_state.json":
            if not whole:
                return
            content = content.replace(b'step": 4', b'step": %d' % step)
        with open(into + "/" + name, "wb") as file:
            file.write(content)
    print("step %d/6 loss %.3f" % (step, 1 / step), flush=True)
def stop(number, frame):
    if rank == 0:
        save(3)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
begin = int(given[-1].rpartition("-")[2]) if given else 0
if rank == 0 and begin == 0:
    save(2)
    save(4, whole=False)
elif rank == 0:
    open("/out/again", "w").close()
    while not os.path.exists("/out/both"):  # as in a rendezvous
        time.sleep(0.2)
    for step in range(begin + 1, 7):
        save(step)
elif begin:
    open("/out/both", "w").close()
while begin == 0:  # a gang that has lost a member
    time.sleep(0.2)
    if rank > 0 and os.path.exists("/out/again"):
        sys.exit(1)
"""


@pytest.mark.parametrize(("engine", "resumed"), [("pytorchjob", 3), ("jobset", 2)])
def test_a_member_that_is_lost_goes_on_from_the_newest_whole_checkpoint(
    engine: str, resumed: int, plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path
) -> None:
    """A pod that is deleted saves in its grace period; one that its node evicts at once has none."""
    nodes.serve(namespace)
    ab = Terminal.on(plane.kubeconfig, namespace, tmp_path)
    (tmp_path / "train.py").write_text(TUNES)
    job: dict[str, Any] = {
        "name": "tune",
        "engine": engine,
        "framework": "pytorch",
        "command": ["python3", "train.py", "--resume", "{checkpoint}"],
        "code": ["train.py"],
        "workers": 2,
        "storage": [{"mount": "/out", "pvc": "out"}],
        "checkpoints": {"uri": "/out/tune", "format": "auto"},
    }
    out = claimed(plane, namespace, nodes)
    shutil.copytree(SAMPLES / "hugging_face_trainer" / "checkpoint-4", out / "sample")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    ab("run", "job.yaml", "--detach")
    run = ab.run_of()
    own = out / "tune" / run

    def adopted() -> list[int]:
        listed = ab("checkpoints", "list", str(own), "--json", code=None)
        return [item["step"] for item in listed.json["checkpoints"]] if listed.code == 0 else []

    until("both ranks to write", lambda: ab("logs", run, code=None).out.count("given []") == 2, LONG)
    until("the first checkpoint to be adopted", lambda: adopted() == [2], LONG)
    (pod,) = [p for p in _pods(plane, namespace) if _is_rank_0(p)]
    if engine == "pytorchjob":
        plane.api.delete("v1", "Pod", pod, namespace)
    else:
        nodes.kubelet.evict(namespace, pod, "The node was low on resource: memory.")
    state = until("the run to end", lambda: ended(ab, run), LONG)
    logs = ab("logs", run).out
    assert state["state"] == "succeeded", logs
    given = f"given ['--resume', '/out/tune/checkpoint-{resumed}']"
    assert logs.count(given) == 2, logs
    assert f"goes on from /out/tune/checkpoint-{resumed} (step {resumed})" in logs
    assert (out / "tune" / "checkpoint-4.torn").exists() and "python 3.8." in logs
    steps = [2, *range(3, 7)]
    assert adopted() == steps
    assert state["checkpoints"]["latest"] == f"/out/tune/{run}/step-000000000006", state["checkpoints"]
    assert state["progress"]["step"] == 6
    ab("checkpoints", "verify", str(own))
    copy = ab("checkpoints", "collect", str(own), "models", "--best", "eval_loss:min", "--json").json
    assert copy["run"] == run and copy["metrics"]["eval_loss"] > 0
    promoted = ab("promote", copy["uri"], "--into", "champions", "--metric", "eval_loss", "--json").json
    assert promoted["promoted"] and promoted["champion"]["step"] == copy["step"]


@pytest.mark.thorough
@pytest.mark.skipif(not PYTHON.exists(), reason="the libraries are not installed here: make frameworks")
def test_a_script_of_hugging_face_is_killed_while_it_saves(
    plane: ControlPlane, plane_of_nodes: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    with own_nodes(plane_of_nodes, {"cpu": "8", "memory": "16Gi"}, prefix="hf", python=PYTHON) as nodes:
        nodes.serve(namespace)
        ab = Terminal.on(plane.kubeconfig, namespace, tmp_path)
        shutil.copy(ROOT / "tests" / "frameworks" / "scripts" / "hugging_face.py", tmp_path / "train.py")
        options = (
            "--max_steps 10 --save_steps 2 --eval_steps 2 --logging_steps 1 --eval_strategy steps --use_cpu "
            "--report_to none --disable_tqdm true --per_device_train_batch_size 2 --output_dir /out/tune"
        )
        script = 'cd /out && exec python3 /allaboard/code/train.py "$@"'
        words = [*options.split(), "--resume_from_checkpoint", "{checkpoint}"]
        job = {
            "name": "tune",
            "engine": "pytorchjob",
            "command": ["sh", "-c", script, "sh", *words],
            "code": ["train.py"],
            "workers": 1,
            "storage": [{"mount": "/out", "pvc": "out"}],
            "checkpoints": {"uri": "/out/tune", "format": "auto"},
        }
        out = claimed(plane, namespace, nodes)
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        ab("run", "job.yaml", "--detach")
        run = ab.run_of()
        state = until("the run to end", lambda: ended(ab, run), LONG * 2)
        logs = ab("logs", run).out
        assert state["state"] == "succeeded", logs
        assert state["restarts"] == 1 and (out / "tune" / "checkpoint-6.torn").exists()
        assert "goes on from /out/tune/checkpoint-4 (step 4)" in logs
        assert state["progress"]["step"] == 10 and "loss" in state["metrics"]
        listed = ab("checkpoints", "list", str(out / "tune" / run), "--json").json["checkpoints"]
        assert [item["step"] for item in listed] == [2, 4, 6, 8, 10]
        ab("checkpoints", "verify", str(out / "tune" / run))


def claimed(plane: ControlPlane, namespace: str, nodes: OwnNodes) -> Path:
    """The folder of a new claim ``out``, which all members see."""
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "harness",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    metadata = {"name": "out", "namespace": namespace}
    plane.api.create(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    )
    return nodes.kubelet.folder_of(until("the claim to be bound", lambda: _bound(plane, namespace)))


def ended(ab: Terminal, run: str) -> Any:
    """The status of a run that has ended."""
    status = ab.seen(run)
    return status if status["state"] in ("succeeded", "failed") else None


def _bound(plane: ControlPlane, namespace: str) -> str:
    claim = plane.api.get("v1", "PersistentVolumeClaim", "out", namespace) or {}
    return str(claim.get("spec", {}).get("volumeName") or "")


def _pods(plane: ControlPlane, namespace: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in plane.api.list("v1", "Pod", namespace)]


def _is_rank_0(pod: str) -> bool:
    return "master-0" in pod
