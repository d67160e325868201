"""What does torch's flight recorder cost, which members keep on? A gang of two over gloo, 2,000 collectives;
and what a question at a hang costs a rank.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from tests.bench.measure import alternate, table

COLLECTIVES = 2000
SCRIPT = """
import sys, time
import torch, torch.distributed as dist
import torch._C._distributed_c10d as c10d

dist.init_process_group("gloo")
numbers = torch.ones(int(sys.argv[1]))
for _ in range(200):
    dist.all_reduce(numbers)
before = time.perf_counter()
for _ in range(int(sys.argv[2])):
    dist.all_reduce(numbers)
took = [time.perf_counter() - before]
for collectives in (False, True):
    before = time.perf_counter()
    c10d._dump_fr_trace_json(collectives, False)
    took.append(time.perf_counter() - before)
if dist.get_rank() == 0:
    print(*took)
dist.destroy_process_group()
"""


def gang(size: int, kept: int, figure: int) -> float:
    """Seconds of `COLLECTIVES` all_reduces of ``size`` numbers, or of a question: 1 for the numbers of the
    last ones, 2 for the last ones themselves. ``kept``: how many the recorder keeps.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    members = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(size), str(COLLECTIVES)],
            env={**os.environ, **more, "RANK": str(rank), "TORCH_FR_BUFFER_SIZE": str(kept)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = "".join(member.communicate(timeout=120)[0] for member in members)
    return float(printed.split()[figure])


def main(rounds: int) -> None:
    off, on = "off: 1 number", "on: 1 number"
    figures = alternate(
        {
            off: lambda: gang(1, 0, 0),
            on: lambda: gang(1, COLLECTIVES, 0),
            "off: 1 MB": lambda: gang(1 << 18, 0, 0),
            "on: 1 MB": lambda: gang(1 << 18, COLLECTIVES, 0),
            "a question for numbers": lambda: gang(1, COLLECTIVES, 1),
            "a question for the last 2,000": lambda: gang(1, COLLECTIVES, 2),
        },
        rounds,
    )
    table(f"torch's flight recorder, {COLLECTIVES:,} all_reduces of two ranks over gloo", figures, off)
