"""The retraining DAG: it can be read, is the same at every reading, and runs with `airflow dags test`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.timetables.base import TimeRestriction
from airflow.timetables.trigger import CronTriggerTimetable

from allaboard.promotion.champion import history
from allaboard.storage import open_store
from allaboard_provider.hooks.allaboard import OF_CLUSTERS

BROKEN = """
from airflow.sdk import DAG
from allaboard_provider.operators import TrainingJobOperator
with DAG("broken", schedule=None):
    TrainingJobOperator(
        task_id="train",
        job={
            "name": "broken",
            "command": ["python", "-c", "raise ValueError('not right')"],
            "workers": "{{ 2 }}",
        },
    )
"""


def read(folder: Path) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(str(folder))


def test_the_examples_folder_holds_the_dag_and_nothing_that_cannot_be_read(examples: Path) -> None:
    bag = read(examples)
    assert bag.import_errors == {}
    assert set(bag.dags) == {"retrain_digits", "on_new_champion", "sweep_digits", "stop_gone_trainings"}


def test_the_chain_is_prepare_train_collect_evaluate_promote(examples: Path) -> None:
    dag = read(examples / "retrain_digits.py").dags["retrain_digits"]
    assert [task.task_id for task in dag.topological_sort()] == [
        "prepare",
        "train",
        "collect",
        "evaluate",
        "promote",
    ]
    assert all(len(task.upstream_task_ids) <= 2 for task in dag.tasks)
    assert dag.get_task("train").deferrable and dag.get_task("evaluate").deferrable


def test_every_path_of_the_chain_hangs_off_the_connections_store(examples: Path) -> None:
    """So the same DAG runs elsewhere once the connection says so: no step reads another step's disk."""
    dag = read(examples / "retrain_digits.py").dags["retrain_digits"]
    train = dag.get_task("train").job
    places = [
        dag.get_task("prepare").into,
        train["data"]["shards"],
        train["checkpoints"]["uri"],
        dag.get_task("collect").into,
        dag.get_task("promote").store,
    ]
    assert [place for place in places if not place.startswith("store://")] == []
    assert all(task.allaboard_conn_id == "allaboard_default" for task in dag.tasks)


def test_its_nights_are_those_of_a_place(examples: Path) -> None:
    """The schedule that its comment offers begins at the same hour of that clock in winter and in summer."""
    offered = re.search(r'schedule=None,  # nightly.*: "(.+)"', (examples / "retrain_digits.py").read_text())
    dag = read(examples / "retrain_digits.py").dags["retrain_digits"]
    assert offered is not None and dag.timezone.name != "UTC" and dag.start_date.tzinfo is not None
    timetable = CronTriggerTimetable(offered[1], timezone=dag.timezone)
    for day in (pendulum.datetime(2026, 1, 15), pendulum.datetime(2026, 7, 15)):
        limits = TimeRestriction(earliest=day, latest=None, catchup=True)
        first = timetable.next_dagrun_info_v2(last_dagrun_info=None, restriction=limits)
        assert first is not None and first.run_after.in_tz(dag.timezone).hour == 4


def test_reading_it_again_makes_no_new_version_of_it(examples: Path) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    def written(name: str) -> str:
        dag = read(examples / f"{name}.py").dags[name]
        return json.dumps(DagSerialization.to_dict(dag), sort_keys=True, default=str)

    for name in ("retrain_digits", "sweep_digits"):
        assert written(name) == written(name)


def airflow(folder: Path, dags: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``airflow WORDS`` in a home of its own."""
    environ: Mapping[str, str] = {
        **os.environ,
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "airflow", *words]
    return subprocess.run(
        command,
        env=environ,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory, examples: Path) -> Path:
    """A home of Airflow with a database that has just been made."""
    folder = tmp_path_factory.mktemp("migrated")
    assert airflow(folder, examples, "db", "migrate").returncode == 0
    return folder / "airflow"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_airflow_dags_test_runs_the_whole_chain(tmp_path: Path, examples: Path, migrated: Path) -> None:
    """Without a connection, a database that has just been made, and the installation not named yet."""
    (tmp_path / "airflow").mkdir()
    shutil.copy(migrated / "airflow.db", tmp_path / "airflow")
    answer = airflow(tmp_path, examples, "dags", "test", "retrain_digits", "--conf", '{"epochs": 8}')
    assert answer.returncode == 0, answer.stdout
    assert "resumed" not in answer.stdout
    assert re.search(r"step (\d+)/\1 \(100%\)", answer.stdout)
    champion = history(open_store(tmp_path / "home" / "store" / "digits")).champion
    assert champion is None or champion.metrics["accuracy"] >= 0.97
    verdict = "promoted:" if champion else "not promoted: accuracy"
    assert verdict in answer.stdout


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_airflow_dags_test_runs_the_sweep_and_collects_its_best(
    tmp_path: Path, examples: Path, migrated: Path
) -> None:
    (tmp_path / "airflow").mkdir()
    shutil.copy(migrated / "airflow.db", tmp_path / "airflow")
    answer = airflow(tmp_path, examples, "dags", "test", "sweep_digits")
    assert answer.returncode == 0, answer.stdout
    losses = dict(re.findall(r"\d\. (digits-sweep-\S+): val_loss (\S+)", answer.stdout))
    assert len(losses) == 4 and [*losses.values()] == sorted(losses.values(), key=float)
    (kept,) = (tmp_path / "home" / "store" / "digits" / "models").glob("*/step-*")
    assert kept.parent.name == next(iter(losses))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_airflow_dags_test_fails_when_the_training_does(tmp_path: Path, migrated: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "broken.py").write_text(BROKEN)
    (tmp_path / "airflow").mkdir()
    shutil.copy(migrated / "airflow.db", tmp_path / "airflow")
    answer = airflow(tmp_path, dags, "dags", "test", "broken")
    assert answer.returncode == 1
    assert "ValueError: not right" in answer.stdout and "allaboard logs broken-" in answer.stdout


@pytest.mark.slow
@pytest.mark.thorough
def test_the_connections_of_the_readme_are_what_a_hook_reads(
    tmp_path: Path, root: Path, migrated: Path
) -> None:
    """Its lines are typed as they stand, with Airflow's own command line."""
    [block] = re.findall(
        r"^```sh\n(airflow connections .*?)^```$", (root / "provider/README.md").read_text(), re.M | re.S
    )
    shutil.copytree(migrated, tmp_path / "airflow")
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW_")},
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow/airflow.db",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    say = (
        "from airflow.models.connection import Connection\n"
        "from airflow.utils.session import create_session\n"
        "import json\n"
        "with create_session() as session:\n"
        "    found = {c.conn_id: [c.conn_type, c.extra_dejson] for c in session.query(Connection)}\n"
        "print('FOUND ' + json.dumps(found))\n"
    )
    script = f'set -eu\n{block}\npython -c "$SAY"'
    done = subprocess.run(
        ["bash", "-c", script], env=environ | {"SAY": say}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert found["gpu_cluster"] == ["kubernetes", {"kube_config_path": "/etc/kube/config"}]
    kind, place = found["allaboard_default"]
    assert kind == "allaboard" and place["kubernetes_conn_id"] == "gpu_cluster"
    assert {*place} <= {"backend", "store", *OF_CLUSTERS}, "the hook knows each field"
