"""Slots go to one gang at a time, in order, for all users, and are free when their processes are gone."""

# ruff: noqa: PTH101, PTH102, PTH111, PTH116, PTH120, PTH208  (a pool's path is a str)

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.local.host import machine, processes
from allaboard.backends.local.host import shared_files as files
from allaboard.backends.local.host.machine import Capacity
from allaboard.backends.local.pool import pool as pool_module
from allaboard.backends.local.pool.pool import (
    TAKE_WITHIN,
    Entry,
    Grant,
    Need,
    Pool,
    Request,
    default_path,
)
from allaboard.backends.local.pool.waiting import start_of
from allaboard.errors import BadInput, SiteError
from tests.core.backends.local.processes import HERE, environment, fresh_mark, until

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as two users")
NOBODY = 65534
GiB = 1 << 30
ROOM = Capacity(4.0, 8 * GiB, ("0", "1", "2"))
ONE_GPU = Request("", (Need(gpu=1),))
ALL_GPUS = Request("", (Need(gpu=3),))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "pool")


@pytest.fixture
def pool(path: str) -> Iterator[Pool]:
    with Pool(path, ROOM) as one:
        yield one


def cpu(cores: float, run: str = "", count: int = 1, minimum: int | None = None, mark: str = "") -> Request:
    return Request(mark, (Need(cpu=cores),) * count, minimum, run)


def admitted(pool: Pool, request: Request) -> Grant:
    grant = pool.try_admit(pool.request_slots(request))
    assert grant is not None
    return grant


@contextlib.contextmanager
def another(code: str, *arguments: str, user: int = 0, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program with a pool in another process, perhaps another user's. ``POOL`` and ``ROOM`` are there."""
    # Imported before the user changes: the standard library may be out of his reach.
    head = f"""
import os, sys, time, json, pwd, socket, ctypes
from allaboard.backends.local.host import processes
from allaboard.backends.local.host.machine import Capacity
from allaboard.backends.local.pool.pool import Entry, Need, Pool, Request
Entry.from_json(b"{{}}")
if {user}:
    os.setgid({user}); os.setuid({user})
ROOM = Capacity(4.0, {8 * GiB}, ("0", "1", "2"))
"""
    command = [sys.executable, "-c", head + code, *arguments]
    child = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True, **options)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdout
        child.stdout.close()


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout
    text = child.stdout.readline()
    assert text, "the other process failed"
    return text.strip()


def folders(path: str, kind: str) -> list[str]:
    """Tickets ("w-") or gangs ("g-") that have a folder, of all users."""
    return [name for _, at in files.user_folders(path) for name in os.listdir(at) if name.startswith(kind)]


def nothing_is_held(pool: Pool) -> bool:
    seen = pool.describe()
    return not seen["gangs"] and not seen["queue"] and seen["free"] == seen["capacity"]


# --- giving and taking back -------------------------------------------------------------------------------


def test_a_gang_gets_its_slots_and_gives_them_back(pool: Pool) -> None:
    grant = admitted(pool, Request("m", (Need(1, GiB, 1), Need(2, GiB, 2)), run="a"))
    assert grant.admitted == (0, 1)
    assert (grant.gpus(0), grant.gpus(1)) == (("0",), ("1", "2"))
    assert pool.describe()["free"] == {"cpu": 1.0, "memory": 6 * GiB, "gpus": []}
    grant.release()
    grant.release()
    assert nothing_is_held(pool)


def test_who_states_nothing_takes_nothing_and_is_admitted_to_a_full_machine(pool: Pool) -> None:
    admitted(pool, Request("m", (Need(4, 8 * GiB, 3),)))
    grant = admitted(pool, Request("n", (Need(), Need())))
    assert grant.gpus(0) == ()
    assert len(pool.describe()["gangs"]) == 2, "it is on record all the same, for whoever must sweep"


def test_what_can_never_fit_is_refused_with_both_figures(pool: Pool) -> None:
    with pytest.raises(
        BadInput, match=r"2 members together ask for 10 cores, 16\.0 GiB of memory, 2 GPUs"
    ) as caught:
        pool.request_slots(Request("m", (Need(5, 8 * GiB, 1),) * 2, run="train-1"))
    assert "train-1 can never start here" in str(caught.value)
    assert "this machine has 4 cores, 8.0 GiB of memory, 3 GPUs" in str(caught.value)
    assert pool.request_slots(cpu(2, count=3, minimum=2)), "an elastic gang needs room for its minimum only"


def test_a_gang_that_waits_says_for_what(pool: Pool) -> None:
    admitted(pool, cpu(3, run="first"))
    second, third = pool.request_slots(cpu(2, run="second")), pool.request_slots(cpu(1.5, run="third"))
    assert pool.try_admit(second) is None
    assert pool.try_admit(third) is None
    assert pool.why_waiting(second) == (
        "this machine holds it back, next in line: it needs 1 more core, which run first uses"
    )
    assert pool.why_waiting(third) == (
        "this machine holds it back, 1 before it: it needs 0.5 more cores, which run first uses"
    )
    needs = [start_of(one.request.claim(ROOM)) for one in (second, third)]
    assert pool.view().why_waiting(third.name, needs[1], ROOM) == pool.why_waiting(third)
    told = pool.describe()["queue"]
    assert [(each["position"], each["why"]) for each in told] == [
        (1, pool.why_waiting(second)),
        (2, pool.why_waiting(third)),
    ]
    second.cancel()
    assert pool.view().why_waiting(third.name, needs[1], ROOM) == (
        "this machine holds it back, next in line: it needs 0.5 more cores, which run first uses"
    )
    assert pool.view().why_waiting(second.name, needs[0], ROOM) is None
    small = admitted(pool, cpu(0.5))
    assert (
        pool.view().why_waiting(small.name, needs[0], ROOM) == "this machine has room for it, and it starts"
    )


