"""One state from what was seen: by type, terminal first, never by position."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allaboard.engines.conditions import with_condition
from allaboard.runs.observation import Condition, Observation, State
from allaboard.runs.status import idle_clock, state_of, summary
from allaboard.testing import a_condition, a_member, seen


@pytest.mark.parametrize("state", list(State))
def test_the_builder_means_what_it_says(state: State) -> None:
    assert state_of(seen(state)) is state


def test_failed_decides_over_succeeded() -> None:
    both = (a_condition("Failed"), a_condition("Succeeded"))
    assert state_of(seen(conditions=both)) is State.FAILED
    assert state_of(seen(conditions=both[::-1])) is State.FAILED


def test_after_a_resume_the_last_condition_means_nothing() -> None:
    conditions = (a_condition("Created"), a_condition("Running"), a_condition("Suspended", "False"))
    assert state_of(seen(conditions=conditions)) is State.RUNNING


def test_a_queue_holds_it_before_there_are_members() -> None:
    assert state_of(seen(conditions=(a_condition("Created"),), waiting="2 CPUs are taken")) is State.QUEUED


def test_what_nobody_runs_any_more_is_lost_unless_it_had_ended() -> None:
    assert state_of(seen(State.RUNNING, alive=False)) is State.LOST
    assert state_of(seen(State.SUCCEEDED, alive=False)) is State.SUCCEEDED
    assert state_of(replace(seen(State.STOPPING), alive=False)) is State.LOST


def test_a_member_that_is_restarted_in_place_shows() -> None:
    crashing = (a_member(phase="running", reason="CrashLoopBackOff"),)
    assert state_of(seen(State.RUNNING, members=crashing)) is State.RESTARTING


def test_nothing_seen_is_unknown() -> None:
    assert state_of(Observation(run="x")) is State.UNKNOWN


def test_the_summary_has_every_key_of_the_contract_and_null_for_the_unknown() -> None:
    found = summary(Observation(run="x"))
    assert list(found) == [
        "run",
        "name",
        "key",
        "state",
        "attempt",
        "restarts",
        "started",
        "finished",
        "phases",
        "members",
        "conditions",
        "checkpoints",
        "metrics",
        "progress",
        "flags",
        "diagnoses",
        "progress_format",
        "metrics_from",
    ]
    assert (
        found["started"] is None
        and found["phases"]["image"] is None
        and found["checkpoints"] == {"latest": None, "best": None}
    )


def conditions(*changes: tuple[str, str]) -> tuple[Condition, ...]:
    found: tuple[Condition, ...] = ()
    for n, (kind, status) in enumerate(changes):
        found = with_condition(found, Condition(kind, status, f"PyTorchJob{kind}", "", float(n)))
    return found


def test_running_and_restarting_exclude_each_other() -> None:
    assert [c.type for c in conditions(("Created", "True"), ("Running", "True"), ("Restarting", "True"))] == [
        "Created",
        "Restarting",
    ]
    assert [c.type for c in conditions(("Restarting", "True"), ("Running", "True"))] == ["Running"]


def test_the_end_turns_running_to_false_where_it_stands() -> None:
    found = conditions(("Created", "True"), ("Running", "True"), ("Succeeded", "True"))
    assert [(c.type, c.status, c.since) for c in found] == [
        ("Created", "True", 0.0),
        ("Running", "False", 1.0),
        ("Succeeded", "True", 2.0),
    ]


def test_the_first_occurrence_keeps_its_time_and_nothing_follows_failed() -> None:
    assert conditions(("Running", "True"), ("Running", "True"))[0].since == 0.0
    assert [c.type for c in conditions(("Failed", "True"), ("Succeeded", "True"))] == ["Failed"]


def test_an_observation_survives_json() -> None:
    import json

    whole = seen(State.STOPPED, members=(a_member(),), notes=("a",), tails={"a": "b"})
    assert Observation.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole


# Clocks.


def test_a_clock_of_the_training_that_cannot_begin_is_told_once_it_would_have_run_out() -> None:
    assert idle_clock({"rendezvous": 20.0, "first_step": 41.0}, {"training": 60.0}) is not None
    words = idle_clock({"first_step": 60.0}, {"training": 60.0})
    assert words is not None and "allaboard.inside.report" in words and "policy.deadline" in words
    assert idle_clock({"first_step": 600.0}, {"training": 86_400.0}) is not None, "nobody waits a day for it"


def test_a_clock_that_runs_or_may_begin_any_moment_is_not_told() -> None:
    assert idle_clock({"first_step": 59.0}, {"training": 60.0}) is None
    assert idle_clock({"first_step": 900.0, "training": 0.1}, {"training": 60.0}) is None
    assert idle_clock({"image": 900.0, "first_step": None}, {"training": 60.0}) is None
    assert idle_clock({"first_step": 900.0}, {"image": 60.0}) is None
