"""The control plane does what a cluster does, survives what is done to its parts, and leaves nothing
behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.api import Api, ApiError, Object, until
from tests.cluster.cluster import Cluster, service_account, user
from tests.cluster.components.kubernetes import KUBERNETES, RELEASE
from tests.cluster.jobs import a_configmap, a_node, a_pytorchjob
from tests.cluster.leftovers import leftovers
from tests.cluster.plane import ControlPlane, PlaneError

NewPlane = Callable[..., AbstractContextManager[ControlPlane]]


def conditions(job: Object | None) -> list[str]:
    return [each["type"] for each in (job or {}).get("status", {}).get("conditions", [])]


def processes_of(folder: Path) -> list[str]:
    """Command lines that name a folder: every component is told where its files are."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if str(folder) in line:
            found.append(line)
    return found


# --- any cluster


@pytest.mark.needs("training-operator")
def test_a_job_is_reconciled_by_the_real_operator(cluster: Cluster, namespace: str) -> None:
    cluster.api.create(a_pytorchjob(namespace, "train", workers=2))

    def created() -> bool:
        job = cluster.api.get("kubeflow.org/v1", "PyTorchJob", "train", namespace)
        return "Created" in conditions(job) and len(cluster.api.list("v1", "Pod", namespace)) == 3

    until("the condition Created and three pods", created)
    names = ["train-master-0", "train-worker-0", "train-worker-1"]
    assert [pod["metadata"]["name"] for pod in cluster.api.list("v1", "Pod", namespace)] == names
    services = until("a service for each", lambda: cluster.api.list("v1", "Service", namespace))
    assert [service["metadata"]["name"] for service in services] == names


@pytest.mark.needs("training-operator")
def test_the_webhook_of_the_operator_refuses_a_bad_job(cluster: Cluster, namespace: str) -> None:
    job = a_pytorchjob(namespace)
    job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
    with pytest.raises(ApiError, match=r"Master\].replicas: Forbidden: must be 1") as refusal:
        cluster.api.create(job)
    assert refusal.value.status == 403


@pytest.mark.needs("training-operator")
def test_unknown_fields_are_errors(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(ApiError, match=r'unknown field "spec\.nonsense"'):
        cluster.api.create(a_pytorchjob(namespace, nonsense=1))


def test_a_user_may_do_what_was_granted(cluster: Cluster, namespace: str) -> None:
    api = Api.from_kubeconfig(cluster.kubeconfig_for_account(namespace, "submitter"))
    with pytest.raises(ApiError, match="configmaps is forbidden") as refusal:
        api.list("v1", "ConfigMap", namespace)
    assert refusal.value.status == 403
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "create"]}]
    cluster.grant(namespace, service_account(namespace, "submitter"), rules)
    until("the grant to hold", lambda: _allowed(lambda: api.list("v1", "ConfigMap", namespace)))
    api.create(a_configmap(namespace, "made"))
    with pytest.raises(ApiError, match="cannot delete resource"):
        api.delete("v1", "ConfigMap", "made", namespace)
    api.close()


def test_what_a_module_leaves_behind_is_named(plane: ControlPlane, namespace: str) -> None:
    forgotten = f"forgotten-{namespace[-6:]}"
    plane.api.create(a_node(forgotten, {"cpu": "1"}))
    try:
        assert f"Node {forgotten} (Ready: True)" in leftovers(plane)
        assert f"Namespace {namespace}" in leftovers(plane)  # until its fixture ends
    finally:
        plane.api.delete("v1", "Node", forgotten)
    assert not any(forgotten in line for line in leftovers(plane))


def _allowed(call: Callable[[], Any]) -> bool:
    try:
        call()
    except ApiError as error:
        if error.status != 403:
            raise
        return False
    return True


# --- a plane of ours


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, new_plane_in: NewPlane) -> Iterator[ControlPlane]:
    """One without operators, for tests that stop its parts."""
    with new_plane_in(tmp_path_factory.mktemp("own")) as plane:
        plane.make_namespace("here")
        yield plane


