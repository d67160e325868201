"""The triggers, without a triggerer: what they tell, what they outlive, and when `on_kill` stops a run and
when it must not.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import TaskInstanceState

from allaboard import State, TrainingJob
from allaboard.backends.base import Handle, Plan
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.machine import cpus
from allaboard.checkpoints import Manifest, save
from allaboard.job.identity import airflow_key
from allaboard.runs.observation import Owner
from allaboard.runs.status import state_of
from allaboard.storage import open_store
from allaboard_provider import compat, plugin
from allaboard_provider.identity import in_triggerer, on_worker
from allaboard_provider.task_log import TaskLog
from allaboard_provider.triggers import polling, train
from allaboard_provider.triggers.checkpoints import CheckpointTrigger, fingerprint_of, newest
from allaboard_provider.triggers.train import RunTrigger, TrainingJobTrigger, renamed
from tests.provider.building import TaskInstance
from tests.provider.runs import only_run
from tests.provider.versioned import deserialize, serialize
from tests.waiting import wait_for

HANGS = "import time; print('hangs', flush=True); time.sleep(300)"


def a_run(ti: TaskInstance, code: str = "print('hello')") -> Handle:
    """A run that a worker launched for this task instance and left to the triggerer."""
    backend = LocalBackend()
    job = TrainingJob(name="small", command=["python", "-c", code], policy={"restart": "never"})
    handle = backend.launch(Plan(job, ti.run_id), on_worker(ti))
    backend.adopt(handle, on_worker(ti), in_triggerer(ti.id))
    return handle


def a_trigger(ti: TaskInstance, handle: Handle, **fields: Any) -> TrainingJobTrigger:
    known = {"fingerprint": LocalBackend().fingerprint(handle.run), "attempt": handle.attempt, **fields}
    trigger = TrainingJobTrigger(run=handle.run, uid=handle.uid, owner=str(ti.id), **known)
    trigger.task_instance = ti
    return trigger


def fired(trigger: Any) -> dict[str, Any]:
    """The one event of a trigger, which ends at once after it."""

    async def run() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    (payload,) = asyncio.run(run())
    assert json.loads(json.dumps(payload)) == payload
    return dict(payload)


def test_no_trigger_speaks_before_the_scheduler_has_heard_of_the_deferral(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Airflow fails a task that is back sooner."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(polling, "SETTLE", 1000.0)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    ti = TaskInstance()
    assert fired(a_trigger(ti, a_run(ti), fingerprint={"boot": "another"}))["status"] == "elsewhere"
    assert fired(CheckpointTrigger("/nowhere", fingerprint={"folder": "/nowhere"}))["status"] == "elsewhere"
    assert len(slept) == 2 and all(900 < seconds <= 1000 for seconds in slept)


def test_it_fires_when_the_run_has_ended_and_carries_all_that_a_worker_needs() -> None:
    ti = TaskInstance()
    handle = a_run(ti)
    event = fired(a_trigger(ti, handle))
    assert event["status"] == "ended"
    assert (event["run"], event["uid"], event["owner"]) == (handle.run, handle.uid, str(ti.id))


def test_it_changes_nothing_about_the_run_that_it_watches() -> None:
    ti = TaskInstance()
    handle = a_run(ti)
    record = LocalBackend().find(handle.run).record
    trigger = a_trigger(ti, handle)
    wait_for(lambda: json.loads(record.read_text())["outcome"])  # its supervisor writes it last
    before = record.read_text()
    fired(trigger)
    asyncio.run(trigger.cleanup())
    assert record.read_text() == before


def test_its_arguments_survive_airflows_serialization_and_a_newer_or_older_release() -> None:
    ti = TaskInstance()
    trigger = a_trigger(ti, a_run(ti), deadline=12.5, host="here", get_logs=False)
    path, arguments = trigger.serialize()
    again = TrainingJobTrigger(**deserialize(serialize(arguments)))
    assert again.serialize() == (path, arguments)
    newer = TrainingJobTrigger(**arguments, something_new={"a": 1})
    assert newer.serialize()[1]["something_new"] == {"a": 1}


def test_the_event_of_a_resume_that_waits_in_a_queue_is_found_in_what_airflow_keeps_of_it() -> None:
    ti = TaskInstance()
    event = a_trigger(ti, a_run(ti), deadline=12.5)._event("ended", end={"state": "failed", "result": None})
    assert plugin.event_of(serialize({"event": event})) == event
    # Airflow 3.1 puts the event beside what else it keeps.
    assert plugin.event_of({"__type": "dict", "__var": {}, "event": event}) == event
    for other in (None, {}, {"event": None}, {"event": {"run": "a"}}, "event", {"event": [event]}):
        assert plugin.event_of(other) is None


def test_a_row_of_a_release_that_had_other_names_is_read_and_written_anew() -> None:
    arguments = {"run": "digits-1", "uid": "u", "owner": "me", "told": {"state": "running"}, "again": 3}
    trigger = TrainingJobTrigger(**arguments)
    assert (trigger.log_state, trigger.deferrals) == ({"state": "running"}, 3)
    written = trigger.serialize()[1]
    assert written["log_state"] == {"state": "running"} and written["deferrals"] == 3
    assert not {"told", "again"} & written.keys()
    assert renamed({"told": {}, "again": 1, "status": "ended"}) == {
        "log_state": {}, "deferrals": 1, "status": "ended"
    }  # fmt: skip
    TrainingJobTrigger(run="a", uid="b", owner="c")  # what the first release wrote
    needed = [
        name
        for name, parameter in inspect.signature(TrainingJobTrigger).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    assert needed == ["run", "uid", "owner"]


@pytest.mark.parametrize("differs", ["boot", "pid_namespace", "inode"])
def test_a_triggerer_that_is_not_on_the_machine_says_so_at_once(differs: str) -> None:
    ti = TaskInstance()
    handle = a_run(ti, HANGS)
    fingerprint = {**LocalBackend().fingerprint(handle.run), differs: "another"}
    assert fired(a_trigger(ti, handle, fingerprint=fingerprint))["status"] == "elsewhere"


def test_a_triggerer_that_has_no_such_run_says_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ti = TaskInstance()
    trigger = a_trigger(ti, a_run(ti))
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("ALLABOARD_HOME", str(tmp_path / "another"))
        assert fired(trigger)["status"] == "elsewhere"


def test_a_deadline_that_has_passed_is_told_unless_the_run_has_ended() -> None:
    ti = TaskInstance()
    trigger = a_trigger(ti, a_run(ti, HANGS), deadline=time.time() + 0.3)
    assert fired(trigger)["status"] == "timeout"
    assert not state_of(only_run()).is_final, "a trigger only observes"
    ended = TaskInstance(run_id="another")
    handle = a_run(ended)
    wait_for(lambda: state_of(LocalBackend().observe(handle.run)).is_final)
    assert fired(a_trigger(ended, handle, deadline=time.time() - 1))["status"] == "ended"


def test_another_attempt_ends_the_watch() -> None:
    ti = TaskInstance()
    handle = a_run(ti, HANGS)
    assert fired(a_trigger(ti, Handle(handle.run, 1, 1, "an older uid")))["status"] == "ended"


def test_whatever_goes_wrong_ends_in_an_event_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ti = TaskInstance()
    trigger = a_trigger(ti, a_run(ti))

    def broken(*_: Any) -> Any:
        raise RuntimeError("the disk is on fire")

    with monkeypatch.context() as here:
        here.setattr(LocalBackend, "observe", broken)
        event = fired(trigger)
    assert event["status"] == "error" and "the disk is on fire" in event["error"]


def test_what_goes_wrong_is_told_without_the_secrets_of_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ti = TaskInstance()
    trigger = a_trigger(ti, a_run(ti))

    def broken(*_: Any) -> Any:
        raise RuntimeError("no disk for the pass/word of a Variable")

    with monkeypatch.context() as here:
        here.setattr(LocalBackend, "secrets_of", lambda *_: ("pass/word of a Variable",))
        here.setattr(TaskLog, "track", broken)
        event = fired(trigger)
    assert event["status"] == "error" and "no disk for the ***" in event["error"]
    logged = capsys.readouterr().out
    assert "no disk for the ***" in logged and "pass/word" not in logged


# --- on_kill
# ----------------------------------------------------------------------------------------------------------


ORDERS = ["failed", "success", "skipped", "removed", "upstream_failed", "restarting", "up_for_retry"]
"""States that only an order, or the end of the try, leads to."""


@pytest.mark.thorough(but=("failed--1", "success--1", "skipped-3"))
@pytest.mark.parametrize(
    ("state", "map_index"), [*((state, -1) for state in ORDERS), ("failed", 3), ("skipped", 3)]
)
def test_a_task_that_a_person_ended_takes_its_run_with_it(
    airflow_says: Any, state: str, map_index: int
) -> None:
    ti = TaskInstance(map_index=map_index)
    trigger = a_trigger(ti, a_run(ti, HANGS))
    airflow_says(state)
    asyncio.run(trigger.on_kill())
    wait_for(lambda: state_of(only_run()).value == "stopped", 30)


NO_ORDERS = [state.value for state in TaskInstanceState if state.value not in ORDERS]


@pytest.mark.thorough(but=("running", "None", "a word of a newer"))
@pytest.mark.parametrize("state", [None, *NO_ORDERS, "a word of a newer Airflow"])
def test_a_state_that_may_be_a_hand_over_stops_nothing(airflow_says: Any, state: str | None) -> None:
    """A triggerer that was frozen wakes: another one has the trigger, or has fired it, and the resume waits
    in the queue or has just begun.
    """
    ti = TaskInstance()
    trigger = a_trigger(ti, a_run(ti, HANGS))
    airflow_says(state)
    asyncio.run(trigger.on_kill())
    assert only_run().stop is None and only_run().owner == in_triggerer(ti.id)


@pytest.mark.parametrize("dag_run", ["failed", "success"])
@pytest.mark.parametrize("state", ["scheduled", None])
def test_a_dag_run_that_is_over_is_an_order_whatever_the_task_says(
    airflow_says: Any, state: str | None, dag_run: str
) -> None:
    ti = TaskInstance()
    trigger = a_trigger(ti, a_run(ti, HANGS))
    airflow_says(state, dag_run)
    asyncio.run(trigger.on_kill())
    wait_for(lambda: state_of(only_run()).value == "stopped", 30)
    stop = only_run().stop
    assert stop is not None and f"its DAG run was marked {dag_run}" in stop.reason


def test_a_trigger_that_has_fired_stops_nothing(airflow_says: Any) -> None:
    ti = TaskInstance()
    handle = a_run(ti, HANGS)
    trigger = a_trigger(ti, handle, fingerprint={"boot": "another"})
    assert fired(trigger)["status"] == "elsewhere"
    trigger.fingerprint = LocalBackend().fingerprint(handle.run)
    airflow_says("running")
    asyncio.run(trigger.on_kill())
    assert only_run().stop is None


def test_a_run_that_a_worker_follows_again_is_not_stopped(airflow_says: Any) -> None:
    """A second triggerer's trigger fired, a worker took the run back, and only then did the first one
    wake.
    """
    ti = TaskInstance()
    handle = a_run(ti, HANGS)
    LocalBackend().adopt(handle, in_triggerer(ti.id), on_worker(ti))
    airflow_says("running")
    asyncio.run(a_trigger(ti, handle).on_kill())
    assert only_run().stop is None


def test_a_run_that_has_ended_by_itself_is_left_to_the_worker(airflow_says: Any) -> None:
    """A second triggerer's trigger fired at its end, and the first one woke before a worker took the run
    back.
    """
    ti = TaskInstance()
    handle = a_run(ti, "")
    wait_for(lambda: state_of(only_run()).value == "succeeded")
    airflow_says("running")
    asyncio.run(a_trigger(ti, handle).on_kill())
    assert only_run().owner == in_triggerer(ti.id) and only_run().stop is None


def test_a_run_that_a_new_try_took_over_during_the_question_is_not_stopped(airflow_says: Any) -> None:
    ti, another = TaskInstance(), TaskInstance()
    handle = a_run(ti, HANGS)

    def slow_answer() -> str:
        LocalBackend().adopt(handle, in_triggerer(ti.id), in_triggerer(another.id))
        return "failed"

    airflow_says(slow_answer)
    asyncio.run(a_trigger(ti, handle).on_kill())
    assert only_run().stop is None and only_run().owner == in_triggerer(another.id)


def test_an_airflow_that_does_not_answer_stops_nothing(
    airflow_says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ti = TaskInstance()
    trigger = a_trigger(ti, a_run(ti, HANGS))
    asked = []

    def no_answer() -> str:
        asked.append(1)
        raise ConnectionError("the API server is away")

    async def no_pause(_: float) -> None: ...

    airflow_says(no_answer)
    monkeypatch.setattr(asyncio, "sleep", no_pause)
    with pytest.raises(ConnectionError):
        asyncio.run(trigger.on_kill())
    assert only_run().stop is None and len(asked) == 3


# --- an Airflow that calls no on_kill
# -------------------------------------------------------------------------------------


async def run_trigger(trigger: TrainingJobTrigger) -> None:
    """As the triggerer of such an Airflow runs it."""
    try:
        async for _ in trigger.run():
            pass
    finally:
        with suppress(Exception):
            await trigger.cleanup()


def dropped(trigger: TrainingJobTrigger, *, closing: bool = False) -> None:
    """Airflow cancels the trigger while it watches; ``closing``: because its own process ends."""

    async def main() -> None:
        running = asyncio.create_task(run_trigger(trigger))
        while trigger.watches is None:
            assert not running.done()
            await asyncio.sleep(0.01)
        if not closing:
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())


class Watched(TrainingJobTrigger):
    """A trigger that shows that it watches."""

    watches: Any = None

    def _open_backend(self) -> Any:
        self.watches = super()._open_backend()
        return self.watches


def a_watched_trigger(ti: TaskInstance, handle: Handle) -> Watched:
    trigger = Watched(**a_trigger(ti, handle).serialize()[1])
    trigger.task_instance = ti
    return trigger


@pytest.fixture
def without_on_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "calls_on_kill", lambda: False)


@pytest.mark.thorough(but=("failed", "success"))
@pytest.mark.parametrize("state", ORDERS)
def test_where_airflow_calls_no_on_kill_its_cleanup_finds_the_order(
    airflow_says: Any, without_on_kill: None, state: str
) -> None:
    ti = TaskInstance()
    trigger = a_watched_trigger(ti, a_run(ti, HANGS))
    airflow_says(state)
    dropped(trigger)
    wait_for(lambda: state_of(only_run()).value == "stopped", 30)


@pytest.mark.thorough(but=("deferred", "queued", "None"))
@pytest.mark.parametrize("state", [None, *NO_ORDERS])
def test_a_cleanup_without_an_order_stops_nothing(
    airflow_says: Any, without_on_kill: None, state: str | None
) -> None:
    """The triggerer was frozen and another one has the trigger, or the task was cleared."""
    ti = TaskInstance()
    trigger = a_watched_trigger(ti, a_run(ti, HANGS))
    airflow_says(state)
    dropped(trigger)
    assert only_run().stop is None and only_run().owner == in_triggerer(ti.id)


def test_a_cleanup_stops_no_run_of_another_owner(airflow_says: Any, without_on_kill: None) -> None:
    ti, another = TaskInstance(), TaskInstance()
    handle = a_run(ti, HANGS)
    trigger = a_watched_trigger(ti, handle)

    def slow_answer() -> str:
        LocalBackend().adopt(handle, in_triggerer(ti.id), on_worker(another))
        return "failed"

    airflow_says(slow_answer)
    dropped(trigger)
    assert only_run().stop is None and only_run().owner == on_worker(another)


def test_a_cleanup_after_the_event_asks_nothing(
    airflow_says: Any, without_on_kill: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ti = TaskInstance()
    trigger = a_trigger(ti, a_run(ti))
    monkeypatch.setattr(train, "_warm_up_tasks", [None])
    airflow_says(lambda: pytest.fail("it asked"))
    asyncio.run(run_trigger(trigger))
    assert state_of(only_run()).value == "succeeded"


def test_a_triggerer_that_ends_is_kept_waiting_by_no_cleanup(
    airflow_says: Any, without_on_kill: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ti = TaskInstance()
    trigger = a_watched_trigger(ti, a_run(ti, HANGS))
    monkeypatch.setattr(train, "_warm_up_tasks", [None])
    airflow_says(lambda: asked.append("asked") or "failed")
    dropped(trigger, closing=True)
    assert not asked and only_run().stop is None


@pytest.mark.parametrize("answer", [ConnectionError("away"), TimeoutError("late")])
def test_a_cleanup_without_an_answer_stops_nothing_and_says_so(
    airflow_says: Any,
    without_on_kill: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: Exception,
) -> None:
    ti = TaskInstance()
    trigger = a_watched_trigger(ti, a_run(ti, HANGS))

    def none() -> str:
        raise answer

    airflow_says(none)
    monkeypatch.setattr(train, "ON_KILL_SECONDS", 0.5)
    dropped(trigger)
    assert only_run().stop is None
    assert "it is not known whether it must stop" in capsys.readouterr().out


def test_where_airflow_calls_on_kill_a_cleanup_does_nothing(
    airflow_says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "calls_on_kill", lambda: True)
    ti = TaskInstance()
    trigger = a_watched_trigger(ti, a_run(ti, HANGS))
    airflow_says("failed")
    dropped(trigger)
    assert only_run().stop is None


def test_the_first_trigger_of_a_triggerer_asks_airflow_what_on_kill_will_ask(
    airflow_says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first question takes Airflow many seconds; nobody shall wait for it who ends a task."""
    asked = []
    airflow_says(lambda: asked.append(1))
    monkeypatch.setattr(train, "_warm_up_tasks", [])
    for n in range(2):
        ti = TaskInstance(run_id=str(n))
        assert fired(a_trigger(ti, a_run(ti)))["status"] == "ended"
    assert len(asked) == 1


