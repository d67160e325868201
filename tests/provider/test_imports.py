"""A DAG file pays only for what it names: nothing that runs is imported when it is parsed."""

from __future__ import annotations

import subprocess
import sys

import pytest

NAMED_BY_DAGS = (
    "from allaboard import TrainingJob; TrainingJob(name='a', command=['b'])",
    "from allaboard_provider.operators import *",
    "from allaboard_provider.sensors import *",
    "from allaboard_provider.triggers.assets import NewChampionTrigger; NewChampionTrigger(uri='store://a')",
    "from allaboard_provider import compat",
    "if compat.has_retry_policies(): from allaboard_provider.retries import TrainingRetryPolicy",
    "from allaboard_provider.errors import TrainingBug",
)
NEVER = ("kubernetes", "kubernetes_asyncio", "torch", "boto3", "botocore", "matplotlib", "numpy", "sklearn")
ONLY_WHERE_IT_RUNS = (
    "allaboard.backends",
    "allaboard.storage",
    "allaboard.checking.job",
    "allaboard_provider.operators._lifecycle",
)


def loaded_by(code: str) -> set[str]:
    """The modules that this code loads beyond Airflow's own, in a process of its own."""
    script = (
        "import sys\nimport airflow.sdk, airflow.triggers.base\n"
        "from airflow.sdk import DAG, Asset, BaseHook, BaseOperator, BaseSensorOperator\n"
        f"known = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - known))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(answer.stdout.splitlines()[-1].split())


def test_a_dag_file_loads_nothing_that_runs() -> None:
    loaded = loaded_by("\n".join(NAMED_BY_DAGS))
    assert "allaboard_provider.operators.train" in loaded
    forbidden = (*NEVER, *ONLY_WHERE_IT_RUNS)
    assert [name for name in loaded if name.startswith(forbidden)] == []


@pytest.mark.parametrize("module", ["allaboard_provider.plugin", "allaboard_provider.get_provider_info"])
def test_what_every_process_of_airflow_loads_is_light(module: str) -> None:
    loaded = loaded_by(f"import {module}")
    assert [name for name in loaded if name.startswith((*NEVER, *ONLY_WHERE_IT_RUNS))] == []
