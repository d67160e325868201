"""Temporary folders of a process, which are removed soon after its end even if it was killed.

They lie in one folder of this user below the temporary folder, each beside a lock file that its process
holds: the kernel frees the lock however the process ends. Making a folder removes those whose lock is free.
So a state of many gigabytes that a killed `resume` had fetched is removed by the next one, and a folder of a
live process is never touched, whatever its age. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from allaboard.errors import SiteError
from allaboard.storage.disk import translate_os_errors
from allaboard.storage.locks import SUFFIX, Lock, ask_lock, lock_of, locked_name

_NAME = re.compile(r"[0-9a-f]{16}(\.lock)?")
_LEFT_AFTER = 7 * 86400.0
"""Seconds without a change after which a folder counts as abandoned where locks do not work."""


def own_folder() -> Path:
    """This user's folder for scratch data on this machine. StorageError or SiteError when there can be
    none.
    """
    user = os.getuid() if hasattr(os, "getuid") else "user"
    folder = _temporary() / f"allaboard-{user}"
    with translate_os_errors(folder, "making"):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    if not _is_own_folder(status):
        raise SiteError(
            f"{folder} belongs to another user, so nothing is kept there;  set TMPDIR to a folder of your own"
        )
    return folder


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty private folder, which is removed when the block ends or, if this process is killed, by the
    next call of any process of this user. Raises StorageError or SiteError if it cannot be made.
    """
    base = _base()
    if base is None:
        with _unlisted() as folder:
            yield folder
        return
    with translate_os_errors(base, "writing below"):
        sweep_scratch(base, time.time())
        folder, lock = locked_name(base)
    owner = os.getpid()
    try:
        with translate_os_errors(folder, "making"):
            folder.mkdir(mode=0o700)
        yield folder
    finally:
        if os.getpid() == owner:  # a fork that unwinds this block leaves its parent's folder alone
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                lock_of(folder).unlink()
        os.close(lock)


def sweep_scratch(base: Path, now: float) -> None:
    """Remove what processes that are gone left in ``base``; nothing of a live one, nothing of another user,
    and nothing behind a link. Raises nothing: what cannot be removed stays.
    """
    with suppress(OSError):
        for name in sorted({_without_suffix(path.name) for path in base.iterdir()}):
            if _NAME.fullmatch(name):
                with suppress(OSError):
                    _sweep_one(base / name, now)


def _sweep_one(folder: Path, now: float) -> None:
    try:
        with ask_lock(lock_of(folder)) as (answer, status):
            if not stat.S_ISREG(status.st_mode) or not _is_own(status):
                return
            if answer is Lock.FREE or (answer is Lock.UNKNOWN and now - status.st_mtime > _LEFT_AFTER):
                shutil.rmtree(folder, ignore_errors=True)  # never through a link: it refuses one at the top
                if not os.path.lexists(folder):
                    lock_of(folder).unlink()
    except (
        FileNotFoundError
    ):  # the lock file is made first and removed last, so no process makes this folder now
        if _is_own_folder(status := folder.lstat()) and now - status.st_mtime > _LEFT_AFTER:
            shutil.rmtree(folder, ignore_errors=True)


def _without_suffix(name: str) -> str:
    return name[: -len(SUFFIX)] if name.endswith(SUFFIX) else name


def _base() -> Path | None:
    """The folder of all scratch folders of this user; None if another user has its name."""
    try:
        base = own_folder() / "scratch"
    except SiteError:
        return None
    with translate_os_errors(base, "making"):
        base.mkdir(mode=0o700, exist_ok=True)
        return base if _is_own_folder(base.lstat()) else None


@contextmanager
def _unlisted() -> Iterator[Path]:
    """A folder that no sweep will find, for when another user has the name of the usual one."""
    base = _temporary()
    with translate_os_errors(base, "writing below"):
        made = tempfile.TemporaryDirectory(prefix="allaboard-", dir=base)
    with made as folder:
        yield Path(folder)


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise SiteError(f"no folder for scratch data: {error}; set TMPDIR") from error


def _is_own_folder(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and _is_own(status)


def _is_own(status: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or status.st_uid == os.getuid()
