"""A store in memory, for what only lists and reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from allaboard.errors import StorageMissing
from allaboard.storage.base import Entry, Store

NOW = 1_800_000_000.0


class Memory:
    """Objects by their keys; all were written at one time, or when ``times`` says."""

    uri = "memory"

    def __init__(self, files: Mapping[str, bytes], times: Mapping[str, float] | None = None) -> None:
        self.files, self.times = files, times or {}

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        for key, content in sorted(self.files.items()):
            if key.startswith(f"{prefix}/") or not prefix:
                yield Entry(key, len(content), self.times.get(key, NOW))

    def stat(self, key: str) -> Entry | None:
        content = self.files.get(key)
        return None if content is None else Entry(key, len(content), self.times.get(key, NOW))

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key not in self.files:
            raise StorageMissing(f"{key} is not there")
        return self.files[key][start : None if length is None else start + length]

    def local_path(self, key: str = "") -> Path | None:
        return None


def store_of(files: Mapping[str, bytes], times: Mapping[str, float] | None = None) -> Store:
    return cast(Store, Memory(files, times))


def folder(path: Path) -> dict[str, bytes]:
    """The files below a folder, by their keys."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }
