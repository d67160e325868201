"""Whole checkpoints of a folder are in the bucket, whole, and come back to where they were."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.local.host.isolated import isolated_command
from allaboard.checkpoints import Checkpoint, Manifest, latest, list_checkpoints, scan, verify
from allaboard.checkpoints.foreign import Verdict, judge_place, newest
from allaboard.checkpoints.foreign.adopting import Places, adopt
from allaboard.checkpoints.foreign.mirroring import Copied, Fetched, copy_newest, fetch_newest
from allaboard.errors import StorageError
from allaboard.storage import Store, open_store
from tests.core.checkpoints.building import a_checkpoint, corrupt
from tests.core.checkpoints.foreign.memory import folder
from tests.core.checkpoints.foreign.test_handing import BEGAN, put, trainer
from tests.core.checkpoints.foreign.test_samples import SAMPLES
from tests.core.s3server import Request, S3Server, between

RUN = "digits-1f0c9a77"
KINDS = sorted({path.name for path in SAMPLES.iterdir() if path.is_dir()} - {"hugging_face_trainer"})


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.thorough)])
def into(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """The run's folder at the uri: another disk, or a bucket."""
    if request.param == "disk":
        return open_store(tmp_path / "elsewhere" / RUN)
    store: Store = request.getfixturevalue("bucket").below(RUN)
    return store


def places(out: Path) -> Places:
    return Places(open_store(out / RUN), job=True, since=BEGAN)


def copy(out: Path, into: Store, keep: int | None = None) -> Copied:
    adopt(places(out), Manifest(step=0, run=RUN, attempt=1, generation=1, world_size=1))
    return copy_newest(places(out).own, into, keep, ("eval_loss", "min") if keep else None, lambda: BEGAN)


def fetch(out: Path, into: Store) -> Fetched:
    return fetch_newest(places(out), into, lambda: BEGAN + 100.0)


def tree(path: Path) -> dict[str, bytes]:
    """The files of a folder, without ours."""
    return {key: text for key, text in folder(path).items() if not key.startswith(RUN)}


def test_a_copy_is_one_of_ours(out: Path, into: Store) -> None:
    trainer(out, 4)
    copied = copy(out, into)
    assert copied.checkpoint == latest(into) and copied.passed == ()
    assert copied.checkpoint is not None and copied.checkpoint.step == 4
    manifest = copied.checkpoint.manifest
    assert (manifest.place, manifest.origin, manifest.run) == (None, "../checkpoint-4", RUN)
    assert verify(into, 4) == [] and manifest.metrics["eval_loss"] > 0
    assert copy(out, into).checkpoint == copied.checkpoint, "nothing is to do"


def test_who_falls_behind_copies_the_newest_and_says_which_not(out: Path, into: Store) -> None:
    trainer(out, 2)
    copy(out, into)
    for step in (4, 6, 8):
        trainer(out, step)
    copied = copy(out, into)
    assert copied.passed == (4, 6)
    assert [item.step for item in list_checkpoints(into)] == [2, 8]
    assert copy(out, into).passed == (), "it is said once"


def test_the_uri_keeps_as_many_as_the_job_says(out: Path, into: Store) -> None:
    for step in (2, 4, 6):
        trainer(out, step)
        copy(out, into, keep=1)
    steps = [item.step for item in list_checkpoints(into)]
    assert 6 in steps and len(steps) <= 2, "the newest, and the best"
    assert (out / "checkpoint-2").is_dir(), "the library's are the library's"


@pytest.mark.parametrize("kind", ["hugging_face_trainer", *KINDS])
def test_each_format_comes_back_whole_to_where_it_was(kind: str, out: Path, tmp_path: Path) -> None:
    into = open_store(tmp_path / "elsewhere" / RUN)
    put(out, kind, "")
    before = newest(judge_place(open_store(out)))
    assert before is not None, "the sample has a whole one"
    copied = copy(out, into).checkpoint
    assert copied is not None
    there = tree(out)
    shutil.rmtree(out)
    fetched = fetch(out, into)
    assert fetched.step == copied.step and fetched.notes == ()
    after = newest(judge_place(open_store(out)))
    assert after is not None and after.verdict is Verdict.WHOLE, judge_place(open_store(out))
    assert tree(out).items() <= there.items(), "the same bytes under the same names"
    assert fetched.files in {str(out / after.unit.name), f"{out}/"[:-1]}
    again = adopt(places(out), Manifest(step=0))
    assert again.added == () and again.known, "its sums are known"
    assert copy(out, into).checkpoint == copied and fetch(out, into) == Fetched()


