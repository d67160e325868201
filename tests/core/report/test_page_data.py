"""What is told of a run is one value: JSON, bounded, without secrets, in seconds since the creation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allaboard.diagnosis import diagnose
from allaboard.follow.loop import Outcome
from allaboard.report.commands import HERE
from allaboard.report.curves import at
from allaboard.report.history import History
from allaboard.report.page import run_page
from allaboard.report.page_data import SNAPSHOT, VERSION, Bounds, Readings, Try, page_data
from allaboard.report.runs_page import compare_page
from allaboard.runs.observation import Event, Objects, PodSeen, Progress, State
from allaboard.testing import a_job, a_member, seen
from allaboard.text.reportline import Report
from tests.core.report.pages import Page

ZERO = 1_790_000_000.0
JOB = a_job(checkpoints={"uri": "store://c", "best": {"metric": "val_loss", "mode": "min"}})


def told(history: History | None = None, state: State = State.SUCCEEDED, **fields: Any) -> dict[str, Any]:
    read = {n: fields.pop(n) for n in ("lines", "events", "secrets", "gaps", "tries") if n in fields}
    rest = {n: fields.pop(n) for n in ("job", "bounds", "window") if n in fields}
    looked = seen(state, **{"created": ZERO, "started": ZERO + 5, "finished": ZERO + 100, **fields})
    ended = Outcome(looked, diagnose(looked))
    return page_data(
        ended, Readings(history or History(), **read), ZERO + 200, at=HERE, **{"job": JOB, **rest}
    )


def trained(steps: int, seconds: float = 1.0, **curves: float) -> History:
    made = History()
    for n in range(1, steps + 1):
        made.add(Report("progress", {"step": n, "loss": 1 / n, **curves}), ZERO + 10 + seconds * n)
    return made


def test_it_is_json_with_a_version_and_its_times_count_from_the_creation() -> None:
    data = told(trained(3), stop=None)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["version"] == VERSION == 1
    assert (data["zero"], data["created"], data["started"], data["finished"], data["looked_at"]) == (
        ZERO, 0, 5, 100, 200,
    )  # fmt: skip
    assert data["clock"][0] == [1, 11] and data["clock"][-1] == [3, 13]


def test_the_page_needs_nothing_but_the_value_as_it_was_sent() -> None:
    event = Event(ZERO + 7, "Warning", "Evicted", "worker-0", "its node went")
    data = told(
        trained(50), events=[event], tries=[Try(1, 0, ZERO, ZERO + 50), Try(2, 0, ZERO + 60, ZERO + 90)]
    )
    assert run_page(json.loads(json.dumps(data))) == run_page(data)


def test_a_run_without_a_creation_counts_from_what_is_known() -> None:
    data = told(trained(2), created=None, started=None, tries=[Try(1, 0, ZERO + 3, ZERO + 9)])
    assert (data["zero"], data["created"]) == (ZERO + 3, None)
    assert "minutes" not in Page(run_page(data)).words


def test_all_curves_share_the_points_and_every_extreme_stays() -> None:
    history = trained(2500, **{f"m{n}": 1.0 for n in range(199)})
    history.add(Report("progress", {"step": 2501, "loss": 77.0}), ZERO + 2600)
    for n in range(2502, 5000):
        history.add(Report("progress", {"step": n, "loss": 1 / n}), ZERO + 100 + n)
    data = told(history)
    assert len(data["curves"]) == 200 and data["curves"][0]["name"] == "loss"
    assert sum(len(c["points"]) + len(c["trend"]) for c in data["curves"]) <= 12_200
    assert [2501, 77.0] in data["curves"][0]["points"] and data["curves"][0]["high"] == [2501, 77.0]
    assert len(run_page(data).encode()) < 1_000_000


def test_curves_beyond_the_most_are_counted_and_some_are_named() -> None:
    data = told(trained(2, **{f"m{n}": 1.0 for n in range(49)}), bounds=SNAPSHOT)
    assert len(data["curves"]) == 40 and data["curves_left_out_count"] == 10
    words = Page(run_page(data)).words
    assert "Not drawn are 10 more: m39, m40" in words


def test_the_clock_tells_when_every_step_was_and_goodput_leaves_out_what_was_undone() -> None:
    history, time = History(), ZERO + 10
    for n in range(1, 41):
        time += 1
        history.add(Report("progress", {"step": n, "loss": 1.0}), time)
    history.add(Report("resumed", {"step": 30}), time + 20)
    for n in range(31, 61):
        time += 1
        history.add(Report("progress", {"step": n, "loss": 1.0}), time + 24)
    data = told(history, progress=Progress(step=60, total=60, lost_steps=10))
    clock = [(step, seconds) for step, seconds in data["clock"]]
    assert at(clock, 20) == pytest.approx(30, abs=0.1) and at(clock, 45) == pytest.approx(89, abs=0.1)
    assert data["breaks"] == [30] and data["resumed"] == [{"step": 30, "at": 70.0}]
    assert data["goodput"] == {"by": "time", "share": 0.58, "useful": 58.0, "of": 100.0}
    assert "58 s of 1m 40s passed between reported steps that no restart undid" in Page(run_page(data)).words


def test_goodput_counts_what_earlier_attempts_threw_away() -> None:
    """A run that was cleared when half of its time had passed: its last attempt alone went through well."""
    history = History()
    for n in range(1, 51):
        history.add(Report("progress", {"step": n, "loss": 1.0}), ZERO - 100 + n)
    history.add(Report("progress", {"step": 1, "loss": 1.0}), ZERO + 1)  # from scratch: it had saved nothing
    for n in range(2, 100):
        history.add(Report("progress", {"step": n, "loss": 1.0}), ZERO + n)
    tries = [Try(1, 0, ZERO - 100, ZERO - 40), Try(2, 0, ZERO, ZERO + 100)]
    good = told(history, tries=tries, attempt=2, progress=Progress(step=99, lost_steps=50))["goodput"]
    assert good == {"by": "time", "share": 0.49, "useful": 98.0, "of": 200.0}
    # What the first attempt wrote is gone: its steps are counted all the same.
    alone = History()
    for n in range(1, 100):
        alone.add(Report("progress", {"step": n, "loss": 1.0}), ZERO + n)
    good = told(alone, tries=tries[1:], attempt=2, progress=Progress(step=99, lost_steps=99))["goodput"]
    assert good == {"by": "steps", "share": 0.5, "useful": 99, "of": 198}


def test_without_times_goodput_is_of_steps_and_the_page_says_what_it_lacks() -> None:
    history = History()
    for n in range(1, 10):
        history.add(Report("progress", {"step": n, "loss": 1.0}))
    data = told(history, progress=Progress(step=9, total=9, lost_steps=3))
    assert data["clock"] == [] and data["goodput"] == {"by": "steps", "share": 0.75, "useful": 9, "of": 12}
    found = Page(run_page(data))
    assert "is not known here, or not closely enough for curves over time" in found.words
    assert found.tags.count("svg") == 1 and "input" not in found.tags


def test_times_that_go_back_are_not_believed() -> None:
    history = trained(3)
    history.add(Report("progress", {"step": 4, "loss": 1.0}), ZERO)
    assert [step for step, _ in history.clock] == [1, 2, 3]


def test_the_best_checkpoint_is_the_one_that_the_run_names_else_the_best_by_its_job() -> None:
    history = trained(9)
    for step, loss in ((3, 0.5), (6, 0.4), (9, 0.6)):
        metrics = {"val_loss": loss}
        history.add(
            Report("checkpoint", {"step": step, "uri": f"u{step}", "metrics": metrics, "bytes": 2048}),
            ZERO + 30,
        )
    assert told(history)["best"] == {
        "step": 6, "metric": "val_loss", "mode": "min", "value": 0.4, "place": 6, "uri": None,
    }  # fmt: skip
    data = told(history, progress=Progress(step=9, best_checkpoint="u3"))
    assert (data["best"]["step"], data["best"]["value"], data["best"]["uri"]) == (3, 0.5, "u3")
    assert [c["best"] for c in data["checkpoints"]] == [False, False, True]
    assert data["checkpoints"][0]["size"] == 2048 and data["checkpoints"][0]["at"] == 30
    found = Page(run_page(data))
    assert "★ best 0.5 at step 3" in found.words
    assert found.rows["Checkpoints"][-1] == ["3 ★", "30 s", "0.5", "2.0 KiB", "u3"]


# A metric that both the progress and the checkpoints tell.


def curves(data: dict[str, Any]) -> list[tuple[str, str]]:
    return [(curve["kind"], curve["name"]) for curve in data["curves"]]


def saved(history: History, step: int, metrics: dict[str, float], **fields: Any) -> None:
    history.add(Report("checkpoint", {"step": step, "uri": f"u{step}", "metrics": metrics, **fields}))


@pytest.mark.parametrize("printed", [(0.5, 0.25), (0.499961, 0.2500049), (0.5, 0.25000000000000006)], ids=str)
def test_a_metric_that_checkpoints_tell_once_more_is_one_curve_with_its_star(
    printed: tuple[float, float],
) -> None:
    """Hugging Face's Trainer prints a dictionary, and has it in its log_history."""
    history = History()
    for step, loss in ((5, 0.9), (10, printed[0]), (15, 0.4), (20, printed[1])):
        history.add(Report("progress", {"step": step, "val_loss": loss}, printed="Hugging Face's Trainer"))
    for step, loss in ((10, 0.5), (20, 0.25)):
        saved(history, step, {"val_loss": loss})
    data = told(history)
    assert curves(data) == [("progress", "val_loss")]
    assert "★ best 0.25 at step 20" in Page(run_page(data)).words
    assert "in checkpoints" not in run_page(data)


