"""Members start as promised, their end is told with nothing left of them, and none outlives its keepers."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from allaboard.backends.local.host import processes
from tests.core.backends.local.processes import (
    Family,
    Supervisor,
    environment,
    keeper_here,
    python,
    sleeper,
    supervisor,
    until,
)

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prctl and /proc")

WHOLE_FAMILY = ("child", "grandchild", "daemon", "nameless")
FINDABLE = ("child", "grandchild", "daemon")
"""Without prctl, who hides his environment and leaves session and parents survives: said in the docs."""

NO_PRCTL = {"ALLABOARD_NO_PRCTL": "1"}


def all_gone(family: dict[str, processes.Identity]) -> bool:
    return not any(processes.is_alive(who) for who in family.values())


# --- starting ---------------------------------------------------------------------------------------------

SELF_PORTRAIT = """
import json, os, sys
def link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # the one that read the list
        return None
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "sid": os.getsid(0) == os.getpid(),
    "stdin": link("0"), "out": link("1"), "err": link("2"),
    "ignored": int(status["SigIgn"], 16), "blocked": int(status["SigBlk"], 16),
    "fds": sorted(link(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and link(fd)),
}))
"""


@pytest.fixture
def rude_client():
    """A caller that ignores and blocks signals, as nohup and shells do."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGHUP, before[1])


@linux
def test_a_member_starts_as_a_shell_would_start_it(tmp_path: Path, rude_client: None) -> None:
    lock = tmp_path / "slot"
    lock.touch()
    argv = [sys.executable, "-I", "-S", "-c", SELF_PORTRAIT.replace("-c", ""), "a b", "ü"]
    with supervisor(restore_signals=False) as one:
        one.spawn("worker-0", argv, tmp_path, env={"PATH": "/bin", "GREETING": "hello"}, inherit=[str(lock)])
        one.wait("Exited")
    seen = json.loads((tmp_path / "worker-0.log").read_text())
    assert seen["argv"] == ["a b", "ü"]
    assert seen["cwd"] == str(tmp_path)
    assert seen["sid"]
    assert seen["stdin"] == "/dev/null"
    assert seen["out"] == seen["err"] == str(tmp_path / "worker-0.log")
    assert seen["ignored"] & ~_ignored_by_python() == 0
    assert seen["blocked"] == 0
    assert seen["fds"] == [str(lock)], "exactly the slot locks are inherited"
    mark_and_member = {"ALLABOARD_MARK": one.mark, "ALLABOARD_MEMBER": "worker-0"}
    assert {k: v for k, v in seen["env"].items() if k != "LC_CTYPE"} == {
        "PATH": "/bin",
        "GREETING": "hello",
        **mark_and_member,
    }


def _ignored_by_python() -> int:
    """The portrait is drawn by Python, which itself ignores the first two when it starts. The C library keeps
    32 and 33 to itself: whoever inherits them ignored cannot change that."""
    return sum(1 << (sig - 1) for sig in (signal.SIGPIPE, signal.SIGXFSZ, 32, 33))


def test_ignored_signals_of_the_client_do_not_reach_a_member(tmp_path: Path, rude_client: None) -> None:
    with supervisor(restore_signals=False) as one:
        one.spawn("worker-0", ["sh", "-c", "kill -INT $$; kill -HUP $$; kill -PIPE $$; sleep 600"], tmp_path)
        assert one.wait("Exited")["code"] == -signal.SIGINT


def test_logs_are_appended_to_so_that_every_try_stays(tmp_path: Path) -> None:
    with supervisor() as one:
        for text in ("first", "second"):
            one.spawn("worker-0", ["sh", "-c", f"echo {text}; echo {text} >&2"], tmp_path)
            one.wait("Exited")
    assert (tmp_path / "worker-0.log").read_text().split() == ["first", "first", "second", "second"]


def test_a_bare_command_is_looked_up_in_the_members_path_and_a_relative_one_in_its_folder(
    tmp_path: Path,
) -> None:
    tool = tmp_path / "bin" / "train"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 7\n")
    tool.chmod(0o755)
    with supervisor() as one:
        one.spawn("worker-0", ["train"], tmp_path, env={"PATH": f"/nowhere:{tool.parent}"})
        one.spawn("worker-1", ["./bin/train"], tmp_path)
        assert {one.wait("Exited")["code"], one.wait("Exited")["code"]} == {7}


