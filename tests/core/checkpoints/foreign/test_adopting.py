"""A whole checkpoint of another library is listed, verified and collected as one of ours."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from allaboard.checkpoints import (
    Checkpoint,
    Manifest,
    Torn,
    best,
    checkpoint_at,
    collect,
    find,
    latest,
    list_checkpoints,
    listing,
    prune,
    save,
    scan,
    verify,
)
from allaboard.checkpoints.foreign import Verdict, finding
from allaboard.checkpoints.foreign.adopting import Adopted, Places, adopt, adopt_at
from allaboard.checkpoints.listing import save_times
from allaboard.errors import BadInput, Corrupt
from allaboard.inside import Checkpointer
from allaboard.storage import open_store
from allaboard.storage.base import Store
from tests.core.checkpoints.foreign.memory import folder
from tests.core.checkpoints.foreign.test_samples import SAMPLES

NOW = 1_700_000_000.0
RUN = "digits-1f0c9a77"


@pytest.fixture
def job(store: Store) -> Store:
    """The folder that the job names; the run's own is below it. On a disk and in a bucket."""
    return store.above()


@pytest.fixture
def own(job: Store) -> Store:
    return job.below(RUN)


def put(store: Store, kind: str, top: str = "", leave: tuple[str, ...] = ()) -> None:
    """What a library wrote, with files in the order in which it writes them."""
    files = folder(SAMPLES / kind)
    for name in sorted(files, key=lambda name: (name.endswith(("trainer_state.json", "latest")), name)):
        if name not in leave:
            store.write(f"{top}{name}", files[name])
            at = store.local_path(f"{top}{name}")
            if at is not None:
                os.utime(at, (NOW, NOW))


def adopt_run(own: Store, since: float = 0.0) -> Adopted:
    return adopt(Places(own, job=True, since=since), Manifest(step=0, run=RUN, attempt=2))


@pytest.mark.thorough(but=("disk", "bucket-lightning"))
@pytest.mark.parametrize(
    "kind", ["hugging_face_trainer", "lightning", "deepspeed", "torch_dcp", "safetensors_sharded"]
)
def test_what_is_whole_is_known_from_then_on(job: Store, own: Store, kind: str, tmp_path: Path) -> None:
    put(job, kind)
    adopted = adopt_run(own)
    assert adopted.added and [*adopted.added] == list_checkpoints(own)
    for checkpoint in adopted.added:
        assert verify(own, checkpoint.step) == []
        assert checkpoint_at(checkpoint.files)[1] == checkpoint_at(checkpoint.uri)[1] == checkpoint
        assert checkpoint.files.startswith(job.uri) and checkpoint.uri.startswith(own.uri)
        assert (checkpoint.manifest.run, checkpoint.manifest.attempt) == (RUN, 2)
    again = adopt_run(own)
    assert again.added == () and again.known == tuple(sorted(c.step for c in adopted.added))
    copied = collect(own.uri, tmp_path / "models")
    newest = latest(own)
    assert newest and copied.checkpoint.manifest.fingerprint == newest.manifest.fingerprint
    assert copied.checkpoint.manifest.place is None
    into = open_store(tmp_path / "models" / RUN)
    assert verify(into, newest.step) == [] and latest(into) == copied.checkpoint


def test_the_files_of_a_copy_are_what_their_library_reads(job: Store, own: Store, tmp_path: Path) -> None:
    put(job, "hugging_face_trainer", "a/")
    put(job, "lightning", "b/")
    adopted = {item.manifest.format: item for item in adopt_run(own).added}
    folders = collect(adopted["huggingface-trainer"].files, tmp_path / "one").checkpoint
    assert folder(Path(folders.files)).keys() >= {"model.safetensors", "trainer_state.json", "manifest.json"}
    file = collect(own.uri, tmp_path / "two", 2).checkpoint
    assert Path(file.files).name == "epoch=0-step=2.ckpt"
    assert Path(file.files).read_bytes() == folder(SAMPLES / "lightning")["checkpoints/epoch=0-step=2.ckpt"]


def test_metrics_decide_which_is_the_best(job: Store, own: Store) -> None:
    put(job, "hugging_face_trainer")
    adopt_run(own)
    top = best(own, "eval_loss")
    assert top is not None and top.step == 4 and top.manifest.epoch == 1.0


