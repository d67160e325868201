"""Members whose node does not answer, as Kubernetes marks their pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.observe.lost_nodes import stall_of_lost_node
from allaboard.diagnosis import diagnose
from allaboard.runs.observation import State
from allaboard.runs.status import state_of
from allaboard.testing import seen

AT, LATER = "2026-11-27T22:09:27Z", "2026-11-27T22:09:30Z"
TAKEN = {
    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
    "lastTransitionTime": LATER,
}  # fmt: skip


def a_pod(
    name: str = "net-worker-0", node: str = "n1", *more: Any, ready: str = "False", **status: Any
) -> Any:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": AT}
    known = {"phase": "Running", "containerStatuses": [{"name": "pytorch", "ready": True}]}
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": node},
        "status": {**known, "conditions": [condition, *more], **status},
    }


def told(*pods: Any) -> str | None:
    stall = stall_of_lost_node(pods, lambda pod: str(pod["metadata"]["name"]).removeprefix("net-") or None)
    return stall.text if stall is not None else None


def test_a_node_and_its_members_are_named_with_the_time() -> None:
    one = "node n1 does not answer since 2026-11-27T22:09:27.000Z; worker-0 is lost with it, "
    one += "unless it comes back"
    assert told(a_pod()) == one == told(a_pod("net-worker-0", "n1", TAKEN))
    both = told(a_pod(), a_pod("net-master-0"), a_pod("net-worker-1", "n2", ready="True"))
    assert both is not None and "; master-0, worker-0 are lost with it" in both
    many = told(*(a_pod(f"net-worker-{n}") for n in range(9)))
    assert many is not None and "worker-4 and 4 more are lost" in many


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(ready="True"),
        a_pod(containerStatuses=[{"name": "pytorch", "ready": False}]),  # a probe fails, or it ends
        a_pod(containerStatuses=[]),
        a_pod(phase="Succeeded"),
        a_pod(node=""),
        {**a_pod(), "spec": {"nodeName": "n1", "readinessGates": [{"conditionType": "x"}]}},
        {"metadata": {}, "spec": None, "status": {"phase": "Running", "conditions": "none"}},
    ],
)
def test_others_are_not_lost(pod: Any) -> None:
    assert told(pod) is None


@pytest.mark.parametrize("condition", ["running", "restarting"])
def test_the_run_says_so_in_its_state(condition: str) -> None:
    stall = stall_of_lost_node([a_pod()], lambda pod: "worker-0")
    lost = replace(seen(condition, started=1.0), stall=stall)
    assert state_of(lost) is State(condition) and stall is not None
    assert lost.held_by == stall.text
    [first] = [diagnosis for diagnosis in diagnose(lost) if diagnosis.code == "node_lost"]
    assert first.summary == stall.text and first.retryable and first.blame == "node n1"
