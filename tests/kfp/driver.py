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

WORKSPACE = "/kfp-workspace"
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
        """``pipeline``: what is compiled, or the file of one that was."""
        self.file = pipeline if isinstance(pipeline, Path) else folder / "pipeline.yaml"
        if not isinstance(pipeline, Path):
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
            every = []
            for n, item in enumerate(values if "raw" in items else values[items["inputParameter"]]):
                inner = Scope(*self._inputs(task, scope))
                inner.parameters[iterator["itemInput"]] = item
                inner.parameters = _checked(component, inner.parameters)
                self._dag(component["dag"], inner, f"{path}/{n}/")
                every.append(inner.outputs)
            return {"parameters": _collected(component["dag"], every)}
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
        return constant(one["runtimeValue"])
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


def constant(one: Mapping[str, Any]) -> Any:
    """A constant, with the place of the workspace in it."""
    value = one["constant"]
    return value.replace("{{$.workspace_path}}", WORKSPACE) if isinstance(value, str) else value


def _collected(dag: Mapping[str, Any], every: list[dict[str, dict[str, Any]]]) -> dict[str, list[Any]]:
    """The parameters that a loop hands out, a list with an item for each iteration: ``CollectInputs``."""
    given = {
        name: one["valueFromParameter"] for name, one in dag.get("outputs", {}).get("parameters", {}).items()
    }
    return {
        name: [
            outputs[source["producerSubtask"]]["parameters"][source["outputParameterKey"]]
            for outputs in every
        ]
        for name, source in given.items()
    }


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


def task_config(
    component: Mapping[str, Any],
    container: Mapping[str, Any],
    platform: Mapping[str, Any],
    workspace: str = "",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the driver gives to the step as its TaskConfig, and what it puts into the step's own pod
    (kubeflow/pipelines: backend/src/v2/driver/driver.go and k8s.go). ``workspace``: the claim of the run's
    workspace, if an input names a place in it.
    """
    listed = component.get("taskConfigPassthroughs", ())
    through = {one["field"]: one.get("applyToTask", False) for one in listed}
    volumes, mounts = _volumes(platform, workspace)
    parts = {
        "RESOURCES": {"resources": _resources(container.get("resources", {}))},
        "ENV": {"env": _env(container, platform)},
        "KUBERNETES_AFFINITY": {"affinity": _affinity(platform.get("nodeAffinity", ()))},
        "KUBERNETES_TOLERATIONS": {"tolerations": platform.get("tolerations")},
        "KUBERNETES_NODE_SELECTOR": {"nodeSelector": platform.get("nodeSelector", {}).get("labels")},
        "KUBERNETES_VOLUMES": {"volumes": volumes, "volumeMounts": mounts},
    }
    config: dict[str, Any] = {name: None for part in parts.values() for name in part} | {"resources": {}}
    pod: dict[str, Any] = {}
    for name, part in parts.items():
        config |= part if name in through else {}
        pod |= part if through.get(name, True) else {}
    return config, {name: value for name, value in pod.items() if value}


def _resources(given: Mapping[str, Any]) -> dict[str, Any]:
    names = {"cpu": "Cpu", "memory": "Memory"}
    sides: dict[str, dict[str, str]] = {}
    for side in ("Limit", "Request"):
        asked = {name: given.get(f"resource{word}{side}") for name, word in names.items()}
        sides[f"{side.lower()}s"] = {name: amount for name, amount in asked.items() if amount}
    if accelerator := given.get("accelerator"):
        sides["limits"][accelerator["resourceType"]] = accelerator["resourceCount"]
    return {side: amounts for side, amounts in sides.items() if amounts}


def _env(container: Mapping[str, Any], platform: Mapping[str, Any]) -> list[dict[str, Any]]:
    env = [{"name": one["name"], "value": one["value"]} for one in container.get("env", ())]
    for kind, key, ref in (
        ("secretAsEnv", "secretKey", "secretKeyRef"), ("configMapAsEnv", "configMapKey", "configMapKeyRef")
    ):  # fmt: skip
        for one in platform.get(kind, ()):
            name = one.get("secretName") or one["configMapName"]
            more = {"optional": one["optional"]} if "optional" in one else {}
            for pair in one["keyToEnv"]:
                source = {"name": name, "key": pair[key], **more}
                env.append({"name": pair["envVar"], "valueFrom": {ref: source}})
    for one in platform.get("fieldPathAsEnv", ()):
        env.append({"name": one["name"], "valueFrom": {"fieldRef": {"fieldPath": one["fieldPath"]}}})
    return env


def _affinity(terms: Any) -> dict[str, Any] | None:
    required = [{"matchExpressions": term["matchExpressions"]} for term in terms if "weight" not in term]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": required}}
    return {"nodeAffinity": rule} if required else None


def _volumes(platform: Mapping[str, Any], workspace: str) -> tuple[Any, Any]:
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def add(name: str, source: dict[str, Any], path: str) -> None:
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": path})

    if workspace:
        add("kfp-workspace", {"persistentVolumeClaim": {"claimName": workspace}}, WORKSPACE)
    for one in platform.get("pvcMount", ()):
        add(one["constant"], {"persistentVolumeClaim": {"claimName": one["constant"]}}, one["mountPath"])
    for one in platform.get("secretAsVolume", ()):
        source = {"secretName": one["secretName"], "optional": one["optional"]}
        add(one["secretName"], {"secret": source}, one["mountPath"])
    for one in platform.get("configMapAsVolume", ()):
        source = {"name": one["configMapName"], "optional": one["optional"]}
        add(one["configMapName"], {"configMap": source}, one["mountPath"])
    return volumes or None, mounts or None
