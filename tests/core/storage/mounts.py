"""File systems that a test makes for itself, where it may."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@contextmanager
def mounted(folder: Path, *how: str) -> Iterator[None]:
    done = subprocess.run(["mount", *how, str(folder)], capture_output=True, text=True) if AS_ROOT else None
    if done is None or done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip() if done else 'not root'}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
