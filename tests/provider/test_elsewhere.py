"""Local runs of a task whose tries, resumes and triggerers are on several hosts: here a host is a home of
runs. One training at a time, none lost, and no try failed that could have gone on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferred,
)

from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.machine import pid_namespace
from allaboard.follow.run_record import Data, Reached, RunRecord
from allaboard.runs.observation import Observation, Owner
from allaboard.runs.status import state_of
from allaboard.shards import prepare
from allaboard_provider import errors, homes, reconciler
from allaboard_provider.identity import in_triggerer, task_of
from allaboard_provider.operators import _elsewhere
from allaboard_provider.operators._elsewhere import Homes
from allaboard_provider.operators._lifecycle import TaskTry
from allaboard_provider.reconciler import Reconciler, TaskNow, why_stop_here
from allaboard_provider.triggerers import Presence, Triggerer, present, why_not_left
from tests.provider.building import StateStore, TaskInstance, a_context
from tests.provider.runs import only_run, stop
from tests.provider.test_train import HANGS, QUICK, RAISES, an_operator, deferred
from tests.provider.test_triggers import fired
from tests.waiting import wait_for

pytestmark = pytest.mark.thorough

SAVES = """
import sys, time
from allaboard.inside import Checkpointer, report, result
saves = Checkpointer(every=1)
found = saves.resume()
step = found.step if found else 0
print("began at", step, flush=True)
for step in range(step + 1, step + 4):
    report(step, 100)
    saves.step(step, lambda: b"the state")
if "fail" in sys.argv:
    sys.exit(1)
if "go on" in sys.argv:
    time.sleep(300)
