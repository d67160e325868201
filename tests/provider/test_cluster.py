"""Tasks whose connection names a cluster: on a cluster in memory, worker and triggerer by turns, and what
becomes of the run when either is killed, late or cut off.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)

from allaboard.backends.base import Handle
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.api import Api
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, EVENTS, LEASES, PODS
from allaboard.backends.kubernetes.state import records
from allaboard.cli import place as cli
from allaboard.errors import BackendUnreachable
from allaboard.job.identity import airflow_key
from allaboard.runs.observation import Owner
from allaboard.runs.status import state_of
from allaboard.testing.cluster import AsyncFakeChanges, AsyncFakeNames, FakeApi, FakeCluster
from allaboard.testing.objects import PYTORCHJOBS
from allaboard.text.names import run_name
from allaboard_provider import clusters, plugin
from allaboard_provider.errors import PlaceFailed, TrainingBug, TrainingFailed
from allaboard_provider.hooks.allaboard import AllaboardHook
from allaboard_provider.operators._lifecycle import TaskTry
from allaboard_provider.operators.evaluate import EvaluateOperator
from allaboard_provider.operators.train import TrainingJobOperator
from allaboard_provider.sensors import TrainingJobSensor
from allaboard_provider.triggers import train
from allaboard_provider.triggers.jobs import JobTrigger
from allaboard_provider.triggers.train import RunTrigger, TrainingJobTrigger
from tests.core.backends.kubernetes.operations.test_foreign import theirs
from tests.core.cli.typed import Typist, commands_in
from tests.provider.building import StateStore, TaskInstance, a_context
from tests.provider.versioned import deserialize, serialize

JOB = {"name": "small", "command": ["python", "train.py"], "workers": 2, "policy": {"restart": "never"}}


def an_operator(cls: Any = TrainingJobOperator, **fields: Any) -> Any:
    return cls(task_id="train", **{"job": JOB, "allaboard_conn_id": "cluster", "deferrable": True, **fields})


def deferred(operator: Any, context: Any, event: Any = None) -> TrainingJobTrigger:
    """The trigger to which a try gives the run, as Airflow makes it anew in a triggerer."""
    with pytest.raises(TaskDeferred) as deferral:
        operator.execute_complete(context, event) if event else operator.execute(context)
    path, arguments = deferral.value.trigger.serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    module, _, name = path.rpartition(".")
    assert (module, name) == (train.__name__, "TrainingJobTrigger")
    trigger = TrainingJobTrigger(**deserialize(serialize(arguments)))
    trigger.task_instance = context["ti"]
    return trigger


def fired(trigger: Any) -> dict[str, Any]:
    async def run() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    (payload,) = asyncio.run(run())
    assert json.loads(json.dumps(payload)) == payload
    return dict(payload)


def stored(cluster: FakeCluster) -> records.Stored:
    (body,) = records_of(cluster)
    return records.parse(body)


def records_of(cluster: FakeCluster) -> list[Any]:
    return [c for c in cluster.all(CONFIGMAPS) if records.RECORD in c["metadata"].get("labels", {})]


def state(cluster: FakeCluster) -> str:
    return state_of(cluster.backend().observe(stored(cluster).record.run)).value


def running(cluster: FakeCluster) -> str:
    """The run, once its members do."""
    cluster.tick(3)
    assert state(cluster) == "running"
    return stored(cluster).record.run


@contextmanager
def log_lines(monkeypatch: pytest.MonkeyPatch, cls: Any, only: str = "") -> Iterator[list[str]]:
    """What triggers or operators of this class say in the task log meanwhile; ``only``: at this level."""
    lines: list[str] = []

    class Log:
        def __getattr__(self, level: str) -> Callable[..., None]:
            def say(text: str, *arguments: Any, **_: Any) -> None:
                if only in ("", level):
                    lines.append(text % arguments if arguments else text)

            return say

    with monkeypatch.context() as here:
        here.setattr(cls, "log", Log())
        yield lines


# --- a training from launch to result


def test_a_synchronous_task_follows_its_run_to_the_end(cluster: FakeCluster) -> None:
    cluster.operator.trains_for = 20
    context = a_context()
    result = an_operator(deferrable=False).execute(context)
    assert result["state"] == "succeeded" and "members" not in result
    address = context["ti"].xcoms["allaboard_run"]
    assert address["run"] == result["run"]
    assert (address["namespace"], address["connection"]) == ("default", "cluster")
    record = stored(cluster).record
    assert record.owner == Owner(str(context["ti"].id), "worker", "orchestrated") and record.handed_over


def evict(cluster: FakeCluster) -> None:
    """A drain takes the pod of rank 0 from its node."""
    pod = min(cluster.all(PODS), key=lambda body: body["metadata"]["name"])
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": pod["metadata"]["creationTimestamp"],
    }
    cluster.operator._set(pod, phase="Failed", exit_code=143)
    name = pod["metadata"]["name"]
    now = cluster.one(PODS, name)
    assert now is not None
    conditions = [*now["status"].get("conditions", []), condition]
    body = {**now, "status": {**now["status"], "conditions": conditions}}
    cluster.replace(PODS, body, "default", "status")
    cluster.tick(3)


@pytest.mark.parametrize("deferrable", [True, False])
def test_an_interrupted_training_goes_on_within_the_same_try(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    operator, context = an_operator(deferrable=deferrable), a_context()
    trigger = deferred(an_operator(), context)
    running(cluster)
    evict(cluster)
    assert state(cluster) == "failed"
    event = fired(trigger)
    assert event["status"] == "ended" and stored(cluster).record.attempt == 1, "a trigger starts nothing"
    cluster.operator.trains_for = 20
    with log_lines(monkeypatch, TrainingJobOperator, "warning") as warnings:
        if deferrable:
            result = operator.execute_complete(context, fired(deferred(operator, context, event)))
        else:
            operator.deferrable = False
            result = operator.execute_complete(context, event)
    assert result["state"] == "succeeded" and result["attempt"] == 2
    record = stored(cluster).record
    assert (record.attempt, record.interruptions) == (2, 1)
    assert any("attempt 2 in this same try of the task" in line for line in warnings)
    assert any("does not count as an attempt" in line for line in warnings)


QUEUED = {**JOB, "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}}
CLOCKS = {"scheduled": "10s", "image": "10s"}


@pytest.mark.parametrize("deferrable", [True, False])
def test_no_clock_and_no_deadline_counts_what_a_queue_takes(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    """Of a phase that an earlier one holds. The queue takes longer than the deadline."""
    cluster.operator.queued_for, cluster.operator.trains_for = 100.0, 30
    policy = {**JOB["policy"], "clocks": CLOCKS, "deadline": "1m"}
    operator = an_operator(job={**QUEUED, "policy": policy}, deferrable=deferrable)
    context = a_context()
    if deferrable:
        trigger = deferred(operator, context)
        with log_lines(monkeypatch, TrainingJobTrigger) as lines:
            event = fired(trigger)
        told = [line for line in lines if "queued:" in line]
        assert len(told) == 1 and "it needs 2 more cpu in flavor any, which others use" in told[0]
        result = operator.execute_complete(context, event)
    else:
        result = operator.execute(context)
    assert result["state"] == "succeeded" and 95.0 < result["phases"]["admitted"] < 110.0
    assert result["phases"]["scheduled"] < 10.0


def test_the_clock_of_the_queue_itself_ends_a_task(cluster: FakeCluster) -> None:
    cluster.operator.queued_for = 100.0
    policy = {**JOB["policy"], "clocks": {"admitted": "30s"}}
    operator, context = an_operator(job={**QUEUED, "policy": policy}), a_context()
    event = fired(deferred(operator, context))
    assert event["status"] == "act", "a trigger ends nothing itself"
    event = fired(deferred(operator, context, event))
    with pytest.raises(AirflowException, match=r"phase admitted took longer than its clock of 30 s"):
        operator.execute_complete(context, event)
    assert state(cluster) == "timed_out" and cluster.all(PODS) == []


def test_what_nobody_may_overlook_is_a_warning_in_the_task_log(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.operator.trains_for = 20
    launch = KubernetesBackend.launch

    def launched(backend: KubernetesBackend, *given: Any) -> Handle:
        return replace(launch(backend, *given), warnings=("members start one by one",))

    monkeypatch.setattr(KubernetesBackend, "launch", launched)
    with log_lines(monkeypatch, TrainingJobOperator, "warning") as warnings:
        an_operator(deferrable=False).execute(a_context())
    assert "members start one by one" in warnings


def test_the_task_log_says_that_nobody_ends_a_run_whose_last_try_dies(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.operator.trains_for = 20
    opened = partial(cluster.backend, ask_first=True)
    monkeypatch.setattr(AllaboardHook, "on_cluster", lambda hook, pause=None: opened())
    with log_lines(monkeypatch, TrainingJobOperator) as lines:
        an_operator(deferrable=False, job={**JOB, "image": "lab/train:1"}).execute(a_context())
    [line] = [line for line in lines if "reaper" in line]
    assert line.startswith("no reaper runs in namespace default; without one nobody ends a run whose last")
    cluster.backend().reap()
    with log_lines(monkeypatch, TrainingJobOperator) as lines:
        an_operator(deferrable=False, job={**JOB, "image": "lab/train:1"}).execute(a_context())
    assert [line for line in lines if "reaper" in line] == []


def test_a_deferrable_task_leaves_its_run_to_the_triggerer_and_takes_it_back(cluster: FakeCluster) -> None:
    cluster.operator.trains_for = 20
    operator, context = an_operator(), a_context()
    trigger = deferred(operator, context)
    assert stored(cluster).record.owner == Owner(str(context["ti"].id), "deferred", "orchestrated")
    event = fired(trigger)
    assert event["status"] == "ended"
    assert operator.execute_complete(context, event)["state"] == "succeeded"
    record = stored(cluster).record
    assert record.owner == Owner(str(context["ti"].id), "worker", "orchestrated") and record.handed_over


def test_a_trigger_carries_the_connections_id_and_nothing_that_it_says(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"backend": "kubernetes", "store": "s3://bucket/hush-hush", "image": "lab/hush-hush:1"}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "allaboard", "extra": fields}))
    context = a_context()
    _, arguments = deferred(an_operator(), context).serialize()
    assert arguments["connection"] == "cluster" and arguments["backend"] == "kubernetes"
    assert arguments["fingerprint"] == {}
    assert "hush-hush" not in json.dumps([arguments, context["ti"].xcoms])


def test_what_the_connection_says_is_for_jobs_that_do_not(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {
        "backend": "kubernetes", "store": "s3://bucket/team", "image": "lab/train:1",
        "service_account": "trainer", "secrets": ["keys", "proxy"], "gang": "none",
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "allaboard", "extra": fields}))
    job = {**JOB, "checkpoints": {"uri": "store://models"}}
    deferred(an_operator(job=job), a_context())
    (made,) = cluster.all(PYTORCHJOBS)
    spec = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    (container,) = spec["containers"]
    assert (container["image"], spec["serviceAccountName"]) == ("lab/train:1", "trainer")
    assert [source["secretRef"]["name"] for source in container["envFrom"]] == ["keys", "proxy"]
    (place,) = [v["value"] for v in container["env"] if v["name"] == "ALLABOARD_CHECKPOINTS"]
    assert place.startswith("s3://bucket/team/models/")
    assert stored(cluster).record.spec == job, "what the place says is no part of the job"


def test_an_evaluation_finds_its_checkpoint(cluster: FakeCluster) -> None:
    checkpoint = {"uri": "s3://bucket/models/a/step-000000000001"}
    deferred(an_operator(EvaluateOperator, checkpoint=checkpoint), a_context())
    (made,) = cluster.all(PYTORCHJOBS)
    (container,) = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert {"name": "ALLABOARD_CHECKPOINT", "value": checkpoint["uri"]} in container["env"]


def test_an_evaluation_on_a_cluster_takes_what_only_its_members_see(cluster: FakeCluster) -> None:
    """A folder of their volumes is not on the worker."""
    checkpoint = "/runs/a/step-000000000001"
    deferred(an_operator(EvaluateOperator, checkpoint=checkpoint), a_context())
    (made,) = cluster.all(PYTORCHJOBS)
    (container,) = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert {"name": "ALLABOARD_CHECKPOINT", "value": checkpoint} in container["env"]


def test_a_job_that_cannot_run_there_is_not_retried(cluster: FakeCluster) -> None:
    job = {**JOB, "checkpoints": {"uri": "./here"}}
    with pytest.raises(AirflowFailException, match="would be a folder inside each pod"):
        an_operator(job=job).execute(a_context())
    assert records_of(cluster) == []


# --- what the task log says


def test_rank_0s_words_are_told_while_deferred_and_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, context = an_operator(), a_context()
    trigger = deferred(operator, context)
    run = running(cluster)
    cluster.say(f"{run}-master-0", "hello from rank 0")
    cluster.say(f"{run}-worker-0", "hello from rank 1")
    cluster.operator.trains_for = 30
    with log_lines(monkeypatch, TrainingJobTrigger) as lines:
        event = fired(trigger)
    assert lines.count("hello from rank 0") == 1 and "hello from rank 1" not in lines
    assert f"{run}: succeeded" in lines
    with log_lines(monkeypatch, TrainingJobOperator) as lines:
        operator.execute_complete(context, event)
    assert "hello from rank 0" not in lines and f"{run}: succeeded" not in lines


def test_a_triggerer_that_takes_over_elsewhere_goes_on_where_the_worker_left_off(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    cluster.operator.trains_for = 30
    trigger = deferred(an_operator(), a_context())
    run = stored(cluster).record.run
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "another machine"))
    with log_lines(monkeypatch, TrainingJobTrigger) as lines:
        fired(trigger)
    assert next(line for line in lines if line.startswith(f"{run}: ")) != f"{run}: queued"


def test_the_last_lines_of_the_member_that_failed_first_are_told_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, context = an_operator(get_logs=False), a_context()
    trigger = deferred(operator, context)
    run = running(cluster)
    for n in range(70):
        cluster.say(f"{run}-master-0", f"line {n}")
    cluster.end_members(run, 3)
    with log_lines(monkeypatch, TrainingJobTrigger) as lines:
        event = fired(trigger)
    assert "the last lines of master-0, which failed first:" in lines
    assert "  line 69" in lines and "  line 20" in lines and "  line 19" not in lines
    with (
        log_lines(monkeypatch, TrainingJobOperator) as lines,
        pytest.raises(AirflowException, match="exited with 3") as failure,
    ):
        operator.execute_complete(context, event)
    assert "  line 69" not in lines
    assert f"allaboard logs {run} --backend kubernetes --namespace default" in str(failure.value)


# --- exactly once


def test_a_worker_that_died_is_replaced_by_one_that_adopts(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore()
    with monkeypatch.context() as dying:
        dying.setattr(TaskTry, "_follow", lambda self: None)
        an_operator().execute(a_context(store=store))
    uid = stored(cluster).record.uid
    deferred(an_operator(), a_context(store=store))
    assert stored(cluster).record.uid == uid and len(cluster.all(PYTORCHJOBS)) == 1


def test_a_task_that_is_cleared_while_deferred_is_stopped_and_trains_anew(cluster: FakeCluster) -> None:
    deferred(an_operator(), a_context())
    run = running(cluster)
    deferred(an_operator(), a_context())
    assert stored(cluster).record.attempt == 2
    assert [job["metadata"]["name"] for job in cluster.all(PYTORCHJOBS)] == [f"{run}-2"]


def test_a_result_that_airflow_has_not_accepted_is_handed_over_by_the_next_try(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.operator.trains_for = 5
    monkeypatch.setattr(plugin.Listener, "active", True)
    lost, ti = TaskInstance(), TaskInstance()
    first = an_operator(deferrable=False).execute(a_context(lost))
    assert an_operator(deferrable=False).execute(a_context(ti)) == first
    assert not stored(cluster).record.handed_over and len(cluster.all(PYTORCHJOBS)) == 1
    plugin.Listener().on_task_instance_success("running", ti)
    assert stored(cluster).record.handed_over


# --- ended by a person, or by a limit


@pytest.mark.parametrize("task", ["failed", "success", "skipped"])
def test_a_deferred_task_that_a_person_ends_takes_its_run_with_it(
    cluster: FakeCluster, airflow_says: Any, task: str
) -> None:
    trigger = deferred(an_operator(), a_context())
    running(cluster)
    airflow_says(task)
    asyncio.run(trigger.on_kill())
    cluster.tick(60)
    assert state(cluster) == "stopped" and cluster.all(PODS) == []


@pytest.mark.parametrize("task", ["deferred", "scheduled", "queued", "running", None])
def test_a_trigger_that_moved_or_whose_run_is_followed_again_stops_nothing(
    cluster: FakeCluster, airflow_says: Any, task: str | None
) -> None:
    context = a_context()
    trigger = deferred(an_operator(), context)
    run = running(cluster)
    airflow_says(task)
    asyncio.run(trigger.on_kill())
    assert stored(cluster).record.stop is None
    record, ti = stored(cluster).record, str(context["ti"].id)
    handle = cluster.backend().adopt(
        SimpleNamespace(run=run, uid=record.uid, attempt=1, generation=1),  # type: ignore[arg-type]
        Owner(ti, "deferred", "orchestrated"),
        Owner(ti, "worker", "orchestrated"),
    )
    airflow_says("running")
    asyncio.run(trigger.on_kill())
    assert stored(cluster).record.stop is None and handle.uid == record.uid


def test_a_person_who_ends_a_task_that_no_triggerer_watches_yet_stops_the_run(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ti = TaskInstance()
    trigger = deferred(an_operator(), a_context(ti))
    running(cluster)
    path, arguments = trigger.serialize()
    ti.trigger = SimpleNamespace(classpath=path, kwargs=arguments)  # type: ignore[attr-defined]
    monkeypatch.setattr(plugin.threading, "Thread", AtOnce)
    plugin.Listener().on_task_instance_failed(None, ti, "TaskInstance's state was manually set to `failed`.")
    cluster.tick(60)
    assert state(cluster) == "stopped"
    stop = stored(cluster).record.stop
    assert stop is not None and "marked failed" in stop.reason


class AtOnce:
    """A thread that is over when it has started."""

    def __init__(self, target: Callable[..., None], args: Any, daemon: bool) -> None:
        self.target, self.args = target, args

    def start(self) -> None:
        self.target(*self.args)

    def join(self, seconds: float) -> None:
        """It is over."""


def test_a_process_that_may_not_use_the_connection_says_so_and_goes_on(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trigger = deferred(an_operator(), a_context())
    monkeypatch.delenv("AIRFLOW_CONN_CLUSTER")
    monkeypatch.setattr(plugin.threading, "Thread", AtOnce)
    plugin.stop_on_clusters([trigger.serialize()[1]], "the task was marked failed")
    assert "could not be stopped from here" in caplog.text
    assert stored(cluster).record.stop is None


def test_a_synchronous_task_that_is_ended_stops_its_run(cluster: FakeCluster) -> None:
    operator = an_operator(deferrable=False)
    operator.on_kill()
    with pytest.raises(AirflowException, match="is stopped"):
        operator.execute(a_context(TaskInstance(state="failed")))
    assert state(cluster) == "stopped"


def test_a_worker_that_is_drained_leaves_its_run_to_the_next_try(cluster: FakeCluster) -> None:
    operator = an_operator(deferrable=False)
    operator.on_kill()
    with pytest.raises(AirflowException, match="goes on"):
        operator.execute(a_context(TaskInstance(state="running", max_tries=1)))
    assert stored(cluster).record.stop is None


def test_a_deadline_that_passed_while_deferred_stops_the_run(cluster: FakeCluster) -> None:
    operator = an_operator(execution_timeout=timedelta(seconds=0.2))
    context = a_context()
    trigger = deferred(operator, context)
    running(cluster)
    event = fired(trigger)
    assert event["status"] == "timeout"
    with pytest.raises(AirflowTaskTimeout):
        operator.execute_complete(context, event)
    assert state(cluster) == "stopped" and "execution_timeout" in stored(cluster).record.stop.reason  # type: ignore[union-attr]


def test_a_trigger_that_died_takes_its_run_with_it(cluster: FakeCluster) -> None:
    operator, context = an_operator(), a_context()
    deferred(operator, context)
    running(cluster)
    with pytest.raises(PlaceFailed, match="the trigger of this task failed"):
        operator.resume_execution("__fail__", {"error": "Trigger failure", "traceback": []}, context)
    assert state(cluster) == "stopped"


def test_a_clock_that_has_passed_is_for_a_worker_to_keep(cluster: FakeCluster) -> None:
    """The fake operator knows no deadline, as one that is away: a nudge, and a minute later the end."""
    operator = an_operator(job={**JOB, "policy": {"restart": "never", "deadline": "5m"}})
    context = a_context()
    trigger = deferred(operator, context)
    running(cluster)
    event = fired(trigger)
    assert event["status"] == "act" and stored(cluster).record.stop is None, "a trigger only observes"
    for _ in range(4):
        try:
            operator.execute_complete(context, event)
        except TaskDeferred as again:
            event = fired(again.trigger)
        except AirflowException as failure:
            assert "ran out of time" in str(failure)
            break
    assert state(cluster) == "timed_out"


# --- who follows, by its Lease


def test_whoever_follows_is_known_by_a_lease_which_a_worker_gives_up_when_it_leaves(
    cluster: FakeCluster,
) -> None:
    trigger = deferred(an_operator(), a_context())
    running(cluster)
    assert cluster.all(LEASES) == []
    cluster.operator.trains_for = 30
    fired(trigger)
    (lease,) = cluster.all(LEASES)
    assert stored(cluster).lease == lease["metadata"]["name"]


# --- a cluster that does not answer


@pytest.fixture
def away(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """``left``: how many more requests get no answer; every one of them takes some seconds."""
    found = SimpleNamespace(left=0)
    ask = FakeApi._ask

    def maybe(api: FakeApi, verb: str, *rest: Any) -> Any:
        if found.left > 0:
            found.left -= 1
            raise BackendUnreachable("the API server does not answer")
        return ask(api, verb, *rest)

    monkeypatch.setattr(FakeApi, "_ask", maybe)
    monkeypatch.setattr(train, "RECONNECT_INTERVAL", 0.01)
    return found


def test_a_triggerer_waits_for_a_cluster_that_does_not_answer(
    cluster: FakeCluster, away: SimpleNamespace
) -> None:
    cluster.operator.trains_for = 20
    operator, context = an_operator(), a_context()
    trigger = deferred(operator, context)
    away.left = 40
    event = fired(trigger)
    assert event["status"] == "ended" and away.left == 0
    assert operator.execute_complete(context, event)["state"] == "succeeded"


def test_a_worker_that_cannot_reach_the_cluster_gives_the_run_back(
    cluster: FakeCluster, away: SimpleNamespace
) -> None:
    cluster.operator.trains_for = 20
    operator, context = an_operator(), a_context()
    event = fired(deferred(operator, context))
    away.left = 1
    trigger = deferred(operator, context, event)
    assert stored(cluster).record.stop is None
    assert operator.execute_complete(context, fired(trigger))["state"] == "succeeded"


def test_a_worker_that_never_reaches_it_ends_the_task_and_not_the_run(
    cluster: FakeCluster, away: SimpleNamespace
) -> None:
    operator, context = an_operator(), a_context()
    event = {**deferred(operator, context)._event("ended"), "deferrals": 5}
    away.left = 1 << 30
    with pytest.raises(AirflowException, match="does not answer"):
        operator.execute_complete(context, event)
    away.left = 0
    assert stored(cluster).record.stop is None


# --- waiting for runs of others


def a_sensor(**fields: Any) -> TrainingJobSensor:
    return TrainingJobSensor(task_id="wait", allaboard_conn_id="cluster", **fields)


def test_a_run_of_others_is_waited_for_in_the_triggerer(cluster: FakeCluster) -> None:
    cluster.operator.trains_for = 30
    an_operator(deferrable=True)
    deferred(an_operator(), a_context())
    run = stored(cluster).record.run
    for how in ({"run": run}, {"run": "small"}, {"key": stored(cluster).record.key}):
        sensor = a_sensor(**how)
        before = stored(cluster).record
        if state(cluster) != "succeeded":
            with pytest.raises(TaskDeferred) as deferral:
                sensor.execute(a_context())
            _, arguments = deferral.value.trigger.serialize()
            assert arguments["connection"] == "cluster" and arguments["fingerprint"] is None
            trigger = type(deferral.value.trigger)(**deserialize(serialize(arguments)))
            assert fired(trigger) == {"version": 1, "status": "there"}
            found = sensor.execute_complete(a_context(), {"status": "there"})
        else:
            found = sensor.execute(a_context())
        assert found["state"] == "succeeded" and found["run"] == run
        after: Any = stored(cluster).record
        assert (after.owner, after.stop) == (before.owner, before.stop), "it is only watched"


def test_a_run_of_others_that_fails_fails_the_sensor(cluster: FakeCluster) -> None:
    deferred(an_operator(), a_context())
    run = running(cluster)
    cluster.end_members(run, 3)
    cluster.tick(3)
    with pytest.raises(AirflowException, match="--namespace default"):
        a_sensor(run=run).execute(a_context())


def looks(cluster: FakeCluster) -> int:
    """Requests so far, but for the cluster's own."""
    return len(cluster.requests)


