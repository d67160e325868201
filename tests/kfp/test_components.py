"""What the components compile to, and what can be chosen about them."""

# kfp reads the annotations of a pipeline: no `from __future__ import annotations` here.

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import yaml
from google.protobuf import json_format
from kfp import dsl
from kfp.client import Client
from kfp.pipeline_spec import pipeline_spec_pb2

import allaboard_kfp
from tests.kfp.golden import NAMES, ROOT, subjects
from tests.kfp.ir import GOLDEN, compiled, container, validated

SUBJECTS = subjects()


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_compiled_ir_is_valid_and_every_reference_leads_somewhere(name: str, tmp_path: Path) -> None:
    validated(compiled(SUBJECTS[name], tmp_path / "x.yaml"))


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_compiled_ir_is_the_one_that_was_looked_at(name: str, tmp_path: Path) -> None:
    """A difference is a change of the interface: look at it, then `python -m tests.kfp.golden`."""
    now = yaml.safe_load(compiled(SUBJECTS[name], tmp_path / "x.yaml"))
    kept = yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())
    assert {**now, "sdkVersion": ""} == {**kept, "sdkVersion": ""}  # of the kfp that compiled it


def test_the_validation_finds_what_is_wrong(tmp_path: Path) -> None:
    body = yaml.safe_load(compiled(SUBJECTS["retrain_digits"], tmp_path / "x.yaml"))
    given = body["root"]["dag"]["tasks"]["train"]["inputs"]["parameters"]
    given["shards"]["taskOutputParameter"]["outputParameterKey"] = "no"
    with pytest.raises(AssertionError):
        validated(yaml.safe_dump(body))
    body["root"]["dag"]["taks"] = {}
    with pytest.raises(json_format.ParseError):
        validated(yaml.safe_dump(body))


@pytest.mark.parametrize("name", NAMES)
def test_the_image_holds_all_that_a_step_needs(name: str, tmp_path: Path) -> None:
    spec = validated(compiled(SUBJECTS[name], tmp_path / "x.yaml"))
    found = container(spec, f"exec-{name.replace('_', '-')}")
    assert found["image"] == allaboard_kfp.IMAGE
    assert not any("pip install" in word for word in found["command"])


def test_the_default_image_is_the_one_of_this_release() -> None:
    registry, _, tag = allaboard_kfp.IMAGE.rpartition(":")
    assert tag == allaboard_kfp.__version__
    assert "python" in registry  # kfp.local warns about every other image


@pytest.mark.parametrize("name", NAMES)
def test_a_factory_makes_the_component_for_another_image(name: str, tmp_path: Path) -> None:
    make = getattr(allaboard_kfp, f"make_{name}")
    other = make(image="registry.lab/python:3", packages_to_install=["kfp-allaboard[s3]"])
    found = container(validated(compiled(other, tmp_path / "x.yaml")), f"exec-{name.replace('_', '-')}")
    assert found["image"] == "registry.lab/python:3"
    assert any("kfp-allaboard[s3]" in word for word in found["command"])


def test_the_environment_may_name_the_image() -> None:
    code = "import allaboard_kfp as a; print(a.IMAGE, a.train.component_spec.implementation.container.image)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"ALLABOARD_KFP_IMAGE": "registry.lab/python:4", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert answer.stdout.split() == ["registry.lab/python:4"] * 2


@dsl.pipeline(name="p")
def chosen(image: str):  # type: ignore[no-untyped-def]
    """A pipeline whose parameter says in which image it trains."""
    allaboard_kfp.train(job={"name": "x"}).set_container_image(image)


def test_a_pipelines_parameter_may_name_the_image(tmp_path: Path) -> None:
    body = yaml.safe_load(compiled(chosen, tmp_path / "x.yaml"))
    image = body["deploymentSpec"]["executors"]["exec-train"]["container"]["image"]
    assert image == "{{$.inputs.parameters['pipelinechannel--image']}}"


