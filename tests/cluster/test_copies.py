"""``checkpoints: {uri: s3://..., folder: ...}`` on a cluster: members of Python 3.8 without allaboard or
boto3, each with a disk of its own, a pod that is deleted with its disk, and a bucket.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import until
from tests.cluster.components import s3
from tests.cluster.own_nodes import OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import LONG, Terminal
from tests.cluster.test_helper import claimed, ended
from tests.core.checkpoints.foreign.test_samples import SAMPLES
from tests.core.inside.containers import python_of

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager", "s3"),
    pytest.mark.timeout(900),
    pytest.mark.thorough,
]
#: As Hugging Face's Trainer saves, into a disk of its own: `/data` is what the test puts there. At its first
#: start it saves 2 and 3 and a torn step 4, and waits to be lost. Started again it trains to step 6.
TRAINS = """\
import os, sys, time
rank, given = int(os.environ["RANK"]), sys.argv[1:]
print("rank", rank, "python", sys.version.split()[0], "given", given, sorted(os.listdir("/out")), flush=True)
def save(step, whole=True):
    into = "/out/tune/checkpoint-%d" % step
    os.makedirs(into)
    for name in sorted(os.listdir("/data/sample"), key=lambda name: name == "trainer_state.json"):
        with open("/data/sample/" + name, "rb") as file:
            content = file.read()
        if name == "trainer_state.json":
            if not whole:
                return
            content = content.replace(b'step": 4', b'step": %d' % step)
        with open(into + "/" + name, "wb") as file:
            file.write(content)
    print("step %d/6 loss %.3f" % (step, 1 / step), flush=True)
begin = int(given[-1].rpartition("-")[2]) if given else 0
if rank == 0 and begin == 0:
    save(2)
    save(3)
    save(4, whole=False)
elif rank == 0 and begin:
    open("/data/again", "w").close()
    while not os.path.exists("/data/both"):  # as in a rendezvous
        time.sleep(0.2)
    for step in range(begin + 1, 7):
        save(step)
elif begin:
    open("/data/both", "w").close()
while begin == 0:  # a gang that has lost a member
    time.sleep(0.2)
    if rank > 0 and os.path.exists("/data/again"):
        sys.exit(1)
"""


@pytest.fixture(scope="module")
def nodes(plane_of_nodes: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnNodes]:
    environment = tmp_path_factory.mktemp("image") / "python3.8"
    python = python_of("3.8") / "bin" / "python3.8"
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    with own_nodes(plane_of_nodes, {"cpu": "8"}, python=environment / "bin" / "python3") as nodes:
        yield nodes


def test_a_pod_that_is_lost_with_its_disk_goes_on_from_the_bucket(
    plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path
) -> None:
    nodes.serve(namespace)
    s3.give(plane, namespace, namespace)
    ab = Terminal.on(plane.kubeconfig, namespace, tmp_path, **s3.variables(plane))
    (tmp_path / "train.py").write_text(TRAINS)
    uri = f"s3://{namespace}/tune"
    job: dict[str, Any] = {
        "name": "tune",
        "engine": "pytorchjob",
        "command": ["python3", "train.py", "--resume", "{checkpoint}"],
        "code": ["train.py"],
        "workers": 2,
        "secrets": [{"name": "store", "env": True}],
        "storage": [{"mount": "/data", "pvc": "out"}, {"mount": "/out", "empty_dir": "disk"}],
        "checkpoints": {"uri": uri, "folder": "/out/tune", "keep": 3},
    }
    data = claimed(plane, namespace, nodes)
    shutil.copytree(SAMPLES / "hugging_face_trainer" / "checkpoint-4", data / "sample")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert "names no credentials" not in ab("run", "job.yaml", "--detach").err
    run = ab.run_of()

    def copied() -> list[int]:
        listed = ab("checkpoints", "list", run, "--json", code=None)
        return [item["step"] for item in listed.json["checkpoints"]] if listed.code == 0 else []

    until("the newest whole one to be in the bucket while it trains", lambda: copied()[-1:] == [3], LONG)
    ab("checkpoints", "verify", run)
    assert ab("status", run, "--json").json["checkpoints"]["latest"] == f"{uri}/{run}/step-000000000003"
    # What a copier that was killed leaves.
    client = s3.client(plane)
    client.put_object(Bucket=namespace, Key=f"tune/{run}/step-000000000005/model.safetensors", Body=b"half")
    plane.api.delete("v1", "Pod", f"{run}-master-0", namespace)
    state = until("the run to end", lambda: ended(ab, run), LONG)
    logs = ab("logs", run).out
    assert state["state"] == "succeeded", logs
    assert logs.count("given ['--resume', '/out/tune/checkpoint-3']") == 2, logs
    assert f"step 3 of {uri}/{run} is in /out/tune/checkpoint-3 now" in logs
    assert copied()[-1] == 6 and len(copied()) <= 3
    assert state["checkpoints"]["latest"] == f"{uri}/{run}/step-000000000006", state["checkpoints"]
    copy = ab("checkpoints", "collect", run, "models", "--json").json
    assert copy["run"] == run and copy["step"] == 6 and copy["flags"] == []
    promoted = ab("promote", copy["uri"], "--into", "champions", "--metric", "eval_loss", "--json").json
    assert promoted["promoted"] and promoted["champion"]["step"] == 6
    secret = s3.variables(plane)["AWS_SECRET_ACCESS_KEY"]
    shown = logs + ab("events", run, "--json").out + ab("status", run, "--json").out
    assert secret not in shown
    records = plane.api.list("v1", "ConfigMap", namespace)
    assert secret not in repr(records)
