"""Bad input from the command line: a clear sentence, the exit code (core/docs/contract.md, Exit codes), no
traceback, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import click
import pytest

from allaboard.backends.local.state.paths import prepare
from allaboard.cli import failure, main
from allaboard.errors import (
    BackendUnreachable,
    BadInput,
    Corrupt,
    OwnershipConflict,
    StorageDenied,
    StorageMissing,
    StorageUnreachable,
)
from allaboard.report.commands import HERE
from allaboard.report.exits import exit_code_of
from tests.core.cli.terminal import TRAINS, Terminal

GOOD = "name: digits\ncommand: [python, job.py]\n"
BAD_JOBS = {
    "unknown field": (GOOD + "wrokers: 2\n", ["wrokers: no such field", "'workers'"]),
    "unknown field inside": (GOOD + "policy: {backof_limit: 3}\n", ["policy.backof_limit", "backoff_limit"]),
    "wrong type": (GOOD + "workers: many\n", ["workers: expected a whole number, not 'many'"]),
    "no replicas": (GOOD + "workers: 0\n", ["workers: 0 is too few; give 1 or more"]),
    "negative replicas": (GOOD + "groups: {master: 1, worker: -2}\n", ["groups.worker: -2 is too few"]),
    "two masters": (GOOD + "groups: {master: 2, worker: 1}\n", ["groups.master: 2 is too many", "exactly 1"]),
    "missing command": ("name: digits\n", ["command: is missing", "[python, train.py]"]),
    "missing name": ("command: [python, job.py]\n", ["name: is missing"]),
    "command is text": ("name: digits\ncommand: python job.py\n", ["expected a list", "[python, job.py]"]),
    "name too long": (f"name: {'x' * 41}\ncommand: [python, job.py]\n", ["41 characters; at most 40"]),
    "name illegal": ("name: My_Job\ncommand: [python, job.py]\n", ["name: 'My_Job' is not a legal name"]),
    "elastic min above max": (
        "name: digits\ncommand: [torchrun, job.py]\nelastic: {min: 4, max: 2}\n",
        ["elastic.min: 4 is above elastic.max, 2"],
    ),
    "bad duration": (GOOD + "policy: {deadline: soon}\n", ["policy.deadline", "'soon' is not a duration"]),
    "unknown restart word": (GOOD + "policy: {restart: on-failure}\n", ["policy.restart", "'on_failure'"]),
    "YAML that is not YAML": ("name: [digits\n", ["job.yaml is not YAML", "line 2"]),
    "empty file": ("", ["job.yaml is empty"]),
    "a list": ("- name: digits\n", ["job.yaml holds a list"]),
    "a field twice": (GOOD + "name: other\n", ["'name' appears twice"]),
    "two documents": (GOOD + "---\n" + GOOD, ["2 documents"]),
}  # fmt: skip


def nothing_was_left(ab: Terminal) -> None:
    assert ab.runs() == []
    left = [p for p in ab.backend.runs.glob("*") if any(p.iterdir())]
    assert left == [], f"files of a run that never was: {[*left[0].rglob('*')]}"


@pytest.mark.parametrize("case", BAD_JOBS)
def test_a_bad_job_is_refused_before_anything_starts(ab: Terminal, case: str) -> None:
    text, expected = BAD_JOBS[case]
    ab.write("job.py", TRAINS)
    said = ab("run", ab.write("job.yaml", text))
    assert said.code == 2 and said.out == ""
    assert all(words in said.err for words in expected), said.err
    nothing_was_left(ab)


def test_all_problems_are_said_at_once(ab: Terminal) -> None:
    job = ab.write("job.yaml", "name: My_Job\nwrokers: 2\nworkers: 0\npolicy: {restart: often}\n")
    paths = ["wrokers", "name", "workers", "policy.restart", "command"]
    said = ab("run", job, "--json")
    assert said.code == 2 and said.err == ""
    error = said.json["error"]
    assert error["code"] == "bad_input" and "5 problems" in error["message"]
    assert [p["path"] for p in error["problems"]] == paths
    assert all(set(p) == {"path", "message", "suggestion", "severity"} for p in error["problems"])
    said = ab("check", job, "--json")
    assert (
        said.code == 2
        and set(said.json) == {"problems"}
        and [p["path"] for p in said.json["problems"]] == paths
    )
    said = ab("check", job)
    assert said.code == 2 and "wrokers: no such field (did you mean 'workers'?)" in said.out
    assert f"{job} has 5 problems" in said.out


def test_a_warning_is_no_error(ab: Terminal) -> None:
    job = ab.write("job.yaml", "name: digits\ncommand: [python, job.py]\nworkers: 2\nelastic: {min: 1}\n")
    said = ab("check", job)
    assert said.code == 0 and "warning: command: an elastic job is led by torchrun" in said.out
    assert "is good, with 1 warning" in said.out
    assert [p["severity"] for p in ab("check", job, "--json").json["problems"]] == ["warning"]


def test_the_schema_is_the_vocabulary_of_check(ab: Terminal) -> None:
    schema = ab("schema").json
    assert schema["additionalProperties"] is False and schema["required"] == ["name"]
    assert {"workers", "groups", "elastic", "policy", "checkpoints", "fit"} <= set(schema["properties"])
    assert ab("schema", "--json").json == schema


HERE_ONLY = {
    "no such program": ({"command": ["trainer", "--fast"]}, ["command[0]: 'trainer' is not found"]),
    "no such script": ({"command": ["python", "trian.py"]}, ["command[1]: 'trian.py' is not in"]),
    "not executable": ({"command": ["./job.py"]}, ["command[0]", "not executable"]),
    "no such data": ({"data": {"shards": "nowhere"}}, ["data.shards", "nowhere", "shards prepare"]),
    "checkpoints below a file": ({"checkpoints": {"uri": "job.py/inside"}}, ["checkpoints.uri", "job.py"]),
    "unmapped volume": ({"storage": [{"mount": "/data", "pvc": "sets"}]}, ["storage[0].mount", "--mount"]),
    "too many GPUs, strictly": ({"resources": {"gpu": 512}, "fit": "strict"}, ["fit is strict", "GPU"]),
    "a secret that is not there": ({"secrets": [{"name": "aws", "env": True}]}, ["aws"]),
    "code that is not there": ({"code": ["lost.py"]}, ["code[0]", "lost.py"]),
}  # fmt: skip


@pytest.mark.thorough(but=("no such program", "no such script", "unmapped volume", "a secret"))
@pytest.mark.parametrize("case", HERE_ONLY)
def test_what_this_machine_cannot_do_is_said_before_a_start(ab: Terminal, case: str) -> None:
    fields, expected = HERE_ONLY[case]
    job = ab.job(**fields)
    for words in (["run", job], ["run", job, "--detach"]):
        said = ab(*words)
        assert said.code == 2 and all(text in said.err for text in expected), said.text
    said = ab("run", job, "--json")
    assert (
        said.code == 2
        and set(said.json) == {"error"}
        and set(said.json["error"]) == {"code", "message", "problems"}
    )
    nothing_was_left(ab)


def test_empty_data_is_refused(ab: Terminal) -> None:
    shards = ab.folder / "shards"
    shards.mkdir()
    index = {
        "version": 1,
        "samples": 0,
        "shards": [],
        "created": "2026-11-21T12:00:00.000Z",
        "fingerprint": "x",
    }
    (shards / "index.json").write_text(json.dumps(index))
    said = ab("run", ab.job(data={"shards": "shards"}))
    assert said.code == 2 and "data.shards" in said.err and "no samples" in said.err
    nothing_was_left(ab)


def test_a_dead_s3_endpoint_is_said_before_a_start(ab: Terminal) -> None:
    from tests.core.s3server import environ_for, free_port

    ab.environ.update(environ_for(f"http://127.0.0.1:{free_port()}"))
    said = ab("run", ab.job(checkpoints={"uri": "s3://bucket/runs"}))
    assert said.code == 2 and "checkpoints.uri" in said.err and "127.0.0.1" in said.err
    assert "secretsecret" not in said.text
    nothing_was_left(ab)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become somebody without rights")
def test_a_checkpoint_folder_without_write_permission_is_said_before_a_start(
    ab: Terminal, tmp_path: Path
) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path("/tmp"):
            break
        folder.chmod(0o755)
    locked = ab.folder / "locked"
    locked.mkdir(mode=0o755)
    job = ab.job(checkpoints={"uri": str(locked)})
    home = tmp_path / "nobody"
    home.mkdir()
    os.chown(home, 65534, 65534)
    # A first call, which fails likewise, imports all that the second needs: the interpreter may lie where
    # nobody may look.
    warm = ab.job(file="warm.json", checkpoints={"uri": "warm.json/inside"})
    script = f"""
