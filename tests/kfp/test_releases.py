"""What a release has published stays: a pipeline that was compiled with it runs in the image of a later one
of the same major version, and a component's inputs and outputs keep their names and types.

`tests.kfp.test_cluster` and `tests.kfp.test_passing` run what the releases have compiled in pods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp.dsl.executor import Executor

from allaboard_kfp import __version__
from tests.kfp.conftest import JOBS, Here
from tests.kfp.golden import NAMES, subjects
from tests.kfp.ir import GOLDEN, RELEASES, compiled

PUBLISHED = [path for release in RELEASES for path in sorted(release.glob("*.yaml")) if path.stem in NAMES]


def interface(text: str, name: str) -> dict[str, dict[str, Any]]:
    component = yaml.safe_load(text)["components"][f"comp-{name.replace('_', '-')}"]
    return {side: component.get(side, {}) for side in ("inputDefinitions", "outputDefinitions")}


def broken(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[str]:
    """Sentences about what is not compatible."""
    found = []
    for name, one in _named(before):
        there = dict(_named(now)).get(name)
        if there is None:
            found.append(f"{name} is gone")
        elif _type(there) != _type(one):
            found.append(f"{name} is {_type(there)}, and was {_type(one)}")
    known = dict(_named({"inputDefinitions": before["inputDefinitions"]}))
    for name, one in _named({"inputDefinitions": now["inputDefinitions"]}):
        if not one.get("isOptional") and known.get(name, {"isOptional": True}).get("isOptional"):
            found.append(f"{name} is needed now")
    return found


def _named(sides: dict[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for side, kinds in sides.items():
        for named in kinds.values():
            yield from ((f"{side[:-11]} {name}", one) for name, one in named.items())


def _type(one: dict[str, Any]) -> Any:
    return one.get("parameterType") or one["artifactType"]["schemaTitle"]


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_input_or_output_is_renamed_within_a_major_version(published: Path, tmp_path: Path) -> None:
    release = published.parent.name
    if release.partition(".")[0] != __version__.partition(".")[0]:
        pytest.skip(f"{__version__} is another major version than {release}, and may break with it")
    now = compiled(subjects()[published.stem], tmp_path / "now.yaml")
    troubles = broken(interface(published.read_text(), published.stem), interface(now, published.stem))
    assert troubles == [], f"this needs another major version than {__version__}"


def called(release: Path, name: str, task: Path, **parameters: Any) -> dict[str, Any]:
    """What a step that a release has compiled gives, run by kfp and the wheel of today in this process."""
    spec = yaml.safe_load((release / f"{name}.yaml").read_text())
    ((label, component),) = spec["components"].items()
    box = spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
    known, outputs = component["inputDefinitions"]["parameters"], component["outputDefinitions"]
    names: dict[str, Any] = {}
    (source,) = (word for word in box["command"] if f"def {name}(" in word)
    exec(compile(source, label, "exec", dont_inherit=True), names)
    task.mkdir(parents=True)
    given = {
        "inputs": {
            "parameterValues": {
                **{key: one["defaultValue"] for key, one in known.items() if "defaultValue" in one},
                **parameters,
            }
        },
        "outputs": {
            "parameters": {key: {"outputFile": str(task / key)} for key in outputs.get("parameters", {})},
            "artifacts": {
                key: {"artifacts": [{"name": key, "uri": str(task / key), "type": one["artifactType"]}]}
                for key, one in outputs["artifacts"].items()
            },
            "outputFile": str(task / "executor_output.json"),
        },
    }
    Executor(executor_input=given, function_to_execute=names[name]).execute()
    made: dict[str, Any] = json.loads((task / "executor_output.json").read_text())["parameterValues"]
    return made


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_steps_that_a_release_has_compiled_run_with_this_wheel(
    release: Path, here: Here, job: dict[str, Any]
) -> None:
    def step(name: str, **parameters: Any) -> dict[str, Any]:
        return called(release, name, here.out / "retrain-2026-11-21-12-00-00-000001" / name, **parameters)

    data = step("prepare_shards", source="counting.py:samples", into="store://numbers", folder=str(JOBS))
    made = step("train", job=job, shards=data["Output"], folder=str(JOBS))
    kept = step("collect_checkpoint", source=made["checkpoints"], into="store://models")["Output"]
    judge = {"name": "judge", "command": ["python", "judge.py"], "workers": 1}
    judged = step("evaluate", job=judge, checkpoint=kept, folder=str(JOBS), metric="accuracy", mode="max")
    ended = step(
        "promote", checkpoint=kept, into="store://champions", results=judged["results"], metric="accuracy"
    )
    assert (made["value"], judged["value"]) == (0.1, 0.98)
    assert ended == {"promoted": True, "number": 1, "champion": kept}


def test_this_release_is_published_by_its_version() -> None:
    assert RELEASES, "copy golden/*.yaml into a folder of the version"
    assert all((release / "train.yaml").is_file() for release in RELEASES)
    assert {path.name for path in GOLDEN.glob("*.yaml")} >= {path.name for path in RELEASES[-1].iterdir()}


def test_a_rename_and_a_new_needed_input_are_found() -> None:
    before = interface((RELEASES[0] / "train.yaml").read_text(), "train")
    now = deepcopy(before)
    inputs = now["inputDefinitions"]["parameters"]
    inputs["work"] = inputs.pop("job")
    inputs["work"]["isOptional"] = False
    inputs["folder"]["isOptional"] = False
    now["outputDefinitions"]["parameters"]["value"] = {"parameterType": "STRING"}
    del now["outputDefinitions"]["artifacts"]["report"]
    assert sorted(broken(before, now)) == [
        "input folder is needed now", "input job is gone", "input work is needed now",
        "output report is gone", "output value is STRING, and was NUMBER_DOUBLE",
    ]  # fmt: skip
    assert broken(before, before) == []