def test_a_large_environment_travels_whole(tmp_path: Path) -> None:
    many = {f"VARIABLE_{i}": "x" * 4000 for i in range(200)}  # more than a socket buffer
    with supervisor() as one:
        one.spawn(
            "worker-0", ["sh", "-c", "env | grep -c ^VARIABLE_"], tmp_path, env={**environment(), **many}
        )
        one.wait("Exited")
    assert (tmp_path / "worker-0.log").read_text() == "200\n"


def _script(folder: Path, text: str, mode: int) -> str:
    path = folder / "script"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("make", "stage", "says"),
    [
        pytest.param(
            lambda d: {"argv": ["no-such-tool"]},
            "exec",
            "'no-such-tool' is not found in PATH",
            id="not in PATH",
        ),
        pytest.param(
            lambda d: {"argv": ["./gone.sh"]}, "exec", "'./gone.sh' does not exist", id="no such file"
        ),
        pytest.param(
            lambda d: {"argv": [_script(d, "echo", 0o644)]}, "exec", "is not executable", id="not executable"
        ),
        pytest.param(lambda d: {"argv": [str(d)]}, "exec", "is not executable", id="a folder"),
        pytest.param(
            lambda d: {"argv": [_script(d, "#!/no/such/sh\n", 0o755)]},
            "exec",
            "interpreter",
            id="no interpreter",
        ),
        pytest.param(
            lambda d: {"argv": [_script(d, "\0\1\2", 0o755)]}, "exec", "is not a program", id="not a program"
        ),
        pytest.param(
            lambda d: {"argv": ["true", "x" * 200_000]}, "exec", "too large", id="argument too large"
        ),
        pytest.param(
            lambda d: {"argv": ["true"], "env": {"": "x"}},
            "exec",
            "could not be started",
            id="wrong variable",
        ),
        pytest.param(
            lambda d: {"argv": ["true"], "cwd": str(d / "gone")}, "cwd", "cannot be entered", id="no folder"
        ),
        pytest.param(
            lambda d: {"argv": ["true"], "log": str(d / "a" / "b")}, "log", "cannot be written", id="no log"
        ),
    ],
)
def test_what_cannot_start_says_why(make, stage: str, says: str, tmp_path: Path) -> None:
    with supervisor() as one:
        asked = {"env": {"PATH": "/usr/bin:/bin"}, **make(tmp_path)}
        one.spawn("worker-0", asked.pop("argv"), tmp_path, **asked)
        failure = one.wait("SpawnFailed")
        assert failure["stage"] == stage
        assert says in failure["text"]
        # It is as if it had never been: the name is free again, and no Started or Exited was told.
        one.spawn("worker-0", ["true"], tmp_path)
        assert one.wait("Exited")["code"] == 0
    assert [message["word"] for message in one.heard] == ["ready", "SpawnFailed", "Started", "Exited"]


def test_a_member_cannot_be_spawned_twice_at_once(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with keeper_here() as keeper:
        keeper.spawn("worker-0", ["sleep", "600"], environment(), str(tmp_path), log)
        with pytest.raises(ValueError, match="has not ended yet"):
            keeper.spawn("worker-0", ["true"], environment(), str(tmp_path), log)
        with pytest.raises(ValueError, match="no command"):
            keeper.spawn("worker-1", [], environment(), str(tmp_path), log)
        assert keeper.close(within=60)[-1].member == "worker-0"
        assert not processes.is_alive(keeper.identity)


# --- ending -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", -signal.SIGTERM), ("kill -KILL $$", -signal.SIGKILL)],
)
def test_ends_are_told_with_their_code(script: str, code: int, tmp_path: Path) -> None:
    with supervisor() as one:
        one.spawn("worker-0", ["sh", "-c", script], tmp_path)
        started = one.wait("Started")
        ended = one.wait("Exited")
    assert started["identity"][0] > 0
    assert ended["code"] == code
    assert ended["survivors"] == []
    assert ended["at"] >= started["at"] - 1


