"""The process kubelet does with pods of a real API server and scheduler what a kubelet does, and what a test
asks.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest
import requests
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.cluster.api import Api, ApiError, until
from tests.cluster.kubelet.cgroups import PREFIX
from tests.cluster.kubelet.handle import NodeSpec, ProcessKubelet, nodes_on
from tests.cluster.kubelet.obstacles import obstacle, sweep
from tests.cluster.plane import ControlPlane

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
OWN = "allaboard.test/kubelet"
"""Label and taint of the nodes of these tests: nobody else's pods get there."""


class Nodes:
    """The nodes of these tests and the pods on them."""

    kubelet: ProcessKubelet

    def __init__(self, plane: ControlPlane, mark: str) -> None:
        self.plane, self.mark = plane, mark

    def name(self, number: int) -> str:
        return f"{self.mark}-{number}"

    def spec(self, number: int, **resources: str) -> NodeSpec:
        mine = {OWN: self.mark}
        return NodeSpec(self.name(number), resources, mine, (f"{OWN}={self.mark}:NoSchedule",))


class Pods:
    """Pods of one test, in its namespace."""

    def __init__(self, nodes: Nodes, namespace: str) -> None:
        self._nodes, self.namespace = nodes, namespace
        self.api = nodes.plane.api

    def create(
        self,
        name: str,
        script: str = "sleep 1000",
        *,
        node: int | None = None,
        image: str = "alpine",
        container: Object | None = None,
        labels: dict[str, str] | None = None,
        **spec: Any,
    ) -> str:
        """A pod with one container, `main`, that runs a shell script; the real scheduler places it. Its
        name.
        """
        selector = {OWN: self._nodes.mark}
        if node is not None:
            selector["kubernetes.io/hostname"] = self._nodes.name(node)
        main = {"name": "main", "image": image, "command": ["sh", "-c", script], **(container or {})}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels or {}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "nodeSelector": selector,
                "tolerations": [{"key": OWN, "operator": "Exists"}],
                "containers": [main],
                **spec,
            },
        }
        self.api.create(body)
        return name

    def make(self, kind: str, name: str, version: str = "v1", **content: Any) -> None:
        meta = {"name": name, "namespace": self.namespace}
        self.api.create({"apiVersion": version, "kind": kind, "metadata": meta, **content})

    def uid(self, kind: str, name: str) -> str:
        found = self.api.get("v1", kind, name, self.namespace)
        assert found is not None
        return str(found["metadata"]["uid"])

    def remove(self, kind: str, name: str) -> None:
        self.api.delete("v1", kind, name, self.namespace)

    def get(self, name: str) -> Object | None:
        return self.api.get("v1", "Pod", name, self.namespace)

    def status(self, name: str) -> Object:
        found = self.get(name)
        assert found is not None, f"pod {name} is gone"
        return found.get("status") or {}

    def container(self, name: str, container: str = "main") -> Object:
        """The container's status; empty while there is none."""
        status = self.status(name)
        every = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
        return next((c for c in every if c["name"] == container), {"state": {}})

    def until(self, what: str, look: Callable[[], Any], timeout: float = 15) -> Any:
        return until(what, look, timeout, 0.02)

    def until_phase(self, name: str, *phases: str, timeout: float = 15) -> Object:
        self.until(f"{name} to be {phases}", lambda: self.status(name).get("phase") in phases, timeout)
        return self.status(name)

    def until_waiting(self, name: str, reason: str, container: str = "main") -> Object:
        def look() -> Object | None:
            waiting: Object = self.container(name, container)["state"].get("waiting") or {}
            return waiting if waiting.get("reason") == reason else None

        found: Object = self.until(f"{name} to wait for {reason}", look)
        return found

    def run(self, name: str, script: str, **options: Any) -> tuple[int, str]:
        """To its end: exit code and log."""
        self.create(name, script, **options)
        self.until_phase(name, "Succeeded", "Failed", timeout=options.pop("timeout", 20))
        return self.container(name)["state"]["terminated"]["exitCode"], self.log(name)

    def log(self, name: str, **query: Any) -> str:
        """Through the API server."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/log?{urlencode(query)}"
        return str(self.api.request("GET", path))

    def condition(self, name: str, kind: str) -> Object:
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def events(self, name: str) -> list[Object]:
        found = self.api.list("v1", "Event", self.namespace, fieldSelector=f"involvedObject.name={name}")
        return [e for e in found if e.get("source", {}).get("component") == "kubelet"]

    def until_events(self, name: str, *reasons: str) -> None:
        """They are written beside the status, perhaps after it."""
        wanted = set(reasons)
        self.until(f"events {reasons}", lambda: wanted <= {e["reason"] for e in self.events(name)})

    def watch_end(self, name: str) -> Object:
        """Delete it; the last state of its object, which only the watch's last event is sure to tell."""
        plane = self._nodes.plane
        query = {"watch": "1", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": 30}
        answer = requests.get(
            f"{plane.server}/api/v1/namespaces/{self.namespace}/pods",
            params=query,
            headers={"Authorization": f"Bearer {plane.token}"},
            verify=str(plane.pki / "ca.crt"),
            stream=True,
            timeout=40,
        )
        with answer:
            self.delete(name)
            for line in answer.iter_lines():
                event = json.loads(line)
                if event["type"] == "DELETED":
                    return dict(event["object"])
        raise TimeoutError(f"pod {name} was not deleted")

    def follow(self, name: str) -> Callable[[], str]:
        """Follow its log from now on; the text, once the log is over."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/log?follow=true"
        api = Api.from_kubeconfig(self._nodes.plane.kubeconfig)
        pool = ThreadPoolExecutor(1)
        found = pool.submit(lambda: str(api.request("GET", path)))
        pool.submit(api.close)
        pool.shutdown(wait=False)
        time.sleep(0.2)
        return lambda: found.result(20)

    def execute(self, name: str, command: list[str], given: bytes = b"") -> tuple[int, bytes, bytes]:
        """By WebSocket through the API server: exit code, stdout, stderr."""
        plane = self._nodes.plane
        query = [("command", word) for word in command] + [(s, "true") for s in ("stdin", "stdout", "stderr")]
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/exec?{urlencode(query)}"
        tls = ssl.create_default_context(cafile=str(plane.pki / "ca.crt"))
        told: dict[int, bytes] = {1: b"", 2: b"", 3: b""}
        with connect(
            plane.server.replace("https", "wss") + path,
            ssl=tls,
            subprotocols=[Subprotocol("v5.channel.k8s.io")],
            additional_headers={"Authorization": f"Bearer {plane.token}"},
            proxy=None,
            open_timeout=30,
        ) as channel:
            if given:
                channel.send(b"\0" + given)
            channel.send(b"\xff\0")  # that was all
            for message in channel:
                assert isinstance(message, bytes)
                told[message[0]] += message[1:]
        status = json.loads(told[3])
        code = 0 if status["status"] == "Success" else int(status["details"]["causes"][0]["message"])
        return code, told[1], told[2]

    def delete_all(self) -> None:
        for pod in self.api.list("v1", "Pod", self.namespace):
            self.delete(pod["metadata"]["name"], grace=0)

    def delete(self, name: str, grace: int | None = None) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        self.api.request("DELETE", path, None if grace is None else {"gracePeriodSeconds": grace})


# What stands on it shows in CI that it works.
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def nodes(plane_of_nodes: ControlPlane) -> Iterator[Nodes]:
    """Two nodes of these tests' own."""
    made = Nodes(plane_of_nodes, f"kubelet-{secrets.token_hex(3)}")
    specs = [made.spec(0, **{"nvidia.com/gpu": "2"}), made.spec(1)]
    with nodes_on(plane_of_nodes, specs, code={"core": ROOT / "core" / "src"}) as kubelet:
        made.kubelet = kubelet
        yield made


@pytest.fixture
def kubelet(nodes: Nodes) -> Iterator[ProcessKubelet]:
    yield nodes.kubelet
    nodes.kubelet.mend()
    nodes.kubelet.mend_pulls()


@pytest.fixture
def other(nodes: Nodes, namespace: str) -> Iterator[Nodes]:
    """Names for nodes of one test's own; whatever is left of them goes."""
    made = Nodes(nodes.plane, f"other-{secrets.token_hex(3)}")
    yield made
    Pods(made, namespace).delete_all()
    made.plane.api.delete("v1", "Node", made.name(0))


@pytest.fixture
def pods(nodes: Nodes, namespace: str) -> Iterator[Pods]:
    made = Pods(nodes, namespace)
    yield made
    made.delete_all()


# --- running -----------------------------------------------------------------------------------------------


def test_a_node_is_there_with_what_it_was_given(nodes: Nodes) -> None:
    node = nodes.plane.api.get("v1", "Node", nodes.name(0))
    assert node is not None
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert node["metadata"]["labels"][OWN] == nodes.mark
    ready = next(c for c in node["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "True"
    renewed = lambda: lease(nodes, 0)["spec"]["renewTime"]  # noqa: E731
    before = renewed()
    until("the lease to be renewed", lambda: renewed() != before, 5)


def lease(nodes: Nodes, number: int) -> Object:
    found = nodes.plane.api.get("coordination.k8s.io/v1", "Lease", nodes.name(number), "kube-node-lease")
    assert found is not None
    return found


def test_a_pod_runs_and_ends(pods: Pods) -> None:
    pods.create("works", "echo out; echo err >&2; exit 0")
    status = pods.until_phase("works", "Succeeded")
    ended = pods.container("works")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert status["podIP"] and status["hostIP"] and status["startTime"]
    assert pods.container("works")["containerID"].startswith("containerd://")
    assert sorted(pods.log("works").split()) == ["err", "out"]
    assert pods.condition("works", "Ready")["reason"] == "PodCompleted"
    pods.until_events("works", "Pulled", "Created", "Started")


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("exit 7", 7, "Error"),
        ("kill -9 $$; sleep 1; exit 1", 1, "Error"),
        ("kill -SEGV $$; exec sh -c 'sh -c \"kill -9 \\$\\$\"'", 137, "Error"),
    ],
    ids=["exits", "number 1 does not hear its own SIGKILL", "a child was killed"],
)
def test_exit_codes(pods: Pods, script: str, code: int, reason: str) -> None:
    got, _ = pods.run("ends", script)
    assert got == code
    assert pods.container("ends")["state"]["terminated"]["reason"] == reason
    assert pods.status("ends")["phase"] == "Failed"


def test_a_program_that_is_not_there(pods: Pods) -> None:
    pods.create("lost", container={"command": ["/bin/no-such-program"]})
    pods.until_phase("lost", "Failed")
    ended = pods.container("lost")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "no such file or directory" in ended["message"]


def test_a_pod_sees_nothing_of_this_machine_but_its_image(pods: Pods, tmp_path: Path) -> None:
    here = [str(ROOT), str(tmp_path), "/etc/shadow"]
    looked = (
        f"for path in {' '.join(here)}; do [ -e $path ] && echo $path; done; ls -A /root /home; ls -A / /opt"
    )
    code, log = pods.run("looks", looked, image="harness/python")
    found = set(log.split())
    assert code == 0
    assert not found & set(here)
    system = {"bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "var", "run", "tmp", "dev", "proc", "sys"}
    empty = {"root", "home", "opt", "srv", "mnt", "media"}
    image = {"python", "venv", "code"}
    assert {name for name in found if not name.endswith(":")} <= system | empty | image


def test_a_container_may_write_and_another_does_not_see_it(pods: Pods) -> None:
    pods.run("writes", "touch /usr/bin/mine /tmp/mine /etc/mine && ls /usr/bin/mine")
    code, _ = pods.run("looks", "ls /usr/bin/mine /tmp/mine /etc/mine")
    assert code == 2


def test_a_python_image_has_our_environment(pods: Pods) -> None:
    code, log = pods.run(
        "imports",
        "which python torchrun; python -c 'import allaboard, yaml; print(allaboard.__file__)'",
        image="harness/x",
    )
    assert code == 0, log
    assert log.split() == [
        "/opt/venv/bin/python",
        "/opt/venv/bin/torchrun",
        "/opt/code/core/allaboard/__init__.py",
    ]


def test_fifty_pods_at_once(pods: Pods) -> None:
    for number in range(50):
        pods.create(f"one-of-many-{number}", "hostname; sleep 1000", container={"resources": {}})
    names = [f"one-of-many-{number}" for number in range(50)]
    pods.until("all to run", lambda: all(pods.status(n).get("phase") == "Running" for n in names), 60)
    addresses = {pods.status(name)["podIP"] for name in names}
    assert len(addresses) == 50
    assert pods.log("one-of-many-7") == "one-of-many-7\n"


def test_init_containers_run_in_order_before_the_others(pods: Pods) -> None:
    def init(name: str, script: str) -> Object:
        mount = {"name": "shared", "mountPath": "/shared"}
        return {"name": name, "image": "alpine", "command": ["sh", "-c", script], "volumeMounts": [mount]}

    pods.create(
        "ordered",
        "cat /shared/lines",
        initContainers=[
            init("one", "echo one >> /shared/lines; sleep 0.3"),
            init("two", "echo two >> /shared/lines"),
        ],
        container={"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]},
        volumes=[{"name": "shared", "emptyDir": {}}],
    )
    pods.until_phase("ordered", "Succeeded")
    assert pods.log("ordered") == "one\ntwo\n"
    assert pods.condition("ordered", "Initialized")["status"] == "True"
    assert pods.container("ordered", "one")["ready"]


def test_an_init_container_that_fails_keeps_the_others_from_running(pods: Pods) -> None:
    bad = {"name": "bad", "image": "alpine", "command": ["sh", "-c", "exit 4"]}
    pods.create("never", initContainers=[bad])
    pods.until_phase("never", "Failed")
    assert pods.container("never")["state"]["waiting"]["reason"] == "PodInitializing"
    assert pods.container("never", "bad")["state"]["terminated"]["exitCode"] == 4


def test_a_sidecar_runs_beside_and_ends_after(pods: Pods) -> None:
    sidecar = {
        "name": "beside",
        "image": "alpine",
        "restartPolicy": "Always",
        "command": ["sh", "-c", "trap 'echo bye; exit 0' TERM; echo here; while :; do sleep 0.05; done"],
    }
    pods.create("paired", "sleep 0.5", initContainers=[sidecar])
    pods.until_phase("paired", "Succeeded")
    assert pods.log("paired", container="beside") == "here\nbye\n"


# --- environment and volumes -------------------------------------------------------------------------------


def test_the_environment_is_resolved(pods: Pods) -> None:
    pods.make("ConfigMap", "settings", data={"COLOUR": "blue", "shape": "round"})
    pods.make("Secret", "hidden", stringData={"KEY": "s3cret"})
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "SPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['rank']"}}},
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {
            "name": "MEMORY",
            "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
        },
        {"name": "SHAPE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "shape"}}},
        {"name": "NOTHING", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "no", "optional": True}}},
        {"name": "JOINED", "value": "$(NAME)-$(COLOUR)-$(UNKNOWN)-$$(NAME)"},
    ]
    names = ["NAME", "SPACE", "RANK", "ADDRESS", "NODE", "MEMORY", "COLOUR", "SHAPE", "SECRET_KEY", "JOINED"]
    code, log = pods.run(
        "told",
        "",
        labels={"rank": "3"},
        container={
            "command": [
                "sh",
                "-c",
                "for name in $(NAMES); do printenv $name; done; printenv NOTHING || echo unset",
            ],
            "env": [*env, {"name": "NAMES", "value": " ".join(names)}],
            "envFrom": [
                {"configMapRef": {"name": "settings"}},
                {"secretRef": {"name": "hidden"}, "prefix": "SECRET_"},
            ],
            "resources": {"limits": {"memory": "100Mi"}},
        },
    )
    status = pods.status("told")
    assert log.split("\n")[:-1] == [
        "told", pods.namespace, "3", status["podIP"], (pods.get("told") or {})["spec"]["nodeName"], "100",
        "blue", "round", "s3cret", "told-blue-$(UNKNOWN)-$(NAME)", "unset",
    ]  # fmt: skip
    assert code == 0


