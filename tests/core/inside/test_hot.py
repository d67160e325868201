"""The second copy of the state, on fast storage that may vanish."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allaboard.checkpoints import Checkpoint, scan
from allaboard.errors import BadInput
from allaboard.inside import Checkpointer
from allaboard.inside.resumed_checkpoint import ResumedCheckpoint
from allaboard.storage import open_store


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The store and the hot folder of a run that saves every 10 steps and keeps a copy of every 2."""
    cold, hot = tmp_path / "cold", tmp_path / "hot"
    for name, value in {
        "CHECKPOINTS": str(cold),
        "CHECKPOINT_EVERY": "10",
        "CHECKPOINT_HOT": str(hot),
        "CHECKPOINT_HOT_EVERY": "2",
    }.items():
        monkeypatch.setenv(f"ALLABOARD_{name}", value)
    return cold, hot


def steps(folder: Path) -> list[int]:
    return [item.step for item in scan(open_store(folder)) if isinstance(item, Checkpoint)]


def train(first: int, last: int) -> None:
    with Checkpointer() as ckpt:
        ckpt.resume()
        for step in range(first, last + 1):
            ckpt.step(step, lambda step=step: b"state %d" % step, {"loss": 1.0 / step})


def resumed() -> ResumedCheckpoint | None:
    with Checkpointer() as ckpt:
        return ckpt.resume()


def test_the_newest_alone_is_kept(places: tuple[Path, Path]) -> None:
    cold, hot = places
    train(1, 17)
    assert (steps(cold), steps(hot)) == ([10], [16])
    assert [p.name for p in hot.iterdir() if p.name.startswith("step")] == ["step-000000000016"]


def test_a_newer_copy_is_written_to_the_store_first(
    places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    cold, hot = places
    train(1, 17)
    found = resumed()
    assert found is not None and found.resumed and found.load() == b"state 16"
    assert found.uri == f"{cold}/step-000000000016", "where every rank finds it"
    assert found.checkpoint.metrics == {"loss": 1 / 16}
    assert f"step 16 is taken over from the hot copy {hot}/step-000000000016" in capsys.readouterr().err
    assert steps(cold) == [10, 16]


def test_an_older_copy_and_one_that_is_gone_change_nothing(places: tuple[Path, Path]) -> None:
    cold, hot = places
    train(1, 20)
    assert (steps(cold), steps(hot)) == ([10, 20], [18])
    found = resumed()
    assert found is not None and found.step == 20
    for path in sorted(hot.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    hot.rmdir()
    found = resumed()
    assert found is not None and found.step == 20


@pytest.mark.parametrize("damage", ["bytes", "manifest", "no manifest"])
def test_a_damaged_copy_is_as_if_it_had_never_been(places: tuple[Path, Path], damage: str) -> None:
    cold, hot = places
    train(1, 17)
    copy = hot / "step-000000000016"
    if damage == "bytes":
        part = next(path for path in copy.iterdir() if path.name != "manifest.json")
        part.write_bytes(b"x" * part.stat().st_size)
    elif damage == "manifest":
        (copy / "manifest.json").write_text("{")
    else:
        (copy / "manifest.json").unlink()
    found = resumed()
    assert found is not None and found.step == 10 and steps(cold) == [10]


def test_trouble_with_the_copy_is_told_once_and_ends_no_training(
    places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    cold, hot = places
    hot.write_text("no folder")
    train(1, 10)
    assert steps(cold) == [10]
    assert capsys.readouterr().err.count("the hot copy of the state could not be saved") == 1


def test_the_copy_costs_no_evaluation(places: tuple[Path, Path]) -> None:
    _, hot = places

    def never() -> dict[str, float]:
        raise AssertionError("an evaluation")

    with Checkpointer() as ckpt:
        ckpt.step(2, lambda: b"state", never)
    assert steps(hot) == [2]
    manifest = json.loads((hot / "step-000000000002" / "manifest.json").read_text())
    assert manifest["metrics"] == {}


def test_without_a_rhythm_nothing_is_copied(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALLABOARD_CHECKPOINT_HOT_EVERY")
    train(1, 9)
    assert not places[1].exists()
    monkeypatch.setenv("ALLABOARD_CHECKPOINT_HOT_EVERY", "2.5")
    with pytest.raises(BadInput, match="is neither steps nor time"):
        Checkpointer()
