"""What rank 0 of a run on a cluster says: read within bounds, kept in the record, believed no further."""

from __future__ import annotations

import json

import pytest

from allaboard.backends.kubernetes.logs.cache import LogCache
from allaboard.backends.kubernetes.logs.history import AttemptHistory
from allaboard.backends.kubernetes.observe import progress
from allaboard.backends.kubernetes.observe.observation import ProgressState, apply_reports
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.follow.progress import MOST_FLAGS, MOST_METRICS, progress_of
from allaboard.follow.run_record import RunRecord
from allaboard.runs.observation import Owner, Progress, State
from allaboard.text.reportline import PREFIX, encode

OWN = "s3://bucket/ml/run"


def heard(*lines: str) -> ProgressState:
    return apply_reports(ProgressState(), [(float(n), line) for n, line in enumerate(lines, 1)], 9.0, OWN)


def test_bad_lines_are_output() -> None:
    found = heard(
        PREFIX + '{"v":1,"kind":"progress","step":1,"note":"\\ud800"}',
        PREFIX + '{"v":1,"kind":"progress","step":' + "9" * 4300 + "}",
        PREFIX + '{"v":1,"kind":"result","metrics":{"a":' + "[" * 500 + "]" * 500 + "}}",
        PREFIX + '{"v":1,"kind":"progress","step":1e308}',
        encode("progress", step=2, total=3),
    )
    assert found == ProgressState(Progress(step=2, total=3, heartbeat=5.0), (), 5.0)


def test_only_checkpoints_of_the_runs_own_folder_are_taken() -> None:
    found = heard(
        encode("checkpoint", step=1, uri=f"{OWN}/step-000000000001", best=True),
        encode("checkpoint", step=2, uri="s3://bucket/ml/other/step-000000000002", best=True),
    )
    assert found.progress.checkpoint == found.progress.best_checkpoint == f"{OWN}/step-000000000001"
    assert found.flags == ("checkpoint_elsewhere",)


def test_what_is_kept_for_the_record_is_bounded() -> None:
    lines = [encode("flag", code=f"f{n}", text="x") for n in range(500)]
    lines += [encode("progress", step=n, **{f"m{n}": 1.0}) for n in range(500)]
    found = heard(*lines)
    assert len(found.flags) <= MOST_FLAGS + 1 and len(found.progress.metrics) == MOST_METRICS
    assert progress.from_dict(json.loads(json.dumps(progress.to_dict(found)))) == found


@pytest.mark.parametrize(
    "data",
    [{}, {"progress": None}, {"progress": [1]}, {"progress": {"step": "x"}, "flags": 3, "first": "x"}],
)
def test_a_damaged_report_of_a_record_tells_nothing(data: dict[str, object]) -> None:
    assert progress.from_dict(data) == ProgressState()
    record = RunRecord("run", "key", "job", {}, "v1:0", Owner("me"), "uid", 0.0)
    assert progress.carried({"progress": 3}, record, record) == {}


@pytest.mark.parametrize(("ended", "lost"), [("stopped", 140), ("succeeded", 0)])
def test_a_generation_that_was_given_up_is_lost_with_all_of_its_steps(ended: str, lost: int) -> None:
    old = RunRecord("run", "key", "job", {}, "v1:0", Owner("me"), "uid", 0.0).ended(State(ended), 1.0)
    new = old.next_generation("uid-2", Owner("me"), {}, "v1:1")
    said = {"progress": {"step": 100, "lost_steps": 40}}
    assert progress_of(progress.carried(said, old, new)["progress"]) == Progress(lost_steps=lost)


def test_who_listens_knows_the_runs_own_folder() -> None:
    record = RunRecord("run", "key", "job", {}, "v1:0", Owner("me"), "uid", 0.0)
    for layout, own in (({"saving": {"uri": OWN}}, OWN), ({"saving": None}, None), ({}, None)):
        assert AttemptHistory.of(Stored(record, layout=layout), 60.0, LogCache()).collector.own == own
