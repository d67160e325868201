"""Pages for a reader with a task: short paragraphs, a heading for each task, examples that are right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from allaboard import check
from allaboard.job.training_job import FIELDS
from tests.docs.site.staging import DOCS
from tests.meta.source import ROOT

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md")), *sorted((ROOT / DOCS).rglob("*.md"))]
LONGEST = 80
"""Words of a paragraph."""
UNDER_A_HEADING = 200
"""Words of prose below one heading of a page for a task."""
TASKS = [
    *sorted((ROOT / DOCS / "how-to").rglob("*.md")),
    *sorted((ROOT / DOCS / "migration").glob("*.md")),
    *sorted((ROOT / DOCS / "tutorials").glob("*.md")),
    *(ROOT / DOCS / f"{name}.md" for name in ("boost", "doctor", "engines", "job", "security")),
]
FENCE = re.compile(r"^ *(`{3,})(?P<kind>[^\n]*)\n(?P<code>.*?)^ *\1$", re.MULTILINE | re.DOTALL)
NO_PROSE = re.compile(r"\||#|</?(details|summary)|!\[")
ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s")


def paragraphs(text: str) -> Iterator[str]:
    """Outside of code, tables, headings and pictures; each item of a list is one."""
    lines: list[str] = []
    for line in [*FENCE.sub("\n", text).splitlines(), ""]:
        ends = not line.strip() or NO_PROSE.match(line.strip()) is not None
        if lines and (ends or ITEM.match(line)):
            yield " ".join(" ".join(lines).split())
            lines = []
        if not ends:
            lines.append(line)


def words(paragraph: str) -> int:
    """A link counts by its text."""
    return len(re.sub(r"\]\([^)]*\)", "]", paragraph).split())


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_paragraph_is_long(page: Path) -> None:
    assert [one for one in paragraphs(page.read_text()) if words(one) > LONGEST] == []


@pytest.mark.parametrize("page", TASKS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_task_has_its_heading(page: Path) -> None:
    """No heading has more below it than a reader takes in."""
    title, *sections = re.split(r"^#{2,} ", FENCE.sub("\n", page.read_text()), flags=re.MULTILINE)
    assert title.startswith("# ")
    sizes = {one.partition("\n")[0]: sum(map(words, paragraphs(one))) for one in [title, *sections]}
    assert {heading: size for heading, size in sizes.items() if size > UNDER_A_HEADING} == {}


def fragments(page: Path) -> Iterator[str]:
    """The blocks of YAML with some fields of a job; whole jobs are marked as runnable."""
    for found in FENCE.finditer(page.read_text()):
        if found["kind"] == "yaml" and {*(yaml.safe_load(found["code"]) or ())} <= {*FIELDS}:
            yield found["code"]


@pytest.mark.parametrize(
    "fragment",
    [
        pytest.param(code, id=f"{page.relative_to(ROOT)}: {code.splitlines()[0]}")
        for page in PAGES
        for code in fragments(page)
    ],
)
def test_a_fragment_of_a_job_is_right(fragment: str) -> None:
    fields = yaml.safe_load(fragment)
    gpus = {"resources": {"gpu": 1}} if "resources" not in fields else {}
    job = {"name": "digits", "command": ["python", "train.py"], "workers": 4, **gpus, **fields}
    assert [problem for problem in check(job) if problem.severity == "error"] == []


def test_paragraphs_are_told_from_the_rest() -> None:
    text = (
        "# A\none two\nthree\n\n| a | b |\n- four\n  five\n- six\n1. [se ven](x y)\n```sh\nno\n```\n![p](q)\n"
    )
    assert [*paragraphs(text)] == ["one two three", "- four five", "- six", "1. [se ven](x y)"]
    assert words("1. [se ven](x y)") == 3
