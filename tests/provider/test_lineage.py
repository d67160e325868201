"""Places as OpenLineage names them, and what is told where there is little to tell."""

from __future__ import annotations

import subprocess
import sys
import traceback

import pytest
from airflow.providers.common.compat.sdk import mask_secret

from allaboard import TrainingJob
from allaboard.errors import AllaboardError
from allaboard_provider.lineage import Dataset, Lineage, for_openlineage, name_of
from allaboard_provider.operators import TrainingJobOperator


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("/data/shards", ("file", "/data/shards")),
        ("file:///data/shards", ("file", "/data/shards")),
        ("s3://bucket/team/shards/", ("s3://bucket", "team/shards")),
        ("s3://bucket", ("s3://bucket", "/")),
    ],
)
def test_a_place_has_the_name_that_openlineage_gives_it(uri: str, name: tuple[str, str]) -> None:
    assert name_of(uri) == name


def test_the_name_of_a_place_holds_no_password() -> None:
    assert "hunter22" not in "".join(name_of("s3://key:hunter22@bucket/x"))


def test_a_training_that_has_not_begun_tells_what_it_will_read_and_where_it_will_save() -> None:
    job = TrainingJob(
        name="a",
        command=["true"],
        data={"shards": "s3://bucket/shards"},
        checkpoints={"uri": "s3://bucket/models"},
    )
    operator = TrainingJobOperator(task_id="train", job=job, allaboard_conn_id=None)
    told = operator.get_openlineage_facets_on_start()
    assert told is not None and told.run_facets == {}
    assert [(one.namespace, one.name) for one in told.inputs] == [("s3://bucket", "shards")]
    assert [(one.namespace, one.name) for one in told.outputs] == [("s3://bucket", "models")]


def test_a_job_that_is_refused_tells_openlineage_no_value_that_airflow_hides() -> None:
    mask_secret("a pass/word of a connection")
    job = {"name": "a", "workers": "a pass/word of a connection"}
    operator = TrainingJobOperator(task_id="train", job=job, allaboard_conn_id=None)
    for tell in (
        operator.get_openlineage_facets_on_start,
        lambda: operator.get_openlineage_facets_on_complete(None),
        lambda: operator.get_openlineage_facets_on_failure(None),
    ):
        with pytest.raises(AllaboardError, match="workers") as refused:
            tell()
        shown = "".join(traceback.format_exception(refused.value))
        assert "***" in shown and "pass/word" not in shown


def test_what_the_work_noted_is_told_at_its_end_also_when_it_failed() -> None:
    operator = TrainingJobOperator(task_id="train", job={"name": "a"}, allaboard_conn_id=None)
    made = Lineage((), (Dataset("/a", "7", rows=3),), {"run": "a-1", "metrics": {"loss": 0.5}})
    operator.lineage = lambda: made
    for told in (
        operator.get_openlineage_facets_on_complete(None),
        operator.get_openlineage_facets_on_failure(None),
    ):
        assert told is not None
        (made,) = told.outputs
        assert made.facets["version"].datasetVersion == "7"
        assert made.outputFacets["outputStatistics"].rowCount == 3
        assert told.run_facets["allaboard"].metrics == {"loss": 0.5}


def test_facts_are_bounded_and_without_secrets() -> None:
    token = "hf_" + "q7" * 17
    facet = for_openlineage(Lineage(facts={"summary": f"bad {token}", "long": "x" * 3000})).run_facets
    assert token not in facet["allaboard"].summary and not hasattr(facet["allaboard"], "long")


@pytest.mark.thorough
def test_whoever_has_no_openlineage_imports_none_of_it() -> None:
    code = (
        "import sys; import allaboard_provider.operators.train, allaboard_provider.operators.promote;"
        "print([name for name in sys.modules if name.startswith(('openlineage', 'opentelemetry.sdk'))][:3])"
    )
    environment = {"PATH": "/usr/bin:/bin", "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "HOME": "/tmp"}
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert "openlineage" not in answer.stdout
