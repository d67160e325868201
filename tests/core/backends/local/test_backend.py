"""Runs on this machine: real supervisors, real members, real kills."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import allaboard
from allaboard import BadInput
from allaboard.backends.base import NotYours, Selection, Stopped
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.clock import Moment
from allaboard.backends.local.state.paths import prepare
from allaboard.backends.local.state.records import read_record
from allaboard.errors import OwnershipConflict, SiteError, SpecChanged, UnknownRun
from allaboard.follow.loop import FollowPolicy
from allaboard.running import Follower
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of, summary
from tests.core.backends.local.helpers import a_plan, ended, processes_of, supervisor_and_keeper, wait_for

ME = Owner("me")
DEFERRED = Owner("me", phase="deferred", kind="orchestrated")
YOU = Owner("you", kind="orchestrated")
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
QUICK = "print('done')\n"


def running(backend: LocalBackend, run: str) -> None:
    """Until every member of the run runs."""
    wait_for(lambda: {m.phase for m in backend.observe(run).members} == {"running"})


# Launching, and the table of core/docs/contract.md, Launch under a key.


def test_a_run_goes_from_created_to_succeeded(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, QUICK), ME)
    seen = ended(backend, handle.run)
    assert state_of(seen) is State.SUCCEEDED and not handle.adopted
    assert [(c.type, c.status) for c in seen.conditions] == [
        ("Created", "True"),
        ("Running", "False"),
        ("Succeeded", "True"),
    ]
    assert [(m.name, m.phase, m.exit_code) for m in seen.members] == [
        ("master-0", "succeeded", 0),
        ("worker-0", "succeeded", 0),
    ]
    assert processes_of(backend, handle.run) == []


def test_live_the_same_owner_adopts(backend: LocalBackend, folder: Path) -> None:
    plan = a_plan(folder, SLEEP)
    first = backend.launch(plan, ME)
    running(backend, first.run)
    before = processes_of(backend, first.run)
    second = backend.launch(plan, ME)
    assert second.adopted and second.uid == first.uid and processes_of(backend, first.run) == before


def test_live_its_client_killed_with_9_is_adopted_by_the_next(backend: LocalBackend, folder: Path) -> None:
    plan = a_plan(folder, SLEEP)
    code = (
        "import allaboard, sys\n"
        f"job = allaboard.TrainingJob(folder={str(folder)!r}, **{plan.job.as_mapping()!r})\n"
        "allaboard.run(job, key='k')\n"
    )
    client = subprocess.Popen([sys.executable, "-c", code], env=backend.environ)
    try:
        wait_for(lambda: (backend.runs / plan.run / "record.json").exists())
        running(backend, plan.run)
    finally:
        client.kill()
        client.wait()
    record = read_record(backend.find(plan.run))
    handle = backend.launch(plan, ME)
    assert record is not None and handle.adopted and handle.uid == record.uid
    assert backend.observe(plan.run).owner == ME and len(processes_of(backend, plan.run)) == 2


def test_live_with_another_spec_is_refused_and_shown(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, SLEEP), ME)
    with pytest.raises(SpecChanged, match="workers: 2 -> 3"):
        backend.launch(a_plan(folder, SLEEP, workers=3), YOU)
    assert not state_of(backend.observe(handle.run)).is_final


def test_what_a_client_adds_to_the_environment_makes_no_other_job_of_it(
    backend: LocalBackend, folder: Path
) -> None:
    script = f"import os, pathlib\npathlib.Path('told').write_text(os.environ['TRACEPARENT'])\n{SLEEP}"
    plan = a_plan(folder, script, workers=1)
    first = backend.launch(replace(plan, environment={"TRACEPARENT": "one"}), ME)
    assert wait_for(lambda: (folder / "told").exists() and (folder / "told").read_text()) == "one"
    second = backend.launch(replace(plan, environment={"TRACEPARENT": "two"}), ME)
    assert second.adopted and second.uid == first.uid


def test_live_deferred_and_a_new_try_stops_waits_and_resumes(backend: LocalBackend, folder: Path) -> None:
    plan = a_plan(folder, SLEEP)
    first = backend.launch(plan, DEFERRED)
    running(backend, first.run)
    old = processes_of(backend, first.run)
    second = backend.launch(plan, YOU)
    assert (second.attempt, second.adopted) == (2, False) and second.uid != first.uid
    assert not any(Path(f"/proc/{pid}").exists() for pid in old), (
        "the old members are gone before the new ones start"
    )


@pytest.mark.thorough(but=("failed",))
@pytest.mark.parametrize("how", ["failed", "stopped", "lost"])
def test_what_ended_badly_is_tried_again_with_the_changed_spec(
    backend: LocalBackend, folder: Path, how: str
) -> None:
    script = "raise SystemExit(3)" if how == "failed" else SLEEP
    handle = backend.launch(a_plan(folder, script, policy={"restart": "never"}), ME)
    if how == "stopped":
        backend.stop(handle, ME, "me", "because")
    if how == "lost":
        running(backend, handle.run)
        os.kill(supervisor_and_keeper(backend, handle.run)[0], signal.SIGKILL)
    assert state_of(ended(backend, handle.run)).value == how
    again = backend.launch(a_plan(folder, QUICK, workers=1), YOU)
    assert again.attempt == 2 and any("workers: 2 -> 1" in note for note in again.notes)
    assert state_of(ended(backend, handle.run)) is State.SUCCEEDED
    history = read_record(backend.find(handle.run)).history  # type: ignore[union-attr]
    assert [(e.attempt, e.state) for e in history] == [(1, how), (2, "succeeded")]


def test_a_success_is_handed_over_once_then_trained_anew_in_a_fresh_folder(
    backend: LocalBackend, folder: Path
) -> None:
    script = (
        "import os, pathlib\np = pathlib.Path(os.environ['ALLABOARD_CHECKPOINTS'])\np.mkdir(exist_ok=True)\n"
    )
    plan = a_plan(folder, script, workers=1, checkpoints={"uri": "out"})
    first = backend.launch(plan, ME)
    ended(backend, first.run)
    second = backend.launch(plan, YOU)
    assert second.hand_over and second.uid == first.uid
    backend.hand_over(second)
    third = backend.launch(plan, YOU)
    assert (third.generation, third.attempt, third.hand_over) == (2, 1, False)
    assert state_of(ended(backend, first.run)) is State.SUCCEEDED
    assert sorted(p.name for p in (folder / "out").iterdir()) == [plan.run, f"{plan.run}-g2"]


def test_many_clients_at_once_start_one_run(backend: LocalBackend, folder: Path) -> None:
    plan = a_plan(folder, SLEEP)
    code = (
        "import allaboard\nfrom allaboard.backends.base import Plan\n"
        "from allaboard.backends.local.backend import LocalBackend\n"
        "from allaboard.running import new_owner\n"
        f"job = allaboard.TrainingJob(folder={str(folder)!r}, **{plan.job.as_mapping()!r})\n"
        "print(LocalBackend().launch(Plan(job, 'k'), new_owner('detached')).uid)\n"
    )
    clients = [
        subprocess.Popen([sys.executable, "-c", code], env=backend.environ, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    uids = {client.communicate(timeout=120)[0].strip() for client in clients}
    assert len(uids) == 1 and "" not in uids
    running(backend, plan.run)
    assert len(processes_of(backend, plan.run)) == 2


@pytest.mark.parametrize("pace", [4, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_client_killed_at_any_moment_of_its_launch_leaves_none_or_one(
    backend: LocalBackend, folder: Path, pace: int
) -> None:
    plan = a_plan(folder, SLEEP, workers=1)
    code = (
        "import allaboard\nfrom allaboard.backends.base import Plan\n"
        "from allaboard.backends.local.backend import LocalBackend\n"
        "from allaboard.running import new_owner\n"
        f"job = allaboard.TrainingJob(folder={str(folder)!r}, **{plan.job.as_mapping()!r})\n"
        "b = LocalBackend()\nprint('go', flush=True)\nb.launch(Plan(job, 'k'), new_owner('detached'))\n"
    )
    for n in range(0, 24, pace):
        client = subprocess.Popen(
            [sys.executable, "-c", code], env=backend.environ, stdout=subprocess.PIPE, text=True
        )
        assert client.stdout is not None and client.stdout.readline() == "go\n"
        time.sleep(n * 0.008)
        client.kill()
        client.communicate()
    handle = backend.launch(plan, ME)
    running(backend, plan.run)
    assert len(processes_of(backend, plan.run)) == 1
    backend.stop(handle, ME, "me", "end")
    ended(backend, plan.run)
    assert processes_of(backend, plan.run) == []


# Death of those who watch.


@pytest.mark.parametrize("victims", ["supervisor", "keeper", "both"])
def test_no_member_outlives_those_who_watch_it(backend: LocalBackend, folder: Path, victims: str) -> None:
    children = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    plan = a_plan(folder, children, policy={"restart": "never"})
    handle = backend.launch(plan, ME)
    wait_for(lambda: len(processes_of(backend, handle.run)) == 4)
    supervisor, keeper = supervisor_and_keeper(backend, handle.run)
    if victims in ("supervisor", "both"):
        os.kill(supervisor, signal.SIGKILL)
    if victims in ("keeper", "both"):
        os.kill(keeper, signal.SIGKILL)
    if victims == "both":
        # Nobody is left to end the grandchildren: the next allaboard process does, before it hands out slots.
        ended(backend, handle.run)
        other = backend.launch(a_plan(folder, QUICK, key="other", workers=1, resources={"cpu": 1}), ME)
        ended(backend, other.run)
    seen = ended(backend, handle.run)
    assert processes_of(backend, handle.run) == []
    assert state_of(seen) is (State.FAILED if victims == "keeper" else State.LOST)
    if victims == "supervisor":
        assert summary(seen)["state"] == "lost" and "supervisor was killed" in " ".join(seen.notes)


def test_a_lost_run_is_taken_up_by_run_and_resumes(backend: LocalBackend, folder: Path) -> None:
    script = (
        "import os, time\nfrom allaboard.inside import report\n"
        "n = int(os.environ['ALLABOARD_ATTEMPT'])\nreport(step=7 * n, total=14)\n"
        "time.sleep(600 if n == 1 else 0)\n"
    )
    plan = a_plan(folder, script, workers=1)
    attempts, killed = [], []

    def look(seen: allaboard.Observation) -> None:
        attempts.append(seen.attempt)
        if seen.attempt == 1 and seen.progress.step == 7 and not killed:
            killed.append(seen.run)
            os.kill(supervisor_and_keeper(backend, seen.run)[0], signal.SIGKILL)

    job = plan.job
    outcome = allaboard.run(job, key="k", backend=backend, on_seen=look)
    assert outcome.ok and outcome.seen.attempt == 2 and set(attempts) == {1, 2}


@pytest.mark.thorough(but=("False",))
@pytest.mark.parametrize("rebooted", [True, False])
def test_a_reboot_uses_up_no_attempt(backend: LocalBackend, folder: Path, rebooted: bool) -> None:
    plan = a_plan(folder, SLEEP, workers=1)
    handle = backend.launch(plan, ME)
    running(backend, handle.run)
    for pid in supervisor_and_keeper(backend, handle.run):
        os.kill(pid, signal.SIGKILL)
    assert state_of(ended(backend, handle.run)) is State.LOST
    if rebooted:
        left = backend.find(handle.run).attempts()[-1].state
        left.write_text(json.dumps({**json.loads(left.read_text()), "boot": "the one before"}))
    again = backend.launch(plan, ME)
    seen = backend.observe(again.run)
    assert (seen.attempt, seen.interruptions) == (2, int(rebooted))
    backend.stop(again, ME, "me", "enough", kill=True)
    ended(backend, again.run)


# People: stop, suspend, resume, delete.


def test_stop_says_who_and_why_and_leaves_nothing(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, SLEEP), ME)
    running(backend, handle.run)
    assert backend.stop(handle, YOU, "you", "mine!") == NotYours("me")
    assert backend.stop(replace(handle, uid="older"), ME, "me", "late") == NotYours("me")
    assert backend.stop(handle, ME, "ann", "wrong data") == Stopped()
    seen = ended(backend, handle.run)
    assert (
        state_of(seen) is State.STOPPED
        and seen.stop is not None
        and (seen.stop.by, seen.stop.reason) == ("ann", "wrong data")
    )
    assert {m.phase for m in seen.members} == {"deleted"} and processes_of(backend, handle.run) == []
    assert backend.stop(handle, ME, "ann", "again") == Stopped(already=True)


def test_a_member_that_ignores_sigterm_is_killed_after_the_grace(backend: LocalBackend, folder: Path) -> None:
    script = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
    handle = backend.launch(a_plan(folder, script, workers=1, spot={"grace": 0.5}), ME)
    wait_for(lambda: "up" in text(backend, handle.run))
    backend.stop(handle, ME, "me", "end")
    seen = ended(backend, handle.run)
    assert state_of(seen) is State.STOPPED and seen.members[0].exit_code == 137


def text(backend: LocalBackend, run: str, **selection: object) -> str:
    lines = [line for line in backend.logs(run, Selection(**selection)) if not isinstance(line, dict)]  # type: ignore[arg-type]
    return "\n".join(line.text for line in lines)


def test_suspend_frees_and_resume_starts_again(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, SLEEP, resources={"cpu": 0.1}), ME)
    running(backend, handle.run)
    backend.suspend(handle.run)
    wait_for(
        lambda: (
            state_of(backend.observe(handle.run)) is State.SUSPENDED and not processes_of(backend, handle.run)
        )
    )
    backend.resume(handle.run)
    running(backend, handle.run)
    assert backend.observe(handle.run).attempt == 1 and backend.observe(handle.run).restarts == 0
    backend.stop(handle, ME, "me", "end")
    ended(backend, handle.run)
    with pytest.raises(BadInput, match="only a live run can be suspended"):
        backend.suspend(handle.run)


def test_delete_stops_and_removes_the_logs_but_not_the_record(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, SLEEP), ME)
    running(backend, handle.run)
    backend.delete(handle.run)
    assert processes_of(backend, handle.run) == []
    record = read_record(backend.find(handle.run))
    assert record is not None and record.deleted and backend.find(handle.run).attempts() == []
    assert state_of(backend.observe(handle.run)) is State.STOPPED


def test_ttl_is_applied_by_the_next_process_and_old_records_go(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, QUICK, policy={"ttl": "1h"}), ME)
    ended(backend, handle.run)
    backend.housekeep(Moment.now().later(3000))
    assert backend.find(handle.run).attempts()
    backend.housekeep(Moment.now().later(3700))
    assert (
        backend.find(handle.run).attempts() == [] and state_of(backend.observe(handle.run)) is State.SUCCEEDED
    )
    backend.housekeep(Moment.now().later(31 * 86400))
    with pytest.raises(UnknownRun):
        backend.find(handle.run)


def test_a_deadline_ends_it_as_timed_out(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, SLEEP, policy={"deadline": 0.7}), ME)
    seen = ended(backend, handle.run)
    assert state_of(seen) is State.TIMED_OUT and processes_of(backend, handle.run) == []


def test_a_deadline_is_told_at_once_when_members_may_live_on(backend: LocalBackend, folder: Path) -> None:
    policy = {"deadline": 0.7, "clean_pods": "none"}
    handle = backend.launch(a_plan(folder, SLEEP, policy=policy), ME)
    wait_for(lambda: state_of(backend.observe(handle.run)) is State.TIMED_OUT)
    assert {m.phase for m in backend.observe(handle.run).members} == {"running"}


@pytest.mark.thorough
def test_whoever_looks_in_the_moment_of_a_start_does_not_prevent_it(
    backend: LocalBackend, folder: Path
) -> None:
    """A look takes the lock of the attempt for a moment: the one that its supervisor must have."""
    over = threading.Event()

    def look_all_the_time() -> None:
        while not over.is_set():
            for live in backend.runs.glob("*/1-1/live.lock"):
                with live.open("r+") as file, suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    time.sleep(0.05)
            time.sleep(0.005)

    looker = threading.Thread(target=look_all_the_time)
    looker.start()
    try:
        for number in range(3):
            backend.launch(a_plan(folder, QUICK, key=f"k{number}"), ME)
    finally:
        over.set()
        looker.join()


def test_adoption_is_compare_and_swap(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, SLEEP), ME)
    assert backend.adopt(handle, ME, YOU).adopted
    with pytest.raises(OwnershipConflict, match="belongs to you"):
        backend.adopt(handle, ME, DEFERRED)
    with pytest.raises(OwnershipConflict, match="on attempt 1 now"):
        backend.adopt(replace(handle, uid="older", attempt=0), YOU, ME)


@pytest.mark.thorough
def test_an_attached_run_that_nobody_follows_is_stopped(backend: LocalBackend, folder: Path) -> None:
    backend.patience = 1.0
    attached = backend.launch(a_plan(folder, SLEEP), ME)
    alone = backend.launch(a_plan(folder, SLEEP, key="k2"), Owner("me", "detached", "detached"))
    seen = ended(backend, attached.run, 60)
    assert (
        state_of(seen) is State.STOPPED and seen.stop is not None and "no client followed" in seen.stop.reason
    )
    assert not state_of(backend.observe(alone.run)).is_final


# Restarts and logs.


def test_it_is_retried_up_to_the_limit_and_every_try_can_be_read(backend: LocalBackend, folder: Path) -> None:
    script = "import os\nprint('I am', os.environ['RANK'])\nraise SystemExit(1)\n"
    handle = backend.launch(a_plan(folder, script, workers=1, policy={"backoff_limit": 2}), ME)
    seen = ended(backend, handle.run)
    assert state_of(seen) is State.FAILED and seen.restarts == 2 and seen.members[0].exit_code == 1
    assert [text(backend, handle.run, restart=n) for n in range(3)] == ["I am 0"] * 3
    outcome = Follower(backend, handle.run).follow_to_end(FollowPolicy())
    assert [d.code for d in outcome.diagnoses] == ["python_exception", "backoff_limit_exceeded"]


def test_logs_can_be_followed_without_loss_or_repeats(backend: LocalBackend, folder: Path) -> None:
    script = (
        "import time\nfor n in range(40):\n    print(n, flush=True); time.sleep(0.02)\nprint('last', end='')"
    )
    handle = backend.launch(a_plan(folder, script), ME)
    found: dict[str, list[str]] = {"master-0": [], "worker-0": []}
    cursor = None
    while True:
        final = (s := backend.observe(handle.run)) and state_of(s).is_final and not s.alive
        for item in backend.logs(handle.run, Selection(), cursor):
            if isinstance(item, dict):
                cursor = item
            else:
                found[item.member].append(item.text)
        if final:
            break
        time.sleep(0.05)
    assert found == {m: [*map(str, range(40)), "last"] for m in found}


def test_logs_of_a_member_or_rank_that_is_not_there(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, QUICK), ME)
    ended(backend, handle.run)
    with pytest.raises(BadInput, match="did you mean 'worker-0'"):
        list(backend.logs(handle.run, Selection(members=("wroker-0",))))
    with pytest.raises(BadInput, match="ranks are 0 to 1"):
        list(backend.logs(handle.run, Selection(ranks=(7,))))
    with pytest.raises(BadInput, match="has no attempt 3"):
        list(backend.logs(handle.run, Selection(attempt=3)))


def test_runs_are_found_by_id_prefix_and_job_name(backend: LocalBackend, folder: Path) -> None:
    one = backend.launch(a_plan(folder, QUICK, key="1"), ME)
    two = backend.launch(a_plan(folder, QUICK, key="2"), ME)
    assert backend.find(one.run).name == one.run and backend.find(one.run[:7]).name in (one.run, two.run)
    assert backend.find("job").name == two.run, "a job's name means its newest run"
    with pytest.raises(UnknownRun, match="did you mean 'job'"):
        backend.find("jbo")
    assert [s.run for s in backend.list()] == [two.run, one.run]


# What members find.

SHOW = "import json, os\nprint(json.dumps(dict(os.environ)))\n"


def environment(backend: LocalBackend, run: str, member: str) -> dict[str, str]:
    import json

    found: dict[str, str] = json.loads(text(backend, run, members=(member,)))
    return found


def test_members_find_the_operators_environment_on_the_loopback(backend: LocalBackend, folder: Path) -> None:
    backend.environ |= {
        "AIRFLOW__CORE__FERNET_KEY": "s3cret",
        "_AIRFLOW_X": "s3cret",
        "KFP_POD_NAME": "x",
        "MINE": "kept",
    }
    handle = backend.launch(
        a_plan(folder, SHOW, workers=3, resources={"cpu": 0.2}, environment={"A": "1", "RANK": "9"}), ME
    )
    seen = ended(backend, handle.run)
    master, worker = (
        environment(backend, handle.run, "master-0"),
        environment(backend, handle.run, "worker-1"),
    )
    assert (master["RANK"], worker["RANK"], worker["WORLD_SIZE"]) == ("0", "2", "3")
    assert master["MASTER_ADDR"] == "127.0.0.1" and master["MASTER_PORT"] == worker["MASTER_PORT"] != "23456"
    assert (
        worker["PET_NNODES"] == "3"
        and worker["PET_NPROC_PER_NODE"] == "1"
        and worker["PYTHONUNBUFFERED"] == "1"
    )
    assert (
        worker["OMP_NUM_THREADS"] == "1"
        and worker["GLOO_SOCKET_IFNAME"] == "lo"
        and worker["CUDA_VISIBLE_DEVICES"] == ""
    )
    assert worker["A"] == "1" and worker["MINE"] == "kept" and worker["ALLABOARD_RUN"] == handle.run
    assert not any(name.startswith(("AIRFLOW__", "_AIRFLOW", "KFP_")) for name in worker)
    assert seen.members[0].log is not None
    files = [p for p in backend.find(handle.run).path.rglob("*") if p.is_file() and p.suffix != ".log"]
    assert files and not any(b"s3cret" in p.read_bytes() or b"MINE" in p.read_bytes() for p in files), (
        "never written to disk"
    )


def test_elastic_members_know_who_is_the_host(backend: LocalBackend, folder: Path) -> None:
    plan = a_plan(
        folder, SHOW, workers=2, elastic={"min": 1, "max": 3, "rendezvous_conf": {"join_timeout": "9"}}
    )
    handle = backend.launch(plan, ME)
    ended(backend, handle.run)
    host, other = environment(backend, handle.run, "worker-0"), environment(backend, handle.run, "worker-1")
    assert (
        host["PET_RDZV_CONF"] == "join_timeout=9,is_host=1"
        and other["PET_RDZV_CONF"] == "join_timeout=9,is_host=0"
    )
    assert host["PET_NNODES"] == "1:3" and host["PET_RDZV_ENDPOINT"] == other["PET_RDZV_ENDPOINT"]


def test_secrets_come_from_private_files_and_reach_members_alone(backend: LocalBackend, folder: Path) -> None:
    place = Path(backend.home) / "secrets" / "aws"
    place.mkdir(parents=True)
    (place / "TOKEN").write_text("t0ps3cret\n")
    plan = a_plan(folder, SHOW, workers=1, secrets=[{"name": "aws", "env": True}])
    with pytest.raises(BadInput, match="may be read by others"):
        backend.launch(plan, ME)
    place.chmod(0o700)
    (place / "TOKEN").chmod(0o600)
    handle = backend.launch(plan, ME)
    ended(backend, handle.run)
    assert environment(backend, handle.run, "master-0")["TOKEN"] == "t0ps3cret"
    files = [p for p in backend.find(handle.run).path.rglob("*") if p.is_file() and p.suffix != ".log"]
    assert not any(b"t0ps3cret" in p.read_bytes() for p in files)


def test_storage_is_mapped_by_the_site_or_a_problem(backend: LocalBackend, folder: Path) -> None:
    plan = a_plan(
        folder,
        "import sys\nprint(sys.argv[1:])\n",
        workers=1,
        command=["python", "main.py", "--data=/data/x", "/data2"],
        storage=[{"mount": "/data", "pvc": "datasets"}],
    )
    with pytest.raises(BadInput, match=r"storage\[0\].mount: /data has no folder here"):
        backend.launch(plan, ME)
    backend.site = replace(backend.site, mounts={"/data": str(folder / "d")})
    handle = backend.launch(plan, ME)
    ended(backend, handle.run)
    assert text(backend, handle.run) == f"['--data={folder}/d/x', '/data2']"


# Fit.


def test_a_gang_too_large_is_shrunk_with_a_word_or_refused(backend: LocalBackend, folder: Path) -> None:
    plan = a_plan(folder, QUICK, resources={"cpu": 1000, "gpu": 64})
    handle = backend.launch(plan, ME)
    seen = ended(backend, handle.run)
    assert (
        state_of(seen) is State.SUCCEEDED
        and "CPU" in " ".join(handle.notes)
        and "GPU" in " ".join(handle.notes)
    )
    with pytest.raises(BadInput, match="does not fit this machine"):
        backend.launch(a_plan(folder, QUICK, key="strict", resources={"cpu": 1000}, fit="strict"), ME)
    assert [p.name for p in backend.runs.glob("*")] == [handle.run]


def test_fields_without_a_meaning_here_are_named_in_one_line(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, QUICK, image="x:1", gang={"queue": "q"}, pod={"spec": {}}), ME)
    assert [n for n in handle.notes if "ignored on one machine" in n] == [
        "image, pod, gang.queue: ignored on one machine; slots of one machine go to whoever came first"
    ]
    handle = backend.launch(a_plan(folder, QUICK, key="spot", spot={"prefer": True, "grace": 5}), ME)
    assert [n for n in handle.notes if "ignored on one machine" in n] == [
        "spot.prefer: ignored on one machine"
    ]
    handle = backend.launch(a_plan(folder, QUICK, key="orphan", policy={"orphan": {"after": "2h"}}), ME)
    assert "policy.orphan: ignored on one machine" in handle.notes
    job = {"framework": "tensorflow", "groups": {"worker": 1}, "workers": None}
    own = {"successPolicy": "AllWorkers", "enableDynamicWorker": True}
    handle = backend.launch(a_plan(folder, QUICK, key="tf", engine_spec=own, **job), ME)
    assert [n for n in handle.notes if "ignored on one machine" in n] == [
        "engine_spec.enableDynamicWorker: ignored on one machine"
    ]


def test_arguments_follow_the_command_also_here(backend: LocalBackend, folder: Path) -> None:
    script = "import sys; sys.exit(sys.argv[1:] != ['--epochs=2', 'x'])"
    handle = backend.launch(a_plan(folder, script, key="args", args=["--epochs=2", "x"]), ME)
    assert state_of(ended(backend, handle.run)) is State.SUCCEEDED


def test_a_job_that_starts_the_entrypoint_of_its_image_is_refused_here(
    backend: LocalBackend, folder: Path
) -> None:
    plan = a_plan(folder, QUICK, key="entrypoint", args=["--epochs=2"], command=None, workers=2)
    with pytest.raises(BadInput, match="a local run has no image with an entrypoint") as caught:
        backend.launch(plan, ME)
    assert [p.path for p in caught.value.problems] == ["command"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as two users")
def test_a_pool_whose_folder_others_may_rename_is_refused_before_a_run_is_made(
    backend: LocalBackend, folder: Path, tmp_path: Path
) -> None:
    """As a /tmp without the sticky bit is; no wait in a queue mends that."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    os.chown(tmp, 65534, 65534)
    tmp.chmod(0o777)
    unsafe = LocalBackend({**backend.environ, "ALLABOARD_POOL": str(tmp / "pool")})
    with pytest.raises(SiteError, match=r"chmod \+t .*ALLABOARD_POOL") as refused:
        unsafe.launch(a_plan(folder, QUICK, workers=1), ME)
    assert refused.value.code == "pool_not_safe" and unsafe.list() == []
    tmp.chmod(0o1777)
    handle = unsafe.launch(a_plan(folder, QUICK, workers=1), ME)
    assert state_of(ended(unsafe, handle.run)) is State.SUCCEEDED


