"""Logs through a real API server from pods that really write, crash, are started again, and go while they
are read.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allaboard import running
from allaboard.backends.base import Cursor, LogLine, Plan, Selection
from allaboard.backends.kubernetes.backend import AsyncKubernetesBackend, KubernetesBackend
from allaboard.backends.kubernetes.client.api import Api
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.backends.kubernetes.logs import stream
from allaboard.backends.kubernetes.logs.cache import AttemptLogs
from allaboard.backends.kubernetes.logs.collector import EvidenceCollector, collect
from allaboard.backends.kubernetes.logs.stream import LogSources, follow_logs, read_logs
from allaboard.backends.kubernetes.observe.containers import ContainerRun, PodRole, container_runs
from allaboard.checking.job import require_valid
from allaboard.errors import AllaboardError, BadInput
from allaboard.follow.loop import Wait, follow, run_async
from allaboard.runs.observation import Owner, State
from allaboard.testing import a_job
from allaboard.testing.objects import PYTORCHJOBS
from tests.cluster.api import Object, until
from tests.cluster.cluster import Cluster
from tests.cluster.kubelet.handle import NodeSpec, ProcessKubelet, nodes_on
from tests.cluster.kubelet.obstacles import obstacle
from tests.cluster.plane import ControlPlane

pytestmark = pytest.mark.needs("kube-scheduler")
OWN = "allaboard.test/logs"

# Numbers its lines over its tries, in bursts. The first crashes; of two tries a node forgets none.
COUNTS = """
sleep 1; cd /state; n=$(cat n 2>/dev/null || echo 0); t=$(cat t 2>/dev/null || echo 0); echo $((t + 1)) > t
end=$((n + 400))
while [ $n -lt $end ]; do
  n=$((n + 1)); echo $n > n; echo "line $n"
  [ $((n % 7)) = 0 ] && echo "line $n aside" >&2
  [ $((n % 40)) = 0 ] && sleep 0.05
done
[ $t -ge 1 ]
"""
STATE = [{"name": "state", "emptyDir": {}}]
KEEPS = {"volumeMounts": [{"name": "state", "mountPath": "/state"}]}


class Gang:
    """Pods of one test that write, on a node of these tests' own."""

    def __init__(self, cluster: Cluster, mark: str, namespace: str, kubelet: ProcessKubelet) -> None:
        self.cluster, self.mark, self.namespace, self.kubelet = cluster, mark, namespace, kubelet
        self.seats: dict[str, PodRole] = {}

    def member(
        self, name: str, script: str, *, restart: str = "Never", init: str | None = None, **container: Any
    ) -> str:
        one = {"name": "pytorch", "image": "alpine", "command": ["sh", "-c", script], **container}
        first = {"name": "prepare", "image": "alpine", "command": ["sh", "-c", init]}
        self.cluster.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "restartPolicy": restart,
                    "terminationGracePeriodSeconds": 5,
                    "nodeSelector": {OWN: self.mark},
                    "tolerations": [{"key": OWN, "operator": "Exists"}],
                    "volumes": STATE,
                    **({"initContainers": [first]} if init else {}),
                    "containers": [one],
                },
            }
        )
        self.seats[name] = PodRole(name, len(self.seats), "pytorch")
        return name

    def pods(self) -> list[Object]:
        return self.cluster.api.list("v1", "Pod", self.namespace)

    def tries(self) -> list[ContainerRun]:
        return container_runs(self.pods(), self.seats)

    def look(self) -> LogSources:
        pods = self.pods()
        over = bool(pods) and all(p["status"].get("phase") in ("Succeeded", "Failed") for p in pods)
        return LogSources(container_runs(pods, self.seats), over)

    def phase(self, name: str) -> str:
        phases = {p["metadata"]["name"]: p["status"].get("phase", "") for p in self.pods()}
        return phases.get(name, "gone")

    def until(self, name: str, *phases: str) -> None:
        until(f"{name} to be {phases}", lambda: self.phase(name) in phases, 60)

    def delete(self, name: str, grace: int | None = None) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        self.cluster.api.request("DELETE", path, None if grace is None else {"gracePeriodSeconds": grace})


@pytest.fixture(scope="module")
def node(plane_of_nodes: ControlPlane) -> Iterator[tuple[str, ProcessKubelet]]:
    mark = f"logs-{secrets.token_hex(3)}"
    spec = NodeSpec(mark, {}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))
    with nodes_on(plane_of_nodes, [spec]) as kubelet:
        yield mark, kubelet


