"""Runs on a real cluster by the command line, as people use it: clients that die, roles that may do little.
Its members are real processes on nodes of these tests' own.
"""

from __future__ import annotations

import json
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.backends.kubernetes.discovery.rbac import objects
from allaboard.render import labels
from tests.cluster.api import Object, until
from tests.cluster.kubelet.handle import NodeSpec, ProcessKubelet, nodes_on
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, LONG, Terminal

OWN = "allaboard.test/backend"
SLEEPS = ["python", "-u", "-c", "import time; print('up'); time.sleep(600)"]

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(900),
]


class Shell(Terminal):
    """A terminal whose jobs bring their members to these tests' own nodes."""

    pod: dict[str, Any]

    def job(self, **fields: Any) -> str:
        """A job file."""
        file = self.folder / f"job-{secrets.token_hex(3)}.yaml"
        file.write_text(yaml.safe_dump({"name": "digits", "workers": 2, "pod": self.pod, **fields}))
        return str(file)


@pytest.fixture(scope="module")
def node(plane_of_nodes: ControlPlane) -> Iterator[tuple[str, ProcessKubelet]]:
    mark = f"backend-{secrets.token_hex(3)}"
    spec = NodeSpec(mark, {"cpu": "16", "memory": "32Gi"}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))
    with nodes_on(plane_of_nodes, [spec], code=CODE) as kubelet:
        yield mark, kubelet


@pytest.fixture
def ab(
    plane: ControlPlane, namespace: str, node: tuple[str, ProcessKubelet], tmp_path: Path
) -> Iterator[Shell]:
    shell = Shell.on(plane.kubeconfig, namespace, tmp_path)
    shell.pod = {
        "spec": {
            "nodeSelector": {OWN: node[0]},
            "tolerations": [{"key": OWN, "operator": "Exists"}],
            "terminationGracePeriodSeconds": 2,
        }
    }
    yield shell


def test_a_client_that_was_killed_is_replaced_by_the_same_command(ab: Shell) -> None:
    job = ab.job(command=["sh", "-c", "sleep 25"])
    first = ab.start("run", job, "--key", "nightly")
    run = ab.run_of()
    ab.until_it_runs(run)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    again = ab("run", job, "--key", "nightly")
    assert "runs already; following it" in again.out and "succeeded" in again.out
    assert ab.seen(run)["attempt"] == 1
    changed = ab.job(command=SLEEPS)
    ab("run", changed, "--key", "other", "--detach")
    said = ab("run", ab.job(command=SLEEPS, workers=3), "--key", "other", code=2)
    assert "workers: 2 -> 3" in said.err


def pod_of(plane: ControlPlane, namespace: str, member: str) -> Object | None:
    pods = plane.api.list("v1", "Pod", namespace)
    return next((pod for pod in pods if member in pod["metadata"]["name"]), None)


def test_a_member_whose_node_runs_out_of_memory_uses_up_no_attempt(
    ab: Shell, plane: ControlPlane, namespace: str, node: tuple[str, ProcessKubelet]
) -> None:
    """The operator fails the job, and the same command starts it again."""
    script = 'if [ "$ALLABOARD_ATTEMPT" = 1 ]; then sleep 600; fi; echo second'
    job = ab.job(command=["sh", "-c", script], workers=2, policy={"restart": "never", "attempts": 1})
    client = ab.start("run", job, "--key", "k")
    run = ab.run_of()
    ab.until_it_runs(run)
    pod = pod_of(plane, namespace, "worker-0")
    assert pod is not None
    node[1].evict(namespace, pod["metadata"]["name"], "The node was low on resource: memory.")
    out, err = client.communicate(timeout=120)
    assert client.returncode == 0, out + err
    assert "attempt 2 follows: " in out + err and "does not count as an attempt" in out + err
    assert ab.seen(run)["attempt"] == 2


def test_a_drained_member_is_made_anew_within_the_attempt_and_the_backoff_limit(
    ab: Shell, plane: ControlPlane, namespace: str
) -> None:
    """The operator makes it, and counts restarts of containers alone."""
    policy = {"restart": "on_failure", "backoff_limit": 1, "attempts": 1}
    ab("run", ab.job(command=SLEEPS, policy=policy), "--key", "k", "--detach")
    run = ab.run_of()
    for _ in range(2):
        ab.until_it_runs(run)
        pod = pod_of(plane, namespace, "worker-0")
        assert pod is not None
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        plane.api.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)

        def is_anew(uid: str = uid) -> bool:
            now = pod_of(plane, namespace, "worker-0")
            return now is not None and now["metadata"]["uid"] != uid and now["status"]["phase"] == "Running"

        until("another one runs in its place", is_anew)
    assert ab.state(run) == "running" and ab.seen(run)["attempt"] == 1
    ab("stop", run)


def living(plane: ControlPlane, namespace: str) -> list[str]:
    """Pods that hold a place on a node. Their objects live a moment longer."""
    every = plane.api.list("v1", "Pod", namespace)
    over = ("Succeeded", "Failed")
    return [pod["metadata"]["name"] for pod in every if pod["status"]["phase"] not in over]


