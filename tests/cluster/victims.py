"""Clients of the Kubernetes backend that are killed with -9 at a chosen request.

    with Victims(proxy) as victims:
        victims.kill("launch", plan, owner, at=3, moment="before", namespace=ns)

Each is a process of its own, forked from one that has everything imported already, so that it costs
milliseconds and hundreds of them seconds. The fault proxy, through which it speaks, kills it: so the moment
is exact, and nothing of the client knows of it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from allaboard.backends.kubernetes.backend import AsyncKubernetesBackend, KubernetesBackend
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.job.site import Site
from allaboard.render.cluster_facts import ClusterFacts
from tests.cluster.proxy import Do, FaultProxy

ROOT = Path(__file__).resolve().parents[2]
SHORT = 0.5
"""Seconds that a client rests at most where it waits for the cluster."""
SITE = Site("s3://nowhere")
MOMENTS = ("before", "after")
"""Before its request reaches the server; after it was carried out, before its answer comes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client is to do: a method of a backend, in this namespace. ``style``: blocking or async."""

    kubeconfig: str
    namespace: str
    facts: ClusterFacts
    style: str
    method: str
    arguments: tuple[Any, ...]

    def carry_out(self) -> Any:
        access = Access(self.kubeconfig, namespace=self.namespace, environ={})
        given: dict[str, Any] = {"site": SITE, "facts": self.facts, "environ": {}}
        api = access.api()
        api.pause = rest
        if self.style == "blocking":
            return getattr(KubernetesBackend(api, **given), self.method)(*self.arguments)

        async def act() -> Any:
            return await getattr(AsyncKubernetesBackend(api, **given), self.method)(*self.arguments)

        return asyncio.run(act())


def rest(seconds: float) -> None:
    time.sleep(min(seconds, SHORT))


@dataclass(frozen=True, slots=True)
class End:
    """How a client ended. ``killed``: by us; else ``result`` is what its method returned, or raised."""

    killed: bool
    result: Any


class Victims:
    """Forks clients, one at a time. ``killed`` counts."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.killed = 0
        command = [sys.executable, "-m", "tests.cluster.victims"]
        self._mother = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Victims:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._mother.stdin is not None and self._mother.stdout is not None
        self._mother.stdin.close()
        self._mother.wait(30)
        self._mother.stdout.close()

    def kill(
        self,
        method: str,
        *arguments: Any,
        at: int,
        moment: str,
        namespace: str,
        facts: ClusterFacts,
        style: str = "blocking",
    ) -> End:
        """A client does this and is killed at its ``at``-th request, if it makes so many."""
        process: Future[int] = Future()

        def shoot() -> None:
            os.kill(process.result(60), signal.SIGKILL)

        def shoot_and_drop() -> None:
            shoot()
            raise ConnectionAbortedError

        fault = Do(before=shoot_and_drop) if moment == "before" else Do(after=shoot)
        asked = Asked(str(self.proxy.kubeconfig), namespace, facts, style, method, arguments)
        with self.proxy.during(fault, skip=at - 1, times=1):
            process.set_result(self._start(asked))
            end = self._ended()
        self.killed += end.killed
        return end

    def _start(self, asked: Asked) -> int:
        assert self._mother.stdin is not None and self._mother.stdout is not None
        pickle.dump(asked, self._mother.stdin)
        self._mother.stdin.flush()
        return int(pickle.load(self._mother.stdout))

    def _ended(self) -> End:
        assert self._mother.stdout is not None
        status, said = pickle.load(self._mother.stdout)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return End(True, None)
        if not said:
            raise RuntimeError(f"a client died by itself: wait status {status}")
        return End(False, pickle.loads(said))


# --- the mother ---------------------------------------------------------------------------------------------


def serve(asks: BinaryIO, answers: BinaryIO) -> None:
    """For each `Asked`: the number of its process, then how that ended."""
    while True:
        try:
            asked: Asked = pickle.load(asks)
        except EOFError:
            return
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _live(asked.carry_out, writing)
        os.close(writing)
        _say(answers, child)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        _say(answers, (status, said))


def _live(act: Callable[[], Any], answer: int) -> None:
    """Never returns: nothing of the mother's is to run in a child."""
    try:
        try:
            result = act()
        except Exception as error:
            result = error
        said = pickle.dumps(result)
    except BaseException as error:
        said = pickle.dumps(RuntimeError(repr(error)))
    with os.fdopen(answer, "wb") as pipe:
        pipe.write(said)
    os._exit(0)


def _say(answers: BinaryIO, what: Any) -> None:
    pickle.dump(what, answers)
    answers.flush()


if __name__ == "__main__":
    # Not as __main__: what is pickled here is of tests.cluster.victims.
    import allaboard.backends.kubernetes.client.api
    from tests.cluster import victims

    for module in ("urllib3", "aiohttp", "ssl", "yaml"):
        __import__(module)
    assert allaboard.backends.kubernetes.client.api
    victims.serve(sys.stdin.buffer, sys.stdout.buffer)
