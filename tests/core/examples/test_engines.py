"""The examples of the engines work as written, with their frameworks."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from allaboard.backends.local.supervisor.environment import search_path
from tests.core.cli.terminal import Terminal, a_terminal

ENGINES = Path(__file__).parents[3] / "dags_examples" / "engines"
JOBS = sorted(file.name for file in ENGINES.glob("*.yaml"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def ab(tmp_path: Path) -> Iterator[Terminal]:
    with a_terminal(tmp_path) as terminal:
        yield terminal


@pytest.mark.parametrize("name", JOBS)
def test_each_opens_with_the_question_that_it_answers_and_the_command_to_type(
    ab: Terminal, name: str
) -> None:
    first, *rest = (ENGINES / name).read_text().splitlines()
    assert re.fullmatch(r"# [A-Z].*\?", first)
    assert f"#   allaboard run dags_examples/engines/{name}" in rest
    said = ab("check", str(ENGINES / name))
    assert said.code == 0 and "is good" in said.out and "warning" not in said.out


def test_members_of_xgboost_grow_one_forest(ab: Terminal) -> None:
    pytest.importorskip("xgboost")
    body = ab("run", str(ENGINES / "xgboost.yaml"), "--json").json
    assert body["state"] == "succeeded" and body["progress"]["step"] == 20
    assert body["metrics"]["accuracy"] > 0.95, "rows of the others count"
    lines = [json.loads(line) for line in ab("logs", body["run"], "--json").out.splitlines()]
    models = {line["member"]: line["text"] for line in lines if line["text"].startswith("model ")}
    assert len(models) == 3 and len({*models.values()}) == 1


@pytest.mark.skipif(shutil.which("mpirun", path=search_path(os.environ)) is None, reason="no mpirun here")
def test_ranks_of_mpirun_fit_one_line(ab: Terminal) -> None:
    pytest.importorskip("mpi4py")
    body = ab("run", str(ENGINES / "mpi.yaml"), "--json").json
    assert body["state"] == "succeeded" and body["progress"]["step"] == 60
    assert body["metrics"] == {"slope": 3.0, "intercept": 0.5}
    lines = [json.loads(line) for line in ab("logs", body["run"], "--json").out.splitlines()]
    said = [(line["member"], line["text"]) for line in lines if "ranks" in line["text"]]
    assert said == [("launcher-0", "2 ranks have the line 3.000 0.500")]


def test_processes_of_jax_form_one_mesh(ab: Terminal) -> None:
    pytest.importorskip("jax")
    body = ab("run", str(ENGINES / "jax.yaml"), "--json").json
    assert body["state"] == "succeeded" and body["progress"]["step"] == 60
    assert body["metrics"] == {"slope": 3.0, "intercept": 0.5}
    lines = [json.loads(line)["text"] for line in ab("logs", body["run"], "--json").out.splitlines()]
    assert lines.count("line 3.000 0.500") == 2
