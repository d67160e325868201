"""Which rank holds up the others, by what faulthandler writes of each; the texts are those of torch 2.15."""

from __future__ import annotations

import json

import pytest

from allaboard.diagnosis import stacks
from allaboard.diagnosis.stacks import (
    Frame,
    ProcessLook,
    cause_of_hang,
    from_dicts,
    main_thread,
    positions,
    to_dicts,
)

TORCH = "/venv/lib/python3.11/site-packages/torch"
ALL_REDUCE = f"""Current thread 0x00007f00ea3c1b80 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 4181 in all_reduce
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/job/train.py", line 23 in <module>
"""
BARRIER = f"""Current thread 0x00007f00ea3c1b80 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 5512 in barrier
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/job/train.py", line 11 in save
  File "/job/train.py", line 25 in <module>
"""
BACKWARD = f"""Current thread 0x00007f38579e8b80 (most recent call first):
  File "{TORCH}/autograd/graph.py", line 1113 in _engine_run_backward
  File "{TORCH}/autograd/__init__.py", line 395 in backward
  File "{TORCH}/_tensor.py", line 623 in backward
  File "/job/train.py", line 18 in <module>
"""
LOAD = """Thread 0x00007fd7f0000640 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/job/prefetch.py", line 9 in run

Current thread 0x00007fd80e89ab80 (most recent call first):
  File "/job/data.py", line 6 in load
  File "/job/train.py", line 22 in <module>
"""
LOADER = f"""Current thread 0x00007fd80e89ab80 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 930 in wait
  File "{TORCH}/utils/data/dataloader.py", line 1284 in _try_get_data
  File "/job/train.py", line 16 in <module>
"""
AGENT = f"""Current thread 0x00007fd80e89ab80 (most recent call first):
  File "{TORCH}/distributed/elastic/agent/server/api.py", line 878 in _invoke_run
  File "{TORCH}/distributed/run.py", line 935 in main
"""


MEET = f"""Current thread 0x00007fd80e89ab80 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 757 in _create_gloo_process_group
  File "{TORCH}/distributed/distributed_c10d.py", line 2721 in init_process_group
  File "{TORCH}/distributed/c10d_logger.py", line 97 in wrapper
  File "/job/train.py", line 45 in main
"""
STORE = f"""Current thread 0x00007fd80e89ab80 (most recent call first):
  File "{TORCH}/distributed/rendezvous.py", line 215 in _create_c10d_store
  File "{TORCH}/distributed/rendezvous.py", line 296 in _env_rendezvous_handler
  File "{TORCH}/distributed/distributed_c10d.py", line 2714 in init_process_group
  File "{TORCH}/distributed/c10d_logger.py", line 97 in wrapper
  File "/job/train.py", line 45 in main
"""


def look(rank: int | None, text: str, *, pid: int = 0, parent: int = 1, **more: object) -> ProcessLook:
    values = {"state": "S", "busy": 0.0, **more}
    return ProcessLook(pid or 100 + (rank or 0), parent, rank, "worker-0", main_thread(text), **values)  # type: ignore[arg-type]


def said(*looks: ProcessLook) -> str:
    found = cause_of_hang(looks)
    assert found is not None
    return found.summary


def test_the_main_thread_is_the_last_one_and_its_frames_come_innermost_first() -> None:
    assert main_thread(LOAD) == (
        Frame("/job/data.py", 6, "load"),
        Frame("/job/train.py", 22, "<module>"),
    )


@pytest.mark.parametrize(
    "text", ["", "nothing of this kind", "Current thread", '  File "x", line', "\x00" * 99]
)
def test_what_is_no_stack_has_no_frames_and_no_cause(text: str) -> None:
    assert main_thread(text) == ()
    assert cause_of_hang([look(0, text), look(1, text)]) is None


def test_a_rank_that_has_not_entered_the_collective_is_to_blame() -> None:
    ranks = [look(r, LOAD if r == 2 else ALL_REDUCE) for r in range(4)]
    found = cause_of_hang(ranks)
    assert found is not None and found.blame == (2,) and not found.mismatch
    words = "rank 2 has not entered all_reduce: it waits at data.py:6 `load`; ranks 0, 1, 3 wait for it"
    assert found.summary == f"{words} at train.py:23"


def test_ranks_that_exchange_gradients_wait_in_backward() -> None:
    words = (
        "rank 1 has not entered backward: it waits at data.py:6 `load`; rank 0 waits for it at train.py:18"
    )
    assert said(look(0, BACKWARD), look(1, LOAD)) == words


def test_a_rank_that_computes_in_backward_does_not_wait() -> None:
    found = cause_of_hang([look(0, BACKWARD, busy=0.9), look(1, ALL_REDUCE)])
    assert found is not None and found.blame == (0,)
    assert "it computes at train.py:18" in found.summary


