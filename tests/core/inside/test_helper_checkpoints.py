"""Checkpoints of other libraries in the containers of members, as real processes: what a start is given, and
what is adopted while it trains and at its end.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from allaboard.backends.kubernetes.lifecycle.helper import helper_files
from allaboard.checkpoints import list_checkpoints, verify
from allaboard.inside.helper.old_python import without_possessive
from allaboard.job.helper import ARCHIVE
from allaboard.storage import open_store
from allaboard.text import redaction
from allaboard.text.reportline import decode
from tests.core.backends.kubernetes.test_stacks import a_member, run_script
from tests.core.checkpoints.foreign.test_samples import EXPECTED, SAMPLES
from tests.core.inside.containers import (
    PYENV,
    VERSIONS,
    boxed,
    environment,
    mounted,
    python_of,
    started_by,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="members on a cluster are of Linux")
RUN = "tune-1f0c9a77"
#: Saves as Hugging Face's Trainer does, with the bytes that it wrote, up to the step that it is told.
SAVES = """
import os, sys
def save(out, step, whole=True):
    into = os.path.join(out, "checkpoint-%d" % step)
    os.makedirs(into)
    for name in sorted(os.listdir("sample"), key=lambda name: name == "trainer_state.json"):
        with open(os.path.join("sample", name), "rb") as file:
            content = file.read()
        if name == "trainer_state.json":
            if not whole:
                return
            content = content.replace(b'step": 4', b'step": %d' % step)
        with open(os.path.join(into, name), "wb") as file:
            file.write(content)
"""
TRAINS = f"""{SAVES}
print("argv", sys.argv[1:], "from", os.environ.get("RESUME"), flush=True)
begin = int(sys.argv[-1].rpartition("-")[2]) if "--resume" in sys.argv else 0
save("out", begin + 2)
save("out", begin + 4, whole=False)
"""
SHUTS_DOWN = f"""{SAVES}
import signal, time
def stop(number, frame):
    save("out", 8)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
