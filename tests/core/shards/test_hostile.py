"""Data sets whose author means no good: their reader's files stay as they are, and nobody waits for ever."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allaboard.errors import AllaboardError, BadInput, Corrupt
from allaboard.inside import ShardReader
from allaboard.shards import load_index, prepare, verify
from allaboard.shards.cache import Cache
from allaboard.shards.index import Shard
from allaboard.shards.tar import table
from allaboard.storage import Store
from tests.core.s3server import S3Server
from tests.core.shards.building import some_samples


@pytest.fixture(autouse=True)
def reachable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ShardReader` opens the bucket by its uri."""
    server: S3Server = request.getfixturevalue("moto")
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A file of the reader's beside its cache, that is as it was in the end."""
    path = tmp_path / "home" / "precious.tar"
    path.parent.mkdir()
    path.write_bytes(b"precious")
    yield path
    assert path.read_bytes() == b"precious"
    assert [p.name for p in path.parent.iterdir() if p.name != "cache"] == ["precious.tar"]


def publish(store: Store, data: bytes, **changed: Any) -> None:
    """A data set of one shard, with an index that fits but for ``changed``."""
    shard = {"name": "a.tar", "size": len(data), "samples": 1, "sha256": hashlib.sha256(data).hexdigest()}
    store.write("a.tar", data)
    body = {
        "version": 1,
        "samples": changed.get("samples", 1),
        "shards": [{**shard, **changed}],
        "created": "2026-11-21T12:00:00.250Z",
        "fingerprint": "files:v1:00",
    }
    store.write("index.json", json.dumps(body).encode())


def a_tar(name: str = "k.bin", data: bytes = b"data", **fields: Any) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for field, value in fields.items():
            setattr(info, field, value)
        tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def resized(size: bytes, tar: bytes | None = None, *, mend: bool = True) -> bytes:
    """A tar file whose first header holds these bytes for its size."""
    data = bytearray(tar or a_tar())
    data[124:136] = size.ljust(12, b"\0")
    if mend:
        data[148:156] = b" " * 8
        data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


def pax(*records: tuple[str, str], kind: bytes = b"x") -> bytes:
    body = b""
    for word, value in records:
        record = f" {word}={value}\n".encode()
        length = len(record) + len(str(len(record) + 2))
        body += f"{length}".encode() + record
    return a_tar("pax", body, type=kind)[: 512 + len(body) + -len(body) % 512] + a_tar()


def read(store: Store, cache: Path) -> list[Any]:
    return [sample for batch in ShardReader(store.uri, batch_size=1, cache=cache) for sample in batch]


PATHS = [
    "../precious",
    "../../home/precious",
    "/{home}/precious",
    "..",
    "",
    "a" * 63 + "/",
    "A" * 64,
    "0" * 5000,
    "\0" * 64,
    7,
    None,
]


@pytest.mark.parametrize("sha256", PATHS, ids=lambda given: repr(given)[:30])
def test_a_checksum_that_is_a_path_writes_and_deletes_nothing(
    store: Store, tmp_path: Path, precious: Path, sha256: Any
) -> None:
    given = sha256.format(home=precious.parent) if isinstance(sha256, str) else sha256
    publish(store, a_tar(), sha256=given)
    with pytest.raises(Corrupt, match=r"is not a SHA-256|holds a NUL"):
        read(store, precious.parent / "cache")
    assert len(verify(store)) == 1


@pytest.mark.parametrize(
    "name", ["../home/precious.tar", "/etc/passwd", "a/../../x", "C:\\x", "a\0b", "", "x" * 300, 5, None]
)
def test_a_shards_name_that_leads_elsewhere_is_refused(store: Store, precious: Path, name: Any) -> None:
    publish(store, a_tar(), name=name)
    with pytest.raises(Corrupt, match="name"):
        read(store, precious.parent / "cache")


