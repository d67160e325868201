"""A job file that cannot be read says why and where, in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allaboard import BadInput
from allaboard.job.loader import load, parse, read_text
from allaboard.job.schema import job_schema

RIGHT = "name: digits\ncommand: [python, train.py]\nworkers: 2\n"


def test_yaml_and_json_are_the_same_thing(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(RIGHT)
    (tmp_path / "job.json").write_text('{"name": "digits", "command": ["python", "train.py"], "workers": 2}')
    assert load(tmp_path / "job.yaml") == load(tmp_path / "job.json")
    assert load(tmp_path / "job.yaml").folder == str(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("- a\n- b\n", "holds a list"),
        ("just words\n", "holds text"),
        ("name: [digits\n", "is not YAML"),
        ("name: digits\n\tcommand: x\n", r"a tab indents this line; YAML takes blanks alone \(line 2"),
        ("policy:\n  \tdeadline: 1h\n", "a tab indents this line"),
        ("name: a\n---\nname: b\n", "holds 2 documents"),
        ("name: digits\nname: other\n", "appears twice"),
        ("name: !!python/object:os.system x\n", "is not YAML that can be read: the tag"),
        ("{{{", "is not YAML"),
    ],
)
def test_a_file_that_is_no_job_is_explained(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=words) as caught:
        load(file)
    assert "job.yaml" in str(caught.value)


def test_a_file_that_is_not_there_names_the_one_that_is(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(RIGHT)
    with pytest.raises(BadInput, match=r"no such file; did you mean .*job\.yaml"):
        load(tmp_path / "jbo.yaml")
    with pytest.raises(BadInput, match="is a folder"):
        load(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not UTF-8"):
        load(tmp_path / "bytes.yaml")


def test_the_schema_names_every_field_and_refuses_others() -> None:
    schema = job_schema()
    assert schema["required"] == ["name"] and schema["additionalProperties"] is False
    assert schema["anyOf"] == [{"required": [name]} for name in ("command", "args", "groups")]
    assert schema["properties"]["workers"]["minimum"] == 1
    assert schema["properties"]["policy"]["properties"]["clean_pods"]["enum"] == ["none", "running", "all"]
    assert all(field.get("description") for field in schema["properties"].values())


def test_a_checker_of_schemas_agrees_with_ours() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(job_schema())
    from tests.core.checking.test_checking import FULL

    assert list(validator.iter_errors(FULL)) == []
    assert list(validator.iter_errors({**FULL, "wrokers": 2}))
    assert list(validator.iter_errors({**FULL, "groups": {"worker": 0}}))


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse.yaml").open("wb") as file:
        file.truncate(10 * 2**30)
    for path, words in (
        (tmp_path / "pipe", "is a pipe"),
        (Path("/dev/zero"), "is a device"),
        (tmp_path / "sparse.yaml", "are allowed"),
        (Path("/proc/self/mem"), "cannot be read"),
        (Path("x" * 5000), "cannot be read"),
        (Path("~nouser/x.yaml"), "there is no home folder of ~nouser"),
        (Path("\ud800"), "is not a file name"),
        (Path("a\0b"), "NUL"),
    ):
        with pytest.raises(BadInput, match=words):
            read_text(path)


def test_a_pipe_that_a_shell_makes_is_a_file() -> None:
    out, into = os.pipe()
    os.write(into, RIGHT.encode())
    os.close(into)
    try:
        assert read_text(f"/dev/fd/{out}") == RIGHT
    finally:
        os.close(out)


def test_stdin_may_hold_json_of_every_form_or_yaml() -> None:
    job = {"name": "digits", "command": ["a"]}
    assert parse('{"name": "digits",\t"command": ["a"]}', "stdin") == job
    assert parse("{name: digits, command: [a]}", "stdin") == job
    with pytest.raises(BadInput, match="the field 'name' appears twice"):
        parse('{"name": "a", "name": "b"}', "stdin")


@pytest.mark.parametrize(
    "text", ["pod: " + "[" * 50_000, "a: &a [*a]", '{"pod": ' * 50_000, "deadline: " + "9" * 5000, "{1: 2}"]
)
def test_hostile_text_ends_in_one_sentence(text: str) -> None:
    for name in ("job.yaml", "job.json", "stdin"):
        with pytest.raises(BadInput) as caught:
            parse(text, name)
        assert len(str(caught.value)) < 300
