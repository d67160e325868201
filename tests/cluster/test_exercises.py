"""The three exercises of the examples, as they are. Their files name no place: the environment says which
image, store and secrets there are, and the namespace which nodes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allaboard.render import labels
from allaboard.text.reportline import decode
from tests.cluster.api import Object, until
from tests.cluster.components import s3
from tests.cluster.own_nodes import OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, LONG, ROOT, Terminal

EXERCISES = ROOT / "dags_examples" / "exercises"

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def nodes(plane_of_nodes: ControlPlane) -> Iterator[OwnNodes]:
    # A container that fails is started again after 10 s, as anywhere.
    with own_nodes(plane_of_nodes, {"cpu": "8"}, {"cpu": "8"}, code=CODE, real_times=True) as nodes:
        yield nodes


@pytest.fixture
def ab(plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path) -> Terminal:
    nodes.serve(namespace)
    return Terminal.on(plane.kubeconfig, namespace, tmp_path)


def conditions(plane: ControlPlane, namespace: str, run: str) -> list[Object]:
    job = plane.api.get("kubeflow.org/v1", "PyTorchJob", run, namespace)
    assert job is not None
    return list(job.get("status", {}).get("conditions", []))


def test_one_master_and_four_workers_march_from_created_to_succeeded(
    ab: Terminal, plane: ControlPlane, namespace: str, nodes: OwnNodes
) -> None:
    pytest.importorskip("torch")
    process = ab.start("run", str(EXERCISES / "1-conditions.yaml"), "--json")
    run = ab.run_of()
    march: list[tuple[str, ...]] = []

    def marched() -> bool:
        found = tuple(c["type"] for c in conditions(plane, namespace, run) if c["status"] == "True")
        if found and found not in march:
            march.append(found)
            if "Running" in found:
                told = ab.seen(run)
                assert [c["type"] for c in told["conditions"] if c["status"] == "True"][:2] == [*found][:2]
        return process.poll() is not None

    until("the end", marched, LONG)
    out, err = process.communicate()
    assert process.returncode == 0, err
    whole = [("Created",), ("Created", "Running"), ("Created", "Succeeded")]
    assert march in (whole, whole[1:]), "the first step is a short one"
    body = json.loads(out)
    assert [c["type"] for c in body["conditions"]] == ["Created", "Running", "Succeeded"]
    times = [c["lastTransitionTime"] for c in body["conditions"]]
    assert times[0] <= times[1] <= times[2]
    assert [m["group"] for m in body["members"]] == ["master", *["worker"] * 4]
    assert [m["rank"] for m in body["members"]] == [0, 1, 2, 3, 4]
    assert all((m["exit_code"], m["restarts"]) in ((0, 0), (None, 0)) for m in body["members"])
    assert body["progress"]["step"] == body["progress"]["total"] == 100 and body["metrics"]["members"] == 5
    assert "rank 0 of 5 is master-0" in ab("logs", run, "master-0").out
    used = {p["spec"].get("nodeName") for p in plane.api.list("v1", "Pod", namespace)}
    assert used <= set(nodes.names)


def test_a_command_that_exits_1_is_retried_and_every_try_can_be_read_afterwards(
    ab: Terminal, plane: ControlPlane, namespace: str
) -> None:
    said = ab("run", str(EXERCISES / "2-retries.yaml"), "--json", code=1)
    body = said.json
    assert body.get("state") == "failed", said
    run = body["run"]
    failed = next(c for c in body["conditions"] if c["type"] == "Failed")
    assert failed["status"] == "True" and "backoff limit" in failed["message"]
    assert {d["code"] for d in body["diagnoses"]} >= {"backoff_limit_exceeded"}
    # The operator ends the job as the third restart begins, and others may begin beside it: most workers find
    # their master gone, and wait for it, but some meet it between two of its tries.
    failing = [m for m in body["members"] if m["restarts"]]
    restarts = sum(m["restarts"] for m in failing)
    assert body["restarts"] == restarts and 2 <= restarts <= 2 + len(failing), body["members"]
    assert "this cannot work" in said.err
    # The operator writes its events a little later than the status.
    until(
        "the event of the failure",
        lambda: any(e["reason"] == "PyTorchJobFailed" for e in ab("events", run, "--json").json["events"]),
    )
    # Another process, when no pod is left: every try is there, and none is made up.
    until("its pods to be gone", lambda: not plane.api.list("v1", "Pod", namespace), 60)
    for one in failing:
        member, last = f"{one['group']}-{one['index']}", one["restarts"]
        for restart in range(last + 1):
            lines = ab("logs", run, member, "--restart", str(restart), "--json").out.splitlines()
            found = [json.loads(line) for line in lines]
            assert {line["restart"] for line in found} == {restart}
            # The operator ends the last one as it begins.
            said = ["this cannot work" in line["text"] for line in found if line["gap"] is None]
            assert said == [True] or (restart == last and said == []), json.dumps(found)
        assert ab("logs", run, member, "--restart", str(last + 1)).out == ""
    # It goes with the record, or with the run.
    record = plane.api.get("v1", "ConfigMap", labels.record_name(run), namespace)
    kept = plane.api.get("v1", "ConfigMap", labels.logs_name(run), namespace)
    assert record is not None and kept is not None
    assert [o["uid"] for o in kept["metadata"]["ownerReferences"]] == [record["metadata"]["uid"]]
    ab("delete", run)
    assert plane.api.get("v1", "ConfigMap", labels.logs_name(run), namespace) is None


@pytest.mark.needs("s3")
def test_an_elastic_gang_loses_a_worker_and_goes_on_from_its_checkpoint(
    ab: Terminal, plane: ControlPlane, namespace: str
) -> None:
    torch = pytest.importorskip("torch")
    s3.client(plane).create_bucket(Bucket=namespace)
    plane.api.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "store", "namespace": namespace},
            "stringData": s3.variables(plane, "host.internal"),
        }
    )
    ab.environ |= {
        **s3.variables(plane),
        "ALLABOARD_STORE": f"s3://{namespace}/team",
        "ALLABOARD_SECRETS": "store",
    }
    process = ab.start("run", str(EXERCISES / "3-elastic.yaml"), "--json")
    run = ab.run_of()

    def saved() -> int:
        said = ab("checkpoints", "list", run, "--json", code=None)
        found = said.json["checkpoints"] if said.code == 0 else []
        return max((c["step"] for c in found), default=0)

    until("two checkpoints", lambda: saved() >= 20 or process.poll() is not None, LONG)
    pod = plane.api.get("v1", "Pod", f"{run}-worker-2", namespace)
    assert pod is not None
    plane.api.delete("v1", "Pod", f"{run}-worker-2", namespace)

    def replaced() -> bool:
        now = plane.api.get("v1", "Pod", pod["metadata"]["name"], namespace)
        return (
            now is not None
            and now["metadata"]["uid"] != pod["metadata"]["uid"]
            and now["status"]["phase"] == "Running"
        )

    until("its replacement to run", replaced, LONG)
    until("the end", lambda: process.poll() is not None, LONG * 2)
    out, err = process.communicate()
    print(err)
    print(ab("events", run).out)
    print(ab("logs", run, "--tail", "60").out)
    assert process.returncode == 0, err
    body = json.loads(out)
    assert body["state"] == "succeeded" and body["progress"]["step"] == 200
    assert body["metrics"]["members"] == 4, "the replacement joined"
    assert body["checkpoints"]["latest"].startswith(f"s3://{namespace}/team/exercises/elastic/{run}/step-")
    lines = [json.loads(line)["text"] for line in ab("logs", run, "worker-0", "--json").out.splitlines()]
    resumed, lost = done_again(lines)
    assert resumed and min(resumed) >= 20, "it went on from its newest checkpoint"
    # None of them when the worker went right after a checkpoint.
    assert body["progress"]["lost_steps"] == lost < 20, "those since the newest checkpoint"
    assert body["metrics"]["final_loss"] == pytest.approx(undisturbed(torch), rel=1e-9)


def done_again(lines: list[str]) -> tuple[list[int], int]:
    """Which steps rank 0 went on from, by what it wrote, and how many steps it did once more."""
    step, lost, resumed = 0, 0, []
    for report in filter(None, map(decode, lines)):
        if report.kind == "resumed":
            resumed.append(report.fields["step"])
            lost += step - resumed[-1]
        step = report.fields.get("step", step)
    return resumed, lost


def undisturbed(torch: Any) -> float:
    """The final loss of the third exercise, by one process that nobody disturbs."""
    sys.path.insert(0, str(EXERCISES))
    try:
        import train
    finally:
        sys.path.remove(str(EXERCISES))
    parts = [train.part(n) for n in range(train.PARTS)]
    weights = torch.zeros(train.FEATURES, dtype=torch.float64)
    for _ in range(200):
        total = torch.zeros(train.FEATURES + 1, dtype=torch.float64)
        for x, y in parts:
            error = x @ weights - y
            total += torch.cat([x.T @ error, (error @ error).reshape(1)])
        total /= train.PARTS * train.POINTS
        weights.sub_(train.RATE * total[: train.FEATURES])
    return float(total[train.FEATURES])