@pytest.mark.parametrize(
    "of_checkpoints",
    [{280: 0.51, 560: 0.31}, {283: 0.53, 570: 0.31}, {283: 0.51, 500: 0.33, 570: 0.31}],
    ids=["other steps", "another value", "one more step"],
)
@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_of_two_that_differ_a_reader_sees_which_is_which(of_checkpoints: dict[int, float], name: str) -> None:
    """A post of a Trainer has the loss that was logged some steps before."""
    history = History()
    for step, value in ((283, 0.51), (570, 0.31)):
        history.add(Report("progress", {"step": step, name: value}))
    for step, value in of_checkpoints.items():
        saved(history, step, {name: value})
    data = told(history, job=a_job(checkpoints={"uri": "c", "best": {"metric": name, "mode": "min"}}))
    assert {*curves(data)} == {("progress", name), ("checkpoint", name)}
    page = run_page(data)
    assert f'data-name="{name}"' in page and f'data-name="{name}, in checkpoints"' in page
    assert page.count("★ best") == 1
    assert f"{name}, in checkpoints" in compare_page([data, data])


def test_a_metric_of_checkpoints_alone_has_its_own_name() -> None:
    """Lightning, with a val_loss in the names of its files."""
    history = History()
    for step in range(1, 61):
        history.add(Report("progress", {"step": step, "train_loss": 1 / step}, printed="Lightning"))
    for step in (20, 40, 60):
        saved(history, step, {"val_loss": 2 / step})
    data = told(history)
    assert curves(data) == [("progress", "train_loss"), ("checkpoint", "val_loss")]
    assert "in checkpoints" not in run_page(data)


