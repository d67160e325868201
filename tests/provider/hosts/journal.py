"""What really trained, where and when: read from what the members themselves wrote (`dags/journaled.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

BREATH = 0.05
"""Seconds that two intervals may share by the granularity of clocks."""


@dataclass(frozen=True)
class Member:
    """One process of a training, from its first line to its last. ``ended``: it wrote that it ended well;
    ``read``: the texts of the data in its model.
    """

    host: str
    pid: int
    run: str
    attempt: int
    generation: int
    rank: int
    began: float
    last: float
    first_step: int
    last_step: int
    ended: bool
    read: tuple[str, ...] = ()

    @property
    def training(self) -> tuple[str, str, int, int]:
        return self.host, self.run, self.generation, self.attempt

    def __str__(self) -> str:
        return (
            f"rank {self.rank} on {self.host} (pid {self.pid}), generation {self.generation}, "
            f"attempt {self.attempt}, steps {self.first_step} to {self.last_step}, "
            f"{self.began:.1f} to {self.last:.1f}" + (", to its end" if self.ended else "")
        )


def members(gate: Path) -> list[Member]:
    """In the order of their beginnings."""
    found = (_member(file) for file in (gate / "journal").glob("*"))
    return sorted((one for one in found if one is not None), key=lambda one: one.began)


def _member(file: Path) -> Member | None:
    # The last line may be half written.
    lines = [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    if not lines:
        return None
    first, last = lines[0], lines[-1]
    return Member(
        *(first[name] for name in ("host", "pid", "run", "attempt", "generation", "rank")),
        began=first["time"],
        last=last["time"],
        first_step=first["step"],
        last_step=last["step"],
        ended=last["what"] == "end",
        read=tuple(last["read"]),
    )


def trainings(seen: Iterable[Member]) -> list[tuple[str, str, int, int]]:
    """Each start of a gang, in order."""
    return list(dict.fromkeys(one.training for one in seen))


def two_at_once(seen: Sequence[Member]) -> list[str]:
    """Every pair of processes that trained at the same time and were not ranks of one gang."""
    return [
        f"{one}; and {other}"
        for one, other in combinations(seen, 2)
        if min(one.last, other.last) - max(one.began, other.began) > BREATH
        and not (one.training == other.training and one.rank != other.rank)
    ]
