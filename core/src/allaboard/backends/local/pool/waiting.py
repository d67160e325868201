"""Reasons for which a gang waits for slots: its place in the queue, the slots that it lacks, and their
holders. Pure functions of values. Only the slots that a gang needs to start count: an elastic gang's minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from allaboard.backends.local.host.machine import Capacity
from allaboard.backends.local.pool.admission import Claim, Need, Used
from allaboard.text.units import place_in_line, show_bytes

FIRST_COME = "slots of one machine go to whoever came first"
STARTS = "this machine has room for it, and it starts"
_NAMED = 3
"""Number of holders that are named."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of slots. ``name``: of a run, for people; ``user``: None if it is the reader."""

    name: str
    used: Used
    user: str | None = None

    def __str__(self) -> str:
        return self.name if self.user is None else f"{self.name} of user {self.user}"

    def has(self, kind: str, capacity: Capacity) -> bool:
        """Return whether it holds slots of a kind that another run may use."""
        if kind == "gpu":
            return not self.used.gpus.isdisjoint(capacity.gpus)
        return bool(self.used.cpu if kind == "cpu" else self.used.memory)


def start_of(claim: Claim) -> Need:
    """Sum of the resources that a gang needs to start."""
    first = claim.members[: claim.minimum]
    asked = Used().plus(first)
    return Need(asked.cpu, asked.memory, sum(member.gpu for member in first))


def why_waiting(asked: Need, capacity: Capacity, used: Used, holders: Sequence[Holder], before: int) -> str:
    """One sentence. ``used``: all slots that are taken; ``holders``: by whom, oldest first; ``before``: how
    many that compete with it came earlier.
    """
    line = f"this machine holds it back{place_in_line(before)}"
    lacks = _lacking(asked, capacity, used)
    if lacks:
        having = [h for h in holders if any(h.has(kind, capacity) for kind in lacks)]
        return f"{line}: it needs {', '.join(lacks.values())}, which {_who(having)}"
    if before:
        return f"{line}: there is room for it, and it would delay {'that one' if before == 1 else 'those'}"
    return STARTS


def _lacking(asked: Need, capacity: Capacity, used: Used) -> Mapping[str, str]:
    """Kind of slots -> how much more it needs than is free, in words."""
    cpu = round((asked.cpu or 0) + used.cpu - capacity.cpu, 3)
    memory = (asked.memory or 0) + used.memory - capacity.memory
    gpu = asked.gpu - sum(gpu not in used.gpus for gpu in capacity.gpus)
    lacks = {
        "cpu": f"{cpu:g} more core{'s' if cpu != 1 else ''}" if asked.cpu and cpu > 0 else "",
        "memory": f"{show_bytes(memory)} more memory" if asked.memory and memory > 0 else "",
        "gpu": f"{gpu} more GPU{'s' if gpu != 1 else ''}" if asked.gpu and gpu > 0 else "",
    }
    return {kind: text for kind, text in lacks.items() if text}


def _who(holders: Sequence[Holder]) -> str:
    """``run a uses``, ``run a and run b of user anna use``, ``run a, run b, run c and 2 more use``."""
    names = [str(holder) for holder in holders[:_NAMED]]
    more = len(holders) - len(names)
    if more:
        names.append(f"{more} more")
    if not names:
        return "others use"
    if len(names) == 1:
        return f"{names[0]} uses"
    return f"{', '.join(names[:-1])} and {names[-1]} use"


def places(kinds: Iterable[str]) -> Iterator[int]:
    """For each of a queue, oldest first, how many before it compete with it. ``kinds``: a letter for each
    kind of slots that it asks for; none for one that asks for nothing.
    """
    counts: dict[str, int] = {}
    for mine in kinds:
        yield sum(count for theirs, count in counts.items() if set(mine) & set(theirs))
        counts[mine] = counts.get(mine, 0) + 1