@pytest.fixture
def gang(cluster: Cluster, node: tuple[str, ProcessKubelet], namespace: str) -> Iterator[Gang]:
    made = Gang(cluster, node[0], namespace, node[1])
    yield made
    for name in made.seats:
        if made.phase(name) != "gone":
            made.delete(name, grace=0)


@pytest.fixture
def api(cluster: Cluster, namespace: str) -> Iterator[Api]:
    with Access(str(cluster.kubeconfig), None, namespace, environ={}).api() as made:
        yield made


def once(api: Api, gang: Gang, cursor: Cursor | None = None, **more: Any) -> tuple[list[LogLine], Cursor]:
    *lines, new = read_logs(api, None, gang.tries(), more.pop("selection", Selection()), cursor, **more)
    assert isinstance(new, dict)
    return [line for line in lines if isinstance(line, LogLine)], json.loads(json.dumps(new))


def numbers(lines: list[LogLine], member: str) -> list[int]:
    """Of the lines that a member counted, those of stderr left out."""
    found = [re.fullmatch(r"line (\d+)", line.text) for line in lines if line.member == member]
    return [int(match.group(1)) for match in found if match]


def test_crashes_and_restarts_cost_no_line_and_double_none(gang: Gang, api: Api) -> None:
    """Read by one call after another, as an Airflow task does."""
    for name in ("master-0", "worker-0"):
        gang.member(name, COUNTS, restart="OnFailure", **KEEPS)
    seen: list[LogLine] = []
    cursor: Cursor | None = None
    while True:
        over = gang.look().over
        lines, cursor = once(api, gang, cursor)
        seen += lines
        if over:
            break
        time.sleep(0.02)
    for name in ("master-0", "worker-0"):
        assert numbers(seen, name) == [*range(1, 801)]
        restarts = {line.restart for line in seen if line.member == name}
        assert restarts == {0, 1}
        aside = [line.text for line in seen if line.member == name and line.text.endswith("aside")]
        assert len(aside) == len(set(aside)) == 800 // 7
    assert [line for line in seen if line.gap is not None] == []
    assert once(api, gang, cursor)[0] == []


def test_the_same_life_followed_by_streams(gang: Gang, api: Api) -> None:
    for name in ("master-0", "worker-0"):
        gang.member(name, COUNTS, restart="OnFailure", **KEEPS)
    items = [*follow_logs(api, None, gang.look, Selection())]
    seen = [item for item in items if isinstance(item, LogLine)]
    for name in ("master-0", "worker-0"):
        assert numbers(seen, name) == [*range(1, 801)], [x.text for x in seen if x.gap]
    assert [line for line in seen if line.gap is not None] == []
    assert isinstance(items[-1], dict) and once(api, gang, items[-1])[0] == []


def test_members_are_merged_by_time_with_their_ranks(gang: Gang, api: Api) -> None:
    gang.member("master-0", "for n in 1 3 5; do echo $n; sleep 0.4; done")
    gang.member("worker-0", "sleep 0.2; for n in 2 4 6; do echo $n; sleep 0.4; done", init="echo preparing")
    gang.until("master-0", "Succeeded")
    gang.until("worker-0", "Succeeded")
    lines, cursor = once(api, gang)
    times = [line.time for line in lines]
    assert times == sorted(times, key=lambda t: t or 0)
    assert [(line.rank, line.container) for line in lines if line.text == "preparing"] == [(1, "prepare")]
    assert {line.rank for line in lines if line.text in "135"} == {0}
    last, _ = once(api, gang, selection=Selection(ranks=(1,), tail=2))
    assert [line.text for line in last] == ["4", "6"]
    assert once(api, gang, cursor)[0] == []


