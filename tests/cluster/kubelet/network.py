"""The network of the pods: one router in a network namespace of its own, every pod behind a link of its own.

    host --aabK-- router --vN-- pod          10.K.0.1    the router: DNS, and the way to everything
                    |                         10.K.0.254  the host as pods see it (servers of the harness)
                  flaw0 (TUN)                 10.K.0.10+  the nodes' own addresses, all on the host
                                              10.K.n.m    pod m of node n

Pods have a /32 and reach each other through the router only, as with a routed CNI, so a fault is a rule of
the router: packets between two addresses are dropped there (cut), or sent through the TUN device, where the
kubelet delays, drops or doubles them. That needs no module of the kernel (netem is often not built) and works
the same everywhere.

Nothing of this is in the host's network but one link and one route, and both go with the router's namespace
when the kubelet dies.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass

from tests.cluster.kubelet.processes import Spawned, Spawner, SpawnFailed

TUN = "flaw0"
FLAWED_TABLE = 100
"""The routing table that leads to the TUN device."""
# Priorities of the router's rules: what comes out of the device goes its way; then cuts; then flaws.
REINJECTED, CUT, FLAWED = 50, 60, 70
FIRST_OCTETS = range(64, 192)


@dataclass(frozen=True, slots=True)
class Flaw:
    """What a link does to packets of one direction. ``delay`` in seconds, ``loss`` and ``twice`` 0 to 1."""

    delay: float = 0.0
    loss: float = 0.0
    twice: float = 0.0


class NoNetwork(Exception):
    """The pods' network cannot be made on this machine."""


