"""Python blocks of the documents about pipelines: they run in order, as one file of a reader, and the
pipelines that they make compile. Nothing is asked of a server; such calls have arguments that exist.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kfp import compiler
from kfp.client import Client
from kfp.dsl.graph_component import GraphComponent

import allaboard_kfp

ROOT = Path(__file__).resolve().parents[2]
HOW_TO, COMPONENTS = ROOT / "core/docs/how-to/kfp.md", ROOT / "kfp_components/README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GIVEN = """
JOB = {"name": "digits", "command": ["python", "train.py"], "checkpoints": {"uri": "store://digits"}}
EVALUATION = {"name": "judge", "command": ["python", "judge.py"]}
"""
"""What a reader of the components' README has: jobs."""
RUNS = re.compile(r"^client\b|^\w+ = client\.|^start_local\(|^retrain\(")
"""Statements that run a pipeline, on a server or on this machine."""


def blocks(document: Path) -> list[str]:
    return BLOCK.findall(document.read_text())


def shown() -> Iterator[tuple[Path, str]]:
    """Documents, and what they show as one file: of those about pipelines all that makes one, of others each
    block that is a whole pipeline.
    """
    yield HOW_TO, "\n".join(blocks(HOW_TO))
    parts = [in_pipeline(code, number) for number, code in enumerate(blocks(COMPONENTS))]
    yield COMPONENTS, "\n".join([GIVEN, *parts])
    for path in [ROOT / "README.md", *(ROOT / "core/docs").rglob("*.md")]:
        whole = [code for code in blocks(path) if "@dsl.pipeline" in code and "import" in code]
        if whole and path != HOW_TO:
            yield path, "\n".join(whole)


def in_pipeline(code: str, number: int) -> str:
    """A part of a pipeline as a whole one; of other code, which is no pipeline's, nothing."""
    if "@dsl.pipeline" in code:
        return code
    called = {node.func.id for node in calls(code) if isinstance(node.func, ast.Name)}
    if not called & ({*allaboard_kfp.__all__} - {"start_local"}):
        return ""
    head = f"@dsl.pipeline\ndef part_{number}(store: str = '', workers: int = 2):\n"
    return head + textwrap.indent(code, "    ")


def calls(code: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]


SHOWN = dict(shown())
NAMES = [str(path.relative_to(ROOT)) for path in SHOWN]


def test_the_readme_shows_a_pipeline() -> None:
    assert ROOT / "README.md" in SHOWN


@pytest.mark.parametrize("code", SHOWN.values(), ids=NAMES)
def test_what_a_document_shows_compiles(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = [part for part in ast.parse(code).body if not RUNS.search(ast.unparse(part))]
    file = tmp_path / "shown.py"  # kfp reads the source of components
    file.write_text(ast.unparse(ast.Module(kept, type_ignores=[])))
    names: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec", dont_inherit=True), names)
    pipelines = [value for value in names.values() if isinstance(value, GraphComponent)]
    assert pipelines
    for number, pipeline in enumerate(pipelines):
        compiler.Compiler().compile(pipeline, str(tmp_path / f"{number}.yaml"))


def test_the_role_that_the_how_to_binds_is_the_one_that_is_printed() -> None:
    """To the account of a single-user installation, and to that of a profile."""
    text = HOW_TO.read_text()
    (printing,) = {*re.findall(r"^allaboard (cluster --rbac \S+ -n research) \|", text, re.MULTILINE)}
    answer = subprocess.run(
        [sys.executable, "-m", "allaboard", *printing.split()], capture_output=True, text=True, check=True
    )
    printed = [one for one in yaml.safe_load_all(answer.stdout) if one]
    assert {one["metadata"].get("namespace") for one in printed} == {"research"}
    roles = {one["metadata"]["name"]: one for one in printed if one["kind"] == "Role"}
    bound = re.findall(r"-n (\S+) create rolebinding \S+ --role=(\S+) --serviceaccount=(\S+):(\S+)", text)
    ((name,),) = ({name for _, name, *_ in bound},)
    assert {(namespace, of) for namespace, _, of, _ in bound} == {("research", "research")}
    assert {account for *_, account in bound} == {"pipeline-runner", "default-editor"}
    # What `clean_up` asks, and what each training does.
    rules = roles[name]["rules"]
    rights = {(one, verb) for rule in rules for one in rule["resources"] for verb in rule["verbs"]}
    assert {("pods", "list"), ("leases", "create"), ("trainjobs", "create"), ("jobsets", "create")} <= rights


@pytest.mark.parametrize("code", SHOWN.values(), ids=NAMES)
def test_calls_of_a_server_have_arguments_that_exist(code: str) -> None:
    for call in calls(code):
        match call.func:
            case ast.Attribute(value=ast.Name(id="client"), attr=name):
                words = {str(word.arg): None for word in call.keywords}
                inspect.signature(getattr(Client, name)).bind(None, *call.args, **words)
