"""All members of a gang start with the same copy of a bucket, each from a disk of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allaboard.checkpoints import Manifest, list_checkpoints, verify
from allaboard.checkpoints.foreign import copied
from allaboard.checkpoints.foreign.copied import BUSY, Copying, beats, start
from allaboard.checkpoints.foreign.handing import Handed
from allaboard.checkpoints.foreign.starting import Starter
from allaboard.errors import AllaboardError, StorageUnreachable, StorageUnsupported
from allaboard.storage import Store, open_store
from tests.core.checkpoints.foreign.test_handing import BEGAN, get_last_checkpoint, places, trainer
from tests.core.checkpoints.foreign.test_samples import SAMPLES

RUN = "digits-1f0c9a77"
KINDS = sorted({path.name for path in SAMPLES.iterdir() if path.is_dir()} - {"hugging_face_trainer"})


@pytest.fixture
def bucket(tmp_path: Path) -> Store:
    return open_store(tmp_path / "bucket" / RUN)


@pytest.fixture
def disks(tmp_path: Path) -> Callable[[str], Path]:
    def disk(name: str) -> Path:
        folder = tmp_path / name / "out"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    return disk


def copying(bucket: Store, *, is_shared: bool = False) -> Copying:
    template = Manifest(step=0, run=RUN, attempt=1, generation=1, world_size=2)
    return Copying(bucket, is_shared, None, None, template, lambda: BEGAN + 100.0)


def tries(count: int) -> Callable[[], bool]:
    """A wait that is over after so many."""
    left: Iterator[bool] = iter([True] * count)
    return lambda: next(left, False)


def starts(
    out: Path, bucket: Store, member: str = "master-0", attempt: int = 1, again: int = 0, waits: int = 0
) -> tuple[Handed, list[str]]:
    """What a member starts with, and what its log says."""
    log: list[str] = []
    me = Starter(member, attempt, member == "master-0")
    wait, retry = tries(waits), tries(again)
    return start(places(out), copying(bucket), me, None, wait, retry, log.append), log


class Flaky:
    """A store that fails so many times."""

    def __init__(self, store: Store, failures: int) -> None:
        self._store, self._left = store, failures

    def __getattr__(self, name: str) -> object:
        value = getattr(self._store, name)
        if not callable(value) or name in ("local_path", "below", "above"):
            return value

        def called(*arguments: object, **options: object) -> object:
            if self._left > 0:
                self._left -= 1
                raise StorageUnreachable(f"{self._store.uri}: no answer")
            return value(*arguments, **options)

        return called


def test_rank_0_copies_what_it_has_and_another_node_gets_it(
    disks: Callable[[str], Path], bucket: Store
) -> None:
    trainer(disks("a"), 4)
    trainer(disks("a"), 6, leave="trainer_state.json")
    handed, log = starts(disks("a"), bucket)
    assert handed.files == str(disks("a") / "checkpoint-4") and len(handed.moved) == 1
    assert log == [f"step 4 is at {bucket.uri}/step-000000000004 now"] and verify(bucket, 4) == []
    handed, log = starts(disks("b"), bucket, attempt=2)
    assert (handed.files, handed.step) == (str(disks("b") / "checkpoint-4"), 4)
    assert "is in" in log[0] and get_last_checkpoint(disks("b")) == "checkpoint-4"
    for member in ("worker-0", "worker-1"):
        handed, _ = starts(disks(member), bucket, member, attempt=2)
        assert handed.files == str(disks(member) / "checkpoint-4")


@pytest.mark.parametrize("kind", KINDS)
def test_each_format_comes_to_each_member(kind: str, disks: Callable[[str], Path], bucket: Store) -> None:
    from tests.core.checkpoints.foreign.test_handing import put

    put(disks("a"), kind, "")
    first, _ = starts(disks("a"), bucket)
    assert first.files is not None and len(list_checkpoints(bucket)) == 1
    shutil.rmtree(disks("a"))
    again, _ = starts(disks("a"), bucket, attempt=2)
    assert again.files == first.files
    worker, _ = starts(disks("b"), bucket, "worker-0", attempt=2)
    assert worker.files is not None and worker.files.replace("/b/", "/a/") == first.files


def test_what_is_newer_than_the_choice_is_moved_aside(disks: Callable[[str], Path], bucket: Store) -> None:
    trainer(disks("a"), 4)
    starts(disks("a"), bucket)
    trainer(disks("b"), 8)
    trainer(disks("b"), 4, leave="trainer_state.json")
    handed, _ = starts(disks("b"), bucket, "worker-0")
    assert handed.step == 4 and len(handed.moved) == 2
    assert get_last_checkpoint(disks("b")) == "checkpoint-4"
    assert (disks("b") / "checkpoint-8.torn").is_dir() and (disks("b") / "checkpoint-4.torn").is_dir()


def test_from_scratch_nobody_has_one(disks: Callable[[str], Path], bucket: Store) -> None:
    starts(disks("a"), bucket)
    trainer(disks("b"), 8)
    handed, _ = starts(disks("b"), bucket, "worker-0")
    assert handed.files is None and get_last_checkpoint(disks("b")) is None


def test_a_worker_that_waits_in_vain_chooses_and_rank_0_takes_that(
    disks: Callable[[str], Path], bucket: Store
) -> None:
    """Rank 0 has one more, which nobody else saw; its copy is made all the same."""
    trainer(disks("a"), 4)
    starts(disks("a"), bucket)
    handed, _ = starts(disks("b"), bucket, "worker-0", attempt=2, waits=3)
    assert handed.step == 4
    trainer(disks("a"), 6, at=BEGAN + 20)
    handed, _ = starts(disks("a"), bucket, attempt=2)
    assert handed.step == 4 and get_last_checkpoint(disks("a")) == "checkpoint-4"
    assert [item.step for item in list_checkpoints(bucket)] == [4, 6]


def test_a_bucket_that_fails_is_tried_again_then_told(disks: Callable[[str], Path], bucket: Store) -> None:
    trainer(disks("a"), 4)
    flaky: Store = Flaky(bucket, 3)  # type: ignore[assignment]
    handed, log = starts(disks("a"), flaky, again=5)
    assert handed.step == 4 and "is not known" not in " ".join(log)
    flaky = Flaky(bucket, 10**6)  # type: ignore[assignment]
    trainer(disks("a"), 6, at=BEGAN + 20)
    handed, log = starts(disks("a"), flaky, again=2, attempt=2)
    assert handed.step == 6, "its folder has it"
    assert log == [
        f"whether {bucket.uri} has a newer checkpoint is not known: {bucket.uri}: no answer; goes on with "
        "what its folder has"
    ]


def test_a_choice_that_cannot_be_had_is_an_error(disks: Callable[[str], Path], bucket: Store) -> None:
    trainer(disks("a"), 4)
    starts(disks("a"), bucket)
    part = next(entry for entry in bucket.entries("step-000000000004") if entry.key.endswith(".pt"))
    bucket.write(part.key, b"x" * part.size)
    with pytest.raises(AllaboardError, match="sha256 differs"):
        starts(disks("b"), bucket, "worker-0", again=1)
    assert get_last_checkpoint(disks("b")) is None


def test_a_server_without_conditional_writes_has_choices_all_the_same(
    disks: Callable[[str], Path], bucket: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise StorageUnsupported("no If-None-Match")

    trainer(disks("a"), 4)
    monkeypatch.setattr(type(bucket), "create", refuses)
    own = disks("a") / RUN / "starts" / "began"
    own.parent.mkdir(parents=True)
    own.touch()
    assert starts(disks("a"), bucket)[0].step == 4
    assert starts(disks("b"), bucket, "worker-0")[0].step == 4


def test_a_wait_begins_anew_at_each_sign_of_a_leader(bucket: Store) -> None:
    restarts: list[int] = []
    wait = beats(bucket, lambda: True, lambda: restarts.append(1))
    assert wait() and not restarts
    for number in (b"1", b"1", b"2", b"2"):
        bucket.write(BUSY, number)
        wait()
    assert len(restarts) == 2


def test_a_leader_at_work_gives_signs(bucket: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied, "BEAT", 0.02)
    seen = set()
    with copied._busy(bucket):
        while len(seen) < 3:
            entry = bucket.stat(BUSY)
            seen |= {bucket.read(BUSY)} if entry is not None else set()
