"""What ``--adopt`` does on a real control plane to a PyTorchJob that somebody made who does not know us, and
that nothing is done to it without that word.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import handle_of
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.api import Api
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.resources import EVENTS, PODS
from allaboard.errors import OwnershipConflict
from allaboard.runs.observation import Owner
from allaboard.testing.objects import PYTORCHJOBS
from tests.cluster.api import Object, until
from tests.cluster.kubelet.handle import NodeSpec, nodes_on
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import Terminal

OWN = "allaboard.test/others"
VERBS = ("stop", "suspend", "resume", "delete")
TRAP = "trap 'sleep 2; exit 0' TERM; while :; do sleep 0.2; done"

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def node(plane_of_nodes: ControlPlane) -> Iterator[str]:
    mark = f"others-{secrets.token_hex(3)}"
    with nodes_on(plane_of_nodes, [NodeSpec(mark, {}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))]):
        yield mark


@pytest.fixture
def api(plane: ControlPlane, namespace: str) -> Iterator[Api]:
    with Access(str(plane.kubeconfig), None, namespace, environ={}).api() as api:
        yield api


@pytest.fixture
def ab(plane: ControlPlane, namespace: str, tmp_path: Path) -> Terminal:
    return Terminal.on(plane.kubeconfig, namespace, tmp_path)


@pytest.fixture
def make(api: Api, node: str) -> Callable[..., Object]:
    """``make(**metadata)``: a PyTorchJob ``nightly``; its members end two seconds after they are asked to."""

    def made(**metadata: Any) -> Object:
        pod = {
            "nodeSelector": {OWN: node},
            "tolerations": [{"key": OWN, "operator": "Exists"}],
            "containers": [{"name": "pytorch", "image": "alpine", "command": ["sh", "-c", TRAP]}],
        }
        role = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": pod}}
        body = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "nightly", **metadata},
            "spec": {"pytorchReplicaSpecs": {"Master": role, "Worker": role}},
        }
        return api.create(PYTORCHJOBS, body)

    return made


@pytest.fixture
def nightly(make: Callable[..., Object], ab: Terminal, api: Api) -> Object:
    """One that trains."""
    made = make()
    until("it to run", lambda: ab.state("nightly") == "running" and len(living(api)) == 2, 60)
    return made


def living(api: Api) -> list[str]:
    pods, _ = api.list(PODS)
    return [p["metadata"]["name"] for p in pods if p.get("status", {}).get("phase") in ("Pending", "Running")]


@pytest.mark.parametrize("verb", VERBS)
def test_without_the_word_nothing_is_done_to_it(ab: Terminal, api: Api, nightly: Object, verb: str) -> None:
    before = api.get(PYTORCHJOBS, "nightly")
    said = ab(verb, "nightly", code=2)
    assert f"add --adopt to {verb} it all the same" in " ".join(said.err.split())
    after = api.get(PYTORCHJOBS, "nightly")
    assert after["spec"] == before["spec"] and "deletionTimestamp" not in after["metadata"]
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")
    assert len(living(api)) == 2


def test_it_is_suspended_and_resumed(ab: Terminal, api: Api, nightly: Object) -> None:
    body = ab("suspend", "nightly", "--adopt", "--json").json
    assert body["state"] == "suspended" and living(api) == []
    held = [c for c in api.get(PYTORCHJOBS, "nightly")["status"]["conditions"] if c["type"] == "Suspended"]
    assert [c["status"] for c in held] == ["True"], "its operator has said so"
    assert "resume" in ab("resume", "nightly", code=2).err and living(api) == []
    assert "nightly is on its way again" in ab("resume", "nightly", "--adopt").out
    until("it to run again", lambda: ab.state("nightly") == "running" and len(living(api)) == 2, 60)
    assert api.get(PYTORCHJOBS, "nightly")["metadata"]["uid"] == nightly["metadata"]["uid"]
    assert told(api, nightly) == ["Suspended", "Resumed"]


def test_it_is_stopped_and_whoever_follows_is_told_by_whom(ab: Terminal, api: Api, nightly: Object) -> None:
    following = ab.start("follow", "nightly")
    until("a first line", lambda: following.stdout and following.stdout.readline(), 60)
    said = ab("stop", "nightly", "--adopt", "--reason", "the GPUs are needed")
    assert said.out.splitlines()[-1].endswith(": the GPUs are needed")
    assert living(api) == [] and api.list(PYTORCHJOBS)[0] == []
    assert told(api, nightly) == ["Stopped"]
    rest, _ = following.communicate(timeout=60)
    assert following.returncode == 3 and ": the GPUs are needed" in rest


@pytest.mark.parametrize("ended", [False, True], ids=["live", "ended"])
def test_it_is_deleted_with_its_pods(ab: Terminal, api: Api, nightly: Object, ended: bool) -> None:
    if ended:
        for pod in living(api):
            api.delete(PODS, pod)  # a member that may not restart: the job has failed
        until("its end", lambda: ab.state("nightly") in ("failed", "running"), 60)
    assert "its pods and their logs went with it" in ab("delete", "nightly", "--adopt").out
    assert api.list(PODS)[0] == [] and api.list(PYTORCHJOBS)[0] == []
    assert "there is no run 'nightly' here" in ab("delete", "nightly", "--adopt", code=2).err


@pytest.mark.parametrize("verb", VERBS)
def test_one_that_replaces_it_is_not_touched(
    api: Api, make: Callable[..., Object], nightly: Object, verb: str
) -> None:
    job = KubernetesBackend(api).others("nightly", adopt=True)
    seen = job.observe("nightly")
    api.delete(PYTORCHJOBS, "nightly", propagation="Foreground")
    until("it to be gone", lambda: not api.list(PYTORCHJOBS)[0], 60)
    other = make()
    with pytest.raises(OwnershipConflict, match="is not the object that was looked at"):
        if verb == "stop":
            job.stop(handle_of(seen), Owner("nobody"), "ann", "enough")
        else:
            getattr(job, verb)("nightly")
    there = api.get(PYTORCHJOBS, "nightly")
    assert there["metadata"]["uid"] == other["metadata"]["uid"] != nightly["metadata"]["uid"]
    assert "deletionTimestamp" not in there["metadata"] and "annotations" not in there["metadata"]
    assert not there["spec"].get("runPolicy", {}).get("suspend")


def test_the_server_itself_holds_to_the_uid(api: Api, nightly: Object) -> None:
    """What is between the last look and the request: the request names the uid."""
    uid = "00000000-0000-4000-8000-000000000000"
    with pytest.raises(OwnershipConflict):
        api.delete(PYTORCHJOBS, "nightly", uid=uid, propagation="Foreground")
    change = {"metadata": {"uid": uid}, "spec": {"runPolicy": {"suspend": True}}}
    with pytest.raises(OwnershipConflict):
        api.patch(PYTORCHJOBS, "nightly", change)
    version = {"uid": nightly["metadata"]["uid"], "resourceVersion": "1"}
    with pytest.raises(OwnershipConflict):
        api.patch(PYTORCHJOBS, "nightly", {**change, "metadata": version})
    assert len(living(api)) == 2


def test_what_a_queue_of_kueue_holds_is_not_resumed(
    ab: Terminal, api: Api, make: Callable[..., Object]
) -> None:
    make(labels={"kueue.x-k8s.io/queue-name": "research"})
    api.patch(PYTORCHJOBS, "nightly", {"spec": {"runPolicy": {"suspend": True}}})
    said = ab("resume", "nightly", "--adopt", code=2)
    assert "it starts when Kueue admits it" in " ".join(said.err.split())
    assert api.get(PYTORCHJOBS, "nightly")["spec"]["runPolicy"]["suspend"]
    assert "'research'" in ab("delete", "nightly", "--adopt").err


def told(api: Api, job: Object) -> list[str]:
    """Our events of this job, oldest first."""
    events, _ = api.list(EVENTS, fields=f"involvedObject.uid={job['metadata']['uid']}")
    ours = [e for e in events if e.get("source") == {"component": "allaboard"}]
    return [e["reason"] for e in sorted(ours, key=lambda e: e["metadata"]["creationTimestamp"])]
