"""Run by the tests: takes one GPU slot after another from a pool, and witnesses that nobody else has it."""

from __future__ import annotations

import fcntl
import json
import os
import pwd  # noqa: F401  (before the user changes: the standard library may be out of his reach)
import random
import select
import socket  # noqa: F401
import sys
import time
from pathlib import Path

from allaboard.backends.local.host.machine import Capacity
from allaboard.backends.local.pool.pool import Entry, Need, Pool, Request


def journal(folder: Path, **what: object) -> None:
    """One line by one write: whole, or not at all."""
    fd = os.open(folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(fd, (json.dumps({"pid": os.getpid(), **what}) + "\n").encode())
    os.close(fd)


def main() -> None:
    path, witness, rounds, gpus, user, name = sys.argv[1:]
    folder = Path(witness)
    Entry.from_json(b"{}")  # what it imports
    if int(user):
        os.setgid(int(user))
        os.setuid(int(user))
    dice = random.Random(os.getpid())
    with Pool(path, Capacity(8.0, 1 << 30, tuple(gpus.split(",")))) as pool:
        for _ in range(int(rounds)):
            began = time.monotonic()  # one clock for all processes of a machine
            ticket = pool.request_slots(Request(f"mark-{os.getpid()}", (Need(gpu=1),), run=name))
            in_line = time.monotonic()
            journal(folder, asked=ticket.name)
            while (grant := pool.try_admit(ticket)) is None:
                select.select([ticket], [], [], 0.1)
            (gpu,) = grant.gpus(0)
            proof = os.open(folder / f"gpu-{gpu}", os.O_RDONLY)
            try:
                fcntl.flock(proof, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                journal(folder, violation=gpu)
            journal(folder, admitted=grant.name, at=grant._entry.since, began=began, in_line=in_line)
            time.sleep(dice.random() * 0.03)
            os.close(proof)
            grant.release()
            journal(folder, released=ticket.name)
    journal(folder, done=True)


if __name__ == "__main__":
    main()
