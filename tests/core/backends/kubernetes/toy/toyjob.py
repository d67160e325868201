"""An engine that nobody knows: ToyJob, of an operator, a group and a version of its own. `toy_stories` puts
its one file beside those of allaboard, and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from allaboard.engines import kubeflow
from allaboard.engines.base import AddedContainer, Counts, JobSeen, Operator, Place, Verdict
from allaboard.errors import Problem
from allaboard.layout import Layout, Member

NAME, KIND, API_VERSION = "toyjob", "ToyJob", "toy.example/v1alpha1"
PLURAL = "toyboxes"  # which nobody guesses
FRAMEWORK = "mxnet"
ROLES: Mapping[str, int | None] = {"chief": 1, "worker": None}
HELPERS: frozenset[str] = frozenset()
ELASTIC = False
DEFAULT_RESTART = "never"
CONTAINER = "toy"
JOB_LABEL, ROLE_LABEL, INDEX_LABEL = "toy.example/job", kubeflow.ROLE_LABEL, kubeflow.INDEX_LABEL
NATIVELY: frozenset[str] = frozenset()
REFUSES: Mapping[str, str] = {}
SPECS = "toySpecs"
FIELDS = frozenset({SPECS, "runPolicy"})
OPERATOR = Operator("toy-operator", "Toy Operator", "toy-system", ("toyctl install",))
PROBE: Mapping[str, Any] | None = {SPECS: {}}
ENDS = {"PlayedOut": "succeeded", "Broken": "failed"}
ADDED = (AddedContainer("toy-wait", {"cpu": "1"}, "its chief, who sleeps", "wake the chief"),)

suspension, managed_by = kubeflow.suspension, kubeflow.managed_by
member_of = kubeflow.member_of


def groups_of(workers: int, elastic: bool) -> Mapping[str, int]:
    return {"chief": 1, "worker": workers - 1} if workers > 1 else {"chief": 1}


def listeners(layout: Layout) -> list[tuple[str, ...]]:
    return [("chief-0",)]


def objections(job: Mapping[str, Any]) -> Iterator[Problem]:
    return iter(())


def render(layout: Layout, metadata: Any, templates: Any, gang: Any) -> dict[str, Any]:
    spec = {"runPolicy": kubeflow.run_policy(layout, gang), SPECS: kubeflow.replica_specs(layout, templates)}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": dict(metadata), "spec": spec}


def read(job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> JobSeen:
    return kubeflow.read(job, pods, specs=SPECS, roles=tuple(ROLES), container=CONTAINER)


def needed(job: Mapping[str, Any]) -> int:
    return read(job, ()).total


def added(job: Mapping[str, Any], role: str) -> tuple[AddedContainer, ...]:
    return ADDED if role == "worker" else ()


def pod_name(job: str, member: str) -> str:
    return f"{job}-toy-{member}"


def environment(layout: Layout, member: Member, place: Place) -> dict[str, str]:
    return {"TOY_RANK": str(member.rank)}


def judge(layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
    """All members decide together."""
    every = counts.values()
    return Verdict(
        running=any(one.active for one in every),
        succeeded=all(one.succeeded == one.replicas for one in every),
    )


def message(condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
    return f"toy {job}: {condition.lower()}"
