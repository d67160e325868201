"""A compiled pipeline, run step by step as a cluster runs it: what KFP's driver does before each pod.

As the driver does (kubeflow/pipelines: backend/src/v2/driver/resolve.go): inputs come from constants, from
the pipeline, from outputs of tasks before; an input of type STRING becomes text, any other value of another
type ends the run. Loops, importers, and DAGs in DAGs are known; conditions are not.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.kfp.ir import compiled

Step = Callable[[str, Path, dict[str, Any]], dict[str, Any]]
"""Runs one step in a pod: the task's name, the pipeline, the task as `tests.kfp.pod` takes it."""
_TYPES: dict[str, Any] = {
    "NUMBER_DOUBLE": (int, float), "NUMBER_INTEGER": (int, float),
    "BOOLEAN": bool, "LIST": list, "STRUCT": dict,
}  # fmt: skip


class DriverError(Exception):
    """What the driver stops with; no pod is made for the step."""


@dataclass
class Scope:
    """One DAG: its own inputs, and the outputs of its tasks so far."""

    parameters: dict[str, Any]
    artifacts: dict[str, Any]
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)


class Driver:
    def __init__(self, pipeline: Any, folder: Path, step: Step) -> None:
        self.file = folder / "pipeline.yaml"
        compiled(pipeline, self.file)
        self.spec = next(yaml.safe_load_all(self.file.read_text()))
        self.step, self.run_id = step, str(uuid.uuid4())
        self.done: dict[str, dict[str, Any]] = {}
        """What each pod gave, by the task's path: ``train``, ``for-loop-1/0/train``."""

    def run(self, **parameters: Any) -> dict[str, dict[str, Any]]:
        known = self.spec["root"].get("inputDefinitions", {}).get("parameters", {})
        defaults = {name: one["defaultValue"] for name, one in known.items() if "defaultValue" in one}
        self._dag(self.spec["root"]["dag"], Scope({**defaults, **parameters}, {}), "")
        return self.done

    def _dag(self, dag: Mapping[str, Any], scope: Scope, path: str) -> None:
        left = dict(dag["tasks"])
        while left:
            name = next(n for n, task in left.items() if not {*task.get("dependentTasks", ())} & {*left})
            task = left.pop(name)
            scope.outputs[name] = self._task(task, scope, f"{path}{name}")

    def _task(self, task: Mapping[str, Any], scope: Scope, path: str) -> dict[str, Any]:
        component = self.spec["components"][task["componentRef"]["name"]]
        if (iterator := task.get("parameterIterator")) is not None:
            items = iterator["items"]
            values = json.loads(items["raw"]) if "raw" in items else self._inputs(task, scope)[0]
            for n, item in enumerate(values if "raw" in items else values[items["inputParameter"]]):
                inner = Scope(*self._inputs(task, scope))
                inner.parameters[iterator["itemInput"]] = item
                inner.parameters = _checked(component, inner.parameters)
                self._dag(component["dag"], inner, f"{path}/{n}/")
            return {}
        parameters, artifacts = self._inputs(task, scope)
        if "dag" in component:
            self._dag(component["dag"], Scope(_checked(component, parameters), artifacts), f"{path}/")
            return {}
        executor = self.spec["deploymentSpec"]["executors"][component["executorLabel"]]
        if "importer" in executor:
            return {"artifacts": {"artifact": {"uri": parameters["uri"], "metadata": {}}}}
        given = self.step(
            path, self.file,
            {
                "component": task["componentRef"]["name"],
                "run": self.run_id,
                "task": str(uuid.uuid4()),
                "parameters": _checked(component, parameters),
                "artifacts": artifacts,
            },
        )  # fmt: skip
        self.done[path] = given
        assert given["code"] == 0, given["log"]
        return given

    def _inputs(self, task: Mapping[str, Any], scope: Scope) -> tuple[dict[str, Any], dict[str, Any]]:
        given = task.get("inputs", {})
        parameters = {name: _parameter(one, scope) for name, one in given.get("parameters", {}).items()}
        return parameters, {name: _artifact(one, scope) for name, one in given.get("artifacts", {}).items()}


def _parameter(one: Mapping[str, Any], scope: Scope) -> Any:
    if "runtimeValue" in one:
        return one["runtimeValue"]["constant"]
    if "taskOutputParameter" in one:
        output = one["taskOutputParameter"]
        return scope.outputs[output["producerTask"]]["parameters"][output["outputParameterKey"]]
    name = one["componentInputParameter"]
    if name not in scope.parameters:
        raise DriverError(f"parent DAG does not have input parameter {name}")
    value = scope.parameters[name]
    if selector := one.get("parameterExpressionSelector"):
        held = json.loads(value) if isinstance(value, str) else value
        return held[selector.removeprefix('parseJson(string_value)["').removesuffix('"]')]
    return value


def _artifact(one: Mapping[str, Any], scope: Scope) -> Any:
    if "componentInputArtifact" in one:
        return scope.artifacts[one["componentInputArtifact"]]
    output = one["taskOutputArtifact"]
    found = scope.outputs[output["producerTask"]]["artifacts"][output["outputArtifactKey"]]
    return {"uri": found["uri"], "metadata": found["metadata"]}


def _checked(component: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those of type STRING as text."""
    known = component.get("inputDefinitions", {}).get("parameters", {})
    checked = dict(values)
    for name, value in values.items():
        kind = known[name]["parameterType"] if name in known else None
        if kind == "STRING" and not isinstance(value, str):
            checked[name] = json.dumps(value, separators=(",", ":"))
        elif kind in _TYPES and (
            not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "BOOLEAN")
        ):
            raise DriverError(
                f'input parameter "{name}" type mismatch: expect {kind}, got {type(value).__name__}'
            )
    return checked
