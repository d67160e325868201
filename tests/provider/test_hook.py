"""The connection: what it can say, what is said when it cannot be meant, and what is true without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from allaboard.errors import BadInput
from allaboard_provider.hooks.allaboard import AllaboardHook, callers_environment, checked_settings
from allaboard_provider.operators.train import TrainingJobOperator
from tests.provider.building import a_context


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a connection of this name, as an environment variable does."""

    def make(conn_type: str = "allaboard", conn_id: str = "place", **extra: Any) -> AllaboardHook:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": conn_type, "extra": extra})
        )
        return AllaboardHook(conn_id)

    return make


def test_it_says_store_mounts_and_fit(connection: Any, tmp_path: Path) -> None:
    site = connection(
        store="s3://bucket/x/", mounts='{"/data": "/srv/data"}', fit="strict", backend="local"
    ).site
    assert (site.store, dict(site.mounts), site.fit) == ("s3://bucket/x", {"/data": "/srv/data"}, "strict")


@pytest.mark.parametrize("mounts", [{"/data": "data"}, '{"/data": "data"}', "/data=data"])
def test_mounts_may_be_written_in_every_usual_way_and_relative_ones_start_at_airflows_home(
    connection: Any, mounts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", "/opt/airflow")
    site = connection(mounts=mounts).site
    assert (dict(site.mounts), site.base) == ({"/data": "data"}, "/opt/airflow")


def test_what_it_does_not_say_is_as_without_it(connection: Any, tmp_path: Path) -> None:
    site = connection(store="", fit=None).site
    assert (site.store, dict(site.mounts), site.fit) == (str(tmp_path / "home" / "store"), {}, "shrink")


def test_without_a_connection_all_is_local(tmp_path: Path) -> None:
    hook = AllaboardHook(None)
    assert hook.site.store == str(tmp_path / "home" / "store")
    assert hook.get_conn().name == "local"


def test_all_that_is_wrong_with_it_is_said_with_the_nearest_word() -> None:
    with pytest.raises(BadInput) as refusal:
        checked_settings("place", "allaboard", {"stroe": "x", "backend": "kubernets"})
    text = str(refusal.value)
    assert "connection 'place'" in text and "did you mean 'store'" in text and "known: local" in text


@pytest.mark.parametrize(
    "wrong",
    [{"conn_type": "http"}, {"fit": "shrnk"}, {"mounts": "data"}, {"mounts": '{"/data'}, {"mounts": [1]}],
    ids=str,
)
def test_a_task_with_a_wrong_connection_fails_without_a_retry(connection: Any, wrong: dict[str, Any]) -> None:
    connection(**wrong)
    operator = TrainingJobOperator(
        task_id="train", job={"name": "a", "command": ["true"]}, allaboard_conn_id="place", deferrable=False
    )
    with pytest.raises(AirflowFailException):
        operator.execute(a_context())


def test_the_button_in_the_form_tells_whether_the_store_can_be_written(
    connection: Any, tmp_path: Path
) -> None:
    assert connection(store=str(tmp_path / "there")).test_connection()[0]
    (tmp_path / "file").write_text("")
    works, why = connection(store=str(tmp_path / "file" / "below")).test_connection()
    assert not works and str(tmp_path / "file") in why


def test_no_training_sees_the_secrets_that_airflow_keeps_in_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BANK", "mysql://user:hush-hush@host")
    monkeypatch.setenv("AIRFLOW_VAR_TOKEN", "hush-hush")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "hush-hush")
    code = (
        "import json, os; from allaboard.inside import result; "
        "result(seen=[v for v in os.environ.values() if 'hush-hush' in v])"
    )
    operator = TrainingJobOperator(
        task_id="train",
        job={"name": "a", "command": ["python", "-c", code]},
        allaboard_conn_id=None,
        deferrable=False,
    )
    assert operator.execute(a_context())["metrics"] == {"seen": []}
    assert "AIRFLOW_CONN_BANK" not in callers_environment()


def test_every_path_of_a_chain_hangs_off_the_connections_store(connection: Any, tmp_path: Path) -> None:
    connection(store=str(tmp_path / "elsewhere"))
    code = (
        "import os; from allaboard.inside import result; "
        "result(saves=os.environ['ALLABOARD_CHECKPOINTS'], seen=os.environ['PLACE'])"
    )
    job = {
        "name": "a",
        "command": ["python", "-c", code],
        "checkpoints": {"uri": "store://models"},
        "environment": {"PLACE": "store://data"},
    }
    operator = TrainingJobOperator(task_id="train", job=job, allaboard_conn_id="place", deferrable=False)
    found = operator.execute(a_context())["metrics"]
    assert found["saves"].startswith(str(tmp_path / "elsewhere" / "models"))
    assert found["seen"] == str(tmp_path / "elsewhere" / "data")
