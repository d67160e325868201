"""One rank of a training that may be killed at any moment: python rank.py DATA DONE WORLD_SIZE RANK

A step is done when every rank has left its keys in DONE; then rank 0 joins them, together with the state of
its reader, in `<position at which the step began>.json`: that is the checkpoint. All go on from the newest.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from allaboard.inside import ShardReader


def main(data: str, done: Path, world_size: int, rank: int) -> None:
    reader = ShardReader(data, batch_size=4, epochs=2, seed=11, rank=rank, world_size=world_size)
    position = 0
    while (state := saved(done, position)) is not None:
        position = state["position"]
        reader.load_state_dict(state)
    for batch in reader:
        write(done / f"{position}-{world_size}-{rank}", [sample["__key__"] for sample in batch])
        if rank == 0:
            parts = [wait_for(done / f"{position}-{world_size}-{other}") for other in range(world_size)]
            joined = {"keys": [key for part in parts for key in part], "state": reader.state_dict()}
            write(done / f"{position}.json", joined)
        position = wait_for(done / f"{position}.json")["state"]["position"]
        assert position == reader.position


def saved(done: Path, position: int) -> dict[str, Any] | None:
    path = done / f"{position}.json"
    return json.loads(path.read_text())["state"] if path.exists() else None


def write(path: Path, value: Any) -> None:
    temp = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temp.write_text(json.dumps(value))
    temp.replace(path)


def wait_for(path: Path) -> Any:
    deadline = time.monotonic() + 100
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{path} never came")
        time.sleep(0.001)
    return json.loads(path.read_text())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
