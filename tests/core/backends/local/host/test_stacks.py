"""Stacks of real processes, asked for from outside while they cannot answer by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host import stacks
from allaboard.backends.local.host.processes import children, identity
from allaboard.backends.local.host.stacks import SIGNAL, ProcessStacks, ask
from allaboard.backends.local.supervisor.environment import STARTUP
from allaboard.diagnosis.stacks import cause_of_hang, main_thread, spied_stack
from allaboard.runs.observation import Owner
from tests.core.backends.local.helpers import a_plan, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stacks are read through /proc")

Start = Callable[..., "Started"]
SAYS = "import sys; print('here', flush=True); sys.stdin.read()"


SPY = stacks._py_spy


@pytest.fixture(autouse=True)
def no_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where ``allaboard[stacks]`` is not installed."""
    monkeypatch.setattr(stacks, "_py_spy", lambda: None)


class Started:
    """A Python that has said that it is there."""

    def __init__(self, folder: Path, script: str, environ: Mapping[str, str]) -> None:
        (folder / "script.py").write_text(script)
        self.process = subprocess.Popen(
            [sys.executable, "script.py"],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()

    def asked(self, *pids: int, patience: float = 30.0) -> list[ProcessStacks]:
        whom = [found for pid in (pids or (self.process.pid,)) if (found := identity(pid)) is not None]
        return ask(whom, patience)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Started] = []

    def run(script: str, **environ: str) -> Started:
        made.append(Started(tmp_path, script, {"PYTHONPATH": STARTUP, **environ}))
        return made[-1]

    yield run
    for each in made:
        each.process.kill()
        each.process.communicate()


def test_a_process_says_where_it_is_while_a_system_call_holds_it(start: Start) -> None:
    process = start(f"def load():\n    {SAYS}\nload()\n")
    [answer] = process.asked()
    frames = main_thread(answer.text or "")
    assert [frame.function for frame in frames] == ["load", "<module>"]
    # On a busy machine it has spoken before it waits.
    assert any(process.asked()[0].state == "S" for _ in range(20))


def test_py_spy_reads_a_python_that_was_not_started_to_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_py_spy", SPY)
    (tmp_path / "script.py").write_text(f"def load():\n    {SAYS}\nload()\n")
    words = [[sys.executable, "-I", "script.py"], ["sh", "-c", "echo here; read line"]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    made = [subprocess.Popen(each, cwd=tmp_path, **pipes) for each in words]
    try:
        assert all(each.stdout is not None and each.stdout.readline() == b"here\n" for each in made)
        [answer] = ask([who for each in made if (who := identity(each.pid)) is not None], 30.0)
        assert [(f.place, f.function) for f in main_thread(answer.text or "")] == [
            ("script.py:2", "load"),
            ("script.py:3", "<module>"),
        ]
        assert (answer.who.pid, answer.state) == (made[0].pid, "S")
        assert all(each.poll() is None for each in made)
    finally:
        for each in made:
            each.kill()
            each.communicate()


@pytest.mark.parametrize("printed", ["", "null", "[]", '[{"frames": 5, "os_thread_id": 7}]', "[" * 9999])
def test_what_py_spy_prints_is_not_trusted(printed: str) -> None:
    assert spied_stack(printed, 7) == ""


def test_a_second_answer_holds_nothing_of_the_first(start: Start) -> None:
    process = start(SAYS)
    texts = [answer.text for _ in range(2) for answer in process.asked()]
    assert len(texts) == 2 and all(text and text.count("Current thread") == 1 for text in texts)


def test_a_forked_child_answers_for_itself(start: Start) -> None:
    script = f"import os, sys\ndef child():\n    {SAYS}\nif os.fork():\n    os.wait()\nchild()\n"
    process = start(script)
    [child] = children(process.process.pid)
    parent, own = process.asked(process.process.pid, child)
    assert main_thread(parent.text or "")[0].function == "<module>"
    assert main_thread(own.text or "")[0].function == "child"


def test_who_was_not_started_to_answer_is_left_alone(start: Start) -> None:
    process = start(SAYS, PYTHONPATH="")
    assert process.asked() == []
    assert process.process.poll() is None


def test_who_takes_the_signal_for_something_else_is_left_alone(start: Start) -> None:
    script = f"import signal\nsignal.signal({SIGNAL}, lambda *_: print('got it', flush=True))\n{SAYS}"
    process = start(script, PYTHONPATH="")
    assert process.asked() == []
    process.process.terminate()
    assert "got it" not in process.process.communicate()[0]


def test_a_stopped_process_does_not_answer_and_is_not_waited_for(start: Start) -> None:
    process = start(SAYS)
    process.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.process.pid, os.WSTOPPED | os.WNOWAIT)
    [answer] = process.asked(patience=0.2)
    assert (answer.text, answer.state) == (None, "T")


