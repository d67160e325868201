"""A trace of preemptions on the real Kueue, in two queues at the same time: `allaboard boost` keeps boosts in
one of them. What is lost is what the victims had not saved; both figures are printed.

The runs of low priority fill their queue, each with a rhythm of its own in which it saves; their saves are
files of a store. From time to time somebody more urgent comes, takes the place of one of them, and goes.
Which one is Kueue's affair. The jobs are plain Jobs whose pods carry what allaboard's carry, and need no
node: to Kueue a job runs when it has lifted its suspension.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.backends.kubernetes.discovery import rbac
from allaboard.gangs.kueue import BOOST
from tests.cluster.api import Api, ApiError, Object, until
from tests.cluster.components.kueue import TELLS_POSITIONS
from tests.cluster.plane import ROOT, ControlPlane

NewPlane = Callable[..., AbstractContextManager[ControlPlane]]
KUEUE = "kueue.x-k8s.io/v1beta2"
QUEUE = "kueue.x-k8s.io/queue-name"
CLASS = "kueue.x-k8s.io/priority-class"
GATES = f"--feature-gates=VisibilityOnDemand={str(TELLS_POSITIONS).lower()},PriorityBoost="
LONG = 180.0
SEED = int(os.environ.get("SEED", "7"))
RUNS, GPUS, ARRIVALS = 14, 200, 10
STAYS = 3.0
"""Seconds for which an urgent job keeps its place."""
HOLD = 2.0
"""Seconds for which a boost stands: two of the intervals with which `boost` is started."""

pytestmark = [pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, new_plane_in: NewPlane) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("boost")
    flags = {"kueue": [f"{GATES}true"]}
    with new_plane_in(folder, "kueue", flags=flags) as plane:
        plane.api.create({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "any"}})
        for name, value in (("urgent", 1000), ("low", 0)):
            kind = {"apiVersion": KUEUE, "kind": "WorkloadPriorityClass"}
            plane.api.create({**kind, "metadata": {"name": name}, "value": value})
        plane.make_namespace("platform")
        plane.api.apply([*yaml.safe_load_all(rbac.manifest("boost", "platform"))])
        yield plane


def a_queue(plane: ControlPlane, name: str) -> str:
    """A namespace of this name, with a queue that has room for the runs of a trace."""
    namespace = plane.make_namespace(name)
    resource = {"name": "nvidia.com/gpu", "nominalQuota": RUNS * GPUS}
    flavor = {"name": "any", "resources": [resource]}
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}]
    spec = {
        "namespaceSelector": {},
        "resourceGroups": groups,
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    plane.api.create({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec})
    local = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "team", "namespace": namespace}}
    plane.api.create({**local, "spec": {"clusterQueue": name}})
    return namespace


def a_job(namespace: str, name: str, priority: str, folder: Path | None = None) -> Object:
    """``folder``: it is a run of allaboard's that saves there; None: somebody's job."""
    resources = {"limits": {"nvidia.com/gpu": GPUS}}
    container: Object = {"name": "train", "image": "lab/train:1", "resources": resources}
    own: dict[str, str] = {}
    if folder is not None:
        own = {"app.kubernetes.io/managed-by": "allaboard", "allaboard.io/run": name}
        where = {"ALLABOARD_CHECKPOINTS": str(folder), "ALLABOARD_CHECKPOINT_EVERY": "20s"}
        container["env"] = [{"name": key, "value": value} for key, value in where.items()]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {QUEUE: "team", CLASS: priority, **own}},
        "spec": {
            "suspend": True,
            "template": {
                "metadata": {"labels": own},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


def save(folder: Path, step: int) -> None:
    """A checkpoint is complete when its manifest is there."""
    (folder / f"step-{step:012}").mkdir(parents=True)
    (folder / f"step-{step:012}" / "manifest.json").write_text("{}")


def holds(workload: Object, kind: str) -> bool:
    conditions = workload.get("status", {}).get("conditions", ())
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


@dataclass
class Run:
    """A run of the trace. ``safe``: up to when its work is saved; None: it does not run."""

    folder: Path
    rhythm: random.Random
    safe: float | None = None
    due: float = 0.0
    step: int = 0

    def __post_init__(self) -> None:
        self.every = self.rhythm.uniform(8.0, 20.0)

    def look(self, admitted: bool, now: float) -> float:
        """GPU-seconds that it loses now."""
        if admitted and self.safe is None:
            self.safe, self.due = now, now + self.every * self.rhythm.uniform(0.5, 1.0)
        elif not admitted and self.safe is not None:
            lost, self.safe = GPUS * (now - self.safe), None
            return lost
        elif admitted and now >= self.due:
            self.step += 1
            save(self.folder, self.step)
            self.safe, self.due = now, now + self.every * self.rhythm.uniform(0.9, 1.1)
        return 0.0


@dataclass
class Queue:
    """One of the two queues, and what happens in it."""

    api: Api
    namespace: str
    runs: dict[str, Run]
    lost: list[float] = field(default_factory=list)
    boosts: dict[str, list[tuple[float, str | None]]] = field(default_factory=dict)

    def look(self, now: float) -> None:
        for workload in self.api.list(KUEUE, "Workload", self.namespace):
            name = workload["metadata"]["ownerReferences"][0]["name"]
            if (run := self.runs.get(name)) is None:
                continue
            admitted = holds(workload, "Admitted") and not holds(workload, "Evicted")
            if lost := run.look(admitted, now):
                self.lost.append(lost)
            value = workload["metadata"].get("annotations", {}).get(BOOST)
            seen = self.boosts.setdefault(name, [(now, None)])
            if seen[-1][1] != value:
                seen.append((now, value))

    @property
    def running(self) -> int:
        return sum(run.safe is not None for run in self.runs.values())

    def lead(self, until_true: Callable[[], bool], what: str, timeout: float = LONG) -> None:
        """Looks on until then."""
        end = time.monotonic() + timeout
        while not until_true():
            assert time.monotonic() < end, f"waited {timeout} s for {what}"
            self.look(time.time())
            time.sleep(0.2)


def a_trace(plane: ControlPlane, name: str, folder: Path) -> Queue:
    namespace = a_queue(plane, name)
    chance = random.Random(SEED)
    runs = {f"low-{n}": Run(folder / name / f"low-{n}", random.Random(chance.random())) for n in range(RUNS)}
    for run, one in runs.items():
        plane.api.create(a_job(namespace, run, "low", one.folder))
    return Queue(Api.from_kubeconfig(plane.kubeconfig), namespace, runs)


def program(plane: ControlPlane, *words: str, kubeconfig: Path | None = None) -> dict[str, Any]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("ALLABOARD_")}
    environ = {"KUBECONFIG": str(kubeconfig or plane.kubeconfig), "PYTHONPATH": str(ROOT / "core" / "src")}
    return {"args": [sys.executable, "-m", "allaboard", *words], "env": own | environ, "text": True}


@contextmanager
def boosting(plane: ControlPlane, namespace: str, store: Path) -> Iterator[Path]:
    """`allaboard boost` runs as its own account, with no right but those of its Role; what it has printed."""
    account = plane.kubeconfig_for_account("platform", "allaboard-boost")
    said = store.parent / f"boost-{namespace}.txt"
    words = ("boost", "--all-namespaces", "--store", str(store), "--interval", "1s")
    with said.open("w") as out:
        process = subprocess.Popen(
            **program(plane, *words, kubeconfig=account), stdout=out, stderr=subprocess.STDOUT
        )
        try:
            yield said
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(LONG)
    print(said.read_text())
    assert code == 0, said.read_text()


def test_far_less_is_lost_where_boosts_are_kept_and_nothing_flaps(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """Of the one queue its store may not be listed, and so it gets no boosts."""
    without, with_boosts = (a_trace(plane, name, tmp_path) for name in ("without", "with"))
    with ThreadPoolExecutor(2) as both, boosting(plane, with_boosts.namespace, tmp_path / "with"):
        for done in [both.submit(arrive, queue) for queue in (without, with_boosts)]:
            done.result()
        boosted = [w for w in plane.api.list(KUEUE, "Workload") if BOOST in annotations(w)]
        assert boosted and {w["metadata"]["namespace"] for w in boosted} == {with_boosts.namespace}
    assert not [w for w in plane.api.list(KUEUE, "Workload") if BOOST in annotations(w)]
    share = sum(with_boosts.lost) / sum(without.lost)
    for queue in (without, with_boosts):
        print(f"{queue.namespace}: {sum(queue.lost):.0f} GPU-seconds lost by {len(queue.lost)} preemptions")
    changes = {run: len(seen) - 1 for run, seen in with_boosts.boosts.items()}
    print(f"with boosts {share:.0%} is lost; changes of each boost: {changes}")
    assert len(without.lost) == len(with_boosts.lost) == ARRIVALS
    assert share < 0.8
    for run, seen in with_boosts.boosts.items():
        # A step for each level on the way up, one down with each save, one with each eviction.
        assert changes[run] <= 4 * (with_boosts.runs[run].step + len(with_boosts.lost)), seen


def annotations(workload: Object) -> Object:
    return dict(workload["metadata"].get("annotations", {}))


def arrive(queue: Queue) -> None:
    """Somebody urgent, `ARRIVALS` times."""
    queue.lead(lambda: queue.running == RUNS, "all runs to be admitted")
    chance = random.Random(SEED + 1)
    for number in range(ARRIVALS):
        pause = time.monotonic() + chance.uniform(12.0, 18.0)
        queue.lead(lambda pause=pause: time.monotonic() > pause, "a while")  # type: ignore[misc]
        before, name = len(queue.lost), f"urgent-{number}"
        queue.api.create(a_job(queue.namespace, name, "urgent"))
        queue.lead(lambda before=before: len(queue.lost) > before, "a victim")  # type: ignore[misc]
        stays = time.monotonic() + STAYS
        queue.lead(lambda stays=stays: time.monotonic() > stays, "it to stay")  # type: ignore[misc]
        queue.api.delete("batch/v1", "Job", name, queue.namespace)
        queue.lead(lambda: queue.running == RUNS, "the victim to come back")
        assert len(queue.lost) == before + 1, "whoever came back has preempted another"


def test_users_cannot_boost_themselves(plane: ControlPlane, tmp_path: Path) -> None:
    """A submitter and a viewer may not patch a Workload, also not to take a boost away."""
    namespace = a_queue(plane, "users")
    plane.api.create(a_job(namespace, "mine", "low", tmp_path / "mine"))
    workload = until("its Workload", lambda: plane.api.list(KUEUE, "Workload", namespace), LONG)[0]
    named = {"apiVersion": KUEUE, "kind": "Workload", "metadata": workload["metadata"]}
    for role in ("submitter", "viewer"):
        own = plane.kubeconfig_for_role(namespace, role)
        with pytest.raises(ApiError) as refused:
            Api.from_kubeconfig(own).patch(named, {"metadata": {"annotations": {BOOST: "100"}}})
        assert refused.value.status == 403
        words = ("boost", "-n", namespace, "--store", str(tmp_path), "--once")
        done = subprocess.run(**program(plane, *words, kubeconfig=own), capture_output=True, timeout=LONG)
        assert done.returncode == 1 and "this account lacks: " in done.stderr
        assert "patch workloads.kueue.x-k8s.io" in done.stderr


def test_a_boost_that_another_wrote_is_left_alone(plane: ControlPlane, tmp_path: Path) -> None:
    namespace = a_queue(plane, "others")
    folder = tmp_path / "mine"
    plane.api.create(a_job(namespace, "mine", "low", folder))
    workload = until("its Workload", lambda: plane.api.list(KUEUE, "Workload", namespace), LONG)[0]
    named = {"apiVersion": KUEUE, "kind": "Workload", "metadata": workload["metadata"]}
    plane.api.patch(named, {"metadata": {"annotations": {BOOST: "100"}}})
    words = ("boost", "-n", namespace, "--store", str(tmp_path), "--once")
    done = subprocess.run(**program(plane, *words), capture_output=True, timeout=LONG)
    assert done.returncode == 0 and re.search(r"mine: .* writes its boost, too", done.stdout), done
    [left] = plane.api.list(KUEUE, "Workload", namespace)
    assert annotations(left)[BOOST] == "100"


def test_a_kueue_without_the_gate_is_found_out(plane: ControlPlane, tmp_path: Path) -> None:
    namespace = a_queue(plane, "gateless")
    plane.api.create(a_job(namespace, "mine", "low", tmp_path / "mine"))
    until("its Workload", lambda: plane.api.list(KUEUE, "Workload", namespace), LONG)
    words = ("boost", "-n", namespace, "--store", str(tmp_path), "--once")
    plane.halt("kueue")
    plane.launch("kueue", [f"{GATES}false"])
    try:
        done = subprocess.run(**program(plane, *words), capture_output=True, timeout=LONG)
        assert "Kueue here ignores boosts" in done.stdout, done
    finally:
        plane.halt("kueue")
        plane.launch("kueue", [f"{GATES}true"])
    done = subprocess.run(**program(plane, *words), capture_output=True, timeout=LONG)
    assert done.returncode == 0 and "ignores" not in done.stdout
