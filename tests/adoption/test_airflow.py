"""An Airflow that is upgraded over its live tasks: trigger rows and records of the older allaboard."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.adoption.older import ROOT, Older
from tests.provider.live import Live, until

pytestmark = [pytest.mark.airflow_live, pytest.mark.slow]


def test_tasks_that_are_deferred_live_through_an_upgrade(
    tmp_path: Path, before: Older, monkeypatch: pytest.MonkeyPatch
) -> None:
    dags = tmp_path / "dags"
    shutil.copytree(Path(__file__).with_name("dags"), dags)
    shutil.copy(ROOT / "tests/provider/lifecycle/gated.py", dags)
    live = Live(tmp_path, dags)
    path = live.airflow.environ["PATH"]
    try:
        with monkeypatch.context() as then:
            then.setattr(sys, "executable", str(before.python))
            then.setitem(
                live.airflow.environ,
                "PATH",
                f"{live.airflow.home / 'bin'}:{before.environ['PATH']}",
            )
            live.airflow.start()
            live.airflow.wait_until_ready(400)
        held, stopped, cleared, followed = (
            live.start("deferred"), live.start("deferred"), live.start("deferred"), live.start("followed")
        )  # fmt: skip
        for run in (held, stopped, cleared):
            run.wait_started()
            run.wait_task("deferred")
        followed.wait_started()
        live.airflow.stop()
        live.airflow.environ["PATH"] = path
        live.airflow.start()
        live.airflow.wait_until_ready(400)
        held.finish()
        held.wait_task("success")
        assert len(held.starts()) == 2, "it trained once"
        stopped.mark("failed")
        stopped.wait_gone()
        cleared.clear()
        cleared.wait_task("deferred")
        cleared.finish()
        cleared.wait_task("success")
        until("a new worker follows", lambda: followed.task()["try_number"] > 1)
        followed.finish()
        followed.wait_task("success")
        assert len(followed.starts()) == 2, "it trained once"
    finally:
        live.stop()
