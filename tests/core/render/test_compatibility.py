"""Which engine goes with which gang scheduler: every pair is decided, a new file is a new row or column."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allaboard.checking.job import check, require_valid
from allaboard.engines import ENGINES, engine_of
from allaboard.errors import BadInput
from allaboard.gangs import GANGS
from allaboard.gangs.base import GangPlan
from allaboard.gangs.kai import TOPOLOGY
from allaboard.gangs.kueue import MIN_PARALLELISM, POD_SETS, PREFERRED, PRIORITY_CLASS, REQUIRED
from allaboard.render.cluster_facts import ASSUMED, ClusterFacts, assumed_facts
from allaboard.render.compatibility import (
    choose,
    engine_for,
    engine_notes,
    matrix,
    pair_engine_and_gang,
    plan_gang,
)
from allaboard.runs.layout import lay_out
from allaboard.testing import a_job
from tests.core.backends.kubernetes.golden import made

PYTORCH = ENGINES["pytorchjob"]
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1/PodGroup"
WORKLOAD = "scheduling.k8s.io/v1alpha2/PodGroup"


def served(*kinds: str, **fields: object) -> ClusterFacts:
    return replace(ClusterFacts(kinds=frozenset(kinds)), **fields)  # type: ignore[arg-type]


OFF, MAKES_COSCHEDULING, MAKES_VOLCANO = (
    {"training-operator": word} for word in ("off", "coscheduling", "volcano")
)
BOTH = served(COSCHEDULING, WORKLOAD)
PLACES = {
    "nobody asked": ASSUMED,
    "nothing installed": served(),
    "both installed": BOTH,
    "the operator makes coscheduling's": replace(BOTH, operator_gangs=MAKES_COSCHEDULING),
    "the operator makes volcano's": replace(BOTH, operator_gangs=MAKES_VOLCANO),
}


@pytest.mark.parametrize("facts", PLACES.values(), ids=PLACES.keys())
def test_every_pair_is_decided_and_a_refusal_has_its_reason(facts: ClusterFacts) -> None:
    found = matrix(facts)
    assert set(found) == {(e, g) for e in ENGINES for g in GANGS}
    for (_, gang), one in found.items():
        assert one.how in ("marks", "natively", "none", "refused")
        assert bool(one.reason) == (one.how == "refused")
        assert gang != "none" or one.how in ("none", "refused")


def hows(facts: ClusterFacts) -> dict[str, str]:
    return {
        gang: pair_engine_and_gang(PYTORCH, GANGS[gang], facts).how
        for gang in ("coscheduling", "workload", "none")
    }


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("nobody asked", ("marks", "marks", "none")),
        ("nothing installed", ("refused", "refused", "none")),
        ("both installed", ("marks", "marks", "none")),
        ("the operator makes coscheduling's", ("natively", "refused", "refused")),
        ("the operator makes volcano's", ("refused", "refused", "refused")),
    ],
)
def test_pytorchjob_by_marks_natively_or_not(place: str, expected: tuple[str, ...]) -> None:
    assert tuple(hows(PLACES[place]).values()) == expected


@pytest.mark.parametrize(
    ("facts", "total", "gang"),
    [
        (ASSUMED, 4, "none"),  # nothing is taken on trust
        (served(), 4, "none"),
        (served(WORKLOAD), 4, "workload"),
        (BOTH, 4, "coscheduling"),  # installed on purpose; the other is alpha
        (BOTH, 1, "none"),  # one member needs nobody to start together with
        (replace(BOTH, operator_gangs=MAKES_COSCHEDULING), 1, "coscheduling"),
        (replace(BOTH, operator_gangs=OFF), 4, "coscheduling"),
        (
            replace(BOTH, operator_gangs=MAKES_VOLCANO),
            4,
            "volcano",
        ),  # whether there is a file for it or not
    ],
)
def test_auto_takes_what_the_cluster_is_known_to_have(facts: ClusterFacts, total: int, gang: str) -> None:
    assert choose(PYTORCH, total, facts) == gang


def plan(facts: ClusterFacts = BOTH, **fields: object) -> tuple[GangPlan, tuple[str, ...]]:
    job = require_valid(a_job(image="x", **fields))
    engine = engine_of(job)
    return plan_gang(job, lay_out(job, engine, "digits-00000000"), engine, facts)


def test_the_plan_says_how_many_start_together_and_under_which_names() -> None:
    found, notes = plan(workers=3, gang={"timeout": "10m"})
    assert (found.gang, found.how, found.members, found.total) == ("coscheduling", "marks", 3, 3)
    assert (found.name, found.scheduler) == ("digits-00000000-gang", "scheduler-plugins-scheduler")
    assert found.timeout == 600.0 and notes == ()
    elastic, _ = plan(workers=3, elastic={"min": 2, "max": 4})
    assert (elastic.members, elastic.total) == (2, 3)
    named, _ = plan(replace(BOTH, schedulers={"coscheduling": "gang-scheduler"}))
    assert named.scheduler == "gang-scheduler"
    natively, _ = plan(replace(BOTH, operator_gangs=MAKES_COSCHEDULING))
    assert (natively.name, natively.scheduler) == ("digits-00000000", None)


def pod_of(scheduler: str) -> dict[str, object]:
    return {"spec": {"schedulerName": scheduler}}


@pytest.mark.parametrize(
    ("fields", "gang"),
    [
        ({"pod": pod_of("volcano")}, "none"),
        ({"pod": pod_of("scheduler-plugins-scheduler")}, "coscheduling"),
        ({"pod": pod_of("default-scheduler")}, "workload"),
        ({"groups": {"master": 1, "worker": {"replicas": 2, "pod": pod_of("volcano")}}}, "none"),
        ({"groups": {"master": {"pod": pod_of("default-scheduler")}, "worker": 2}}, "workload"),
    ],
)
def test_pods_that_name_their_scheduler_are_in_no_gang_of_another(
    fields: dict[str, object], gang: str
) -> None:
    found, notes = plan(**({"workers": 3} if "groups" not in fields else {"workers": None}), **fields)
    assert found.gang == gang
    assert [note for note in notes if "name" in note] == list(notes) and bool(notes) == (gang == "none")
    said, _ = plan(workers=3, gang={"scheduler": "coscheduling"}, pod=pod_of("ours"))
    assert said.gang == "coscheduling", "it may act under another name"
    acts = replace(BOTH, schedulers={"coscheduling": "ours"})
    assert plan(acts, workers=3, pod=pod_of("ours"))[0].gang == "coscheduling"


def test_an_operator_that_makes_volcanos_gangs_is_told_the_queue() -> None:
    place = replace(BOTH, operator_gangs=MAKES_VOLCANO)
    asked = {"queue": "research", "timeout": "10m"}
    found, notes = plan(place, workers=3, elastic={"min": 2, "max": 4}, gang=asked)
    assert (found.gang, found.how, found.members, found.total) == ("volcano", "natively", 2, 3)
    assert (found.name, found.scheduler) == ("digits-00000000", None)
    assert found.queue == "research"
    assert notes == ("gang.timeout: no meaning with Volcano, left out",)
    with pytest.raises(BadInput, match="no node label is known for 'rack'"):
        plan(place, workers=3, gang={"topology": {"require": "rack"}})
    with pytest.raises(BadInput, match=r"makes gangs by volcano here .*leave gang.scheduler to auto"):
        plan(place, gang={"scheduler": "none"})


LOCALQUEUE = "kueue.x-k8s.io/v1beta2/LocalQueue"


@pytest.mark.parametrize("scheduler", ["coscheduling", "none"])
def test_a_queue_is_one_of_kueue_where_the_gang_scheduler_has_none(scheduler: str) -> None:
    asked = {"scheduler": scheduler, "queue": "research"}
    found, notes = plan(served(COSCHEDULING, LOCALQUEUE), gang=asked)
    assert found.local_queue == "research"
    assert notes == (
        "gang.queue: Kueue 0.19 and later leaves PyTorchJob alone unless its configuration names "
        "kubeflow.org/pytorchjob",
    )
    found, notes = plan(served(COSCHEDULING), gang=asked)
    assert found.local_queue is None and "gang.queue: no meaning" in notes[0]
    volcano = replace(served(LOCALQUEUE), operator_gangs=MAKES_VOLCANO)
    found, _ = plan(volcano, gang={"queue": "research"})
    assert (found.queue, found.local_queue) == ("research", None)


def in_queue(engine: str, levels: frozenset[str] = frozenset(), **fields: Any) -> Any:
    """A job of this engine in a queue of Kueue, whose topologies have these levels."""
    kind = f"{ENGINES[engine].API_VERSION}/{ENGINES[engine].KIND}"
    facts = replace(served(LOCALQUEUE, kind), topology_levels=levels)
    gang = {"scheduler": "none", "queue": "research", **fields.pop("gang", {})}
    framework = ENGINES[engine].FRAMEWORKS[0]
    return plan(facts, **{"engine": engine, "framework": framework, "gang": gang, **fields})


@pytest.mark.parametrize("engine", ["mxjob", "mpijob-v1"])
def test_a_queue_of_kueue_is_refused_for_a_kind_that_it_does_not_manage(engine: str) -> None:
    with pytest.raises(BadInput) as refused:
        in_queue(engine)
    [problem] = refused.value.problems
    assert problem.path == "gang.queue" and f"Kueue manages no job of {engine}" in problem.message


def test_kueue_admits_every_member_of_an_elastic_job_or_none() -> None:
    _, notes = in_queue("jobset", workers=4, elastic={"min": 2, "max": 4})
    assert any("admits all 4 members or none" in note for note in notes)
    assert not [note for note in in_queue("jobset", workers=4)[1] if "Kueue" in note], "it is on by default"


def test_the_one_annotation_by_which_a_part_is_admitted_means_nothing_here() -> None:
    said = {"annotations": {MIN_PARALLELISM: "2"}}
    assert any(MIN_PARALLELISM in note for note in in_queue("jobset", metadata=said)[1])


@pytest.mark.parametrize(
    ("pods", "queues", "meant"),
    [
        pytest.param({"high"}, {"low"}, ("high", None), id="of pods"),
        pytest.param({"low"}, {"high"}, (None, "high"), id="of the queue"),
        pytest.param({"high"}, {"high"}, ("high", "high"), id="of both"),
        pytest.param(None, {"high"}, (None, "high"), id="those of pods may not be read"),
        pytest.param(None, {"low"}, ("high", None), id="nor is it of the queue"),
        pytest.param({"low"}, None, ("high", None), id="those of queues may not be read"),
        pytest.param(None, None, ("high", None), id="nothing is known"),
    ],
)
@pytest.mark.parametrize("scheduler", ["none", "coscheduling"])
def test_a_priority_in_a_queue_of_kueue_is_what_there_is_by_its_name(
    scheduler: str, pods: set[str] | None, queues: set[str] | None, meant: tuple[str | None, str | None]
) -> None:
    known = {
        name: None if names is None else frozenset(names)
        for name, names in (("priorities", pods), ("queue_priorities", queues))
    }
    facts = replace(served(LOCALQUEUE, COSCHEDULING, "jobset.x-k8s.io/v1alpha2/JobSet"), **known)  # type: ignore[arg-type]
    gang = {"scheduler": scheduler, "queue": "research", "priority": "high"}
    found = made(a_job(engine="jobset", workers=2, image="x", gang=gang), facts)
    assert (found.gang.priority, found.gang.queue_priority) == meant
    assert found.job["metadata"]["labels"].get(PRIORITY_CLASS) == meant[1]
    templates = [each["template"]["spec"]["template"] for each in found.job["spec"]["replicatedJobs"]]
    assert {t["spec"].get("priorityClassName") for t in templates} == {meant[0]}
    assert bool([n for n in found.notes if "is a WorkloadPriorityClass" in n]) == (meant[0] is None)
    # Without a queue of Kueue it is that of pods.
    plain = made(a_job(engine="jobset", workers=2, image="x", gang={"priority": "high"}), facts)
    assert (plain.gang.priority, plain.gang.queue_priority) == ("high", None)


def test_a_priority_that_is_none_is_refused_with_those_that_there_are() -> None:
    facts = replace(
        served(LOCALQUEUE, "jobset.x-k8s.io/v1alpha2/JobSet"),
        priorities=frozenset({"system-node-critical"}),
        queue_priorities=frozenset({"research-high", "research-low"}),
    )
    gang = {"scheduler": "none", "queue": "research", "priority": "research-hihg"}
    with pytest.raises(BadInput) as refused:
        plan(facts, engine="jobset", gang=gang)
    [problem] = refused.value.problems
    assert (problem.path, problem.suggestion) == ("gang.priority", "research-high")
    assert problem.message == (
        "there is no PriorityClass and no WorkloadPriorityClass 'research-hihg' here; PriorityClasses: "
        "system-node-critical; WorkloadPriorityClasses: research-high, research-low"
    )


RACK, BLOCK = "topology.example.com/rack", "topology.example.com/block"


@pytest.mark.parametrize(
    ("topology", "groups", "asked"),
    [
        ({"require": RACK}, {"worker": 4}, {REQUIRED: RACK}),
        ({"prefer": BLOCK}, {"worker": 4}, {PREFERRED: BLOCK}),
        ({"require": RACK, "prefer": BLOCK}, {"worker": 4}, {REQUIRED: RACK}),
        ({"require": RACK}, {"master": 1, "worker": 3}, {REQUIRED: RACK, POD_SETS: "gang"}),
        ({"require": RACK}, {"master": 1, "worker": 1}, {REQUIRED: RACK, POD_SETS: "gang"}),
        ({"require": "zone"}, {"worker": 4}, {}),
    ],
)
def test_kueue_places_members_by_the_levels_of_its_topologies(
    topology: dict[str, str], groups: dict[str, int], asked: dict[str, str]
) -> None:
    levels = frozenset({RACK, BLOCK})
    found, _ = in_queue("jobset", levels, gang={"topology": topology}, workers=None, groups=groups)
    assert found.placed_by_queue == asked
    found, _ = in_queue("jobset", gang={"topology": topology}, workers=None, groups=groups)
    assert found.placed_by_queue == {}, "its topologies are not known"


def test_kueue_is_not_asked_for_what_it_cannot_say_of_several_roles() -> None:
    fields: dict[str, Any] = {"framework": "tensorflow", "gang": {"topology": {"require": RACK}}}
    groups = {"chief": 1, "ps": 1, "worker": 2}
    facts = replace(served(LOCALQUEUE, "kubeflow.org/v1/TFJob"), topology_levels=frozenset({RACK}))
    gang = {"scheduler": "none", "queue": "research", "topology": {"require": RACK}}
    found, _ = plan(facts, **{**fields, "gang": gang}, workers=None, groups=groups)
    assert found.placed_by_queue == {}


def test_members_carry_what_kueue_places_them_by_and_no_affinity_beside_it() -> None:
    facts = replace(served(LOCALQUEUE, "jobset.x-k8s.io/v1alpha2/JobSet"), topology_levels=frozenset({RACK}))
    gang = {"scheduler": "none", "queue": "research", "topology": {"require": RACK}}
    job = made(a_job(engine="jobset", workers=2, image="x", gang=gang), facts).job
    templates = [each["template"]["spec"]["template"] for each in job["spec"]["replicatedJobs"]]
    assert [t["metadata"]["annotations"][REQUIRED] for t in templates] == [RACK, RACK]
    assert not [t for t in templates if "podAffinity" in (t["spec"].get("affinity") or {})]


KAI = served("scheduling.run.ai/v2alpha2/PodGroup")
LEVELS = {
    "hosts": ("kubernetes.io/hostname",),
    "racks": (BLOCK, RACK),
    "zones": ("topology.kubernetes.io/zone",),
}


@pytest.mark.parametrize(
    ("topology", "own", "asked"),
    [
        ({"require": RACK}, {}, {TOPOLOGY: "racks", f"{TOPOLOGY}-required-placement": RACK}),
        ({"prefer": RACK}, {}, {TOPOLOGY: "racks", f"{TOPOLOGY}-preferred-placement": RACK}),
        (
            {"require": BLOCK, "prefer": RACK},
            {},
            {
                TOPOLOGY: "racks",
                f"{TOPOLOGY}-required-placement": BLOCK,
                f"{TOPOLOGY}-preferred-placement": RACK,
            },
        ),
        (
            {"require": "zone"},
            {},
            {TOPOLOGY: "zones", f"{TOPOLOGY}-required-placement": "topology.kubernetes.io/zone"},
        ),
        ({"require": RACK}, {TOPOLOGY: "mine"}, {TOPOLOGY: "mine", f"{TOPOLOGY}-required-placement": RACK}),
        ({"require": RACK, "prefer": "zone"}, {}, {}),
        ({"require": "nvlink"}, {}, {}),
        ({}, {TOPOLOGY: "mine"}, {}),
    ],
)
def test_kai_places_members_by_the_topology_that_has_these_levels(
    topology: dict[str, str], own: dict[str, str], asked: dict[str, str]
) -> None:
    fields: dict[str, Any] = {"workers": 2, "gang": {"scheduler": "kai", "topology": topology}}
    fields |= {"metadata": {"annotations": own}} if own else {}
    found, notes = plan(replace(KAI, kai_topologies=LEVELS), **fields)
    assert found.job_annotations == asked and found.placed_by_scheduler == bool(asked)
    told = [note for note in notes if "by affinity alone" in note]
    assert len(told) == ("require" in topology and not asked)


def test_a_job_names_its_topology_to_kai_and_its_members_have_no_affinity_beside_it() -> None:
    fields: dict[str, Any] = {"workers": 2, "image": "x"}
    fields["gang"] = {"scheduler": "kai", "topology": {"require": RACK}}
    for topologies, affine in (({"racks": (RACK,)}, False), ({}, True)):
        job = made(a_job(**fields), replace(KAI, kai_topologies=topologies)).job
        assert (TOPOLOGY in job["metadata"]["annotations"]) != affine
        replicas = job["spec"]["pytorchReplicaSpecs"].values()
        specs = [each["template"]["spec"] for each in replicas]
        assert ["podAffinity" in (spec.get("affinity") or {}) for spec in specs] == [affine] * len(specs)


def test_a_gang_scheduler_that_is_silent_is_not_taken_by_itself() -> None:
    """An uninstall leaves its kinds behind, and members that name it would wait for ever."""
    away = replace(BOTH, silent=frozenset({"coscheduling"}))
    found, notes = plan(away)
    assert (found.gang, found.how) == ("workload", "marks")
    gone = replace(BOTH, silent=frozenset({"coscheduling", "workload"}))
    found, notes = plan(gone)
    assert found.gang == "none" and len(notes) == 1 and "is installed here and does not answer" in notes[0]
    asked, notes = plan(away, gang={"scheduler": "coscheduling"})
    assert asked.how == "marks" and notes == (
        "gang.scheduler: coscheduling is installed and does not answer; nothing starts until it does",
    )


def test_what_means_nothing_to_the_gang_scheduler_is_named() -> None:
    _, notes = plan(gang={"scheduler": "workload", "queue": "research", "timeout": "5m", "priority": "high"})
    words = "no meaning with kube-scheduler's own gang scheduling, left out"
    assert notes == (f"gang.queue, gang.timeout: {words}",)
    _, notes = plan(served())
    assert len(notes) == 1 and "members start one by one: this cluster has no gang scheduler" in notes[0]
    assert plan(served(), workers=1)[1] == (), "one member needs none"


def test_a_refused_pair_is_said_with_its_reason() -> None:
    with pytest.raises(
        BadInput, match=r"pytorchjob with coscheduling: this cluster does not serve scheduling\.x"
    ):
        plan(served(), gang={"scheduler": "coscheduling"})
    with pytest.raises(BadInput, match=r"makes gangs by coscheduling here.*leave gang.scheduler to auto"):
        plan(replace(BOTH, operator_gangs=MAKES_COSCHEDULING), gang={"scheduler": "none"})


def test_the_place_says_it_for_jobs_that_do_not() -> None:
    place = replace(BOTH, gang="workload")
    for gang in ({}, {"priority": "high"}, {"scheduler": "auto"}):
        assert plan(place, gang=gang)[0].gang == "workload"
    assert plan(place, gang={"scheduler": "none"})[0].gang == "none"
    assert plan(replace(BOTH, gang="auto"))[0].gang == "coscheduling"
    with pytest.raises(BadInput, match=r"ALLABOARD_GANG: pytorchjob with workload: this cluster does not"):
        plan(served(COSCHEDULING, gang="workload"))


def test_the_place_says_the_engine_of_jobs_that_do_not() -> None:
    job = require_valid(a_job(image="x"))
    for said in (None, "auto", "pytorchjob"):
        assert engine_for(job, replace(ASSUMED, engine=said)) is PYTORCH
    said = require_valid(a_job(image="x", engine="pytorchjob"))
    assert engine_for(said, ASSUMED) is PYTORCH


def serving(*engines: str, **fields: Any) -> ClusterFacts:
    kinds = (f"{ENGINES[name].API_VERSION}/{ENGINES[name].KIND}" for name in engines)
    return replace(ASSUMED, kinds=frozenset(kinds), **fields)


@pytest.mark.parametrize(
    ("facts", "chosen"),
    [
        (ASSUMED, "pytorchjob"),
        (serving(), "pytorchjob"),  # and the launch says that it is not installed
        (serving("pytorchjob", "trainjob", "jobset"), "pytorchjob"),
        (serving("trainjob", "jobset"), "trainjob"),
        (serving("jobset"), "jobset"),
        (serving("tfjob", "jobset"), "jobset"),
        (serving("pytorchjob", "trainjob", silent=frozenset({"training-operator"})), "trainjob"),
        (serving("pytorchjob", silent=frozenset({"training-operator"})), "pytorchjob"),
        (serving("pytorchjob", "jobset", engine="jobset"), "jobset"),
        (serving("pytorchjob", engine="tfjob"), "pytorchjob"),
    ],
)
def test_auto_takes_what_the_cluster_has(facts: ClusterFacts, chosen: str) -> None:
    job = require_valid(a_job(image="x"))
    assert chosen == engine_for(job, facts).NAME
    assert engine_for(require_valid(a_job(image="x", engine="trainjob")), facts).NAME == "trainjob"
    notes = [*engine_notes(job, ENGINES[chosen], facts)]
    assert bool(notes) is (chosen != "pytorchjob")


def test_auto_passes_an_engine_that_objects_and_says_what_none_can_do() -> None:
    job = require_valid(a_job(image="x", policy={"restart": "always"}))
    assert engine_for(job, serving("pytorchjob", "jobset")).NAME == "pytorchjob"
    with pytest.raises(BadInput, match="cannot run as trainjob or jobset") as refused:
        engine_for(job, serving("trainjob", "jobset"))
    assert [p.path for p in refused.value.problems] == ["policy.restart"]


def test_why_another_engine_was_taken_is_said() -> None:
    job = require_valid(a_job(image="x"))

    def why(facts: ClusterFacts) -> str:
        (note,) = engine_notes(job, ENGINES["jobset"], facts)
        return note

    assert why(serving("jobset")) == "it runs as JobSet: this cluster has no PyTorchJob"
    assert "does not answer" in why(serving("pytorchjob", "jobset", silent=frozenset({"training-operator"})))
    assert "ALLABOARD_ENGINE" in why(serving("pytorchjob", "jobset", engine="jobset"))


def test_what_no_place_can_mean_is_said_all_at_once_with_the_nearest_name() -> None:
    facts = assumed_facts({
        "ALLABOARD_GANG": "coschedulin",
        "ALLABOARD_ENGINE": "pytorch-job",
        "ALLABOARD_SECRETS": "store-keys, My_Keys",
    })  # fmt: skip
    with pytest.raises(BadInput, match="these settings are not valid") as refused:
        engine_for(require_valid(a_job(image="x")), facts)
    assert [(p.path, p.suggestion) for p in refused.value.problems] == [
        ("ALLABOARD_GANG", "coscheduling"),
        ("ALLABOARD_ENGINE", "pytorchjob"),
        ("ALLABOARD_SECRETS", None),
    ]
    assert "'My_Keys' is not an object name" in refused.value.problems[2].message


def test_check_knows_the_names() -> None:
    (problem,) = check(a_job(gang={"scheduler": "coschedulin"}))
    assert problem.path == "gang.scheduler" and problem.suggestion == "coscheduling"
    assert "known: auto, coscheduling, kai, none, volcano, workload or yunikorn" in problem.message


NEW_GANG = """
NAME, TITLE, KINDS, SCHEDULER, AUTO = "toy", "the toy gang", ("toy.io/v1/Band",), "toy-scheduler", 1
POD_FIELD, COMPOSITE, UNDERSTANDS, REFUSES, REFUSES_DOMAIN = None, (), frozenset({"queue"}), {}, None
def marks(plan, role):
    return {"metadata": {"labels": {"toy.io/band": plan.name}}, "spec": {"schedulerName": plan.scheduler}}
