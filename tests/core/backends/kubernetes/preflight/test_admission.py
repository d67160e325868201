"""Whether a ClusterQueue can ever admit a job, and whether it has room now."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.backends.kubernetes.discovery.capacity import Pods
from allaboard.backends.kubernetes.discovery.kueue_objects import ClusterQueue, Flavor, cluster_queue
from allaboard.backends.kubernetes.discovery.kueue_objects import flavor as read_flavor
from allaboard.backends.kubernetes.preflight.admission import Admission, judge

GPU = "nvidia.com/gpu"


def members(replicas: int, role: str = "worker", spec: Any = None, **asked: str) -> Pods:
    """Pods of a role; ``gpu`` is NVIDIA's."""
    requests = {GPU if name == "gpu" else name: value for name, value in asked.items()}
    container = {"name": "train", "resources": {"requests": requests}}
    return Pods(role, replicas, {"containers": [container], **(spec or {})}, {})


def flavor(name: str, gpu: str = "8", cpu: str = "64", **quota: str) -> dict[str, Any]:
    resources = [
        {"name": GPU, "nominalQuota": gpu, **quota},
        {"name": "cpu", "nominalQuota": cpu, **quota},
    ]
    return {"name": name, "resources": resources}


def queue(*flavors: dict[str, Any], used: str = "0", **spec: Any) -> ClusterQueue:
    groups = [{"coveredResources": [GPU, "cpu"], "flavors": [*flavors]}]
    reserved = [{"name": f["name"], "resources": [{"name": GPU, "total": used}]} for f in flavors]
    body = {"spec": {"resourceGroups": groups, **spec}, "status": {"flavorsReservation": reserved}}
    return cluster_queue(body)


def nodes(labels: dict[str, str] | None = None, *taints: dict[str, str]) -> Flavor:
    return read_flavor({"spec": {"nodeLabels": labels or {}, "nodeTaints": [*taints]}})


TAINT = {"key": "dedicated", "value": "lab", "effect": "NoSchedule"}
TOLERATES = {"tolerations": [{"key": "dedicated", "operator": "Exists"}]}
FOUR = members(4, gpu="2", cpu="4")


def test_a_job_that_fits_now() -> None:
    assert judge(queue(flavor("h100")), {}, [FOUR]) == Admission()


def test_a_job_that_fits_when_others_have_ended_says_what_is_free() -> None:
    found = judge(queue(flavor("h100"), used="3"), {}, [FOUR])
    assert found == Admission(
        waits=("the members ask for 8 nvidia.com/gpu, and 5 of its own quota are free now",)
    )


@pytest.mark.parametrize(
    ("more", "never"),
    [
        ({}, True),
        ({"cohortName": "lab"}, False),  # whatever others lend
    ],
)
def test_a_role_larger_than_any_flavor_is_never_admitted(more: dict[str, Any], never: bool) -> None:
    big = members(5, gpu="2")
    found = judge(queue(flavor("h100"), flavor("a100", gpu="4"), **more), {}, [big])
    words = "the 5 members of worker ask for 10 nvidia.com/gpu together, and no flavor can have more than 8"
    assert found.never == ((words,) if never else ())


def test_what_may_be_borrowed_counts() -> None:
    lent = queue(flavor("h100", borrowingLimit="2"), cohortName="lab")
    assert judge(lent, {}, [members(5, gpu="2")]).never == ()
    assert judge(lent, {}, [members(6, gpu="2")]).never == (
        "the 6 members of worker ask for 12 nvidia.com/gpu together, and no flavor can have more than 10",
    )


def test_roles_may_have_flavors_of_their_own_and_not_more_than_all_of_them() -> None:
    both = queue(flavor("h100"), flavor("a100"))
    assert judge(both, {}, [members(4, "worker", gpu="2"), members(4, "ps", gpu="2")]).never == ()
    found = judge(
        both, {}, [members(4, "worker", gpu="2"), members(3, "ps", gpu="2"), members(2, "x", gpu="2")]
    )
    assert found.never == ("all members ask for 18 nvidia.com/gpu together, and the queue can have 16",)


def test_a_resource_that_the_queue_does_not_cover_is_named() -> None:
    found = judge(queue(flavor("h100")), {}, [members(1, gpu="1", memory="1Gi")])
    assert found.not_covered == ("memory",) and found.never == ()


@pytest.mark.parametrize(
    ("of_flavor", "spec", "why"),
    [
        (nodes({}, TAINT), {}, "has a taint that is not tolerated: dedicated=lab:NoSchedule"),
        (nodes({}, TAINT), TOLERATES, None),
        (nodes({"gpu": "a100"}), {"nodeSelector": {"gpu": "h100"}}, "is not labelled gpu=h100"),
        (nodes({"gpu": "h100"}), {"nodeSelector": {"gpu": "h100"}}, None),
        (nodes({"gpu": "h100"}), {"nodeSelector": {"zone": "b"}}, None),  # no flavor speaks of zones
    ],
)
def test_a_flavor_is_one_of_nodes(of_flavor: Flavor, spec: dict[str, Any], why: str | None) -> None:
    found = judge(queue(flavor("lab")), {"lab": of_flavor}, [members(1, spec=spec, gpu="1")])
    assert found.never == ((f"no flavor matches the members of worker: lab {why}",) if why else ())


def test_one_flavor_that_matches_is_enough() -> None:
    flavors = {"closed": nodes({}, TAINT), "open": nodes()}
    assert judge(queue(flavor("closed"), flavor("open", gpu="4")), flavors, [members(2, gpu="2")]).never == ()
    found = judge(queue(flavor("closed"), flavor("open", gpu="4")), flavors, [members(3, gpu="2")])
    assert "no flavor can have more than 4" in found.never[0]


def test_what_asks_for_nothing_needs_nothing() -> None:
    assert judge(queue(flavor("h100", gpu="0", cpu="0")), {}, [members(3)]) == Admission()
