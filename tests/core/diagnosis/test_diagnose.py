"""Why it failed: the first failing member, its own words, a stable code, and what to do."""

from __future__ import annotations

import pytest

from allaboard.diagnosis import diagnose
from allaboard.runs.observation import Event, Observation
from allaboard.testing import a_condition, a_member, seen

TRACEBACK = """epoch 1
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
{error}"""


def failed(tail: str, code: int = 1, **fields: object) -> Observation:
    member = a_member("master-0", "failed", exit_code=code, ended=5.0)
    return seen("failed", members=(member,), tails={"master-0": tail}, **fields)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("ValueError: no", "python_exception"),
        ("mymodel.errors.ShapeError: 3 != 4", "python_exception"),
        ("OSError: [Errno 28] No space left on device: '/out/x'", "disk_full"),
        ("allaboard.errors.StorageFull: /out has no space left", "disk_full"),
        ("PermissionError: [Errno 13] Permission denied: '/out'", "filesystem_permission_denied"),
        ("OSError: [Errno 30] Read-only file system: '/out'", "filesystem_permission_denied"),
        ("ModuleNotFoundError: No module named 'apex'", "missing_dependency"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'", "data_not_found"),
        ("botocore.errorfactory.NoSuchBucket: An error occurred (NoSuchBucket)", "data_not_found"),
        ("botocore.exceptions.ClientError: An error occurred (SignatureDoesNotMatch)", "data_access_denied"),
        (
            'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "http://x"',
            "data_endpoint_unreachable",
        ),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB", "cuda_oom"),
        ("RuntimeError: The server socket has failed to listen: EADDRINUSE", "port_in_use"),
        ("RuntimeError: Error(s) in loading state_dict: size mismatch for fc.weight", "checkpoint_mismatch"),
        ("RuntimeError: PytorchStreamReader failed finding central directory", "checkpoint_corrupt"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "rendezvous_timeout"),
        ("FloatingPointError: loss is nan", "nan_loss"),
    ],
)
def test_the_log_names_the_cause(error: str, code: str) -> None:
    found = diagnose(failed(TRACEBACK.format(error=error)))[0]
    assert found.code == code and "master-0" in (found.blame or "")
    assert any(error.split(":")[0].split(".")[-1] in e.text or e.text in error for e in found.evidence), (
        "evidence quotes"
    )


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (1, "python_exception"),
        (126, "bad_entrypoint"),
        (127, "bad_entrypoint"),
        (137, "killed_externally"),
        (139, "native_crash"),
        (134, "native_crash"),
    ],
)
def test_without_words_the_exit_code_speaks(code: int, found: str) -> None:
    assert diagnose(failed("", code))[0].code == found


def test_the_first_to_fail_is_blamed_not_the_loudest() -> None:
    victim = a_member("master-0", "failed", rank=0, exit_code=1, ended=5.0)
    culprit = a_member("worker-1", "failed", rank=2, exit_code=1, ended=5.2)
    tails = {
        "master-0": TRACEBACK.format(
            error="RuntimeError: [../gloo/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"
        ),
        "worker-1": TRACEBACK.format(error="ZeroDivisionError: division by zero"),
    }
    found = diagnose(seen("failed", members=(victim, culprit), tails=tails))[0]
    assert found.blame == "worker-1" and "ZeroDivisionError" in found.summary


def test_a_killed_member_is_blamed_before_those_it_took_along() -> None:
    victim = a_member("master-0", "failed", exit_code=1, ended=5.0)
    killed = a_member("worker-0", "failed", rank=1, exit_code=137, ended=5.0)
    tails = {
        "master-0": TRACEBACK.format(error="RuntimeError: Connection reset by peer"),
        "worker-0": "step 3",
    }
    found = diagnose(seen("failed", members=(victim, killed), tails=tails))[0]
    assert (found.code, found.blame, found.retryable) == ("killed_externally", "worker-0", True)


def test_the_limit_is_never_the_top_cause() -> None:
    text = "Job x has failed because it has reached the specified backoff limit"
    observation = failed(
        TRACEBACK.format(error="KeyError: 'lr'"),
        restarts=3,
        conditions=(a_condition("Failed", message=text),),
    )
    cause, limit = diagnose(observation)
    assert [cause.code, limit.code] == ["python_exception", "backoff_limit_exceeded"]
    assert limit.summary == "policy.backoff_limit is reached; restarts so far: 3"


def test_what_could_not_start_is_the_commands_fault() -> None:
    member = a_member("master-0", "failed", exit_code=128, reason="StartError")
    event = Event(1.0, "Warning", "Failed", "master-0", "'trian' is not found")
    found = diagnose(seen("failed", members=(member,), events=(event,)))[0]
    assert found.code == "bad_entrypoint" and "'trian' is not found" in found.summary


def test_lost_and_out_of_time_have_their_words() -> None:
    lost = diagnose(seen("lost", notes=("its supervisor was killed",)))[0]
    assert lost.retryable and "its supervisor was killed" in lost.summary
    late = diagnose(seen("timed_out"))[0]
    assert late.code == "deadline_exceeded" and not late.retryable


def test_flags_warn_even_when_all_is_well() -> None:
    found = diagnose(seen("succeeded", flags=("nan_loss", "rendezvous_never_happened", "something_new")))
    assert [d.code for d in found] == ["nan_loss", "rendezvous_never_happened"]
    assert diagnose(seen("succeeded")) == () and diagnose(seen("stopped")) == ()


def test_no_evidence_means_unknown() -> None:
    assert diagnose(seen("failed"))[0].code == "unknown"
