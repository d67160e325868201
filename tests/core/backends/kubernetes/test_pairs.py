"""Every pair of an engine and a gang scheduler: what is sent, or why it is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from allaboard.engines import ENGINES
from allaboard.errors import BadInput
from allaboard.gangs import GANGS
from allaboard.gangs.kai import MEMBERS, QUEUE
from allaboard.gangs.requests import amount
from allaboard.gangs.yunikorn import PREFIX
from allaboard.render.cluster_facts import ASSUMED
from allaboard.render.compatibility import choose, matrix, pair_engine_and_gang
from allaboard.testing import a_job
from tests.core.backends.kubernetes.golden import (
    GANG_FILES,
    KINDS,
    allowed_pairs,
    composite,
    made,
    of_gang,
    pair,
)

REFUSED = {("paddlejob", "kai"), ("mxjob", "kai")}
TEMPLATES = {"podtemplate", "template"}


@pytest.mark.parametrize("gang", GANG_FILES)
def test_what_is_sent_of_every_pair(gang: str) -> None:
    """A difference is a change of what is sent: look at it, then run
    `python -m tests.core.backends.kubernetes.golden`.
    """
    assert of_gang(gang) == GANG_FILES[gang].read_text()


def test_every_pair_is_allowed_or_refused_with_its_reason() -> None:
    found = matrix()
    assert {*found} == {(engine, gang) for engine in ENGINES for gang in GANGS}
    assert {pair for pair, decided in found.items() if decided.how == "refused"} == REFUSED
    for (engine, gang), decided in found.items():
        assert bool(decided.reason) == ((engine, gang) in REFUSED)


@pytest.mark.parametrize(("engine", "gang"), sorted(REFUSED))
def test_a_refused_pair_is_refused_at_its_path(engine: str, gang: str) -> None:
    with pytest.raises(BadInput) as refused:
        pair(engine, gang)
    [problem] = refused.value.problems
    assert problem.path == "gang.scheduler" and "pod-grouper knows no" in problem.message


def test_a_field_that_a_kind_lacks_is_a_reason_to_refuse() -> None:
    """The MPI Operator's typed pod templates drop what their release does not know."""
    facts = replace(ASSUMED, lacking={"mpijob": ("schedulingGroup",)})
    decided = pair_engine_and_gang(ENGINES["mpijob"], GANGS["workload"], facts)
    assert decided.how == "refused" and "has no pod field schedulingGroup" in decided.reason


def pod_templates(thing: Any) -> list[dict[str, Any]]:
    """Those of members, wherever they are."""
    if isinstance(thing, list):
        return [found for item in thing for found in pod_templates(item)]
    if not isinstance(thing, dict):
        return []
    own = [thing] if "containers" in (thing.get("spec") or {}) else []
    return own + [found for value in thing.values() for found in pod_templates(value)]


@pytest.mark.parametrize("gang", [gang for gang in GANG_FILES if GANGS[gang].SCHEDULER])
def test_every_member_names_the_scheduler_of_its_gang(gang: str) -> None:
    """Trainer and JobSet set none, and one that is forgotten is placed alone."""
    for engine, how in allowed_pairs(gang):
        templates = pod_templates([*pair(engine, gang, how).manifests])
        named = {template["spec"].get("schedulerName") for template in templates}
        assert named == ({GANGS[gang].SCHEDULER} if how == "marks" else {None}), (engine, how)


# KAI.


@pytest.mark.parametrize("engine", ["jobset", "trainjob"])
def test_kai_takes_all_members_of_a_jobset_for_one_gang(engine: str) -> None:
    apart: dict[str, Any] = {"groups": {"master": 1, "worker": {"replicas": 2, "image": "other"}}}
    jobsets = [
        spec
        for manifest in pair(engine, "kai", workers=None, **apart).manifests
        for spec in (manifest["spec"], manifest["spec"].get("template", {}).get("spec", {}))
        if "replicatedJobs" in spec
    ]
    assert [spec["startupPolicy"] for spec in jobsets] == [{"startupPolicyOrder": "AnyOrder"}]


