"""One checkpoint copied elsewhere: whole, verified, its manifest last; and repeated for nothing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from allaboard.checkpoints import Collected, collect, list_checkpoints, prune, verify
from allaboard.checkpoints.holds import list_holds, place_hold
from allaboard.checkpoints.manifest import MANIFEST
from allaboard.errors import BadInput, Corrupt, StorageError, StorageFull, StorageMissing, StorageUnreachable
from allaboard.storage import open_store
from allaboard.storage.base import Store
from tests.core.checkpoints.building import (
    HOUR,
    NOW,
    a_checkpoint,
    corrupt,
    cut,
    keys,
    steps,
    without_manifest,
)
from tests.core.s3server import Request, S3Server, between


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.thorough)])
def models(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Where copies go."""
    if request.param == "disk":
        return open_store(tmp_path / "models")
    s3: S3Server = request.getfixturevalue("s3")
    return open_store(f"s3://{s3.make_bucket()}/models")


def copied(found: Collected) -> Store:
    """The store that holds the copy's folder."""
    return open_store(found.uri.rpartition("/")[0])


# --- disk to disk, disk to bucket, bucket to disk, bucket to bucket


def test_the_copy_is_the_same_checkpoint_byte_for_byte(store: Store, models: Store) -> None:
    source = a_checkpoint(store, 20, {"loss": 0.5}, run="digits-1f")
    found = collect(store.uri, models.uri)
    assert found.uri == f"{models.uri}/digits-1f/step-000000000020"
    assert (found.step, found.bytes, found.copied) == (20, source.bytes, source.bytes)
    assert found.checkpoint.metrics == {"loss": 0.5}
    assert verify(copied(found), 20) == []
    for key in ("manifest.json", "model.bin", "optimizer.bin"):
        assert copied(found).read(f"step-000000000020/{key}") == store.read(f"step-000000000020/{key}")
    assert list_holds(store) == []


def test_a_second_time_nothing_is_copied(store: Store, models: Store) -> None:
    a_checkpoint(store, 20)
    first = collect(store.uri, models.uri)
    before = list(models.entries())
    again = collect(store.uri, models.uri)
    assert (again.uri, again.copied) == (first.uri, 0)
    assert [(e.key, e.size) for e in models.entries()] == [(e.key, e.size) for e in before]


def test_an_interrupted_copy_goes_on_where_it_stopped(store: Store, models: Store) -> None:
    source = a_checkpoint(store, 20, parts={"a.bin": b"a" * 1000, "b.bin": b"b" * 100})
    target = models.below("run-1")
    target.write("step-000000000020/a.bin", b"a" * 1000)
    assert list_checkpoints(target) == []
    found = collect(store.uri, models.uri)
    assert (found.copied, found.bytes) == (100, source.bytes)
    assert verify(target, 20) == []


def test_a_part_that_arrived_damaged_is_copied_again(store: Store, models: Store) -> None:
    a_checkpoint(store, 20, parts={"a.bin": b"a" * 1000, "b.bin": b"b" * 100})
    collect(store.uri, models.uri)
    target = models.below("run-1")
    corrupt(target, 20, "a.bin")
    assert collect(store.uri, models.uri).copied == 1000
    assert verify(target, 20) == []


