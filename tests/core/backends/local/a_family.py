"""Run by the tests as a member: starts relatives that are hard to kill and waits. See `processes.Family`."""

# ruff: noqa: PTH104, PTH110, PTH118, PTH123  (started by the hundred: few imports)

import os
import signal
import sys
import time

folder, then, *relatives = sys.argv[1:]


def note(name):
    """Write our pid at one stroke."""
    path = os.path.join(folder, name)
    with open(path + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".part", path)


def forked(*steps):
    """Run the steps in a child."""
    if os.fork() == 0:
        for step in steps:
            step()
        os._exit(0)


def rest():
    time.sleep(120)


def deaf():
    for sig in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(sig, signal.SIG_IGN)


def lose_environment():
    code = """if True:
        import os, sys, time
        with open(sys.argv[1] + ".part", "w") as file: file.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".part", sys.argv[1])
        time.sleep(600)
    """
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, os.path.join(folder, "nameless")], {})


def rabbit():
    """Fork and exit, fork and exit: never twice under one pid."""
    note("rabbit")
    end = time.monotonic() + 60  # should a test fail, not for ever
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        os.setsid()


def breed():
    """A new child every millisecond, each in a session of its own."""
    note("breeder")
    for _ in range(3000):
        forked(os.setsid, rest)
        time.sleep(0.001)
    rest()


def chain():
    """Thirty generations, each in a session of its own."""
    for _ in range(30):
        if os.fork():
            rest()
        os.setsid()
    note("chain")
    rest()


RELATIVES = {
    "child": lambda: forked(deaf, lambda: note("child"), rest),
    "grandchild": lambda: forked(lambda: forked(os.setsid, lambda: note("grandchild"), rest), rest),
    "daemon": lambda: forked(os.setsid, lambda: forked(lambda: note("daemon"), rest)),
    "nameless": lambda: forked(os.setsid, lambda: forked(lose_environment)),
    "chain": lambda: forked(chain),
    "rabbit": lambda: forked(os.setsid, lambda: forked(rabbit)),
    "breeder": lambda: forked(os.setsid, breed),
}

for name in relatives:
    RELATIVES[name]()
note("main")
if then == "sleep":
    rest()
# "wait NAME": end well once the test has put a file of that name there.
while not os.path.exists(os.path.join(folder, then)):
    time.sleep(0.005)
