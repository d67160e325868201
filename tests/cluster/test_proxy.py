"""The fault proxy itself: what it is told to do is what a client meets, and it counts."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.cluster.api import Api, until
from tests.cluster.cluster import Cluster
from tests.cluster.proxy import (
    ANYTHING,
    Cut,
    Delay,
    Do,
    Drop,
    FaultProxy,
    Hold,
    Lose,
    Plan,
    Say,
    TooOld,
    Twice,
)

LOST = (OSError, http.client.HTTPException)


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.kubeconfig, tls=False) as found:
        yield found


class Client:
    """One connection to the proxy, which hides nothing of what happens to it."""

    def __init__(self, proxy: FaultProxy, namespace: str) -> None:
        user = yaml.safe_load(proxy.kubeconfig.read_text())["users"][0]["user"]
        self._headers = {"Authorization": f"Bearer {user['token']}", "Content-Type": "application/json"}
        self._server = urlsplit(proxy.server)
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        assert self._server.hostname
        self._connection = http.client.HTTPConnection(self._server.hostname, self._server.port, timeout=10)
        self._response: http.client.HTTPResponse | None = None

    def __call__(self, method: str, name: str = "", body: Any = None, query: str = "") -> tuple[int, Any]:
        """Status and body; the error of http.client when the answer is lost."""
        response = self.ask(method, name, body, query)
        return response.status, json.loads(response.read())

    def ask(self, method: str, name: str = "", body: Any = None, query: str = "") -> http.client.HTTPResponse:
        path = self._path + (f"/{name}" if name else "") + (f"?{query}" if query else "")
        try:
            self._connection.request(method, path, json.dumps(body) if body else None, self._headers)
            self._response = self._connection.getresponse()
        except LOST:
            self.close()
            raise
        return self._response

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def create(self, name: str) -> int:
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        return self("POST", "", made)[0]

    def watch(self) -> http.client.HTTPResponse:
        version = self("GET")[1]["metadata"]["resourceVersion"]
        return self.ask("GET", query=f"watch=1&resourceVersion={version}&timeoutSeconds=5")


@pytest.fixture
def connect(proxy: FaultProxy, namespace: str) -> Iterator[Callable[[], Client]]:
    made: list[Client] = []

    def one() -> Client:
        made.append(Client(proxy, namespace))
        return made[-1]

    yield one
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Callable[[], Client]) -> Client:
    return connect()


def names(cluster: Cluster, namespace: str) -> set[str]:
    found = cluster.api.list("v1", "ConfigMap", namespace)
    return {one["metadata"]["name"] for one in found} - {"kube-root-ca.crt"}


def test_without_rules_it_is_not_noticed(proxy: FaultProxy, client: Client) -> None:
    assert client.create("a") == 201
    assert client("GET", "a")[0] == 200
    assert client("GET", "no")[0] == 404
    assert client("DELETE", "a")[0] == 200
    assert proxy.counts.requests == {
        "create configmaps": 1,
        "get configmaps": 2,
        "delete configmaps": 1,
    }
    assert proxy.counts.connections == 1
    assert proxy.counts.bytes["get configmaps"] > 500
    assert [asked.name for asked in proxy.asked] == ["", "a", "no", "a"]


def test_it_speaks_tls_with_a_certificate_of_its_own(cluster: Cluster) -> None:
    with FaultProxy(cluster.kubeconfig) as proxy:
        assert proxy.server.startswith("https:")
        through = Api.from_kubeconfig(proxy.kubeconfig)
        assert through.request("GET", "/version")["gitVersion"]
        through.close()
        assert proxy.counts.requests == {"get /version": 1}


def test_what_is_dropped_was_never_asked(
    proxy: FaultProxy, client: Client, cluster: Cluster, namespace: str
) -> None:
    proxy.on(Drop(), verb="create", times=1)
    with pytest.raises(LOST):
        client.create("a")
    assert names(cluster, namespace) == set()
    assert client.create("a") == 201


@pytest.mark.parametrize("half", [False, True])
def test_what_is_lost_was_carried_out(
    proxy: FaultProxy, client: Client, cluster: Cluster, namespace: str, half: bool
) -> None:
    proxy.on(Lose(half), verb="create", times=1)
    with pytest.raises(LOST):
        client.create("a")
    assert names(cluster, namespace) == {"a"}
    assert client.create("a") == 409


def test_twice_is_twice(proxy: FaultProxy, client: Client, cluster: Cluster, namespace: str) -> None:
    proxy.on(Twice(), times=1)
    assert client.create("a") == 409
    assert names(cluster, namespace) == {"a"}


def test_what_it_says_itself(proxy: FaultProxy, client: Client, cluster: Cluster, namespace: str) -> None:
    proxy.on(Say(429, retry_after=7), times=1)
    response = client.ask("GET")
    assert (response.status, response.headers["Retry-After"]) == (429, "7")
    assert json.loads(response.read())["reason"] == "TooManyRequests"
    proxy.on(Say(504, done=True), times=1)
    assert client.create("a") == 504
    assert names(cluster, namespace) == {"a"}


def test_delays(proxy: FaultProxy, client: Client) -> None:
    for fault in (Delay(0.5), Delay(0.5, answer=True)):
        proxy.on(fault, times=1)
        began = time.monotonic()
        assert client("GET")[0] == 200
        assert time.monotonic() - began >= 0.5


def test_something_of_the_tests_between(
    proxy: FaultProxy, client: Client, cluster: Cluster, namespace: str
) -> None:
    seen: list[set[str]] = []
    look = lambda: seen.append(names(cluster, namespace))  # noqa: E731
    proxy.on(Do(before=look, after=look), verb="create")
    assert client.create("a") == 201
    assert seen == [set(), {"a"}] or seen == [set()], seen


def test_watches_are_cut_and_held(proxy: FaultProxy, connect: Callable[[], Client]) -> None:
    client, other = connect(), connect()
    proxy.on(Cut(events=1), verb="watch", times=1)
    stream = client.watch()
    assert other.create("a") == 201
    assert json.loads(stream.readline())["type"] == "ADDED"
    with pytest.raises(LOST):
        assert stream.read(1), "an end in good order"
    client = connect()
    proxy.on(Cut(seconds=0.3, clean=True), verb="watch", times=1)
    assert client.watch().read() == b""
    client = connect()
    proxy.on(Hold(events=1), verb="watch", times=1)
    stream = client.watch()
    assert other.create("b") == 201
    assert other.create("c") == 201
    assert json.loads(stream.readline())["object"]["metadata"]["name"] == "b"
    assert stream.fp is not None
    with pytest.raises(TimeoutError):
        stream.fp.raw._sock.settimeout(0.5)  # type: ignore[attr-defined]
        stream.readline()
    client = connect()
    proxy.on(TooOld(), verb="watch", times=1)
    told = json.loads(client.watch().readline())
    assert (told["type"], told["object"]["code"]) == ("ERROR", 410)


def test_all_connections_are_cut_at_once(proxy: FaultProxy, connect: Callable[[], Client]) -> None:
    streams = [connect().watch() for _ in range(5)]
    proxy.cut_all()
    for stream in streams:
        with pytest.raises(LOST):
            assert stream.read(1), "an end in good order"
    until("no connection left", lambda: proxy.counts.open == 0, timeout=10)


def test_a_plan_does_the_same_each_time(proxy: FaultProxy) -> None:
    from tests.cluster.proxy import Asked

    plan, other = (Plan(seed, 0.4, ANYTHING) for seed in (1, 2))
    requests = [Asked(n, "GET", "/", "get", "/", "") for n in range(200)]
    met = [plan.of(asked) for asked in requests]
    assert met == [plan.of(asked) for asked in requests]
    assert met != [other.of(asked) for asked in requests]
    assert 50 < sum(fault is not None for fault in met) < 110


def test_as_a_process_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    command = [
        sys.executable,
        "-m",
        "tests.cluster.proxy",
        str(cluster.kubeconfig),
        "--write",
        str(file),
    ]
    process = subprocess.Popen(command)
    try:
        until("the kubeconfig", file.exists, timeout=60)
        through = Api.from_kubeconfig(file)
        assert through.request("GET", "/readyz") == "ok"
        counts = through.request("GET", "/-/counts")
        assert counts["requests"] == {"get /readyz": 1}
        through.close()
    finally:
        process.terminate()
        assert process.wait(30) == 0
