"""Command lines as they were printed, and somebody who types them at the place that they name."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Any

import pytest

from allaboard.backends.base import Backend
from allaboard.cli import VERBS, main
from allaboard.cli.place import Place
from allaboard.testing.cluster import FakeCluster

_WORD = r"(?:'[^']*'|[\w./:=@%+-]*\w)"
_COMMAND = re.compile(rf"(?<![\w/-])allaboard((?: {_WORD})+)")


def commands_in(text: str) -> list[list[str]]:
    """The arguments of the command lines in this text, each once."""
    told = dict.fromkeys(found[1].strip() for found in _COMMAND.finditer(text))
    return [words for line in told if (words := shlex.split(line))[0] in VERBS]


@dataclass
class Typist:
    """Types at a cluster in memory, and only where a command names its place in full."""

    cluster: FakeCluster
    capsys: pytest.CaptureFixture[str]
    namespace: str = "default"
    context: str | None = None
    typed: list[list[str]] = field(default_factory=list)

    def open(self, at: Place, *_: Any) -> Backend:
        assert (at.backend, at.namespace, at.context) == ("kubernetes", self.namespace, self.context), at
        return self.cluster.backend(namespace=self.namespace)

    def __call__(self, words: list[str]) -> None:
        """Fails unless it succeeds; the exit code of a verb that follows a run is that of the run."""
        code = main(words)
        said = self.capsys.readouterr()
        answered = "error:" not in said.err
        assert answered and (code == 0 or words[0] in ("run", "follow")), (words, code, said)
        self.typed.append(words)
