"""How soon do two members meet? From the launch to the first all-reduce, cold, and from a member's exit to
the outcome.

Peers: two bare ``python worker.py`` (the limit: somebody must start two interpreters and import torch),
torchrun.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.measure import alternate, table

HERE = Path(__file__).parent
WORKER = str(HERE / "worker.py")

# A process that has imported allaboard; each line on stdin is one launch, each answer the time just before
# it.
DRIVER = """
import sys, time, json, os
import allaboard
for line in sys.stdin:
    job = allaboard.TrainingJob(name="bench", command=["python", sys.argv[1]], workers=2, folder=os.getcwd())
    before = time.time()
    outcome = allaboard.run(job)
    print(json.dumps([before, outcome.ok, outcome.seen.members[0].ended, time.time()]), flush=True)
"""


def environment(out: str) -> dict[str, str]:
    return {**os.environ, "BENCH_OUT": out, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def first_all_reduce(out: str, before: float) -> float:
    return float(Path(out).read_text().split()[1]) - before


def bare(out: str) -> float:
    shared = environment(out) | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
    }
    before = time.time()
    both = [subprocess.Popen([sys.executable, WORKER], env=shared | {"RANK": str(rank)}) for rank in range(2)]
    assert all(process.wait() == 0 for process in both)
    return first_all_reduce(out, before)


def command(out: str, *words: str) -> float:
    before = time.time()
    subprocess.run(
        words, env=environment(out), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return first_all_reduce(out, before)


class Driver:
    """A process that has imported allaboard and launches when told."""

    def __init__(self, out: str, home: str) -> None:
        self.out = out
        env = environment(out) | {"ALLABOARD_HOME": home, "ALLABOARD_POOL": f"{home}/pool"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, WORKER],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=home,
        )
        self.exits: list[float] = []

    def launch(self) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        before, ok, ended, after = json.loads(self.process.stdout.readline())
        assert ok
        self.exits.append(after - ended)
        return first_all_reduce(self.out, before)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        out = f"{home}/out"
        driver = Driver(out, home)
        job = Path(home) / "job.json"
        job.write_text(json.dumps({"name": "bench", "command": ["python", WORKER], "workers": 2}))
        os.environ |= {"ALLABOARD_HOME": home, "ALLABOARD_POOL": f"{home}/pool"}
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            WORKER,
        ]
        try:
            figures = alternate(
                {
                    "two bare processes": lambda: bare(out),
                    "allaboard.run()": driver.launch,
                    "allaboard run (command line)": lambda: command(
                        out, sys.executable, "-m", "allaboard", "run", str(job)
                    ),
                    "torchrun --standalone": lambda: command(out, *torchrun),
                },
                rounds,
            )
        finally:
            driver.close()
        table("Launch to first all-reduce, 2 gloo members, cold", figures, "two bare processes")
        exits = sorted(driver.exits)
        print(
            f"  rank 0's exit to the outcome in hand: median {exits[len(exits) // 2] * 1000:.0f} ms, "
            f"worst {exits[-1] * 1000:.0f} ms"
        )
