"""Rights of members on their nodes: the Pod Security level that they keep. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allaboard.job.pod_defaults import PINS, RESTRICTED_CONTAINER, is_for_rdma

if TYPE_CHECKING:
    from allaboard.job.training_job import TrainingJob
    from allaboard.render.cluster_facts import ClusterFacts
    from allaboard.runs.layout import Needs


def is_restricted(job: TrainingJob, facts: ClusterFacts) -> bool:
    """True if members keep the level restricted: the job says so, or would have no members without it."""
    return job.get("security") == "restricted" or facts.pod_security == "restricted"


def uses_rdma(needs: Needs) -> bool:
    """True if a device is for RDMA, by its name."""
    return any(is_for_rdma(name) for name in needs.devices)


def may_pin(job: TrainingJob, facts: ClusterFacts) -> bool:
    """True if the namespace takes the capability IPC_LOCK."""
    return not is_restricted(job, facts) and facts.pod_security in (None, "privileged")


def of_container(job: TrainingJob, needs: Needs, facts: ClusterFacts) -> Mapping[str, Any]:
    """The securityContext of the container that trains; empty: the usual one."""
    if is_restricted(job, facts):
        return RESTRICTED_CONTAINER
    return PINS if uses_rdma(needs) and may_pin(job, facts) else {}


def with_others(containers: Sequence[Mapping[str, Any]], trains: str) -> list[dict[str, Any]]:
    """Containers that a job adds, with what the level restricted asks of each and they leave open."""
    return [
        dict(container)
        if container.get("name") == trains
        else {
            **container,
            "securityContext": {**RESTRICTED_CONTAINER, **(container.get("securityContext") or {})},
        }
        for container in containers
    ]
