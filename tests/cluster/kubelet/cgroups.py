"""Control groups of pods, where this machine lets us make them: memory limits, OOM kills, freezing, counting.

Both layouts occur: one hierarchy with every controller (v2), or v1 controllers beside a v2 hierarchy without
them.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PREFIX = "allaboard-kubelet-"


class Cgroups:
    """The groups of one kubelet, below one folder per hierarchy that is named by its process."""

    def __init__(self) -> None:
        name = f"{PREFIX}{os.getpid()}"
        self._unified = self._made(_unified_root(), name)
        """Freezing and killing; on v2 memory too."""
        self._memory_v2 = self._unified is not None and _delegate_memory(self._unified)
        self._memory_v1 = None if self._memory_v2 else self._made(_mounted(ROOT / "memory"), name)

    @property
    def limits_memory(self) -> bool:
        return self._memory_v2 or self._memory_v1 is not None

    @property
    def freezes(self) -> bool:
        return self._unified is not None

    def create(self, name: str, memory: int | None = None) -> Cgroup:
        """A group for one container. ``memory``: its limit in bytes."""
        unified = self._made(self._unified, name)
        v1 = self._made(self._memory_v1, name)
        if memory is not None:
            with suppress(OSError):
                if v1 is not None:
                    (v1 / "memory.limit_in_bytes").write_text(str(memory))
                elif unified is not None and self._memory_v2:
                    (unified / "memory.max").write_text(str(memory))
                    (unified / "memory.swap.max").write_text("0")
                    (unified / "memory.oom.group").write_text("1")
        return Cgroup(unified, v1)

    @staticmethod
    def _made(parent: Path | None, name: str) -> Path | None:
        if parent is None:
            return None
        with suppress(OSError):
            (parent / name).mkdir(exist_ok=True)
            return parent / name
        return None

    def close(self) -> None:
        for top in (self._unified, self._memory_v1):
            if top is not None:
                _remove(top)


class Cgroup:
    """The groups of one container."""

    def __init__(self, unified: Path | None, memory_v1: Path | None) -> None:
        self._unified, self._v1 = unified, memory_v1

    @property
    def paths(self) -> list[str]:
        return [str(path) for path in (self._unified, self._v1) if path is not None]

    def oom_kills(self) -> int:
        """Processes of it that the kernel has killed for its limit."""
        for folder, name in ((self._v1, "memory.oom_control"), (self._unified, "memory.events")):
            if folder is not None and (folder / name).exists():
                with suppress(OSError):
                    told = dict(line.split() for line in (folder / name).read_text().splitlines())
                    return int(told.get("oom_kill", 0))
        return 0

    def pids(self) -> list[int]:
        for folder in (self._unified, self._v1):
            if folder is not None:
                with suppress(OSError):
                    return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
        return []

    def freeze(self, frozen: bool) -> None:
        if self._unified is not None:
            with suppress(OSError):
                (self._unified / "cgroup.freeze").write_text("1" if frozen else "0")

    def remove(self) -> None:
        for folder in (self._unified, self._v1):
            if folder is not None:
                _remove(folder)


def sweep_dead() -> list[str]:
    """Remove the groups of kubelets that are no more; their names. Groups of living ones stay."""
    removed = []
    for root in (_unified_root(), _mounted(ROOT / "memory")):
        for folder in root.glob(f"{PREFIX}*") if root is not None else []:
            if not Path(f"/proc/{folder.name.removeprefix(PREFIX)}").exists():
                _remove(folder)
                removed.append(str(folder))
    return removed


def _unified_root() -> Path | None:
    for path in (ROOT, ROOT / "unified"):
        if (path / "cgroup.controllers").exists():
            return path
    return None


def _mounted(path: Path) -> Path | None:
    return path if (path / "cgroup.procs").exists() else None


def _delegate_memory(folder: Path) -> bool:
    if "memory" not in (folder / "cgroup.controllers").read_text().split():
        return False
    with suppress(OSError):
        (folder / "cgroup.subtree_control").write_text("+memory")
        return True
    return False


def _remove(folder: Path) -> None:
    """Also with groups below it; a killed process leaves its group a moment after its death."""
    for below in [entry for entry in folder.glob("*") if entry.is_dir()]:
        _remove(below)
    for _ in range(50):
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            with suppress(OSError):
                (folder / "cgroup.freeze").write_text("0")
            time.sleep(0.002)