def test_a_missing_config_map_is_waited_for(pods: Pods) -> None:
    pods.create("patient", "echo $COLOUR", container={"envFrom": [{"configMapRef": {"name": "late"}}]})
    waiting = pods.until_waiting("patient", "CreateContainerConfigError")
    assert waiting["message"] == 'configmap "late" not found'
    pods.until_events("patient", "Failed")
    pods.make("ConfigMap", "late", data={"COLOUR": "green"})
    pods.until_phase("patient", "Succeeded")
    assert pods.log("patient") == "green\n"


def test_volumes(pods: Pods) -> None:
    pods.make("ConfigMap", "settings", data={"a": "A", "b": "B"})
    pods.make("Secret", "hidden", stringData={"key": "s3cret"})
    volumes = [
        {"name": "all", "configMap": {"name": "settings"}},
        {
            "name": "some",
            "configMap": {"name": "settings", "items": [{"key": "b", "path": "deep/bee", "mode": 0o755}]},
        },
        {"name": "secret", "secret": {"secretName": "hidden", "defaultMode": 0o400}},
        {"name": "absent", "secret": {"secretName": "none", "optional": True}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        {
            "name": "about",
            "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]},
        },
    ]
    mounts = [
        {"name": "all", "mountPath": "/v/all"},
        {"name": "all", "mountPath": "/etc/only-a", "subPath": "a"},
        {"name": "some", "mountPath": "/v/some"},
        {"name": "secret", "mountPath": "/v/secret"},
        {"name": "absent", "mountPath": "/v/absent"},
        {"name": "scratch", "mountPath": "/v/scratch"},
        {"name": "scratch", "mountPath": "/v/below", "subPath": "x/y"},
        {"name": "scratch", "mountPath": "/v/read", "readOnly": True},
        {"name": "memory", "mountPath": "/dev/shm"},
        {"name": "about", "mountPath": "/v/about"},
    ]
    script = """
        cat /v/all/a /etc/only-a; stat -c %a /v/some/deep/bee; cat /v/secret/key; stat -Lc %a /v/secret/key
        ls /v/absent | wc -l; echo hi > /v/below/file; cat /v/scratch/x/y/file
        touch /v/read/x 2>/dev/null || echo refused; touch /v/all/x 2>/dev/null || echo refused
        df -m --output=size,fstype /dev/shm | tail -1; cat /v/about/labels; :
        readlink /v/all/..data >/dev/null && echo linked
    """
    code, log = pods.run(
        "mounted",
        script.replace("; ", "; echo; "),
        labels={"rank": "3"},
        container={"volumeMounts": mounts},
        volumes=volumes,
    )
    assert log.split() == [
        "AA", "755", "s3cret", "400", "0", "hi", "refused", "refused", "8", "tmpfs", 'rank="3"', "linked"
    ]  # fmt: skip
    assert code == 0


def test_a_config_map_that_changes_is_seen_in_the_volume(pods: Pods, nodes: Nodes) -> None:
    pods.make("ConfigMap", "settings", data={"a": "old"})
    pods.create(
        "reads",
        "until grep -q new /v/a; do sleep 0.1; done; cat /v/a",
        container={"volumeMounts": [{"name": "all", "mountPath": "/v"}]},
        volumes=[{"name": "all", "configMap": {"name": "settings"}}],
    )
    pods.until_phase("reads", "Running")
    meta = {"name": "settings", "namespace": pods.namespace}
    nodes.plane.api.patch({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}, {"data": {"a": "new"}})
    pods.until_phase("reads", "Succeeded")


def test_a_volume_whose_source_is_missing(pods: Pods) -> None:
    pods.create("stuck", volumes=[{"name": "v", "configMap": {"name": "none"}}])
    event = pods.until(
        "the event", lambda: [e for e in pods.events("stuck") if e["reason"] == "FailedMount"]
    )[0]
    assert event["message"] == 'MountVolume.SetUp failed for volume "v" : configmap "none" not found'
    pods.until_waiting("stuck", "ContainerCreating")
    assert pods.condition("stuck", "PodReadyToStartContainers")["status"] == "False"
    pods.make("ConfigMap", "none", data={})
    pods.until_phase("stuck", "Running")


def test_no_path_of_the_host_by_a_volume(pods: Pods) -> None:
    pods.create("sneaks", volumes=[{"name": "v", "hostPath": {"path": "/"}}])
    event = pods.until(
        "the event", lambda: [e for e in pods.events("sneaks") if e["reason"] == "FailedMount"]
    )[0]
    assert "hostPath" in event["message"]


def test_more_than_an_empty_dir_may_hold(pods: Pods) -> None:
    pods.create(
        "fills",
        "head -c 3000000 /dev/zero > /v/file; sleep 1000",
        container={"volumeMounts": [{"name": "scratch", "mountPath": "/v"}]},
        volumes=[{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}],
    )
    status = pods.until_phase("fills", "Failed")
    assert status["reason"] == "Evicted"
    assert status["message"] == 'Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". '


def test_a_claim_is_a_folder_that_outlives_its_pods(pods: Pods) -> None:
    pods.make(
        "PersistentVolumeClaim",
        "kept",
        spec={"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    )
    options: Object = {
        "container": {"volumeMounts": [{"name": "kept", "mountPath": "/kept"}]},
        "volumes": [{"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}],
    }
    assert pods.run("writes", "echo saved > /kept/file", **options)[0] == 0
    pods.delete("writes", grace=0)
    assert pods.run("reads", "cat /kept/file", node=1, **options) == (0, "saved\n")
    pods.delete_all()
    volume = f"pvc-{pods.uid('PersistentVolumeClaim', 'kept')}"
    pods.remove("PersistentVolumeClaim", "kept")
    pods.until("its volume to go", lambda: pods.api.get("v1", "PersistentVolume", volume) is None)


def test_an_ephemeral_volume_is_made_for_its_pod_and_goes_with_it(pods: Pods) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    options: Object = {
        "container": {"volumeMounts": [{"name": "hot", "mountPath": "/hot"}]},
        "volumes": [{"name": "hot", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}],
    }
    assert pods.run("first", "echo saved > /hot/file; cat /hot/file", **options) == (0, "saved\n")
    assert pods.run("second", "ls /hot", **options) == (0, "")
    pods.delete_all()
    pods.until(
        "their claims to go", lambda: pods.api.list("v1", "PersistentVolumeClaim", pods.namespace) == []
    )


def test_a_bucket_that_no_driver_mounts(pods: Pods) -> None:
    volume = {"name": "v", "csi": {"driver": "s3.csi.aws.com", "volumeAttributes": {"bucketName": "b"}}}
    pods.create("waits", volumes=[volume])
    event = pods.until(
        "the event", lambda: [e for e in pods.events("waits") if e["reason"] == "FailedMount"]
    )[0]
    assert "s3.csi.aws.com not found in the list of registered CSI drivers" in event["message"]


def test_a_pod_can_ask_the_api_server_with_its_own_token(pods: Pods) -> None:
    script = """
        cd /var/run/secrets/kubernetes.io/serviceaccount
        cat namespace; echo
        curl -s -o /dev/null -w '%{http_code}' --cacert ca.crt -H "Authorization: Bearer $(cat token)" \\
            https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1/namespaces/default/pods
    """
    _, log = pods.run("asks", script)
    assert log.split() == [pods.namespace, "403"]  # known by name, and allowed nothing


# --- names -------------------------------------------------------------------------------------------------


def test_service_names_are_those_of_ready_pods(pods: Pods) -> None:
    pods.make(
        "Service", "web", spec={"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 80}]}
    )
    late = {"readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1}}
    pods.create("ready", labels={"app": "web"}, hostname="zero", subdomain="web")
    pods.create("late", "sleep 2; touch /tmp/ready; sleep 1000", labels={"app": "web"}, container=late)
    one = pods.until_phase("ready", "Running")["podIP"]
    names = [
        "web",
        f"web.{pods.namespace}",
        f"web.{pods.namespace}.svc",
        f"web.{pods.namespace}.svc.cluster.local",
    ]
    asked = "; ".join(f"getent ahostsv4 {name} | grep -c STREAM" for name in [*names, "zero.web"])
    looks = f"until nslookup web; do sleep 0.1; done; {asked}; getent hosts nowhere || echo unknown"
    code, log = pods.run("asks", looks)
    assert code == 0
    assert one in log
    assert "1\n1\n1\n1\n1\nunknown\n" in log
    pods.until("the other to be ready", lambda: pods.container("late").get("ready"))
    two = pods.status("late")["podIP"]
    both = "until [ $(getent ahostsv4 web | grep -c STREAM) = 2 ]; do sleep 0.1; done; getent ahostsv4 web"
    _, log = pods.run("asks-again", both)
    assert one in log and two in log


def test_pods_talk_by_name(pods: Pods) -> None:
    pods.make(
        "Service", "talk", spec={"clusterIP": "None", "selector": {"app": "talk"}, "ports": [{"port": 80}]}
    )
    serve = "cd /opt; exec python -m http.server 8000"
    pods.create("serves", serve, image="harness/x", labels={"app": "talk"}, node=0)
    pods.until_phase("serves", "Running")
    code, log = pods.run(
        "asks", "for n in 1 2 3 4 5 6 7 8 9; do curl -s talk:8000 && exit; sleep 0.3; done", node=1
    )
    assert code == 0
    assert "venv/" in log


# --- restarts ----------------------------------------------------------------------------------------------


def test_a_container_that_fails_again_and_again(pods: Pods) -> None:
    pods.create("crashes", "echo run $(cat /proc/uptime); exit 3", restartPolicy="OnFailure")
    pods.until_waiting("crashes", "CrashLoopBackOff")
    pods.until("two restarts", lambda: pods.container("crashes")["restartCount"] >= 2)
    container = pods.until(
        "a wait", lambda: ("waiting" in pods.container("crashes")["state"]) and pods.container("crashes")
    )
    assert container["lastState"]["terminated"]["exitCode"] == 3
    assert "restarting failed container=main" in container["state"]["waiting"]["message"]
    assert pods.status("crashes")["phase"] == "Running"
    pods.until_events("crashes", "BackOff")
    assert pods.log("crashes", previous="true").startswith("run ")


def test_one_that_fails_once_goes_on_where_it_is(pods: Pods) -> None:
    pods.create(
        "recovers",
        "[ -e /v/seen ] && exit 0; touch /v/seen; exit 1",
        restartPolicy="OnFailure",
        container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        volumes=[{"name": "v", "emptyDir": {}}],
    )
    pods.until_phase("recovers", "Succeeded")
    assert pods.container("recovers")["restartCount"] == 1
    assert pods.container("recovers")["lastState"]["terminated"]["exitCode"] == 1


def test_always_restarts_also_after_success(pods: Pods) -> None:
    pods.create("again", "exit 0", restartPolicy="Always")
    pods.until("two restarts", lambda: pods.container("again").get("restartCount", 0) >= 2)
    assert pods.status("again")["phase"] == "Running"


def test_termination_messages(pods: Pods) -> None:
    pods.run("says", "echo why > /dev/termination-log; exit 1")
    assert pods.container("says")["state"]["terminated"]["message"] == "why\n"
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError", "terminationMessagePath": "/tmp/words"}
    pods.run("logs", "echo first; echo last; exit 1", container=fallback)
    assert pods.container("logs")["state"]["terminated"]["message"] == "first\nlast\n"


def test_a_deadline(pods: Pods) -> None:
    pods.create("slow", activeDeadlineSeconds=1)
    status = pods.until_phase("slow", "Failed")
    assert status["reason"] == "DeadlineExceeded"


# --- deletion ----------------------------------------------------------------------------------------------


POLITE = "trap 'echo asked; sleep 0.3; exit 0' TERM; echo up; while :; do sleep 0.05; done"


def test_a_pod_is_asked_to_end_before_it_is_deleted(pods: Pods) -> None:
    pods.create("polite", POLITE, terminationGracePeriodSeconds=10)
    pods.until("its start", lambda: pods.status("polite").get("phase") == "Running" and pods.log("polite"))
    watched = pods.watch_end("polite")
    assert watched["status"]["phase"] == "Succeeded"
    assert watched["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    pods.until_events("polite", "Killing")


def test_one_that_does_not_listen_is_killed_after_its_grace(pods: Pods) -> None:
    # Number 1 of a PID namespace hears only the signals that it has asked for.
    pods.create("deaf", "exec sleep 1000", terminationGracePeriodSeconds=1)
    pods.until_phase("deaf", "Running")
    began = time.monotonic()
    watched = pods.watch_end("deaf")
    assert watched["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert time.monotonic() - began > 0.9


def test_deleted_by_force(pods: Pods, kubelet: ProcessKubelet) -> None:
    pods.create("forced", POLITE, terminationGracePeriodSeconds=100)
    pods.until_phase("forced", "Running")
    pids = kubelet.pids(pods.namespace, "forced")["main"]
    pods.delete("forced", grace=0)
    pods.until("its processes to be gone", lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_pod_that_never_ran_is_deleted_at_once(pods: Pods) -> None:
    pods.create("waits", image="no/such", terminationGracePeriodSeconds=100)
    pods.until_waiting("waits", "ImagePullBackOff")
    pods.delete("waits")
    pods.until("it to be gone", lambda: pods.get("waits") is None, 5)


def test_a_hook_runs_before_the_signal(pods: Pods) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook > /proc/1/fd/1"]}}}
    pods.create("hooked", POLITE, terminationGracePeriodSeconds=5, container={"lifecycle": hook})
    pods.until("its start", lambda: pods.status("hooked").get("phase") == "Running" and pods.log("hooked"))
    log = pods.follow("hooked")
    pods.delete("hooked")
    assert log() == "up\nhook\nasked\n"


# --- logs and exec -----------------------------------------------------------------------------------------


def test_logs_and_their_options(pods: Pods) -> None:
    pods.run(
        "counts", "for n in 1 2 3 4 5; do echo line $n; [ $n = 3 ] && sleep 2.1; done; printf unfinished"
    )
    whole = pods.log("counts")
    assert whole == "line 1\nline 2\nline 3\nline 4\nline 5\nunfinished"
    assert pods.log("counts", tailLines=2) == "line 5\nunfinished"
    assert pods.log("counts", limitBytes=10) == whole[:10]
    lines = [line.split(" ", 1) for line in pods.log("counts", timestamps="true").splitlines()]
    assert [text for _, text in lines] == whole.splitlines()
    stamps = [mark for mark, _ in lines]
    assert stamps == sorted(stamps) and all(
        len(mark) == len("2026-11-21T15:36:00.123456789Z") for mark in stamps
    )
    assert pods.log("counts", sinceTime=stamps[3][:19] + "Z").splitlines() == [
        "line 4",
        "line 5",
        "unfinished",
    ]


def test_a_long_line_comes_back_as_one(pods: Pods) -> None:
    pods.run("long", "head -c 100000 /dev/zero | tr '\\0' x; echo; echo end")
    assert pods.log("long") == "x" * 100000 + "\nend\n"


def test_following_a_log_until_the_container_ends(pods: Pods) -> None:
    pods.create("speaks", "for n in 1 2 3; do echo $n; sleep 0.3; done")
    pods.until_phase("speaks", "Running")
    assert pods.follow("speaks")() == "1\n2\n3\n"


def test_a_log_that_is_not_there_yet(pods: Pods) -> None:
    pods.create("waits", image="no/such")
    pods.until_waiting("waits", "ImagePullBackOff")
    with pytest.raises(
        ApiError, match=r"waiting to start: (trying and failing to pull image|image can't be pulled)"
    ):
        pods.log("waits")


def test_exec(pods: Pods) -> None:
    pods.create("open", "export HIDDEN=1; sleep 1000", container={"env": [{"name": "SEEN", "value": "yes"}]})
    pods.until_phase("open", "Running")
    assert pods.execute("open", ["sh", "-c", "echo $SEEN $HIDDEN; echo no >&2; cat; exit 3"], b"given") == (
        3,
        b"yes\ngiven",
        b"no\n",
    )
    assert pods.execute("open", ["hostname"]) == (0, b"open\n", b"")
    _, out, _ = pods.execute("open", ["cat", "/proc/1/comm"])
    assert out == b"sh\n"  # in the container's own PID namespace


# --- probes ------------------------------------------------------------------------------------------------


def test_a_container_is_ready_when_its_probe_says_so(pods: Pods) -> None:
    probe = {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1}
    pods.create("slow", "sleep 1.5; touch /tmp/ready; sleep 1000", container={"readinessProbe": probe})
    pods.until_phase("slow", "Running")
    assert not pods.container("slow")["ready"]
    assert pods.condition("slow", "Ready")["reason"] == "ContainersNotReady"
    pods.until("it to be ready", lambda: pods.container("slow")["ready"])
    pods.until_events("slow", "Unhealthy")


def test_a_container_that_is_not_alive_is_restarted(pods: Pods) -> None:
    probe = {"exec": {"command": ["test", "!", "-e", "/tmp/dead"]}, "periodSeconds": 1, "failureThreshold": 1}
    pods.create(
        "ill",
        "sleep 0.5; touch /tmp/dead; sleep 1000",
        restartPolicy="Always",
        container={"livenessProbe": probe},
    )
    pods.until("a restart", lambda: pods.container("ill").get("restartCount", 0) >= 1)
    pods.until_events("ill", "Unhealthy", "Killing")


@pytest.mark.parametrize(
    "handler",
    [{"tcpSocket": {"port": 8000}}, {"httpGet": {"port": "web", "path": "/"}}],
    ids=["tcp", "http"],
)
def test_network_probes(pods: Pods, handler: Object) -> None:
    probe = {**handler, "periodSeconds": 1, "failureThreshold": 20}
    pods.create(
        "serves",
        "sleep 0.5; exec python -m http.server 8000",
        image="harness/x",
        container={"startupProbe": probe, "ports": [{"containerPort": 8000, "name": "web"}]},
    )
    pods.until("it to have started", lambda: pods.container("serves").get("started"))


# --- faults ------------------------------------------------------------------------------------------------


def test_an_image_that_cannot_be_pulled(pods: Pods, kubelet: ProcessKubelet) -> None:
    kubelet.fail_pull("harness/broken:*", "pull access denied")
    pods.create("pulls", image="harness/broken:1")
    waiting = pods.until_waiting("pulls", "ErrImagePull")
    assert "pull access denied" in waiting["message"]
    pods.until_waiting("pulls", "ImagePullBackOff")
    pods.until_events("pulls", "Pulling", "Failed", "BackOff")
    kubelet.mend_pulls()
    pods.until_phase("pulls", "Running")


def test_a_slow_pull(pods: Pods, kubelet: ProcessKubelet) -> None:
    kubelet.slow_pull("harness/slow", 1.5)
    began = time.monotonic()
    pods.create("pulls", image="harness/slow")
    pods.until_phase("pulls", "Running")
    assert time.monotonic() - began > 1.4


def test_an_image_name_that_is_none(pods: Pods) -> None:
    pods.create("misnamed", image="Not A Name")
    pods.until_waiting("misnamed", "InvalidImageName")


def test_memory_beyond_the_limit(pods: Pods, kubelet: ProcessKubelet) -> None:
    if not kubelet.facts()["limits_memory"]:
        pytest.skip("control groups of memory cannot be made here")
    limit = {"resources": {"limits": {"memory": "64Mi"}}}
    hungry = "exec python -c 'x = bytearray(300 << 20)'"
    assert pods.run("hungry", hungry, image="harness/x", container=limit)[0] == 137
    assert pods.container("hungry")["state"]["terminated"]["reason"] == "OOMKilled"


def test_killed_for_memory_on_request(pods: Pods, kubelet: ProcessKubelet) -> None:
    pods.create("victim", "sleep 1000 & wait")
    pods.until_phase("victim", "Running")
    kubelet.kill_for_memory(pods.namespace, "victim")
    pods.until_phase("victim", "Failed")
    ended = pods.container("victim")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_eviction_by_the_node(pods: Pods, kubelet: ProcessKubelet) -> None:
    pods.create("unwanted")
    pods.until_phase("unwanted", "Running")
    kubelet.evict(pods.namespace, "unwanted")
    status = pods.until_phase("unwanted", "Failed")
    assert status["reason"] == "Evicted"
    assert "low on resource: memory" in status["message"]
    target = pods.condition("unwanted", "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "TerminationByKubelet")
    assert pods.container("unwanted")["state"]["terminated"]["exitCode"] == 137
    pods.until_events("unwanted", "Evicted")


def test_draining_a_node(pods: Pods, kubelet: ProcessKubelet, nodes: Nodes) -> None:
    pods.create("moved", node=1)
    pods.until_phase("moved", "Running")
    try:
        assert "moved" in kubelet.drain_node(nodes.name(1), grace=0)
        pods.until("it to be gone", lambda: pods.get("moved") is None)
        node = nodes.plane.api.get("v1", "Node", nodes.name(1))
        assert node is not None and node["spec"]["unschedulable"]
    finally:
        kubelet.uncordon_node(nodes.name(1))


def test_a_pod_that_the_node_has_no_room_for(pods: Pods, nodes: Nodes) -> None:
    greedy = {"resources": {"limits": {"nvidia.com/gpu": "3"}}}
    pods.create("bound", nodeName=nodes.name(0), container=greedy)
    status = pods.until_phase("bound", "Failed")
    assert status["reason"] == "OutOfnvidia.com/gpu"
    assert status["message"].startswith("Pod was rejected: Node didn't have enough resource: nvidia.com/gpu")


def test_frozen_processes(pods: Pods, kubelet: ProcessKubelet) -> None:
    if not kubelet.facts()["freezes"]:
        pytest.skip("control groups cannot freeze here")
    pods.create("still", "while :; do date +%s%N; sleep 0.05; done")
    pods.until("output", lambda: pods.status("still").get("phase") == "Running" and pods.log("still"))
    kubelet.freeze(pods.namespace, "still")
    time.sleep(0.1)
    before = pods.log("still")
    time.sleep(0.4)
    assert pods.log("still") == before
    kubelet.freeze(pods.namespace, "still", frozen=False)
    pods.until("more", lambda: pods.log("still") != before)


PING = """
import socket, sys, time
began = time.time()
with socket.create_connection((sys.argv[1], 9000), 3) as connection:
    connection.settimeout(3)
    connection.sendall(b"x")
    connection.recv(1)
print(time.time() - began)
"""
ECHO = """
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(100):
            self.request.sendall(data)
socketserver.ThreadingTCPServer(("", 9000), Echo).serve_forever()
"""


def test_the_network_between_two_pods(pods: Pods, kubelet: ProcessKubelet) -> None:
    for name, node in (("echo", 0), ("asker", 1), ("other", 1)):
        pods.create(name, image="harness/x", node=node, container={"command": ["python", "-c", ECHO]})
    for name in ("echo", "asker", "other"):
        pods.until_phase(name, "Running")
    address = pods.status("echo")["podIP"]

    def ping(name: str) -> float | None:
        code, out, _ = pods.execute(name, ["python", "-c", PING, address])
        return float(out) if code == 0 else None

    until("the echo", lambda: ping("asker") is not None, 10)
    one, two = (pods.namespace, "echo"), (pods.namespace, "asker")
    kubelet.flaw(one, two, delay=0.2)
    slow = ping("asker")
    assert slow is not None and slow >= 0.75  # SYN and data, there and back
    usual = ping("other")
    assert usual is not None and usual < 0.3
    kubelet.mend()
    kubelet.cut(one, two)
    assert ping("asker") is None
    assert ping("other") is not None
    kubelet.mend()
    assert ping("asker") is not None
    kubelet.flaw(one, two, loss=1.0)
    assert ping("asker") is None


# --- loss of a node ----------------------------------------------------------------------------------------


def test_a_lost_node_is_told_by_the_node_controller_and_found_again(
    tmp_path: Path, new_plane_in: Callable[..., Any]
) -> None:
    if reason := obstacle():
        pytest.skip(reason)
    flags = {"kube-controller-manager": ["--node-monitor-grace-period=3s", "--node-monitor-period=500ms"]}
    with new_plane_in(tmp_path, flags=flags) as plane:
        mark = "lost"
        nodes = Nodes(plane, mark)
        with ProcessKubelet(plane.kubeconfig, [nodes.spec(0), nodes.spec(1)]) as kubelet:
            plane.make_namespace("lost")
            pods = Pods(nodes, "lost")
            tolerations = [
                {"key": OWN, "operator": "Exists"},
                {
                    "key": "node.kubernetes.io/unreachable",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 1,
                },
            ]
            pods.create("there", "while :; do date +%s%N; sleep 0.05; done", node=0, tolerations=tolerations)
            pods.until_phase("there", "Running")
            pids = kubelet.pids("lost", "there")["main"]
            kubelet.lose_node(nodes.name(0), "frozen")

            def ready() -> str:
                node = plane.api.get("v1", "Node", nodes.name(0))
                assert node is not None
                return str(next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"))

            until("the node to be unknown", lambda: ready() == "Unknown", 20)
            with pytest.raises(ApiError):
                pods.log("there")
            until(
                "the pod to be evicted",
                lambda: (pods.get("there") or {})["metadata"].get("deletionTimestamp"),
                20,
            )
            time.sleep(1.5)
            assert pods.get("there") is not None  # nobody can tell that its processes are gone
            assert pods.status("there")["phase"] == "Running"
            assert pods.condition("there", "DisruptionTarget")["reason"] == "DeletionByTaintManager"
            assert all(psutil.pid_exists(pid) for pid in pids)
            kubelet.find_node(nodes.name(0))
            until("the node to be ready", lambda: ready() == "True", 20)
            until("the pod to be gone", lambda: pods.get("there") is None, 20)
            assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("how", ["run", "cut", "killed"])
def test_what_becomes_of_the_processes_of_a_lost_node(
    pods: Pods, kubelet: ProcessKubelet, nodes: Nodes, how: str
) -> None:
    pods.create("echo", image="harness/x", node=1, container={"command": ["python", "-c", ECHO]})
    address = pods.until_phase("echo", "Running")["podIP"]

    def answers() -> bool:
        try:
            with socket.create_connection((address, 9000), 0.3):
                return True
        except OSError:
            return False

    until("the echo", answers, 10)
    kubelet.lose_node(nodes.name(1), how)
    try:
        until("it to be as asked", lambda: answers() == (how == "run"), 5)
        time.sleep(0.5)
        assert pods.status("echo")["phase"] == "Running"  # whatever happened, nobody tells
    finally:
        kubelet.find_node(nodes.name(1))
    if how == "killed":
        pods.until_phase("echo", "Failed")
        assert pods.container("echo")["state"]["terminated"]["exitCode"] == 137
    else:
        until("the echo", answers, 5)


# --- nothing is left ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_nothing_outlives_a_kubelet(other: Nodes, namespace: str, how: str) -> None:
    pods = Pods(other, namespace)
    with ProcessKubelet(other.plane.kubeconfig, [other.spec(0)]) as kubelet:
        memory = {"name": "m", "emptyDir": {"medium": "Memory"}}
        pods.create("runs", "sleep 1000 & sleep 1000; :", volumes=[memory])
        pods.until_phase("runs", "Running")
        until("both processes", lambda: len(kubelet.pids(namespace, "runs")["main"]) >= 3)
        pids = kubelet.pids(namespace, "runs")["main"]
        facts, pid = kubelet.facts(), kubelet.pid
        assert traces(facts, pid) >= {"link", "route", "folder"}
        if how == "killed":
            kubelet.kill()
        else:
            kubelet.stop()
    until("the processes to be gone", lambda: not any(psutil.pid_exists(pid) for pid in pids), 5)
    sweep()
    until("its traces to be gone", lambda: not traces(facts, pid), 5)


def traces(facts: Object, pid: int) -> set[str]:
    """What is on this machine of a kubelet with these facts."""
    net = facts["host"].rpartition(".")[0].rpartition(".")[0]
    told = {
        "link": (["ip", "-o", "-4", "addr"], f" {net}."),
        "route": (["ip", "-4", "route"], f"{net}.0.0/16"),
        "mount": (["cat", "/proc/mounts"], facts["folder"]),
        "group": (["find", "/sys/fs/cgroup", "-maxdepth", "2", "-name", f"{PREFIX}{pid}"], PREFIX),
        "folder": (["ls", "-d", facts["folder"]], facts["folder"]),
    }
    return {
        name
        for name, (command, text) in told.items()
        if text in subprocess.run(command, capture_output=True, text=True).stdout
    }


def test_a_kubelet_that_comes_back_takes_its_pods_over(other: Nodes, namespace: str) -> None:
    pods = Pods(other, namespace)
    with ProcessKubelet(other.plane.kubeconfig, [other.spec(0)]) as kubelet:
        pods.create("once")
        pods.create("always", restartPolicy="Always")
        pods.until_phase("once", "Running")
        pods.until_phase("always", "Running")
        kubelet.kill()
    with ProcessKubelet(other.plane.kubeconfig, [other.spec(0)]):
        pods.until_phase("once", "Failed")
        assert pods.container("once")["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
        pods.until("a restart", lambda: pods.container("always")["restartCount"] == 1)
        pods.until("it to run", lambda: pods.container("always")["state"].get("running"))
        assert pods.status("always")["podIPs"] == [{"ip": pods.status("always")["podIP"]}]


def test_an_api_server_that_goes_away_and_comes_back(
    tmp_path: Path, new_plane_in: Callable[..., Any]
) -> None:
    if reason := obstacle():
        pytest.skip(reason)
    with new_plane_in(tmp_path) as plane:
        nodes = Nodes(plane, "steady")
        with ProcessKubelet(plane.kubeconfig, [nodes.spec(0)]):
            plane.make_namespace("steady")
            pods = Pods(nodes, "steady")
            pods.create("long", "sleep 6; exit 5")
            pods.create("before")
            pods.until_phase("before", "Running")
            plane.halt("kube-apiserver", signal.SIGKILL)
            time.sleep(5)  # meanwhile the first pod ends
            plane.launch("kube-apiserver")
            pods.until_phase("long", "Failed", timeout=30)
            assert pods.container("long")["state"]["terminated"]["exitCode"] == 5
            assert pods.status("before")["phase"] == "Running"
            plane.compact_etcd()
            plane.restart("kube-apiserver")  # whoever watched must list again now
            pods.create("after")
            pods.until_phase("after", "Running", timeout=30)
            pods.delete("before")
            pods.until("it to be gone", lambda: pods.get("before") is None, 30)


def test_a_node_that_was_taken_for_lost_is_ready_again(
    tmp_path: Path, new_plane_in: Callable[..., Any]
) -> None:
    """An API server that is away for longer than the node controller waits for a node."""
    if reason := obstacle():
        pytest.skip(reason)
    soon = ["--node-monitor-period=1s", "--node-monitor-grace-period=4s"]
    with new_plane_in(tmp_path, flags={"kube-controller-manager": soon}) as plane:
        nodes = Nodes(plane, "lost")
        with ProcessKubelet(plane.kubeconfig, [nodes.spec(0), nodes.spec(1)]) as kubelet:
            plane.make_namespace("lost")
            plane.halt("kube-apiserver", signal.SIGKILL)
            # No heartbeat before the node controller has looked: how long the server is away must not matter.
            os.kill(kubelet.pid, signal.SIGSTOP)
            plane.launch("kube-apiserver")
            until("both to be Unknown", lambda: readiness(plane) == ["Unknown", "Unknown"], 60)
            os.kill(kubelet.pid, signal.SIGCONT)
            until("both to be ready", lambda: readiness(plane) == ["True", "True"], 60)
            pods = Pods(nodes, "lost")
            pods.create("after", node=1)
            pods.until_phase("after", "Running", timeout=60)


def readiness(plane: ControlPlane) -> list[str]:
    return [said(node, "Ready")["status"] for node in plane.api.list("v1", "Node")]


def said(node: Object, condition: str) -> Object:
    return next(dict(c) for c in node["status"]["conditions"] if c["type"] == condition)


def test_a_node_puts_right_what_others_say_of_it(other: Nodes) -> None:
    with ProcessKubelet(other.plane.kubeconfig, [other.spec(0)]):

        def node() -> Object:
            found = other.plane.api.get("v1", "Node", other.name(0))
            assert found is not None
            return found

        others = [c for c in node()["status"]["conditions"] if c["type"] != "Ready"]
        unknown = {**said(node(), "Ready"), "status": "Unknown", "reason": "NodeStatusUnknown"}
        change = {"conditions": [*others, unknown], "capacity": {"example.com/device": "3"}}
        changed = other.plane.api.patch(node(), {"status": change}, "status")
        assert said(changed, "Ready")["status"] == "Unknown"
        until("it to be ready", lambda: said(node(), "Ready")["reason"] == "KubeletReady", 15)
        assert node()["status"]["capacity"]["example.com/device"] == "3"  # of others, none of its own


# --- the real thing ----------------------------------------------------------------------------------------


TRAINING = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
mine = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(mine)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "found", int(mine.item()), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.needs("training-operator")
@pytest.mark.timeout(300)
def test_a_pytorchjob_trains(pods: Pods, nodes: Nodes) -> None:
    """One master and four workers of the real Training Operator, an all-reduce by names of services."""
    template = {
        "spec": {
            "nodeSelector": {OWN: nodes.mark},
            "tolerations": [{"key": OWN, "operator": "Exists"}],
            "containers": [
                {"name": "pytorch", "image": "harness/train", "command": ["python", "-c", TRAINING]}
            ],
        }
    }
    group = {"restartPolicy": "Never", "template": template}
    specs = {"Master": {"replicas": 1, **group}, "Worker": {"replicas": 4, **group}}
    pods.make("PyTorchJob", "train", "kubeflow.org/v1", spec={"pytorchReplicaSpecs": specs})

    def conditions() -> set[str]:
        found = nodes.plane.api.get("kubeflow.org/v1", "PyTorchJob", "train", pods.namespace) or {}
        return {
            c["type"] for c in (found.get("status") or {}).get("conditions") or [] if c["status"] == "True"
        }

    pods.until("its end", lambda: {"Succeeded", "Failed"} & conditions(), 240)
    assert "Succeeded" in conditions()
    members = ["train-master-0", *(f"train-worker-{n}" for n in range(4))]
    assert [pods.log(name) for name in members] == [f"rank {n} of 5 found 15\n" for n in range(5)]
    assert {
        pods.container(name, "init-pytorch")["state"].get("terminated", {}).get("exitCode", 0)
        for name in members[1:]
    } == {0}
