"""`allaboard doctor` of a live run that one rank holds up: real ranks over gloo."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from allaboard.backends.local.backend import LocalBackend
from allaboard.cli import app
from allaboard.runs.observation import Owner
from tests.core.backends.local.conftest import backend as backend_of
from tests.core.backends.local.helpers import a_plan, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(300)]
backend = backend_of

TRAINS = """
import sys
import time
import torch
import torch.distributed as dist

def fetch():
    time.sleep(0.3)

dist.init_process_group("gloo")
for step in range(100000):
    time.sleep(0.1)
    if dist.get_rank() == int(sys.argv[1]):
        fetch()
    dist.all_reduce(torch.ones(1))
    print("step", step, flush=True)
"""


@pytest.fixture
def here(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalBackend]:
    """The command line looks where this backend has its runs."""
    for name in ("ALLABOARD_HOME", "ALLABOARD_POOL"):
        monkeypatch.setenv(name, backend.environ[name])
    yield backend


def training(here: LocalBackend, folder: Path, slow: int) -> str:
    """A run that has done some steps."""
    handle = here.launch(a_plan(folder, TRAINS, workers=2, args=[str(slow)]), Owner("test"))

    def steps() -> bool:
        logs = [Path(m.log) for m in here.observe(handle.run).members if m.log]
        return any(log.exists() and "step 40\n" in log.read_text() for log in logs)

    wait_for(steps, 200.0)
    return handle.run


def test_the_rank_that_holds_up_the_others_is_named_with_its_line(here: LocalBackend, tmp_path: Path) -> None:
    run = training(here, tmp_path, 1)
    done = CliRunner().invoke(app, ["doctor", run, "--json"], standalone_mode=False)
    first = json.loads(done.stdout)["diagnoses"][0]
    assert (first["code"], first["blame"]) == ("slow_rank", "rank 1")
    assert first["summary"].startswith("rank 1 takes ") and " times as long as the others" in first["summary"]
    assert "`fetch`" in first["evidence"][1]["text"]
    text = CliRunner().invoke(app, ["doctor", run], standalone_mode=False).stdout
    assert "Rank 1 takes" in text and "look at    rank 1" in text


def test_a_run_whose_ranks_are_alike_is_healthy(here: LocalBackend, tmp_path: Path) -> None:
    run = training(here, tmp_path, -1)
    arrivals = here.arrivals(run)
    assert sorted(arrivals) == [0, 1] and all(len(mine) >= 40 for mine in arrivals.values())
    done = CliRunner().invoke(app, ["doctor", run, "--json"], standalone_mode=False)
    assert [d["code"] for d in json.loads(done.stdout)["diagnoses"]] == ["healthy"]


def test_the_processes_of_torchrun_are_its_ranks(here: LocalBackend, tmp_path: Path) -> None:
    plan = a_plan(tmp_path, TRAINS, workers=1, command=["torchrun", "--nproc-per-node=2", "main.py", "1"])
    run = here.launch(plan, Owner("test")).run

    def steps() -> bool:
        arrivals = here.arrivals(run)
        return bool(arrivals) and all(len(mine) >= 40 for mine in arrivals.values())

    wait_for(steps, 200.0)
    done = CliRunner().invoke(app, ["doctor", run, "--json"], standalone_mode=False)
    first = json.loads(done.stdout)["diagnoses"][0]
    assert (first["code"], first["blame"]) == ("slow_rank", "rank 1")
