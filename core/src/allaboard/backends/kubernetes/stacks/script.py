"""Runs in the container of a member, by its own python3, and prints where the Python processes of a run are.

A process answers if it began with `allaboard.inside.startup`: a signal makes it write its stacks into an
anonymous file, which is read through ``/proc``. One that does not catch that signal is never sent it, because
it would end. All are asked twice: how much they have computed in between tells who waits.

It is sent as text, stands alone, and works with Python 3.6. What it prints is one JSON object of bounded
size, ``{"looks": [...]}``, which `asking` reads.
"""

# ruff: noqa: PTH115, PTH116, PTH123, PTH208, SIM105  (/proc; an old Python)

import json
import os
import signal
import sys
import time

SIGNAL = 61
FILE, COLLECTIVES = "memfd:allaboard-stacks", "memfd:allaboard-collectives"
"""All as `allaboard.inside.startup` has them."""
RUN = "ALLABOARD_RUN"
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
BETWEEN, PATIENCE, SETTLED = 1.0, 1.5, 0.05
"""Seconds between the two rounds, for the answers of one, and between two looks at them."""
MOST_PROCESSES, MOST_TEXT, MOST_PRINTED = 256, 1 << 15, 3 << 20
"""Processes that are asked; bytes of one answer, whose end is the main thread; bytes of all answers."""


def main() -> None:
    pids = _processes(os.environ.get(RUN, ""))
    first = _round(pids)
    time.sleep(BETWEEN if first else 0)
    second = _round([pid for pid in pids if pid in first])
    looks, printed = [], 0
    for pid, now in second.items():
        look = _look(pid, first[pid], now)
        printed += len(json.dumps(look))
        if printed > MOST_PRINTED:
            break
        looks.append(look)
    sys.stdout.write(json.dumps({"looks": looks}))


def _look(pid: int, before: "dict[str, object]", now: "dict[str, object]") -> "dict[str, object]":
    environ = _environment(pid)
    rank = next((environ[name] for name in RANKS if environ.get(name)), "")
    passed = max(float(str(now["at"])) - float(str(before["at"])), 0.01)
    return {
        "pid": pid,
        "parent": now["parent"],
        "rank": int(rank) if rank.isdigit() and len(rank) < 10 else None,
        "text": now["text"],
        "state": now["state"],
        "busy": round((float(str(now["cpu"])) - float(str(before["cpu"]))) / passed, 3),
        "collectives": _collectives(pid)[1],
    }


def _processes(run: str) -> "list[int]":
    """Those of the run in this container: others of its pod, where they are seen, belong to nobody here."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    mine = [pid for pid in pids if pid != os.getpid() and run and _environment(pid).get(RUN) == run]
    return mine[:MOST_PROCESSES]


def _environment(pid: int) -> "dict[str, str]":
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read(1 << 20).decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _round(pids: "list[int]") -> "dict[int, dict[str, object]]":
    """Ask everybody at once; pid -> what it told and what the kernel tells of it."""
    asked = {}
    for pid in pids:
        try:
            path = _open_file(pid, FILE)
            size = os.stat(path).st_size if path else 0
            if path and _send(pid):
                asked[pid] = (path, size)
                _ask_collectives(pid)
        except OSError:
            pass  # gone, or another user's
    end, sizes = time.monotonic() + PATIENCE, {pid: size for pid, (_, size) in asked.items()}
    waiting = set(asked)
    while waiting and time.monotonic() < end:
        time.sleep(SETTLED)
        for pid in list(waiting):
            path, before = asked[pid]
            try:
                size = os.stat(path).st_size
            except OSError:
                size = sizes[pid] = before + 1
            if size > before and size == sizes[pid]:
                waiting.discard(pid)
            sizes[pid] = size
    found = {}
    for pid, (path, before) in asked.items():
        try:
            found[pid] = _answer(pid, path, before)
        except (OSError, IndexError, ValueError):
            pass
    return found


def _answer(pid: int, path: str, before: int) -> "dict[str, object]":
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(before, size - MOST_TEXT))
        text = file.read(MOST_TEXT).decode("utf-8", "replace")
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name, in parentheses, may hold anything.
        fields = file.read(4096).rpartition(b")")[2].split()
    return {
        "text": text,
        "state": fields[0].decode("ascii", "replace"),
        "parent": int(fields[1]),
        "cpu": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        "at": time.monotonic(),
    }


def _open_file(pid: int, name: str) -> str:
    """The anonymous file of this name that a process has open, "" for none."""
    folder = f"/proc/{pid}/fd"
    for fd in os.listdir(folder):
        try:
            if name in os.readlink(folder + "/" + fd):
                return folder + "/" + fd
        except OSError:
            pass
    return ""


def _send(pid: int) -> bool:
    """Send the signal to a process that catches it. By a descriptor of the process, where there are such: its
    number may be another's in the moment between.
    """
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        if _catches(pid):
            os.kill(pid, SIGNAL)
            return True
        return False
    try:
        if _catches(pid):
            signal.pidfd_send_signal(handle, SIGNAL)
            return True
        return False
    finally:
        os.close(handle)


def _catches(pid: int) -> bool:
    with open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"SigCgt:"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False


def _collectives(pid: int) -> "tuple[str, str]":
    """(descriptor of the pipe through which a process is asked, its last answer); a forked child has the file
    of its parent, and nobody who answers.
    """
    try:
        path = _open_file(pid, COLLECTIVES)
        if path:
            with open(path, "rb") as file:
                head, _, told = file.read(MOST_TEXT).decode("utf-8", "replace").partition("\n")
            who, _, pipe = head.partition(" ")
            if who == str(pid) and pipe.isdigit():
                return pipe, told
    except OSError:
        pass
    return "", ""


def _ask_collectives(pid: int) -> None:
    """The answer is read at the next look."""
    pipe = _collectives(pid)[0]
    path = f"/proc/{pid}/fd/{pipe}"
    if not pipe or not os.readlink(path).startswith("pipe:"):
        return
    ask = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(ask, b"?")
    finally:
        os.close(ask)


if __name__ == "__main__":
    main()
