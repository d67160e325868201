"""The collective at which ranks part. ``recorded.jsonl`` has what torch 2.15 told of real gangs over gloo
(`tests.core.diagnosis.recording`); the gangs over NCCL are written down from what others published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from allaboard.diagnosis import stacks
from allaboard.diagnosis.recorder import (
    GroupRecord,
    Kind,
    Parting,
    parting_of,
    pending_collective,
    read_records,
    records_from_dicts,
)
from allaboard.diagnosis.stacks import ProcessLook, cause_of_hang, from_dicts, hang_over, to_dicts
from allaboard.follow.stall import stall_of
from tests.core.diagnosis.test_stacks import ALL_REDUCE, LOAD, look

ITEM = """Current thread 0x00007f00ea3c1b80 (most recent call first):
  File "/job/train.py", line 30 in log
  File "/job/train.py", line 44 in <module>
"""


@cache
def recorded() -> Mapping[str, Mapping[int, tuple[GroupRecord, ...]]]:
    lines = (Path(__file__).parent / "recorded.jsonl").read_text().splitlines()
    gangs = [json.loads(line) for line in lines]
    return {
        gang["gang"]: {int(rank): read_records(answer) for rank, answer in gang["ranks"].items()}
        for gang in gangs
    }


def nccl(entered: int, done: int, *calls: tuple[str, list[int], str], pg_id: int = 0, **more: Any) -> str:
    """The answer of a rank over NCCL; ``calls``: the last ones, with their sizes and states."""
    entries = [
        {
            "pg_id": pg_id,
            "process_group": [str(pg_id), "default_pg" if pg_id == 0 else "undefined"],
            "collective_seq_id": entered - len(calls) + 1 + n,
            "is_p2p": False,
            "profiling_name": f"nccl:{name}",
            "input_sizes": [sizes],
            "input_dtypes": ["Float"],
            "state": state,
            "retired": state == "completed",
            **more,
        }
        for n, (name, sizes, state) in enumerate(calls)
    ]
    status = {"last_enqueued_collective": str(entered), "last_completed_collective": str(done)}
    dump = {"version": "2.10", "pg_config": {}, "pg_status": {str(pg_id): status}, "entries": entries}
    return "\n" + json.dumps(dump) + "\n"


def parted(ranks: Mapping[int, str]) -> Parting | None:
    return parting_of({rank: read_records(answer) for rank, answer in ranks.items()})


@pytest.mark.parametrize(
    ("gang", "kind", "number", "blame"),
    [
        ("late_at_the_14th", Kind.BEHIND, 14, (2,)),
        ("another_operation", Kind.MISMATCH, 21, (1,)),
        ("late_in_one_of_two_groups", Kind.BEHIND, 10, (3,)),
        ("never_came", Kind.BEHIND, 1, (3,)),
    ],
)
def test_ranks_over_gloo_as_they_were_recorded(
    gang: str, kind: Kind, number: int, blame: tuple[int, ...]
) -> None:
    parts = parting_of(recorded()[gang])
    assert parts is not None and parts.operation == "all_reduce"
    assert (parts.kind, parts.number, parts.blame) == (kind, number, blame)


def test_a_rank_that_has_enqueued_less_over_nccl_is_behind() -> None:
    """The numbers of a rank in NVIDIA/nccl#1730: 120 more were enqueued behind the one that timed out."""
    ahead = nccl(2398578, 2398458, *[("all_reduce", [8652160], "scheduled")] * 3)
    late = nccl(2398458, 2398458, ("all_reduce", [8652160], "completed"))
    parts = parted({0: ahead, 1: ahead, 2: late, 118: ahead})
    assert parts is not None and parts.kind is Kind.BEHIND
    assert (parts.number, parts.blame, parts.inside) == (2398459, (2,), (0, 1, 118))


def test_ranks_over_nccl_that_give_other_sizes_do_not_agree() -> None:
    """As in pytorch/pytorch#140563: number 39, where most gave 1025 numbers and some gave 262144."""
    usual, other = (nccl(39, 38, ("all_reduce", [size], "scheduled")) for size in (1025, 262144))
    ranks = {rank: other if rank in (22, 110) else usual for rank in range(128)}
    parts = parted(ranks)
    assert parts is not None and parts.kind is Kind.MISMATCH
    assert (parts.number, parts.blame) == (39, (22, 110))
    of_two = parted({0: usual, 1: other})
    assert of_two is not None and (of_two.kind, of_two.blame) == (Kind.MISMATCH, ())