def test_a_gang_waits_for_its_slots_all_or_nothing(backend: LocalBackend, folder: Path) -> None:
    from allaboard.backends.local.host.machine import capacity

    room = capacity(with_gpus=False).cpu
    first = backend.launch(a_plan(folder, SLEEP, key="1", workers=1, resources={"cpu": room}), ME)
    running(backend, first.run)
    second = backend.launch(a_plan(folder, QUICK, key="2", workers=2, resources={"cpu": room / 2}), ME)
    seen = wait_for(lambda: (s := backend.observe(second.run)).waiting and s)
    assert state_of(seen) is State.QUEUED and "cores" in str(seen.waiting)
    assert {m.phase for m in seen.members} == {"pending"}
    backend.stop(first, ME, "me", "make room")
    assert state_of(ended(backend, second.run)) is State.SUCCEEDED


# Bad input: said before a start, nothing left behind.


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"command": ["trian"]}, r"command\[0\]: 'trian' is not found"),
        ({"command": ["pyhton", "main.py"]}, r"command\[0\]: 'pyhton' is not found; did you mean 'python'\?"),
        ({"command": ["./mian.py"]}, r"'./mian.py' is not found; did you mean './main.py'\?"),
        ({"command": ["python", "trian.py"]}, r"command\[1\]: 'trian.py' is not in"),
        ({"command": ["python", "mian.py"]}, r"command\[1\]: 'mian.py' is not in .* mean 'main.py'\?"),
        ({"command": ["./main.py"]}, r"command\[0\]: './main.py' is not executable"),
        ({"workers": 1001}, r"groups: 1,001 members; one machine holds 1,000 at most"),
        ({"code": ["model.py"]}, r"code\[0\]: 'model.py' is not there in"),
        ({"data": {"shards": "nowhere"}}, r"data.shards: .*nowhere"),
        ({"checkpoints": {"uri": "/proc/nowhere"}}, r"checkpoints.uri: .*"),
        ({"secrets": [{"name": "none", "env": True}]}, r"secrets\[0\]: 'none' is not there"),
    ],
)
def test_what_cannot_start_is_said_before_a_start(
    backend: LocalBackend, folder: Path, fields: dict[str, object], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        backend.launch(a_plan(folder, QUICK, **fields), ME)
    assert list(backend.runs.glob("*")) == []


RAISES = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def step(rank):
    if rank == 1:
        raise ValueError("bad batch 7")

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 2))
for n in range(9):
    model(torch.ones(1, 2)).sum().backward()
    step(dist.get_rank() if n == 2 else 0)
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_rank_that_raises_in_ddp_is_told_with_its_own_words(backend: LocalBackend, folder: Path) -> None:
    pytest.importorskip("torch")
    plan = a_plan(folder, RAISES, policy={"restart": "never"})
    handle = backend.launch(plan, ME)
    ended(backend, handle.run, 240.0)
    found = Follower(backend, handle.run).follow_to_end(FollowPolicy()).diagnoses[0]
    assert (found.code, found.blame) == ("python_exception", "worker-0")
    script = folder / plan.job.get("command")[1]
    assert f"worker-0, rank 1): ValueError: bad batch 7 at {script}:7" in found.summary


