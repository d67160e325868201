"""The examples of the engines work as written, with their frameworks."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allaboard.backends.local.supervisor.environment import search_path
from tests.core.cli.terminal import Terminal, a_terminal

ROOT = Path(__file__).parents[3]
ENGINES = ROOT / "dags_examples" / "engines"
NEEDS = ("click", "rich", "PyYAML", "pendulum")
"""What allaboard itself imports."""
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
    assert said.code == 0 and "is good" in said.out
    assert ("warning" in said.out) == (name == "mxnet.yaml"), "of operators up to 1.8, and told so"


@pytest.mark.thorough
def test_members_of_xgboost_grow_one_forest(ab: Terminal) -> None:
    pytest.importorskip("xgboost")
    body = ab("run", str(ENGINES / "xgboost.yaml"), "--json").json
    assert body["state"] == "succeeded" and body["progress"]["step"] == 20
    assert body["metrics"]["accuracy"] > 0.95, "rows of the others count"
    lines = [json.loads(line) for line in ab("logs", body["run"], "--json").out.splitlines()]
    models = {line["member"]: line["text"] for line in lines if line["text"].startswith("model ")}
    assert len(models) == 3 and len({*models.values()}) == 1


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("mpirun", path=search_path(os.environ)) is None, reason="no mpirun here")
def test_ranks_of_mpirun_fit_one_line(ab: Terminal) -> None:
    pytest.importorskip("mpi4py")
    body = ab("run", str(ENGINES / "mpi.yaml"), "--json").json
    assert body["state"] == "succeeded" and body["progress"]["step"] == 60
    assert body["metrics"] == {"slope": 3.0, "intercept": 0.5}
    lines = [json.loads(line) for line in ab("logs", body["run"], "--json").out.splitlines()]
    said = [(line["member"], line["text"]) for line in lines if "ranks" in line["text"]]
    assert said == [("launcher-0", "2 ranks have the line 3.000 0.500")]


@pytest.mark.thorough
def test_processes_of_jax_form_one_mesh(ab: Terminal) -> None:
    pytest.importorskip("jax")
    body = ab("run", str(ENGINES / "jax.yaml"), "--json").json
    assert body["state"] == "succeeded" and body["progress"]["step"] == 60
    assert body["metrics"] == {"slope": 3.0, "intercept": 0.5}
    lines = [json.loads(line)["text"] for line in ab("logs", body["run"], "--json").out.splitlines()]
    assert lines.count("line 3.000 0.500") == 2


@pytest.mark.thorough
def test_members_of_paddle_meet_at_its_master_and_form_a_ring(ab: Terminal) -> None:
    body = ab("run", str(ENGINES / "paddle.yaml"), "--json").json
    assert body["state"] == "succeeded" and body["progress"]["step"] == 60
    assert body["metrics"] == {"slope": 3.0, "intercept": 0.5} and body["diagnoses"] == []
    assert body["phases"]["rendezvous"] is not None, "they were seen to meet at PADDLE_MASTER"
    lines = [json.loads(line)["text"] for line in ab("logs", body["run"], "--json").out.splitlines()]
    assert lines.count("line 3.000 0.500") == 3


@pytest.mark.thorough
def test_workers_of_mxnet_have_one_line_that_two_servers_keep(ab: Terminal) -> None:
    body = ab("run", str(ENGINES / "mxnet.yaml"), "--json").json
    assert body["state"] == "succeeded" and body["progress"]["step"] == 60
    assert body["metrics"] == {"slope": 3.0, "intercept": 0.5} and body["diagnoses"] == []
    lines = [json.loads(line) for line in ab("logs", body["run"], "--json").out.splitlines()]
    said = [(line["member"], line["text"]) for line in lines if line["text"].startswith("line ")]
    assert sorted(said) == [(f"worker-{n}", "line 3.000 0.500") for n in (0, 1)]


# TensorFlow takes 1.2 GB: its strategy runs where it is, or is installed for the test alone. What TF_CONFIG
# says is shown by sockets.

SERVERS = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
# As tf.distribute.cluster_resolver.TFConfigClusterResolver reads it.
cluster, task = config["cluster"], (config["task"]["type"], config["task"]["index"])
every = [(kind, n) for kind in sorted(cluster) for n in range(len(cluster[kind]))]
def at(who):
    host, _, port = cluster[who[0]][who[1]].rpartition(":")
    return host, int(port)
def connected(address):
    for _ in range(600):
        try:
            return socket.create_connection(address)
        except OSError:
            time.sleep(0.1)
own = socket.create_server(at(task))
place = every.index(task)
to_next = connected(at(every[(place + 1) % len(every)]))
from_last, _ = own.accept()
went = [list(task)] if place == 0 else json.loads(from_last.makefile().readline()) + [list(task)]
to_next.sendall(json.dumps(went).encode() + b"\\n")
if place == 0:
    went = json.loads(from_last.makefile().readline())
    assert went == [list(who) for who in every], went
    print("all of", len(went), flush=True)
"""


def test_servers_of_tensorflow_listen_where_tf_config_says(ab: Terminal) -> None:
    groups = {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}
    job = ab.job(SERVERS, framework="tensorflow", groups=groups, policy={"restart": "never"})
    body = ab("run", job, "--json").json
    assert body["state"] == "succeeded" and len(body["members"]) == 5
    assert ab("logs", body["run"], "chief-0").out == "all of 5\n"


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has TensorFlow: this one, or one of an environment of its own."""
    if importlib.util.find_spec("tensorflow") is not None:
        return sys.executable
    uv, python = (
        ROOT / ".venv" / "uv" / "bin" / "uv",
        tmp_path_factory.mktemp("tensorflow") / "bin" / "python",
    )
    if not uv.exists():
        pytest.skip("no uv here (make env), which would install TensorFlow")
    made = subprocess.run([uv, "venv", "--python", sys.executable, python.parents[1]], capture_output=True)
    install = [uv, "pip", "install", "--python", python, "--only-binary", ":all:", "tensorflow-cpu", *NEEDS]
    done = subprocess.run(install, capture_output=True, text=True)
    if made.returncode or done.returncode:
        pytest.skip(f"TensorFlow cannot be installed here: {done.stderr[-500:]}")
    return str(python)


@pytest.mark.thorough
def test_workers_of_tensorflow_train_one_model(ab: Terminal, tensorflow: str) -> None:
    command = [tensorflow, "-m", "allaboard", "run", str(ENGINES / "tensorflow.yaml"), "--json"]
    environ = {**ab.environ, "PYTHONPATH": str(ROOT / "core" / "src")}
    done = subprocess.run(command, cwd=ab.folder, env=environ, capture_output=True, text=True, timeout=300)
    body = json.loads(done.stdout)
    assert body["state"] == "succeeded" and body["progress"]["step"] == 60
    assert body["metrics"] == {"slope": 3.0, "intercept": 0.5}
    lines = [json.loads(line)["text"] for line in ab("logs", body["run"], "--json").out.splitlines()]
    assert lines.count("line 3.000 0.500") == 2
