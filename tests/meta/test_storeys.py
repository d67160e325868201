"""The import contracts of pyproject.toml: that they bite, and what an import cannot show."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.meta.source import CORE, DISTS, ROOT, modules, path_of, tree_of

CONTRACTS: dict[str, dict[str, Any]] = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
PURE = [
    module
    for module in modules(CORE)
    if any(module == pure or module.startswith(f"{pure}.") for pure in CONTRACTS["pure"]["source_modules"])
]


def lint(sources: Path) -> str:
    """What the contracts say about a copy of the sources."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(str(sources / d.folder.name) for d in DISTS)}
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    answer = subprocess.run(
        [*command, "--config", str(ROOT / "pyproject.toml")],
        cwd=sources,
        env={**environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout + answer.stderr


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of all three distributions, to be spoiled."""
    for dist in DISTS:
        shutil.copytree(
            dist.source, tmp_path / dist.folder.name / dist.package, ignore=shutil.ignore_patterns("*.pyc")
        )
    return tmp_path


@pytest.mark.thorough(
    but=("core/allaboard/nowhere", "core/allaboard/inside", "provider", "core/allaboard/report/page")
)
@pytest.mark.parametrize(
    ("where", "statement", "contract"),
    [
        ("core/allaboard/job/fields.py", "import allaboard.runs.layout", "storeys"),
        ("core/allaboard/storage/base.py", "import allaboard.checkpoints", "storeys"),
        ("core/allaboard/nowhere.py", "", "storeys"),
        ("core/allaboard/text/names.py", "def f() -> None:\n    import airflow", "adapters-above-core"),
        ("provider/allaboard_provider/__init__.py", "import allaboard_kfp", "adapters-apart"),
        ("core/allaboard/inside/__init__.py", "import allaboard.follow.loop", "inside"),
        ("core/allaboard/checkpoints/__init__.py", "import yaml", "inside"),
        ("core/allaboard/runs/status.py", "import time", "pure"),
        ("core/allaboard/report/page.py", "import time", "pure"),
        ("core/allaboard/report/chart.py", "import allaboard.report.page", "report"),
        (
            "kfp_components/allaboard_kfp/value.py",
            "import allaboard.cli",
            "components-without-the-command-line",
        ),
        ("core/allaboard/engines/pytorchjob.py", "from os import environ", "pure"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(
    sources: Path, where: str, statement: str, contract: str
) -> None:
    with (sources / where).open("a") as file:
        file.write(f"\n{statement}\n")
    broken = [line.partition(" BROKEN")[0] for line in lint(sources).splitlines() if " BROKEN" in line]
    assert CONTRACTS[contract]["name"] in broken


def test_a_layer_that_exists_is_not_optional() -> None:
    """Parentheses in the list of storeys stand for code that is not written yet, and for that alone."""
    optional = [
        name.strip(" ()")
        for layer in CONTRACTS["storeys"]["layers"]
        for name in layer.split("|")
        if name.strip().startswith("(")
    ]
    assert [
        name for name in optional if (CORE.source / name).is_dir() or (CORE.source / f"{name}.py").exists()
    ] == []


FRONT_DOOR = "allaboard"
"""What it names for type checkers is above it; at run time it loads a module when one of its names is asked
for."""


def imported(module: str, known: set[str]) -> set[str]:
    """The modules of ours that a module imports, in its functions and for type checkers, too."""
    found = set()
    for statement in ast.walk(tree_of(module)):
        if isinstance(statement, ast.Import):
            found |= {name.name for name in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            whole = {f"{statement.module}.{name.name}" for name in statement.names}
            found |= whole & known or {statement.module}
    return found & known - {module}


def circles(imports: dict[str, set[str]]) -> list[str]:
    """Circles, as ``a -> b -> a``: one at least, if there is one."""
    left = dict(imports)
    while leaves := {module for module, those in left.items() if not those & left.keys()}:
        left = {module: those for module, those in left.items() if module not in leaves}
    found = []
    while left:
        path = [min(left)]
        while (following := min(left[path[-1]] & left.keys(), default=None)) not in (None, *path):
            path.append(str(following))
        if following is not None:
            found.append(" -> ".join([*path[path.index(following) :], following]))
        left = {module: those for module, those in left.items() if module not in path}
    return found


@pytest.mark.thorough
def test_no_module_of_the_core_imports_itself_by_a_detour() -> None:
    """Lazy imports and those for type checkers included."""
    known = {*modules(CORE)}
    imports = {module: imported(module, known) for module in known - {FRONT_DOOR}}
    assert circles(imports) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b -> c -> b"]
    assert circles({"a": {"b"}, "b": set()}) == []


# The world's doors that need no import.
TOUCHES = {"open", "print", "input", "exec", "eval", "breakpoint"}
CLOCKS = {"now", "today", "utcnow"}


@pytest.mark.parametrize("module", PURE)
def test_whoever_decides_reads_no_clock_and_opens_nothing(module: str) -> None:
    found = [
        f"{path_of(module).relative_to(ROOT)}:{call.lineno}: {ast.unparse(call.func)}"
        for call in ast.walk(tree_of(module))
        if isinstance(call, ast.Call)
        and (
            (isinstance(call.func, ast.Name) and call.func.id in TOUCHES)
            or (isinstance(call.func, ast.Attribute) and call.func.attr in CLOCKS)
        )
    ]
    assert found == []
