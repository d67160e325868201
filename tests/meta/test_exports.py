from __future__ import annotations

import ast
from importlib import import_module

import pytest

from tests.meta.source import CORE, DISTS, modules, path_of, python, top_level, tree_of

HERE = [module for dist in DISTS if dist.here for module in modules(dist)]
WITH_ALL = [
    m for m in HERE if any("__all__" in ast.unparse(s) for s in tree_of(m).body if isinstance(s, ast.Assign))
]
PACKAGES = [module for module in WITH_ALL if path_of(module).name == "__init__.py"]


@pytest.mark.parametrize("module", WITH_ALL)
def test_every_exported_name_is_there_once(module: str) -> None:
    found = import_module(module)
    assert [name for name in found.__all__ if not hasattr(found, name)] == []
    assert len(found.__all__) == len(set(found.__all__))


@pytest.mark.parametrize("module", PACKAGES)
def test_a_package_exports_what_it_takes_from_its_modules(module: str) -> None:
    """A name imported to be passed on, but not in ``__all__``, was forgotten in one of the two places."""
    taken = {
        alias.asname or alias.name
        for statement in top_level(tree_of(module))
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(f"{module}.")
        for alias in statement.names
    }
    used = {node.id for node in ast.walk(tree_of(module)) if isinstance(node, ast.Name)}
    assert {name for name in taken - used if not name.startswith("_")} - set(
        import_module(module).__all__
    ) == set()


def test_the_front_door_says_the_same_to_type_checkers_and_at_run_time() -> None:
    front = tree_of(CORE.package)
    typed = {
        alias.asname or alias.name
        for block in front.body
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert typed == set(import_module(CORE.package).__all__)


@pytest.mark.parametrize("name", import_module(CORE.package).__all__)
def test_a_name_of_the_front_door_means_the_same_whatever_was_imported_before(name: str) -> None:
    """Python binds a module to its package as soon as anybody imports it: one that is named as a function of the
    front door would hide that function from then on."""
    others = [m for m in modules(CORE) if m.count(".") == 1]
    code = """
import importlib, sys
name, others = sys.argv[1], sys.argv[2:]
import allaboard
fresh = getattr(allaboard, name)
for other in others:
    importlib.import_module(other)
late = getattr(allaboard, name)
print(fresh is late, type(late).__name__)
"""
    first = python(code, name, *others).split()
    again = python(code.replace("fresh = getattr(allaboard, name)", "fresh = None"), name, *others).split()
    assert (first[0], again[1]) == ("True", first[1])
    assert first[1] != "module"
