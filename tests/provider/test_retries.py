"""What a failed training raises, and what the retry policy makes of it."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import timedelta
from importlib import import_module

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import DAG, RetryAction

from allaboard.diagnosis import Diagnosis
from allaboard.follow.loop import Outcome
from allaboard.report.commands import HERE
from allaboard.runs.observation import State, Stop
from allaboard.testing import seen
from allaboard_provider import compat, errors, retries
from allaboard_provider.operators.train import TrainingJobOperator
from allaboard_provider.results import failure_of
from allaboard_provider.retries import TrainingRetryPolicy

MINUTE = timedelta(minutes=1)


def failure(
    code: str = "",
    state: State = State.FAILED,
    retryable: bool = False,
    confidence: float = 0.9,
    **more: object,
) -> errors.TrainingFailed:
    found = Diagnosis(code, f"{code} it is", (), None, retryable, "mend it", confidence)
    return failure_of(Outcome(seen(state, **more), (found,) if code else ()), HERE, "the text", ("hunter2",))


@pytest.mark.parametrize(
    ("raised", "kind", "never"),
    [
        (failure("python_exception"), errors.TrainingBug, False),
        (failure("missing_dependency"), errors.TrainingBug, False),
        (failure("cuda_oom"), errors.OutOfMemory, False),
        (failure("image_not_found"), errors.ImageTrouble, False),
        (failure("bad_entrypoint"), errors.SpecRejected, True),
        (failure("world_size_mismatch"), errors.SpecRejected, True),
        (failure("checkpoint_mismatch"), errors.SpecRejected, True),
        (failure("bad_entrypoint", confidence=0.4), errors.TrainingFailed, False),
        (failure("preempted_by_priority", retryable=True), errors.Preempted, False),
        (failure("spot_or_node_shutdown", retryable=True), errors.NodeLost, False),
        (failure("drained_by_eviction_api", retryable=True), errors.Interrupted, False),
        (failure("gpu_hardware_error", retryable=True), errors.TrainingFailed, False),
        (failure("killed_externally", State.LOST, True), errors.RunLost, False),
        (failure("deadline_exceeded", State.TIMED_OUT), errors.TimedOut, False),
        (failure(), errors.TrainingFailed, False),
        (failure(state=State.STOPPED, stop=Stop("ann@lab", "enough", 2.0)), errors.StoppedByPerson, True),
        (failure(state=State.STOPPED, stop=Stop("SIGTERM", "drained", 2.0)), errors.TrainingFailed, False),
    ],
    ids=lambda value: getattr(value, "code", None) or getattr(value, "__name__", str(value)),
)
def test_each_ending_raises_its_exception(
    raised: errors.TrainingFailed, kind: type[errors.TrainingFailed], never: bool
) -> None:
    assert type(raised) is kind and isinstance(raised, AirflowException) and str(raised) == "the text"
    assert isinstance(raised, AirflowFailException) is never
    assert raised.run == "digits-00000000"


def test_an_exception_survives_every_way_in_which_airflow_copies_it() -> None:
    first = failure("node_lost", retryable=True)
    path, arguments, keywords = first.serialize()
    assert json.loads(json.dumps([path, arguments, keywords])) == [path, [*arguments], keywords]
    module, _, name = path.rpartition(".")
    again = getattr(import_module(module), name)(*arguments, **keywords)
    for other in (pickle.loads(pickle.dumps(first)), copy.copy(first), again):
        assert type(other) is errors.NodeLost and str(other) == "the text"
        assert (other.code, other.summary, other.retryable, other.run, other.sure) == (
            "node_lost", "node_lost it is", True, "digits-00000000", True,
        )  # fmt: skip


def test_a_secret_of_the_run_is_in_no_attribute() -> None:
    found = Diagnosis("python_exception", "KeyError: hunter2", (), None, False, "mend it")
    raised = failure_of(Outcome(seen(State.FAILED), (found,)), HERE, "the text", ("hunter2",))
    assert "hunter2" not in raised.summary and "KeyError" in raised.summary


@pytest.mark.parametrize(
    ("raised", "action", "delay", "words"),
    [
        (
            failure("python_exception"),
            RetryAction.FAIL,
            None,
            "not retried, because another try would repeat the failure",
        ),
        (failure("oom_killed"), RetryAction.FAIL, None, "oom_killed it is"),
        (failure("image_not_found"), RetryAction.FAIL, None, "image_not_found"),
        (failure("deadline_exceeded", State.TIMED_OUT), RetryAction.FAIL, None, "deadline_exceeded"),
        (failure("image_pull_network", retryable=True), RetryAction.RETRY, 2 * MINUTE, "may be temporary"),
        (failure("node_lost", retryable=True), RetryAction.RETRY, 2 * MINUTE, "node_lost it is"),
        (failure("killed_externally", retryable=True), RetryAction.RETRY, None, "killed_externally"),
        (failure("unknown"), RetryAction.DEFAULT, None, "the cause is uncertain"),
        (failure("python_exception", confidence=0.4), RetryAction.DEFAULT, None, "the cause is uncertain"),
        (failure(), RetryAction.DEFAULT, None, "no cause known"),
        (ConnectionError("away"), RetryAction.DEFAULT, None, None),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_the_policy_decides_by_the_cause_and_says_why(
    raised: Exception, action: RetryAction, delay: timedelta | None, words: str | None
) -> None:
    decision = TrainingRetryPolicy().evaluate(raised, try_number=2, max_tries=3)
    assert (decision.action, decision.retry_delay) == (action, delay)
    assert decision.reason is None if words is None else words in str(decision.reason)


def test_delays_double_up_to_the_longest_however_many_tries_there_were() -> None:
    policy, gone = TrainingRetryPolicy(MINUTE, 5 * MINUTE), failure("node_lost", retryable=True)
    delays = [policy.evaluate(gone, n, 2000).retry_delay for n in (0, 1, 2, 3, 4, 1000)]
    assert delays == [MINUTE, MINUTE, 2 * MINUTE, 4 * MINUTE, 5 * MINUTE, 5 * MINUTE]
    last = policy.evaluate(gone, 4, 3)
    assert last.action is RetryAction.DEFAULT and "no try is left" in str(last.reason)


def test_a_policy_is_serialised_with_its_dag_and_refuses_delays_that_are_none() -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    policy = TrainingRetryPolicy(2 * MINUTE, 9 * MINUTE)
    again = TrainingRetryPolicy.deserialize(json.loads(json.dumps(policy.serialize())))
    assert (again.delay, again.longest) == (policy.delay, policy.longest)
    with DAG("kept", schedule=None) as dag:
        TrainingJobOperator(task_id="train", job={"name": "a", "command": ["b"]}, retry_policy=policy)
    assert '"has_retry_policy": true' in json.dumps(DagSerialization.to_dict(dag))
    with pytest.raises(ValueError, match="longest at least as long"):
        TrainingRetryPolicy(2 * MINUTE, MINUTE)


def test_without_retry_policies_the_import_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.delitem(vars(compat), "RetryPolicy", raising=False)
    monkeypatch.setattr(compat, "_named", lambda name: None)
    spec = importlib.util.spec_from_file_location("older", retries.__file__)
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match=r"needs the retry policies of Airflow 3\.3") as refused:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert "\n" not in str(refused.value)