def test_who_has_room_and_waits_for_those_before_it_is_told_so(pool: Pool) -> None:
    admitted(pool, cpu(2, run="first"))
    large, small = pool.request_slots(cpu(3)), pool.request_slots(cpu(2))
    assert pool.try_admit(large) is None and pool.try_admit(small) is None
    assert pool.why_waiting(small) == (
        "this machine holds it back, 1 before it: there is room for it, and it would delay that one"
    )


def test_a_hundred_that_wait_cost_no_read_to_tell_the_place_of_each(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `list` and each follower do, again and again: names are listed, holders are read."""
    admitted(pool, cpu(4, run="first"))
    tickets = [pool.request_slots(cpu(1, run=f"r{n}")) for n in range(100)]
    reads: list[int] = []
    read = pool_module._read_entry
    monkeypatch.setattr(pool_module, "_read_entry", lambda *args: reads.append(1) or read(*args))
    view = pool.view()
    said = [view.why_waiting(each.name, start_of(each.request.claim(ROOM)), ROOM) for each in tickets]
    assert len(reads) == 1, "that of the holder"
    assert "next in line" in (said[0] or "") and "99 before it: it needs 1 more core" in (said[99] or "")
    reads.clear()
    assert len(pool.describe()["queue"]) == 100 and len(reads) == 101, "each once"


def test_first_come_first_served(pool: Pool) -> None:
    holder = admitted(pool, cpu(2))
    large, small, other = pool.request_slots(cpu(4)), pool.request_slots(cpu(1)), pool.request_slots(ONE_GPU)
    assert pool.try_admit(small) is None, "there is room, but the large one came first"
    assert pool.try_admit(other) is not None, "it wants something else"
    holder.release()
    assert pool.try_admit(small) is None
    assert pool.try_admit(large) is not None
    assert pool.try_admit(small) is None


def test_whoever_leaves_the_queue_lets_others_pass(pool: Pool) -> None:
    admitted(pool, cpu(2))
    large, small = pool.request_slots(cpu(4)), pool.request_slots(cpu(1))
    assert pool.try_admit(small) is None
    large.cancel()
    large.cancel()
    assert pool.try_admit(small) is not None


def test_who_waits_is_woken(pool: Pool) -> None:
    def awake(ticket: Any) -> bool:
        return bool(select.select([ticket], [], [], 0)[0])

    holder = admitted(pool, Request("m", (Need(gpu=1), Need(gpu=2))))
    first, second = pool.request_slots(ALL_GPUS), pool.request_slots(ONE_GPU)
    pool.try_admit(first), pool.try_admit(second)
    assert not awake(first)
    holder.shrink([0])
    assert not awake(first) and not awake(second), "nobody can be admitted yet"
    holder.release()
    assert awake(first) and not awake(second), "only who can be admitted"
    first.cancel()
    assert awake(second)


def test_who_is_admitted_wakes_those_who_may_pass_now(pool: Pool) -> None:
    holder = admitted(pool, cpu(2))
    large, small = pool.request_slots(cpu(3)), pool.request_slots(cpu(2))
    assert pool.try_admit(large) is None and pool.try_admit(small) is None
    holder.release()
    assert select.select([large], [], [], 0)[0] and not select.select([small], [], [], 0)[0]
    large.cancel()
    assert select.select([small], [], [], 0)[0]


def test_an_elastic_gang_is_woken_when_it_can_grow(pool: Pool) -> None:
    holder = admitted(pool, cpu(3))
    gang = admitted(pool, cpu(1, count=3, minimum=1))
    pool.grow(gang)
    assert not select.select([gang], [], [], 0)[0]
    holder.release()
    assert select.select([gang], [], [], 0)[0]
    assert pool.grow(gang) == (1, 2)


def test_members_that_ended_give_back_their_slots(pool: Pool) -> None:
    grant = admitted(pool, Request("m", (Need(2, GiB, 1), Need(2, GiB, 2))))
    grant.shrink([1])
    assert grant.admitted == (0,)
    assert pool.describe()["free"] == {"cpu": 2.0, "memory": 7 * GiB, "gpus": ["1", "2"]}
    assert admitted(pool, Request("n", (Need(gpu=2),))).gpus(0) == ("1", "2")


def test_an_elastic_gang_starts_small_and_grows_where_nobody_waits(pool: Pool) -> None:
    holder = admitted(pool, cpu(2))
    gang = admitted(pool, cpu(1, count=4, minimum=2))
    assert gang.admitted == (0, 1)
    assert pool.grow(gang) == ()
    holder.release()
    waiting = pool.request_slots(cpu(1))
    assert pool.grow(gang) == (2,), "one core is set aside for the one that waits"
    assert pool.try_admit(waiting) is not None
    assert pool.grow(gang) == ()
    gang.shrink([1])
    assert pool.grow(gang) == (1,)
    assert gang.admitted == (0, 1, 2)


def test_an_elastic_gang_grows_with_gpus_of_its_own(pool: Pool) -> None:
    holder = admitted(pool, ONE_GPU)
    gang = admitted(pool, Request("m", (Need(gpu=1),) * 3, minimum=1))
    assert [gang.gpus(i) for i in gang.admitted] == [("1",), ("2",)]
    holder.release()
    assert pool.grow(gang) == (2,)
    assert gang.gpus(2) == ("0",)
    assert len(gang.fds(2)) == 2
    gang.release()
    assert nothing_is_held(pool)


def test_the_description_shows_who_holds_what_and_who_waits(pool: Pool) -> None:
    grant = admitted(pool, Request("m", (Need(1, GiB, 1), Need(1, GiB)), run="holder"))
    port = pool.reserve_port(grant)
    pool.request_slots(Request("n", (Need(gpu=3),), run="waiter"))
    seen = pool.describe()
    (gang,), (waiter,) = seen["gangs"], seen["queue"]
    del gang["since"], waiter["since"]
    me = {"user": files.user_name(os.geteuid()), "pid": os.getpid()}
    held = {"cpu": 2.0, "memory": 2 * GiB, "gpus": ["0"], "ports": [port], "members": 2, "leftover": False}
    assert gang == {"run": "holder", **me, **held}
    why = "this machine holds it back, next in line: it needs 1 more GPU, which run holder uses"
    asked = {"cpu": 0.0, "memory": 0, "gpus": 3, "members": 1, "position": 1, "why": why}
    assert waiter == {"run": "waiter", **me, **asked}
    assert seen["gpus"][:2] == [
        {"id": "0", "run": "holder", "pids": []},
        {"id": "1", "run": None, "pids": []},
    ]
    json.dumps(seen)


# --- slots are free when their processes are gone ---------------------------------------------------------


def member_of(grant: Grant, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], pass_fds=grant.fds(0), **options)


def test_released_slots_stay_taken_while_a_member_lives(pool: Pool) -> None:
    grant = admitted(pool, Request("", (Need(cpu=3, gpu=1),), run="gone"))
    with member_of(grant) as member:
        grant.release()
        seen = pool.describe()
        assert seen["free"]["cpu"] == 1.0
        assert seen["free"]["gpus"] == ["1", "2"]
        assert [gang["leftover"] for gang in seen["gangs"]] == [True]
        waiting = pool.request_slots(cpu(2))
        assert pool.try_admit(waiting) is None
        member.kill()
    assert pool.try_admit(waiting) is not None


def test_a_gpu_that_a_forgotten_process_holds_is_not_given_away(pool: Pool) -> None:
    grant = admitted(pool, Request("", (Need(gpu=1), Need(gpu=2))))
    with member_of(grant) as member:
        grant.shrink([0])
        assert pool.try_admit(pool.request_slots(ONE_GPU)) is None
        if sys.platform.startswith("linux"):
            assert pool.describe()["gpus"][0] == {"id": "0", "run": None, "pids": [member.pid]}
        member.kill()


HOLD = """
pool = Pool(sys.argv[1], ROOM)
grant = pool.try_admit(pool.request_slots(Request(sys.argv[2], (Need(cpu=3, gpu=2),), run="doomed")))
import subprocess
env = {"PATH": os.environ["PATH"], **({"ALLABOARD_MARK": sys.argv[2]} if sys.argv[3] == "marked" else {})}
member = subprocess.Popen(["sleep", "600"], pass_fds=grant.fds(0), env=env, start_new_session=True)
if sys.argv[3] == "recorded":
    grant.record([processes.identity(member.pid)])
print(member.pid, grant.gpus(0), flush=True)
time.sleep(600)
"""


@linux
@pytest.mark.parametrize("how", ["marked", "recorded"])
def test_what_a_killed_gang_left_is_killed_before_its_slots_are_given_away(how: str, pool: Pool) -> None:
    with another(HOLD, pool.path, fresh_mark(), how) as other:
        pid = int(line(other).split()[0])
        survivor = processes.identity(pid)
        assert survivor
        try:
            waiting = pool.request_slots(ALL_GPUS)
            assert pool.try_admit(waiting) is None
            other.kill()
            other.wait()
            assert processes.is_alive(survivor), "or this test shows nothing"
            assert until(lambda: pool.try_admit(waiting), "the survivor is swept")
            assert not processes.is_alive(survivor)
        finally:
            processes.send_signal(survivor, signal.SIGKILL)


@linux
def test_a_survivor_that_hides_is_found_by_its_slots(pool: Pool) -> None:
    with another(HOLD, pool.path, fresh_mark(), "unmarked") as other:
        survivor = processes.identity(int(line(other).split()[0]))
        assert survivor
        try:
            other.kill()
            other.wait()
            grant = pool.try_admit(pool.request_slots(cpu(4)))
            assert grant is not None and not processes.is_alive(survivor)
        finally:
            processes.send_signal(survivor, signal.SIGKILL)


@linux
def test_a_survivor_that_nobody_can_find_keeps_its_slots(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "pids_with_open_file", lambda *_, **__: [])
    with another(HOLD, pool.path, fresh_mark(), "unmarked") as other:
        pid = int(line(other).split()[0])
        survivor = processes.identity(pid)
        assert survivor
        try:
            other.kill()
            other.wait()
            waiting, small = pool.request_slots(cpu(2)), pool.request_slots(ONE_GPU)
            assert pool.try_admit(waiting) is None
            grant = pool.try_admit(small)
            assert grant and grant.gpus(0) == ("2",)
            assert [gang["leftover"] for gang in pool.describe()["gangs"]] == [True, False]
            processes.send_signal(survivor, signal.SIGKILL)
            assert until(lambda: pool.try_admit(waiting), "its lock is free")
        finally:
            processes.send_signal(survivor, signal.SIGKILL)


def test_a_gang_counts_while_its_keeper_holds_the_owner_lock(pool: Pool) -> None:
    """The supervisor is dead and the keeper still killing: nothing is given away yet, and nothing swept."""
    code = """
pool = Pool(sys.argv[1], ROOM)
grant = pool.try_admit(pool.request_slots(Request("m", (Need(cpu=4),))))
import subprocess
keeper = subprocess.Popen(["sleep", "600"], pass_fds=grant.owner_fds)
print(keeper.pid, flush=True)
"""
    with another(code, pool.path) as other:
        keeper = int(line(other))
        try:
            other.wait()
            waiting = pool.request_slots(cpu(1))
            assert pool.try_admit(waiting) is None
            assert [gang["leftover"] for gang in pool.describe()["gangs"]] == [False]
        finally:
            os.kill(keeper, signal.SIGKILL)
        assert until(lambda: pool.try_admit(waiting), "the keeper is gone")


def test_the_ticket_of_a_killed_process_vanishes(pool: Pool) -> None:
    admitted(pool, cpu(1))
    code = """
pool = Pool(sys.argv[1], ROOM)
ticket = pool.request_slots(Request("m", (Need(cpu=4),)))
print("queued", flush=True)
time.sleep(600)
"""
    with another(code, pool.path) as other:
        line(other)
        small = pool.request_slots(cpu(1))
        assert pool.try_admit(small) is None
        other.kill()
        other.wait()
        assert pool.try_admit(small) is not None
    assert folders(pool.path, "w-") == []


CYCLE = """
pool = Pool(sys.argv[1], ROOM)
print("up", flush=True)
while True:
    ticket = pool.request_slots(Request("m", (Need(1, 1, 1),) * 2, minimum=1))
    grant = pool.try_admit(ticket)
    if grant is None:
        ticket.cancel()
    else:
        pool.reserve_port(grant); grant.record([(1, 1)]); grant.shrink([1]); pool.grow(grant); grant.release()
"""


@pytest.mark.thorough
def test_killed_at_any_instant_nothing_stays_taken(pool: Pool) -> None:
    dice = random.Random(3)
    for _ in range(25):
        with another(CYCLE, pool.path) as one, another(CYCLE, pool.path) as two:
            line(one), line(two)
            time.sleep(dice.random() * 0.02)  # where in the cycle it is killed is the point
            one.send_signal(signal.SIGKILL)
    grant = admitted(pool, Request("m", (Need(4, 8 * GiB, 3),)))
    assert grant.gpus(0) == ("0", "1", "2")
    grant.release()
    assert nothing_is_held(pool)
    assert folders(pool.path, "g-") == folders(pool.path, "w-") == []


# --- many at once -----------------------------------------------------------------------------------------


def contenders(
    path: str, folder: Path, users: list[int], rounds: int, slots: int
) -> list[subprocess.Popen[bytes]]:
    folder.chmod(0o777)
    (folder / "journal").touch()
    (folder / "journal").chmod(0o666)
    for gpu in ROOM.gpus:
        (folder / f"gpu-{gpu}").touch()
        (folder / f"gpu-{gpu}").chmod(0o666)
    script = str(HERE / "a_contender.py")
    gpus = ",".join(ROOM.gpus[:slots])
    command = [sys.executable, script, path, str(folder), str(rounds), gpus]
    return [
        subprocess.Popen([*command, str(user), f"run-{i}"], env=environment()) for i, user in enumerate(users)
    ]


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (folder / "journal").read_text().splitlines()]


def contend(path: str, folder: Path, users: list[int], rounds: int, victims: int, slots: int) -> None:
    """Let them contend, kill some at any moment, and check what the journal says."""
    dice = random.Random(7)
    running = contenders(path, folder, users, rounds, slots)
    doomed = dice.sample(running, victims)
    try:
        until(lambda: len(entries(folder)) >= len(users), "they began")
        for victim in doomed:
            time.sleep(dice.random() * 0.05)  # at any moment, queueing or holding
            victim.kill()
        codes = {one.pid: one.wait(timeout=120) for one in running}
    finally:
        for one in running:
            one.kill()
            one.wait()
    seen = entries(folder)
    assert [entry for entry in seen if "violation" in entry] == [], "two at once on one GPU"
    finished = {entry["pid"] for entry in seen if "done" in entry}
    spared = {one.pid for one in running if one not in doomed}
    assert spared <= finished, "somebody starved or failed"
    assert all(codes[pid] == 0 for pid in spared)
    # Who was in line before another one asked is not passed by him. (Of two who ask at the same moment either
    # may be first.) With several slots the next may take his before those who came earlier have come for the
    # ones that were set aside for them: so many may be passed, and not one more.
    order = sorted((entry for entry in seen if "admitted" in entry), key=lambda entry: entry["at"])
    for place, entry in enumerate(order):
        passed = [later for later in order[place + 1 :] if later["in_line"] < entry["began"]]
        assert len(passed) < slots, (entry, passed)
    assert len(order) >= len(spared) * rounds


@pytest.mark.thorough
@pytest.mark.timeout(200)
def test_thirty_processes_contend_for_three_gpus_and_some_are_killed(path: str, tmp_path: Path) -> None:
    folder = tmp_path / "witness"
    folder.mkdir()
    contend(path, folder, users=[0] * 30, rounds=3, victims=10, slots=3)
    with Pool(path, ROOM) as pool:
        assert admitted(pool, ALL_GPUS).gpus(0) == ROOM.gpus
        assert not pool.describe()["queue"]


# --- several users ----------------------------------------------------------------------------------------


@pytest.fixture
def open_path() -> Iterator[str]:
    """A pool below a folder that every user can reach."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="allaboard-test-", dir="/tmp")
    os.chmod(folder, 0o1777)
    yield f"{folder}/pool"
    shutil.rmtree(folder)


@root
@linux
@pytest.mark.parametrize("first", [0, NOBODY], ids=["root made it", "another user made it"])
def test_users_share_one_pool_whoever_made_it(first: int, open_path: str) -> None:
    with another(
        "Pool(sys.argv[1], ROOM).request_slots(Request('', (Need(),))); print('made', flush=True)",
        open_path,
        user=first,
        umask=0o077,
    ) as maker:
        assert line(maker) == "made"
    take = """
pool = Pool(sys.argv[1], ROOM)
grant = pool.try_admit(pool.request_slots(Request("m", (Need(cpu=3, gpu=2),), run="his")))
print(grant.gpus(0), pool.reserve_port(grant), flush=True)
sys.stdin.readline()
grant.release()
print("released", flush=True)
"""
    with (
        Pool(open_path, ROOM) as mine,
        another(take, open_path, user=NOBODY, stdin=subprocess.PIPE, umask=0o077) as his,
    ):
        assert line(his).startswith("('0', '1')")
        waiting = mine.request_slots(ALL_GPUS)
        assert mine.try_admit(waiting) is None
        assert mine.describe()["gangs"][0]["user"] == "nobody"
        assert his.stdin
        his.stdin.write("\n")
        his.stdin.flush()
        assert line(his) == "released"
        assert select.select([waiting], [], [], 30)[0], "one user wakes another"
        assert mine.try_admit(waiting) is not None
        his.stdin.close()


@root
@linux
def test_users_contend_in_one_line(open_path: str, tmp_path: Path) -> None:
    with tempfile_folder() as folder:
        contend(open_path, folder, users=[0, NOBODY] * 6, rounds=2, victims=4, slots=1)
    with Pool(open_path, ROOM) as pool:
        assert admitted(pool, ALL_GPUS)


@contextlib.contextmanager
def tempfile_folder() -> Iterator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@root
@linux
def test_a_user_neither_counts_nor_kills_what_a_killed_run_of_another_left_but_respects_its_locks(
    open_path: str,
) -> None:
    mark = fresh_mark()
    with another(HOLD, open_path, mark, "marked") as roots:
        survivor = processes.identity(int(line(roots).split()[0]))
        assert survivor
        try:
            roots.kill()
            roots.wait()
            ask = """
pool = Pool(sys.argv[1], ROOM)
cpus, gpu = pool.request_slots(Request("m", (Need(cpu=2),))), pool.request_slots(Request("m", (Need(gpu=1),)))
print(pool.try_admit(cpus) is None, pool.try_admit(gpu).gpus(0), flush=True)
sys.stdin.readline()
print(pool.try_admit(cpus) is None, len(os.listdir(sys.argv[1] + ".0")), flush=True)
"""
            with another(ask, open_path, user=NOBODY, stdin=subprocess.PIPE) as his:
                assert line(his) == "True ('2',)"
                assert processes.is_alive(survivor), "it is not his to kill"
                processes.send_signal(survivor, signal.SIGKILL)
                until(lambda: not processes.is_alive(survivor), "dead")
                assert his.stdin
                his.stdin.write("\n")
                his.stdin.flush()
                assert line(his) == "False 2", "root's entry cannot be removed, and counts for nothing"
                his.stdin.close()
        finally:
            processes.send_signal(survivor, signal.SIGKILL)
    with Pool(open_path, ROOM) as pool:
        admitted(pool, ALL_GPUS)
        assert len(os.listdir(f"{open_path}.0")) == 2, "its user tidies up"


@root
@linux
def test_an_entry_of_one_user_never_aims_at_processes_of_another(open_path: str) -> None:
    """Somebody writes down a process of root's as his own and dies; root's next run must not kill it."""
    mark = fresh_mark()
    with subprocess.Popen(["sleep", "600"], env=environment(**{processes.MARK: mark})) as target:
        identity = until(lambda: processes.identity(target.pid), "started")
        lie = """
pool = Pool(sys.argv[1], ROOM)
grant = pool.try_admit(pool.request_slots(Request(sys.argv[2], (Need(cpu=1),))))
grant.record([processes.Identity(int(sys.argv[3]), int(sys.argv[4]))])
print("lied", flush=True)
os.kill(os.getpid(), 9)
"""
        with another(lie, open_path, mark, str(identity.pid), str(identity.start), user=NOBODY) as liar:
            assert line(liar) == "lied"
            liar.wait()
        with Pool(open_path, ROOM) as pool:
            admitted(pool, ALL_GPUS)
        assert target.poll() is None
        target.kill()


# --- ports ------------------------------------------------------------------------------------------------


def test_ports_are_below_the_range_of_outgoing_connections_and_never_given_twice(pool: Pool) -> None:
    grants = [admitted(pool, Request("", (Need(),))) for _ in range(20)]
    ports = [pool.reserve_port(grant) for grant in grants]
    assert len(set(ports)) == 20
    if Path("/proc/sys/net/ipv4/ip_local_port_range").exists():
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert lowest <= 12000 or all(10240 <= port < lowest for port in ports)
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_port_on_which_somebody_listens_is_passed_over(
    address: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(pool_module, "_port_range", lambda: range(taken, taken + 1))
        with pytest.raises(SiteError, match=f"no port from {taken} to {taken} is free"):
            pool.reserve_port(admitted(pool, Request("", (Need(),))))


def test_a_port_stays_reserved_while_a_member_has_it(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (admitted(pool, Request("", (Need(),))) for _ in range(2))
    port = pool.reserve_port(first)
    assert first.ports == (port,)
    monkeypatch.setattr(pool_module, "_port_range", lambda: range(port, port + 1))
    with member_of(first) as member:
        first.release()
        with pytest.raises(SiteError):
            pool.reserve_port(second)
        member.kill()
    assert pool.reserve_port(second) == port


# --- the folder -------------------------------------------------------------------------------------------


def test_the_default_is_one_place_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert default_path({}) == "/tmp/allaboard-pool"
    assert default_path({"ALLABOARD_POOL": "/srv/pool"}) == "/srv/pool"
    assert default_path({"ALLABOARD_POOL": "~/pool"}) == os.path.expanduser("~/pool")


def test_everybody_may_look_and_nobody_else_may_write_whatever_the_umask(path: str) -> None:
    before = os.umask(0o077)
    try:
        with Pool(path, ROOM) as pool:
            pool.reserve_port(admitted(pool, ONE_GPU))
            pool.request_slots(ALL_GPUS)
            ((_, own),) = files.user_folders(path)
            assert own == f"{path}.{os.geteuid()}"
            assert stat.S_IMODE(os.stat(own).st_mode) == 0o755
            for at, inner, names in os.walk(own):
                for name in (*inner, *names):
                    mode = os.lstat(f"{at}/{name}").st_mode
                    if stat.S_ISFIFO(mode):
                        assert mode & 0o066 == 0o022, "everybody may wake, nobody else may pretend to live"
                    elif name in ("lock", "lookout"):
                        assert mode & 0o077 == 0, "nobody else may lock it"
                    else:
                        assert mode & 0o044 == 0o044 and not mode & 0o022
    finally:
        os.umask(before)


@root
def test_where_root_made_a_shared_folder_everybodys_is_in_it(open_path: str) -> None:
    with Pool(open_path, ROOM) as beside:
        admitted(beside, ONE_GPU)
        os.mkdir(open_path)
        os.chmod(open_path, 0o1777)
        code = "grant = Pool(sys.argv[1], ROOM); t = grant.request_slots(Request('', (Need(gpu=1),)));"
        code += "print(grant.try_admit(t).gpus(0), os.listdir(sys.argv[1]), flush=True)"
        with another(code, open_path, user=NOBODY) as his:
            assert line(his) == f"('1',) ['{NOBODY}']", "and what is beside it counts as well"


def test_two_who_make_it_at_once_share_it(path: str) -> None:
    code = """
sys.stdin.readline()
pool = Pool(sys.argv[1], ROOM)
ticket = pool.request_slots(Request("m", (Need(cpu=1),)))
print(os.fstat(pool._own).st_ino, flush=True)
"""
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(another(code, path, stdin=subprocess.PIPE)) for _ in range(6)]
        for one in many:
            assert one.stdin
            one.stdin.write("\n")
            one.stdin.flush()
        assert len({line(one) for one in many}) == 1
        for one in many:
            assert one.stdin
            one.stdin.close()
    assert os.listdir(os.path.dirname(path)) == [f"pool.{os.geteuid()}"], "nothing half made is left"


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.symlink_to("/tmp"), id="a link"),
        pytest.param(lambda path: path.write_text(""), id="a file"),
        pytest.param(lambda path: path.mkdir(0o700), id="a folder"),
    ],
)
def test_what_has_the_name_of_the_pool_itself_is_in_nobodys_way(
    make: Callable[[Path], None], path: str
) -> None:
    make(Path(path))
    with Pool(path, ROOM) as pool:
        admitted(pool, ALL_GPUS)


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="cannot be used: No such file") as caught:
        Pool(str(tmp_path / "no" / "pool"), ROOM).request_slots(ONE_GPU)
    assert "ALLABOARD_POOL" in str(caught.value)


