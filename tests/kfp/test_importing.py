"""A checkpoint that another library wrote becomes an artifact of a model: vouched for where it is."""

# kfp reads the annotations of a pipeline: no `from __future__ import annotations` here.

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from allaboard.checkpoints import Manifest, save
from allaboard.storage import open_store
from allaboard_kfp import evaluate, import_checkpoint, promote, start_local
from tests.core.checkpoints.foreign.test_samples import SAMPLES
from tests.kfp.conftest import Artifacts, Here

Of = Callable[..., Artifacts]
SAYS = "from allaboard.inside import result; result(accuracy=0.9)"
JUDGE = {"name": "judge", "command": ["python", "-c", SAYS], "workers": 1}


def imported(of: Of, source: str, **more: Any) -> tuple[str, Any]:
    model = of("import")[dsl.Model]
    given = {"which": "latest", "metric": "", "mode": "min", "store": "", **more}
    return import_checkpoint.python_func(source=source, model=model, **given), model


@pytest.mark.parametrize("source", ["store://theirs", "store://theirs/checkpoint-4"])
def test_a_checkpoint_of_another_library_becomes_a_model(here: Here, artifacts: Of, source: str) -> None:
    shutil.copytree(SAMPLES / "hugging_face_trainer", here.store / "theirs")
    uri, model = imported(artifacts, source)
    assert uri == model.metadata["uri"] == str(here.store / "theirs" / "step-000000000004")
    assert model.metadata["step"] == 4 and "trainer" in model.metadata["format"].lower()
    assert json.loads(Path(model.path).read_text())["uri"] == uri
    assert imported(artifacts, source)[0] == uri  # again


def test_one_that_is_changed_later_is_not_vouched_for(
    here: Here, artifacts: Of, capsys: pytest.CaptureFixture[str]
) -> None:
    place = open_store(here.store / "ours")
    save(place, Manifest(step=7), {"state.bin": b"seven"})
    assert imported(artifacts, "store://ours", which="7")[0].endswith("step-000000000007")
    (here.store / "ours" / "step-000000000007" / "state.bin").write_bytes(b"seveN")
    with pytest.raises(SystemExit) as ended:
        imported(artifacts, "store://ours")
    assert ended.value.code
    assert "other bytes than the manifest says" in capsys.readouterr().err


@pytest.mark.parametrize("leave", ["model.safetensors", "trainer_state.json"])
def test_one_that_is_not_whole_is_refused_with_the_reason(
    here: Here, artifacts: Of, leave: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(SAMPLES / "hugging_face_trainer", here.store / "theirs")
    (here.store / "theirs" / "checkpoint-4" / leave).unlink()
    with pytest.raises(SystemExit) as ended:
        imported(artifacts, "store://theirs/checkpoint-4")
    assert ended.value.code == 2
    said = "".join(capsys.readouterr())
    assert "no whole checkpoint of a known format is there" in said and "Traceback" not in said


def test_an_empty_place_is_said(here: Here, artifacts: Of, capsys: pytest.CaptureFixture[str]) -> None:
    (here.store / "nothing").mkdir(parents=True)
    with pytest.raises(SystemExit) as ended:
        imported(artifacts, "store://nothing")
    assert ended.value.code == 2
    assert "give the folder that holds one" in capsys.readouterr().err


def test_an_imported_checkpoint_is_judged_and_promoted_under_kfp_local(here: Here) -> None:
    shutil.copytree(SAMPLES / "hugging_face_trainer", here.store / "theirs")

    @dsl.pipeline(name="foreign")
    def foreign():  # type: ignore[no-untyped-def]
        given = import_checkpoint(source="store://theirs")
        judged = evaluate(job=JUDGE, checkpoint=given.outputs["model"])
        promote(
            checkpoint=given.outputs["model"], into="store://champions", results=judged.outputs["results"],
            metric="accuracy",
        )  # fmt: skip

    start_local(here.out)
    foreign()
    assert (here.store / "champions" / "promoted").is_dir()
