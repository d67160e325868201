"""Folders of several users of a machine, side by side: each user writes to the own folder and reads the
others.

Only its owner can make, rename, remove or lock anything in a user's folder. The owner by the kernel decides,
not the folder's name. Everything is opened relative to its open folder and never through a symbolic link, and
without waiting (a file may turn out to be a pipe).

A pipe shows that a process lives: the process has it open for reading, as only its user may. Opening it for
writing tells whether a reader exists. The kernel closes it with the last process that has it.
"""

# ruff: noqa: PTH101, PTH102, PTH116, PTH118, PTH119, PTH120, PTH208  (pathlib knows no folder descriptors)

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator

from allaboard.errors import SiteError

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
FOLDER = READ | os.O_DIRECTORY

_BESIDE = re.compile(r"\.([0-9]{1,10})(\.[0-9a-f]{8})?")
_INSIDE = re.compile(r"([0-9]{1,10})(\.[0-9a-f]{8})?")
_TRIES = 20


def user_folders(path: str) -> Iterator[tuple[int, str]]:
    """(user, path) of every user's folder of the pool ``path``; what is not owned as it says is passed over.

    They stand beside each other as ``<path>.<user>``, or as ``<path>/<user>`` where root made ``<path>``.
    Raises OSError when the folder that holds them cannot be read.
    """
    parent, base = os.path.split(path)
    yield from _user_folders_beside(parent, base, _BESIDE)
    with contextlib.suppress(OSError):
        yield from _user_folders_beside(path, "", _INSIDE)


def _user_folders_beside(parent: str, base: str, form: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    for name in sorted(os.listdir(parent)):
        match = form.fullmatch(name[len(base) :]) if name.startswith(base) else None
        if match is None:
            continue
        at = os.path.join(parent, name)
        with contextlib.suppress(OSError):
            info = os.lstat(at)
            if stat.S_ISDIR(info.st_mode) and info.st_uid == int(match[1]):
                yield info.st_uid, at


def own_folder(path: str) -> tuple[str, int]:
    """The path and a descriptor of this user's folder of the pool, made if needed; others may read it. Raises
    SiteError if others could remove it, OSError if it cannot be made.
    """
    for _ in range(_TRIES):
        own = [at for user, at in user_folders(path) if user == os.geteuid()]
        if not own:
            _make_own(path)
            continue
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(own[0], FOLDER)
            if os.fstat(fd).st_uid == os.geteuid():
                _lock_against_tmpfiles(fd)
                return own[0], fd
            os.close(fd)
    raise OSError(errno.EAGAIN, "another process removes the folder each time it is created", path)


def check_pool(path: str) -> None:
    """Raise SiteError if this user has no folder of the pool yet, and others could rename one there. No wait
    mends that. What may pass, as a full disk, is not looked for.
    """
    with contextlib.suppress(OSError):
        if not any(user == os.geteuid() for user, _ in user_folders(path)) and not _is_root_sticky(path):
            _refuse_unsafe(os.path.dirname(path))


def _make_own(path: str) -> None:
    inside = _is_root_sticky(path)
    parent = path if inside else os.path.dirname(path)
    if not inside:
        _refuse_unsafe(parent)
    plain = f"{os.geteuid()}" if inside else f"{os.path.basename(path)}.{os.geteuid()}"
    # Another user may have taken the name; any other name works too, because the owner decides.
    for name in (plain, f"{plain}.{os.urandom(4).hex()}"):
        at = os.path.join(parent, name)
        try:
            os.mkdir(at, 0o700)
        except FileExistsError:
            if any(user == os.geteuid() for user, _ in user_folders(path)):
                return  # another process of this user was faster
            continue
        os.chmod(at, 0o755)
        return


def _is_root_sticky(path: str) -> bool:
    """Return whether root made this folder for all users: then only root can remove a user's folder from
    it.
    """
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == 0 and info.st_mode & 0o1777 == 0o1777


def _refuse_unsafe(parent: str) -> None:
    info = os.stat(parent)
    if info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX and info.st_uid != os.geteuid():
        raise SiteError(
            f"the pool cannot be kept in {parent}: all users may rename files of others there; "
            f"`chmod +t {parent}`, or point ALLABOARD_POOL to another place",
            code="pool_not_safe",
        )


def _lock_against_tmpfiles(folder: int) -> None:
    """Lock the folder against systemd-tmpfiles, which removes old files from /tmp but skips
    locked folders.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)


def new_folder(parent: int, name: str) -> int:
    """Make and open a folder of this user that others may read."""
    os.mkdir(name, 0o755, dir_fd=parent)
    fd = os.open(name, FOLDER, dir_fd=parent)
    os.fchmod(fd, 0o755)
    return fd


def take_lock(folder: int, name: str) -> int | None:
    """Lock a private file of this user, made if needed; None: another process of this user has it. The lock
    lasts while the descriptor is open.
    """
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def new_pipe(folder: int, name: str, path: str) -> int:
    """Make a pipe, or open the existing one: this process reads it, and all users may write to it."""
    with contextlib.suppress(FileExistsError):
        if os.mkfifo in os.supports_dir_fd:
            os.mkfifo(name, 0o600, dir_fd=folder)
        else:
            os.mkfifo(path, 0o600)
    # Open for writing as well, so that it never reads as "ended".
    fd = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    os.fchmod(fd, 0o622)
    return fd


def has_reader(folder: int, name: str) -> bool:
    """Return whether a process of the pipe's owner has the pipe open."""
    try:
        fd = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def wake_reader(folder: int, name: str) -> None:
    """Write a byte into a pipe of any user, if it is a pipe with a reader."""
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b"!")
        finally:
            os.close(fd)


def drain(fd: int) -> None:
    """Read a pipe empty."""
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 512):
            pass


def replace_file(folder: int, name: str, data: bytes) -> None:
    """Replace a file in this user's folder atomically. Not synced: after a reboot the content
    means nothing.
    """
    made = f".{name}.{os.urandom(4).hex()}"
    fd = os.open(
        made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        os.fchmod(fd, 0o644)
        while data:
            data = data[os.write(fd, data) :]
        os.rename(made, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made, dir_fd=folder)
        raise
    finally:
        os.close(fd)


def read_small_file(folder: int, name: str, limit: int = 1 << 20) -> bytes:
    """Bytes of a regular file; OSError if it is not a regular file, or larger than ``limit``."""
    fd = os.open(name, READ, dir_fd=folder)
    try:
        status = os.fstat(fd)
        # A hard link could make another user's file appear here.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > limit:
            raise OSError(errno.EINVAL, "not a regular file, or too large", name)
        return os.read(fd, limit)
    finally:
        os.close(fd)


def remove_folder(parent: int, name: str) -> None:
    """Remove a folder and the files in it, if it is there and ours to remove."""
    with contextlib.suppress(OSError):
        folder = os.open(name, FOLDER, dir_fd=parent)
        try:
            for file in os.listdir(folder):
                os.unlink(file, dir_fd=folder)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=parent)


def is_same_folder(path: str, fd: int) -> bool:
    """Return whether the open folder is still the folder at ``path``."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    return False


def user_name(user: int) -> str:
    """The login name, or the number where there is none."""
    import pwd

    try:
        return str(pwd.getpwuid(user).pw_name)
    except KeyError:
        return str(user)