@root
def test_a_place_where_others_could_rename_our_folder_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    tmp_path.chmod(0o777)
    with pytest.raises(SiteError, match=r"chmod \+t"):
        Pool(str(tmp_path / "pool"), ROOM).request_slots(ONE_GPU)


def test_a_place_in_the_queue_outlives_its_folder(pool: Pool) -> None:
    import shutil

    holder = admitted(pool, ALL_GPUS)
    first = pool.request_slots(ONE_GPU)
    shutil.rmtree(f"{pool.path}.{os.geteuid()}")
    second = pool.request_slots(ALL_GPUS)
    assert pool.try_admit(second) is not None, "what was removed is not known any more"
    assert pool.try_admit(first) is None
    assert [wait["gpus"] for wait in pool.describe()["queue"]] == [1]
    holder.record([])
    holder.shrink([0])
    holder.release()


def test_a_full_disk_is_named_and_costs_nobody_his_slots(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = pool.request_slots(ALL_GPUS)
    real = os.write

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SiteError, match="cannot be used: No space left on device"):
        pool.try_admit(waiting)
    monkeypatch.setattr(os, "write", real)
    grant = pool.try_admit(waiting)
    assert grant is not None and grant.gpus(0) == ROOM.gpus
    monkeypatch.setattr(os, "write", full)
    grant.record([])
    grant.shrink([])
    assert pool.reserve_port(grant), "a training that runs goes on"
    grant.release()
    monkeypatch.setattr(os, "write", real)
    assert nothing_is_held(pool)


