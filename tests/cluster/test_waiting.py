"""Why a gang waits, told from what the real schedulers say: each of them on a node too small. Two gangs at
once are in test_gangs.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.kubernetes.observe.observation import of_object
from allaboard.checking.job import require_valid
from allaboard.engines import engine_of
from allaboard.render import labels
from allaboard.render.cluster_facts import ASSUMED, ClusterFacts
from allaboard.render.manifests import render
from allaboard.runs.layout import lay_out
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import state_of
from allaboard.testing import a_job
from allaboard.text.names import run_name
from allaboard.text.units import from_rfc3339
from tests.cluster.api import Object, until
from tests.cluster.components.coscheduling import SCHEDULER
from tests.cluster.components.kubernetes import RELEASE
from tests.cluster.jobs import a_node
from tests.cluster.plane import ControlPlane

MARK = "tests.allaboard.io/node"


@pytest.fixture
def small_node(plane: ControlPlane, namespace: str) -> Iterator[Object]:
    """What of `pod` sends members to a node of four cores for this test alone."""
    yield a_small_node(plane, namespace)
    plane.api.delete("v1", "Node", namespace)


def a_small_node(plane: ControlPlane, namespace: str) -> Object:
    """Makes a node on which no kubelet starts anything, and says how to get there."""
    node = a_node(namespace, {"cpu": "4", "memory": "4Gi", "pods": "20"}, {MARK: namespace})
    taint = {"key": MARK, "value": namespace, "effect": "NoSchedule"}
    plane.api.create({**node, "spec": {"taints": [taint]}})
    plane.api.patch(node, {"status": node["status"]}, sub="status")
    return {
        "nodeSelector": {MARK: namespace},
        "tolerations": [{"key": MARK, "operator": "Equal", "value": namespace, "effect": "NoSchedule"}],
    }


def submit(
    plane: ControlPlane,
    namespace: str,
    where: Object,
    gang: str,
    members: int,
    key: str = "k",
    facts: ClusterFacts = ASSUMED,
    **more: Any,
) -> Object:
    """Makes the objects of a job whose members need a core each."""
    fields = {
        "workers": members,
        "resources": {"cpu": 1},
        "gang": {"scheduler": gang},
        "pod": {"spec": where},
        **more,
    }
    job = require_valid(a_job(image="lab/train:1", **fields))
    layout = lay_out(job, engine_of(job), run_name(job.name, key))
    at = replace(facts, namespace=namespace)
    found = render(job, layout, at, launch=labels.launch_uid(key, 1, 1), spec_hash="v1:x")
    for manifest in found.manifests:
        made = plane.api.create(manifest)
    return made


def look(plane: ControlPlane, job: Object) -> Observation:
    """What is seen of it now."""
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    found = plane.api.get(job["apiVersion"], job["kind"], name, namespace)
    assert found is not None
    pods = plane.api.list("v1", "Pod", namespace, labelSelector=f"training.kubeflow.org/job-name={name}")
    kinds = ("scheduling.x-k8s.io/v1alpha1", RELEASE.workloads)
    groups = [
        g for v in kinds if plane.api.serves(v, "PodGroup") for g in plane.api.list(v, "PodGroup", namespace)
    ]
    own = [g for g in groups if g["metadata"]["name"] == labels.gang_name(name)]
    events = plane.api.list("v1", "Event", namespace)
    now = max([from_rfc3339(p["metadata"]["creationTimestamp"]) or 0.0 for p in pods], default=0.0)
    return of_object(found, now=now + 5, pods=pods, events=events, groups=own)


def settled(plane: ControlPlane, job: Object, pattern: str) -> Observation:
    """Once its waiting reason is of this shape."""
    seen: list[str | None] = []

    def shape() -> Observation | None:
        found = look(plane, job)
        seen.append(found.waiting)
        return found if re.fullmatch(pattern, found.waiting or "") else None

    try:
        return until(f"waiting like {pattern}", shape)
    except TimeoutError as error:
        raise AssertionError(f"{error}; it was {seen[-1]!r}") from error


NODES = r"0/\d+ nodes are available: .*1 Insufficient cpu.*"


@pytest.mark.parametrize(
    ("gang", "sentence"),
    [
        pytest.param(
            "coscheduling",
            rf"coscheduling finds no 5 places together: {NODES}",
            marks=pytest.mark.needs("coscheduling", "training-operator"),
        ),
        pytest.param(
            "workload",
            rf"kube-scheduler finds no 5 places together: {NODES}",
            marks=pytest.mark.needs("kube-scheduler", "training-operator"),
        ),
        pytest.param(
            "none",
            rf"4 of 5 members hold places and idle, because 1 has none \({NODES}\); "
            "without a gang scheduler these places are not taken back",
            marks=pytest.mark.needs("kube-scheduler", "training-operator"),
        ),
    ],
)
def test_the_reason_is_told_in_one_sentence(
    plane: ControlPlane, namespace: str, small_node: Object, gang: str, sentence: str
) -> None:
    found = settled(plane, submit(plane, namespace, small_node, gang, 5), sentence)
    assert state_of(found) is State.QUEUED
    assert found.phases["scheduled"] is not None and found.phases["image"] is None


@pytest.mark.needs("coscheduling", "training-operator")
@pytest.mark.parametrize("gang", ["coscheduling", "workload"])
def test_a_gang_that_fits_waits_for_nothing(
    plane: ControlPlane, namespace: str, small_node: Object, gang: str
) -> None:
    job = submit(plane, namespace, small_node, gang, 4)

    def placed() -> bool:
        found = look(plane, job)
        return found.waiting is None and found.phases["image"] is not None

    until("all four to have a place", placed)
    assert state_of(look(plane, job)) is State.STARTING


@pytest.mark.timeout(120)
def test_an_operator_that_makes_the_gang_itself(
    new_plane_in: Callable[..., AbstractContextManager[ControlPlane]], tmp_path: Path
) -> None:
    """Started with --gang-scheduler-name it needs nothing of ours but how many start together."""
    flags = {"training-operator": [f"--gang-scheduler-name={SCHEDULER}"]}
    with new_plane_in(tmp_path, "training-operator", "coscheduling", flags=flags) as plane:
        plane.make_namespace("gang", {})
        facts = replace(ASSUMED, operator_gangs={"training-operator": "coscheduling"})
        elastic = {"min": 3, "max": 6}
        job = submit(
            plane,
            "gang",
            a_small_node(plane, "gang"),
            "auto",
            6,
            facts=facts,
            elastic=elastic,
            command=["torchrun", "x.py"],
        )
        name = job["metadata"]["name"]
        group = until(
            "its PodGroup", lambda: plane.api.get("scheduling.x-k8s.io/v1alpha1", "PodGroup", name, "gang")
        )
        assert group["spec"]["minMember"] == 3

        def four() -> bool:
            pods = plane.api.list("v1", "Pod", "gang")
            assert {p["spec"]["schedulerName"] for p in pods} <= {SCHEDULER}
            return sum("nodeName" in p["spec"] for p in pods) == 4

        until("four of six to have a place", four)
        assert look(plane, job).waiting is None
        large = submit(plane, "gang", {}, "auto", 5, "large", facts=facts)
        sentence = r"coscheduling finds no 5 places together: the cluster lacks \d cpu"
        assert state_of(settled(plane, large, sentence)) is State.QUEUED