def objects(plan):
    named = {"name": plan.name, "namespace": plan.namespace}
    return ({"apiVersion": "toy.io/v1", "kind": "Band", "metadata": named, "spec": {"size": plan.members}},)
def read(look): return f"the band waits for {look.needed}"
"""
NEW_ENGINE = """
from allaboard.engines.pytorchjob import PyTorchJob
class ToyJob(PyTorchJob):
    KIND, API_VERSION, FRAMEWORKS = "ToyJob", "toy.io/v1", ("toy",)
    NATIVELY, REFUSES = frozenset(), {"workload": "the toy operator drops schedulingGroup"}
ENGINE = ToyJob()
"""
SCRIPT = """
import importlib.util, sys
for package, folder in (("allaboard.gangs", sys.argv[1]), ("allaboard.engines", sys.argv[2])):
    spec = importlib.util.find_spec(package)
    spec.submodule_search_locations.append(folder)  # as if the file lay in the package
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
from dataclasses import replace
from allaboard.checking.job import check
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.runs.layout import lay_out
from allaboard.engines import ENGINES
from allaboard.render.compatibility import matrix
from allaboard.render.manifests import render
from allaboard.testing import a_job
from tests.core.backends.kubernetes.golden import made
from allaboard.testing.objects import BEGUN, a_pod, a_pytorchjob
facts = ClusterFacts(kinds=frozenset({"toy.io/v1/Band", "scheduling.k8s.io/v1alpha2/PodGroup"}))
found = matrix(facts)
assert found["pytorchjob", "toy"].how == found["toyjob", "toy"].how == "marks", found
assert found["toyjob", "workload"].reason == "the toy operator drops schedulingGroup", found
job = a_job(engine="toyjob", image="x", gang={"queue": "q"})
assert check(a_job(gang={"scheduler": "toy"})) == []
made = render(job, lay_out(job, ENGINES["toyjob"], "digits-1"), facts, launch="u", spec_hash="h")
assert [m["kind"] for m in made.manifests] == ["Band", "ToyJob"], made.manifests
worker = made.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
from dataclasses import replace
from allaboard.render.compatibility import engine_for
toy = replace(facts, engine="toyjob")
assert engine_for(a_job(image="x"), toy).NAME == "pytorchjob", "a toy runs no pytorch"
assert engine_for(a_job(image="x", framework="toy"), replace(toy, engine="pytorchjob")).NAME == "toyjob"
assert worker["spec"]["schedulerName"] == "toy-scheduler" and worker["metadata"]["labels"]["toy.io/band"]
from allaboard.backends.kubernetes.observe.observation import of_object
thing = {**a_pytorchjob("Created", gang="toy"), "apiVersion": "toy.io/v1", "kind": "ToyJob"}
assert of_object(thing, now=BEGUN).waiting == "the band waits for 2"
print("well")
"""


def test_a_new_engine_and_a_new_gang_scheduler_touch_no_other_file(tmp_path: Path) -> None:
    for folder, name, text in (("gangs", "toy.py", NEW_GANG), ("engines", "toyjob.py", NEW_ENGINE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "gangs"), str(tmp_path / "engines")],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "well\n", done.stderr
