"""Sources to prepare and ways to look at what came out, without the code under test."""

from __future__ import annotations

import io
import os
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from allaboard.shards import Index
from allaboard.storage.base import Store

MOMENT = 1_700_000_000  # when every file of a source was written, unless a test says otherwise


def a_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (MOMENT, MOMENT))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def some_files(count: int, size: int = 100, seed: int = 0) -> dict[str, bytes]:
    """Pictures with their classes, in a folder per class."""
    rng = random.Random(seed)
    files = {}
    for number in range(count):
        files[f"class-{number % 3}/{number:05d}.png"] = rng.randbytes(size)
        files[f"class-{number % 3}/{number:05d}.cls"] = str(number % 3).encode()
    return files


def some_samples(count: int, size: int = 100, seed: int = 0) -> list[dict[str, object]]:
    rng = random.Random(seed)
    return [
        {"__key__": f"k{number:05d}", "bin": rng.randbytes(size), "cls": number} for number in range(count)
    ]


def members(data: bytes) -> dict[str, bytes]:
    """Names and bytes of a tar file, in order, as Python's own tarfile sees them."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {}
        for info in tar:
            file = tar.extractfile(info)
            assert file is not None and info.isreg() and info.name not in found
            found[info.name] = file.read()
        return found


def contents(store: Store, index: Index) -> dict[str, bytes]:
    """Names and bytes of all files in all shards."""
    found: dict[str, bytes] = {}
    for shard in index.shards:
        inside = members(store.read(shard.name))
        assert not found.keys() & inside.keys()
        found |= inside
    return found


def keys_of(store: Store) -> set[str]:
    return {entry.key for entry in store.entries()}


def keys_with(*indexes: Index) -> set[str]:
    """All keys of a place that holds these versions, with nothing left over."""
    return {"index.json"} | {
        key
        for index in indexes
        for key in (
            f"{index.folder}/index.json",
            f"{index.folder}/holds/prepared.json",
            *(shard.name for shard in index.shards),
        )
    }


def as_nobody(do: Callable[[], object]) -> str:
    """What `do` raises, as text, when somebody does it who may not do everything (root may)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            do()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


@contextmanager
def a_place_for_all() -> Iterator[Path]:
    """A folder that every user may enter and write to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)
