"""The collective at which ranks part, by what torch's flight recorder tells of each: who has not entered it,
who calls another one, whose GPU has not begun it. Values in, values out; `allaboard.backends` asks the ranks.

Read from the JSON of torch 2.5 to 2.15 (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp). It is the same
for gloo and NCCL. Python of a rank over NCCL goes on after it has enqueued a collective and waits somewhere
later, as in ``loss.item()``: there the stacks alone do not tell who is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from allaboard.text.untrusted import Limits, Unreadable, parse_json

BACKENDS = ("gloo", "nccl")
"""An answer has a line for each of these, in this order; what a rank does not use is absent or empty."""
MOST_LAST, MOST_GROUPS = 16, 64
"""Collectives of one group, and groups of one rank, that are kept."""
_DUMP = Limits(size=1 << 23, depth=8, values=400_000, digits=20)
_DEFAULT = "0"
"""The id, and the name, of the group of all ranks."""
_ALIKE = frozenset(
    {
        "all_reduce", "allreduce", "broadcast", "reduce", "all_gather", "allgather", "_all_gather_base",
        "reduce_scatter", "_reduce_scatter_base", "all_reduce_barrier", "barrier",
    }
)  # fmt: skip
"""Collectives to which every rank of a group gives tensors of the same sizes."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of one rank. ``number``: in its group; ``given``: the sizes and types of its tensors, in
    words; ``has_begun``: its GPU works at it, as far as torch can tell.
    """

    number: int
    operation: str
    given: str
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The collectives of one rank in one group. ``ranks``: its members, empty where that is not known;
    ``entered``, ``done``: the numbers of the last ones, 0 for none; ``last``: the last ones themselves;
    ``is_mixed``: ranks write to each other in it, too, and its numbers cannot be compared.
    """

    backend: str
    name: str
    title: str
    ranks: tuple[int, ...]
    entered: int
    done: int
    last: tuple[Collective, ...] = ()
    is_mixed: bool = False

    @property
    def pending(self) -> int | None:
        """The number of the first collective that is entered and not done."""
        return self.done + 1 if self.entered > self.done else None

    @property
    def waits_in(self) -> str | None:
        """The name of the first collective that is entered and not done; None: there is none."""
        if self.pending is None:
            return None
        call = self.at(self.pending)
        return "collective" if call is None else call.operation

    def at(self, number: int) -> Collective | None:
        return next((each for each in self.last if each.number == number), None)


class Kind(IntEnum):
    """The ways in which ranks part, the surest first."""

    BEHIND = 0
    MISMATCH = 1
    GPU_BEHIND = 2
    BEHIND_ELSEWHERE = 3
    STUCK = 4


@dataclass(frozen=True, slots=True)
class Parting:
    """The collective at which ranks part. ``blame``: the ranks to look at, none where no rank differs;
    ``inside``: those that have entered it and wait; ``calls``: rank -> its collective there.
    """

    kind: Kind
    number: int
    operation: str
    group: str
    blame: tuple[int, ...]
    inside: tuple[int, ...]
    calls: Mapping[int, Collective]


def read_records(text: str) -> tuple[GroupRecord, ...]:
    """The groups of one rank in its answer, which anybody may have written. Lines of another form count as
    empty.
    """
    records: list[GroupRecord] = []
    for backend, line in zip(BACKENDS, text.split("\n"), strict=False):
        try:
            dump = parse_json(line, _DUMP, spelling=False, unique=False, any_text=True)
            records += list(_groups(backend, dump))[:MOST_GROUPS]
        except (Unreadable, TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError):
            continue
    return tuple(records)


def pending_collective(records: Sequence[GroupRecord]) -> int | None:
    """The number of the first collective that a rank has entered and that is not done. None: it waits in
    none, or in those of several groups.
    """
    pending = [each.pending for each in records if each.pending is not None]
    return pending[0] if len(pending) == 1 else None


def parting_of(ranks: Mapping[int, Sequence[GroupRecord]]) -> Parting | None:
    """The collective at which the ranks part. ``ranks``: rank -> its groups, at a moment when none of them
    goes on. None: no rank waits in a collective whose number can be compared.
    """
    groups = {(each.backend, each.name): each for records in ranks.values() for each in records}
    partings = [parting for key in groups if (parting := _judge(key, ranks)) is not None]
    return min(partings, key=lambda each: (each.kind, each.number), default=None)