@pytest.mark.parametrize(
    "changed",
    [
        {"size": -1},
        {"size": 0},
        {"size": 1e300},
        {"size": "10240"},
        {"size": 2**70},
        {"samples": 0},
        {"samples": -(10**9)},
        {"samples": True},
        {"samples": None},
    ],
    ids=repr,
)
def test_numbers_that_make_no_sense_are_refused(store: Store, tmp_path: Path, changed: Any) -> None:
    publish(store, a_tar(), **changed)
    with pytest.raises(Corrupt):
        read(store, tmp_path / "cache")


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"version": 1' + b"0" * 10_000 + b"}", b'{"version": NaN}']
)
def test_an_index_that_is_no_plain_json_is_refused_in_words(store: Store, data: bytes) -> None:
    store.write("index.json", data)
    with pytest.raises(Corrupt, match="is not an index of shards"):
        load_index(store)
    assert prepare(some_samples(2), store).samples == 2  # and does not keep its owner from a new one


def test_a_size_that_is_only_claimed_clears_no_cache(store: Store, tmp_path: Path) -> None:
    if store.local_path() is not None:
        pytest.skip("shards on a disk are read where they are")
    cache = Cache(tmp_path / "cache", limit=100_000)
    shard = prepare(some_samples(2), store).shards[0]
    with cache.open(store, shard):
        pass
    other = Shard.from_dict({**shard.to_dict(), "size": 10**15, "sha256": "0" * 64})
    with pytest.raises(Corrupt, match="the index says"), cache.open(store, other):
        pass
    assert [path.stem for path in cache.folder.glob("*.tar")] == [shard.sha256]


@pytest.mark.parametrize("name", ["index.json", "a.tar", "journal.json"])
def test_a_pipe_in_a_folder_of_shards_keeps_nobody_waiting(tmp_path: Path, name: str) -> None:
    from allaboard.storage import open_store

    store = open_store(tmp_path / "prepared")
    publish(store, a_tar())
    path = tmp_path / "prepared" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    if name != "journal.json":
        with pytest.raises(AllaboardError):
            read(store, tmp_path / "cache")
        assert verify(store)
    else:
        assert prepare(some_samples(2), store).samples == 2


BAD_TARS = {
    "negative": (resized(b"-0000000100"), "holds no size"),
    "negative, as large as the header": (resized(b"-0000001000"), "holds no size"),
    "signed": (resized(b"+0000000004"), "holds no size"),
    "underscore": (resized(b"0000_000004"), "holds no size"),
    "no octal": (resized(b"00000000009"), "holds no size"),
    "base-256, huge": (resized(b"\x80" + b"\xff" * 11), "ends within"),
    "base-256, negative": (resized(b"\xff" * 12), "holds no size"),
    "base-256, other": (resized(b"\x81" + b"\0" * 11), "holds no size"),
    "octal, huge": (resized(b"77777777777"), "ends within"),
    "bad checksum": (resized(b"00000000003\0", mend=False), "does not have its checksum"),
    "cut short": (a_tar()[:700], "ends"),
    "no end": (a_tar()[:1024], "without the mark of an end"),
    "absolute": (a_tar("/etc/cron.d/x.sh"), "begins with '/'"),
    "parent": (a_tar("../../x.sh"), "holds the level '..'"),
    "parent inside": (a_tar("a/../../x.sh"), "holds the level '..'"),
    "backslash": (a_tar("a\\x.sh"), "backslash"),
    "drive": (a_tar("C:x.sh"), "drive"),
    "part twice": (a_tar()[:1024] + a_tar(), "a part twice"),
    "part twice in upper case": (a_tar()[:1024] + a_tar("k.BIN"), "a part twice"),
    "key twice": (a_tar()[:1024] + a_tar("j.bin")[:1024] + a_tar(), "comes twice"),
    "sparse": (a_tar(type=tarfile.GNUTYPE_SPARSE), "is sparse"),
    "pax path": (pax(("path", "../../x.sh")), "holds the level '..'"),
    "pax size, negative": (pax(("size", "-512")), "cannot be read"),
    "pax size, huge": (pax(("size", "9" * 19)), "ends within"),
    "pax size, digits": (pax(("size", "9" * 5000)), "cannot be read"),
    "pax sparse": (pax(("GNU.sparse.major", "1"), ("GNU.sparse.name", "x")), "is sparse"),
    "pax for all": (pax(("path", "x.bin"), kind=b"g"), "names all files alike"),
    "pax, length": (a_tar("pax", b"0000000000000000000000000000 x=y\n", type=b"x"), "cannot be read"),
    "pax, backwards": (a_tar("pax", b"-9 path=x\n", type=b"x"), "cannot be read"),
    "pax, too long": (a_tar("pax", b"999 path=x\n", type=b"x"), "cannot be read"),
    "long name": (a_tar("L", b"x" * (2**20 + 1), type=b"L"), "is longer than"),
    "long name, beyond": (resized(b"00077777777", a_tar("L", b"x", type=b"L")), "is longer than|ends"),
}


