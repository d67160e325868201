from __future__ import annotations

import ast
import re
from importlib import import_module

import pytest

from tests.meta.source import CORE, DISTS, modules, path_of, python, top_level, tree_of

HERE = [module for dist in DISTS if dist.here for module in modules(dist)]
# Read as text: every worker that collects the tests comes by here.
WITH_ALL = [module for module in HERE if re.search(r"^__all__\b", path_of(module).read_text(), re.MULTILINE)]
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


@pytest.mark.parametrize("first", ["names", "modules"])
def test_a_name_of_the_front_door_means_the_same_whatever_was_imported_before(first: str) -> None:
    """Python binds a module to its package as soon as anybody imports it: one that has the name of a function
    of the front door would hide it from then on."""
    code = """
import importlib, sys, types
import allaboard
if sys.argv[1] == "names":
    early = {name: getattr(allaboard, name) for name in allaboard.__all__}
for module in sys.argv[2:]:
    importlib.import_module(module)
late = {name: getattr(allaboard, name) for name in allaboard.__all__}
print(*(name for name, value in late.items() if isinstance(value, types.ModuleType)))
if sys.argv[1] == "names":
    print(*(name for name, value in late.items() if early[name] is not value))
"""
    assert python(code, first, *modules(CORE)).split() == []