def test_a_folder_that_has_it_or_a_newer_one_is_left_alone(out: Path, into: Store) -> None:
    trainer(out, 4)
    copy(out, into)
    assert fetch(out, into) == Fetched()
    trainer(out, 6)
    before = tree(out)
    assert fetch(out, into) == Fetched() and tree(out) == before


def test_a_torn_one_in_its_place_is_moved_aside(out: Path, into: Store) -> None:
    trainer(out, 4)
    copy(out, into)
    (out / "checkpoint-4" / "trainer_state.json").unlink()
    fetched = fetch(out, into)
    assert fetched.files == str(out / "checkpoint-4")
    [note] = fetched.notes
    assert "was moved to 'checkpoint-4.torn'" in note and (out / "checkpoint-4.torn").is_dir()
    assert verify(places(out).own, 4) == []


def test_an_empty_folder_in_its_place_is_no_trouble(out: Path, into: Store) -> None:
    trainer(out, 4)
    copy(out, into)
    shutil.rmtree(out)
    (out / "checkpoint-4").mkdir(parents=True)
    assert fetch(out, into).files == str(out / "checkpoint-4")


def test_what_is_no_checkpoint_is_never_moved(out: Path, into: Store) -> None:
    """A manifest may come from anywhere."""
    trainer(out, 4)
    copied = copy(out, into).checkpoint
    assert copied is not None
    shutil.rmtree(out)
    (out / "src").mkdir(parents=True)
    (out / "src" / "train.py").write_text("mine")
    raw = into.read("step-000000000004/manifest.json")
    into.write("step-000000000004/manifest.json", raw.replace(b'"../checkpoint-4"', b'"../src"'))
    fetched = fetch(out, into)
    assert fetched.files is None and "is no checkpoint" in fetched.notes[0]
    assert (out / "src" / "train.py").read_text() == "mine"
    into.write("step-000000000004/manifest.json", raw.replace(b'"../checkpoint-4"', b'"../../x"'))
    assert fetch(out, into).files is None and not (out.parent / "x").exists()


def test_one_whose_bytes_are_damaged_there_is_passed_over(out: Path, into: Store) -> None:
    for step in (4, 6):
        trainer(out, step)
        copy(out, into)
    corrupt(into, 6, "model.safetensors")
    shutil.rmtree(out)
    fetched = fetch(out, into)
    assert fetched.step == 4 and "step 6" in fetched.notes[0]
    assert not (out / "checkpoint-6").exists()


def test_the_same_bytes_that_were_there_before_the_run_become_its_own(out: Path, into: Store) -> None:
    trainer(out, 4)
    copy(out, into)
    for path in (out / "checkpoint-4").iterdir():
        os.utime(path, (BEGAN - 10, BEGAN - 10))
    shutil.rmtree(out / RUN)
    assert newest(item for _, item in places(out).judged()) is None
    assert fetch(out, into).files == str(out / "checkpoint-4")
    assert newest(item for _, item in places(out).judged()) is not None


def test_a_step_that_is_saved_again_with_other_bytes_is_replaced(out: Path, into: Store) -> None:
    first = trainer(out, 4)
    copy(out, into)
    (first / "extra.json").write_text("{}")
    os.utime(first / "extra.json", (BEGAN + 11, BEGAN + 11))
    os.utime(first / "trainer_state.json", (BEGAN + 12, BEGAN + 12))
    shutil.rmtree(out / RUN)
    copied = copy(out, into).checkpoint
    assert copied is not None and copied.manifest.part("extra.json") is not None
    assert verify(into, 4) == [] and len([*into.entries("step-000000000004")]) == 1 + len(
        copied.manifest.parts
    )


