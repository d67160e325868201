"""MPIJob, kubeflow.org/v1, of the Training Operator: its object and status, the environment that its operator
injects, and its success rules.

Read from the Training Operator, release 1.9.4: pkg/controller.v1/mpi (mpijob_controller.go, mpijob.go),
pkg/apis/kubeflow.org/v1/mpi_types.go. It has the name of the MPI Operator's kind, and a cluster serves one of
them. It has no SSH: the launcher reaches the workers, which sleep, by ``kubectl exec``, and ranks have the
variables of the worker's container. The operator gives the launcher an account that may do so; an account of
the job's own (pod.spec.serviceAccountName) or of the place needs that right.

A pod that failed is never made anew. A worker that fails, fails the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allaboard.engines.base import AddedContainer, Place
from allaboard.engines.mpijob import CONFIG, HOSTFILE, NO_GPUS, MPIEngine, hostfile, slots_of_hosts
from allaboard.errors import Problem

if TYPE_CHECKING:
    from allaboard.runs.layout import Layout, Member

_AGENT = f"{CONFIG}/kubexec.sh"


class MPIJobV1(MPIEngine):
    """`allaboard.engines.Engine` for MPIJobs of v1."""

    NAMES_NAMESPACE = False
    OWN_FIELDS = frozenset({"slotsPerWorker", "cleanPodPolicy", "mainContainer"})
    INJECTED = frozenset({"OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte_default_hostfile", *NO_GPUS})
    """Intel's two variables are set unless the job sets them."""
    ADDED = (
        AddedContainer(
            "kubectl-delivery",
            {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"},
            waits_for="kubectl, which its image brings (--mpi-kubectl-delivery-image of the operator)",
            remedy="use another namespace, or MPIJob v2beta1 of the MPI Operator, which adds no container",
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self.NAME = "mpijob-v1"

    def objections(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        """Problems of a valid job's fields that this engine cannot do as they are written."""
        yield from super().objections(job)
        for name in ("code", "packages"):
            if job.get(name) is not None and (name == "packages" or isinstance(job.get(name), Mapping)):
                message = (
                    "does not reach ranks that are started by kubectl exec; say engine: jobset or mpijob, or "
                    "put it into the image"
                )
                yield Problem(name, message)
        spec = (job.get("pod") or {}).get("spec")
        if isinstance(spec, Mapping) and spec.get("serviceAccountName"):
            message = "the launcher starts ranks by kubectl exec; this account must be allowed to (pods/exec)"
            yield Problem("pod.spec.serviceAccountName", message, severity="warning")

    def added(self, job: Mapping[str, Any], role: str) -> tuple[AddedContainer, ...]:
        """The launcher gets kubectl."""
        return self.ADDED if role == "launcher" else ()

    def pod_name(self, job: str, member: str) -> str:
        """Of a member; there is one launcher, and it has no index."""
        return f"{job}-launcher" if member == "launcher-0" else f"{job}-{member}"

    def reason(self, condition: str, layout: Layout) -> str | None:
        """Of a failed member with the kind twice, as the operator has it."""
        return "MPIJobMPIJobFailed" if condition == "Failed" else super().reason(condition, layout)

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
        """The variables that the operator appends to the launcher's own; they win over the user's."""
        if member.group == "worker":
            return {}
        group = layout.group("launcher")
        own = group.environment if group is not None else {}
        intel = {"I_MPI_HYDRA_BOOTSTRAP": "rsh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": _AGENT}
        return {
            "OMPI_MCA_plm_rsh_agent": _AGENT,
            "OMPI_MCA_orte_default_hostfile": HOSTFILE,
            **{name: value for name, value in intel.items() if name not in own},
            **({} if _has_gpus(layout) else NO_GPUS),
        }

    def files(self, layout: Layout, hosts: Mapping[str, str]) -> dict[str, str]:
        """The hostfile of the launcher, in which it stands itself where it has GPUs."""
        slots = slots_of_hosts(layout, hosts, launcher=_has_gpus(layout))
        return {HOSTFILE: hostfile(slots, "{host} slots={slots}")}


def _has_gpus(layout: Layout) -> bool:
    launcher = layout.group("launcher")
    return launcher is not None and bool(launcher.needs.gpu)


ENGINE = MPIJobV1()
