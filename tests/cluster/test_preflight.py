"""Preflight and the survey against a real API server: each obstacle is really there, and then it is not.
The Roles that we ship are all that a submitter and a viewer need.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Plan, Selection
from allaboard.backends.check import Check
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.discovery import installed, rbac
from allaboard.backends.kubernetes.lifecycle.prepare import prepare_attempt
from allaboard.backends.kubernetes.preflight.gather import preflight
from allaboard.checking.job import require_valid
from allaboard.job.site import Site
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.runs.observation import Owner
from allaboard.testing import a_job
from tests.cluster.api import Object, until
from tests.cluster.cluster import Cluster
from tests.cluster.plane import ControlPlane

pytestmark = pytest.mark.needs("training-operator")
JOB: Object = {"image": "harness/train", "workers": 2, "gang": {"scheduler": "none"}}


def checks(kubeconfig: Path, namespace: str, **job: Any) -> list[Check]:
    """Every check of a job, as the user of this kubeconfig."""
    with Access(str(kubeconfig), None, namespace, environ={}).api(Patience(budget=5.0)) as api:
        found = installed.survey_cluster(api, api.server, namespace)
        plan = Plan(require_valid(a_job(**{**JOB, **job})), "k")
        made = prepare_attempt(plan, 1, 1, Site("s3://b"), found.facts(ClusterFacts(namespace=namespace)), {})
        return preflight(api, made, found)


def stops(found: list[Check]) -> dict[str, str]:
    return {check.id: check.summary for check in found if check.stops}


def test_a_job_that_can_run(cluster: Cluster, namespace: str) -> None:
    found = checks(cluster.kubeconfig, namespace)
    assert stops(found) == {}
    assert {"kinds", "operator", "rbac", "namespace", "dry_run"} <= {c.id for c in found if c.ok}
    [operator] = [c for c in found if c.id == "operator"]
    assert "its webhook answers" in operator.summary
    kinds = ("PyTorchJob", "Pod", "ConfigMap")
    left = [o for kind in kinds[:2] for o in cluster.api.list(_version(kind), kind, namespace)]
    assert left == [], "nothing was created"


def _version(kind: str) -> str:
    return "kubeflow.org/v1" if kind == "PyTorchJob" else "v1"


def make(cluster: Cluster, namespace: str, kind: str, name: str, version: str = "v1", **content: Any) -> None:
    meta = {"name": name, "namespace": namespace}
    cluster.api.create({"apiVersion": version, "kind": kind, "metadata": meta, **content})


def test_what_a_job_names_must_be_there(cluster: Cluster, namespace: str) -> None:
    job: Object = {
        "storage": [{"mount": "/data", "pvc": "datasets"}],
        "secrets": [{"name": "aws", "env": True}],
        "pod": {"spec": {"serviceAccountName": "trainer", "priorityClassName": "nobody-has-this"}},
    }
    found = stops(checks(cluster.kubeconfig, namespace, **job))
    assert found["volumes"] == f"claim datasets does not exist in {namespace}"
    assert found["secrets"] == f"secret aws is not there in {namespace}"
    assert found["service_account"] == f"service account trainer is not there in {namespace}"
    assert found["priority_class"] == "priority class nobody-has-this is not there"
    assert "would be refused" in found["dry_run"], "admission says the same to a pod"
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    make(cluster, namespace, "PersistentVolumeClaim", "datasets", spec=claim)
    make(cluster, namespace, "Secret", "aws", stringData={"key": "x"})
    make(cluster, namespace, "ServiceAccount", "trainer")
    job["pod"] = {"spec": {"serviceAccountName": "trainer"}}
    assert stops(checks(cluster.kubeconfig, namespace, **job)) == {}


def test_a_claim_of_one_node_for_two_members(cluster: Cluster, namespace: str) -> None:
    claim = {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "1Gi"}}}
    make(cluster, namespace, "PersistentVolumeClaim", "datasets", spec=claim)
    storage = [{"mount": "/data", "pvc": "datasets"}]
    assert "2 members mount it" in stops(checks(cluster.kubeconfig, namespace, storage=storage))["volumes"]
    assert "volumes" not in stops(checks(cluster.kubeconfig, namespace, storage=storage, workers=1))


def test_quota_and_limits(cluster: Cluster, namespace: str) -> None:
    make(cluster, namespace, "ResourceQuota", "team", spec={"hard": {"pods": "1", "requests.memory": "3Gi"}})
    limits = [{"type": "Container", "max": {"memory": "1Gi"}}]
    make(cluster, namespace, "LimitRange", "small", spec={"limits": limits})
    until("the quota to be counted", lambda: _quota_is_counted(cluster, namespace))
    found = checks(cluster.kubeconfig, namespace, resources={"memory": "2Gi", "cpu": 1})
    said = {check.summary for check in found if check.stops}
    assert "the gang asks for 2 pods; quota team allows 1 in all" in said
    assert "the gang asks for 4Gi requests.memory; quota team allows 3Gi in all" in said
    assert "container pytorch of master has 2Gi memory; at most 1Gi is allowed" in said
    assert any("maximum memory usage per Container is 1Gi" in text for text in said), "the server says so too"


def _quota_is_counted(cluster: Cluster, namespace: str) -> bool:
    found = cluster.api.get("v1", "ResourceQuota", "team", namespace)
    return bool((found or {}).get("status", {}).get("hard"))


def test_the_pod_security_level_agrees_with_the_servers_own_word(cluster: Cluster, namespace: str) -> None:
    """Each violation that we tell is one that the API server tells of a pod, and the other way round."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = cluster.api.get("v1", "Namespace", namespace)
    assert space is not None
    cluster.api.patch(space, {"metadata": {"labels": label}})
    # Members keep the level unasked; null takes that away.
    bare: Object = {"securityContext": None, "containers": [{"name": "pytorch", "securityContext": None}]}
    found = checks(cluster.kubeconfig, namespace, pod={"spec": bare})
    assert {"pod_security", "dry_run"} <= set(stops(found))
    [refused] = {c.evidence[0].text for c in found if c.id == "dry_run" and " of master " in c.summary}
    ours = {
        e.text for c in found if c.id == "pod_security" for e in c.evidence if e.text.startswith("master")
    }
    for word in ("allowPrivilegeEscalation", "capabilities", "runAsNonRoot", "seccompProfile"):
        assert word in refused and any(word in text for text in ours)
    assert len(ours) == 4
    assert stops(checks(cluster.kubeconfig, namespace, workers=1)) == {}
    workers = checks(cluster.kubeconfig, namespace, workers=2)
    assert "init-pytorch" in str([c.fix for c in workers if c.id == "pod_security"])


