"""The newest whole checkpoint is handed over; no library that looks for itself finds a torn one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from allaboard.checkpoints.foreign.adopting import Places
from allaboard.checkpoints.foreign.handing import hand_over
from allaboard.storage import open_store
from tests.core.checkpoints.foreign.memory import folder
from tests.core.checkpoints.foreign.test_samples import SAMPLES

BEGAN = 1_700_000_000


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def places(out: Path) -> Places:
    return Places(open_store(out / "digits-1f0c9a77"), job=True, since=BEGAN)


def put(out: Path, kind: str, name: str, at: int = BEGAN + 10, leave: str | None = None) -> Path:
    """A checkpoint of a sample under another name, of another step."""
    target = out / name
    for key, content in folder(SAMPLES / kind).items():
        if key == leave:
            continue
        path = target / key
        path.parent.mkdir(parents=True, exist_ok=True)
        step = re.search(r"\d+$", name)
        if path.name == "trainer_state.json" and step:
            content = content.replace(b'"global_step": 4', b'"global_step": %s' % step[0].encode())
        path.write_bytes(content)
        os.utime(path, (at, at))
    return target


def trainer(out: Path, step: int, at: int = BEGAN + 10, leave: str | None = None) -> Path:
    put(out, "hugging_face_trainer/checkpoint-4", f"checkpoint-{step}", at, leave)
    return out / f"checkpoint-{step}"


def get_last_checkpoint(out: Path) -> str | None:
    """As transformers.trainer_utils has it."""
    names = [p.name for p in out.iterdir() if re.search(r"^checkpoint\-(\d+)$", p.name) and p.is_dir()]
    return max(names, key=lambda name: int(name.partition("-")[2]), default=None)


def test_none_is_none(out: Path) -> None:
    handed = hand_over(places(out), move_aside=True)
    assert handed.files is None and handed.moved == ()


def test_the_highest_whole_step_is_handed_over(out: Path) -> None:
    for step in (9, 10, 100):
        trainer(out, step)
    handed = hand_over(places(out), move_aside=True)
    assert (handed.files, handed.step, handed.moved) == (str(out / "checkpoint-100"), 100, ())


@pytest.mark.parametrize(
    "leave", ["trainer_state.json", "model.safetensors", "optimizer.pt", "rng_state.pth"]
)
def test_a_torn_one_is_moved_aside_with_all_that_it_has(out: Path, leave: str) -> None:
    trainer(out, 4)
    torn = trainer(out, 6, leave=leave)
    names = sorted(path.name for path in torn.iterdir())
    handed = hand_over(places(out), move_aside=True)
    assert handed.files == str(out / "checkpoint-4") and get_last_checkpoint(out) == "checkpoint-4"
    assert sorted(path.name for path in (out / "checkpoint-6.torn").iterdir()) == names
    [text] = handed.moved
    assert "checkpoint-6 is torn (" in text and "was moved to 'checkpoint-6.torn'" in text
    assert hand_over(places(out), move_aside=True).moved == ()
    trainer(out, 6, leave=leave)
    hand_over(places(out), move_aside=True)
    assert (out / "checkpoint-6.torn-2").is_dir()


def test_an_empty_one_is_moved_aside(out: Path) -> None:
    trainer(out, 4)
    (out / "checkpoint-6").mkdir()
    (out / "checkpoint-x").mkdir()
    assert len(hand_over(places(out), move_aside=True).moved) == 1
    assert get_last_checkpoint(out) == "checkpoint-4" and (out / "checkpoint-x").is_dir()


def test_while_others_train_nothing_is_moved(out: Path) -> None:
    trainer(out, 4)
    trainer(out, 6, leave="trainer_state.json")
    handed = hand_over(places(out), move_aside=False)
    assert handed.files == str(out / "checkpoint-4") and (out / "checkpoint-6").is_dir()


def test_what_was_there_before_the_run_is_neither_taken_nor_moved(out: Path) -> None:
    trainer(out, 50, at=BEGAN - 10)
    trainer(out, 60, at=BEGAN - 10, leave="trainer_state.json")
    trainer(out, 4)
    handed = hand_over(places(out), move_aside=True)
    assert (handed.step, handed.moved) == (4, ()) and (out / "checkpoint-60").is_dir()


def test_what_is_unknown_is_left(out: Path) -> None:
    trainer(out, 4)
    late = trainer(out, 6) / "model.safetensors"
    os.utime(late, (BEGAN + 20, BEGAN + 20))
    handed = hand_over(places(out), move_aside=True)
    assert (handed.step, handed.moved) == (4, ()) and (out / "checkpoint-6").is_dir()


def test_in_the_own_folder_everything_is_the_runs(out: Path) -> None:
    own = out / "digits-1f0c9a77"
    trainer(own, 8, at=BEGAN - 10)
    trainer(out, 4)
    assert hand_over(places(out), move_aside=True).files == str(own / "checkpoint-8")


def test_what_deepspeed_reads_names_the_newest_whole_one(out: Path) -> None:
    put(out, "deepspeed", "ds")
    (out / "ds" / "global_step2" / "mp_rank_00_model_states.pt").unlink()
    handed = hand_over(places(out), move_aside=True)
    assert handed.files == str(out / "ds" / "global_step1")
    assert (out / "ds" / "latest").read_text() == "global_step1"
    os.truncate(out / "ds" / "global_step1" / "mp_rank_00_model_states.pt", 10)
    assert hand_over(places(out), move_aside=True).files is None
    assert sorted(path.name for path in (out / "ds").iterdir()) == [
        "global_step1.torn",
        "global_step2.torn",
        "latest.torn",
    ]


def test_of_lightning_the_torn_last_one_goes(out: Path) -> None:
    put(out, "lightning", "")
    last = out / "checkpoints" / "last.ckpt"
    os.truncate(last, 1000)
    handed = hand_over(places(out), move_aside=True)
    assert handed.files == str(out / "checkpoints" / "epoch=0-step=4.ckpt")
    assert not last.exists() and last.with_name("last.ckpt.torn").exists()


def test_in_a_bucket_nothing_is_moved(bucket: object) -> None:
    store = open_store(bucket.above().uri)  # type: ignore[attr-defined]
    for key, content in folder(SAMPLES / "hugging_face_trainer").items():
        if not key.endswith("trainer_state.json"):
            store.write(key, content)
    handed = hand_over(Places(store.below("digits-1f0c9a77"), job=True), move_aside=True)
    assert handed.files is None and handed.moved == ()


def test_a_torn_backup_of_keras_goes_with_the_epoch_beside_it(out: Path) -> None:
    """BackupAndRestore would go on from that epoch with weights that nobody trained."""
    backup = out / "backup"
    backup.mkdir(parents=True)
    weights = folder(SAMPLES / "keras")["last.weights.h5"]
    (backup / "latest.weights.h5").write_bytes(weights[: len(weights) // 2])
    (backup / "training_metadata.json").write_text('{"epoch": 7, "batch": 0}')
    handed = hand_over(places(out), move_aside=True)
    assert handed.files is None and len(handed.moved) == 2
    names = {path.name for path in backup.iterdir()}
    assert names == {"latest.weights.h5.torn", "training_metadata.json.torn"}
    (backup / "latest.weights.h5").write_bytes(weights)
    (backup / "training_metadata.json").write_text('{"epoch": 1, "batch": 0}')
    assert hand_over(places(out), move_aside=True).moved == ()


# What others of the gang took before.


def test_what_others_took_is_kept_while_at_most_one_is_newer(out: Path) -> None:
    for step in (2, 4):
        trainer(out, step)
    taken = hand_over(places(out), move_aside=False)
    assert (taken.files, taken.step) == (str(out / "checkpoint-4"), 4)
    trainer(out, 6)
    trainer(out, 8, leave="trainer_state.json")
    assert hand_over(places(out), move_aside=False, taken=taken) == taken
    trainer(out, 8)
    assert hand_over(places(out), move_aside=False, taken=taken).step == 8, "the gang has trained on"


def test_what_others_took_and_is_gone_is_not_kept(out: Path) -> None:
    for step in (2, 4):
        trainer(out, step)
    taken = hand_over(places(out), move_aside=False)
    (out / "checkpoint-4" / "trainer_state.json").unlink()
    assert hand_over(places(out), move_aside=False, taken=taken).step == 2


def test_that_others_began_without_one_holds_for_a_first_checkpoint(out: Path) -> None:
    out.mkdir()
    taken = hand_over(places(out), move_aside=False)
    assert taken.files is None
    trainer(out, 2)
    assert hand_over(places(out), move_aside=False, taken=taken) == taken
    trainer(out, 4)
    assert hand_over(places(out), move_aside=False, taken=taken).step == 4