def test_files_with_a_manifest_are_not_read_again(
    job: Store, own: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(job, "hugging_face_trainer")
    put(job, "lightning")
    put(job, "keras")
    first = adopt_run(own)
    judged: list[str] = []
    judge = finding.judge
    monkeypatch.setattr(
        finding, "judge", lambda unit, family: judged.append(unit.base) or judge(unit, family)
    )
    again = adopt_run(own)
    assert (again.added, again.known) == ((), tuple(sorted(item.step for item in first.added)))
    assert {*judged} == {item.unit.base for item, _ in first.left}, "and those of a step that is taken"
    assert [reason for _, reason in again.left] == [reason for _, reason in first.left]


def test_torn_ones_are_left_and_said(job: Store, own: Store) -> None:
    put(job, "hugging_face_trainer", leave=("checkpoint-4/optimizer.pt",))
    adopted = adopt_run(own)
    assert adopted.added == () and list_checkpoints(own) == []
    [(judgement, reason)] = adopted.left
    assert judgement.verdict is Verdict.TORN and reason == "the state of the optimizer is missing"


def test_of_one_step_the_file_with_a_number_is_taken(job: Store, own: Store) -> None:
    put(job, "lightning")
    adopted = adopt_run(own)
    assert [Path(item.files).name for item in adopted.added] == ["epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt"]
    assert [(item.unit.base, reason) for item, reason in adopted.left] == [
        ("last.ckpt", "step 4 has a manifest already")
    ]


def test_what_its_library_removes_is_gone_and_not_torn(job: Store, own: Store) -> None:
    put(job, "deepspeed")
    adopt_run(own)
    job.delete([entry.key for entry in job.entries("global_step1")])
    assert [item.step for item in scan(own)] == [2]
    adopt_run(own)
    assert [entry.key for entry in own.entries()] == ["step-000000000002/manifest.json"]


def test_one_that_lost_a_file_is_torn(job: Store, own: Store) -> None:
    put(job, "hugging_face_trainer")
    adopt_run(own)
    job.delete(["checkpoint-4/scheduler.pt"])
    [item] = scan(own)
    assert isinstance(item, Torn) and item.problems == ("part scheduler.pt is missing",)


def test_one_with_other_bytes_is_found_by_its_sums(job: Store, own: Store) -> None:
    put(job, "torch_dcp")
    adopt_run(own)
    content = job.read("step-120/__0_0.distcp")
    job.write("step-120/__0_0.distcp", content[:-1] + bytes([content[-1] ^ 1]))
    assert verify(own, 120) == ["part __0_0.distcp has other bytes than the manifest says (sha256 differs)"]


def test_a_file_that_is_written_anew_is_adopted_anew(tmp_path: Path) -> None:
    files = folder(SAMPLES / "lightning")
    (tmp_path / "last.ckpt").write_bytes(files["checkpoints/epoch=0-step=2.ckpt"])
    own = open_store(tmp_path / RUN)
    assert [item.step for item in adopt_run(own).added] == [2]
    (tmp_path / "last.ckpt").write_bytes(files["checkpoints/last.ckpt"])
    later = own.local_path("step-000000000002/manifest.json")
    assert later is not None
    os.utime(later, (NOW - 100, NOW - 100))
    assert list_checkpoints(own) == []
    assert [item.step for item in adopt_run(own).added] == [4]
    assert [item.step for item in list_checkpoints(own)] == [4]


def test_what_was_there_before_the_run_belongs_to_another(job: Store, own: Store) -> None:
    put(job, "torch_file")
    last = max(entry.modified for entry in job.entries())
    assert adopt_run(own, since=last + 1).added == ()
    assert adopt_run(own, since=last - 1).added != ()


def test_what_other_runs_have_is_theirs(job: Store, own: Store) -> None:
    put(job, "torch_file", "digits-00000000/")
    put(job, "torch_dcp", "digits-00000000-g2/")
    save(
        job.below("digits-11111111"),
        Manifest(step=3),
        {"state.pt": folder(SAMPLES / "torch_file")["model-step7.pt"]},
    )
    assert adopt_run(own) == Adopted()


def test_own_and_adopted_ones_stand_side_by_side(job: Store, own: Store) -> None:
    save(own, Manifest(step=120), {"state.pt": b"ours"})
    put(job, "torch_dcp")
    put(job, "deepspeed")
    adopted = adopt_run(own)
    assert [item.step for item in adopted.added] == [1, 2]
    assert [reason for _, reason in adopted.left] == ["step 120 has a manifest already"]
    assert verify(own, 120) == []


def test_nothing_adopted_is_ever_pruned(job: Store, own: Store) -> None:
    put(job, "deepspeed")
    adopt_run(own)
    save(own, Manifest(step=5), {"state.pt": b"5"})
    save(own, Manifest(step=6), {"state.pt": b"6"})
    before = {entry.key for entry in job.entries("global_step1")}
    pruned = prune(own, 1, None, NOW + 10**6, parts_after=0)
    assert pruned.retired == (5,) and {entry.key for entry in job.entries("global_step1")} == before
    assert [item.step for item in list_checkpoints(own)] == [1, 2, 6]


def test_a_single_one_is_adopted_by_its_own_name(tmp_path: Path) -> None:
    put(open_store(tmp_path), "deepspeed")
    put(open_store(tmp_path), "torch_file")
    assert [item.files for item in adopt_at(str(tmp_path / "model-step7.pt")).added] == [
        str(tmp_path / "model-step7.pt")
    ]
    assert [item.step for item in adopt_at(str(tmp_path / "global_step2")).added] == [2]
    assert [item.step for item in adopt_at(str(tmp_path)).added] == [1]


def test_a_file_of_ours_by_name_keeps_a_checkpoint_from_being_adopted(job: Store, own: Store) -> None:
    job.write("step-120/manifest.json", b"{}")
    put(job, "torch_dcp")
    if (at := job.local_path("step-120/manifest.json")) is not None:
        os.utime(at, (NOW, NOW))
    [(_, reason)] = adopt_run(own).left
    assert reason.startswith("it has a file manifest.json")


def manifest(**fields: object) -> bytes:
    body = {"version": 2, "step": 7, "format": "torch", "place": "..", "file": "a.pt", "hash": "sha256"}
    parts = [{"name": "a.pt", "size": 1, "sha256": "0" * 64}]
    return json.dumps({**body, "parts": parts, **fields}).encode()


def test_version_2_is_read_and_written_alike() -> None:
    read = Manifest.decode(manifest(epoch=1.5, flags=["step_from_time"], later="kept"), "x")
    assert (read.format, read.place, read.file, read.epoch, read.flags) == (
        "torch",
        "..",
        "a.pt",
        1.5,
        ("step_from_time",),
    )
    assert read.extra == {"later": "kept"}
    assert Manifest.decode(read.encode(), "x") == read


def test_version_1_keeps_fields_of_these_names() -> None:
    body = {"version": 1, "step": 7, "epoch": "mine", "parts": [{"name": "a", "size": 1, "sha256": "0" * 64}]}
    read = Manifest.decode(json.dumps(body).encode(), "x")
    assert read.extra == {"epoch": "mine"} and read.place is None
    assert json.loads(read.encode())["epoch"] == "mine"


@pytest.mark.parametrize(
    "fields",
    [
        {"place": "../../etc"},
        {"place": "/etc"},
        {"place": "..\\x"},
        {"place": "../x/../../y"},
        {"place": 7},
        {"place": ""},
        {"place": "checkpoint-500"},
        {"file": "../a"},
        {"file": "/etc/passwd"},
        {"format": "Not A Word"},
        {"hash": "md5"},
    ],
)
def test_a_manifest_that_leads_elsewhere_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Corrupt):
        Manifest.decode(manifest(**fields), "x")