def test_a_namespace_that_is_not_there(cluster: Cluster) -> None:
    found = stops(checks(cluster.kubeconfig, "nobody-made-this"))
    assert found["namespace"] == "namespace nobody-made-this does not exist"


def test_a_field_that_the_server_does_not_know(cluster: Cluster, namespace: str) -> None:
    pod = {"spec": {"containers": [{"name": "pytorch", "imagePullPolice": "Always"}]}}
    found = [c for c in checks(cluster.kubeconfig, namespace, pod=pod) if c.id == "dry_run"]
    assert any("imagePullPolice" in e.field + e.text for c in found for e in c.evidence)


def test_an_operator_that_is_away(new_plane_in: Callable[..., Any], tmp_path: Path) -> None:
    with new_plane_in(tmp_path / "plane", "training-operator") as plane:
        namespace = plane.make_namespace("away")
        assert "operator" not in stops(checks(plane.kubeconfig, namespace))
        plane.halt("training-operator")
        found = checks(plane.kubeconfig, namespace)
        said = stops(found)
        assert said["operator"] == "Training Operator v1 does not answer"
        assert "is away" in str([c.fix for c in found if c.id == "dry_run" and c.stops])


# --- the Roles


def test_a_submitter_may_do_all_that_is_done(cluster: Cluster, namespace: str) -> None:
    """A whole life of a run, by the account of the Role that we ship and nothing else."""
    account = cluster.kubeconfig_for_role(namespace, "submitter")
    found = checks(account, namespace)
    assert stops(found) == {}
    [allowed] = [c for c in found if c.id == "rbac"]
    assert (
        allowed.ok and f"system:serviceaccount:{namespace}:allaboard-submitter may do all" in allowed.summary
    )
    with Access(str(account), None, namespace, environ={}).api() as api:
        backend = KubernetesBackend(api)
        plan = Plan(require_valid(a_job(**{**JOB, "command": ["sleep", "1000"]})), "k")
        owner = Owner("ada", "worker", "attached")
        handle = backend.launch(plan, owner)
        seen = backend.observe(handle.run, evidence=True)
        assert seen.notes == (), "nothing was out of reach"
        *_, cursor = backend.logs(handle.run, Selection())
        assert isinstance(cursor, dict)
        assert backend.events(handle.run) is not None
        assert [one.run for one in backend.list()] == [handle.run]
        backend.suspend(handle.run)
        backend.resume(handle.run)
        backend.stop(handle, owner, "the test", "it is over", kill=True)
        backend.delete(handle.run)


@pytest.mark.needs("coscheduling")
def test_a_submitter_may_make_gangs(cluster: Cluster, namespace: str) -> None:
    account = cluster.kubeconfig_for_role(namespace, "submitter")
    assert stops(checks(account, namespace, gang={"scheduler": "coscheduling"})) == {}
    with Access(str(account), None, namespace, environ={}).api() as api:
        backend = KubernetesBackend(api, facts=ClusterFacts(namespace=namespace))
        plan = Plan(require_valid(a_job(**{**JOB, "gang": {"scheduler": "coscheduling"}})), "k")
        owner = Owner("ada", "worker", "attached")
        handle = backend.launch(plan, owner)
        assert backend.observe(handle.run, evidence=True).notes == ()
        backend.stop(handle, owner, "the test", "it is over", kill=True)
        backend.delete(handle.run)


