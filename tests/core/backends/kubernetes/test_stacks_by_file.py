"""Stacks of members that nobody may run anything in: they are asked by a file, and answer in their logs."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS, Resource
from allaboard.backends.kubernetes.operations.observe import HANG_EVERY
from allaboard.backends.kubernetes.stacks import by_file, script
from allaboard.backends.kubernetes.stacks.by_file import answer_in
from allaboard.backends.local.supervisor.environment import STARTUP
from allaboard.diagnosis.stacks import StacksSeen
from allaboard.render import labels
from allaboard.testing import FakeCluster
from allaboard.text.reportline import is_answer
from tests.core.backends.kubernetes.test_backend import ME, a_plan
from tests.core.backends.kubernetes.test_backend import cluster as cluster_of
from tests.core.backends.kubernetes.test_hang import later, stands
from tests.core.backends.kubernetes.test_stacks import LINUX, LOADS, REDUCES, a_member, look

cluster = cluster_of
RUN = "allaboard-asked-by-a-test"
AGENT = """
import os, subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, f"{name}.py"], env=os.environ | {"RANK": rank}, stdin=subprocess.PIPE)
    for rank, name in {"0": "load", "1": "step"}.items()
]
sys.stdin.read()
"""
WAITS = "import sys\ndef {}():\n    print('here', flush=True)\n    sys.stdin.read()\n{}()\n"


def stamped(*lines: str) -> bytes:
    return "".join(f"2026-11-25T01:00:00.{n:09d}Z {line}\n" for n, line in enumerate(lines)).encode()


# --- in a container -----------------------------------------------------------------------------------------


class Container:
    """A launcher and two ranks, as a pod starts them; ``asked``: the file."""

    def __init__(self, folder: Path) -> None:
        self.asked = folder / "asked"
        for name in ("load", "step"):
            (folder / f"{name}.py").write_text(WAITS.format(name, name))
        (folder / "agent.py").write_text(AGENT)
        self.process = subprocess.Popen(
            [sys.executable, "agent.py"],
            cwd=folder,
            env=self.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        assert [self.line(), self.line()] == ["here\n", "here\n"]

    def environ(self) -> dict[str, str]:
        own = {"ALLABOARD_RUN": RUN, "ALLABOARD_MEMBER": "worker-0", "ALLABOARD_ASKED": str(self.asked)}
        return {"PATH": os.environ["PATH"], "PYTHONPATH": STARTUP, **own}

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self, word: str) -> StacksSeen:
        self.asked.write_text(word)
        lines: list[str] = []
        while not lines or '"told":' not in lines[-1]:
            lines.append(self.line().rstrip("\n"))
            assert is_answer(lines[-1]) and len(lines[-1]) < 4096
        told = answer_in(stamped(*lines), word, 3, a_member())
        assert told is not None
        return told


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path)
    yield made
    with suppress(ProcessLookupError):
        os.killpg(made.process.pid, signal.SIGKILL)
    made.process.communicate()


def listeners() -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
            environ = (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"stacks/script.py" in line and RUN.encode() in environ:
            found.append(int(folder.name))
    return found


@LINUX
def test_members_answer_in_their_log_where_they_are(container: Container) -> None:
    for word in ("1764064800", "1764064900"):
        told = container.ask(word)
        assert told.reason is None
        places = {one.rank: one.frames[0].place for one in told.looks if one.rank is not None}
        assert places == {0: "load.py:4", 1: "step.py:4"}
        assert len(told.looks) == 3, "the launcher, too"
    assert len(listeners()) == 1


@pytest.mark.thorough
@LINUX
def test_who_listens_goes_with_the_container(container: Container) -> None:
    container.ask("5")
    assert len(listeners()) == 1
    container.process.kill()
    container.process.wait()
    gone()


@LINUX
def test_a_script_that_reads_what_python_prints_does_not_wait_for_who_listens(tmp_path: Path) -> None:
    shell = (
        'said=$(python -c "print(5)"); echo "[$said]"; python -c "import os; print(os.environ.get(\'RANK\'))"'
    )
    environ = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": STARTUP,
        "ALLABOARD_RUN": RUN,
        "ALLABOARD_ASKED": str(tmp_path / "asked"),
    }
    done = subprocess.run(["sh", "-c", shell], env=environ, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[5]\nNone\n", "")
    gone()


def gone() -> None:
    until = time.monotonic() + 30
    while listeners() and time.monotonic() < until:
        time.sleep(0.05)
    assert listeners() == []


def test_a_deep_stack_fits_into_a_line_with_its_innermost_frames() -> None:
    frames = "".join(f'  File "/v/{os.urandom(40).hex()}.py", line {n} in f{n}\n' for n in range(400))
    text = (
        f"Thread 0x1 (most recent call first):\n  x\nCurrent thread 0x2 (most recent call first):\n{frames}"
    )
    deep = {**look(text=text), "collectives": "{}"}
    first, last = script.answer_lines("5", [deep])
    assert len(first) < 4096
    told = answer_in(stamped(first.decode().strip(), last.decode().strip()), "5", 0, a_member())
    assert told is not None
    [one] = told.looks
    assert len(one.frames) > 8 and [frame.line for frame in one.frames] == [*range(len(one.frames))]


# --- what a container may write -----------------------------------------------------------------------------


def answered(word: str, *looks: dict[str, Any]) -> list[str]:
    return [line.decode().strip() for line in script.answer_lines(word, [*looks])]


def test_an_answer_counts_once_it_is_whole_and_to_this_word() -> None:
    lines = answered("7", look(), look(8, 1))
    assert answer_in(stamped(*lines[:-1]), "7", 0, a_member()) is None
    assert answer_in(stamped(*lines), "8", 0, a_member()) is None
    told = answer_in(stamped("step 5", *lines, "step 6"), "7", 0, a_member())
    assert told is not None and [one.rank for one in told.looks] == [0, 1]


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


HOSTILE = ["", "no base64!", packed(b""), packed(b"[]"), packed(b'{"pid": 1}'), packed(b"[" * 100_000)]


@pytest.mark.parametrize("hostile", [*HOSTILE, packed(b" " * (1 << 24)), packed(b'{"pid": 1e999}')])
def test_a_container_that_writes_anything_is_one_that_told_nothing(hostile: str) -> None:
    line = f'[allaboard] {{"v":1,"kind":"stacks","asked":"7","look":{json.dumps(hostile)}}}'
    told = answer_in(stamped(line, *answered("7", look())), "7", 0, a_member())
    assert told is not None and len(told.looks) == 1
    assert answer_in(stamped(line.replace('"7"', "7")), "7", 0, a_member()) is None


@pytest.mark.parametrize("line", ["step 5", '[allaboard] {"v":1,"kind":"progress","step":1}', "x" * 5000])
def test_what_is_no_answer_is_progress(line: str) -> None:
    assert not is_answer(line)


# --- a run on a cluster in memory ---------------------------------------------------------------------------


def answer(cluster: FakeCluster, run: str) -> None:
    record = cluster.one(CONFIGMAPS, labels.record_name(run))
    assert record is not None
    word = record["data"][labels.ASKED]
    for rank, (member, text) in enumerate({"master-0": REDUCES, "worker-0": LOADS}.items()):
        for line in answered(word, look(rank=rank, text=text)):
            cluster.say(f"{run}-{member}", line)


def test_its_pods_mount_what_they_are_asked_and_others_do_not(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    for ask in ("file", "exec"):
        run = backend.launch(a_plan(ask, policy={"hang": {"ask": ask}}), ME).run
        cluster.tick(3)
        pod = cluster.one(PODS, f"{run}-master-0")
        assert pod is not None
        volumes = {volume["name"]: volume.get("configMap") for volume in pod["spec"]["volumes"]}
        environ = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
        items = [{"key": "asked", "path": "asked"}]
        source = {"name": f"allaboard-{run}", "items": items, "optional": True}
        by_file = ask == "file"
        assert volumes.get("asked") == (source if by_file else None)
        assert environ.get("ALLABOARD_ASKED") == ("/allaboard/asked/asked" if by_file else None)


def test_the_rank_that_holds_up_the_others_is_said(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend, after="5m", ask="file")
    assert later(cluster, backend, run, 400).stall is None, "it is asked, and has time"
    answer(cluster, run)
    seen = later(cluster, backend, run, HANG_EVERY + 1)
    assert seen.stall is not None, "an answer is no progress"
    assert "rank 1 has not entered all_reduce: it waits at hang.py:6 `load`" in seen.stall.text
    assert not any(request[0] == "exec" for request in cluster.requests)
    cluster.say(f"{run}-worker-0", "step 2")
    assert later(cluster, backend, run, HANG_EVERY + 1).stall is None


def test_a_follower_in_a_loop_says_the_same(cluster: FakeCluster) -> None:
    run = stands(cluster, cluster.backend(), after="5m", ask="file")
    backend = cluster.async_backend()

    async def looks() -> str:
        cluster.tick(400)
        assert (await backend.observe(run)).stall is None
        answer(cluster, run)
        cluster.tick(HANG_EVERY + 1)
        stall = (await backend.observe(run)).stall
        return "" if stall is None else stall.text

    assert "rank 1 has not entered all_reduce" in asyncio.run(looks())


def test_who_does_not_answer_in_time_is_told_by_silence(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend, after="5m", then="fail", ask="file")
    assert later(cluster, backend, run, 400).stall is None
    seen = later(cluster, backend, run, by_file.WAIT + 1)
    assert seen.stall is not None and seen.limit is not None
    assert "no member has written for long" in seen.stall.text
    assert "2 of 2 members have not answered in their logs" in seen.stall.text


def test_without_the_right_it_says_what_to_grant(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend, after="5m", ask="file")

    def no(resource: Resource, body: Json) -> None:
        if resource == CONFIGMAPS and labels.ASKED in body["data"]:
            raise Forbidden("no", status=403)

    cluster.objections.append(no)
    seen = later(cluster, backend, run, 400)
    assert seen.stall is not None
    assert "allaboard cluster --rbac submitter -n default | kubectl apply -f -" in seen.stall.text


def test_the_doctor_waits_for_the_answer(cluster: FakeCluster) -> None:
    def pause(seconds: float) -> None:
        cluster.tick(seconds)
        if cluster.now - asked > 90:
            answer(cluster, run)

    run, asked = stands(cluster, cluster.backend(), ask="file"), cluster.now + 60
    backend = cluster.backend()
    backend.api.pause = pause
    cluster.tick(60)
    stood = backend.standing(run, 30.0)
    assert [one.rank for one in stood.stacks.looks] == [0, 1] and stood.stacks.reason is None
    assert stood.silent is not None and stood.silent >= 60


def test_the_doctor_says_who_has_not_answered(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend, ask="file")
    cluster.tick(60)
    told = backend.standing(run, 30.0).stacks
    assert told.looks == () and "2 of 2 members have not answered" in (told.reason or "")


def test_what_was_asked_a_moment_ago_is_not_asked_again(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = stands(cluster, backend, after="5m", ask="file")
    later(cluster, backend, run, 400)
    answer(cluster, run)
    another = cluster.backend()
    assert len(another.standing(run).stacks.looks) == 2
