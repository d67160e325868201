"""A checkpoint that another library wrote, in a job that says nothing of checkpoints: adopted, evaluated on
the cluster, collected and promoted, from a volume that this machine sees, too, and from a bucket.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.components import s3
from tests.cluster.kubelet.volumes import BUCKET_DRIVER
from tests.cluster.own_nodes import OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, Terminal
from tests.cluster.test_helper import claimed
from tests.core.checkpoints.foreign.test_samples import SAMPLES

pytestmark = [
    pytest.mark.needs("training-operator", "s3", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(600),
]
SAMPLE = SAMPLES / "hugging_face_trainer" / "checkpoint-4"
#: As Hugging Face's Trainer saves: its state comes last.
SAVES = """\
import os, time
into = "/out/tune/checkpoint-4"
os.makedirs(into)
for name in sorted(os.listdir("/out/sample"), key=lambda name: name == "trainer_state.json"):
    with open("/out/sample/" + name, "rb") as file, open(into + "/" + name, "wb") as copy:
        copy.write(file.read())
    time.sleep(0.05)
print("step 4/4 loss 0.5", flush=True)
"""
JUDGES = """\
import json
from allaboard.inside import context, result
from allaboard.storage import open_store
store = open_store(context().checkpoint)
state = json.loads(store.read("trainer_state.json"))
result(step=state["global_step"], files=len(list(store.entries())), accuracy=0.9)
"""


@pytest.fixture(scope="module")
def nodes(plane_of_nodes: ControlPlane) -> Iterator[OwnNodes]:
    buckets = plane_of_nodes.folder("s3") / "buckets"
    with own_nodes(plane_of_nodes, {"cpu": "8"}, prefix="foreign", code=CODE, buckets=buckets) as nodes:
        yield nodes


@pytest.mark.parametrize("place", ["volume", "bucket"])
def test_it_is_adopted_evaluated_collected_and_promoted(
    place: str, plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path
) -> None:
    nodes.serve(namespace)
    s3.give(plane, namespace, namespace)
    ab = Terminal.on(plane.kubeconfig, namespace, tmp_path, **s3.variables(plane))
    volume: dict[str, Any] = {"mount": "/out"}
    if place == "volume":
        volume["pvc"] = "out"
        folder = claimed(plane, namespace, nodes)
        (folder / "sample").mkdir(parents=True)
        for file in SAMPLE.iterdir():
            (folder / "sample" / file.name).write_bytes(file.read_bytes())
        # Members have another path to the same files.
        here, there = str(folder / "tune"), "/out/tune"
    else:
        csi = {"driver": BUCKET_DRIVER, "volumeAttributes": {"bucketName": namespace}}
        volume["volume"] = {"csi": csi}
        for file in SAMPLE.iterdir():
            s3.client(plane).put_object(Bucket=namespace, Key=f"sample/{file.name}", Body=file.read_bytes())
        here = there = f"s3://{namespace}/tune"
    (ab.folder / "train.py").write_text(SAVES)
    (ab.folder / "judge.py").write_text(JUDGES)
    common = {"workers": 1, "storage": [volume], "secrets": [{"name": "store", "env": True}]}
    for name in ("train", "judge"):
        job = {"name": name, "command": ["python", f"{name}.py"], "code": [f"{name}.py"], **common}
        (ab.folder / f"{name}.yaml").write_text(yaml.safe_dump(job))
    assert ab("run", "train.yaml", "--json").json["state"] == "succeeded"

    [adopted] = ab("checkpoints", "adopt", here, "--json").json["adopted"]
    assert (adopted["step"], adopted["format"]) == (4, "huggingface-trainer")
    [listed] = ab("checkpoints", "list", here, "--json").json["checkpoints"]
    assert listed["files"] == f"{here}/checkpoint-4"
    ab("checkpoints", "verify", here)
    judged = ab("evaluate", "judge.yaml", "--checkpoint", f"{there}/checkpoint-4", "--json").json
    files = len([*SAMPLE.iterdir()])
    assert judged["state"] == "succeeded" and judged["metrics"] == {
        "step": 4,
        "files": files,
        "accuracy": 0.9,
    }
    copy = ab("checkpoints", "collect", here, f"s3://{namespace}/models", "--json").json
    assert copy["step"] == 4 and copy["metrics"]["eval_loss"] > 0
    again = ab("evaluate", "judge.yaml", "--checkpoint", copy["uri"], "--json").json
    assert again["metrics"] == {**judged["metrics"], "files": files + 1}, "the manifest lies beside the copy"
    promoted = ab(
        "promote", copy["uri"], "--into", f"s3://{namespace}/champions", "--metric", "eval_loss", "--json"
    ).json
    assert promoted["promoted"] and promoted["champion"]["step"] == 4, json.dumps(promoted)