@pytest.mark.parametrize("how", ["run", "job", "prefix", "key"])
def test_a_run_that_is_not_there_costs_the_triggerer_no_request(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Runs of others come meanwhile. Then it comes, and ends."""
    cluster.operator.trains_for = 5
    ti = TaskInstance(run_id="tonight")
    key = airflow_key("tests", ti.dag_id, ti.run_id, ti.task_id, -1)
    run = run_name("small", key)
    named = {"run": {"run": run}, "job": {"run": "small"}, "prefix": {"run": run[:-3]}, "key": {"key": key}}
    with pytest.raises(TaskDeferred) as deferral:
        a_sensor(**named[how]).execute(a_context())
    trigger = RunTrigger(**deserialize(serialize(deferral.value.trigger.serialize()[1])))
    counts: list[int] = []
    asked: list[str] = []

    def happens(waits: int) -> None:
        if waits in (2, 4):
            before = looks(cluster)
            deferred(an_operator(job={**JOB, "name": f"others-{waits}"}), a_context(TaskInstance()))
            asked.append(f"{looks(cluster) - before} of others")
            del cluster.requests[before:]
        counts.append(looks(cluster))
        if waits == 6:
            deferred(an_operator(), a_context(ti))

    waits, wait = [0], AsyncFakeNames.wait

    async def waited(names: AsyncFakeNames, seconds: float) -> bool:
        waits[0] += 1
        happens(waits[0])
        return await wait(names, seconds)

    monkeypatch.setattr(AsyncFakeNames, "wait", waited)
    assert fired(trigger) == {"version": 1, "status": "there"}
    assert waits[0] == 6 and counts == [counts[0]] * 6 and len(asked) == 2


def test_an_earlier_run_that_begins_anew_is_found(cluster: FakeCluster) -> None:
    """No name tells it: a clear begins another generation of the same run."""
    cluster.operator.trains_for = 5
    ti = TaskInstance(run_id="nightly")
    operator = an_operator(deferrable=False)
    operator.execute(a_context(ti))
    late = {
        **a_context(),
        "dag_run": SimpleNamespace(start_date=datetime.fromtimestamp(cluster.now + 1, UTC)),
    }
    with pytest.raises(TaskDeferred) as deferral:
        a_sensor(run="small").execute(late)
    trigger = RunTrigger(**deserialize(serialize(deferral.value.trigger.serialize()[1])))
    cluster.tick(60)
    deferred(an_operator(), a_context(TaskInstance(run_id="nightly")))
    assert fired(trigger)["status"] == "there"


# --- waiting for jobs of others


THEIRS = {"kind": "PyTorchJob", "job_name": "nightly", "poke_interval": 0.0}


def others_create(cluster: FakeCluster, **policy: Any) -> str:
    made = cluster.client().create(PYTORCHJOBS, theirs("nightly", **policy))
    return str(made["metadata"]["uid"])


def waiting(sensor: TrainingJobSensor) -> JobTrigger:
    """The trigger of a sensor that defers, as Airflow makes it anew in a triggerer."""
    with pytest.raises(TaskDeferred) as deferral:
        sensor.execute(a_context())
    path, arguments = deferral.value.trigger.serialize()
    assert json.loads(json.dumps(arguments)) == arguments
    assert path == f"{JobTrigger.__module__}.JobTrigger"
    return JobTrigger(**deserialize(serialize(arguments)))


class Ticks:
    """Time that passes while a sensor sleeps on its worker."""

    def __init__(self, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.naps = 0
        self.then: dict[int, Callable[[], Any]] = {}
        self.cluster = cluster
        from airflow.sdk.bases import sensor

        stopped = SimpleNamespace(sleep=self.sleep, monotonic=lambda: cluster.now)
        monkeypatch.setattr(sensor, "time", stopped)

    def sleep(self, seconds: float) -> None:
        self.naps += 1
        self.cluster.tick(5)
        self.then.pop(self.naps, lambda: None)()


@pytest.fixture
def ticks(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Ticks:
    return Ticks(cluster, monkeypatch)


def test_a_job_of_others_is_waited_for_on_a_worker_also_before_it_is_there(
    cluster: FakeCluster, ticks: Ticks
) -> None:
    cluster.operator.trains_for = 20
    ticks.then[2] = lambda: others_create(cluster)
    result = a_sensor(**THEIRS, deferrable=False).execute(a_context())
    assert (result["run"], result["state"]) == ("nightly", "succeeded") and "members" not in result
    assert ticks.naps > 4 and records_of(cluster) == [] and cluster.all(LEASES) == []
    written = [verb for verb, *_ in cluster.requests if verb in ("replace", "patch", "delete")]
    assert written == [], "it is only watched"


def test_a_job_of_others_that_never_comes_ends_with_the_sensors_timeout(
    cluster: FakeCluster, ticks: Ticks
) -> None:
    with pytest.raises(AirflowSensorTimeout):
        a_sensor(**THEIRS, deferrable=False, timeout=60).execute(a_context())
    assert ticks.naps == 13, "one every five seconds"
    with pytest.raises(AirflowSkipException):
        a_sensor(**THEIRS, deferrable=False, timeout=60, soft_fail=True).execute(a_context())


@pytest.mark.parametrize(("soft", "error"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)])
def test_one_that_never_comes_ends_with_the_timeout_in_the_triggerer_too(
    cluster: FakeCluster, soft: bool, error: type[Exception]
) -> None:
    sensor = a_sensor(**THEIRS, timeout=60, soft_fail=soft)
    with pytest.raises(TaskDeferred) as deferral:
        sensor.execute(a_context())
    assert deferral.value.trigger.deadline == pytest.approx(time.time() + 60, abs=10)
    with pytest.raises(error):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, a_context())


@pytest.mark.parametrize("there", [False, True], ids=["before it is there", "while it runs"])
def test_a_job_of_others_is_waited_for_in_the_triggerer(
    cluster: FakeCluster, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.operator.trains_for = 30
    uid = others_create(cluster) if there else None
    sensor = a_sensor(**THEIRS)
    trigger = waiting(sensor)
    assert trigger.uid == uid, "one that was seen and is gone would have ended"
    if not there:
        comes_later(cluster, monkeypatch)
    with log_lines(monkeypatch, JobTrigger) as lines:
        event = fired(trigger)
    assert event["status"] == "there" and event["error"] is None
    assert lines == [*dict.fromkeys(lines)] and lines[-1] == "nightly succeeded"
    for kind in (PYTORCHJOBS, EVENTS):  # a ttl may be shorter than the way back to a worker
        for thing in cluster.all(kind):
            cluster.delete(kind, thing["metadata"]["name"], "default")
    result = a_sensor(**THEIRS).execute_complete(a_context(), event)
    assert (result["run"], result["state"]) == ("nightly", "succeeded") and "members" not in result


def last_nights(cluster: FakeCluster) -> dict[str, Any]:
    """A job of others that has ended; the context of a DAG run that begins then."""
    cluster.operator.trains_for = 5
    others_create(cluster)
    cluster.tick(60)
    return {**a_context(), "dag_run": SimpleNamespace(start_date=datetime.fromtimestamp(cluster.now, UTC))}


def tonights(cluster: FakeCluster) -> str:
    """It is deleted and made anew."""
    cluster.delete(PYTORCHJOBS, "nightly", "default")
    return others_create(cluster)


def test_last_nights_end_of_a_job_of_others_is_passed_over_on_a_worker(
    cluster: FakeCluster, ticks: Ticks
) -> None:
    context = last_nights(cluster)
    ticks.then[3] = lambda: tonights(cluster)
    result = a_sensor(**THEIRS, deferrable=False, timeout=300).execute(context)
    assert result["state"] == "succeeded" and ticks.naps > 3
    assert a_sensor(**THEIRS, since=None, deferrable=False).execute(context)["state"] == "succeeded"


def test_last_nights_end_of_a_job_of_others_is_passed_over_in_the_triggerer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = last_nights(cluster)
    with pytest.raises(TaskDeferred) as deferral:
        a_sensor(**THEIRS).execute(context)
    trigger = JobTrigger(**deserialize(serialize(deferral.value.trigger.serialize()[1])))
    assert trigger.uid is None, "it is no job of tonight"
    made: list[str] = []
    cluster_waits(monkeypatch, {3: lambda: made.append(tonights(cluster))})
    assert fired(trigger)["uid"] == made[0]


def comes_later(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, goes: Callable[[], Any] = lambda: None
) -> None:
    """Somebody creates it while a trigger waits; later it ``goes``."""
    cluster_waits(monkeypatch, {3: lambda: others_create(cluster), 6: goes})


def cluster_waits(monkeypatch: pytest.MonkeyPatch, happens: dict[int, Callable[[], Any]]) -> None:
    """At a trigger's n-th wait something happens."""
    waits, wait = [0], AsyncFakeChanges.wait

    async def waited(changes: AsyncFakeChanges, seconds: float) -> bool:
        waits[0] += 1
        happens.get(waits[0], lambda: None)()
        return await wait(changes, seconds)

    monkeypatch.setattr(AsyncFakeChanges, "wait", waited)


def test_one_that_comes_and_goes_while_a_trigger_waits_has_ended(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = waiting(a_sensor(**THEIRS))
    comes_later(cluster, monkeypatch, lambda: cluster.delete(PYTORCHJOBS, "nightly", "default"))
    event = fired(trigger)
    assert event["uid"] is not None and "was stopped: the job is gone" in event["error"]["text"]


@pytest.mark.parametrize("soft", [False, True], ids=["", "soft_fail"])
@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])
def test_a_job_of_others_that_fails_fails_the_sensor_with_the_reason(
    cluster: FakeCluster, ticks: Ticks, deferrable: bool, soft: bool
) -> None:
    others_create(cluster)
    cluster.tick(3)
    cluster.say("nightly-master-0", "ValueError: odd")
    sensor = a_sensor(**THEIRS, deferrable=deferrable, soft_fail=soft)
    error: Any = AirflowSkipException if soft else TrainingBug
    if deferrable:
        trigger = waiting(sensor)
        cluster.end_members("nightly", 3)
        event = fired(trigger)
        with pytest.raises(error) as failure:
            sensor.execute_complete(a_context(), event)
    else:
        ticks.then[1] = lambda: cluster.end_members("nightly", 3)
        with pytest.raises(error) as failure:
            sensor.execute(a_context())
    assert type(failure.value) is error
    words = str(failure.value)
    assert words.startswith("PyTorchJob nightly failed") and "ValueError: odd" in words
    assert "kubectl describe pytorchjobs nightly --namespace default" in words
    with pytest.raises(error, match="ValueError: odd"):
        a_sensor(**THEIRS, deferrable=deferrable, soft_fail=soft).execute(a_context())