def test_it_says_its_version_and_serves_the_workload_api(own: ControlPlane) -> None:
    assert own.api.request("GET", "/version")["gitVersion"] == KUBERNETES.version
    assert own.api.serves(RELEASE.workloads, "Workload")
    assert own.lacks("kube-scheduler") is None


def test_a_user_by_certificate(own: ControlPlane) -> None:
    api = Api.from_kubeconfig(own.kubeconfig_of("eve", ["people"]))
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    told = api.request("POST", path, asked)["status"]["userInfo"]
    assert (told["username"], told["groups"]) == ("eve", ["people", "system:authenticated"])
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
    own.grant("here", user("eve"), rules, "eve")
    until("the grant to hold", lambda: _allowed(lambda: api.list("v1", "ConfigMap", "here")))
    api.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["restarted", "crashed"])
@pytest.mark.parametrize("component", ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"])
def test_a_component_comes_back_with_all_its_objects(
    own: ControlPlane, component: str, number: signal.Signals
) -> None:
    name = f"{component}-{number.name.lower()}"
    own.api.create(a_configmap("here", name))
    before = own.pid(component)
    own.restart(component, number=number)
    assert own.pid(component) != before
    assert own.api.get("v1", "ConfigMap", name, "here") is not None
    # The controllers are back at work, too.
    own.make_namespace(f"after-{name}")


def test_a_watch_from_before_a_compaction_is_too_old(own: ControlPlane) -> None:
    old = own.api.create(a_configmap("here", "old"))["metadata"]["resourceVersion"]
    for each in range(3):
        own.api.patch(a_configmap("here", "old"), {"data": {"each": str(each)}})
    assert own.compact_etcd() > int(old)
    # Until then the API server answers from its own memory.
    own.restart("kube-apiserver")
    query = {"watch": "true", "resourceVersion": old, "timeoutSeconds": "5"}
    answer = own.api.request("GET", "/api/v1/namespaces/here/configmaps", query=query)
    assert "too old resource version" in str(answer) or '"code":410' in str(answer)


def test_stopped_it_is_gone_and_started_again_it_is_the_same(tmp_path: Path, new_plane_in: NewPlane) -> None:
    with new_plane_in(tmp_path) as plane:
        token, server = plane.token, plane.server
        plane.api.create(a_configmap("default", "kept"))
        assert len(processes_of(tmp_path)) >= 4
    assert processes_of(tmp_path) == []
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", plane.port("kube-apiserver")))
    with new_plane_in(tmp_path) as plane:
        assert (plane.token, plane.server) == (token, server)
        assert plane.api.get("v1", "ConfigMap", "kept", "default") is not None


OWNER = """
import sys, time
from pathlib import Path
from tests.cluster.plane import ControlPlane
with ControlPlane(Path(sys.argv[1])):
    print("up", flush=True)
    time.sleep(1000)
"""


def test_a_test_run_that_is_killed_leaves_nothing(
    tmp_path: Path, root: Path, new_plane_in: Callable[..., Any]
) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path / "plane")]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "up\n"
        # The owner names the folder, too.
        assert len(processes_of(tmp_path)) >= 5
        os.kill(owner.pid, signal.SIGKILL)
    until("all of its processes to be gone", lambda: not processes_of(tmp_path), 15)


def test_a_component_that_does_not_start_shows_the_end_of_its_log(
    tmp_path: Path, new_plane_in: Callable[..., Any]
) -> None:
    flags = {"kube-scheduler": ["--no-such-flag"]}
    with pytest.raises(PlaneError) as error, new_plane_in(tmp_path, flags=flags):
        pass
    assert "kube-scheduler ended with 1" in str(error.value)
    assert "unknown flag: --no-such-flag" in str(error.value)
    assert processes_of(tmp_path) == []
