"""A process is named for ever, a tree is found and killed whole, and a daemon leaves its caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from allaboard.backends.local.host import processes
from allaboard.backends.local.host.processes import Identity
from allaboard.errors import SiteError
from tests.core.backends.local.processes import Family, environment, fresh_mark, python, sleeper, until

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as two users")
NOBODY = 65534


@pytest.fixture
def mark() -> Iterator[str]:
    one = fresh_mark()
    yield one
    processes.kill_run(one)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    one = Family(tmp_path / "pids")
    yield one
    one.kill()


def run_here(code: str, *arguments: str) -> str:
    """Run a program that uses procs, and give back what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- looking ----------------------------------------------------------------------------------------------


def test_an_identity_ends_with_its_process() -> None:
    child = sleeper()
    try:
        who = processes.identity(child.pid)
        assert who is not None
        assert who.start == processes.start_time(child.pid)
        assert processes.is_alive(who)
        assert not processes.is_alive(Identity(who.pid, who.start + 1)), "another process with the same pid"
        child.kill()
        until(lambda: not processes.is_alive(who), "the zombie counts as dead")
        assert processes.start_time(child.pid) == who.start, "though it is still in the table"
    finally:
        child.kill()
        child.wait()
    assert processes.identity(child.pid) is None
    assert processes.process_of(child.pid) is None


