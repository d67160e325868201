"""A pod whose row says that it ails may be gone a moment later: what it wrote is saved first of all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from allaboard.backends.base import Cursor, LogLine, Plan, Selection
from allaboard.backends.kubernetes.backend import RESCUES, KubernetesBackend
from allaboard.backends.kubernetes.client.effects import ApiCall, StreamIO
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.checking import require_valid
from allaboard.errors import BackendUnreachable
from allaboard.observation import Observation, State
from allaboard.reportline import encode
from allaboard.status import state_of
from allaboard.testing import a_job
from allaboard.testing.cluster import FakeCluster
from allaboard.units import rfc3339
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
    changes.on_alarm(pod, version)


def check(seen: Observation) -> None:
    assert seen.tails["worker-0"] == "ValueError: odd" and seen.tails["master-0"] == "waits"


def test_what_it_wrote_is_there_when_the_pod_is_gone(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = a_run(cluster, backend)
    with backend.changes(run) as changes:
        ring(changes, f"{run}-worker-0")
        for rescue in backend._rescues[run]:
            rescue.join(30)
        goes(cluster, run)
        check(backend.observe(run, evidence=True))
    assert backend._rescues == {}


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
            await asyncio.wait(backend._rescues[run])
            goes(cluster, run)
            return await backend.observe(run, evidence=True)

    check(asyncio.run(life()))
    assert backend._rescues == {}


def lines(items: list[LogLine | Cursor]) -> list[tuple[str, str]]:
    return [(one.member, one.text) for one in items if isinstance(one, LogLine) and one.gap is None]


WROTE = [("master-0", "waits"), ("worker-0", "ValueError: odd")]


def test_what_was_saved_is_read_as_logs_by_the_same_process(cluster: FakeCluster) -> None:
    """Also before anybody looks at the run again; a cursor goes on behind it."""
    backend = cluster.backend()
    run = a_run(cluster, backend)
    with backend.changes(run) as changes:
        ring(changes, f"{run}-worker-0")
        for rescue in backend._rescues[run]:
            rescue.join(30)
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
            assert not any(one.is_alive() for one in begun._rescues[run])
        return
    backend = cluster.async_backend()

    async def life() -> list[LogLine | Cursor]:
        async with backend.changes(run) as changes:
            ring(changes, f"{run}-worker-0")
            first = anext(backend.logs(run, Selection()))
            found = [await first]
            assert all(one.done() for one in backend._rescues[run])
            return found

    assert lines(asyncio.run(life()))[0] in WROTE


@pytest.mark.parametrize("way", ["blocking", "async"])
def test_what_the_witness_read_is_read_as_logs_once_the_pods_are_gone(cluster: FakeCluster, way: str) -> None:
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
    monkeypatch.setattr("allaboard.backends.kubernetes.logs.history.ENDED", 3)
    backend = cluster.backend()
    run = a_run(cluster, backend)
    pasts: Any = backend.verbs.pasts
    record = next(iter(pasts._live.values())).which
    for attempt in range(10):
        kept = pasts.earlier(_Record(*record[:2]), attempt + 5).witness.kept
        assert pasts.earlier(_Record(*record[:2]), attempt + 5).witness.kept is kept
    assert len(pasts._ended) == 3 and backend.observe(run).run == run


class _Record:
    def __init__(self, run: str, generation: int) -> None:
        self.run, self.generation = run, generation


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
    monkeypatch.setattr("allaboard.backends.kubernetes.backend.ALL_RESCUES", RESCUES + 2)
    backend = cluster.async_backend()
    ones = [a_run(cluster, cluster.backend()), "another-run"]

    async def life() -> list[int]:
        for n in range(50):
            for run in ones:
                backend._alarmed(run, f"{run}-worker-{n}", "")
        sizes = [len(backend._rescues[run]) for run in ones]
        for run in ones:
            await asyncio.wait(backend._rescues[run])
        await asyncio.sleep(0)
        backend._alarmed(ones[0], "one-more", "")
        assert len(backend._rescues[ones[0]]) == 1, "there is room again"
        await asyncio.wait(backend._rescues[ones[0]])
        return sizes

    first, second = asyncio.run(life())
    assert first + second == RESCUES + 2 and max(first, second) <= RESCUES


def test_a_pod_that_is_none_of_the_run_is_no_evidence(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = a_run(cluster, backend)
    cluster.say("stranger", "hello")
    backend._alarmed(run, "stranger", "")
    assert "stranger" not in backend.observe(run, evidence=True).tails


def test_rescued_evidence_that_nobody_looks_at_is_bounded(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.logs.history.ENDED", 3)
    pasts: Any = cluster.backend().verbs.pasts
    for n in range(10):
        pasts.rescue(f"uid-{n}", (), {})
    assert [*pasts._rescued] == ["uid-7", "uid-8", "uid-9"]


# --- an elastic gang, which the operator takes for done as soon as one worker is


def succeeds(cluster: FakeCluster, name: str) -> None:
    pod = cluster.one(PODS, name)
    assert pod is not None
    (status,) = pod["status"]["containerStatuses"]
    begun, now = pod["metadata"]["creationTimestamp"], rfc3339(cluster.now)
    end = {"exitCode": 0, "startedAt": begun, "finishedAt": now, "containerID": status["containerID"]}
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
    cluster.delete(PODS, f"{run}-worker-0", "default", grace=0)
    cluster.tick(1)
    assert cluster.one(PODS, f"{run}-worker-0") is None


@pytest.mark.parametrize("way", ["blocking", "async"])
def test_what_rank_0_achieved_is_known_though_its_pod_was_deleted(cluster: FakeCluster, way: str) -> None:
    backend = cluster.backend()
    run = an_elastic_run(cluster, backend)
    other = cluster.async_backend()

    async def life() -> Observation:
        async with other.changes(run) as changes:
            ring(changes, f"{run}-worker-0", None)
            await asyncio.wait(other._rescues[run])
            is_gone(cluster, run)
            return await other.observe(run)

    if way == "async":
        seen = asyncio.run(life())
    else:
        with backend.changes(run) as changes:
            ring(changes, f"{run}-worker-0", None)
            for rescue in backend._rescues[run]:
                rescue.join(30)
            is_gone(cluster, run)
            seen = backend.observe(run)
    assert state_of(seen) is State.SUCCEEDED
    assert (seen.progress.step, seen.progress.result) == (200, {"accuracy": 0.9})
    later = cluster.backend()
    assert later.observe(run).progress.result == {"accuracy": 0.9}
    written = [text for member, text in lines([*later.logs(run, Selection())]) if member == "worker-0"]
    assert len(written) == 2, "and so is what it wrote"


def test_the_end_waits_for_what_is_just_being_read(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = an_elastic_run(cluster, backend)
    reading = backend.verbs.rescue(run, f"{run}-worker-0", None)
    asked = next(reading)
    assert isinstance(asked, StreamIO)
    found = asked.blocking(backend.api)
    is_gone(cluster, run)

    def pause(_: float) -> None:
        if not pauses:
            with pytest.raises(StopIteration):
                answer: Any = found
                while True:
                    ask = reading.send(answer)
                    assert isinstance(ask, ApiCall)
                    answer = ask.send(backend.api)
        pauses.append(1)

    pauses: list[int] = []
    backend.pause = pause
    assert backend.observe(run).progress.result == {"accuracy": 0.9}
    assert len(pauses) == 1


def test_so_it_is_when_its_pod_is_still_going(cluster: FakeCluster) -> None:
    """Though it is there at the last look, its log is not for long."""
    backend = cluster.backend()
    run = an_elastic_run(cluster, backend)
    with backend.changes(run) as changes:
        ring(changes, f"{run}-worker-0", None)
        for rescue in backend._rescues[run]:
            rescue.join(30)
        assert state_of(backend.observe(run)) is State.SUCCEEDED
        assert cluster.one(PODS, f"{run}-worker-0") is not None
    is_gone(cluster, run)
    later = cluster.backend()
    assert len(lines([*later.logs(run, Selection())])) == 2


def test_so_it_is_where_all_pods_are_cleaned_up(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    job = a_job(image="lab/train:1", workers=2, policy={"clean_pods": "all"})
    run = backend.launch(Plan(require_valid(job), "k"), ME).run
    running(cluster, backend, run)
    cluster.say(f"{run}-master-0", encode("result", metrics={"accuracy": 0.9}))
    with backend.changes(run) as changes:
        succeeds(cluster, f"{run}-master-0")
        ring(changes, f"{run}-master-0", None)
        for rescue in backend._rescues[run]:
            rescue.join(30)
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


def test_of_a_gang_that_rank_0_decides_a_pod_that_is_only_deleted_is_no_matter(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = a_run(cluster, backend)
    with backend.changes(run) as changes:
        ring(changes, f"{run}-worker-0", None)
        assert backend._rescues == {}
