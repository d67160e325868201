"""The rank that is slower than the rest, by the times when each rank entered each collective. Values in,
values out; `allaboard.backends` asks for these times.

A rank that waits for the slowest one is as late in each collective as that, so its arrivals alone say
nothing: what counts is its own time, from when it could go on after one collective until it entered the next.
It could go on when the last rank had come, unless it had entered the next one by then, or unless how late
ranks were there carries over to the next one: nobody has waited then, as for a bucket of DDP's during
backward.

Own times are added up over one step of the training, the period after which the same collectives come again,
and compared by medians: what happens in a few steps, such as an evaluation or a checkpoint on rank 0, is not
slowness.

Arrivals are by the clock of one machine. Of ranks on several nodes, whose clocks are not compared, many looks
at all of them tell it (`slow_by_looks`): a rank that is seen about something of its own in all of them, while
the others wait in collective after collective, takes as much longer as it is seen more often.

Arrivals are read from what torch 2.15's flight recorder tells of gloo
(torch/csrc/distributed/c10d/FlightRecorder.hpp); of NCCL it tells when a collective was enqueued, which is
not when its GPU was there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import comb, exp
from statistics import median

from allaboard.diagnosis.finding import Diagnosis, Evidence
from allaboard.diagnosis.stacks import ProcessLook, RankPosition, positions, where_it_is
from allaboard.runs.observation import Slow
from allaboard.text.units import rfc3339
from allaboard.text.untrusted import Limits, Unreadable, parse_json

FACTOR = 1.25
"""The own time of a slow rank, by that of the others, from which on it is reported: they lose a fifth of
theirs.
"""
LEAST_STEPS, LEAST_SECONDS, LEAST_EXCESS = 20, 3.0, 0.005
"""Steps and seconds for which it was slow, and seconds that it takes longer in each step: less is not told.
"""
LOOKS, ENOUGH_LOOKS, ENOUGH_COLLECTIVES = 40, 20, 8
"""Looks at ranks on several nodes; how many must have seen all of them, and how many collectives went by in
them: what happens in a few steps, such as an evaluation on rank 0, is not told.
"""
CONFIDENCE = 0.8
STEADY = 0.7
"""Share of the steps in which it took at least half of its usual excess."""
FEW = 0.05
"""Share of collectives in other groups, and of messages from rank to rank, of which nothing is known here."""
_TELLS = Limits(size=1 << 23, depth=8, values=400_000, digits=20)
_PERIODS = 400
_ALIKE = 0.9
_CARRIES = 0.6
_CHANCE = 1e-3
_CHANGE = 0.15


@dataclass(frozen=True, slots=True)
class Arrival:
    """One rank has entered one collective. ``number``: the collective's, in its group; ``at``: epoch seconds;
    ``operation``: its name and sizes, which are the same in each step.
    """

    number: int
    at: float
    operation: str = ""


@dataclass(frozen=True, slots=True)
class SlowRank:
    """``factor``: its own time per step by that of the others, ``own`` and ``others`` in seconds; ``since``:
    the first collective from which it was slow, None: it was so before the first one that is known; ``at``:
    when that was, epoch seconds; ``steps``: for how many.
    """

    rank: int
    factor: float
    own: float
    others: float
    since: int | None
    at: float
    steps: int


@dataclass(frozen=True, slots=True)
class _Steps:
    """``own``: rank -> seconds in each step; ``starts``: the place of its first collective; a step has
    ``period`` of them.
    """

    own: Mapping[int, Sequence[float]]
    numbers: Sequence[int]
    times: Sequence[float]
    period: int


def arrivals_of(text: str) -> tuple[Arrival, ...]:
    """The arrivals in the flight recorder of one rank, read from its JSON, in order; empty if they cannot be
    judged: several groups talk, or ranks write to each other.
    """
    try:
        of_gloo = text.partition("\n")[0]
        entries = parse_json(of_gloo, _TELLS, spelling=False, unique=False, any_text=True)["entries"]
        known = [entry for entry in entries if not entry["is_p2p"]]
        groups = Counter(str(entry["process_group"][0]) for entry in known)
        if not groups or len(entries) - groups.most_common(1)[0][1] > FEW * len(entries):
            return ()
        mine = groups.most_common(1)[0][0]
        arrivals = {
            int(e["collective_seq_id"]): Arrival(
                int(e["collective_seq_id"]),
                int(e["time_created_ns"]) / 1e9,
                f"{e['profiling_name']} {e['input_sizes']}"[:300],
            )
            for e in known
            if str(e["process_group"][0]) == mine
        }
    except (Unreadable, TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError):
        return ()
    return tuple(arrivals[number] for number in sorted(arrivals))


def slow_rank(ranks: Mapping[int, Sequence[Arrival]]) -> SlowRank | None:
    """The rank for which the others wait in each step, now, at the end of what is known. ``ranks``: rank ->
    its arrivals, of one group. None: there is none, or too little is known.
    """
    steps = _steps(ranks)
    if steps is None:
        return None
    slowed = [slow for rank in steps.own if (slow := _judge(rank, steps)) is not None]
    return max(slowed, key=lambda slow: slow.own - slow.others, default=None)


def slow_by_looks(looks: Sequence[Sequence[ProcessLook]], machines: Mapping[str, str]) -> Slow | None:
    """The rank for which the others wait, by looks at all of them a moment apart, at the moment itself (their
    ``state``, not how ``busy`` they were in between). ``machines``: member -> what its machine says. None:
    there is none, or too little is known.
    """
    seen = [{each.rank: each for each in positions(look)} for look in looks]
    ranks = sorted({rank for each in seen for rank in each})
    whole = [each for each in seen if len(each) == len(ranks)]
    if len(ranks) < 2 or len(whole) < ENOUGH_LOOKS:
        return None
    own = {rank: sum(not _waits(each[rank]) for each in whole) for rank in ranks}
    slow = max(ranks, key=lambda rank: own[rank])
    rest = [own[rank] for rank in ranks if rank != slow]
    usual = max(median(rest), 1.0)
    numbers = {
        each[rank].look.pending for each in whole for rank in ranks if rank != slow and _waits(each[rank])
    }
    factor = round(own[slow] / usual, 2)
    sure = _differ(own[slow], max(rest), len(whole))
    if factor < FACTOR or not sure or len(numbers - {None}) < ENOUGH_COLLECTIVES:
        return None
    waited = [len(whole) - each for each in rest]
    text = (
        f"rank {slow} takes {factor:.1f} times as long as the others for each step: in {len(whole)} looks it "
        f"waited for them {len(whole) - own[slow]} times, they {_range(waited)} times"
    )
    mine = [(each[slow], looks[n]) for n, each in enumerate(seen) if slow in each and not _waits(each[slow])]
    places = Counter(where_it_is(*place) for place in mine)
    member = whole[-1][slow].look.member or None
    shows = [f"it {where} ({times} of {len(mine)} looks)" for where, times in places.most_common(2)]
    shows += [machines[member]] if member is not None and member in machines else []
    return Slow(slow, factor, text, None, None, member, "; ".join(shows))


def _waits(position: RankPosition) -> bool:
    return position.operation is not None and position.look.state == "S"


def _differ(mine: int, other: int, of: int) -> bool:
    """True if two shares of as many looks differ by more than chance (Fisher's exact test, one-sided)."""
    all_of_them = mine + other
    most = min(of, all_of_them)
    ways = [comb(of, k) * comb(of, all_of_them - k) for k in range(max(0, all_of_them - of), most + 1)]
    more = ways[mine - max(0, all_of_them - of) :]
    return sum(more) <= _CHANCE * sum(ways)


def _range(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return f"{least}" if least == most else f"{least} to {most}"


def slow_of(
    rank_found: SlowRank, looks: Sequence[Sequence[ProcessLook]], step: int | None, machine: str
) -> Slow:
    """The report on a slow rank. ``looks``: several at the processes of the run, now; ``step``: that of its
    beginning, if it is known; ``machine``: what its machine says.
    """
    text = f"rank {rank_found.rank} takes {rank_found.factor:.1f} times as long as the others for each step"
    if rank_found.since is not None:
        reached = f"step {step}" if step is not None else f"collective number {rank_found.since}"
        text += f" since {reached} ({rfc3339(rank_found.at)})"
    text += f": {_seconds(rank_found.own)} of its own instead of {_seconds(rank_found.others)}"
    places = [(position, look) for look in looks for position in positions(look)]
    mine = [(position, look) for position, look in places if position.look.rank == rank_found.rank]
    rest = [position.look.busy for position, _ in places if position.look.rank != rank_found.rank]
    seen = Counter(where_it_is(*place) for place in mine if place[0].operation is None)
    shows = [f"it {where} ({times} of {len(mine)} looks)" for where, times in seen.most_common(2)]
    if mine and rest:
        busy = median(position.look.busy for position, _ in mine)
        shows.append(f"it computes {busy:.0%} of the time, the others {median(rest):.0%}")
    since = rank_found.at if rank_found.since is not None else None
    member = mine[0][0].look.member or None if mine else None
    return Slow(
        rank_found.rank, round(rank_found.factor, 2), text, since, step, member, "; ".join([*shows, machine])
    )


def diagnose_slow(slow: Slow, run: str) -> Diagnosis:
    """The diagnosis of a run that one rank holds up."""
    from allaboard.diagnosis.causes import all_rules  # not for who only reads arrivals: a supervisor

    cause = all_rules()["slow_rank"].cause
    evidence = (
        Evidence(f"run/{run}", "collectives", slow.text),
        Evidence(f"rank {slow.rank}", "process", slow.shows),
    )
    return Diagnosis(
        "slow_rank", slow.text, evidence, f"rank {slow.rank}", cause.retryable, cause.fix, CONFIDENCE
    )


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _steps(ranks: Mapping[int, Sequence[Arrival]]) -> _Steps | None:
    """The collectives that all ranks have entered, by steps."""
    if len(ranks) < 2:
        return None
    times = {rank: {each.number: each.at for each in mine} for rank, mine in ranks.items()}
    numbers = sorted(set.intersection(*(set(mine) for mine in times.values())))
    if len(numbers) < LEAST_STEPS or numbers[-1] - numbers[0] != len(numbers) - 1:
        return None
    kinds = {each.number: each.operation for each in next(iter(ranks.values()))}
    period = _period([kinds[number] for number in numbers])
    if period is None:
        return None
    came = {rank: [mine[number] for number in numbers] for rank, mine in times.items()}
    last = [max(at) for at in zip(*came.values(), strict=True)]
    waits = [period == 1 or not _carries(came, place, period) for place in range(period)]
    own = {rank: [*_by_step([*_own(at, last, waits)], period)] for rank, at in came.items()}
    return _Steps(own, numbers, last, period)


def _period(operations: Sequence[str]) -> int | None:
    """After how many collectives the same come again; None: they do not."""
    for kinds in (operations, [each.partition(" ")[0] for each in operations]):
        for period in range(1, min(_PERIODS, len(kinds) // LEAST_STEPS) + 1):
            pairs = len(kinds) - period
            if sum(map(str.__eq__, kinds, kinds[period:])) >= _ALIKE * pairs:
                return period
    return None


def _carries(came: Mapping[int, Sequence[float]], place: int, period: int) -> bool:
    """True if the lateness of ranks in one collective of each step predicts their lateness in the
    next one.
    """
    ends = range(place, len(next(iter(came.values()))) - 1, period)
    same = differ = 0
    middle = {n: median(at[n] for at in came.values()) for j in ends for n in (j, j + 1)}
    for at in came.values():
        here = [at[j] - middle[j] for j in ends]
        there = [at[j + 1] - middle[j + 1] for j in ends]
        for (a, b), (c, d) in zip(pairwise(here), pairwise(there), strict=True):
            same += (b - a) * (d - c) > 0
            differ += (b - a) * (d - c) < 0
    return same >= _CARRIES * (same + differ)


def _own(at: Sequence[float], last: Sequence[float], waits: Sequence[bool]) -> Iterator[float]:
    """The own seconds of a rank between each two collectives."""
    for n, (here, there) in enumerate(pairwise(at)):
        waited = waits[n % len(waits)] and there >= last[n]
        yield there - (last[n] if waited else here)


def _by_step(own: Sequence[float], period: int) -> Iterator[float]:
    for first in range(0, len(own) - period + 1, period):
        yield sum(own[first : first + period])


def _judge(rank: int, steps: _Steps) -> SlowRank | None:
    own = steps.own[rank]
    rest = [median(at) for at in zip(*(mine for r, mine in steps.own.items() if r != rank), strict=True)]
    excess = [mine - others for mine, others in zip(own, rest, strict=True)]
    parts = _parts(excess, _CHANGE * max(median(rest), LEAST_EXCESS))
    begin, end = parts[-1]
    if not _is_slow(own, rest, excess, begin, end):
        return None
    first = begin
    for start, stop in reversed(parts[:-1]):
        if not _is_slow(own, rest, excess, start, stop):
            break
        first = start
    at = first * steps.period
    if end - first < LEAST_STEPS or steps.times[-1] - steps.times[at] < LEAST_SECONDS:
        return None
    mine, others = median(own[begin:end]), median(rest[begin:end])
    return SlowRank(
        rank,
        mine / others if others > 0 else float("inf"),
        mine,
        others,
        steps.numbers[at] if first else None,
        steps.times[at],
        end - first,
    )


def _is_slow(
    own: Sequence[float], rest: Sequence[float], excess: Sequence[float], begin: int, end: int
) -> bool:
    usual = median(excess[begin:end])
    steady = sum(each >= usual / 2 for each in excess[begin:end])
    return (
        usual >= LEAST_EXCESS
        and median(own[begin:end]) >= FACTOR * median(rest[begin:end])
        and steady >= STEADY * (end - begin)
    )


def _parts(values: Sequence[float], least: float) -> list[tuple[int, int]]:
    """[begin, end) of the parts between which the values change by at least ``least``, by their medians."""
    parts, begin = [], 0
    while (change := _change(values[begin:], least)) is not None:
        parts.append((begin, begin + change))
        begin += change
    return [*parts, (begin, len(values))]


def _change(values: Sequence[float], least: float) -> int | None:
    """The place where a series changes, by Pettitt's test (1979): by the order of the values, so that a few
    which are far off do not count. None: nowhere.
    """
    n = len(values)
    if n < LEAST_STEPS:
        return None
    order = sorted(range(n), key=values.__getitem__)
    place = [0] * n
    for position, index in enumerate(order, 1):
        place[index] = position
    total, most, at = 0, 0, 0
    for k in range(1, n):
        total += place[k - 1]
        if (deviation := abs(2 * total - k * (n + 1))) > most:
            most, at = deviation, k
    if 2 * exp(-6 * most**2 / (n**3 + n**2)) > _CHANCE:
        return None
    before, after = median(values[:at]), median(values[at:])
    return _boundary(values, before, after) if abs(after - before) >= least else None


def _boundary(values: Sequence[float], before: float, after: float) -> int:
    """The place where a series goes over from about one value to about another: the test's own place is vague
    where one part is much longer.
    """
    step = abs(after - before)
    nearer = [min(abs(value - after), step) - min(abs(value - before), step) for value in values]
    sums = [*accumulate(nearer)]
    return sums.index(max(sums[:-1])) + 1
