"""Files and folders that several users of a machine share, and locks on them.

Shared folders are sticky and writable by all, as /tmp is. Everything is opened relative to its open folder
and never through a symbolic link, and without waiting (a file may turn out to be somebody's pipe). Locks are
``flock``s: the kernel drops them with the last process that has them open.
"""

# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH114, PTH118, PTH208  (pathlib knows no folder descriptors)

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from allaboard.errors import SiteError

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
FOLDER = READ | os.O_DIRECTORY


def make_folder(path: str) -> int:
    """Open a shared folder, made if need be: at once with a file ``lock`` in it, so nobody sees it half made.

    Raises SiteError when it should not be trusted, OSError when it cannot be made or opened.
    """
    with contextlib.suppress(FileNotFoundError):
        return _open_shared(path)
    made = f"{path}.{os.urandom(4).hex()}"
    os.mkdir(made, 0o700)
    try:
        fd = os.open(made, FOLDER)
        try:
            os.close(new_file(fd, "lock"))
            os.fchmod(fd, 0o1777)
        finally:
            os.close(fd)
        os.rename(made, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(made, "lock"))
        with contextlib.suppress(OSError):
            os.rmdir(made)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EPERM, errno.EACCES, errno.ENOTDIR):
            raise
    return _open_shared(path)


def make_part(parent: int, name: str, path: str) -> int:
    """The same for a folder in an open one, under a lock: nothing else hides it while half made."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return _open_shared(path, name, parent)
    fd = os.open(name, FOLDER, dir_fd=parent)
    os.fchmod(fd, 0o1777)
    return fd


def _open_shared(path: str, name: str | None = None, parent: int | None = None) -> int:
    try:
        return _trusted(os.open(name or path, FOLDER, dir_fd=parent), path)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and os.path.islink(path):
            raise SiteError(
                f"the pool folder {path} is a symbolic link, which is never followed; "
                "remove it, or point ALLABOARD_POOL to the folder itself",
                code="pool_is_link",
            ) from error
        raise


def _trusted(fd: int, path: str) -> int:
    """The descriptor, unless its owner is somebody who keeps the folder to himself."""
    found = os.fstat(fd)
    shared = found.st_mode & 0o1777 == 0o1777
    if found.st_uid == os.geteuid() or shared:
        if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            os.fchmod(fd, stat.S_IMODE(found.st_mode) | stat.S_ISVTX)
        return fd
    os.close(fd)
    owner = user_name(found.st_uid)
    raise SiteError(
        f"the pool folder {path} belongs to {owner} and is not shared (mode {found.st_mode & 0o7777:o}); "
        f"{owner} can share it with `chmod 1777 {path}`, or point ALLABOARD_POOL to a folder of your own",
        code="pool_not_shared",
    )


def protect(folder: int) -> None:
    """Keep systemd-tmpfiles, which clears /tmp of what is ten days old, away: it passes locked folders by."""
    with contextlib.suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)


def own_folder(parent: int, name: str) -> int:
    """Make and open a folder of ours that others may look into."""
    os.mkdir(name, 0o755, dir_fd=parent)
    fd = os.open(name, FOLDER, dir_fd=parent)
    os.fchmod(fd, 0o755)
    return fd


def new_file(folder: int, name: str) -> int:
    """Make a file that everybody may open, and so lock, at once with its mode; or open the one there is."""
    # Not O_CREAT on the name itself: in a sticky folder Linux refuses that for a file of another user.
    made = f".{name}.{os.urandom(4).hex()}"
    fd = os.open(
        made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        os.fchmod(fd, 0o644)
        with contextlib.suppress(FileExistsError):
            os.link(made, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    finally:
        os.unlink(made, dir_fd=folder)
        os.close(fd)
    return os.open(name, READ, dir_fd=folder)


def take_lock(folder: int, name: str) -> int | None:
    """Lock a file, made if need be; the lock lasts while the descriptor is open. None: somebody has it."""
    while True:
        try:
            fd = os.open(name, READ, dir_fd=folder)
        except FileNotFoundError:
            fd = new_file(folder, name)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            current = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if os.path.samestat(os.fstat(fd), current):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except FileNotFoundError:  # somebody tidied /tmp between open and lock
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def is_held(folder: int, name: str) -> bool:
    """Whether somebody has locked the file. What is not there is not held; what we may not open may be."""
    try:
        fd = os.open(name, READ, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        return error.errno != errno.ELOOP
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def new_lock(folder: int, name: str) -> int:
    """Make and lock a file in a folder of our own."""
    fd = new_file(folder, name)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def new_pipe(folder: int, name: str, path: str) -> int:
    """Make a pipe that everybody may write to, open for reading."""
    if os.mkfifo in os.supports_dir_fd:
        os.mkfifo(name, 0o600, dir_fd=folder)
    else:
        os.mkfifo(path, 0o600)
    # Open for writing as well, so that it never reads as "ended".
    fd = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    os.fchmod(fd, 0o622)
    return fd


def poke(folder: int, name: str) -> None:
    """Write a byte into somebody's pipe, if it is one and he reads it."""
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


def write_whole(folder: int, name: str, data: bytes) -> None:
    """Replace a file in our own folder at one stroke. Not synced: after a reboot it means nothing."""
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


def read_small(folder: int, name: str, limit: int = 1 << 20) -> tuple[bytes, int]:
    """A plain file's bytes and whose it is; OSError when it is no plain file, or larger than ``limit``."""
    fd = os.open(name, READ, dir_fd=folder)
    try:
        found = os.fstat(fd)
        # A hard link would put somebody's words where another may have said them.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size > limit:
            raise OSError(errno.EINVAL, "not a plain small file", name)
        return os.read(fd, limit), found.st_uid
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


def user_name(user: int) -> str:
    """The login name, or the number where there is none."""
    import pwd

    try:
        return str(pwd.getpwuid(user).pw_name)
    except KeyError:
        return str(user)
