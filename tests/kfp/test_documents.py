"""Blocks of the documents that show a pipeline: they compile, as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kfp import compiler
from kfp.dsl.graph_component import GraphComponent

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = [ROOT / "README.md", *(ROOT / "core/docs").rglob("*.md")]
BLOCKS = [
    (path, code)
    for path in DOCUMENTS
    for code in BLOCK.findall(path.read_text())
    if "@dsl.pipeline" in code and "import" in code
]


def test_the_readme_shows_a_pipeline() -> None:
    assert ROOT / "README.md" in {path for path, _ in BLOCKS}


@pytest.mark.parametrize(("path", "code"), BLOCKS, ids=[str(path.relative_to(ROOT)) for path, _ in BLOCKS])
def test_a_pipeline_of_a_document_compiles(path: Path, code: str, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(code)
    names: dict[str, object] = {}
    exec(compile(code, str(tmp_path / "block.py"), "exec", dont_inherit=True), names)
    pipelines = [value for value in names.values() if isinstance(value, GraphComponent)]
    assert pipelines
    for number, pipeline in enumerate(pipelines):
        compiler.Compiler().compile(pipeline, str(tmp_path / f"{number}.yaml"))
