"""How long the last good run of a job was silent, by the files of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allaboard.backends.local.state.last_good import longest_pause_of_last_good
from allaboard.backends.local.state.paths import RunFolder, write_json
from allaboard.follow.run_record import Ended, RunRecord
from allaboard.runs.observation import Owner


def a_run(runs: Path, name: str, job: str, state: str | None, at: float = 0.0, pause: Any = 0.0) -> RunFolder:
    folder = RunFolder(runs / name)
    folder.attempt(1, 1).path.mkdir(parents=True)
    outcome = Ended(state, at, 1, 1) if state is not None else None
    record = RunRecord(name, name, job, {}, "h", Owner("o"), "u", 1.0, outcome=outcome)
    write_json(folder.record, record.to_dict())
    write_json(folder.attempt(1, 1).state, {"seen": {"progress": {"longest_pause": pause}}})
    return folder


def test_the_newest_run_of_the_job_that_succeeded_is_asked(tmp_path: Path) -> None:
    own = a_run(tmp_path, "digits-1", "digits", None)
    assert longest_pause_of_last_good(own) == 0.0
    a_run(tmp_path, "digits-2", "digits", "succeeded", at=10.0, pause=90.0)
    a_run(tmp_path, "digits-3", "digits", "succeeded", at=20.0, pause=700.5)
    a_run(tmp_path, "digits-4", "digits", "failed", at=30.0, pause=5000.0)
    a_run(tmp_path, "faces-1", "faces", "succeeded", at=40.0, pause=6000.0)
    assert longest_pause_of_last_good(own) == 700.5


def test_damaged_neighbours_hide_nothing(tmp_path: Path) -> None:
    own = a_run(tmp_path, "digits-1", "digits", None)
    a_run(tmp_path, "digits-2", "digits", "succeeded", at=10.0, pause=90.0)
    a_run(tmp_path, "digits-3", "digits", "succeeded", at=20.0).record.write_text("{")
    (tmp_path / "digits-4").mkdir()
    (tmp_path / "digits-5").write_text("no folder")
    assert longest_pause_of_last_good(own) == 90.0
    a_run(tmp_path, "digits-6", "digits", "succeeded", at=30.0, pause="long")
    assert longest_pause_of_last_good(own) == 0.0


def test_a_run_without_a_record_asks_nobody(tmp_path: Path) -> None:
    assert longest_pause_of_last_good(RunFolder(tmp_path / "gone")) == 0.0