def test_a_newer_format_is_refused_with_a_word(backend: LocalBackend) -> None:
    prepare(backend.home)
    (backend.runs.parent / "format").write_text("99\n")
    with pytest.raises(allaboard.AllaboardError, match="written in format 99"):
        LocalBackend(backend.environ)


# What is seen.


def test_members_that_never_meet_are_flagged(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, QUICK), ME)
    ended(backend, handle.run)
    outcome = Follower(backend, handle.run).follow_to_end(FollowPolicy())
    assert outcome.ok and outcome.summary["flags"] == ["rendezvous_never_happened"]
    assert outcome.diagnoses[0].code == "rendezvous_never_happened"


def test_a_rendezvous_is_seen_and_timed(backend: LocalBackend, folder: Path) -> None:
    script = (
        "import os, socket, time\nrank, port = int(os.environ['RANK']), int(os.environ['MASTER_PORT'])\n"
        "from allaboard.inside import report\n"
        "if rank == 0:\n    s = socket.create_server(('127.0.0.1', port))\n"
        "c = None\n"
        "for _ in range(500):\n"
        "    try:\n        c = socket.create_connection(('127.0.0.1', port)); break\n"
        "    except OSError: time.sleep(0.01)\n"
        "time.sleep(0.6)\nreport(step=1, total=1, loss=float('nan'))\n"
    )
    handle = backend.launch(a_plan(folder, script), ME)
    seen = ended(backend, handle.run)
    assert (
        seen.phases["rendezvous"] is not None
        and seen.phases["first_step"] is not None
        and seen.phases["image"] is None
    )
    assert seen.flags == ("nan_loss",) and seen.progress.metrics["loss"] is None and seen.progress.step == 1
    outcome = Follower(backend, handle.run).follow_to_end(FollowPolicy())
    assert outcome.ok and [d.code for d in outcome.diagnoses] == ["nan_loss"]


