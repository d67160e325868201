"""The harness itself: hosts that are hosts, and an Airflow on them that trains from end to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dags_examples.own_airflow import send, wait_gone
from tests.provider.hosts import journal
from tests.provider.hosts.namespaces import ROOT, LocalNetwork, why_not
from tests.provider.live import until

needs_namespaces = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@needs_namespaces
def test_a_host_has_its_own_name_disk_processes_and_boot_id(tmp_path: Path) -> None:
    facts = "echo $(hostname) $(cat /proc/sys/kernel/random/boot_id); ls; ls /tmp; echo $$; ls ../shared"
    with LocalNetwork(tmp_path / "lan") as network:
        east, west = network.add_host("east"), network.add_host("west")
        (east.folder / "of-east").touch()
        (network.shared / "of-all").touch()
        seen = {host.name: host.run(["sh", "-c", facts], os.environ) for host in (east, west)}
        assert seen["east"].split()[0] == "east" and "of-east" in seen["east"]
        assert seen["west"].split()[0] == "west" and "of-east" not in seen["west"]
        assert all("of-all" in words for words in seen.values())
        assert seen["east"].split()[1] != seen["west"].split()[1]
        before = seen["east"].split()[1]
        east.crash()
        east.boot()
        after = east.run(["sh", "-c", facts], os.environ)
        assert after.split()[1] != before and "of-east" in after


@pytest.mark.thorough
@needs_namespaces
def test_hosts_reach_each_other_until_one_is_cut_off(tmp_path: Path) -> None:
    asking = [sys.executable, "-c", "import socket; socket.create_connection(('west', 5000), 3).close()"]
    with LocalNetwork(tmp_path / "lan") as network:
        east, west = network.add_host("east"), network.add_host("west")
        server = west.start("server", [sys.executable, "-m", "http.server", "5000"], os.environ)
        until("west serves", lambda: _succeeds(east, asking), 30)
        west.cut()
        assert not _succeeds(east, asking)
        west.join()
        until("west is back", lambda: _succeeds(east, asking), 30)
        server.kill()
        assert not west.pids()


def _succeeds(host: object, command: list[str]) -> bool:
    try:
        host.run(command, os.environ)  # type: ignore[attr-defined]
    except RuntimeError:
        return False
    return True


@needs_namespaces
def test_nothing_of_a_host_outlives_who_made_it(tmp_path: Path) -> None:
    script = f"""
        import os, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from tests.provider.hosts.namespaces import LocalNetwork
        host = LocalNetwork(Path({str(tmp_path / "lan")!r})).add_host("east")
        sleeper = host.start("sleeper", ["sleep", "1000"], os.environ)
        frozen = host.start("frozen", ["sleep", "1000"], os.environ)
        while len(host.pids()) < 2: time.sleep(0.1)
        frozen.freeze()
        print(host.pid, *host.pids(), flush=True)
        time.sleep(1000)
    """
    made = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdout is not None
    pids = [int(pid) for pid in made.stdout.readline().split()]
    assert len(pids) > 1
    send(made.pid, signal.SIGKILL)
    made.communicate()
    assert wait_gone(pids, 10)


def test_two_trainings_at_once_are_told(tmp_path: Path) -> None:
    def member(host: str, rank: int, began: float, last: float, attempt: int = 1) -> journal.Member:
        return journal.Member(host, 1, "run", attempt, 1, rank, began, last, 0, 1, False)

    gang = [member("east", 0, 0, 10), member("east", 1, 0, 10)]
    assert journal.two_at_once(gang) == []
    assert journal.two_at_once([*gang, member("east", 0, 10.5, 20, attempt=2)]) == []
    assert len(journal.two_at_once([*gang, member("west", 0, 5, 20)])) == 2
    # The same rank twice, in one attempt on one host.
    assert len(journal.two_at_once([*gang, member("east", 0, 5, 20)])) == 1