def test_a_pod_that_is_deleted_while_it_is_followed_says_its_last_words(gang: Gang, api: Api) -> None:
    gang.member("master-0", "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    heard: list[LogLine] = []

    def listen() -> None:
        for item in follow_logs(api, None, lambda: LogSources(gang.tries(), not gang.pods()), Selection()):
            if isinstance(item, LogLine):
                heard.append(item)

    thread = threading.Thread(target=listen)
    thread.start()
    until("the first word", lambda: any(line.text == "ready" for line in heard), 60)
    gang.delete("master-0")
    thread.join(60)
    assert [line.text for line in heard] == ["ready", "saved"]


def test_what_a_follower_has_read_survives_the_pod(gang: Gang, api: Api) -> None:
    kept = AttemptLogs()
    gang.member("master-0", "echo one; echo two >&2; exit 3")
    gang.until("master-0", "Failed")
    once(api, gang, logs=kept)
    gang.delete("master-0", grace=0)
    until("the pod to be gone", lambda: not gang.pods(), 60)
    lines, _ = once(api, gang, logs=kept)
    assert [line.text for line in lines] == ["one", "two"]
    assert once(api, gang)[0] == [], "nobody else has it"


def test_a_pod_that_goes_between_two_calls_leaves_one_gap(gang: Gang, api: Api) -> None:
    gang.member("master-0", "echo one; sleep 1000")
    until("a line", lambda: _readable(lambda: once(api, gang)[0]), 60)
    lines, cursor = once(api, gang)
    gang.delete("master-0", grace=0)
    until("the pod to be gone", lambda: not gang.pods(), 60)
    more, cursor = once(api, gang, cursor)
    assert len(more) == 1 and more[0].gap is not None and more[0].member == "master-0"
    assert more[0].gap.since == lines[0].time and more[0].gap.until is None
    assert once(api, gang, cursor)[0] == []


def _readable(what: Callable[[], Any]) -> Any:
    try:
        return what()
    except AllaboardError:
        return None


def test_the_ends_of_what_fails_are_there_after_clean_up(gang: Gang, api: Api) -> None:
    """A member fails; everything is deleted a moment later."""
    collector = EvidenceCollector(progress_every=0)
    gang.member("master-0", "echo waiting; sleep 1000")
    gang.member("worker-0", "echo begins; sleep 0.3; echo 'RuntimeError: odd' >&2; exit 1")
    gang.member("worker-1", "echo waiting; sleep 1000")
    gang.until("worker-0", "Failed")
    collect(api, None, collector, gang.tries())
    for name in gang.seats:
        gang.delete(name, grace=0)
    until("the pods to be gone", lambda: not gang.pods(), 60)
    assert collector.tails() == {
        "master-0": "waiting",
        "worker-0": "begins\nRuntimeError: odd",
        "worker-1": "waiting",
    }


@pytest.mark.needs("training-operator")
def test_the_operators_own_clean_up_takes_no_evidence(gang: Gang, api: Api) -> None:
    """clean_pods: all deletes the pod that failed within a twentieth of a second of its end."""
    fails = "echo 'ValueError: odd' >&2; exit 1"
    script = f"echo begins; sleep 1; [ $ALLABOARD_MEMBER = worker-0 ] || sleep 100; {fails}"
    job = a_job(
        image="alpine",
        command=["sh", "-c", script],
        workers=3,
        policy={"restart": "never", "backoff_limit": 0, "clean_pods": "all", "attempts": 1},
        gang={"scheduler": "none"},
        pod={
            "spec": {"nodeSelector": {OWN: gang.mark}, "tolerations": [{"key": OWN, "operator": "Exists"}]},
        },
    )
    backend = KubernetesBackend(api)
    outcome = running.run(job, backend=backend)
    assert outcome.state == State.FAILED
    assert outcome.seen.tails["worker-0"] == "begins\nValueError: odd"
    assert "ValueError: odd" in outcome.message and outcome.diagnoses[0].blame == "worker-0"
    until("the pods to be gone", lambda: not gang.pods(), 60)

    def texts(backend: KubernetesBackend) -> list[str]:
        lines = [line for line in backend.logs(outcome.run, Selection()) if isinstance(line, LogLine)]
        return [line.text for line in lines if line.member == "worker-0" and line.gap is None]

    assert texts(backend) == ["begins", "ValueError: odd"], "what was read for the evidence is there for logs"
    assert texts(KubernetesBackend(api)) == texts(backend), "for those of other processes, too"


@pytest.mark.needs("training-operator")
@pytest.mark.parametrize("way", ["blocking", "async"])
@pytest.mark.parametrize("clean", ["running", "all"])
def test_nor_does_it_at_success(gang: Gang, api: Api, clean: str, way: str) -> None:
    """Rank 0 is done; the operator deletes a worker that still trains, and with ``all`` every pod, in the
    same moment. What each of them wrote last is known, to everybody and for ever.
    """
    script = """
    there() { nslookup $ALLABOARD_RUN-$1 > /dev/null 2>&1; }
    echo $ALLABOARD_MEMBER trains
    case $ALLABOARD_MEMBER in
      worker-0) trap "echo worker-0 is told to end; exit 0" TERM; sleep 100 & wait;;
      worker-1) echo worker-1 has no more to say; exec sleep 100;;
      worker-2) sleep 4;;
      master-0) until there worker-0 && there worker-1 && there worker-2; do sleep 0.1; done
                while there worker-2; do sleep 0.1; done;;
    esac
    echo $ALLABOARD_MEMBER is done
    """
    job = a_job(
        image="alpine",
        command=["sh", "-c", script],
        workers=4,
        policy={"clean_pods": clean},
        gang={"scheduler": "none"},
        pod={
            "spec": {
                "nodeSelector": {OWN: gang.mark},
                "tolerations": [{"key": OWN, "operator": "Exists"}],
                "terminationGracePeriodSeconds": 1,
            },
        },
    )
    backend = KubernetesBackend(api)
    if way == "blocking":
        outcome = running.run(job, backend=backend)
        assert outcome.state == State.SUCCEEDED
        run = outcome.run
    else:
        run = backend.launch(Plan(require_valid(job), "k"), Owner("me", "deferred", "detached")).run
        assert asyncio.run(_ended(gang, run)) is State.SUCCEEDED
    stay = 0 if clean == "all" else 2
    until("the pods to be gone", lambda: len(gang.pods()) == stay, 60)
    lines = [one for one in KubernetesBackend(api).logs(run, Selection()) if isinstance(one, LogLine)]
    said = {m: [x.text for x in lines if (x.member, x.container) == (m, "")] for m in MEMBERS}
    assert said == {
        "master-0": ["master-0 trains", "master-0 is done"],
        "worker-0": ["worker-0 trains", "worker-0 is told to end"],
        "worker-1": ["worker-1 trains", "worker-1 has no more to say"],
        "worker-2": ["worker-2 trains", "worker-2 is done"],
    }


MEMBERS = ("master-0", "worker-0", "worker-1", "worker-2")


async def _ended(gang: Gang, run: str) -> State:
    """Followed as a trigger does it."""
    access = Access(str(gang.cluster.kubeconfig), None, gang.namespace, environ={})
    with access.api() as api:
        backend = AsyncKubernetesBackend(api, environ={})
        async with backend.changes(run) as changes:

            async def answer(ask: Any) -> Any:
                return await (
                    changes.wait(ask.seconds) if isinstance(ask, Wait) else backend.observe(run, ask.evidence)
                )

            return (await run_async(follow(backend.pace), answer)).state


def test_progress_is_read_as_it_is_told(gang: Gang, api: Api) -> None:
    line = '[allaboard] {"v":1,"kind":"progress","step":%d,"total":100,"loss":0.5}'
    script = "; ".join(f"echo '{line % step}'" for step in (10, 20)) + "; sleep 1000"
    collector = EvidenceCollector(progress_every=60)
    gang.member("master-0", script)

    def heard() -> bool:
        collect(api, None, collector, gang.tries(), over=True)
        return collector.report is not None and collector.report.progress.step == 20

    until("step 20", heard, 60)
    assert collector.report is not None and collector.report.progress.total == 100


def test_a_large_log_passes_in_bounded_pieces(gang: Gang, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LARGEST", 32 << 10)
    monkeypatch.setattr(stream, "SMALLEST", 32 << 10)
    script = "i=0; while [ $i -lt 6000 ]; do i=$((i + 1)); echo line $i; done"
    for name in ("master-0", "worker-0"):
        gang.member(name, script)
    for name in gang.seats:
        gang.until(name, "Succeeded")
    lines, _ = once(api, gang)
    for name in gang.seats:
        assert numbers(lines, name) == [*range(1, 6001)]


@pytest.mark.slow
def test_a_log_of_any_size_is_read_once_and_in_little_memory(gang: Gang, api: Api) -> None:
    """Two seconds of a member that write more than any request would hold, and a line that no piece does."""
    words = "x" * 89
    script = f"yes '{words}' | head -n 60000; head -c 3000000 /dev/zero | tr '\\0' z; echo; echo end"
    gang.member("master-0", script)
    gang.until("master-0", "Succeeded")
    tracemalloc.start()
    try:
        count, size, last = 0, 0, deque[LogLine](maxlen=2)
        for item in stream.read_logs(api, None, gang.tries(), Selection()):
            if isinstance(item, LogLine):
                count, size = count + (not item.more), size + len(item.text)
                last.append(item)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (count, size, last[-1].text) == (60_002, 60_000 * 89 + 3_000_000 + 3, "end")
    assert peak < 20 << 20, f"{peak >> 20} MiB for a log of 8 MB, which as lines would be 50"


@pytest.mark.needs("training-operator")
def test_a_job_of_others_is_watched_by_its_name_and_never_changed(gang: Gang, api: Api) -> None:

    def replica(script: str) -> dict[str, Any]:
        container = {"name": "pytorch", "image": "alpine", "command": ["sh", "-c", script]}
        spec = {
            "containers": [container],
            "nodeSelector": {OWN: gang.mark},
            "tolerations": [{"key": OWN, "operator": "Exists"}],
        }
        return {"replicas": 1, "restartPolicy": "Never", "template": {"spec": spec}}

    # What still runs when the master has ended is deleted.
    replicas = {"Master": replica("echo trains; sleep 6"), "Worker": replica("echo trains")}
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "nightly"},
        "spec": {"pytorchReplicaSpecs": replicas},
    }
    made = api.create(PYTORCHJOBS, body)
    backend = KubernetesBackend(api)
    assert [seen.run for seen in backend.list_others()] == ["nightly"]
    assert backend.list() == []
    job = backend.others("nightly")
    outcome = running.attach("nightly", backend=job)
    assert outcome.state == State.SUCCEEDED
    # The operator asks for the master alone: the worker may be a moment behind it.
    assert {m.name: m.exit_code for m in outcome.seen.members}["master-0"] == 0
    lines = [line for line in job.logs("nightly", Selection(), follow=True) if isinstance(line, LogLine)]
    assert [(line.member, line.text) for line in lines if not line.container] == [
        ("master-0", "trains"),
        ("worker-0", "trains"),
    ]
    events = job.events("nightly")
    assert "PyTorchJobSucceeded" in [event.reason for event in events]
    assert [event.time for event in events] == sorted(event.time or 0 for event in events)
    with pytest.raises(BadInput, match="add --adopt to delete it"):
        job.delete("nightly")
    assert api.get(PYTORCHJOBS, "nightly")["spec"] == made["spec"]


