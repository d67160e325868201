"""What real operators, schedulers and kubelets write, read: each way in which a run goes and ends.

Every run here is looked at all the time, as a follower does, so that what clean-up takes was seen.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.observe.observation import Memory, observation, remembered
from allaboard.checking.job import require_valid
from allaboard.engines import engine_of
from allaboard.follow.run_record import RunRecord
from allaboard.render import labels
from allaboard.render.cluster_facts import ASSUMED
from allaboard.render.manifests import render
from allaboard.runs.layout import lay_out
from allaboard.runs.observation import Observation, Owner, State
from allaboard.runs.status import state_of
from allaboard.testing import a_job
from allaboard.text.names import run_name
from allaboard.text.units import from_rfc3339
from tests.cluster.api import Object, until
from tests.cluster.kubelet.handle import NodeSpec, ProcessKubelet, nodes_on
from tests.cluster.plane import ControlPlane

OWN = "allaboard.test/reading"

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module")
def mark() -> str:
    return f"reading-{secrets.token_hex(3)}"


@pytest.fixture(scope="module")
def kubelet(plane_of_nodes: ControlPlane, mark: str) -> Iterator[ProcessKubelet]:
    """A node of these tests alone, on which pods really run."""
    node = NodeSpec(mark, {"cpu": "8"}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))
    with nodes_on(plane_of_nodes, [node]) as started:
        yield started


@dataclass
class Follower:
    """One run, looked at again and again."""

    plane: ControlPlane
    kubelet: ProcessKubelet
    record: RunRecord
    job: Object
    memory: Memory = field(default_factory=Memory)
    states: list[State] = field(default_factory=list)

    @property
    def namespace(self) -> str:
        return str(self.job["metadata"]["namespace"])

    def pod(self, member: str) -> str:
        return f"{self.job['metadata']['name']}-{member}"

    def look(self) -> Observation:
        api, name = self.plane.api, self.job["metadata"]["name"]
        job = api.get(self.job["apiVersion"], self.job["kind"], name, self.namespace)
        pods = api.list("v1", "Pod", self.namespace, labelSelector=labels.selector(self.record.run))
        self.memory = remembered(self.memory, job, pods)
        given = {"pods": pods, "memory": self.memory, "now": time.time(), "submitted": True}
        seen = observation(self.record, job, **given)
        if not self.states or self.states[-1] is not state_of(seen):
            self.states.append(state_of(seen))
        return seen

    def until(self, what: str, wanted: Callable[[Observation], bool]) -> Observation:
        def shape() -> Observation | None:
            found = self.look()
            return found if wanted(found) else None

        try:
            return until(what, shape, timeout=60)
        except TimeoutError as error:
            raise AssertionError(f"{error}; it was {self.look()}") from error

    def is_now(self, state: State) -> Observation:
        return self.until(str(state), lambda seen: state_of(seen) is state)


Start = Callable[..., Follower]


@pytest.fixture
def start(plane: ControlPlane, kubelet: ProcessKubelet, namespace: str, mark: str) -> Start:
    """Starts a job whose members run a shell script."""

    def begin(script: str, **fields: Any) -> Follower:
        toleration = {"key": OWN, "operator": "Equal", "value": mark, "effect": "NoSchedule"}
        where = {"nodeSelector": {OWN: mark}, "tolerations": [toleration]}
        given = {"image": "alpine", "spot": {"grace": 1}, "pod": {"spec": where}, **fields}
        job = require_valid(a_job(**{"command": ["sh", "-c", script], **given}))
        layout = lay_out(job, engine_of(job), run_name(job.name, namespace))
        uid = labels.launch_uid(namespace, 1, 1)
        found = render(job, layout, replace(ASSUMED, namespace=namespace), launch=uid, spec_hash="v1:x")
        for manifest in found.manifests:
            made = plane.api.create(manifest)
        spec = job.as_mapping()
        record = RunRecord(layout.run, namespace, job.name, spec, "v1:x", Owner("me"), uid, time.time())
        return Follower(plane, kubelet, record, made)

    return begin


def ends(seen: Observation) -> list[tuple[str, str, int | None, int]]:
    return [(m.name, m.phase, m.exit_code, m.restarts) for m in seen.members]


def test_a_run_that_ends_well(start: Start) -> None:
    run = start("sleep 4")  # longer than a worker waits for its master
    seen = run.is_now(State.SUCCEEDED)
    assert [c.type for c in seen.conditions if c.status == "True"] == ["Created", "Succeeded"]
    assert [m.rank for m in seen.members] == [0, 1] and seen.restarts == 0
    assert State.RUNNING in run.states and run.states[-1] is State.SUCCEEDED
    known = {name for name, seconds in seen.phases.items() if seconds is not None}
    assert known == {"admitted", "scheduled", "image"}
    assert seen.created is not None and seen.started is not None and seen.finished is not None
    assert seen.created <= seen.started <= seen.finished


def test_a_run_that_fails_until_its_restarts_are_used_up(start: Start) -> None:
    seen = start("echo no; exit 1", workers=1, policy={"backoff_limit": 3}).is_now(State.FAILED)
    failed = seen.condition("Failed")
    assert failed is not None and "backoff limit" in failed.message
    assert seen.restarts == 3 and seen.members[0].exit_code == 1


def test_a_permanent_exit_code_ends_it_at_once_and_has_a_time(start: Start) -> None:
    run = start("exit 3", workers=1, policy={"restart": "exit_code"})
    seen = run.is_now(State.FAILED)
    assert ends(seen) == [("master-0", "failed", 3, 0)] and seen.finished is not None


def test_a_member_that_is_made_anew_counts_as_a_restart(start: Start) -> None:
    run = start("sleep 4", policy={"restart": "exit_code"})
    run.until("both to run", lambda seen: all(m.phase == "running" for m in seen.members))
    uid = run.memory.pods["worker-0"]
    run.kubelet.kill_container(run.namespace, run.pod("worker-0"), "pytorch")
    run.until("a new pod", lambda seen: run.memory.pods["worker-0"].keys() > uid.keys())
    seen = run.is_now(State.SUCCEEDED)
    assert seen.members[1].restarts == seen.restarts == 1


def test_a_member_that_runs_out_of_memory_says_so(start: Start) -> None:
    run = start("sleep 100", workers=1)
    run.is_now(State.RUNNING)
    run.kubelet.kill_for_memory(run.namespace, run.pod("master-0"), "pytorch")
    seen = run.until("the kill", lambda seen: seen.restarts == 1)
    assert seen.members[0].exit_code == 137
    assert seen.members[0].reason in ("OOMKilled", "CrashLoopBackOff")


def test_an_evicted_member(start: Start) -> None:
    run = start("sleep 100", workers=1, policy={"restart": "never"})
    run.is_now(State.RUNNING)
    run.kubelet.evict(run.namespace, run.pod("master-0"), "The node was low on resource: memory.")
    seen = run.is_now(State.FAILED)
    assert (seen.members[0].phase, seen.members[0].reason) == ("failed", "Evicted")


def test_an_image_that_is_not_there(start: Start) -> None:
    run = start("true", workers=1, image="registry.lab/nothing:1")
    seen = run.until("the kubelet's word", lambda seen: seen.members[0].reason == "ImagePullBackOff")
    assert state_of(seen) is State.STARTING and seen.members[0].phase == "pending"
    assert seen.phases["image"] is not None and seen.phases["scheduled"] is not None


def test_created_suspended_then_resumed(plane: ControlPlane, start: Start) -> None:
    run = start("sleep 0.5", policy={"suspend": True})
    run.until("the operator's word", lambda seen: seen.holds("Suspended"))
    assert run.states[-1] is State.SUSPENDED
    assert run.look().started is None
    time.sleep(1.1)  # server timestamps are whole seconds
    plane.api.patch(run.job, {"spec": {"runPolicy": {"suspend": False}}})
    seen = run.is_now(State.SUCCEEDED)
    created = from_rfc3339(run.job["metadata"]["creationTimestamp"])
    assert run.memory.since is not None and created is not None and run.memory.since > created
    assert seen.phases["admitted"] is not None and seen.restarts == 0


def test_suspended_while_it_runs(plane: ControlPlane, start: Start) -> None:
    run = start("sleep 100")
    run.is_now(State.RUNNING)
    plane.api.patch(run.job, {"spec": {"runPolicy": {"suspend": True}}})
    assert state_of(run.look()) is State.SUSPENDED
    seen = run.until("no pod", lambda seen: all(m.phase == "deleted" for m in seen.members))
    assert state_of(seen) is State.SUSPENDED and len(seen.members) == 2


def test_a_job_that_somebody_deletes(plane: ControlPlane, start: Start) -> None:
    run = start("trap '' TERM; while :; do sleep 0.1; done")
    run.until("both to run", lambda seen: all(m.phase == "running" for m in seen.members))
    plane.api.delete(run.job["apiVersion"], run.job["kind"], run.job["metadata"]["name"], run.namespace)
    run.is_now(State.STOPPED)
    assert run.states[-2:] == [State.STOPPING, State.STOPPED]
