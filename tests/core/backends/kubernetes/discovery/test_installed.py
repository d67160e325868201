"""What a cluster has installed and what is alive, by which sign; what may not be read stays unknown."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import Resource
from allaboard.backends.kubernetes.discovery.components import PARTS, operators, part_of
from allaboard.backends.kubernetes.discovery.installed import (
    Survey,
    complete_facts,
    complete_priorities,
    gangs_of_operators,
    nodes,
    survey_cluster,
    versions_of,
)
from allaboard.engines import ENGINES
from allaboard.engines.tfjob import TFJob
from allaboard.errors import BackendUnreachable
from allaboard.gangs import GANGS
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.render.compatibility import pair_engine_and_gang
from tests.core.backends.kubernetes.answers import NOW, Answers, Json, ago

PYTORCHJOB = "kubeflow.org/v1/PyTorchJob"
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1/PodGroup"
VOLCANO = "scheduling.volcano.sh/v1beta1/PodGroup"
NATIVE = "scheduling.k8s.io/v1alpha2/PodGroup"


def look(answers: Answers) -> Survey:
    return survey_cluster(answers, answers.server, answers.namespace)


def webhook_denies(body: Json) -> None:
    raise Forbidden('admission webhook "validator.x" denied the request: no', status=403)


def webhook_is_away(body: Json) -> None:
    raise BackendUnreachable(
        'API server x answers 500: Internal error occurred: failed calling webhook "validator.x": connection '
        "refused (3 tries in 8 s)"
    )


def a_job(name: str = "other", created: float = 600, **status: Any) -> Json:
    metadata = {"name": name, "creationTimestamp": ago(created)}
    return {"metadata": metadata, "spec": {}, **({"status": status} if status else {})}


def a_condition(kind: str, seconds: float, status: str = "True") -> Json:
    return {"type": kind, "status": status, "lastUpdateTime": ago(seconds)}


# --- what is served


@pytest.mark.parametrize("aggregated", [True, False], ids=["now", "before 1.30"])
def test_what_is_served_is_discovered(aggregated: bool) -> None:
    found = look(Answers([PYTORCHJOB, NATIVE], aggregated=aggregated, refuses=webhook_denies))
    assert found.kinds == {PYTORCHJOB, NATIVE}
    assert found.part("training-operator").versions == ("v1",)
    assert found.part("workload").installed and not found.part("volcano").installed


def test_an_empty_cluster_is_told_what_to_install() -> None:
    found = look(Answers())
    assert not any(part.installed for part in found.parts)
    assert all(part.guide for part in PARTS) and all(part.cure is None for part in found.parts)
    assert found.operator_gangs == {"training-operator": "off", "mpi-operator": "off"}


def test_mpijob_v1_is_no_mpi_operator() -> None:
    assert not look(Answers(["kubeflow.org/v1/MPIJob"])).part("mpi-operator").installed
    assert look(Answers(["kubeflow.org/v2beta1/MPIJob"])).part("mpi-operator").installed


def test_engines_of_one_operator_are_one_part_that_any_of_their_kinds_shows() -> None:
    pytorch = ENGINES["pytorchjob"]
    other = TFJob()
    other.API_VERSION, other.PROBE = "kubeflow.org/v2", None
    engines = [other, pytorch]
    (part,) = operators(engines)
    assert part.id == "training-operator" and [kind.plural for kind in part.kinds] == [
        "tfjobs",
        "pytorchjobs",
    ]
    assert versions_of(part, ["kubeflow.org/v2/TFJob", "x.org/v1/TFJob"]) == ("v2",)
    assert versions_of(part, [PYTORCHJOB]) == ("v1",) and versions_of(part, []) == ()
    assert [kind.plural for kind in part.probes] == ["pytorchjobs"]


def test_a_kind_is_served_by_the_part_of_its_version() -> None:
    mpi = Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob")
    found = part_of(mpi)
    assert found is not None and found.id == "mpi-operator"
    newer = part_of(Resource("scheduling.k8s.io", "v1", "podgroups", "PodGroup"))
    assert newer is not None and newer.id == "workload", "of another version of its kind, too"
    assert part_of(Resource("batch", "v1", "jobs", "Job")) is None


def test_openshift_is_known_by_its_api() -> None:
    assert look(Answers(["security.openshift.io/v1/SecurityContextConstraints"])).is_openshift


# --- signs of life


def test_an_operator_whose_webhook_answers_is_alive() -> None:
    answers = Answers([PYTORCHJOB], refuses=webhook_denies)
    found = look(answers).part("training-operator")
    assert found.alive is True and found.signs == ("its webhook answers",)
    assert answers.tried[0]["metadata"]["name"] == "allaboard-probe"


def test_an_operator_whose_webhook_does_not_answer_is_not() -> None:
    found = look(Answers([PYTORCHJOB], refuses=webhook_is_away)).part("training-operator")
    assert found.alive is False and "connection refused" in found.signs[0]


def test_who_may_not_create_does_not_try() -> None:
    answers = Answers([PYTORCHJOB], denied=[("create", "pytorchjobs")])
    assert look(answers).part("training-operator").alive is None
    assert answers.tried == []


def test_a_lease_that_is_renewed_is_a_sign() -> None:
    def with_lease(age: float) -> Survey:
        lease = {"metadata": {"name": "l"}, "spec": {"renewTime": ago(age), "leaseDurationSeconds": 15}}
        objects = {"jobset-system/leases.coordination.k8s.io": [lease]}
        return look(Answers(["jobset.x-k8s.io/v1alpha2/JobSet"], objects, [("create", "jobsets")]))

    assert with_lease(5).part("jobset").alive is True
    assert with_lease(300).part("jobset").alive is False
    assert "renewed 5.0 s ago" in with_lease(5).part("jobset").signs[0]


def test_a_deployment_that_is_available_is_a_sign() -> None:
    deployment = {"metadata": {"name": "training-operator"}, "status": {"availableReplicas": 1}}
    found = look(Answers([PYTORCHJOB], {"kubeflow/deployments.apps": [deployment]})).part("training-operator")
    assert found.alive is True
    assert "Deployment kubeflow/training-operator has 1 available replica" in found.signs


def test_what_may_not_be_read_is_not_tried() -> None:
    denied = [("list", "leases"), ("list", "deployments"), ("create", "pytorchjobs"), ("list", "pytorchjobs")]
    denied += [("list", "nodes"), ("list", "pods"), ("list", "events"), ("list", "priorityclasses")]
    denied += [("get", "namespaces")]
    answers = Answers([PYTORCHJOB], denied=denied)
    found = look(answers)
    assert found.part("training-operator").alive is None and found.nodes is None
    assert not {verb for verb, _ in answers.asked} & {"list", "get"}


def test_the_level_that_the_namespace_enforces_is_known_where_it_may_be_read() -> None:
    enforce = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"namespaces": [{"metadata": {"name": "research", "labels": enforce}}]}
    assert look(Answers([PYTORCHJOB], space)).pod_security == "restricted"
    assert look(Answers([PYTORCHJOB], space, denied=[("get", "namespaces")])).pod_security is None


def test_an_operator_that_wrote_lately_is_alive() -> None:
    job = a_job(conditions=[a_condition("Running", 120)])
    denied = [("create", "pytorchjobs")]
    found = look(Answers([PYTORCHJOB], {"pytorchjobs.kubeflow.org": [job]}, denied)).part("training-operator")
    assert found.alive is True and found.signs == ("it wrote to other 2m 00s ago",)


def test_a_job_without_a_status_speaks_against_its_operator() -> None:
    denied = [("create", "pytorchjobs")]
    found = look(Answers([PYTORCHJOB], {"pytorchjobs.kubeflow.org": [a_job()]}, denied))
    assert found.part("training-operator").alive is False
    young = look(Answers([PYTORCHJOB], {"pytorchjobs.kubeflow.org": [a_job(created=10)]}, denied))
    assert young.part("training-operator").alive is None


def test_a_job_of_another_manager_says_nothing() -> None:
    job = a_job()
    job["spec"] = {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}
    found = look(Answers([PYTORCHJOB], {"pytorchjobs.kubeflow.org": [job]}, [("create", "pytorchjobs")]))
    assert found.part("training-operator").alive is None


def test_a_gang_scheduler_that_left_its_kinds_behind() -> None:
    """Helm keeps definitions, and nobody takes the lease with it."""
    lease = {
        "metadata": {"name": "vc-scheduler"},
        "spec": {"renewTime": ago(7200), "leaseDurationSeconds": 15},
    }
    away = look(Answers([VOLCANO], {"volcano-system/leases.coordination.k8s.io": [lease]})).part("volcano")
    assert away.alive is False and "renewed 2h 00m ago" in away.signs[0]
    cure = away.to_dict()["cure"]
    assert "kubectl -n volcano-system get deployments,pods" in cure and "with all objects of it" in cure
    assert cure.endswith("kubectl delete crd podgroups.scheduling.volcano.sh")


def test_the_jobs_of_an_operator_that_is_away_are_left_to_it() -> None:
    away = look(Answers([PYTORCHJOB], refuses=webhook_is_away)).part("training-operator")
    assert away.cure == "start it again (kubectl -n kubeflow get deployments,pods)"


def test_an_empty_home_explains_and_proves_nothing() -> None:
    found = look(Answers([VOLCANO])).part("volcano")
    assert found.alive is None and found.cure is None
    assert found.signs == ("namespace volcano-system, where its guide puts it, has nothing of it",)
    unseen = look(Answers([VOLCANO], denied=[("list", "leases")])).part("volcano")
    assert unseen.signs == ()


def test_the_deployments_of_the_control_plane_are_no_sign_of_its_gangs() -> None:
    deployment = {"metadata": {"name": "coredns"}, "status": {"availableReplicas": 2}}
    found = look(Answers([NATIVE], {"kube-system/deployments.apps": [deployment]})).part("workload")
    assert found.alive is None and found.signs == ()


# --- gangs


def a_pod(scheduler: str, node: str | None = "n1", labels: Json | None = None, age: float = 60) -> Json:
    return {
        "metadata": {"name": "p", "labels": labels or {}},
        "spec": {"schedulerName": scheduler, **({"nodeName": node} if node else {})},
        "status": {
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(age)}]
        },
    }


def test_coscheduling_is_at_work_where_it_has_placed_a_member() -> None:
    pod = a_pod("my-scheduler", labels={"scheduling.x-k8s.io/pod-group": "g"})
    found = look(Answers([COSCHEDULING], {"pods": [pod]}))
    assert found.part("coscheduling").alive is True
    assert found.schedulers == {"coscheduling": "my-scheduler"}


def test_what_it_did_long_ago_tells_its_name_alone() -> None:
    pod = a_pod("my-scheduler", labels={"scheduling.x-k8s.io/pod-group": "g"}, age=86400)
    found = look(Answers([COSCHEDULING], {"pods": [pod]}))
    assert found.part("coscheduling").alive is None
    assert found.schedulers == {"coscheduling": "my-scheduler"}


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("my-scheduler", node=None, labels={"scheduling.x-k8s.io/pod-group": "g"}),
        a_pod("default-scheduler", labels={"scheduling.x-k8s.io/pod-group": "g"}),
        a_pod("my-scheduler"),
    ],
    ids=["not placed", "placed by the default scheduler", "no gang"],
)
def test_nothing_else_proves_it(pod: Json) -> None:
    found = look(Answers([COSCHEDULING], {"pods": [pod]}))
    assert found.part("coscheduling").alive is None and found.schedulers == {}


def test_the_schedulers_own_gangs_show_by_a_condition() -> None:
    group = {
        "metadata": {"name": "g"},
        "status": {"conditions": [{"type": "PodGroupScheduled", "status": "True"}]},
    }
    assert look(Answers([NATIVE], {"podgroups.scheduling.k8s.io": [group]})).part("workload").alive is True
    assert (
        look(Answers([NATIVE], {"podgroups.scheduling.k8s.io": [{"metadata": {"name": "g"}}]}))
        .part("workload")
        .alive
        is None
    )


def owned(name: str, owner: str | None) -> Json:
    kind = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
    owners = [{**kind, "name": owner, "controller": True}] if owner else []
    return {"metadata": {"name": name, "ownerReferences": owners}}


RUNS = a_job("j", conditions=[a_condition("Running", 10)], startTime=ago(300))
ENDED = a_job("j", conditions=[a_condition("Succeeded", 10)], startTime=ago(300))
FRESH = a_job("j", conditions=[a_condition("Running", 1)], startTime=ago(2))


@pytest.mark.parametrize(
    ("kinds", "jobs", "groups", "gang"),
    [
        ([PYTORCHJOB], [RUNS], {}, "off"),
        (
            [PYTORCHJOB, COSCHEDULING],
            [RUNS],
            {"podgroups.scheduling.x-k8s.io": [owned("j", "j")]},
            "coscheduling",
        ),
        ([PYTORCHJOB, VOLCANO], [RUNS], {"podgroups.scheduling.volcano.sh": [owned("j", "j")]}, "volcano"),
        ([PYTORCHJOB, COSCHEDULING], [RUNS], {}, "off"),
        (
            [PYTORCHJOB, COSCHEDULING],
            [RUNS],
            {"podgroups.scheduling.x-k8s.io": [owned("j-gang", None)]},
            "off",
        ),
        ([PYTORCHJOB, COSCHEDULING], [ENDED], {}, None),
        ([PYTORCHJOB, COSCHEDULING], [FRESH], {}, None),
        ([PYTORCHJOB, COSCHEDULING], [], {}, None),
    ],
    ids=[
        "without the kind it could not have started",
        "a PodGroup of the job's name and the job's own",
        "the same of Volcano",
        "a running job without one",
        "one of ours beside it",
        "an ended job has none either way",
        "a young job may get one yet",
        "no job tells",
    ],
)
def test_the_operators_gang_flag_is_inferred(
    kinds: list[str], jobs: list[Json], groups: dict[str, list[Json]], gang: str | None
) -> None:
    answers = Answers(kinds, {"pytorchjobs.kubeflow.org": jobs, **groups})
    assert look(answers).operator_gangs.get("training-operator") == gang
    facts = complete_facts(answers, ClusterFacts(namespace="research"))
    assert (facts.operator_gangs.get("training-operator"), facts.kinds) == (gang, frozenset(kinds))


def test_the_levels_of_topologies_are_facts_of_kueue_and_of_kai_as_far_as_they_may_be_read() -> None:
    levels = {"levels": [{"nodeLabel": "lab/block"}, {"nodeLabel": "lab/rack", "alias": "rack"}]}
    served = ["kueue.x-k8s.io/v1beta2/Topology", "kai.scheduler/v1alpha1/Topology"]
    objects = {
        "topologies.kueue.x-k8s.io": [{"metadata": {"name": "of-kueue"}, "spec": levels}],
        "topologies.kai.scheduler": [
            {"metadata": {"name": "racks"}, "spec": levels},
            {"metadata": {"name": "x"}},
        ],
    }
    facts = complete_facts(Answers(served, objects=objects), ClusterFacts())
    assert facts.topology_levels == {"lab/block", "lab/rack"}
    assert facts.kai_topologies == {"racks": ("lab/block", "lab/rack"), "x": ()}
    assert look(Answers(served, objects=objects)).facts(ClusterFacts()).kai_topologies == facts.kai_topologies
    hidden = Answers(served, objects=objects, denied=[("list", "topologies")])
    assert complete_facts(hidden, ClusterFacts()).kai_topologies == {}


WORKLOADPRIORITY = "kueue.x-k8s.io/v1beta2/WorkloadPriorityClass"


def test_priorities_are_asked_for_where_kueue_is_and_a_job_has_one_that_is_not_known() -> None:
    objects = {
        "priorityclasses.scheduling.k8s.io": [{"metadata": {"name": "urgent"}}],
        "workloadpriorityclasses.kueue.x-k8s.io": [{"metadata": {"name": "high"}}],
    }

    def ask(facts: ClusterFacts, priority: str | None) -> tuple[ClusterFacts, bool]:
        answers = Answers([WORKLOADPRIORITY], objects)
        found = complete_priorities(answers, facts, priority)
        return found, bool(answers.asked)

    with_kueue = ClusterFacts(namespace="research", kinds=frozenset({WORKLOADPRIORITY}))
    assert ask(with_kueue, None) == (with_kueue, False)
    without = ClusterFacts(namespace="research", kinds=frozenset({PYTORCHJOB}))
    assert ask(without, "high") == (without, False)
    known, asked = ask(with_kueue, "high")
    assert asked and known.priorities == {"urgent"} and known.queue_priorities == {"high"}
    assert ask(known, "urgent") == (known, False)
    assert ask(known, "new") == (known, True), "it may have been made since"


def test_podgroups_that_may_not_be_read_leave_the_flag_unknown() -> None:
    assert gangs_of_operators(frozenset([COSCHEDULING]), {"pytorchjob": [RUNS]}, {}, NOW) == {}


def test_each_operator_has_a_gang_flag_of_its_own() -> None:
    mpi = {**RUNS, "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob"}
    group = owned("m", "m")
    group["metadata"]["ownerReferences"][0] |= {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob"}
    answers = Answers(
        [PYTORCHJOB, "kubeflow.org/v2beta1/MPIJob", COSCHEDULING],
        {
            "pytorchjobs.kubeflow.org": [RUNS],
            "mpijobs.kubeflow.org": [mpi],
            "podgroups.scheduling.x-k8s.io": [group],
        },
        refuses=webhook_denies,
    )
    found = look(answers)
    assert found.operator_gangs == {"training-operator": "off", "mpi-operator": "coscheduling"}
    assert found.to_dict()["operator_gangs"] == found.operator_gangs
    facts = found.facts(ClusterFacts())
    gang = GANGS["coscheduling"]
    natively = [n for n, e in ENGINES.items() if pair_engine_and_gang(e, gang, facts).how == "natively"]
    assert natively == ["mpijob"], "MPIJob v1 and the others are of the Training Operator"


# --- nodes, and the whole


def a_node(name: str, **allocatable: str) -> Json:
    ready = {"type": "Ready", "status": "True"}
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable, "conditions": [ready]}}


def test_nodes_are_counted_with_their_devices() -> None:
    nodes = [
        a_node("a", **{"cpu": "8", "nvidia.com/gpu": "2"}),
        a_node("b", **{"nvidia.com/gpu": "4"}),
        a_node("c"),
    ]
    nodes[2]["status"]["conditions"] = []
    assert look(Answers(objects={"nodes": nodes})).to_dict()["nodes"] == {
        "total": 3,
        "ready": 2,
        "devices": {"nvidia.com/gpu": {"total": 6, "nodes": 2}},
    }


def test_facts_for_rendering() -> None:
    pod = a_pod("my-scheduler", labels={"scheduling.x-k8s.io/pod-group": "g"})
    found = look(Answers([PYTORCHJOB, COSCHEDULING], {"pods": [pod]}, refuses=webhook_denies))
    facts = found.facts(ClusterFacts(image="x"))
    assert facts.serves(PYTORCHJOB) and not facts.serves(VOLCANO)
    assert (facts.namespace, facts.image, facts.schedulers) == (
        "research",
        "x",
        {"coscheduling": "my-scheduler"},
    )
    told = {"training-operator": "coscheduling", "mpi-operator": "volcano"}
    assert found.facts(ClusterFacts(operator_gangs=told)).operator_gangs == told, (
        "what the site says stands while nothing is known"
    )


def test_a_survey_is_a_few_requests() -> None:
    answers = Answers([PYTORCHJOB, COSCHEDULING, NATIVE], refuses=webhook_denies)
    look(answers)
    assert len(answers.asked) < 25


@pytest.mark.parametrize(
    ("age", "denied", "silent"),
    [(5.0, (), False), (9000.0, (), True), (9000.0, (("list", "leases"),), False)],
)
def test_a_gang_scheduler_whose_lease_ran_out_is_silent_to_a_launch(
    age: float, denied: tuple[tuple[str, str], ...], silent: bool
) -> None:
    """Helm leaves the definitions of its kinds behind."""
    lease = {
        "metadata": {"name": "vc-scheduler"},
        "spec": {"renewTime": ago(age), "leaseDurationSeconds": 15},
    }
    objects = {"volcano-system/leases.coordination.k8s.io": [lease]}
    answers = Answers(["scheduling.volcano.sh/v1beta1/PodGroup"], objects, denied)
    facts = complete_facts(answers, ClusterFacts(namespace="research"))
    assert facts.silent == (frozenset({"volcano"}) if silent else frozenset())


@pytest.mark.parametrize(
    ("labels", "kinds", "more", "denied", "grows"),
    [
        ({}, [], {}, (), False),
        ({"karpenter.sh/nodepool": "p"}, [], {}, (), True),
        ({}, ["karpenter.sh/v1/NodePool"], {}, (), None),
        (
            {},
            [],
            {"kube-system/configmaps": [{"metadata": {"name": "cluster-autoscaler-status"}}]},
            (),
            None,
        ),
        ({}, [], {}, [("list", "configmaps")], None),
    ],
)
@pytest.mark.parametrize("aggregated", [True, False])
def test_whether_something_adds_nodes(
    labels: Json, kinds: list[str], more: Json, denied: Any, grows: bool | None, aggregated: bool
) -> None:
    """It is denied only where that was looked for, and is not there."""
    node = {"metadata": {"name": "n1", "labels": labels}, "status": {"allocatable": {"cpu": "8"}}}
    answers = Answers(kinds, {"nodes": [node], **more}, denied, aggregated=aggregated)
    found = nodes(answers)
    assert found is not None and [one.grows for one in found] == [grows]
