"""Members of a gang that start each by itself agree on one checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allaboard.checkpoints.foreign import starting
from allaboard.checkpoints.foreign.adopting import Places
from allaboard.checkpoints.foreign.starting import Starter, began, choose
from allaboard.storage import open_store
from tests.core.checkpoints.foreign.test_handing import BEGAN, trainer

MASTER, WORKER = Starter("master-0", 1, True), Starter("worker-0", 1, False)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def at_once() -> bool:
    return False


def never() -> bool:
    raise AssertionError("nobody need wait")


def start(
    out: Path, me: Starter, wait: Callable[[], bool] = never, start_from: str | None = None
) -> str | None:
    """The name of the checkpoint with which a member starts."""
    places = Places(open_store(out / "digits-1f0c9a77"), job=True, since=BEGAN)
    handed = choose(places, me, start_from, wait)
    return None if handed.files is None else str(Path(handed.files).relative_to(out))


def test_all_start_with_the_one_that_the_leader_chose(out: Path) -> None:
    trainer(out, 4)
    assert start(out, MASTER) == "checkpoint-4"
    trainer(out, 6)  # after the leader had looked
    assert start(out, WORKER) == start(out, Starter("worker-1", 1, False)) == "checkpoint-4"


def test_who_starts_again_gets_the_newest(out: Path) -> None:
    assert start(out, MASTER) is None and start(out, WORKER) is None
    trainer(out, 4)
    assert start(out, MASTER) == "checkpoint-4" and start(out, WORKER) == "checkpoint-4"


def test_who_is_sooner_than_the_leader_waits_for_it(out: Path) -> None:
    assert start(out, MASTER) is None and start(out, WORKER) is None
    trainer(out, 4)
    trainer(out, 6, leave="trainer_state.json")
    looks: list[str | None] = []

    def wait() -> bool:
        assert len(looks) < 2
        looks.append(start(out, MASTER) if looks else None)
        return True

    assert start(out, WORKER, wait) == "checkpoint-4" and looks == [None, "checkpoint-4"]
    assert (out / "checkpoint-6.torn").exists()


def test_the_leader_takes_what_was_chosen_without_it(out: Path) -> None:
    """A worker was started again while the master still wrote a checkpoint, after which it failed as well."""
    assert start(out, MASTER) is None and start(out, WORKER) is None
    trainer(out, 4)
    torn = trainer(out, 6, leave="trainer_state.json")
    assert start(out, WORKER, at_once) == "checkpoint-4"
    assert torn.exists(), "who is not the leader moves nothing: somebody may write it"
    trainer(out, 6)
    assert start(out, MASTER) == "checkpoint-4"


def test_the_leader_goes_on_from_where_its_gang_has_trained_to(out: Path) -> None:
    """A worker was started again alone, hours before the master."""
    assert start(out, MASTER) is None and start(out, WORKER) is None
    trainer(out, 4)
    assert start(out, WORKER, at_once) == "checkpoint-4"
    for step in (6, 8):
        trainer(out, step)
    assert start(out, MASTER) == "checkpoint-8"
    assert start(out, WORKER) == "checkpoint-8"


@pytest.mark.parametrize("kept", [4, 6])
def test_a_choice_that_its_library_has_removed_is_none(out: Path, kept: int) -> None:
    assert start(out, MASTER) is None and start(out, WORKER) is None
    trainer(out, 4)
    trainer(out, 6)
    assert start(out, WORKER, at_once) == "checkpoint-6"
    if kept == 4:
        (out / "checkpoint-6").rename(out.parent / "elsewhere")
    else:
        (out / "checkpoint-4").rename(out.parent / "elsewhere")
    assert start(out, MASTER) == f"checkpoint-{kept}"


def test_another_attempt_chooses_anew(out: Path) -> None:
    assert start(out, MASTER) is None
    trainer(out, 4)
    assert start(out, Starter("worker-0", 2, False), at_once) == "checkpoint-4"
    assert start(out, Starter("master-0", 2, True)) == "checkpoint-4"


def test_a_choice_that_another_makes_meanwhile_is_taken(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(out, 4)
    create = starting._create

    def meanwhile(*arguments: Any) -> starting.Choice | None:
        monkeypatch.setattr(starting, "_create", create)
        assert start(out, WORKER, at_once) == "checkpoint-4"
        return create(*arguments)

    monkeypatch.setattr(starting, "_create", meanwhile)
    assert start(out, MASTER) == "checkpoint-4"
    assert len([*(out / "digits-1f0c9a77" / "starts").glob("*.json")]) == 1


def test_of_many_that_choose_at_once_one_wins(out: Path) -> None:
    trainer(out, 4)
    barrier = threading.Barrier(8)
    chosen: list[str | None] = []

    def one(number: int) -> None:
        barrier.wait()
        chosen.append(start(out, Starter(f"worker-{number}", 1, number == 0), at_once))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert chosen == ["checkpoint-4"] * 8
    assert [path.name for path in (out / "digits-1f0c9a77" / "starts").glob("*.json")] == [
        "000000000001.json"
    ]


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b'{"attempt": 1, "place": "/etc/passwd"}', b'{"attempt": 1, "place": "../../../etc"}',
     b'{"attempt": "1", "place": null}', b'{"attempt": 1}', b"\xff", b"[" * 100_000],
)  # fmt: skip
def test_what_anybody_wrote_there_is_no_choice(out: Path, text: bytes) -> None:
    trainer(out, 4)
    starts = out / "digits-1f0c9a77" / "starts"
    starts.mkdir(parents=True)
    (starts / "000000000007.json").write_bytes(text)
    (starts / "worker-0").write_bytes(b"9" * 100)
    assert start(out, WORKER, at_once) == "checkpoint-4"
    assert start(out, MASTER) == "checkpoint-4"


def test_old_choices_go(out: Path) -> None:
    for _ in range(9):
        start(out, MASTER)
    assert len([*(out / "digits-1f0c9a77" / "starts").glob("*.json")]) == 3


def test_without_its_own_it_starts_from_what_its_job_says(out: Path, tmp_path: Path) -> None:
    other = trainer(tmp_path / "other", 9)
    assert (
        choose(
            Places(open_store(out / "digits-1f0c9a77"), job=True, since=BEGAN), MASTER, str(other), never
        ).files
        is None
    ), "nobody has vouched for that"
    places = Places(open_store(out / "digits-1f0c9a77"), job=True, since=BEGAN)
    from allaboard.checkpoints.foreign.adopting import adopt_at

    adopt_at(str(other))
    assert choose(places, WORKER, str(other), never).files == str(other)


def test_when_a_run_began_is_told_once(out: Path) -> None:
    own = open_store(out / "digits-1f0c9a77")
    first = began(own)
    assert began(own) == first
    assert [entry.key for entry in own.entries()] == ["starts/began"]