@pytest.mark.parametrize("how", ["deleted", "ttl"])
@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])
def test_a_job_of_others_that_goes_has_ended(
    cluster: FakeCluster, ticks: Ticks, deferrable: bool, how: str
) -> None:
    others_create(cluster, **({"ttlSecondsAfterFinished": 0} if how == "ttl" else {}))
    cluster.tick(3)

    def goes() -> None:
        if how == "ttl":
            cluster.end_members("nightly", 0)
            cluster.tick(4)
        else:
            cluster.delete(PYTORCHJOBS, "nightly", "default")
        assert cluster.all(PYTORCHJOBS) == []

    def ends() -> dict[str, Any]:
        sensor = a_sensor(**THEIRS, deferrable=deferrable)
        if not deferrable:
            ticks.then[1] = goes
            found: dict[str, Any] = sensor.execute(a_context())
            return found
        trigger = waiting(sensor)
        goes()
        found = sensor.execute_complete(a_context(), fired(trigger))
        return found

    if how == "ttl":
        assert ends()["state"] == "succeeded"
    else:
        with pytest.raises(AirflowException, match="nightly was stopped: the job is gone"):
            ends()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "PyTorchJb", "job_name": "a"}, "did you mean 'PyTorchJob'"),
        ({"kind": "PyTorchJob"}, "belong together"),
        ({"job_name": "a"}, "belong together"),
        ({"kind": "PyTorchJob", "job_name": "a/b"}, "not an object name"),
        ({"kind": "PyTorchJob", "job_name": "a", "run": "b"}, "one of them"),
        ({"kind": "PyTorchJob", "job_name": "a", "allaboard_conn_id": None}, "backend: kubernetes"),
    ],
    ids=str,
)
@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])
def test_what_cannot_be_waited_for_is_said_at_once(
    cluster: FakeCluster, fields: dict[str, Any], words: str, deferrable: bool
) -> None:
    sensor = TrainingJobSensor(
        task_id="wait", deferrable=deferrable, **{"allaboard_conn_id": "cluster", **fields}
    )
    with pytest.raises(AirflowFailException, match=words):
        sensor.execute(a_context())