def test_peak_memory_is_told(tmp_path: Path) -> None:
    with supervisor() as one:
        one.spawn("worker-0", python("x = bytearray(200 << 20)"), tmp_path)
        assert 200 << 20 < one.wait("Exited")["maxrss"] < 400 << 20


def test_many_members_at_once(tmp_path: Path) -> None:
    names = [f"worker-{i}" for i in range(40)]
    with supervisor() as one:
        for i, name in enumerate(names):
            one.spawn(name, ["sh", "-c", f"exit {i}"], tmp_path)
        ended = [one.wait("Exited") for _ in names]
    assert {each["member"]: each["code"] for each in ended} == {name: i for i, name in enumerate(names)}
    for name in names:
        assert [m["word"] for m in one.heard if m.get("member") == name] == ["Started", "Exited"]


def test_a_signal_goes_to_the_main_process_only(tmp_path: Path) -> None:
    code = '''
import os, signal, subprocess, sys
code = """if True:
    import signal
    signal.signal(signal.SIGTERM, lambda *_: print("child too", flush=True))
    print("up", flush=True)
    signal.pause()
"""
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
def term(*_):
    os.set_blocking(child.stdout.fileno(), False)
    print("main", child.stdout.read(), child.poll(), flush=True)
    os._exit(9)
signal.signal(signal.SIGTERM, term)
print("ready", flush=True)
signal.pause()
'''
    with supervisor() as one:
        one.spawn("worker-0", [sys.executable, "-I", "-c", code], tmp_path)
        log = tmp_path / "worker-0.log"
        until(lambda: log.exists() and "ready" in log.read_text(), "the member is ready")
        one.tell("signal", member="worker-0", sig=int(signal.SIGTERM))
        assert one.wait("Exited")["code"] == 9
    assert log.read_text().splitlines()[-1] == "main None None"


def test_a_signal_right_behind_the_spawn_is_not_lost(tmp_path: Path) -> None:
    with supervisor() as one:
        for i in range(20):
            one.spawn(f"worker-{i}", ["sleep", "600"], tmp_path)
            one.tell("signal", member=f"worker-{i}", sig=int(signal.SIGTERM))
        assert {one.wait("Exited")["code"] for _ in range(20)} == {-signal.SIGTERM}


@linux
def test_a_members_end_takes_all_that_it_started(tmp_path: Path) -> None:
    family = Family(tmp_path / "pids")
    with supervisor() as one:
        one.spawn("worker-0", family.command(*WHOLE_FAMILY, then="finish"), tmp_path)
        born = family.born(*WHOLE_FAMILY)
        (family.folder / "finish").write_text("0")
        ended = one.wait("Exited")
        assert all_gone(born), "nothing of it lives when its end is told"
    assert ended["code"] == 0
    assert ended["survivors"] == []


@linux
def test_a_kill_takes_the_whole_family_and_spares_the_others(tmp_path: Path) -> None:
    doomed, spared = Family(tmp_path / "doomed"), Family(tmp_path / "spared")
    with supervisor() as one:
        one.spawn("worker-0", doomed.command(*WHOLE_FAMILY), tmp_path)
        one.spawn("worker-1", spared.command(*WHOLE_FAMILY), tmp_path)
        born, others = doomed.born(*WHOLE_FAMILY), spared.born(*WHOLE_FAMILY)
        one.tell("kill", member="worker-0")
        assert one.wait("Exited")["code"] == -signal.SIGKILL
        # The one without a name is nobody's while another member could have started it.
        assert [name for name, who in born.items() if processes.is_alive(who)] == ["nameless"]
        assert all(processes.is_alive(who) for who in others.values())
        one.tell("kill_all")
        one.wait("Exited")
        assert all_gone({**others, "lost": born["nameless"]})