@pytest.mark.parametrize(("engine", "said"), [("jobset", "3"), ("trainjob", "3"), ("pytorchjob", None)])
def test_the_job_object_says_to_kai_how_many_start_together_where_its_kind_does_not(
    engine: str, said: str | None
) -> None:
    """Since 0.15 the members of a JobSet are no gang without it."""
    job = pair(engine, "kai").manifests[-1]
    assert job["metadata"]["annotations"].get(MEMBERS) == said
    own = {"annotations": {MEMBERS: "2"}}
    assert pair(engine, "kai", metadata=own).job["metadata"]["annotations"][MEMBERS] == "2", "the job's wins"


def test_members_name_their_queue_to_kai_and_nothing_where_the_job_names_none() -> None:
    [job] = pair("pytorchjob", "kai").manifests
    labels = [t["metadata"]["labels"].get(QUEUE) for t in pod_templates(job)]
    assert labels == ["research", "research"]
    plain = made(a_job(groups={"worker": 2}, workers=None, image="x", gang={"scheduler": "kai"}))
    assert QUEUE not in yaml.safe_dump(plain.job)


def test_an_elastic_job_of_another_kind_than_pytorchjob_is_told_that_kai_waits_for_all() -> None:
    fields: dict[str, Any] = {"workers": 4, "elastic": {"min": 2, "max": 4}, "gang": {"scheduler": "kai"}}
    fields |= {"command": ["torchrun", "x.py"], "image": "x"}
    assert not [note for note in made(a_job(**fields)).notes if "KAI" in note]
    [note] = [note for note in made(a_job(engine="jobset", **fields)).notes if "KAI" in note]
    assert note == "KAI Scheduler places all 4 members of a JobSet together, not 2 of them"


# Gangs of gangs.


def test_an_elastic_job_with_a_master_is_a_gang_of_gangs_where_the_cluster_has_them() -> None:
    found = composite()
    groups = {e["metadata"]["name"]: e["spec"] for e in found.extras if e["kind"] == "PodGroup"}
    named = [t["spec"]["schedulingGroup"]["podGroupName"] for t in pod_templates(found.job)]
    assert sorted(named) == sorted(groups), "each member is in the gang of its role"
    counts = {name: spec["schedulingPolicy"]["gang"]["minCount"] for name, spec in groups.items()}
    assert counts == {f"{found.gang.name}-master": 1, f"{found.gang.name}-worker": 2}
    [whole] = [e for e in found.extras if e["kind"] == "CompositePodGroup"]
    assert whole["spec"]["schedulingPolicy"] == {"gang": {"minGroupCount": 2}}
    assert {s["parentCompositePodGroupName"] for s in groups.values()} == {whole["metadata"]["name"]}
    assert found.gang.kind == f"{whole['apiVersion']}/CompositePodGroup", "by it is read why it waits"


@pytest.mark.parametrize(
    "fields",
    [
        {"elastic": None, "command": ["python", "train.py"]},
        {"groups": {"worker": 4}},
        {"elastic": {"min": 4, "max": 6}},
    ],
    ids=["a fixed number", "one role", "all members are needed"],
)
def test_one_podgroup_is_enough_for_a_gang_that_it_can_say(fields: dict[str, Any]) -> None:
    found = composite(**fields)
    [group] = found.extras
    assert group["kind"] == "PodGroup"
    key = "topology.example.com/rack"
    assert group["spec"]["schedulingConstraints"] == {"topology": [{"key": key}]}, "as the gates allow it"


def test_a_cluster_that_is_not_known_to_have_gangs_of_gangs_is_sent_none() -> None:
    fields: dict[str, Any] = {"groups": {"master": 1, "worker": 3}, "elastic": {"min": 3, "max": 6}}
    topology = {"require": "topology.example.com/rack"}
    gang = {"scheduler": "workload", "topology": topology}
    found = made(a_job(image="x", workers=None, command=["torchrun", "x.py"], gang=gang, **fields))
    [group] = found.extras
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 3}}}