def _judge(key: tuple[str, str], ranks: Mapping[int, Sequence[GroupRecord]]) -> Parting | None:
    own = {
        rank: each for rank, groups in ranks.items() for each in groups if (each.backend, each.name) == key
    }
    waiting = {rank: number for rank, each in own.items() if (number := each.pending) is not None}
    if not waiting or any(each.is_mixed for each in own.values()):
        return None
    number = min(waiting.values())
    inside = sorted(rank for rank, pending in waiting.items() if own[rank].entered >= number)
    calls = {rank: call for rank in inside if (call := own[rank].at(number)) is not None}
    title = next(iter(own.values())).title
    operation = Counter(call.operation for call in calls.values()).most_common(1)
    name = operation[0][0] if operation else "collective"
    named = next((each.ranks for each in own.values() if each.ranks), ())
    members = named or (tuple(ranks) if key[1] == _DEFAULT else tuple(own))
    behind = [rank for rank in members if rank in ranks and _last(own.get(rank)) < number]
    if behind:
        free = [rank for rank in behind if all(each.pending is None for each in ranks[rank])]
        kind = Kind.BEHIND if free else Kind.BEHIND_ELSEWHERE
        return Parting(kind, number, name, title, tuple(free or behind), tuple(inside), calls)
    if any(rank not in ranks for rank in members) or len(own) < 2:
        return None  # of one of them nobody knows where it is
    odd = _odd(calls)
    if odd is not None:
        return Parting(Kind.MISMATCH, number, name, title, odd, tuple(inside), calls)
    idle = tuple(rank for rank, call in calls.items() if not call.has_begun)
    if 0 < len(idle) < len(calls):
        busy = tuple(rank for rank in inside if rank not in idle)
        return Parting(Kind.GPU_BEHIND, number, name, title, idle, busy, calls)
    return Parting(Kind.STUCK, number, name, title, (), tuple(inside), calls)


def _last(record: GroupRecord | None) -> int:
    return 0 if record is None else record.entered


def _odd(calls: Mapping[int, Collective]) -> tuple[int, ...] | None:
    """The ranks whose call differs from that of most others, none where there is no most; None: all agree."""
    kinds = Counter(_call(call) for call in calls.values())
    if len(kinds) < 2:
        return None
    usual, times = kinds.most_common(1)[0]
    return tuple(r for r, call in calls.items() if _call(call) != usual) if 2 * times > len(calls) else ()


def _call(call: Collective) -> str:
    return f"{call.operation} {call.given}" if call.operation in _ALIKE else call.operation


def _groups(backend: str, dump: Any) -> Iterator[GroupRecord]:
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for entry in dump.get("entries") or ():
        entries.setdefault(str(int(entry["pg_id"])), []).append(entry)
    for number, status in dump["pg_status"].items():
        mine = entries.get(number, [])
        name, title = mine[-1]["process_group"] if mine else (str(number), "")
        last = [_collective(entry) for entry in mine if not entry["is_p2p"]][-MOST_LAST:]
        # Threads of gloo count what is done each for itself: the number may be that of an earlier one.
        done = [int(entry["collective_seq_id"]) for entry in mine if _is_done(backend, entry)]
        yield GroupRecord(
            backend,
            str(name)[:200],
            str(title)[:200],
            _ranks((dump.get("pg_config") or {}).get(name)),
            max(0, int(status["last_enqueued_collective"])),
            max([0, int(status["last_completed_collective"]), *done]),
            tuple(last),
            any(entry["is_p2p"] for entry in mine),
        )


def _is_done(backend: str, entry: Mapping[str, Any]) -> bool:
    """Gloo tells no state, and retires what is done; NCCL also retires what has timed out."""
    return entry["state"] == "completed" or (backend == "gloo" and entry.get("retired") is True)


def _collective(entry: Mapping[str, Any]) -> Collective:
    sizes = " ".join(str([int(side) for side in size][:8]) for size in entry["input_sizes"][:4])
    types = " ".join(str(each)[:20] for each in dict.fromkeys(entry["input_dtypes"][:4]))
    return Collective(
        int(entry["collective_seq_id"]),
        str(entry["profiling_name"]).rpartition(":")[2][:60],
        f"{sizes} {types}".strip(),
        entry["state"] != "scheduled",
    )


def _ranks(config: Any) -> tuple[int, ...]:
    """``[0, 1]``, as text or as a list; empty where it is neither."""
    if not isinstance(config, Mapping):
        return ()
    ranks = config.get("ranks", "")
    numbers = ranks.strip("[]").split(",") if isinstance(ranks, str) else ranks
    return tuple(int(number) for number in numbers if str(number).strip().isdecimal())


def records_from_dicts(value: Any) -> tuple[GroupRecord, ...] | None:
    """The groups of one rank in a snapshot, which anybody may have written. None: they are not known, or
    malformed.
    """
    try:
        return tuple(
            GroupRecord(
                str(group["backend"])[:20],
                str(group["name"])[:200],
                str(group["title"])[:200],
                tuple(int(rank) for rank in group["ranks"]),
                int(group["entered"]),
                int(group["done"]),
                tuple(
                    Collective(
                        int(each["number"]),
                        str(each["operation"])[:60],
                        str(each["given"])[:400],
                        bool(each["has_begun"]),
                    )
                    for each in group["last"][:MOST_LAST]
                ),
                bool(group["is_mixed"]),
            )
            for group in value[:MOST_GROUPS]
        )
    except (TypeError, ValueError, KeyError, OverflowError, AttributeError):
        return None