NONSENSE = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"members": 3}',
    b'{"mark":"m","run":"r","members":[[NaN,1e999,-3]]}',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"since":' + b"9" * 100_000 + b"}",
]


@pytest.mark.parametrize("data", NONSENSE)
def test_nonsense_in_an_entry_is_no_entry(data: bytes) -> None:
    assert Entry.from_json(data) is None


def test_an_entry_survives_being_written_and_read() -> None:
    request = Request("mark", (Need(0.5, GiB, 1), Need(0.0, 0, 0)), 1, "run-é")
    entry = Entry(
        request,
        ROOM,
        12.5,
        4,
        "boot",
        "pid:[1]",
        ((0, ("0",)),),
        ("0", "1"),
        (20000,),
        (processes.Identity(5, 6),),
    )
    read = Entry.from_json(entry.to_json())
    assert read is not None
    assert read.claim.kinds == entry.claim.kinds
    assert read == entry
    newer = json.loads(entry.to_json()) | {"version": 2, "colour": "blue"}
    assert Entry.from_json(json.dumps(newer).encode()) == read


def strange_names() -> list[str]:
    number = "0" * 17
    return ["readme", "w-", f"w-{number}", f"w-{number}-{'0' * 8}-c", f"g-{number}-{'0' * 8}-cg"]