def test_suspend_waits_for_members_that_never_began(
    ab: Shell, plane: ControlPlane, namespace: str, node: tuple[str, ProcessKubelet]
) -> None:
    node[1].slow_pull("harness/slow", 1000)
    ab("run", ab.job(command=SLEEPS, image="harness/slow"), "--key", "k", "--detach")
    run = ab.run_of()
    until("both to be there", lambda: len(living(plane, namespace)) == 2)
    said = ab("suspend", run, "--json")
    assert said.json["state"] == "suspended" and living(plane, namespace) == []
    node[1].mend_pulls()
    assert {m["phase"] for m in said.json["members"]} == {"deleted"}
    assert "stopped" in ab("stop", run).out


def test_stop_suspend_resume_delete_and_what_they_leave(
    ab: Shell, plane: ControlPlane, namespace: str
) -> None:
    said = ab("run", ab.job(command=SLEEPS, policy={"deadline": "1h"}), "--key", "k", "--detach")
    assert "no client follows it: policy.deadline: 1h may pass unnoticed" in said.out
    run = ab.run_of()
    ab.until_it_runs(run)

    assert f"{run} is suspended" in ab("suspend", run).out and living(plane, namespace) == []
    assert ab.state(run) == "suspended"
    assert f"{run} is on its way again" in ab("resume", run).out
    ab.until_it_runs(run)
    assert "up" in ab("logs", run, "master-0").out
    said = ab("stop", run, "--reason", "the GPUs are needed")
    assert "the GPUs are needed" in said.out and living(plane, namespace) == [], (
        "it waits until they are free"
    )
    body = ab.seen(run)
    assert body["state"] == "stopped" and plane.api.list("kubeflow.org/v1", "PyTorchJob", namespace) == []
    told = [e["message"] for e in plane.api.list("v1", "Event", namespace) if e["reason"] == "Stopped"]
    assert len(told) == 1 and told[0].endswith("the GPUs are needed")
    ab("run", ab.job(command=SLEEPS), "--key", "k", "--detach")
    ab.until_it_runs(run)
    assert ab.seen(run)["attempt"] == 2
    assert "stopped and deleted" in ab("delete", run).out and living(plane, namespace) == []
    names = [c["metadata"]["name"] for c in plane.api.list("v1", "ConfigMap", namespace)]
    assert [n for n in names if n.startswith(("allaboard-", "digits"))] == [labels.record_name(run)]


def test_the_first_ctrl_c_stops_the_run_and_waits(ab: Shell) -> None:
    process = ab.start("run", ab.job(command=SLEEPS), "--key", "k")
    run = ab.run_of()
    ab.until_it_runs(run)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == 3, err
    body = ab.seen(run)
    assert body["state"] == "stopped" and "Ctrl-C" in out + err


def test_the_logs_of_a_run_are_followed_to_its_end(ab: Shell) -> None:
    # The master decides when the job has succeeded, and the worker begins later.
    script = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.5; done; [ $RANK != 0 ] || sleep 15"
    ab("run", ab.job(command=["sh", "-c", script]), "--key", "k", "--detach")
    run = ab.run_of()
    out = ab("logs", run, "-f").out
    for member in ("master-0", "worker-0"):
        lines = [line for line in out.splitlines() if line.startswith(f"[{member}]") and " line " in line]
        assert [line.split()[-1] for line in lines] == list("123456"), out
    assert ab.state(run) == "succeeded"


def test_a_job_that_somebody_deletes_ends_its_follower(
    ab: Shell, plane: ControlPlane, namespace: str
) -> None:
    process = ab.start("run", ab.job(command=SLEEPS), "--key", "k", "--json")
    run = ab.run_of()
    ab.until_it_runs(run)
    plane.api.delete("kubeflow.org/v1", "PyTorchJob", run, namespace)
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == 3, err
    assert json.loads(out)["state"] == "stopped"
    assert "somebody deleted the job object" in err


def test_what_a_dead_client_left_is_found_and_stopped(ab: Shell, plane: ControlPlane, namespace: str) -> None:
    client = ab.start("run", ab.job(command=SLEEPS), "--key", "k")
    run = ab.run_of()
    ab.until_it_runs(run)
    assert ab("list", "--orphans", "--json").json == {"orphans": []}
    client.send_signal(signal.SIGKILL)
    client.communicate()
    (held,) = plane.api.list("coordination.k8s.io/v1", "Lease", namespace)
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **held}
    for ago, gone in ((90, False), (900, True)):
        # Time cannot be made to pass on a real cluster.
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() - ago))
        plane.api.patch(lease, {"spec": {"renewTime": at}})
        body = plane.api.get("v1", "ConfigMap", labels.record_name(run), namespace)
        assert body is not None
        change = {"metadata": {"annotations": {labels.PREFIX + "followed": f"{time.time() - ago:.0f}"}}}
        plane.api.patch(body, change)
        (orphan,) = ab("list", "--orphans", "--json").json["orphans"]
        assert (orphan["kind"], orphan["run"]) == ("run", run) and "no longer follows it" in orphan["why"]
        (tidied,) = ab("stop", "--orphans", "--json").json["orphans"]
        assert tidied["done"] is gone, tidied
    until("its end", lambda: ab.state(run) == "stopped", 60)


@pytest.mark.parametrize("role", ["submitter", "viewer"])
def test_a_role_may_do_what_it_is_for_and_no_more(
    ab: Shell, plane: ControlPlane, namespace: str, role: str
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
    run = ab.run_of()
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
