"""What it costs to look for progress in a log: a line of logs without any, of a training, and of a bar.

The peer is a loop that asks one regular expression of each line.

    .venv/airflow/bin/python -m tests.bench.printed [ROUNDS]
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable

from allaboard.follow.printed import ProgressReader

PIECE = 1 << 20
MOST = 2000
"""As many lines of progress of a piece as the local backend reads."""
NOISE = [
    "2026-01-01T10:00:00.123Z INFO  server.request: GET /v1/models/digits took {n} ms, status 200",
    "I0102 10:11:12.{n:06} 1234 kubelet.go:2412] SyncLoop UPDATE source=api pods=[default/train-{n}]",
    "node1:120:{n} [0] NCCL INFO Channel 00/02 : 0 1 2 3",
    "DataLoader worker 3: fetched batch {n} in 0.31s",
    "#9 [3/7] RUN pip install -r requirements.txt # step {n}",
    "tests/test_loss.py::test_step_{n}_loss PASSED                             [ 12%]",
    "WARNING:root:the loss was 0.{n} at step {n} before the restart",
    "",
]
MEGATRON = [
    " [2026-01-01 10:00:00] iteration {n:8d}/10000000 | consumed samples: {n:12d} | "
    "elapsed time per iteration (ms): 30000.0 | learning rate: 3.0E-06 | global batch size:  1024 | "
    "lm loss: 1.162634E+01 | grad norm: 4.960 |",
    "(min, max) time across ranks (ms):",
    "    forward-backward ...............................: (29008.20, 29009.{n})",
]
BAR = ["Training:  12%|#2        | {n}/10000000 [00:12<01:30,  9.80it/s, loss=0.{n}]"]


def pieces(lines: list[str], size: int) -> list[bytes]:
    """Some MB of a log, in pieces of whole lines."""
    made, n = [], 0
    while len(made) * PIECE < size:
        piece = bytearray()
        while len(piece) < PIECE:
            n += 1
            piece += lines[n % len(lines)].format(n=n).encode() + b"\n"
        made.append(bytes(piece))
    return made


def read(log: Iterable[bytes]) -> int:
    reader, count = ProgressReader(), 0
    for piece in log:
        for _, line in reader.candidates(piece, MOST):
            count += len(reader.read(line.decode("utf-8", "replace")))
    return count


def ask_one_expression(log: Iterable[bytes]) -> int:
    expression = re.compile(r"(?:step|iteration|epoch)\D{0,3}\d+.*loss", re.IGNORECASE)
    return sum(expression.search(line) is not None for piece in log for line in piece.decode().split("\n"))


def seconds(of: Callable[[list[bytes]], int], log: list[bytes]) -> tuple[float, int]:
    begun = time.process_time()
    count = of(log)
    return time.process_time() - begun, count


def main(rounds: int) -> None:
    """Print a row for each log, of so many MB for each round."""
    megabytes = 3 * rounds
    print(f"{'log':28}{'us a line':>12}{'s a GB':>10}{'reports':>10}{'one expression, times':>24}")
    for name, lines in (("no progress", NOISE), ("Megatron-LM", MEGATRON), ("a bar", BAR)):
        log = pieces(lines, megabytes * PIECE)
        size, count = sum(map(len, log)), sum(piece.count(b"\n") for piece in log)
        took, reports = seconds(read, log)
        peer, _ = seconds(ask_one_expression, log)
        print(f"{name:28}{took / count * 1e6:12.2f}{took / size * 1e9:10.1f}{reports:10}{took / peer:24.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
