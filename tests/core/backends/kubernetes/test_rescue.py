"""A pod whose row says that it ails may be gone a moment later: what it wrote is saved first of all."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from allaboard.backends.base import Cursor, LogLine, Plan, Selection
from allaboard.backends.kubernetes.backend import KubernetesBackend, _capture_beside
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS
from allaboard.backends.kubernetes.logs.archive import LABEL
from allaboard.backends.kubernetes.logs.capture import PodCapture
from allaboard.backends.kubernetes.observe.containers import PodRole
from allaboard.backends.kubernetes.session import CAPTURES, FollowSession
from allaboard.backends.kubernetes.watch.reflector import PodAlarm
from allaboard.checking.job import require_valid
from allaboard.errors import BackendUnreachable
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import state_of
from allaboard.testing import a_job
from allaboard.testing.cluster import FakeCluster
from allaboard.text.reportline import encode
from allaboard.text.units import rfc3339
from tests.core.backends.kubernetes.test_backend import ME, a_plan, running


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def a_run(cluster: FakeCluster, backend: KubernetesBackend) -> str:
    handle = backend.launch(a_plan(workers=3), ME)
    running(cluster, backend, handle.run)
    cluster.say(f"{handle.run}-master-0", "waits")
    cluster.say(f"{handle.run}-worker-0", "ValueError: odd")
    return handle.run


def goes(cluster: FakeCluster, run: str) -> None:
    for pod in cluster.all(PODS):
        cluster.delete(PODS, pod["metadata"]["name"], "default", grace=0)
    assert cluster.all(PODS) == []


def fails(cluster: FakeCluster, name: str, words: str) -> str:
    """A pod fails; the version at which it has."""
    pod = cluster.one(PODS, name)
    assert pod is not None
    (status,) = pod["status"]["containerStatuses"]
    id, begun = status["containerID"], pod["metadata"]["creationTimestamp"]
    end = {"exitCode": 1, "message": words, "startedAt": begun, "finishedAt": begun, "containerID": id}
    pod["status"] |= {"phase": "Failed", "containerStatuses": [status | {"state": {"terminated": end}}]}
    cluster._put(PODS, pod, "MODIFIED")
    return str(pod["metadata"]["resourceVersion"])


def ring(changes: Any, pod: str, version: str | None = "") -> None:
    """What a hub does; the one in memory has no rows."""
    changes.on_alarm(PodAlarm(pod, version or "", failed=version is not None))


def session_of(backend: Any, run: str) -> FollowSession:
    session: FollowSession | None = backend.workspace.sessions.get(run)
    assert session is not None
    return session


def threads_of(backend: Any, run: str) -> list[threading.Thread]:
    threads = [*session_of(backend, run).threads]
    assert threads
    return threads


def check(seen: Observation) -> None:
    assert seen.tails["worker-0"] == "ValueError: odd" and seen.tails["master-0"] == "waits"


def test_what_it_wrote_is_there_when_the_pod_is_gone(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = a_run(cluster, backend)
    with backend.changes(run) as changes:
        ring(changes, f"{run}-worker-0")
        session_of(backend, run).join_captures(30)
        goes(cluster, run)
        check(backend.observe(run, evidence=True))
    assert session_of(backend, run).threads == ()


def test_who_asks_for_evidence_waits_for_what_is_being_saved(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = a_run(cluster, backend)
    with backend.changes(run) as changes:
        ring(changes, f"{run}-worker-0")
        assert backend.observe(run, evidence=True).tails["worker-0"] == "ValueError: odd"


def test_without_blocking(cluster: FakeCluster) -> None:
    run = a_run(cluster, cluster.backend())
    backend = cluster.async_backend()

    async def life() -> Observation:
        async with backend.changes(run) as changes:
            ring(changes, f"{run}-worker-0")
            session_of(backend, run).join_captures(30)
            goes(cluster, run)
            return await backend.observe(run, evidence=True)

    check(asyncio.run(life()))
    assert session_of(backend, run).threads == ()


def lines(items: list[LogLine | Cursor]) -> list[tuple[str, str]]:
    return [(one.member, one.text) for one in items if isinstance(one, LogLine) and one.gap is None]


WROTE = [("master-0", "waits"), ("worker-0", "ValueError: odd")]


def test_what_was_saved_is_read_as_logs_by_the_same_process(cluster: FakeCluster) -> None:
    """Also before anybody looks at the run again; a cursor goes on behind it."""
    backend = cluster.backend()
    run = a_run(cluster, backend)
    with backend.changes(run) as changes:
        ring(changes, f"{run}-worker-0")
        session_of(backend, run).join_captures(30)
        goes(cluster, run)
        items = [*backend.logs(run, Selection())]
    cursor = items[-1]
    assert sorted(lines(items)) == WROTE and isinstance(cursor, dict)
    assert lines([*backend.logs(run, Selection(), cursor)]) == []
    check(backend.observe(run, evidence=True))
    assert lines([*cluster.backend().logs(run, Selection())]) == [], "nobody else has it"


@pytest.mark.parametrize("way", ["blocking", "async"])
def test_who_asks_for_logs_waits_for_what_is_being_saved(cluster: FakeCluster, way: str) -> None:
    begun = cluster.backend()
    run = a_run(cluster, begun)
    if way == "blocking":
        with begun.changes(run) as changes:
            ring(changes, f"{run}-worker-0")
            assert sorted(lines([*begun.logs(run, Selection())])) == WROTE
            assert not any(one.is_alive() for one in threads_of(begun, run))
        return
    backend = cluster.async_backend()

    async def life() -> list[LogLine | Cursor]:
        async with backend.changes(run) as changes:
            ring(changes, f"{run}-worker-0")
            first = anext(backend.logs(run, Selection()))
            found = [await first]
            assert not any(one.is_alive() for one in threads_of(backend, run))
            return found

    assert lines(asyncio.run(life()))[0] in WROTE


@pytest.mark.parametrize("way", ["blocking", "async"])
def test_what_the_collector_read_is_read_as_logs_once_the_pods_are_gone(
    cluster: FakeCluster, way: str
) -> None:
    """The first failure is looked at; then the next attempt takes its place."""
    begun = cluster.backend()
    run = a_run(cluster, begun)
    fails(cluster, f"{run}-worker-0", "")
    one, other = cluster.backend(), cluster.async_backend()

    async def life(selection: Selection) -> list[LogLine | Cursor]:
        return [item async for item in other.logs(run, selection)]

    def read(**selection: Any) -> list[tuple[str, str]]:
        chosen = Selection(**selection)
        return lines([*one.logs(run, chosen)] if way == "blocking" else asyncio.run(life(chosen)))

    if way == "blocking":
        one.observe(run)
    else:
        asyncio.run(other.observe(run))
    goes(cluster, run)
    assert sorted(read()) == WROTE
    cluster.logs.clear()
    running(cluster, begun, run)
    cluster.end_members(run, 3)
    cluster.tick(3)
    begun.observe(run)
    assert begun.launch(a_plan(workers=3), ME).attempt == 2
    assert sorted(read(attempt=1)) == WROTE and read() == []


def test_what_is_known_of_earlier_attempts_is_bounded(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.session.ATTEMPTS", 3)
    backend = cluster.backend()
    run = a_run(cluster, backend)
    session: Any = session_of(backend, run)
    generation, _ = next(iter(session._attempts))
    record = SimpleNamespace(run=run, generation=generation)
    for attempt in range(10):
        history = session.earlier_history(record, attempt + 5)
        assert session.earlier_history(record, attempt + 5) is history
    assert len(session._attempts) == 3 and backend.observe(run).run == run


@pytest.mark.parametrize("again", [False, True])
def test_a_pod_that_went_first_is_found_in_what_happened_since(cluster: FakeCluster, again: bool) -> None:
    """And is not taken for the one of the same name that came after it."""
    backend = cluster.backend()
    run = a_run(cluster, backend)
    version = fails(cluster, f"{run}-worker-0", "ValueError: odd\n")
    cluster.delete(PODS, f"{run}-worker-0", "default", grace=0)
    if again:
        cluster.tick(1)
        assert cluster.one(PODS, f"{run}-worker-0") is not None
    cluster.logs.clear()
    with backend.changes(run) as changes:
        ring(changes, f"{run}-worker-0", version)
        seen = backend.observe(run, evidence=True)
    assert seen.tails["worker-0"] == "ValueError: odd"
    assert {m.name: m.exit_code for m in seen.members}["worker-0"] == 1
    one = cluster.async_backend()

    async def life() -> Observation:
        async with one.changes(run) as changes:
            ring(changes, f"{run}-worker-0", version)
            return await one.observe(run, evidence=True)

    assert asyncio.run(life()).tails["worker-0"] == "ValueError: odd"


def test_few_pods_are_asked_at_one_time(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ring the alarm at once, of one run and of all of them."""
    monkeypatch.setattr("allaboard.backends.kubernetes.session.ALL_CAPTURES", CAPTURES + 2)
    go_on = threading.Event()
    monkeypatch.setattr("allaboard.backends.kubernetes.operations.observe.capture", lambda *_: go_on.wait(30))
    backend = cluster.backend()
    sessions = [
        backend.workspace.sessions.of(run) for run in (a_run(cluster, cluster.backend()), "another-run")
    ]

    def ring_for(session: FollowSession, pod: str) -> None:
        _capture_beside(backend.api, backend.workspace, session, PodAlarm(pod, "", failed=True))

    for n in range(50):
        for session in sessions:
            ring_for(session, f"{session.run}-worker-{n}")
    first, second = (len(session.threads) for session in sessions)
    assert first + second == CAPTURES + 2 and max(first, second) <= CAPTURES
    go_on.set()
    for session in sessions:
        session.join_captures(30)
    ring_for(sessions[0], "one-more")
    assert len(sessions[0].threads) == 1, "there is room again"
    sessions[0].join_captures(30)


