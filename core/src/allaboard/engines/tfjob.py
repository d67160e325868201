"""TFJob, kubeflow.org/v1: its object and status, the TF_CONFIG that its operator injects, and its success
rules.

Read from the Training Operator, release 1.9.4: pkg/controller.v1/tensorflow (tensorflow.go,
tfjob_controller.go), pkg/webhooks/tensorflow. ``successPolicy`` and ``enableDynamicWorker`` of a job's
``engine_spec`` count on one machine, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allaboard.engines.base import Counts, Place, Verdict
from allaboard.engines.kubeflow import KubeflowEngine, replica_type
from allaboard.errors import Problem
from allaboard.job.training_job import member_count

if TYPE_CHECKING:
    from allaboard.runs.layout import Layout, Member


class TFJob(KubeflowEngine):
    """`allaboard.engines.Engine` for TFJobs."""

    KIND = "TFJob"
    FRAMEWORKS = ("tensorflow",)
    ROLES: Mapping[str, int | None] = {"chief": 1, "master": 1, "worker": None, "ps": None, "evaluator": None}
    HELPERS = frozenset({"ps", "evaluator"})
    CONTAINER = "tensorflow"
    SPECS = "tfReplicaSpecs"
    OWN_FIELDS = frozenset({"enableDynamicWorker", "successPolicy"})
    PLAYED = frozenset({"successPolicy"})
    NAMES_NAMESPACE = True
    LOST_POD_FAILS = True
    INJECTED = frozenset({"TF_CONFIG"})

    def objections(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        """Problems of a valid job's fields that this engine cannot do as they are written."""
        groups = job.get("groups") or {}
        if "chief" in groups and "master" in groups:
            yield Problem(
                "groups", f"{self.KIND} takes a chief or a master, which are two words for one role"
            )
        if groups and not {"chief", "master", "worker"} & {*groups}:
            yield Problem(
                "groups", f"a {self.KIND} without a chief, a master and workers never succeeds; add one"
            )
        if groups and member_count(job) == 1:
            message = "the operator sets no TF_CONFIG in a job of one member"
            yield Problem("groups", message, severity="warning")
        yield from super().objections(job)

    def listeners(self, layout: Layout) -> list[tuple[str, ...]]:
        """Every member is a server of the cluster."""
        return [(member.name,) for member in layout.members]

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
        """TF_CONFIG, unless the job has one member alone. Keys are sorted, as the operator's."""
        if layout.total == 1:
            return {}
        task = {"type": member.group, "index": member.index}
        config: dict[str, Any]
        if layout.engine_spec.get("enableDynamicWorker"):
            config = {"cluster": _own_view(layout, member, place), "task": task}
        else:
            config = {"cluster": _servers(layout, place), "task": task, "environment": "cloud"}
        return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """The chief, or master, decides. Without one worker 0 does, or all workers under ``AllWorkers``.
        Servers alone never succeed.
        """
        chief = counts.get("chief") or counts.get("master")
        if chief is not None:
            return Verdict(running=chief.active > 0, succeeded=chief.succeeded >= chief.replicas)
        workers = counts.get("worker", Counts(0))
        everyone = workers.replicas > 0 and workers.succeeded >= workers.replicas
        first = workers.first_succeeded and layout.engine_spec.get("successPolicy") != "AllWorkers"
        return Verdict(running=workers.active > 0, succeeded=everyone or first)

    def message(self, condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
        """The operator's own words for a condition."""
        if condition == "Failed":
            who = replica_type(role)
            return f"{self.KIND} default/{job} has failed because {count} {who} replica(s) failed."
        return super().message(condition, job, master=master, role=role, count=count)


def _servers(layout: Layout, place: Place) -> dict[str, list[str]]:
    cluster: dict[str, list[str]] = {group.role: [] for group in layout.groups}
    for member in layout.members:
        cluster[member.group].append(str(place[member.name]))
    return dict(sorted(cluster.items()))


def _own_view(layout: Layout, member: Member, place: Place) -> dict[str, Any]:
    """Cluster spec of a member of a gang whose workers come and go: itself and, for a worker, all servers."""
    own = str(place[member.name])
    if member.group == "worker":
        return {"worker": {str(member.index): own}, "ps": _servers(layout, place).get("ps", [])}
    return {"worker": {}, "ps": [own] if member.group == "ps" else []}


ENGINE = TFJob()