def in_epochs(epochs: int) -> History:
    """Keras: batches of an epoch, then its validation with the last of them."""
    history = History()
    for epoch in range(1, epochs + 1):
        for batch in (1, 12, 23):
            numbers = {"loss": 1 / epoch} | ({"val_loss": 1.123456 / epoch} if batch == 23 else {})
            fields = {"step": 23 * (epoch - 1) + batch, "epoch": epoch, **numbers}
            history.add(Report("progress", fields, printed="Keras"), ZERO + 23 * epoch + batch)
    return history


def test_a_checkpoint_that_is_dated_by_its_epoch_lies_at_the_end_of_that() -> None:
    history = in_epochs(3)
    for epoch in (1, 2, 3):
        metrics = {"val_loss": round(1.123456 / epoch, 2), "lr": 0.1}
        saved(history, epoch, metrics, epoch=epoch, flags=["step_from_epoch"])
    data = told(history)
    assert curves(data)[:2] == [("progress", "loss"), ("progress", "val_loss")]
    [of_checkpoints] = [curve for curve in data["curves"] if curve["kind"] == "checkpoint"]
    assert [step for step, _ in of_checkpoints["points"]] == [23, 46, 69]
    assert [row["step"] for row in data["checkpoints"]] == [3, 2, 1]
    assert (data["best"]["step"], data["best"]["place"]) == (69, 69)
    by_name = told(history, progress=Progress(step=69, best_checkpoint="u2"))
    assert (by_name["best"]["step"], by_name["best"]["place"]) == (2, 46)
    assert "★ best 0.56 at step 2" in Page(run_page(by_name)).words


