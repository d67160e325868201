"""Hosts made of namespaces: each has its own network, hostname, processes, disk, /tmp, machine id and boot
id, and all are joined by one switch.

    with LocalNetwork(folder) as network:
        east = network.add_host("east")
        worker = east.start("worker", ["airflow", "celery", "worker"], environ)
        east.cut()                  # no packet leaves or reaches it
        east.crash()                # everything of it is gone
        east.boot()                 # with its disk, and another boot id

On every host ``folder/disk`` is the host's own disk and ``folder/shared`` the folder that all of them mount,
as NFS would be. Nothing is left in the network of the machine: interfaces and bridges are in namespaces that
end with the processes that hold them, also when the caller is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from dags_examples.own_airflow import descendants, is_alive, send, wait_gone

ROOT = Path(__file__).resolve().parents[3]
FIRST_PROCESS = Path(__file__).with_name("first_process.py")
UNSHARE = (
    *("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("--propagation", "private"),
)
PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "mount")
SUBNET = "10.77.0"
CLONE_NEWNET = 0x40000000
SUPERVISOR = "allaboard.backends.local"
"""In the command line of what keeps a training, which belongs to no component of Airflow."""
MEMBER = "journaled.py"

Result = TypeVar("Result")


def why_not() -> str | None:
    """Why this machine cannot have hosts of namespaces, in a sentence; None where it can."""
    if sys.platform != "linux":
        return "namespaces are Linux's"
    if os.geteuid() != 0:
        return "namespaces of networks and mounts need root"
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"not installed here: {', '.join(missing)}"
    tried = subprocess.run(
        [*UNSHARE, "ip", "link", "add", "type", "bridge"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


class Component:
    """A program that was started on a host, with all processes below it but the trainings."""

    def __init__(self, host: Host, name: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.host, self.name = host, name
        self.log = host.folder / f"{name}.log"
        self._before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.entered = subprocess.Popen(
                [*host.entering(), *command], env=dict(environ), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._seen: set[int] = set()

    def pids(self) -> list[int]:
        """Its processes, the outermost first; those of trainings are not among them. Also those whose parents
        ended since the last look.
        """
        below = [pid for pid in descendants(self.entered.pid) if is_alive(pid)]
        trainings = {
            one for pid in below if SUPERVISOR in _arguments(pid) for one in (pid, *descendants(pid))
        }
        found = [pid for pid in below if pid not in trainings]
        self._seen.update(found)
        return found + [pid for pid in self._seen if pid not in found and is_alive(pid)]

    def words(self) -> str:
        """What it wrote since it was started."""
        return self.log.read_bytes()[self._before :].decode("utf-8", "replace")

    @property
    def runs(self) -> bool:
        return self.entered.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """To its outermost process."""
        if pids := self.pids():
            send(pids[0], number)

    def kill(self) -> None:
        """All of it at once, without a word: kill -9."""
        pids = self.pids()
        for pid in pids:
            send(pid, signal.SIGKILL)
        assert wait_gone(pids, 30), f"{self.name} on {self.host.name} does not die"
        self.collect()

    def collect(self) -> None:
        """Wait for who entered the host, once nothing of the component is left there."""
        send(self.entered.pid, signal.SIGCONT)
        self.entered.wait(30)

    def freeze(self) -> None:
        for pid in self.pids():
            send(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        # Who entered the host stops with what it started there.
        for pid in (*self.pids(), self.entered.pid):
            send(pid, signal.SIGCONT)

    def stop(self, seconds: float = 30) -> bool:
        """As a service manager does: SIGTERM, and SIGKILL after a while. Whether SIGTERM was enough."""
        pids = self.pids()
        self.thaw()
        self.signal(signal.SIGTERM)
        if wait_gone(pids, seconds):
            self.collect()
            return True
        self.kill()
        return False


class Host:
    """One host of a `LocalNetwork`. ``folder``: its disk, as seen from outside."""

    def __init__(self, network: LocalNetwork, name: str, number: int, mounts: Mapping[Path, str]) -> None:
        self.network, self.name, self.number = network, name, number
        self.address = f"{SUBNET}.{number}"
        self.mounts = dict(mounts)
        self.folder = network.folder / "disks" / name
        self.folder.mkdir(parents=True)
        self.components: dict[str, Component] = {}
        self.boots = 0
        self.boot()

    def boot(self) -> None:
        """Start it: nothing runs on it yet."""
        etc = self.network.folder / "etc" / self.name
        for name, text in {
            "boot_id": f"{uuid.uuid4()}\n",
            "machine-id": f"{uuid.uuid5(uuid.NAMESPACE_DNS, self.name).hex}\n",
            "hostname": f"{self.name}\n",
            "resolv.conf": "",
        }.items():
            etc.mkdir(parents=True, exist_ok=True)
            (etc / name).write_text(text)
        self.boots += 1
        describing = etc / "host.json"
        describing.write_text(
            json.dumps({"name": self.name, "mounts": self._mounts(etc), "covered": self._covered()})
        )
        with (etc / "boot.log").open("ab") as log:
            self._first = subprocess.Popen(
                [*UNSHARE, sys.executable, "-I", str(FIRST_PROCESS), str(describing)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        assert self._first.stdout is not None
        if self._first.stdout.readline() != b"ready\n":
            raise RuntimeError(f"host {self.name} does not boot:\n{(etc / 'boot.log').read_text()}")
        self.pid = descendants(self._first.pid)[0]
        self.network.plug(self)

    def _mounts(self, etc: Path) -> list[tuple[str, str]]:
        folder = self.network.folder
        tmp = folder / "tmps" / self.name
        kept = [ROOT, folder, Path(sys.executable).parent.parent]
        mounts = [(self.folder, folder / "disk"), *((source, Path(at)) for source, at in self.mounts.items())]
        for one in kept:
            # What lies below /tmp is to be found there on the host, too.
            if one.is_relative_to("/tmp"):
                here = tmp / one.relative_to("/tmp")
                here.mkdir(parents=True, exist_ok=True)
                mounts.append((one, here))
        tmp.mkdir(parents=True, exist_ok=True)
        tmp.chmod(0o1777)
        mounts += [
            (tmp, Path("/tmp")),
            (etc / "boot_id", Path("/proc/sys/kernel/random/boot_id")),
            (self.network.names, Path("/etc/hosts")),
        ]
        for name in ("machine-id", "hostname", "resolv.conf"):
            if Path("/etc", name).exists():
                mounts.append((etc / name, Path("/etc") / name))
        return [(str(source), str(target)) for source, target in mounts]

    def _covered(self) -> list[str]:
        """Others' disks."""
        return [str(self.network.folder / name) for name in ("disks", "tmps")]

    def entering(self) -> list[str]:
        """The words before a command that is to run on this host."""
        return [
            # Whoever is stopped with its child would not collect it, and the host could not end.
            "setpriv", "--pdeathsig", "KILL",
            "nsenter", "-t", str(self.pid), "-n", "-u", "-i", "-m", "-p", "--",
            "env", "-C", f"{self.network.folder}/disk",
        ]  # fmt: skip

    def start(self, name: str, command: Sequence[str], environ: Mapping[str, str]) -> Component:
        self.components[name] = Component(self, name, command, environ)
        return self.components[name]

    def run(self, command: Sequence[str], environ: Mapping[str, str], seconds: float = 300) -> str:
        """Run a command to its end, and return what it wrote. Raises RuntimeError when it fails."""
        ended = subprocess.run(
            [*self.entering(), *command], env=dict(environ), stdin=subprocess.DEVNULL, timeout=seconds,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if ended.returncode:
            raise RuntimeError(
                f"{self.name}: {' '.join(command)}: {ended.returncode}\n{ended.stdout[-4000:]}"
            )
        return ended.stdout

    def pids(self) -> dict[int, str]:
        """The command lines of all its processes, but the first one, by pid as seen from outside."""
        mine = Path(f"/proc/{self.pid}/ns/pid").readlink()
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "ns" / "pid").readlink() == mine and int(process.name) != self.pid:
                    found[int(process.name)] = _arguments(int(process.name))
        return {pid: words for pid, words in found.items() if is_alive(pid)}

    def members(self, words: str = "") -> list[int]:
        """The members of trainings that live here, those with ``words`` in their command line."""
        found = self.pids() if self.lives else {}
        return [pid for pid, line in found.items() if MEMBER in line and words in line]

    def trainings(self) -> list[str]:
        """The command lines of all that belongs to a training: supervisors, keepers, members."""
        found = self.pids().values() if self.lives else ()
        return [words for words in found if SUPERVISOR in words or MEMBER in words]

    def end_trainings(self) -> None:
        """Whatever a test left running: the supervisors, and with them their members."""
        for pid in (pids := [pid for pid, words in self.pids().items() if SUPERVISOR in words]):
            send(pid, signal.SIGKILL)
        assert wait_gone(pids, 30)

    @property
    def lives(self) -> bool:
        return self._first.poll() is None

    def crash(self) -> None:
        """Power off: everything of it is gone at once."""
        pids = [self.pid, *self.pids()]
        send(self.pid, signal.SIGKILL)
        self._first.communicate()
        assert wait_gone(pids, 30), f"something of {self.name} lives on"
        for component in self.components.values():
            component.collect()
        self.components.clear()

    def freeze(self) -> None:
        """All of it stands still, trainings included."""
        for pid in self.pids():
            send(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for component in self.components.values():
            component.thaw()
        for pid in self.pids():
            send(pid, signal.SIGCONT)

    def cut(self) -> None:
        """No packet leaves or reaches it."""
        self.network.switch("ip", "link", "set", f"to-{self.name}", "down")

    def join(self) -> None:
        self.network.switch("ip", "link", "set", f"to-{self.name}", "up")

    def inside(self, act: Callable[[], Result]) -> Result:
        """Call something in this host's network; sockets that it opens stay there."""
        return in_network_of(self.pid, act)


class LocalNetwork:
    """A switch and its hosts, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.shared = self.folder / "shared"
        self.names = self.folder / "etc" / "hosts"
        for name in ("disk", "disks", "tmps", "shared", "etc"):
            (self.folder / name).mkdir(parents=True)
        self.names.write_text("127.0.0.1 localhost\n")
        self.hosts: dict[str, Host] = {}
        # Holds the switch's network, and ends with this process.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--fork", "--kill-child", "cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.write(b"on\n")
        self._holder.stdin.flush()
        self._holder.stdout.readline()
        self._switch_pid = descendants(self._holder.pid)[0]
        self.switch("ip", "link", "add", "lan", "type", "bridge")
        self.switch("ip", "link", "set", "lan", "up")

    def __enter__(self) -> LocalNetwork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for host in self.hosts.values():
            if host.lives:
                host.crash()
        self._holder.communicate()

    def add_host(self, name: str, mounts: Mapping[Path, str] | None = None) -> Host:
        """``mounts``: folders by the place where they are mounted there."""
        number = 10 + len(self.hosts)
        # Written in place: the file is mounted on the hosts that are there.
        with self.names.open("a") as names:
            names.write(f"{SUBNET}.{number} {name}\n")
        self.hosts[name] = Host(self, name, number, mounts or {})
        return self.hosts[name]

    def switch(self, *command: str) -> None:
        """Run a command in the network of the switch."""
        subprocess.run(
            ["nsenter", "-t", str(self._switch_pid), "-n", "--", *command], check=True, capture_output=True
        )

    def plug(self, host: Host) -> None:
        """Connect a host that has booted."""
        link = f"to-{host.name}"
        subprocess.run(
            ["nsenter", "-t", str(self._switch_pid), "-n", "--", "ip", "link", "del", link],
            check=False, capture_output=True,
        )  # fmt: skip
        self.switch("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        self.switch("ip", "link", "set", link, "master", "lan", "up")
        for words in (f"addr add {host.address}/24 dev eth0", "link set eth0 up"):
            subprocess.run(
                ["nsenter", "-t", str(host.pid), "-n", "--", "ip", *words.split()],
                check=True,
                capture_output=True,
            )


def in_network_of(pid: int, act: Callable[[], Result]) -> Result:
    """Call something in the network of a process."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    with contextlib.ExitStack() as stack:
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        stack.callback(os.close, own)
        there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        stack.callback(os.close, there)
        enter(there)
        try:
            return act()
        finally:
            enter(own)


def _arguments(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""
