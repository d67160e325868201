"""A checkpoint is there whole or not at all, whatever is killed when."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from allaboard.checkpoints import Manifest, latest, save, scan, verify
from allaboard.checkpoints.hashing import HashedFile
from allaboard.checkpoints.manifest import MANIFEST, RETIRED
from allaboard.checkpoints.retention import retire
from allaboard.checkpoints.saving import STAGING
from allaboard.errors import (
    BadInput,
    OwnershipConflict,
    StorageFull,
    StorageMissing,
    StorageUnreachable,
)
from allaboard.storage import open_store
from allaboard.storage.base import Store
from tests.core.checkpoints.building import a_checkpoint, keys, steps, without_manifest
from tests.core.s3server import S3Server, between

CRASHING = Path(__file__).with_name("crashing.py")


def crashing(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, str(CRASHING), *arguments], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


# --- killed


@pytest.mark.slow
@pytest.mark.thorough
def test_kill_9_at_200_random_moments_leaves_a_whole_newest_checkpoint(tmp_path: Path) -> None:
    seen = crashing("random", str(tmp_path / "run-1"), "200", "1", "0.04")
    assert seen["problems"] == []
    assert seen["trials"] == 200
    # The kills did hit saves, not only the time between them, and a later save cleared up what they left.
    assert int(str(seen["killed_inside_a_save"])) > 20
    assert seen["left"] == []


@pytest.mark.slow
def test_death_before_any_single_change_of_the_file_system_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    seen = crashing("points", str(tmp_path / "runs"))
    assert seen["problems"] == []
    assert seen["left"] == []
    assert seen["exit"] == 0
    assert int(str(seen["points"])) > 30


@pytest.mark.slow
@pytest.mark.thorough
def test_kill_9_while_saving_to_a_bucket_leaves_a_whole_newest_checkpoint(s3: S3Server) -> None:
    seen = crashing("random", f"s3://{s3.make_bucket()}/runs/run-1", "15", "2", "0.25")
    assert seen["problems"] == []
    assert seen["left"] == []


def test_what_a_living_writer_has_in_staging_is_left_alone(disk: Store) -> None:
    """A second writer is against the rules; even so it must not pull the files away from under the first."""
    inside: list[list[str]] = []

    def meanwhile(file: HashedFile) -> None:
        a_checkpoint(disk, 20)
        inside.append(keys(disk, STAGING))
        file.write(b"slow")

    save(disk, Manifest(step=10), {"model.bin": meanwhile})
    assert steps(disk) == [10, 20]
    assert any(key.endswith(".lock") for key in inside[0])
    assert keys(disk, STAGING) == []


def _held(lock: Path, modes: str) -> subprocess.Popen[str]:
    """A process that holds a lock file until its stdin ends."""
    code = (
        f"import fcntl, sys\nfile = open({str(lock)!r}, {modes!r})\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def _staged(root: Path, name: str, age: float) -> Path:
    """Half of a checkpoint that somebody stages, with its lock file."""
    own = root / STAGING / name
    own.mkdir(parents=True)
    (own / "model.bin").write_bytes(b"half")
    lock = root / STAGING / f"{name}.lock"
    lock.touch()
    for path in (own, lock):
        os.utime(path, (time.time() - age, time.time() - age))
    return own


def test_a_writer_that_saves_for_days_is_left_alone_while_it_lives(disk: Store, tmp_path: Path) -> None:
    root = disk.local_path()
    assert root is not None
    own = _staged(root, "0123456789abcdef", 3 * 86400)
    with _held(own.with_suffix(".lock"), "r") as writer:
        a_checkpoint(disk, 10)
        assert (own / "model.bin").exists(), "its lock is held: its age says nothing"
        writer.kill()
    a_checkpoint(disk, 20)
    assert keys(disk, STAGING) == [] and not own.exists()


def test_where_no_lock_can_tell_age_does(disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    root = disk.local_path()
    assert root is not None
    old, young = _staged(root, "a" * 16, 2 * 86400), _staged(root, "b" * 16, 3600)
    a_checkpoint(disk, 10)
    assert not old.exists() and young.exists() and steps(disk) == [10]


@pytest.mark.timeout(60)
def test_a_pipe_or_a_link_for_a_lock_hangs_no_save_and_is_not_followed(disk: Store, tmp_path: Path) -> None:
    root = disk.local_path()
    assert root is not None
    precious = tmp_path / "thesis"
    precious.write_text("years")
    pipe, link = _staged(root, "a" * 16, 3600), _staged(root, "b" * 16, 3600)
    for own in (pipe, link):
        own.with_suffix(".lock").unlink()
    os.mkfifo(pipe.with_suffix(".lock"))
    link.with_suffix(".lock").symlink_to(precious)
    a_checkpoint(disk, 10)
    assert pipe.exists() and link.exists(), "no lock tells, and they are young"
    for own in (pipe, link):
        old = time.time() - 2 * 86400
        os.utime(own.with_suffix(".lock"), (old, old), follow_symlinks=False)
    a_checkpoint(disk, 20)
    assert not pipe.exists() and not link.exists() and precious.read_text() == "years"
    assert steps(disk) == [10, 20] and keys(disk, STAGING) == []


# --- what is written


def test_a_saved_checkpoint_is_complete_and_verifies(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(b"{}" * 1000)
    parts: dict[str, bytes | Path] = {"model.bin": b"m" * 100_000, "empty.bin": b"", "tokenizer.json": file}
    saved = save(store, Manifest(step=3, run="run-1"), parts)
    assert scan(store) == [saved]
    assert verify(store, 3) == []
    assert saved.uri == f"{store.uri}/step-000000000003"
    assert {part.called: part.size for part in saved.manifest.parts} == {
        "model.bin": 100_000,
        "empty.bin": 0,
        "tokenizer.json": 2000,
    }
    assert keys(store) == sorted(f"step-000000000003/{name}" for name in [*parts, MANIFEST])


def test_a_function_writes_its_own_part(store: Store) -> None:
    save(
        store,
        Manifest(step=1),
        {"state.bin": lambda file: file.write(b"written by the script")},
    )
    assert store.read("step-000000000001/state.bin") == b"written by the script"
    assert verify(store, 1) == []


def test_the_manifest_is_the_last_object_to_reach_a_bucket(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3.make_bucket()
    with between(s3, lambda request: None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        a_checkpoint(open_store(f"s3://{bucket}/run-1"), 5)
        written = [request.path for request in proxy.requests if request.method == "PUT"]
    assert [path.rpartition("/")[2] for path in written] == ["model.bin", "optimizer.bin", MANIFEST]


@pytest.mark.parametrize(
    "name", ["", ".hidden", "a/b", "../x", MANIFEST, RETIRED, "with space", "x" * 200, "a~b"]
)
def test_a_part_that_cannot_be_named_so_is_refused_before_anything_is_written(disk: Store, name: str) -> None:
    with pytest.raises(BadInput, match="cannot name a part"):
        save(disk, Manifest(step=1), {name: b"x"})
    assert keys(disk) == []


def test_no_parts_and_no_step_are_refused(disk: Store) -> None:
    with pytest.raises(BadInput, match="no parts"):
        save(disk, Manifest(step=1), {})
    for step in (-1, 10**12, True, 1.5):
        with pytest.raises(BadInput, match="is not a step"):
            save(disk, Manifest(step=step), {"a": b"x"})  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read_is_the_scripts_mistake(store: Store, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"absent\.bin: No such file.*must be a file that can be read"):
        save(store, Manifest(step=1), {"model.bin": b"first", "x.bin": tmp_path / "absent.bin"})
    assert keys(store) == []


def test_an_error_of_the_script_while_it_writes_passes_and_leaves_nothing(store: Store) -> None:
    def broken(file: HashedFile) -> None:
        file.write(b"half")
        raise RuntimeError("cannot pickle this")

    with pytest.raises(RuntimeError, match="cannot pickle this"):
        save(store, Manifest(step=1), {"model.bin": b"first", "state.pt": broken})
    assert keys(store) == []


# --- a step that is saved again


def test_saving_a_step_again_replaces_it(store: Store) -> None:
    a_checkpoint(store, 10, {"loss": 1.0}, {"model.bin": b"old"})
    again = a_checkpoint(store, 10, {"loss": 0.5}, {"model.bin": b"new!"})
    found = latest(store)
    assert found == again
    part = found.manifest.part("model.bin")
    assert part is not None
    assert store.read(f"step-000000000010/{part.name}") == b"new!"
    assert verify(store, 10) == []
    assert found.metrics == {"loss": 0.5}


def test_a_reader_of_the_earlier_save_still_finds_its_parts(store: Store) -> None:
    old = a_checkpoint(store, 10, parts={"model.bin": b"old"})
    a_checkpoint(store, 10, parts={"model.bin": b"new!"})
    assert store.read(f"step-000000000010/{old.manifest.parts[0].name}") == b"old"


def test_while_a_step_is_saved_again_the_earlier_one_is_whole_until_the_end(store: Store) -> None:
    a_checkpoint(store, 10, parts={"model.bin": b"old"})
    problems: list[list[str]] = []

    def look(file: HashedFile) -> None:
        file.write(b"new")
        problems.append(verify(store, 10))

    save(store, Manifest(step=10), {"a.bin": b"x", "model.bin": look})
    assert problems == [[]]


@pytest.mark.parametrize("leftover", ["parts without a manifest", "let go by retention"])
def test_a_step_whose_folder_holds_leftovers_is_saved_beside_them(store: Store, leftover: str) -> None:
    old = a_checkpoint(store, 10, parts={"model.bin": b"old"})
    if leftover == "let go by retention":
        retire(store, 10, ["model.bin"], now=0.0)
    else:
        without_manifest(store, 10)
    assert steps(store) == []
    a_checkpoint(store, 10, parts={"model.bin": b"new!"})
    assert steps(store) == [10]
    assert verify(store, 10) == []
    assert store.read(f"step-000000000010/{old.manifest.parts[0].name}") == b"old"
    assert f"step-000000000010/{RETIRED}" not in keys(store)


def test_two_writers_of_one_step_do_not_mix(disk: Store) -> None:
    def meanwhile(file: HashedFile) -> None:
        file.write(b"first")
        a_checkpoint(disk, 10, parts={"model.bin": b"second"})

    with pytest.raises(OwnershipConflict, match="only rank 0 may save"):
        save(disk, Manifest(step=10), {"model.bin": meanwhile})
    assert verify(disk, 10) == []
    assert disk.read("step-000000000010/model.bin") == b"second"


# --- the world says no


def test_a_full_disk_is_one_clear_error_and_nothing_half_written(small_disk: Path) -> None:
    store = open_store(small_disk / "run-1")
    a_checkpoint(store, 1, parts={"model.bin": b"x" * 300_000})
    with pytest.raises(StorageFull, match=r"step-000000000002: No space left.*free") as told:
        a_checkpoint(store, 2, parts={"model.bin": b"x" * 900_000})
    assert told.value.code == "storage_full"
    assert steps(store) == [1]
    assert verify(store, 1) == []
    assert keys(store) == ["step-000000000001/manifest.json", "step-000000000001/model.bin"]
    a_checkpoint(store, 2, parts={"model.bin": b"x" * 300_000})  # the space of the failed save is free again
    assert steps(store) == [1, 2]


@pytest.mark.thorough
def test_a_full_disk_under_torch_is_the_same_error(small_disk: Path) -> None:
    torch = pytest.importorskip("torch")
    store = open_store(small_disk / "run-1")
    state = {"weight": torch.zeros(1_000_000)}
    with pytest.raises(StorageFull, match=r"(?i)no space left"):
        save(store, Manifest(step=2), {"state.pt": lambda file: torch.save(state, file)})
    assert keys(store) == []


def test_a_limit_on_file_sizes_is_an_error_of_the_same_kind(tmp_path: Path) -> None:
    script = """