def test_strange_things_in_a_folder_do_no_harm(pool: Pool, tmp_path: Path) -> None:
    admitted(pool, cpu(1))
    base = Path(f"{pool.path}.{os.geteuid()}")
    for n, name in enumerate(strange_names()):
        folder = base / name
        folder.mkdir()
        os.mkfifo(folder / "entry.json")
        os.mkfifo(folder / ("owner" if n % 2 else "slots"))
    (base / f"w-{'1' * 17}-00000000-c").symlink_to(tmp_path)
    (base / f"g-{'1' * 17}-00000000-c").write_text("no folder")
    os.mkdir(os.fsencode(base) + b"/\xff\xfe")
    assert pool.try_admit(pool.request_slots(cpu(3))) is not None
    assert len(pool.describe()["gangs"]) == 2
    assert tmp_path.exists()


MISCHIEF = """
import fcntl, json
base = sys.argv[1] + "." + str(os.geteuid())
pool = Pool(sys.argv[1], ROOM)
real = pool.try_admit(pool.request_slots(Request("m", (Need(cpu=1),), run="evil\\x1b[31m\\nrun")))
held = [os.open(sys.argv[1] + ".0", os.O_RDONLY)]
fcntl.flock(held[0], fcntl.LOCK_SH)
for name in os.listdir(sys.argv[1] + ".0"):
    for file in ("lock", "lookout", name, name + "/owner", name + "/slots", name + "/entry.json"):
        for mode in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY):
            try:
                fd = os.open(sys.argv[1] + ".0/" + file, mode | os.O_NONBLOCK)
                held.append(fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass
def attempt(what):
    try:
        what()
        print("done", flush=True)
    except OSError as error:
        print("refused", flush=True)
attempt(lambda: os.rename(sys.argv[1] + ".0", sys.argv[1] + ".moved"))
attempt(lambda: os.mkdir(sys.argv[1] + ".0/w-00000000000000001-00000000-c"))
os.mkdir(sys.argv[1])
os.mkdir(sys.argv[1] + "/0")
os.mkdir(base + "/" + "w" * 255)
os.mkdir(sys.argv[1] + ".0.00000000")
os.mkdir((base + "/").encode() + b"\\xff\\xfe")
for n, text in enumerate(["", "{", "[" * 100000, "9" * 100000, json.dumps({"version": 99}), "x" * (2 << 20),
        json.dumps({"mark": "m", "run": "r", "members": [[1e999, -1, 1]] * 100000, "minimum": 10 ** 30})]):
    for kind in "wg":
        at = f"{base}/{kind}-{n:017d}-00000000-cmg"
        os.mkdir(at)
        open(at + "/entry.json", "w").write(text)
        os.mkfifo(at + "/owner")
        held.append(os.open(at + "/owner", os.O_RDWR))
print("ready", flush=True)
time.sleep(600)
"""