def test_a_signal_never_reaches_a_later_process_with_the_same_pid() -> None:
    child = sleeper()
    try:
        who = processes.identity(child.pid)
        assert who
        assert not processes.send_signal(Identity(who.pid, who.start - 1), signal.SIGKILL)
        assert child.poll() is None
        assert processes.send_signal(who, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert not processes.send_signal(who, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()


@linux
def test_a_process_whose_first_thread_ended_is_not_dead() -> None:
    code = """if True:
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=[600]).start()
        print("up", flush=True)
        ctypes.CDLL(None).pthread_exit(None)
    """
    with subprocess.Popen(python(code), stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline() == b"up\n"
        try:
            until(lambda: b") Z " in Path(f"/proc/{child.pid}/stat").read_bytes(), "the first thread ended")
            assert child.poll() is None
            assert processes.identity(child.pid)
            assert kill_tree(child.pid) == ()
            assert child.wait() == -signal.SIGKILL
        finally:
            child.kill()


@linux
def test_names_with_parentheses_and_spaces_do_not_confuse(tmp_path: Path) -> None:
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "600"]) as child:
        try:
            until(lambda: b"a) S 1" in Path(f"/proc/{child.pid}/stat").read_bytes(), "exec")
            seen = processes.process_of(child.pid)
            assert seen
            assert (seen.parent, seen.dead) == (os.getpid(), False)
        finally:
            child.kill()


@pytest.mark.parametrize("kernel_helps", [None, False], ids=["as it is", "by the whole table"])
def test_descendants_are_found_at_every_depth(
    kernel_helps: bool | None, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_lists_children", kernel_helps)
    with subprocess.Popen(family.command("child", "grandchild")) as main:
        born = family.born("child", "grandchild")
        found = processes.descendants(main.pid)
        assert {born["child"], born["grandchild"]} <= set(found)
        assert born["main"] not in found
        assert {main.pid} <= set(processes.children(os.getpid()))
        kill_tree(main.pid)


@linux
def test_ps_tells_the_same_as_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of systems without /proc, tried where both are there."""
    child = sleeper(start_new_session=True)
    try:
        by_proc = processes.process_of(child.pid)
        monkeypatch.setattr(processes, "_LINUX", False)
        monkeypatch.setattr(processes, "_lists_children", None)
        by_ps = processes.process_of(child.pid)
        assert by_proc and by_ps
        assert by_ps[:4] == by_proc[:4]
        assert abs(by_ps.start - time.time()) < 3600
        assert processes.identity(child.pid) == by_ps.identity
        assert child.pid in processes.children(os.getpid())
        assert child.pid in [who.pid for who in processes.descendants(os.getpid())]
        assert processes.user_of(child.pid) == os.getuid()
        assert processes.find_marked("anything") == []
        assert kill_tree(child.pid) == ()
        assert child.wait() == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


@linux
def test_marked_processes_are_found_by_run_and_by_member(mark: str) -> None:
    env = environment(**{processes.MARK: mark, processes.MEMBER: "worker-1"})
    child = subprocess.Popen(["sleep", "600"], env=env)
    try:
        (who,) = until(lambda: processes.find_marked(mark), "exec")
        assert who.pid == child.pid
        assert processes.find_marked(mark, "worker-1") == [who]
        assert processes.find_marked(mark, "worker-10") == []
        assert processes.find_marked(mark[:-1]) == []
        assert processes.environment(child.pid)[processes.MEMBER] == "worker-1"
    finally:
        child.kill()
        child.wait()
    assert processes.find_marked(mark) == []


@linux
def test_holders_of_a_file_are_found(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as file, subprocess.Popen(["sleep", "600"], pass_fds=[file.fileno()]) as child:
        found = path.stat()
        assert set(processes.pids_with_open_file(found.st_dev, found.st_ino)) == {os.getpid(), child.pid}
        child.kill()


# --- killing ----------------------------------------------------------------------------------------------


def kill_tree(root: int, keep: Iterable[int] = ()) -> tuple[Identity, ...]:
    """Kill a process and all below it but these; who survives."""
    known = {who for who in [processes.identity(root)] if who}

    def find() -> Iterator[Identity]:
        known.intersection_update([who for who in known if processes.is_alive(who)])
        yield from tuple(known)
        for who in processes.descendants_of_all([who.pid for who in known], keep):
            known.add(who)
            yield who

    return processes.kill_all(find, within=30)


def test_a_tree_is_killed_whole_and_what_is_kept_lives(family: Family) -> None:
    with subprocess.Popen(family.command("child", "grandchild")) as main, sleeper() as other:
        try:
            born = family.born("child", "grandchild")
            assert kill_tree(main.pid, [born["grandchild"].pid]) == ()
            assert [name for name, who in born.items() if processes.is_alive(who)] == ["grandchild"]
            assert kill_tree(born["grandchild"].pid) == ()
            assert not processes.is_alive(born["grandchild"])
            assert other.poll() is None
        finally:
            other.kill()


def test_a_long_line_of_descent_is_killed_to_its_end(family: Family) -> None:
    """We are no subreaper: were a parent killed before its child is found, the child would be lost to us."""
    with subprocess.Popen(family.command("chain")) as main:
        born = family.born("chain")
        line = processes.descendants(main.pid)
        try:
            assert born["chain"] in line and len(line) >= 30
            assert kill_tree(main.pid) == ()
            assert [who for who in line if processes.is_alive(who)] == []
        finally:
            for who in line:
                processes.send_signal(who, signal.SIGKILL)


KILL_AS_SUBREAPER = """
import subprocess, sys, time, os
from allaboard.backends.local.host import processes
processes.set_subreaper()
folder, relative, *command = sys.argv[1:]
main = subprocess.Popen(command)
while not os.path.exists(os.path.join(folder, relative)): time.sleep(0.001)
print(processes.kill_all(processes.other_descendants, within=10), processes.descendants(os.getpid()))
"""


@linux
@pytest.mark.parametrize("relative", ["rabbit", "breeder"])
def test_a_subreaper_kills_those_who_fork_meanwhile(relative: str, family: Family) -> None:
    printed = run_here(KILL_AS_SUBREAPER, str(family.folder), relative, *family.command(relative))
    assert printed == "() []\n"


@linux
def test_a_child_that_is_dead_when_it_is_looked_at_may_have_left_another() -> None:
    """A rabbit is between two of its lives: whoever looks then finds nobody alive, and must look again."""
    printed = run_here("""
import os
from allaboard.backends.local.host import processes
if (pid := os.fork()) == 0:
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(list(processes.other_descendants()) == [(pid, processes.NO_START)], list(processes.other_descendants()))
""")
    assert printed == "True []\n"


@linux
def test_children_that_are_kept_are_neither_found_nor_reaped() -> None:
    printed = run_here("""
import os
from allaboard.backends.local.host import processes
kept = os.fork()
if kept == 0:
    os._exit(7)
os.waitid(os.P_PID, kept, os.WEXITED | os.WNOWAIT)
print(list(processes.other_descendants([kept])), os.waitstatus_to_exitcode(os.waitpid(kept, 0)[1]))
""")
    assert printed == "[] 7\n"


@linux
@root
def test_a_process_of_another_user_survives_and_is_reported() -> None:
    child = sleeper()
    code = """
import os, sys
from allaboard.backends.local.host import processes
os.setuid(65534)
who = processes.identity(int(sys.argv[1]))
print(processes.kill_all(lambda: [who], within=0.1))
"""
    try:
        who = processes.identity(child.pid)
        assert run_here(code, str(child.pid)) == f"({who!r},)\n"
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@linux
def test_a_sweep_takes_the_marked_the_recorded_and_their_trees(mark: str, tmp_path: Path) -> None:
    marked, recorded = Family(tmp_path / "marked"), Family(tmp_path / "recorded")
    bystander = sleeper(fresh_mark())
    first = subprocess.Popen(
        marked.command("daemon", "grandchild"), env=environment(**{processes.MARK: mark})
    )
    second = subprocess.Popen(recorded.command("grandchild"), env=environment())
    try:
        born = {**marked.born("daemon", "grandchild")}
        others = recorded.born("grandchild")
        stale = Identity(bystander.pid, 1)
        assert processes.kill_run(mark, [others["main"], stale]) == ()
        assert not any(processes.is_alive(who) for who in (*born.values(), *others.values()))
        assert bystander.poll() is None
    finally:
        for child in (first, second, bystander):
            child.kill()
            child.wait()
        marked.kill()
        recorded.kill()


@linux
def test_a_sweep_spares_itself_and_those_above_it(mark: str) -> None:
    """A run may be started by a member of another run, and bear its mark."""
    code = (
        "import sys; from allaboard.backends.local.host.processes import kill_run; "
        "print(kill_run(sys.argv[1]))"
    )
    shell = ["sh", "-c", '"$@"; exit 0', "sh", sys.executable, "-c", code, mark]
    done = subprocess.run(
        shell, env=environment(**{processes.MARK: mark}), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "()\n")


@linux
@root
def test_a_sweep_for_one_user_touches_nobody_else(mark: str) -> None:
    mine, his = sleeper(mark), sleeper(mark, user=NOBODY)
    try:
        until(lambda: len(processes.find_marked(mark)) == 2, "exec")
        identity = processes.identity(mine.pid)
        assert identity
        assert processes.kill_run(mark, [identity], uid=NOBODY) == ()
        assert his.wait() == -signal.SIGKILL
        assert mine.poll() is None
    finally:
        for child in (mine, his):
            child.kill()
            child.wait()


def test_children_that_ended_are_collected_with_code_and_memory() -> None:
    code = """
import os, subprocess, time
from allaboard.backends.local.host import processes

a, b = subprocess.Popen(["sh", "-c", "exit 3"]), subprocess.Popen(["sh", "-c", "kill -9 $$"])
c = subprocess.Popen(["sleep", "600"])
found = []
while len(found) < 2:
    found += processes.reap()
    time.sleep(0.001)
codes = {r.pid: r.code for r in found}
print(codes == {a.pid: 3, b.pid: -9}, all(r.maxrss > 100_000 for r in found), processes.reap())
c.kill()
"""
    assert run_here(code) == "True True []\n"


def test_prctl_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLABOARD_NO_PRCTL", "1")
    assert not processes.has_prctl()
    assert not processes.set_subreaper()
    assert not processes.set_pdeathsig(signal.SIGKILL)


# --- daemons ----------------------------------------------------------------------------------------------

DAEMON = """
import os, sys, time
from allaboard.backends.local.host import processes
processes.detach()
import json, signal
here = os.path.exists("/proc/self/status")
status = dict(line.split(":", 1) for line in open("/proc/self/status")) if here else {}
facts = {
    "pid": os.getpid(), "leads": os.getsid(0) == os.getpid(), "env": "ALLABOARD_DETACH_FD" in os.environ,
    "fds": sorted(int(fd) for fd in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{fd}")),
    "blocked": int(status.get("SigBlk", "0"), 16),
    "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}
print("hello", flush=True)
with open(sys.argv[1] + ".part", "w") as file: json.dump(facts, file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""


def _spawn(tmp_path: Path, code: str = DAEMON) -> int:
    argv = [sys.executable, "-c", code, str(tmp_path / "facts")]
    return processes.spawn_supervisor(argv, environment(), str(tmp_path / "log"))


def _facts(tmp_path: Path) -> dict:
    import json

    return dict(
        json.loads(until(lambda: (tmp_path / "facts").exists() and (tmp_path / "facts").read_text(), "facts"))
    )


def test_a_daemon_is_no_child_of_ours_and_inherits_nothing(tmp_path: Path) -> None:
    left, right = os.pipe()
    os.set_inheritable(right, True)  # as a C library might leave a socket
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    pid = 0
    try:
        pid = _spawn(tmp_path)
        facts = _facts(tmp_path)
        assert facts["pid"] == pid
        assert facts["leads"]
        assert not facts["env"]
        assert facts["blocked"] == 0
        assert facts["sigint"]
        assert facts["fds"][:3] == [0, 1, 2]
        os.close(right)
        assert os.read(left, 1) == b"", "nobody else holds the other end"
        assert pid not in [who.pid for who in processes.descendants(os.getpid())]
        assert (tmp_path / "log").read_text() == "hello\n"
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(left)
        if pid:
            os.kill(pid, signal.SIGKILL)


def test_daemons_are_spawned_from_threads(tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(8)]
    pids: list[int] = []

    def spawn(folder: Path) -> None:
        folder.mkdir()
        pids.append(_spawn(folder))

    threads = [threading.Thread(target=spawn, args=[folder]) for folder in folders]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(pids) == sorted(_facts(folder)["pid"] for folder in folders)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def test_a_daemon_outlives_its_killed_client(tmp_path: Path) -> None:
    code = f"""
import sys, os, signal
from allaboard.backends.local.host import processes
program = [sys.executable, "-c", {DAEMON!r}, sys.argv[1]]
pid = processes.spawn_supervisor(program, dict(os.environ), sys.argv[2])
print(pid, flush=True)
os.killpg(0, signal.SIGKILL)
"""
    argv = [sys.executable, "-c", code, str(tmp_path / "facts"), str(tmp_path / "log")]
    client = subprocess.run(
        argv, env=environment(), stdout=subprocess.PIPE, start_new_session=True, timeout=60
    )
    assert client.returncode == -signal.SIGKILL
    pid = int(client.stdout)
    try:
        assert _facts(tmp_path)["pid"] == pid
        assert processes.identity(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_daemon_is_spawned_with_standard_streams_closed(tmp_path: Path) -> None:
    code = f"""
import sys, os
from allaboard.backends.local.host import processes
for fd in (0, 1, 2): os.close(fd)
program = [sys.executable, "-c", {DAEMON!r}, sys.argv[1]]
pid = processes.spawn_supervisor(program, dict(os.environ), sys.argv[2])
"""
    argv = [sys.executable, "-c", code, str(tmp_path / "facts"), str(tmp_path / "log")]
    assert subprocess.run(argv, env=environment(), timeout=60).returncode == 0
    pid = _facts(tmp_path)["pid"]
    try:
        assert (tmp_path / "log").read_text() == "hello\n"
    finally:
        os.kill(pid, signal.SIGKILL)


def test_what_cannot_be_spawned_says_why(tmp_path: Path) -> None:
    log, before = str(tmp_path / "log"), processes.children(os.getpid())
    with pytest.raises(SiteError, match=r"/no/such/python: No such file"):
        processes.spawn_supervisor(["/no/such/python"], environment(), log)
    with pytest.raises(SiteError, match=r"gone/log: No such file"):
        processes.spawn_supervisor(["true"], environment(), str(tmp_path / "gone" / "log"))
    with pytest.raises(SiteError, match=r"ended at once \(exit code 1\).*cannot import this"):
        processes.spawn_supervisor(python("raise SystemExit('cannot import this')"), environment(), log)
    assert processes.children(os.getpid()) == before


def test_run_in_the_foreground_detach_does_nothing() -> None:
    before = os.getpid()
    processes.detach()
    assert os.getpid() == before


@linux
def test_who_may_read_an_open_pipe(tmp_path: Path) -> None:
    """Whoever looks whether a pipe has a reader opens it for writing, and is no process of its run."""
    pipe = tmp_path / "slots"
    os.mkfifo(pipe)
    has = os.open(pipe, os.O_RDWR)
    looks = subprocess.Popen(
        [sys.executable, "-c", f"import os, time; os.open({str(pipe)!r}, os.O_WRONLY); time.sleep(600)"]
    )
    try:
        info = pipe.stat()
        found = lambda **how: processes.pids_with_open_file(info.st_dev, info.st_ino, **how)  # noqa: E731
        until(lambda: looks.pid in found(), "it has opened the pipe")
        assert found(reading=True) == [os.getpid()]
    finally:
        looks.kill()
        looks.wait()
        os.close(has)
