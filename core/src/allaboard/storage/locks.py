"""Lock files that show whether a process lives: the process holds the lock of a file beside its data. The
kernel frees the lock however the process ends. Standard library only.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

if sys.platform != "win32":
    import fcntl

SUFFIX = ".lock"
_ATTEMPTS = 20  # a sweep may take a new lock file for one that was left
# A name may turn out to be a link, or a pipe without a writer.
_PLAINLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class Lock(Enum):
    """HELD: another process has it. FREE: it was free, and this process holds it now. UNKNOWN: locks do not
    work, as on Windows and some file systems.
    """

    HELD = "held"
    FREE = "free"
    UNKNOWN = "unknown"


def take_lock(fd: int, *, wait: bool = False) -> Lock:
    """Lock an open file until it is closed. Without ``wait`` only if the lock is free; with it never HELD."""
    if sys.platform == "win32":
        return Lock.UNKNOWN
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return Lock.HELD
    except OSError:
        return Lock.UNKNOWN
    return Lock.FREE


@contextmanager
def ask_lock(path: Path) -> Iterator[tuple[Lock, os.stat_result]]:
    """The state of a file's lock, and the file's status. A free lock is held within the block. A link, a pipe
    or an unreadable file is UNKNOWN; it is not followed, waited for or opened.

    Raises FileNotFoundError when nothing is there.
    """
    status = path.lstat()
    try:
        fd = os.open(path, os.O_RDONLY | _PLAINLY) if stat.S_ISREG(status.st_mode) else None
    except FileNotFoundError:
        raise
    except OSError:
        fd = None
    if fd is None:
        yield Lock.UNKNOWN, status
        return
    try:
        status = os.fstat(fd)
        yield (take_lock(fd) if stat.S_ISREG(status.st_mode) else Lock.UNKNOWN), status
    finally:
        os.close(fd)


def locked_name(base: Path, mode: int = 0o600) -> tuple[Path, int]:
    """An unused name in ``base``, and the descriptor of its lock (`lock_of`), which is held until it is
    closed. Raises OSError.
    """
    for _ in range(_ATTEMPTS):
        path = base / secrets.token_hex(8)
        fd = os.open(lock_of(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAINLY, mode)
        # Between the two calls a sweep may have locked it, or removed it.
        if take_lock(fd) is not Lock.HELD and (os.fstat(fd).st_nlink or sys.platform == "win32"):
            return path, fd
        os.close(fd)
    raise BlockingIOError(f"{base}: every name there is taken")


def lock_of(path: Path) -> Path:
    """The lock file of what lies at ``path``."""
    return path.with_name(path.name + SUFFIX)
