"""Runs that an older allaboard left on a cluster, in the hands of this one. The older one is that of
``make adoption FROM=COMMIT``; without one these tests skip.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.adoption.older import Older, older_or_skip
from tests.cluster.api import until
from tests.cluster.own_nodes import OwnNodes, own_nodes
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, LONG, Terminal

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(600),
]
WAITS = ["sh", "-c", "echo trains; sleep 600"]
ENDS = ["sh", "-c", "echo trains; sleep 20"]
FAILS = ["sh", "-c", "echo trains; echo 'ValueError: shapes not aligned' >&2; exit 3"]


@dataclass
class OlderTerminal(Terminal):
    """Types to the older command."""

    python: str = ""

    def command(self, *words: str) -> list[str]:
        return [self.python, "-m", "allaboard", *words]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Older:
    return older_or_skip(tmp_path_factory.mktemp("older"))


@pytest.fixture(scope="module")
def nodes(plane_of_nodes: ControlPlane) -> Iterator[OwnNodes]:
    size = {"cpu": "2", "memory": "4Gi"}
    with own_nodes(plane_of_nodes, size, size, code=CODE) as nodes:
        yield nodes


@pytest.fixture
def now(plane: ControlPlane, namespace: str, nodes: OwnNodes, tmp_path: Path) -> Terminal:
    nodes.serve(namespace)
    return Terminal.on(plane.kubeconfig, namespace, tmp_path)


@pytest.fixture
def then(now: Terminal, before: Older) -> OlderTerminal:
    environ = {name: value for name, value in now.environ.items() if name != "PYTHONPATH"}
    return OlderTerminal(now.folder, {**environ, "PATH": before.environ["PATH"]}, str(before.python))


def job(place: Terminal, command: list[str], **fields: object) -> str:
    body = {"name": "digits", "command": command, "workers": 2, "gang": {"scheduler": "none"}, **fields}
    file = place.folder / "job.yaml"
    file.write_text(yaml.safe_dump(body))
    return str(file)


def begun(then: OlderTerminal, command: list[str], **fields: object) -> str:
    """A run that the older allaboard started and follows no more; its name."""
    said = then("run", job(then, command, **fields), "--key", "nightly", "--detach", "--json")
    return str(said.json["run"])


def ends(now: Terminal, run: str, *states: str) -> None:
    until(f"{run} to be {states}", lambda: now.state(run) in states, LONG)


def test_a_run_that_trains_is_followed_to_its_end(then: OlderTerminal, now: Terminal) -> None:
    run = begun(then, ENDS)
    now.until_it_runs(run)
    assert run in now("list").out
    assert "trains" in now("logs", run).out
    now("follow", run)
    assert now.state(run) == "succeeded"
    now("run", "job.yaml", "--key", "nightly")
    assert now("list", "--json").json["runs"][0]["run"] == run
    now("delete", run)


def test_a_run_that_waits_for_a_place_is_explained_and_stopped(then: OlderTerminal, now: Terminal) -> None:
    run = begun(then, WAITS, resources={"cpu": 64})
    until("the doctor says why", lambda: now("doctor", run, "--json").json["diagnoses"], LONG)
    codes = [place("doctor", run, "--json").json["diagnoses"][0]["code"] for place in (then, now)]
    assert codes[0] == codes[1], codes
    now("stop", run)
    ends(now, run, "stopped")


def test_a_run_whose_client_was_killed_is_taken_over_under_its_key(
    then: OlderTerminal, now: Terminal
) -> None:
    client = then.start("run", job(then, ENDS), "--key", "nightly")
    run = now.run_of()
    now.until_it_runs(run)
    client.send_signal(signal.SIGKILL)
    client.communicate()
    said = now("run", "job.yaml", "--key", "nightly", "--json").json
    assert said["run"] == run and said["state"] == "succeeded" and said["attempt"] == 1


def test_a_suspended_run_is_resumed_and_stopped(then: OlderTerminal, now: Terminal) -> None:
    run = begun(then, WAITS)
    now.until_it_runs(run)
    then("suspend", run)
    ends(now, run, "suspended")
    now("resume", run)
    now.until_it_runs(run)
    now("stop", run)
    ends(now, run, "stopped")


def test_a_failure_has_the_same_diagnosis(then: OlderTerminal, now: Terminal, tmp_path: Path) -> None:
    run = begun(then, FAILS, policy={"restart": "never"})
    ends(now, run, "failed")
    codes = [place("doctor", run, "--json").json["diagnoses"][0]["code"] for place in (then, now)]
    assert codes[0] == codes[1], codes
    now("report", run, "--output", str(tmp_path / "page.html"))
    now("run", "job.yaml", "--key", "nightly", "--detach")
    assert now.seen(run)["attempt"] == 2
    ends(now, run, "failed")