def of_torch_2_5(entered: int, done: int) -> str:
    """A whole dump over NCCL as PyTorch's tutorial of the flight recorder prints it, with other numbers."""
    entry = {
        "frames": [{"name": "all_reduce", "filename": "torch/distributed/distributed_c10d.py", "line": 2696}],
        "record_id": entered - 1, "pg_id": 0, "process_group": ["0", "default_pg"],
        "collective_seq_id": entered, "p2p_seq_id": 0, "op_id": entered, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1724779239936775119, "input_sizes": [[3, 4]], "input_dtypes": ["Float"],
        "output_sizes": [[3, 4]], "output_dtypes": ["Float"],
        "state": "completed" if entered == done else "scheduled", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1724779239975811724 if entered == done else None,
        "retired": entered == done, "timeout_ms": 600000, "is_p2p": False,
    }  # fmt: skip
    status = {
        "last_enqueued_collective": entered, "last_started_collective": -1, "last_completed_collective": done,
    }  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return json.dumps({"version": "2.5", "pg_config": config, "pg_status": {"0": status}, "entries": [entry]})


@pytest.mark.parametrize("words", [False, True], ids=["numbers", "words"])
def test_a_whole_dump_of_torch_over_nccl_tells_who_has_not_entered(words: bool) -> None:
    """In the tutorial, rank 0 does a collective of which rank 1 knows nothing. Pickles hold numbers, and
    `_dump_nccl_trace_json` writes them as texts.
    """
    dumps = {0: of_torch_2_5(5, 4), 1: of_torch_2_5(4, 4)}
    if words:
        dumps = {rank: re.sub(r'("last_\w+": )(-?\d+)', r'\1"\2"', dump) for rank, dump in dumps.items()}
    parts = parted({rank: f"\n{dump}\n" for rank, dump in dumps.items()})
    assert parts is not None and parts.kind is Kind.BEHIND
    assert (parts.operation, parts.number, parts.blame, parts.inside) == ("all_reduce", 5, (1,), (0,))


def test_sizes_may_differ_where_ranks_give_different_shares() -> None:
    shares = {rank: nccl(7, 6, ("all_to_all", [rank + 1], "scheduled")) for rank in range(3)}
    parts = parted(shares)
    assert parts is not None and parts.kind is Kind.STUCK and parts.blame == ()


def test_a_gpu_that_has_not_begun_what_others_have_is_behind() -> None:
    begun, idle = (
        nccl(812, 811, ("_all_gather_base", [64, 64], state)) for state in ("started", "scheduled")
    )
    parts = parted({0: begun, 1: begun, 2: idle, 3: begun})
    assert parts is not None and parts.kind is Kind.GPU_BEHIND
    assert (parts.blame, parts.inside) == ((2,), (0, 1, 3))


def test_all_that_have_entered_one_that_does_not_end_are_stuck() -> None:
    same = nccl(9, 8, ("all_reduce", [4], "scheduled"))
    parts = parted({0: same, 1: same})
    assert parts is not None and (parts.kind, parts.number, parts.blame) == (Kind.STUCK, 9, ())


def test_nothing_is_said_of_ranks_that_go_on_or_write_to_each_other() -> None:
    rests = nccl(9, 9, ("all_reduce", [4], "completed"))
    assert parted({0: rests, 1: rests}) is None
    writes = nccl(9, 8, ("send", [4], "scheduled"), is_p2p=True)
    assert parted({0: writes, 1: rests}) is None
    of_one = nccl(9, 8, ("all_reduce", [4], "scheduled"), pg_id=7)
    assert parted({0: of_one, 1: "\n\n"}) is None, "who else is in that group is not known"


def test_the_number_of_a_collective_is_the_first_that_is_not_done() -> None:
    counted = '{"pg_status":{"0":{"last_completed_collective":"%d","last_enqueued_collective":"%d"}}}'

    def pending(text: str) -> int | None:
        return pending_collective(read_records(text))

    assert pending(counted % (811, 812)) == pending(counted % (811, 815)) == 812
    assert pending("\n" + counted % (811, 812) + "\n") == 812, "of NCCL"
    assert pending(counted % (-1, 1)) == 1
    assert pending(counted % (812, 812)) is None
    assert pending(f"{counted % (4, 5)}\n{counted % (2, 3)}\n") is None, "of which it waits for is not known"


