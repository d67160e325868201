"""The digits example: real processes train on real shards, are killed, and go on."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from allaboard.checkpoints import list_checkpoints
from allaboard.follow.loop import Outcome
from allaboard.job.loader import load
from allaboard.job.training_job import TrainingJob
from allaboard.running import evaluation_job, run
from allaboard.runs.observation import Observation, State
from allaboard.shards import load_index, prepare, verify
from allaboard.storage import open_store

# Not imported, which takes seconds in each worker of the tests: the scripts do, in processes of their own.
pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torch", "sklearn"))), reason="needs torch and scikit-learn"
)

DIGITS = Path(__file__).parents[3] / "dags_examples" / "digits"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of our own: nothing is shared with other runs here."""
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ALLABOARD_POOL", str(tmp_path / "pool"))
    for name in ("ALLABOARD_STORE", "ALLABOARD_MOUNTS", "ALLABOARD_FIT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture(scope="module")
def parts() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("digits_prepare", DIGITS / "prepare.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("digits_prepare", None)


def test_every_digit_belongs_to_exactly_one_part_the_same_every_time(parts: ModuleType) -> None:
    split = [
        [sample["__key__"] for sample in part()] for part in (parts.samples, parts.validation, parts.held_out)
    ]
    assert [len(part) for part in split] == [1267, 174, 356]
    assert sorted(key for part in split for key in part) == [f"{n:04d}" for n in range(1797)]
    assert [sample["__key__"] for sample in parts.held_out()] == split[2]


def test_every_part_has_a_fair_share_of_each_digit(parts: ModuleType) -> None:
    for part, least in ((parts.samples, 100), (parts.validation, 7), (parts.held_out, 25)):
        labels = [sample["cls"] for sample in part()]
        assert all(labels.count(digit) >= least for digit in range(10))


def test_a_picture_is_a_grey_map_that_others_can_read(parts: ModuleType) -> None:
    sample = next(iter(parts.samples()))
    header, _, pixels = sample["pgm"].partition(b"\n")
    assert header == b"P5 8 8 16"  # kind, width, height, the value that is white
    assert len(pixels) == 64
    assert max(pixels) == 16


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_job_file_alone_makes_the_data_trains_and_reads_held_out_digits(home: Path) -> None:
    outcome = run(DIGITS / "job.yaml", poll=0.2)
    assert outcome.ok, _why(outcome)
    assert [member["exit_code"] for member in outcome.summary["members"]] == [0, 0]
    progress = outcome.summary["progress"]
    assert progress["step"] == progress["total"] == 317  # 1267 digits, 16 times, 2 members x 32
    assert not outcome.seen.flags

    store = open_store(home / "store/digits/shards")
    assert load_index(store).samples == 1267
    assert verify(store) == []

    kept = list_checkpoints(open_store(home / "store/digits/checkpoints" / outcome.run))
    assert kept[-1].step == 317
    assert set(kept[-1].metrics) == {"val_loss", "val_accuracy"}
    best = outcome.summary["checkpoints"]["best"]
    assert best == min(kept, key=lambda found: found.metrics["val_loss"]).uri

    judged = run(evaluation_job(DIGITS / "evaluate.yaml", best), poll=0.2)
    assert judged.ok, _why(judged)
    assert judged.metrics["digits"] == 356
    assert judged.metrics["accuracy"] >= 0.97


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_members_killed_in_the_middle_change_nothing_in_the_result(home: Path, parts: ModuleType) -> None:
    shards = prepare(parts.samples, home / "store/digits/mine", samples_per_shard=300)
    job = _shorter(load(DIGITS / "job.yaml")).with_(data={"shards": "store://digits/mine"})

    calm = run(job, poll=0.2)
    assert calm.ok, _why(calm)
    assert not (home / "store/digits/shards").exists()  # the job named its data, so none was made
    assert shards.samples == 1267

    killed: list[str] = []

    def kill_both_in_turn(seen: Observation) -> None:
        step = seen.progress.step or 0
        for member, after in (("worker-0", 15), ("master-0", 50)):
            if step >= after and member not in killed and seen.progress.checkpoint:
                killed.append(member)
                _kill(seen.run, member, signal.SIGKILL)

    shaken = run(job, on_seen=kill_both_in_turn, poll=0.05)
    assert shaken.ok, _why(shaken)
    assert killed == ["worker-0", "master-0"]
    assert shaken.seen.restarts >= 2
    assert shaken.summary["progress"]["step"] == 99  # 1267 digits, 5 times
    assert shaken.metrics["val_loss"] == pytest.approx(calm.metrics["val_loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_stopped_training_has_saved_and_goes_on_under_its_key(home: Path) -> None:
    from allaboard.backends.base import Handle
    from allaboard.backends.local.backend import LocalBackend

    backend = LocalBackend()
    job = _shorter(load(DIGITS / "job.yaml"))
    job = job.with_(checkpoints={**job.get("checkpoints"), "every": "1h"})  # so that only the stop saves
    asked: list[int] = []

    def stop_it(seen: Observation) -> None:
        step = seen.progress.step or 0
        if step >= 20 and not asked and seen.owner is not None and seen.uid is not None:
            asked.append(step)
            handle = Handle(seen.run, seen.attempt, seen.generation, seen.uid)
            backend.stop(handle, seen.owner, "test", "to see it go on")

    first = run(job, key="again", on_seen=stop_it, poll=0.05)
    assert first.state is State.STOPPED, _why(first)
    (saved,) = list_checkpoints(open_store(home / "store/digits/checkpoints" / first.run))
    assert asked[0] <= saved.step < 99
    assert first.summary["members"][0]["exit_code"] == 143

    second = run(job, key="again", poll=0.2)
    assert second.ok, _why(second)
    assert (second.run, second.seen.attempt) == (first.run, 2)
    assert second.seen.progress.resumed_from == saved.step
    assert second.summary["progress"]["step"] == 99


def _shorter(job: TrainingJob) -> TrainingJob:
    """The same training, five epochs of it, saved every ten steps."""
    return job.with_(
        environment={**job.get("environment"), "EPOCHS": "5"},
        checkpoints={**job.get("checkpoints"), "every": 10},
    )


def _kill(run: str, member: str, how: int) -> None:
    """The process of one member, found as anybody could: by its environment."""
    for found in Path("/proc").iterdir():
        if not found.name.isdecimal():
            continue
        try:
            environ = (found / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"ALLABOARD_RUN={run}".encode() in environ and f"ALLABOARD_MEMBER={member}".encode() in environ:
            os.kill(int(found.name), how)


def _why(outcome: Outcome) -> str:
    tails = "\n".join(f"--- {name}\n{text[-2000:]}" for name, text in outcome.seen.tails.items())
    return f"{outcome.message}\n{json.dumps(outcome.summary['diagnoses'], indent=1)}\n{tails}"
