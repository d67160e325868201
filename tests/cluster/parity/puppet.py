"""A member that does nothing but what a test tells it: it reports to its puppeteer and waits for an exit
code.

It runs under any Python, without packages. Told to end by a signal, it exits with 143.
"""

import ctypes
import os
import signal
import socket
import sys


def member() -> str:
    """Its name; of the equal nodes of a TrainJob, by its place among all."""
    if own := os.environ.get("ALLABOARD_MEMBER"):
        return own
    groups = [group.split(":") for group in os.environ["ALLABOARD_GROUPS"].split(",")]
    names = [f"{role}-{n}" for role, count in groups for n in range(int(count))]
    return names[int(os.environ["ALLABOARD_RANK"])]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    host, _, port = os.environ["PUPPETEER"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as strings:
        strings.settimeout(None)
        who = (os.environ["ALLABOARD_RUN"], member(), str(os.getpid()))
        strings.sendall((" ".join(who) + "\n").encode())
        told = strings.makefile()
        print("try", told.readline().strip(), flush=True)
        strings.sendall(b"up\n")
        for word in told:
            match word.strip():
                case "deaf":
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    strings.sendall(b"deaf\n")
                case "fault":
                    # A real one: the first process of a container takes no SIGSEGV that somebody sends.
                    ctypes.string_at(0)
                case code:
                    return int(code)
    return 98  # the puppeteer has gone


if __name__ == "__main__":
    sys.exit(main())
