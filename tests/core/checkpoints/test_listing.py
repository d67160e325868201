"""What is there is found by listing, and only what is whole counts."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from allaboard.checkpoints import (
    Checkpoint,
    Torn,
    best,
    checkpoint_at,
    latest,
    list_checkpoints,
    scan,
    verify,
)
from allaboard.checkpoints.listing import save_times
from allaboard.checkpoints.manifest import MANIFEST
from allaboard.errors import BadInput
from allaboard.storage import open_store
from allaboard.storage.base import Store
from allaboard.storage.disk import DiskStore
from tests.core.checkpoints.building import a_checkpoint, corrupt, cut, steps, without_manifest


def test_an_empty_place_holds_none(store: Store) -> None:
    assert list_checkpoints(store) == []
    assert latest(store) is None
    assert best(store, "loss") is None


def test_checkpoints_are_listed_by_step(store: Store) -> None:
    saved = {step: a_checkpoint(store, step) for step in (100, 5, 20)}
    assert list_checkpoints(store) == [saved[5], saved[20], saved[100]]
    assert latest(store) == saved[100]


def test_the_best_is_found_by_metric_and_direction(store: Store) -> None:
    for step, loss in ((1, 0.5), (2, 0.2), (3, 0.9), (4, math.nan)):
        a_checkpoint(store, step, {"loss": loss})
    a_checkpoint(store, 5)
    smallest, largest = best(store, "loss", "min"), best(store, "loss", "max")
    assert smallest and smallest.step == 2
    assert largest and largest.step == 3
    assert best(store, "accuracy", "max") is None


def test_a_folder_without_a_manifest_does_not_exist(store: Store) -> None:
    a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    without_manifest(store, 2)
    assert [item.step for item in scan(store)] == [1]
    assert verify(store, 2) == [
        "step-000000000002 has no manifest.json; it was never completed, or retention let it go"
    ]


@pytest.mark.parametrize(
    "manifest",
    [
        b"[" * 100_000,
        b'{"metrics": ' * 50_000,
        b'{"step": ' + b"9" * 5_000 + b"}",
        b'{"parts": [' + b"1," * 300_000 + b"1]}",
        b" " * (9 * 2**20),
        b'{"step": 2, "step": 2}',
        b'"\\ud800"',
        b"\xff",
        b"null",
    ],
)
def test_a_hostile_manifest_is_passed_over_like_any_damaged_one(store: Store, manifest: bytes) -> None:
    saved = a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    store.write(f"step-000000000002/{MANIFEST}", manifest)
    assert latest(store) == saved
    (damaged,) = [item for item in scan(store) if isinstance(item, Torn)]
    assert damaged.step == 2 and len(damaged.problems[0]) < 400


def test_foreign_files_are_no_checkpoints(store: Store) -> None:
    a_checkpoint(store, 1)
    for key in (
        "readme.txt",
        "step-7/manifest.json",
        "tmp/step-000000000009/manifest.json",
        "step-000000000008",
    ):
        store.write(key, b"{}")
    assert steps(store) == [1]


def test_a_cut_part_is_seen_without_reading_it(store: Store) -> None:
    a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    cut(store, 2)
    complete, torn = scan(store)
    assert isinstance(complete, Checkpoint)
    assert isinstance(torn, Torn)
    assert torn.problems == ("part model.bin has 7 bytes, the manifest says 15",)
    assert steps(store) == [1]
    assert verify(store, 2) == ["part model.bin has 7 bytes, the manifest says 15"]


def test_a_missing_part_is_named(store: Store) -> None:
    a_checkpoint(store, 2)
    store.delete(["step-000000000002/optimizer.bin"])
    assert [item.problems for item in scan(store) if isinstance(item, Torn)] == [
        ("part optimizer.bin is missing",)
    ]
    assert verify(store, 2) == ["part optimizer.bin is missing"]


def test_other_bytes_of_the_same_length_are_seen_by_verify(store: Store) -> None:
    a_checkpoint(store, 2)
    corrupt(store, 2, "optimizer.bin")
    assert verify(store, 2) == ["part optimizer.bin has other bytes than the manifest says (sha256 differs)"]


def test_every_problem_is_listed(store: Store) -> None:
    a_checkpoint(store, 2)
    corrupt(store, 2, "optimizer.bin")
    cut(store, 2)
    assert len(verify(store, 2)) == 2


def test_a_part_larger_than_one_read_is_verified_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allaboard.checkpoints.listing.CHUNK", 1000)
    a_checkpoint(store, 2, parts={"model.bin": bytes(4500)})
    assert verify(store, 2) == []
    key = "step-000000000002/model.bin"
    store.write(key, bytes(4499) + b"\x01")
    assert len(verify(store, 2)) == 1


@pytest.mark.parametrize("raw", [b"", b'{"version": 1, "st', b"[]", b"\xff\xfe"])
def test_a_manifest_that_is_not_valid_is_torn(store: Store, raw: bytes) -> None:
    a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    store.write(f"step-000000000002/{MANIFEST}", raw)
    assert steps(store) == [1]
    torn = scan(store)[1]
    assert isinstance(torn, Torn)
    assert "the manifest is not valid" in torn.problems[0]
    assert "the manifest is not valid" in verify(store, 2)[0]


def test_a_manifest_of_another_step_is_torn(store: Store) -> None:
    a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    store.write(f"step-000000000002/{MANIFEST}", store.read(f"step-000000000001/{MANIFEST}"))
    assert steps(store) == [1]


def test_a_checkpoint_is_opened_by_its_uri_or_its_runs(store: Store) -> None:
    first, second = a_checkpoint(store, 1), a_checkpoint(store, 2)
    assert checkpoint_at(first.uri)[1] == first
    assert checkpoint_at(store.uri)[1] == second


def test_what_is_not_there_or_torn_is_bad_input(store: Store) -> None:
    a_checkpoint(store, 1)
    with pytest.raises(BadInput, match="no complete checkpoint is there; give the uri"):
        checkpoint_at(f"{store.uri}/step-000000000009")
    cut(store, 1)
    with pytest.raises(BadInput, match=r"torn: part model\.bin has 7 bytes"):
        checkpoint_at(f"{store.uri}/step-000000000001")


@pytest.mark.parametrize(
    ("names", "given", "told"),
    [
        (["checkpoint-500/trainer_state.json"], "", "Hugging Face's Trainer"),
        (["adapter_config.json", "adapter_model.safetensors"], "", "Hugging Face"),
        (["latest", "global_step10/mp_rank_00_model_states.pt"], "", "DeepSpeed"),
        ([".metadata", "__0_0.distcp"], "", "torch.distributed.checkpoint"),
        (["checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001"], "", "TensorFlow"),
        (["_CHECKPOINT_METADATA", "default/manifest.ocdbt"], "", "Orbax"),
        (["epoch=3-step=100.ckpt"], "", "PyTorch Lightning"),
        (["latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00/model_optim_rng.pt"], "", "PyTorch"),
        (["best.pt"], "best.pt", "PyTorch"),
        (["last.ckpt"], "last.ckpt", "PyTorch Lightning"),
        (["net.keras"], "net.keras", "Keras"),
        (["weights.safetensors"], "weights.safetensors", "safetensors"),
        # Nothing tells that these are checkpoints.
        (["config.json", "events.out.tfevents.1"], "", None),
        (["train.py"], "train.py", None),
        ([], "best.pt", None),
    ],
)
def test_a_checkpoint_of_another_library_is_named(
    store: Store, names: list[str], given: str, told: str | None
) -> None:
    for name in names:
        store.write(name, b"weights")
    with pytest.raises(BadInput) as refused:
        checkpoint_at(f"{store.uri}/{given}" if given else store.uri)
    words = str(refused.value)
    if told is None:
        assert "no complete checkpoint is there" in words
    else:
        assert f"holds a checkpoint of {told}, without the manifest" in words and "Checkpointer" in words


def test_a_folder_that_is_no_runs_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[str] = []
    entries = DiskStore.entries
    monkeypatch.setattr(
        DiskStore, "entries", lambda store, prefix="": (walked.append(prefix), entries(store, prefix))[1]
    )
    (tmp_path / "home" / "deep" / "tree").mkdir(parents=True)
    (tmp_path / "home" / "deep" / "tree" / "file").write_text("x")
    store = open_store(tmp_path)
    a_checkpoint(store, 5)
    walked.clear()
    assert steps(store) == [5]
    assert walked == ["step-000000000005"]


def test_when_checkpoints_were_completed_is_told_by_the_store_alone(store: Store) -> None:
    assert save_times(store, 1000) == []
    before = time.time()
    for step in (1, 2, 3):
        a_checkpoint(store, step)
    without_manifest(store, 3)
    times = save_times(store, 1000)
    assert len(times) == 2 and times == sorted(times)
    assert all(before - 2 <= at <= time.time() + 2 for at in times)
    assert len(save_times(store, 0)) == 0