def test_a_hash_of_a_later_release_is_said() -> None:
    with pytest.raises(Corrupt, match="sums of 'blake3', which this release does not know"):
        Manifest.decode(manifest(hash="blake3"), "x")


def test_a_folder_that_is_not_adopted_says_how(tmp_path: Path) -> None:
    put(open_store(tmp_path), "hugging_face_trainer")
    with pytest.raises(BadInput, match=r"Hugging Face.*allaboard checkpoints adopt .*checkpoint-4"):
        checkpoint_at(str(tmp_path / "checkpoint-4"))


def test_a_checkpoint_of_ours_names_its_own_folder(store: Store) -> None:
    saved = save(store, Manifest(step=7), {"state.pt": b"7"})
    assert isinstance(saved, Checkpoint) and saved.files == saved.uri
    assert json.loads(store.read("step-000000000007/manifest.json"))["version"] == 1


def test_a_script_with_a_checkpointer_goes_on_from_its_own(tmp_path: Path) -> None:
    """Weights that it exports beside its state are newer than that, and no state."""
    own = open_store(tmp_path / RUN)
    saver = Checkpointer(own.uri)
    saver.save(3, {"state.txt": b"three"})
    saver.close()
    put(open_store(tmp_path), "torch_file")
    assert [item.step for item in adopt_run(own).added] == [7]
    saver = Checkpointer(own.uri)
    resumed = saver.resume()
    saver.close()
    assert resumed is not None and resumed.step == 3


def test_each_manifest_tells_boost_of_a_save(job: Store, own: Store) -> None:
    put(job, "deepspeed")
    adopt_run(own)
    assert len(save_times(own, 100)) == 2


def test_a_place_of_many_runs_is_not_searched_for_another_librarys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        save(open_store(tmp_path / f"digits-{number:08x}"), Manifest(step=7), {"state.pt": b"7"})
    monkeypatch.setattr(listing, "scan", lambda _: pytest.fail("every run's manifests are read"))
    assert find(str(tmp_path)) == (str(tmp_path), None)