@pytest.mark.parametrize("name", BAD_TARS)
@pytest.mark.timeout(60)
def test_a_damaged_or_hostile_shard_is_named_and_hangs_nobody(
    store: Store, tmp_path: Path, name: str
) -> None:
    data, words = BAD_TARS[name]
    publish(store, data)
    (problem,) = verify(store)
    assert problem.startswith("a.tar ") and "prepare the data set again" in problem
    with pytest.raises(ValueError, match=words):
        table(data, checked=True)
    if name != "bad checksum":  # its checksum in the index is what the reader goes by
        with pytest.raises(Corrupt, match="cannot be read"):
            read(store, tmp_path / "cache")


@pytest.mark.parametrize(
    "kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_in_a_shard_are_passed_over(store: Store, tmp_path: Path, kind: bytes) -> None:
    link = a_tar("evil.bin", b"", type=kind, linkname="/etc/passwd")[:512]
    publish(store, resized(b"00000777777", link) + a_tar())
    assert verify(store) == []
    assert [(s["__key__"], s["bin"]) for s in read(store, tmp_path / "cache")] == [("k", b"data")]


def test_what_many_small_pax_records_cost_grows_with_their_bytes(tmp_path: Path) -> None:
    data = a_tar("pax", b"5 a=\n" * 200_000, type=b"x")
    data = data[: 512 + 10**6 + -(10**6) % 512] + a_tar()
    assert table(data).keys == ["k"]


FUZZ = r"""
import random, sys
from tests.core.shards.test_hostile import a_tar, pax
from allaboard.errors import Corrupt
from allaboard.shards.index import Index
from allaboard.shards.tar import table

chance = random.Random(int(sys.argv[1]))
seeds = [a_tar(), a_tar("x" * 200 + ".bin"), pax(("path", "long.bin"), ("size", "4")), a_tar("d/", b"")]
words = [b"-", b"\x80", b"\xff", b"\0", b"7777777", b"..", b"/", b"x", b"g", b"L", b"S", b"1", b"9 path=a\n"]
index = (
    b'{"version": 1, "samples": 1, "shards": [{"name": "a.tar", "size": 1, "samples": 1, "sha256": "'
    + b"0a" * 32 + b'"}], "created": "2026", "fingerprint": "f"}'
)
pieces = [b'"', b"{", b"[", b"]", b"}", b",", b":", b"-1", b"1e999", b"null", b"../", b"9" * 50, b"\\ud800"]


def mutated(data, pieces, header):
    data = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        piece = chance.choice(pieces)
        at = chance.choice((0, 512, 1024)) + chance.choice((0, 124, 130, 135, 148, 156, 345)) if header else 0
        if not header or chance.random() < 0.3:
            at = chance.randrange(len(data) + 1)
        stop = at + len(piece) if header or chance.random() < 0.5 else at
        data[at:stop] = piece
    return bytes(data[: chance.randrange(len(data) + 1)]) if chance.random() < 0.1 else bytes(data)


for _ in range(int(sys.argv[2])):
    data = mutated(b"".join(chance.choices(seeds, k=chance.randrange(1, 4))), words, True)
    try:
        found = table(data, checked=chance.random() < 0.2)
    except ValueError as error:
        assert str(error).isprintable(), ascii(str(error))
    else:
        for key, parts in zip(found.keys, found.parts):
            assert ".." not in key.split("/") and not key.startswith("/"), key
            assert all(0 <= start <= stop <= len(data) for _, start, stop in parts), parts
    try:
        Index.from_bytes(mutated(index, pieces, False), "here")
    except Corrupt as error:
        assert len(str(error)) < 1000
"""


def test_no_bytes_hang_or_surprise_the_readers_of_tars_and_indexes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FUZZ, "9", "4000"], timeout=120, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_prepare_wrote_is_still_good(store: Store, tmp_path: Path) -> None:
    prepare(some_samples(5), store, samples_per_shard=2)
    assert verify(store) == []
    assert len(read(store, tmp_path / "cache")) == 5
    with pytest.raises(BadInput):
        ShardReader(store.uri, batch_size=0)
