"""Each kind of job on one machine: its members find each other by the environment alone, as their framework
does, and the job ends by the rule of its operator. PyTorchJob has tests of its own everywhere else.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Selection
from allaboard.backends.local.backend import LocalBackend
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended, processes_of, supervisor_and_keeper, wait_for

ME = Owner("me")

MEETS = """
import json, os, socket, sys, time

def answer(address, words):
    with socket.create_server(address) as server:
        time.sleep(1)  # a server of a framework is there for longer than one call
        for _ in range(words):
            with server.accept()[0] as call:
                print("heard", call.makefile().readline().strip(), flush=True)

def tell(address, word):
    for _ in range(600):
        try:
            with socket.create_connection(address, 5) as call:
                call.sendall(f"{word}\\n".encode())
            return
        except ConnectionRefusedError:
            time.sleep(0.1)
    sys.exit(f"nobody answers at {address}")

def address(text):
    host, _, port = text.rpartition(":")
    return host, int(port)

member = os.environ["ALLABOARD_MEMBER"]
"""
SCRIPTS = {
    "jax": """
leader = os.environ["COORDINATOR_ADDRESS"], int(os.environ["COORDINATOR_PORT"])
rank, size = int(os.environ["PROCESS_ID"]), int(os.environ["NUM_PROCESSES"])
answer(leader, size - 1) if rank == 0 else tell(leader, member)
""",
    "paddle": """
leader, size = address(os.environ["PADDLE_MASTER"]), int(os.environ["PADDLE_NNODES"])
answer(leader, size - 1) if member == "worker-0" else tell(leader, member)
""",
    "xgboost": """
leader = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
answer(leader, size - 1) if rank == 0 else tell(leader, member)
""",
    "mxnet": """
leader = os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"])
role, config = os.environ["DMLC_ROLE"], json.loads(os.environ["MX_CONFIG"])
others = int(os.environ["DMLC_NUM_WORKER"]) + int(os.environ["DMLC_NUM_SERVER"])
assert config["cluster"]["scheduler"] == [{"url": leader[0], "port": leader[1]}]
if role == "scheduler":
    answer(leader, others)
else:
    tell(leader, member)
    own = config["cluster"][role][config["task"]["index"]]
    if role == "server":
        answer((own["url"], own["port"]), int(os.environ["DMLC_NUM_WORKER"]))
    else:
        for server in config["cluster"]["server"]:
            tell((server["url"], server["port"]), os.environ["DMLC_WORKER_ID"])
""",
    "tensorflow": """
config = json.loads(os.environ["TF_CONFIG"])
task, workers = config["task"], config["cluster"]["worker"]
own, following = workers[task["index"]], workers[(task["index"] + 1) % len(workers)]
if task["index"]:
    answer(address(own), 1)
tell(address(following), member)
if not task["index"]:
    answer(address(own), 1)
""",
}


def written(backend: LocalBackend, run: str) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    for line in backend.logs(run, Selection()):
        if not isinstance(line, dict):  # a cursor
            lines.setdefault(line.member, []).append(line.text)
    return lines


@pytest.mark.thorough(but=("jax", "tensorflow"))
@pytest.mark.parametrize("framework", SCRIPTS)
def test_members_meet_by_what_their_operator_would_tell_them(
    backend: LocalBackend, folder: Path, framework: str
) -> None:
    plan = a_plan(folder, MEETS + SCRIPTS[framework], framework=framework, workers=3)
    run = backend.launch(plan, ME).run
    seen = ended(backend, run)
    assert state_of(seen) is State.SUCCEEDED, written(backend, run)
    heard = sorted(text for lines in written(backend, run).values() for text in lines)
    workers = ["worker-0", "worker-1", "worker-2"]
    others = {"tensorflow": workers, "mxnet": ["0", "1", "2", "server-0", *workers]}.get(framework)
    assert heard == [f"heard {name}" for name in others or (m.name for m in seen.members if m.rank)]
    assert "rendezvous_never_happened" not in seen.flags


@pytest.mark.thorough(but=("jobset",))
@pytest.mark.parametrize("engine", ["jobset", "trainjob"])
def test_engines_of_several_frameworks_tell_members_the_same(
    backend: LocalBackend, folder: Path, engine: str
) -> None:
    script = MEETS + SCRIPTS["xgboost"]
    plan = a_plan(folder, script, framework="xgboost", engine=engine, workers=3)
    seen = ended(backend, backend.launch(plan, ME).run)
    assert state_of(seen) is State.SUCCEEDED
    assert [member.name for member in seen.members] == ["master-0", "worker-0", "worker-1"]


FAILS_ONCE = """
import os, sys, time
member, folder = os.environ["ALLABOARD_MEMBER"], sys.path[0]
print("try", flush=True)
open(os.path.join(folder, member), "a").write("x")
tries = os.path.getsize(os.path.join(folder, member))
peers = {"master-0", "worker-0", "worker-1"}
while tries == 1 and {*os.listdir(folder)} & peers != peers:
    time.sleep(0.01)  # all have begun before one of them ends
if member == "worker-0" and tries == 1:
    sys.exit(3)
