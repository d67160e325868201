"""One output of a run, and what all who tell of it must say: report, step of a pipeline, task log and tab."""

from __future__ import annotations

from dataclasses import replace

from allaboard.backends.base import LogLine
from allaboard.diagnosis import Diagnosis
from allaboard.follow.loop import Outcome
from allaboard.runs.observation import Progress, State
from allaboard.testing import FakeBackend, a_member, seen
from allaboard.text.reportline import encode

SECRET = "nobody-knows-it-by-its-looks"
WROTE = [
    "hello\tworld",
    encode("progress", step=1, total=4, loss=0.5),
    "10%\r20%\r",
    f"opened with {SECRET}",
    '[allaboard] {"v":1,"kind":"progress","step"',
    "\x1b[2Jcleared",
    "x" * 1990 + SECRET,
]
LINES = [
    "hello\tworld",
    "20%",
    "opened with ***",
    '[allaboard] {"v":1,"kind":"progress","step"',
    "\\x1b[2Jcleared",
    "x" * 1990 + "***",
]
PROGRESS = "step 1/4 (25%), loss 0.5"
FAILING = "worker-0"
"""It hangs, and is blamed; rank 0 was ended for its sake."""
TAIL = "waits for rank 0"

RUNNING = seen(
    State.RUNNING,
    members=(a_member("master-0"), a_member("worker-0", rank=1)),
    progress=Progress(step=1, total=4, metrics={"loss": 0.5}, heartbeat=1.0),
    tails={FAILING: TAIL, "master-0": "not this"},
)
ENDED = replace(
    seen(State.FAILED), members=(a_member("master-0", "failed", exit_code=143), RUNNING.members[1]),
    progress=RUNNING.progress, tails=RUNNING.tails,
)  # fmt: skip
FAILED = Outcome(
    ENDED, (Diagnosis("rank_stalled", "rank 1 hangs", (), "rank 1 (worker-0)", False, "look at it"),)
)


class Wrote(FakeBackend):
    """A backend with this output of rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = [LogLine("master-0", 0, 0, None, text) for text in WROTE]

    def secrets_of(self, run: str) -> tuple[str, ...]:
        return (SECRET,)
