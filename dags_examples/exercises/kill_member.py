"""What a machine that dies does to a member: kill -9 for its whole tree of processes.

    python kill_member.py RUN MEMBER          python kill_member.py elastic worker-2

Members carry their run and their name in the environment (ALLABOARD_RUN, ALLABOARD_MEMBER), and so does all
that they start; /proc tells who they are (Linux)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def processes(run: str, member: str) -> dict[str, list[int]]:
    """The processes of a member, by run; ``run`` is a run's id, the beginning of one, or its job's name."""
    found: dict[str, list[int]] = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            lines = (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile, or is not ours
            continue
        settings = dict(line.decode(errors="replace").partition("=")[::2] for line in lines)
        name = settings.get("ALLABOARD_RUN", "")
        if settings.get("ALLABOARD_MEMBER") == member and name.startswith(run):
            found.setdefault(name, []).append(int(process.name))
    return found


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python kill_member.py RUN MEMBER, as in: python kill_member.py elastic worker-2")
    run, member = sys.argv[1:]
    found = processes(run, member)
    if not found:
        sys.exit(f"no process of {member} runs")
    if len(found) > 1:
        sys.exit(f"{run} matches several runs: {', '.join(sorted(found))}; give a longer prefix")
    ((name, victims),) = found.items()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    print(f"killed {len(victims)} processes of {member} of {name}: {', '.join(map(str, victims))}")


if __name__ == "__main__":
    main()
