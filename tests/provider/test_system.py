"""Each DAG of the reference runs, as Airflow's own system tests do, in one Airflow without services."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.site.airflow_reference import EXAMPLES, examples

RUN = """
import json, os, sys
from airflow.utils.db import initdb
initdb()
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
print("ERRORS " + json.dumps(bag.import_errors), flush=True)
for name in sorted(bag.dags):
    run = bag.dags[name].test()
    print("STATE " + json.dumps([name, str(run.state.value)]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_each_example_of_the_reference_runs(tmp_path: Path) -> None:
    environ = {
        **{
            name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "ALLABOARD"))
        },
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "ALLABOARD_HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    lines = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    states = dict(json.loads(text) for kind, text in lines if kind == "STATE")
    assert [json.loads(text) for kind, text in lines if kind == "ERRORS"] == [{}]
    assert states == {path.stem: "success" for path in examples()}, done.stdout[-6000:] + done.stderr[-6000:]
