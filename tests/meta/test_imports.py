"""What an import costs: nothing heavy before it is used, and no package at all in a training image."""

from __future__ import annotations

import ast

import pytest

from tests.meta.source import CORE, DISTS, Dist, modules, python, top_level, tree_of

HEAVY = {
    *("airflow", "kfp", "kubernetes", "kubernetes_asyncio", "torch", "numpy", "scipy", "sklearn", "pandas"),
    *("boto3", "botocore", "s3transfer", "matplotlib", "pendulum", "pydantic", "rich", "yaml"),
}
# Modules that are there to use one of these, and are themselves imported inside functions: whoever imports
# one at its own top fails instead.
BEHIND_A_DOOR = {"allaboard.cli.live": {"rich"}}
BARE = tuple(f"{CORE.package}.{part}" for part in ("inside", "checkpoints", "shards", "storage"))


def frameworks_own(dist: Dist) -> str:
    """The adapter's own imports of its framework, as statements: what these load is not ours to avoid."""
    if dist.framework is None:
        return ""
    return "\n".join(
        sorted(
            {
                ast.unparse(statement)
                for module in modules(dist)
                for statement in top_level(tree_of(module))
                if isinstance(statement, (ast.Import, ast.ImportFrom)) and imports(statement, dist.framework)
            }
        )
    )


def imports(statement: ast.Import | ast.ImportFrom, framework: str) -> bool:
    names = (
        [a.name for a in statement.names] if isinstance(statement, ast.Import) else [statement.module or ""]
    )
    return any(name.partition(".")[0] == framework for name in names)


@pytest.mark.parametrize("dist", [d for d in DISTS if d.here], ids=lambda dist: dist.name)
def test_no_module_loads_anything_heavy(dist: Dist) -> None:
    """One interpreter imports them all, so a heavy package is told of the first module that asks for it."""
    code = f"""
import importlib, sys
{frameworks_own(dist)}
known = {{name.partition(".")[0] for name in sys.modules}}
for module in sys.argv[1:]:
    importlib.import_module(module)
    now = {{name.partition(".")[0] for name in sys.modules}}
    for new in now - known:
        print(module, new)
    known = now
"""
    order = sorted(modules(dist), key=lambda module: module in BEHIND_A_DOOR)
    loaded = [line.split() for line in python(code, *order).splitlines()]
    assert [
        f"{module} imports {package}"
        for module, package in loaded
        if package in HEAVY - BEHIND_A_DOOR.get(module, set())
    ] == []


def test_the_front_door_loads_nothing_but_itself() -> None:
    ours = python(
        "import sys, allaboard; print(*[m for m in sorted(sys.modules) if m.startswith('allaboard')])"
    ).split()
    assert ours == ["allaboard"]


def test_what_runs_in_a_training_image_needs_the_standard_library_alone() -> None:
    """`pip install --no-deps allaboard` is enough for it."""
    code = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top != "allaboard" and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{name} is not of the standard library")

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
for module in sys.argv[2:]:
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"{module}: {error}")
"""
    bare = [module for module in modules(CORE) if module.startswith(BARE)]
    assert len(bare) > 50
    assert python(code, str(CORE.source.parent), *bare, options=("-I", "-S")) == ""
