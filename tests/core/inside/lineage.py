"""A training whose state is its own history: the name of the process that did each step, from the first on.

    python lineage.py NAME STEPS [STOP]     ALLABOARD_CHECKPOINTS and the like say where it saves
    python lineage.py rounds ROUNDS SEED    trainings take over from one another at random moments

The first prints ``done N`` after each step. STOP names the moment of its save of step 4 to suspend itself at:
``parts`` before the first part is written, ``manifest`` after its last look at who writes, right before the
manifest appears. Two histories are mixed when the state of a later checkpoint does not begin with that of an
earlier one. The second forks, which keeps a round at some hundredths of a second, and prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from allaboard.checkpoints import list_checkpoints
from allaboard.checkpoints.listing import scan_all
from allaboard.inside import Checkpointer
from allaboard.storage import open_store
from allaboard.storage.base import Store

STOPS_AT = 4


def histories(store: Store) -> dict[int, list[str]]:
    """Step -> its history, of every checkpoint that a reader is shown."""
    return {
        found.step: json.loads(store.read(f"{found.uri.rpartition('/')[2]}/{found.manifest.parts[0].name}"))
        for found in list_checkpoints(store)
    }


def mixed(found: dict[int, list[str]]) -> list[str]:
    """Each pair of neighbours of which the later did not come from the earlier, and each wrong length."""
    wrong = [f"step {step} has {len(done)} steps" for step, done in found.items() if len(done) != step]
    pairs = zip(sorted(found), sorted(found)[1:], strict=False)
    return wrong + [f"{b} is not of {a}" for a, b in pairs if found[b][:a] != found[a]]


def suspend_at(step: Any, moment: str) -> None:
    """Right before the manifest appears: on a disk with the folder's name, in a bucket with its object."""
    from allaboard.checkpoints.manifest import Manifest

    rename, encode = Path.rename, Manifest.encode
    on_disk = "://" not in os.environ["ALLABOARD_CHECKPOINTS"]

    def renaming(path: Path, target: Any) -> Any:
        if on_disk and path.name.startswith("step-") and step() == STOPS_AT:
            os.kill(os.getpid(), signal.SIGSTOP)
        return rename(path, target)

    def encoding(manifest: Manifest) -> bytes:
        if not on_disk and manifest.step == STOPS_AT:
            os.kill(os.getpid(), signal.SIGSTOP)
        return encode(manifest)

    Path.rename, Manifest.encode = renaming, encoding  # type: ignore[method-assign,assignment]


def main(name: str, steps: int, stop: str = "") -> None:
    checkpointer = Checkpointer(every=1)
    found = checkpointer.resume()
    done: list[str] = json.loads(found.load()) if found else []
    if stop == "manifest":
        suspend_at(lambda: len(done), stop)

    def state() -> bytes:
        if stop == "parts" and len(done) == STOPS_AT:
            os.kill(os.getpid(), signal.SIGSTOP)
        return json.dumps(done).encode()

    while len(done) < steps:
        done.append(name)
        checkpointer.step(len(done), state)
        print("done", len(done), flush=True)
    print("waits", flush=True)
    while True:
        time.sleep(1)


class Forked:
    """A training in a process of its own, which writes each step and at last its error into a pipe."""

    def __init__(self, name: str) -> None:
        self.name, self.told = name, b""
        self._reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reading)
            try:
                self._train(writing)
            except BaseException as error:
                os.write(writing, f"{type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(1)
        os.close(writing)

    def _train(self, writing: int) -> None:
        checkpointer = Checkpointer(every=1, keep=3)
        found = checkpointer.resume()
        done: list[str] = json.loads(found.load()) if found else []
        while True:
            done.append(self.name)
            checkpointer.step(len(done), lambda: json.dumps(done).encode())
            os.write(writing, b"done\n")

    def wait_steps(self, number: int) -> None:
        while self.told.count(b"\n") < number:
            more = os.read(self._reading, 1 << 16)
            assert more, f"{self.name} ended: {self.told[-2000:].decode()}"
            self.told += more

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def last_words(self) -> str:
        while more := os.read(self._reading, 1 << 16):
            self.told += more
        os.close(self._reading)
        os.waitpid(self.pid, 0)
        return self.told.decode().splitlines()[-1]


def take_over(rounds: int, seed: int) -> dict[str, Any]:
    """Each training is suspended at a random moment, another one takes over, and the first wakes."""
    rng, store = random.Random(seed), open_store(os.environ["ALLABOARD_CHECKPOINTS"])
    seen: dict[str, Any] = {"rounds": 0, "ended": 0, "late": 0, "problems": []}
    old = Forked("p0")
    old.wait_steps(2)
    for n in range(1, rounds + 1):
        time.sleep(rng.uniform(0, 0.02))
        old.send(signal.SIGSTOP)
        new = Forked(f"p{n}")
        new.wait_steps(rng.randrange(1, 6))
        if rng.random() < 0.5:  # else the two run beside each other
            new.send(signal.SIGSTOP)
        old.send(signal.SIGCONT)
        words = old.last_words()
        seen["ended"] += words.startswith("TakenOver: ") and f"process {new.pid} " in words
        new.send(signal.SIGSTOP)  # else the listing changes below the reader
        found = histories(store)
        wrong = mixed(found) if found else ["nothing is left"]
        if found and found[max(found)][-1] != new.name:
            wrong.append("the newest is not of the one who goes on")
        seen["problems"] += [f"round {n}: {text}" for text in wrong]
        seen["late"] += len(scan_all(store).superseded)
        seen["rounds"] += 1
        new.send(signal.SIGCONT)
        old = new
    old.send(signal.SIGKILL)
    os.waitpid(old.pid, 0)
    return seen


if __name__ == "__main__":
    if sys.argv[1] == "rounds":
        print(json.dumps(take_over(int(sys.argv[2]), int(sys.argv[3]))))
    else:
        main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