import resource, sys
from allaboard.checkpoints import Manifest, save
from allaboard.errors import StorageFull
from allaboard.storage import open_store
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    save(open_store(sys.argv[1]), Manifest(step=1), {"model.bin": bytes(1 << 20)})
except StorageFull as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "File too large" in done.stdout
    assert keys(open_store(tmp_path)) == []


def test_no_permission_names_the_place_and_what_to_do(tmp_path: Path) -> None:
    place = tmp_path / "locked"
    place.mkdir(mode=0o755)
    script = """
import os, sys
from allaboard.checkpoints import Manifest, save
from allaboard.errors import StorageDenied
from allaboard.storage import open_store
if os.geteuid() == 0:
    os.setuid(65534)
else:
    os.chmod(sys.argv[1], 0o555)
try:
    save(open_store(sys.argv[1] + "/run-1"), Manifest(step=1), {"model.bin": b"x"})
except StorageDenied as error:
    print(error)
"""
    for folder in (tmp_path, *tmp_path.parents):
        if (
            os.geteuid() == 0
            and folder.stat().st_uid == 0
            and folder != Path("/")
            and folder.stat().st_mode & 0o77 == 0
        ):
            folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", script, str(place)], capture_output=True, text=True, check=True
    )
    assert f"{place}/run-1/step-000000000001" in done.stdout
    assert "Permission denied" in done.stdout
    assert "give" in done.stdout


