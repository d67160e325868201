"""Stacks of real gangs in real pods, asked for through the API server: who holds up whom, who may ask."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from allaboard.backends.kubernetes.discovery import rbac
from tests.cluster.api import until
from tests.cluster.cluster import service_account
from tests.cluster.own_nodes import OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, LONG, Terminal

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(900),
]
HANG = """\
import time

import torch
import torch.distributed as dist
def load():
    time.sleep(3600)
dist.init_process_group("gloo")
for step in range(1000):
    if step == 3:
        print("step", step, flush=True)
        if dist.get_rank() == 2:
            load()
    dist.all_reduce(torch.ones(1))
"""
"""Rank 2 sleeps at line 6, the others wait at the last one, the 13th."""


@pytest.fixture(scope="module")
def nodes(plane_of_nodes: ControlPlane) -> Iterator[OwnNodes]:
    with own_nodes(plane_of_nodes, {"cpu": "8"}, code=CODE) as nodes:
        yield nodes


@pytest.fixture
def ab(plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path) -> Terminal:
    nodes.serve(namespace)
    return Terminal.on(plane.kubeconfig, namespace, tmp_path)


def test_the_doctor_says_which_rank_never_entered_and_where_it_sleeps(
    ab: Terminal, plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    run = _until_all_write(ab, tmp_path, "step 3", "hang", HANG)

    def found() -> dict[str, object] | None:
        said = ab("doctor", run, "--json").json
        first: dict[str, object] = said["diagnoses"][0]
        return first if first["code"] == "rank_stalled" else None

    first = until("it to be silent for long enough", found, 120)
    print(ab("doctor", run).out)
    summary = str(first["summary"])
    where = "it waits at hang.py:6 `load`; ranks 0, 1 wait for it at hang.py:13"
    assert re.match(rf"rank 2 has not entered all_reduce number 4: {where}; no member has written", summary)
    assert first["blame"] == "rank 2"
    ab("snapshot", run, "-o", "case.json")
    snapshot = json.loads((tmp_path / "case.json").read_text())
    assert {look["rank"] for look in snapshot["stacks"]} == {0, 1, 2} and snapshot["silent"] >= 30
    again = ab("doctor", "--snapshot", "case.json", "--json").json["diagnoses"][0]
    assert again["code"] == "rank_stalled" and again["blame"] == "rank 2"

    # A submitter needs a right besides.
    submitter = plane.kubeconfig_for_role(namespace, "submitter")
    without = Terminal.on(submitter, namespace, tmp_path)
    said = without("doctor", run, "--json").json
    assert f"allaboard cluster --rbac stacks -n {namespace} | kubectl apply -f -" in said["no_stacks"]
    account = service_account(namespace, "allaboard-submitter")
    plane.grant(namespace, account, [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]}])
    until("the half of the right to be known", lambda: _may_exec(plane, namespace, "get"))
    half = without("doctor", run, "--json").json
    plane.api.apply([*yaml.safe_load_all(rbac.manifest("stacks", namespace))])
    until("the right to be known", lambda: _may_exec(plane, namespace, "create"))
    assert without("doctor", run, "--json").json["diagnoses"][0]["blame"] == "rank 2"
    assert "--rbac stacks" in half.get("no_stacks", ""), "a server that asks for get alone"


def test_where_exec_is_not_allowed_members_answer_in_their_logs(
    plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path
) -> None:
    """By a submitter alone, from the start to the sentence in `status`."""
    nodes.serve(namespace)
    submitter = Terminal.on(plane.kubeconfig_for_role(namespace, "submitter"), namespace, tmp_path)
    run = _until_all_write(submitter, tmp_path, "step 3", "hang", HANG, hang={"after": 40, "ask": "file"})
    assert not _may_exec(plane, namespace, "create")

    def found() -> dict[str, object] | None:
        first: dict[str, object] = submitter("doctor", run, "--json").json["diagnoses"][0]
        return first if first["code"] == "rank_stalled" else None

    first = until("it to be silent for long enough", found, 120)
    where = "it waits at hang.py:6 `load`; ranks 0, 1 wait for it at hang.py:13"
    assert str(first["summary"]).startswith(f"rank 2 has not entered all_reduce number 4: {where}")
    with submitter.start("follow", run) as follower:
        try:
            assert follower.stdout is not None
            said = next(line for line in follower.stdout if "rank 2 has not entered" in line)
        finally:
            follower.kill()
    assert where in said


SLOW = """\
import time

import torch
import torch.distributed as dist
def work():
    time.sleep(0.3 if dist.get_rank() == 1 else 0.1)
dist.init_process_group("gloo")
for step in range(100000):
    work()
    dist.all_reduce(torch.ones(1))
    if step % 20 == 0:
        print("step", step, flush=True)
"""


def test_the_doctor_names_a_slow_rank_by_many_looks(
    ab: Terminal, plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    run = _until_all_write(ab, tmp_path, "step 20\n", "slow", SLOW)
    first = ab("doctor", run, "--json").json["diagnoses"][0]
    print(ab("doctor", run).out)
    assert (first["code"], first["blame"]) == ("slow_rank", "rank 1"), first
    assert "it waits at slow.py:6 `work`" in json.dumps(first) and "its node is" in json.dumps(first)
    ab("stop", run)


def _until_all_write(ab: Terminal, folder: Path, line: str, name: str, script: str, **policy: object) -> str:
    """The run of three ranks of ``script``, each of which has written ``line``."""
    pytest.importorskip("torch")
    (folder / f"{name}.py").write_text(script)
    job = {
        "name": name,
        "command": ["python", f"{name}.py"],
        "code": [f"{name}.py"],
        "groups": {"master": 1, "worker": 2},
        "policy": policy,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    ab("run", "job.yaml", "--detach")
    run = ab.run_of()
    until(f"all ranks to write {line!r}", lambda: ab("logs", run, code=None).out.count(line) == 3, LONG)
    return run


def _may_exec(plane: ControlPlane, namespace: str, verb: str) -> bool:
    asked = {"namespace": namespace, "resource": "pods", "subresource": "exec", "verb": verb}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{namespace}:allaboard-submitter",
            "resourceAttributes": asked,
        },
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(plane.api.request("POST", path, review)["status"]["allowed"])
