"""Runs on a real cluster by the command line, as people use it: the three exercises, clients that die,
roles that may do little. Its members are real processes on nodes of these tests' own.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard import marks
from allaboard.backends.kubernetes.rbac import objects
from tests.cluster.api import Object, until
from tests.cluster.cluster import Cluster
from tests.cluster.components import s3
from tests.cluster.kubelet.handle import NodeSpec, ProcessKubelet, nodes_on
from tests.cluster.kubelet.obstacles import obstacle
from tests.cluster.plane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]
EXERCISES = ROOT / "dags_examples" / "exercises"
OWN = "allaboard.test/backend"
LONG = 300.0
"""Five processes import torch on machines that have two cores."""
SLEEPS = ["python", "-u", "-c", "import time; print('up'); time.sleep(600)"]

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(900),
]


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)


@dataclass
class Terminal:
    """``allaboard`` on a cluster, chosen by the environment as in a shell."""

    folder: Path
    environ: dict[str, str]
    pod: dict[str, Any]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "allaboard", *words],
            cwd=self.folder,
            env=self.environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __call__(self, *words: str, code: int | None = 0, **environ: str) -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "allaboard", *words],
            cwd=self.folder,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=LONG * 2,
            check=False,
        )
        said = Said(done.returncode, done.stdout, done.stderr)
        assert code in (None, said.code), f"{words}: {said.code}\n{said.out}\n{said.err}"
        return said

    def job(self, source: Path | None = None, **fields: Any) -> str:
        """A job file: an exercise with more fields, or one of its own; its members come to these nodes."""
        body = yaml.safe_load(source.read_text()) if source else {"name": "digits", "workers": 2}
        for shipped in body.get("code", ()):
            (self.folder / shipped).write_bytes((EXERCISES / shipped).read_bytes())
        file = self.folder / f"job-{secrets.token_hex(3)}.yaml"
        file.write_text(yaml.safe_dump({**body, "pod": self.pod, **fields}))
        return str(file)

    def seen(self, run: str) -> dict[str, Any]:
        body: dict[str, Any] = self("status", run, "--json").json
        return body

    def state(self, run: str) -> str:
        return str(self.seen(run)["state"])


@pytest.fixture(scope="module")
def node(_shared: Cluster) -> Iterator[tuple[str, ProcessKubelet]]:
    if not isinstance(_shared, ControlPlane):
        pytest.skip("needs nodes of ours; this is a cluster that KUBECONFIG names")
    if reason := obstacle():
        pytest.skip(reason)
    mark = f"backend-{secrets.token_hex(3)}"
    spec = NodeSpec(mark, {"cpu": "16", "memory": "32Gi"}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))
    with nodes_on(_shared, [spec], code={"core": ROOT / "core" / "src"}) as kubelet:
        yield mark, kubelet


@pytest.fixture
def ab(
    plane: ControlPlane, namespace: str, node: tuple[str, ProcessKubelet], tmp_path: Path
) -> Iterator[Terminal]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("ALLABOARD_", "AWS_"))}
    yield Terminal(
        tmp_path,
        {
            **own,
            "KUBECONFIG": str(plane.kubeconfig),
            "ALLABOARD_BACKEND": "kubernetes",
            "ALLABOARD_NAMESPACE": namespace,
            "ALLABOARD_IMAGE": "harness/train:1",
            "ALLABOARD_HOME": str(tmp_path / "home"),
            "PYTHONPATH": str(ROOT / "core" / "src"),
        },
        {
            "spec": {
                "nodeSelector": {OWN: node[0]},
                "tolerations": [{"key": OWN, "operator": "Exists"}],
                "terminationGracePeriodSeconds": 2,
            }
        },
    )


def running(ab: Terminal, run: str) -> None:
    until(f"{run} to run", lambda: ab.state(run) == "running", LONG)


def run_of(ab: Terminal) -> str:
    """The only run of the namespace, once there is one."""

    def runs() -> list[str]:
        return [r["run"] for r in ab("list", "--json").json["runs"]]

    until("a run", lambda: runs())
    (run,) = runs()
    return run


# The exercises.


def test_one_master_and_four_workers_march_from_created_to_succeeded(ab: Terminal) -> None:
    pytest.importorskip("torch")
    process = ab.start("run", ab.job(EXERCISES / "1-conditions.yaml"), "--json")
    run = run_of(ab)
    marches = set()

    def marched() -> bool:
        found = ab("status", run, "--json").json["conditions"]
        marches.add(tuple(c["type"] for c in found if c["status"] == "True"))
        return process.poll() is not None

    until("the end", marched, LONG)
    out, err = process.communicate()
    assert process.returncode == 0, err
    body = json.loads(out)
    assert [c["type"] for c in body["conditions"]] == ["Created", "Running", "Succeeded"]
    assert ("Created", "Running") in marches, "Running was seen while it ran"
    assert [m["group"] for m in body["members"]] == ["master", *["worker"] * 4]
    assert [m["rank"] for m in body["members"]] == [0, 1, 2, 3, 4]
    assert all((m["exit_code"], m["restarts"]) in ((0, 0), (None, 0)) for m in body["members"])
    assert body["progress"]["step"] == body["progress"]["total"] == 100 and body["metrics"]["members"] == 5
    logs = ab("logs", run, "master-0").out
    assert "rank 0 of 5 is master-0" in logs
    assert ab.seen(run)["progress"]["step"] == 100, "what rank 0 reported is kept"


def test_a_command_that_exits_1_is_retried_and_then_failed_by_the_operator(ab: Terminal) -> None:
    said = ab("run", ab.job(EXERCISES / "2-retries.yaml"), "--json", code=1)
    body = said.json
    assert body["state"] == "failed"
    failed = next(c for c in body["conditions"] if c["type"] == "Failed")
    assert failed["status"] == "True" and "backoff limit" in failed["message"]
    assert {d["code"] for d in body["diagnoses"]} >= {"backoff_limit_exceeded"}
    assert body["restarts"] >= 2, "the operator ends the job as the third restart begins"
    assert any(m["exit_code"] == 1 for m in body["members"])
    assert "this cannot work" in said.err, "the end of the log of what failed was read before it was removed"
    run = body["run"]
    events = ab("events", run, "--json").json["events"]
    assert any(e["reason"] == "PyTorchJobFailed" for e in events)


@pytest.mark.needs("s3")
def test_an_elastic_gang_loses_a_worker_and_goes_on_from_its_checkpoint(
    ab: Terminal, plane: ControlPlane, namespace: str
) -> None:
    torch = pytest.importorskip("torch")
    import boto3

    inside, outside = s3.variables(plane, "host.internal"), s3.variables(plane)
    client = boto3.client(
        "s3",
        endpoint_url=outside["AWS_ENDPOINT_URL"],
        region_name=outside["AWS_REGION"],
        aws_access_key_id=outside["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=outside["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket=namespace)
    plane.api.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s3", "namespace": namespace},
            "stringData": inside,
        }
    )
    ab.environ |= {**outside, "ALLABOARD_STORE": f"s3://{namespace}/team"}
    job = ab.job(EXERCISES / "3-elastic.yaml", secrets=[{"name": "s3", "env": True}])
    process = ab.start("run", job, "--json")
    run = run_of(ab)

    def saved() -> int:
        said = ab("checkpoints", "list", run, "--json", code=None)
        found = said.json["checkpoints"] if said.code == 0 else []
        return max((c["step"] for c in found), default=0)

    until("two checkpoints", lambda: saved() >= 20 or process.poll() is not None, LONG)
    path = f"/api/v1/namespaces/{namespace}/pods/{run}-worker-2"
    plane.api.request("DELETE", path, None)
    until("the end", lambda: process.poll() is not None, LONG * 2)
    out, err = process.communicate()
    assert process.returncode == 0, err
    body = json.loads(out)
    assert body["state"] == "succeeded" and body["progress"]["step"] == 200
    assert body["metrics"]["members"] == 4, "the replacement joined"
    assert body["checkpoints"]["latest"].startswith(f"s3://{namespace}/team/exercises/elastic/{run}/step-")
    assert 0 <= body["progress"]["lost_steps"] < 20, "at most those since the newest checkpoint"
    assert body["metrics"]["final_loss"] == pytest.approx(undisturbed(torch), rel=1e-9)


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


# People and their clients.


def test_a_client_that_was_killed_is_replaced_by_the_same_command(ab: Terminal) -> None:
    job = ab.job(command=["sh", "-c", "sleep 8"])
    first = ab.start("run", job, "--key", "nightly")
    run = run_of(ab)
    running(ab, run)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    again = ab("run", job, "--key", "nightly")
    assert "runs already; following it" in again.out and "succeeded" in again.out
    assert ab.seen(run)["attempt"] == 1
    changed = ab.job(command=SLEEPS)
    ab("run", changed, "--key", "other", "--detach")
    said = ab("run", ab.job(command=SLEEPS, workers=3), "--key", "other", code=2)
    assert "workers: 2 -> 3" in said.err


def test_stop_suspend_resume_delete_and_what_they_leave(
    ab: Terminal, plane: ControlPlane, namespace: str
) -> None:
    said = ab("run", ab.job(command=SLEEPS, policy={"deadline": "1h"}), "--key", "k", "--detach")
    assert "nobody follows it: policy.deadline: 1h may pass unnoticed" in said.out
    run = run_of(ab)
    running(ab, run)

    def pods() -> list[Object]:
        return plane.api.list("v1", "Pod", namespace)

    assert f"{run} is suspended" in ab("suspend", run).out and pods() == []
    assert ab.state(run) == "suspended"
    assert f"{run} is on its way again" in ab("resume", run).out
    running(ab, run)
    assert "up" in ab("logs", run, "master-0").out
    said = ab("stop", run, "--reason", "the GPUs are needed")
    assert "the GPUs are needed" in said.out and pods() == [], "it waits until they are free"
    body = ab.seen(run)
    assert body["state"] == "stopped" and plane.api.list("kubeflow.org/v1", "PyTorchJob", namespace) == []
    told = [e["message"] for e in plane.api.list("v1", "Event", namespace) if e["reason"] == "Stopped"]
    assert len(told) == 1 and told[0].endswith("the GPUs are needed")
    ab("run", ab.job(command=SLEEPS), "--key", "k", "--detach")
    running(ab, run)
    assert ab.seen(run)["attempt"] == 2
    assert "stopped and deleted" in ab("delete", run).out and pods() == []
    names = [c["metadata"]["name"] for c in plane.api.list("v1", "ConfigMap", namespace)]
    assert [n for n in names if n.startswith(("allaboard-", "digits"))] == [marks.record_name(run)]


def test_the_first_ctrl_c_stops_the_run_and_waits(ab: Terminal) -> None:
    process = ab.start("run", ab.job(command=SLEEPS), "--key", "k")
    run = run_of(ab)
    running(ab, run)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == 3, err
    body = ab.seen(run)
    assert body["state"] == "stopped" and "Ctrl-C" in out + err


def test_the_logs_of_a_run_are_followed_to_its_end(ab: Terminal) -> None:
    # The master decides when the job has succeeded, and the worker begins later.
    script = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.5; done; [ $RANK != 0 ] || sleep 15"
    ab("run", ab.job(command=["sh", "-c", script]), "--key", "k", "--detach")
    run = run_of(ab)
    out = ab("logs", run, "-f").out
    for member in ("master-0", "worker-0"):
        lines = [line for line in out.splitlines() if line.startswith(f"[{member}]") and " line " in line]
        assert [line.split()[-1] for line in lines] == list("123456"), out
    assert ab.state(run) == "succeeded"


def test_a_job_that_somebody_deletes_ends_its_follower(
    ab: Terminal, plane: ControlPlane, namespace: str
) -> None:
    process = ab.start("run", ab.job(command=SLEEPS), "--key", "k", "--json")
    run = run_of(ab)
    running(ab, run)
    plane.api.delete("kubeflow.org/v1", "PyTorchJob", run, namespace)
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == 3, err
    assert json.loads(out)["state"] == "stopped"
    assert "somebody deleted the job object" in err


def test_what_a_dead_client_left_is_found_and_stopped(
    ab: Terminal, plane: ControlPlane, namespace: str
) -> None:
    client = ab.start("run", ab.job(command=SLEEPS), "--key", "k")
    run = run_of(ab)
    running(ab, run)
    assert ab("list", "--orphans", "--json").json == {"orphans": []}
    client.send_signal(signal.SIGKILL)
    client.communicate()
    (held,) = plane.api.list("coordination.k8s.io/v1", "Lease", namespace)
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **held}
    for ago, gone in ((90, False), (900, True)):
        # Time cannot be made to pass on a real cluster.
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() - ago))
        plane.api.patch(lease, {"spec": {"renewTime": at}})
        body = plane.api.get("v1", "ConfigMap", marks.record_name(run), namespace)
        assert body is not None
        change = {"metadata": {"annotations": {marks.PREFIX + "followed": f"{time.time() - ago:.0f}"}}}
        plane.api.patch(body, change)
        (orphan,) = ab("list", "--orphans", "--json").json["orphans"]
        assert (orphan["kind"], orphan["run"]) == ("run", run) and "follows it no more" in orphan["why"]
        (tidied,) = ab("stop", "--orphans", "--json").json["orphans"]
        assert tidied["done"] is gone, tidied
    until("its end", lambda: ab.state(run) == "stopped", 60)


@pytest.mark.parametrize("role", ["submitter", "viewer"])
def test_a_role_may_do_what_it_is_for_and_no_more(
    ab: Terminal, plane: ControlPlane, namespace: str, role: str
) -> None:
    plane.api.apply([_in(namespace, o) for o in objects(role) if "preflight" not in o["metadata"]["name"]])
    config = plane.kubeconfig_for_account(namespace, f"allaboard-{role}")
    admin = dict(ab.environ)
    ab.environ["KUBECONFIG"] = str(config)
    job = ab.job(command=["sh", "-c", "echo up; sleep 4"])
    if role == "submitter":
        assert "succeeded" in ab("run", job, "--key", "k").out
        ab("run", ab.job(command=SLEEPS), "--key", "other", "--detach")
        other = next(r["run"] for r in ab("list", "--json").json["runs"] if r["state"] != "succeeded")
        assert "was stopped" in ab("stop", other).out
        ab("delete", other)
        assert ab("list", "--orphans", "--json").json == {"orphans": []}
        return
    ab("run", job, "--key", "k", code=2)
    ab.environ["KUBECONFIG"] = admin["KUBECONFIG"]
    ab("run", job, "--key", "k", "--detach")
    ab.environ["KUBECONFIG"] = str(config)
    run = run_of(ab)
    said = ab("follow", run)
    assert "succeeded" in said.out
    assert ab.state(run) == "succeeded" and "up" in ab("logs", run, "master-0").out
    stop = ab("stop", run, code=None)
    assert stop.code == 0 and "had ended already" in stop.out


def _in(namespace: str, thing: Object) -> Object:
    found = {**thing, "metadata": {**thing["metadata"], "namespace": namespace}}
    if "subjects" in found:
        found["subjects"] = [{**s, "namespace": namespace} for s in found["subjects"]]
    return found
