"""What a run trains on: the version that its generation began with, or another one from scratch."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Handle, Plan
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.state.paths import RunFolder
from allaboard.backends.local.state.records import read_record
from allaboard.errors import BadInput
from allaboard.follow.run_record import RunRecord
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from allaboard.shards import Index, prepare
from tests.core.backends.local.helpers import a_plan, ended, wait_for

ME, YOU = Owner("me"), Owner("you")
DEFERRED = Owner("me", phase="deferred", kind="orchestrated")
READS = """
import json, os, sys, time
from allaboard.inside import Checkpointer, ShardReader, context
reader = ShardReader(batch_size=1, epochs=10**6)
saves = Checkpointer(every=1)
found = saves.resume()
step, read = 0, set()
if found:
    saved = json.loads(found.load())
    step, read = found.step, set(saved["read"])
    reader.load_state_dict(saved["data"])
for batch in reader:
    step += 1
    read |= {sample["txt"].decode() for sample in batch}
    saves.step(step, lambda: json.dumps({"read": sorted(read), "data": reader.state_dict()}).encode())
    if os.path.exists("finish") or os.path.exists("fail"):
        break
    time.sleep(0.02)
sys.exit(os.path.exists("fail"))
"""


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalBackend:
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ALLABOARD_POOL", str(tmp_path / "pool"))
    return LocalBackend()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def made(folder: Path, name: str) -> Index:
    """A data set whose samples have its name in them; the newest from now on."""
    samples = [{"__key__": f"{n}", "txt": name} for n in range(6)]
    return prepare(samples, folder / "shards", samples_per_shard=2)


def reading(folder: Path, shards: str = "shards", **fields: Any) -> Plan:
    saving = {"uri": "checkpoints"}
    return a_plan(folder, READS, workers=1, data={"shards": shards}, checkpoints=saving, **fields)


def record(backend: LocalBackend, run: str) -> RunRecord:
    found = read_record(RunFolder(backend.runs / run))
    assert found is not None
    return found


def wait_saved(backend: LocalBackend, handle: Handle) -> None:
    wait_for(lambda: backend.observe(handle.run).progress.checkpoint)


def model(folder: Path, run: str) -> list[str]:
    """What the newest checkpoint of the run has read."""
    newest = max((folder / "checkpoints" / run).glob("step-*/manifest.json")).parent
    (state,) = (path for path in newest.iterdir() if path.suffix != ".json")
    return list(json.loads(state.read_bytes())["read"])


def end(backend: LocalBackend, folder: Path, run: str, how: str = "finish") -> None:
    (folder / how).touch()
    ended(backend, run)
    (folder / how).unlink()


@pytest.mark.thorough
def test_a_retry_goes_on_with_its_version_though_the_place_has_a_newer_one(
    backend: LocalBackend, folder: Path
) -> None:
    mine = made(folder, "mine")
    first = backend.launch(reading(folder), ME)
    wait_saved(backend, first)
    made(folder, "other")
    end(backend, folder, first.run, "fail")
    second = backend.launch(reading(folder), ME)
    assert (second.attempt, second.generation) == (2, 1)
    assert any("has a newer version" in note for note in second.notes)
    end(backend, folder, first.run)
    assert state_of(backend.observe(first.run)) is State.SUCCEEDED
    assert model(folder, first.run) == ["mine"]
    data = record(backend, first.run).data
    assert data is not None and data.uri == mine.version_uri(str(folder / "shards"))


def test_cleared_with_other_data_it_is_stopped_and_trains_from_scratch(
    backend: LocalBackend, folder: Path
) -> None:
    place = str(folder / "shards")
    plan = reading(folder, made(folder, "mine").version_uri(place))
    first = backend.launch(plan, ME)
    wait_saved(backend, first)
    backend.adopt(first, ME, DEFERRED)
    anew = reading(folder, made(folder, "new").version_uri(place))
    second = backend.launch(anew, YOU)
    assert (second.attempt, second.generation) == (1, 2)
    assert any("its data has changed (" in note for note in second.notes)
    history = record(backend, first.run).history
    assert [(one.state, one.generation) for one in history] == [("stopped", 1)]
    wait_for(lambda: (folder / "checkpoints" / f"{first.run}-g2").exists())
    end(backend, folder, first.run)
    assert model(folder, f"{first.run}-g2") == ["new"] and model(folder, first.run) == ["mine"]


@pytest.mark.thorough
def test_a_run_whose_worker_died_is_no_refusal_when_its_data_has_changed(
    backend: LocalBackend, folder: Path
) -> None:
    place = str(folder / "shards")
    first = backend.launch(reading(folder, made(folder, "mine").version_uri(place)), ME)
    wait_saved(backend, first)
    second = backend.launch(reading(folder, made(folder, "new").version_uri(place)), YOU)
    assert second.generation == 2 and not second.adopted
    end(backend, folder, first.run)
    assert model(folder, f"{first.run}-g2") == ["new"]


@pytest.mark.thorough
def test_the_same_data_prepared_again_elsewhere_is_adopted_and_resumed(
    backend: LocalBackend, folder: Path
) -> None:
    place = str(folder / "shards")
    first = backend.launch(reading(folder, made(folder, "mine").version_uri(place)), ME)
    wait_saved(backend, first)
    samples = [{"__key__": f"{n}", "txt": "mine"} for n in range(6)]
    again = prepare(samples, folder / "again", samples_per_shard=2).version_uri(str(folder / "again"))
    assert backend.launch(reading(folder, again), YOU).adopted
    end(backend, folder, first.run, "fail")
    second = backend.launch(reading(folder, again), YOU)
    assert (second.attempt, second.generation) == (2, 1)
    end(backend, folder, first.run)


def test_a_plan_may_name_the_version_that_its_job_does_not(backend: LocalBackend, folder: Path) -> None:
    mine = made(folder, "mine").version_uri(str(folder / "shards"))
    made(folder, "other")
    plan = replace(reading(folder), shards=mine)
    first = backend.launch(plan, ME)
    assert record(backend, first.run).spec["data"] == {"shards": "shards"}
    end(backend, folder, first.run)
    assert model(folder, first.run) == ["mine"]


def test_a_run_holds_its_version(backend: LocalBackend, folder: Path) -> None:
    mine = made(folder, "mine")
    first = backend.launch(reading(folder), ME)
    assert (folder / "shards" / mine.folder / "holds" / f"{first.run}.json").exists()
    end(backend, folder, first.run)


@pytest.mark.thorough
def test_a_version_that_was_removed_is_a_new_generation_of_the_newest(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = made(folder, "mine")
    first = backend.launch(reading(folder), ME)
    wait_saved(backend, first)
    end(backend, folder, first.run, "fail")
    for path in (folder / "shards" / mine.folder).rglob("*"):
        os.utime(path, (0, 0))
    made(folder, "other")
    for path in (folder / "shards" / mine.folder).rglob("*"):
        os.utime(path, (0, 0))
    made(folder, "other")
    assert not (folder / "shards" / mine.folder).exists()
    second = backend.launch(reading(folder), ME)
    assert second.generation == 2 and any("its data has changed" in note for note in second.notes)
    end(backend, folder, first.run)
    assert model(folder, f"{first.run}-g2") == ["other"]


def test_a_version_that_is_not_there_starts_nothing(backend: LocalBackend, folder: Path) -> None:
    made(folder, "mine")
    with pytest.raises(BadInput, match="nobody used it for long and it was removed"):
        backend.launch(reading(folder, "shards/version-00000000000000aa"), ME)
    assert not (folder / "shards" / "version-00000000000000aa").exists()
