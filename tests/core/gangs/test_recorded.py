"""What the real Kueue did with jobs, played again: at every step the state, the sentence, the diagnosis and
the clocks are right.

`python -m tests.cluster.recording kueue` records it anew, on a real cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.kubernetes.observe import observation
from allaboard.backends.kubernetes.observe.deadlines import limit_of
from allaboard.diagnosis import diagnose
from allaboard.gangs.kueue import Held
from allaboard.runs.layout import Policy
from allaboard.runs.observation import PHASES, State
from allaboard.text.units import from_rfc3339
from tests.core.engines.replay import Moment, Story, moments, read

FILE = Path(__file__).parent / "recorded" / "kueue.json"


@dataclass(frozen=True)
class Step:
    """A state that lasts: its sentence, as a pattern, and the code of what is wrong. ``never``: waiting does
    not help, so that it ends when its clock does, by default after 10 minutes.
    """

    state: State
    sentence: str = ""
    code: str | None = None
    never: bool = False


def held(why: str, code: str, *, queue: str = "team", never: bool = False) -> Step:
    return Step(State.QUEUED, f"Kueue holds it back in queue {queue}: {why}", code, never)


STARTS, RUNS, ENDS = Step(State.STARTING), Step(State.RUNNING), Step(State.SUCCEEDED)
SHORT = "it needs [12] more cpu in flavor any, which others use"
STOPPED, DRAINED = "LocalQueue team is (inactive|stopped)", " \\(its queue was stopped\\)"
CLUSTER_STOPPED = "ClusterQueue cores is (inactive|stopped)"
ROOM = "Kueue has room for it in queue team, and it waits for admission check budget"
PENDING, MISCONFIGURED = "queue_quota_pending", "queue_misconfigured"
STORIES: dict[str, list[Step]] = {
    "admitted": [STARTS, RUNS, ENDS],
    "waits": [held(SHORT, PENDING), STARTS, RUNS, ENDS],
    "preempted": [
        STARTS,
        RUNS,
        held(f"{SHORT} \\(it was preempted by one of higher priority in the same queue\\)", PENDING),
        STARTS,
        RUNS,
        ENDS,
    ],
    "deactivated": [
        STARTS,
        RUNS,
        Step(State.QUEUED, "Kueue has taken it out of queue team: it was deactivated", MISCONFIGURED),
        STARTS,
        RUNS,
        ENDS,
    ],
    "stopped": [
        held(STOPPED, MISCONFIGURED),
        STARTS,
        RUNS,
        held(STOPPED + DRAINED, MISCONFIGURED),
        STARTS,
        RUNS,
        ENDS,
    ],
    "cluster_queue_stopped": [
        held(CLUSTER_STOPPED, MISCONFIGURED),
        STARTS,
        RUNS,
        held(CLUSTER_STOPPED + DRAINED, MISCONFIGURED),
        STARTS,
        RUNS,
        ENDS,
    ],
    "impossible": [
        held(
            "it asks for more than its queue can ever have of cpu "
            "\\(3 and 3 asked, at most 4 in flavor any\\)",
            "queue_quota_impossible",
            never=True,
        ),
        STARTS,
        RUNS,
        ENDS,
    ],
    "lost": [
        held("LocalQueue teem doesn't exist", MISCONFIGURED, queue="teem", never=True),
        STARTS,
        RUNS,
        ENDS,
    ],
    "no_rack": [
        held("no domain of topology racks has room for all of its members.*", PENDING),
        STARTS,
        RUNS,
        ENDS,
    ],
    "checked": [
        Step(State.QUEUED, f"{ROOM} \\(Pending\\)", PENDING),
        Step(State.QUEUED, f"{ROOM} \\(Pending: the budget is counted\\)", PENDING),
        Step(State.QUEUED, f"{ROOM} \\(Retry: no budget before noon\\)", PENDING),
        STARTS,
        RUNS,
        ENDS,
    ],
    "rejected": [
        Step(State.QUEUED, f"{ROOM} \\(Pending\\)", PENDING),
        Step(State.QUEUED, f"{ROOM} \\(Rejected: over the budget of research\\)", PENDING),
        Step(
            State.QUEUED,
            "Kueue has taken it out of queue team: "
            'an admission check has rejected it: "budget" \\(over the budget of research\\)',
            MISCONFIGURED,
            never=True,
        ),
    ],
    "overtime": [
        STARTS,
        RUNS,
        Step(
            State.QUEUED,
            "Kueue has taken it out of queue team: it ran longer than its longest time",
            "deadline_exceeded",
            never=True,
        ),
    ],
}
"""Story -> its steps. What Kueue does in a moment may be seen or not (`PASSING`), and is left out."""
PASSING = [
    re.compile(f"Kueue {words}")
    for words in (
        r"has not looked at it yet \(queue \w+\)",
        r"has admitted it to queue \w+, and it starts now",
        r"takes it back into queue \w+: .*",
        r"has taken it back into queue \w+: .*",
        r"holds it back in queue \w+: ClusterQueue doesn't exist",
        r"has room for it in queue \w+, and it is not admitted yet.*",
        r"holds it back in queue \w+: it has not said why yet.*",
        r"has room for it in queue \w+, and it waits for admission check \w+ \(Pending: Reset to .*\)",
    )
]
PASSING.append(re.compile(r"[0-9] members? held back by the scheduling gate that a queue set"))


def troubles(story: Story, steps: Sequence[Step]) -> Iterator[str]:
    """Where what is read of a story is not what happened."""
    found = [*_lasting(story)]
    shown = [(str(step.state), step.sentence, step.code, step.never) for step in found]
    if len(found) != len(steps) or not all(map(_agrees, found, steps)):
        yield f"its steps are {json.dumps(shown, indent=1)}"
    waits = Waits()
    for number, moment in enumerate(moments(story)):
        for trouble in waits.troubles(moment):
            yield f"after write {number} ({moment.state}): {trouble}"


def _agrees(found: Step, meant: Step) -> bool:
    said = re.fullmatch(meant.sentence, found.sentence) is not None
    return said and replace(found, sentence="") == replace(meant, sentence="")


def _lasting(story: Story) -> Iterator[Step]:
    """Each step as long as it lasts."""
    last = None
    for moment in moments(story):
        seen, state = moment.seen, moment.state
        sentence = seen.held_by or "" if state is State.QUEUED else ""
        if any(passing.fullmatch(sentence) for passing in PASSING):
            continue
        codes = [diagnosis.code for diagnosis in diagnose(seen)]
        never = seen.obstacle is not None and seen.obstacle.never
        step = Step(state, sentence, codes[0] if codes else None, never)
        if step != last:
            last = step
            yield step


class Waits:
    """The seconds that a job is in its queue, counted by what it and its pods say, each time anew."""

    def __init__(self) -> None:
        self.before, self.since, self.until = 0.0, 0.0, 0.0
        self.held = True

    def troubles(self, moment: Moment) -> Iterator[str]:
        job, seen, now = moment.job, moment.seen, moment.now
        assert job is not None
        suspended = bool(job["spec"]["runPolicy"].get("suspend"))
        conditions = (job.get("status") or {}).get("conditions") or ()
        told = [c for c in conditions if (c["type"], c["status"]) == ("Suspended", "True")]
        pods = [_time(pod["metadata"]["creationTimestamp"]) for pod in moment.pods]
        if not self.since:
            self.since = _time(job["metadata"]["creationTimestamp"])
        taken = _time(told[0]["lastTransitionTime"]) if told else 0.0
        # Times are whole seconds: it may be taken back in the second in which its pods are made.
        if suspended and self.until and taken >= self.until:
            self.before += self.until - self.since
            self.since, self.until = taken, 0.0
        elif suspended and not self.until and taken:
            self.since = taken
        if not self.until and (new := [at for at in pods if at >= self.since]) and not suspended:
            self.until = min(new)
        waited = self.before + (self.until or now) - self.since
        spent = {name: seconds for name, seconds in seen.phases.items() if seconds is not None}
        if not moment.state.is_final and abs(spent.get("admitted", 0.0) - waited) > 1.0:
            yield f"it was in its queue for {waited} s, and {spent} is said"
        if moment.state is State.QUEUED and suspended:
            if {*spent} != {"admitted"}:
                yield f"it waits, and its phases are {spent}"
            clocks = {name: 0.001 for name in PHASES if name != "admitted"}
            limit = limit_of(seen, Policy("never", deadline=0.001, clocks=clocks), now, None)
            if limit is not None and limit.code is None:
                yield f"it waits, and a clock runs: {limit.why}"
            if seen.started is not None:
                yield "it waits, and is said to have started"


def _time(text: str) -> float:
    return from_rfc3339(text) or 0.0


def test_every_story_is_recorded() -> None:
    assert {*read(FILE)} == {*STORIES}


@pytest.mark.parametrize("name", STORIES)
def test_every_step_with_kueue_is_read_as_it_is(name: str) -> None:
    assert [*troubles(read(FILE)[name], STORIES[name])] == []


def test_another_reading_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the sentences, codes and clocks is left to chance."""
    stories = read(FILE)
    whole = observation.why_held

    def without_reason(*given: Any) -> Held:
        return replace(whole(*given), text="it waits")

    def wrong_code(*given: Any) -> Held:
        return replace(whole(*given), code="gang_unschedulable")

    def hopeless(*given: Any) -> Held:
        return replace(whole(*given), never=True)

    for wrong in (without_reason, wrong_code, hopeless):
        monkeypatch.setattr(observation, "why_held", wrong)
        assert [*troubles(stories["waits"], STORIES["waits"])] != [], wrong.__name__
    monkeypatch.setattr(observation, "why_held", whole)
    monkeypatch.setattr(observation, "_waited", lambda memory, until: 2.5)
    assert [*troubles(stories["preempted"], STORIES["preempted"])] != []


def test_a_recording_holds_nothing_of_the_cluster_where_it_was_made() -> None:
    text = FILE.read_text()
    assert "managedFields" not in text and "kwok" not in text
