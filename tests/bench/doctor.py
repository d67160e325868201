"""The doctor over a large failed job: 1,000 pods with 10 MB of logs."""

from __future__ import annotations

import statistics
import time
from typing import Any

from allaboard.backends.kubernetes.observe.snapshot import read_snapshot
from allaboard.diagnosis import diagnose
from tests.core.diagnosis.building import FAILED, job, node, pod, snapshot, traceback, watchdog

PODS, BYTES = 1000, 10 << 20
LIMIT = 2.0
"""Seconds that are promised."""


def large() -> dict[str, Any]:
    each = BYTES // PODS
    step = "2026-05-20 12:{:02d}:00 rank {} step {} loss 2.31 lr 3e-4 tokens/s 41233 mem 61.2 GiB\n"
    logs = {}
    for n in range(PODS):
        lines = "".join(step.format(k % 60, n, k) for k in range(each // 90))
        logs[f"worker-{n}"] = lines + watchdog(n + 1)
    logs[f"worker-{PODS // 2}"] = logs[f"worker-{PODS // 2}"][:-600] + traceback(
        "torch.OutOfMemoryError: CUDA out of memory.", rank=PODS // 2 + 1
    )
    pods = [
        pod(f"worker-{n}", "Failed", exit_code=1, ended=40 if n != PODS // 2 else 30, node=f"n{n}")
        for n in range(PODS)
    ]
    return snapshot(
        job("Created", FAILED, workers=PODS), *pods, nodes=[node(f"n{n}") for n in range(PODS)], logs=logs
    )


def main(rounds: int) -> None:
    whole = large()
    size = sum(map(len, whole["logs"].values()))
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        found = diagnose(read_snapshot(whole), thorough=True)
        seconds.append(time.perf_counter() - begun)
    top = found[0]
    print(
        f"doctor: {PODS} pods, {size / 1e6:.1f} MB of logs: median {statistics.median(seconds):.2f} s, "
        f"worst {max(seconds):.2f} s (promised: below {LIMIT:.0f} s)"
    )
    print(f"        said {top.code} of {top.blame} ({top.confidence:.0%})")