@pytest.mark.parametrize(
    "fields",
    [
        {"flags": ["step_from_time"]},
        {"flags": ["step_from_epoch"], "epoch": 9},
        {"flags": ["step_from_epoch"]},
    ],
    ids=str,
)
def test_a_checkpoint_of_no_known_step_is_listed_and_not_drawn(fields: dict[str, Any]) -> None:
    """A ``.keras`` of one name that is always written anew tells a time alone."""
    history = in_epochs(3)
    before = told(history)
    saved(history, 1_790_000_000, {"val_loss": 0.4}, **fields)
    data = told(history)
    assert (data["curves"], data["clock"]) == (before["curves"], before["clock"])
    assert [row["step"] for row in data["checkpoints"]] == [1_790_000_000]
    run_page(told(history, progress=Progress(step=69, best_checkpoint="u1790000000")))


def test_a_training_that_goes_back_keeps_the_checkpoints_of_the_epochs_that_count() -> None:
    history = in_epochs(4)
    for epoch in (1, 2, 3):
        saved(history, epoch, {"val_loss": 9.0}, epoch=epoch, flags=["step_from_epoch"])
    history.add(Report("progress", {"step": 47, "epoch": 3, "loss": 0.2}, printed="Keras"))
    assert [row["step"] for row in told(history)["checkpoints"]] == [2, 1]


def test_what_a_checkpoint_says_of_its_step_is_read_as_text_of_anybody() -> None:
    for odd in (7, "step_from_time", {"a": 1}, [["x"]], None):
        history = in_epochs(1)
        saved(history, 20, {"val_loss": 3.0}, flags=odd, epoch="x")
        assert ("checkpoint", "val_loss") in curves(told(history))


def test_attempts_and_marks_are_on_one_scale_of_time() -> None:
    history = trained(9)
    history.add(Report("checkpoint", {"step": 9, "uri": "u"}), ZERO + 30)
    events = [
        Event(ZERO + 40, "Warning", "Preempted", "worker-0", "spot"),
        Event(ZERO + 41, "Warning", "GangRestart", "worker-0", "again"),
        Event(ZERO + 42, "Normal", "Pulled", "worker-0", "an image"),
        Event(None, "Warning", "Evicted", "worker-0", "nobody knows when"),
    ]
    tries = [Try(1, 0, ZERO + 5, ZERO + 40), Try(1, 1, ZERO + 45, ZERO + 60), Try(2, 0, ZERO + 70, ZERO + 99)]
    data = told(history, events=events, tries=tries)
    assert [(m["at"], m["kind"]) for m in data["timeline"]["marks"]] == [
        (30, "save"), (40, "eviction"), (41, "restart"),
    ]  # fmt: skip
    found = Page(run_page(data)).words
    for words in ("attempt 1 ", "attempt 1 ↻ 1", "attempt 2", "saves", "evictions", "restarts"):
        assert words in found, words


