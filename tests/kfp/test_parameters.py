"""Marks that stand for parameters of a pipeline, and what a step puts in their place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allaboard.errors import BadInput
from allaboard_kfp.inputs import inputs_as_written, job_of, uri_of
from allaboard_kfp.parameters import WHOLE, filled, given_inputs, mark, text_of

VALUES: dict[str, Any] = {
    "parameter_n": 12, "parameter_lr": 12, "parameter_small": 1e-05, "parameter_text": "007",
    "parameter_yes": True, "parameter_words": ["a", {"b": 1}], "parameter_json": '{"a": [1]}',
    "parameter_mark": mark("parameter_n"),
}  # fmt: skip


def of(name: str, kind: str = "any", *, text: bool = False) -> str:
    return mark(f"parameter_{name}", kind, text=text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([of("n"), of("lr", "float"), of("small"), of("text"), of("yes")], [12, 12.0, 1e-05, "007", True]),
        ({"a": {"b": [of("words")]}}, {"a": {"b": [["a", {"b": 1}]]}}),
        (f"n={of('n', text=True)} lr={of('lr', 'float', text=True)}", "n=12 lr=12.0"),
        ([of("n", text=True), of("yes", text=True)], ["12", "true"]),
        (of("words", text=True), '["a",{"b":1}]'),
        ({f"k-{of('text', text=True)}": 1}, {"k-007": 1}),
        ({WHOLE: of("json", "json")}, {"a": [1]}),
        ([WHOLE, of("words", "json")], ["a", {"b": 1}]),
        ({WHOLE: of("text", "json")}, "007"),
        ("plain {{$}} <<allaboard:x>>", "plain {{$}} <<allaboard:x>>"),
        (of("unknown"), of("unknown")),
        (of("mark"), of("n")),  # what a parameter holds is never filled again
        ({"a": 1, "b": None, "c": [0.5, False]}, {"a": 1, "b": None, "c": [0.5, False]}),
    ],
)
def test_marks_are_filled_with_the_values_as_they_are(value: Any, expected: Any) -> None:
    found = filled(value, lambda: VALUES)
    assert found == expected and repr(found) == repr(expected)


def test_the_inputs_are_asked_for_only_where_there_is_a_mark() -> None:
    def never() -> Any:
        raise AssertionError

    assert filled({"a": ["b", 1]}, never) == {"a": ["b", 1]}


@pytest.mark.parametrize(
    ("value", "text"), [("a", "a"), (True, "true"), (3, "3"), (1e-5, "1e-05"), ("✓", "✓")]
)
def test_a_value_has_the_text_that_kubeflow_writes(value: Any, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    "argv",
    [
        [], ["--executor_input"], ["--executor_input", "no JSON"], ["--executor_input", "[]"],
        ["--executor_input", "{}"], ["--executor_input", '{"inputs": {"parameterValues": 3}}'],
    ],
)  # fmt: skip
def test_a_command_line_that_is_no_steps_gives_no_inputs(argv: list[str]) -> None:
    assert given_inputs(argv) == {}


def test_what_kfp_local_makes_of_the_values_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KFP_POD_NAME", raising=False)
    values = {"parameter_n": 12.0, "parameter_lr": 12.0, "parameter_deep": [{"a": 3.0}]}
    argv = ["x", "--executor_input", json.dumps({"inputs": {"parameterValues": values}})]
    given = {"job": {"a": of("n"), "b": of("lr", "float"), "c": of("deep")}, "n": 4.0, "model": object()}
    found = inputs_as_written(given, argv)
    assert found["job"] == {"a": 12, "b": 12.0, "c": [{"a": 3}]} and repr(found["job"]["b"]) == "12.0"
    assert (found["n"], found["model"]) == (4, given["model"])


# --- merged into a job

JOB = {
    "name": "digits", "command": ["python", "train.py"], "workers": 2, "args": ["--a"],
    "environment": {"A": "1", "B": "2"}, "policy": {"attempts": 2, "restart": "never"},
    "code": ["a.py", "b.py"],
}  # fmt: skip


def test_overrides_are_merged_field_by_field_and_lists_are_replaced() -> None:
    changes = {
        "workers": "4",
        "policy": {"attempts": 5.0},
        "code": ["c.py"],
        "checkpoints": {"uri": "s3://b/c"},
    }
    made = job_of(JOB, "", "", overrides=changes)
    assert (made.get("workers"), made.get("code")) == (4, ["c.py"])
    assert made.get("policy") == {"attempts": 5, "restart": "never"}
    assert made.get("checkpoints") == {"uri": "s3://b/c"}


def test_variables_are_added_and_arguments_follow() -> None:
    made = job_of(JOB, "", "", environment={"B": 12, "C": True, "D": 0.5}, args=["--n", 3, False, 1e-5])
    assert made.get("environment") == {"A": "1", "B": "12", "C": "true", "D": "0.5"}
    assert made.get("args") == ["--a", "--n", "3", "false", "1e-05"]
    assert JOB["args"] == ["--a"], "the author's own is as it was"


def test_a_job_as_text_and_a_manifest_take_them_too() -> None:
    text = "name: digits\ncommand: [python, train.py]\n"
    assert job_of({}, text, "", overrides={"workers": 3}, args=["x"]).get("args") == ["x"]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"overrides": {"wrokers": 3}}, "wrokers: no such field .did you mean 'workers'"),
        ({"overrides": {"policy": {"attempts": "many"}}}, "policy.attempts: expected a whole number"),
        ({"overrides": {"policy": 3}}, "policy: expected"),
        ({"environment": {"A B": 1}}, "'A B' is not a legal variable name"),
        ({"environment": {"A": [1]}}, "environment.A: expected text"),
        ({"args": [{"a": 1}]}, r"args\[1\]: expected text"),
        ({"overrides": {"args": "--x"}, "args": ["a"]}, "args: expected a list of words"),
        ({"overrides": {"environment": [1]}, "environment": {"A": "b"}}, "environment: expected variables"),
    ],
)
def test_what_is_wrong_in_them_is_said_with_the_field(inputs: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        job_of(JOB, "", "", **inputs)


def test_arguments_that_no_group_would_take_are_refused() -> None:
    groups = {"master": {"command": ["python", "a.py"]}, "worker": {"command": ["python", "b.py"]}}
    with pytest.raises(BadInput, match="args: every group of this job has a command of its own"):
        job_of({"name": "digits", "groups": groups}, "", "", args=["x"])


def test_a_uri_and_an_artifact_of_one_name_are_one_too_many() -> None:
    class Model:
        uri, path, metadata = "s3://b/m", "/s3/b/m", {"uri": "s3://b/step-1"}

    model: Any = Model()
    assert (uri_of("s3://b/x", None, "source"), uri_of("", model, "source")) == ("s3://b/x", "s3://b/step-1")
    with pytest.raises(BadInput, match="both source and source_artifact are given"):
        uri_of("s3://b/x", model, "source")
