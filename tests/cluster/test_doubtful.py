"""Successes that their ends contradict, on a real control plane: the flag and its sentence in the outcome,
the status, the page, beside the checkpoints in a bucket, and at the gate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.storage import open_store
from tests.cluster.api import until
from tests.cluster.components import s3
from tests.cluster.own_nodes import OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, LONG, Terminal

pytestmark = [
    pytest.mark.needs("training-operator", "s3", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(900),
]
TRAINS = """\
import os, signal, sys, time
from allaboard.inside import Checkpointer
how, rank = sys.argv[1], int(os.environ.get("RANK", 0))
saved = Checkpointer()
def leave(number, frame):
    print("received SIGTERM, stopping", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
if how == "eviction" and saved.resume() is not None:
    for step in range(41, 101):
        print("step %d/100 loss %.4f" % (step, 1 / step), flush=True)
    sys.exit(0)
if how == "waits":
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
for step in range(1, 41) if rank == 0 else ():
    total = 40 if how == "waits" else 100
    print("step %d/%d loss %.4f" % (step, total, 1 / step), flush=True)
    if step % 20 == 0:
        saved.step(step, lambda: b"state", metrics={"val_loss": 1 / step})
if how == "waits":
    if rank == 0:
        os._exit(0)
    dist.barrier()
if how == "swallows":
    raise RuntimeError("no sample 41 in shard 7")
while how in ("signal", "eviction"):
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def nodes(plane_of_nodes: ControlPlane) -> Iterator[OwnNodes]:
    with own_nodes(plane_of_nodes, {"cpu": "8", "memory": "16Gi"}, prefix="doubt", code=CODE) as nodes:
        yield nodes


@pytest.fixture
def ab(plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path) -> Terminal:
    nodes.serve(namespace)
    s3.give(plane, namespace, namespace)
    return Terminal.on(plane.kubeconfig, namespace, tmp_path, **s3.variables(plane))


def by_signal(plane: ControlPlane, nodes: OwnNodes, namespace: str, pod: str) -> None:
    nodes.kubelet.kill_container(namespace, pod, signal=15)


def by_eviction(plane: ControlPlane, nodes: OwnNodes, namespace: str, pod: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    plane.api.request("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)


End = Callable[[ControlPlane, OwnNodes, str, str], None]


def outcome_of(
    how: str,
    workers: int,
    end: End | None,
    ab: Terminal,
    plane: ControlPlane,
    nodes: OwnNodes,
    namespace: str,
) -> tuple[str, str]:
    """The run, and what its client says of it, once it has succeeded."""
    (ab.folder / "train.py").write_text(TRAINS)
    start = ["sh", "-c", "python train.py swallows; echo uploaded"]
    job: dict[str, Any] = {
        "name": "digits",
        "command": start if how == "swallows" else ["python", "train.py", how],
        "code": ["train.py"],
        "workers": workers,
        "engine": "jobset" if how == "eviction" else "pytorchjob",
        "policy": {"restart": "never", "attempts": 1},
        "checkpoints": {"uri": f"s3://{namespace}/digits", "every": 20},
        "secrets": [{"name": "store", "env": True}],
    }
    (ab.folder / "job.yaml").write_text(yaml.safe_dump(job))
    client = ab.start("run", "job.yaml", "--key", "k")
    run = ab.run_of()
    if end is not None:
        until("step 40", lambda: "step 40/100" in ab("logs", run, code=None).out, LONG)
        [pod] = [pod["metadata"]["name"] for pod in plane.api.list("v1", "Pod", namespace)]
        end(plane, nodes, namespace, pod)
    out, err = client.communicate(timeout=LONG / 3)
    assert client.returncode == 0, out + err
    return run, out + err


def test_an_evicted_member_that_exits_with_0_has_not_done_its_work(
    ab: Terminal, plane: ControlPlane, nodes: OwnNodes, namespace: str
) -> None:
    """A Job takes such an end for a success, or makes another pod, or fails: whichever it sees first. A
    success is doubtful, unless another pod has trained to the last step.
    """
    run, told = outcome_of("eviction", 1, by_eviction, ab, plane, nodes, namespace)
    status = ab.seen(run)
    went_on = status["progress"]["step"] == 100
    assert ("success_doubtful" in status["flags"]) is not went_on, told
    assert went_on or ("which is doubtful" in told and "step 40 of 100" in told), told


@pytest.mark.parametrize(
    ("how", "workers", "end", "sentence"),
    [
        ("signal", 1, by_signal, "step 40 of 100"),
        ("swallows", 1, None, "traceback"),
        ("short", 1, None, "step 40 of 100"),
        # gloo tells who waits that its peer is gone.
        ("waits", 2, None, "worker-0 had failed when it was ended with the run"),
    ],
)
def test_a_success_that_its_end_contradicts(
    how: str, workers: int, end: End | None, sentence: str,
    ab: Terminal, plane: ControlPlane, nodes: OwnNodes, namespace: str,
) -> None:  # fmt: skip
    run, told = outcome_of(how, workers, end, ab, plane, nodes, namespace)
    assert "which is doubtful" in told and sentence in told, told + ab("logs", run).out[-3000:]
    status = ab.seen(run)
    assert status["state"] == "succeeded" and "success_doubtful" in status["flags"]
    [summary] = [d["summary"] for d in status["diagnoses"] if d["code"] == "success_doubtful"]
    assert sentence in summary
    page = ab("report", run, "--json").json["page"]
    assert summary.split("`")[0].rstrip() in (ab.folder / page).read_text()
    flags = json.loads(open_store(f"s3://{namespace}/digits/{run}", environ=ab.environ).read("flags.json"))
    assert sentence in flags["flags"]["success_doubtful"] and flags["state"] == "succeeded"
    copy = ab("checkpoints", "collect", run, "models", "--json").json
    assert copy["step"] == 40 and copy["flags"] == ["success_doubtful"]
    promote = ("promote", copy["uri"], "--into", "champions", "--metric", "val_loss", "--json")
    refused = ab(*promote, code=None).json
    assert not refused["promoted"] and "success_doubtful" in json.dumps(refused["verdict"])
    assert ab(*promote, "--despite-flags").json["promoted"]
