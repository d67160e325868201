"""A run's folder has one writer: real processes that save into one folder, suspended and woken again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from allaboard.checkpoints import collect, latest, scan
from allaboard.checkpoints.writers import newest_writer
from allaboard.errors import TakenOver
from allaboard.inside import Checkpointer, writer
from allaboard.inside.shutdown import shutdown
from allaboard.storage import open_store
from allaboard.storage.base import Store
from allaboard.text.reportline import decode
from tests.core.checkpoints.building import a_checkpoint, keys, steps
from tests.core.inside import lineage
from tests.core.s3server import S3Server, s3_server

WAIT = 120


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [n for n in os.environ if n.startswith(("ALLABOARD_", "AWS_"))]:
        monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield
    shutdown.uninstall()


@pytest.fixture(params=["disk", "bucket"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A run's own folder."""
    if request.param == "disk":
        return open_store(tmp_path / "ckpt" / "digits-1f")
    moto: S3Server = request.getfixturevalue("moto")
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{moto.make_bucket()}/runs/digits-1f")


class Process:
    """A training of `lineage` as a process of its own."""

    def __init__(self, run: Store, name: str, steps: int, stop: str = "", **environ: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-u", lineage.__file__, name, str(steps), *([stop] if stop else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parents[3]),
                "ALLABOARD_CHECKPOINTS": run.uri,
                **environ,
            },
        )
        self.out: list[str] = []

    def wait_for(self, text: str) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.out.append(line)
            if line.startswith(text):
                return
        raise AssertionError(f"{text!r} never came: {self.out} {self.popen.communicate()[1]}")

    def wait_stopped(self) -> None:
        end = time.monotonic() + WAIT
        status = Path(f"/proc/{self.popen.pid}/status")
        while "\nState:\tT" not in status.read_text():
            assert time.monotonic() < end, "it does not stop itself"
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.popen.pid, number)

    def end(self) -> tuple[int, str]:
        out, err = self.popen.communicate(timeout=WAIT)
        self.out += out.splitlines()
        return self.popen.returncode, err


@contextmanager
def process(*args: Any, **environ: str) -> Iterator[Process]:
    made = Process(*args, **environ)
    try:
        yield made
    finally:
        made.popen.kill()
        made.popen.communicate()


TAKEN_OVER = re.compile(
    r"allaboard\.errors\.TakenOver: checkpoints \S+: process (\d+) on \S+ has taken over this folder at "
    r"\d{4}-\S+Z and (goes on after step \d+|began from scratch); process (\d+) on \S+ saves no more, "
    r".{1,200}"
)


def assert_taken_over(ended: tuple[int, str], old: Process, new: Process) -> None:
    code, err = ended
    assert code == 1, err
    found = TAKEN_OVER.fullmatch(err.strip().splitlines()[-1])
    assert found is not None, err
    assert (int(found[1]), int(found[3])) == (new.popen.pid, old.popen.pid)


@pytest.mark.thorough(but=("bucket-parts", "disk-parts", "disk-manifest"))
@pytest.mark.parametrize("stop", ["parts", "manifest"])
def test_who_was_taken_over_in_the_middle_of_a_save_saves_no_more(run: Store, stop: str) -> None:
    """And the one checkpoint that may still appear, when it wakes after its last look, counts for nobody."""
    with process(run, "old", 100, stop) as old:
        old.wait_for("done 3")
        old.wait_stopped()
        with process(run, "new", 6) as new:
            new.wait_for("waits")
            old.send(signal.SIGCONT)
            assert_taken_over(old.end(), old, new)
            [flag] = [r.fields for line in old.out if (r := decode(line)) is not None and r.kind == "flag"]
            assert flag["code"] == "checkpoint_taken_over"
        found = lineage.histories(run)
        assert not lineage.mixed(found)
        assert found[6] == ["old"] * 3 + ["new"] * 3 and found[4] == ["old"] * 3 + ["new"]
        with process(run, "third", 7) as third:
            third.wait_for("waits")
        assert lineage.histories(run)[7] == ["old"] * 3 + ["new"] * 3 + ["third"]


