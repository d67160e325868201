"""An engine that nobody knows: ToyJob, of an operator, a group and a version of its own. `toy_stories` puts
its one file beside those of allaboard, and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from allaboard.engines.base import AddedContainer, Counts, Operator, Place, Verdict
from allaboard.engines.kubeflow import KubeflowEngine
from allaboard.errors import Problem
from allaboard.runs.layout import Layout, Member


class ToyJob(KubeflowEngine):
    KIND, API_VERSION = "ToyJob", "toy.example/v1alpha1"
    FRAMEWORKS = ("mxnet",)
    PREFERENCE = -1  # before whatever else runs its framework
    ROLES: Mapping[str, int | None] = {"chief": 1, "worker": None}
    CONTAINER = "toy"
    SPECS = "toySpecs"
    INJECTED = frozenset({"TOY_RANK"})
    JOB_LABEL = "toy.example/job"
    NATIVELY: frozenset[str] = frozenset()
    OPERATOR = Operator("toy-operator", "Toy Operator", "toy-system", ("toyctl install",))
    ADDED = (AddedContainer("toy-wait", {"cpu": "1"}, "its chief, who sleeps", "wake the chief"),)

    def __init__(self) -> None:
        super().__init__()
        self.PLURAL = "toyboxes"  # which nobody guesses
        self.PROBE = {self.SPECS: {}}
        self.ENDS = {"PlayedOut": "succeeded", "Broken": "failed"}

    def default_groups(self, workers: int, elastic: bool) -> Mapping[str, int]:
        return {"chief": 1, "worker": workers - 1} if workers > 1 else {"chief": 1}

    def objections(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        return iter(())

    def added(self, job: Mapping[str, Any], role: str) -> tuple[AddedContainer, ...]:
        return self.ADDED if role == "worker" else ()

    def pod_name(self, job: str, member: str) -> str:
        return f"{job}-toy-{member}"

    def listeners(self, layout: Layout) -> list[tuple[str, ...]]:
        return [("chief-0",)]

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
        return {"TOY_RANK": str(member.rank)}

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """All members decide together."""
        every = counts.values()
        return Verdict(
            running=any(one.active for one in every),
            succeeded=all(one.succeeded == one.replicas for one in every),
        )

    def message(self, condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
        return f"toy {job}: {condition.lower()}"


ENGINE = ToyJob()
