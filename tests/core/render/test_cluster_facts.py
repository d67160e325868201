"""The facts of a cluster go from one place to another as JSON."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from allaboard.errors import BadInput
from allaboard.render.cluster_facts import ASSUMED, ClusterFacts, facts_from_dict, facts_to_dict
from tests.torture.hostile import VALUES

LAB = ClusterFacts(
    kinds=frozenset({"kubeflow.org/v1/PyTorchJob", "kubeflow.org/v1/TFJob"}),
    operator_gangs={"training-operator": "volcano"},
    silent=frozenset({"trainer", "jobset"}),
    schedulers={"coscheduling": "gang-scheduler"},
    lacking={"mpijob": ("schedulingGroup",)},
    topology_levels=frozenset({"lab/rack"}),
    kai_topologies={"racks": ("lab/block", "lab/rack")},
    namespace="research",
    image="lab/train:3",
    service_account="trainer",
    gpu_label="lab/gpu",
    gang="coscheduling",
    engine="pytorchjob",
    secrets=("store-keys", "proxy"),
)


@pytest.mark.parametrize("facts", [LAB, ASSUMED, replace(LAB, kinds=frozenset())])
def test_facts_come_back_as_they_went(facts: ClusterFacts) -> None:
    text = json.dumps(facts_to_dict(facts))
    assert facts_from_dict(json.loads(text)) == facts
    assert facts_from_dict(json.loads(text), LAB) == facts, "what they say wins, also where it is nothing"


def test_every_fact_is_among_them_and_the_text_is_the_same_twice() -> None:
    assert facts_to_dict(LAB).keys() == {"version", *(f.name for f in fields(ClusterFacts))}
    twin = replace(LAB, kinds=frozenset(sorted(LAB.kinds or ())[::-1]))
    assert json.dumps(facts_to_dict(twin)) == json.dumps(facts_to_dict(LAB))


def test_what_is_left_out_is_that_of_the_place() -> None:
    assert facts_from_dict({"namespace": "team"}, LAB) == replace(LAB, namespace="team")


@pytest.mark.parametrize("name", [f.name for f in fields(ClusterFacts)])
def test_whatever_stands_for_a_fact_is_taken_or_refused_by_its_name(name: str) -> None:
    for value in VALUES:
        try:
            facts_from_dict({name: value()})
        except BadInput as error:
            assert [problem.path for problem in error.problems] == [name]