def test_a_cluster_that_is_away_is_waited_for_once_it_was_reached(
    cluster: FakeCluster, ticks: Ticks, away: SimpleNamespace
) -> None:
    cluster.operator.trains_for = 60
    others_create(cluster)
    away.left = 1
    with pytest.raises(AirflowException, match="does not answer"):
        a_sensor(**THEIRS, deferrable=False).execute(a_context())
    ticks.then[2] = lambda: setattr(away, "left", 4)
    assert a_sensor(**THEIRS, deferrable=False).execute(a_context())["state"] == "succeeded"
    assert away.left == 0


def test_a_triggerer_waits_for_a_cluster_that_is_away_with_what_it_knows(
    cluster: FakeCluster, away: SimpleNamespace
) -> None:
    others_create(cluster)
    cluster.tick(3)
    trigger = waiting(a_sensor(**THEIRS))
    cluster.delete(PYTORCHJOBS, "nightly", "default")
    away.left = 7
    event = fired(trigger)
    assert away.left == 0 and "was stopped: the job is gone" in event["error"]["text"]


# --- one client for all triggers


def test_triggers_of_one_place_share_a_client_which_ends_with_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from allaboard.backends.kubernetes.client.config import Fixed, Secret, Settings
    from allaboard_provider import clusters

    closed: list[Api] = []

    def settings_of(place: clusters.ClusterConnection) -> Settings:
        return Settings("https://one.example", Fixed(Secret(place.conn_id)), namespace=place.namespace or "a")

    monkeypatch.setattr(clusters, "settings_of", settings_of)
    monkeypatch.setattr(Api, "close", lambda api: closed.append(api))

    async def use() -> None:
        async with (
            clusters.shared_api(clusters.ClusterConnection("one", {})) as first,
            clusters.shared_api(clusters.ClusterConnection("one", {})) as second,
            clusters.shared_api(clusters.ClusterConnection("two", {})) as other,
            clusters.shared_api(clusters.ClusterConnection("one", {}, "b")) as elsewhere,
        ):
            assert first is second and len({id(first), id(other), id(elsewhere)}) == 3
            assert closed == []
        assert len(closed) == 3

    job: Coroutine[Any, Any, None] = use()
    asyncio.run(job)
    assert clusters._shared == {}