@root
@linux
def test_what_another_user_makes_locks_or_renames_stops_nobody(open_path: str) -> None:
    with Pool(open_path, ROOM) as pool:
        first, waiting = admitted(pool, cpu(2, run="first")), pool.request_slots(cpu(3, run="waiting"))
        with another(MISCHIEF, open_path, user=NOBODY) as evil:
            assert [line(evil) for _ in range(3)] == ["refused", "refused", "ready"]
            assert pool.try_admit(waiting) is None
            assert pool.why_waiting(waiting).endswith(
                "it needs 2 more cores, which run first and run evil?[31m?run of user nobody use"
            )
            assert pool.try_admit(pool.request_slots(ONE_GPU)) is not None, "what is free is given"
            first.release()
            assert pool.try_admit(waiting) is not None


@root
@linux
def test_a_dead_gangs_slots_are_free_though_another_user_keeps_its_files_open(open_path: str) -> None:
    code = """
pool = Pool(sys.argv[1], ROOM)
grant = pool.try_admit(pool.request_slots(Request("", (Need(cpu=4),), run="doomed")))
print("holds", flush=True)
time.sleep(600)
"""
    keep = """
held = []
base = sys.argv[1] + ".0/"
for name in os.listdir(base):
    for file in (name, name + "/owner", name + "/slots", name + "/entry.json"):
        for mode in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY):
            try:
                held.append(os.open(base + file, mode | os.O_NONBLOCK))
            except OSError:
                pass
print(len(held) > 0, flush=True)
time.sleep(600)
"""
    with another(code, open_path) as doomed, Pool(open_path, ROOM) as pool:
        assert line(doomed) == "holds"
        with another(keep, open_path, user=NOBODY) as keeper:
            assert line(keeper) == "True"
            waiting = pool.request_slots(cpu(4))
            assert pool.try_admit(waiting) is None
            doomed.kill()
            doomed.wait()
            assert until(lambda: pool.try_admit(waiting), "the kernel says that nobody of its user lives")


