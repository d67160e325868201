"""``allaboard lint``: files in, findings out, whatever the file holds."""

from __future__ import annotations

import json
import random

import pytest
import yaml

from allaboard.cli.tools.lint import _lint_all
from allaboard.errors import BadInput
from allaboard.job.loader import parse_all
from tests.core.cli.terminal import Terminal
from tests.core.cli.test_startup import HEAVY, imported
from tests.core.lint.test_rules import GOOD, MAIN, POLICY, changed
from tests.torture.hostile import broken_text

JOB = "name: digits\ncommand: [python, train.py]\nimage: lab/train\npolicy: {restart: always}\n"


def test_findings_stand_by_their_gravity_with_why_and_fix(ab: Terminal) -> None:
    said = ab("lint", ab.write("job.yaml", JOB))
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[0] == "job.yaml: 1 error, 1 warning"
    assert said.out.index("error policy.restart: ") < said.out.index("warning image: ")
    assert "[restart_always]\n  Under Always a member" in said.out
    assert "\n  Fix: policy.restart: say on_failure\n" in said.out


def test_json_holds_the_findings_and_nothing_else(ab: Terminal) -> None:
    body = ab("lint", ab.write("job.yaml", JOB), "--json").json
    assert [*body] == ["findings"]
    assert [(f["code"], f["severity"], f["path"]) for f in body["findings"]] == [
        ("restart_always", "error", "policy.restart"),
        ("image_unpinned", "warning", "image"),
    ]
    assert all([*f] == ["code", "severity", "path", "summary", "why", "fix"] for f in body["findings"])


def test_nothing_found_is_said(ab: Terminal) -> None:
    assert ab("lint", ab.write("job.yaml", yaml.safe_dump(GOOD))).out == "job.yaml: nothing found\n"
    assert ab("lint", "job.yaml", "--json").json == {"findings": []}


def test_many_documents_and_stdin(ab: Terminal) -> None:
    bad = changed(GOOD, {f"{POLICY}.queue": "a", "metadata.name": "second"})
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}}
    text = "---\n".join([JOB, yaml.safe_dump(GOOD), yaml.safe_dump(config), yaml.safe_dump(bad)])
    said = ab("lint", "-", stdin=text)
    assert said.code == 0
    assert "job digits: 1 error, 1 warning\n" in said.out
    assert "PyTorchJob digits: nothing found\n" in said.out
    assert "PyTorchJob second: 1 error\n" in said.out
    listed = {"apiVersion": "v1", "kind": "List", "items": [GOOD, bad]}
    found = ab("lint", "-", "--json", stdin=json.dumps(listed)).json["findings"]
    assert [(f["code"], f["object"]) for f in found] == [("queue_misplaced", "PyTorchJob second")]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "is empty"), ("[1, 2]", "holds a list"), ("a: [", "is not YAML"), ("text", "holds text"),
        ("{apiVersion: batch/v1, kind: Job}", "holds no job and no manifest that is known (batch/v1/Job)"),
        ("name: digits\nworkres: 2\ncommand: [a]\n---\nname: Other\n", "document 1: workres: no such field"),
        ("name: digits\ncommand: [a]\n---\nname: Other_\ncommand: [a]\n", "document 2: name: "),
        ("a: &a [*a]\n", "holds itself"), ("{kind: List, items: [yes]}", "holds something else"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_ends_with_2(ab: Terminal, text: str, word: str) -> None:
    said = ab("lint", "-", stdin=text)
    assert (said.code, said.out) == (2, "") and word in said.err
    body = ab("lint", "-", "--json", stdin=text)
    assert body.code == 2 and body.json["error"]["code"] == "bad_input"


def test_a_hostile_manifest_ends_in_findings_or_in_a_sentence() -> None:
    rng = random.Random(5)
    good = yaml.safe_dump(GOOD, sort_keys=False)
    refused = 0
    for _ in range(400):
        text = broken_text(good, rng)
        try:
            linted = _lint_all(parse_all(text, "stdin"), "stdin")
        except BadInput as error:
            refused += 1
            said = str(error)
        else:
            said = "".join([title + str(f.to_dict()) for title, findings in linted for f in findings])
        assert all(c.isprintable() or c == "\n" for c in said)
    assert 50 < refused < 350, "some are read, some are not"


def test_a_live_object_is_read_as_kubectl_prints_it(ab: Terminal) -> None:
    live = changed(GOOD, {"status.conditions": [], f"{MAIN}.image": "lab/train"})
    assert ab("lint", "-", "--json", stdin=json.dumps(live)).json["findings"][0]["code"] == "image_unpinned"


def test_without_a_file_it_says_what_to_name(ab: Terminal) -> None:
    said = ab("lint")
    assert said.code == 2 and "name a FILE" in said.err
    assert ab("lint", "--rules").out.startswith("# What `allaboard lint` says")


def test_it_starts_at_once(ab: Terminal) -> None:
    heavy = {*HEAVY, "kubernetes", "urllib3", "aiohttp", "ssl"} - {"yaml"}
    assert not imported(ab, "lint", ab.write("job.yaml", JOB)) & heavy
