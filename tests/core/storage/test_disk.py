"""A folder keeps its promises when writers race, are killed, find the disk full, or may not write."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allaboard.errors import (
    AllaboardError,
    StorageConflict,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageMissing,
    StorageUnsupported,
)
from allaboard.storage import open_store
from allaboard.storage.disk import DiskStore, replace_on_success, sweep, unnamed_file
from tests.core.storage.mounts import AS_ROOT, mounted

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks, mounts and signals")
NOBODY = 65534


def a_store(folder: Path) -> DiskStore:
    store = open_store(folder)
    assert isinstance(store, DiskStore)
    return store


def keys(store: DiskStore) -> list[str]:
    return [entry.key for entry in store.entries()]


def everything(folder: Path) -> list[str]:
    """All that lies there, temporary files included."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def leftovers(folder: Path) -> list[Path]:
    return sorted(folder.rglob(".allaboard-*"))


def start(code: str, *args: object) -> subprocess.Popen[str]:
    """A Python process that has ``open_store`` and `sys.argv`; it ends with this one."""
    prelude = (
        "import ctypes, os, sys; from pathlib import Path\n"
        "sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 9)\n"
        "from allaboard.storage import open_store\nfrom allaboard.errors import *\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(code), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@contextlib.contextmanager
def writer_in_the_middle(store: Path, key: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has written 8 of the 20 MiB of ``key`` and goes on when a line is sent to it."""
    source = tmp_path / "source"
    source.write_bytes(bytes(20 * 2**20))
    child = start(
        """
        def wait(count):
            print("in the middle", flush=True)
            sys.stdin.readline()
        open_store(sys.argv[1]).upload(Path(sys.argv[3]), sys.argv[2], wait)
        """,
        store,
        key,
        source,
    )
    try:
        assert child.stdout and child.stdout.readline() == "in the middle\n"
        yield child
    finally:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream:
                stream.close()


# --- races


def test_of_many_processes_one_creates_and_nobody_sees_a_part(tmp_path: Path) -> None:
    rounds, racers, size = 40, 4, 300_000
    store = a_store(tmp_path / "store")
    children = [
        start(
            """
            store, me = open_store(sys.argv[1]), sys.argv[2]
            sys.stdin.readline()
            for number in range(int(sys.argv[3])):
                try:
                    store.create(f"race/{number:03d}", me.encode() * int(sys.argv[4]))
                    print(number)
                except StorageConflict:
                    pass
            """,
            store.uri,
            letter,
            rounds,
            size,
        )
        for letter in "abcdefgh"[:racers]
    ]
    for child in children:
        assert child.stdin
        child.stdin.write("go\n")
        child.stdin.flush()
    seen = 0
    while any(child.poll() is None for child in children):
        for entry in store.entries("race"):
            data = store.read(entry.key)
            assert len(data) == entry.size == size and len(set(data)) == 1
            seen += 1
    wins = [set(map(int, child.communicate()[0].split())) for child in children]
    assert [child.returncode for child in children] == [0] * racers
    assert sorted(number for won in wins for number in won) == list(range(rounds))  # each exactly once
    for letter, won in zip("abcdefgh", wins, strict=False):
        assert all(store.read(f"race/{number:03d}", 0, 1) == letter.encode() for number in won)
    assert seen > 0
    assert not leftovers(tmp_path)


def test_a_reader_sees_the_old_or_the_new_value_and_never_a_mixture(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    values = [letter * size for letter, size in ((b"a", 500_000), (b"b", 1_000_000), (b"c", 3))]
    store.write("x", values[0])
    done = threading.Event()

    def write() -> None:
        try:
            for number in range(150):
                store.write("x", values[number % 3])
        finally:
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = set()
    while not done.is_set():
        seen.add(store.read("x"))
    thread.join()
    assert len(seen) > 1 and seen <= set(values)


def test_writers_and_deleters_of_one_folder_do_not_trip_over_each_other(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    troubles: list[BaseException] = []
    done = threading.Event()

    def delete() -> None:
        try:
            while not done.is_set():
                store.delete(["run/step/a", "run/step/b"])
                keys(store), store.folders("run")
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=delete) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(300):
            store.write("run/step/" + "ab"[number % 2], b"x")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert troubles == []


# --- killed writers


def test_a_writer_killed_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    store.write("run/part", b"the old value")
    with writer_in_the_middle(tmp_path / "store", "run/part", tmp_path) as child:
        child.kill()
        child.wait()
        assert store.read("run/part") == b"the old value"
        assert keys(store) == ["run/part"]
        assert len(leftovers(tmp_path)) == 1
    store = a_store(tmp_path / "store")  # who comes after the crash
    store.write("run/other", b"x")  # tidies up with the first write beside it
    assert everything(tmp_path / "store") == ["run", "run/other", "run/part"]


def test_what_a_killed_writer_left_alone_in_a_folder_is_no_folder_and_goes(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    with writer_in_the_middle(tmp_path / "store", "run/step-1/part", tmp_path) as child:
        child.kill()
        child.wait()
        assert keys(store) == store.folders() == store.folders("run") == []
        assert len(leftovers(tmp_path)) == 1
    store.write("run/step-2/part", b"x")  # step-1 is never entered again
    assert everything(tmp_path / "store") == ["run", "run/step-2", "run/step-2/part"]


def test_deleting_tidies_up_too(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    store.write("run/step-1/manifest", b"x")
    with writer_in_the_middle(tmp_path / "store", "run/step-1/part", tmp_path) as child:
        child.kill()
        child.wait()
    store.delete(["run/step-1/manifest"])
    assert everything(tmp_path / "store") == []


def test_a_writer_that_lives_is_left_in_peace(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    with writer_in_the_middle(tmp_path / "store", "run/step-1/part", tmp_path) as child:
        store.write("run/step-1/other", b"x")
        store.write("run/step-2/part", b"x")
        store.delete(["run/step-1/other"])
        assert child.stdin
        child.stdin.write("go on\n" * 3)
        child.stdin.flush()
        assert child.wait() == 0
    assert keys(store) == ["run/step-1/part", "run/step-2/part"]
    entry = store.stat("run/step-1/part")
    assert entry and entry.size == 20 * 2**20


def test_what_another_machine_left_goes_when_it_is_a_day_old(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "run"
    folder.mkdir(parents=True)
    fresh, old = (folder / f".allaboard-{name}-1234-0011aabb.tmp" for name in ("00000001", "00000002"))
    for path in (fresh, old):
        path.write_bytes(b"half")
    ages_ago = time.time() - 90_000
    os.utime(old, (ages_ago, ages_ago))
    store = a_store(tmp_path / "store")
    assert keys(store) == []
    store.write("run/x", b"x")
    assert everything(folder) == [fresh.name, "x"]


def test_only_our_own_temporary_names_are_swept(tmp_path: Path) -> None:
    ages_ago = time.time() - 900_000
    for name in (".allaboard-notes", "x.tmp", ".allaboard-0011aabb-1-0011aabb.tmp.txt"):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (ages_ago, ages_ago))
    assert sweep(tmp_path, time.time()) == 0
    assert len(everything(tmp_path)) == 3


# --- durable


def test_bytes_names_and_new_folders_are_flushed_before_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    a_store(tmp_path / "store").write("run/step/x", b"x")
    # The names of the new folders, the bytes, the name of the file:
    assert flushed[:3] == [str(tmp_path), f"{tmp_path}/store", f"{tmp_path}/store/run"]
    assert "/run/step/.allaboard-" in flushed[3]
    assert flushed[4:] == [f"{tmp_path}/store/run/step"]


def test_files_get_the_permissions_that_the_user_chose(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        a_store(tmp_path / "store").write("x", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "store" / "x").stat().st_mode & 0o777 == 0o640


# --- full disks


@pytest.mark.parametrize("way", ["write", "create", "upload", "download"])
def test_a_full_disk_is_said_and_leaves_what_was_there(small_disk: Path, tmp_path: Path, way: str) -> None:
    store = a_store(small_disk / "store")
    if way != "create":
        store.write("run/part", b"the old value")
    big = tmp_path / "big"
    big.write_bytes(os.urandom(3 * 2**20))
    other = a_store(tmp_path / "other")
    other.upload(big, "big")
    call: Callable[[], None] = {
        "write": lambda: store.write("run/part", big.read_bytes()),
        "create": lambda: store.create("run/new", big.read_bytes()),
        "upload": lambda: store.upload(big, "run/part"),
        "download": lambda: other.download("big", small_disk / "store" / "run" / "part"),
    }[way]
    with pytest.raises(StorageFull) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(f"{small_disk}/store/run/") and "No space left on device (ENOSPC)" in message
    assert "free of 1.0 MiB" in message and "keep fewer checkpoints" in message
    if way == "create":
        assert everything(small_disk / "store") == ["run"]
    else:
        assert store.read("run/part") == b"the old value"
        assert everything(small_disk / "store") == ["run", "run/part"]
    store.write("run/small", b"fits")  # what was written for nothing has been given back
    assert store.read("run/small") == b"fits"


def test_a_limit_on_the_size_of_files_is_said(tmp_path: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        a_store(tmp_path / "store").write("x", bytes(2000))

    said = in_a_child(limited)
    assert said.startswith(f"StorageFull: {tmp_path}/store/x: File too large (EFBIG) while writing it"), said
    assert everything(tmp_path / "store") == []


# --- permissions


def in_a_child(call: Callable[[], object], uid: int | None = None) -> str:
    """``Type: message`` of what ``call`` raises in a forked process, as the user ``uid``."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            signal.alarm(60)
            if uid is not None and AS_ROOT:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            call()
        except AllaboardError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException as error:
            said = f"not ours: {error!r}"
        finally:
            os.write(write_end, said.encode())
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user can reach, which `tmp_path` is not."""
    with tempfile.TemporaryDirectory(prefix="open-to-all-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("way", ["write", "create", "upload", "delete", "new folder"])
def test_a_folder_without_write_permission_is_said(open_path: Path, way: str) -> None:
    store = a_store(open_path / "store")
    store.write("run/part", b"x")
    source = open_path / "source"
    source.write_bytes(b"y")
    folder = open_path / "store" / "run"
    folder.chmod(0o555)
    call: Callable[[], None] = {
        "write": lambda: store.write("run/part", b"y"),
        "create": lambda: store.create("run/new", b"y"),
        "upload": lambda: store.upload(source, "run/part"),
        "delete": lambda: store.delete(["run/part"]),
        "new folder": lambda: store.write("run/step/part", b"y"),
    }[way]
    said = in_a_child(call, NOBODY)
    folder.chmod(0o755)
    assert said.startswith(f"StorageDenied: {folder}/"), said
    uid = NOBODY if AS_ROOT else os.geteuid()
    assert "Permission denied (EACCES)" in said and f"give uid {uid} the permission" in said
    assert keys(store) == ["run/part"] and store.read("run/part") == b"x"
    assert not leftovers(open_path)


def test_what_may_not_be_read_or_listed_is_said(open_path: Path) -> None:
    store = a_store(open_path / "store")
    store.write("closed/part", b"x")
    store.write("open/secret", b"x")
    (open_path / "store" / "closed").chmod(0)
    (open_path / "store" / "open" / "secret").chmod(0)
    calls: list[Callable[[], object]] = [
        lambda: store.read("open/secret"),
        lambda: store.read("closed/part"),
        lambda: store.stat("closed/part"),
        lambda: keys(store),
        lambda: store.folders("closed"),
        lambda: store.download("open/secret", open_path / "target"),
    ]
    said = [in_a_child(call, NOBODY) for call in calls]
    (open_path / "store" / "closed").chmod(0o755)
    assert all(line.startswith(f"StorageDenied: {open_path}/store/") for line in said), said


def test_a_folder_that_may_be_written_and_not_listed_can_be_written(open_path: Path) -> None:
    store = a_store(open_path / "store")
    (open_path / "store" / "box").mkdir(parents=True)
    (open_path / "store" / "box").chmod(0o333)
    said = in_a_child(lambda: store.write("box/x", b"x"), NOBODY)
    (open_path / "store" / "box").chmod(0o755)
    assert said == "nothing"
    assert store.read("box/x") == b"x"


def test_a_read_only_file_system_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "ro"
    folder.mkdir()
    with mounted(folder, "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs"):
        store = a_store(folder)
        calls: list[Callable[[], None]] = [
            lambda: store.write("x", b"x"),
            lambda: store.create("a/b", b"x"),
        ]
        for call in calls:
            with pytest.raises(StorageDenied, match=rf"^{folder}/.*\(EROFS\).*mounted read-only"):
                call()


# --- links


def test_a_link_out_of_the_store_is_not_followed_by_writing_or_deleting(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "part").write_bytes(b"precious")
    store = a_store(tmp_path / "store")
    store.write("run/x", b"x")
    (tmp_path / "store" / "link").symlink_to(outside)
    (tmp_path / "store" / "dangling").symlink_to(tmp_path / "nowhere" / "deep")
    (tmp_path / "store" / "up").symlink_to("..")
    source = tmp_path / "source"
    source.write_bytes(b"y")
    for key in ("link/part", "link/new/part", "dangling/part", "up/outside/part", "link/../x"):
        calls: list[Callable[[], None]] = [
            lambda key=key: store.write(key, b"y"),  # type: ignore[misc]
            lambda key=key: store.create(key, b"y"),  # type: ignore[misc]
            lambda key=key: store.upload(source, key),  # type: ignore[misc]
            lambda key=key: store.delete([key]),  # type: ignore[misc]
            lambda key=key: store.below(key.split("/")[0]).write("part", b"y"),  # type: ignore[misc]
        ]
        for call in calls[:4] if ".." in key else calls:
            with pytest.raises(AllaboardError, match=r"symbolic link leads out of|storage key"):
                call()
    assert (outside / "part").read_bytes() == b"precious" and everything(outside) == ["part"]
    assert not (tmp_path / "nowhere").exists()
    assert store.read("link/part") == b"precious"  # reading may


def test_a_link_in_the_place_of_a_file_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    store = a_store(tmp_path / "store")
    store.write("x", b"x")
    (tmp_path / "store" / "link").symlink_to(target)
    with pytest.raises(StorageConflict):
        store.create("link", b"y")
    store.write("link", b"y")
    assert store.read("link") == b"y" and not (tmp_path / "store" / "link").is_symlink()
    (tmp_path / "store" / "gone").symlink_to(target)
    store.delete(["gone"])
    assert target.read_bytes() == b"precious"
    assert keys(store) == ["link", "x"]


def test_links_inside_the_store_and_a_store_behind_a_link_work(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    store = a_store(tmp_path / "alias")
    store.write("run-1/x", b"x")
    (tmp_path / "real" / "current").symlink_to("run-1")
    store.write("current/y", b"y")
    assert store.uri == f"{tmp_path}/alias"
    assert keys(store) == ["run-1/x", "run-1/y"]  # listed once, under its own name
    assert store.read("current/y") == b"y"


def test_circles_and_dead_links_are_no_objects_and_hang_nobody(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    store.write("run/x", b"x")
    (tmp_path / "store" / "run" / "circle").symlink_to(tmp_path / "store")
    (tmp_path / "store" / "run" / "self").symlink_to("self")
    (tmp_path / "store" / "run" / "dead").symlink_to("nothing")
    os.mkfifo(tmp_path / "store" / "run" / "pipe")
    assert keys(store) == ["run/x"]
    assert store.folders() == ["run"] and store.folders("run") == []
    assert store.stat("run/dead") is None and store.stat("run/pipe") is None
    with pytest.raises(StorageError):
        store.stat("run/self")


# --- things in the way


def test_a_folder_or_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    store.write("folder/x", b"x")
    store.write("file", b"x")
    with pytest.raises(StorageMissing, match=r"folder: Is a directory \(EISDIR\) while writing"):
        store.write("folder", b"y")
    with pytest.raises(StorageMissing, match=r"file/x: Not a directory \(ENOTDIR\) while writing"):
        store.write("file/x", b"y")
    with pytest.raises(StorageMissing, match="ENOTDIR"):
        store.write("file/deep/x", b"y")
    with pytest.raises(StorageConflict):
        store.create("folder", b"y")
    assert store.stat("file/x") is None
    assert not list(store.entries("file")) and not store.folders("file")
    with pytest.raises(StorageError, match=r"File name too long .* use a shorter name"):
        store.write("x" * 300, b"y")
    assert everything(tmp_path / "store") == ["file", "folder", "folder/x"]


# --- file systems without hard links


def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)


def test_create_is_exclusive_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_links(monkeypatch)
    store = a_store(tmp_path / "store")
    store.create("x", b"first")
    with pytest.raises(StorageConflict, match="exists already"):
        store.create("x", b"second")
    assert store.read("x") == b"first" and everything(tmp_path / "store") == ["x"]


def test_a_file_system_that_cannot_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OldLibrary:
        def __init__(self, *_: object, **__: object) -> None:
            pass

    no_links(monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", OldLibrary)
    store = a_store(tmp_path / "store")
    with pytest.raises(StorageUnsupported, match="two writers could both win"):
        store.create("x", b"first")
    assert everything(tmp_path / "store") == []


def test_a_link_whose_answer_was_lost_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def link_and_lose_the_answer(source: Path, target: Path) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", link_and_lose_the_answer)
    store = a_store(tmp_path / "store")
    store.create("x", b"mine")
    assert store.read("x") == b"mine"


# --- files that others write by themselves


def test_whole_file_is_there_when_the_block_ends_well_and_only_then(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), replace_on_success(tmp_path / "a" / "x") as file:
        file.write(b"half")
        raise RuntimeError
    assert everything(tmp_path) == ["a"]
    with replace_on_success(tmp_path / "a" / "x") as file:
        file.write(b"whole")
        assert not (tmp_path / "a" / "x").exists()
    assert (tmp_path / "a" / "x").read_bytes() == b"whole" and everything(tmp_path) == ["a", "a/x"]
    with pytest.raises(StorageConflict), replace_on_success(tmp_path / "a" / "x", exclusive=True) as file:
        file.write(b"other")
    assert (tmp_path / "a" / "x").read_bytes() == b"whole" and everything(tmp_path) == ["a", "a/x"]


def test_an_unnamed_file_is_kept_under_its_name_or_gone(tmp_path: Path) -> None:
    with unnamed_file(tmp_path / "a") as unnamed:
        unnamed.file.write(b"x")
        unnamed.keep(tmp_path / "a" / "x")
    with unnamed_file(tmp_path / "a") as unnamed:
        unnamed.file.write(b"y")
    assert everything(tmp_path) == ["a", "a/x"]
