"""What does the helper of a member cost its start? The same commands with it and without, as whole processes,
and the memory of the endpoint.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from allaboard.backends.kubernetes.lifecycle.helper import helper_files
from tests.bench.measure import alternate, table
from tests.core.inside.containers import environment, mounted, started_by

COMMANDS = {
    "python -c pass": ["python3", "-c", "pass"],
    "sh -c :": ["sh", "-c", ":"],
    "true (a binary)": ["true"],
}
LOOKS = """
import os
path = os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]
print(open(os.path.join(os.path.dirname(os.path.dirname(path)), "status")).read())
"""


def starts(command: Sequence[str]) -> Callable[[], float]:
    """A measurement of seconds from the start of a command to its end."""

    def measure() -> float:
        before = time.perf_counter()
        subprocess.run(command, env=environment(), check=True)
        return time.perf_counter() - before

    return measure


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        helper = mounted(Path(folder))
        for name, command in COMMANDS.items():
            both = {name: starts(command), f"{name}, helper": starts(started_by(helper, command))}
            table(f"Start of a member: {name}", alternate(both, rounds), name)
        status = subprocess.run(
            started_by(helper, [sys.executable, "-c", LOOKS]),
            env=environment(),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        lines = [line.split() for line in status.splitlines() if line.startswith(("VmRSS", "RssAnon"))]
        print(
            "\nThe endpoint's memory: "
            + ", ".join(f"{name} {int(kb) / 1024:.1f} MB" for name, kb, _ in lines)
        )
        sizes = [sum(map(len, helper_files(asks).values())) / 1024 for asks in ("exec", "file")]
        print(f"The ConfigMap: {sizes[0]:.0f} KiB, with what asks by a file {sizes[1]:.0f} KiB")
