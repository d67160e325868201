"""Manifests that nobody means well: broken, of wrong types, with fields that do not exist. Each becomes a job
or problems with their paths, and never anything else.
"""

# ruff: noqa: E501  (tables of hostile values)

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from allaboard.checking.job import check
from allaboard.convert.manifests import Outcome, convert, documents
from allaboard.engines import ENGINES
from allaboard.errors import BadInput
from tests.core.convert.generated import a_jobset, a_manifest

JUNK: list[Any] = [
    None, True, False, 0, -1, 2**31, 2**63, 10**30, 1.5, -0.0, 1e300, "", " ", "x", "1", "None", "\x1b[31m", "a\nb", "é" * 40,
    "x" * 5000, "${NODES}", "{{ .Values.x }}", [], [None], [[]], ["x"], [{}], {}, {"": ""}, {"x": None}, {"name": 1},
    {"$patch": "delete"}, {"a.b[0]": {"c": []}}, [{"name": "pytorch"}], {"spec": {"containers": [{}]}}, "$(A)",
]  # fmt: skip
NAMES = [
    "",
    "$patch",
    "name",
    "spec",
    "template",
    "containers",
    "a.b",
    "x[0]",
    "Worker",
    "worker",
    "replicas",
    "env",
    "value",
]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with a key or an index in it."""
    if isinstance(value, dict):
        for name in value:
            yield value, name
            yield from _places(value[name])
    elif isinstance(value, list):
        for n, item in enumerate(value):
            yield value, n
            yield from _places(item)


def a_broken_manifest(rng: random.Random) -> Any:
    """A manifest with some changes by lot."""
    manifest = copy.deepcopy(a_jobset(rng) if rng.random() < 0.25 else a_manifest(rng))
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        places = [*_places(manifest)]
        if not places:
            break
        holder, key = rng.choice(places)
        kind = rng.randrange(4)
        if kind == 0 and isinstance(holder, dict):
            holder[rng.choice(NAMES)] = copy.deepcopy(rng.choice(JUNK))
        elif kind == 1:
            del holder[key]
        elif kind == 2:
            holder[key] = [copy.deepcopy(holder[key])] * 2
        else:
            holder[key] = copy.deepcopy(rng.choice(JUNK))
    return manifest


def assert_handled(text: str, name: str = "hostile.yaml", to: str | None = None) -> list[Outcome]:
    """Every document becomes what can be run, or is refused with the paths of all problems."""
    try:
        found = documents(text, name)
    except BadInput as error:
        assert str(error).startswith(name) and "\x1b" not in str(error)
        return []
    outcomes = convert(found, to)
    for one in outcomes:
        assert bool(one.documents) + bool(one.problems) + bool(one.passed) == 1
        json.dumps(one.differences(), allow_nan=False)
        assert "\x1b" not in one.title and "\n" not in one.title
        for problem in one.problems:
            assert problem.path and problem.message and "\x1b" not in str(problem)
        if to is None:
            assert [p for job in one.documents for p in check(job) if p.severity == "error"] == []
    return outcomes


@pytest.mark.parametrize("rounds", [200, pytest.param(2000, marks=pytest.mark.thorough)])
def test_broken_manifests_become_jobs_or_problems(rounds: int) -> None:
    rng = random.Random("broken")
    converted = 0
    for _ in range(rounds):
        outcomes = assert_handled(json.dumps(a_broken_manifest(rng)), "hostile.json")
        converted += any(one.documents for one in outcomes)
    assert 0.25 * rounds < converted < 0.95 * rounds  # else nothing was broken, or everything


@pytest.mark.parametrize("rounds", [50, pytest.param(500, marks=pytest.mark.thorough)])
def test_broken_manifests_become_other_kinds_or_problems(rounds: int) -> None:
    rng = random.Random("other kinds")
    for _ in range(rounds):
        text = yaml.safe_dump(a_broken_manifest(rng), allow_unicode=True)
        assert_handled(text, to=rng.choice([*ENGINES]))


@pytest.mark.parametrize(
    "text",
    [
        "", "---\n---\n", "null", "1", "[]", "- a", "{", "a: b: c", "a: 1\na: 2", "\x00", "kind: PyTorchJob", "kind: 1", "kind: []",
        "kind: List\nitems: 1", "kind: PyTorchJobList\nitems: [1, null, [], {kind: PyTorchJob}]", "&a [*a]", "!!python/object:os.system x",
        "kind: PyTorchJob\nspec: []", "kind: PyTorchJob\nspec: {pytorchReplicaSpecs: {Master: 1}}", "[" * 5000,
        '{"kind": "PyTorchJob"', '{"kind": "PyTorchJob", "spec": NaN}', "kind: TrainJob", "apiVersion: [1]\nkind: TFJob\nspec: {}",
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_told_in_a_sentence(text: str) -> None:
    assert_handled(text)
    assert_handled(text, "hostile.json")


def test_values_grow_no_further_than_their_text() -> None:
    laughs = "a: &a [x, x]\n" + "".join(
        f"b{n}: &b{n} [*{'a' if n == 0 else f'b{n - 1}'}, *a]\n" for n in range(40)
    )
    doubling = "l0: &l0 [x, x]\n" + "".join(f"l{n}: &l{n} [*l{n - 1}, *l{n - 1}]\n" for n in range(1, 30))
    assert_handled(laughs)
    with pytest.raises(BadInput, match="values"):
        documents(doubling, "laughs.yaml")


def test_all_problems_are_told_at_once_with_their_paths() -> None:
    text = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: [x]}
spec:
  runPolicy: {backoffLimit: many, cleanPodPolicy: None, suspend: 1}
  pytorchReplicaSpecs:
    Master: {replicas: one, restartPolicy: onfailure, template: {spec: {containers: []}}}
    Worker: {replicas: 2}
"""
    (outcome,) = assert_handled(text)
    at = "spec.pytorchReplicaSpecs"
    assert {problem.path for problem in outcome.problems} == {
        "metadata.name", "spec.runPolicy.backoffLimit", "spec.runPolicy.suspend", f"{at}.Master.replicas",
        f"{at}.Master.restartPolicy", f"{at}.Worker.template",
    }  # fmt: skip
    (restart,) = [p for p in outcome.problems if p.path.endswith("restartPolicy")]
    assert restart.suggestion == "OnFailure"


@pytest.mark.thorough
def test_what_is_told_of_a_broken_manifest_holds_no_secret() -> None:
    rng = random.Random("secrets")
    told = 0
    for _ in range(1000):
        manifest = a_broken_manifest(rng)
        for holder, key in [*_places(manifest)]:
            if key == "env" and isinstance(holder, dict) and isinstance(holder[key], list):
                holder[key].append({"name": "DB_PASSWORD", "value": rng.choice([SECRET, [SECRET]])})
        if isinstance(manifest.get("spec"), dict):
            lost = [{"name": "DB_PASSWORD", "value": SECRET}]
            manifest["spec"]["unknown"] = rng.choice([{"env": lost}, ["run", "--password", SECRET], lost])
        for one in assert_handled(json.dumps(manifest), "hostile.json"):
            words = json.dumps(
                [one.differences(), [problem.to_dict() for problem in one.problems], one.title]
            )
            assert SECRET not in words
            told += len(words) > 100
    assert told > 500


SECRET = "hunter2hunter2"
