from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from allaboard.errors import Corrupt, StorageFull
from allaboard.shards import Index, Shard, prepare
from allaboard.shards.cache import Cache
from allaboard.storage import Store, open_store
from allaboard.storage.disk import unnamed_file
from tests.core.s3server import Request, S3Server, between
from tests.core.shards.building import some_samples


@pytest.fixture
def bucket(moto: S3Server) -> Store:
    return open_store(f"s3://{moto.make_bucket()}/data", environ=moto.environ)


@pytest.fixture
def index(bucket: Store) -> Index:
    return prepare(some_samples(10, size=5000), bucket, samples_per_shard=2)


def opened(cache: Cache, store: Store, shard: Shard) -> bytes:
    with cache.open(store, shard) as fd:
        return os.pread(fd, shard.size + 1, 0)


def kept(cache: Cache) -> set[str]:
    return {path.stem for path in cache.folder.glob("*.tar")}


class Counted:
    """A store that counts downloads, and may spoil or fail them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.downloads: list[str] = []
        self.spoil = 0
        self.full = 0
        self.uri = store.uri
        self.stat = store.stat
        self.local_path = store.local_path

    def download(self, key: str, path: Path, progress: object = None) -> None:
        self.downloads.append(key)
        if self.full:
            self.full -= 1
            raise StorageFull(f"{path}: no space left")
        self._store.download(key, path)
        if self.spoil:
            self.spoil -= 1
            data = bytearray(path.read_bytes())
            data[700] ^= 1
            path.write_bytes(data)


def test_a_shard_is_fetched_once_and_kept(tmp_path: Path, bucket: Store, index: Index) -> None:
    store, cache = Counted(bucket), Cache(tmp_path / "cache")
    for _ in range(3):
        for shard in index.shards:
            assert opened(cache, store, shard) == bucket.read(shard.name)  # type: ignore[arg-type]
    assert len(store.downloads) == len(index.shards)
    assert opened(Cache(tmp_path / "cache"), store, index.shards[0])  # type: ignore[arg-type]
    assert len(store.downloads) == len(index.shards)


def test_the_least_recently_used_go_when_the_limit_would_be_passed(
    tmp_path: Path, bucket: Store, index: Index
) -> None:
    first, second, third, fourth = index.shards[:4]
    cache = Cache(tmp_path / "cache", limit=3 * first.size)
    for moment, shard in enumerate((first, second, third, first)):
        opened(cache, bucket, shard)
        path = cache.folder / f"{shard.sha256}.tar"
        os.utime(path, (moment, path.stat().st_mtime))
    opened(cache, bucket, fourth)
    assert kept(cache) == {first.sha256, third.sha256, fourth.sha256}


def test_a_shard_larger_than_the_limit_is_kept_alone(tmp_path: Path, bucket: Store, index: Index) -> None:
    cache = Cache(tmp_path / "cache", limit=10)
    for shard in index.shards[:3]:
        assert opened(cache, bucket, shard) == bucket.read(shard.name)
        assert kept(cache) == {shard.sha256}


def test_an_open_shard_survives_its_removal_from_the_cache(
    tmp_path: Path, bucket: Store, index: Index
) -> None:
    first, second = index.shards[:2]
    cache = Cache(tmp_path / "cache", limit=10)
    with cache.open(bucket, first) as fd:
        opened(cache, bucket, second)
        assert kept(cache) == {second.sha256}
        assert os.pread(fd, first.size, 0) == bucket.read(first.name)


def test_bytes_damaged_on_their_way_are_fetched_again(tmp_path: Path, bucket: Store, index: Index) -> None:
    store, cache = Counted(bucket), Cache(tmp_path / "cache")
    store.spoil = 1
    assert opened(cache, store, index.shards[0]) == bucket.read(index.shards[0].name)  # type: ignore[arg-type]
    assert len(store.downloads) == 2


def test_bytes_damaged_in_the_bucket_are_refused_and_not_kept(
    tmp_path: Path, bucket: Store, index: Index
) -> None:
    cache, shard = Cache(tmp_path / "cache"), index.shards[0]
    bucket.write(shard.name, b"x" * shard.size)
    with pytest.raises(Corrupt, match=f"{shard.name} is damaged: its checksum .* prepare the data set again"):
        opened(cache, bucket, shard)
    assert kept(cache) == set() and list((cache.folder / "incoming").iterdir()) == []


def test_a_full_disk_makes_room_and_tries_again(tmp_path: Path, bucket: Store, index: Index) -> None:
    store, cache = Counted(bucket), Cache(tmp_path / "cache")
    opened(cache, bucket, index.shards[0])
    store.full = 1
    assert opened(cache, store, index.shards[1])  # type: ignore[arg-type]
    assert kept(cache) == {index.shards[1].sha256}
    store.full = 2
    with pytest.raises(StorageFull):
        opened(cache, store, index.shards[2])  # type: ignore[arg-type]


def test_a_connection_lost_in_the_middle_leaves_nothing_half(
    tmp_path: Path, bucket: Store, index: Index, moto: S3Server
) -> None:
    cut = {"once": True}

    def decide(request: Request) -> str | None:
        if request.method == "GET" and request.path.endswith(".tar") and cut.pop("once", None):
            return "cut"
        return None

    cache = Cache(tmp_path / "cache")
    with between(moto, decide) as proxy:
        store = open_store(bucket.uri, environ=proxy.environ)
        assert opened(cache, store, index.shards[0]) == bucket.read(index.shards[0].name)
    assert cut == {} and kept(cache) == {index.shards[0].sha256}


FETCH = """
import json, os, sys
from allaboard.shards import load_index
from allaboard.shards.cache import Cache
from allaboard.storage import open_store
store, cache, downloads = open_store(sys.argv[1]), Cache(__import__("pathlib").Path(sys.argv[2])), 0
real = type(store).download
def download(self, *arguments, **named):
    global downloads
    downloads += 1
    return real(self, *arguments, **named)