time.sleep(600 if tries == 1 else 0)
"""


@pytest.mark.thorough(but=("jobset",))
@pytest.mark.parametrize("engine", ["jobset", "trainjob"])
def test_a_member_that_fails_restarts_the_gang_where_a_jobset_does(
    backend: LocalBackend, folder: Path, engine: str
) -> None:
    plan = a_plan(folder, FAILS_ONCE, engine=engine, workers=3)
    run = backend.launch(plan, ME).run
    seen = ended(backend, run)
    assert state_of(seen) is State.SUCCEEDED and seen.restarts == 1
    assert [(m.name, m.restarts, m.exit_code) for m in seen.members] == [
        ("master-0", 1, 0),
        ("worker-0", 1, 0),
        ("worker-1", 1, 0),
    ]
    assert written(backend, run) == {m.name: ["try", "try"] for m in seen.members}


def test_a_keeper_that_is_killed_is_one_failure_of_the_gang(backend: LocalBackend, folder: Path) -> None:
    script = FAILS_ONCE.replace("sys.exit(3)", "time.sleep(600)")
    plan = a_plan(folder, script, engine="jobset", workers=3)
    run = backend.launch(plan, ME).run
    wait_for(lambda: sum(len(lines) for lines in written(backend, run).values()) == 3)
    os.kill(supervisor_and_keeper(backend, run)[1], signal.SIGKILL)
    seen = ended(backend, run)
    assert state_of(seen) is State.SUCCEEDED and seen.restarts == 1


def test_a_supervisor_that_is_killed_while_the_gang_restarts_leaves_what_was_counted(
    backend: LocalBackend, folder: Path
) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    plan = a_plan(folder, deaf + FAILS_ONCE, engine="jobset", workers=3, spot={"grace": "10m"})
    run = backend.launch(plan, ME).run
    wait_for(lambda: backend.observe(run).restarts == 1)
    assert state_of(backend.observe(run)) is State.RESTARTING
    for pid in supervisor_and_keeper(backend, run)[:1]:
        os.kill(pid, signal.SIGKILL)
    seen = wait_for(lambda: ((s := backend.observe(run)).alive is False and s) or None)
    assert state_of(seen) is State.LOST and seen.restarts == 1
    assert {m.restarts for m in seen.members} == {1}
    wait_for(lambda: processes_of(backend, run) == [])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give loopback one address")
def test_workers_of_lightgbm_listen_at_one_port_each_on_a_host_of_its_own(
    backend: LocalBackend, folder: Path
) -> None:
    """As `machines` of LightGBM's parameters wants it."""
    script = """
hosts, port = os.environ["WORKER_ADDRS"].split(","), int(os.environ["WORKER_PORT"])
group, _, index = member.rpartition("-")
if group == "master":
    for host in hosts:
        tell((host, port), member)
else:
    answer((hosts[int(index)], port), 1)
"""
    plan = a_plan(
        folder,
        MEETS + script,
        framework="xgboost",
        workers=None,
        groups={"master": {"command": ["sh", "-c", "python main.py && sleep 1"]}, "worker": 2},
    )
    run = backend.launch(plan, ME).run
    seen = ended(backend, run)
    lines = written(backend, run)
    assert state_of(seen) is State.SUCCEEDED, lines
    assert lines["worker-0"] == lines["worker-1"] == ["heard master-0"]


@pytest.mark.thorough(but=("jax",))
@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"framework": "tensorflow", "groups": {"worker": 2}}, State.SUCCEEDED),
        (
            {
                "framework": "tensorflow",
                "groups": {"worker": 2},
                "engine_spec": {"successPolicy": "AllWorkers"},
                "policy": {"deadline": "3s"},
            },
            State.TIMED_OUT,
        ),
        (
            {"framework": "jax", "groups": {"worker": 2}, "policy": {"deadline": "3s"}},
            State.TIMED_OUT,
        ),
        ({"framework": "xgboost", "groups": {"master": 1, "worker": 1}}, State.SUCCEEDED),
    ],
    ids=["tensorflow", "tensorflow, all workers", "jax", "xgboost"],
)
def test_the_first_member_ends_and_the_others_go_on(
    backend: LocalBackend, folder: Path, fields: dict[str, Any], state: State
) -> None:
    """Of some kinds that is the end of the job; others wait for all."""
    script = """
import os, time
first = os.environ["ALLABOARD_MEMBER"] in ("master-0", "worker-0") and os.environ.get("RANK", "0") == "0"
time.sleep(0 if first else 60)
"""
    run = backend.launch(a_plan(folder, script, workers=None, **fields), ME).run
    seen = ended(backend, run)
    assert state_of(seen) is state, seen.conditions


def test_only_the_first_member_that_trains_reports(backend: LocalBackend, folder: Path) -> None:
    script = """
from allaboard.inside import context, report
here = context()
report(7, total=9)
print(here.rank, here.world_size)
"""
    groups = {"worker": 2, "master": 1}
    plan = a_plan(folder, script, framework="paddle", workers=None, groups=groups)
    run = backend.launch(plan, ME).run
    seen = ended(backend, run)
    lines = written(backend, run)
    assert [lines[name][-1] for name in ("worker-0", "worker-1", "master-0")] == ["0 2", "1 2", "2 3"]
    assert [name for name, every in lines.items() if any("progress" in line for line in every)] == [
        "worker-0"
    ]
    assert (seen.progress.step, seen.progress.total) == (7, 9)


def test_a_member_that_fails_fails_a_job_that_never_restarts(backend: LocalBackend, folder: Path) -> None:
    script = """
import os, sys, time
if os.environ["ALLABOARD_MEMBER"] == "ps-0":
    sys.exit(3)
time.sleep(60)
"""
    groups = {"chief": 1, "worker": 1, "ps": 1}
    plan = a_plan(folder, script, framework="tensorflow", workers=None, groups=groups)
    run = backend.launch(plan, ME).run
    seen = ended(backend, run)
    assert state_of(seen) is State.FAILED
    (failed,) = (c for c in seen.conditions if c.type == "Failed")
    assert failed.message == f"TFJob default/{run} has failed because 1 PS replica(s) failed."