@pytest.mark.slow
def test_an_api_server_that_dies_while_logs_are_followed_costs_no_line(
    new_plane_in: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := obstacle():
        pytest.skip(reason)
    with new_plane_in(tmp_path / "plane", "kube-scheduler", "kube-controller-manager") as plane:
        namespace = plane.make_namespace("logs")
        spec = NodeSpec("n", {}, {OWN: "n"}, ())
        with ProcessKubelet(plane.kubeconfig, [spec]) as kubelet:
            gang = Gang(plane, "n", namespace, kubelet)
            slowly = COUNTS.replace("sleep 0.05", "sleep 0.3").replace("[ $t -ge 1 ]", "true")
            gang.member("master-0", slowly, **KEEPS)
            seen: list[LogLine] = []

            def look() -> LogSources:
                found: LogSources = until("the API server", lambda: _up(gang), 60)
                return found

            def listen() -> None:
                with Access(str(plane.kubeconfig), None, namespace, environ={}).api() as api:
                    for item in follow_logs(api, None, look, Selection()):
                        if isinstance(item, LogLine):
                            seen.append(item)

            thread = threading.Thread(target=listen)
            thread.start()
            for wanted in (50, 200):
                until(f"line {wanted}", lambda wanted=wanted: len(numbers(seen, "master-0")) >= wanted, 60)
                plane.restart("kube-apiserver")
            thread.join(120)
            assert numbers(seen, "master-0") == [*range(1, 401)]
            assert [line for line in seen if line.gap is not None] == []


def _up(gang: Gang) -> LogSources | None:
    try:
        return gang.look()
    except Exception:  # whatever the small client of these tests makes of a server that is away
        return None


def test_pods_are_found_as_the_backend_finds_them(gang: Gang, api: Api) -> None:
    gang.member("master-0", "echo one")
    gang.until("master-0", "Succeeded")
    items, _ = api.list(PODS)
    assert container_runs(items, gang.seats) == gang.tries()
