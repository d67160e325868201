"""Every kind of job on the way to each of its ends: what we read of each state agrees with what the real
operator wrote. The same states are kept in tests/core/engines/recorded and played again without a cluster.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allaboard.checking.job import require_valid
from allaboard.engines import ENGINES, Engine
from allaboard.render import labels
from allaboard.render.cluster_facts import ASSUMED
from allaboard.render.manifests import render
from allaboard.runs.layout import lay_out
from allaboard.text.names import run_name
from tests.cluster.api import Object, until
from tests.cluster.cluster import Cluster
from tests.cluster.components.training_operator import KUBECTL
from tests.cluster.kubelet.handle import NodeSpec, nodes_on
from tests.cluster.plane import ControlPlane
from tests.cluster.recording import WRITES, Recorder, keep
from tests.core.engines.replay import FOLDER, states, troubles
from tests.core.engines.test_recorded import GROUPS, STATES

OWN = "allaboard.test/recording"
SECONDS = {"succeeded": 6, "failed": 6, "suspended": 15}
"""How long members run: longer than those who wait for the master's name take to see it, and than it takes to
see all of them run.
"""

pytestmark = [pytest.mark.needs("kube-scheduler", "kube-controller-manager"), pytest.mark.timeout(300)]


@contextmanager
def a_node(plane: ControlPlane) -> Iterator[str]:
    """A node of these tests alone, and its name."""
    mark = f"recording-{secrets.token_hex(3)}"
    spec = NodeSpec(mark, {"cpu": "32", "memory": "32Gi"}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))
    with nodes_on(plane, [spec]):
        yield mark


@pytest.fixture(scope="module")
def mark(plane_of_nodes: ControlPlane) -> Iterator[str]:
    with a_node(plane_of_nodes) as mark:
        yield mark


def a_story(engine: Engine, name: str, mark: str) -> Object:
    """The job of a story: all members run for a while and end alike."""
    framework = engine.FRAMEWORKS[0]
    where = {
        "nodeSelector": {OWN: mark},
        "tolerations": [{"key": OWN, "operator": "Exists"}],
        "terminationGracePeriodSeconds": 1,
    }
    return {
        "name": name,
        "framework": framework,
        "engine": engine.NAME,
        "image": "harness/train:1",
        "command": ["sh", "-c", f"sleep {SECONDS[name]}; exit {3 if name == 'failed' else 0}"],
        **({"groups": GROUPS[engine.NAME]} if engine.NAME in GROUPS else {"workers": 3}),
        "policy": {"restart": "never"},
        "pod": {"spec": where},
    }


@pytest.mark.parametrize("name", ENGINES)
def test_every_state_is_read_as_its_controllers_wrote_it(
    plane: ControlPlane, cluster: Cluster, namespace: str, mark: str, name: str
) -> None:
    engine = ENGINES[name]
    if reason := cluster.lacks(engine.OPERATOR.id):
        pytest.skip(reason)
    if not cluster.api.serves(engine.API_VERSION, engine.KIND):
        pytest.skip(f"{engine.API_VERSION} {engine.KIND} is not served here")
    play(plane, namespace, mark, engine)


def test_every_state_of_an_mpijob_of_the_training_operator(
    new_plane_in: Callable[..., AbstractContextManager[ControlPlane]], tmp_path: Path
) -> None:
    """Which is served where the MPI Operator is not."""
    parts = ("training-operator", "kube-scheduler", "kube-controller-manager")
    with new_plane_in(tmp_path, *parts, flags={"training-operator": KUBECTL}) as plane, a_node(plane) as mark:
        play(plane, "default", mark, ENGINES["mpijob-v1"])


def play(plane: ControlPlane, namespace: str, mark: str, engine: Engine) -> None:
    """All stories of an engine, recorded and read."""
    jobs = {story: a_story(engine, story, mark) for story in STATES}
    made, recorders = {}, {}
    for story, fields in jobs.items():
        job = require_valid(fields)
        layout = lay_out(job, engine, run_name(story, "k"))
        facts = replace(ASSUMED, namespace=namespace)
        uid = labels.launch_uid("k", 1, 1)
        objects = render(job, layout, facts, launch=uid, spec_hash="v1:x").manifests
        recorders[story] = Recorder(
            plane.api, engine, namespace, layout.name, instead={mark: "node-1", OWN: "example.com/own"}
        )
        for manifest in objects:
            made[story] = plane.api.create(manifest)
    ways: dict[str, Callable[[], Any]] = {"suspended": lambda: _suspend(plane, engine, made["suspended"])}
    for way in ways.values():
        way()
    for story, obj in made.items():
        until(f"{story} to end", lambda obj=obj: _ended(plane, engine, obj), timeout=120)
    stories = {}
    for story, recorder in recorders.items():
        plain = a_story(engine, story, "node-1")
        plain["pod"] = {}
        run = made[story]["metadata"]["labels"][labels.RUN]
        stories[story] = {"job": plain, "run": run, "written": recorder.written()}
    if os.environ.get(WRITES):
        keep(FOLDER / f"{engine.NAME}.json", engine.OPERATOR.title, stories)
    for story, said in stories.items():
        assert [*troubles(engine, said)] == [], story
        assert states(said) == STATES[story], story


def _ended(plane: ControlPlane, engine: Engine, obj: Object) -> bool:
    """Whether a job has ended and what runs of it is gone."""
    seen = _seen(plane, engine, obj)
    over = any(c.type in ("Succeeded", "Failed") and c.status == "True" for c in seen.conditions)
    return over and not any(member.phase in ("running", "pending") for member in seen.members)


def _seen(plane: ControlPlane, engine: Engine, obj: Object) -> Any:
    name, namespace = obj["metadata"]["name"], obj["metadata"]["namespace"]
    pods = plane.api.list("v1", "Pod", namespace, labelSelector=f"{engine.JOB_LABEL}={name}")
    return engine.read(plane.api.get(obj["apiVersion"], obj["kind"], name, namespace), pods)


def _suspend(plane: ControlPlane, engine: Engine, obj: Object) -> None:
    """Suspended once all of it runs, and resumed once nothing does."""

    def runs() -> bool:
        seen = _seen(plane, engine, obj)
        said = any(c.type == "Running" and c.status == "True" for c in seen.conditions)
        return said and {m.phase for m in seen.members} == {"running"}

    until("its members to run", runs)
    plane.api.patch(obj, engine.suspension(True))
    until(
        "its members to be gone", lambda: {m.phase for m in _seen(plane, engine, obj).members} == {"deleted"}
    )
    plane.api.patch(obj, engine.suspension(False))
