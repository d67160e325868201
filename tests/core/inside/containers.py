"""Pythons of several versions, and a process as a container starts it: pid 1 of its own, a read-only root, a
user without a name, no home, a loopback alone. No image is needed: namespaces of Linux, made by root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from allaboard.backends.kubernetes.lifecycle.helper import helper_files
from allaboard.job.helper import FOLDER, start_words

PYENV = Path.home() / ".pyenv" / "versions"
VERSIONS = ("3.8", "3.9", "3.12")
USER = "54321"
_BOXED = """
set -e
ip link set lo up
mount -t tmpfs none /mnt
mkdir /mnt/python /mnt/work
mount --bind "$1" /mnt/python
mount --bind "$2" /mnt/work
mount -t tmpfs -o mode=0755 none "$HOME"
mkdir -p "$1"
mount --bind /mnt/python "$1"
mount -o remount,ro,bind /
cd /mnt/work
user=$3
shift 3
unset HOME
exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --inh-caps=-all "$@"
"""


def python_of(version: str) -> Path:
    """The folder of a Python of this version; skips where there is none."""
    for folder in sorted(PYENV.glob(f"{version}.*")):
        if (folder / "bin" / "python3").exists():
            return folder
    pytest.skip(f"Python {version} is not in {PYENV}; pyenv install {version}")


def mounted(folder: Path, *, checkpoints: bool = False, copies: bool = False) -> Path:
    """The helper as its mount shows it, below ``folder``: nobody may write there."""
    for path, content in helper_files("file", checkpoints, copies).items():
        file = folder / "helper" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o444)
    for made in (folder / "helper" / "python", folder / "helper"):
        made.chmod(0o555)
    return folder / "helper"


def started_by(helper: Path, command: Sequence[str]) -> list[str]:
    """The command of a container whose helper is in this folder."""
    return [word.replace(FOLDER, str(helper)) for word in start_words(command)] + [*command]


def environment(python: Path | None = None, **more: str) -> dict[str, str]:
    """What a container has at least. ``python``: folder of the one that its image has."""
    folder = (python or Path(sys.executable).parent.parent) / "bin"
    return {"PATH": f"{folder}:/usr/bin:/bin:/usr/sbin:/sbin", "ALLABOARD_RUN": "run-of-a-test", **more}


def boxed(
    python: Path, folder: Path, command: Sequence[str], environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """The end of a command that ran as pid 1 of a container with this Python, in the read-only ``folder``,
    which it sees as /mnt/work.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "ip"))):
        pytest.skip("containers are made of namespaces, which takes root, unshare, setpriv and ip")
    words = ["unshare", "--mount", "--pid", "--fork", "--net", "--mount-proc", "--kill-child"]
    inner = ["env", "-i", *(f"{name}={value}" for name, value in environ.items()), *command]
    folder.chmod(0o755)
    done = subprocess.run(
        [*words, "sh", "-c", _BOXED, "box", str(python), str(folder), USER, *inner],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": str(Path.home())},
    )
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    return done
