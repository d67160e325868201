"""Names and docstrings of the code: a name says what it holds, a docstring opens with a noun or a verb."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.meta.source import COMPONENTS, CORE, DISTS, PROVIDER, ROOT

ROOMS = [CORE.source, CORE.folder / "src" / "_allaboard_startup.py", PROVIDER.source, COMPONENTS.source]
"""The folders and files that keep the rules: all of the code."""

VAGUE = {"found", "one", "said", "thing", "told", "what", "why", "words"}
"""Names that say nothing about what they hold."""

OPENER = re.compile(r"(What|Whatever|Whether|Who|Whoever|Whom|Whose|Which|How|Where|When|Why)\b")

SERIALIZED = {
    ("follow/run_record.py", "Ended", "why"),
    ("runs/observation.py", "Limit", "why"),
    ("runs/observation.py", "MemberSeen", "said"),
    ("runs/observation.py", "Obstacle", "said"),
    ("runs/queues.py", "Waiter", "why"),
    ("task_log.py", "LogState", "why"),
}
"""(file, class, field) of fields whose names stand in records and JSON."""

PUBLIC = {("testing/cluster.py", "", "one")}
"""(file, "", name) of names that the tests of users call."""


def files(room: Path) -> list[Path]:
    return [room] if room.suffix else sorted(room.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def within(path: Path) -> str:
    """The path of a file within its package."""
    own = (dist.source for dist in DISTS if path.is_relative_to(dist.source))
    return str(path.relative_to(next(own, path.parent)))


def vague_names(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """(line, class of a field or "", name) of each vague name that a module binds or reads."""
    fields = {
        id(item.target): owner.name
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for item in owner.body
        if isinstance(item, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                if name in VAGUE:
                    yield node.lineno, fields.get(id(node), ""), name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                if name in VAGUE:
                    yield node.lineno, "", name


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring, those of fields and constants included."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_name_says_what_it_holds(room: Path) -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files(room)
        for line, owner, name in vague_names(tree_of(path))
        if (within(path), owner, name) not in SERIALIZED | PUBLIC
    ]
    assert vague == []


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_docstring_opens_with_a_noun_or_a_verb(room: Path) -> None:
    questions = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in files(room)
        for line, text in docstrings(tree_of(path))
        if OPENER.match(text)
    ]
    assert questions == []


@pytest.mark.thorough
def test_no_exception_is_left_without_its_field() -> None:
    fields = {
        (within(path), owner, name)
        for room in ROOMS
        for path in files(room)
        for _, owner, name in vague_names(tree_of(path))
        if owner
    }
    assert fields == SERIALIZED
