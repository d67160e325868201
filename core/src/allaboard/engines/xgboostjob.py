"""XGBoostJob, kubeflow.org/v1: its object and status, the environment that its operator injects, and its
success rules.

Read from the Training Operator, release 1.9.4: pkg/controller.v1/xgboost (xgboost.go,
xgboostjob_controller.go), pkg/webhooks/xgboost. It injects no ``DMLC_*``: the master's script starts the
tracker at MASTER_ADDR, and all join it. WORKER_ADDRS is for LightGBM, whose members listen themselves.
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

NAME = "xgboostjob"
KIND = "XGBoostJob"
FRAMEWORK = "xgboost"
ROLES: Mapping[str, int | None] = {"master": 1, "worker": None}
HELPERS: frozenset[str] = frozenset()
ELASTIC = False
DEFAULT_RESTART = "never"
API_VERSION = kubeflow.API_VERSION
PLURAL = "xgboostjobs"
CONTAINER = "xgboost"
JOB_LABEL = kubeflow.JOB_LABEL
ROLE_LABEL = kubeflow.ROLE_LABEL
INDEX_LABEL = kubeflow.INDEX_LABEL
NATIVELY = kubeflow.NATIVELY
REFUSES: Mapping[str, str] = {}
_SPECS = "xgbReplicaSpecs"
FIELDS = frozenset({_SPECS, "runPolicy"})
OPERATOR = kubeflow.OPERATOR
PROBE: Mapping[str, Any] | None = kubeflow.wrong_container(_SPECS, "Master")
ENDS = kubeflow.ends(KIND)
ADDED: tuple[AddedContainer, ...] = ()
_INJECTED = frozenset(
    {
        "PYTHONUNBUFFERED",
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "WORKER_ADDRS",
        "WORKER_PORT",
    }
)


# Down.


def groups_of(workers: int, elastic: bool) -> Mapping[str, int]:
    """A master and the rest workers."""
    return {"master": 1, "worker": workers - 1} if workers > 1 else {"master": 1}


def objections(job: Mapping[str, Any]) -> Iterator[Problem]:
    """What about a job's sound fields this engine cannot do as it is written."""
    if job.get("groups") and "master" not in job["groups"]:
        yield Problem("groups", f"{KIND} needs a master, which leads the others; add master: 1")
    if (job.get("policy") or {}).get("restart") in ("on_failure", "always"):
        yield Problem(
            "policy.restart",
            "a pod that is lost with its node fails the whole job, because this operator starts such pods "
            "again with exit_code alone",
            severity="warning",
        )
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
    """What the job object and its pods say. RANK is master 0, worker index + 1."""
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
    """The master's tracker; the workers, all at one port."""
    workers = tuple(member.name for member in layout.members if member.group == "worker")
    return [("master-0",), workers] if workers else [("master-0",)]


def environment(layout: Layout, member: Member, place: Place) -> dict[str, str]:
    """The variables that the operator appends to a member's own; they win over the user's."""
    env = {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": place["master-0"].host,
        "MASTER_PORT": str(place["master-0"].port),
        "WORLD_SIZE": str(layout.total),
        "RANK": str(member.rank),
    }
    workers = [place[m.name] for m in layout.members if m.group == "worker"]
    if workers:
        env["WORKER_PORT"] = str(workers[0].port)
        env["WORKER_ADDRS"] = ",".join(worker.host for worker in workers)
    return env


def judge(layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
    """The master decides."""
    master = counts["master"]
    return Verdict(running=master.active > 0, succeeded=master.succeeded >= master.replicas)


def message(condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
    """The operator's own words for a condition."""
    return kubeflow.message(KIND, condition, job, is_qualified=False, role=role, count=count)