def test_what_is_saved_last_is_not_behind_the_end() -> None:
    history = trained(9)
    history.add(Report("checkpoint", {"step": 9, "uri": "u"}), ZERO + 100.02)
    timeline = told(history)["timeline"]
    assert [m["at"] for m in timeline["marks"]] == [timeline["end"]] == [100]


def test_a_member_says_where_it_ran_and_what_it_wrote_last() -> None:
    members = (a_member("master-0", rank=0), a_member("worker-0", "failed", exit_code=1, rank=1))
    pods = (PodSeen("worker-0", "x-worker-0", member="worker-0", node="gpu-07"),)
    lines = {"worker-0": ["a", "b"], "master-0": ["c"]}
    data = told(state=State.FAILED, members=members, objects=Objects(pods=pods), lines=lines)
    assert [(m["name"], m["node"], m["lines"], m["order"]) for m in data["members"]] == [
        ("master-0", None, ["c"], 1), ("worker-0", "gpu-07", ["a", "b"], 0),
    ]  # fmt: skip
    assert Page(run_page(data)).rows["Members"][1][:5] == ["worker-0", "1", "gpu-07", "failed", "1"]


def test_no_secret_is_in_the_value_whatever_it_stands_in() -> None:
    secret = "c4nary-V4lue_77"
    history = trained(2, **{f"m {secret}": 1.0})
    history.add(Report("checkpoint", {"step": 2, "uri": f"s3://{secret}", "metrics": {secret: 1.0}}), ZERO)
    data = told(
        history,
        State.FAILED,
        job=a_job(environment={"API_KEY": secret}),
        members=(a_member(exit_code=1, phase="failed", reason=secret, log=secret),),
        lines={"worker-0": [f"it is {secret}"]},
        events=[Event(ZERO, "Warning", "Odd", secret, secret)],
        gaps=[secret],
        notes=(secret,),
        key=secret,
        flags=(secret,),
        tails={"worker-0": f"ValueError: {secret}"},
    )
    assert secret not in json.dumps(data) and "it is ***" in json.dumps(data)
    assert secret not in json.dumps(told(key="x 5ecret-of-others", secrets=["5ecret-of-others"]))


@pytest.mark.thorough
def test_a_small_bound_is_kept_whatever_a_run_is() -> None:
    history = trained(3000, **{f"m{n}": 0.123456789123 for n in range(150)})
    for n in range(500):
        history.add(Report("checkpoint", {"step": n, "uri": "u" * 1000, "metrics": {"a": 1.0}}), ZERO + n)
    members = tuple(a_member(f"worker-{n}", "failed", exit_code=1, rank=n) for n in range(3000))
    events = [Event(ZERO + n, "Warning", "Evicted", "w", "e" * 1500) for n in range(3000)]
    lines = {m.name: ["z" * 1900] * 100 for m in members}
    data = told(history, State.FAILED, members=members, events=events, lines=lines, bounds=SNAPSHOT)
    assert len(json.dumps(data)) < 300_000
    assert data["members_left_out"] == 2936 and data["events_left_out"] == 2970
    Page(run_page(data))


def test_what_a_bound_leaves_out_is_counted() -> None:
    tries = [Try(n, 0, ZERO + n, ZERO + n + 1) for n in range(1, 31)]
    events = [Event(ZERO + n, "Warning", "Evicted", "w", "e") for n in range(30)]
    data = told(tries=tries, events=events, bounds=Bounds(tries=4, marks=7))
    words = Page(run_page(data)).words
    assert "26 earlier tries left out here." in words and "23 earlier marks left out here." in words
