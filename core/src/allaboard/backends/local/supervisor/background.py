"""Processes that read and copy the bytes of checkpoints while the supervisor goes on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

from allaboard.backends.local.host.isolated import isolated_command
from allaboard.text.printable import visible
from allaboard.text.reportline import Report

MOST_TEXT = 500
"""Characters of a sentence of such a process that are kept."""
_MOST_OUTPUT = 2**24


class Task:
    """A process of `allaboard.checkpoints.foreign`, which ends with this one. Raises nothing: an answer that
    is none is a failure.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        # Files: a process that fills a pipe would wait for its reader.
        self._output, self._errors = TemporaryFile(), TemporaryFile()  # noqa: SIM115  (closed by `answer`)
        self.process = subprocess.Popen(
            isolated_command("allaboard.checkpoints.foreign", json.dumps(given)),
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, seconds))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def answer(self) -> dict[str, Any] | str:
        """The answer of a process that is over, or the sentence of its failure."""
        process = self.process
        assert process.stdin is not None
        with process.stdin, self._output as output, self._errors as errors:
            output.seek(0)
            errors.seek(0)
            text, trouble = output.read(_MOST_OUTPUT), errors.read(_MOST_OUTPUT)
        if process.returncode == 0:
            with suppress(ValueError):
                answer = json.loads(text)
                if isinstance(answer, dict):
                    return answer
        lines = [line for line in trouble.decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1].removeprefix("error: ") if lines else f"its process ended with {process.returncode}"
        return visible(last, most=MOST_TEXT)


def start_task(given: Mapping[str, Any]) -> Task | None:
    """None: no process can be started now; the next look tries again."""
    with suppress(OSError):
        return Task(given)
    return None


def reports_in(answer: Mapping[str, Any]) -> list[Report]:
    """The checkpoints of an answer, as a script would have reported them."""
    added = answer.get("added")
    return [Report("checkpoint", body) for body in (added if isinstance(added, list) else ())]
