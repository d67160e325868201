"""JAXJob, kubeflow.org/v1: its object and status, the environment that its operator injects, and its success
rules.

Read from the Training Operator, release 1.9.4: pkg/controller.v1/jax (envvar.go, jaxjob_controller.go),
pkg/apis/kubeflow.org/v1/jax_types.go, pkg/webhooks/jax. Its variables have no prefix ``JAX_``, so that
``jax.distributed.initialize()`` does not find them by itself: scripts hand them over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allaboard.engines import kubeflow
from allaboard.engines.base import AddedContainer, Counts, JobSeen, Place, Verdict
from allaboard.errors import Problem

if TYPE_CHECKING:
    from allaboard.gangs.base import GangPlan
    from allaboard.layout import Layout, Member

NAME = "jaxjob"
KIND = "JAXJob"
FRAMEWORK = "jax"
ROLES: Mapping[str, int | None] = {"worker": None}
HELPERS: frozenset[str] = frozenset()
ELASTIC = False
DEFAULT_RESTART = "never"
API_VERSION = kubeflow.API_VERSION
PLURAL = "jaxjobs"
CONTAINER = "jax"
JOB_LABEL = kubeflow.JOB_LABEL
ROLE_LABEL = kubeflow.ROLE_LABEL
INDEX_LABEL = kubeflow.INDEX_LABEL
NATIVELY = kubeflow.NATIVELY
REFUSES: Mapping[str, str] = {}
_SPECS = "jaxReplicaSpecs"
FIELDS = frozenset({_SPECS, "runPolicy"})
OPERATOR = kubeflow.OPERATOR
PROBE: Mapping[str, Any] | None = kubeflow.wrong_container(_SPECS, "Worker")
ENDS = kubeflow.ends(KIND)
ADDED: tuple[AddedContainer, ...] = ()
_INJECTED = frozenset(
    {"PYTHONUNBUFFERED", "COORDINATOR_PORT", "COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"}
)


# Down.


def groups_of(workers: int, elastic: bool) -> Mapping[str, int]:
    """Workers alone."""
    return {"worker": workers}


def objections(job: Mapping[str, Any]) -> Iterator[Problem]:
    """What about a job's sound fields this engine cannot do as it is written."""
    yield from kubeflow.no_processes(job, KIND)
    yield from kubeflow.overridden(job, _INJECTED)


def render(
    layout: Layout,
    metadata: Mapping[str, Any],
    templates: Mapping[str, Mapping[str, Any]],
    gang: GangPlan,
) -> dict[str, Any]:
    """The job object. ``templates``: the pod template of each role."""
    return kubeflow.job_object(KIND, metadata, _SPECS, layout, templates, gang)


suspension = kubeflow.suspension


# Up.


def read(job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> JobSeen:
    """What the job object and its pods say. PROCESS_ID is the worker's index."""
    return kubeflow.read(job, pods, specs=_SPECS, roles=tuple(ROLES), container=CONTAINER)


def needed(job: Mapping[str, Any]) -> int:
    """How many members start together: what the gang was made of, else all."""
    return kubeflow.gang_size(job) or read(job, ()).total


def added(job: Mapping[str, Any], role: str) -> tuple[AddedContainer, ...]:
    """None."""
    return ADDED


managed_by = kubeflow.managed_by
member_of = kubeflow.member_of
pod_name = kubeflow.pod_name


# The operator, for the local backend.


def listeners(layout: Layout) -> list[tuple[str, ...]]:
    """The coordinator."""
    return [("worker-0",)]


def environment(layout: Layout, member: Member, place: Place) -> dict[str, str]:
    """The variables that the operator appends to a member's own; they win over the user's."""
    return {
        "PYTHONUNBUFFERED": "1",
        "COORDINATOR_PORT": str(place["worker-0"].port),
        "COORDINATOR_ADDRESS": place["worker-0"].host,
        "NUM_PROCESSES": str(layout.total),
        "PROCESS_ID": str(member.index),
    }


def judge(layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
    """All workers."""
    workers = counts["worker"]
    return Verdict(running=workers.active > 0, succeeded=workers.succeeded >= workers.replicas)


def message(condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
    """The operator's own words for a condition."""
    return kubeflow.message(KIND, condition, job, is_qualified=True, role=role, count=count)