@linux
@pytest.mark.parametrize("relative", ["rabbit", "breeder"])
def test_whoever_forks_while_being_killed_is_killed(relative: str, tmp_path: Path) -> None:
    family = Family(tmp_path / "pids")
    with supervisor() as one:
        one.spawn("worker-0", family.command(relative), tmp_path)
        until((family.folder / relative).exists, "the first fork")
        one.tell("kill", member="worker-0")
        assert one.wait("Exited")["survivors"] == []
        assert processes.find_marked(one.mark) == []
        assert processes.descendants(one.keeper) == []


# --- nobody outlives its keepers --------------------------------------------------------------------------


@pytest.fixture(params=["prctl", pytest.param("no prctl", marks=linux)])
def world(request: pytest.FixtureRequest) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment of a supervisor, and the relatives for whose death it can vouch."""
    if request.param == "prctl" and not sys.platform.startswith("linux"):
        pytest.skip("needs prctl")
    return ({}, WHOLE_FAMILY) if request.param == "prctl" else (NO_PRCTL, FINDABLE)


def _two_families(one: Supervisor, folder: Path, relatives: tuple[str, ...]) -> dict[str, processes.Identity]:
    everybody = {}
    for member in ("worker-0", "worker-1"):
        family = Family(folder / member)
        one.spawn(member, family.command(*relatives), folder)
        everybody |= {f"{member} {name}": who for name, who in family.born(*relatives).items()}
    return everybody


def test_a_killed_supervisor_takes_all_with_it(world, tmp_path: Path) -> None:
    env, relatives = world
    with supervisor(env) as one:
        born = _two_families(one, tmp_path, relatives)
        one.kill()
        until(lambda: all_gone(born), "all members are gone")
        until(lambda: processes.identity(one.keeper) is None, "the keeper is gone")


def test_a_killed_keeper_takes_all_with_it_and_the_supervisor_goes_on(world, tmp_path: Path) -> None:
    env, relatives = world
    with supervisor(env) as one:
        born = _two_families(one, tmp_path, relatives)
        until(lambda: len(one.heard) >= 1, "ready")
        os.kill(one.keeper, signal.SIGKILL)
        died = one.wait("keeper_died")
        assert all_gone(born), "when the supervisor has cleaned up, all are gone"
        assert died["survivors"] == []
        assert sorted(died["members"]) == ["worker-0", "worker-1"], "whose end nobody could tell"
        one.keeper = one.wait("ready")["keeper"]
        one.spawn("worker-0", ["sh", "-c", "exit 5"], tmp_path)
        assert one.wait("Exited")["code"] == 5


@linux
def test_when_both_are_killed_the_kernel_takes_the_members_and_a_sweep_the_rest(tmp_path: Path) -> None:
    with supervisor() as one:
        born = _two_families(one, tmp_path, FINDABLE)
        os.kill(one.keeper, signal.SIGSTOP)  # so that it can do nothing about the supervisor's death
        one.kill()
        os.kill(one.keeper, signal.SIGKILL)
        mains = {name: who for name, who in born.items() if name.endswith("main")}
        until(lambda: all_gone(mains), "the kernel killed the main processes")
        assert not all_gone(born), "or this test shows nothing"
        assert processes.kill_run(one.mark, mains.values()) == ()
        assert all_gone(born)


@linux
def test_when_both_are_killed_without_prctl_a_sweep_takes_all_that_can_be_found(tmp_path: Path) -> None:
    with supervisor(NO_PRCTL) as one:
        born = _two_families(one, tmp_path, WHOLE_FAMILY)
        os.kill(one.keeper, signal.SIGSTOP)
        one.kill()
        os.kill(one.keeper, signal.SIGKILL)
        until(lambda: processes.identity(one.keeper) is None, "the keeper is gone")
        mains = [who for name, who in born.items() if name.endswith("main")]
        try:
            assert all(processes.is_alive(who) for who in mains), "nothing but a sweep ends them"
            assert processes.kill_run(one.mark, mains) == ()
            living = sorted(name for name, who in born.items() if processes.is_alive(who))
            assert living == ["worker-0 nameless", "worker-1 nameless"], (
                "the documented weakness, and no more"
            )
        finally:
            for who in born.values():
                processes.send_signal(who, signal.SIGKILL)


def test_a_member_that_is_stopped_is_killed_all_the_same(tmp_path: Path) -> None:
    family = Family(tmp_path / "pids")
    with supervisor() as one:
        one.spawn("worker-0", family.command("child"), tmp_path)
        born = family.born("child")
        for who in born.values():
            os.kill(who.pid, signal.SIGSTOP)
        one.kill()
        until(lambda: all_gone(born), "all members are gone")


def test_polite_signals_do_not_end_the_keeper(tmp_path: Path) -> None:
    with supervisor() as one:
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            os.kill(one.keeper, sig)
        one.spawn("worker-0", ["true"], tmp_path)
        assert one.wait("Exited")["code"] == 0


def test_what_the_keeper_holds_stays_locked_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "owner"
    path.touch()
    with keeper_here() as keeper:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            keeper.hold([file.fileno()])
            family = Family(tmp_path / "pids")
            keeper.spawn("worker-0", family.command(), environment(), str(tmp_path), str(tmp_path / "log"))
            family.born()
        with path.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_keeper_inherits_nothing_but_what_it_is_told_to_keep(tmp_path: Path) -> None:
    left, right = socket.socketpair()
    with (tmp_path / "kept").open("w") as kept, left, keeper_here(keep_fds=[kept.fileno()]) as keeper:
        right.close()
        left.settimeout(30)
        assert left.recv(1) == b"", "nobody else has the other end"
        folder = Path(f"/proc/{keeper.pid}/fd")
        if folder.exists():
            assert str(tmp_path / "kept") in {
                str(path.readlink()) for path in folder.iterdir() if path.exists()
            }


def test_closing_a_keeper_spares_other_children_of_the_supervisor(tmp_path: Path) -> None:
    with sleeper() as other, keeper_here() as keeper:
        keeper.spawn("worker-0", ["sleep", "600"], environment(), str(tmp_path), str(tmp_path / "log"))
        keeper.close(within=60)
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_closing_a_keeper_that_is_dead_or_hangs_leaves_nothing(sig: int, tmp_path: Path) -> None:
    code = """
