"""An executor that runs every task as KubernetesExecutor does, without a cluster: by the command and in the
environment of the pod that Airflow's Kubernetes provider would make, and when the task's process has ended,
so has everything that it started.

Started as a program it is that container: ``python pods.py COMMAND...``
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.executors.base_executor import BaseExecutor

PR_SET_CHILD_SUBREAPER = 36


class PodExecutor(BaseExecutor):
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pods: dict[Any, subprocess.Popen[bytes]] = {}

    def _process_workloads(self, workload_items: Sequence[Any]) -> None:
        for workload in workload_items:
            del self.queued_tasks[workload.key]
            self.running.add(workload.key)
            command, environ = pod_of(workload)
            self.pods[workload.key] = subprocess.Popen(
                [sys.executable, __file__, *command], env={**os.environ, **environ}
            )

    def sync(self) -> None:
        for key, pod in [*self.pods.items()]:
            if (code := pod.poll()) is not None:
                del self.pods[key]
                (self.fail if code else self.success)(key)

    def end(self) -> None:
        self.terminate()

    def terminate(self) -> None:
        for pod in self.pods.values():
            pod.terminate()


def pod_of(workload: Any) -> tuple[list[str], dict[str, str]]:
    """Command of the container that would run this task, and what its environment has besides the
    scheduler's. The template of its pods names the same executors as that: in one that does not, Airflow
    refuses a DAG whose task names one.
    """
    from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator, workload_to_command_args
    from kubernetes.client import V1Container, V1Pod, V1PodSpec

    template = V1Pod(spec=V1PodSpec(containers=[V1Container(name="base")]))
    ti = workload.ti
    pod = PodGenerator.construct_pod(
        dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, try_number=ti.try_number, date=None,
        pod_id="pod", kube_image="airflow", args=workload_to_command_args(workload), pod_override_object=None,
        base_worker_pod=template, namespace="default", scheduler_job_id="1",
    )  # fmt: skip
    (container,) = pod.spec.containers
    return container.args, {variable.name: variable.value for variable in container.env}


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    task = subprocess.Popen([sys.executable, *sys.argv[2:]])
    signal.signal(signal.SIGTERM, lambda *_: task.terminate())
    code = task.wait()
    # Whoever loses its parent becomes our child: at last there is none running.
    while running := children():
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    sys.exit(code)


def children() -> list[int]:
    return [int(pid) for pid in Path("/proc/thread-self/children").read_text().split()]


if __name__ == "__main__":
    main()
