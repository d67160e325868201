"""First come, first served, nobody delayed by who passes; and what is left of a gang that would never fit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain, combinations

import pytest

from allaboard.backends.local.host.machine import Capacity
from allaboard.backends.local.pool.admission import Claim, Need, Request, Used, decide, fit, shrink_to_fit

GiB = 1 << 30
ROOM = Capacity(4.0, 8 * GiB, ("a", "b", "c"))


def a_claim(*members: Need, minimum: int | None = None, room: Capacity = ROOM) -> Claim:
    return Request("mark", members, minimum).claim(room)


def cpu(cores: float) -> Need:
    return Need(cpu=cores)


def gpu(count: int) -> Need:
    return Need(gpu=count)


def counts(answers: list) -> list[int | None]:
    """How many members each claim was given; None: it waits."""
    return [None if answer is None else len(answer) for answer in answers]


def test_nothing_stated_takes_nothing_and_never_waits() -> None:
    full = Used(4.0, 8 * GiB, frozenset("abc"))
    assert decide([a_claim(cpu(1)), a_claim(Need(), Need())], [full]) == [None, ((), ())]


def test_a_gang_gets_all_or_nothing() -> None:
    assert counts(decide([a_claim(*[gpu(1)] * 3)], [])) == [3]
    assert counts(decide([a_claim(*[gpu(1)] * 3)], [Used(gpus=frozenset("b"))])) == [None]


def test_gpus_go_to_members_in_order() -> None:
    assert decide([a_claim(gpu(1), gpu(0), gpu(1))], [Used(gpus=frozenset("b"))]) == [(("a",), (), ("c",))]


def test_an_elastic_gang_gets_what_is_there_from_its_minimum_on() -> None:
    gang = a_claim(*[cpu(1)] * 4, minimum=2)
    assert counts(decide([gang], [Used(cpu=1)])) == [3]
    assert counts(decide([gang], [Used(cpu=2)])) == [2]
    assert counts(decide([gang], [Used(cpu=3)])) == [None]


def test_every_stated_kind_must_fit() -> None:
    assert fit(a_claim(Need(1, 9 * GiB)), Used()) is None
    assert fit(a_claim(Need(5, GiB)), Used()) is None
    assert fit(a_claim(Need(4, 8 * GiB, 3)), Used()) == (("a", "b", "c"),)


def test_tenths_of_cores_add_up() -> None:
    assert fit(a_claim(*[cpu(0.1)] * 40), Used()) is not None
    assert fit(a_claim(*[cpu(0.1)] * 41), Used()) is None


def test_a_small_one_waits_behind_a_large_one_of_the_same_kind() -> None:
    assert counts(decide([a_claim(cpu(4)), a_claim(cpu(1))], [Used(cpu=1)])) == [None, None]


def test_an_unrelated_one_passes() -> None:
    queue = [a_claim(gpu(3)), a_claim(cpu(1)), a_claim(Need(memory=GiB)), a_claim(gpu(1))]
    assert counts(decide(queue, [Used(gpus=frozenset("a"))])) == [None, 1, 1, None]


def test_who_waits_keeps_others_from_all_that_it_wants() -> None:
    """The middle one waits for a GPU only; were its cores taken meanwhile, it could wait for ever."""
    queue = [a_claim(gpu(3)), a_claim(Need(cpu=4, gpu=1)), a_claim(cpu(1))]
    assert counts(decide(queue, [Used(gpus=frozenset("a"))])) == [None, None, None]


def test_what_an_earlier_one_may_take_is_set_aside_for_it() -> None:
    assert counts(decide([a_claim(cpu(3)), a_claim(cpu(2)), a_claim(cpu(1.5))], [])) == [1, None, None]
    assert decide([a_claim(gpu(1)), a_claim(gpu(1))], []) == [(("a",),), (("b",),)]


def test_people_who_divided_the_gpus_do_not_wait_for_each_other() -> None:
    mine, his = Capacity(4, GiB, ("a",)), Capacity(4, GiB, ("b",))
    queue = [a_claim(gpu(1), room=mine), a_claim(gpu(1), room=his)]
    assert decide(queue, [Used(gpus=frozenset("a"))]) == [None, (("b",),)]


def test_each_is_measured_by_its_own_view_of_the_machine() -> None:
    small = Capacity(1.0, GiB)
    assert counts(decide([a_claim(cpu(2), room=small)], [])) == [None]
    assert counts(decide([a_claim(cpu(1), room=small), a_claim(cpu(3))], [])) == [1, 1]


# --- passing ----------------------------------------------------------------------------------------------


def test_a_small_one_passes_where_the_large_one_has_room_besides_once_it_can_start() -> None:
    queue = [a_claim(cpu(2)), a_claim(cpu(1))]
    assert counts(decide(queue, [Used(cpu=3)])) == [None, 1], "3 must end; then there is room for both"


@pytest.mark.parametrize("running", [[Used(cpu=1)], [Used(cpu=1), Used(cpu=2)]], ids=["one", "two"])
def test_a_small_one_does_not_pass_where_it_might_delay_the_large_one(running: list[Used]) -> None:
    large = 4 - running[0].cpu if len(running) > 1 else 4
    assert counts(decide([a_claim(cpu(large)), a_claim(cpu(1))], running)) == [None, None]


def test_it_counts_in_whatever_order_the_running_ones_end() -> None:
    queue = [a_claim(cpu(2)), a_claim(cpu(1))]
    assert counts(decide(queue, [Used(cpu=1), Used(cpu=2)])) == [None, None], "were the 1 to end first"
    assert counts(decide(queue, [Used(cpu=3)])) == [None, 1]


def test_who_passed_counts_against_the_next_one() -> None:
    queue = [a_claim(cpu(2)), *[a_claim(cpu(0.5))] * 5]
    assert counts(decide(queue, [Used(cpu=3)])) == [None, 1, 1, None, None, None]


def test_a_passing_one_delays_no_one_of_those_before_it() -> None:
    queue = [a_claim(cpu(2)), a_claim(cpu(3.5)), a_claim(cpu(1))]
    assert counts(decide(queue, [Used(cpu=3)])) == [None, None, None], "the second one would wait for it"


def test_an_elastic_one_that_waits_starts_no_smaller_for_who_passes() -> None:
    queue = [a_claim(*[cpu(1)] * 3, minimum=2), a_claim(cpu(1))]
    assert counts(decide(queue, [Used(cpu=3)])) == [None, 1], "3 and 1 fit together"
    queue = [a_claim(*[cpu(1)] * 4, minimum=2), a_claim(cpu(1))]
    assert counts(decide(queue, [Used(cpu=3)])) == [None, None], "it would start with 3 instead of 4"


def test_gpus_are_passed_by_number() -> None:
    queue = [a_claim(gpu(2)), a_claim(gpu(1))]
    assert counts(decide(queue, [Used(gpus=frozenset("ab"))])) == [None, 1]
    assert counts(decide(queue, [Used(gpus=frozenset("a")), Used(gpus=frozenset("b"))])) == [None, None]


def test_a_thousand_who_wait_are_decided_without_a_storm() -> None:
    queue = [a_claim(cpu(2), room=Capacity(2.0, GiB)), *[a_claim(cpu(1), room=Capacity(2.0, GiB))] * 1000]
    assert counts(decide(queue, [Used(cpu=1)])) == [None] * 1001
    dice = random.Random(1)
    queue = [a_claim(cpu(round(dice.uniform(0.1, 4), 3))) for _ in range(1000)]
    decide(queue, [Used(cpu=dice.random() / 10) for _ in range(39)])


def some(things: Sequence[Used]) -> Iterator[tuple[Used, ...]]:
    return chain.from_iterable(combinations(things, n) for n in range(len(things) + 1))


def joined(things: Sequence[Used]) -> Used:
    used = Used()
    for one in things:
        used = used.joined(one)
    return used


def taken(claim: Claim, answer: tuple) -> Used:
    return Used().plus(claim.members[: len(answer)], (gpu for gpus in answer for gpu in gpus))


@pytest.mark.parametrize("seed", range(200))
def test_whatever_queues_nothing_is_given_twice_and_nobody_is_delayed(seed: int) -> None:
    dice = random.Random(seed)

    def member() -> Need:
        return Need(
            dice.choice([None, 0.5, 1, 3]), dice.choice([None, GiB, 4 * GiB]), dice.choice([0, 0, 1, 2])
        )

    queue = [
        a_claim(*[member() for _ in range(dice.randint(1, 4))], minimum=dice.choice([None, 1, 2]))
        for _ in range(dice.randint(1, 7))
    ]
    gpus = dice.sample("abc", dice.randint(0, 3))
    running = [Used(cpu=c) for c in dice.choice([[], [1], [1, 1.5], [3.5], [0.5, 0.5, 2]])]
    running += [Used(memory=m * GiB) for m in dice.choice([[], [1], [4, 2]])]
    running += [Used(gpus=frozenset(one)) for one in gpus]
    used = joined(running)
    answers = decide(queue, running)
    given = [gpu for answer in answers if answer for gpus in answer for gpu in gpus]
    admitted = [
        m
        for claim, answer in zip(queue, answers, strict=True)
        if answer
        for m in claim.members[: len(answer)]
    ]
    cpus_given, memory_given = sum(m.cpu or 0 for m in admitted), sum(m.memory or 0 for m in admitted)
    assert len(given) == len(set(given)) == sum(m.gpu for m in admitted)
    assert not used.gpus.intersection(given)
    assert not cpus_given or used.cpu + cpus_given <= 4.0
    assert not memory_given or used.memory + memory_given <= 8 * GiB
    pairs = list(zip(queue, answers, strict=True))
    for place, (claim, answer) in enumerate(pairs):
        if answer is not None:
            assert len(answer) >= claim.minimum
            continue
        assert claim.kinds, "who wants nothing never waits"
        # Whatever still runs of what runs, and of those admitted before it: with those that pass it, it
        # starts with as many members as without.
        before = [taken(c, a) for c, a in pairs[:place] if a is not None]
        passing = joined([taken(c, a) for c, a in pairs[place + 1 :] if a is not None])
        for left in some([*running, *before]):
            alone = fit(claim, joined(left))
            beside = fit(claim, joined([*left, passing]))
            assert (alone and len(alone)) == (beside and len(beside)), "delayed"
    if queue and fit(queue[0], used) is not None:
        assert answers[0] is not None, "the first never waits for what is there"


def starts(jobs: Sequence[tuple[float, Claim, float]], strictly: bool) -> list[float]:
    """When each of (arrival, claim, length) starts; ``strictly``: nobody ever passes anybody."""
    began: dict[int, float] = {}
    held: dict[int, tuple] = {}
    moments = {arrival for arrival, _, _ in jobs}
    while len(began) < len(jobs):
        now = min(moments)
        moments.discard(now)
        queue = [n for n, (arrival, _, _) in enumerate(jobs) if n not in began and arrival <= now]
        running = [taken(jobs[n][1], held[n]) for n, at in began.items() if at + jobs[n][2] > now]
        for n, answer in zip(queue, decide([jobs[n][1] for n in queue], running), strict=True):
            if answer is None:
                if strictly:
                    break
                continue
            began[n], held[n] = now, answer
            moments.add(now + jobs[n][2])
    return [began[n] for n in range(len(jobs))]


@pytest.mark.parametrize("seed", range(100))
def test_nobody_starts_later_than_if_nobody_ever_passed(seed: int) -> None:
    dice = random.Random(seed)
    jobs = []
    for n in range(25):
        need = Need(
            dice.choice([0.5, 1, 1, 2, 3, 4]),
            dice.choice([None, None, 2 * GiB]),
            dice.choice([0, 0, 0, 1, 2]),
        )
        jobs.append((n * dice.choice([0.0, 1.0]), a_claim(need), dice.choice([1.0, 2.0, 7.0, 20.0])))
    jobs.sort(key=lambda job: job[0])
    passing, strictly = starts(jobs, False), starts(jobs, True)
    assert all(one <= other for one, other in zip(passing, strictly, strict=True))
    assert max(passing) < float("inf"), "nobody starves"


# --- shrinking --------------------------------------------------------------------------------------------


def test_what_fits_is_left_alone_without_a_word() -> None:
    members = [Need(2, 4 * GiB, 1), Need(2, 4 * GiB, 2), Need()]
    assert shrink_to_fit(members, ROOM) == (tuple(members), [])


def test_cores_are_shared_equally_and_said_once() -> None:
    members, words = shrink_to_fit([cpu(8)] * 3, ROOM)
    assert members == (cpu(1.333),) * 3
    assert words == ["3 members together ask for 24 cores, this machine has 4: each gets at most 1.333"]


def test_who_asks_for_little_keeps_it() -> None:
    members, _ = shrink_to_fit([cpu(1), cpu(8), cpu(8), Need()], ROOM)
    assert members == (cpu(1), cpu(1.5), cpu(1.5), Need())


def test_memory_is_capped() -> None:
    members, words = shrink_to_fit([Need(memory=32 * GiB)], ROOM)
    assert members == (Need(memory=8 * GiB),)
    assert words == ["the member asks for 32.0 GiB of memory, this machine has 8.0 GiB: it gets 8.0 GiB"]


def test_without_gpus_all_run_on_cpu() -> None:
    members, words = shrink_to_fit([Need(cpu=1, gpu=1)] * 2, Capacity(4, GiB))
    assert members == (cpu(1),) * 2
    assert words == ["2 members together ask for 2 GPUs, this machine has none: all run on CPU"]


def test_gpus_are_shared_equally() -> None:
    members, words = shrink_to_fit([gpu(4), gpu(4)], Capacity(4, GiB, ("a", "b", "c", "d")))
    assert members == (gpu(2), gpu(2))
    assert words == ["2 members together ask for 8 GPUs, this machine has 4: each gets at most 2"]


def test_a_gang_is_never_half_with_gpu_and_half_without() -> None:
    members, _ = shrink_to_fit([gpu(1)] * 4, ROOM)
    assert members == (gpu(0),) * 4


def test_an_elastic_gang_is_shrunk_only_if_its_minimum_does_not_fit() -> None:
    assert shrink_to_fit([gpu(1)] * 6, ROOM, minimum=3) == ((gpu(1),) * 6, [])
    members, words = shrink_to_fit([cpu(4)] * 6, ROOM, minimum=2)
    assert members == (cpu(2),) * 6
    assert words == ["2 members together ask for 8 cores, this machine has 4: each gets at most 2"]


@pytest.mark.parametrize("seed", range(200))
def test_what_was_shrunk_fits(seed: int) -> None:
    dice = random.Random(seed)
    members = [
        Need(dice.choice([None, 0.3, 2, 7]), dice.choice([None, GiB, 5 * GiB + 1]), dice.choice([0, 1, 2]))
        for _ in range(dice.randint(1, 7))
    ]
    minimum = dice.choice([None, 1, len(members)])
    smaller, words = shrink_to_fit(members, ROOM, minimum)
    assert fit(a_claim(*smaller, minimum=minimum), Used()) is not None
    assert bool(words) == (smaller != tuple(members))
    assert all((a.cpu is None) == (b.cpu is None) for a, b in zip(members, smaller, strict=True))