import difflib, os, sys, tempfile
from allaboard.cli import main
assert main(["run", "{warm}"]) == 2
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.environ["ALLABOARD_HOME"] = "{home}"
sys.exit(main(["run", "{job}"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ab.folder,
        env={**ab.environ, "HOME": str(home), "USER": "nobody"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "checkpoints.uri" in done.stderr and str(locked) in done.stderr, (
        done.stderr
    )
    assert not [p for p in home.glob("local/*/runs/*") if any(p.iterdir())]


FILES = {
    "not there": (["run", "jbo.json"], ["jbo.json: no such file", "job.json"]),
    "a folder": (["run", "."], ["is a folder"]),
    "not text": (["run", "image.yaml"], ["is not UTF-8 text"]),
    "JSON that is not JSON": (["check", "torn.json"], ["torn.json is not JSON"]),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_read(ab: Terminal, case: str) -> None:
    words, expected = FILES[case]
    ab.job()
    ab.write("torn.json", '{"name": ')
    (ab.folder / "image.yaml").write_bytes(b"\x89PNG\xff")
    said = ab(*words)
    assert said.code == 2 and said.out == "" and all(text in said.err for text in expected), said.err


USAGE = {
    "an unknown verb": (["chek"], "did you mean 'check'?"),
    "an unknown option": (["run", "job.json", "--detatch"], "--detach"),
    "nothing to run": (["run"], "missing argument 'JOB'"),
    "no number": (["logs", "digits", "--tail", "many"], "'many' is not a valid integer"),
    "no duration": (["logs", "digits", "--since", "yesterday"], "--since: 'yesterday' is not a duration"),
    "two selections": (["logs", "digits", "worker-0", "--rank", "1"], "not both"),
    "an empty key": (["run", "job.json", "--key", ""], "--key is empty"),
    "attempts without a follower": (["run", "job.json", "--detach", "--attempts", "2"], "leave out --detach"),
    "no mount": (["run", "job.json", "--mount", "data"], "mount 'data' is not understood"),
    "nothing to promote": (["promote", "--into", "x"], "give one of CHECKPOINT, --rollback and --history"),
    "no threshold": (["promote", "c", "--into", "x", "--threshold", "good"], "'good' is not understood"),
}  # fmt: skip


@pytest.mark.parametrize("case", USAGE)
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_command_line_that_is_wrong(ab: Terminal, case: str, form: str) -> None:
    words, expected = USAGE[case]
    ab.job()
    if form == "text":
        said = ab(*words)
        assert said.code == 2 and said.out == "" and expected in said.err, said.text
    else:
        said = ab(*words, "--json")
        assert said.code == 2 and said.err == "" and expected in said.json["error"]["message"]
        assert said.json["error"]["problems"] == []
    nothing_was_left(ab)


@pytest.mark.thorough(but=("status", "logs", "stop"))
@pytest.mark.parametrize(
    "verb", ["status", "report", "follow", "logs", "events", "stop", "suspend", "resume", "delete"]
)
def test_an_unknown_run(ab: Terminal, verb: str) -> None:
    assert ab("run", ab.job()).code == 0
    said = ab(verb, "digit5")
    assert said.code == 2 and "there is no run 'digit5' here; did you mean" in said.err
    said = ab(verb, "digit5", "--json")
    assert said.code == 2 and said.json["error"]["code"] == "unknown_run"


def test_a_home_that_may_not_be_used(ab: Terminal) -> None:
    (ab.folder / "file").write_text("")
    job = ab.job()
    for words in (["run", job], ["list"], ["status", "digits"]):
        said = ab(*words, ALLABOARD_HOME=str(ab.folder / "file"))
        assert said.code in (1, 2) and "ALLABOARD_HOME" in said.err and str(ab.folder / "file") in said.err
    assert ab("run", job, ALLABOARD_HOME=str(ab.folder / "file")).code == 2


def test_a_home_of_a_newer_allaboard_is_refused(ab: Terminal) -> None:
    prepare(ab.environ["ALLABOARD_HOME"])
    marker = ab.backend.runs.parent / "format"
    ours = marker.read_text()
    marker.write_text("99\n")
    said = ab("list")
    marker.write_text(ours)
    assert said.code == 1 and "format 99" in said.err and "ALLABOARD_HOME" in said.err


def test_a_bug_is_said_to_be_one_with_the_place_of_the_details(
    ab: Terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALLABOARD_HOME", ab.environ["ALLABOARD_HOME"])

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("allaboard.cli.app.main", broken)
    assert main(["list"]) == 1
    err = capsys.readouterr().err
    assert "this is a bug in allaboard: ZeroDivisionError" in err and "Traceback" not in err
    (kept,) = Path(ab.environ["ALLABOARD_HOME"], "bugs").iterdir()
    assert str(kept) in err and "Traceback" in kept.read_text() and "in broken" in kept.read_text()
    assert main(["list", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "bug"


def a_bug(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """The next command line meets one of ours."""
    monkeypatch.setenv("ALLABOARD_HOME", str(home))

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("allaboard.cli.app.main", broken)
    assert main(["list"]) == 1


def test_the_details_of_a_bug_are_for_their_user_alone_and_follow_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    victim, shared = tmp_path / "victim", tmp_path / "tmp"
    victim.mkdir()
    shared.mkdir(mode=0o777)
    (shared / "allaboard-bugs").symlink_to(victim)
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    old = os.umask(0)
    try:
        home = tmp_path / "home"
        home.mkdir()
        (home / "bugs").symlink_to(victim)
        a_bug(monkeypatch, home)
        (home / "bugs").unlink()
        a_bug(monkeypatch, home)
    finally:
        os.umask(old)
    said = capsys.readouterr().err
    places = [Path(word.rstrip(";")) for word in said.split() if word.endswith(".txt;")]
    assert [p.parent.parent for p in places] == [shared, home] and list(victim.iterdir()) == []
    for place in places:
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to somebody else")
def test_the_details_of_a_bug_go_into_no_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "home" / "bugs"
    theirs.mkdir(parents=True)
    os.chown(theirs, 65534, 65534)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    a_bug(monkeypatch, theirs.parent)
    assert list(theirs.iterdir()) == [] and "The details are in" in capsys.readouterr().err


def test_what_a_disk_refuses_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "/full/file")
    assert failure.exit_code(error, [], HERE) == 1
    assert capsys.readouterr().err == "error: /full/file: No space left on device\n"


def test_what_each_error_means_for_the_exit_code() -> None:
    assert exit_code_of(BadInput("")) == 2
    assert exit_code_of(StorageMissing("")) == 2
    assert exit_code_of(BackendUnreachable("")) == 5
    assert exit_code_of(StorageUnreachable("")) == 5
    assert {exit_code_of(e) for e in (StorageDenied(""), Corrupt(""), OwnershipConflict(""))} == {1}
    assert failure.exit_code(click.Abort(), [], HERE) == 130


def test_a_reader_that_has_seen_enough_is_no_error(ab: Terminal) -> None:
    assert ab("run", ab.job("for n in range(20000): print('line', n)")).code == 0
    command = " ".join([sys.executable, "-m", "allaboard", "logs", "digits"])
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -n 1"],
        cwd=ab.folder,
        env=ab.environ,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "line 0\n", "")


def test_what_the_terminal_cannot_show_is_escaped(ab: Terminal) -> None:
    assert ab("run", ab.job("print('done \\u2713')")).code == 0
    said = ab("logs", "digits", PYTHONIOENCODING="latin-1")
    assert said.code == 0 and said.out == "done \\u2713\n"
    assert ab("status", "digits", PYTHONIOENCODING="latin-1").code == 0


@pytest.mark.parametrize("run", ["9" * 5_000, "\x1b[31m", "..", ".", "a\nb", "", " ", "x" * 300, "a/../b"])
def test_a_word_that_names_no_run_is_unknown(ab: Terminal, run: str) -> None:
    said = ab("status", "--", run)
    assert said.code == 2 and "bug" not in said.err and "\x1b[31m" not in said.err
    assert len(said.err) < 400


# Streams that are closed or full, and users that are not there.


@pytest.mark.thorough(but=("words1", "words3-closed"))
@pytest.mark.parametrize("where", ["/dev/full", "closed"])
@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["--help"], ["status", "nothing", "--json"]])
def test_a_stdout_that_takes_nothing_is_a_sentence_at_most(
    ab: Terminal, words: list[str], where: str
) -> None:
    line = " ".join([*ab.command(*words), ">&-" if where == "closed" else f"> {where}"])
    done = subprocess.run(line, shell=True, cwd=ab.folder, env=ab.environ, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "bug in allaboard" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr and done.returncode in (0, 1, 2), done


@pytest.mark.thorough(but=("words0", "words8", "words13"))
@pytest.mark.parametrize(
    "words",
    [["list"], ["list", "--json"], ["engines"], ["--help"], ["--version"], ["list", "--help"], ["schema"],
     ["explain", "workers"], ["status", "digits"], ["logs", "digits"], ["events", "digits", "--json"],
     ["report", "digits", "-o", "-"], ["explain"], ["follow", "digits"], ["queues"]],
)  # fmt: skip
def test_what_stdout_does_not_take_is_an_error(ab: Terminal, words: list[str]) -> None:
    assert ab("run", ab.job("print('a line')")).code == 0
    line = " ".join([*ab.command(*words), "> /dev/full"])
    done = subprocess.run(line, shell=True, cwd=ab.folder, env=ab.environ, capture_output=True, text=True)
    words_of_it = "stdout cannot be written: No space left on device; make room there, or print elsewhere"
    assert (done.returncode, done.stderr.count(words_of_it)) == (1, 1), done
    assert done.stderr.splitlines()[-1].startswith("error: "), done


def test_a_run_whose_output_cannot_be_written_is_followed_to_its_end(ab: Terminal) -> None:
    """A full disk below the log of a night's training ends neither the training nor its follower."""
    job = ab.job("open('it', 'w').write('done')")
    line = " ".join([*ab.command("run", job), "> /dev/full"])
    done = subprocess.run(line, shell=True, cwd=ab.folder, env=ab.environ, capture_output=True, text=True)
    assert done.returncode == 1 and "stdout cannot be written" in done.stderr, done
    assert (ab.folder / "it").read_text() == "done"
    assert ab("status", "digits", "--json").json["state"] == "succeeded"


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["--help"], ["schema"], ["engines"]])
def test_a_closed_pipe_is_no_error(ab: Terminal, words: list[str]) -> None:
    reading = ab.start(*words)
    assert reading.stdout is not None and reading.stderr is not None
    reading.stdout.close()
    assert reading.stderr.read() == "" and reading.wait() == 0


@pytest.mark.thorough
def test_all_streams_may_be_closed(ab: Terminal) -> None:
    """No file of a run gets the number of one of them."""
    line = " ".join([*ab.command("run", ab.job()), "<&- >&- 2>&-"])
    assert subprocess.run(line, shell=True, cwd=ab.folder, env=ab.environ).returncode == 0
    assert ab("status", "digits").code == 0


@pytest.mark.parametrize(
    "words",
    [["shards", "prepare", "~nouser", "x"], ["shards", "prepare", "a", "~nouser/x"], ["demo", "~nouser"],
     ["check", "~nouser/job.yaml"], ["checkpoints", "list", "~nouser/x"]],
)  # fmt: skip
def test_a_user_who_is_not_there_is_a_sentence(ab: Terminal, words: list[str]) -> None:
    said = ab(*words)
    assert said.code == 2 and "there is no home folder of ~nouser here" in said.err, said
