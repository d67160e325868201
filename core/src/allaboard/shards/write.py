"""One shard: samples in, a tar file and its checksum out."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from allaboard.errors import BadInput
from allaboard.shards.index import Shard
from allaboard.shards.samples import Part, Sample
from allaboard.shards.tar import BLOCK, header, padding, trailer
from allaboard.text.filenames import relative_name, sha256

SHARD_NAME = re.compile(r"shard-\d{6,}-[0-9a-f]{12}\.tar")
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """A shard ends before it would hold more samples or bytes (headers included) than this; None: no
    limit.
    """

    samples: int | None
    size: int | None


class ShardFile:
    """A shard being written, through ``write``."""

    def __init__(self, write: Callable[[bytearray], None]) -> None:
        self._write = write
        self._digest = hashlib.sha256()
        self._pending = bytearray()
        self.size = 0
        self.samples = 0

    def has_room(self, headers: list[bytes], sample: Sample, limits: Limits) -> bool:
        """True if the sample may still go in. An empty shard takes any."""
        if self.samples == 0:
            return True
        if limits.samples is not None and self.samples >= limits.samples:
            return False
        pairs = zip(headers, sample.parts, strict=True)
        size = sum(len(head) + part.size + -part.size % BLOCK for head, part in pairs)
        return limits.size is None or self.size + size <= limits.size

    def add(self, headers: list[bytes], sample: Sample) -> None:
        for head, part in zip(headers, sample.parts, strict=True):
            self._put(head)
            for chunk in _bytes_of(part):
                self._put(chunk)
            self._put(padding(part.size))
        self.samples += 1

    def finish(self, number: int) -> Shard:
        """The shard's entry for the index. The name is derived from the content, so no other content ever has
        it.
        """
        self._put(trailer(self.size))
        self._flush()
        checksum = self._digest.hexdigest()
        name = relative_name(f"shard-{number:06d}-{checksum[:12]}.tar")
        return Shard(name, self.size, self.samples, sha256(checksum))

    def _put(self, data: bytes) -> None:
        self._pending += data
        self.size += len(data)
        if len(self._pending) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        self._digest.update(self._pending)
        self._write(self._pending)
        self._pending.clear()


def headers_of(sample: Sample) -> list[bytes]:
    return [header(f"{sample.key}.{part.extension}", part.size) for part in sample.parts]


def _bytes_of(part: Part) -> Iterator[bytes]:
    if part.path is None:
        yield part.data or b""
        return
    left = part.size
    try:
        file = os.open(part.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            while chunk := os.read(file, min(_CHUNK, left + 1)):
                left -= len(chunk)
                if left < 0:
                    break
                yield chunk
        finally:
            os.close(file)
    except OSError as error:
        raise BadInput(f"{part.path}: cannot be read: {error.strerror}") from error
    if left:
        raise BadInput(
            f"{part.path}: its size changed while it was read; prepare when no process writes to it"
        )
