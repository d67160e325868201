"""Which rank is slower than the rest: gangs that are played by their rules, slow at a random rank and step,
and gangs in which all is well however unevenly they work.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from allaboard.diagnosis import diagnose
from allaboard.diagnosis.stacks import ProcessLook
from allaboard.diagnosis.stragglers import (
    LOOKS,
    Arrival,
    SlowRank,
    arrivals_of,
    slow_by_looks,
    slow_of,
    slow_rank,
)  # fmt: skip
from allaboard.runs.observation import Condition, Observation, Slow
from tests.core.diagnosis.test_stacks import ALL_REDUCE, LOAD, look

Extra = Callable[[int, int, random.Random], float]
LOOPS: Mapping[str, Sequence[tuple[bool, float]]] = {
    "one collective": [(True, 0.05)],
    "three, each waited for": [(True, 0.03), (True, 0.01), (True, 0.01)],
    "five buckets of DDP, the last waited for": [
        (False, 0.05), (False, 0.01), (False, 0.01), (False, 0.01), (True, 0.01)
    ],
    "DDP, and its loss": [(False, 0.04), (False, 0.01), (True, 0.01), (True, 0.002)],
}  # fmt: skip
"""Of each collective of a step: whether a rank waits there, and the own seconds before it."""


def played(
    seed: int, loop: str, extra: Extra = lambda *_: 0.0, *, ranks: int | None = None, steps: int = 300
) -> dict[int, list[Arrival]]:
    """When each rank enters each collective. ``extra``: more own seconds of (rank, step)."""
    chance = random.Random(seed)
    ranks = ranks or chance.choice((2, 3, 4, 8))
    at = [1e9 + chance.random() for _ in range(ranks)]
    came: dict[int, list[Arrival]] = {rank: [] for rank in range(ranks)}
    for step in range(steps):
        for place, (waits, own) in enumerate(LOOPS[loop]):
            for rank in range(ranks):
                at[rank] += own * max(0.3, chance.gauss(1.0, 0.1))
                at[rank] += extra(rank, step, chance) if place == 0 else 0.0
                came[rank].append(Arrival(len(came[rank]) + 1, at[rank], f"all_reduce {place}"))
            if waits:
                done = max(at) + 0.001
                at = [done + chance.uniform(0.0, 0.0005) for _ in at]
    return came


def step_seconds(loop: str) -> float:
    return sum(own for _, own in LOOPS[loop])


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("seed", range(5))
def test_the_slow_rank_is_told_with_how_much_and_since_when(loop: str, seed: int) -> None:
    chance = random.Random(seed)
    ranks, since = chance.choice((2, 3, 4, 8)), chance.randrange(40, 240)
    who, factor = chance.randrange(ranks), chance.uniform(1.5, 4.0)

    def extra(rank: int, step: int, _: random.Random) -> float:
        return (factor - 1) * step_seconds(loop) if rank == who and step >= since else 0.0

    found = slow_rank(played(seed, loop, extra, ranks=ranks))
    assert found is not None and found.rank == who
    assert abs(found.factor - factor) < 0.15 * factor
    assert found.since is not None and abs(found.since / len(LOOPS[loop]) - since) <= 3


@pytest.mark.parametrize("loop", LOOPS)
def test_one_that_was_slow_all_the_time_is_so_since_before_what_is_known(loop: str) -> None:
    found = slow_rank(played(1, loop, lambda rank, *_: 0.06 * (rank == 1)))
    assert found is not None and (found.rank, found.since) == (1, None)


WELL: Mapping[str, Extra] = {
    "steady": lambda *_: 0.0,
    "uneven batches": lambda rank, step, chance: chance.expovariate(20.0),
    "the same long batches for all": lambda rank, step, chance: 0.5 if step % 7 == 0 else 0.0,
    "rank 0 evaluates": lambda rank, step, chance: 5.0 if rank == 0 and step % 50 == 49 else 0.0,
    "rank 0 evaluates often": lambda rank, step, chance: 0.3 if rank == 0 and step % 4 == 3 else 0.0,
    "rank 0 saves": lambda rank, step, chance: 60.0 if rank == 0 and step % 150 == 149 else 0.0,
    "data come in bursts": lambda rank, step, chance: 2.0 * chance.random() if chance.random() < 0.1 else 0.0,
    "one is a tenth slower": lambda rank, step, chance: 0.005 * (rank == 1),
    "one was slow": lambda rank, step, chance: 0.1 * (rank == 1 and step < 150),
    "one is slow for a moment": lambda rank, step, chance: 0.1 * (rank == 1 and step > 290),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("what", WELL)
def test_what_is_no_slow_rank_is_not_told(loop: str, what: str) -> None:
    for seed in range(5):
        assert slow_rank(played(seed, loop, WELL[what])) is None, seed


def test_a_rank_that_is_a_little_late_in_each_bucket_is_not_made_slower_by_their_number() -> None:
    loop = "five buckets of DDP, the last waited for"
    found = [
        slow_rank(played(seed, loop, lambda rank, *_: 0.008 * (rank == 1), ranks=3)) for seed in range(10)
    ]
    assert found == [None] * 10, "8 ms of 90 ms are no quarter"


def test_too_little_is_not_judged() -> None:
    slow: Extra = lambda rank, *_: 0.1 * (rank == 1)  # noqa: E731
    arrivals = played(1, "one collective", slow, ranks=2)
    assert slow_rank(arrivals) is not None
    assert slow_rank({}) is None and slow_rank({1: arrivals[1]}) is None
    assert slow_rank({rank: mine[-15:] for rank, mine in arrivals.items()}) is None, "15 steps"
    assert slow_rank({0: arrivals[0][:100], 1: arrivals[1][-100:]}) is None, "no collective of both"
    quick = {
        rank: [replace(each, at=1e9 + (each.at - 1e9) / 50) for each in mine]
        for rank, mine in arrivals.items()
    }
    assert slow_rank(quick) is None, "2 ms in each step, within a second"
    odd = {
        rank: [replace(each, operation=f"kind{each.number**2 % 997} ") for each in mine]
        for rank, mine in arrivals.items()
    }
    assert slow_rank(odd) is None, "no two steps are alike"


def test_ranks_are_compared_where_all_have_come() -> None:
    arrivals = played(1, "one collective", lambda rank, *_: 0.1 * (rank == 1), ranks=3)
    parts = {0: arrivals[0][30:], 1: arrivals[1][:-5], 2: arrivals[2][10:-2]}
    found = slow_rank(parts)
    assert found is not None and found.rank == 1


def entry(number: int, **more: Any) -> dict[str, Any]:
    return {
        "collective_seq_id": number,
        "input_sizes": [[4, 4]],
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": 1795610773079164167 + number * 10**7,
        **more,
    }


def test_it_is_read_from_what_the_flight_recorder_writes() -> None:
    text = json.dumps({"entries": [entry(2), entry(1)], "version": "2.10"})
    assert arrivals_of(text) == (
        Arrival(1, 1795610773.089164167, "gloo:all_reduce [[4, 4]]"),
        Arrival(2, 1795610773.099164167, "gloo:all_reduce [[4, 4]]"),
    )


def test_ranks_that_wait_elsewhere_too_are_not_judged() -> None:
    mine = [entry(n) for n in range(1, 50)]
    other = [entry(n, process_group=["1", "tensor_parallel"]) for n in range(1, 10)]
    sent = [entry(n, is_p2p=True) for n in range(1, 10)]
    assert len(arrivals_of(json.dumps({"entries": [*mine, *other[:1]]}))) == 49
    assert arrivals_of(json.dumps({"entries": [*mine, *other]})) == ()
    assert arrivals_of(json.dumps({"entries": [*mine, *sent]})) == ()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", '{"entries": 1}',
        '{"entries": []}', '{"entries": [1]}', '{"entries": {}}',
        json.dumps({"entries": [entry(1, collective_seq_id="x")]}),
        json.dumps({"entries": [entry(1, process_group=[])]}),
        json.dumps({"entries": [entry(1, process_group=None)]}),
        json.dumps({"entries": [entry(1, time_created_ns=[])]}),
        json.dumps({"entries": [entry(1)]})[:-9],
    ],
)  # fmt: skip
def test_what_is_no_answer_tells_nothing(text: str) -> None:
    assert arrivals_of(text) == ()


FOUND = SlowRank(1, 1.93, 0.193, 0.1, 812, 1795610773.0, 90)


def test_what_is_said_of_it() -> None:
    waits: ProcessLook = look(0, ALL_REDUCE, busy=0.05)
    looks = [
        (waits, look(1, LOAD, busy=0.97)),
        (waits, look(1, ALL_REDUCE)),
        (waits, look(1, LOAD, busy=0.9)),
    ]
    slow = slow_of(FOUND, looks, 400, "9 runnable processes on 2 CPUs")
    assert slow.text == (
        "rank 1 takes 1.9 times as long as the others for each step since step 400 "
        "(2026-11-25T12:46:13.000Z): 193 ms of its own instead of 100 ms"
    )
    assert slow.shows == (
        "it computes at data.py:6 `load` (2 of 3 looks); it computes 90% of the time, the others 5%; "
        "9 runnable processes on 2 CPUs"
    )
    assert (slow.rank, slow.step, slow.since, slow.member) == (1, 400, FOUND.at, "worker-0")
    assert "since collective number 812" in slow_of(FOUND, [], None, "").text
    assert " since " not in slow_of(replace(FOUND, since=None), [], None, "").text


def running(**more: Any) -> Observation:
    return Observation("run-1", conditions=(Condition("Running", "True", "", ""),), started=1.0, **more)


@pytest.mark.parametrize("thorough", [False, True])
def test_it_is_a_diagnosis_while_the_run_goes_on(thorough: bool) -> None:
    slow = Slow(3, 1.9, "rank 3 takes 1.9 times as long", 1.0, 400, "worker-3", "it computes at train.py:20")
    first = diagnose(running(slow=slow), thorough=thorough)[0]
    assert (first.code, first.blame, first.summary) == ("slow_rank", "rank 3", slow.text)
    assert [e.text for e in first.evidence] == [slow.text, slow.shows]
    ended = replace(running(slow=slow), finished=9.0, conditions=(Condition("Succeeded", "True", "", ""),))
    assert "slow_rank" not in [d.code for d in diagnose(ended, thorough=thorough)]


def test_it_stays_what_it_is_in_a_snapshot() -> None:
    seen = running(slow=Slow(3, 1.9, "rank 3", 1.0, 400, "worker-3", "shows"))
    assert Observation.from_dict(json.loads(json.dumps(seen.to_dict()))) == seen


# --- by looks, where clocks are not compared


def looked_at(
    came: Mapping[int, Sequence[Arrival]], seed: int, looks: int = LOOKS
) -> list[list[ProcessLook]]:
    """Looks at a gang that waits in each collective, at random moments, of each rank at another one."""
    chance = random.Random(seed)
    leaves = [max(each) for each in zip(*([a.at for a in mine] for mine in came.values()), strict=True)]
    found = []
    for _ in range(looks):
        moment = chance.uniform(leaves[50], leaves[-1])
        seen = []
        for rank, mine in came.items():
            at = moment + chance.uniform(0, 0.2)
            number = next((n for n, left in enumerate(leaves) if left > at), len(leaves) - 1)
            waits = mine[number].at <= at
            seen.append(look(rank, ALL_REDUCE if waits else LOAD, pending=number + 1 if waits else None))
        found.append(seen)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_slow_rank_is_told_by_looks_whatever_the_clocks_of_its_nodes_say(seed: int) -> None:
    chance = random.Random(seed)
    ranks, factor = chance.choice((2, 3, 4, 8)), chance.uniform(1.8, 3.0)
    wanted = chance.randrange(ranks)
    came = played(
        seed,
        "one collective",
        lambda rank, *_: 0.05 * (factor - 1) * (rank == wanted),
        ranks=ranks,
        steps=400,
    )
    found = slow_by_looks(looked_at(came, seed), {"worker-0": "its node is gpu-7"})
    assert found is not None and (found.rank, found.member) == (wanted, "worker-0")
    assert factor / 2 < found.factor < factor * 2
    assert found.text.startswith(f"rank {wanted} takes {found.factor:.1f} times as long as the others")
    assert "data.py:6 `load`" in found.shows and "its node is gpu-7" in found.shows


@pytest.mark.parametrize("seed", range(40))
def test_ranks_that_are_alike_are_told_by_no_look(seed: int) -> None:
    came = played(seed, "one collective", steps=400)
    assert slow_by_looks(looked_at(came, seed), {}) is None


def test_what_one_rank_does_now_and_then_is_no_slowness_to_looks() -> None:
    """Rank 0 evaluates while all others wait in one collective, for all of the looks."""
    evaluates = [[look(0, LOAD), *(look(n, ALL_REDUCE, pending=7) for n in (1, 2, 3))] for _ in range(LOOKS)]
    assert slow_by_looks(evaluates, {}) is None


def test_few_looks_tell_nothing() -> None:
    slow = [[look(0, LOAD), look(1, ALL_REDUCE, pending=n)] for n in range(LOOKS)]
    assert slow_by_looks(slow, {}) is not None
    assert slow_by_looks(slow[:10], {}) is None
    assert slow_by_looks([one[:1] for one in slow], {}) is None
    assert slow_by_looks([], {}) is None
