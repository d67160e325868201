"""Lifetime of a local run whose task defers: does it outlive the worker?

It does where workers are processes of one machine or of one long-lived container (LocalExecutor, Celery,
Edge). An executor that starts a container for each task ends it, with every process in it, as soon as the
task defers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from allaboard.job.site import in_pod

KUBERNETES = "KubernetesExecutor"
SINGLE_TASK = (KUBERNETES, "AwsEcsExecutor", "AwsBatchExecutor", "AwsLambdaExecutor")
"""Executors whose workers are containers of one task, by the name of their class."""
MARK = "AIRFLOW_IS_K8S_EXECUTOR_POD"
"""In the environment of every pod that KubernetesExecutor makes, whatever its template says."""
_WORKLOADS = re.compile(r"execute_workload")


def why_run_ends_with_worker(
    executor: str | None, configured: str, environ: Mapping[str, str], first_process: str
) -> str | None:
    """Reason for which a local run ends with the worker of a deferred task, a sentence; None: it does not.

    ``executor``: the task's. ``configured``: ``[core] executor``. In a worker's container that is often not
    the scheduler's (the Helm chart writes LocalExecutor into its pods), and it does not tell which team a DAG
    belongs to. So the container comes first: its ``environ`` and the command line of its ``first_process``.
    """
    if environ.get(MARK):
        return f"{KUBERNETES} runs this task in a pod of its own, which ends when the task defers"
    if _WORKLOADS.search(first_process):
        return "this container runs this task alone, and ends when the task defers"
    name = _class_of(executor, configured)
    # Outside of a pod the name is about other tasks: another team's, or future ones of a DAG that is tested
    # at a terminal. Inside of a pod the mark may be missing.
    if name in SINGLE_TASK and (name != KUBERNETES or in_pod(environ)):
        return f"{name} runs this task in a container of its own, which ends when the task defers"
    return None


def _class_of(executor: str | None, configured: str) -> str:
    """``LocalExecutor,k8s:a.b.KubernetesExecutor`` and the alias ``k8s`` -> ``KubernetesExecutor``."""
    # Executors of teams stand after semicolons: ``LocalExecutor;team=CeleryExecutor,k8s:KubernetesExecutor``.
    configured_names = [
        entry.strip().rpartition("=")[2] for entry in re.split("[,;]", configured) if entry.strip()
    ]
    wanted = executor or (configured_names[0] if configured_names else "")
    # Two teams may use the same alias for different executors; a single-task one is the cautious answer.
    candidates = [
        _name(entry) for entry in configured_names if wanted in (entry, *entry.rpartition(":")[::2])
    ] or [_name(wanted)]
    return next((name for name in candidates if name in SINGLE_TASK), candidates[0])


def _name(executor: str) -> str:
    """Of its class: ``k8s:a.b.KubernetesExecutor`` -> ``KubernetesExecutor``."""
    return executor.rpartition(":")[2].rpartition(".")[2]


def first_process() -> str:
    """The command line of process 1, as far as it can be read."""
    try:
        line = Path("/proc/1/cmdline").read_bytes()
    except OSError:
        return ""
    return line.replace(b"\0", b" ").decode("utf-8", "replace")
