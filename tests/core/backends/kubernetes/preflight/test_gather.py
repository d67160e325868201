"""What would stop a job on a cluster is said before it is sent, each with what to do."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Plan
from allaboard.backends.check import Check
from allaboard.backends.kubernetes.client.errors import Cause, Exists, Forbidden, Invalid
from allaboard.backends.kubernetes.discovery import capacity, rbac
from allaboard.backends.kubernetes.discovery.capacity import Pods
from allaboard.backends.kubernetes.discovery.installed import Node, Survey, survey_cluster
from allaboard.backends.kubernetes.discovery.pod_security import violations
from allaboard.backends.kubernetes.discovery.pod_specs import pod_spec
from allaboard.backends.kubernetes.lifecycle.prepare import PreparedAttempt, prepare_attempt
from allaboard.backends.kubernetes.preflight import checks as checks_module
from allaboard.backends.kubernetes.preflight import openshift
from allaboard.backends.kubernetes.preflight.gather import preflight
from allaboard.backends.kubernetes.preflight.openshift import GROUPS, USERS
from allaboard.checking.job import require_valid
from allaboard.errors import BackendUnreachable
from allaboard.gangs.requests import amount
from allaboard.job.site import Site
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.testing import a_job
from tests.core.backends.kubernetes.answers import Answers, Json, ago

PYTORCHJOB = "kubeflow.org/v1/PyTorchJob"
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1/PodGroup"
JOB: Json = {"image": "train:1", "workers": 3, "resources": {"cpu": 2, "memory": "4Gi", "gpu": 1}}


def named(name: str, **body: Any) -> Json:
    return {"metadata": {"name": name}, **body}


def a_node(name: str = "n1", labels: Json | None = None, taints: Any = (), **allocatable: str) -> Json:
    room = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "4", **allocatable}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def operator_answers(body: Json) -> None:
    if body["metadata"]["name"] == "allaboard-probe":
        raise Forbidden('admission webhook "validator.x" denied the request: no', status=403)


REAPER = named(
    "allaboard-reaper", spec={"renewTime": "2999-01-01T00:00:00.000000Z", "leaseDurationSeconds": 60}
)
OBJECTS: dict[str, list[Json]] = {
    "leases.coordination.k8s.io": [REAPER],
    "namespaces": [named("research")],
    "serviceaccounts": [named("default")],
    "nodes": [a_node()],
}


def stale(lease: Json) -> Json:
    return {**lease, "spec": {**lease["spec"], "renewTime": ago(100)}}


class Cluster:
    """A cluster on which `JOB` can run; what a test changes is what may stop it."""

    def __init__(self, **given: Any) -> None:
        objects = {**copy.deepcopy(OBJECTS), **given.pop("objects", {})}
        kinds = given.pop("kinds", [PYTORCHJOB, COSCHEDULING])
        self.refuses: Callable[[Json], None] = given.pop("refuses", lambda body: None)
        self.answers = Answers(kinds, objects, given.pop("denied", ()), self._refuses)
        assert not given

    def _refuses(self, body: Json) -> None:
        operator_answers(body)
        self.refuses(body)

    def ready(self, found: Survey, **job: Any) -> PreparedAttempt:
        fields = {**JOB, **{k: v for k, v in job.items()}}
        plan = Plan(require_valid(a_job(**{k: v for k, v in fields.items() if v is not None})), "k")
        facts = found.facts(ClusterFacts(namespace="research"))
        return prepare_attempt(plan, 1, 1, Site("s3://bucket"), facts, {})

    def checks(self, **job: Any) -> list[Check]:
        found = survey_cluster(self.answers, self.answers.server, "research")
        return preflight(self.answers, self.ready(found, **job), found)

    def says(self, id: str, **job: Any) -> Check:
        """The one check of this id."""
        [found] = [check for check in self.checks(**job) if check.id == id]
        return found


def test_a_job_that_can_run_passes_every_check() -> None:
    found = Cluster().checks(gang={"scheduler": "coscheduling"})
    assert [c for c in found if c.ok is False] == []
    assert {c.id for c in found if c.ok} == {
        "namespace", "kinds", "operator", "rbac", "orphans", "service_account",
            "nodes", "quota", "limit_range",
        "pod_security", "names", "dry_run", "disruption_budget",
    }  # fmt: skip
    assert [c.id for c in found if c.ok is None] == ["gang"], "only its first gang shows that it acts"


def test_every_check_says_all_of_its_fields() -> None:
    for check in Cluster(kinds=[PYTORCHJOB]).checks():
        body = check.to_dict()
        assert set(body) == {"id", "ok", "severity", "summary", "evidence", "fix"}
        assert all(set(piece) == {"object", "field", "text"} for piece in body["evidence"])
        assert check.ok is not False or check.fix, "what fails says what to do"
        json.dumps(body)


def test_nothing_is_created() -> None:
    cluster = Cluster()
    cluster.checks()
    assert {verb for verb, _ in cluster.answers.asked} <= {"GET", "get", "list", "create"}
    kinds = [body["kind"] for body in cluster.answers.tried]
    assert kinds == ["PyTorchJob", "ConfigMap", "PodGroup", "PyTorchJob", "Pod", "Pod"], (
        "the probe, the objects, a pod of each role"
    )


def test_what_stops_the_job_comes_first() -> None:
    found = Cluster(objects={"serviceaccounts": []}, denied=[("list", "nodes")]).checks()
    assert [c.ok for c in found][:2] == [False, None] and found[0].id == "service_account"


# --- the cluster


def test_a_namespace_that_is_not_there() -> None:
    check = Cluster(objects={"namespaces": []}).says("namespace")
    assert check.stops and "does not exist" in check.summary and "kubectl create namespace" in str(check.fix)


def test_a_namespace_that_is_being_deleted() -> None:
    leaving = {"metadata": {"name": "research", "deletionTimestamp": ago(5)}}
    assert Cluster(objects={"namespaces": [leaving]}).says("namespace").stops


def test_a_kind_that_is_not_served_names_what_installs_it() -> None:
    check = Cluster(kinds=[]).says("kinds", workers=1)
    assert check.stops and check.summary == "kubeflow.org/v1 PyTorchJob is not served here"
    assert "Training Operator v1" in str(check.fix) and "kubectl apply" in str(check.fix)


def test_a_living_operator_is_never_to_be_replaced_by_an_older_one() -> None:
    """MXJobs went with 1.9: to install 1.8 over it would take the other kinds away."""
    check = Cluster(kinds=[PYTORCHJOB]).says("kinds", workers=1, framework="mxnet")
    assert check.stops and "MXJob" in check.summary
    assert "kubectl apply" not in str(check.fix) and "1.8" not in str(check.fix)
    assert "is installed" in str(check.fix) and "allaboard convert" in str(check.fix)


def test_another_version_is_named() -> None:
    check = Cluster(kinds=["kubeflow.org/v2/PyTorchJob"]).says("kinds", workers=1)
    assert check.evidence[0].text == "served are kubeflow.org/v2/PyTorchJob"


def test_an_operator_that_is_away() -> None:
    def away(body: Json) -> None:
        raise BackendUnreachable(
            'answers 500: failed calling webhook "v": connection refused (2 tries in 8 s)'
        )

    cluster = Cluster()
    cluster.answers.refuses = away
    found = {check.id: check for check in cluster.checks(workers=1)}
    assert found["operator"].stops and "does not answer" in found["operator"].summary
    assert found["dry_run"].stops and "is away" in str(found["dry_run"].fix)


def test_a_gang_that_nobody_starts_together_is_a_warning() -> None:
    check = Cluster(kinds=[PYTORCHJOB]).says("gang")
    assert check.ok is False and not check.stops
    assert "nothing starts its 3 members together" in check.summary and "allaboard cluster" in str(check.fix)
    assert "gang" not in {c.id for c in Cluster(kinds=[PYTORCHJOB]).checks(workers=1)}


def test_the_gang_of_a_runtime_of_the_cluster_is_its_own_affair() -> None:
    """To name a gang scheduler would be refused."""
    own = {"engine": "trainjob", "engine_spec": {"runtimeRef": {"name": "torch-distributed"}}}
    check = Cluster(kinds=["trainer.kubeflow.org/v1alpha1/TrainJob", COSCHEDULING]).says("gang", **own)
    assert check.ok is None and "the runtime that the job names decides" in check.summary


def test_a_gang_scheduler_that_was_seen_at_work() -> None:
    pod = {
        "metadata": {"name": "p", "labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        "spec": {"schedulerName": "my-scheduler", "nodeName": "n1"},
        "status": {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(60)}]},
    }
    check = Cluster(objects={"pods": [pod]}).says("gang")
    assert check.ok is True and "my-scheduler" in check.summary


AWAY = {"name": "l"}, {"renewTime": ago(7200), "leaseDurationSeconds": 15}


@pytest.mark.parametrize("asked", ["coscheduling", "auto"])
def test_a_gang_scheduler_that_only_left_its_kinds_is_told_with_what_helps(asked: str) -> None:
    """By name nothing would start; by itself another way is taken, and nobody is told to name it."""
    lease = {"metadata": AWAY[0], "spec": AWAY[1]}
    cluster = Cluster(objects={"scheduler-plugins/leases.coordination.k8s.io": [lease]})
    check = cluster.says("gang", gang={"scheduler": asked})
    assert check.ok is False and check.stops == (asked != "auto")
    assert "kubectl -n scheduler-plugins get deployments,pods" in str(check.fix)
    assert "kubectl delete crd podgroups.scheduling.x-k8s.io" in str(check.fix)
    assert "say gang" not in str(check.fix)


# --- who asks


def test_every_permission_that_will_be_used_is_asked_for() -> None:
    check = Cluster().says("rbac", workers=1, gang={"scheduler": "none"})
    wanted = len(rbac.needed([("kubeflow.org", "pytorchjobs")]))
    assert check.summary == f"ada may do all of the {wanted} things that the job needs"


@pytest.mark.parametrize(("engine", "asks"), [("jobset", True), ("trainjob", False)])
def test_secrets_are_asked_for_where_a_key_is_made_and_nowhere_else(engine: str, asks: bool) -> None:
    kinds = [f"trainer.kubeflow.org/v1alpha1/{kind}" for kind in ("TrainJob", "TrainingRuntime")]
    denied = [(verb, "secrets") for verb in ("get", "list", "create", "patch", "delete")]
    found = Cluster(kinds=[*kinds, "jobset.x-k8s.io/v1alpha2/JobSet"], denied=denied)
    mpi = {"framework": "mpi", "engine": engine, "command": ["mpirun", "x"]}
    check = found.says("rbac", **mpi)
    assert check.stops is asks
    assert ("allaboard cluster --rbac mpi -n research" in str(check.fix)) is asks
    assert "list secrets" not in str(check.evidence)
    assert found.says("rbac", engine=engine).ok, "of another framework nothing is asked"


def test_what_is_denied_is_named_with_the_role_that_allows_it() -> None:
    check = Cluster(denied=[("create", "pytorchjobs"), ("get", "pods")]).says("rbac")
    assert check.stops and "ada may not create pytorchjobs.kubeflow.org" in check.summary
    assert {e.text for e in check.evidence} == {
        "may not create pytorchjobs.kubeflow.org",
        "may not get pods",
        "may not get pods/log",
    }
    assert "allaboard cluster --rbac submitter -n research" in str(check.fix)


def test_the_kinds_of_other_engines_are_nobodys_business() -> None:
    denied = [(verb, "podgroups") for verb in ("get", "list", "create", "patch", "delete")]
    assert Cluster(denied=denied).says("rbac", workers=1, gang={"scheduler": "none"}).ok
    assert Cluster(denied=denied).says("rbac", gang={"scheduler": "coscheduling"}).stops


def test_what_may_not_be_looked_at_is_said_and_stops_nothing() -> None:
    denied = [("get", "namespaces"), ("list", "resourcequotas"), ("get", "secrets"), ("list", "nodes")]
    found = Cluster(denied=denied).checks(secrets=[{"name": "aws", "env": True}])
    assert not any(check.stops for check in found)
    unknown = {check.id: check.summary for check in found if check.ok is None}
    assert unknown["quota"] == "quotas of the namespace may not be read"
    assert unknown["secrets"] == "secret aws may not be looked at"
    assert "resourcequotas" in unknown["blind_spots"]


# --- volumes, secrets, accounts


def a_claim(*modes: str, phase: str = "Bound", **more: Any) -> Json:
    return named(
        "datasets", spec={"accessModes": [*modes]}, status={"phase": phase, "accessModes": [*modes]}, **more
    )


DATA = [{"mount": "/data", "pvc": "datasets"}]


def test_a_claim_that_is_not_there() -> None:
    check = Cluster().says("volumes", storage=DATA)
    assert check.stops and "claim datasets does not exist in research" in check.summary


@pytest.mark.parametrize(
    ("modes", "workers", "read_only", "stops"),
    [
        (["ReadWriteMany"], 3, False, False),
        (["ReadWriteOnce", "ReadWriteMany"], 3, False, False),
        (["ReadWriteOnce"], 1, False, False),
        (["ReadWriteOnce"], 3, False, True),
        (["ReadWriteOnce"], 3, True, True),
        (["ReadOnlyMany"], 3, True, False),
        (["ReadOnlyMany"], 3, False, True),
        (["ReadWriteOncePod"], 3, False, True),
    ],
)
def test_a_claim_must_be_mountable_by_all_members(
    modes: list[str], workers: int, read_only: bool, stops: bool
) -> None:
    objects = {"persistentvolumeclaims": [a_claim(*modes)], "nodes": [a_node("n1"), a_node("n2")]}
    storage = [{**DATA[0], **({"read_only": True} if read_only else {})}]
    check = Cluster(objects=objects).says("volumes", storage=storage, workers=workers)
    assert check.stops is stops, check.summary


def test_on_one_node_alone_a_claim_of_one_node_is_enough() -> None:
    cluster = Cluster(objects={"persistentvolumeclaims": [a_claim("ReadWriteOnce")]})
    assert cluster.says("volumes", storage=DATA).ok
    hidden = Cluster(
        objects={"persistentvolumeclaims": [a_claim("ReadWriteOnce")]}, denied=[("list", "nodes")]
    )
    check = hidden.says("volumes", storage=DATA)
    assert check.ok is False and not check.stops, "who knows how many nodes there are"


# Claims that are made with the job, and what provides them.


def a_class(
    name: str = "fast", provisioner: str = "nfs.csi.k8s.io", default: bool = False, **more: Any
) -> Json:
    said = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {"metadata": {"name": name, "annotations": said}, "provisioner": provisioner, **more}


def with_classes(*classes: Json, **objects: Any) -> Cluster:
    return Cluster(objects={"storageclasses.storage.k8s.io": [*classes], **objects})


OURS = [{"mount": "/ckpt", "claim": {"size": "10Gi"}}]


def ours(**claim: Any) -> dict[str, Any]:
    return {"storage": [{"mount": "/ckpt", "claim": {"size": "10Gi", **claim}}]}


def test_a_claim_that_will_be_made_is_tried_and_told() -> None:
    cluster = with_classes(a_class(default=True))
    check = cluster.says("volumes", storage=OURS)
    assert check.ok and check.summary.endswith("-ckpt will be made and fit 3 members")
    assert "PersistentVolumeClaim" in [body["kind"] for body in cluster.answers.tried]


@pytest.mark.parametrize(
    ("classes", "claim", "summary", "fix"),
    [
        ([], {}, "names no storage class, and the cluster has no default one", "ask who runs the cluster"),
        ([a_class("a"), a_class("b")], {}, "the cluster has no default one", "say storage_class: a or b"),
        (
            [a_class("cephfs")],
            {"storage_class": "cepfs"},
            "cepfs, which does not exist",
            "did you mean cephfs?",
        ),
        ([a_class("x")], {"storage_class": "quobyte"}, "quobyte, which does not exist", "name one of x"),
    ],
)
def test_a_claim_that_nothing_would_provide(classes: list[Json], claim: Json, summary: str, fix: str) -> None:
    check = with_classes(*classes).says("volumes", **ours(**claim))
    assert check.stops and summary in check.summary and fix in str(check.fix)
    ephemeral = {"storage": [{"mount": "/hot", "ephemeral": {"size": "1Gi", **claim}}]}
    check = next(c for c in with_classes(*classes).checks(**ephemeral) if c.id == "volumes")
    assert check.stops and summary in check.summary and "ephemeral volume storage-0" in check.summary


def test_a_claim_of_many_nodes_from_disks_of_one() -> None:
    disks = with_classes(a_class("gp3", "ebs.csi.aws.com", default=True))
    check = disks.says("volumes", **ours())
    assert check.ok is False and not check.stops, "some drivers of its name may do more"
    assert "its class provides Amazon EBS, for one node alone" in check.summary
    assert "shared file system" in str(check.fix) and disks.says("volumes", **ours(), workers=1).ok


def test_several_members_on_a_claim_of_ours_that_one_mounts() -> None:
    nodes = [a_node("n1"), a_node("n2")]
    check = with_classes(a_class(default=True), nodes=nodes).says("volumes", **ours(access="once"))
    assert check.stops and "3 members mount it" in check.summary and "access: many" in str(check.fix)


def test_a_claim_that_waits_for_its_first_member_is_well_and_another_one_is_not() -> None:
    late = a_class("late", volumeBindingMode="WaitForFirstConsumer")
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "late"}
    claim = named("datasets", spec=spec, status={"phase": "Pending"})
    assert with_classes(late, persistentvolumeclaims=[claim]).says("volumes", storage=DATA).ok
    now = {**late, "volumeBindingMode": "Immediate"}
    check = with_classes(now, persistentvolumeclaims=[claim]).says("volumes", storage=DATA)
    assert check.ok is False and not check.stops and "waits for a volume" in check.summary
    assert "kubectl describe persistentvolumeclaim datasets" in str(check.fix)
    gone = with_classes(persistentvolumeclaims=[claim]).says("volumes", storage=DATA)
    assert gone.stops and "late, which does not exist" in gone.summary
    no_class = {**claim, "spec": {**spec, "storageClassName": ""}}
    check = with_classes(persistentvolumeclaims=[no_class]).says("volumes", storage=DATA)
    assert "somebody has to make a volume for it" in check.summary


def test_classes_that_may_not_be_read_say_nothing() -> None:
    cluster = Cluster(denied=[("list", "storageclasses")])
    assert cluster.says("volumes", **ours(storage_class="whatever")).ok


def test_a_claim_that_is_being_deleted() -> None:
    claim = a_claim("ReadWriteMany")
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    check = Cluster(objects={"persistentvolumeclaims": [claim]}).says("volumes", storage=DATA)
    assert check.stops and "is being deleted" in check.summary


def test_the_right_to_make_claims_is_asked_for_those_who_make_some() -> None:
    denied = [("create", "persistentvolumeclaims")]
    objects = {"storageclasses.storage.k8s.io": [a_class(default=True)]}
    check = Cluster(objects=objects, denied=denied).says("rbac", storage=OURS)
    assert check.stops and "create persistentvolumeclaims" in check.summary
    assert "allaboard cluster --rbac claims -n research" in str(check.fix)
    assert Cluster(denied=denied).says("rbac").ok


def test_a_service_account_that_the_job_names() -> None:
    check = Cluster().says("service_account", service_account="trainer")
    assert check.stops and check.summary == "service account trainer is not there in research"
    there = Cluster(objects={"serviceaccounts": [named("trainer")]})
    assert there.says("service_account", service_account="trainer").ok


def test_secrets_that_are_not_there() -> None:
    cluster = Cluster(objects={"secrets": [named("aws")]})
    assert cluster.says("secrets", secrets=[{"name": "aws", "env": True}]).ok
    check = cluster.says("secrets", secrets=[{"name": "aws", "env": True}, {"name": "hf", "mount": "/hf"}])
    assert check.stops and check.summary == "secret hf is not there in research"


def test_what_pod_names_is_looked_for_too() -> None:
    pod = {
        "serviceAccountName": "trainer",
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "registry"}],
        "volumes": [{"name": "c", "configMap": {"name": "settings"}}],
    }
    found = {c.summary for c in Cluster().checks(pod={"spec": pod}) if c.stops}
    assert found == {
        "service account trainer is not there in research",
        "priority class high is not there",
        "secret registry is not there in research",
        "ConfigMap settings is not there in research",
    }


def test_the_code_that_a_job_brings_is_not_missed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    cluster = Cluster()
    found = survey_cluster(cluster.answers, "x", "research")
    plan = Plan(a_job(**JOB, code=["train.py"], folder=str(tmp_path)), "k")
    made = prepare_attempt(plan, 1, 1, Site("s3://b"), found.facts(ClusterFacts(namespace="research")), {})
    assert [c for c in preflight(cluster.answers, made, found) if c.ok is False and c.stops] == []
    assert "ConfigMap" in [body["kind"] for body in cluster.answers.tried]


# --- quota and limits


def a_quota(hard: Json, used: Json | None = None, **spec: Any) -> Json:
    return named("team", spec={"hard": hard, **spec}, status={"hard": hard, "used": used or {}})


def test_a_gang_that_never_fits_its_quota() -> None:
    check = Cluster(objects={"resourcequotas": [a_quota({"requests.nvidia.com/gpu": "2"})]}).says("quota")
    assert check.stops
    assert check.summary == "the gang asks for 3 requests.nvidia.com/gpu; quota team allows 2 in all"


def test_a_gang_that_must_wait_for_its_quota_is_a_warning() -> None:
    quota = a_quota({"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "2"})
    check = Cluster(objects={"resourcequotas": [quota]}).says("quota")
    assert check.ok is False and not check.stops and "2 of quota team are left" in check.summary


@pytest.mark.parametrize(
    "hard",
    [{"pods": "2"}, {"requests.memory": "11Gi"}, {"memory": "11Gi"}, {"limits.memory": "11Gi"},
     {"requests.cpu": "5500m"}, {"count/pytorchjobs.kubeflow.org": "0"}],
    ids=lambda hard: next(iter(hard)),
)  # fmt: skip
def test_every_sort_of_quota_counts(hard: Json) -> None:
    assert Cluster(objects={"resourcequotas": [a_quota(hard)]}).says("quota").stops


def test_a_quota_that_holds_the_gang_is_well() -> None:
    quota = a_quota(
        {"pods": "10", "requests.nvidia.com/gpu": "3", "requests.memory": "12Gi", "requests.cpu": "7"}
    )
    assert Cluster(objects={"resourcequotas": [quota]}).says("quota").ok


def test_a_quota_insists_that_cpu_and_memory_are_stated() -> None:
    cluster = Cluster(objects={"resourcequotas": [a_quota({"requests.cpu": "100"})]})
    check = cluster.says("quota", resources={"memory": "1Gi"}, workers=1)
    assert check.stops and "do not state it" in check.summary and "cpu" in str(check.fix)
    default = named("d", spec={"limits": [{"type": "Container", "defaultRequest": {"cpu": "1"}}]})
    helped = Cluster(objects={"resourcequotas": [a_quota({"requests.cpu": "100"})], "limitranges": [default]})
    assert helped.says("quota", resources={"memory": "1Gi"}, workers=1).ok


def test_a_quota_for_other_pods_does_not_count() -> None:
    quotas = [a_quota({"pods": "0"}, scopes=["Terminating"]), a_quota({"pods": "0"}, scopeSelector={"x": 1})]
    assert Cluster(objects={"resourcequotas": quotas}).says("quota").ok


def a_limit(kind: str = "Container", **item: Any) -> dict[str, list[Json]]:
    return {"limitranges": [named("r", spec={"limits": [{"type": kind, **item}]})]}


def test_a_member_beyond_a_limit_range() -> None:
    check = next(c for c in Cluster(objects=a_limit(max={"memory": "2Gi"})).checks() if c.id == "limit_range")
    assert (
        check.stops and check.summary == "container pytorch of master has 4Gi memory; at most 2Gi is allowed"
    )
    assert next(
        c for c in Cluster(objects=a_limit("Pod", min={"cpu": "3"})).checks() if c.id == "limit_range"
    ).stops
    assert Cluster(objects=a_limit(max={"memory": "8Gi"})).says("limit_range").ok


def test_a_default_limit_of_memory_is_a_trap() -> None:
    cluster = Cluster(objects=a_limit(default={"memory": "512Mi"}))
    check = next(c for c in cluster.checks(resources={"gpu": 1}) if c.id == "limit_range")
    assert check.ok is False and not check.stops and "would be killed at 512Mi" in check.summary
    assert cluster.says("limit_range").ok, "who states it is not touched"


# --- Pod Security, OpenShift

SECURE_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
SECURE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def level(name: str) -> dict[str, list[Json]]:
    labels = {"pod-security.kubernetes.io/enforce": name}
    return {"namespaces": [{"metadata": {"name": "research", "labels": labels}}]}


def test_the_pod_security_level_of_the_namespace() -> None:
    assert Cluster(objects=level("baseline")).says("pod_security").ok
    assert Cluster(objects=level("restricted")).says("pod_security", workers=1).ok, "members keep it unasked"
    broken = {"containers": [{"name": "pytorch", "securityContext": {"allowPrivilegeEscalation": True}}]}
    check = Cluster(objects=level("restricted")).says("pod_security", pod={"spec": broken}, workers=1)
    assert check.stops and "no member would ever be created" in check.summary
    assert [e.text for e in check.evidence] == [
        "master: container pytorch: allowPrivilegeEscalation must be false"
    ]
    assert "security: restricted" in str(check.fix)


@pytest.mark.parametrize("enforced", ["baseline", "restricted"])
def test_a_folder_of_the_node_is_refused_and_ephemeral_is_the_way(enforced: str) -> None:
    pod = {"securityContext": SECURE_POD, "containers": [{"name": "pytorch", "securityContext": SECURE}]}
    job = {"pod": {"spec": pod}, "workers": 1, "storage": [{"mount": "/hot", "host_path": "/mnt/ssd"}]}
    check = Cluster(objects=level(enforced)).says("pod_security", **job)
    assert check.stops and "master: volume storage-0: hostPath" in {e.text for e in check.evidence}
    assert "say ephemeral: {size: ..., storage_class: ...} in place of host_path" in str(check.fix)
    assert "runAsNonRoot" not in str(check.fix), "the rest is in order"
    assert Cluster(objects=level("privileged")).says("pod_security", **job).ok


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"host_network": True}, "take host_network out"),
        ({"pod": {"spec": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}}, "a claim, or empty_dir"),
    ],
)
def test_what_no_security_context_helps_against_is_told_as_what_it_is(fields: Json, words: str) -> None:
    check = Cluster(objects=level("baseline")).says("pod_security", **fields)
    assert check.stops and words in str(check.fix)


def test_members_do_not_ask_for_what_a_level_forbids() -> None:
    rdma = {"resources": {"devices": {"rdma/hca": 1}}}
    assert Cluster(objects=level("baseline")).says("pod_security", **rdma).ok, "without IPC_LOCK"


def test_the_restricted_level_meets_the_operators_own_container() -> None:
    check = Cluster(objects=level("restricted")).says("pod_security")
    assert check.stops and "--pytorch-init-container-template-file" in str(check.fix)
    assert {e.text.partition(":")[0] for e in check.evidence} == {"worker"}


@pytest.mark.parametrize(
    ("spec", "level_", "words"),
    [
        ({"hostNetwork": True}, "baseline", "hostNetwork"),
        ({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "baseline", "hostPath"),
        ({"containers": [{"name": "c", "securityContext": {"privileged": True}}]}, "baseline", "privileged"),
        ({"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]}, "baseline", "hostPort"),
        (
            {"containers": [{"name": "c", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
            "baseline",
            "SYS_ADMIN",
        ),
        ({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}]}}, "baseline", "kernel.msgmax"),
        ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "baseline", "seLinuxOptions"),
        ({"volumes": [{"name": "n", "nfs": {}}]}, "restricted", "nfs"),
        ({"securityContext": {**SECURE_POD, "runAsUser": 0}}, "restricted", "runAsUser: 0"),
    ],
)  # fmt: skip
def test_what_a_level_refuses(spec: Json, level_: str, words: str) -> None:
    base = {"containers": [{"name": "c", "securityContext": SECURE}], "securityContext": SECURE_POD}
    assert violations(base, "restricted") == []
    assert any(words in found for found in violations({**base, **spec}, level_))
    assert violations({**base, **spec}, "privileged") == []


def test_openshifts_constraints_are_told_by_a_dry_run() -> None:
    def refuses(body: Json) -> None:
        if body["kind"] == "Pod":
            raise Forbidden("unable to validate against any security context constraint: []", status=403)

    kinds = [PYTORCHJOB, "security.openshift.io/v1/SecurityContextConstraints"]
    assert Cluster(kinds=kinds, refuses=refuses).says("scc").stops
    assert Cluster(kinds=kinds).says("scc").ok
    blind = Cluster(kinds=kinds, denied=[("create", "pods")])
    assert blind.says("scc", security="restricted").ok, "by its rules"
    told = blind.says("scc", host_network=True)
    assert told.ok is False and not told.stops, "another constraint may be bound"
    assert "master" in told.evidence[0].object and told.evidence[0].text == "hostNetwork: true"


@pytest.mark.parametrize(
    ("spec", "annotations", "words"),
    [
        ({"securityContext": {"runAsUser": 1000}}, {}, "runAsUser 1000"),
        ({"securityContext": {"runAsUser": 1000}}, {USERS: "1000680000/10000"}, "runAsUser 1000"),
        ({"securityContext": {"runAsUser": 1000680005}}, {USERS: "1000680000/10000"}, None),
        ({"securityContext": {"runAsUser": 1000690000}}, {USERS: "1000680000/10000"}, "runAsUser"),
        ({"securityContext": {"fsGroup": 0}}, {GROUPS: "1000680000/10000"}, "fsGroup 0"),
        ({"securityContext": {"fsGroup": 7}}, {GROUPS: "1-9"}, None),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, {}, "seccompProfile"),
        ({"hostNetwork": True}, {}, "hostNetwork"),
        ({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, {}, "hostPath"),
        ({"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]}, {}, "hostPort"),
        ({"containers": [{"name": "c", "securityContext": {"privileged": True}}]}, {}, "privileged"),
        (
            {"initContainers": [{"name": "i", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}]},
            {},
            "IPC_LOCK",
        ),
        ({"containers": [{"name": "c", "securityContext": {"runAsUser": "x"}}]}, {}, "runAsUser x"),
    ],
)
def test_what_the_constraint_of_every_account_refuses(
    spec: Json, annotations: Json, words: str | None
) -> None:
    found = openshift.violations(spec, annotations)
    assert len(found) == (words is not None) and all(str(words) in text for text in found)


# --- devices, disruptions

CLAIMS: Json = {"resources": {"gpu": 2, "device_class": "gpu.nvidia.com"}, "workers": 2}
DRA = "resource.k8s.io/v1/"
DRA_KINDS = [PYTORCHJOB, *(DRA + kind for kind in ("ResourceClaimTemplate", "DeviceClass", "ResourceSlice"))]
CLASS = named(
    "gpu.nvidia.com",
    spec={"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
)


def slices(*devices: int, driver: str = "gpu.nvidia.com") -> list[Json]:
    return [
        {"metadata": {"name": f"s{n}"}, "spec": {"driver": driver, "nodeName": f"n{n}", "devices": [{}] * k}}
        for n, k in enumerate(devices)
    ]


@pytest.mark.parametrize(
    ("classes", "there", "ok", "words"),
    [
        ([], [], False, "does not exist"),
        ([CLASS], [], False, "no node offers devices of gpu.nvidia.com"),
        ([CLASS], slices(1, 1), False, "a node has 1 at most"),
        ([CLASS], slices(2), False, "the nodes have 2 at most"),
        ([CLASS], slices(2, 2), True, "nodes have 4 devices"),
        ([CLASS], slices(8, driver="x"), False, "no node offers"),
        ([named("gpu.nvidia.com")], slices(8), None, "its selectors do not tell"),
    ],
)
def test_devices_that_members_claim(
    classes: list[Json], there: list[Json], ok: bool | None, words: str
) -> None:
    check = Cluster(kinds=DRA_KINDS, objects=devices(classes, there)).says("device_class", **CLAIMS)
    assert check.ok is ok and words in check.summary
    assert check.stops == (words == "does not exist")


def devices(classes: list[Json], there: list[Json]) -> Json:
    return {"deviceclasses.resource.k8s.io": classes, "resourceslices.resource.k8s.io": there}


def test_devices_that_may_not_be_looked_at_are_unknown() -> None:
    known = devices([CLASS], slices(1))
    for denied, words in (
        (("get", "deviceclasses"), "may not be looked at"),
        (("list", "resourceslices"), "what nodes have may not be read"),
    ):
        check = Cluster(kinds=DRA_KINDS, objects=known, denied=[denied]).says("device_class", **CLAIMS)
        assert check.ok is None and words in check.summary


def budget(name: str, selector: Json | None = None, **spec: Any) -> Json:
    ours = {"matchLabels": {"app.kubernetes.io/managed-by": "allaboard"}}
    return named(name, spec={"selector": ours if selector is None else selector, **spec})


@pytest.mark.parametrize(
    ("budgets", "ok", "words"),
    [
        ([], True, "lets them go at once"),
        ([budget("web", {"matchLabels": {"app": "web"}})], True, "lets them go at once"),
        ([budget("keep", maxUnavailable=1)], True, "keep selects the members"),
        ([budget("keep", maxUnavailable=0)], False, "keep allows no eviction"),
        ([budget("keep", {}, minAvailable="100%")], False, "keep allows no eviction"),
        ([budget("a", minAvailable=1), budget("b", {}, minAvailable=1)], False, "a, b select the same pods"),
        (
            [budget("in", {"matchExpressions": [{"key": "allaboard.io/job", "operator": "Exists"}]})],
            True,
            "in selects the members",
        ),
        (
            [budget("not", {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]})],
            True,
            "lets them go at once",
        ),
    ],
)
def test_budgets_that_hold_a_drain(budgets: list[Json], ok: bool, words: str) -> None:
    check = Cluster(objects={"poddisruptionbudgets.policy": budgets}).says("disruption_budget")
    assert check.ok is ok and words in check.summary and not check.stops


def test_budgets_that_may_not_be_read_are_unknown() -> None:
    cluster = Cluster(denied=[("list", "poddisruptionbudgets")])
    assert cluster.says("disruption_budget").ok is None


# --- nodes


def test_a_device_that_no_node_offers() -> None:
    nodes = [a_node(**{"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "7"})]
    check = Cluster(objects={"nodes": nodes}).says("nodes")
    assert check.stops and "no node offers nvidia.com/gpu" in check.summary
    assert "nvidia.com/mig-1g.5gb" in check.evidence[0].text


def test_a_cluster_that_has_no_nodes_yet_may_get_some() -> None:
    check = Cluster(objects={"nodes": []}).says("nodes")
    assert (check.ok, check.severity, check.summary) == (False, "warning", "the cluster has no nodes now")
    assert "autoscaler" in check.fix


def test_a_member_larger_than_every_node() -> None:
    check = Cluster().says("nodes", resources={"gpu": 8, "memory": "1Gi"})
    assert check.stops and "larger than every node: 8 nvidia.com/gpu (it has 4)" in check.summary


def test_a_gang_larger_than_all_nodes_together() -> None:
    check = Cluster().says("nodes", workers=6)
    assert check.stops and check.summary == "4 of 6 members have a place at once, even on empty nodes"


def test_where_nodes_come_on_demand_too_few_are_a_warning() -> None:
    nodes = [a_node(labels={"karpenter.sh/nodepool": "gpu"})]
    check = Cluster(objects={"nodes": nodes}).says("nodes", workers=6)
    assert check.ok is False and not check.stops


def test_a_gpu_type_that_no_node_has() -> None:
    nodes = [a_node(labels={"nvidia.com/gpu.product": "NVIDIA-A100"})]
    cluster = Cluster(objects={"nodes": nodes})
    check = cluster.says("nodes", resources={"gpu": 1, "gpu_type": "NVIDIA-H100"})
    assert check.stops and check.fix == "nvidia.com/gpu.product is NVIDIA-A100 here, not NVIDIA-H100"
    assert cluster.says("nodes", resources={"gpu": 1, "gpu_type": "NVIDIA-A100"}).ok


def test_a_slice_that_no_card_here_has_is_told_with_what_they_have() -> None:
    label = {"nvidia.com/gpu.product": "NVIDIA-H200"}
    cluster = Cluster(objects={"nodes": [a_node(labels=label, **{"nvidia.com/mig-1g.18gb": "7"})]})
    check = cluster.says("nodes", resources={"mig": "1g.10gb"}, workers=1)
    assert check.stops and "no card here has this profile" in check.summary
    assert "1g.18gb" in check.evidence[0].text
    assert cluster.says("nodes", resources={"mig": "1g.18gb"}, workers=1).ok


def test_a_job_that_shares_gpus_hears_what_the_nodes_mean_by_it() -> None:
    label = {"nvidia.com/gpu.sharing-strategy": "time-slicing"}
    cluster = Cluster(objects={"nodes": [a_node(labels=label)]})
    check = cluster.says("gpu_sharing", resources={"gpu": 1, "shared": True})
    assert check.ok is False and not check.stops and "share memory and faults" in check.summary
    assert "gpu_sharing" not in [c.id for c in Cluster().checks(resources={"gpu": 1, "shared": True})]


def test_a_taint_that_is_not_tolerated() -> None:
    taint = {"key": "team", "value": "vision", "effect": "NoSchedule"}
    cluster = Cluster(objects={"nodes": [a_node(taints=[taint])]})
    check = cluster.says("nodes")
    assert check.stops and "team=vision:NoSchedule" in check.evidence[0].text
    tolerated = {"tolerations": [{"key": "team", "operator": "Exists"}]}
    assert cluster.says("nodes", pod={"spec": tolerated}).ok


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "zone", "operator": "In", "values": ["a"]}, True),
        ({"key": "zone", "operator": "In", "values": ["b"]}, False),
        ({"key": "zone", "operator": "NotIn", "values": ["b"]}, True),
        ({"key": "rack", "operator": "NotIn", "values": ["b"]}, True),
        ({"key": "rack", "operator": "Exists"}, False),
        ({"key": "rack", "operator": "DoesNotExist"}, True),
        ({"key": "size", "operator": "Gt", "values": ["3"]}, True),
        ({"key": "size", "operator": "Lt", "values": ["3"]}, False),
    ],
)
def test_required_affinity(expression: Json, fits: bool) -> None:
    term = {"matchExpressions": [expression]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    node = Node("n", {}, {"zone": "a", "size": "4"})
    assert (capacity.misfit(pod_spec({"affinity": {"nodeAffinity": required}}), node) is None) is fits


def test_pods_of_two_sizes_are_placed_largest_first() -> None:
    def pods(role: str, replicas: int, cpu: int) -> Pods:
        container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
        return Pods(role, replicas, {"containers": [container]}, {})

    nodes = [Node(f"n{n}", {"cpu": "8", "pods": "110"}) for n in range(2)]
    assert capacity.room([pods("small", 4, 2), pods("large", 2, 4)], nodes) == 6
    assert capacity.room([pods("small", 8, 2), pods("large", 2, 4)], nodes) == 6


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", "0.5"), ("2", "2"), ("1e3", "1000"), ("1E3", "1000"), ("32Gi", str(32 * 2**30)), ("1k", "1000"),
     ("5n", "5e-9")],
)  # fmt: skip
def test_quantities(text: str, value: str) -> None:
    from decimal import Decimal

    assert amount(text) == Decimal(value)


# --- the objects themselves


def test_what_the_api_server_refuses_is_quoted() -> None:
    def refuses(body: Json) -> None:
        if body["kind"] == "PyTorchJob":
            raise Invalid(
                'PyTorchJob is invalid: unknown field "spec.x"',
                status=422,
                causes=[Cause("spec.x", "unknown field")],
            )

    check = Cluster(refuses=refuses).says("dry_run")
    assert check.stops and [e.text for e in check.evidence] == ["unknown field"]
    assert check.evidence[0].field == "engine_spec.x"


TEMPLATE = "spec.pytorchReplicaSpecs.Master.template"


@pytest.mark.parametrize(
    ("job_path", "pod_path", "path", "near"),
    [
        (f"{TEMPLATE}.spec.hostNetwrk", "spec.hostNetwrk", "pod.spec.hostNetwrk", "hostNetwork"),
        (
            f"{TEMPLATE}.spec.containers[0].imagePulPolicy",
            "spec.containers[0].imagePulPolicy",
            "pod.spec.containers[0].imagePulPolicy",
            "imagePullPolicy",
        ),
        (f"{TEMPLATE}.spec.volumes[2].nfs.sever", "spec.volumes[2].nfs.sever",
         "pod.spec.volumes[2].nfs.sever", "server"),
        ("spec.runPolicy.cleanPodPolcy", None, "engine_spec.runPolicy.cleanPodPolcy", "cleanPodPolicy"),
        (f"{TEMPLATE}.spec.zzzzqq", "spec.zzzzqq", "pod.spec.zzzzqq", None),
    ],
)  # fmt: skip
def test_a_misspelt_field_is_told_once_with_its_path_and_the_nearest_name(
    job_path: str, pod_path: str | None, path: str, near: str | None
) -> None:
    def refuses(body: Json) -> None:
        field = job_path if body["kind"] == "PyTorchJob" else pod_path
        if body["kind"] in ("PyTorchJob", "Pod") and field is not None:
            words = f'cannot be handled as a {body["kind"]}: strict decoding error: unknown field "{field}"'
            raise Invalid(words, status=400, causes=[Cause(field, "unknown field", "UnknownField")])

    (check,) = [c for c in Cluster(refuses=refuses).checks() if c.id == "dry_run"]
    assert check.stops and check.summary.startswith(f"{path}: ")
    assert check.fix == (f"did you mean {near!r}?" if near else "take it out, or correct its name")


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        (
            'User "jo" cannot create resource "pytorchjobs" in API group "kubeflow.org"',
            "have the right granted",
        ),
        (
            "Pod cannot be handled as a Pod: json: cannot unmarshal string into Go struct field "
            "PodSpec.spec.hostNetwork of type bool",
            "spec.hostNetwork is a bool, not a string",
        ),
        ("Pod in version v1 cannot be handled as a Pod: odd", "correct what it names in the job"),
    ],
)
def test_only_a_missing_right_is_to_be_granted(said: str, fix: str) -> None:
    assert checks_module._what_to_do(said).startswith(fix)


def test_pods_are_tried_where_one_may() -> None:
    def refuses(body: Json) -> None:
        if body["kind"] == "Pod" and "worker" in body["metadata"]["name"]:
            raise Forbidden(
                "exceeded quota: team, requested: pods=1, used: pods=3, limited: pods=3", status=403
            )

    check = Cluster(refuses=refuses).says("dry_run")
    assert check.stops and check.summary.startswith("a pod of worker would be refused")
    quiet = Cluster(refuses=refuses, denied=[("create", "pods")]).says("dry_run")
    assert quiet.ok and "its pods could not be tried" in quiet.summary


def test_a_run_that_is_there_already_is_no_trouble() -> None:
    def refuses(body: Json) -> None:
        raise Exists("already exists", status=409)

    assert Cluster(refuses=refuses).says("dry_run").ok


def test_a_name_that_leaves_no_room_for_a_service() -> None:
    empty = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "a" * 60},
        "spec": {},
    }
    facts = checks_module.Facts(
        survey=Survey("x", "v1.36", "research", frozenset()),
        manifests=[empty],
        resources=[],
        gang=None,  # type: ignore[arg-type]
    )
    [check] = checks_module.names(facts)
    assert check.ok, "without members nothing is appended"
    template = {"spec": {"containers": [{"name": "pytorch"}]}}
    job = {
        **facts.manifests[0],
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 12, "template": template}}},
    }
    [check] = checks_module.names(checks_module.Facts(facts.survey, [job], [], facts.gang))
    assert check.stops and "70 characters" in check.summary and "7 shorter" in str(check.fix)


# --- who ends what nobody comes back for


@pytest.mark.parametrize(
    ("given", "ok", "words"),
    [
        ({}, True, "a reaper ends runs here"),
        (
            {"objects": {"leases.coordination.k8s.io": []}},
            False,
            "no reaper runs in namespace research; without",
        ),
        ({"objects": {"leases.coordination.k8s.io": [stale(REAPER)]}}, False, "no reaper runs in namespace"),
        (
            {"denied": [("list", "leases")]},
            None,
            "it is not known whether a reaper runs in namespace research",
        ),
    ],
    ids=["there", "none", "died", "hidden"],
)
def test_whether_a_reaper_is_at_work_is_told(given: Json, ok: bool | None, words: str) -> None:
    check = Cluster(**given).says("orphans")
    assert check.ok is ok and words in check.summary and not check.stops
    if not ok:
        assert check.fix == "allaboard cluster --reaper -n research | kubectl apply -f -"


# --- the Roles


def test_roles_are_plain_objects_for_one_namespace() -> None:
    import yaml

    for role in rbac.ROLES:
        documents = [d for d in yaml.safe_load_all(rbac.manifest(role, "research")) if d]
        # What `allaboard boost` does is the platform's: it may watch queues of all namespaces. What nodes and
        # queues have belongs to no namespace.
        whole = {"ClusterRole", "ClusterRoleBinding"} if role in ("boost", "capacity") else set()
        within = set() if role == "capacity" else {"Role", "RoleBinding"}
        own = [d for d in documents if d["kind"] not in whole]
        assert {d["metadata"]["namespace"] for d in own} <= {"research"}
        bindings = [d for d in documents if d["kind"].endswith("RoleBinding")]
        assert all(s["namespace"] == "research" for d in bindings for s in d["subjects"])
        # The others are for that of submitters.
        account = {"ServiceAccount"} if role in ("submitter", "viewer", "boost", "reaper") else set()
        runs = {"Deployment"} if role == "reaper" else set()
        assert {d["kind"] for d in documents} == within | account | whole | runs
        assert not any("*" in json.dumps(d) for d in documents), "least privilege names everything"


def test_whoever_looks_changes_nothing() -> None:
    assert {access.verb for access in rbac.wanted_accesses("viewer")} == {"get", "list", "watch"}
    submitter = [*rbac.wanted_accesses("submitter"), *rbac.wanted_accesses("submitter", rbac.PREFLIGHT)]
    assert {*rbac.wanted_accesses("viewer")} <= {*submitter}


def test_secrets_are_read_by_nobody() -> None:
    every = [
        *rbac.wanted_accesses("submitter"),
        *rbac.wanted_accesses("submitter", rbac.PREFLIGHT),
        *rbac.wanted_accesses("viewer"),
    ]
    assert "secrets" not in {access.resource for access in every}
    assert "list" not in {access.verb for access in rbac.wanted_accesses("mpi")}, (
        "those of others stay unseen"
    )


@pytest.mark.parametrize(("lacks", "fine"), [("", True), ("-of-another", False)])
def test_a_runtime_that_a_dry_run_never_made_is_no_trouble(lacks: str, fine: bool) -> None:
    def refuses(body: Json) -> None:
        if body["kind"] == "TrainJob" and body["metadata"]["name"] != "allaboard-probe":
            name = lacks or body["metadata"]["name"]
            raise Forbidden(f'TrainingRuntime "{name}" not found: it must be created before', status=403)

    kinds = [f"trainer.kubeflow.org/v1alpha1/{kind}" for kind in ("TrainJob", "TrainingRuntime")]
    found = Cluster(kinds=[*kinds, "jobset.x-k8s.io/v1alpha2/JobSet"], refuses=refuses)
    (check,) = [c for c in found.checks(engine="trainjob") if c.id == "dry_run"]
    assert check.ok is fine and ("of-another" in check.summary) is not fine


# --- queues and topology


LOCALQUEUE = "kueue.x-k8s.io/v1beta2/LocalQueue"
CLUSTERQUEUE = "kueue.x-k8s.io/v1beta2/ClusterQueue"


def with_kueue(gpus: str = "8", used: str = "0", denied: Any = (), **labels: str) -> Cluster:
    """A queue with these GPUs of one flavor, whose nodes have these labels."""
    quota = [{"name": name, "nominalQuota": "64"} for name in ("cpu", "memory")]
    quota[1]["nominalQuota"] = "512Gi"
    quota.append({"name": "nvidia.com/gpu", "nominalQuota": gpus})
    covered = [each["name"] for each in quota]
    groups = [{"coveredResources": covered, "flavors": [{"name": "h100", "resources": quota}]}]
    reserved = [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": used}]}]
    objects = {
        "localqueues.kueue.x-k8s.io": [named("team", spec={"clusterQueue": "gpus"}, status={})],
        "clusterqueues.kueue.x-k8s.io": [
            named("gpus", spec={"resourceGroups": groups}, status={"flavorsReservation": reserved})
        ],
        "resourceflavors.kueue.x-k8s.io": [named("h100", spec={"nodeLabels": labels})],
    }
    kinds = [PYTORCHJOB, COSCHEDULING, LOCALQUEUE, CLUSTERQUEUE, "kueue.x-k8s.io/v1beta2/ResourceFlavor"]
    return Cluster(objects=objects, kinds=kinds, denied=denied)


IN_QUEUE = {"gang": {"scheduler": "coscheduling", "queue": "team"}}


def test_a_queue_that_has_room_or_will_have_some() -> None:
    assert with_kueue().says("queue_quota", **IN_QUEUE).summary == "ClusterQueue gpus has room for it now"
    later = with_kueue(used="6").says("queue_quota", **IN_QUEUE)
    assert later.ok and later.summary == (
        "ClusterQueue gpus can admit it, later: "
        "the members ask for 3 nvidia.com/gpu, and 2 of its own quota are free now"
    )


def test_a_queue_that_can_never_admit_the_job_stops_it() -> None:
    check = with_kueue(gpus="2").says("queue_quota", **IN_QUEUE)
    assert check.stops and check.summary == "ClusterQueue gpus can never admit it"
    assert check.evidence[0].text == "all members ask for 3 nvidia.com/gpu together, and the queue can have 2"
    other = {**IN_QUEUE, "pod": {"spec": {"nodeSelector": {"card": "a100"}}}}
    check = with_kueue(card="h100").says("queue_quota", **other)
    assert check.stops and "h100 is not labelled card=a100" in check.evidence[0].text


def test_what_the_queue_does_not_cover_is_a_warning() -> None:
    fields = {
        **IN_QUEUE,
        "pod": {"spec": {"containers": [{"name": "pytorch", "resources": {"requests": {"rdma/hca": "1"}}}]}},
    }
    check = with_kueue().says("queue_quota", **fields)
    assert check.ok is False and not check.stops and "no quota of rdma/hca" in check.summary


def test_who_may_not_read_the_clusterqueue_is_told_so() -> None:
    check = with_kueue(denied=[("get", "clusterqueues")]).says("queue_quota", **IN_QUEUE)
    assert check.ok is None and "get clusterqueues" in check.summary


def with_checks(*checks: Json, clusters: Sequence[str] = (), denied: Any = ()) -> Cluster:
    """A queue whose ClusterQueue has these AdmissionChecks, and what MultiKueue is told."""
    cluster = with_kueue(denied=denied)
    asked = {"admissionChecks": [{"name": name} for name in ("budget", "far")]}
    objects = cluster.answers.objects
    objects["clusterqueues.kueue.x-k8s.io"][0]["spec"]["admissionChecksStrategy"] = asked
    objects["admissionchecks.kueue.x-k8s.io"] = [*checks]
    objects["multikueueconfigs.kueue.x-k8s.io"] = [named("all", spec={"clusters": [*clusters]})]
    return cluster


BUDGET = named("budget", spec={"controllerName": "example.com/budget"})
FAR = named("far", spec={"controllerName": "kueue.x-k8s.io/multikueue", "parameters": {"name": "all"}})


def test_who_has_a_say_before_a_job_is_admitted_is_told() -> None:
    found = [c for c in with_checks(BUDGET).checks(**IN_QUEUE) if c.id == "admission_check"]
    assert [(c.ok, c.summary) for c in found] == [
        (False, "the queue asks admission check far, which does not exist"),
        (True, "admission check budget has to agree before it starts"),
    ]
    broken = {"conditions": [{"type": "Active", "status": "False", "message": "no config all"}]}
    (check, _) = [c for c in with_checks({**BUDGET, "status": broken}, FAR).checks(**IN_QUEUE)
                  if c.id == "admission_check"]  # fmt: skip
    assert check.ok is False and not check.stops and check.evidence[0].text == "no config all"
    hidden = with_checks(denied=[("get", "admissionchecks")]).checks(**IN_QUEUE)
    assert [c.ok for c in hidden if c.id == "admission_check"] == [None, None]


@pytest.mark.parametrize(
    ("clusters", "where"),
    [
        (["east", "west"], "one of the clusters east, west"),
        (["east"], "cluster east"),
        ([], "another cluster"),
    ],
)
def test_a_queue_of_multikueue_says_where_the_job_will_run_and_what_does_not_go_with_it(
    clusters: list[str], where: str
) -> None:
    found = with_checks(BUDGET, FAR, clusters=clusters).checks(**IN_QUEUE)
    told, lacks = sorted((c for c in found if c.id == "multikueue"), key=lambda c: c.ok is False)
    assert told.ok and told.summary.startswith(f"Kueue runs it on {where} (MultiKueue, admission check far)")
    assert lacks.ok is False and not lacks.stops
    assert lacks.summary.startswith("MultiKueue sends the PyTorchJob alone, without PodGroup ")
    alone = {"gang": {"scheduler": "none", "queue": "team"}}
    assert [c.ok for c in with_checks(BUDGET, FAR).checks(**alone) if c.id == "multikueue"] == [True]


def test_a_priority_that_is_there_or_near() -> None:
    classes = {"priorityclasses.scheduling.k8s.io": [named("urgent", value=1000)]}
    there = Cluster(objects=classes).says("priority_class", gang={"priority": "urgent"})
    assert there.ok
    near = Cluster(objects=classes).says("priority_class", gang={"priority": "urgnet"})
    assert near.ok is False and "say gang.priority: urgent" in near.fix
    queued = with_kueue()
    queued.answers.kinds = [*queued.answers.kinds, "kueue.x-k8s.io/v1beta2/WorkloadPriorityClass"]
    queued.answers.objects |= {"workloadpriorityclasses.kueue.x-k8s.io": [named("urgent", value=1000)]}
    gang = {**IN_QUEUE["gang"], "priority": "urgent"}
    found = queued.says("priority_class", gang=gang)
    assert found.ok and found.summary == "urgent is a WorkloadPriorityClass: it orders queue team"


def test_a_queue_that_is_not_there_or_closed() -> None:
    gang = {"scheduler": "coscheduling", "queue": "teem"}
    assert with_kueue().says("queue", gang=gang).summary == "queue teem does not exist in research"
    closed = with_kueue()
    said = {"type": "Active", "status": "False", "message": "ClusterQueue gpus is stopped"}
    closed.answers.objects["localqueues.kueue.x-k8s.io"][0]["status"] = {"conditions": [said]}
    check = closed.says("queue", **IN_QUEUE)
    assert check.stops and check.evidence[0].text == "ClusterQueue gpus is stopped"


def test_a_queue_of_a_kueue_that_is_away_admits_nothing() -> None:
    cluster = with_kueue()
    lease = {"metadata": AWAY[0], "spec": AWAY[1]}
    cluster.answers.objects["kueue-system/leases.coordination.k8s.io"] = [lease]
    check = cluster.says("queue", **IN_QUEUE)
    assert check.stops and "does not answer" in check.summary and "-n kueue-system" in str(check.fix)
    assert "was renewed 2h 00m ago" in check.evidence[0].text


def test_a_queue_needs_rights_of_its_own_and_other_jobs_do_not() -> None:
    denied = [("list", "workloads"), ("list", "localqueues")]
    assert with_kueue(denied=denied).says("rbac", **IN_QUEUE).stops
    assert with_kueue(denied=denied).says("rbac", gang={"scheduler": "coscheduling"}).ok


RACK = "topology.example.com/rack"


def test_a_topology_needs_nodes_that_have_its_label() -> None:
    racked = [a_node(name, {RACK: rack}) for name, rack in (("n1", "a"), ("n2", "a"), ("n3", "b"))]
    gang = {"scheduler": "coscheduling", "topology": {"require": RACK}}
    check = Cluster(objects={"nodes": [*racked, a_node("n4")]}).says("topology", gang=gang)
    assert check.ok and check.summary == f"3 nodes of 4 have 2 values of {RACK}"
    check = Cluster(objects={"nodes": [a_node("n1", {"topology.example.com/racks": "a"})]}).says(
        "topology", gang=gang
    )
    assert check.stops and check.fix == "gang.topology.require: topology.example.com/racks"
    wish = {**gang, "topology": {"prefer": RACK}}
    check = Cluster().says("topology", gang=wish)
    assert check.ok is False and not check.stops and check.fix == "correct gang.topology.prefer"
    assert Cluster(denied=[("list", "nodes")]).says("topology", gang=gang).ok is None


def test_what_members_lack_of_the_helper_is_told() -> None:
    check = Cluster().says("helper", host_network=True)
    assert check.ok is False and not check.stops and "the loopback is the node's" in check.summary
    assert "inject: off" in str(check.fix)
    assert [c for c in Cluster().checks() if c.id == "helper"] == []