def test_an_airflow_that_does_not_answer_the_first_trigger_hinders_it_not(
    airflow_says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer() -> str:
        raise ConnectionError("the API server is away")

    airflow_says(no_answer)
    monkeypatch.setattr(train, "_warm_up_tasks", [])
    ti = TaskInstance()
    assert fired(a_trigger(ti, a_run(ti)))["status"] == "ended"


# --- the listener
# -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough(but=("on_task_instance_failed",))
@pytest.mark.parametrize(
    "hook", ["on_task_instance_failed", "on_task_instance_success", "on_task_instance_skipped"]
)
def test_a_person_who_ends_a_deferred_task_stops_its_run_also_without_a_triggerer(hook: str) -> None:
    ti, other = TaskInstance(), TaskInstance(run_id="other")
    mine, others = a_run(ti, HANGS), a_run(other, HANGS)
    arguments = {"previous_state": None, "task_instance": ti}
    if hook == "on_task_instance_failed":
        arguments["error"] = "TaskInstance's state was manually set to `failed`."
    getattr(plugin.Listener(), hook)(**arguments)
    wait_for(lambda: state_of(LocalBackend().observe(mine.run)).value == "stopped")
    assert LocalBackend().observe(others.run).stop is None


def test_a_task_that_ends_by_itself_stops_nothing() -> None:
    ti = TaskInstance()
    a_run(ti, HANGS)
    plugin.Listener().on_task_instance_failed("running", ti, RuntimeError("it failed"))
    assert only_run().stop is None


def test_a_run_that_a_worker_follows_is_not_the_listeners() -> None:
    ti = TaskInstance()
    handle = a_run(ti, HANGS)
    LocalBackend().adopt(handle, in_triggerer(ti.id), on_worker(ti))
    plugin.Listener().on_task_instance_failed(None, ti, "manually")
    assert only_run().stop is None


@pytest.mark.parametrize(
    ("differs", "kind"),
    [
        ({}, "attached"),
        (
            {"id": uuid.uuid4()},
            "attached",
        ),  # the next try waits already
        ({"task_id": "another"}, "orchestrated"),
        ({"run_id": "another"}, "orchestrated"),
        ({"map_index": 1}, "orchestrated"),
    ],
    ids=["the try itself", "its next try", "another task", "another DAG run", "another mapped task"],
)
def test_a_run_of_a_killed_worker_is_kept_for_a_next_try_until_a_person_ends_the_task(
    differs: dict[str, Any], kind: str
) -> None:
    ti = TaskInstance(max_tries=1)
    key = airflow_key("tests", ti.dag_id, ti.run_id, ti.task_id)
    LocalBackend().launch(Plan(TrainingJob(name="small", command=["sleep", "300"]), key), on_worker(ti))
    assert only_run().owner == Owner(str(ti.id), "worker", "orchestrated")
    plugin.Listener().on_task_instance_failed("running", ti, RuntimeError("by itself"))
    assert only_run().owner == Owner(str(ti.id), "worker", "orchestrated")
    plugin.Listener().on_task_instance_failed(None, replace(ti, **differs), "manually")
    assert only_run().owner == Owner(str(ti.id), "worker", kind) and only_run().stop is None


@pytest.mark.thorough
def test_a_trigger_keeps_the_run_that_it_follows_and_a_lost_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A triggerer that is killed, or frozen, looks no more: the run ends within its bound and frees its
    slots.
    """
    monkeypatch.setenv("ALLABOARD_ORCHESTRATED_PATIENCE", "8s")
    ti = TaskInstance(max_tries=1)
    handle = a_run(ti, HANGS)
    trigger = a_trigger(ti, handle)

    async def followed(seconds: float) -> None:
        async def once() -> list[Any]:
            return [event.payload async for event in trigger.run()]

        watching = asyncio.create_task(once())
        await asyncio.wait([watching], timeout=seconds)
        assert not watching.done() and state_of(LocalBackend().observe(handle.run)) is State.RUNNING
        watching.cancel()

    asyncio.run(followed(25.0))
    wait_for(lambda: state_of(LocalBackend().observe(handle.run)).is_final)
    stop = LocalBackend().observe(handle.run).stop
    assert stop is not None and stop.by == "allaboard" and "nobody followed this run" in stop.reason


# --- looking for what others do
# ---------------------------------------------------------------------------------------


def test_a_run_of_others_is_watched_by_name_or_key_until_it_ends() -> None:
    ti = TaskInstance(run_id="the key")
    handle = a_run(ti)

    place = LocalBackend().place()
    for how in ({"run": handle.run}, {"run": "small"}, {"key": "the key"}):
        trigger = RunTrigger(fingerprint=place, poll=0.05, **how)
        assert fired(RunTrigger(**deserialize(serialize(trigger.serialize()[1])))) == {
            "version": 1,
            "status": "there",
        }
    assert fired(RunTrigger(run="small", fingerprint={**place, "boot": "another"}))["status"] == "elsewhere"


def test_a_checkpoint_is_there_once_it_is_complete_and_above_the_step(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "small-1"
    trigger = CheckpointTrigger(uri=str(run), after=5, fingerprint=fingerprint_of(str(run)), poll=0.05)
    assert not trigger.is_there()
    (run / "step-000000000009").mkdir(parents=True)
    (run / "step-000000000009" / "state").write_bytes(b"half")
    assert not trigger.is_there(), "no manifest, no checkpoint"
    save(open_store(run), Manifest(step=5), {"state": b"five"})
    assert not trigger.is_there(), "not above the step"
    save(open_store(run), Manifest(step=6, metrics={"loss": 0.5}), {"state": b"six"})
    assert fired(CheckpointTrigger(**deserialize(serialize(trigger.serialize()[1]))))["status"] == "there"
    found = newest(str(tmp_path / "checkpoints"))
    assert found is not None and (found["step"], found["metrics"]) == (6, {"loss": 0.5})


def test_a_bucket_can_be_seen_from_anywhere() -> None:
    assert fingerprint_of("s3://bucket/prefix") is None


def test_a_folder_of_another_machine_is_not_looked_for_here(tmp_path: Path) -> None:
    place = {**(fingerprint_of(str(tmp_path)) or {}), "boot": "another"}
    assert fired(CheckpointTrigger(uri=str(tmp_path), fingerprint=place))["status"] == "elsewhere"
    gone = {**(fingerprint_of(str(tmp_path)) or {}), "folder": str(tmp_path / "gone")}
    assert fired(CheckpointTrigger(uri=str(tmp_path), fingerprint=gone))["status"] == "elsewhere"


@pytest.mark.thorough
def test_a_run_that_waits_for_its_slots_keeps_the_trigger_silent_while_its_reason_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First two are before it, then one, then none."""
    # Tests of `news` have the minute.
    monkeypatch.setattr("allaboard.follow.news.EVERY", 1.0)
    backend = LocalBackend()
    whole = {"cpu": cpus()}

    def start(ti: TaskInstance, script: str) -> Handle:
        job = TrainingJob(name="small", command=["python", "-c", script], resources=whole)
        handle = backend.launch(Plan(job, str(ti.id)), on_worker(ti))
        backend.adopt(handle, on_worker(ti), in_triggerer(ti.id))
        return handle

    def stop(ti: TaskInstance, handle: Handle) -> None:
        backend.stop(handle, in_triggerer(ti.id), "the test", "its turn is over", kill=True)
        wait_for(lambda: not backend.observe(handle.run).alive)

    holder, other, ti = TaskInstance(), TaskInstance(), TaskInstance()
    holds = start(holder, HANGS)
    wait_for(lambda: state_of(backend.observe(holds.run)) is State.RUNNING)
    before = start(other, HANGS)
    wait_for(lambda: state_of(backend.observe(before.run)) is State.QUEUED)
    handle = start(ti, "print('my turn')")
    trigger = a_trigger(ti, handle)
    lines: list[str] = []
    monkeypatch.setattr(type(trigger), "log", Log(lines))

    async def watched() -> dict[str, Any]:
        async def once() -> list[Any]:
            return [event.payload async for event in trigger.run()]

        async def until(before: bool) -> None:
            while not any(
                f"which run {holds.run} uses" in s and ("1 before it" in s) == before for s in lines
            ):
                assert not watching.done(), watching.result()
                await asyncio.sleep(0.1)

        watching = asyncio.create_task(once())
        await asyncio.wait_for(until(before=True), 60)
        await asyncio.to_thread(stop, other, before)
        await asyncio.wait_for(until(before=False), 60)
        assert not watching.done() and state_of(backend.observe(handle.run)) is State.QUEUED
        await asyncio.to_thread(stop, holder, holds)
        (payload,) = await asyncio.wait_for(watching, 120)
        return dict(payload)

    assert asyncio.run(watched())["status"] == "ended"
    assert state_of(backend.observe(handle.run)) is State.SUCCEEDED
    waits = [line for line in lines if "holds it back" in line]
    assert len(waits) == len(set(waits)) >= 2, "each reason once"
    assert all(holds.run in line for line in waits), waits


class Log:
    """What a trigger writes into its task's log."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def info(self, text: str, *values: Any) -> None:
        self.lines.append(text % values if values else text)

    warning = error = exception = debug = info
