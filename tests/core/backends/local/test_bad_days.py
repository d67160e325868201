"""Bad days of a training on one machine: each ends with its exit code, its reason, and nothing torn."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allaboard import BadInput, State
from allaboard.backends.local.backend import LocalBackend
from allaboard.checkpoints import latest, list_checkpoints, verify
from allaboard.follow.loop import FollowPolicy, Outcome
from allaboard.running import Follower
from allaboard.runs.status import state_of
from allaboard.storage import open_store
from tests.core.backends.local.helpers import a_plan, ended, processes_of, supervisor_and_keeper, wait_for
from tests.core.backends.local.test_backend import ME, SLEEP, running, text
from tests.core.s3server import S3Server, s3_server

pytestmark = pytest.mark.thorough

SAVES = """
import os
from allaboard.inside import Checkpointer, report
ckpt = Checkpointer()
found = ckpt.resume()
start = found.step if found else 0
print("from", start, flush=True)
for step in range(start + 1, start + 4):
    report(step=step, total=start + 3, loss=1 / step)
    state = os.urandom(int(os.environ.get("BYTES", "1000")))
    ckpt.save(step, {"state.bin": state}, metrics={"loss": 1 / step})
"""


def run(backend: LocalBackend, folder: Path, script: str = SAVES, **fields: object) -> Outcome:
    plan = a_plan(folder, script, **{"workers": 1, "policy": {"restart": "never"}, **fields})
    handle = backend.launch(plan, ME)
    return Follower(backend, handle.run).follow_to_end(FollowPolicy(poll=0.2))


def test_a_disk_that_fills_while_saving(backend: LocalBackend, folder: Path, small_disk: Path) -> None:
    outcome = run(backend, folder, checkpoints={"uri": str(small_disk)}, environment={"BYTES": "400000"})
    assert outcome.state is State.FAILED and outcome.exit_code == 1
    assert outcome.diagnoses[0].code == "disk_full" and outcome.diagnoses[0].blame == "master-0"
    store = open_store(small_disk / outcome.run)
    newest = latest(store)
    assert newest is not None and newest.step == 2 and verify(store, newest.step) == []
    assert outcome.summary["checkpoints"]["latest"] == newest.uri


def test_a_folder_that_becomes_read_only_while_training(
    backend: LocalBackend, folder: Path, small_disk: Path
) -> None:
    script = SAVES.replace(
        "    report(",
        "    if step == 3: os.system(f\"mount -o remount,ro {os.environ['DISK']}\")\n    report(",
    )
    outcome = run(
        backend, folder, script, checkpoints={"uri": str(small_disk)}, environment={"DISK": str(small_disk)}
    )
    assert outcome.exit_code == 1 and outcome.diagnoses[0].code == "filesystem_permission_denied"
    assert [c.step for c in list_checkpoints(open_store(small_disk / outcome.run))] == [1, 2]


def test_a_corrupted_newest_checkpoint_is_passed_over_with_a_word(
    backend: LocalBackend, folder: Path
) -> None:
    fields = {"checkpoints": {"uri": "out"}, "key": "same"}
    first = run(backend, folder, SAVES + "raise SystemExit(1)\n", **fields)
    assert first.state is State.FAILED
    part = folder / "out" / first.run / "step-000000000003" / "state.bin"
    part.write_bytes(b"x" + part.read_bytes()[1:])
    second = run(backend, folder, SAVES, **fields)
    assert second.ok and second.exit_code == 0 and second.seen.attempt == 2
    assert "checkpoint_corrupt" in second.summary["flags"]
    assert second.seen.progress.resumed_from == 2 and second.summary["progress"]["lost_steps"] == 1


def test_weights_to_start_from_are_explicit_and_recorded(backend: LocalBackend, folder: Path) -> None:
    first = run(backend, folder, checkpoints={"uri": "out"}, key="one")
    parent = first.summary["checkpoints"]["latest"]
    second = run(backend, folder, checkpoints={"uri": "out", "start_from": parent}, key="two")
    newest = latest(open_store(folder / "out" / second.run))
    assert second.ok and newest is not None and newest.manifest.parent == parent


def test_the_champion_is_what_the_store_has_promoted_last(backend: LocalBackend, folder: Path) -> None:
    from allaboard.job.site import resolve_uri
    from allaboard.promotion.champion import promote

    fields = {"checkpoints": {"uri": "out", "start_from": "champion"}}
    first = run(backend, folder, **fields, key="one")
    assert first.ok and any("no champion" in note for note in first.seen.notes)
    chosen = first.summary["checkpoints"]["latest"]
    assert promote(open_store(resolve_uri("store://job", backend.site)), chosen, now=0.0).promoted
    second = run(backend, folder, **fields, key="two")
    newest = latest(open_store(folder / "out" / second.run))
    assert newest is not None and newest.manifest.parent == chosen
    assert any(chosen in note for note in second.seen.notes)


SILENT = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.01)
"""


def test_a_clock_of_a_training_that_reports_nothing_is_told(backend: LocalBackend, folder: Path) -> None:
    plan = a_plan(folder, SILENT, workers=1, policy={"clocks": {"training": "1s"}})
    handle = backend.launch(plan, ME)
    wait_for(lambda: backend.observe(handle.run).flags)
    (folder / "go").touch()
    outcome = Follower(backend, handle.run).follow_to_end(FollowPolicy(poll=0.2))
    assert outcome.ok and outcome.seen.flags == ("clock_training_idle",)
    (found,) = outcome.diagnoses
    assert "no step was reported" in found.evidence[0].text and "policy.deadline" in found.fix


