"""A run that goes on is healthy on evidence alone; else it is unknown, with what was looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.observe.snapshot import read_snapshot
from allaboard.diagnosis import Diagnosis, diagnose
from allaboard.runs.observation import Condition, MemberSeen, Observation, Progress
from tests.core.diagnosis.building import at, condition, job, node, pod, snapshot

NOW = 1_795_600_000.0


def steps(last: int = 40, more: str = "", day: str = "2026-05-20") -> str:
    """A line every minute, until ``last`` minutes after noon."""
    return "".join(f"{day} 12:{n:02d}:00 step {n} loss {3 - n / 99:.3f}{more}\n" for n in range(1, last + 1))


def first(log: str, taken: float = 41.0, **parts: Any) -> Diagnosis:
    snap = snapshot(
        job("Created", "Running", workers=0),
        pod("master-0"),
        logs={"master-0": log},
        taken=at(taken),
        **parts,
    )
    return diagnose(read_snapshot(snap), thorough=True)[0]


def test_a_dated_and_recent_step_is_evidence() -> None:
    top = first(steps())
    assert top.code == "healthy" and "step 40" in top.summary


@pytest.mark.parametrize(
    ("log", "taken", "says"),
    [
        (steps(40), 400.0, "its last step is 6h 00m old"),
        ("step 40 loss 2.1\n", 400.0, "its last step has no date: step 40"),
        ("loading the model\n", 41.0, "no member reports a step"),
        ("", 41.0, "no member reports a step"),
    ],
)
def test_without_it_nothing_is_called_healthy(log: str, taken: float, says: str) -> None:
    top = first(log, taken)
    assert top.code == "unknown" and says in top.summary, top


@pytest.mark.parametrize(
    "figures",
    [
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05}",
        "step 41 loss NaN",
        "step 41 | loss: nan | lr 0.1",
        "step 41 loss=tensor(nan, device='cuda:0')",
        '{"step": 41, "train_loss": NaN}',
        "Epoch 3: 41%|####| 41/100 [00:41<00:59, 1.0it/s, loss=nan]",
    ],
)
def test_a_figure_that_is_no_number_is_not_healthy(figures: str) -> None:
    assert first(steps() + f"2026-05-20 12:40:30 {figures}\n").code != "healthy"


@pytest.mark.parametrize(
    "warning",
    [
        "WARNING: could not save checkpoint {n}: [Errno 28] No space left on device",
        "warning: upload of step {n} failed, will retry at the next save",
        "[W] heartbeat {n} to the tracker timed out",
    ],
)
def test_a_failure_that_repeats_is_not_healthy(warning: str) -> None:
    lines = [line + "\n" + warning.format(n=n) for n, line in enumerate(steps().splitlines())]
    top = first("\n".join(lines))
    assert top.code != "healthy", top.summary


@pytest.mark.parametrize("line", ["UserWarning: the scheduler was stepped first", "val_error: 0.3, 0 errors"])
def test_what_repeats_and_is_no_failure_says_nothing(line: str) -> None:
    assert first("\n".join(f"{text}\n{line}" for text in steps().splitlines())).code == "healthy"


def sick(**status: Any) -> dict[str, Any]:
    there = node()
    there["status"]["conditions"] += [condition(kind, value, since=5.0) for kind, value in status.items()]
    return there


def fewer() -> dict[str, Any]:
    there = node()
    there["status"]["capacity"]["nvidia.com/gpu"] = "8"
    there["status"]["allocatable"]["nvidia.com/gpu"] = "7"
    return there


@pytest.mark.parametrize("there", [sick(GpuHealthy="False"), sick(XidError="True"), fewer()], ids=range(3))
def test_a_sick_device_of_its_node_is_not_healthy(there: dict[str, Any]) -> None:
    top = first(steps(), nodes=[there])
    assert top.code != "healthy" and "n1" in str(top), top


def test_other_troubles_of_a_node_say_nothing() -> None:
    assert first(steps(), nodes=[sick(GpuHealthy="True", KubeletReady="True")]).code == "healthy"


def on_this_machine(**changes: Any) -> Observation:
    seen = Observation(
        "digits-1",
        alive=True,
        conditions=(Condition("Running", "True", "", "", NOW - 9000),),
        members=(MemberSeen("master", 0, 0, "running", started=NOW - 9000),),
        looked=NOW,
        tails={"master-0": "step 7 loss 2\n"},
    )
    return replace(seen, **changes)


def test_the_clock_of_the_node_dates_a_line() -> None:
    assert diagnose(on_this_machine(wrote={"master-0": NOW - 20}), thorough=True)[0].code == "healthy"
    assert diagnose(on_this_machine(wrote={"master-0": NOW - 7000}), thorough=True)[0].code == "unknown"
    chatter = "step 7 loss 2\n" + "still here\n" * 80
    late = on_this_machine(tails={"master-0": chatter}, wrote={"master-0": NOW - 20})
    assert diagnose(late, thorough=True)[0].code == "unknown", "its last step is far above its last line"


def test_a_report_is_dated_by_who_heard_it() -> None:
    fresh = Progress(step=7, heartbeat=NOW - 30)
    assert diagnose(on_this_machine(progress=fresh), thorough=True)[0].code == "healthy"
    assert (
        diagnose(on_this_machine(progress=replace(fresh, heartbeat=NOW - 7000)), thorough=True)[0].code
        == "unknown"
    )
    slow = replace(fresh, heartbeat=NOW - 7000, longest_pause=3000.0)
    assert diagnose(on_this_machine(progress=slow), thorough=True)[0].code == "healthy", "its steps take long"
