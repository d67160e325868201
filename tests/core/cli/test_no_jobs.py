"""What people give in the place of a job: the sentence says what it is, and what to do. Inputs are lines of
no_jobs.jsonl: ``given`` or ``text``, what is said (``says``) and what is not (``unsaid``), by which commands.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allaboard.cli import main
from allaboard.convert.manifests import fields_of
from allaboard.errors import BadInput
from tests.core.cli.terminal import Terminal

CASES = [json.loads(line) for line in Path(__file__).with_name("no_jobs.jsonl").read_text().splitlines()]


Say = Callable[[str, str], tuple[int, str]]


@pytest.fixture
def say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """What a command says of a text, in its exit code and words."""
    path = tmp_path / "given.yaml"

    def say(command: str, text: str) -> tuple[int, str]:
        path.write_text(text)
        code = main([command, str(path)])
        said = capsys.readouterr()
        return code, said.out + said.err

    return say


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}: {case['name']}")
def test_the_sentence_says_what_it_is_and_what_to_do(case: dict[str, Any], say: Say) -> None:
    text = case.get("text") or json.dumps(case["given"])
    for command in case.get("runs", ("check", "convert", "lint")):
        code, said = say(command, text)
        assert code == 2 and case["says"] in said, f"{command}: {said}"
        assert case.get("unsaid", "Traceback") not in said, f"{command}: {said}"


@pytest.mark.parametrize(
    "text",
    [
        "name:\tnet\ncommand: [python,\ttrain.py]\n",
        "name: net\ncommand: [python]\nenvironment: {RUN: a, run: b}\n",
        "name: run\ncommand: [python, run]\n",
        'name: net\ncommand: [bash, -c, "a\\tb"]\n',
        "kind: JobSet\napiVersion: jobset.x-k8s.io/v1alpha2\nmetadata: {name: net}\nspec:\n"
        "  replicatedJobs:\n  - name: node\n    template: {spec: {template: {spec: {containers: "
        "[{name: node, image: x, command: [python]}]}}}}\n",
    ],
)
def test_a_job_that_looks_like_it_is_good(text: str, say: Say) -> None:
    code, said = say("check", text)
    assert code == 0 and " is good" in said, said


def test_a_field_that_a_manifest_has_is_no_field_of_a_job() -> None:
    fields = {"name": "net", "kind": "PyTorchJob", "command": ["python"]}
    assert fields_of(fields).fields == fields
    with pytest.raises(BadInput, match="it has no kind"):
        fields_of({"apiVersion": "v1", "metadata": {"name": "net"}})


def test_a_script_of_a_batch_system_is_no_job(ab: Terminal) -> None:
    ab.write("train.sh", "#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun train.py\n")
    said = ab("run", "train.sh")
    assert said.code == 2 and "#SBATCH" in said.err and "allaboard does not read" in said.err
    told = ab("check", "train.sh")
    assert told.code == 2 and "train.sh is a script; `allaboard run train.sh`" in told.text