HOSTILE = (
    "", "[]", "{", '{"pg_status":[1]}', '{"pg_status":{"0":{"last_enqueued_collective":"x"}}}', "\n" * 50,
    '{"pg_status":{},"entries":[{"pg_id":{}}]}', '{"pg_status":{},"entries":5}', "[" * 5000,
    '{"pg_status":{"0":{"last_enqueued_collective":1e999,"last_completed_collective":0}}}',
    '{"pg_status":{"0":{"last_enqueued_collective":1,"last_completed_collective":0}},"pg_config":5}',
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_rank_answers_is_not_trusted(text: str) -> None:
    assert all(isinstance(each, GroupRecord) for each in read_records(text))
    assert parting_of({0: read_records(text), 1: read_records(text)}) is None


# --- with the stacks ----------------------------------------------------------------------------------------


def over_nccl(rank: int, text: str, answer: str, **more: Any) -> ProcessLook:
    records = read_records(answer)
    return look(rank, text, records=records, pending=pending_collective(records), **more)


AHEAD = nccl(813, 811, ("all_reduce", [4], "scheduled"), ("all_reduce", [4], "scheduled"))
LATE = nccl(811, 811, ("all_reduce", [4], "completed"))


def test_a_rank_over_nccl_is_told_though_the_others_wait_at_a_later_line() -> None:
    """Their main threads ask the GPU again and again, which looks like a computation."""
    spins = {"state": "R", "busy": 1.0}
    held = [over_nccl(0, ITEM, AHEAD, **spins), over_nccl(1, ITEM, AHEAD, **spins), over_nccl(2, LOAD, LATE)]
    cause = cause_of_hang(held)
    assert cause is not None and cause.blame == (2,)
    assert cause.summary == (
        "rank 2 has not entered all_reduce number 812: it waits at data.py:6 `load`; "
        "ranks 0, 1 wait for it at train.py:30"
    )
    assert hang_over([held, held, held]) == cause
    moves = [*held[:2], replace(held[2], busy=0.9)]
    assert hang_over([held, moves, held]) is None
    stall = stall_of(held, 1000.0, sure=False)
    assert stall is not None and stall.blame == "rank 2"


def test_ranks_that_wait_in_several_groups_are_told() -> None:
    """A rank has enqueued in two groups, of which one waits for the other; its line in a loop changes."""
    ahead = (*read_records(AHEAD), *read_records(nccl(31, 29, ("all_reduce", [8], "scheduled"), pg_id=4)))
    rounds = []
    for line in ("30", "31", "30"):
        waits = look(0, ITEM.replace("30", line), records=ahead, busy=1.0, state="R")
        rounds.append([waits, over_nccl(1, LOAD, LATE)])
    cause = hang_over(rounds)
    assert cause is not None and cause.blame == (1,)
    assert cause.summary.startswith("rank 1 has not entered all_reduce: it waits at data.py:6 `load`")
    moved = replace(rounds[1][0], records=read_records(nccl(813, 812, ("all_reduce", [4], "scheduled"))))
    assert hang_over([rounds[0], [moved, rounds[1][1]], rounds[2]]) is None


def test_ranks_over_nccl_at_different_lines_may_wait_for_one_collective() -> None:
    held = [over_nccl(0, ITEM, AHEAD, busy=1.0), over_nccl(1, ITEM.replace("30", "61"), AHEAD, busy=1.0)]
    cause = cause_of_hang(held)
    assert cause is not None and not cause.mismatch and not cause.blame
    assert cause.summary.startswith("all 2 ranks that answered wait in all_reduce")
    stall = stall_of(held, 1000.0, sure=False)
    assert stall is not None, "they do not compute"


def test_ranks_that_do_not_agree_are_told_with_their_sizes() -> None:
    usual, other = (nccl(39, 38, ("all_reduce", [size], "scheduled")) for size in (1025, 262144))
    held = [over_nccl(rank, ITEM, other if rank == 1 else usual, busy=1.0) for rank in range(3)]
    cause = cause_of_hang(held)
    assert cause is not None and cause.mismatch and cause.blame == (1,)
    assert cause.summary == (
        "ranks do not agree: collective number 39 is all_reduce of [1025] Float on ranks 0, 2 and "
        "all_reduce of [262144] Float on rank 1"
    )
    assert hang_over([held, held, held]) == cause


def test_a_gpu_that_is_behind_is_told_with_the_line_of_its_rank() -> None:
    begun, idle = (nccl(812, 811, ("all_reduce", [4], state)) for state in ("started", "scheduled"))
    cause = cause_of_hang([over_nccl(0, ITEM, begun), over_nccl(1, ITEM, idle), over_nccl(2, ITEM, begun)])
    assert cause is not None and cause.blame == (1,)
    assert cause.summary.startswith("rank 1 enqueued all_reduce number 812, but its GPU has not begun it")


def test_stacks_alone_count_where_a_rank_tells_no_collectives() -> None:
    held = [look(0, ALL_REDUCE, pending=812), over_nccl(1, LOAD, LATE)]
    cause = cause_of_hang(held)
    assert cause is not None and cause.blame == (1,) and "all_reduce number 812" in cause.summary


def test_records_of_a_snapshot_are_read_back_and_hostile_ones_left_out() -> None:
    held = (over_nccl(0, ITEM, AHEAD), over_nccl(1, LOAD, LATE))
    assert from_dicts(json.loads(json.dumps(to_dicts(held)))) == held
    assert records_from_dicts([asdict(each) for each in held[0].records or ()]) == held[0].records
    hostile: list[object] = [5, [5], [{"backend": "gloo"}], [[]], "x"]
    for value in hostile:
        assert records_from_dicts(value) is None
    assert records_from_dicts(None) is None and records_from_dicts([]) == ()
    assert stacks.positions(held)[0].operation == "all_reduce"