result(steps=step)
"""


def a_job(*arguments: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "command": ["python", "-c", SAVES, *arguments],
        "policy": {"restart": "never"},
        "spot": {"grace": "1s"},  # what sleeps does not hear SIGTERM
        "checkpoints": {"uri": "store://small"},
        **fields,
    }


class Host:
    """A home of runs of its own, beside the same store."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.home, self._patch = folder, patch

    @contextmanager
    def here(self) -> Iterator[None]:
        """This process is on that host meanwhile."""
        with self._patch.context() as patch:
            patch.setenv("ALLABOARD_HOME", str(self.home))
            patch.setattr(_elsewhere.socket, "gethostname", lambda: self.home.name)
            presence = Presence(str(self.home), None)
            presence.say([])
            yield
            presence.close()

    @property
    def backend(self) -> LocalBackend:
        return LocalBackend({"ALLABOARD_HOME": str(self.home)})

    def run(self) -> Observation:
        (seen,) = self.backend.list()
        return seen

    def has_run(self) -> bool:
        return bool(self.backend.list())

    def reconcile(self, store: StateStore, **now: Any) -> None:
        """What the reconciler of a triggerer there does when the database says this."""
        minds = Reconciler.__new__(Reconciler)
        minds.backend = self.backend
        seen = self.run()
        task = task_of(seen.key)
        assert task is not None
        minds._publish_end = lambda task, seen: store.set(  # type: ignore[method-assign]
            homes.ENDED, homes.Ended(str(seen.uid), str(state_of(seen))).as_json()
        )
        state = {"state": "running", "dag_run_state": "running", **now}
        minds._reconcile(seen, task, TaskNow(wanted=store.get(homes.STOP), **state))


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, triggerer: Any) -> Iterator[tuple[Host, Host]]:
    monkeypatch.setenv("ALLABOARD_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(_elsewhere, "_EVERY", 0.05)
    both = Host(tmp_path / "host-a", monkeypatch), Host(tmp_path / "host-b", monkeypatch)
    yield both
    for host in both:
        for seen in host.backend.list() if host.home.exists() else ():
            if not state_of(seen).is_final:
                with host.here():
                    stop(seen)


# --- a next try on another host
# ---------------------------------------------------------------------------------------


def left_there(host: Host, store: StateStore, ti: TaskInstance | None = None, **fields: Any) -> Observation:
    """A run that a try deferred there, and that trains."""
    with host.here():
        deferred(an_operator(job=a_job("go on"), deferrable=True, **fields), a_context(ti, store))
        wait_for(lambda: (only_run().progress.step or 0) >= 3)
        return only_run()


def test_a_next_try_elsewhere_has_the_run_stopped_and_resumes_when_it_has_ended(
    hosts: tuple[Host, Host],
) -> None:
    """On main it trains a second time, beside the first one."""
    there, here = hosts
    store = StateStore()
    left_there(there, store)
    results: list[Any] = []

    def next_try() -> None:
        results.append(an_operator(job=a_job()).execute(a_context(store=store)))

    with here.here():
        follows = threading.Thread(target=next_try)
        follows.start()
        wait_for(lambda: store.get(homes.STOP))
        assert not here.has_run() and not state_of(there.run()).is_final, "it trains beside the first"
        there.reconcile(store)
        wait_for(lambda: state_of(there.run()).is_final)
        there.reconcile(store)
        follows.join(60)
    stopped = there.run().stop
    assert stopped is not None and "the next try of its task is on host-b" in stopped.reason
    assert (results[0]["state"], results[0]["attempt"]) == ("succeeded", 2)
    assert results[0]["progress"]["step"] == 6, "it did not resume from the checkpoint"


def test_a_host_that_is_gone_holds_the_next_try_no_longer_than_the_bound(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = hosts
    monkeypatch.setattr(homes, "MARGIN", 0.3)
    store = StateStore()
    left_there(there, store)
    store[homes.HOME]["patience"] = 0.2
    with here.here():
        result = an_operator(job=a_job()).execute(a_context(store=store))
    assert (result["state"], result["attempt"]) == ("succeeded", 2)


def test_a_wait_for_another_host_ends_when_the_task_is_ended(hosts: tuple[Host, Host]) -> None:
    there, here = hosts
    store = StateStore()
    left_there(there, store)
    waits = an_operator(job=a_job())
    waits.on_kill()
    with here.here(), pytest.raises(AirflowException, match="its state is failed"):
        waits.execute(a_context(TaskInstance(state="failed"), store))
    assert not here.has_run()
    there.reconcile(store)
    wait_for(lambda: state_of(there.run()).is_final)


def test_a_site_may_have_such_tries_fail_instead(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = hosts
    store = StateStore()
    run = left_there(there, store)
    monkeypatch.setenv("AIRFLOW__ALLABOARD__ELSEWHERE", "fail")
    with here.here(), pytest.raises(AirflowException, match="lives on host-a") as failure:
        an_operator(job=a_job()).execute(a_context(store=store))
    assert not isinstance(failure.value, AirflowFailException), "its retries are used"
    assert not here.has_run() and there.run().uid == run.uid and there.run().stop is None


@pytest.mark.parametrize("word", ["Stop", " fail ", "", "stopp", "never", "true", "s\x1btop"])
def test_a_word_of_the_site_that_is_not_allowed_is_told_at_the_first_try(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """Not only in the night in which it counts."""
    monkeypatch.setenv("AIRFLOW__ALLABOARD__ELSEWHERE", word)
    _, here = hosts
    with here.here():
        if word.strip().lower() in ("", "stop", "fail"):
            assert an_operator(job=a_job()).execute(a_context())["state"] == "succeeded"
            return
        with pytest.raises(errors.PlaceFailed, match=r"stop and fail are allowed.*ELSEWHERE") as failure:
            an_operator(job=a_job()).execute(a_context())
    assert failure.value.code == "site_error" and "\x1b" not in str(failure.value)
    assert not here.has_run()


def test_a_wait_for_another_host_is_told_at_once_and_then_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = {"now": 1000.0}
    said: list[tuple[float, str]] = []

    def tell(words: str, *values: Any) -> None:
        said.append((clock["now"] - 1000.0, words % values if values else words))

    def pause(seconds: float) -> None:
        clock["now"] += seconds

    monkeypatch.setattr(_elsewhere.time, "monotonic", lambda: clock["now"])
    log = SimpleNamespace(info=tell, warning=tell)
    home = homes.Home("small-1", "uid", 1, 1, "east", 180.0, {})
    waits = Homes(StateStore(), LocalBackend({"ALLABOARD_HOME": "/nowhere"}), log, pause, lambda _: None)
    assert waits._wait_for_end(home, "stop") is None
    assert clock["now"] - 1000.0 == pytest.approx(home.bound(), abs=3)
    assert [round(at / 60) for at, _ in said] == [0, 1, 2, 3, 4, 5]
    assert ["at most" in words for _, words in said] == [False, True, True, True, True, False]
    assert "4 min at most" in said[1][1]


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 0.0),
        ({"WORKERS__EXECUTION_API_TIMEOUT": "60"}, 3 * (5 + 5 * 60 + 15) - 300.0),
        ({"SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "40"}, 3 * (5 + 5 * 5 + 15) - 40.0),
        (
            {
                "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "0",
                "WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "2",
                "WORKERS__MAX_FAILED_HEARTBEATS": "1",
            },
            5 + 5 * 5 + 1 + 2 + 2 + 2,
        ),
    ],
    ids=str,
)
def test_a_next_try_elsewhere_waits_for_a_worker_that_is_cut_off_as_well(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], seconds: float
) -> None:
    """Airflow gives its try away after the heartbeat timeout, and that worker may follow on for longer."""
    for name, value in settings.items():
        monkeypatch.setenv(f"AIRFLOW__{name}", value)
    assert _elsewhere.cut_off_worker() == seconds
    monkeypatch.setenv("ALLABOARD_ORCHESTRATED_PATIENCE", "2m")
    store = StateStore()
    with hosts[0].here():
        an_operator(job=a_job()).execute(a_context(store=store))
    home = homes.read_home(store[homes.HOME])
    assert home is not None and home.patience == 120.0 + seconds


class ClearedStore(StateStore):
    """Of a try whose task is cleared while it runs: Airflow gives the task to another try at once, and knows
    the earlier one no longer when its worker says how the run has ended.
    """

    def set(self, key: str, value: Any, **_: Any) -> None:
        if key == homes.ENDED:
            raise RuntimeError("API_SERVER_ERROR: 404, not_found: Task instance not found")
        super().set(key, value)


@pytest.mark.parametrize("how", ["failed", "cleared"])
def test_a_try_that_ended_there_is_not_waited_for(hosts: tuple[Host, Host], how: str) -> None:
    there, here = hosts
    store = StateStore() if how == "failed" else ClearedStore()
    with there.here():
        if how == "failed":
            with pytest.raises(AirflowException):
                an_operator(RAISES).execute(a_context(store=store))
        else:
            operator = an_operator(job=a_job("go on"))
            operator.on_kill()
            with pytest.raises(AirflowException):
                operator.execute(a_context(TaskInstance(state="restarting"), store))
    left = StateStore(store)
    with here.here():
        result = an_operator(job=a_job()).execute(a_context(store=left))
    assert (result["state"], result["attempt"]) == ("succeeded", 2) and homes.STOP not in left


def test_an_end_is_read_from_beside_the_checkpoints_only_as_one_of_this_attempt(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    """A file of another attempt, and a damaged one, say nothing; nor does a place that cannot be read."""
    log: Any = SimpleNamespace(info=print, warning=print)
    home = homes.Home("small-1", "mine", 1, 1, "east", 180.0, {})
    folder = tmp_path / "saves"
    backend = LocalBackend({"ALLABOARD_HOME": "/nowhere"})

    def end(text: bytes | None, uri: str | None = str(folder), uid: str = "mine") -> homes.Ended | None:
        (folder / "ended").mkdir(parents=True, exist_ok=True)
        (folder / "ended" / "mine.json").write_bytes(text or b"")
        return Homes(StateStore(), backend, log, lambda _: None, lambda _: uri)._end_of(
            homes.Home(home.run, uid, 1, 1, "east", 180.0, {})
        )

    good = json.dumps(homes.Ended("mine", "stopped").as_json()).encode()
    assert end(good) == homes.Ended("mine", "stopped")
    assert end(good.replace(b"mine", b"other")) is None
    assert end(b"[" * 100_000) is None and end(b"") is None and end(b"x" * (2 << 20)) is None
    assert end(good, uri=None) is None and end(good, uri="s4://nowhere/x") is None
    assert end(good, uid="../../mine") is None


def made(folder: Path, text: str) -> str:
    """The uri of a version, the newest of its place."""
    samples = [{"__key__": f"{n}", "txt": text} for n in range(4)]
    return prepare(samples, folder / "shards", samples_per_shard=2).version_uri(str(folder / "shards"))


@pytest.mark.parametrize("data", ["the same", "the same, a newer one beside it", "other"])
def test_a_next_try_elsewhere_on_other_data_trains_from_scratch(
    hosts: tuple[Host, Host], tmp_path: Path, data: str
) -> None:
    there, here = hosts
    store = StateStore()
    first = made(tmp_path, "first")
    place = str(tmp_path / "shards")
    named = first if data == "other" else place
    with there.here(), pytest.raises(AirflowException):
        job = a_job("fail", data={"shards": named})
        an_operator(job=job).execute(a_context(store=store))
    assert store.get(homes.HOME)["data"]["uri"] == first
    if data != "the same":
        second = made(tmp_path, "second")
        named = second if data == "other" else place
    with here.here():
        result = an_operator(job=a_job(data={"shards": named})).execute(a_context(store=store))
        generation, step = (2, 3) if data == "other" else (1, 6)
        assert (only_run().generation, result["progress"]["step"]) == (generation, step)
        assert store.get(homes.HOME)["data"]["uri"] == (second if data == "other" else first)


def test_a_result_of_other_data_is_not_handed_over_elsewhere(
    hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from allaboard_provider import plugin

    there, here = hosts
    store = StateStore()
    first = made(tmp_path, "first")
    with there.here(), monkeypatch.context() as dies:
        dies.setattr(plugin.Listener, "active", True)
        an_operator(job=a_job(data={"shards": first})).execute(a_context(store=store))
    second = made(tmp_path, "second")
    with here.here():
        an_operator(job=a_job(data={"shards": second})).execute(a_context(store=store))
        assert only_run().generation == 2


def test_a_training_that_was_accepted_there_begins_anew_here_from_scratch(hosts: tuple[Host, Host]) -> None:
    """On main its clear resumes from the last checkpoint of the training that was done."""
    there, here = hosts
    store = StateStore()
    with there.here():
        assert an_operator(job=a_job()).execute(a_context(store=store))["progress"]["step"] == 3
    with here.here():
        again = an_operator(job=a_job()).execute(a_context(store=store))
        assert (only_run().generation, again["progress"]["step"]) == (2, 3)


def test_a_result_that_was_not_accepted_there_is_handed_over_here(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    from allaboard_provider import plugin

    there, here = hosts
    store = StateStore()
    with there.here(), monkeypatch.context() as dies:
        dies.setattr(plugin.Listener, "active", True)
        first = an_operator(job=a_job()).execute(a_context(store=store))
    with here.here():
        assert an_operator(job=a_job()).execute(a_context(store=store)) == first
        assert not here.has_run()
    # A clear after that begins anew, on either host.
    with there.here():
        assert an_operator(job=a_job()).execute(a_context(store=store))["attempt"] == 1
        assert only_run().generation == 2


def test_a_store_that_is_lost_or_damaged_is_no_reason_to_fail(hosts: tuple[Host, Host]) -> None:
    _, here = hosts
    for value in ("words", {"run": "../x"}, {"run": 1, "uid": None}, ["a"], 7):
        with here.here():
            store = StateStore({homes.HOME: value, homes.ENDED: value, homes.STOP: value})
            ti = TaskInstance(run_id=f"with {value!r}")
            assert an_operator().execute(a_context(ti, store))["state"] == "succeeded"
    context = a_context(TaskInstance(run_id="without"))
    del context["task_state_store"]
    with here.here():
        assert an_operator().execute(context)["state"] == "succeeded"


def test_a_next_try_without_a_store_says_that_it_cannot_know_of_other_hosts(
    hosts: tuple[Host, Host], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Airflow 3.3. A first try, and one that finds its run here, have nothing to say."""
    _, here = hosts
    told = "is not known on"
    with here.here():
        for number, tries, expected in ((0, 1, False), (1, 2, True), (1, 3, False)):
            context = a_context(TaskInstance(run_id=f"without {number}", try_number=tries))
            del context["task_state_store"]
            assert an_operator().execute(context)["state"] == "succeeded"
            assert (told in capsys.readouterr().out) is expected


def test_attempts_go_on_after_those_of_another_machine() -> None:
    record = RunRecord("a-1", "k", "a", {}, "v1:0", Owner("me"), "uid", 0.0, attempt=2, generation=1)
    assert record.going_on_after(None) == record.going_on_after(Reached(1, 1)) == record
    for after, expected in (((1, 2), (1, 3)), ((2, 0), (2, 1)), ((3, 4), (3, 5))):
        further = record.going_on_after(Reached(*after))
        assert (further.generation, further.attempt) == expected
    old, new = Data("/data/version-1", "a"), Data("/data/version-2", "b")
    for data, expected in ((old, (3, 5)), (None, (3, 5)), (new, (4, 1))):
        further = record.going_on_after(Reached(3, 4, old), data)
        assert (further.generation, further.attempt) == expected


# --- a resume on another host
# -----------------------------------------------------------------------------------------


def resumed(host: Host, context: Any, event: dict[str, Any], **fields: Any) -> Any:
    operator = an_operator(job=a_job(), deferrable=True, **fields)
    with host.here():
        return operator.execute_complete(context, event)


def test_what_its_trigger_saw_of_the_end_is_enough_for_a_resume_elsewhere(hosts: tuple[Host, Host]) -> None:
    """On main the task fails for good, after the training was done."""
    there, here = hosts
    store = StateStore()
    context = a_context(store=store)
    with there.here():
        deferral = deferred(an_operator(job=a_job(), deferrable=True), context)
        event = fired(deferral.trigger)
    result = resumed(here, context, event)
    assert (result["state"], result["progress"]["step"]) == ("succeeded", 3)
    ended = homes.read_ended(store[homes.ENDED])
    assert ended is not None and ended.accepted


def test_a_failure_that_its_trigger_saw_is_told_and_uses_the_retries(hosts: tuple[Host, Host]) -> None:
    there, here = hosts
    context = a_context()
    with there.here():
        deferral = deferred(an_operator(RAISES, deferrable=True), context)
        event = fired(deferral.trigger)
    with pytest.raises(errors.TrainingBug, match="the learning rate is not right") as failure:
        resumed(here, context, event)
    assert failure.value.code == "python_exception" and failure.value.run == event["run"]
    assert not isinstance(failure.value, AirflowFailException)


@pytest.mark.parametrize("status", ["elsewhere", "error", "something new"])
def test_a_run_that_goes_on_elsewhere_is_given_back_and_after_some_times_a_try_is_used(
    hosts: tuple[Host, Host], status: str
) -> None:
    there, here = hosts
    store = StateStore()
    context = a_context(store=store)
    with there.here():
        deferral = deferred(an_operator(HANGS, deferrable=True), context)
    event = deferral.trigger._event(status)
    for again in range(1, 11):
        with pytest.raises(TaskDeferred) as given_back:
            resumed(here, context, event)
        trigger = given_back.value.trigger
        assert (trigger.run_name, trigger.uid, trigger.owner, trigger.fingerprint, trigger.deferrals) == (
            event["run"], event["uid"], event["owner"], event["fingerprint"], again,
        )  # fmt: skip
        event = trigger._event(status)
    with pytest.raises(AirflowException, match="queue whose worker and triggerer") as failure:
        resumed(here, context, event)
    assert not isinstance(failure.value, AirflowFailException)
    there.reconcile(store, state="up_for_retry")  # its slots are given back
    wait_for(lambda: state_of(there.run()).is_final)


def test_a_time_limit_that_passes_while_the_resume_is_elsewhere_stops_the_run_there(
    hosts: tuple[Host, Host],
) -> None:
    there, here = hosts
    store = StateStore()
    context = a_context(store=store)
    with there.here():
        deferral = deferred(an_operator(HANGS, deferrable=True), context)
    with pytest.raises(AirflowTaskTimeout):
        resumed(here, context, deferral.trigger._event("timeout"))
    there.reconcile(store, state="failed")
    wait_for(lambda: state_of(there.run()).is_final)


# --- whether a run is left to a triggerer
# -----------------------------------------------------------------------------


HERE = Triggerer(None, "ns", ())


@pytest.mark.parametrize(
    ("found", "queue", "why"),
    [
        ([HERE], None, None),
        ([], None, "no triggerer of this home runs on"),
        ([Triggerer(None, "another", ())], None, "no triggerer of this home runs on"),
        ([Triggerer(None, "ns", (), silent=61.0)], None, "no triggerer of this home runs on"),
        ([Triggerer(None, "ns", None)], None, "has just started"),
        ([Triggerer(None, "ns", ("host-b",))], None, "host-b could take the trigger"),
        ([Triggerer(("gpu",), "ns", ())], None, "only triggers of their queues"),
        ([Triggerer(("gpu",), "ns", ("host-b",))], "gpu", None),
        ([HERE, Triggerer(("cpu", "gpu"), "ns", None)], "gpu", None),
        ([HERE, Triggerer(("cpu",), "ns", ())], "gpu", "no triggerer on host-a serves the queue 'gpu'"),
    ],
)
def test_a_local_run_is_left_only_to_a_triggerer_that_sees_it_and_gets_its_trigger(
    found: list[Triggerer], queue: str | None, why: str | None
) -> None:
    said = why_not_left(found, queue, "ns", "host-a")
    assert said is None if why is None else why in (said or "")


def test_a_triggerer_shows_itself_as_long_as_its_process_lives(tmp_path: Path) -> None:
    home = str(tmp_path / "a home")
    assert present(home) == [] and not Path(home).exists(), "looking makes nothing"
    one = Presence(home, ["gpu", "cpu"])
    assert present(home) == [Triggerer(("cpu", "gpu"), pid_namespace(), None, pytest.approx(0, abs=30))]
    one.say(["host-b", "host-b"])
    assert present(home)[0].others == ("host-b",)
    with suppress(OSError):
        one._lock.close()  # as the kernel does when it dies
    assert present(home) == []
    assert present(home, now=1e12) == [] and not list(Path(home).rglob("triggerers/*"))


def test_a_worker_without_a_triggerer_beside_it_follows_and_says_so(
    triggerer: Presence, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On main it defers, and the task fails if the run is resumed elsewhere."""
    said: list[str] = []
    triggerer.close()
    monkeypatch.setattr(TaskTry, "_log_observation", lambda *_: None)
    operator = an_operator(deferrable=True)
    task_try = TaskTry(operator, a_context())
    monkeypatch.setattr(task_try.log, "info", lambda text, *values: said.append(text % values))
    assert task_try.begin()["state"] == "succeeded"
    assert sum("no triggerer of this home runs on" in line for line in said) == 1


@pytest.mark.parametrize(("queue", "defers"), [("gpu-7", True), ("default", False)])
def test_with_queues_only_a_triggerer_of_the_tasks_queue_counts(
    triggerer: Presence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: str, defers: bool
) -> None:
    monkeypatch.setenv("AIRFLOW__TRIGGERER__QUEUES_ENABLED", "True")
    mine = Presence(str(tmp_path / "home"), ["gpu-7"])
    operator = an_operator(QUICK, deferrable=True, queue=queue)
    if defers:
        deferred(operator, a_context())
    else:
        assert operator.execute(a_context())["state"] == "succeeded"
    mine.close()


# --- the reconciler
# ---------------------------------------------------------------------------------------------------


WORKER, DEFERRED = Owner("try", "worker", "orchestrated"), in_triggerer("try")
ASKED = {"uid": "u1", "host": "host-b"}


@pytest.mark.parametrize(
    ("owner", "now", "stops"),
    [
        (DEFERRED, TaskNow("deferred", "running"), False),
        (DEFERRED, TaskNow("scheduled", "running"), False),
        (DEFERRED, TaskNow("queued", "running"), False),
        (DEFERRED, TaskNow("running", "running"), False),
        (DEFERRED, TaskNow(None, "running"), False),
        (DEFERRED, TaskNow("failed", "running"), True),
        (DEFERRED, TaskNow("success", "running"), True),
        (DEFERRED, TaskNow("skipped", "failed"), True),
        (DEFERRED, TaskNow("queued", "failed"), True),
        (DEFERRED, TaskNow("up_for_retry", "running"), True),
        (DEFERRED, TaskNow("running", "running", ASKED), True),
        (DEFERRED, TaskNow("running", "running", {**ASKED, "uid": "an older attempt"}), False),
        (WORKER, TaskNow("up_for_retry", "running"), False),
        (WORKER, TaskNow("failed", "failed"), False),
        (WORKER, TaskNow("running", "running", ASKED), True),
        (WORKER, TaskNow("running", "running", "words"), False),
    ],
)
def test_only_proof_stops_a_run_that_nobody_follows(owner: Owner, now: TaskNow, stops: bool) -> None:
    assert (why_stop_here(owner, "u1", now) is not None) is stops


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["triggerer"], (True, None)),
        (["triggerer", "--queues", "gpu-7,gpu-8"], (True, ["gpu-7", "gpu-8"])),
        (["scheduler"], (False, None)),
        (["variables", "get", "triggerer"], (False, None)),
    ],
)
def test_a_triggerer_is_known_by_its_command_line(argv: list[str], expected: Any) -> None:
    assert reconciler.queues_of(argv) == expected