def test_ranks_in_different_collectives_do_not_match_and_the_odd_one_is_to_blame() -> None:
    found = cause_of_hang([look(r, BARRIER if r == 1 else ALL_REDUCE) for r in range(3)])
    assert found is not None and found.mismatch and found.blame == (1,)
    assert found.summary == (
        "ranks wait in different places: ranks 0, 2 wait in all_reduce at train.py:23 `<module>`; "
        "rank 1 waits in barrier at train.py:11 `save`"
    )


def test_of_two_ranks_in_different_collectives_neither_is_to_blame() -> None:
    found = cause_of_hang([look(0, ALL_REDUCE), look(1, BARRIER)])
    assert found is not None and found.mismatch and found.blame == ()


def test_all_in_one_collective_point_to_the_network_and_blame_nobody() -> None:
    found = cause_of_hang([look(0, ALL_REDUCE), look(1, ALL_REDUCE)])
    assert found is not None and found.blame == ()
    assert found.summary.startswith("all 2 ranks that answered wait in all_reduce at train.py:23")


def test_nobody_is_to_blame_where_no_rank_waits_for_another() -> None:
    found = cause_of_hang([look(0, LOAD), look(1, LOAD, busy=1.0)])
    assert found is not None and found.blame == ()
    assert found.summary == (
        "no rank waits for another: rank 0 waits at data.py:6 `load`; rank 1 computes at data.py:6 `load`"
    )


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("D", "it waits for a disk or a network file system at data.py:6"),
        ("T", "it is stopped at data.py:6"),
        ("R", "it computes at data.py:6"),
    ],
)
def test_the_kernel_tells_what_a_rank_does(state: str, words: str) -> None:
    assert words in said(look(0, ALL_REDUCE), look(1, LOAD, state=state))


def test_agents_and_workers_of_data_loaders_are_no_ranks() -> None:
    looks = [
        look(0, AGENT, pid=10),
        look(0, LOADER, pid=11, parent=10),
        look(0, LOAD, pid=12, parent=11),
        look(1, BACKWARD, pid=13, parent=10),
    ]
    assert [(each.rank, each.look.pid) for each in positions(looks)] == [(0, 11), (1, 13)]
    assert said(*looks) == (
        "rank 0 has not entered backward: it waits at train.py:16 `<module>` for a worker of its data "
        "loader, which waits at data.py:6 `load`; rank 1 waits for it at train.py:18"
    )


def test_many_ranks_are_not_all_named() -> None:
    looks = [look(r, LOAD if r == 40 else ALL_REDUCE) for r in range(64)]
    assert "ranks 0, 1, 2, 3 and 59 more wait for it" in said(*looks)


def test_a_name_that_a_script_chose_cannot_act_on_a_terminal() -> None:
    text = ALL_REDUCE.replace("<module>", "\x1b[2Jx")
    assert "\x1b" not in said(look(0, text), look(1, LOAD))


def test_looks_of_a_snapshot_are_read_back_and_hostile_ones_left_out() -> None:
    looks = (look(0, ALL_REDUCE), look(1, LOAD, busy=0.5), look(None, AGENT))
    written = json.loads(json.dumps(to_dicts(looks)))
    assert from_dicts(written) == looks
    hostile = [
        None,
        7,
        {},
        {**written[0], "frames": 3},
        {**written[0], "pid": "x"},
        {**written[0], "busy": {}},
    ]
    assert from_dicts([*hostile, written[0], {**written[1], "pid": float("inf")}]) == looks[:1]
    assert from_dicts("stacks") == from_dicts(None) == ()


def test_members_that_were_started_again_one_by_one_and_do_not_meet_are_told() -> None:
    """As seen of a PyTorchJob whose worker met the store of the master's last try."""
    looks = [look(0, STORE), look(1, MEET)]
    found = stacks.diagnose_stacks(looks, 60.0, restarted=True)
    assert found is not None and found.code == "partial_restart_hang"
    who = "members were started again one by one and do not meet"
    said = f"{who}: all 2 wait in init_process_group at train.py:45"
    assert found.summary.startswith(said)
    # The first time, they may wait for a member that is not there yet.
    assert stacks.diagnose_stacks(looks, 60.0) is None
    assert stacks.diagnose_stacks(looks, 5.0, restarted=True) is None


def test_several_looks_show_a_hang_only_where_nothing_moves() -> None:
    held = (look(0, ALL_REDUCE), look(1, LOAD))
    cause = stacks.hang_over([held, held, held])
    assert cause is not None and cause.blame == (1,)
    moved = (look(0, ALL_REDUCE), look(1, LOAD.replace("line 6", "line 7")))
    for other in (
        moved,
        (look(0, ALL_REDUCE, pending=8), look(1, LOAD)),
        (look(0, ALL_REDUCE), look(1, LOAD, busy=0.5)),
        (look(0, ALL_REDUCE), look(1, LOAD, switches=200.0)),
        (look(0, ALL_REDUCE), look(1, LOAD, state="D")),
        (look(0, ALL_REDUCE), look(1, LOAD, others=60.0)),
        (look(0, ALL_REDUCE), look(1, ALL_REDUCE)),
    ):
        assert stacks.hang_over([held, other, held]) is None
    loads = (look(0, LOAD), look(1, LOAD))
    assert stacks.hang_over([loads, loads, loads]) is None, "no rank waits for another"


