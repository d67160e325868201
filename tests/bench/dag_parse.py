"""What a DAG file with a `TrainingJob` in it costs to parse, beyond an empty one.

Each parse is the first one in a process of its own that has imported Airflow: so the DAG processor does it,
which forks for every file. The floor is a DAG of one EmptyOperator; the example holds the whole chain, five
operators.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.measure import Figures, alternate, table

LIMIT = 10.0
"""Milliseconds beyond the empty DAG."""

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "dags_examples" / "retrain_digits.py"
EMPTY, ONE, WHOLE = "a DAG of one EmptyOperator", "a DAG of one TrainingJob", "retrain_digits, the chain"
EMPTY_DAG = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator
with DAG("empty", schedule=None):
    EmptyOperator(task_id="nothing")
"""
ONE_JOB = """
from airflow.sdk import DAG
from allaboard import TrainingJob
from allaboard_provider.operators.train import TrainingJobOperator
with DAG("one_job", schedule=None):
    job = TrainingJob(name="digits", command=["python", "train.py"], workers=2)
    TrainingJobOperator(task_id="train", job=job)
"""
# Wall and CPU milliseconds of one parse; what the file itself does not name is imported before.
PARSE = """
import sys, time
import airflow.sdk
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, Param, conf
from airflow.dag_processing.dagbag import DagBag
import airflow.providers.standard.operators.empty
wall, cpu = time.perf_counter(), time.process_time()
bag = DagBag(sys.argv[1])
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
assert not bag.import_errors and bag.dags, bag.import_errors
print(wall, cpu)
"""


def parse(file: Path, home: str) -> tuple[float, float]:
    """(wall, CPU) seconds of the first parse of this file."""
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": home,
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }
    command = [sys.executable, "-c", PARSE, str(file)]
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, cwd=ROOT)
    wall, cpu = answer.stdout.splitlines()[-1].split()
    return float(wall), float(cpu)


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = {EMPTY: Path(folder) / "empty.py", ONE: Path(folder) / "one_job.py", WHOLE: EXAMPLE}
        files[EMPTY].write_text(EMPTY_DAG)
        files[ONE].write_text(ONE_JOB)
        cpu: dict[str, list[float]] = {name: [] for name in files}

        def contender(name: str) -> Callable[[], float]:
            def measure() -> float:
                wall, used = parse(files[name], folder)
                cpu[name].append(used)
                return wall

            return measure

        wall = alternate({name: contender(name) for name in files}, rounds)
        spent = {name: Figures(name, tuple(seconds[-rounds:])) for name, seconds in cpu.items()}
    table("First parse of a DAG file, Airflow imported", wall, EMPTY)
    table("The same in CPU time, which a busy machine stretches less", spent, EMPTY)
    for name in (ONE, WHOLE):
        beyond, used = (1000 * (f[name].median - f[EMPTY].median) for f in (wall, spent))
        print(f"  {name}: {beyond:.1f} ms beyond the empty one ({used:.1f} of CPU); the limit is {LIMIT:g}")
