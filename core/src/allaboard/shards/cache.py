"""Shards as files of this machine, verified: fetched from a bucket, or where they lie on a disk.

**Fetched** shards are kept under their checksum and shared by all processes of this user on this machine. One
appears whole and verified or not at all, and is fetched once however many processes ask: the first holds a
lock, which the kernel frees should it die, the others wait for it. When the limit would be passed, those go
that were not used for longest; a reader that has one of them open is not disturbed, because an open file
outlives its name.

**Shards on a disk** are read where they are, and verified once per machine: a note says which state of which
file (inode, size, times of change) had the right checksum. Without a place for notes every process verifies
for itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from stat import S_ISREG

from allaboard.errors import Corrupt, SiteError, StorageFull
from allaboard.shards.index import Shard
from allaboard.storage.base import Store
from allaboard.storage.disk import sweep, translate_os_errors, unnamed_file
from allaboard.storage.locks import Lock, take_lock
from allaboard.storage.scratch import own_folder

LIMIT = 20 * 2**30
_NAME = re.compile(r"[0-9a-f]{64}")
# Without O_NONBLOCK, opening a pipe of that name blocks.
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


def checksum(path: Path) -> str:
    """SHA-256 of a file, lower-case hex."""
    with translate_os_errors(path, "reading"), path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Cache:
    """Below ``folder``, at most ``limit`` bytes of shards, though never fewer than the one fetched last."""

    def __init__(self, folder: Path | None = None, limit: int = LIMIT) -> None:
        self._given = folder
        self._limit = limit
        self._verified: set[tuple[str, str]] = set()

    @cached_property
    def folder(self) -> Path:
        return (self._given or own_folder() / "shards").absolute()

    @contextmanager
    def open(self, store: Store, shard: Shard) -> Iterator[int]:
        """A file descriptor of the verified shard. StorageMissing, or Corrupt when its bytes are not its
        own.
        """
        path = store.local_path(shard.name)
        fd = self._open_fetched(store, shard) if path is None else self._open_if_verified(path, shard)
        try:
            yield fd
        finally:
            os.close(fd)

    # --- on a disk of this machine

    def _open_if_verified(self, path: Path, shard: Shard) -> int:
        with translate_os_errors(path, "reading"):
            fd = os.open(path, _READ)
        try:
            status = os.fstat(fd)
            if not S_ISREG(status.st_mode):
                raise _corrupt_error(str(path), "it is not a file")
            if status.st_size != shard.size:
                raise _corrupt_error(str(path), f"it has {status.st_size} bytes, the index says {shard.size}")
            state = (
                f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
            )
            self._verify(fd, path, shard, state)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _verify(self, fd: int, path: Path, shard: Shard, state: str) -> None:
        if (shard.sha256, state) in self._verified or self._read_note(shard) == state:
            return
        with ExitStack() as stack:
            with suppress(SiteError):  # nowhere to lock: then several may do it at once
                stack.enter_context(self._lock(shard.sha256[:2]))
            if self._read_note(shard) == state:  # another process fetched it meanwhile
                return
            with translate_os_errors(path, "reading"), os.fdopen(os.dup(fd), "rb", buffering=0) as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
            if actual != shard.sha256:
                raise _corrupt_error(str(path), _different_error(actual, shard))
            self._verified.add((shard.sha256, state))
            self._write_note(shard, state)

    def _read_note(self, shard: Shard) -> str | None:
        try:
            return (self.folder / "verified" / shard.sha256).read_text()
        except (OSError, SiteError):
            return None

    def _write_note(self, shard: Shard, state: str) -> None:
        with suppress(OSError, SiteError):
            note = self.folder / "verified" / shard.sha256
            sweep(note.parent, time.time())
            with unnamed_file(note.parent) as new:
                new.file.write(state.encode())
                new.file.flush()
                new.path.replace(note)  # not flushed to the disk: a note that is lost is made again

    # --- fetched

    def _open_fetched(self, store: Store, shard: Shard) -> int:
        path = self.folder / f"{shard.sha256}.tar"
        fd = self._open_kept(path, shard)
        if fd is not None:
            return fd
        with self._lock(shard.sha256[:2]):
            fd = self._open_kept(path, shard)  # another process was faster
            return fd if fd is not None else self._fetch(store, shard, path)

    def _open_kept(self, path: Path, shard: Shard) -> int | None:
        with translate_os_errors(path, "reading"):
            try:
                fd = os.open(path, _READ)
            except FileNotFoundError:
                return None
        status = os.fstat(fd)
        if status.st_size != shard.size:
            os.close(fd)
            path.unlink(missing_ok=True)
            return None
        with suppress(OSError):
            os.utime(path, (time.time(), status.st_mtime))  # the access time records the last use
        return fd

    def _fetch(self, store: Store, shard: Shard, path: Path) -> int:
        """Only under the lock of this shard."""
        incoming = self.folder / "incoming" / shard.sha256
        with translate_os_errors(incoming, "writing"):
            incoming.parent.mkdir(parents=True, exist_ok=True)
            sweep(incoming.parent, time.time())
            self._sweep_incoming(incoming.parent)
        self._check_claimed_size(store, shard)
        self._make_room(shard.size)
        self._download(store, shard, incoming)
        if checksum(incoming) != shard.sha256:  # bytes may be damaged on their way, once
            self._download(store, shard, incoming)
        actual = checksum(incoming)
        with translate_os_errors(path, "writing"):
            if actual != shard.sha256:
                incoming.unlink()
                raise _corrupt_error(f"{store.uri}/{shard.name}", _different_error(actual, shard))
            fd = os.open(incoming, _READ)
            incoming.replace(path)
            return fd

    def _check_claimed_size(self, store: Store, shard: Shard) -> None:
        """Raises Corrupt if the object has another size than the index says, before room is made for it."""
        entry = store.stat(shard.name)
        if entry is not None and entry.size != shard.size:
            where = f"{store.uri}/{shard.name}"
            raise _corrupt_error(where, f"it has {entry.size} bytes, the index says {shard.size}")

    def _sweep_incoming(self, folder: Path) -> None:
        """Remove complete downloads that were never verified: their process was killed, and the shard may
        never be requested again.
        """
        for path in folder.iterdir():
            with suppress(OSError, SiteError):
                if _NAME.fullmatch(path.name):
                    with self._lock(path.name[:2], wait=False):
                        path.unlink()

    def _download(self, store: Store, shard: Shard, path: Path) -> None:
        try:
            store.download(shard.name, path)
        except StorageFull:
            self._make_room(self._limit)
            store.download(shard.name, path)

    def _make_room(self, size: int) -> None:
        """Remove the shards that were not used for longest until ``size`` more bytes fit."""
        with self._lock("all"):
            shards = []
            for path in self.folder.glob("*.tar"):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    shards.append((status.st_atime, status.st_size, path))
            total = sum(size for _, size, _ in shards) + size
            for _, freed, path in sorted(shards):
                if total <= self._limit:
                    return
                path.unlink(missing_ok=True)
                total -= freed

    @contextmanager
    def _lock(self, name: str, wait: bool = True) -> Iterator[None]:
        """Without ``wait``: raises BlockingIOError unless this process gets the lock. With it, each process
        fetches for itself where locks do not work; the rename keeps that right.
        """
        path = self.folder / "locks" / name
        with translate_os_errors(path, "writing"):
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if take_lock(fd, wait=wait) is not Lock.FREE and not wait:
                raise BlockingIOError(f"{path}: the lock is not free")
            yield
        finally:
            os.close(fd)


def _different_error(actual: str, shard: Shard) -> str:
    return f"its checksum is {actual[:12]}..., the index says {shard.sha256[:12]}..."


def _corrupt_error(where: str, trouble: str) -> Corrupt:
    return Corrupt(f"shard {where} is damaged: {trouble}; remove it and prepare the data set again")
