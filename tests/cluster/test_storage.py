"""Volumes of jobs on a real API server, with its own controllers of claims; pods are processes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.backends.kubernetes.discovery import rbac
from tests.cluster.api import Object, until
from tests.cluster.components import s3
from tests.cluster.kubelet.handle import NodeSpec, ProcessKubelet, nodes_on
from tests.cluster.kubelet.volumes import BUCKET_DRIVER
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, Terminal
from tests.cluster.test_backend import OWN, Shell
from tests.cluster.test_preflight import checks, make, stops

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(900),
]
CKPT = {"mount": "/ckpt", "claim": {"size": "1Gi"}}
APPENDS = "cat /ckpt/seen 2>/dev/null; echo ${HOSTNAME} >> /ckpt/seen; exit ${CODE:-0}"


@pytest.fixture(scope="module")
def node(plane_of_nodes: ControlPlane) -> Iterator[tuple[str, ProcessKubelet]]:
    mark = f"storage-{secrets.token_hex(3)}"
    spec = NodeSpec(mark, {"cpu": "16", "memory": "32Gi"}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))
    buckets = plane_of_nodes.folder("s3") / "buckets"
    with nodes_on(plane_of_nodes, [spec], code=CODE, buckets=buckets) as kubelet:
        yield mark, kubelet


@pytest.fixture
def ab(plane: ControlPlane, namespace: str, node: tuple[str, ProcessKubelet], tmp_path: Path) -> Shell:
    shell = Shell.on(plane.kubeconfig, namespace, tmp_path)
    here = {"nodeSelector": {OWN: node[0]}, "tolerations": [{"key": OWN, "operator": "Exists"}]}
    shell.pod = {"spec": {**here, "terminationGracePeriodSeconds": 2}}
    return shell


def claims(plane: ControlPlane, namespace: str) -> dict[str, Object]:
    every = plane.api.list("v1", "PersistentVolumeClaim", namespace)
    return {one["metadata"]["name"]: one for one in every}


def appending(ab: Shell, *storage: Any, code: int = 0, **fields: Any) -> str:
    """A job of one member that tells who was there before it."""
    said = {"environment": {"CODE": str(code)}, "policy": {"restart": "never"}, "workers": 1, **fields}
    return ab.job(command=["sh", "-c", APPENDS], storage=[*storage], **said)


def test_two_attempts_share_a_claim_which_goes_with_the_run(
    ab: Shell, plane: ControlPlane, namespace: str
) -> None:
    ab("run", appending(ab, CKPT, code=3), "--key", "k", code=1)
    run = ab.run_of()
    (claim,) = claims(plane, namespace).values()
    assert claim["metadata"]["name"] == f"{run}-ckpt" and claim["status"]["phase"] == "Bound"
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"], "one member"
    ab("run", appending(ab, CKPT), "--key", "k")
    assert ab.seen(run)["attempt"] == 2
    assert ab("logs", run).out.strip().endswith(f"{run}-master-0"), "what the first attempt wrote"
    (same,) = claims(plane, namespace).values()
    assert same["metadata"]["uid"] == claim["metadata"]["uid"]
    ab("delete", run)
    until("the claim to go", lambda: not claims(plane, namespace))
    volume = claim["spec"]["volumeName"]
    until("its volume to go", lambda: plane.api.get("v1", "PersistentVolume", volume) is None)


def test_a_claim_goes_with_the_record_and_one_for_always_stays(
    ab: Shell, plane: ControlPlane, namespace: str
) -> None:
    """The garbage collector's own work: nothing of ours runs any more."""
    kept = {"mount": "/ckpt", "claim": {"size": "1Gi", "keep": "always"}}
    scratch = {"mount": "/scratch", "claim": {"size": "1Gi"}}
    ab("run", appending(ab, kept, scratch), "--key", "one")
    run = ab.run_of()
    assert {*claims(plane, namespace)} == {"digits-ckpt", f"{run}-scratch"}
    # A pod that is over holds its claim, too.
    plane.api.delete("kubeflow.org/v1", "PyTorchJob", run, namespace)
    plane.api.delete("v1", "ConfigMap", f"allaboard-{run}", namespace)
    until("the claim to go", lambda: {*claims(plane, namespace)} == {"digits-ckpt"})
    said = ab("run", appending(ab, kept), "--key", "two")
    other = next(one["run"] for one in ab("list", "--json").json["runs"] if one["run"] != run)
    assert f"{run}-master-0" in ab("logs", other).out, said.err
    ab("delete", other)
    assert {*claims(plane, namespace)} == {"digits-ckpt"}


SAVES = """
import os, time
from allaboard.inside import Checkpointer
ckpt = Checkpointer()
found = ckpt.resume()
print("from", found.step if found else 0, flush=True)
for step in range(found.step + 1 if found else 1, 8):
    ckpt.step(step, lambda: b"state %d" % step)
    if step == 5 and not found:
        os._exit(3)
print("done", step, flush=True)
"""


