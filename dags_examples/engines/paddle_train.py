"""A line through points that are spread over all members of a PaddleJob, fitted over a ring of sockets."""

import json
import os
import socket
import struct
import threading
import time

from allaboard.inside import context, report, result

STEPS = 60
PATIENCE = 120.0
job, size = os.environ["PADDLE_JOB_ID"], int(os.environ["PADDLE_NNODES"])
host, _, port = os.environ["PADDLE_MASTER"].rpartition(":")
rank = context().rank  # the operator tells none; paddle.distributed.launch takes it as --rank


def connected(address):
    """A connection to somebody who may not listen yet."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            connection = socket.create_connection(address, timeout=PATIENCE)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


def keep_the_list(server):
    """Tell all members where all of them listen, once all have come."""
    files = [server.accept()[0].makefile("rw") for _ in range(size)]
    peers = sorted(json.loads(file.readline()) for file in files)
    assert {its for _, its, _ in peers} == {job} and [n for n, *_ in peers] == [*range(size)]
    for file in files:
        print(json.dumps([address for *_, address in peers]), file=file, flush=True)
    for file in files:
        file.read()  # until each has ended: who is connected is alive


def meet(own_port):
    """The list's keeper, and where all members listen: the first whose address is the master's keeps it."""
    try:
        server = socket.create_server((host, int(port)), backlog=size)
    except OSError:  # another host's, or taken: somebody else keeps it
        pass
    else:
        threading.Thread(target=keep_the_list, args=[server], daemon=True).start()
    to_master = connected((host, int(port)))
    file = to_master.makefile("rw")
    print(json.dumps([rank, job, [to_master.getsockname()[0], own_port]]), file=file, flush=True)
    return to_master, json.loads(file.readline())


own = socket.create_server(("", 0))
to_master, peers = meet(own.getsockname()[1])
to_next = connected(tuple(peers[(rank + 1) % size]))
from_last = own.accept()[0].makefile("rb")


def gathered(numbers):
    """The numbers of all members: each sends on what it got from the one before."""
    found = [tuple(numbers)]
    for _ in range(size - 1):
        to_next.sendall(struct.pack(f"{len(numbers)}d", *found[-1]))
        found.append(struct.unpack(f"{len(numbers)}d", from_last.read(8 * len(numbers))))
    return found


def mean(numbers):
    # In the same order everywhere: the last digit of a sum depends on it.
    return [sum(column) / size for column in zip(*sorted(gathered(numbers)), strict=True)]


points = [-1.0 + 2.0 * n / 63 for n in range(64)][rank::size]  # each member has its own
slope = intercept = 0.0
for step in range(STEPS):
    time.sleep(0.05)  # a step of a model takes longer, and its members are seen to meet
    errors = [slope * x + intercept - (3.0 * x + 0.5) for x in points]
    gradient = [sum(e * x for e, x in zip(errors, points, strict=True)), sum(errors)]
    along, up = mean([2.0 * part / len(points) for part in gradient])
    slope, intercept = slope - 0.5 * along, intercept - 0.5 * up
    report(step + 1, total=STEPS, loss=sum(e * e for e in errors) / len(errors))

assert len({*gathered([slope, intercept])}) == 1, "all members have the same line"
print(f"line {slope:.3f} {intercept:.3f}", flush=True)
result(slope=round(slope, 3), intercept=round(intercept, 3))
