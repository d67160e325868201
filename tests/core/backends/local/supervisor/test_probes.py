"""What is read of the log of a member for a diagnosis."""

from __future__ import annotations

from pathlib import Path

import pytest

from allaboard.backends.local.supervisor.probes import excerpt
from allaboard.diagnosis.excerpt import HEAD, MIDDLE, TAIL

CAUSE = "OSError: [Errno 28] No space left on device: '/out/step-40'"


@pytest.mark.parametrize("at", [0.05, 0.5, 0.75])
def test_the_middle_of_a_log_is_looked_at(tmp_path: Path, at: float) -> None:
    lines = [f"step {n} loss 2.{n} {'x' * 80}" for n in range(40_000)]
    lines.insert(int(len(lines) * at), CAUSE)
    log = tmp_path / "log"
    log.write_text("\n".join(lines))
    text = excerpt(log)
    assert CAUSE in text and text.endswith(lines[-1]) and text.startswith(lines[0])
    assert len(text) <= HEAD + MIDDLE + 2 * TAIL < log.stat().st_size


def test_of_more_than_may_be_read_the_beginning_and_the_end_are(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n" + "step 1\n" * 400_000 + CAUSE)
    text = excerpt(log, 1 << 20)
    assert text.startswith("first\n") and text.endswith(CAUSE)


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert excerpt(tmp_path / "nowhere") == ""
