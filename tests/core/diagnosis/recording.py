"""Records what torch's flight recorder tells of real gangs over gloo that hang, for `test_recorder`.

    python -m tests.core.diagnosis.recording > tests/core/diagnosis/recorded.jsonl

Writes a line per gang: its name, torch's version, and rank -> the answer of that rank, cut as in a pod.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib.metadata import version

from allaboard.backends.kubernetes.stacks.script import _cut

GANGS = ("late_at_the_14th", "another_operation", "late_in_one_of_two_groups", "never_came")
RANKS = 4
SCRIPT = """
import os, sys, threading, time
import torch, torch.distributed as dist
import torch._C._distributed_c10d as c10d

GANG = sys.argv[1]


def tell():
    seen = []
    while len(seen) < 5 or len(set(seen[-5:])) > 1:
        time.sleep(3)
        seen.append(c10d._dump_fr_trace_json(False, False))
    sys.stdout.write(c10d._dump_fr_trace_json(True, False).decode())
    sys.stdout.flush()
    os._exit(0)


dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
threading.Thread(target=tell, daemon=True).start()
if GANG == "never_came" and rank == 3:
    time.sleep(600)
for step in range(40):
    if GANG == "late_at_the_14th" and rank == 2 and step == 13:
        time.sleep(600)
    if GANG == "another_operation" and rank == 1 and step == 20:
        dist.broadcast(torch.ones(8), src=0)
    if GANG == "late_in_one_of_two_groups":
        if rank == 3 and step == 9:
            time.sleep(600)
        dist.all_reduce(torch.ones(16), group=pairs[rank // 2])
        dist.all_reduce(torch.ones(32), group=across[rank % 2])
    else:
        dist.all_reduce(torch.ones(8))
time.sleep(600)
"""


def record(gang: str) -> dict[str, str]:
    """Rank -> its answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gang_of = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    members = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, gang],
            env={**os.environ, **gang_of, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(RANKS)
    ]
    return {str(rank): _cut(member.communicate(timeout=120)[0]) for rank, member in enumerate(members)}


if __name__ == "__main__":
    for each in GANGS:
        print(json.dumps({"gang": each, "torch": version("torch"), "ranks": record(each)}), flush=True)
