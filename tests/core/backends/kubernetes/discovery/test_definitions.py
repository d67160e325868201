"""Whether a cluster's job objects have the pod field that a gang scheduler needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.client.errors import Cause, Forbidden, Invalid
from allaboard.backends.kubernetes.discovery.definitions import complete_lacking, objects_with_field
from allaboard.backends.kubernetes.discovery.installed import complete_facts, survey_cluster
from allaboard.engines import ENGINES
from allaboard.errors import BackendUnreachable
from allaboard.gangs import GANGS
from allaboard.render.cluster_facts import ASSUMED, ClusterFacts
from allaboard.render.compatibility import choose, pair_engine_and_gang
from tests.core.backends.kubernetes.answers import Answers, Json

NATIVE = "scheduling.k8s.io/v1alpha2/PodGroup"
KINDS = [NATIVE, "kubeflow.org/v1/PyTorchJob", "kubeflow.org/v2beta1/MPIJob"]


def mpijob_is_older(body: Json) -> None:
    if body["kind"] == "MPIJob":
        path = "spec.mpiReplicaSpecs[Launcher].template.spec.schedulingGroup"
        words = f'MPIJob cannot be handled: strict decoding error: unknown field "{path}"'
        raise Invalid(words, status=400, causes=[Cause(path, "unknown field")])
    if body["metadata"]["name"] == "allaboard-probe":
        raise Forbidden('admission webhook "validator.x" denied the request: no', status=403)


def facts_of(answers: Answers) -> ClusterFacts:
    facts = complete_facts(answers, ASSUMED)
    facts = complete_lacking(answers, facts, ENGINES.values())
    lacking = {name: fields for name, fields in facts.lacking.items() if fields}
    survey = survey_cluster(answers, answers.server, "research")
    assert survey.facts(ASSUMED).lacking == lacking
    return replace(facts, lacking=lacking)


def test_an_older_definition_is_given_no_gang_that_needs_the_field() -> None:
    facts = facts_of(Answers(KINDS, refuses=mpijob_is_older))
    assert facts.lacking == {"mpijob": ("schedulingGroup",)}
    assert choose(ENGINES["mpijob"], 3, facts) == "none"
    assert choose(ENGINES["pytorchjob"], 3, facts) == "workload"
    pair = pair_engine_and_gang(ENGINES["mpijob"], GANGS["workload"], facts)
    assert pair.how == "refused"
    assert "definition of MPIJob has no pod field schedulingGroup" in pair.reason


def test_a_cluster_without_that_scheduler_is_asked_nothing() -> None:
    answers = Answers(KINDS[1:], refuses=mpijob_is_older)
    assert facts_of(answers).lacking == {}
    assert "schedulingGroup" not in str(answers.tried)


def test_an_engine_is_asked_about_once_and_no_other_is() -> None:
    answers = Answers(KINDS, refuses=mpijob_is_older)
    facts = complete_facts(answers, ASSUMED)
    answers.tried.clear()  # whether webhooks live
    once = complete_lacking(answers, facts, [ENGINES["mpijob"]])
    assert once.lacking == {"mpijob": ("schedulingGroup",)}
    tried = len(answers.tried)
    assert {body["kind"] for body in answers.tried} <= {"MPIJob", "PodGroup"}
    assert complete_lacking(answers, once, [ENGINES["mpijob"]]) == once
    assert len(answers.tried) == tried


@pytest.mark.parametrize("error", [BackendUnreachable("failed calling webhook"), Forbidden("no", status=403)])
def test_what_is_not_known_refuses_nothing(error: Exception) -> None:
    def refuses(body: Json) -> None:
        if "schedulingGroup" in str(body):
            raise error

    assert facts_of(Answers(KINDS, refuses=refuses)).lacking == {}


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_engine_has_an_object_to_ask_with(engine: str) -> None:
    bodies: list[dict[str, Any]] = [*objects_with_field(ENGINES[engine], GANGS["workload"], "research")]
    assert bodies and all(body["metadata"]["namespace"] == "research" for body in bodies)
    assert not [*objects_with_field(ENGINES[engine], GANGS["none"], "research")]
