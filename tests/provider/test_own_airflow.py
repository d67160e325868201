"""An Airflow of one's own leaves nothing behind, also when whoever started it is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dags_examples.own_airflow import wait_gone

ROOT = Path(__file__).resolve().parents[2]
OWNER = """
import sys, time
from pathlib import Path
from own_airflow import OwnAirflow, children

class Sleeper(OwnAirflow):
    def _put_airflow_on_path(self):
        program = self.home / "bin" / "airflow"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\\nsleep 1000 & sleep 1000")
        program.chmod(0o755)

airflow = Sleeper(Path(sys.argv[1]), Path(sys.argv[1]) / "dags")
airflow.start()
while len(found := children(airflow.process.pid)) < 2:
    time.sleep(0.05)
print(airflow.process.pid, *found, flush=True)
if sys.argv[2] == "stopped":
    airflow.stop()
time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_no_process_outlives_it(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), how]
    with subprocess.Popen(command, cwd=ROOT / "dags_examples", stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        family = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(family) == 3
        if how == "killed":
            owner.send_signal(signal.SIGKILL)
        gone = wait_gone(family, 60)
        owner.kill()
    assert gone
