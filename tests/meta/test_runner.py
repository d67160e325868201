"""The runner behind `make test`: it fails when it should, and nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.meta.source import ROOT

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc"),
]

RUNNER = """
import sys
from pathlib import Path
from tests import run
folder = Path(sys.argv[1])
run.REPORTS = folder / "reports"
run.LINGERING = 1.0
run.INTERRUPTED_GRACE = 10
arguments = (str(folder / "suite"), "-p", "no:cacheprovider")
run.SUITES = (run.Suite("one", arguments, Path(sys.executable).parent),)
run.CLUSTER = run.Suite("other", arguments, Path(sys.executable).parent)
sys.exit(run.main(sys.argv[2:]))
"""


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    (tmp_path / "suite").mkdir()
    return tmp_path


def run(folder: Path, tests: str, *arguments: str) -> tuple[int, str]:
    (folder / "suite" / "test_it.py").write_text(tests)
    answer = subprocess.run(
        [sys.executable, "-c", RUNNER, str(folder), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.returncode, answer.stdout


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_it_closes_with_a_line_for_each_suite(runner: Path) -> None:
    code, output = run(runner, "def test_a(): pass\ndef test_b(): pass\n")
    assert code == 0
    assert output.splitlines()[-1].startswith("one: 2 passed in ")


def test_the_tests_that_need_a_cluster_are_a_suite_of_their_own(runner: Path) -> None:
    code, output = run(runner, "def test_a(): pass\ndef test_b(): pass\n", "--cluster", "-k", "test_b")
    assert code == 0
    assert output.splitlines()[-1].startswith("other: 1 passed in ")
    assert (runner / "reports" / "other.closing").read_text() == f"{output.splitlines()[-1]}\n"
    assert not (runner / "reports" / "one.closing").exists()


def test_the_thorough_ones_run_with_all_and_with_the_rest(runner: Path) -> None:
    tests = "import pytest\n@pytest.mark.thorough\n@pytest.mark.parametrize('n', range(3))\n"
    tests += "def test_long(n): pass\ndef test_short(): pass\n"
    for arguments, passed in ((), 1), (("--all",), 4), (("--rest",), 3):
        code, output = run(runner, tests, *arguments)
        assert code == 0
        assert output.splitlines()[-1].startswith(f"one: {passed} passed in ")


def test_a_failing_test_fails_it(runner: Path) -> None:
    code, output = run(runner, "def test_a(): pass\ndef test_b(): assert False\n")
    assert code == 1
    assert output.splitlines()[-1].startswith("one: 1 failed, 1 passed in ")


def test_a_pytest_that_ends_before_its_last_test_fails_it_and_says_so(runner: Path) -> None:
    interrupted = "import os, signal\ndef test_a(): pass\ndef test_b(): os.kill(os.getpid(), signal.SIGINT)\n"
    code, output = run(runner, interrupted)
    assert code == 1
    assert output.splitlines()[-1].startswith("one: 1 passed in ")
    assert output.splitlines()[-1].endswith("pytest ended with 2, before its last test")


def test_no_test_at_all_fails_it(runner: Path) -> None:
    code, output = run(runner, "")
    assert code == 1
    assert output.splitlines()[-1].startswith("one: no tests ran in ")


@pytest.mark.parametrize("workers", [0, 2])
def test_it_tells_what_was_left_out_and_what_passed_at_a_later_try(tmp_path: Path, workers: int) -> None:
    """Both would hide behind a green line. The hooks are those of tests/conftest.py."""
    (tmp_path / "suite").mkdir()
    hooks = "pytest_deselected, pytest_runtest_logreport, pytest_sessionfinish, pytest_testnodedown"
    (tmp_path / "suite" / "conftest.py").write_text(
        f"from tests.conftest import {hooks}, pytest_unconfigure\n"
    )
    tests = """
import pathlib, pytest
def test_wobbles(tmp_path_factory):
    seen = pathlib.Path(__file__).with_name("seen")
    there = seen.exists()
    seen.touch()
    assert there
@pytest.mark.slow
def test_left_out(): assert False
"""
    code, output = run(tmp_path, tests, "--reruns=1", "-m", "not slow", "-n", str(workers))
    assert code == 0
    assert output.splitlines()[-1].startswith("one: 1 passed, 1 left out, 1 tried again in ")


def test_a_file_that_cannot_be_read_fails_it(runner: Path) -> None:
    assert run(runner, "import nowhere_at_all\n")[0] == 1


DAEMON = """
import os, sys, time
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


def test_a_process_that_a_test_leaves_behind_is_named_killed_and_fails_it(runner: Path) -> None:
    pid = runner / "pid"
    tests = f"""
import os, subprocess, sys, time
def test_a():
    subprocess.run([sys.executable, "-c", {DAEMON!r}, {str(pid)!r}], check=True)
    while not os.path.exists({str(pid)!r}):
        time.sleep(0.02)
"""
    code, output = run(runner, tests)
    assert code == 1
    assert "left behind by the tests and killed: " in output
    assert output.splitlines()[-1].endswith("1 processes left behind")
    assert gone(int(pid.read_text()))


def test_stopped_from_outside_it_lets_fixtures_finish(runner: Path) -> None:
    started, taken_down = runner / "started", runner / "taken-down"
    tests = f"""
import pathlib, pytest, time
@pytest.fixture
def server():
    pathlib.Path({str(started)!r}).touch()
    yield
    pathlib.Path({str(taken_down)!r}).touch()
def test_a(server):
    time.sleep(600)
"""
    (runner / "suite" / "test_it.py").write_text(tests)
    command = [sys.executable, "-c", RUNNER, str(runner)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert taken_down.exists()
    assert output.splitlines()[-1].endswith(", stopped by SIGTERM")