def test_progress_ends_at_the_whole(store: Store, models: Store) -> None:
    source = a_checkpoint(store, 20, parts={"a.bin": b"a" * 100_000, "b.bin": b"b" * 1000})
    seen: list[tuple[int, int]] = []
    collect(store.uri, models.uri, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (source.bytes, source.bytes)
    assert {total for _, total in seen} == {source.bytes}
    again: list[tuple[int, int]] = []
    collect(store.uri, models.uri, progress=lambda done, total: again.append((done, total)))
    assert again[-1] == (source.bytes, source.bytes)


def test_the_manifest_arrives_last(disk: Store, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    a_checkpoint(disk, 20)
    bucket = s3.make_bucket()
    with between(s3, lambda request: None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        collect(disk.uri, f"s3://{bucket}/models")
        written = [request.path for request in proxy.requests if request.method == "PUT"]
    assert [path.rpartition("/")[2] for path in written] == ["model.bin", "optimizer.bin", MANIFEST]


# --- which


def test_latest_best_and_a_step(store: Store, tmp_path: Path) -> None:
    for step, loss in ((1, 0.5), (2, 0.2), (3, 0.9), (4, math.nan)):
        a_checkpoint(store, step, {"loss": loss})
    into = tmp_path / "models"
    assert collect(store.uri, into).step == 4
    assert collect(store.uri, into, "best", metric="loss").step == 2
    assert collect(store.uri, into, "best", metric="loss", mode="max").step == 3
    assert collect(store.uri, into, "best:loss:max").step == 3
    assert collect(store.uri, into, 1).step == 1
    assert collect(store.uri, into, "1").step == 1
    assert collect(f"{store.uri}/step-000000000003", into).step == 3
    assert steps(open_store(into / "run-1")) == [1, 2, 3, 4]


def test_a_torn_or_corrupt_newest_is_passed_over_and_said(store: Store, tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        a_checkpoint(store, step)
    cut(store, 4)
    corrupt(store, 3, "optimizer.bin")
    found = collect(store.uri, tmp_path / "models")
    assert found.step == 2
    assert found.notes == (
        "step 4 was passed over: part model.bin has 7 bytes, the manifest says 15",
        "step 3 was passed over: part optimizer.bin has other bytes than the manifest says (sha256 differs)",
    )
    assert steps(open_store(tmp_path / "models" / "run-1")) == [2]
    assert found.to_dict()["notes"] == list(found.notes)


def test_an_unfinished_newest_is_no_checkpoint_and_nothing_to_speak_of(store: Store, tmp_path: Path) -> None:
    a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    without_manifest(store, 2)
    found = collect(store.uri, tmp_path / "models")
    assert (found.step, found.notes) == (1, ())


def test_a_corrupt_best_is_passed_over_for_the_second_best(store: Store, tmp_path: Path) -> None:
    for step, loss in ((1, 0.5), (2, 0.2), (3, 0.9)):
        a_checkpoint(store, step, {"loss": loss})
    corrupt(store, 2)
    found = collect(store.uri, tmp_path / "models", "best", metric="loss")
    assert found.step == 1
    assert "step 2 was passed over: part model.bin has other bytes" in found.notes[0]


def test_a_step_that_was_named_is_that_step_or_an_error(store: Store, tmp_path: Path) -> None:
    a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    corrupt(store, 2)
    with pytest.raises(Corrupt, match="step 2 was passed over"):
        collect(store.uri, tmp_path / "models", 2)
    with pytest.raises(
        StorageMissing, match=r"step 9 is not a complete checkpoint there; complete steps are: 1, 2"
    ):
        collect(store.uri, tmp_path / "models", 9)
    assert keys(open_store(tmp_path / "models")) == []


def test_nothing_there_says_where_to_look(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StorageMissing, match="no complete checkpoint is there; check the folder"):
        collect(store.uri, tmp_path / "models")


def test_all_of_it_damaged_says_so(store: Store, tmp_path: Path) -> None:
    a_checkpoint(store, 1)
    cut(store, 1)
    with pytest.raises(Corrupt, match="no whole checkpoint to collect: step 1 was passed over"):
        collect(store.uri, tmp_path / "models")


def test_bad_wishes_are_refused(disk: Store, tmp_path: Path) -> None:
    a_checkpoint(disk, 1, {"loss": 0.5, "accuracy": 0.9})
    with pytest.raises(BadInput, match="write latest, best or the number of a step"):
        collect(disk.uri, tmp_path / "models", "newest")
    with pytest.raises(BadInput, match="needs a metric"):
        collect(disk.uri, tmp_path / "models", "best")
    with pytest.raises(
        BadInput, match="no checkpoint has a finite metric 'los'; the metrics there are: accuracy, loss"
    ):
        collect(disk.uri, tmp_path / "models", "best", metric="los")
    with pytest.raises(BadInput, match="mode 'less' is not known"):
        collect(disk.uri, tmp_path / "models", "best", metric="loss", mode="less")


# --- never in each other's way


def test_runs_are_collected_side_by_side(tmp_path: Path) -> None:
    for run in ("run-1", "run-2"):
        a_checkpoint(open_store(tmp_path / run), 5, run=run)
        collect(str(tmp_path / run), tmp_path / "models")
    assert open_store(tmp_path / "models").folders() == ["run-1", "run-2"]


def test_a_further_generation_is_collected_beside_the_first(tmp_path: Path) -> None:
    """A copy of the first may be under way: the two must not write to one folder."""
    for folder in ("run-1", "run-1-g2"):
        a_checkpoint(open_store(tmp_path / folder), 5, run="run-1")
        collect(str(tmp_path / folder), tmp_path / "models")
    assert open_store(tmp_path / "models").folders() == ["run-1", "run-1-g2"]


def test_another_checkpoint_of_the_same_run_and_step_is_never_overwritten(
    tmp_path: Path, models: Store
) -> None:
    """A new generation of a run trains anew; what was promoted of the first must not change."""
    one, two = open_store(tmp_path / "a" / "run-1"), open_store(tmp_path / "b" / "run-1")
    a_checkpoint(one, 5, parts={"model.bin": b"first"})
    a_checkpoint(two, 5, parts={"model.bin": b"second"})
    first, second = collect(one.uri, models.uri), collect(two.uri, models.uri)
    assert first.uri != second.uri
    assert copied(first).read("step-000000000005/model.bin") == b"first"
    assert copied(second).read("step-000000000005/model.bin") == b"second"
    assert collect(two.uri, models.uri).to_dict() == {**second.to_dict(), "copied": 0}


def test_while_it_copies_retention_leaves_the_source(disk: Store, tmp_path: Path) -> None:
    a_checkpoint(disk, 1)
    a_checkpoint(disk, 2)
    pruned = []

    def meanwhile(done: int, total: int) -> None:
        pruned.append(prune(disk, 1, None, time.time(), parts_after=0))

    found = collect(disk.uri, tmp_path / "models", 1, progress=meanwhile)
    assert pruned[0].held == (1,)
    assert verify(copied(found), 1) == []
    assert prune(disk, 1, None, time.time()).retired == (1,)


def test_a_long_copy_renews_its_hold(disk: Store, tmp_path: Path) -> None:
    a_checkpoint(disk, 1, parts={f"part-{i}.bin": b"x" for i in range(6)})
    now, seen = [NOW], list[float]()

    def slowly(done: int, total: int) -> None:
        now[0] += 0.4 * HOUR
        seen.extend(hold.expires - now[0] for hold in list_holds(disk))

    collect(disk.uri, tmp_path / "models", progress=slowly, clock=lambda: now[0])
    assert len(seen) == 6
    assert all(left > 0 for left in seen)


def test_a_source_that_retention_takes_away_is_passed_over(
    disk: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader without a hold loses the race: its checkpoint goes between listing and reading."""
    a_checkpoint(disk, 1)
    a_checkpoint(disk, 2)

    def taken_away(*_: object, **__: object) -> None:
        without_manifest(disk, 2)
        raise StorageError("no hold for you")

    monkeypatch.setattr("allaboard.checkpoints.holds.place_hold", taken_away)
    assert collect(disk.uri, tmp_path / "models").step == 1


def test_holds_of_other_readers_stay(disk: Store, tmp_path: Path) -> None:
    a_checkpoint(disk, 1)
    mine = place_hold(disk, 1, "somebody else", time.time())
    collect(disk.uri, tmp_path / "models")
    assert [hold.key for hold in list_holds(disk)] == [mine.key]


# --- bad days


def test_kill_9_while_it_copies_leaves_no_half_and_the_next_try_ends_it(tmp_path: Path) -> None:
    store = open_store(tmp_path / "run-1")
    a_checkpoint(store, 1, parts={f"part-{i}.bin": bytes([i]) * 100_000 for i in range(10)})
    script = """
import os, signal, sys
from allaboard.checkpoints import collect
def kill_in_the_middle(done, total):
    if done >= 500_000:
        os.kill(os.getpid(), signal.SIGKILL)
collect(sys.argv[1], sys.argv[2], progress=kill_in_the_middle)
"""
    models = open_store(tmp_path / "models")
    killed = subprocess.run([sys.executable, "-c", script, store.uri, models.uri], check=False)
    assert killed.returncode == -9
    assert list_checkpoints(models.below("run-1")) == []
    found = collect(store.uri, models.uri)
    assert 0 < found.copied <= 600_000
    assert verify(models.below("run-1"), 1) == []


def test_a_server_that_dies_in_the_middle_is_one_error_and_nothing_torn(
    disk: Store, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_checkpoint(disk, 1)
    bucket = s3.make_bucket()

    def dies(request: Request) -> str | None:
        return (
            "drop" if request.path.endswith(("optimizer.bin", MANIFEST)) and request.method == "PUT" else None
        )

    with between(s3, dies) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with pytest.raises(StorageUnreachable, match=r"optimizer\.bin"):
            collect(disk.uri, f"s3://{bucket}/models")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    models = open_store(f"s3://{bucket}/models/run-1")
    assert list_checkpoints(models) == []
    assert collect(disk.uri, f"s3://{bucket}/models").copied == len(
        disk.read("step-000000000001/optimizer.bin")
    )
    assert verify(models, 1) == []
    assert [hold.by for hold in list_holds(disk)] == []


def test_a_missing_bucket_is_said(disk: Store, s3: S3Server) -> None:
    a_checkpoint(disk, 1)
    with pytest.raises(StorageMissing, match="no-such-bucket"):
        collect(disk.uri, "s3://no-such-bucket/models")


def test_a_target_that_keeps_other_bytes_than_it_was_given_is_not_believed(
    disk: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_checkpoint(disk, 1)
    real = type(disk).upload

    def bad_disk(self: Store, path: Path, key: str, progress: object = None) -> None:
        real(self, path, key, progress)  # type: ignore[arg-type]
        self.write(key, b"\x00" * len(path.read_bytes()))

    monkeypatch.setattr(type(disk), "upload", bad_disk)
    with pytest.raises(StorageError, match="the copy has other bytes than its source") as told:
        collect(disk.uri, tmp_path / "models")
    assert not isinstance(told.value, StorageFull)
    assert list_checkpoints(open_store(tmp_path / "models" / "run-1")) == []


def test_what_was_collected_has_a_json_form(disk: Store, tmp_path: Path) -> None:
    source = a_checkpoint(disk, 1, {"loss": math.nan}, run="digits-1f")
    shown = collect(disk.uri, tmp_path / "models").to_dict()
    assert json.loads(json.dumps(shown)) == {
        "uri": f"{tmp_path}/models/digits-1f/step-000000000001",
        "source": source.uri,
        "run": "digits-1f",
        "step": 1,
        "metrics": {"loss": None},
        "nonfinite": ["loss"],
        "fingerprint": source.manifest.fingerprint,
        "bytes": source.bytes,
        "copied": source.bytes,
        "notes": [],
        "flags": None,
    }
