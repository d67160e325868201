"""A folder full of modules and programs that are named like those that allaboard uses, as anybody may leave
them beside a job: none of them runs with the rights of whoever starts a run there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allaboard.backends.local.host.isolated import import_path, isolated_command
from allaboard.backends.local.host.machine import cpus
from allaboard.backends.local.host.processes import output_of
from allaboard.backends.local.host.stacks import _py_spy
from allaboard.backends.local.state.paths import HOUSEKEEPING
from allaboard.backends.local.supervisor.environment import local_command
from tests.core.cli.terminal import Terminal, a_terminal, finished, wait_for

INSTALLED = ("allaboard", "yaml", "click", "rich", "pendulum", "boto3", "sitecustomize", "usercustomize")
PROGRAMS = ("nvidia-smi", "py-spy", "python", "python3", "ps", "sysctl")
WAITS_FOR_GO = ["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"]


class Shell(Terminal):
    """The command ``allaboard``: `python -m allaboard` takes modules from the current folder by itself."""

    def command(self, *words: str) -> list[str]:
        return [str(Path(sys.executable).with_name("allaboard")), *words]

    @property
    def ran(self) -> str:
        """Which of the modules and programs ran, and as what."""
        file = self.folder.parent / "ran"
        return file.read_text() if file.exists() else ""


@pytest.fixture(params=["own", pytest.param("of another user", marks=pytest.mark.thorough)])
def shell(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shell]:
    """In a hostile folder. That of another user is only a folder of root's where the test is not root."""
    if request.param != "own" and os.geteuid() != 0:
        pytest.skip("only root can give a folder to somebody else")
    with a_terminal(tmp_path) as terminal:
        made = Shell(terminal.folder, terminal.environ, terminal.started)
        fill(made.folder, tmp_path / "ran")
        if request.param != "own":
            for path in (made.folder, *made.folder.iterdir()):
                os.chown(path, 12345, 12345)
        yield made


def fill(folder: Path, ran: Path) -> None:
    (folder / "nothing").mkdir()
    for name in (*sys.stdlib_module_names, *INSTALLED):
        text = f"import sys\nopen({str(ran)!r}, 'a').write({name!r} + str(sys.orig_argv) + chr(10))\n"
        (folder / f"{name}.py").write_text(f"{text}raise SystemExit(77)\n")
    for name in PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\necho {name} $* >> {ran}\n")
        (folder / name).chmod(0o755)


@pytest.mark.thorough
def test_no_module_of_the_current_folder_runs_as_a_helper_of_a_run(shell: Shell) -> None:
    first = shell.start("run", shell.job("", "one.json", command=WAITS_FOR_GO, resources={"cpu": cpus()}))
    wait_for(lambda: "running" in shell("list").out)
    os.utime(shell.backend.runs.parent / HOUSEKEEPING, (0, 0))  # the next supervisor starts it
    waits = shell.job(
        "", "two.json", name="waits", command=["sh", "-c", "echo trained"], resources={"cpu": cpus()}
    )
    second = shell.start("run", waits)  # it sleeps in the queue, and is the supervisor again afterwards
    wait_for(lambda: "waits (1)" in shell("list").out)
    assert shell("doctor", "waits").code == 0
    shell.write("go", "")
    assert finished(first).code == 0
    assert finished(second).code == 0
    assert shell("logs", "waits").out == "trained\n"
    assert shell("shards", "prepare", "nothing", "shards").code == 2
    assert shell.ran == ""


def test_the_members_own_python_is_started_as_its_author_has_it(shell: Shell) -> None:
    """It takes modules from the folder of its script, and with -m from the current one, as everywhere."""
    (shell.folder / "gzip.py").write_text("words = 'of the folder'\n")
    said = shell("run", shell.job("import gzip\nprint(gzip.words)\n", policy={"backoff_limit": 0}))
    assert said.code == 0 and shell("logs", "digits").out == "of the folder\n", shell.ran


@pytest.mark.thorough
@pytest.mark.slow
def test_torchrun_is_the_script_that_does_not_look_in_the_current_folder(shell: Shell) -> None:
    done = subprocess.run(
        local_command(("torchrun", "--help")),
        cwd=shell.folder,
        env=shell.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "--nproc" in done.stdout, done.stderr
    assert shell.ran == ""


def test_neither_the_current_folder_nor_that_of_the_script_is_looked_in(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an empty entry of PYTHONPATH, or a program, has put it there."""
    monkeypatch.chdir(shell.folder)
    monkeypatch.setattr(sys, "path", ["", ".", str(shell.folder), *sys.path])
    assert not {"", ".", str(shell.folder)} & {*import_path()}
    environ = {**shell.environ, "PYTHONPATH": f"{os.pathsep}{shell.folder}", "PYTHONSTARTUP": "json.py"}
    done = subprocess.run(
        isolated_command("allaboard", "--version"), env=environ, capture_output=True, text=True
    )
    assert done.stdout.startswith("allaboard "), done.stderr
    assert shell.ran == ""


@pytest.mark.parametrize("path", ["/nowhere", ".:/nowhere", ":/nowhere", "/nowhere:", ""])
def test_no_program_of_the_current_folder_is_taken_for_one_of_the_path(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(shell.folder)
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        output_of("nvidia-smi", "-L")
    assert _py_spy() is None
    assert shell.ran == ""