def test_a_pod_that_is_none_of_the_run_is_no_evidence(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = a_run(cluster, backend)
    cluster.say("stranger", "hello")
    session = backend.workspace.sessions.of(run)
    _capture_beside(backend.api, backend.workspace, session, PodAlarm("stranger", "", failed=True))
    assert "stranger" not in backend.observe(run, evidence=True).tails


def test_captures_that_nobody_looks_at_are_bounded(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.session.ENDED", 3)
    sessions = cluster.backend().workspace.sessions
    changes: Any = SimpleNamespace()
    capture, roles = PodCapture("pod"), {"pod": PodRole("worker-0", 0, "pytorch")}
    for n in range(10):
        session = sessions.follow(f"run-{n}", changes)
        session.add_captures("uid", [capture], roles)
        sessions.unfollow(session, changes)
    held = [run for run in (f"run-{n}" for n in range(10)) if sessions.get(run) is not None]
    assert held == ["run-7", "run-8", "run-9"]


def test_sessions_that_are_not_followed_are_bounded(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.session.LIVE", 3)
    sessions = cluster.backend().workspace.sessions
    changes: Any = SimpleNamespace()
    followed = sessions.follow("followed", changes)
    for n in range(10):
        sessions.of(f"run-{n}")
    assert sessions.get("followed") is followed and sessions.get("run-9") is not None
    assert [n for n in range(10) if sessions.get(f"run-{n}") is not None] == [8, 9]
    sessions.unfollow(followed, changes)
    for n in range(10):
        sessions.of(f"run-{n}")
    assert sessions.get("followed") is None


# --- an elastic gang, which the operator takes for done as soon as one worker is


def succeeds(cluster: FakeCluster, name: str, words: str = "") -> None:
    pod = cluster.one(PODS, name)
    assert pod is not None
    (status,) = pod["status"]["containerStatuses"]
    begun, now = pod["metadata"]["creationTimestamp"], rfc3339(cluster.now)
    end = {"exitCode": 0, "startedAt": begun, "finishedAt": now, "containerID": status["containerID"]}
    end |= {"message": words} if words else {}
    pod["status"] |= {"phase": "Succeeded", "containerStatuses": [status | {"state": {"terminated": end}}]}
    cluster._put(PODS, pod, "MODIFIED")


def an_elastic_run(cluster: FakeCluster, backend: KubernetesBackend) -> str:
    plan = Plan(require_valid(a_job(image="lab/train:1", workers=None, elastic={"min": 1, "max": 2})), "k")
    handle = backend.launch(plan, ME)
    running(cluster, backend, handle.run)
    cluster.say(f"{handle.run}-worker-0", encode("progress", step=200, total=200))
    cluster.say(f"{handle.run}-worker-0", encode("result", metrics={"accuracy": 0.9}))
    succeeds(cluster, f"{handle.run}-worker-1")
    cluster.tick(2)
    pod = cluster.one(PODS, f"{handle.run}-worker-0")
    assert pod is not None and "deletionTimestamp" in pod["metadata"]
    return handle.run


def is_gone(cluster: FakeCluster, run: str) -> None:
    if cluster.one(PODS, f"{run}-worker-0") is not None:
        cluster.delete(PODS, f"{run}-worker-0", "default", grace=0)
    cluster.tick(1)
    assert cluster.one(PODS, f"{run}-worker-0") is None


def after_the_alarm(cluster: FakeCluster, way: str, run: str, alarm: PodAlarm) -> Observation:
    """What a follower sees to whom this row came, once rank 0's pod is gone."""
    blocking, other = cluster.backend(), cluster.async_backend()

    async def life() -> Observation:
        async with other.changes(run) as changes:
            assert changes.on_alarm is not None
            changes.on_alarm(alarm)
            session_of(other, run).join_captures(30)
            is_gone(cluster, run)
            return await other.observe(run)

    if way == "async":
        return asyncio.run(life())
    with blocking.changes(run) as changes:
        assert changes.on_alarm is not None
        changes.on_alarm(alarm)
        session_of(blocking, run).join_captures(30)
        is_gone(cluster, run)
        return blocking.observe(run)


@pytest.mark.parametrize("way", ["blocking", "async"])
@pytest.mark.parametrize("whose", ["worker-0", "worker-1"])
def test_what_rank_0_achieved_is_known_though_its_pod_was_deleted(
    cluster: FakeCluster, way: str, whose: str
) -> None:
    """The row is that of rank 0, which goes, or that of another member, which is done."""
    run = an_elastic_run(cluster, cluster.backend())
    seen = after_the_alarm(cluster, way, run, PodAlarm(f"{run}-{whose}", "", failed=False))
    assert state_of(seen) is State.SUCCEEDED
    assert (seen.progress.step, seen.progress.result) == (200, {"accuracy": 0.9})
    later = cluster.backend()
    assert later.observe(run).progress.result == {"accuracy": 0.9}
    written = [text for member, text in lines([*later.logs(run, Selection())]) if member == "worker-0"]
    assert len(written) == 2, "and so is what it wrote"


@pytest.mark.parametrize("way", ["blocking", "async"])
def test_a_result_that_the_pod_kept_in_its_status_is_known_though_its_log_was_never_read(
    cluster: FakeCluster, way: str
) -> None:
    """The follower comes too late for the log: the pod went at once. What happened since tells its status."""
    run = an_elastic_run(cluster, cluster.backend())
    alarm = PodAlarm(f"{run}-worker-1", str(cluster._version_now()), failed=False)
    words = f"{encode('progress', step=200, total=200)}\n{encode('result', metrics={'accuracy': 0.9})}"
    succeeds(cluster, f"{run}-worker-0", words)
    is_gone(cluster, run)
    seen = after_the_alarm(cluster, way, run, alarm)
    assert state_of(seen) is State.SUCCEEDED
    assert (seen.progress.step, seen.progress.result) == (200, {"accuracy": 0.9})
    assert seen.progress.lost_steps == 0
    assert cluster.backend().observe(run).progress.result == {"accuracy": 0.9}


@pytest.mark.parametrize("way", ["blocking", "async"])
def test_the_end_waits_for_what_is_just_being_read(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The look finds the end while the pod is still being read, and waits for that."""
    begun = cluster.backend()
    run = an_elastic_run(cluster, begun)
    waits = threading.Event()
    other = cluster.async_backend()

    def join(session: FollowSession, seconds: float) -> None:
        waits.set()
        real_join(session, seconds)

    real_join = FollowSession.join_captures
    monkeypatch.setattr(FollowSession, "join_captures", join)

    def late(pod: str) -> PodCapture:
        """Its log was read before it went, and comes when it is waited for."""
        data = begun.api.log(pod, tail=200)
        return PodCapture(pod, (cluster.one(PODS, pod) or {},), b"".join(data), True, True)

    def capture(api: Any, namespace: str | None, pod: str, **how: Any) -> PodCapture:
        read = late(pod)
        started.set()
        assert waits.wait(30)
        return read

    started = threading.Event()
    monkeypatch.setattr("allaboard.backends.kubernetes.operations.observe.capture_pod", capture)

    async def life() -> Observation:
        async with other.changes(run) as changes:
            ring(changes, f"{run}-worker-0", None)
            while not started.is_set():
                await asyncio.sleep(0)
            is_gone(cluster, run)
            return await other.observe(run)

    if way == "async":
        seen = asyncio.run(life())
    else:
        with begun.changes(run) as changes:
            ring(changes, f"{run}-worker-0", None)
            assert started.wait(30)
            is_gone(cluster, run)
            seen = begun.observe(run)
    assert waits.is_set() and seen.progress.result == {"accuracy": 0.9}


def test_so_it_is_when_its_pod_is_still_going(cluster: FakeCluster) -> None:
    """Though it is there at the last look, its log is not for long."""
    backend = cluster.backend()
    run = an_elastic_run(cluster, backend)
    with backend.changes(run) as changes:
        ring(changes, f"{run}-worker-0", None)
        session_of(backend, run).join_captures(30)
        assert state_of(backend.observe(run)) is State.SUCCEEDED
        assert cluster.one(PODS, f"{run}-worker-0") is not None
    is_gone(cluster, run)
    later = cluster.backend()
    assert len(lines([*later.logs(run, Selection())])) == 2


def test_so_it_is_where_all_pods_are_cleaned_up(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    job = a_job(image="lab/train:1", workers=3, policy={"clean_pods": "all"})
    run = backend.launch(Plan(require_valid(job), "k"), ME).run
    running(cluster, backend, run)
    cluster.say(f"{run}-master-0", encode("result", metrics={"accuracy": 0.9}))
    with backend.changes(run) as changes:
        succeeds(cluster, f"{run}-master-0")
        ring(changes, f"{run}-master-0", None)
        session_of(backend, run).join_captures(30)
        cluster.tick(2)
        goes(cluster, run)
        seen = backend.observe(run)
    assert state_of(seen) is State.SUCCEEDED and seen.progress.result == {"accuracy": 0.9}
    assert len(lines([*cluster.backend().logs(run, Selection())])) == 1


@pytest.mark.parametrize(("refusals", "result"), [(2, {"accuracy": 0.9}), (99, None)])
def test_a_node_that_is_busy_at_the_end_is_asked_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, refusals: int, result: dict[str, float] | None
) -> None:
    """A few times: an end is not held back for ever."""
    backend = cluster.backend()
    run = a_run(cluster, backend)
    for name in ("master-0", "worker-0", "worker-1"):
        succeeds(cluster, f"{run}-{name}")
    cluster.say(f"{run}-master-0", encode("result", metrics={"accuracy": 0.9}))
    cluster.tick(3)
    left, given = [refusals], backend.api.log

    def busy(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise BackendUnreachable("answers 500: Get https://10.0.0.1:10250/containerLogs/ns/pod")
        return given(*args, **options)

    monkeypatch.setattr(backend.api, "log", busy)
    seen = backend.observe(run)
    assert state_of(seen) is State.SUCCEEDED and seen.progress.result == result


def is_cleaned_up(cluster: FakeCluster) -> None:
    """The operator's clean-up is through: what it deleted is gone, logs included."""
    cluster.tick(2)
    for pod in cluster.all(PODS):
        if "deletionTimestamp" in pod["metadata"]:
            name = pod["metadata"]["name"]
            cluster.delete(PODS, name, "default", grace=0)
            cluster.logs.pop(("default", name), None)


def written_of(cluster: FakeCluster, run: str) -> dict[str, list[str]]:
    """What another process reads of the members' logs."""
    written: dict[str, list[str]] = {}
    for member, text in lines([*cluster.backend().logs(run, Selection())]):
        written.setdefault(member, []).append(text)
    return written


SIX = ("master-0", *(f"worker-{n}" for n in range(5)))


def a_run_of_six(cluster: FakeCluster, clean: str) -> str:
    """All of them have written."""
    job = a_job(image="lab/train:1", workers=6, policy={"clean_pods": clean})
    backend = cluster.backend()
    run = backend.launch(Plan(require_valid(job), "k"), ME).run
    running(cluster, backend, run)
    for name in SIX:
        cluster.say(f"{run}-{name}", f"{name} trains")
    return run


@pytest.mark.parametrize("clean", ["running", "all", "none"])
def test_logs_of_members_that_are_cleaned_up_at_success_are_kept(cluster: FakeCluster, clean: str) -> None:
    """The look that finds the end comes before the operator deletes them."""
    run = a_run_of_six(cluster, clean)
    for name in ("worker-0", "master-0"):
        succeeds(cluster, f"{run}-{name}")
    cluster.tick(1)
    assert state_of(cluster.backend().observe(run)) is State.SUCCEEDED
    is_cleaned_up(cluster)
    assert written_of(cluster, run) == {name: [f"{name} trains"] for name in SIX}


@pytest.mark.parametrize("way", ["blocking", "async"])
def test_so_are_those_of_a_worker_that_goes_before_the_end_is_looked_at(
    cluster: FakeCluster, way: str
) -> None:
    run = a_run_of_six(cluster, "running")
    blocking, other = cluster.backend(), cluster.async_backend()

    def goes_on(changes: Any) -> None:
        succeeds(cluster, f"{run}-master-0")
        cluster.tick(2)
        changes.on_alarm(PodAlarm(f"{run}-worker-3", str(cluster._version_now()), failed=False, goes=True))

    async def life() -> Observation:
        async with other.changes(run) as changes:
            goes_on(changes)
            session_of(other, run).join_captures(30)
            is_cleaned_up(cluster)
            return await other.observe(run)

    if way == "async":
        seen = asyncio.run(life())
    else:
        with blocking.changes(run) as changes:
            goes_on(changes)
            session_of(blocking, run).join_captures(30)
            is_cleaned_up(cluster)
            seen = blocking.observe(run)
    assert state_of(seen) is State.SUCCEEDED
    assert written_of(cluster, run)["worker-3"] == ["worker-3 trains"]


def test_a_success_that_takes_no_log_writes_none_down(cluster: FakeCluster) -> None:
    run = a_run_of_six(cluster, "running")
    for name in SIX:
        succeeds(cluster, f"{run}-{name}")
    cluster.tick(1)
    assert state_of(cluster.backend().observe(run)) is State.SUCCEEDED
    is_cleaned_up(cluster)
    assert [one for one in cluster.all(CONFIGMAPS) if LABEL in one["metadata"]["labels"]] == []
    assert written_of(cluster, run) == {name: [f"{name} trains"] for name in SIX}, "their pods have them"


def test_a_member_that_is_done_is_asked_when_its_pod_goes_or_will_go(cluster: FakeCluster) -> None:
    """A pod that stays with its log is no matter."""
    for clean, done, gone in (("running", False, True), ("none", False, True), ("all", True, True)):
        backend = cluster.backend()
        job = a_job(name=f"net-{clean}", image="lab/train:1", workers=3, policy={"clean_pods": clean})
        run = backend.launch(Plan(require_valid(job), clean), ME).run
        running(cluster, backend, run)
        with backend.changes(run) as changes:
            for goes, asked in ((False, done), (True, gone)):
                session_of(backend, run).threads = ()
                assert changes.on_alarm is not None
                changes.on_alarm(PodAlarm(f"{run}-worker-1", "", failed=False, goes=goes))
                assert len(session_of(backend, run).threads) == int(asked), (clean, goes)
                session_of(backend, run).join_captures(30)


# --- members are listened to while they run, for their pods go in the moment in which rank 0 is done


def until(what: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def heard(cluster: FakeCluster) -> list[str]:
    """The members whose logs somebody follows, or followed."""
    return sorted(name.split("-", 2)[2] for verb, _, name in cluster.requests if verb == "follow")


def is_done(cluster: FakeCluster, run: str) -> None:
    """Each member says that it is done. Then the run ends, and its pods are gone before anybody looks."""
    for name in SIX:
        cluster.say(f"{run}-{name}", f"{name} is done")
    succeeds(cluster, f"{run}-master-0")
    is_cleaned_up(cluster)


@pytest.mark.parametrize("clean", ["running", "all"])
@pytest.mark.parametrize("way", ["blocking", "async"])
def test_what_members_said_last_is_known_though_no_pod_is_left_to_ask(
    cluster: FakeCluster, clean: str, way: str
) -> None:
    run = a_run_of_six(cluster, clean)
    blocking, other = cluster.backend(), cluster.async_backend()
    workers = [name for name in SIX if clean == "all" or name != "master-0"]

    async def life() -> Observation:
        async with other.changes(run):
            await other.observe(run)
            while heard(cluster) != workers:
                await asyncio.sleep(0.01)
            is_done(cluster, run)
            while session_of(other, run).live_listening():
                await asyncio.sleep(0.01)
            return await other.observe(run)

    if way == "async":
        seen = asyncio.run(life())
    else:
        with blocking.changes(run):
            blocking.observe(run)
            until(lambda: heard(cluster) == workers)
            is_done(cluster, run)
            until(lambda: not session_of(blocking, run).live_listening())
            seen = blocking.observe(run)
    assert state_of(seen) is State.SUCCEEDED
    assert written_of(cluster, run) == {name: [f"{name} trains", f"{name} is done"] for name in SIX}
    items = [one for one in cluster.backend().logs(run, Selection()) if isinstance(one, LogLine)]
    assert [one.text for one in items if one.gap is not None] == [], "and that it was all"
    tails = cluster.backend().observe(run, evidence=True).tails
    assert tails["worker-4"] == "worker-4 trains\nworker-4 is done", "for the doctor, too"


@pytest.mark.parametrize("way", ["blocking", "async"])
def test_so_it_is_when_a_member_fails_and_all_are_cleaned_up(cluster: FakeCluster, way: str) -> None:
    """Of more members than are asked when one of them fails."""
    job = a_job(image="lab/train:1", workers=6, policy={**ONCE, "clean_pods": "all"})
    begun, other = cluster.backend(), cluster.async_backend()
    run = begun.launch(Plan(require_valid(job), "k"), ME).run
    running(cluster, begun, run)

    def dies() -> None:
        for name in SIX:
            cluster.say(f"{run}-{name}", f"{name} computes")
        fails(cluster, f"{run}-worker-0", "")
        is_cleaned_up(cluster)

    async def life() -> None:
        async with other.changes(run):
            await other.observe(run)
            while len(heard(cluster)) < len(SIX):
                await asyncio.sleep(0.01)
            dies()
            while session_of(other, run).live_listening():
                await asyncio.sleep(0.01)
            assert state_of(await other.observe(run)) is State.FAILED

    if way == "async":
        asyncio.run(life())
    else:
        with begun.changes(run):
            begun.observe(run)
            until(lambda: len(heard(cluster)) == len(SIX))
            dies()
            until(lambda: not session_of(begun, run).live_listening())
            assert state_of(begun.observe(run)) is State.FAILED
    assert written_of(cluster, run) == {name: [f"{name} computes"] for name in SIX}


ONCE = {"restart": "never", "backoff_limit": 0, "attempts": 1}


def test_an_end_waits_for_who_is_just_being_deleted_but_not_for_long(cluster: FakeCluster) -> None:
    """Members may have half a minute to end, and more to say in it."""
    backend = cluster.backend()
    run = a_run_of_six(cluster, "running")
    waited: list[float] = []
    with backend.changes(run):
        backend.observe(run)
        until(lambda: len(heard(cluster)) == len(SIX) - 1)
        backend.api.pause = waited.append
        succeeds(cluster, f"{run}-master-0")
        cluster.tick(1)
        assert state_of(backend.observe(run)) is State.SUCCEEDED
        assert 1.0 <= sum(waited) <= 5.0
    waited.clear()
    assert state_of(backend.observe(run)) is State.SUCCEEDED
    assert waited == [], "once"


def test_nobody_is_listened_to_whose_pod_stays_or_whom_nobody_follows(cluster: FakeCluster) -> None:
    stays = a_run_of_six(cluster, "none")
    backend = cluster.backend()
    with backend.changes(stays):
        backend.observe(stays)
    goes = backend.launch(Plan(require_valid(a_job(name="net", image="lab/train:1")), "l"), ME).run
    running(cluster, backend, goes)
    backend.observe(goes, evidence=True)
    assert heard(cluster) == []


@pytest.mark.parametrize("way", ["blocking", "async"])
def test_streams_are_bounded_and_end_with_the_follower(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.logs.listening.TOGETHER", 6)
    run = a_run_of_six(cluster, "all")
    blocking, other = cluster.backend(), cluster.async_backend()

    async def life(count: int) -> None:
        async with other.changes(run):
            for _ in range(3):
                await other.observe(run)
            while len(heard(cluster)) < count:  # streams of before that end leave room for the next look
                await other.observe(run)
                await asyncio.sleep(0.01)
            assert len(session_of(other, run).live_listening()) == 3
        assert session_of(other, run).live_listening() == []

    for n in (1, 2):  # there is room again
        if way == "async":
            asyncio.run(life(3 * n))
            continue
        with blocking.changes(run):
            for _ in range(3):
                blocking.observe(run)
            until(lambda count=3 * n: blocking.observe(run) and len(heard(cluster)) == count)
            streams = session_of(blocking, run).live_listening()
            assert len(streams) == 3
        until(lambda all=streams: [one.done() for one in all] == [True] * 3)
    assert len(heard(cluster)) == 6


def test_where_nobody_looked_in_time_that_is_said(cluster: FakeCluster) -> None:
    job = a_job(image="lab/train:1", workers=3)
    run = cluster.backend().launch(Plan(require_valid(job), "k"), ME).run
    cluster.tick(3)
    succeeds(cluster, f"{run}-master-0")
    is_cleaned_up(cluster)
    assert state_of(cluster.backend().observe(run)) is State.SUCCEEDED
    items = [one for one in cluster.backend().logs(run, Selection()) if isinstance(one, LogLine)]
    said = {one.member: one.text for one in items if one.gap is not None}
    words = "its log is lost: its pod was gone before anybody looked at it"
    assert said == {"worker-0": words, "worker-1": words}