def test_one_that_its_library_removes_meanwhile_leaves_nothing(
    out: Path, into: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from allaboard.checkpoints.foreign import mirroring

    for step in (4, 6):
        trainer(out, step)
    adopt(places(out), Manifest(step=0, run=RUN))
    real = mirroring.copy_parts

    def removed(source: tuple[Store, str], target: Store, manifest: Manifest) -> int:
        if manifest.step == 6:
            (out / "checkpoint-6" / "optimizer.pt").unlink()
        return real(source, target, manifest)

    monkeypatch.setattr(mirroring, "copy_parts", removed)
    copied = copy_newest(places(out).own, into, None, None, lambda: BEGAN)
    assert copied.checkpoint is not None and copied.checkpoint.step == 4
    assert {entry.key.partition("/")[0] for entry in into.entries()} == {"step-000000000004"}


def test_a_checkpoint_of_ours_comes_back_too(out: Path, into: Store) -> None:
    own = places(out).own
    a_checkpoint(own, 8, run=RUN)
    copied = copy_newest(own, into, None, None, lambda: BEGAN).checkpoint
    assert copied is not None and copied.step == 8
    shutil.rmtree(out)
    assert fetch(out, into).step == 8 and verify(own, 8) == []


def killed_at(request: int, given: dict[str, Any], s3: S3Server) -> bool:
    """Run a process of the supervisor and kill it when its server gets that request, which is carried out or
    lost. False: it came to its end before.
    """
    begun: list[subprocess.Popen[bytes]] = []

    def decide(asked: Request) -> str | None:
        if asked.count == request:
            begun[0].kill()
        return "drop" if asked.count >= request and request % 2 else None

    with between(s3, decide) as proxy:
        begun.append(
            subprocess.Popen(
                isolated_command("allaboard.checkpoints.foreign", json.dumps(given)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **proxy.environ},
            )
        )
        begun[0].wait(120)  # its stdin stays open: it ends with that
        begun[0].communicate()
    assert begun[0].returncode in (0, -signal.SIGKILL)
    return begun[0].returncode != 0


@pytest.mark.thorough
@pytest.mark.parametrize("step", [1])
def test_a_copier_killed_at_any_request_leaves_no_torn_one(step: int, out: Path, s3: S3Server) -> None:
    uri = f"s3://{s3.make_bucket()}/{RUN}"
    into = open_store(uri, environ=s3.environ)
    given = {"do": "copy", "own": str(out / RUN), "bucket": uri, "keep": 2, "best": None}
    trainer(out, 2)
    adopt(places(out), Manifest(step=0, run=RUN))
    request = step
    while killed_at(request, given, s3):
        assert all(isinstance(item, Checkpoint) and not verify(into, item.step) for item in scan(into))
        request += step
    assert request > 5 and verify(into, 2) == []


@pytest.mark.thorough
@pytest.mark.parametrize("step", [3, 1])
def test_a_fetch_killed_at_any_request_shows_no_torn_one(step: int, out: Path, s3: S3Server) -> None:
    uri = f"s3://{s3.make_bucket()}/{RUN}"
    trainer(out, 4)
    copy(out, open_store(uri, environ=s3.environ))
    before = tree(out)
    shutil.rmtree(out)
    given = {"do": "fetch", "own": str(out / RUN), "bucket": uri, "job": True, "since": BEGAN}
    request = step
    while killed_at(request, given, s3):
        assert not (out / "checkpoint-4").exists() or tree(out) == before
        request += step
    assert tree(out) == before and verify(places(out).own, 4) == []


FAULTS = {"reset": "drop", "busy": (503, "SlowDown"), "truncated": "cut", "lost answer": "lose"}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_fails_now_and_then_takes_and_gives_whole_ones(
    fault: str, out: Path, s3: S3Server
) -> None:
    name = s3.make_bucket()
    with between(s3, lambda asked: FAULTS[fault] if asked.count % 4 == 2 else None) as proxy:  # type: ignore[return-value]
        into = open_store(f"s3://{name}/{RUN}", environ=proxy.environ)
        direct = open_store(f"s3://{name}/{RUN}", environ=s3.environ)
        trainer(out, 4)
        for _ in range(20):
            try:
                copy(out, into)
                break
            except StorageError:
                assert all(isinstance(item, Checkpoint) for item in scan(direct))
        assert verify(direct, 4) == []
        before = tree(out)
        shutil.rmtree(out)
        for _ in range(20):
            try:
                fetched = fetch(out, into)
                break
            except StorageError:
                assert not (out / "checkpoint-4").exists()
        assert fetched.files == str(out / "checkpoint-4") and tree(out) == before
