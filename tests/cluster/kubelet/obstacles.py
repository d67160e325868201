"""Whether this machine can run pods as processes, and sweeping up after a kubelet that was killed."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.cluster.kubelet import cgroups

FOLDER_PREFIX = "allaboard-kubelet-"
OWNER = "owner"
"""A file of a kubelet's folder: the pid and the start time of its process."""

# Everything that a pod is made of, tried in namespaces that end with the shell.
TRIAL = """
set -e
d=$1
mount -t tmpfs none "$d"
mkdir "$d/l" "$d/u" "$d/w" "$d/m"
mount -t overlay overlay -o lowerdir=/usr,upperdir="$d/u",workdir="$d/w" "$d/m"
ip link set lo up
ip link add t0 type veth peer name t1
test -c /dev/net/tun
"""


@functools.cache
def obstacle() -> str | None:
    """Why pods cannot be processes of this machine, as a reason to skip; None when they can."""
    if not sys.platform.startswith("linux"):
        return "pods as processes need Linux"
    if os.geteuid() != 0:
        return "pods as processes need root: network namespaces, mounts, overlays"
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"pods as processes need the command `{tool}` (iproute2, util-linux)"
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "-n", "-m", "-p", "-f", "-i", "-u", "sh", "-c", TRIAL, "trial", folder]
        tried = subprocess.run(command, capture_output=True, text=True)
    if tried.returncode:
        last = (tried.stderr or "unshare failed").strip().splitlines()[-1]
        return f"pods as processes cannot be made here: {last}"
    return None


def own_folder(folder: Path) -> None:
    """Mark a kubelet's folder as this process's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OWNER).write_text(f"{os.getpid()} {_start_time(os.getpid())}")


def sweep() -> list[str]:
    """Remove folders and control groups of kubelets that are no more; what was removed."""
    removed = cgroups.sweep_dead()
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError, ValueError):
            pid, began = (folder / OWNER).read_text().split()
            if _start_time(int(pid)) != began:
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(str(folder))
    return removed


def _start_time(pid: int) -> str:
    """Tells a process from a later one with the same number; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
