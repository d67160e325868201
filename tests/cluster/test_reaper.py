"""The reaper on a real cluster, under its own Role: clients that are killed leave no members, and a run that
another client takes up in time goes on.
"""

from __future__ import annotations

import json
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.backends.kubernetes.discovery import rbac
from allaboard.backends.kubernetes.lifecycle import reaper, waiting
from allaboard.render import labels
from tests.cluster.api import until
from tests.cluster.kubelet.handle import NodeSpec, nodes_on
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import CODE, Terminal

OWN = "allaboard.test/reaper"
AFTER, GRACE, LEASE = 60.0, 2.0, 60.0
BOUND = AFTER + LEASE + 2 * reaper.EVERY + GRACE
"""Seconds from the death of the last client to the end of the members, as the documents state it."""
SLACK = 15.0
"""Seconds that a machine with few cores may take longer to end processes and to look."""
CLIENT = """
import json, sys
from allaboard.backends.base import Plan
from allaboard.checking.job import require_valid
from allaboard.running import backend_of
from allaboard.runs.observation import Owner

backend = backend_of("kubernetes")
plan = Plan(require_valid(json.loads(sys.argv[1])), sys.argv[2])
run = backend.launch(plan, Owner(sys.argv[3], kind="orchestrated")).run
with backend.changes(run) as changes:
    while True:
        backend.observe(run)
        changes.wait(5)
"""

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(1500),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def node(plane_of_nodes: ControlPlane) -> Iterator[str]:
    mark = f"reaper-{secrets.token_hex(3)}"
    spec = NodeSpec(mark, {"cpu": "64", "memory": "64Gi"}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))
    with nodes_on(plane_of_nodes, [spec], code=CODE):
        yield mark