type(store).download = download
index = load_index(store)
print("ready", flush=True)
sys.stdin.readline()
for shard in index.shards:
    with cache.open(store, shard) as fd:
        assert os.fstat(fd).st_size == shard.size
print(json.dumps(downloads))
"""


@pytest.mark.thorough
def test_processes_of_one_machine_fetch_each_shard_once(
    tmp_path: Path, bucket: Store, index: Index, moto: S3Server
) -> None:
    environ = {**os.environ, **moto.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", FETCH, bucket.uri, str(tmp_path / "cache")]
    ranks = [
        subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
        answers = [rank.communicate("go\n", timeout=120)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * 4
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert sum(json.loads(answer) for answer in answers) == len(index.shards)


def test_a_process_killed_while_fetching_blocks_nobody_and_leaves_nothing(
    tmp_path: Path, bucket: Store, index: Index, moto: S3Server
) -> None:
    hung = threading.Event()

    def decide(request: Request) -> str | None:
        if request.method == "GET" and request.path.endswith(".tar"):
            hung.set()
            return "hang"
        return None

    with between(moto, decide) as proxy:
        environ = {**os.environ, **proxy.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", FETCH, bucket.uri, str(tmp_path / "cache")]
        with subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as rank:
            assert rank.stdin is not None
            rank.stdin.write("go\n")
            rank.stdin.flush()
            assert hung.wait(60)
            rank.kill()
    cache = Cache(tmp_path / "cache")
    for shard in index.shards:
        opened(cache, bucket, shard)
    assert list((cache.folder / "incoming").iterdir()) == []


def test_a_shard_that_came_whole_and_was_never_taken_goes_with_the_next(
    tmp_path: Path, bucket: Store, index: Index
) -> None:
    cache = Cache(tmp_path / "cache")
    incoming = cache.folder / "incoming"
    incoming.mkdir(parents=True)
    left, held = incoming / ("a0" * 32), incoming / ("b1" * 32)
    left.write_bytes(b"gigabytes")
    held.write_bytes(b"being verified")
    with cache._lock("b1"):
        opened(cache, bucket, next(s for s in index.shards if s.sha256[:2] not in ("a0", "b1")))
    assert list(incoming.iterdir()) == [held]


# --- shards on a disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path / "data")
    prepare(some_samples(4, size=5000), store, samples_per_shard=2)
    yield store


def shards_of(store: Store) -> tuple[Shard, ...]:
    return Index.from_bytes(store.read("index.json"), "").shards


def test_a_local_shard_is_read_where_it_is_and_verified_once_per_machine(tmp_path: Path, disk: Store) -> None:
    shard = shards_of(disk)[0]
    cache = Cache(tmp_path / "cache")
    assert opened(cache, disk, shard) == disk.read(shard.name)
    assert kept(cache) == set()
    note = tmp_path / "cache" / "verified" / shard.sha256
    seen = note.stat().st_mtime_ns
    assert opened(Cache(tmp_path / "cache"), disk, shard) == disk.read(shard.name)
    assert note.stat().st_mtime_ns == seen


@pytest.mark.parametrize("verified_before", [False, True])
@pytest.mark.parametrize("damage", ["flipped", "short", "replaced"])
def test_a_damaged_local_shard_is_refused(
    tmp_path: Path, disk: Store, damage: str, verified_before: bool
) -> None:
    shard = shards_of(disk)[0]
    path = disk.local_path(shard.name)
    assert path is not None
    if verified_before:
        opened(Cache(tmp_path / "cache"), disk, shard)
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[700] ^= 1
        path.write_bytes(data)
    elif damage == "short":
        path.write_bytes(data[:-1])
    else:
        old = path.stat()
        path.unlink()
        path.write_bytes(bytes(len(data)))
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    with pytest.raises(Corrupt, match=f"{shard.name} is damaged"):
        opened(Cache(tmp_path / "cache"), disk, shard)


def test_local_shards_need_no_place_for_notes(tmp_path: Path, disk: Store) -> None:
    (tmp_path / "file").write_bytes(b"")
    shard = shards_of(disk)[0]
    assert opened(Cache(tmp_path / "file" / "cache"), disk, shard) == disk.read(shard.name)


def test_a_note_whose_writer_was_killed_goes_with_the_next(tmp_path: Path, disk: Store) -> None:
    notes = tmp_path / "cache" / "verified"
    notes.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    with unnamed_file(notes) as new:
        left = notes / re.sub(r"-\d+-", f"-{gone.pid}-", new.path.name)
        left.write_bytes(b"")
    shard = shards_of(disk)[0]
    opened(Cache(tmp_path / "cache"), disk, shard)
    assert [note.name for note in notes.iterdir()] == [shard.sha256]