def test_volcano_is_told_that_the_master_is_among_the_least_number() -> None:
    gang = {"scheduler": "volcano"}
    groups = {"master": 1, "worker": 3}
    command = ["torchrun", "x.py"]
    fields: dict[str, Any] = {"image": "x", "workers": None, "groups": groups, "command": command}
    [group] = made(a_job(elastic={"min": 2, "max": 6}, gang=gang, **fields)).extras
    assert group["spec"]["minMember"] == 2
    assert group["spec"]["minTaskMember"] == {"master": 1, "worker": 1}


# YuniKorn.


def task_groups(template: dict[str, Any]) -> dict[str, Any]:
    return {g["name"]: g for g in json.loads(template["metadata"]["annotations"][f"{PREFIX}task-groups"])}


def test_members_of_one_attempt_are_one_application_of_yunikorn() -> None:
    for engine, _ in allowed_pairs("yunikorn"):
        rendered = pair(engine, "yunikorn")
        templates = pod_templates([*rendered.manifests])
        assert {t["metadata"]["labels"][f"{PREFIX}app-id"] for t in templates} == {rendered.gang.name}
        said = {json.dumps(task_groups(t), sort_keys=True) for t in templates}
        assert len(said) == 1, "whichever pod is the first"
        groups = task_groups(templates[0])
        assert {t["metadata"]["annotations"][f"{PREFIX}task-group-name"] for t in templates} == {*groups}
        assert sum(group["minMember"] for group in groups.values()) == rendered.gang.total
        assert {t["metadata"]["labels"][f"{PREFIX}queue"] for t in templates} == {"research"}
        how = {t["metadata"]["annotations"][f"{PREFIX}schedulingPolicyParameters"] for t in templates}
        assert how == {"placeholderTimeoutInSeconds=300 gangSchedulingStyle=Hard"}
    second = made(a_job(image="x", gang={"scheduler": "yunikorn"}), attempt=2)
    first = made(a_job(image="x", gang={"scheduler": "yunikorn"}))
    assert first.gang.name != second.gang.name, "an application is one attempt"