class Network:
    """The router, its addresses and its faults."""

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._router: Spawned
        self._links = 0
        self._tun = -1
        self._flaws: dict[tuple[str, str], Flaw] = {}
        self._rules: set[str] = set()
        self.octet = 0
        self.dns_udp: socket.socket
        self.dns_tcp: socket.socket
        self.api: socket.socket | None = None
        """Listens on the service address of the API server, in the router; whoever accepts it is on the
        host.
        """

    @property
    def router(self) -> str:
        return f"10.{self.octet}.0.1"

    @property
    def host(self) -> str:
        """The host's address as pods see it."""
        return f"10.{self.octet}.0.254"

    @property
    def router_pid(self) -> int:
        return self._router.pid

    def node_address(self, node: int) -> str:
        return f"10.{self.octet}.0.{10 + node}"

    def pod_range(self, node: int) -> str:
        return f"10.{self.octet}.{1 + node}.0/24"

    def pod_address(self, node: int, number: int) -> str:
        return f"10.{self.octet}.{1 + node}.{number}"

    async def start(self, *, api: tuple[str, int] | None) -> None:
        """Make the router on the first free 10.K.0.0/16. ``api``: the service address that it answers for."""
        taken = _taken_octets()
        free = [octet for octet in FIRST_OCTETS if octet not in taken]
        trouble = "every 10.64.0.0/16 to 10.191.0.0/16 is taken"
        for self.octet in free[:8]:
            try:
                return await self._start(api)
            except SpawnFailed as error:
                trouble = str(error)
                if "File exists" not in trouble:
                    break
        raise NoNetwork(f"the pods' network cannot be made: {trouble}")

    async def _start(self, api: tuple[str, int] | None) -> None:
        link = f"aab{self.octet}"
        batch = [
            "link set lo up",
            f"addr add {self.router}/32 dev lo",
            f"link add up0 type veth peer name {link} netns {self._spawner.pid}",
            "link set up0 up",
            f"route add {self.host}/32 dev up0 scope link src {self.router}",
            f"route add default via {self.host} dev up0",
            f"link set {TUN} up",
            f"route add default dev {TUN} table {FLAWED_TABLE}",
            f"rule add iif {TUN} lookup main priority {REINJECTED}",
        ]
        listen = [
            {"kind": "udp", "address": self.router, "port": 53},
            {"kind": "tcp", "address": self.router, "port": 53},
        ]
        if api is not None:
            batch.append(f"addr add {api[0]}/32 dev lo")
            listen.append({"kind": "tcp", "address": api[0], "port": api[1]})
        self._router = self._spawner.ask({"kind": "router", "tun": TUN, "batch": batch, "listen": listen})
        await self._router.begun("ready")
        self._tun, *sockets = self._router.fds
        self.dns_udp, self.dns_tcp, *rest = (socket.socket(fileno=fd) for fd in sockets)
        self.api = rest[0] if rest else None
        await self._spawner.ip(
            [
                f"addr add {self.host}/32 dev {link}",
                f"link set {link} up",
                f"route add 10.{self.octet}.0.0/16 via {self.router} dev {link} onlink src {self.host}",
            ]
        )
        asyncio.get_running_loop().add_reader(self._tun, self._through_tun)

    async def add_node(self, node: int) -> None:
        """Give the host this node's address too, and the router the way to it."""
        await self._spawner.ip([f"addr add {self.node_address(node)}/32 dev aab{self.octet}"])
        await self._in_router([f"route add {self.node_address(node)}/32 via {self.host} dev up0"])

    def wiring(self, address: str) -> dict[str, object]:
        """What a sandbox request needs to hang a pod with this address on the router."""
        self._links += 1
        link = f"v{self._links}"
        return {
            "router": self.router_pid,
            "inside": [
                "link set lo up",
                f"link add eth0 type veth peer name {link} netns {self.router_pid}",
                f"addr add {address}/32 dev eth0",
                "link set eth0 up",
                f"route add {self.router}/32 dev eth0 scope link",
                f"route add default via {self.router}",
            ],
            "outside": [
                f"link set {link} up",
                f"route replace {address}/32 dev {link} scope link src {self.router}",
            ],
        }

    # --- faults ---------------------------------------------------------------------------------------------

    async def cut(self, one: str, other: str) -> None:
        """Drop whatever goes between two addresses or ranges, silently; until it is mended."""
        await self._rule(f"from {one} to {other} priority {CUT} blackhole")
        await self._rule(f"from {other} to {one} priority {CUT} blackhole")

    async def isolate(self, which: str) -> None:
        """Drop whatever comes from or goes to an address or a range, but for itself."""
        await self._rule(f"from {which} priority {CUT} blackhole")
        await self._rule(f"to {which} priority {CUT} blackhole")

    async def flaw(self, one: str, other: str, flaw: Flaw) -> None:
        """Let every packet between two addresses, of either direction, suffer this."""
        for pair in ((one, other), (other, one)):
            self._flaws[pair] = flaw
            await self._rule(f"from {pair[0]} to {pair[1]} priority {FLAWED} lookup {FLAWED_TABLE}")

    async def mend(self, *addresses: str) -> None:
        """Take back every fault that names one of these addresses or ranges; all faults when none is
        given.
        """
        named = {rule for rule in self._rules if not addresses or set(addresses) & set(rule.split())}
        self._rules -= named
        await self._in_router([f"rule del {rule}" for rule in named])
        for pair in [p for p in self._flaws if not addresses or set(addresses) & set(p)]:
            del self._flaws[pair]

    async def _rule(self, rule: str) -> None:
        if rule not in self._rules:
            self._rules.add(rule)
            await self._in_router([f"rule add {rule}"])

    async def _in_router(self, batch: list[str]) -> None:
        await self._spawner.ip(batch, pid=self.router_pid)

    def _through_tun(self) -> None:
        """Packets of flawed pairs: lose, double, delay, and give them back to the router."""
        loop = asyncio.get_running_loop()
        for _ in range(64):  # the other work of the loop must get its turn
            try:
                packet = os.read(self._tun, 65536)
            except (BlockingIOError, OSError):
                return
            source, target = socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20])
            flaw = self._flaws.get((source, target), Flaw())
            if random.random() < flaw.loss:
                continue
            for _ in range(2 if random.random() < flaw.twice else 1):
                loop.call_later(flaw.delay, self._give_back, packet)

    def _give_back(self, packet: bytes) -> None:
        with suppress(OSError):
            os.write(self._tun, packet)

    def close(self) -> None:
        if self._tun >= 0:
            asyncio.get_running_loop().remove_reader(self._tun)
            os.close(self._tun)
            self._tun = -1
            self.dns_udp.close()
            self.dns_tcp.close()
            if self.api is not None:
                self.api.close()
            self._router.close()


def _taken_octets() -> set[int]:
    """Second octets of the 10.x networks that this host knows a way to."""
    told = subprocess.run(
        ["ip", "-4", "route", "show", "table", "all"], capture_output=True, text=True
    ).stdout
    words = [word for word in told.split() if word.startswith("10.")]
    return {int(word.split(".")[1]) for word in words}