@dataclass
class Lab:
    """A namespace with a reaper, and the clients of its runs."""

    ab: Terminal
    plane: ControlPlane
    namespace: str
    node: str
    account: Path
    processes: list[subprocess.Popen[Any]]

    def client(self, key: str, owner: str) -> subprocess.Popen[Any]:
        """A process that starts or takes up the run of this key, and follows it, as a task does."""
        pod = {
            "nodeSelector": {OWN: self.node},
            "tolerations": [{"key": OWN, "operator": "Exists"}],
            "terminationGracePeriodSeconds": int(GRACE),
        }
        job = {
            "name": "digits",
            "workers": 1,
            "command": ["sh", "-c", "sleep 3600"],
            "pod": {"spec": pod},
            "policy": {"orphan": {"after": f"{AFTER:g}s"}, "restart": "never"},
        }
        words = [sys.executable, "-c", CLIENT, json.dumps(job), key, owner]
        return self._started(words, self.ab.environ)

    def reaper(self) -> subprocess.Popen[Any]:
        """As its Deployment runs it: with no home to write to, and the account's rights."""
        made = [*yaml.safe_load_all(_reapers_manifest(self.namespace))]
        words = made[-1]["spec"]["template"]["spec"]["containers"][0]["command"][1:]
        environ = {**self.ab.environ, "KUBECONFIG": str(self.account), "HOME": "/nonexistent"}
        return self._started([sys.executable, "-m", "allaboard", *words], environ)

    def _started(self, words: list[str], environ: Any) -> subprocess.Popen[Any]:
        with (self.ab.folder / f"{secrets.token_hex(4)}.err").open("wb") as errors:
            process = subprocess.Popen(
                words, env=dict(environ), cwd=self.ab.folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def records(self) -> list[dict[str, Any]]:
        maps = self.plane.api.list("v1", "ConfigMap", self.namespace)
        return [json.loads(m["data"]["record"]) for m in maps if "record" in m.get("data", {})]

    def record(self, key: str) -> dict[str, Any] | None:
        return next((record for record in self.records() if record["key"] == key), None)

    def members(self, run: str | None = None) -> list[str]:
        pods = self.plane.api.list("v1", "Pod", self.namespace)
        return [p["metadata"]["name"] for p in pods if run in (None, labels.label_of(p, labels.RUN))]

    def trains(self, key: str) -> bool:
        record = self.record(key)
        return record is not None and bool(self.members(record["run"])) and record["object_uid"] is not None


def _reapers_manifest(namespace: str) -> str:
    return rbac.manifest("reaper", namespace)


@pytest.fixture
def lab(plane: ControlPlane, namespace: str, node: str, tmp_path: Path) -> Iterator[Lab]:
    made = [*yaml.safe_load_all(_reapers_manifest(namespace))]
    plane.api.apply([one for one in made if one["kind"] != "Deployment"])
    account = plane.kubeconfig_for_account(namespace, waiting.LEASE)
    lab = Lab(Terminal.on(plane.kubeconfig, namespace, tmp_path), plane, namespace, node, account, [])
    yield lab
    for process in lab.processes:
        process.kill()
        process.wait()


def kill(process: subprocess.Popen[Any]) -> float:
    process.send_signal(signal.SIGKILL)
    process.wait()
    return time.monotonic()


def ended(lab: Lab, key: str) -> bool:
    """True if nothing of the run can hold a GPU: it was never launched, or it has ended, members included."""
    record = lab.record(key)
    if record is None:
        return True
    is_over = record["stop"] is not None or record["outcome"] is not None
    return is_over and not lab.members(record["run"])


def test_a_run_whose_last_client_is_killed_ends_within_the_bound_and_one_that_is_taken_up_lives(
    lab: Lab,
) -> None:
    """The reaper is killed, too, and starts anew."""
    first = lab.reaper()
    clients = {key: lab.client(key, f"try 1 of {key}") for key in ("left", "taken up", "followed")}
    until("all train", lambda: all(map(lab.trains, clients)), 120)
    assert "a reaper ends runs here" in lab.ab("preflight", *a_job(lab), code=None).out
    died = kill(clients["left"])
    kill(clients["taken up"])
    time.sleep(LEASE / 2)
    kill(first)
    again = lab.reaper()
    time.sleep(LEASE / 2 + AFTER / 2)
    assert lab.trains("taken up") and lab.trains("left"), "both may be taken up still"
    lab.client("taken up", "try 2 of taken up")
    until("its end", lambda: ended(lab, "left"), BOUND + SLACK - (time.monotonic() - died))
    record = lab.record("left")
    assert record is not None and record["stop"]["by"] == "the reaper"
    time.sleep(AFTER)
    assert lab.trains("taken up") and lab.trains("followed")
    assert [r["stop"] for r in lab.records() if r["key"] != "left"] == [None, None]
    again.send_signal(signal.SIGTERM)
    assert again.wait(30) == 0


def a_job(lab: Lab) -> list[str]:
    file = lab.ab.folder / "job.yaml"
    file.write_text(yaml.safe_dump({"name": "digits", "command": ["true"], "image": "lab/train:1"}))
    return [str(file)]


@pytest.mark.endurance
@pytest.mark.timeout(2400)
def test_30_random_instants_of_a_last_try(lab: Lab) -> None:
    """Every third one is taken up by a next try, at a random instant within the patience."""
    chance = random.Random(secrets.randbits(32))
    lab.reaper()
    died: dict[str, float] = {}
    taken_up: dict[str, float] = {}
    late: dict[str, float] = {}

    def look() -> None:
        for key, at in [*died.items()]:
            now = time.monotonic()
            if key in taken_up and now >= taken_up[key]:
                lab.client(key, f"try 2 of {key}")
            elif key not in taken_up and ended(lab, key):
                late[key] = now - at
            else:
                assert key in taken_up or now - at < BOUND + SLACK, f"{key} is {lab.record(key)}"
                continue
            del died[key]

    for n in range(30):
        key = f"k{n}"
        process = lab.client(key, f"try 1 of {key}")
        # From before its first request to well after its members run.
        time.sleep(chance.uniform(0.2, 6.0))
        died[key] = kill(process)
        if n % 3 == 0:
            # Whatever is left of the patience is enough for a process to start on a machine with few cores.
            taken_up[key] = died[key] + chance.uniform(0.0, LEASE + AFTER - 20)
        look()
    while died:
        look()
        time.sleep(1)
    until("all are taken up", lambda: all(map(lab.trains, taken_up)), 120)
    time.sleep(BOUND)
    kept = {key: lab.record(key) for key in taken_up}
    assert [key for key, record in kept.items() if record is None or record["stop"] is not None] == []
    assert all(map(lab.trains, taken_up))
    print(
        f"{len(late)} ended, the last one {max(late.values()):.0f} s after its client (bound {BOUND:.0f} s); "
        f"{len(taken_up)} taken up, 0 of them stopped"
    )
