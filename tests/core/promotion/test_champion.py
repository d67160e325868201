"""One champion at a time, a history that only grows, and races that lose politely."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allaboard.errors import BadInput, StorageUnreachable, StorageUnsupported
from allaboard.promotion.champion import Decision, champion, history, promote, rollback
from allaboard.promotion.gate import Gate
from allaboard.storage import open_store
from allaboard.storage.base import Store
from tests.core.checkpoints.building import NOW, a_checkpoint, corrupt, cut, keys, without_manifest
from tests.core.s3server import Request, S3Server, between, s3_server

PROMOTING = Path(__file__).with_name("promoting.py")
BETTER = Gate("accuracy", "max")


def a_candidate(store: Store, step: int, accuracy: float = 0.9, run: str = "digits-1f") -> str:
    """The uri of a collected checkpoint."""
    return a_checkpoint(store.below(f"models/{run}"), step, {"accuracy": accuracy}, run=run).uri


def promoted(store: Store, step: int, accuracy: float, gate: Gate | None = BETTER, **more: Any) -> Decision:
    return promote(store, a_candidate(store, step, accuracy), gate=gate, now=NOW + step, **more)


def test_the_first_one_is_the_champion(store: Store) -> None:
    assert champion(store) is None
    done = promoted(store, 10, 0.9, by="ann@lab", reason="nightly")
    assert done.promoted is True
    assert keys(store, "promoted") == ["promoted/000000000001.json"]
    assert champion(store) == done.promotion == done.champion
    assert done.verdict.reason == "accuracy 0.9: no champion to beat"


def test_the_record_says_everything(store: Store) -> None:
    promoted(store, 10, 0.9)
    promoted(store, 20, 0.95, by="ann@lab", reason="nightly")
    body = json.loads(store.read("promoted/000000000002.json"))
    assert body == {
        "version": 1,
        "number": 2,
        "checkpoint": f"{store.uri}/models/digits-1f/step-000000000020",
        "step": 20,
        "metrics": {"accuracy": 0.95},
        "nonfinite": [],
        "verdict": body["verdict"],
        "run": "digits-1f",
        "by": "ann@lab",
        "at": "2027-01-15T08:00:20.000Z",
        "reason": "nightly",
        "previous": 1,
        "restores": None,
    }
    assert body["verdict"]["passed"] is True
    assert body["verdict"]["checks"][0]["champion"] == 0.9


def test_only_a_better_one_is_promoted(store: Store) -> None:
    promoted(store, 10, 0.95)
    done = promoted(store, 20, 0.94)
    assert (done.promoted, done.promotion) == (False, None)
    assert "accuracy 0.94 is not better than the champion's 0.95" in done.verdict.reason
    assert done.champion is not None and done.champion.number == 1
    assert keys(store, "promoted") == ["promoted/000000000001.json"]
    assert promoted(store, 30, 0.951).promoted is True


def test_metrics_of_an_evaluation_go_before_those_of_the_manifest(store: Store) -> None:
    done = promote(store, a_candidate(store, 10, 0.5), {"accuracy": 0.97, "loss": math.nan}, BETTER, now=NOW)
    assert done.promotion is not None
    assert done.promotion.metrics == {"accuracy": 0.97, "loss": None}
    assert done.promotion.nonfinite == ("loss",)


def test_a_champion_whose_metric_was_nan_is_beaten(store: Store) -> None:
    promote(store, a_candidate(store, 10), {"accuracy": math.nan}, None, now=NOW)
    assert promoted(store, 20, 0.1).promoted is True


def test_a_nan_candidate_is_not_promoted(store: Store) -> None:
    done = promote(store, a_candidate(store, 10), {"accuracy": math.nan}, BETTER, now=NOW)
    assert (done.promoted, done.verdict.reason) == (False, "accuracy is not a finite number")


def test_without_a_gate_everything_is_promoted(store: Store) -> None:
    promoted(store, 10, 0.9)
    assert promoted(store, 20, 0.1, gate=None).promoted is True


def test_a_promoter_that_comes_again_finds_its_own_record(store: Store) -> None:
    """It was killed after it had won and before it could say so."""
    first = promoted(store, 10, 0.9)
    again = promote(store, f"{store.uri}/models/digits-1f/step-000000000010", gate=BETTER, now=NOW + 99)
    assert again.promoted is True
    assert again.promotion == first.promotion
    assert again.verdict.reason == "it is the champion already (promotion 1)"
    assert len(keys(store, "promoted")) == 1


def test_new_metrics_of_the_champion_are_a_new_record(store: Store) -> None:
    uri = a_candidate(store, 10)
    promote(store, uri, {"accuracy": 0.9}, now=NOW)
    done = promote(store, uri, {"accuracy": 0.9, "f1": 0.8}, now=NOW)
    assert done.promotion is not None and done.promotion.number == 2


@pytest.mark.parametrize("damage", ["absent", "no manifest", "cut"])
def test_only_a_complete_checkpoint_is_promoted(store: Store, damage: str) -> None:
    uri = a_candidate(store, 10)
    models = store.below("models/digits-1f")
    if damage == "absent":
        uri = uri.replace("000010", "000011")
    elif damage == "cut":
        cut(models, 10)
    else:
        without_manifest(models, 10)
    with pytest.raises(BadInput, match=r"checkpoint is there|checkpoint there is torn"):
        promote(store, uri, now=NOW)
    assert keys(store, "promoted") == []


# --- history and rollback


def test_history_is_newest_first(store: Store) -> None:
    for step in (10, 20, 30):
        promoted(store, step, step / 100)
    seen = history(store)
    assert [(found.number, found.step, found.previous) for found in seen.promotions] == [
        *((3, 30, 2), (2, 20, 1), (1, 10, None))
    ]
    assert seen.champion == champion(store)
    assert seen.to_dict()["champion"]["number"] == 3
    assert history(store.below("empty")).to_dict() == {"champion": None, "promotions": [], "problems": []}


def test_rollback_promotes_an_old_one_again(store: Store) -> None:
    for step in (10, 20, 30):
        promoted(store, step, step / 100)
    done = rollback(store, now=NOW + 99, by="ann@lab")
    assert done.promotion is not None
    assert (done.promotion.number, done.promotion.step, done.promotion.restores) == (4, 20, 2)
    assert (done.promotion.previous, done.promotion.reason) == (3, "rollback to promotion 2")
    assert done.promotion.metrics == {"accuracy": 0.2}
    assert champion(store) == done.promotion
    assert len(history(store).promotions) == 4


def test_rollback_after_rollback_goes_further_back(store: Store) -> None:
    for step in (10, 20, 30):
        promoted(store, step, step / 100)
    restored = [rollback(store, now=NOW + i).promotion for i in range(2)]
    assert [found and found.step for found in restored] == [20, 10]
    with pytest.raises(BadInput, match="there is no promotion before the present one"):
        rollback(store, now=NOW)


def test_after_a_rollback_the_gate_compares_with_what_was_restored(store: Store) -> None:
    promoted(store, 10, 0.9)
    promoted(store, 20, 0.99)  # and it turned out to be a fluke
    rollback(store, now=NOW)
    assert promoted(store, 30, 0.92).promoted is True
    back = rollback(store, now=NOW)
    assert back.promotion is not None and back.promotion.step == 10


def test_rollback_to_a_number(store: Store) -> None:
    for step in (10, 20, 30):
        promoted(store, step, step / 100)
    done = rollback(store, 1, now=NOW)
    assert done.promotion is not None and (done.promotion.step, done.promotion.restores) == (10, 1)
    with pytest.raises(BadInput, match="promotion 9 is not known; there are: 4, 3, 2, 1"):
        rollback(store, 9, now=NOW)


def test_rollback_is_refused_when_the_checkpoint_is_gone(store: Store) -> None:
    for step in (10, 20, 30):
        promoted(store, step, step / 100)
    without_manifest(store.below("models/digits-1f"), 20)
    with pytest.raises(
        BadInput, match=r"promotion 2 cannot be restored: .*choose another \(there are: 3, 1\)"
    ) as told:
        rollback(store, now=NOW)
    assert told.value.code == "checkpoint_gone"
    assert len(keys(store, "promoted")) == 3
    assert rollback(store, 1, now=NOW).promoted is True


def test_without_promotions_there_is_nothing_to_roll_back(store: Store) -> None:
    with pytest.raises(
        BadInput, match="there is no promotion before the present one to roll back to; there are: none"
    ):
        rollback(store, now=NOW)


# --- what is not ours


@pytest.mark.thorough(but=("disk",))
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b'{"version": 1, "number": 2, "check',
        b"[]",
        b"{}",
        b'{"number": 7, "checkpoint": "s3://b/x"}',
        b'{"number": 2}',
        b'{"number": 2, "checkpoint": 5}',
        b"\xff\xfe\x00",
    ],
)
def test_a_torn_or_foreign_record_is_reported_and_not_obeyed(store: Store, raw: bytes) -> None:
    promoted(store, 10, 0.9)
    store.write("promoted/000000000002.json", raw)
    present = champion(store)
    assert present is not None and present.number == 1
    (problem,) = history(store).problems
    assert f"{store.uri}/promoted/000000000002.json: " in problem and problem.endswith("it is ignored")

    done = promoted(store, 30, 0.95)  # its number is taken for good
    assert done.promotion is not None
    assert (done.promotion.number, done.promotion.previous) == (3, 1)
    assert done.problems == (problem,)


def test_files_of_other_names_are_reported_and_ignored(store: Store) -> None:
    promoted(store, 10, 0.9)
    record = store.read("promoted/000000000001.json")
    names = (
        "0000000000009.json",
        "9.json",
        "000000000009.json.bak",
        "sub/000000000009.json",
        "000000000000.json",
    )
    for name in names:
        store.write(f"promoted/{name}", record)
    seen = history(store)
    assert [found.number for found in seen.promotions] == [1]
    assert len(seen.problems) == len(names)
    done = promoted(store, 20, 0.95)
    assert done.promotion is not None and done.promotion.number == 2


def test_a_record_of_a_later_version_is_read_as_far_as_it_goes(store: Store) -> None:
    promoted(store, 10, 0.9)
    body = json.loads(store.read("promoted/000000000001.json"))
    later = {**body, "version": 9, "number": 2, "signature": "x", "metrics": {"accuracy": 0.99}}
    store.write("promoted/000000000002.json", json.dumps(later).encode())
    present = champion(store)
    assert present is not None and (present.number, present.version) == (2, 9)
    assert promoted(store, 20, 0.95).promoted is False


# --- races


def race(store: Store, *promoters: list[str]) -> list[dict[str, Any]]:
    """Several promoting processes that start at the same moment; what each says in the end."""
    running = [
        subprocess.Popen(
            [sys.executable, str(PROMOTING), store.uri, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        for arguments in promoters
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=240) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * len(running), said
    return [json.loads(out) for out, _ in said]


@pytest.mark.thorough(but=("disk",))
def test_two_promoters_at_once_never_share_a_number_and_lose_no_history(store: Store) -> None:
    candidate = a_candidate(store, 10)
    count = 60 if store.local_path() else 15
    one, two = race(
        store,
        [candidate, "one", "0.10", str(count), "0.001"],
        [candidate, "two", "0.50", str(count), "0.001"],
    )
    seen = history(store)
    numbers = [found.number for found in reversed(seen.promotions)]
    assert numbers == list(range(1, 2 * count + 1))
    assert sorted(one["won"] + two["won"]) == numbers
    by = {found.number: found.by for found in seen.promotions}
    assert all(by[number] == "one" for number in one["won"])
    assert all(by[number] == "two" for number in two["won"])
    assert {f"{name}-{i}" for name in ("one", "two") for i in range(count)} == {
        found.run for found in seen.promotions
    }
    assert [found.previous for found in reversed(seen.promotions)] == [None, *numbers[:-1]]
    assert seen.problems == ()
    assert one["lost"] + two["lost"] > 0  # they did race


@pytest.mark.thorough(but=("disk",))
def test_whoever_loses_is_judged_again_by_the_new_champion(store: Store) -> None:
    """With a gate the champions only get better, whoever wins which race."""
    candidate = a_candidate(store, 10)
    count = 40 if store.local_path() else 12
    race(
        store,
        [candidate, "one", "0.100", str(count), "0.002", "better"],
        [candidate, "two", "0.101", str(count), "0.002", "better"],
    )
    accuracies = [found.metrics["accuracy"] for found in reversed(history(store).promotions)]
    assert accuracies == sorted(set(accuracies))
    assert accuracies[-1] == pytest.approx(0.101 + (count - 1) * 0.002)


def test_a_lost_race_that_ends_below_the_gate_promotes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store")
    mine, other = a_candidate(store, 10, 0.9), a_candidate(store, 20, 0.95)
    real = type(store).create

    def somebody_is_faster(self: Store, key: str, data: bytes) -> None:
        monkeypatch.setattr(type(store), "create", real)
        promote(store, other, gate=BETTER, now=NOW, by="the faster one")
        real(self, key, data)

    monkeypatch.setattr(type(store), "create", somebody_is_faster)
    done = promote(store, mine, gate=BETTER, now=NOW)
    assert (done.promoted, done.lost) == (False, 1)
    assert "accuracy 0.9 is not better than the champion's 0.95" in done.verdict.reason
    assert [found.by for found in history(store).promotions] == ["the faster one"]


# --- servers


def test_a_server_without_conditional_writes_is_refused_unless_there_is_one_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rclone ignores If-None-Match: the later of two promoters would overwrite the earlier one's record."""
    with s3_server("rclone") as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{server.make_bucket()}/store")
        uri = a_candidate(store, 10)
        with pytest.raises(StorageUnsupported, match=r"two writers could both win.*\(--single-writer\)"):
            promote(store, uri, now=NOW)
        assert keys(store, "promoted") == []

        assert promote(store, uri, now=NOW, single_writer=True).promoted is True
        assert promoted(store, 20, 0.95, single_writer=True).promoted is True
        assert [found.number for found in history(store).promotions] == [2, 1]
        assert rollback(store, now=NOW, single_writer=True).promoted is True
        with pytest.raises(StorageUnsupported):
            rollback(store, 2, now=NOW)


