"""What the documents say is true: runnable blocks run, links lead somewhere, targets of make exist.

A block is marked in its fence, where no reader sees it: three backticks, sh, python or yaml (a job, which is
checked), ``runnable``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from allaboard.cli import app
from tests.docs.site.staging import DOCS, generated
from tests.meta.source import ROOT, tracked

DOCUMENTS = [path for path in tracked() if path.suffix == ".md"]
FENCE = re.compile(r"^```(?P<language>\w+) runnable\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh(?: runnable)?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
SITE = ROOT / DOCS
LINK = re.compile(r"\[[^\]]*\]\((?!\w+:|#)(?P<target>[^)#\s]+)")
MAKE = re.compile(r"`(?:[A-Z_]+=\S+ )?make ([a-z][a-z-]*)")


@dataclass(frozen=True, slots=True)
class Block:
    document: Path
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    return [
        Block(document, text.count("\n", 0, found.start()) + 1, found["language"], found["code"])
        for found in FENCE.finditer(text)
    ]


LONG = ("core/docs/how-to/gate.md", "core/docs/how-to/python.md")
"""Pages whose blocks train the net of the examples."""


def marked(block: Block) -> Any:
    long = str(block.document.relative_to(ROOT)) in LONG or "dags_examples/digits/job.yaml" in block.code
    return pytest.param(block, marks=pytest.mark.thorough if long else ())


RUNNABLE = [marked(block) for document in DOCUMENTS for block in blocks(document)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", RUNNABLE, ids=str)
def test_a_runnable_block_runs(block: Block, tmp_path: Path) -> None:
    """From the root of the repository, with this environment first in PATH and homes of its own."""
    job = tmp_path / "job.yaml"
    job.write_text(block.code)
    command = {
        "sh": ["bash", "-euo", "pipefail", "-c", block.code],
        "python": [sys.executable, "-c", block.code],
        "yaml": [sys.executable, "-m", "allaboard", "check", str(job)],
    }[block.language]
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "ALLABOARD_HOME": str(tmp_path / "home"),
        "ALLABOARD_POOL": str(tmp_path / "pool"),
    }
    answer = subprocess.run(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout


@pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="no README yet")
def test_the_readme_shows_something_that_runs() -> None:
    assert blocks(ROOT / "README.md") != []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(document: Path) -> None:
    """Pages of the site may name those that `make docs` makes beside them."""
    targets = [found["target"] for found in LINK.finditer(document.read_text())]
    lost = [target for target in targets if not (document.parent / target).exists()]
    made = {(SITE / path).resolve() for path in generated()} if SITE in document.parents else set()
    assert [target for target in lost if (document.parent / target).resolve() not in made] == []


def commands(document: Path) -> Iterator[list[str]]:
    """The command lines of ours in its blocks of sh, as words, without what the shell takes for itself."""
    for block in SHELL.finditer(document.read_text()):
        text = re.sub(r"\\\n", " ", re.sub(r"(?m)(?:^|\s)#.*$", "", block["code"]))
        lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
        words: list[str] = []
        for token in [*lexer, "\n"]:
            if not set(token) <= set(";|&\n()"):
                words.append(token)
                continue
            first = next((n for n, word in enumerate(words) if not re.match(r"[A-Z_]+=|export$", word)), 0)
            if words[first + 1 :] and words[first].rpartition("/")[2] == "allaboard":
                yield [word for word in _without_redirections(words[first:]) if word != "..."]
            words = []


def _without_redirections(words: list[str]) -> Iterator[str]:
    left = iter(words)
    for word in left:
        if set(word) <= set("<>"):
            next(left, None)
        else:
            yield word


@pytest.mark.parametrize(
    ("document", "words"),
    [(document, words) for document in DOCUMENTS for words in commands(document)],
    ids=lambda value: str(value.relative_to(ROOT)) if isinstance(value, Path) else " ".join(value),
)
def test_commands_that_a_document_shows_have_these_verbs_and_options(
    document: Path, words: list[str]
) -> None:
    """Also of blocks that cannot run here: those that need a cluster, or a run that is there."""
    command: click.Command = app
    context = click.Context(app, info_name="allaboard")
    left = words[1:]
    while isinstance(command, click.Group) and left and not left[0].startswith("-"):
        found = command.get_command(context, left[0])
        assert found is not None, f"there is no {' '.join(words)}"
        command, left = found, left[1:]
        context = click.Context(command, info_name=words[1], parent=context)
    command.make_parser(context).parse_args(left)


def test_every_target_of_make_that_a_document_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    known = set(re.findall(r"^([a-z][a-z-]*):.*## ", makefile, re.MULTILINE))
    named = {target for document in DOCUMENTS for target in MAKE.findall(document.read_text())}
    assert named - known == set()
    assert set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split()) == known


def test_make_alone_lists_its_targets() -> None:
    answer = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"make demo", "make test", "make check"} <= {
        line[2:].split("  ")[0].strip() for line in answer.stdout.splitlines()
    }
