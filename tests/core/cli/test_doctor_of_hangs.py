"""`allaboard doctor` of a live run that does not move: real ranks over gloo, one of which does not come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from allaboard.backends.local.backend import LocalBackend
from allaboard.cli import app
from allaboard.diagnosis import stacks
from allaboard.runs.observation import Owner
from tests.core.backends.local.conftest import backend as backend_of
from tests.core.backends.local.helpers import a_plan, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
backend = backend_of

TRAINS = """
import time
import torch
import torch.distributed as dist

def fetch():
    time.sleep(600)

dist.init_process_group("gloo")
print("they have met", flush=True)
if dist.get_rank() == 2:
    fetch()
dist.all_reduce(torch.ones(1))
"""


@pytest.fixture
def here(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalBackend]:
    """The command line looks where this backend has its runs."""
    for name in ("ALLABOARD_HOME", "ALLABOARD_POOL"):
        monkeypatch.setenv(name, backend.environ[name])
    monkeypatch.setattr(stacks, "SILENT", 1.0)
    yield backend


@pytest.mark.thorough
def test_the_rank_that_does_not_come_is_named_with_its_line(here: LocalBackend, tmp_path: Path) -> None:
    here.launch(a_plan(tmp_path, TRAINS, workers=3), Owner("test"))
    run = here.list()[0].run

    def have_met() -> bool:
        logs = [Path(m.log) for m in here.observe(run).members if m.log]
        return len(logs) == 3 and all(log.exists() and "have met" in log.read_text() for log in logs)

    wait_for(have_met, 200.0)

    def asked() -> dict[str, object] | None:
        done = CliRunner().invoke(app, ["doctor", run, "--json"], standalone_mode=False)
        first = json.loads(done.stdout)["diagnoses"][0]
        return first if first["code"] == "rank_stalled" else None

    first = wait_for(asked, 60.0)
    assert first["blame"] == "rank 2" and first["retryable"]
    assert "rank 2 has not entered all_reduce number 1: it waits at main" in str(first["summary"])
    assert "`fetch`; ranks 0, 1 wait for it" in str(first["summary"])
    text = CliRunner().invoke(app, ["doctor", run], standalone_mode=False).stdout
    assert "look at    rank 2" in text and "waits in all_reduce at main" in text
    case = tmp_path / "case.json"
    done = CliRunner().invoke(app, ["snapshot", run, "-o", str(case)], standalone_mode=False)
    assert done.exit_code == 0 and len(json.loads(case.read_text())["stacks"]) >= 3
    told = CliRunner().invoke(app, ["doctor", "--snapshot", str(case), "--json"], standalone_mode=False)
    assert json.loads(told.stdout)["diagnoses"][0]["blame"] == "rank 2", "the file says it anywhere"


EVALUATES = """
import os, time
import torch
import torch.distributed as dist

def score(end):
    n = 1
    while time.monotonic() < end:
        n = (3 * n + 1) % 1000003 + 1

dist.init_process_group("gloo")
print("they have met", flush=True)
if dist.get_rank() == 0:
    score(time.monotonic() + float(os.environ["SECONDS"]))
dist.barrier()
print("they go on", flush=True)
"""


@pytest.mark.thorough
def test_a_rank_that_evaluates_is_waited_for(here: LocalBackend, tmp_path: Path) -> None:
    environment = {"SECONDS": "20", "OMP_NUM_THREADS": "1"}
    here.launch(a_plan(tmp_path, EVALUATES, workers=2, environment=environment), Owner("test"))
    run = here.list()[0].run

    def told() -> dict[str, object] | None:
        done = CliRunner().invoke(app, ["doctor", run, "--json"], standalone_mode=False)
        first = json.loads(done.stdout)["diagnoses"][0]
        return first if first["code"] in ("ranks_wait", "rank_stalled") else None

    first = wait_for(told, 200.0)
    assert first["code"] == "ranks_wait" and first["blame"] == "rank 0", first
    assert "it computes at main" in str(first["summary"]) and "`score`; rank 1 waits" in str(first["summary"])
    wait_for(lambda: here.observe(run).condition("Succeeded"), 200.0)