# --- commands in the task log


class EveryJob(dict[str, int]):
    """Every job ends with 7."""

    def __contains__(self, job: object) -> bool:
        return True

    def __missing__(self, job: str) -> int:
        return 7


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_whoever_reads_the_task_log_can_type_its_commands(
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    deferrable: bool,
    fails: bool,
) -> None:
    """Wherever a worker or a triggerer has written them."""
    of_lab = clusters.ClusterConnection("lab", {"cluster_context": "lab"})
    monkeypatch.setattr(AllaboardHook, "cluster", of_lab)
    cluster.operator.trains_for = 20
    operator, context = an_operator(deferrable=deferrable), a_context()
    said: list[str] = []
    with (
        log_lines(monkeypatch, TrainingJobOperator) as of_worker,
        log_lines(monkeypatch, TrainingJobTrigger) as of_trigger,
    ):
        try:
            if deferrable:
                trigger = deferred(operator, context)
                flood(cluster, running(cluster))
            cluster.operator.ends = EveryJob() if fails else {}
            if deferrable:
                operator.execute_complete(context, fired(trigger))
            else:
                operator.execute(context)
        except TrainingFailed as error:
            said.append(str(error))
    typist = Typist(cluster, capsys, context="lab")
    monkeypatch.setattr(cli.Place, "open", lambda at, *rest: typist.open(at, *rest))
    for words in commands_in("\n".join([*said, *of_worker, *of_trigger])):
        typist(words)
    verbs = {words[0] for words in typist.typed}
    assert ({"follow", "logs"} if fails or deferrable else {"follow"}) <= verbs
    assert not deferrable or any("of rank 0 left out here" in line for line in of_trigger)


def flood(cluster: FakeCluster, run: str) -> None:
    """Rank 0 writes more than a task log takes."""
    for n in range(1000):
        cluster.say(f"{run}-master-0", f"line {n}")
