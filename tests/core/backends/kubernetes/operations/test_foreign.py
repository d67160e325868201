"""Jobs that somebody else made, on a cluster in memory: who has the name is seen, whatever becomes of it, and
is only looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from allaboard import engines
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, EVENTS, PODS
from allaboard.diagnosis import diagnose
from allaboard.engines import ENGINES, engine_of_kind
from allaboard.errors import BadInput, UnknownRun
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import state_of
from allaboard.testing.cluster import FakeApi, FakeCluster
from allaboard.testing.objects import PYTORCHJOBS

Look = Callable[..., Observation]


def theirs(name: str = "nightly", workers: int = 1, **policy: Any) -> dict[str, Any]:
    """As somebody writes it who has never heard of us."""
    template = {"spec": {"containers": [{"name": "pytorch", "image": "theirs/train:1"}]}}
    spec = {"restartPolicy": "Never", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"backoffLimit": 0, **policy},
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, **spec},
                "Worker": {"replicas": workers, **spec},
            },
        },
    }


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture(params=["blocking", "async"])
def look(request: pytest.FixtureRequest, cluster: FakeCluster) -> Look:
    """``look(kind, name)`` with either backend."""
    if request.param == "blocking":
        return cluster.backend().observe_job
    backend = cluster.async_backend()
    return lambda *words, **more: asyncio.run(backend.observe_job(*words, **more))


def make(cluster: FakeCluster, body: dict[str, Any] | None = None) -> str:
    made = cluster.client().create(PYTORCHJOBS, body or theirs())
    return str(made["metadata"]["uid"])


def test_it_is_seen_from_its_first_day_to_its_last_and_nothing_is_written(
    cluster: FakeCluster, look: Look
) -> None:
    uid = make(cluster)
    assert state_of(look("pytorchjob", "nightly")) is State.STARTING
    cluster.tick(3)
    seen = look("pytorchjob", "nightly")
    assert state_of(seen) is State.RUNNING
    assert (seen.run, seen.job, seen.uid) == ("nightly", "nightly", uid)
    assert [(m.name, m.rank, m.phase) for m in seen.members] == [
        ("master-0", 0, "running"),
        ("worker-0", 1, "running"),
    ]
    cluster.end_members("nightly", 0)
    cluster.tick(2)
    seen = look("pytorchjob", "nightly")
    assert state_of(seen) is State.SUCCEEDED and seen.finished is not None
    assert cluster.all(CONFIGMAPS) == []
    asked = {verb for verb, resource, _ in cluster.requests if resource == PYTORCHJOBS.name}
    assert asked == {"create", "get"}


def test_a_failure_tells_who_failed_how_and_what_it_wrote(cluster: FakeCluster, look: Look) -> None:
    make(cluster)
    cluster.tick(3)
    cluster.say("nightly-master-0", "ValueError: odd")
    cluster.end_members("nightly", 3)
    cluster.tick(2)
    seen = look("pytorchjob", "nightly", evidence=True)
    assert state_of(seen) is State.FAILED
    assert {m.name: m.exit_code for m in seen.members} == {"master-0": 3, "worker-0": 3}
    assert seen.tails["master-0"] == "ValueError: odd"
    assert "ValueError: odd" in diagnose(seen)[0].summary
    assert any(event.reason == "PyTorchJobFailed" for event in seen.events)
    assert look("pytorchjob", "nightly").tails == {}, "logs are read for those who ask"


@pytest.mark.parametrize(
    "kind",
    [
        "pytorchjob", "PyTorchJob", "pytorchjobs", "pytorchjobs.kubeflow.org", "kubeflow.org/PyTorchJob",
        "kubeflow.org/v1/PyTorchJob", " PYTORCHJOB ",
    ],
)  # fmt: skip
def test_a_kind_may_be_written_as_people_write_it(cluster: FakeCluster, kind: str) -> None:
    make(cluster)
    assert cluster.backend().observe_job(kind, "nightly").run == "nightly"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("PyTorchJb", "did you mean 'PyTorchJob'"),
        ("kubeflow.org/v2/PyTorchJob", "did you mean 'kubeflow.org/v1/pytorchjob'"),
        ("Deployment", "known: JAXJob"),
        ("", "known: JAXJob"),
        (None, "known: JAXJob"),
    ],
)
def test_a_kind_that_is_not_known_is_answered_with_the_nearest(
    cluster: FakeCluster, kind: Any, words: str
) -> None:
    before = len(cluster.requests)
    with pytest.raises(BadInput, match=words):
        cluster.backend().observe_job(kind, "nightly")
    with pytest.raises(BadInput, match=words):
        cluster.backend().changes_of(kind, "nightly")
    with pytest.raises(BadInput, match=words):
        cluster.async_backend().changes_of(kind, "nightly")
    assert len(cluster.requests) == before


def test_a_kind_that_may_be_several_must_be_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Newer:
        NAME, KIND, API_VERSION, PLURAL = "pytorchjob_v2", "PyTorchJob", "kubeflow.org/v2", "pytorchjobs"

    both: Any = {**ENGINES, "pytorchjob_v2": Newer}
    monkeypatch.setattr(engines, "ENGINES", both)
    assert engine_of_kind("pytorchjob") is ENGINES["pytorchjob"], "an engine's own name is one"
    assert engine_of_kind("kubeflow.org/v1/PyTorchJob") is ENGINES["pytorchjob"]
    with pytest.raises(BadInput, match=r"write kubeflow\.org/v1/PyTorchJob or kubeflow\.org/v2/PyTorchJob"):
        engine_of_kind("pytorchjobs")


def test_one_that_is_not_there_is_unknown(cluster: FakeCluster, look: Look) -> None:
    with pytest.raises(UnknownRun, match="no PyTorchJob 'nightly'"):
        look("pytorchjob", "nightly")
    make(cluster)
    assert look("pytorchjob", "nightly").uid is not None


def test_a_namespace_or_a_kind_that_is_not_there_is_bad_input() -> None:
    cluster = FakeCluster()
    with pytest.raises(BadInput, match="did you mean 'default'") as wrong:
        cluster.backend(namespace="defalt").observe_job("pytorchjob", "nightly")
    assert not isinstance(wrong.value, UnknownRun), "waiting would not help"
    bare = FakeCluster(served=[kind for kind in cluster.served if kind != PYTORCHJOBS])
    with pytest.raises(BadInput, match=r"serves no pytorchjobs\.kubeflow\.org") as wrong:
        bare.backend().observe_job("pytorchjob", "nightly")
    assert not isinstance(wrong.value, UnknownRun)


@pytest.mark.parametrize(("code", "state"), [(0, State.SUCCEEDED), (3, State.FAILED)])
def test_one_that_its_ttl_took_is_told_by_its_operators_event(
    cluster: FakeCluster, look: Look, code: int, state: State
) -> None:
    uid = make(cluster, theirs(ttlSecondsAfterFinished=0))
    cluster.tick(3)
    cluster.end_members("nightly", code)
    cluster.tick(4)
    assert cluster.all(PYTORCHJOBS) == []
    seen = look("pytorchjob", "nightly", uid=uid)
    assert state_of(seen) is state and seen.uid == uid
    with pytest.raises(UnknownRun):
        look("pytorchjob", "nightly")


def test_one_that_somebody_deleted_is_seen_to_be(cluster: FakeCluster, look: Look) -> None:
    uid = make(cluster)
    cluster.tick(3)
    cluster.delete(PYTORCHJOBS, "nightly", "default")
    seen = look("pytorchjob", "nightly", uid=uid)
    assert state_of(seen) is State.STOPPED and "nobody saw how it ended" in seen.notes[-1]


def test_one_of_the_same_name_that_came_after_it_is_the_one_that_is_meant(
    cluster: FakeCluster, look: Look
) -> None:
    first = make(cluster)
    cluster.tick(3)
    cluster.operator.stuck = {"nightly-worker-0"}
    cluster.delete(PYTORCHJOBS, "nightly", "default")
    second = make(cluster)
    cluster.operator.paused = True
    cluster.tick(1)
    assert [pod["metadata"]["name"] for pod in cluster.all(PODS)] == ["nightly-worker-0"]
    seen = look("pytorchjob", "nightly", uid=first)
    assert seen.uid == second != first
    assert {m.phase for m in seen.members} == {"pending"}, "the pod of the first is none of the second"


def test_who_may_read_no_pods_and_no_events_sees_the_job(
    cluster: FakeCluster, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = FakeApi._ask

    def poor(api: FakeApi, verb: str, resource: Any, *rest: Any) -> Any:
        if resource in (PODS, EVENTS):
            raise Forbidden(f"cannot {verb} {resource.name}", status=403)
        return ask(api, verb, resource, *rest)

    make(cluster)
    cluster.tick(3)
    monkeypatch.setattr(FakeApi, "_ask", poor)
    seen = look("pytorchjob", "nightly", evidence=True)
    assert state_of(seen) is State.RUNNING
    assert [note.partition(" ")[0] for note in seen.notes] == ["pods", "events"]


def test_whoever_waits_for_it_is_woken_by_its_name() -> None:
    """The hub's part is tests/core/backends/kubernetes/watch/test_informer.py; here: what it is asked for."""
    cluster = FakeCluster()
    asked: list[Any] = []

    class Hub:
        def changes_of(self, *what: Any) -> Any:
            asked.append(what)

    cluster.backend(hub=Hub()).changes_of("PyTorchJob", "nightly")
    cluster.async_backend(hub=Hub()).changes_of("kubeflow.org/PyTorchJob", "nightly")
    assert asked == [(PYTORCHJOBS, "nightly", "default")] * 2
