"""What documents show that needs no cluster is typed by a reader, in order; the rest is typed by
tests/cluster/test_documents.py.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.docs.sessions import BROKEN, Reader, documents, lines, of_cluster
from tests.meta.source import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHOWN = [document for document in documents() if not all(map(of_cluster, lines(document)))]


@pytest.mark.thorough(
    but=(
        "README.md",
        "core/README.md",
        "core/docs/how-to/your-script.md",
        "core/docs/tutorials/ml-engineer.md",
    )
)
@pytest.mark.parametrize("document", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_reader_types_what_a_document_shows(document: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"ALLABOARD_POOL": str(tmp_path / "pool")})
    if document.name == "ml-engineer.md":
        # It is asked there why the reader's own job does not work.
        reader.write("train.py", BROKEN)
        reader.write("mine.yaml", "{name: mine, command: [python, train.py], policy: {restart: never}}")
        reader.types("allaboard run mine.yaml", codes=(1,))
    if document == ROOT / "core/docs/how-to/checkpoints.md":
        _save_as_hugging_face_does(tmp_path / "out" / "checkpoint-500")
        reader.write("evaluate.yaml", "{name: judge, command: [python, -c, pass]}")
    for line in lines(document):
        if of_cluster(line) or line == "allaboard demo":  # tests/core/cli/test_demo.py
            continue
        print(line, reader.types(line), sep="\n")


def _save_as_hugging_face_does(folder: Path) -> None:
    """A checkpoint of step 500, as a script of the reader's has left it."""
    sample = ROOT / "tests/core/checkpoints/foreign/samples/hugging_face_trainer/checkpoint-4"
    shutil.copytree(sample, folder)
    state = folder / "trainer_state.json"
    state.write_text(state.read_text().replace('"global_step": 4', '"global_step": 500'))
    for path in folder.iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))
