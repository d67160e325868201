"""core/docs/contract.md and the code: docstrings name headings of it, and its tables are complete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from allaboard.checkpoints.manifest import Manifest
from allaboard.cli import VERBS, app
from allaboard.diagnosis import Diagnosis, Evidence
from allaboard.errors import ExitCode
from allaboard.follow.run_record import RunRecord
from allaboard.runs.observation import PHASES, Condition, MemberSeen, Observation, State
from allaboard.runs.status import summary
from allaboard.text.reportline import _FIELDS as KINDS
from allaboard.text.reportline import decode
from tests.meta.source import ROOT, tracked

PAGE = "core/docs/contract.md"
TEXT = (ROOT / PAGE).read_text()
SECTIONS: Mapping[str, str] = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", TEXT, re.MULTILINE))
REFERENCE = re.compile(re.escape(PAGE) + r"(?:, (?P<heading>[^.,:;)\"]+))?")
CODE = {".py", ".toml", ".ts", ".tsx", ".js", ".jsx"}
ELSEWHERE = re.compile(r"\bcontract[,:]? (?:section )?\d|\(contract\b", re.IGNORECASE)


def problems_of(code: str) -> Iterator[str]:
    """What of the references in a file to the contract leads nowhere."""
    text = " ".join(re.sub(r"\n\s*#", "\n", code).split())
    yield from (match[0] for match in ELSEWHERE.finditer(text))
    for match in REFERENCE.finditer(text):
        heading = (match["heading"] or "").strip()
        if heading not in SECTIONS:
            yield match[0]


def first_cells(section: str) -> set[str]:
    """What stands in backquotes in the first column of its tables."""
    without_heads = re.sub(r"^\|.*\n\|[-|]+$", "", SECTIONS[section], flags=re.MULTILINE)
    rows = [line for line in without_heads.splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}


def example(section: str) -> Any:
    """The first block of JSON of a section."""
    block = re.search(r"^```json\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    assert block is not None
    return json.loads(block[1])


def names(value: Any) -> Any:
    """The names of its fields, with those below; of a list those of its first item."""
    if isinstance(value, Mapping):
        return {name: names(below) for name, below in value.items()}
    is_list = isinstance(value, (list, tuple)) and value
    return [names(value[0] if not is_dataclass(value[0]) else asdict(value[0]))] if is_list else None


def test_every_reference_to_the_contract_names_a_heading_of_it() -> None:
    code = [path for path in tracked() if path.suffix in CODE and path != Path(__file__)]
    found = {str(path.relative_to(ROOT)): [*problems_of(path.read_text())] for path in code}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    "wrong",
    [
        f'"""How it ends ({PAGE}, Exit kodes)."""',
        f'"""How it ends ({PAGE})."""',
        f'"""How it ends ({PAGE},\n    Exit codes and more)."""',
        "# The table of contract section 1.",
        '"""Ends with a code of contract 4."""',
        '"""The identity (contract, section\n1)."""',
    ],
)
def test_a_reference_that_leads_nowhere_is_found(wrong: str) -> None:
    assert [*problems_of(wrong)] != []


def test_a_reference_over_two_lines_is_read() -> None:
    assert [*problems_of(f'    """Ends so ({PAGE}, Exit\n    codes); see {PAGE}, States."""')] == []
    assert [*problems_of(f"# The table of {PAGE}, Launch\n# under a key.")] == []


def test_its_tables_have_what_the_code_has() -> None:
    assert first_cells("States") == {state.value for state in State}
    codes = re.findall(r"^\| (\d+) \|", SECTIONS["Exit codes"], re.MULTILINE)
    assert {int(code) for code in codes} == {int(code) for code in ExitCode}
    records = {field.name for field in fields(RunRecord)} - {"unknown"}
    assert first_cells("Run record") == records | {"version"}
    assert first_cells("Report lines") == set(KINDS)
    manifest = {field.name for field in fields(Manifest)} - {"extra"} | {"hash"}
    assert first_cells("Checkpoints") == manifest
    assert [phase for phase in PHASES if f"`{phase}`" not in SECTIONS["Phases"]] == []


def test_its_examples_have_the_fields_that_the_code_writes() -> None:
    shown = example("Status object")
    member, condition = MemberSeen("worker", 0, 1, "running"), Condition("Running", "True", "", "")
    written = summary(Observation("x", members=(member,), conditions=(condition,)))
    assert names(shown) == names({**written, "metrics": shown["metrics"]})
    diagnosis = Diagnosis("unknown", "", (Evidence("", "", ""),), None, False, "")
    assert names(example("Diagnoses")) == names(diagnosis.to_dict())
    line = re.search(r"^\[allaboard\] .*$", SECTIONS["Report lines"], re.MULTILINE)
    assert line and decode(line[0]) is not None


def test_every_command_with_json_is_in_its_table() -> None:
    def has_json(command: click.Command) -> bool:
        if isinstance(command, click.Group):
            return any(has_json(one) for one in command.commands.values())
        return any("--json" in option.opts for option in command.params)

    context = click.Context(app)
    commands = {name: app.get_command(context, name) for name in VERBS}
    assert {name for name, one in commands.items() if one and has_json(one)} == first_cells("JSON")