import os, sys, time
from allaboard.backends.local.host import processes
from allaboard.backends.local.supervisor.reaper import Keeper
keeper = Keeper.start("")
keeper.spawn("worker-0", ["sleep", "600"], {"PATH": os.environ["PATH"]}, "/", sys.argv[1])
while not keeper.read_events(): time.sleep(0.001)
member = keeper._members["worker-0"]
os.kill(keeper.pid, int(sys.argv[2]))
keeper.close(within=0.2)
print(processes.is_alive(member), processes.is_alive(keeper.identity), processes.children(os.getpid()))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "log"), str(int(sig))]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout == "False False []\n", done.stderr


def test_a_supervisor_that_closes_ends_all_and_hears_of_it(tmp_path: Path) -> None:
    family = Family(tmp_path / "pids")
    with supervisor() as one:
        one.spawn("worker-0", family.command("child", "daemon"), tmp_path)
        born = family.born("child", "daemon")
        one.tell("close")
        one.wait("closed")
        assert all_gone(born)
    assert [m["word"] for m in one.heard] == ["ready", "Started", "Exited", "closed"]


ENDS_EARLY = """
import os, signal, socket, time
from allaboard.backends.local.supervisor.reaper import _KeeperLoop, _Member
report, childs_end = os.pipe()
pid = os.fork()
if not pid:
    os.closerange(0, 3)
    os.fork()
    time.sleep(10)
    os._exit(0)
os.close(childs_end)
os.set_blocking(report, False)
ours, theirs = socket.socketpair()
loop = _KeeperLoop(ours, "mark", None)
loop.members["master-0"] = member = _Member("master-0", pid, 0, report)
time.sleep(0.5)
os.kill(pid, signal.SIGKILL)
while member.ended is None:
    loop.reap()
print(member.ended["code"], member.report, member.failure)
"""


def test_a_member_that_ends_before_its_program_runs_takes_no_keeper_along() -> None:
    """A child of its own still holds the pipe by which it would have told why."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS_EARLY], capture_output=True, text=True, timeout=60, check=False,
        process_group=0,
    )  # fmt: skip
    assert done.stdout == "-9 None None\n", done.stderr
