"""XGBoostJob, kubeflow.org/v1: its object and status, the environment that its operator injects, and its
success rules.

Read from the Training Operator, release 1.9.4: pkg/controller.v1/xgboost (xgboost.go,
xgboostjob_controller.go), pkg/webhooks/xgboost. It injects no ``DMLC_*``: the master's script starts the
tracker at MASTER_ADDR, and all join it. WORKER_ADDRS is for LightGBM, whose members listen themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allaboard.engines.base import Counts, Place, Verdict
from allaboard.engines.kubeflow import KubeflowEngine
from allaboard.errors import Problem

if TYPE_CHECKING:
    from allaboard.runs.layout import Layout, Member


class XGBoostJob(KubeflowEngine):
    """`allaboard.engines.Engine` for XGBoostJobs."""

    KIND = "XGBoostJob"
    FRAMEWORKS = ("xgboost",)
    ROLES: Mapping[str, int | None] = {"master": 1, "worker": None}
    CONTAINER = "xgboost"
    SPECS = "xgbReplicaSpecs"
    PROBE_ROLE = "Master"
    NAMES_NAMESPACE = False
    LOST_POD_FAILS = True
    INJECTED = frozenset(
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

    def default_groups(self, workers: int, elastic: bool) -> Mapping[str, int]:
        """A master and the rest workers."""
        return {"master": 1, "worker": workers - 1} if workers > 1 else {"master": 1}

    def objections(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        """Problems of a valid job's fields that this engine cannot do as they are written."""
        if job.get("groups") and "master" not in job["groups"]:
            yield Problem("groups", f"{self.KIND} needs a master, which leads the others; add master: 1")
        yield from super().objections(job)

    def listeners(self, layout: Layout) -> list[tuple[str, ...]]:
        """The master's tracker; the workers, all at one port."""
        workers = tuple(member.name for member in layout.members if member.group == "worker")
        return [("master-0",), workers] if workers else [("master-0",)]

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
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

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """The master decides."""
        master = counts["master"]
        return Verdict(running=master.active > 0, succeeded=master.succeeded >= master.replicas)


ENGINE = XGBoostJob()
