"""`allaboard doctor` and `allaboard snapshot`: of files, and of runs of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from allaboard.cli import app
from tests.core.diagnosis.building import job, pod, snapshot, traceback

FAILED = snapshot(
    job("Created", "Failed"),
    pod("master-0", "Failed", exit_code=1),
    logs={"master-0": traceback("KeyError: 'lr'")},
)


def ask(*args: str, given: str | None = None) -> Result:
    return CliRunner().invoke(app, ["doctor", *args], input=given, standalone_mode=False)


def written(folder: Path, value: Any) -> str:
    file = folder / "case.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(file)


def test_a_file_is_diagnosed(tmp_path: Path) -> None:
    done = ask("--snapshot", written(tmp_path, FAILED), "--json")
    body = json.loads(done.stdout)
    assert body["state"] == "failed"
    first = body["diagnoses"][0]
    assert (first["code"], first["blame"], first["retryable"]) == ("python_exception", "net-master-0", False)
    assert {"summary", "evidence", "fix", "confidence", "also"} <= first.keys()
    assert "at /app/train.py:42" in first["summary"]


def test_people_read_the_cause_first() -> None:
    text = ask("--snapshot", "-", given=json.dumps(FAILED)).stdout
    lines = text.splitlines()
    assert lines[0].startswith("net  failed") and lines[2].startswith("The training script raised an error")
    assert "look at    net-master-0" in text and max(map(len, lines)) <= 100


def test_what_kubectl_prints_is_a_snapshot() -> None:
    listed = {"kind": "List", "items": [FAILED["job"], *FAILED["pods"]]}
    body = json.loads(ask("--snapshot", "-", "--json", given=json.dumps(listed)).stdout)
    assert body["diagnoses"][0]["blame"] == "net-master-0"


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"x": 1}', "3"])
def test_what_is_none_is_bad_input(tmp_path: Path, text: str) -> None:
    done = ask("--snapshot", written(tmp_path, text), "--json")
    assert done.exception is not None and "case.json" in str(done.exception)


def test_secrets_are_not_quoted() -> None:
    leaky = snapshot(
        job("Created", "Failed"),
        pod("master-0", "Failed", exit_code=1),
        logs={
            "master-0": traceback(
                "ValueError: no bucket at https://u:hunter2hunter2@minio.lab/x?X-Amz-Signature=abcdef0123456789"
            )
        },
    )
    text = ask("--snapshot", "-", "--json", given=json.dumps(leaky)).stdout
    assert "hunter2" not in text and "abcdef0123456789" not in text