def test_the_store_of_a_rendezvous_looks_for_its_members_again_and_again() -> None:
    polls = (look(0, STORE, switches=100.0), look(1, LOAD))
    cause = stacks.hang_over([polls, polls, polls])
    assert cause is not None and cause.blame == (1,)


def test_a_worker_of_its_data_loader_that_reads_moves_its_rank() -> None:
    reads = (look(0, ALL_REDUCE), look(1, LOADER), look(1, LOAD, pid=900, parent=101, switches=300.0))
    assert stacks.hang_over([reads, reads, reads]) is None
    stands = (*reads[:2], look(1, LOAD, pid=900, parent=101))
    assert stacks.hang_over([stands, stands, stands]) is not None


@pytest.mark.parametrize("moves", [{"busy": 0.9}, {"switches": 90.0}, {"others": 90.0}, {"state": "D"}])
def test_a_program_that_a_rank_has_started_moves_its_rank(moves: dict[str, object]) -> None:
    """As a compiler, or what downloads weights: it tells no stacks, and may be started by a shell."""
    shell = look(None, "", pid=800, parent=101)
    gang = (look(0, BARRIER), look(1, LOAD), shell)
    works = (*gang, look(None, "", pid=900, parent=800, **moves))
    assert stacks.hang_over([works, works, works]) is None
    stands = (*gang, look(None, "", pid=900, parent=800))
    assert stacks.hang_over([stands, works[:-1], stands]) is not None, "it says nothing where it stands"
    elsewhere = (*gang, look(None, "", pid=900, parent=100, **moves))
    assert stacks.hang_over([elsewhere, elsewhere, elsewhere]) is not None, "of a rank that waits"


def test_threads_that_poll_in_every_rank_move_none() -> None:
    polls = (look(0, BARRIER, others=99.0), look(1, LOAD, others=101.0))
    assert stacks.hang_over([polls, polls, polls]) is not None
    downloads = (polls[0], look(1, LOAD, others=400.0))
    assert stacks.hang_over([downloads, downloads, downloads]) is None


def test_who_is_ready_to_run_in_every_look_computes() -> None:
    sleeps = (look(0, BARRIER), look(1, LOAD, busy=0.1))
    for more in ({"state": "R"}, {"ready": True}):
        ready = (sleeps[0], look(1, LOAD, busy=0.1, **more))
        assert stacks.hang_over([ready, ready, ready]) is None
        assert stacks.hang_over([ready, sleeps, ready]) is not None


EVALUATES = """Current thread 0x00007fd80e89ab80 (most recent call first):
  File "/job/evaluation.py", line 31 in score
  File "/job/train.py", line 40 in <module>
"""


def code_of(*looks: ProcessLook, silent: float = 60.0, usual: float = 0.0) -> str:
    told = stacks.diagnose_stacks(looks, silent, usual=usual)
    assert told is not None and told.blame == "rank 0"
    assert "rank 0 has not entered barrier" in told.summary and "ranks 1, 2 wait for it" in told.summary
    return told.code


@pytest.mark.parametrize(
    "busy",
    [
        {"busy": 0.9},
        {"switches": 80.0},  # it reads
        {"others": 200.0},  # a thread of it downloads
    ],
)
def test_ranks_wait_for_one_that_works(busy: dict[str, float]) -> None:
    others = look(1, BARRIER), look(2, BARRIER)
    assert code_of(look(0, EVALUATES, **busy), *others) == "ranks_wait"
    assert code_of(look(0, EVALUATES), *others) == "rank_stalled"
    assert code_of(look(0, EVALUATES, state="T", **busy), *others) == "rank_stalled", "it is stopped"


def test_ranks_wait_for_one_whose_program_works() -> None:
    harness = look(None, "", pid=900, parent=100, busy=0.7)
    others = look(1, BARRIER), look(2, BARRIER)
    assert code_of(look(0, EVALUATES), *others, harness) == "ranks_wait"
    elsewhere = look(None, "", pid=901, parent=101, busy=0.7)
    assert code_of(look(0, EVALUATES), *others, elsewhere) == "rank_stalled", "of a rank that waits"


def test_ranks_wait_for_as_long_as_they_have_before() -> None:
    looks = look(0, EVALUATES), look(1, BARRIER), look(2, BARRIER)
    assert code_of(*looks, silent=40.0, usual=45.0) == "ranks_wait"
    assert code_of(*looks, silent=50.0, usual=45.0) == "rank_stalled"


def test_a_snapshot_keeps_that_a_rank_reads() -> None:
    looks = look(0, EVALUATES, switches=80.0, others=3.0), look(1, BARRIER)
    assert from_dicts(json.loads(json.dumps(to_dicts(looks)))) == looks
