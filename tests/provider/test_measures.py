"""What a training measures."""

from __future__ import annotations

from typing import Any

from allaboard.runs.observation import MemberSeen, Observation, Progress
from allaboard_provider.measures import measures_of


def seen(**fields: Any) -> Observation:
    return Observation(run="a-1", job="a", key="k", **fields)


def measured(observation: Observation, reported: int | None = 0, **more: Any) -> dict[str, float]:
    return {name: value for _, name, value in measures_of(observation, reported, **more)}


def test_a_phase_that_was_not_seen_is_not_measured() -> None:
    assert measured(seen()) == {"runs": 1}
    assert measured(seen(phases={"admitted": 2.5, "training": None})) == {"runs": 1, "queue": 2.5}


def test_steps_done_again_are_told_once_although_a_run_counts_them_over_its_attempts() -> None:
    after = seen(progress=Progress(step=90, lost_steps=10))
    assert measured(after) == {"runs": 1, "lost_steps": 10}
    assert measured(after, goodput=0.5) == {"runs": 1, "lost_steps": 10, "goodput": 0.5}
    assert measured(after, reported=4)["lost_steps"] == 6
    assert "lost_steps" not in measured(after, reported=10)
    assert measured(after, reported=25)["lost_steps"] == 10  # it began from scratch


def test_steps_that_nobody_remembers_having_told_are_not_told() -> None:
    """Before Airflow 3.3 a task has no store; each of its tries would tell them once more."""
    assert measured(seen(progress=Progress(step=90, lost_steps=10)), reported=None) == {"runs": 1}


def test_the_restart_of_a_whole_gang_counts_beside_those_of_its_members() -> None:
    members = (MemberSeen("master", 0, 0, "failed", restarts=2),)
    observation = seen(members=members, restarts=2)
    assert measured(observation)["restarts"] == 2
    assert measured(observation, starts_again=True)["restarts"] == 3
    assert "restarts" not in measured(seen())