# Upgrades.


@pytest.mark.thorough
def test_an_upgrade_under_its_feet_changes_nothing(
    backend: LocalBackend, folder: Path, tmp_path: Path
) -> None:
    """The supervisor has imported all it needs before its first member starts: its package may go."""
    import shutil

    package = Path(allaboard.__file__).parent
    copy = tmp_path / "installed" / "allaboard"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    script = (
        "import os, time\nopen('ready', 'a').write('.')\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    )
    script += "n = len(open('ready').read())\nraise SystemExit(1 if n < 3 else 0)\n"
    plan = a_plan(folder, script, workers=1, policy={"backoff_limit": 5}, checkpoints={"uri": "out"})
    launch = (
        "import allaboard\nfrom allaboard.backends.base import Plan\n"
        "from allaboard.backends.local.backend import LocalBackend\nfrom allaboard.running import new_owner\n"
        f"assert allaboard.__file__.startswith({str(copy)!r})\n"
        f"job = allaboard.TrainingJob(folder={str(folder)!r}, **{plan.job.as_mapping()!r})\n"
        "LocalBackend().launch(Plan(job, 'k'), new_owner('detached'))\n"
    )
    environ = backend.environ | {"PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", launch], env=environ, check=True)
    wait_for(lambda: (folder / "ready").exists())
    for module in copy.rglob("*.py"):
        module.write_text("raise RuntimeError('another version')\n")
    (folder / "go").touch()
    seen = ended(backend, plan.run)
    assert state_of(seen) is State.SUCCEEDED and seen.restarts == 2
