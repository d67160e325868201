"""What a machine may lack for a run, processes, /proc or files: each is a sentence, and nothing is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allaboard.backends.local.host.processes import processes, user_of
from allaboard.backends.local.pool.pool import default_path
from tests.core.cli.terminal import Said, Terminal, finished, wait_for
from tests.core.storage.mounts import AS_ROOT, mounted

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are those of Linux"),
    pytest.mark.skipif(not AS_ROOT, reason="needs root to act as another user, and to mount"),
]
USER = 100_000 + os.getpid()
"""Whom nobody else is: what has ended counts for a limit until it is reaped."""
SHORT = ["sh", "-c", "echo hi"]
LONG = ["sh", "-c", "sleep 600"]


def of_user(user: int) -> list[int]:
    return [pid for pid, process in processes().items() if not process.dead and user_of(pid) == user]


def within(ab: Terminal, user: int, limit: int, *words: str) -> Said:
    """What a command line says as a user who may have only so many processes."""
    if shutil.which("setpriv") is None or shutil.which("prlimit") is None:
        pytest.skip("needs setpriv and prlimit")
    may_read = "+dac_override,+dac_read_search"  # the interpreter, wherever that is
    begin = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
    begin += ["--inh-caps", may_read, "--ambient-caps", may_read, "prlimit", f"--nproc={limit}:{limit}"]
    return finished(
        subprocess.Popen(
            [*begin, *ab.command(*words)],
            cwd=ab.folder,
            env={**ab.environ, "ALLABOARD_HOME": str(ab.folder / "theirs")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("as_json", [False, True])
def test_no_more_processes(ab: Terminal, limit: int, as_json: bool) -> None:
    """For the supervisor, for its own session, for members."""
    job = ab.job("", command=SHORT, workers=2, policy={"attempts": 1})
    user = USER + 2 * limit + as_json
    said = within(ab, user, limit, "run", job, *(["--json"] if as_json else []))
    assert said.code in ((1, 2) if limit == 3 else (2,)) and "Traceback" not in said.text, said
    assert f"no process could be made: the process limit of this user ({limit}, ulimit -u)" in said.text
    assert "correct the job's command" not in said.text and of_user(user) == []


@pytest.fixture
def no_proc(ab: Terminal) -> Iterator[Terminal]:
    """A terminal in which /proc is not mounted."""
    probe = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /proc"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")

    class Hidden(Terminal):
        def command(self, *words: str) -> list[str]:
            script = 'mount -t tmpfs none /proc && exec "$@"'
            return ["unshare", "-m", "sh", "-c", script, "sh", *super().command(*words)]

    yield Hidden(ab.folder, ab.environ)


def test_no_proc(ab: Terminal, no_proc: Terminal) -> None:
    job = ab.job("", command=SHORT)
    for words in (["run", job], ["run", job, "--detach"], ["run", job, "--json"], ["preflight", job]):
        said = no_proc(*words)
        assert said.code == (1 if words[0] == "preflight" else 2), said
        assert "/proc shows no processes" in said.text and said.text.count("\n") == 1
    assert ab.runs() == [] and no_proc("list").code == 0 and no_proc("check", job).code == 0


def test_a_run_is_stopped_and_deleted_where_proc_is_missing(ab: Terminal, no_proc: Terminal) -> None:
    assert ab("run", ab.job("", command=LONG, workers=2), "--detach").code == 0
    wait_for(lambda: {m.phase for m in ab.seen().members} == {"running"})
    (run,) = ab.runs()
    members = ab.processes(run)
    for verb in ("list", "status", "stop", "delete"):
        assert no_proc(verb, *([] if verb == "list" else ["digits"])).code == 0
    assert members and not any(Path(f"/proc/{pid}/environ").exists() for pid in members)


@pytest.mark.parametrize("inodes", [2, 4, 6])
def test_a_pool_without_inodes(ab: Terminal, tmp_path: Path, inodes: int) -> None:
    """The run waits, and says why, until there is room, or it is stopped."""
    place = tmp_path / "small"
    place.mkdir()
    with mounted(place, "-t", "tmpfs", "-o", f"nr_inodes={inodes},mode=1777", "none"):
        ab.environ["ALLABOARD_POOL"] = str(place / "pool")
        assert default_path(ab.environ) == str(place / "pool")
        assert ab("run", ab.job("", command=SHORT), "--detach").code == 0
        wait_for(lambda: "no slots can be reserved" in str(ab.seen().waiting), 20)
        said = ab("status", "digits")
        assert said.code == 0 and "no slots can be reserved: the pool " in said.text
        assert "No space left on device" in said.text
        assert ab("stop", "digits").code == 0 and ab.seen().stopped


@pytest.mark.parametrize("inodes", [2, 5, 8, 12, 16])
def test_a_home_without_inodes(ab: Terminal, tmp_path: Path, inodes: int) -> None:
    place = tmp_path / "small"
    place.mkdir()
    with mounted(place, "-t", "tmpfs", "-o", f"nr_inodes={inodes}", "none"):
        ab.environ["ALLABOARD_HOME"] = str(place / "home")
        for words in (["run", ab.job("", command=SHORT)], ["run", "job.json", "--json"]):
            said = ab(*words)
            assert said.code == 2 and "no space is left" in said.text and "Traceback" not in said.text, said
        assert ab("list").code == 0


def test_a_run_in_a_home_without_inodes_is_stopped(ab: Terminal, tmp_path: Path) -> None:
    """Neither its record nor a request can be written: its supervisor is told by a signal."""
    place = tmp_path / "small"
    place.mkdir()
    with mounted(place, "-t", "tmpfs", "-o", "nr_inodes=200", "none"):
        ab.environ["ALLABOARD_HOME"] = str(place / "home")
        assert ab("run", ab.job("", command=LONG, workers=2), "--detach").code == 0
        wait_for(lambda: {m.phase for m in ab.seen().members} == {"running"})
        (run,) = ab.runs()
        members = ab.processes(run)
        for left in place.rglob("reserve*"):
            left.unlink()
        fill(place / "filler")
        said = ab("stop", "digits", "--now")
        assert said.code == 0 and "Traceback" not in said.text, said
        assert "cannot be saved (No space left on device); its supervisor gets a signal instead" in said.err
        wait_for(lambda: not any(Path(f"/proc/{pid}/environ").exists() for pid in members), 20)


def fill(folder: Path) -> None:
    folder.mkdir()
    for n in range(1000):
        try:
            (folder / str(n)).touch()
        except OSError:
            return
