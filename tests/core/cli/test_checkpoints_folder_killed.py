"""``checkpoints: {uri: s3://..., folder: out}`` while its script, its copier and its supervisor are killed
and the server fails now and then: no torn checkpoint is ever in the bucket, and its newest is gone on from.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from allaboard.checkpoints import Torn, latest, list_checkpoints, scan, verify
from allaboard.storage import Store, open_store
from tests.core.checkpoints.foreign.test_samples import SAMPLES
from tests.core.cli.terminal import Terminal, finished, wait_for
from tests.core.cli.test_checkpoints_folder import TRAINS, a_job, begun
from tests.core.s3server import Request, S3Server, between

SCRIPT, COPIER, SUPERVISOR = "train.py", '"do": "copy"', "allaboard.backends.local.supervisor"


def now_and_then(asked: Request) -> tuple[int, str] | str | None:
    """Resets, refusals and answers that break off; never so many in a row that a request is given up."""
    if asked.count % 11 == 3:
        return "drop"
    if asked.count % 13 == 5:
        return (503, "SlowDown")
    return "cut" if asked.count % 17 == 7 and asked.method == "GET" else None


def process_of(ab: Terminal, words: str) -> int | None:
    """The pid of a process of this test's folder or home whose command line has these words."""
    places = (str(ab.folder), ab.environ["ALLABOARD_HOME"])
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            at = (path / "cwd").readlink()
            is_ours = str(at) == places[0] or any(place in line for place in places)
            if words in line and is_ours and "allaboard run" not in line:
                return int(path.name)
    return None


def newest_in(store: Store | None) -> int:
    """The newest step in a run's folder; 0: there is none."""
    newest = None if store is None else latest(store)
    return 0 if newest is None else newest.step


@contextmanager
def watched(store: Store) -> Iterator[list[str]]:
    """What is torn in a run's folder, as somebody sees it who looks all the time."""
    over, torn = threading.Event(), []

    def look() -> None:
        while not over.wait(0.2):
            torn.extend(str(item.problems) for item in scan(store) if isinstance(item, Torn))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield torn
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.thorough
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.endurance) for seed in range(1, 20))]
)
def test_whoever_is_killed_the_bucket_has_whole_checkpoints_alone(
    ab: Terminal, moto: S3Server, seed: int
) -> None:
    """Each is killed once, at a random moment after a copy; then the folder is mostly deleted."""
    chance = random.Random(seed)
    shutil.copytree(SAMPLES / "hugging_face_trainer" / "checkpoint-4", ab.folder / "sample")
    (ab.folder / "train.py").write_text(TRAINS)
    uri, out = f"s3://{moto.make_bucket()}/digits", ab.folder / "out"
    with between(moto, now_and_then) as proxy:
        ab.environ.update(proxy.environ)
        job = a_job(ab, uri, {"keep": 3}, environment={"PAUSE": "0.2", "TOTAL": "100000"})
        for target in chance.sample([SCRIPT, COPIER, SUPERVISOR], 3):
            run_until_killed(ab, job, uri, moto, target, chance.uniform(0, 1))
            if chance.random() < 0.7:
                shutil.rmtree(out)
        store = store_of(ab, uri, moto)
        assert store is not None
        total = newest_in(store) + 4
        shutil.rmtree(out, ignore_errors=True)
        last = a_job(ab, uri, {"keep": 3}, environment={"TOTAL": str(total)})
        said = ab("run", last, "--key", "k", "--json")
    assert said.code == 0, said.text
    assert begun(ab)[-1]["from"] == total - 4
    assert newest_in(store) == total and verify(store, total) == []


def store_of(ab: Terminal, uri: str, moto: S3Server) -> Store | None:
    """The run's folder in the bucket, without the server's faults; None: there was no run yet."""
    runs = ab.runs()
    return open_store(f"{uri}/{runs[0]}", environ=moto.environ) if runs else None


def run_until_killed(ab: Terminal, job: str, uri: str, moto: S3Server, target: str, delay: float) -> None:
    """An attempt that goes on from the bucket, copies, and ends because of a kill."""
    path = ab.folder / "begun.jsonl"
    before, starts = newest_in(store_of(ab, uri, moto)), len(begun(ab)) if path.exists() else 0
    process = ab.start("run", job, "--key", "k")
    wait_for(lambda: path.exists() and len(begun(ab)) > starts)
    assert begun(ab)[-1]["from"] >= before, begun(ab)
    store = store_of(ab, uri, moto)
    assert store is not None
    with watched(store) as torn:
        wait_for(lambda: newest_in(store) > before)
        pid = wait_for(lambda: process_of(ab, target))
        time.sleep(delay)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if target is COPIER:
            newest = newest_in(store)
            wait_for(lambda: newest_in(store) > newest)
            os.kill(wait_for(lambda: process_of(ab, SCRIPT)), signal.SIGKILL)
        said = finished(process)
    assert said.code != 0, said.text
    assert torn == []
    assert all(verify(store, item.step) == [] for item in list_checkpoints(store))