def test_hot_checkpoints_on_an_ephemeral_volume(ab: Shell, plane: ControlPlane, namespace: str) -> None:
    """The container fails at step 5 and is started again in its pod: the claim has step 4 at most."""
    (ab.folder / "train.py").write_text(SAVES)
    job = ab.job(
        workers=1,
        command=["python", "train.py"],
        code=["train.py"],
        policy={"restart": "on_failure", "backoff_limit": 2},
        storage=[CKPT, {"mount": "/hot", "ephemeral": {"size": "1Gi"}}],
        checkpoints={"uri": "/ckpt/steps", "every": 4, "hot": {"folder": "/hot", "every": 1}},
    )
    ab("run", job, "--key", "k")
    run = ab.run_of()
    assert "from 5" in ab("logs", run).out and ab.seen(run)["attempt"] == 1
    ab("delete", run)
    until("both claims to go", lambda: not claims(plane, namespace))


SECURE = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "containers": [
        {
            "name": "pytorch",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}


def test_a_folder_of_the_node_is_refused_where_pods_are_restricted(
    plane: ControlPlane, namespace: str
) -> None:
    space = plane.api.get("v1", "Namespace", namespace)
    assert space is not None
    plane.api.patch(space, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    job: Object = {"workers": 1, "pod": {"spec": SECURE}}
    found = checks(plane.kubeconfig, namespace, **job, storage=[{"mount": "/hot", "host_path": "/mnt/ssd"}])
    said = stops(found)
    assert {"pod_security", "dry_run"} <= {*said}, "the API server says the same of the pod"
    (fix,) = [check.fix for check in found if check.id == "pod_security"]
    assert "ephemeral" in str(fix)
    ephemeral = [{"mount": "/hot", "ephemeral": {"size": "1Gi"}}]
    found = checks(plane.kubeconfig, namespace, **job, storage=ephemeral)
    assert not {"pod_security", "dry_run"} & {*stops(found)}


@pytest.mark.needs("s3")
def test_a_bucket_by_a_secret_and_by_a_driver(ab: Shell, plane: ControlPlane, namespace: str) -> None:
    """A member writes into its bucket with the keys of a Secret, and through a CSI driver's mount."""
    s3.client(plane).create_bucket(Bucket=namespace)
    make(plane, namespace, "Secret", "store", stringData=s3.variables(plane, "host.internal"))
    make(plane, namespace, "ServiceAccount", "trainer")
    writes = (
        "from allaboard.storage import open_store\n"
        f"open_store('s3://{namespace}/by').write('secret', b'x')\n"
        "open('/bucket/by-driver', 'w').write('y')\n"
        "print(open('/var/run/secrets/kubernetes.io/serviceaccount/namespace').read())\n"
    )
    driver = {"driver": BUCKET_DRIVER, "volumeAttributes": {"bucketName": namespace}}
    job = ab.job(
        workers=1,
        command=["python", "-c", writes],
        secrets=[{"name": "store", "env": True}],
        service_account="trainer",
        storage=[{"mount": "/bucket", "volume": {"csi": driver}}],
    )
    ab("run", job, "--key", "k")
    keys = [item["Key"] for item in s3.client(plane).list_objects_v2(Bucket=namespace)["Contents"]]
    assert sorted(keys) == ["by-driver", "by/secret"]
    (pod,) = plane.api.list("v1", "Pod", namespace)
    assert pod["spec"]["serviceAccountName"] == "trainer"


def test_the_roles_are_enough_and_preflight_says_which_is_missing(
    ab: Shell, plane: ControlPlane, namespace: str
) -> None:
    account = plane.kubeconfig_for_role(namespace, "submitter")
    found = checks(account, namespace, workers=1, storage=[CKPT])
    assert "create persistentvolumeclaims" in stops(found)["rbac"]
    assert any("--rbac claims" in str(check.fix) for check in found)
    assert "rbac" not in stops(checks(account, namespace, workers=1))
    said = _as(ab, account)("run", appending(ab, CKPT), "--key", "k", code=None)
    assert said.code == 2 and "cannot create resource" in said.err + said.out, said
    assert claims(plane, namespace) == {}
    for document in yaml.safe_load_all(rbac.manifest("claims", namespace)):
        plane.api.apply([document])
    assert "rbac" not in stops(checks(account, namespace, workers=1, storage=[CKPT]))
    own = _as(ab, account)
    own("run", appending(ab, CKPT), "--key", "k")
    run = own.run_of()
    assert [*claims(plane, namespace)] == [f"{run}-ckpt"]
    own("delete", run)
    until("the claim to go", lambda: not claims(plane, namespace))


def _as(ab: Shell, kubeconfig: Path) -> Terminal:
    return Terminal(ab.folder, {**ab.environ, "KUBECONFIG": str(kubeconfig)})


def test_a_claim_of_one_pod_that_another_one_has(ab: Shell, plane: ControlPlane, namespace: str) -> None:
    """Two runs of a job share its claim, which one pod may mount at a time; the second says why it waits."""
    kept = {"mount": "/ckpt", "claim": {"size": "1Gi", "keep": "always", "access": "once_pod"}}
    sleeps = {"workers": 1, "command": ["sleep", "600"], "storage": [kept]}
    ab("run", ab.job(**sleeps), "--key", "one", "--detach")
    first = ab.run_of()
    ab.until_it_runs(first)
    ab("run", ab.job(**sleeps), "--key", "two", "--detach")
    second = next(one["run"] for one in ab("list", "--json").json["runs"] if one["run"] != first)
    until(
        "its sentence",
        lambda: "one pod at a time may mount claim digits-ckpt" in ab("status", second).out,
    )
    ab("stop", first)
    ab.until_it_runs(second)
    ab("stop", second)
