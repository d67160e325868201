"""A line through points that are spread over the workers of an MXJob, kept by its parameter servers."""

import json
import os
import socket
import time

from allaboard.inside import report, result

STEPS = 60
PATIENCE = 120.0
root = os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"])
role = os.environ["DMLC_ROLE"]
workers, servers = int(os.environ["DMLC_NUM_WORKER"]), int(os.environ["DMLC_NUM_SERVER"])


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


def say(file, value):
    print(json.dumps(value), file=file, flush=True)


def schedule():
    """Tell workers and servers where the servers listen, once all have come; end when all of them have."""
    listening = socket.create_server(root, backlog=workers + servers)
    files = [listening.accept()[0].makefile("rw") for _ in range(workers + servers)]
    addresses = sorted(address for address in (json.loads(file.readline()) for file in files) if address)
    for file in files:
        say(file, addresses)
    for file in files:
        file.read()


def meet(port):
    """The connection to the scheduler, and where the servers listen. ``port``: a server's own."""
    to_scheduler = connected(root)
    file = to_scheduler.makefile("rw")
    say(file, [to_scheduler.getsockname()[0], port] if port else None)
    return to_scheduler, json.loads(file.readline())


def serve():
    """Keep a share of the numbers: take the mean of what all workers send, and tell them the new ones."""
    listening = socket.create_server(("", 0))
    to_scheduler, _ = meet(listening.getsockname()[1])
    files = [listening.accept()[0].makefile("rw") for _ in range(workers)]
    kept = None
    while all(lines := [file.readline() for file in files]):
        gradients = zip(*sorted(json.loads(line) for line in lines), strict=True)
        means = [sum(column) / workers for column in gradients]
        kept = [number - 0.5 * mean for number, mean in zip(kept or [0.0] * len(means), means, strict=True)]
        for file in files:
            say(file, kept)
    to_scheduler.close()


def work(worker):
    """Fit a line to points of its own; number n of the line is kept by server n % servers."""
    to_scheduler, addresses = meet(None)
    files = [connected(tuple(address)).makefile("rw") for address in addresses]
    points = [-1.0 + 2.0 * n / 63 for n in range(64)][worker::workers]
    line = [0.0, 0.0]
    for step in range(STEPS):
        time.sleep(0.05)  # a step of a model takes longer, and its members are seen to meet
        errors = [line[0] * x + line[1] - (3.0 * x + 0.5) for x in points]
        gradient = [sum(e * x for e, x in zip(errors, points, strict=True)), sum(errors)]
        gradient = [2.0 * part / len(points) for part in gradient]
        for n, file in enumerate(files):
            say(file, gradient[n::servers])
        for n, file in enumerate(files):
            line[n::servers] = json.loads(file.readline())
        report(step + 1, total=STEPS, loss=sum(e * e for e in errors) / len(errors))
    print(f"line {line[0]:.3f} {line[1]:.3f}", flush=True)
    result(slope=round(line[0], 3), intercept=round(line[1], 3))
    for file in files:
        file.close()
    to_scheduler.close()


if role == "scheduler":
    schedule()
elif role == "server":
    serve()
else:
    work(int(os.environ["DMLC_WORKER_ID"]))
