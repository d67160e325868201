"""Compiled pipelines, read as a backend would read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from kfp import compiler
from kfp.pipeline_spec import pipeline_spec_pb2

GOLDEN = Path(__file__).parent / "golden"
RELEASES = sorted(path for path in GOLDEN.iterdir() if path.is_dir())
"""What each release has published."""


def compiled(what: Any, into: Path) -> str:
    """The YAML of a component or a pipeline."""
    into.parent.mkdir(parents=True, exist_ok=True)
    compiler.Compiler().compile(what, str(into))
    return into.read_text()


def validated(text: str) -> pipeline_spec_pb2.PipelineSpec:
    """The IR, every field known, every reference leading somewhere. Raises AssertionError or ParseError."""
    (document,) = yaml.safe_load_all(text)
    spec = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
    executors = json_format.MessageToDict(spec.deployment_spec)["executors"]
    for executor in executors.values():
        json_format.ParseDict(executor, pipeline_spec_pb2.PipelineDeploymentConfig.ExecutorSpec())
    assert {c.executor_label for c in spec.components.values() if c.executor_label} == set(executors)
    for dag in [spec.root.dag, *(c.dag for c in spec.components.values() if c.HasField("dag"))]:
        _check_tasks(spec, dag)
    return spec


def _check_tasks(spec: Any, dag: Any) -> None:
    for name, task in dag.tasks.items():
        component = spec.components[task.component_ref.name]
        assert set(task.dependent_tasks) <= set(dag.tasks), name
        known = component.input_definitions
        assert set(task.inputs.parameters) <= set(known.parameters), name
        assert set(task.inputs.artifacts) <= set(known.artifacts), name
        needed = {n for n, p in known.parameters.items() if not p.is_optional}
        needed -= {task.parameter_iterator.item_input}
        assert needed <= set(task.inputs.parameters), f"{name} lacks {needed}"
        for given in task.inputs.parameters.values():
            source = given.task_output_parameter
            if source.producer_task:
                made = spec.components[dag.tasks[source.producer_task].component_ref.name]
                assert source.output_parameter_key in made.output_definitions.parameters
                assert source.producer_task in task.dependent_tasks


def container(spec: pipeline_spec_pb2.PipelineSpec, executor: str) -> Mapping[str, Any]:
    """What an executor starts: image, command, args."""
    found: Mapping[str, Any] = json_format.MessageToDict(spec.deployment_spec)["executors"][executor][
        "container"
    ]
    return found
