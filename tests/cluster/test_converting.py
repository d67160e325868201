"""What is converted, the API server takes: every manifest that the operator's own modules and its users
published becomes a job and comes back, by a dry run with strict validation, the operator's webhooks included.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from allaboard.checking.job import require_valid
from allaboard.convert.manifests import Document, Outcome, convert, engine_of_manifest
from allaboard.engines import ENGINES
from allaboard.engines.kubeflow import KubeflowEngine
from allaboard.render.cluster_facts import ASSUMED
from allaboard.render.manifests import Rendered, render
from allaboard.runs.layout import lay_out
from tests.cluster.api import ApiError, Object
from tests.cluster.plane import Cluster
from tests.cluster.test_rendering import accepted, assert_within, pods_of
from tests.core.convert.manifests import in_folder

__all__ = ["accepted"]


def read_ones(folder: str) -> list[Document]:
    return [one for one in in_folder(folder) if isinstance(engine_of_manifest(one.value), KubeflowEngine)]


def back_again(document: Document, namespace: str) -> Rendered:
    """What is rendered of the job that a document becomes."""
    (outcome,) = convert([document])
    (fields,) = outcome.documents
    engine = engine_of_manifest(document.value)
    assert engine is not None
    job = require_valid({**fields, "engine": engine.NAME})
    layout = lay_out(job, engine, f"{job.name}-00000000")
    return render(job, layout, replace(ASSUMED, namespace=namespace), launch="l", spec_hash="v1:0")


@pytest.mark.needs("training-operator")
@pytest.mark.parametrize("document", read_ones("examples"), ids=lambda document: document.place)
def test_every_example_of_the_operator_comes_back_and_is_taken(
    cluster: Cluster, namespace: str, accepted: Callable[[Object], Object], document: Document
) -> None:
    made = back_again(document, namespace)
    if not cluster.api.serves(made.job["apiVersion"], made.job["kind"]):
        pytest.skip(f"{made.job['kind']} is not served here")
    for manifest in made.manifests:
        assert_within(manifest, accepted(manifest))
    for pod in pods_of(made):
        accepted(pod)


@pytest.mark.needs("training-operator")
def test_what_users_published_comes_back_and_is_taken(
    cluster: Cluster, namespace: str, accepted: Callable[[Object], Object]
) -> None:
    taken = 0
    for document in read_ones("wild"):
        if not cluster.api.serves(document.value["apiVersion"], document.value["kind"]):
            continue
        for manifest in back_again(document, namespace).manifests:
            assert_within(manifest, accepted(manifest))
            taken += 1
    assert taken > 80


@pytest.mark.needs("training-operator", "trainer", "jobset")
def test_an_example_becomes_the_manifest_of_every_kind_that_can_say_it(
    cluster: Cluster, namespace: str, accepted: Callable[[Object], Object]
) -> None:
    document = next(one for one in read_ones("examples") if one.value["kind"] == "PyTorchJob")
    refused = {}
    for engine in ENGINES.values():
        (outcome,) = convert([document], engine.NAME)
        if not outcome.documents:
            refused[engine.NAME] = [problem.path for problem in outcome.problems]
            continue
        for manifest in outcome.documents:
            placed = {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}
            accepted(placed)
            if placed["kind"] == "TrainingRuntime":
                cluster.api.create(placed)  # a TrainJob is refused without it
    assert not {"pytorchjob", "trainjob", "jobset"} & {*refused} and all(refused.values())


@pytest.mark.needs("training-operator")
def test_what_lives_on_a_cluster_becomes_the_job_that_its_manifest_becomes(
    cluster: Cluster, namespace: str
) -> None:
    document = next(one for one in read_ones("examples") if one.value["kind"] == "PyTorchJob")
    # Suspended: no pod is made of it.
    spec = {**document.value["spec"], "runPolicy": {"suspend": True}}
    metadata = {**document.value["metadata"], "namespace": namespace}
    manifest = {**document.value, "spec": spec, "metadata": metadata}
    cluster.api.request("POST", cluster.api.path(manifest).rpartition("/")[0], manifest)
    where = ["--kubeconfig", str(cluster.kubeconfig), "-n", namespace]
    words = [sys.executable, "-m", "allaboard", "convert", "--from-cluster", "--json", *where]
    answer = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    (fresh,) = convert([replace(document, value=manifest)])
    assert answer["documents"] == [json.loads(json.dumps(dict(fresh.documents[0])))]
    assert answer["lost"] == []


@pytest.mark.needs("trainer", "jobset")
@pytest.mark.parametrize(
    "place", sorted({one.text for one in in_folder("examples") if one.text.startswith("trainer-")})
)
def test_every_example_of_trainer_becomes_a_job_and_the_trainjob_of_it_is_taken(
    cluster: Cluster, namespace: str, accepted: Callable[[Object], Object], place: str
) -> None:
    documents = [one for one in in_folder("examples") if one.text == place]
    for one in documents:
        if one.value["kind"].endswith("TrainingRuntime"):
            body = {**one.value, "metadata": {**one.value["metadata"], "namespace": namespace}}
            cluster.api.apply(one.value if one.value["kind"].startswith("Cluster") else body)
    (outcome,) = [one for one in convert(documents) if one.passed is None]
    assert not outcome.lost
    (fields,) = outcome.documents
    job = require_valid(fields)
    layout = lay_out(job, ENGINES["trainjob"], f"{job.name}-00000000")
    made = render(job, layout, replace(ASSUMED, namespace=namespace), launch="l", spec_hash="v1:0")
    source = outcome.source.value
    try:
        accepted({**source, "metadata": {**source["metadata"], "namespace": namespace}})
    except ApiError as error:  # Trainer 2.3.0 refuses an example of its own, whose initializer mounts nothing
        assert place == "trainer-05-multi-step.yaml" and "must have volumeMount" in str(error)
        with pytest.raises(ApiError, match="must have volumeMount"):
            accepted(made.job)
        return
    assert_within(made.job, accepted(made.job))


JOBSETS = [
    outcome
    for folder in ("examples", "wild")
    for outcome in convert(
        [one for one in in_folder(folder) if "jobset-" in one.text or "-jobset" in one.text]
    )
    if outcome.documents
]


@pytest.mark.needs("jobset")
@pytest.mark.parametrize("outcome", JOBSETS, ids=lambda outcome: outcome.source.place)
def test_every_jobset_that_becomes_a_job_comes_back_and_is_taken(
    cluster: Cluster, namespace: str, accepted: Callable[[Object], Object], outcome: Outcome
) -> None:
    made = back_again(outcome.source, namespace)
    assert_within(made.job, accepted(made.job))
    for pod in pods_of(made):
        accepted(pod)
