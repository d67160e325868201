"""Read an index, and verify the shards against it."""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from allaboard.errors import Corrupt, StorageMissing
from allaboard.shards.index import INDEX, Index, Shard, place_of
from allaboard.shards.tar import table
from allaboard.storage import open_store
from allaboard.storage.base import Store, read_small
from allaboard.storage.disk import translate_os_errors
from allaboard.text.untrusted import RECORDS

_CHUNK = 8 * 2**20


def load_index(at: str | os.PathLike[str] | Store) -> Index:
    """The index of the data set at this uri or store.

    StorageMissing when nothing was prepared there, or not to its end; `Corrupt` when the index is damaged.
    """
    store = open_store(at) if isinstance(at, (str, os.PathLike)) else at
    try:
        return Index.from_bytes(read_small(store, INDEX, RECORDS.size), f"{store.uri}/{INDEX}")
    except StorageMissing as error:
        hint = "no data set was prepared there, or not to its end"
        if place_of(store.uri) != store.uri:
            hint = "this version was not prepared to its end, or nobody used it for long and it was removed"
        raise StorageMissing(
            f"{store.uri} holds no {INDEX}: {hint}; run `allaboard shards prepare`"
        ) from error


def verify(at: str | os.PathLike[str] | Store) -> list[str]:
    """Problems of the data set at this uri or store: a sentence for each shard that differs from the index,
    or one for the index. Empty: there are none.

    Reads every byte. Raises StorageError when the store cannot be read.
    """
    store = open_store(at) if isinstance(at, (str, os.PathLike)) else at
    try:
        index = load_index(store)
    except (StorageMissing, Corrupt) as error:
        return [str(error)]
    return [problem for shard in index.shards if (problem := _shard_problem(store, shard))]


def _shard_problem(store: Store, shard: Shard) -> str | None:
    entry = store.stat(shard.name)
    if entry is None:
        return f"{shard.name} is missing; prepare the data set again"
    if entry.size != shard.size:
        return f"{shard.name} has {entry.size} bytes, the index says {shard.size}; prepare the data set again"
    with _local_file(store, shard) as (file, actual):
        if actual != shard.sha256:
            return (
                f"{shard.name} does not have the checksum of the index; "
                "remove it and prepare the data set again"
            )
        try:
            with mmap.mmap(file.fileno(), shard.size, access=mmap.ACCESS_READ) as data:
                samples = len(table(data, checked=True).keys)
        except ValueError as error:
            return f"{shard.name} was written wrong: {error}; prepare the data set again"
    if samples != shard.samples:
        return (
            f"{shard.name} holds {samples} samples, the index says {shard.samples}; "
            "prepare the data set again"
        )
    return None


@contextmanager
def _local_file(store: Store, shard: Shard) -> Iterator[tuple[BinaryIO, str]]:
    """The shard as a file of this machine, and its checksum; from a bucket every byte is fetched once."""
    path = store.local_path(shard.name)
    digest = hashlib.sha256()
    with ExitStack() as stack:
        if path is not None:
            with translate_os_errors(path, "reading"):
                file: BinaryIO = stack.enter_context(path.open("rb", buffering=0))
        else:
            scratch = Path(tempfile.gettempdir())
            with translate_os_errors(scratch, "writing below"):
                file = stack.enter_context(tempfile.TemporaryFile(dir=scratch, buffering=0))
        for start in range(0, shard.size, _CHUNK):
            chunk = store.read(shard.name, start, min(_CHUNK, shard.size - start))
            digest.update(chunk)
            if path is None:
                with translate_os_errors(scratch, "writing below"):
                    file.write(chunk)
        yield file, digest.hexdigest()
