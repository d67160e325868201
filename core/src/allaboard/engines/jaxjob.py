"""JAXJob, kubeflow.org/v1: its object and status, the environment that its operator injects, and its success
rules.

Read from the Training Operator, release 1.9.4: pkg/controller.v1/jax (envvar.go, jaxjob_controller.go),
pkg/apis/kubeflow.org/v1/jax_types.go, pkg/webhooks/jax. Its variables have no prefix ``JAX_``, so that
``jax.distributed.initialize()`` does not find them by itself: scripts hand them over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from allaboard.engines.base import Counts, Place, Verdict
from allaboard.engines.kubeflow import KubeflowEngine

if TYPE_CHECKING:
    from allaboard.runs.layout import Layout, Member


class JAXJob(KubeflowEngine):
    """`allaboard.engines.Engine` for JAXJobs."""

    KIND = "JAXJob"
    FRAMEWORKS = ("jax",)
    ROLES: Mapping[str, int | None] = {"worker": None}
    CONTAINER = "jax"
    SPECS = "jaxReplicaSpecs"
    NAMES_NAMESPACE = True
    INJECTED = frozenset(
        {"PYTHONUNBUFFERED", "COORDINATOR_PORT", "COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"}
    )

    def listeners(self, layout: Layout) -> list[tuple[str, ...]]:
        """The coordinator."""
        return [("worker-0",)]

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
        """The variables that the operator appends to a member's own; they win over the user's."""
        return {
            "PYTHONUNBUFFERED": "1",
            "COORDINATOR_PORT": str(place["worker-0"].port),
            "COORDINATOR_ADDRESS": place["worker-0"].host,
            "NUM_PROCESSES": str(layout.total),
            "PROCESS_ID": str(member.index),
        }

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """All workers."""
        workers = counts["worker"]
        return Verdict(running=workers.active > 0, succeeded=workers.succeeded >= workers.replicas)


ENGINE = JAXJob()