def test_a_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "run-1").write_bytes(b"a file")
    with pytest.raises(StorageMissing, match=r"run-1/step-000000000001: Not a directory"):
        a_checkpoint(open_store(tmp_path / "run-1"), 1)


def test_a_server_that_dies_in_the_middle_leaves_no_checkpoint_and_the_one_before(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3.make_bucket()
    a_checkpoint(open_store(f"s3://{bucket}/run-1"), 1)
    puts = 0

    def dies_with_the_manifest(request: object) -> str | None:
        nonlocal puts
        puts += getattr(request, "method", "") == "PUT"
        return "drop" if puts >= 3 else None

    with between(s3, dies_with_the_manifest) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with pytest.raises(StorageUnreachable, match=f"{bucket}/run-1/step-000000000002/manifest.json"):
            a_checkpoint(open_store(f"s3://{bucket}/run-1"), 2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    store = open_store(f"s3://{bucket}/run-1")
    assert steps(store) == [1]
    a_checkpoint(store, 2)  # the retry, beside what the first try left
    assert steps(store) == [1, 2]
    assert verify(store, 2) == []


def test_a_lost_answer_to_the_manifest_does_not_tear_the_checkpoint(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server kept the manifest, nobody heard of it: the parts must not be cleaned up behind it."""
    bucket = s3.make_bucket()

    def loses_manifests(request: object) -> str | None:
        path, method = getattr(request, "path", ""), getattr(request, "method", "")
        return "lose" if method == "PUT" and path.endswith(MANIFEST) else None

    with between(s3, loses_manifests) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with pytest.raises(StorageUnreachable):
            a_checkpoint(open_store(f"s3://{bucket}/run-1"), 2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    assert verify(open_store(f"s3://{bucket}/run-1"), 2) == []
