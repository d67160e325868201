"""How much memory and CPU do 10,000 idle followers of one process take? ``python -m tests.bench.waiters
[COUNT]``.

The API server is a small one of the tests', in a process of its own: what is measured is the process that
waits. Each follower is a task that waits for its run through the hub; all runs exist, and nothing happens to
them.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IDLE = 20.0


def serve(count: int) -> None:
    from tests.core.backends.kubernetes.collection import Collection
    from tests.core.backends.kubernetes.scripted import scripted

    with scripted() as server:
        rows = Collection()
        server.otherwise = rows.answer
        for n in range(count):
            rows.rows["pytorchjobs", f"run-{n:08x}"] = "Running"
        rows.version += 1
        print(server.url, flush=True)
        sys.stdin.readline()


async def wait(url: str, count: int) -> None:
    from allaboard.backends.kubernetes.client.api import Api
    from allaboard.backends.kubernetes.client.config import Fixed, Secret, Settings
    from allaboard.backends.kubernetes.client.protocol import Patience
    from allaboard.backends.kubernetes.watch.informer import AsyncHub, async_hub_of
    from allaboard.testing.objects import PYTORCHJOBS
    from tests.bench.monitors import cpu, resident

    async def follow(hub: AsyncHub, run: str) -> None:
        async with hub.changes(run, PYTORCHJOBS) as changes:
            while True:
                await changes.wait(600)

    with Api(Settings(url, Fixed(Secret("Bearer x")), namespace="team")) as api:
        async with api.in_loop(Patience()) as warm:
            await warm.list(PYTORCHJOBS, table=True)
        gc.collect()
        before = resident()
        hub = async_hub_of(api)
        tasks = [asyncio.create_task(follow(hub, f"run-{n:08x}")) for n in range(count)]
        await asyncio.sleep(5.0)
        gc.collect()
        after, used = resident(), cpu()
        await asyncio.sleep(IDLE)
        used = cpu() - used
        print(
            f"\nB1 waiters: {count} idle followers in one process: {(after - before) / count:.0f} B each, "
            f"task and all (moonshot 1,000),\n  {after / 1e6:.0f} MB in all (moonshot 150 for 10,000), "
            f"{used / IDLE:.3%} of a core"
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Bare:
    """What no follower in a loop can be without: a task, a time-out, something to wait for."""

    async def wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = loop.call_later(seconds, waiter.cancel)
        try:
            await waiter
        finally:
            timer.cancel()


async def bare(count: int) -> None:
    from tests.bench.monitors import resident

    gc.collect()
    before = resident()
    waiters = [Bare() for _ in range(count)]
    tasks = [asyncio.create_task(waiter.wait(600)) for waiter in waiters]
    await asyncio.sleep(3.0)
    gc.collect()
    print(f"  a bare task that waits with a time-out: {(resident() - before) / count:.0f} B")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main(count: int = 10_000) -> None:
    """In processes of their own."""
    for part in ([], ["--bare"]):
        command = [sys.executable, "-m", "tests.bench.waiters", str(count), *part]
        subprocess.run(command, cwd=ROOT, check=True)


def with_server(count: int) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.waiters", str(count), "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        asyncio.run(wait(server.stdout.readline().strip(), count))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    if "--serve" in sys.argv:
        serve(number)
    elif "--bare" in sys.argv:
        asyncio.run(bare(number))
    else:
        with_server(number)
