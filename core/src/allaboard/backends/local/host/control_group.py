"""Control groups: those around this process, and the group of a run's members, a mark that none takes off.

A process may clear its environment, begin a session and lose its parents; its control group stays, and so
does that of its children. The group of a run (cgroup v2) is made below that of its supervisor where the
system lets it: root in most places but containers, users below their ``user@.service``. It limits nothing.
"""

# ruff: noqa: PTH102, PTH106, PTH118, PTH120, PTH123, PTH208  (used between fork and exec; pathlib is slow)

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

# --- the group of a run -------------------------------------------------------------------------------------


def make_group(mark: str) -> str | None:
    """The folder of the group of this run, made below this process's own; None where that cannot be."""
    own = next(cgroup_folders("/", ""), None)
    if own is None:
        return None
    folder = os.path.join(own, _name(mark))
    with contextlib.suppress(OSError):
        os.mkdir(folder, 0o755)
    return folder if os.access(os.path.join(folder, "cgroup.procs"), os.W_OK) else None


def join_group(folder: str) -> None:
    """Move this process into the group. Raises OSError."""
    with open(os.path.join(folder, "cgroup.procs"), "w") as file:
        file.write("0")


def remove_group(mark: str) -> None:
    """Remove the group of a run if it is empty, and below a group of this process."""
    for own in cgroup_folders("/", ""):
        with contextlib.suppress(OSError):
            os.rmdir(os.path.join(own, _name(mark)))


def pids_in_group(mark: str) -> list[int]:
    """The processes in the group of a run, wherever it was made. Linux only; elsewhere []."""
    pids = []
    with contextlib.suppress(FileNotFoundError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            lines = read_text("/proc", name, "cgroup").splitlines()
            if any(f"/{_name(mark)}/" in f"{line}/" for line in lines):
                pids.append(int(name))
    return pids


def _name(mark: str) -> str:
    return f"allaboard-{mark}"


# --- the groups around this process -------------------------------------------------------------------------


def cgroup_folders(root: str, controller: str) -> Iterator[str]:
    """Folders of the control groups around this process, innermost first, that may limit ``controller``.

    A limit of any of them counts. In a container the path in /proc/self/cgroup may be the host's, while the
    mount shows only our part of it (the mount's root): what lies outside is not visible, and the container's
    limit is at the mount.
    """
    mounts = list(_cgroup_mounts(read_text(root, "proc/self/mountinfo")))
    for line in read_text(root, "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        unified = number == "0" and not names
        if not unified and controller not in names.split(","):
            continue
        for at, mount_root, kind, options in mounts:
            if kind == "cgroup2" if unified else kind == "cgroup" and controller in options:
                yield from _parents_up_to(
                    os.path.join(root, at.lstrip("/")), _path_below_mount(path, mount_root)
                )


def _cgroup_mounts(mountinfo: str) -> Iterator[tuple[str, str, str, list[str]]]:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) > 4 and len(right) > 2 and right[0] in ("cgroup", "cgroup2"):
            yield left[4], left[3], right[0], right[2].split(",")


def _path_below_mount(path: str, mount_root: str) -> str:
    """``path`` as seen below a mount that shows ``mount_root`` of the hierarchy."""
    if mount_root == "/":
        return path
    return path[len(mount_root) :] if f"{path}/".startswith(f"{mount_root}/") else "/"


def _parents_up_to(mount: str, path: str) -> Iterator[str]:
    path = "" if "/.." in path else path.strip("/")  # "/.." in the path: outside of our namespace
    while path:
        yield os.path.join(mount, path)
        path = os.path.dirname(path)
    yield mount


def read_text(*path: str) -> str:
    """The text of a small file; "" where it cannot be read."""
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