def test_a_server_that_does_not_answer_promotes_nothing(
    moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = a_candidate(open_store(tmp_path), 10)
    bucket = moto.make_bucket()

    def dead(request: Request) -> str | None:
        return "drop" if request.method == "PUT" else None

    with between(moto, dead) as proxy:
        for name, value in proxy.environ.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StorageUnreachable, match=bucket):
            promote(open_store(f"s3://{bucket}/store"), uri, now=NOW)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    assert history(open_store(f"s3://{bucket}/store")).promotions == ()


def test_a_lost_answer_is_not_taken_for_a_lost_race(
    moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record was created and nobody heard of it; the second try must find its own work."""
    uri = a_candidate(open_store(tmp_path), 10)
    bucket = moto.make_bucket()
    lost: list[str] = []

    def lose_once(request: Request) -> str | None:
        if request.method == "PUT" and request.path.endswith("promoted/000000000001.json") and not lost:
            lost.append(request.path)
            return "lose"
        return None

    with between(moto, lose_once) as proxy:
        for name, value in proxy.environ.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{bucket}/store")
        done = promote(store, uri, now=NOW)
        assert lost
        assert done.promotion is not None and done.promotion.number == 1
        assert len(history(store).promotions) == 1


def test_promoting_what_was_corrupted_in_place_is_the_evaluations_to_find(store: Store) -> None:
    """Promotion looks at the sizes; the bytes were verified when it was collected and evaluated."""
    uri = a_candidate(store, 10)
    corrupt(store.below("models/digits-1f"), 10)
    assert promote(store, uri, now=NOW).promoted is True