def test_placeholders_of_yunikorn_are_as_large_as_their_pods_and_go_where_these_may() -> None:
    """A pod that asks for more than its placeholder does not take its place."""
    sidecar = {"name": "logs", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    place = {"nodeSelector": {"pool": "gpu"}, "containers": [sidecar]}
    resources = {"cpu": 1, "gpu": 2}
    found = made(
        a_job(
            image="x",
            workers=None,
            groups={"master": 1, "worker": {"replicas": 2, "resources": {"cpu": 4}}},
            resources=resources,
            pod={"spec": place},
            gang={"scheduler": "yunikorn"},
        )
    )
    groups = task_groups(pod_templates(found.job)[0])
    assert groups["master"]["minResource"] == {
        "cpu": "1500m", "memory": str(2**30), "nvidia.com/gpu": "2"
    }  # fmt: skip
    assert groups["worker"]["minResource"]["cpu"] == "4500m"
    assert groups["master"]["nodeSelector"] == {"pool": "gpu"}
    assert groups["master"]["tolerations"][0]["key"] == "nvidia.com/gpu"
    small = made(a_job(image="x", resources={"cpu": "10m"}, gang={"scheduler": "yunikorn"}))
    asks = task_groups(pod_templates(small.job)[0])["worker"]["minResource"]
    added = ENGINES["pytorchjob"].ADDED[0].requests
    assert amount(asks["cpu"]) >= amount(added["cpu"]), "with what its operator adds"


def test_an_elastic_gang_of_yunikorn_reserves_its_least_number() -> None:
    fields: dict[str, Any] = {"workers": 4, "elastic": {"min": 2, "max": 4}, "image": "x"}
    found = made(a_job(command=["torchrun", "x.py"], gang={"scheduler": "yunikorn"}, **fields))
    assert task_groups(pod_templates(found.job)[0])["worker"]["minMember"] == 2


def test_yunikorn_is_taken_by_name_alone_and_keeps_no_required_domain() -> None:
    assert choose(ENGINES["pytorchjob"], 4, replace(ASSUMED, kinds=frozenset())) == "none"
    with pytest.raises(BadInput) as refused:
        made(a_job(image="x", gang={"scheduler": "yunikorn", "topology": {"require": "zone"}}))
    [problem] = refused.value.problems
    assert problem.path == "gang.topology.require" and "know no affinity to others" in problem.message


# Traps: what looks like a gang, and would never start, or start in part.

TRAPS: dict[str, tuple[dict[str, Any], str, str]] = {
    "members that are made one after the other": (
        {
            "engine": "jobset",
            "workers": None,
            "groups": {"master": 1, "worker": 2},
            "engine_spec": {"startupPolicy": {"startupPolicyOrder": "InOrder"}},
        },
        "engine_spec.startupPolicy",
        "they would wait for each other for ever",
    ),
    "a launcher that waits for its workers": (
        {
            "engine": "mpijob",
            "framework": "mpi",
            "workers": None,
            "groups": {"launcher": 1, "worker": 2},
            "command": ["mpirun", "x"],
            "engine_spec": {"launcherCreationPolicy": "WaitForWorkersReady"},
        },
        "engine_spec.launcherCreationPolicy",
        "the launcher would wait for the gang",
    ),
    "a runtime whose scheduler no TrainJob can change": (
        {"engine": "trainjob", "workers": 2, "engine_spec": {"runtimeRef": {"name": "torch-distributed"}}},
        "gang.scheduler",
        "the runtime says it",
    ),
    "a runtime that downloads before it trains": (
        {
            "engine": "trainjob",
            "workers": 2,
            "engine_spec": {
                "runtimeRef": {"name": "torchtune-llama"},
                "initializer": {"dataset": {"storageUri": "hf://data"}},
            },
        },
        "gang.scheduler",
        "the runtime says it",
    ),
}


@pytest.mark.parametrize("gang", GANG_FILES)
@pytest.mark.parametrize(("fields", "path", "words"), TRAPS.values(), ids=TRAPS.keys())
def test_a_gang_that_would_never_be_whole_is_refused(
    fields: dict[str, Any], path: str, words: str, gang: str
) -> None:
    with pytest.raises(BadInput) as refused:
        made(a_job(image="x", gang={"scheduler": gang}, **fields))
    assert [p.path for p in refused.value.problems if words in p.message] == [path]


def test_members_that_are_made_one_after_the_other_are_in_no_gang_by_themselves() -> None:
    fields, path, _ = TRAPS["members that are made one after the other"]
    facts = replace(ASSUMED, kinds=frozenset({"jobset.x-k8s.io/v1alpha2/JobSet", *GANGS["volcano"].KINDS}))
    found = made(a_job(image="x", **fields), facts)
    [note] = found.notes
    assert found.gang.gang == "none" and note.startswith("members start one after the other") and path in note
    alone = {**fields, "groups": {"worker": 2}}
    assert made(a_job(image="x", **alone), facts).gang.gang == "volcano", "one group waits for nobody"


def test_a_tier_is_not_asked_of_an_operator_that_rewrites_the_podgroup() -> None:
    facts = replace(ASSUMED, operator_gangs={"training-operator": "volcano"})
    with pytest.raises(BadInput) as refused:
        made(a_job(image="x", gang={"topology": {"require": "2"}}), facts)
    [problem] = refused.value.problems
    assert problem.path == "gang.topology.require"


def test_every_engine_has_a_job_here() -> None:
    assert {*KINDS} == {*ENGINES}
