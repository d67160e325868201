"""Whether a local run outlives the worker of a task that defers.

It does where workers are processes of one machine or of one long-lived container (LocalExecutor, Celery,
Edge). An executor that starts a container for each task ends it, with every process in it, as soon as the
task defers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

OF_ONE_TASK = ("KubernetesExecutor", "AwsEcsExecutor", "AwsBatchExecutor", "AwsLambdaExecutor")
"""Executors whose workers are containers of one task, by the name of their class."""
_WORKLOADS = re.compile(r"execute_workload|airflow\s+tasks\s+run\b")


def why_it_would_not_outlive(
    executor: str | None, configured: str, environ: Mapping[str, str], first_process: str
) -> str | None:
    """In a sentence why a local run would end with the worker of a deferred task; None where it would not.

    ``executor``: what the task says. ``configured``: ``[core] executor``, which in a worker's container is
    often another one than the scheduler's, so what is seen of the container counts as well: ``environ`` and
    the command line of its ``first_process``.
    """
    name = _class_of(executor, configured)
    if name in OF_ONE_TASK:
        return f"{name} runs this task in a container of its own, which ends when the task defers"
    if environ.get("AIRFLOW_IS_K8S_EXECUTOR_POD"):
        return "KubernetesExecutor runs this task in a pod of its own, which ends when the task defers"
    if _WORKLOADS.search(first_process):
        return "this container runs this task alone, and ends when the task defers"
    return None


def _class_of(executor: str | None, configured: str) -> str:
    """``LocalExecutor,k8s:a.b.KubernetesExecutor`` and the alias ``k8s`` -> ``KubernetesExecutor``."""
    # Executors of teams stand after semicolons: ``LocalExecutor;team=CeleryExecutor``.
    known = [one.strip().rpartition("=")[2] for one in re.split("[,;]", configured) if one.strip()]
    wanted = executor or (known[0] if known else "")
    for one in known:
        alias, _, path = one.rpartition(":")
        if wanted in (one, alias, path):
            wanted = path
    return wanted.rpartition(":")[2].rpartition(".")[2]


def first_process() -> str:
    """The command line of process 1, as far as it can be read."""
    try:
        words = Path("/proc/1/cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode("utf-8", "replace")
