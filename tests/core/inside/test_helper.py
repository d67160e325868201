"""The helper of members, as real processes: what it changes for the command around which it stands, and what
it does not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.kubernetes.stacks.asking import read
from allaboard.backends.kubernetes.stacks.by_file import answer_in
from allaboard.backends.local.host.stacks import _is_python
from allaboard.diagnosis.start_errors import why_not_started
from allaboard.job.helper import (
    BY_SHELL,
    FOLDER,
    START_BY_SHELL,
    as_start_error,
    start_words,
    without_helper,
)
from allaboard.text.reportline import decode
from tests.core.backends.kubernetes.test_stacks import a_member, run_script
from tests.core.inside.containers import PYENV, VERSIONS, boxed, environment, mounted, python_of, started_by

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="members on a cluster are of Linux")
URL, TOKEN = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"
POSTS = """
import json, os, sys, urllib.request
with open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]) as file:
    token = file.read().strip()
metrics = [{"name": "loss", "value": "0.25"}, {"name": "current_step", "value": "7"},
           {"name": "total_steps", "value": "20"}]
body = {"trainerStatus": {"progressPercentage": 35, "metrics": metrics}}
request = urllib.request.Request(
    os.environ["KUBEFLOW_TRAINER_SERVER_URL"], json.dumps(body).encode(), {"Authorization": "Bearer " + token}
)
print("answer", urllib.request.urlopen(request, timeout=5).status, flush=True)
print("pid", os.getpid(), "user", os.getuid(), flush=True)
"""
COUNTS = """
import os, signal, sys, time
seen = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: seen.append(number))
print("ready", os.getpid(), flush=True)
while len(seen) < 3:
    time.sleep(0.02)
time.sleep(0.3)
print(sorted(map(int, seen)), flush=True)
"""
STANDS = "import sys\ndef load():\n    print('here', flush=True)\n    sys.stdin.read()\nload()\n"


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    return python_of(request.param)


@pytest.fixture
def helper(tmp_path: Path) -> Path:
    return mounted(tmp_path)


def run(
    command: Sequence[str], environ: dict[str, str], given: str | None = None
) -> subprocess.CompletedProcess[str]:
    stdin = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, **stdin)  # type: ignore[call-overload,no-any-return]


def shown(helper: Path, name: str, **more: str) -> dict[str, str]:
    """The environment that a command sees. ``name``: of the program that starts it."""
    prints = "import os, json; print(json.dumps(dict(os.environ)))"
    done = run(started_by(helper, [name, "-c", prints]), environment(**more))
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


# Whoever the command is.


@pytest.mark.thorough(but=("3.8",))
def test_a_container_of_an_old_python_tells_progress(python: Path, tmp_path: Path) -> None:
    """Any user, a read-only root, no home, no network; the command is pid 1."""
    mounted(tmp_path)
    (tmp_path / "train.py").write_text(POSTS)
    for command in (["python3", "train.py"], ["sh", "-c", "exec python3 train.py"], ["./train"]):
        (tmp_path / "train").write_text(f"#!/usr/bin/env python3\n{POSTS}")
        (tmp_path / "train").chmod(0o755)
        done = boxed(python, tmp_path, started_by(Path("/mnt/work/helper"), command), environment(python))
        assert done.returncode == 0, done.stderr
        reports = [report for line in done.stdout.splitlines() if (report := decode(line)) is not None]
        assert [(r.kind, r.fields) for r in reports] == [("progress", {"step": 7, "total": 20, "loss": 0.25})]
        assert "answer 200" in done.stdout and "pid 1 user 54321" in done.stdout


def test_stacks_of_an_old_python_are_read(python: Path, helper: Path, tmp_path: Path) -> None:
    (tmp_path / "stands.py").write_text(STANDS)
    environ = environment(python, ALLABOARD_RUN="stacks-by-the-helper", RANK="3")
    process = subprocess.Popen(
        started_by(helper, ["sh", "-c", "python3 stands.py; exit 4"]),
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        told = read(run_script("stacks-by-the-helper"), 0, a_member())
        tells = [look for look in told.looks if look.frames]
        assert [(look.rank, look.frames[0].function) for look in tells] == [(3, "load")]
    finally:
        process.communicate("")
    assert process.returncode == 4


def test_py_spy_reads_the_script_and_not_the_endpoint(helper: Path, tmp_path: Path) -> None:
    path = environment()["PATH"]
    if shutil.which("py-spy", path=path) is None:
        pytest.skip("py-spy is not installed")
    (tmp_path / "stands.py").write_text(STANDS)
    process = subprocess.Popen(
        started_by(helper, ["python3", "-I", "stands.py"]),
        cwd=tmp_path,
        env=environment(ALLABOARD_RUN="spied-run"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        assert [
            look.frames[0].function for look in read(run_script("spied-run", path), 0, a_member()).looks
        ] == ["load"]
    finally:
        process.communicate("")


@pytest.mark.thorough(but=("3.8",))
def test_who_is_asked_by_a_file_answers_in_its_log(python: Path, helper: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    (tmp_path / "stands.py").write_text(STANDS)
    process = subprocess.Popen(
        started_by(helper, ["python3", "stands.py"]),
        cwd=tmp_path,
        env=environment(python, ALLABOARD_RUN="asked-by-a-file", ALLABOARD_ASKED=str(asked)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        asked.write_text("17")
        lines = [process.stdout.readline() for _ in range(2)]
    finally:
        process.communicate("")
    answer = answer_in(
        "".join(f"2026-11-25T01:00:00Z {line}" for line in lines).encode(), "17", 0, a_member()
    )
    assert answer is not None and [look.frames[0].function for look in answer.looks] == ["load"]


@pytest.mark.thorough
def test_torchrun(helper: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "posts.py").write_text(POSTS)
    command = ["torchrun", "--nproc-per-node=2", str(tmp_path / "posts.py")]
    done = run(started_by(helper, command), environment(OMP_NUM_THREADS="1", HOME=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("answer 200") == 2 and done.stdout.count('"kind":"progress"') == 2


@pytest.mark.parametrize("file", ["endpoint.py", "python/sitecustomize.py"])
def test_a_python_that_knows_no_anonymous_files(helper: Path, file: str) -> None:
    """As conda's, which is built for an old glibc."""
    given = "anonymous = {'endpoint.py': lambda: made['anonymous_file']('a-name', made['libc_of_process']())}"
    script = (
        "import os, sys\ndel os.memfd_create\n"
        f"made = {{'__name__': 'made', '__file__': {str(helper / file)!r}}}\n"
        f"exec(compile(open({str(helper / file)!r}).read(), 'made', 'exec'), made)\n{given}\n"
        f"anonymous.get({file!r}, lambda: None)()\n"
        "names = [f'/proc/self/fd/{fd}' for fd in os.listdir('/proc/self/fd')]\n"
        "print([os.readlink(name) for name in names if os.path.lexists(name)])\n"
    )
    done = run([sys.executable, "-c", script], environment())
    assert "/memfd:a" in done.stdout, done.stderr


