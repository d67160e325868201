"""What every store promises, kept by a folder and by two S3 servers; and how stores are named and opened."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from allaboard.errors import BadInput, StorageConflict, StorageMissing, StorageUnsupported
from allaboard.storage import Store, join, open_store
from allaboard.storage.disk import DiskStore
from allaboard.storage.s3 import PART, S3Store
from tests.core.s3server import S3Server

ODD_KEYS = [
    "a b/c  d.txt",
    "plus+plus/1+1=2",
    "ünïcödé/日本語/🚂.bin",
    "percent%20/100%",
    "query?x=y&z/hash#1",
    "quote'\"`$(x);*[y]{z}~!@^,|<>",
    "x" * 200,
    "..dots/...",
    ".hidden/.x",
]


def keys(store: Store, prefix: str = "") -> list[str]:
    return [entry.key for entry in store.entries(prefix)]


def a_file(path: Path, size: int) -> Path:
    """A file whose pieces all differ, so that none can be swapped or lost unseen."""
    with path.open("wb") as file:
        for number in range(0, size, 4096):
            file.write(number.to_bytes(8, "big") * 512)
        file.truncate(size)
    return path


# --- objects


def test_what_was_written_is_read_whole_and_in_pieces(store: Store) -> None:
    store.write("run-1/note", b"all aboard")
    assert store.read("run-1/note") == b"all aboard"
    assert store.read("run-1/note", 4) == b"aboard"
    assert store.read("run-1/note", 4, 2) == b"ab"
    assert store.read("run-1/note", 0, 3) == b"all"
    assert store.read("run-1/note", 8, 100) == b"rd"
    assert store.read("run-1/note", 10) == b""
    assert store.read("run-1/note", 99, 5) == b""
    assert store.read("run-1/note", 3, 0) == b""


def test_an_empty_object_is_an_object(store: Store) -> None:
    store.write("empty", b"")
    assert store.read("empty") == b""
    assert store.read("empty", 0, 10) == b""
    entry = store.stat("empty")
    assert entry and entry.size == 0
    assert keys(store) == ["empty"]


def test_writing_again_replaces(store: Store) -> None:
    store.write("note", b"a long first value")
    store.write("note", b"second")
    assert store.read("note") == b"second"
    entry = store.stat("note")
    assert entry and entry.size == 6


def test_what_is_missing_is_missing(store: Store, tmp_path: Path) -> None:
    assert store.stat("nothing") is None
    for read in (
        lambda: store.read("nothing"),
        lambda: store.read("nothing", 5, 0),
        lambda: store.download("nothing", tmp_path / "target"),
    ):
        with pytest.raises(StorageMissing, match="nothing"):
            read()
    assert not (tmp_path / "target").exists()
    assert keys(store) == keys(store, "no/such/folder") == store.folders() == store.folders("no/such") == []


def test_a_folder_is_no_object(store: Store, kind: str) -> None:
    store.write("folder/object", b"x")
    assert store.stat("folder") is None
    with pytest.raises(StorageMissing):
        store.read("folder")
    if kind != "rclone":  # which keeps objects in folders, and answers that it cannot delete one
        store.delete(["folder"])
    assert keys(store) == ["folder/object"]


def test_entries_tell_size_and_time_and_are_sorted_by_key(store: Store, kind: str, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.touch()
    for key in ("b", "a/z", "a-b", "a/b/c", "a", "a.b/x", "B"):
        if key != "a" or kind == "moto":  # the others keep folders, and no file of a folder's name
            store.write(key, key.encode())
    found = list(store.entries())
    assert [entry.key for entry in found if entry.key != "a"] == ["B", "a-b", "a.b/x", "a/b/c", "a/z", "b"]
    assert all(entry.size == len(entry.key) for entry in found)
    assert all(abs(entry.modified - clock.stat().st_mtime) < 3600 for entry in found)
    assert store.stat("a/z") == next(entry for entry in found if entry.key == "a/z")


def test_a_prefix_is_a_whole_folder(store: Store) -> None:
    for key in ("step-1/manifest.json", "step-10/manifest.json", "step-1/deep/part", "step-1.txt"):
        store.write(key, b"x")
    assert keys(store, "step-1") == keys(store, "step-1/") == ["step-1/deep/part", "step-1/manifest.json"]
    assert store.folders() == ["step-1", "step-10"]
    assert store.folders("step-1") == ["deep"]
    assert store.folders("step-1/deep") == []


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys_come_back_as_they_went(store: Store, key: str) -> None:
    store.write(key, key.encode())
    assert keys(store) == [key]
    assert store.read(key) == key.encode()
    entry = store.stat(key)
    assert entry and entry.key == key
    if "/" in key:
        assert store.folders() == [key.split("/")[0]]
    store.delete([key])
    assert keys(store) == []


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "..", "a/../../b", "a/./b", "a//b", "a/", "./a", "a\0b", "a/.allaboard-x"]
)
def test_a_key_that_leads_elsewhere_is_always_refused(store: Store, key: str, tmp_path: Path) -> None:
    source = a_file(tmp_path / "source", 10)
    calls: list[Callable[[], Any]] = [
        lambda: store.stat(key),
        lambda: store.read(key),
        lambda: store.write(key, b"x"),
        lambda: store.create(key, b"x"),
        lambda: store.upload(source, key),
        lambda: store.download(key, tmp_path / "target"),
        lambda: store.delete([key]),
    ]
    if key not in ("", "a/"):  # as a prefix the one means the store, the other the folder a
        calls += [
            lambda: store.entries(key),
            lambda: store.folders(key),
            lambda: store.below(key),
            lambda: store.local_path(key),
        ]
    for call in calls:
        with pytest.raises(BadInput, match="storage key"):
            call()
    assert keys(store) == []
    assert not (tmp_path / "target").exists()


def test_negative_ranges_are_refused(store: Store) -> None:
    store.write("x", b"x")
    for start, length in ((-1, None), (0, -1)):
        with pytest.raises(ValueError, match="negative"):
            store.read("x", start, length)


# --- exclusive create


def test_create_makes_what_is_not_there_and_leaves_what_is(exclusive_store: Store) -> None:
    exclusive_store.create("promoted/000000000001.json", b"first")
    with pytest.raises(StorageConflict, match=r"promoted/000000000001\.json.*exists already"):
        exclusive_store.create("promoted/000000000001.json", b"second")
    assert exclusive_store.read("promoted/000000000001.json") == b"first"
    assert keys(exclusive_store) == ["promoted/000000000001.json"]  # no probe, no temporary file


def test_create_respects_what_write_made_and_the_other_way_round(exclusive_store: Store) -> None:
    exclusive_store.write("x", b"written")
    with pytest.raises(StorageConflict):
        exclusive_store.create("x", b"created")
    exclusive_store.delete(["x"])
    exclusive_store.create("x", b"created")
    exclusive_store.write("x", b"written")
    assert exclusive_store.read("x") == b"written"


def test_a_server_that_ignores_the_condition_is_found_out_before_it_harms(rclone: S3Server) -> None:
    store = open_store(f"s3://{rclone.make_bucket()}/x", environ=rclone.environ)
    store.write("taken", b"mine")
    for key in ("taken", "free"):
        with pytest.raises(StorageUnsupported, match="If-None-Match") as caught:
            store.create(key, b"theirs")
        assert rclone.endpoint in str(caught.value)
    assert store.read("taken") == b"mine"
    listed = rclone.client().list_objects_v2(Bucket=store.uri.split("/")[2])
    assert [item["Key"] for item in listed["Contents"]] == ["x/taken"]  # the probe is gone


# --- files


@pytest.mark.thorough(but=("disk-0-bytes", "moto-33554432-bytes", "rclone-67121209-bytes"))
@pytest.mark.parametrize("size", [0, 1, 5 * 2**20, PART, 2 * PART + 12345], ids=lambda size: f"{size}-bytes")
def test_files_go_up_and_come_down_whole_with_progress(store: Store, tmp_path: Path, size: int) -> None:
    source = a_file(tmp_path / "source", size)
    up: list[int] = []
    down: list[int] = []
    store.upload(source, "files/one", up.append)
    store.download("files/one", tmp_path / "new folder" / "target", down.append)
    assert (tmp_path / "new folder" / "target").read_bytes() == source.read_bytes()
    assert sum(up) == sum(down) == size
    assert list((tmp_path / "new folder").iterdir()) == [tmp_path / "new folder" / "target"]
    if size > PART:
        assert store.read("files/one", PART - 5, 10) == source.read_bytes()[PART - 5 : PART + 5]


def test_large_bytes_are_written_whole(store: Store) -> None:
    data = os.urandom(PART + 4096)
    store.write("large", data)
    assert store.read("large") == data


def test_a_download_replaces_a_file_that_is_there(store: Store, tmp_path: Path) -> None:
    store.write("x", b"new")
    (tmp_path / "target").write_bytes(b"old and longer")
    store.download("x", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"new"


def test_uploading_a_file_that_is_not_there_names_it(store: Store, tmp_path: Path) -> None:
    for source in (tmp_path / "absent", tmp_path):
        with pytest.raises(StorageMissing, match=str(source)):
            store.upload(source, "x")
    assert keys(store) == []


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # of the S3 library, when it is interrupted
def test_progress_that_raises_stops_the_transfer_and_nothing_appears(store: Store, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(count: int) -> None:
        raise Stopped

    source = a_file(tmp_path / "source", PART + 1)
    with pytest.raises(Stopped):
        store.upload(source, "up", stop)
    assert keys(store) == []
    store.upload(source, "down")
    (tmp_path / "into").mkdir()
    with pytest.raises(Stopped):
        store.download("down", tmp_path / "into" / "target", stop)
    assert list((tmp_path / "into").iterdir()) == []


# --- deleting


def test_delete_removes_objects_and_the_folders_left_empty(store: Store) -> None:
    for key in ("run/step-1/part", "run/step-1/manifest", "run/step-2/part", "other"):
        store.write(key, b"x")
    store.delete(["run/step-1/part", "run/step-1/manifest", "absent", "no/such/folder/absent"])
    assert keys(store) == ["other", "run/step-2/part"]
    assert store.folders("run") == ["step-2"]
    store.delete(["run/step-2/part"])
    assert store.folders() == []
    store.delete([])
    store.delete(iter(["other"]))
    assert keys(store) == []
    store.write("again", b"x")  # the store itself is still there
    assert keys(store) == ["again"]


# --- stores in stores, threads, forks, pickles


def test_above_is_the_folder_that_holds_it(store: Store) -> None:
    run = store.below("models/run-1")
    store.write("models/note", b"x")
    assert run.above().uri == store.below("models").uri
    assert run.above().read("note") == b"x"
    assert run.above().below("run-1").uri == run.uri


@pytest.mark.parametrize("uri", ["/", "s3://bucket"])
def test_nothing_holds_the_outermost(uri: str) -> None:
    outermost = DiskStore(Path("/")) if uri == "/" else S3Store("bucket")
    with pytest.raises(BadInput, match="holds it"):
        outermost.above()


def test_below_is_the_same_objects_under_shorter_keys(store: Store) -> None:
    run = store.below("models/run-1")
    run.write("step/part", b"x")
    assert keys(store) == ["models/run-1/step/part"]
    assert keys(run) == ["step/part"]
    assert run.uri == join(store.uri, "models/run-1")
    assert run.below("step").read("part") == b"x"
    assert store.below("").uri == store.uri


def test_a_store_is_opened_again_by_its_uri(store: Store, kind: str, request: pytest.FixtureRequest) -> None:
    store.write("x", b"x")
    environ = None
    if kind != "disk":
        environ = request.getfixturevalue(kind).environ
    again = open_store(store.uri, environ=environ)
    assert again.uri == store.uri and keys(again) == ["x"]


def test_a_store_travels_in_a_pickle(store: Store) -> None:
    store.write("x", b"x")
    assert pickle.loads(pickle.dumps(store)).read("x") == b"x"


def test_many_threads_share_a_store(store: Store) -> None:
    def one(number: int) -> bytes:
        key = f"t/{number % 7}/{number}"
        store.write(key, str(number).encode())
        return store.read(key)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(64))) == [str(number).encode() for number in range(64)]
    assert len(keys(store)) == 64


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_store_works_on_in_a_forked_child_and_in_its_parent(store: Store) -> None:
    store.write("before", b"x")
    child = os.fork()
    if child == 0:
        try:
            for number in range(5):
                store.write(f"child/{number}", b"c")
            os._exit(0 if store.read("before") == b"x" else 1)
        except BaseException:
            os._exit(2)
    for number in range(5):
        store.write(f"parent/{number}", b"p")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(keys(store, "child")) == len(keys(store, "parent")) == 5


def test_local_path_is_a_path_on_a_disk_and_nothing_elsewhere(store: Store) -> None:
    store.write("a/b", b"x")
    path = store.local_path("a/b")
    if isinstance(store, DiskStore):
        assert path and path.read_bytes() == b"x"
        assert str(store.local_path()) == store.uri
    else:
        assert path is None and store.local_path() is None


# --- names


@pytest.mark.parametrize(
    ("uri", "parts", "expected"),
    [
        ("s3://bucket", ["run"], "s3://bucket/run"),
        ("s3://bucket/", ["run"], "s3://bucket/run"),
        (
            "s3://bucket/models",
            ["run-1", "step-1/manifest.json"],
            "s3://bucket/models/run-1/step-1/manifest.json",
        ),
        ("s3://bucket/models", [], "s3://bucket/models"),
        ("s3://bucket/models", ["", "x", ""], "s3://bucket/models/x"),
        ("s3://bucket", ["50%+ a b"], "s3://bucket/50%+ a b"),
        ("/data", ["x"], "/data/x"),
        ("/", ["x"], "/x"),
        ("~/models", ["x/"], "~/models/x"),
        ("./models/", ["x"], "./models/x"),
        ("file:///data", ["50% a b"], "file:///data/50%25%20a%20b"),
    ],
)
def test_join(uri: str, parts: list[str], expected: str) -> None:
    assert join(uri, *parts) == expected


@pytest.mark.parametrize("part", ["..", "/etc", "a/../b", "a//b"])
def test_join_refuses_what_leads_elsewhere(part: str) -> None:
    with pytest.raises(BadInput, match="storage key"):
        join("s3://bucket", part)


def test_open_store_makes_paths_absolute_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    relative = open_store("models/../models/./x")
    assert relative.uri == f"{tmp_path}/models/x"
    monkeypatch.chdir("/")
    relative.write("key", b"x")
    assert (tmp_path / "models" / "x" / "key").read_bytes() == b"x"
    assert open_store("~/models").uri == f"{home}/models"
    assert open_store(Path("~/models")).uri == f"{home}/models"
    assert open_store("~/models", environ={"HOME": "/elsewhere"}).uri == "/elsewhere/models"
    assert open_store("/data/").uri == "/data"


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///data/models", "/data/models"),
        ("file://localhost/data", "/data"),
        ("file:/data", "/data"),
        ("FILE:///data/a%20b%3F", "/data/a b?"),
    ],
)
def test_open_store_takes_file_uris(uri: str, path: str) -> None:
    assert open_store(uri).uri == path


def test_open_store_joined_to_a_file_uri_is_the_folder_of_that_name(tmp_path: Path) -> None:
    assert open_store(join(tmp_path.as_uri(), "100% #1?")).uri == f"{tmp_path}/100% #1?"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "names no place"),
        ("  ", "names no place"),
        ("a\0b", "names no place"),
        ("gs://bucket/x", "'gs' is not a kind of store; write s3://bucket/prefix, file:///folder or a plain"),
        ("https://user:hunter2@host/x", "'https' is not a kind of store"),
        ("s3:bucket", "'s3' is not a kind of store; write s3://bucket/prefix"),
        ("s3:/bucket/x", "write s3://bucket/prefix"),
        ("s3://", "the name of the bucket is missing"),
        ("s3:///prefix", "the name of the bucket is missing"),
        ("s3://a b/x", "'a b' is not a bucket name"),
        ("s3://xy", "'xy' is not a bucket name"),
        ("s3://key:hunter2@bucket/x", "holds no credentials"),
        ("s3://bucket/a/../b", "the prefix is not a folder"),
        ("s3://bucket/a//b", "the prefix is not a folder"),
        ("file://data/models", "must be absolute; write file:///data/models"),
        ("file://data", "must be absolute; write file:///data"),
        ("file:///data?x", "write %3F and %23"),
        ("~nobody-of-that-name/x", "there is no home folder of ~nobody-of-that-name"),
    ],
)
def test_open_store_refuses_what_is_no_store(uri: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        open_store(uri)
    assert "hunter2" not in str(caught.value)


def test_s3_addresses_are_cleaned() -> None:
    assert open_store("S3://bucket/a/b/").uri == "s3://bucket/a/b"
    assert open_store("s3://bucket/").uri == "s3://bucket"


def test_a_folder_needs_the_standard_library_alone(tmp_path: Path) -> None:
    import allaboard.storage

    source = Path(allaboard.storage.__file__).parents[2]
    code = (
        f"import sys; sys.path.insert(0, {str(source)!r})\n"
        "from allaboard.storage import open_store\n"
        f"store = open_store({str(tmp_path)!r}); store.write('x', b'1'); store.create('y', b'2')\n"
        "assert [entry.key for entry in store.entries()] == ['x', 'y']\n"
        "assert 'allaboard.storage.s3' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
