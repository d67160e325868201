"""What real operators wrote, read: in every state on the way our words agree with theirs.

`python -m tests.cluster.recording` records it anew, on a real cluster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allaboard.engines import ENGINES
from allaboard.engines.kubeflow import KubeflowEngine
from tests.core.engines.replay import FOLDER, moments, recorded, states, troubles

STATES = {
    "succeeded": ["starting", "running", "succeeded"],
    "failed": ["starting", "running", "failed"],
    "suspended": ["starting", "running", "suspended", "starting", "running", "succeeded"],
}
"""Story -> its states. The members of ``suspended`` run, are suspended, resumed, and end well. One that waits
for a node, or for the rest, is on its way, whatever the word.
"""
GROUPS: dict[str, dict[str, Any]] = {
    "pytorchjob": {"master": 1, "worker": 2},
    "tfjob": {"chief": 1, "worker": 2, "ps": 1},
    "xgboostjob": {"master": 1, "worker": 2},
    "jobset": {"master": 1, "worker": 2},
    "trainjob": {"master": 1, "worker": 2},
    "mpijob": {"launcher": 1, "worker": {"replicas": 2, "command": ["sleep", "60"]}},
    "mpijob-v1": {"launcher": 1, "worker": {"replicas": 2, "command": ["sleep", "60"]}},
}
"""The members of a kind's stories, where three workers are not what shows most."""
RECORDED = [(file.stem, story) for file in sorted(FOLDER.glob("*.json")) for story in STATES]


def test_the_kinds_of_every_operator_are_recorded() -> None:
    kinds = {*ENGINES} - {"mxjob"}  # of which no operator is made any more
    assert kinds - {name for name, _ in RECORDED} == set()


@pytest.mark.parametrize(("name", "story"), RECORDED)
def test_every_state_is_read_as_its_controllers_wrote_it(name: str, story: str) -> None:
    said = recorded(name)[story]
    assert [*troubles(ENGINES[name], said)] == []
    assert states(said) == STATES[story]


# Reading it otherwise is noticed.


@pytest.mark.parametrize(
    "wrongly",
    [
        lambda seen: replace(seen, conditions=tuple(c for c in seen.conditions if c.type != "Failed")),
        lambda seen: replace(seen, conditions=seen.conditions[-1:]),
        lambda seen: replace(seen, suspended=False),
        lambda seen: replace(seen, members=seen.members[::-1]),
        lambda seen: replace(seen, members=seen.members[:-1]),
        lambda seen: replace(seen, members=tuple(replace(m, phase="running") for m in seen.members)),
        lambda seen: replace(seen, total=seen.total + 1),
        lambda seen: replace(seen, started=None),
    ],
    ids=[
        "no failure",
        "the last condition",
        "never suspended",
        "order",
        "one less",
        "phases",
        "total",
        "time",
    ],
)
def test_another_reading_does_not_agree(monkeypatch: pytest.MonkeyPatch, wrongly: Any) -> None:
    whole = KubeflowEngine.read
    monkeypatch.setattr(KubeflowEngine, "read", lambda self, job, pods: wrongly(whole(self, job, pods)))
    stories = recorded("pytorchjob")
    agreed = [not [*troubles(ENGINES["pytorchjob"], stories[name])] for name in STATES]
    as_expected = [states(stories[name]) == STATES[name] for name in STATES]
    assert not all([*agreed, *as_expected])


@pytest.mark.parametrize("name", sorted({name for name, _ in RECORDED}))
def test_a_recording_holds_nothing_of_the_cluster_where_it_was_made(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text()
    assert "managedFields" not in text and "recording-" not in text and "allaboard.test" not in text
    for story in recorded(name).values():
        assert {moment.job["metadata"]["namespace"] for moment in moments(story) if moment.job} == {"default"}
