"""The first process of a host, which `namespaces` starts in namespaces of its own: gives the host its
hostname, disk, /tmp, boot id and hosts file, then reaps orphans, as any init does. When its stdin closes it
ends, and the kernel ends everything else of the host.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path


def main() -> None:
    host = json.loads(Path(sys.argv[1]).read_text())
    socket.sethostname(host["name"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # A bind mount of what a later one would cover comes first: `mounts` is in order.
    for source, target in host["mounts"]:
        bind(source, target)
    for covered in host["covered"]:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", covered], check=True)
    print("ready", flush=True)
    while True:
        reap()
        if select.select([0], [], [], 0.2)[0] and not os.read(0, 4096):
            os._exit(0)


def bind(source: str, target: str) -> None:
    """With everything mounted below the source."""
    ms_bind, ms_rec = 4096, 16384
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), None, ms_bind | ms_rec, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"{source} -> {target}")


def reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
