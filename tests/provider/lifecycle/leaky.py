"""A training that says every secret it was given, as scripts in trouble do: in what it prints, and in the
traceback with which its first attempt ends. Its second one goes on until it is told to end.

python leaky.py GATE
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from allaboard.inside import context, report, result

GIVEN = ("API_KEY", "S3_SECRET_ACCESS_KEY", "HF_TOKEN", "WANDB", "INDEX_URL", "DATA_URL")


def main() -> None:
    gate = Path(os.environ["GATES"]) / sys.argv[1]
    gate.mkdir(parents=True, exist_ok=True)
    here = context()
    for name in GIVEN:
        print(f"opened the door with {os.environ[name]} today", flush=True)
    login = os.environ["INDEX_URL"].split("@")[0].rpartition(":")[2]
    print(f"the password of the index is {login} today", flush=True)
    report(1, 2)
    if here.attempt == 1:
        raise RuntimeError(
            f"{os.environ['WANDB']} was refused, and {os.environ['API_KEY']} at {os.environ['DATA_URL']}"
        )
    while not (gate / "finish").exists():
        time.sleep(0.05)
    result(steps=2)


if __name__ == "__main__":
    main()
