"""Whatever a snapshot holds, the doctor answers: truncated, contradictory, of the wrong kinds, huge,
binary."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from allaboard.backends.kubernetes.observe.snapshot import read_snapshot
from allaboard.diagnosis import diagnose
from allaboard.diagnosis.logs import _alternatives, _hint
from allaboard.diagnosis.reading import SECONDARY
from tests.core.diagnosis.building import job, pod, snapshot
from tests.core.diagnosis.cases import CASES

WRONG: list[Any] = [
    None, "", "x" * 5000, -1, 2**80, 1.5, True, [], {}, [[]], {"a": {"b": []}}, ["x", 3, None],
    "\x00\xff\u2028\ud800",
    "9999-99-99T99:99:99Z",
    "0001-01-01T00:00:00Z", float("nan"),
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        found += [p for k, v in value.items() for p in places(v, (*path, k))]
    if isinstance(value, list):
        found += [p for n, v in enumerate(value) for p in places(v, (*path, n))]
    return found


def broken(rng: random.Random, whole: dict[str, Any]) -> dict[str, Any]:
    """The same with some of its places missing, of another kind, or as in another snapshot."""
    made = copy.deepcopy(whole)
    for _ in range(rng.randint(1, 4)):
        *parents, last = rng.choice(places(made))
        holder: Any = made
        for key in parents:
            holder = holder[key]
        how = rng.random()
        if how < 0.3 and isinstance(holder, dict):
            del holder[last]
        elif how < 0.9:
            holder[last] = copy.deepcopy(rng.choice(WRONG))
        elif isinstance(holder, list):
            holder.extend(copy.deepcopy(holder))
        if not places(made):
            break
    return made


def looked_at(snap: dict[str, Any]) -> None:
    found = diagnose(read_snapshot(snap), thorough=True)
    assert found and found[0].code
    for one in found:
        assert one.evidence or one.code == "unknown", one
        assert len(one.summary) < 2000 and all(len(e.text) < 5000 for e in one.evidence)


@pytest.mark.parametrize("seed", range(4))
def test_broken_snapshots(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        looked_at(broken(rng, rng.choice(CASES).snapshot))


def test_parts_of_different_snapshots() -> None:
    rng = random.Random(7)
    for _ in range(60):
        one, other = rng.choice(CASES).snapshot, rng.choice(CASES).snapshot
        looked_at({**one, **{k: v for k, v in other.items() if rng.random() < 0.5}})


@pytest.mark.parametrize(
    "part",
    ["job", "pods", "events", "nodes", "podgroups", "workloads", "queues", "pvcs", "logs", "submit_error"],
)
@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_a_part_of_the_wrong_kind(part: str, wrong: Any) -> None:
    looked_at({**snapshot(job("Created"), pod("master-0")), part: wrong})


def test_nothing_at_all_is_unknown() -> None:
    found = diagnose(read_snapshot({}), thorough=True)
    assert [d.code for d in found] == ["unknown"] and found[0].confidence <= 0.5


@pytest.mark.parametrize(
    "log",
    [
        "A" * 1_000_000,
        "Error: " * 100_000,
        "Traceback (most recent call last):\n" * 20_000,
        '  File "' * 50_000,
        "\x00\x01\xff\n" * 100_000,
        "İ" * 5000 + "\nValueError: x",
        "[rank1]: " * 100_000,
        "(((((" * 100_000,
        "0/9 nodes are available: " + "1 x, " * 50_000,
        "\ud800\udfff No space left on device",
    ],
    ids=range(10),
)
def test_hostile_logs(log: str) -> None:
    looked_at(
        snapshot(job("Created", "Failed"), pod("master-0", "Failed", exit_code=1), logs={"master-0": log})
    )


def test_hints_are_in_what_patterns_find() -> None:
    """A line is searched only where a hint occurs: each alternative's own must be in whatever it finds."""
    for text in ("Connection closed by peer", "Broken pipe", "got signal: 15", "ProcessGroup x closed"):
        assert SECONDARY.pattern.search(text)
        assert any(hint in text.lower() for hint in SECONDARY.hints)
    assert [*_alternatives(r"a(b|c)|d\|e|[f|g]")] == [r"a(b|c)", r"d\|e", "[f|g]"]
    assert (
        _hint(r"exitcode\s*: -9") == "exitcode"
        and _hint(r"colou?r of it") == "r of it"
        and _hint(r"\d+") is None
    )
