"""The command line starts at once: what is not needed is not imported, and every verb is where the table
says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from allaboard import __version__
from allaboard.cli import EPILOG, HEADINGS, VERBS
from tests.core.cli.terminal import Terminal

HEAVY = ("yaml", "rich", "torch", "numpy", "boto3", "botocore", "pydantic", "asyncio", "email", "http")


def imported(ab: Terminal, *words: str) -> set[str]:
    """The modules that a call has imported when it is done."""
    script = (
        "import json, sys; from allaboard.cli import main; main(sys.argv[1:]);"
        "print('\\n' + json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=ab.folder,
        env=ab.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["check", "--help"], ["checkpoints", "--help"]], ids=" ".join
)
def test_help_imports_nothing_heavy_and_no_backend(ab: Terminal, words: list[str]) -> None:
    found = imported(ab, *words)
    assert not found & set(HEAVY)
    ours = {name for name in found if name.startswith("allaboard.")}
    assert not any(
        name.startswith(("allaboard.backends", "allaboard.inside", "allaboard.storage")) for name in ours
    )


def test_the_first_help_imports_no_verb(ab: Terminal) -> None:
    ours = {name for name in imported(ab, "--help") if name.startswith("allaboard")}
    assert ours == {"allaboard", "allaboard.cli", "allaboard.cli.stdout"}


def test_check_reads_a_job_without_a_backend_or_a_terminal_library(ab: Terminal) -> None:
    job = ab.write("job.yaml", "name: digits\ncommand: [python, train.py]\n")
    found = imported(ab, "check", job)
    assert "yaml" in found
    assert not found & (set(HEAVY) - {"yaml"})
    assert not any(
        name.startswith(("allaboard.backends", "allaboard.storage", "allaboard.running")) for name in found
    )


def test_a_json_job_is_checked_without_yaml(ab: Terminal) -> None:
    assert "yaml" not in imported(ab, "check", ab.job())


def test_plain_lines_need_no_rich_and_a_launch_no_torch(ab: Terminal) -> None:
    found = imported(ab, "run", ab.job())
    assert not found & {"rich", "torch", "numpy", "boto3"}


def test_every_verb_is_where_the_table_says_and_shows_how_it_is_used(ab: Terminal) -> None:
    for name, verb in VERBS.items():
        module, _, attribute = verb.at.partition(":")
        command = getattr(import_module(f"allaboard.cli.{module}"), attribute)
        assert isinstance(command, click.Command) and command.name == name
        assert verb.heading in HEADINGS
        every = command.commands.values() if isinstance(command, click.Group) else [command]
        for one in every:
            assert one.epilog and f"allaboard {name}" in one.epilog, f"{name} {one.name} has no example"
            if name not in ("schema", "demo"):
                assert any("--json" in option.opts for option in one.params), (
                    f"{name} {one.name} takes no --json"
                )


def test_the_help_groups_the_verbs_one_line_each(ab: Terminal) -> None:
    said = ab("--help")
    assert said.code == 0
    for heading in HEADINGS:
        assert f"\n{heading}:\n" in said.out
    for name, verb in VERBS.items():
        assert re.search(rf"^  {name} +{re.escape(verb.line)}$", said.out, re.MULTILINE)
    assert "Examples:" in said.out and "allaboard run" in EPILOG


def test_no_words_at_all_show_the_help(ab: Terminal) -> None:
    said = ab()
    assert "Usage: allaboard" in said.text and "\nRun:\n" in said.text


def test_a_verb_shows_its_help(ab: Terminal) -> None:
    for words in (["run", "--help"], ["run", "-h"], ["checkpoints", "collect", "--help"]):
        said = ab(*words)
        assert (
            said.code == 0 and said.out.startswith(f"Usage: allaboard {words[0]}") and "Example" in said.out
        )


def test_the_version(ab: Terminal) -> None:
    assert ab("--version").out.strip() == f"allaboard {__version__}"


def test_the_verbs_of_the_contract_are_there() -> None:
    wanted = "run check status follow logs events stop suspend resume delete list"
    wanted += " checkpoints shards evaluate promote schema render preflight cluster explain report engines"
    wanted += " convert lint queues doctor snapshot boost demo progress"
    assert set(VERBS) == set(wanted.split())


def test_the_console_script_is_the_same_command() -> None:
    declared = Path(__file__).parents[3].joinpath("core", "pyproject.toml").read_text()
    assert 'allaboard = "allaboard.cli:main"' in declared