@pytest.mark.parametrize("name", NAMES)
def test_every_input_and_output_is_described(name: str, tmp_path: Path) -> None:
    spec = validated(compiled(SUBJECTS[name], tmp_path / "x.yaml"))
    (component,) = spec.components.values()
    assert all(p.description for p in component.input_definitions.parameters.values())
    assert all(p.description for p in component.output_definitions.parameters.values())
    assert all(a.description for a in component.output_definitions.artifacts.values())
    assert spec.pipeline_info.name == name.replace("_", "-")


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_the_value_to_branch_on_is_a_number(name: str, tmp_path: Path) -> None:
    spec = validated(compiled(SUBJECTS[name], tmp_path / "x.yaml"))
    (component,) = spec.components.values()
    value = component.output_definitions.parameters["value"]
    assert value.parameter_type == pipeline_spec_pb2.ParameterType.NUMBER_DOUBLE


@dsl.pipeline(name="p")
def branching():  # type: ignore[no-untyped-def]
    """A pipeline whose branch compares a metric."""
    trained = allaboard_kfp.train(job={"name": "x"}, metric="accuracy", mode="max")
    with dsl.If(trained.outputs["value"] > 0.97):
        allaboard_kfp.collect_checkpoint(source=trained.outputs["checkpoints"], into="store://good")


def test_a_branch_compares_the_number_itself(tmp_path: Path) -> None:
    spec = validated(compiled(branching, tmp_path / "x.yaml"))
    condition = spec.root.dag.tasks["condition-1"].trigger_policy.condition
    assert condition == "inputs.parameter_values['pipelinechannel--train-value'] > 0.97"


@pytest.mark.parametrize("name", SUBJECTS)
def test_steps_with_effects_are_never_answered_from_the_cache(name: str, tmp_path: Path) -> None:
    assert "enableCache" not in compiled(SUBJECTS[name], tmp_path / "x.yaml")


def test_in_a_branch_they_are_not_either(tmp_path: Path) -> None:
    assert "enableCache" not in compiled(branching, tmp_path / "x.yaml")


@dsl.pipeline(name="p")
def cached():  # type: ignore[no-untyped-def]
    """A pipeline whose author knows better."""
    allaboard_kfp.prepare_shards(source="a.py:b", into="store://c").set_caching_options(True)


def test_an_author_may_say_otherwise(tmp_path: Path) -> None:
    assert "enableCache: true" in compiled(cached, tmp_path / "x.yaml")


def test_the_pipeline_carries_names_of_places_and_no_data(tmp_path: Path) -> None:
    """Kubeflow copies every input artifact to the disk of the step, needed or not."""
    spec = validated(compiled(SUBJECTS["retrain_digits"], tmp_path / "x.yaml"))
    assert not any(task.inputs.artifacts for task in spec.root.dag.tasks.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_step_stays_far_below_the_limit_of_an_argument(name: str, tmp_path: Path) -> None:
    """The source is one argument, and so are the inputs: 128 KiB at most."""
    spec = validated(compiled(SUBJECTS[name], tmp_path / "x.yaml"))
    assert max(map(len, container(spec, f"exec-{name.replace('_', '-')}")["command"])) < 4096


@pytest.mark.parametrize("module", ["runtime", "picking", "leftovers"])
def test_inside_a_step_neither_kfp_nor_its_metadata_store_is_needed(module: str) -> None:
    left_out = {"kfp", "torch", "ml_metadata", "grpc", "kubernetes"}
    code = f"import sys, allaboard_kfp.{module}; print({{m.split('.')[0] for m in sys.modules}} & {left_out})"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert answer.stdout.strip() == "set()"


def test_exports_are_there() -> None:
    assert all(getattr(allaboard_kfp, name) is not None for name in allaboard_kfp.__all__)
    assert set(allaboard_kfp.__all__) <= set(dir(allaboard_kfp))
    missing: Any = "no_such_name"
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(allaboard_kfp, missing)


def test_the_nightly_example_ends_with_a_clean_up_and_is_scheduled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "dags_examples"))
    from nightly_digits_kfp import nightly_digits, schedule

    spec = validated(compiled(nightly_digits, tmp_path / "x.yaml"))
    last = spec.root.dag.tasks["clean-up"]
    assert last.trigger_policy.strategy == last.trigger_policy.ALL_UPSTREAM_TASKS_COMPLETED
    assert [*last.dependent_tasks] == ["exit-handler-1"]
    client: Any = create_autospec(Client, instance=True)
    schedule(client, "x.yaml", "s3://a/b")
    asked = client.create_recurring_run.call_args.kwargs
    assert (asked["max_concurrency"], asked["no_catchup"]) == (1, True)
