"""Stacks of members on a cluster: what the script in their containers prints of real processes, how that is
read, and what is said where there is none.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allaboard.backends.kubernetes.client.errors import ApiError, Forbidden
from allaboard.backends.kubernetes.client.protocol import RESULT, STDERR, STDOUT, ExecReader, Executed
from allaboard.backends.kubernetes.observe.containers import ContainerRun
from allaboard.backends.kubernetes.stacks.asking import (
    NO_ALLABOARD,
    PRINTED,
    StacksSeen,
    _script,
    ask_stacks,
    command,
    read,
    read_rounds,
)
from allaboard.backends.local.supervisor.environment import STARTUP
from allaboard.cli import app
from allaboard.cli.place import Place
from allaboard.diagnosis.stacks import cause_of_hang
from allaboard.diagnosis.stragglers import LOOKS
from allaboard.runs.observation import State
from allaboard.runs.status import state_of
from allaboard.testing import FakeCluster
from tests.core.backends.kubernetes.test_backend import ME, a_plan
from tests.core.backends.kubernetes.test_backend import cluster as cluster_of
from tests.core.backends.kubernetes.test_hang import later, stands

cluster = cluster_of
RUN = "allaboard-stacks-of-a-test"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="stacks are read through /proc")
WAITS = "import sys\ndef {}():\n    print('here', flush=True)\n    sys.stdin.read()\n{}()\n"
COLLECTIVE = "/v/site-packages/torch/distributed/distributed_c10d.py"


def a_member(rank: int = 0) -> ContainerRun:
    name = f"worker-{rank}"
    return ContainerRun(name, name, name, "pytorch", False, name, rank, 0, False, True, False, begun=5.0)


def stack(*frames: str) -> str:
    lines = "".join(
        f'  File "{file}", line {line} in {name}\n' for file, line, name in map(str.split, frames)
    )
    return f"Current thread 0x0000000000000001 (most recent call first):\n{lines}"


LOADS = stack("/job/hang.py 6 load", "/job/hang.py 20 <module>")
REDUCES = stack(f"{COLLECTIVE} 3000 all_reduce", "/job/hang.py 18 <module>")


def look(pid: int = 7, rank: int | None = 0, text: str = LOADS, **other: Any) -> dict[str, Any]:
    same = {"parent": 1, "state": "S", "busy": 0.0, "collectives": ""}
    return {"pid": pid, "rank": rank, "text": text, **same, **other}


def printed(*looks: Mapping[str, Any]) -> Executed:
    return Executed(0, json.dumps({"looks": looks}).encode())


# --- the script, beside real processes ----------------------------------------------------------------------


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks of a run, where `load` and `step` wait."""
    made = []
    for rank, name in enumerate(("load", "step")):
        (tmp_path / f"{name}.py").write_text(WAITS.format(name, name))
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": STARTUP, "ALLABOARD_RUN": RUN, "RANK": str(rank)}
        process = subprocess.Popen(
            [sys.executable, f"{name}.py"],
            cwd=tmp_path,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        made.append(process)
    yield made
    for process in made:
        process.kill()
        process.communicate()


def run_script(run: str = RUN, path: str = os.defpath, rounds: int = 0) -> Executed:
    """``path``: where the image has its programs."""
    words = [sys.executable, *command(rounds)[1:]]
    environ = {"PATH": path, **({"ALLABOARD_RUN": run} if run else {})}
    done = subprocess.run(words, input=_script(), env=environ, capture_output=True, timeout=60)
    return Executed(done.returncode, done.stdout, done.stderr)


@LINUX
def test_the_script_says_where_the_processes_of_its_run_are(started: list[subprocess.Popen[str]]) -> None:
    told = read(run_script(), 3, a_member())
    assert told.reason is None
    assert [(one.rank, one.frames[0].place, one.frames[0].function, one.state) for one in told.looks] == [
        (0, "load.py:4", "load", "S"),
        (1, "step.py:4", "step", "S"),
    ]
    assert [one.pid - (3 << 22) for one in told.looks] == [process.pid for process in started]
    assert all(process.poll() is None for process in started)


@LINUX
def test_it_looks_often_at_the_moment_itself(started: list[subprocess.Popen[str]]) -> None:
    rounds = read_rounds(run_script(rounds=6), 3, a_member())
    assert len(rounds) == 6
    for looks in rounds:
        assert {(one.rank, one.frames[0].place, one.state, one.busy) for one in looks} == {
            (0, "load.py:4", "S", 0.0),
            (1, "step.py:4", "S", 0.0),
        }
    assert all(process.poll() is None for process in started)


def test_who_prints_anything_for_many_looks_told_nothing() -> None:
    for out in (*HOSTILE, b'{"rounds": 5}', b'{"rounds": [5]}', b'{"rounds": [[5]]}'):
        assert read_rounds(Executed(0, out), 0, a_member()) == []


LATE = """
import sys, types
counts = types.ModuleType("torch._C._distributed_c10d")
group = '{"pg_status": {"0": {"last_enqueued_collective": 5, "last_completed_collective": 4}}}'
counts._dump_fr_trace_json = lambda *_: group.encode()
sys.modules |= {"torch.distributed": types.ModuleType("torch.distributed"), counts.__name__: counts}
import allaboard.inside
print("here", flush=True)
sys.stdin.read()
"""


@LINUX
def test_the_number_of_a_collective_is_told_also_by_who_began_to_answer_late(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "ALLABOARD_RUN": RUN, "RANK": "1", "WORLD_SIZE": "2"}
    environ["PYTHONPATH"] = str(Path(STARTUP).parents[2])
    words = [sys.executable, "-S", "-c", LATE]
    process = subprocess.Popen(
        words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        [one] = read(run_script(), 0, a_member(1)).looks
        assert (one.rank, one.pending) == (1, 5)
    finally:
        process.kill()
        process.communicate()


STANDS = LATE.replace(
    "counts._dump_fr_trace_json = lambda *_: group.encode()",
    """
asked = []
def dump(collectives, active, of="nccl"):
    asked.append((of, collectives))
    entry = '{"pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 5, "is_p2p": false, '
    entry += '"profiling_name": "nccl:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"], '
    entry += '"state": "started", "retired": false}'
    return (group[:-1] + ', "entries": [' + (", ".join([entry] * 3) if collectives else "") + "]}").encode()
counts._dump_nccl_trace_json = dump
counts._dump_fr_trace_json = lambda *_: b'{"pg_status": {}}'
""",
)


@LINUX
def test_a_rank_over_nccl_tells_its_last_collectives_once_they_stand(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "ALLABOARD_RUN": RUN, "RANK": "1", "WORLD_SIZE": "2"}
    environ["PYTHONPATH"] = str(Path(STARTUP).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", STANDS],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        [one] = read(run_script(), 0, a_member(1)).looks
        assert one.pending == 5 and one.records is not None
        [group] = one.records
        assert (group.backend, group.entered, group.done, group.waits_in) == ("nccl", 5, 4, "all_reduce")
        assert group.last[-1].has_begun and group.last[-1].given == "[4] Float"
    finally:
        process.kill()
        process.communicate()


KEEPS = """
import os, sys, types
torch = types.ModuleType("torch")
torch.__version__ = sys.argv[1]
sys.modules |= {"torch": torch, "torch.distributed": types.ModuleType("torch.distributed")}
import allaboard.inside
print(*(os.environ.get(f"TORCH_{name}_BUFFER_SIZE", "-") for name in ("FR", "NCCL_TRACE")))
"""


@LINUX
@pytest.mark.parametrize(
    ("version", "own", "kept"),
    [
        ("2.4.1+cu121", {}, "2000 2000"),
        ("2.15.0+cu132", {}, "2000 -"),
        ("3.1.0", {}, "2000 -"),
        ("2.4.1", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "- 0"),
        ("2.15.0", {"TORCH_FR_BUFFER_SIZE": "9"}, "9 -"),
    ],
)
def test_ranks_keep_their_last_collectives_unless_told_how_many(
    version: str, own: dict[str, str], kept: str
) -> None:
    environ = {"PATH": os.environ["PATH"], "ALLABOARD_RUN": RUN, "RANK": "1", "WORLD_SIZE": "2", **own}
    environ["PYTHONPATH"] = str(Path(STARTUP).parents[2])
    words = [sys.executable, "-S", "-c", KEEPS, version]
    assert subprocess.run(words, env=environ, capture_output=True, text=True).stdout.strip() == kept


@LINUX
def test_py_spy_of_the_image_reads_who_was_not_started_to_answer(tmp_path: Path) -> None:
    (tmp_path / "load.py").write_text(WAITS.format("load", "load"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        [sys.executable, "-I", "load.py"],
        cwd=tmp_path,
        env={"PATH": path, "ALLABOARD_RUN": RUN, "RANK": "2"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        [one] = read(run_script(path=path), 0, a_member(2)).looks
        assert (one.rank, one.frames[0].place, one.frames[0].function) == (2, "load.py:4", "load")
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


WORKS = """
import subprocess, sys, threading, time

def polls():
    while True:
        time.sleep(0.005)

threading.Thread(target=polls, daemon=True).start()
tool = subprocess.Popen(["sh", "-c", "(while :; do :; done); :"], stdin=subprocess.DEVNULL)
print("here", flush=True)
sys.stdin.read()
"""


@LINUX
def test_what_a_rank_waits_for_is_seen_where_its_main_thread_sleeps(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": STARTUP, "ALLABOARD_RUN": RUN, "RANK": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", WORKS],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        process_group=0,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        for _ in range(10):  # a machine that is busy lets them do little in a second
            looks = read(run_script(), 0, a_member()).looks
            [mine] = [one for one in looks if one.frames]
            tools = [one for one in looks if not one.frames]
            if mine.others > 30 and max(one.busy for one in tools) > 0.2:
                break
        assert mine.rank == 0 and mine.state == "S" and mine.switches < 8 and mine.others > 30
        assert [one.rank for one in tools] == [None, None] and max(one.busy for one in tools) > 0.2
        assert tools[0].parent == mine.pid and tools[1].parent == tools[0].pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@LINUX
@pytest.mark.parametrize("run", ["another-run", ""])
def test_others_are_left_alone(started: list[subprocess.Popen[str]], run: str) -> None:
    assert read(run_script(run), 0, a_member()) == StacksSeen(reason=NO_ALLABOARD)
    assert all(process.poll() is None for process in started)


@LINUX
def test_who_was_not_started_to_answer_goes_on(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "ALLABOARD_RUN": RUN}
    process = subprocess.Popen(["sleep", "60"], env=environ)
    try:
        assert read(run_script(), 0, a_member()).reason == NO_ALLABOARD
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


# --- reading what it printed --------------------------------------------------------------------------------


def test_pids_of_two_pods_are_two() -> None:
    told = [read(printed(look(7, rank)), rank, a_member(rank)) for rank in (0, 1)]
    assert len({one.pid for each in told for one in each.looks}) == 2


def test_where_no_process_knows_its_rank_it_is_the_members() -> None:
    assert [one.rank for one in read(printed(look(rank=None)), 0, a_member(2)).looks] == [2]
    mixed = read(printed(look(1, None), look(2, 5)), 0, a_member(2))
    assert [one.rank for one in mixed.looks] == [None, 5]


HOSTILE = [
    b"",
    b"no JSON",
    b"[]",
    b"null",
    b'{"looks": 5}',
    b'{"looks": [5]}',
    b'{"looks": [{"pid": "x", "rank": null}]}',
    b'{"looks": [{"pid": 1e999, "parent": 1, "rank": 1, "text": "", "state": "", "busy": 0}]}',
    b'{"looks": [{"pid": null, "parent": 1, "rank": 1, "text": "", "state": "", "busy": 0}]}',
    b"[" * 100_000,
    b"\xff\xfe",
    b" " * (PRINTED.size + 1),
]


@pytest.mark.parametrize("out", HOSTILE, ids=range(len(HOSTILE)))
def test_a_container_that_prints_anything_is_one_that_told_nothing(out: bytes) -> None:
    told = read(Executed(0, out), 0, a_member())
    reason = told.reason or ""
    assert told.looks == () and "pod worker-0 did not give its stacks" in reason


def test_a_container_without_python_is_said() -> None:
    trouble = 'exec failed: exec: "python3": executable file not found in $PATH'
    for ended in (Executed(None, trouble=trouble), Executed(127, err=b"sh: python3: not found\n")):
        why = read(ended, 0, a_member()).reason
        assert why is not None and "container pytorch of pod worker-0 has no python3" in why
    assert "exit code 3" in (read(Executed(3), 0, a_member()).reason or "")


def test_messages_are_read_by_their_channel_up_to_a_limit() -> None:
    reader = ExecReader(100)
    for channel, data in ((STDOUT, b""), (STDOUT, b"out"), (STDERR, b"err"), (9, b"x")):
        assert reader.feed(bytes([channel]) + data)
    failed = {"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}}
    assert not reader.feed(bytes([RESULT]) + json.dumps(failed).encode())
    assert reader.ended() == Executed(3, b"out", b"err")
    flooded = ExecReader(100)
    assert not flooded.feed(bytes([STDOUT]) + bytes(1 << 17))
    assert flooded.ended().code is None and "more than 100 bytes" in flooded.ended().trouble
    cut = ExecReader(100)
    cut.feed(b"")
    assert "ended before the command" in cut.ended().trouble


# --- a run on a cluster in memory ---------------------------------------------------------------------------


def test_the_rank_that_holds_up_the_others_is_said(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend, after="5m")
    cluster.executed[f"{run}-master-0"] = printed(look(rank=0, text=REDUCES))
    cluster.executed[f"{run}-worker-0"] = printed(look(rank=1))
    seen = later(cluster, backend, run, 400)
    assert seen.stall is not None
    assert "rank 1 has not entered all_reduce: it waits at hang.py:6 `load`" in seen.stall.text
    assert (seen.stall.blame, seen.stall.member) == ("rank 1", "worker-0")
    asked = cluster.requests.count(("exec", "pods", f"{run}-worker-0"))
    assert later(cluster, backend, run, 31).stall == seen.stall
    assert cluster.requests.count(("exec", "pods", f"{run}-worker-0")) == asked == 1


@pytest.mark.parametrize(("busy", "hangs"), [(0.0, True), (0.9, False)])
def test_before_the_first_line_several_looks_must_show_a_hang(
    cluster: FakeCluster, busy: float, hangs: bool
) -> None:
    backend = cluster.backend()
    run = backend.launch(a_plan(policy={"hang": {"after": "1m", "then": "fail"}}), ME).run
    cluster.tick(3)
    assert state_of(backend.observe(run)) is State.RUNNING
    cluster.executed[f"{run}-master-0"] = printed(look(rank=0, text=REDUCES))
    cluster.executed[f"{run}-worker-0"] = printed(look(rank=1, busy=busy))
    seen = [later(cluster, backend, run, 65) for _ in range(8)]
    stalls = [each.stall for each in seen]
    assert stalls[:2] == [None, None] and (stalls[-1] is not None) is hangs, stalls
    if hangs:
        assert stalls[-1] is not None and stalls[-1].blame == "rank 1"
        assert seen[-1].limit is not None and seen[-1].limit.left <= 0


def test_without_the_right_it_says_what_to_grant(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend, after="5m")
    for member in ("master-0", "worker-0"):
        cluster.executed[f"{run}-{member}"] = Forbidden("no", status=403)
    seen = later(cluster, backend, run, 400)
    assert seen.stall is not None and seen.stall.text.startswith("no member has written for long")
    assert "allaboard cluster --rbac stacks -n default | kubectl apply -f -" in seen.stall.text


def test_by_its_own_history_a_run_that_computes_is_not_called_hung(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend)
    for rank, member in enumerate(("master-0", "worker-0")):
        cluster.executed[f"{run}-{member}"] = printed(look(rank=rank, busy=0.9))
    assert later(cluster, backend, run, 700).stall is None


def test_one_member_that_cannot_be_asked_keeps_no_other_from_telling(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend)
    cluster.executed[f"{run}-worker-0"] = printed(look(rank=1))
    cluster.executed[f"{run}-master-0"] = ApiError("a webhook says no", status=500)
    pods = [f"{run}-worker-0", f"{run}-master-0", "gone"]
    tries = [ContainerRun(p, p, p, "pytorch", False, p, n, 0, False, True, False) for n, p in enumerate(pods)]
    told = ask_stacks(backend.api, tries)
    assert [one.member for one in told.looks] == [f"{run}-worker-0"]
    assert told.reason is not None and "a webhook says no" in told.reason
    assert cause_of_hang(told.looks) is not None


def test_the_doctor_asks_only_of_what_is_silent(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend)
    cluster.executed[f"{run}-worker-0"] = printed(look(rank=1))
    assert backend.standing(run, 30.0).stacks == StacksSeen()
    cluster.tick(60)
    stood = backend.standing(run, 30.0)
    assert stood.silent == pytest.approx(60.0, abs=2.0) and len(stood.stacks.looks) == 1


# --- the verbs ----------------------------------------------------------------------------------------------


@pytest.fixture
def verbs(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a verb prints at this cluster."""
    monkeypatch.setenv("ALLABOARD_BACKEND", "kubernetes")
    monkeypatch.setattr(Place, "open", lambda *_: cluster.backend())

    def said(*words: str) -> str:
        done = CliRunner().invoke(app, [*words], standalone_mode=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return said


def test_the_doctor_and_its_file_name_the_rank(
    cluster: FakeCluster, verbs: Callable[..., str], tmp_path: Path
) -> None:
    run = stands(cluster, cluster.backend())
    cluster.executed[f"{run}-master-0"] = printed(look(rank=0, text=REDUCES))
    cluster.executed[f"{run}-worker-0"] = printed(look(rank=1))
    cluster.tick(60)
    first = json.loads(verbs("doctor", run, "--json"))["diagnoses"][0]
    assert (first["code"], first["blame"]) == ("rank_stalled", "rank 1")
    assert [proof["object"] for proof in first["evidence"]] == ["rank 1", "rank 0"]
    case = tmp_path / "case.json"
    verbs("snapshot", run, "-o", str(case))
    again = json.loads(verbs("doctor", "--snapshot", str(case), "--json"))["diagnoses"][0]
    assert (again["code"], again["blame"]) == ("rank_stalled", "rank 1")


def test_the_doctor_names_a_rank_that_others_wait_for_in_each_step(
    cluster: FakeCluster, verbs: Callable[..., str]
) -> None:
    run = stands(cluster, cluster.backend())
    own = {"rounds": [[look(rank=1)]] * LOOKS}
    counts = '{{"pg_status": {{"0": {{"last_enqueued_collective": {}, "last_completed_collective": {}}}}}}}'
    waits = [[look(rank=0, text=REDUCES, collectives=counts.format(n + 1, n))] for n in range(LOOKS)]
    cluster.executed[f"{run}-worker-0"] = Executed(0, json.dumps(own).encode())
    cluster.executed[f"{run}-master-0"] = Executed(0, json.dumps({"rounds": waits}).encode())
    first = json.loads(verbs("doctor", run, "--json"))["diagnoses"][0]
    assert (first["code"], first["blame"]) == ("slow_rank", "rank 1")
    assert "it waited for them 0 times, they 40 times" in first["summary"]


def test_the_doctor_says_what_to_grant(cluster: FakeCluster, verbs: Callable[..., str]) -> None:
    run = stands(cluster, cluster.backend())
    for member in ("master-0", "worker-0"):
        cluster.executed[f"{run}-{member}"] = Forbidden("no", status=403)
    assert "no_stacks" not in json.loads(verbs("doctor", run, "--json")), "it has just written"
    cluster.tick(60)
    said = json.loads(verbs("doctor", run, "--json"))
    assert "allaboard cluster --rbac stacks -n default" in said["no_stacks"]
    assert "no stacks  their stacks may not be read" in verbs("doctor", run)
