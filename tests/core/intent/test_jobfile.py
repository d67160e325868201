"""A job file that cannot be read says why and where, in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from allaboard import BadInput
from allaboard.jobfile import load
from allaboard.schema import job_schema

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
        ("name: digits\n\tcommand: x\n", "is not YAML"),
        ("name: a\n---\nname: b\n", "holds 2 documents"),
        ("name: digits\nname: other\n", "stands twice"),
        ("name: !!python/object:os.system x\n", "is not YAML that is taken: the tag"),
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
    assert schema["required"] == ["name", "command"] and schema["additionalProperties"] is False
    assert schema["properties"]["workers"]["minimum"] == 1
    assert schema["properties"]["policy"]["properties"]["clean_pods"]["enum"] == ["none", "running", "all"]
    assert all(field.get("description") for field in schema["properties"].values())


def test_a_checker_of_schemas_agrees_with_ours() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(job_schema())
    from tests.core.intent.test_checking import FULL

    assert list(validator.iter_errors(FULL)) == []
    assert list(validator.iter_errors({**FULL, "wrokers": 2}))
    assert list(validator.iter_errors({**FULL, "groups": {"worker": 0}}))
