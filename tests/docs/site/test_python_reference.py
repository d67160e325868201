"""The reference has every public name, each with its contract, and is made without importing them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from allaboard_provider.get_provider_info import get_provider_info
from tests.docs.site import python_reference as reference
from tests.docs.site.staging import DOCS
from tests.meta.source import DISTS, ROOT, modules, path_of, python

PACKAGES = [
    module
    for dist in DISTS
    for module in modules(dist)
    if path_of(module).name == "__init__.py" and "__all__" in path_of(module).read_text()
]
PYTHON = re.compile(r"^```python(?: runnable)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@cache
def documented_paths() -> set[str]:
    return {path for sections in reference.headings().values() for _, paths in sections for path in paths}


@cache
def definitions() -> set[str]:
    return {reference.found(path).canonical_path for path in documented_paths()}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_told(package: str) -> None:
    names = [one for one in reference.public_names(package) if one != "__version__"]
    assert names
    lost = [
        name for name in names if reference.found(f"{package}.{name}").canonical_path not in definitions()
    ]
    assert lost == []


def test_what_airflow_finds_by_the_providers_metadata_is_told() -> None:
    info = get_provider_info()
    named = {
        module
        for kind in ("operators", "sensors", "hooks", "triggers")
        for integration in info[kind]
        for module in integration["python-modules"]
    }
    assert named
    assert {name.rpartition(".")[0] for name in definitions()} >= named


def imported(document: str) -> Iterator[str]:
    """The names of ours that the Python blocks of a document import."""
    packages = {dist.package for dist in DISTS}
    for block in PYTHON.findall(document):
        for statement in ast.walk(ast.parse(block)):
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] in packages:
                yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def test_what_documents_import_is_told() -> None:
    documents = [ROOT / "README.md", *(ROOT / DOCS).rglob("*.md"), *ROOT.glob("*/README.md")]
    names = {name for document in documents for name in imported(document.read_text())}
    assert "allaboard.TrainingJob" in names and "allaboard_provider.operators.TrainingJobOperator" in names
    told = definitions() | {
        name.rpartition(".")[0] for name in definitions()
    }  # a module of names that are told
    assert [name for name in sorted(names) if reference.found(name).canonical_path not in told] == []


def test_each_name_is_told_once() -> None:
    entries = [
        path for sections in reference.headings().values() for _, paths in sections for path in paths
    ]  # fmt: skip
    assert len(entries) == len(set(entries)) == len(definitions()) > 150


def test_each_name_and_each_member_says_its_contract() -> None:
    """A fake need not say once more what a protocol says."""
    said = {
        name
        for path in documented_paths()
        for name, member in reference.found(path).members.items()
        if "Protocol" in str(getattr(reference.found(path), "bases", "")) and member.docstring
    }
    silent = []
    for path in sorted(documented_paths()):
        page = "\n".join(reference.entry(path))
        directives = re.split(r"^`{4,}\{py:", page, flags=re.MULTILINE)[1:]
        for text in directives:
            head, *body = text.split("\n")
            kind, _, name = head.partition("} ")
            prose = [
                line
                for line in body
                if line and not line.startswith((":canonical:", ":type:", "````", ":class"))
            ]
            if not prose and not (kind == "attribute" and any(line.startswith(":value:") for line in body)):
                silent.append(f"{path}: {name.partition('(')[0]}")
        one = reference.found(path)
        hidden = not any(reference.has_member(path, name) for name in one.members) if one.is_class else True
        silent += [
            f"{path}.{name}"
            for name, member in one.members.items()
            if one.is_class and member.is_function and name[0] != "_" and not member.docstring
            and name not in said and not hidden
        ]  # fmt: skip
    assert silent == []


@pytest.mark.thorough
def test_the_pages_are_made_without_importing_what_they_tell() -> None:
    code = """
import sys
from tests.docs.site import python_reference
assert len(python_reference.pages()) > 5
print(*sorted({name.partition(".")[0] for name in sys.modules} & {*sys.argv[1:]}))
"""
    assert python(code, "airflow", "kfp", "torch", *(dist.package for dist in DISTS)).split() == []


def test_a_signature_has_types_defaults_and_public_paths() -> None:
    page = reference.pages()[f"{reference.FOLDER}/allaboard.md"]
    assert re.search(
        r"\{py:function\} allaboard\.run\(job: allaboard\.TrainingJob \| Mapping\[str, Any\] \| .*, \*, "
        r"key: str \| None = None, .*\) -> allaboard\.Outcome\n",
        page,
    )
    assert "self" not in re.findall(r"\{py:method\} of\((\w+)", page)


def test_a_class_takes_the_arguments_that_it_hands_on() -> None:
    """Of a base that no page has."""
    airflow = reference.pages()[f"{reference.FOLDER}/airflow.md"]
    sensor = next(line for line in airflow.splitlines() if "sensors.CheckpointSensor(" in line)
    assert "uri: str" in sensor and "poke_interval: float | timedelta = 10.0, **kwargs" in sensor
    assert sensor.count("allaboard_conn_id") == 1


def test_a_component_has_its_arguments_and_outputs() -> None:
    kfp = reference.pages()[f"{reference.FOLDER}/kfp.md"]
    entry = kfp.partition("{py:function} allaboard_kfp.train(")[2].partition("{py:function}")[0]
    assert entry.startswith("job: dict = {}, ") and "dsl.Output" not in entry
    assert ":param overrides: fields that are merged" in entry
    assert "\n- `checkpoints`: the folder of its checkpoints.\n" in entry


def test_docstrings_become_markdown() -> None:
    known = {"TrainingJob": "allaboard.TrainingJob", "BadInput": "allaboard.BadInput"}
    text = """``a`` or `b` of a `TrainingJob`, <c> as ``<d>``. Raises BadInput::

    x = 1  # `e`
    y = 2

>>> run()
1

See core/docs/contract.md, Launch under a key.

:param f: a thing
    of two lines."""
    assert "\n".join(reference.prose(text, known.get)) == (
        "`a` or `b` of a {py:obj}`TrainingJob <allaboard.TrainingJob>`, \\<c> as `<d>`. "
        "Raises {py:obj}`BadInput <allaboard.BadInput>`:\n\n"
        "```python\nx = 1  # `e`\ny = 2\n```\n\n"
        "```python\n>>> run()\n1\n```\n\n"
        "See [contract, Launch under a key](../../contract.md#launch-under-a-key).\n\n"
        ":param f: a thing\n    of two lines.\n"
    )


def test_a_name_in_a_docstring_leads_to_its_place() -> None:
    page = reference.pages()[f"{reference.FOLDER}/inside.md"]
    assert "{py:obj}`save <allaboard.inside.Checkpointer.save>`" in page
    assert "{py:obj}`StorageError <allaboard.errors.StorageError>`" in page
