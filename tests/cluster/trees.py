"""Programs of projects that publish no Go module which the ordinary client can build: somebody built them
from a source tree, and an environment variable names that tree. Its manifests are read where they lie.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.cluster.api import Object


@dataclass(frozen=True, slots=True)
class Tree:
    """A built source tree. ``programs`` and ``files``: what is needed of it, by paths in it."""

    project: str
    variable: str
    programs: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def folder(self) -> Path | None:
        named = os.environ.get(self.variable)
        return Path(named).expanduser().resolve() if named else None

    def obstacle(self) -> str | None:
        """Why nothing of it can be started here; None when it can."""
        if self.folder is None:
            return (
                f"{self.project} is no module that the Go client can build; {self.variable} names a built "
                "source tree of it (tests/cluster/README.md)"
            )
        missing = [path for path in (*self.programs, *self.files) if not (self.folder / path).exists()]
        if missing:
            return f"{self.variable}={self.folder}: no {', '.join(missing)} in there"
        return None

    def path(self, name: str) -> Path:
        if self.folder is None:
            raise FileNotFoundError(f"{self.variable} is not set")
        return self.folder / name

    def objects(self, pattern: str) -> list[Object]:
        """What the YAML files of this pattern hold."""
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        texts = [path.read_text() for path in sorted(self.path("").glob(pattern))]
        return [each for text in texts for each in yaml.load_all(text, Loader=loader) if each]