@pytest.mark.thorough(but=("disk",))
def test_one_that_resumes_and_does_no_step_takes_nothing_over(run: Store) -> None:
    with process(run, "old", 100, "manifest") as old:
        old.wait_for("done 3")
        old.wait_stopped()
        with process(run, "new", 3) as new:  # it resumes, and has nothing left to do
            new.wait_for("waits")
            old.send(signal.SIGCONT)
            old.wait_for("done 5")  # nobody else has begun to write
        old.send(signal.SIGKILL)
    assert max(lineage.histories(run)) >= 5


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("times", "seed"), [(5, 33)])
def test_at_random_moments_nothing_is_mixed_and_nothing_is_resumed_wrongly(
    run: Store, times: int, seed: int
) -> None:
    rounds = times * (8 if run.local_path() is None else 30)
    done = subprocess.run(
        [sys.executable, lineage.__file__, "rounds", str(rounds), str(seed)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "ALLABOARD_CHECKPOINTS": run.uri,
        },
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    print(seen)
    assert seen["problems"] == [] and seen["rounds"] == seen["ended"] == rounds


@pytest.mark.thorough(but=("disk",))
def test_a_member_of_a_taken_over_attempt_does_not_take_the_folder_back(run: Store) -> None:
    """Its restarts would take over from one another for ever."""
    with process(run, "old", 3, ALLABOARD_MARK="one") as old:
        old.wait_for("waits")
    with process(run, "old", 5, ALLABOARD_MARK="one") as again:  # its own attempt starts it again
        again.wait_for("waits")
    with process(run, "new", 6, ALLABOARD_MARK="two") as new:
        new.wait_for("waits")
        with process(run, "old", 9, ALLABOARD_MARK="one") as third:
            assert_taken_over(third.end(), third, new)
    assert lineage.histories(run)[6] == ["old"] * 5 + ["new"]


# --- who is no writer


@pytest.mark.thorough(but=("disk",))
def test_a_script_that_only_reads_takes_over_from_nobody(run: Store, tmp_path: Path) -> None:
    with process(run, "trains", 4, "parts") as trains:
        trains.wait_stopped()
        found = Checkpointer(run.uri).resume()
        assert found is not None and found.step == 3
        collect(run.uri, tmp_path / "elsewhere")
        trains.send(signal.SIGCONT)
        trains.wait_for("waits")
    assert keys(run, "writers") == ["writers/000000000001.json"]


def test_two_checkpointers_of_a_process_are_one_writer(run: Store) -> None:
    newest, best = Checkpointer(run.uri, every=1), Checkpointer(run.uri, best="loss:min")
    for step in (1, 2, 3):
        newest.step(step, lambda: b"x")
        best.save(step, b"y", {"loss": 1.0})
    assert steps(run) == [1, 2, 3] and keys(run, "writers") == ["writers/000000000001.json"]


def test_a_folder_of_an_older_release_goes_on(run: Store) -> None:
    a_checkpoint(run, 10)
    ckpt = Checkpointer(run.uri, every=1)
    found = ckpt.resume()
    assert found is not None and found.step == 10
    ckpt.step(11, lambda: b"x")
    a_checkpoint(run, 12)  # an older release again, which knows no writers
    assert steps(run) == [10, 11, 12]


def test_a_script_that_saves_without_having_resumed_hides_nothing(run: Store, monkeypatch: Any) -> None:
    Checkpointer(run.uri).save(100, b"x")
    monkeypatch.setattr(writer, "_of_folders", {})  # as another process
    Checkpointer(run.uri).save(50, b"x")
    assert steps(run) == [50, 100]


def test_a_rank_that_becomes_rank_0_goes_on_with_its_gangs_history(
    run: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elastic: rank 0 is lost, and another process, which was there all the time, is rank 0 now."""
    Checkpointer(run.uri, every=1).step(2, lambda: b"of the first")
    monkeypatch.setattr(writer, "_of_folders", {})  # as another process
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    other = Checkpointer(run.uri, every=1)
    other.step(1, lambda: b"never called")
    other.step(2, lambda: b"never called")
    monkeypatch.setenv("RANK", "0")
    other.step(3, lambda: b"of the other")
    assert steps(run) == [2, 3]
    present = newest_writer(run)
    assert present is not None and (present.number, present.own.after) == (2, 2)


def test_a_hot_copy_of_a_history_that_was_left_is_not_resumed_from(
    run: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node comes back after another attempt has trained on without it."""

    def another_process(hot: Path | None) -> Checkpointer:
        monkeypatch.setattr(writer, "_of_folders", {})
        if hot is None:
            monkeypatch.delenv("ALLABOARD_CHECKPOINT_HOT", raising=False)
        else:
            monkeypatch.setenv("ALLABOARD_CHECKPOINT_HOT", str(hot))
            monkeypatch.setenv("ALLABOARD_CHECKPOINT_HOT_EVERY", "1")
        return Checkpointer(run.uri, every=10)

    first = another_process(tmp_path / "hot")
    for step in range(1, 15):
        first.step(step, lambda: b"first")
    second = another_process(None)
    assert (found := second.resume()) is not None and found.step == 10
    second.step(11, lambda: b"second")
    third = another_process(tmp_path / "hot")
    assert (found := third.resume()) is not None and (found.step, found.load()) == (10, b"first")


# --- places


@pytest.mark.thorough
def test_a_server_without_conditional_writes_is_told_once_and_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with s3_server("rclone") as rclone:
        for name, value in rclone.environ.items():
            monkeypatch.setenv(name, value)
        run = open_store(f"s3://{rclone.make_bucket()}/digits-1f")
        first = Checkpointer(run.uri, every=1)
        for step in (1, 2):
            first.step(step, lambda: b"x")
        out = capfd.readouterr()
        assert out.err.count("two processes could write checkpoints here at the same time") == 1
        monkeypatch.setattr(writer, "_of_folders", {})
        second = Checkpointer(run.uri, every=1)
        second.resume()
        second.step(3, lambda: b"x")
        with pytest.raises(TakenOver, match="goes on after step 2"):
            first.step(3, lambda: b"y")
        assert (found := latest(run)) is not None and found.manifest.writer == 2


def test_a_save_asks_for_one_object_more_at_each_look(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a writer costs in a bucket: two looks of one HEAD at each save, and no listing."""
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    run = open_store(f"s3://{moto.make_bucket()}/digits-1f")
    ckpt = Checkpointer(run.uri)
    ckpt.save(1, b"x")
    asked: list[str] = []
    looked_at = type(run).stat
    monkeypatch.setattr(type(run), "stat", lambda self, key: asked.append(key) or looked_at(self, key))
    ckpt.save(2, b"x")
    assert asked == ["writers/000000000002.json"] * 2


@pytest.mark.thorough(but=("disk",))
def test_the_list_of_checkpoints_shows_one_history(
    run: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from allaboard.cli import main

    with process(run, "old", 100, "manifest") as old:
        old.wait_stopped()
        with process(run, "new", 3) as new:
            new.wait_for("waits")
        ckpt = Checkpointer(run.uri)
        ckpt.resume()
        ckpt.step(4, lambda: b"x")  # not saved: the step that `old` saves now is not there
        old.send(signal.SIGCONT)
        old.end()
    assert [item.step for item in scan(run)] == [1, 2, 3]
    capfd.readouterr()
    assert main(["checkpoints", "list", run.uri, "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert [item["step"] for item in shown["checkpoints"]] == [1, 2, 3]