def test_a_viewer_sees_everything_and_changes_nothing(cluster: Cluster, namespace: str) -> None:
    submitter, viewer = (cluster.kubeconfig_for_role(namespace, role) for role in ("submitter", "viewer"))
    plan = Plan(require_valid(a_job(**JOB)), "k")
    owner = Owner("ada", "worker", "attached")
    with Access(str(submitter), None, namespace, environ={}).api() as api:
        ours = KubernetesBackend(api)
        handle = ours.launch(plan, owner)
        with Access(str(viewer), None, namespace, environ={}).api() as other:
            theirs = KubernetesBackend(other, facts=ClusterFacts(namespace=namespace))
            assert theirs.observe(handle.run, evidence=True).run == handle.run
            assert [one.run for one in theirs.list()] == [handle.run]
            with pytest.raises(Forbidden):
                theirs.stop(handle, owner, "the viewer", "for fun")
            with pytest.raises(Forbidden):
                theirs.launch(Plan(plan.job, "another"), owner)
        ours.stop(handle, owner, "the test", "it is over", kill=True)
        ours.delete(handle.run)
    assert "rbac" in stops(checks(viewer, namespace))


def test_who_may_do_nothing_is_told_what_is_missing(cluster: Cluster, namespace: str) -> None:
    account = cluster.kubeconfig_for_account(namespace, "nobody")
    found = checks(account, namespace)
    [rbac_] = [c for c in found if c.id == "rbac"]
    assert rbac_.stops and len(rbac_.evidence) == len(rbac.needed([("kubeflow.org", "pytorchjobs")]))
    unknown = {c.id for c in found if c.ok is None}
    assert {"quota", "limit_range", "nodes", "operator", "blind_spots"} <= unknown


# --- the survey


def test_what_is_installed_is_told(cluster: Cluster, namespace: str) -> None:
    with Access(str(cluster.kubeconfig), None, namespace, environ={}).api() as api:
        found = installed.survey_cluster(api, api.server, namespace)
    assert found.part("training-operator").alive is True
    assert found.version.startswith("v1.")
    assert found.nodes is not None and not found.is_openshift


def test_what_the_operator_does_by_itself_is_seen(
    plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "SETTLED", 0.0)
    with Access(str(plane.kubeconfig), None, namespace, environ={}).api() as api:
        before = installed.complete_facts(api, ClusterFacts(namespace=namespace))
        backend = KubernetesBackend(api, facts=ClusterFacts(namespace=namespace))
        owner = Owner("ada", "worker", "attached")
        handle = backend.launch(Plan(require_valid(a_job(**JOB)), "k"), owner)
        until("the operator to start it", lambda: backend.observe(handle.run).started)
        after = installed.complete_facts(api, ClusterFacts(namespace=namespace))
        backend.stop(handle, owner, "the test", "it is over", kill=True)
    gangs = {kind for kind in after.kinds or () if kind.endswith("/PodGroup") and "x-k8s.io" in kind}
    assert before.operator_gangs.get("training-operator") == (None if gangs else "off")
    assert after.operator_gangs["training-operator"] == "off"


def test_an_operator_with_the_gang_flag_is_seen(
    new_plane_in: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"training-operator": ["--gang-scheduler-name=scheduler-plugins-scheduler"]}
    with new_plane_in(tmp_path / "plane", "training-operator", "coscheduling", flags=flags) as plane:
        namespace = plane.make_namespace("gangs")
        with Access(str(plane.kubeconfig), None, namespace, environ={}).api() as api:
            backend = KubernetesBackend(api, facts=ClusterFacts(namespace=namespace))
            backend.launch(Plan(require_valid(a_job(**JOB)), "k"), Owner("ada", "worker", "detached"))
            base = ClusterFacts(namespace=namespace)
            until(
                "its PodGroup",
                lambda: (
                    installed.complete_facts(api, base).operator_gangs
                    == {"training-operator": "coscheduling"}
                ),
            )


# --- the command line


def test_the_verbs(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"name": "digits", "command": ["true"], **JOB, "workers": 1}))

    def ab(*words: str, at: str = namespace) -> subprocess.CompletedProcess[str]:
        where = ["--kubeconfig", str(cluster.kubeconfig), "-n", at]
        command = [sys.executable, "-m", "allaboard", *words, *where]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    said = ab("preflight", str(job))
    assert said.returncode == 0, said.stdout + said.stderr
    assert "nothing is in the way of digits" in said.stdout
    body = json.loads(ab("preflight", str(job), "--json").stdout)
    wrong = {(c["id"], c["severity"]) for c in body["checks"] if c["ok"] is False}
    nodes = cluster.api.list("v1", "Node")
    lacks = {("orphans", "warning")}  # no reaper
    assert set(body) == {"checks"} and wrong == (lacks if nodes else {*lacks, ("nodes", "warning")})
    assert "Training Operator v1" in ab("cluster").stdout
    nowhere = ab("cluster", at=f"{namespace}x")
    assert nowhere.returncode == 2 and f"does not exist; did you mean {namespace!r}?" in nowhere.stderr
