"""To a job and back to the same kind loses nothing that the kind has."""

from __future__ import annotations

import random
from typing import Any

import pytest

from allaboard.convert.manifests import Document, engine_of_manifest
from allaboard.engines.kubeflow import KubeflowEngine
from tests.core.convert.generated import READ_BY_A_JOB, a_manifest
from tests.core.convert.manifests import back, engine_of, in_folder, there
from tests.core.convert.normal import normal, without_additions, without_losses

PUBLISHED = [
    document
    for folder in ("wild", "examples")
    for document in in_folder(folder)
    if isinstance(engine_of_manifest(document.value), KubeflowEngine)
]


def assert_same(source: dict[str, Any]) -> None:
    """The source and what is rendered of its job are the same to a cluster."""
    engine, made = engine_of(source), there(source)
    rendered = without_additions(back(made.job, engine), source, engine)
    assert normal(rendered, engine) == normal(without_losses(source, list(made.lost)), engine)


@pytest.mark.parametrize("document", PUBLISHED, ids=lambda document: document.place)
def test_what_was_published_comes_back_as_it_was(document: Document) -> None:
    assert_same(document.value)


@pytest.mark.parametrize("rounds", [40, pytest.param(400, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("engine", READ_BY_A_JOB, ids=lambda engine: engine.KIND)
def test_whatever_a_manifest_says_comes_back(engine: KubeflowEngine, rounds: int) -> None:
    rng = random.Random(f"there and back {engine.KIND}")
    for _ in range(rounds):
        assert_same(a_manifest(rng, engine))


@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("engine", READ_BY_A_JOB, ids=lambda engine: engine.KIND)
def test_what_allaboard_renders_is_a_job_again_that_renders_the_same(
    engine: KubeflowEngine, rounds: int
) -> None:
    rng = random.Random(f"back and there {engine.KIND}")
    for _ in range(rounds):
        rendered = back(there(a_manifest(rng, engine)).job, engine)
        made = there(rendered)
        assert not made.lost
        again = back(made.job, engine)
        assert normal(again, engine) == normal(rendered, engine)
        assert back(there(again).job, engine) == again


def test_where_a_run_of_ours_kept_its_data_is_told_as_lost() -> None:
    job = {"name": "digits", "image": "x", "args": [], "checkpoints": {"uri": "s3://bucket/a", "every": 50}}
    made = there(back(job, next(one for one in READ_BY_A_JOB if one.KIND == "PyTorchJob")))
    assert made.job["name"] == "digits" and "environment" not in made.job
    assert {loss.value["name"] for loss in made.lost} == {
        "ALLABOARD_CHECKPOINTS",
        "ALLABOARD_CHECKPOINT_EVERY",
    }
