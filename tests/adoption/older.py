"""An older allaboard beside the one of this checkout: the sources of a commit, in an environment of their own
that shares all other packages with this one.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FROM = "ADOPT_FROM"
"""The environment variable that names the commit."""
SOURCES = ("core/src", "provider/src")


@dataclass(frozen=True)
class Older:
    """``python``: its interpreter, in a folder with its command ``allaboard``."""

    commit: str
    python: Path

    @property
    def environ(self) -> dict[str, str]:
        """The caller's environment, in which `python` and `allaboard` are the older ones."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**own, "PATH": os.pathsep.join([str(self.python.parent), own.get("PATH", "")])}


def older_or_skip(folder: Path) -> Older:
    """The older allaboard that ``make adoption FROM=COMMIT`` asks for; without one the tests skip."""
    commit = os.environ.get(FROM)
    if not commit:
        pytest.skip(f"{FROM} names no commit")
    return older(commit, folder)


def older(commit: str, folder: Path) -> Older:
    """Put the sources of ``commit`` below ``folder``, and make an environment that starts with them."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", commit, *SOURCES], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder / "source", filter="data")
    home = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    packages = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # Folders are searched in this order, and the .pth files in the last one are not read: this checkout is
    # installed by one of them.
    lines = [*(str(folder / "source" / part) for part in SOURCES), sysconfig.get_path("purelib")]
    (packages / "older.pth").write_text("\n".join(lines) + "\n")
    (packages / "allaboard.pth").write_text((folder / "source/core/src/allaboard.pth").read_text())
    python = home / "bin" / "python"
    for name, module in (("allaboard", "allaboard.cli"), ("airflow", "airflow.__main__")):
        command = python.with_name(name)
        command.write_text(f"#!{python}\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        command.chmod(0o755)
    return Older(commit, python)
