"""Whether tasks defer that do not say: as the installation has it, for operators and sensors alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
from allaboard_provider.operators import EvaluateOperator, TrainingJobOperator
from allaboard_provider.sensors import CheckpointSensor, TrainingJobSensor
tasks = [
    TrainingJobOperator(task_id="a", job={}),
    EvaluateOperator(task_id="b", job={}, checkpoint="c"),
    TrainingJobSensor(task_id="d", run="e"),
    CheckpointSensor(task_id="f", uri="g"),
]
print({task.deferrable for task in tasks})
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("environ", "file", "expected"),
    [
        ({}, "", True),
        ({"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "false"}, "", False),
        ({"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "true"}, "", True),
        # Airflow writes this into the file that it generates: nobody has said it.
        ({}, "[operators]\ndefault_deferrable = false\n", True),
        ({}, "[allaboard]\ndeferrable = false\n", False),
        ({"AIRFLOW__ALLABOARD__DEFERRABLE": "true"}, "[operators]\ndefault_deferrable = false\n", True),
        ({"AIRFLOW__ALLABOARD__DEFERRABLE": "false"}, "[operators]\ndefault_deferrable = true\n", False),
        ({"AIRFLOW__ALLABOARD__DEFERRABLE": ""}, "[operators]\ndefault_deferrable = false\n", True),
    ],
)
def test_a_task_that_does_not_say_waits_as_the_installation_has_it(
    tmp_path: Path, environ: dict[str, str], file: str, expected: bool
) -> None:
    (tmp_path / "airflow.cfg").write_text(file)
    given = {**os.environ, "AIRFLOW_HOME": str(tmp_path), **environ}
    answer = subprocess.run(
        [sys.executable, "-c", ASK], env=given, capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines()[-1] == str({expected})