def test_signals_reach_the_command_once(python: Path, helper: Path, tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    process = subprocess.Popen(
        started_by(helper, ["python3", "counts.py"]),
        cwd=tmp_path,
        env=environment(python),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"ready {process.pid}\n", "the command has the pid that was started"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        process.send_signal(number)
        time.sleep(0.1)
    out, _ = process.communicate(timeout=30)
    assert out == f"{sorted(map(int, (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)))}\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["python3", "-c", "raise SystemExit(7)"], 7),
        (["sh", "-c", "exit 9"], 9),
        (["/bin/sh", "-c", "kill -9 $$"], -9),
        (["python3", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"], -15),
        (["/bin/true"], 0),
        (["false"], 1),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_exit_codes_are_the_commands(helper: Path, command: list[str], code: int) -> None:
    done = run(started_by(helper, command), environment())
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox sh", None])
@pytest.mark.parametrize(
    ("program", "reason"),
    [("torchrn", "executable file not found in $PATH"), ("/etc/passwd", "permission denied")],
)
def test_a_program_that_is_not_there_is_told_as_the_runtime_tells_it(
    helper: Path, shell: str | None, program: str, reason: str
) -> None:
    """The first process of the container is the helper, and what it wrote is its termination message."""
    if shell is not None and shutil.which(shell.split()[0]) is None:
        pytest.skip(f"{shell} is not installed")
    words = started_by(helper, [program, "train.py"])
    path = "/nowhere" if shell is not None else environment()["PATH"]  # without a python3, the shell tells it
    first = [str(shutil.which(shell.split()[0])), *shell.split()[1:]] if shell is not None else words[:1]
    done = run([*first, *words[1:]], {"PATH": path, "ALLABOARD_RUN": "r"})
    message = done.stderr.replace(str(helper), FOLDER)
    end = as_start_error({"exitCode": done.returncode, "reason": "Error", "message": message})
    assert (end["reason"], end["message"]) == ("StartError", f'exec: "{program}": {reason}')
    assert program in why_not_started(end["message"])[1]


def test_an_image_without_a_shell_is_told_what_to_do() -> None:
    message = 'failed to create containerd task: exec: "/bin/sh": stat /bin/sh: no such file or directory'
    _, sentence, passes = why_not_started(message)
    assert "'/bin/sh' is not in its image" in sentence and "say inject: off" in sentence and not passes


@pytest.mark.parametrize(
    "end",
    [
        {"exitCode": 127, "message": "starts\nexec: torchrn: not found"},
        {"exitCode": 1, "message": "exec: torchrn: not found"},
        {"exitCode": 127, "message": "train.sh: line 3: exec: torchrn: not found"},
        {"exitCode": 127, "message": "exec: " + "x" * 5000 + ": not found"},
        {"exitCode": 127, "message": None},
        {},
    ],
)
def test_ends_that_are_the_commands_own(end: dict[str, Any]) -> None:
    assert as_start_error(end) is end


def test_a_binary_gets_what_is_written_to_it(helper: Path) -> None:
    assert run(started_by(helper, ["cat"]), environment(), "one\ntwo\n").stdout == "one\ntwo\n"
    assert run(started_by(helper, ["python3", "-c", "print(input())"]), environment(), "x\n").stdout == "x\n"


def test_words_are_handed_on_as_they_are(helper: Path) -> None:
    words = ["$HOME", "a b", "*", "", "-c", "$(LR)", "'", '"', "é\n", "--", "$@"]
    for first in ("python3", "sh"):
        prints = "import sys, json; print(json.dumps(sys.argv[1:]))"
        command = (
            ["env", "python3", "-c", prints, *words] if first == "sh" else ["python3", "-c", prints, *words]
        )
        assert json.loads(run(started_by(helper, command), environment()).stdout) == words


# What is as it is without the helper.


@pytest.mark.parametrize("name", ["python3", sys.executable])
def test_variables_are_the_containers_and_few_more(helper: Path, name: str) -> None:
    found = shown(helper, name, **{"a.b": "kept", "PYTHONPATH": "/own:/other", "LANGUAGE": ""})
    added = {URL, TOKEN}
    assert {*found} - {"LC_CTYPE"} == {*environment(), "a.b", "PYTHONPATH", "LANGUAGE"} | added
    assert found["PYTHONPATH"] == f"{helper}/python:/own:/other"
    assert found[URL].startswith("http://127.0.0.1:")


def test_no_locale_is_left_behind(helper: Path) -> None:
    """Python sets LC_CTYPE in its environment where no locale is set."""
    done = run([*started_by(helper, ["python3"])[:-1], "env"], environment())
    assert "LC_CTYPE" not in done.stdout and "PYTHONPATH=" in done.stdout


def test_signals_are_not_ignored_that_python_ignores(helper: Path) -> None:
    plain = run(["grep", "SigIgn", "/proc/self/status"], environment())
    for command in (["python3"], ["sh"]):
        done = run([*started_by(helper, command)[:-1], "grep", "SigIgn", "/proc/self/status"], environment())
        assert done.stdout == plain.stdout


def test_no_descriptor_is_left_open(helper: Path) -> None:
    listed = [*started_by(helper, ["python3"])[:-1], "ls", "/proc/self/fd"]
    assert run(listed, environment()).stdout == run(["ls", "/proc/self/fd"], environment()).stdout


def test_a_command_that_waits_for_all_of_its_children_ends(helper: Path) -> None:
    """The endpoint is its child, and none that it waits for."""
    script = (
        "import os\nprint(os.environ.get('KUBEFLOW_TRAINER_SERVER_URL') is not None)\n"
        "if os.fork() == 0:\n    os._exit(3)\nwhile True:\n    try:\n        print(os.wait()[1] >> 8)\n"
        "    except ChildProcessError:\n        break\n"
    )
    done = run(started_by(helper, ["python3", "-c", script]), environment())
    assert done.stdout.split() == ["True", "3"]


def test_orphans_are_left_to_the_command_as_pid_1(python: Path, tmp_path: Path) -> None:
    mounted(tmp_path)
    script = (
        "import os, time\nif os.fork() == 0:\n    if os.fork() == 0:\n"
        "        time.sleep(0.3)\n        os._exit(5)\n"
        "    os._exit(0)\nprint(sorted(os.wait()[1] >> 8 for _ in range(2)), os.getpid())\n"
    )
    command = started_by(Path("/mnt/work/helper"), ["python3", "-c", script])
    with_it, without = (
        boxed(python, tmp_path, words, environment(python)) for words in (command, ["python3", "-c", script])
    )
    assert with_it.stdout == without.stdout == "[0, 5] 1\n"


def test_the_endpoint_ends_with_the_command(helper: Path) -> None:
    process = subprocess.Popen(
        started_by(
            helper,
            ["python3", "-c", f"import os, time; print(os.environ[{TOKEN!r}], flush=True); time.sleep(60)"],
        ),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    token = Path(process.stdout.readline().strip())
    endpoint = Path(*token.parts[:3])
    status = (endpoint / "status").read_text()
    assert f"PPid:\t{process.pid}\n" in status
    assert int(status.split("RssAnon:")[1].split()[0]) < 10 * 1024, "kB"
    assert os.getpgid(int(token.parts[2])) != os.getpgid(process.pid), "nothing sent to the group reaches it"
    assert not _is_python(int(token.parts[2])), "py-spy is not sent to it"
    if os.geteuid() == 0 and shutil.which("setpriv"):
        others = run(["setpriv", "--reuid", "54321", "--clear-groups", "cat", str(token)], environment())
        assert others.returncode != 0 and others.stdout == "" and len(token.read_text()) == 48
    process.kill()
    out, _ = process.communicate(timeout=10)  # at once: it holds the log open no longer
    assert out == ""


# Where it does less, or nothing.


def test_off(helper: Path) -> None:
    assert {*shown(helper, "python3", ALLABOARD_STARTUP="off")} - {"LC_CTYPE"} == {
        *environment(),
        "ALLABOARD_STARTUP",
    }


def test_what_trainer_injects_stays(helper: Path) -> None:
    own = {URL: "https://trainer.example/x", TOKEN: "/var/run/token"}
    found = shown(helper, "python3", **own)
    assert {name: found[name] for name in own} == own


def test_no_endpoint_in_the_network_of_a_node(helper: Path) -> None:
    found = shown(helper, "python3", ALLABOARD_ENDPOINT="off")
    assert URL not in found and found["PYTHONPATH"] == f"{helper}/python"


@pytest.mark.parametrize("command", [["python3", "-c", "print(1)"], ["sh", "-c", "echo 1"], ["echo", "1"]])
def test_a_mount_that_is_empty_keeps_nothing_from_starting(tmp_path: Path, command: list[str]) -> None:
    done = run(started_by(tmp_path / "helper", command), environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_an_image_without_a_python(helper: Path) -> None:
    environ = {"PATH": "/nowhere", "ALLABOARD_RUN": "r", "PYTHONPATH": "/own"}
    done = run(started_by(helper, ["/usr/bin/env"]), environ)
    assert f"PYTHONPATH={helper}/python:/own\n" in done.stdout and URL not in done.stdout


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_a_python_that_is_too_old_runs_its_script(version: str, helper: Path) -> None:
    found = sorted(PYENV.glob(f"{version}.*/bin/python"))
    if not found:
        pytest.skip(f"Python {version} is not in {PYENV}")
    done = run(
        started_by(helper, [str(found[0]), "-c", "import os; print('ALLABOARD_RUN' in os.environ)"]),
        environment(),
    )
    assert (done.returncode, done.stdout) == (0, "True\n")


def test_modules_of_the_job_are_not_the_helpers(helper: Path, tmp_path: Path) -> None:
    """A folder on PYTHONPATH, and the current one, may hold a json.py."""
    for name in ("json", "_socket", "endpoint", "select", "math", "time"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not mine')\n")
    command = started_by(helper, ["python3"])[:-1]
    done = subprocess.run(
        [*command, "env"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
    )
    assert URL in done.stdout, done.stderr


def test_a_proxy_does_not_take_what_is_for_the_loopback(helper: Path) -> None:
    proxy = {"http_proxy": "http://proxy.example:3128", "no_proxy": "internal.example"}
    found = shown(helper, "python3", **proxy)
    assert found["no_proxy"] == "127.0.0.1,internal.example"
    assert shown(helper, "python3", HTTP_PROXY="http://p:1", NO_PROXY="*")["NO_PROXY"] == "*"
    done = run(started_by(helper, ["python3", "-c", POSTS]), environment(**proxy))
    assert "answer 200" in done.stdout, done.stderr


# The words in a pod's command.


@pytest.mark.parametrize(
    ("command", "first"),
    [
        (["python", "train.py"], "python"),
        (["/opt/conda/bin/python3.8", "-u", "train.py"], "/opt/conda/bin/python3.8"),
        (["sh", "-c", "x"], "sh"),
        (["/bin/bash", "-lc", "x"], "/bin/sh"),
        (["torchrun", "train.py"], "/bin/sh"),
        (["pythonista"], "/bin/sh"),
        (["$(PYTHON)", "train.py"], "/bin/sh"),
    ],
)
def test_who_starts_it(command: list[str], first: str) -> None:
    words = start_words(command)
    assert words[0] == first
    assert "$(" not in "".join(words), "the kubelet expands nothing in them"
    both: Any = {"command": [*words, *command], "args": ["a"]}
    assert without_helper(both) == {"command": command, "args": ["a"]}


@pytest.mark.parametrize("command", [[], ["/usr/sbin/sshd", "-De"], ["tune", "run"]])
def test_whom_it_leaves_alone(command: list[str]) -> None:
    assert start_words(command) == ()


def test_what_is_no_helper_stays() -> None:
    words: Any = {
        "command": ["sh", "-c", BY_SHELL, "x", "y", "z", START_BY_SHELL, "a"],
        "volumes": [{"name": "allaboard-helper-2", "emptyDir": {}}],
        "volumeMounts": [],
    }
    assert without_helper(words) == words