def test_a_clock_of_the_first_step_that_runs_out_says_what_was_missing(
    backend: LocalBackend, folder: Path
) -> None:
    outcome = run(backend, folder, SILENT, policy={"clocks": {"first_step": "1s"}})
    assert outcome.state is State.TIMED_OUT and "the script reported no step" in outcome.message


# A bucket instead of a disk.


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server("rclone") as server:
        yield server


def test_a_training_resumes_from_a_bucket(backend: LocalBackend, folder: Path, s3: S3Server) -> None:
    backend.environ |= s3.environ
    fields = {"checkpoints": {"uri": f"s3://{s3.make_bucket()}/ml"}, "key": "same"}
    first = run(backend, folder, SAVES + "raise SystemExit(1)\n", **fields)
    second = run(backend, folder, SAVES, **fields)
    assert first.state is State.FAILED and second.ok and second.seen.progress.resumed_from == 3
    uri = second.summary["checkpoints"]["latest"]
    assert uri.startswith("s3://") and uri.endswith("/step-000000000006")
    files = [p for p in backend.find(first.run).path.rglob("*") if p.is_file()]
    secret = s3.environ["AWS_SECRET_ACCESS_KEY"].encode()
    assert not any(secret in p.read_bytes() for p in files), "credentials reach members alone"


def test_a_bucket_that_is_not_there_is_said_before_a_start(
    backend: LocalBackend, folder: Path, s3: S3Server
) -> None:
    backend.environ |= s3.environ
    with pytest.raises(BadInput, match=r"checkpoints.uri: .*nowhere"):
        run(backend, folder, checkpoints={"uri": "s3://nowhere-at-all/ml"})
    assert list(backend.runs.glob("*")) == []


def test_an_endpoint_that_dies_while_training(backend: LocalBackend, folder: Path) -> None:
    with s3_server("moto") as server:
        backend.environ |= server.environ
        script = SAVES.replace(
            "    report(", "    if step == 3: os.kill(int(os.environ['SERVER']), 9)\n    report("
        )
        uri = f"s3://{server.make_bucket()}/ml"
        outcome = run(
            backend, folder, script, checkpoints={"uri": uri}, environment={"SERVER": str(server.pid)}
        )
        assert outcome.exit_code == 1 and outcome.diagnoses[0].code == "data_endpoint_unreachable"
        assert outcome.diagnoses[0].retryable


# Slots.


def test_members_get_gpus_of_their_own_also_across_runs(backend: LocalBackend, folder: Path) -> None:
    backend.environ |= {"ALLABOARD_GPUS": "0,1,2"}
    script = "import os, time\nprint(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\ntime.sleep(600)\n"
    two = backend.launch(a_plan(folder, script, "two", resources={"gpu": 1}), ME)
    one = backend.launch(a_plan(folder, script, "one", workers=1, resources={"gpu": 1}), ME)
    many = backend.launch(a_plan(folder, script, "many", workers=1, resources={"gpu": 3}), ME)

    def given() -> list[str]:
        return [text(backend, two.run, members=(m,)) for m in ("master-0", "worker-0")] + [
            text(backend, one.run)
        ]

    found = wait_for(lambda: all(given()) and given())
    assert sorted(found) == ["0", "1", "2"], "nobody shares"
    wait_for(lambda: state_of(backend.observe(many.run)) is State.QUEUED)
    for handle in (two, one):
        backend.stop(handle, ME, "me", "make room")
    assert wait_for(lambda: text(backend, many.run)) == "0,1,2"


def test_an_elastic_gang_starts_at_its_least_and_grows(backend: LocalBackend, folder: Path) -> None:
    backend.environ |= {"ALLABOARD_GPUS": "0,1,2"}
    first = backend.launch(a_plan(folder, SLEEP, "first", workers=1, resources={"gpu": 2}), ME)
    running(backend, first.run)
    elastic = {"workers": 3, "elastic": {"min": 1, "max": 3}, "resources": {"gpu": 1}}
    gang = backend.launch(a_plan(folder, SLEEP, "gang", **elastic), ME)
    wait_for(
        lambda: [m.phase for m in backend.observe(gang.run).members] == ["running", "pending", "pending"]
    )
    assert state_of(backend.observe(gang.run)) is State.RUNNING
    backend.stop(first, ME, "me", "make room")
    running(backend, gang.run)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)], ids=["supervisor", "keeper", "both"])
@pytest.mark.parametrize("how", ["stop", "kill", "delete"])
def test_a_stopped_supervisor_or_keeper_lets_nobody_wait_for_ever(
    backend: LocalBackend, folder: Path, which: tuple[int, ...], how: str
) -> None:
    handle = backend.launch(a_plan(folder, SLEEP), ME)
    running(backend, handle.run)
    members = processes_of(backend, handle.run)
    pids = supervisor_and_keeper(backend, handle.run)
    for n in which:
        os.kill(pids[n], signal.SIGSTOP)
    if how == "delete":
        backend.delete(handle.run)
    else:
        backend.stop(handle, ME, "ann", "enough", kill=how == "kill")
        assert state_of(ended(backend, handle.run, 60)) is State.STOPPED
    assert members and not any(Path(f"/proc/{pid}").exists() for pid in members)
