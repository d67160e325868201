"""SHA-256 in the same pass that writes or reads the bytes.

`HashedFile` hashes on a second thread while the first one writes: both leave Python's lock, so a save takes
as long as the slower of the two. `file_digest` reads through a buffer that stays in the processor's cache.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_BUFFER = 2**20
_WORTH_A_THREAD = 2**17
"""Bytes; a smaller piece is hashed sooner than it is handed over."""
_WRITEBACK = 2**25
"""Bytes after which the kernel begins to write them out, so that the last fsync finds little left to do."""


class HashedFile:
    """A new binary file that is written once, from its beginning to its end; takes what `torch.save` and
    `shutil.copyfileobj` need: ``write`` and ``flush``.

    ``size`` and ``sha256`` tell what was written so far.
    """

    def __init__(self, file: BinaryIO, hasher: ThreadPoolExecutor) -> None:
        self.size = 0
        self._file, self._hasher = file, hasher
        self._hash = hashlib.sha256()
        self._handed_out = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of ``data``, which may change afterwards. Raises OSError."""
        piece = memoryview(data).cast("B")
        if len(piece) < _WORTH_A_THREAD:
            self._hash.update(piece)
            self._file.write(piece)
        else:
            hashed = self._hasher.submit(self._hash.update, piece)
            try:
                self._file.write(piece)
            finally:
                hashed.result()  # the caller's memory is its own again when this returns
        self.size += len(piece)
        if self.size - self._handed_out >= _WRITEBACK:
            self._begin_writeback()
        return len(piece)

    def _begin_writeback(self) -> None:
        """Of dirty pages, Linux begins to write out what is said not to be needed, and drops none of them
        (mm/fadvise.c); where that is not known, fsync does all of it.
        """
        begun, self._handed_out = self._handed_out, self.size
        if sys.platform == "linux":
            with suppress(OSError):
                os.posix_fadvise(self._file.fileno(), begun, self.size - begun, os.POSIX_FADV_DONTNEED)

    def flush(self) -> None:
        self._file.flush()

    def writable(self) -> bool:
        return True


@contextmanager
def hashed_file(path: Path) -> Iterator[HashedFile]:
    """A new file at ``path``, durable when the block ends well (its name is once its folder is synchronised).
    Raises OSError, FileExistsError among them.
    """
    with ThreadPoolExecutor(1, "allaboard-hash") as hasher, path.open("xb") as file:
        yield HashedFile(file, hasher)
        file.flush()
        os.fsync(file.fileno())


def file_digest(file: BinaryIO) -> tuple[int, str]:
    """Number of bytes that follow in an open file, and their SHA-256."""
    whole, size = hashlib.sha256(), 0
    buffer = bytearray(_BUFFER)
    view = memoryview(buffer)
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        whole.update(view[:count])
        size += count
    return size, whole.hexdigest()