def test_of_two_who_take_the_same_slots_at_once_one_takes_it_back(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another decides and writes between our look and our word: as another user may, whom no lock of ours
    stops.
    """
    ours, theirs = pool.request_slots(cpu(3)), pool.request_slots(cpu(3))
    real = pool_module.files.replace_file
    grants: list[Grant | None] = []

    def slow(folder: int, name: str, data: bytes) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(pool_module, "_LOCK_PATIENCE", 0.01)
        seen = pool._read_pool(sweep=False)
        del seen.queue[(os.geteuid(), ours.name)]
        grants.append(pool._admit(theirs, seen.admissible()[(os.geteuid(), theirs.name)]))
        real(folder, name, data)

    monkeypatch.setattr(pool_module.files, "replace_file", slow)
    assert pool.try_admit(ours) is None
    assert grants[0] is not None
    assert pool.describe()["free"]["cpu"] == 1.0
    grants[0].release()
    assert pool.try_admit(ours) is not None


def test_one_who_stops_while_he_decides_stops_nobody(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_LOCK_PATIENCE", 0.05)
    code = """
pool = Pool(sys.argv[1], ROOM)
pool.request_slots(Request("", (Need(cpu=1),)))
with pool._decision_lock():
    print("decides", flush=True)
    time.sleep(600)
"""
    with another(code, pool.path) as other:
        assert line(other) == "decides"
        assert pool.try_admit(pool.request_slots(ONE_GPU)) is not None


# --- heads of the queue that do not take their slots ------------------------------------------------------


class Clock:
    """Time as data."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


ALL_CORES = cpu(4.0)


def test_a_head_that_does_not_take_its_slots_loses_its_place(path: str) -> None:
    """Stopped, or held by a debugger. It keeps a place: the last one."""
    clock = Clock()
    with Pool(path, ROOM, clock) as pool:
        stopped, second = pool.request_slots(ALL_CORES), pool.request_slots(ALL_CORES)
        assert pool.try_admit(second) is None and second.look_again == TAKE_WITHIN
        clock.now += TAKE_WITHIN - 1
        assert pool.try_admit(second) is None and second.look_again == 1
        clock.now += 1
        grant = pool.try_admit(second)
        assert grant is not None
        third = pool.request_slots(ALL_CORES)
        assert pool.try_admit(third) is None and third.look_again is None, "nobody is offered slots"
        grant.release()
        taken = pool.try_admit(third)
        assert taken is not None, "the stopped one costs nobody anything any more"
        fourth = pool.request_slots(ALL_CORES)
        assert pool.try_admit(stopped) is None, "it goes on, and has its place again"
        taken.release()
        assert pool.try_admit(fourth) is None
        back = pool.try_admit(stopped)
        assert back is not None
        back.release()


def test_a_head_that_takes_its_slots_keeps_its_place_however_long_it_waited(path: str) -> None:
    clock = Clock()
    with Pool(path, ROOM, clock) as pool:
        running = admitted(pool, ALL_CORES)
        first, second = pool.request_slots(ALL_CORES), pool.request_slots(ALL_CORES)
        for _ in range(5):
            clock.now += TAKE_WITHIN
            assert pool.try_admit(second) is None
        running.release()
        assert pool.try_admit(second) is None
        grant = pool.try_admit(first)
        assert grant is not None
        grant.release()


@pytest.mark.parametrize("days", [0.5, 3])
def test_who_comes_after_the_clock_was_set_back_comes_after(
    path: str, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    with Pool(path, ROOM) as pool:
        running = admitted(pool, ALL_CORES)
        first, now = pool.request_slots(ALL_CORES), time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: now - int(days * 86_400e9))
        second = pool.request_slots(ALL_CORES)
        assert first.name < second.name
        running.release()


def test_offers_of_another_boot_and_damaged_ones_are_forgotten(path: str) -> None:
    clock = Clock()
    with Pool(path, ROOM, clock) as pool:
        head, second = pool.request_slots(ALL_CORES), pool.request_slots(ALL_CORES)
        offers = Path(pool.home) / "offers.json"
        known = {head.name: [100.0, clock.now, head.name]}
        ahead = {head.name: [100.0, clock.now + 1e6, head.name]}
        boot = machine.boot_id()
        texts = ["{", "[1]", '{"x": 3}', "[1, 2]", *map(json.dumps, (["before", known], [boot, ahead]))]
        for text in texts:
            offers.write_text(text)
            assert pool.try_admit(second) is None and second.look_again == TAKE_WITHIN


FORGED = """
from allaboard.backends.local.host import machine
pool = Pool(sys.argv[1], ROOM)
pid = os.getpid() if sys.argv[2] == "careful" else int(sys.argv[2])
here = (pid, machine.boot_id(), machine.pid_namespace()) if pid >= 0 else ()
entry = lambda: Entry(Request("", (Need(cpu=4.0),)), ROOM, 0.0, *here)
kept, names = [], []
print("ready", flush=True)
for line in sys.stdin:
    if line == "none\\n":
        for name in names:
            pool._release_folder(f"w-{name}", [])
        names = []
    else:
        for n in range(int(line)):  # new ones each time, with numbers before everybody's
            names.append(f"{len(kept):017d}-aaaaaaaa-c")
            kept.append(pool._make_ticket(entry(), names[-1]))
    print("done", flush=True)
"""


@contextlib.contextmanager
def forger(path: str, how: str) -> Iterator[Callable[[str], None]]:
    """Another user, who makes so many tickets, or takes all of them back."""
    with another(FORGED, path, how, user=NOBODY, stdin=subprocess.PIPE) as forging:
        assert forging.stdin is not None and line(forging) == "ready"
        stdin = forging.stdin

        def order(what: str) -> None:
            stdin.write(f"{what}\n")
            stdin.flush()
            assert line(forging) == "done"

        yield order
        stdin.close()


@linux
@root
def test_forged_tickets_of_another_user_block_nobody(open_path: str) -> None:
    """However many there are, and however often he makes new ones."""
    clock = Clock()
    with Pool(open_path, ROOM, clock) as pool, forger(open_path, "careful") as forge:
        mine = pool.request_slots(ALL_CORES)
        for _ in range(3):
            forge("20")
            assert pool.try_admit(mine) is None
            clock.now += TAKE_WITHIN / 3
        grant = pool.try_admit(mine)
        assert grant is not None
        grant.release()


@linux
@root
def test_forged_tickets_cost_their_seconds_once(open_path: str) -> None:
    """New ones, one after the other, each time that slots become free: one patience is all that they get."""
    clock = Clock()
    with Pool(open_path, ROOM, clock) as pool, forger(open_path, "careful") as forge:
        forge("1")
        waited = 0.0
        for turn in range(6):
            mine = pool.request_slots(ALL_CORES)
            while (grant := pool.try_admit(mine)) is None:
                assert mine.look_again is not None
                waited, clock.now = waited + mine.look_again, clock.now + mine.look_again
            forge("none")
            probe = pool.request_slots(ALL_CORES)
            assert pool.try_admit(probe) is None and probe.look_again is None, "nobody is offered slots"
            probe.cancel()
            forge(str(1 + turn))
            grant.release()
        assert waited <= TAKE_WITHIN


@linux
@root
def test_forged_tickets_that_come_and_go_share_one_patience(open_path: str) -> None:
    """He takes them back before he is late, and makes others."""
    clock = Clock()
    with Pool(open_path, ROOM, clock) as pool, forger(open_path, "careful") as forge:
        mine, began = pool.request_slots(ALL_CORES), clock.now
        while True:
            forge("2")
            if (grant := pool.try_admit(mine)) is not None:
                break
            clock.now += TAKE_WITHIN - 5
            assert clock.now - began < 3 * TAKE_WITHIN
            forge("none")
        assert clock.now - began <= 2 * TAKE_WITHIN
        grant.release()


@linux
@root
@pytest.mark.parametrize("how", ["-1", "1", "999999999"], ids=["no boot", "of init", "of nobody"])
def test_tickets_of_processes_that_are_not_his_cost_nothing(open_path: str, how: str) -> None:
    with Pool(open_path, ROOM, Clock()) as pool, forger(open_path, how) as forge:
        forge("20")
        grant = pool.try_admit(pool.request_slots(ALL_CORES))
        assert grant is not None
        grant.release()


@linux
@root
def test_another_user_who_was_late_is_forgiven(open_path: str) -> None:
    """When he takes slots; or when an hour has passed in which he was offered none."""
    clock = Clock()
    with Pool(open_path, ROOM, clock) as pool, forger(open_path, "careful") as forge:
        forge("1")
        mine = pool.request_slots(ALL_CORES)
        assert pool.try_admit(mine) is None
        clock.now += TAKE_WITHIN
        grant = pool.try_admit(mine)
        assert grant is not None
        grant.release()
        forge("none")
        clock.now += 3601
        running = admitted(pool, ALL_CORES)
        forge("1")
        mine = pool.request_slots(ALL_CORES)
        assert pool.try_admit(mine) is None
        running.release()
        assert pool.try_admit(mine) is None and mine.look_again == TAKE_WITHIN