save("out", 2)
print("trains", os.getpid(), flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    return python_of(request.param)


@pytest.fixture
def helper(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLES / "hugging_face_trainer" / "checkpoint-4", tmp_path / "sample")
    (tmp_path / "out").mkdir()
    return mounted(tmp_path, checkpoints=True)


def variables(folder: Path, member: str = "master-0", **more: str) -> dict[str, str]:
    """What the pod of a member has."""
    role, _, index = member.rpartition("-")
    rank = 0 if role == "master" else int(index) + 1
    return {
        "ALLABOARD_RUN": RUN,
        "ALLABOARD_ATTEMPT": "1",
        "ALLABOARD_GENERATION": "1",
        "ALLABOARD_MEMBER": member,
        "ALLABOARD_INDEX": index,
        "ALLABOARD_GROUPS": "master:1,worker:2",
        "ALLABOARD_GRACE": "30",
        "ALLABOARD_CHECKPOINTS": f"{folder}/out/{RUN}",
        "ALLABOARD_HELP_CHECKPOINTS": "fill",
        "RANK": str(rank),
        "WORLD_SIZE": "3",
        **more,
    }


def start(
    helper: Path, command: Sequence[str], environ: dict[str, str], **options: int
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        started_by(helper, command), cwd=helper.parent, env=environ, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,  # type: ignore[call-overload]
    )  # fmt: skip


def run(helper: Path, command: Sequence[str], environ: dict[str, str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a container."""
    process = start(helper, command, environ)
    out, errors = process.communicate(timeout=100)
    return process.returncode, out, errors


def adopted(folder: Path) -> list[int]:
    return [item.step for item in list_checkpoints(open_store(folder / "out" / RUN))]


COMMAND = ["python3", "train.py", "--resume", "{checkpoint}"]


@pytest.mark.thorough(but=("3.8",))
def test_each_start_of_a_container_gets_the_newest_whole_one(python: Path, helper: Path) -> None:
    folder = helper.parent
    (folder / "train.py").write_text(TRAINS)
    environ = environment(python, **variables(folder, RESUME="{checkpoint}"))
    code, out, errors = run(helper, COMMAND, environ)
    assert code == 0, errors
    assert "argv [] from None\n" in out
    assert adopted(folder) == [2], "it was whole when the command ended"
    [report] = [report for line in out.splitlines() if (report := decode(line)) is not None]
    assert (report.kind, report.fields["step"]) == ("checkpoint", 2)
    assert report.fields["uri"] == f"{folder}/out/{RUN}/step-000000000002"
    verify(open_store(folder / "out" / RUN), 2)
    [manifest] = list_checkpoints(open_store(folder / "out" / RUN))
    assert (manifest.manifest.run, manifest.manifest.world_size) == (RUN, 3)

    code, out, errors = run(helper, COMMAND, environ)
    assert code == 0, errors
    newest = f"{folder}/out/checkpoint-2"
    assert f"argv ['--resume', '{newest}'] from {newest}\n" in out
    assert f"allaboard: goes on from {newest} (step 2)\n" in out
    assert "allaboard: " in out and "checkpoint-4 is torn (trainer_state.json is missing" in out
    assert (folder / "out" / "checkpoint-4.torn").exists() and adopted(folder) == [2, 4]


def test_a_shell_gets_it_as_a_variable(helper: Path) -> None:
    folder = helper.parent
    environ = environment(**variables(folder, RESUME="{checkpoint}"))
    shows = ["sh", "-c", 'echo "[${RESUME:+--resume "$RESUME"}]" "$1"', "sh", "ckpt={checkpoint}"]
    assert run(helper, shows, environ)[:2] == (0, "[] \n")
    (folder / "train.py").write_text(f"{SAVES}\nsave('out', 6)")
    subprocess.run([sys.executable, "train.py"], cwd=folder, check=True)
    newest = f"{folder}/out/checkpoint-6"
    assert f"[--resume {newest}] ckpt={newest}\n" in run(helper, shows, environ)[1]


@pytest.mark.thorough
def test_all_members_start_with_what_rank_0_chose(helper: Path) -> None:
    folder = helper.parent
    (folder / "train.py").write_text(f"{SAVES}\nsave('out', 6)\nsave('out', 8, whole=False)")
    for member in ("master-0", "worker-1"):
        run(helper, ["true"], environment(**variables(folder, member)))
    subprocess.run([sys.executable, "train.py"], cwd=folder, check=True)
    shows = ["echo", "{checkpoint}"]
    early = start(helper, shows, environment(**variables(folder, "worker-1")))
    time.sleep(2)
    assert early.poll() is None, "it waits for rank 0"
    code, out, errors = run(helper, shows, environment(**variables(folder)))
    assert code == 0 and f"{folder}/out/checkpoint-6\n" in out, errors
    assert early.communicate(timeout=60)[0] == f"{folder}/out/checkpoint-6\n"
    assert run(helper, shows, environment(**variables(folder, "worker-0")))[1].endswith("checkpoint-6\n")
    assert (folder / "out" / "checkpoint-8.torn").exists()


def test_sigterm_is_passed_on_and_what_it_saves_is_adopted(python: Path, helper: Path) -> None:
    folder = helper.parent
    (folder / "train.py").write_text(SHUTS_DOWN)
    process = start(helper, ["python3", "train.py"], environment(python, **variables(folder)))
    assert process.stdout is not None
    command = int(process.stdout.readline().split()[1])
    assert command != process.pid
    kept = Path(f"/proc/{process.pid}/status").read_text()
    assert int(kept.split("RssAnon:")[1].split()[0]) < 12 * 1024, "kB"
    os.kill(process.pid, signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert adopted(folder) == [2, 8] and out.count('"kind":"checkpoint"') == 2


@pytest.mark.thorough
def test_the_grace_period_ends_the_last_look(helper: Path) -> None:
    """A checkpoint of which the sums take longer than what is left is adopted by the next start."""
    folder = helper.parent
    (folder / "train.py").write_text(SHUTS_DOWN)
    slow = (
        zipfile.ZipFile(helper / ARCHIVE)
        .read("__main__.py")
        .replace(
            b"    from allaboard.checkpoints.foreign.adopting import adopt\n", b"    time.sleep(60)\n", 1
        )
    )
    helper.chmod(0o755)
    archive = io.BytesIO((helper / ARCHIVE).read_bytes())
    with zipfile.ZipFile(archive, "a") as made, pytest.warns(UserWarning, match="Duplicate"):
        made.writestr("__main__.py", slow)
    (helper / ARCHIVE).chmod(0o644)
    (helper / ARCHIVE).write_bytes(archive.getvalue())
    process = start(helper, ["python3", "train.py"], environment(**variables(folder, ALLABOARD_GRACE="5")))
    assert process.stdout is not None and process.stdout.readline().startswith("trains")
    begun = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143 and 2 < time.monotonic() - begun < 5


@pytest.mark.thorough
def test_it_is_adopted_while_the_command_runs(helper: Path) -> None:
    folder = helper.parent
    (folder / "train.py").write_text(SHUTS_DOWN)
    process = start(helper, ["python3", "train.py"], environment(**variables(folder)))
    try:
        assert process.stdout is not None and process.stdout.readline().startswith("trains")
        end = time.monotonic() + 90
        while adopted(folder) != [2] and time.monotonic() < end:
            time.sleep(0.2)
        assert adopted(folder) == [2] and process.poll() is None
    finally:
        process.terminate()
        process.communicate(timeout=100)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["python3", "-c", "raise SystemExit(7)"], 7),
        (["sh", "-c", "exit 9"], 9),
        (["/bin/sh", "-c", "kill -9 $$"], 137),
        (["python3", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"], 139),
        (["/bin/true"], 0),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_exit_codes_are_those_that_a_container_has(helper: Path, command: list[str], code: int) -> None:
    done = run(helper, command, environment(**variables(helper.parent)))
    assert done[0] == code and "Traceback" not in done[2], done[2]


def test_only_rank_0_is_kept(helper: Path) -> None:
    folder = helper.parent
    run(helper, ["true"], environment(**variables(folder)))
    process = start(helper, ["sh", "-c", "echo $$"], environment(**variables(folder, "worker-0")))
    assert process.communicate(timeout=60)[0] == f"{process.pid}\n"


def test_signals_reach_the_command_once(helper: Path) -> None:
    counts = (
        "import os, signal, time\nseen = []\n"
        "for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):\n"
        "    signal.signal(n, lambda n, frame: seen.append(int(n)))\n"
        "print('ready', flush=True)\nwhile len(seen) < 4:\n    time.sleep(0.02)\n"
        "time.sleep(0.3)\nprint(sorted(seen), flush=True)\n"
    )
    process = start(helper, ["python3", "-c", counts], environment(**variables(helper.parent)))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.1)
    assert process.communicate(timeout=60)[0] == f"{sorted(map(int, numbers))}\n"


def test_the_command_has_the_mask_and_the_actions_of_any_other(helper: Path) -> None:
    words = ["grep", "Sig[BIC]", "/proc/self/status"]
    plain = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert run(helper, words, environment(**variables(helper.parent)))[1] == plain


@pytest.mark.thorough(but=("3.8",))
def test_as_pid_1_of_any_user_on_a_read_only_root(python: Path, helper: Path) -> None:
    folder = helper.parent
    (folder / "out").chmod(0o777)
    (folder / "train.py").write_text(
        f"{TRAINS}\nprint('pid', os.getpid(), 'user', os.getuid(), flush=True)\n"
        "if os.fork() == 0:\n    if os.fork() == 0:\n        os._exit(5)\n    os._exit(0)\nos.wait()\n"
    )
    environ = environment(python, **variables(Path("/mnt/work")))
    command = started_by(Path("/mnt/work/helper"), COMMAND)
    done = boxed(python, folder, command, environ)
    assert done.returncode == 0, done.stderr
    assert "user 54321" in done.stdout and "pid 1 " not in done.stdout
    again = boxed(python, folder, command, environ)
    assert "goes on from /mnt/work/out/checkpoint-2 (step 2)" in again.stdout, again.stderr
    assert adopted(folder) == [2, 4]


@pytest.mark.thorough
def test_stacks_are_those_of_the_command(helper: Path) -> None:
    """Neither py-spy nor a signal is sent to the helper, which stands above it."""
    from allaboard.backends.kubernetes.stacks.asking import read

    path = environment()["PATH"]
    stands = "import sys\ndef load():\n    print('here', flush=True)\n    sys.stdin.read()\nload()\n"
    (helper.parent / "stands.py").write_text(stands)
    for words in (["python3", "stands.py"], ["python3", "-I", "stands.py"]):
        if "-I" in words and shutil.which("py-spy", path=path) is None:
            continue
        environ = environment(**variables(helper.parent, ALLABOARD_RUN="kept-1f0c9a77"))
        process = start(helper, words, environ, stdin=subprocess.PIPE)
        try:
            assert process.stdout is not None and process.stdout.readline() == "here\n"
            looks = read(run_script("kept-1f0c9a77", path), 0, a_member()).looks
            assert [look.frames[0].function for look in looks] == ["load"]
        finally:
            process.communicate("")


# Where it cannot be filled in, nothing starts.


@pytest.mark.parametrize("filled", ["fill", "adopt"])
def test_an_image_without_a_python(helper: Path, filled: str) -> None:
    more = variables(helper.parent, ALLABOARD_HELP_CHECKPOINTS=filled, PATH="/nowhere")
    code, out, errors = run(helper, ["/bin/echo", "{checkpoint}"], more)
    if filled == "fill":
        assert (code, out) == (
            1,
            "",
        ) and "{checkpoint} cannot be filled in: this image has no python3" in errors
    else:
        assert (code, out) == (0, "{checkpoint}\n")


@pytest.mark.parametrize("version", ["2.7", "3.6"])
def test_a_python_that_is_too_old(helper: Path, version: str) -> None:
    found = sorted(PYENV.glob(f"{version}.*/bin/python"))
    if not found:
        pytest.skip(f"Python {version} is not in {PYENV}")
    words = [str(found[0]), "-c", "print(1)", "{checkpoint}"]
    code, out, errors = run(helper, words, environment(**variables(helper.parent)))
    assert (code, out) == (1, "") and "cannot be filled in: this Python is older than 3.8" in errors
    more = variables(helper.parent, ALLABOARD_HELP_CHECKPOINTS="adopt")
    assert run(helper, words, environment(**more))[:2] == (0, "1\n")


def test_a_place_that_cannot_be_used(helper: Path) -> None:
    more = {"ALLABOARD_CHECKPOINTS": "/proc/nowhere/run-12345678"}
    code, out, errors = run(helper, ["echo", "{checkpoint}"], environment(**variables(helper.parent, **more)))
    assert (code, out) == (1, "") and "{checkpoint} cannot be filled in: /proc/nowhere" in errors
    more["ALLABOARD_HELP_CHECKPOINTS"] = "adopt"
    code, out, errors = run(helper, ["echo", "1"], environment(**variables(helper.parent, **more)))
    assert (code, out) == (0, "1\n"), errors


def test_an_archive_that_cannot_be_read(helper: Path) -> None:
    """As by a Python without zlib."""
    (helper / ARCHIVE).chmod(0o644)
    (helper / ARCHIVE).write_bytes(b"PK")
    code, out, errors = run(helper, ["echo", "{checkpoint}"], environment(**variables(helper.parent)))
    assert (code, out) == (1, "") and "cannot be filled in: the checkpoints cannot be judged: " in errors
    more = variables(helper.parent, ALLABOARD_HELP_CHECKPOINTS="adopt")
    assert run(helper, ["echo", "1"], environment(**more))[:2] == (0, "1\n")


# What is in the archive.


def test_old_pythons_judge_as_new_ones_do(python: Path, tmp_path: Path) -> None:
    helper = mounted(tmp_path, checkpoints=True)
    script = (
        f"import sys; sys.path.insert(0, {str(helper / ARCHIVE)!r})\n"
        "if sys.version_info < (3, 11):\n    import old_python; old_python.complete()\n"
        "from allaboard.checkpoints.foreign.finding import judge_place\n"
        "from allaboard.storage import open_store\n"
        "for name in sys.argv[1:]:\n"
        "    for j in judge_place(open_store(name)):\n"
        "        facts = (j.facts.step, j.facts.epoch, j.verdict)\n"
        "        print(name.rpartition('/')[2], j.unit.name, j.format, *facts)\n"
    )
    shutil.copytree(SAMPLES, tmp_path / "samples", copy_function=shutil.copyfile)
    for file in (tmp_path / "samples").rglob("*"):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    samples = [str(tmp_path / "samples" / kind) for kind in EXPECTED]
    words = [str(python / "bin" / "python3"), "-E", "-s", "-S", "-c", script, *samples]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        f"{kind} {name} {format_} {step} {epoch} whole"
        for kind, expected in EXPECTED.items()
        for name, format_, step, epoch in expected
    ], done.stderr


def test_all_modules_of_the_archive_are_there_and_small(python: Path, tmp_path: Path) -> None:
    """Any of them is imported by any Python; none is there that the others do not need."""
    helper = mounted(tmp_path, checkpoints=True)
    names = [
        name[:-3].replace("/", ".")
        for name in zipfile.ZipFile(helper / ARCHIVE).namelist()
        if name.startswith("allaboard/") and not name.endswith("__init__.py")
    ]
    script = (
        f"import sys; sys.path.insert(0, {str(helper / ARCHIVE)!r})\n"
        "if sys.version_info < (3, 11):\n    import old_python; old_python.complete()\n"
        "import importlib\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    )
    words = [str(python / "bin" / "python3"), "-E", "-s", "-S", "-c", script]
    done = subprocess.run([*words, *names], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    needed = [
        "allaboard.checkpoints.foreign.starting", "allaboard.checkpoints.foreign.changes",
        "allaboard.runs.resume_template", "allaboard.text.reportline", "allaboard.inside.context",
        "allaboard.text.printable", "allaboard.text.redaction",  # of `allaboard.errors`, once one is made
    ]  # fmt: skip
    shows = "print(sorted(n for n in sys.modules if n.startswith('allaboard.')))"
    done = subprocess.run([*words[:-1], script + shows, *needed], capture_output=True, text=True, check=True)
    assert {*names} <= {*eval(done.stdout)}
    assert len((helper / ARCHIVE).read_bytes()) < 160 * 1024


def test_the_archive_is_the_same_each_time() -> None:
    first = helper_files("exec", True)[ARCHIVE]
    helper_files.cache_clear()
    assert helper_files("exec", True)[ARCHIVE] == first
    assert ARCHIVE not in helper_files("exec")


def test_expressions_of_a_new_python_are_those_of_an_old_one() -> None:
    assert without_possessive(r"a++b*+c?+\++[+*+]{2}+x{1,3}+[^]+]+") == r"a+b*c?\++[+*+]{2}x{1,3}[^]+]+"
    assert without_possessive(rb"(?:\xff\d++,)++") == rb"(?:\xff\d+,)+"
    secret = "token=abcdefghijklmnopqrstuvwxyz0123456789 --password hunter22 https://u:p4ssw0rd@host/x"
    assert "hunter22" not in redaction.redact_text(secret)
