"""From a job to its objects: what is sent, in which order, under which names, the same bytes every time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.lifecycle.prepare import prepare_attempt
from allaboard.checking.job import require_valid
from allaboard.cli.tools.render import to_yaml
from allaboard.errors import BadInput
from allaboard.job.site import Site
from allaboard.job.training_job import TrainingJob
from allaboard.render import labels
from allaboard.render.cluster_facts import ASSUMED, assumed_facts
from allaboard.render.manifests import Rendered
from allaboard.text.names import attempt_name, run_name
from tests.core.backends.kubernetes.golden import CODE, FILE, KEY, WHOLE, made, whole


def spec(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = made(**fields).job["spec"]
    return found


def test_one_job_whole() -> None:
    """A difference is a change of what is sent: look at it, then run
    `python -m tests.core.backends.kubernetes.golden`.
    """
    assert whole() == FILE.read_text()


def test_twice_is_the_same_bytes_and_what_is_printed_is_what_is_sent() -> None:
    first, second = (made(TrainingJob(**WHOLE), code=CODE).manifests for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
    assert list(yaml.safe_load_all(to_yaml(first))) == list(first)


def test_what_is_handed_out_shares_nothing() -> None:
    found = made(workers=2)
    found.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["env"].clear()
    assert found.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["env"]
    assert made(workers=2).job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0][
        "env"
    ]


# What no other field says.


def test_what_only_the_engine_knows_is_said_in_its_own_words() -> None:
    found = spec(
        elastic={"min": 1, "max": 4},
        engine_spec={
            "elasticPolicy": {"rdzvHost": "etcd", "rdzvPort": 2379},
            "runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"},
        },
    )
    assert found["elasticPolicy"]["rdzvHost"] == "etcd" and found["elasticPolicy"]["maxReplicas"] == 4
    assert found["runPolicy"]["managedBy"] == "kueue.x-k8s.io/multikueue"
    assert found["runPolicy"]["backoffLimit"] == 3


def test_what_the_job_says_is_not_said_twice() -> None:
    with pytest.raises(BadInput) as caught:
        spec(engine_spec={"runPolicy": {"suspend": True, "backoffLimit": 9}, "nprocPerNode": "2", "x": 1})
    assert [p.path for p in caught.value.problems] == [
        "engine_spec.runPolicy.suspend",
        "engine_spec.runPolicy.backoffLimit",
        "engine_spec.nprocPerNode",
    ]


# Names and marks.


def test_the_extra_objects_come_first_and_the_job_last() -> None:
    kinds = [m["kind"] for m in made(code=CODE, gang={"scheduler": "workload"}).manifests]
    assert kinds == ["ConfigMap", "PodGroup", "PyTorchJob"]
    assert [m["kind"] for m in made().manifests] == ["PyTorchJob"]


def test_every_object_and_every_pod_says_whose_it_is() -> None:
    found = made(code=CODE, gang={"scheduler": "coscheduling"}, attempt=2, generation=3)
    run = run_name("digits", KEY)
    expected = {
        "app.kubernetes.io/managed-by": "allaboard",
        "allaboard.io/run": run,
        "allaboard.io/job": "digits",
        "allaboard.io/attempt": "2",
        "allaboard.io/generation": "3",
    }
    launch = labels.launch_uid(KEY, 3, 2)
    for manifest in found.manifests:
        assert manifest["metadata"]["labels"] == expected
        assert manifest["metadata"]["namespace"] == "default"
        assert manifest["metadata"]["annotations"][labels.LAUNCH] == launch
        assert manifest["metadata"]["annotations"][labels.GANG] == "coscheduling"
        assert manifest["metadata"]["annotations"][labels.SPEC_HASH].startswith("v1:")
    names = [m["metadata"]["name"] for m in found.manifests]
    assert names == [f"{run}-g3-2-code", f"{run}-g3-2-gang", f"{run}-g3-2"]
    template = found.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert expected.items() <= template["metadata"]["labels"].items()
    assert template["metadata"]["annotations"][labels.LAUNCH] == launch


def test_names_stay_short_enough_for_what_operators_append() -> None:
    run = run_name("x" * 40, KEY)
    names = {attempt_name(run, attempt, generation) for attempt in (1, 2, 12) for generation in (1, 2, 40)}
    assert len(names) == 9 and max(map(len, names)) <= 50
    assert all(run.rpartition("-")[2] in name for name in names)
    assert attempt_name("digits-1f0c9a77", 1) == "digits-1f0c9a77"
    assert attempt_name("digits-1f0c9a77", 2, 3) == "digits-1f0c9a77-g3-2"


def test_a_launch_is_told_by_its_key_and_attempt_and_not_by_its_name_alone() -> None:
    uid = labels.launch_uid("k", 1, 1)
    assert uid == labels.launch_uid("k", 1, 1) and uid not in (
        labels.launch_uid("k", 1, 2),
        labels.launch_uid("k", 2, 1),
    )
    thing = {"metadata": {"annotations": {labels.LAUNCH: uid}, "creationTimestamp": "2026-11-21T12:00:05Z"}}
    assert labels.is_ours(thing, uid, "2026-11-21T12:00:05Z")
    assert not labels.is_ours(thing, uid, "2026-11-21T12:00:06Z")  # older than the record: left over
    assert not labels.is_ours(thing, "another") and not labels.is_ours({"metadata": {}}, uid)


def test_selectors() -> None:
    assert labels.selector("r", 2, 1) == (
        "app.kubernetes.io/managed-by=allaboard,allaboard.io/run=r,allaboard.io/attempt=2,allaboard.io/generation=1"
    )
    assert labels.selector() == "app.kubernetes.io/managed-by=allaboard"


# PyTorchJob.


def test_what_the_operator_would_leave_open_is_written_out() -> None:
    found = spec()
    assert found["runPolicy"] == {"backoffLimit": 3, "cleanPodPolicy": "Running", "suspend": False}
    assert found["nprocPerNode"] == "1" and "elasticPolicy" not in found
    master, worker = found["pytorchReplicaSpecs"].values()
    assert list(found["pytorchReplicaSpecs"]) == ["Master", "Worker"]
    assert (master["replicas"], worker["replicas"]) == (1, 1)
    assert master["restartPolicy"] == worker["restartPolicy"] == "OnFailure"


POLICIES = [
    ({"restart": "never"}, ("pytorchReplicaSpecs", "Master", "restartPolicy"), "Never"),
    ({"restart": "always"}, ("pytorchReplicaSpecs", "Worker", "restartPolicy"), "Always"),
    ({"restart": "exit_code"}, ("pytorchReplicaSpecs", "Worker", "restartPolicy"), "ExitCode"),
    ({"backoff_limit": 0}, ("runPolicy", "backoffLimit"), 0),
    ({"clean_pods": "none"}, ("runPolicy", "cleanPodPolicy"), "None"),
    ({"clean_pods": "all"}, ("runPolicy", "cleanPodPolicy"), "All"),
    ({"deadline": "12h"}, ("runPolicy", "activeDeadlineSeconds"), 43200),
    ({"deadline": 0.5}, ("runPolicy", "activeDeadlineSeconds"), 1),
    ({"ttl": "1d"}, ("runPolicy", "ttlSecondsAfterFinished"), 86400),
    ({"ttl": 0}, ("runPolicy", "ttlSecondsAfterFinished"), 0),
    ({"suspend": True}, ("runPolicy", "suspend"), True),
]


@pytest.mark.parametrize(("policy", "path", "value"), POLICIES)
def test_policies(policy: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    found: Any = spec(policy=policy)
    for name in path:
        found = found[name]
    assert found == value and type(found) is type(value)


def test_elastic() -> None:
    found = spec(workers=3, elastic={"min": 2, "max": 4}, command=["torchrun", "x.py"])
    run = run_name("digits", KEY)
    assert found["elasticPolicy"] == {
        "minReplicas": 2,
        "maxReplicas": 4,
        "rdzvBackend": "c10d",
        "rdzvId": run,
    }
    assert (
        list(found["pytorchReplicaSpecs"]) == ["Worker"]
        and found["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3
    )
    more = spec(
        elastic={
            "min": 1,
            "max": 2,
            "max_restarts": 0,
            "rendezvous": "etcd",
            "rendezvous_conf": {"a": "1", "b": "2"},
        }
    )["elasticPolicy"]
    assert more["rdzvConf"] == [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]
    assert (more["rdzvBackend"], more["maxRestarts"]) == ("etcd", 0)


@pytest.mark.parametrize(
    ("written", "gpus", "value"),
    [(None, 0, "1"), (None, 2, "auto"), ("auto", 0, "auto"), ("gpu", 2, "gpu"), (4, 0, "4")],
)
def test_processes_per_member(written: object, gpus: int, value: str) -> None:
    """torchrun takes auto for one process per CPU of the whole node where it finds no GPU."""
    assert spec(processes_per_member=written, resources={"gpu": gpus})["nprocPerNode"] == value


# Gangs.


def worker(found: Rendered) -> dict[str, Any]:
    template: dict[str, Any] = found.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    return template


def test_coscheduling_by_marks() -> None:
    found = made(workers=3, gang={"scheduler": "coscheduling", "timeout": "90s"})
    (group,) = found.extras
    name = group["metadata"]["name"]
    assert group["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert group["spec"] == {"minMember": 3, "scheduleTimeoutSeconds": 90}
    assert worker(found)["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == name
    assert worker(found)["spec"]["schedulerName"] == "scheduler-plugins-scheduler"
    assert "schedulingPolicy" not in found.job["spec"]["runPolicy"]


def test_coscheduling_natively() -> None:
    facts = replace(ASSUMED, operator_gangs={"training-operator": "coscheduling"})
    found = made(facts=facts, workers=3, gang={"timeout": "90s", "priority": "high"})
    assert found.extras == () and found.gang.how == "natively"
    assert found.job["spec"]["runPolicy"]["schedulingPolicy"] == {
        "minAvailable": 3,
        "priorityClass": "high",
        "scheduleTimeoutSeconds": 90,
    }
    assert "schedulerName" not in worker(found)["spec"]
    assert "scheduling.x-k8s.io/pod-group" not in worker(found)["metadata"]["labels"]


def test_volcano_by_marks() -> None:
    said = {"annotations": {"volcano.sh/sla-waiting-time": "1h", "team": "vision"}}
    asked = {"scheduler": "volcano", "queue": "research", "priority": "high"}
    found = made(groups={"master": 1, "worker": 2}, workers=None, gang=asked, metadata=said)
    (group,) = found.extras
    name = group["metadata"]["name"]
    assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert group["spec"] == {
        "minMember": 3,
        "minTaskMember": {"master": 1, "worker": 2},
        "queue": "research",
        "priorityClassName": "high",
    }
    assert group["metadata"]["annotations"]["volcano.sh/sla-waiting-time"] == "1h"
    assert "team" not in group["metadata"]["annotations"]
    for role in ("Master", "Worker"):
        template = found.job["spec"]["pytorchReplicaSpecs"][role]["template"]
        own = {"scheduling.k8s.io/group-name": name, "volcano.sh/task-spec": role.lower()}
        assert own.items() <= template["metadata"]["annotations"].items()
        assert template["spec"]["schedulerName"] == "volcano"
    elastic = made(workers=3, elastic={"min": 2, "max": 3}, gang={"scheduler": "volcano"}).extras[0]
    assert elastic["spec"] == {"minMember": 2, "queue": "default"}, "any members are enough"


@pytest.mark.parametrize(
    ("topology", "spec"),
    [
        ({"require": "rack"}, {"mode": "hard", "highestTierName": "rack"}),
        ({"prefer": "block"}, {"mode": "soft", "highestTierName": "block"}),
        ({"require": "2"}, {"mode": "hard", "highestTierAllowed": 2}),
        ({"require": "example.com/hall", "prefer": "rack"}, {"mode": "soft", "highestTierName": "rack"}),
    ],
)
def test_volcano_places_a_gang_within_a_tier(topology: dict[str, str], spec: dict[str, object]) -> None:
    (group,) = made(workers=3, gang={"scheduler": "volcano", "topology": topology}).extras
    assert group["spec"]["networkTopology"] == spec


@pytest.mark.parametrize("gang", ["none", "coscheduling", "workload", "volcano"])
def test_a_node_label_is_a_topology_for_every_scheduler(gang: str) -> None:
    asked = {"scheduler": gang, "topology": {"require": "example.com/rack", "prefer": "example.com/row"}}
    found = made(workers=3, gang=asked)
    terms = worker(found)["spec"]["affinity"]["podAffinity"]
    (required,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]
    (preferred,) = terms["preferredDuringSchedulingIgnoredDuringExecution"]
    assert required["topologyKey"] == "example.com/rack"
    assert (preferred["weight"], preferred["podAffinityTerm"]["topologyKey"]) == (100, "example.com/row")
    own = worker(found)["metadata"]["labels"]
    assert required["labelSelector"]["matchLabels"].items() <= own.items()
    assert "allaboard.io/run" in required["labelSelector"]["matchLabels"]
    assert not any("networkTopology" in extra.get("spec", {}) for extra in found.extras)


def test_a_domain_that_nobody_knows_is_refused() -> None:
    zone = made(workers=3, gang={"topology": {"require": "zone"}})
    assert "topology.kubernetes.io/zone" in str(worker(zone)["spec"]["affinity"])
    with pytest.raises(BadInput, match="keeps one tier for a gang"):
        made(workers=3, gang={"scheduler": "volcano", "topology": {"require": "rack", "prefer": "2"}})
    with pytest.raises(BadInput) as refused:
        made(workers=3, gang={"topology": {"require": "rack", "prefer": "block"}})
    assert [p.path for p in refused.value.problems] == ["gang.topology.require", "gang.topology.prefer"]
    assert "topology.example.com/rack" in refused.value.problems[0].message


def test_a_job_that_requires_a_gang_is_refused_where_nobody_makes_one() -> None:
    with pytest.raises(BadInput) as refused:
        made(workers=3, gang={"require": True})
    assert [p.path for p in refused.value.problems] == ["gang.require"]
    assert made(workers=1, gang={"require": True}).gang.how == "none"
    assert made(workers=3, gang={"require": True, "scheduler": "volcano"}).gang.how == "marks"


def test_volcano_natively() -> None:
    facts = replace(ASSUMED, operator_gangs={"training-operator": "volcano"})
    found = made(facts=facts, workers=3, gang={"queue": "research"})
    assert found.extras == () and found.gang.how == "natively"
    assert found.job["spec"]["runPolicy"]["schedulingPolicy"] == {"minAvailable": 3, "queue": "research"}


def test_workload_by_marks() -> None:
    found = made(workers=3, elastic={"min": 2, "max": 3}, gang={"scheduler": "workload"})
    (group,) = found.extras
    assert group["apiVersion"] == "scheduling.k8s.io/v1beta1"
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 2}}}
    assert worker(found)["spec"]["schedulingGroup"] == {"podGroupName": group["metadata"]["name"]}
    assert "schedulerName" not in worker(found)["spec"]


def test_a_whole_gang_loses_its_places_together_where_its_podgroup_can_say_so() -> None:
    asked = {"scheduler": "workload", "priority": "high"}
    (beta,) = made(workers=3, gang=asked).extras
    policy = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    assert beta["spec"] == {**policy, "disruptionMode": {"all": {}}, "priorityClassName": "high"}
    kinds = frozenset({"kubeflow.org/v1/PyTorchJob", "scheduling.k8s.io/v1alpha2/PodGroup"})
    (alpha,) = made(facts=replace(ASSUMED, kinds=kinds), workers=3, gang=asked).extras
    assert (alpha["apiVersion"], alpha["spec"]) == ("scheduling.k8s.io/v1alpha2", policy)


def test_pod_stands_over_the_gangs_marks_too() -> None:
    found = made(gang={"scheduler": "coscheduling"}, pod={"spec": {"schedulerName": "gang-scheduler"}})
    assert worker(found)["spec"]["schedulerName"] == "gang-scheduler"


# Code.


def test_code_is_a_config_map_that_people_can_read() -> None:
    code = {"a/b.py": b"1", "a-b.py": b"2", "./c.py": b"3", "weights.bin": b"\xff\xfe"}
    config, job = made(code=code).manifests
    assert config["data"] == {"a-b.py": "1", "a-b.py.2": "2", "c.py": "3"}
    assert config["binaryData"] == {"weights.bin": "//4="}
    volumes = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"]
    (items,) = [v["configMap"]["items"] for v in volumes if v["name"] == "code"]
    assert {i["key"]: i["path"] for i in items} == {
        "a-b.py": "a/b.py",
        "a-b.py.2": "a-b.py",
        "c.py": "c.py",
        "weights.bin": "weights.bin",
    }


def test_too_much_code_is_refused_with_the_sizes() -> None:
    code = {"train.py": b"x" * 1000, "weights.bin": b"x" * 2**20}
    with pytest.raises(
        BadInput,
        match=r"code: 1\.0 MiB in all, 1000 bytes more than .* holds \(weights\.bin 1\.0 MiB, train\.py",
    ):
        made(code=code)
    made(code={"weights.bin": b"x" * 2**20})  # just fits


@pytest.mark.parametrize("path", ["../x.py", "/etc/x.py", "a/../../x.py"])
def test_code_that_is_not_below_the_folder_is_refused(path: str) -> None:
    with pytest.raises(BadInput, match="not below the job's folder"):
        made(code={path: b""})


# What is said before.


def test_all_problems_at_once() -> None:
    with pytest.raises(BadInput) as refused:
        made(
            image=None,
            checkpoints={"uri": "out"},
            code={"x": b"x" * 2**21},
        )
    assert {p.path for p in refused.value.problems} == {"image", "checkpoints.uri", "code"}


def test_a_clock_that_nobody_keeps_is_warned_of() -> None:
    (note,) = made(policy={"clocks": {"rendezvous": "10m", "first_step": "20m"}}).notes
    assert note.startswith("policy.clocks.rendezvous: not enforced on a cluster")
    assert made(policy={"clocks": {"first_step": "20m"}}).notes == ()


def test_places_inside_a_pod_are_refused_or_warned_of() -> None:
    with pytest.raises(BadInput, match="would be a folder inside each pod"):
        made(data={"shards": "./shards"})
    (note,) = made(checkpoints={"uri": "/out/x"}).notes
    assert "below no mount of storage" in note
    assert made(checkpoints={"uri": "/out/x"}, storage=[{"mount": "/out", "pvc": "p"}]).notes == ()


def test_what_a_client_adds_to_the_environment_is_in_every_member_and_in_no_spec() -> None:
    fields = {
        "name": "a",
        "command": ["python"],
        "workers": 2,
        "image": "lab/train:1",
        "engine": "pytorchjob",
    }
    plan = Plan(require_valid(TrainingJob(**fields)), "k")
    traced = replace(plan, environment={"TRACEPARENT": "00-1-2-01"})
    facts = assumed_facts({}, "default")
    made = prepare_attempt(traced, 1, 1, Site("s3://bucket"), facts, {})
    containers = [
        spec["template"]["spec"]["containers"][0]
        for manifest in made.manifests
        if manifest["kind"] == "PyTorchJob"
        for spec in manifest["spec"]["pytorchReplicaSpecs"].values()
    ]
    assert len(containers) == 2
    assert all({"name": "TRACEPARENT", "value": "00-1-2-01"} in one["env"] for one in containers)
    assert (traced.spec, traced.spec_hash) == (plan.spec, plan.spec_hash)
