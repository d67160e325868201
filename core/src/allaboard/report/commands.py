"""Command lines that continue with a run, ready to paste: each names the place of the run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

PROGRAM = ("allaboard",)
VERBS = frozenset({
    "checkpoints", "delete", "doctor", "evaluate", "events", "follow", "list", "logs", "preflight", "queues",
    "report", "resume", "run", "snapshot", "status", "stop", "suspend",
})  # fmt: skip
"""The verbs that take the options of a place."""
_OF_NO_RUN = frozenset({"evaluate", "list", "preflight", "queues", "run"})
_IN_TEXT = re.compile(r"`allaboard ([a-z]+)([^`\n]*)`")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of runs, by the options of a command line; None: as its environment says. ``program``: the
    arguments that start allaboard there, if its name alone does not.
    """

    backend: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    program: tuple[str, ...] = PROGRAM

    @property
    def options(self) -> list[str]:
        """The options of this place."""
        names = ("backend", "kubeconfig", "context", "namespace")
        return [word for n in names if (value := getattr(self, n)) for word in (f"--{n}", value)]

    @property
    def outlives_its_runs(self) -> bool:
        """True if the commands work after the run has ended: not in the pod that ends with it."""
        return self.program == PROGRAM

    def command(self, *arguments: str) -> str:
        """A command line of allaboard at this place."""
        return shlex.join([*self.program, *arguments, *self.options])

    def in_text(self, text: str, run: str = "") -> str:
        """``text`` with the place in each command in it that takes one. A command stands in backticks.
        ``run``: whom the text is about, for commands that name nobody: ```allaboard logs```.
        """

        def placed(match: re.Match[str]) -> str:
            verb, arguments = match[1], match[2].split()
            if verb not in VERBS:
                return match[0]
            if run and verb not in _OF_NO_RUN and len(arguments) == (verb == "checkpoints"):
                arguments.append(run)
            rest = " ".join([verb, *arguments, *map(shlex.quote, self.options)])
            return f"`{shlex.join(self.program)} {rest}`"

        return _IN_TEXT.sub(placed, text)


HERE = Place()
"""The place of a command line without options: as its environment says."""
