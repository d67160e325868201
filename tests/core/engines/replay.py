"""What a real operator wrote, played again: each state of a job object and its pods, in order.

A recording is a file of an engine, made by tests/cluster/test_recording.py. It holds stories; a story is what
its author wrote (``job``), the run, and each write to the job object or to a pod since its start, as the
merge patch from the last one; null: it is gone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allaboard.backends.kubernetes.observe.observation import Memory, observation, remembered
from allaboard.engines import Engine
from allaboard.follow.run_record import RunRecord
from allaboard.gangs.kueue import WorkloadSeen
from allaboard.job.training_job import TrainingJob
from allaboard.runs.layout import lay_out
from allaboard.runs.observation import Observation, Owner, State
from allaboard.runs.status import WORDS, state_of
from allaboard.text.units import from_rfc3339

FOLDER = Path(__file__).parent / "recorded"
Story = Mapping[str, Any]
Object = Mapping[str, Any]


def recorded(engine: str) -> dict[str, Story]:
    """The stories of an engine, by their names."""
    return read(FOLDER / f"{engine}.json")


def read(file: Path) -> dict[str, Story]:
    """The stories of a recording, by their names."""
    stories: dict[str, Story] = json.loads(file.read_text())["stories"]
    return stories


@dataclass(frozen=True)
class Moment:
    """After one write: the job object, its pods, Kueue's Workload of it, and what they mean."""

    job: Object | None
    pods: list[Object]
    seen: Observation
    workload: Object | None = None
    now: float = 0.0

    @property
    def state(self) -> State:
        return state_of(self.seen)


def moments(story: Story) -> Iterator[Moment]:
    """Every state on the way, as a follower sees it that misses none."""
    record = RunRecord(story["run"], "k", story["job"]["name"], story["job"], "v1:x", Owner("me"), "uid", 0.0)
    job: Object | None = None
    pods: dict[str, Object] = {}
    memory, workload = Memory(), None
    newest = 0.0
    for number, write in enumerate(story["written"]):
        newest = max(newest, *_times(write), 0.0)
        if "job" in write:
            job = None if write["job"] is None else _whole(job or {}, write["job"])
        elif "workload" in write:
            workload = None if write["workload"] is None else _whole(workload or {}, write["workload"])
        elif write["patch"] is None:
            pods.pop(write["pod"], None)
        else:
            pods[write["pod"]] = _whole(pods.get(write["pod"]) or {}, write["patch"])
        if job is None:
            continue
        there = [*pods.values()]
        memory = remembered(memory, job, there, workload=workload)
        created = from_rfc3339(job["metadata"]["creationTimestamp"]) or 0.0
        now = newest if is_queued(story) else created + number / 10
        held = WorkloadSeen(workload) if is_queued(story) else None
        seen = observation(record, job, now=now, submitted=True, pods=there, memory=memory, workload=held)
        yield Moment(job, there, seen, workload, now)


def is_queued(story: Story) -> bool:
    """Whether Kueue has written to it, too."""
    return any("workload" in write for write in story["written"])


_WHEN = re.compile(r"Time(stamp)?$|edAt$")


def _times(value: Any) -> Iterator[float]:
    """Every moment that has passed, of what was written."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(inner, str) and _WHEN.search(name) and name != "deletionTimestamp":
                yield from_rfc3339(inner) or 0.0
            yield from _times(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _times(inner)


def _whole(before: Object, patch: Object) -> dict[str, Any]:
    """What a merge patch (RFC 7386) makes of an object."""
    made = {name: value for name, value in before.items() if name not in patch}
    for name, value in patch.items():
        if isinstance(value, dict):
            last = before.get(name)
            made[name] = _whole(last if isinstance(last, dict) else {}, value)
        elif value is not None:
            made[name] = value
    return made


def states(story: Story) -> list[str]:
    """The states on the way, each as long as it lasts. ``starting`` is all that comes before a run goes on
    with all of its members: on a busy node some run and some wait, and it begins again and again.
    """
    found: list[str] = []
    for moment in moments(story):
        state = "starting" if moment.state in (State.QUEUED, State.STARTING) else str(moment.state)
        if not found or found[-1] != state:
            found.append(state)
    return _without_false_starts(found)


def _without_false_starts(found: list[str]) -> list[str]:
    """Running, starting, running: not all of it ran before."""
    for n in range(len(found) - 2):
        if found[n : n + 3] == ["running", "starting", "running"]:
            return _without_false_starts([*found[: n + 1], *found[n + 3 :]])
    return found


def troubles(engine: Engine, story: Story) -> Iterator[str]:
    """Where what we read of a state does not agree with what its controllers wrote."""
    layout = lay_out(TrainingJob(**story["job"]), engine, story["run"])
    for number, moment in enumerate(moments(story)):
        for trouble in _of_moment(engine, layout, moment):
            yield f"after write {number} ({moment.state}): {trouble}"


_WORDS = {"Complete": "Succeeded", "Completed": "Succeeded"}
"""Words of other controllers for ours."""
_ENDS = {"Failed": State.FAILED, "Succeeded": State.SUCCEEDED}


def _of_moment(engine: Engine, layout: Any, moment: Moment) -> Iterator[str]:
    assert moment.job is not None
    seen, state = engine.read(moment.job, moment.pods), moment.state
    if [(m.name, m.rank) for m in seen.members] != [(m.name, m.rank) for m in layout.members]:
        yield f"its members are {[m.name for m in seen.members]}"
    if seen.total != layout.total:
        yield f"{seen.total} members, and {layout.total} were asked for"
    holds = {c.type for c in seen.conditions if c.status == "True"}
    # What its controllers wrote, by itself.
    said = [c for c in (moment.job.get("status") or {}).get("conditions") or () if c["status"] == "True"]
    wrote = {_WORDS.get(condition["type"], condition["type"]) for condition in said}
    if missed := (wrote & WORDS) - holds:
        yield f"nothing is read of {sorted(missed)}"
    told = next((end for word, end in _ENDS.items() if word in wrote), None)
    if (told or state) is not state or (state.is_final and told is None):
        yield f"its conditions are {sorted(wrote)}"
    suspended = _whole(moment.job, engine.suspension(True)) == moment.job
    if seen.suspended != suspended:
        yield f"its spec is read as {'suspended' if seen.suspended else 'not suspended'}"
    # Asked for, or not undone yet.
    if told is None and (suspended or "Suspended" in wrote) != (state is State.SUSPENDED):
        yield f"its spec says {'suspend' if suspended else 'go on'}, and its conditions {sorted(wrote)}"
    by_name = {engine.member_of(pod): pod for pod in moment.pods}
    phases = {m.name: m.phase for m in seen.members}
    for name, pod in by_name.items():
        phase = str((pod.get("status") or {}).get("phase", "Pending")).lower()
        if name is None or phases.get(name) != phase:
            read = phases.get(name or "")
            yield f"the pod {pod['metadata']['name']} of {name} is {phase}, and read as {read}"
    missing = {phase for name, phase in phases.items() if name not in by_name}
    if missing - {"pending", "deleted"}:
        yield f"members without a pod are {sorted(missing)}"
    for role, counts in seen.counts.items():
        if counts.active + counts.succeeded + counts.failed > counts.replicas:
            yield f"more members of {role} are counted than it has: {counts}"
    if state is State.SUCCEEDED and (seen.finished is None or seen.started is None):
        yield "it has no time"
    if state is State.RUNNING and {*phases.values()} <= {"pending", "deleted"}:
        yield "it runs, and none of its members does"
