"""PaddleJob, kubeflow.org/v1: its object and status, the environment that its operator injects, and its
success rules.

Read from the Training Operator, release 1.9.4: pkg/controller.v1/paddlepaddle (envvar.go,
paddlepaddle_controller.go), pkg/webhooks/paddlepaddle. With a master it is a job of parameter servers, the
masters being the servers; without one it is collective. Its elasticPolicy changes nothing, so it is not
offered.
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

NAME = "paddlejob"
KIND = "PaddleJob"
FRAMEWORK = "paddle"
ROLES: Mapping[str, int | None] = {"worker": None, "master": None}
HELPERS = frozenset({"master"})
ELASTIC = False
DEFAULT_RESTART = "on_failure"
API_VERSION = kubeflow.API_VERSION
PLURAL = "paddlejobs"
CONTAINER = "paddle"
JOB_LABEL = kubeflow.JOB_LABEL
ROLE_LABEL = kubeflow.ROLE_LABEL
INDEX_LABEL = kubeflow.INDEX_LABEL
NATIVELY = kubeflow.NATIVELY
REFUSES: Mapping[str, str] = {}
_SPECS = "paddleReplicaSpecs"
FIELDS = frozenset({"elasticPolicy", _SPECS, "runPolicy"})
OPERATOR = kubeflow.OPERATOR
PROBE: Mapping[str, Any] | None = kubeflow.wrong_container(_SPECS, "Worker")
ENDS = kubeflow.ends(KIND)
ADDED: tuple[AddedContainer, ...] = ()
_INJECTED = frozenset(
    {
        "PYTHONUNBUFFERED",
        "PADDLE_JOB_ID",
        "PADDLE_NNODES",
        "PADDLE_MASTER",
        "PADDLE_SERVER_NUM",
        "PADDLE_TRAINER_NUM",
        "POD_IP_DUMMY",
    }
)


# Down.


def groups_of(workers: int, elastic: bool) -> Mapping[str, int]:
    """Workers alone: collective training."""
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
    """What the job object and its pods say. Ranks are those of the workers, then those of the servers."""
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


def _first(layout: Layout) -> str:
    """The member where the others meet."""
    return "worker-0" if layout.group("master") is None else "master-0"


def listeners(layout: Layout) -> list[tuple[str, ...]]:
    """The rendezvous: the first master, else the first worker."""
    return [(_first(layout),)]


def environment(layout: Layout, member: Member, place: Place) -> dict[str, str]:
    """The variables that the operator appends to a member's own; they win over the user's."""
    env = {
        "PYTHONUNBUFFERED": "1",
        "PADDLE_JOB_ID": layout.name,
        "PADDLE_NNODES": str(layout.total),
        "PADDLE_MASTER": str(place[_first(layout)]),
    }
    if layout.group("master") is not None:
        env["PADDLE_SERVER_NUM" if member.group == "master" else "PADDLE_TRAINER_NUM"] = "1"
    return env


def judge(layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
    """The masters decide; without one all workers."""
    deciding = counts.get("master") or counts["worker"]
    return Verdict(running=deciding.active > 0, succeeded=deciding.succeeded >= deciding.replicas)


def message(condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
    """The operator's own words for a condition."""
    return kubeflow.message(KIND, condition, job, is_qualified=not master, role=role, count=count)