def test_what_the_environment_customizes_is_still_imported(start: Start, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'yes'\n")
    path = f"{STARTUP}{os.pathsep}{tmp_path / 'own'}"
    script = f"import os, sitecustomize\nprint(os.environ['OWN'], sitecustomize.__file__, flush=True)\n{SAYS}"
    process = start(script, PYTHONPATH=path)
    assert process.line.split() == ["yes", str(tmp_path / "own" / "sitecustomize.py")]
    assert len(process.asked()) == 1


FILES = (
    "sum('allaboard-stacks' in os.readlink(fd.path) for fd in os.scandir('/proc/self/fd') if fd.is_symlink())"
)
BESIDE = "import os, site, sys\nsite.addsitedir(os.environ['SITE'])\n"
"""What an interpreter does at its start with the folder of its packages."""


@pytest.fixture
def beside(tmp_path: Path) -> str:
    """A folder with what the wheel puts beside the package."""
    folder = tmp_path / "site"
    folder.mkdir()
    source = Path(STARTUP).parents[2]
    for name in ("allaboard.pth", "_allaboard_startup.py"):
        (folder / name).write_text((source / name).read_text())
    (folder / "allaboard").symlink_to(source / "allaboard")
    return str(folder)


def test_the_wheel_makes_a_member_answer_without_a_path_of_ours(start: Start, beside: str) -> None:
    member = start(BESIDE + SAYS, PYTHONPATH="", SITE=beside, ALLABOARD_RUN="a-run")
    assert len(member.asked()) == 1
    assert start(BESIDE + SAYS, PYTHONPATH="", SITE=beside).asked() == [], "it is no member of a run"


def test_a_switch_turns_it_off(start: Start, beside: str) -> None:
    """However it is begun: by the wheel, by PYTHONPATH, by who imports our help."""
    off = {"ALLABOARD_RUN": "a-run", "ALLABOARD_STARTUP": "off"}
    assert start(BESIDE + SAYS, PYTHONPATH="", SITE=beside, **off).asked() == []
    assert start(SAYS, **off).asked() == []
    script = (
        f"import sys\nsys.path.insert(0, {str(Path(STARTUP).parents[2])!r})\nimport allaboard.inside\n{SAYS}"
    )
    assert start(script, PYTHONPATH="", **off).asked() == []


def test_without_a_run_nothing_is_imported(start: Start, beside: str) -> None:
    """A Python that is no member's costs a look at one variable."""
    script = f"{BESIDE}print('_allaboard_startup' in sys.modules, 'allaboard' in sys.modules, flush=True)"
    assert start(script, PYTHONPATH="", SITE=beside).line == "False False\n"


def test_what_begins_twice_has_one_file(start: Start, beside: str) -> None:
    script = f"{BESIDE}import allaboard.inside\nprint({FILES}, flush=True)\nsys.stdin.read()"
    path = os.pathsep.join((STARTUP, str(Path(STARTUP).parents[2])))
    process = start(script, PYTHONPATH=path, SITE=beside, ALLABOARD_RUN="a-run")
    assert process.line == "1\n"
    assert len(process.asked()) == 1


def test_who_imports_our_help_answers(start: Start) -> None:
    path = str(Path(STARTUP).parents[2])
    script = f"import sys\nsys.path.insert(0, {path!r})\nimport allaboard.inside\n{SAYS}"
    assert len(start(script, PYTHONPATH="", ALLABOARD_RUN="a-run").asked()) == 1


def test_a_program_that_closes_what_it_does_not_know_trains_all_the_same(start: Start) -> None:
    script = f"import os\nos.closerange(3, 100)\nos.open('script.py', os.O_RDONLY)\n{SAYS}"
    process = start(script)
    assert process.line == "here\n"
    assert process.asked() == []


def test_who_is_gone_is_left_out() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    who = identity(ended.pid)
    ended.wait()
    assert who is not None and ask([who]) == []


RANKS = """
import os, time
def load():
    time.sleep(600)
def step():
    while True: sum(range(1000))
print("at", flush=True)
load() if os.environ["RANK"] == "1" else step()
"""


def test_a_run_says_what_each_rank_is_doing(backend: LocalBackend, folder: Path) -> None:
    backend.launch(a_plan(folder, RANKS), Owner("test"))
    run = backend.list()[0].run

    def both() -> bool:
        logs = [Path(m.log) for m in backend.observe(run).members if m.log]
        return len(logs) == 2 and all(log.exists() and "at" in log.read_text() for log in logs)

    wait_for(both)
    looks = {each.rank: each for each in backend.stacks(run)}
    assert looks[1].frames[0].function == "load" and looks[1].busy < 0.2
    assert looks[0].frames[0].function == "step"
    found = cause_of_hang(list(looks.values()))
    assert found is not None and found.blame == ()
    assert "rank 1 waits at main" in found.summary


WORKS = """
import subprocess, sys, threading, time

def polls():
    while True:
        time.sleep(0.005)

threading.Thread(target=polls, daemon=True).start()
tool = subprocess.Popen(["sh", "-c", "(while :; do :; done); :"], stdin=subprocess.DEVNULL)
print("here", flush=True)
time.sleep(600)
"""


def test_what_a_rank_waits_for_is_seen_where_its_main_thread_sleeps(
    backend: LocalBackend, tmp_path: Path
) -> None:
    run = backend.launch(a_plan(tmp_path, WORKS, workers=1), Owner("test")).run
    wait_for(lambda: any(look.frames for look in backend.stacks(run)))
    for _ in range(20):  # a machine that is busy lets them do little in a second
        looks = backend.stacks(run)
        [mine] = [one for one in looks if one.frames]
        tools = [one for one in looks if not one.frames]
        if mine.others > 30 and tools and max(one.busy for one in tools) > 0.2:
            break
    assert mine.rank == 0 and mine.state == "S" and mine.switches < 8 and mine.others > 30
    assert {one.rank for one in tools} == {None} and max(one.busy for one in tools) > 0.2
