"""B2: submitting jobs to a real API server, beside what a user would pick today.

(a) Whole processes, from the start of Python until the API server has taken the job; each does what its user
would write. (b) One process: how fast jobs are checked and rendered, then submitted with 16 under way, beside
a loop that does no more than POST the same objects: the bound that the API server sets. What is told beside:
CPU of the client for each job, and requests. A launch of ours is more than one POST: a record of the run
first, by which it is exactly one, whoever asks and dies.

No operator runs. ``ALLABOARD_BENCH_JOBS`` sets the number of jobs of (b) (300).
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.client.resources import NAMESPACES
from allaboard.runs.observation import Owner
from allaboard.testing.objects import PYTORCHJOBS
from tests.bench.measure import Figures, alternate, table
from tests.bench.monitoring import counting, quiet
from tests.cluster.build import Unavailable
from tests.cluster.plane import ControlPlane, PlaneError

ROOT = Path(__file__).resolve().parents[2]
JOBS = int(os.environ.get("ALLABOARD_BENCH_JOBS", "300"))
UNDER_WAY = 16
NAMESPACE = "bench"
OURS = "allaboard run --detach"

JOB = """
name: train
image: registry.example/team/train:2026-11-21
command: [torchrun, train.py, --epochs, "3"]
workers: 3
resources: {cpu: 4, memory: 16Gi, gpu: 1}
environment: {SETTING: value}
"""

# What a user of each would write. Every one ends when the API server has answered.
KUBEFLOW_TRAINING = """
import sys, uuid
from kubeflow.training import TrainingClient
from kubeflow.training import KubeflowOrgV1PyTorchJob as Job, KubeflowOrgV1PyTorchJobSpec as Spec
from kubeflow.training import KubeflowOrgV1ReplicaSpec as Replica, KubeflowOrgV1RunPolicy as Policy
from kubernetes.client import V1Container, V1ObjectMeta, V1PodSpec, V1PodTemplateSpec, V1ResourceRequirements
limits = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
container = V1Container(
    name="pytorch", image="registry.example/team/train:2026-11-21", command=["torchrun", "train.py"],
    resources=V1ResourceRequirements(limits=limits),
)
template = V1PodTemplateSpec(spec=V1PodSpec(containers=[container]))
roles = {"Master": 1, "Worker": 2}
specs = {r: Replica(replicas=n, restart_policy="OnFailure", template=template) for r, n in roles.items()}
job = Job(
    api_version="kubeflow.org/v1", kind="PyTorchJob",
    metadata=V1ObjectMeta(name=f"train-{uuid.uuid4().hex[:8]}"),
    spec=Spec(run_policy=Policy(clean_pod_policy="Running"), pytorch_replica_specs=specs),
)
TrainingClient(config_file=sys.argv[1], namespace=sys.argv[2]).create_job(job)
"""
KUBEFLOW_SDK = """
import sys
from kubeflow.trainer import CustomTrainerContainer, TrainerClient
from kubeflow.common.types import KubernetesBackendConfig
client = TrainerClient(KubernetesBackendConfig(config_file=sys.argv[1], namespace=sys.argv[2]))
trainer = CustomTrainerContainer(image="registry.example/team/train:2026-11-21", num_nodes=3,
                                 resources_per_node={"cpu": 4, "memory": "16Gi", "gpu": 1})
client.train(runtime="torch-distributed", trainer=trainer)
"""
KUBERNETES = """
import sys, json, uuid
from kubernetes import client, config
config.load_kube_config(sys.argv[1])
job = json.loads(sys.stdin.read())
job["metadata"]["name"] = f"train-{uuid.uuid4().hex[:8]}"
client.CustomObjectsApi().create_namespaced_custom_object("kubeflow.org", "v1", sys.argv[2], "pytorchjobs",
job)
"""


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="allaboard-bench-") as name:
        try:
            with ControlPlane(Path(name) / "plane", ["training-operator", "trainer"]) as plane:
                quiet(plane)
                with Access(str(plane.kubeconfig), environ={}).api(Patience(budget=120)) as api:
                    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
                    api.create(NAMESPACES, body)
                processes(plane, Path(name), rounds)
                inside(plane, Path(name), max(3, rounds // 2))
        except (PlaneError, Unavailable) as reason:
            print(f"\nB2 submission: left out, for there is no control plane here: {reason}")


# --- (a) whole processes ------------------------------------------------------------------------------------


def processes(plane: ControlPlane, folder: Path, rounds: int) -> None:
    job = folder / "job.yaml"
    job.write_text(JOB)
    kubeconfig = str(plane.kubeconfig)
    rendered = render(0)[-1]

    def script(text: str, data: str = "") -> Callable[[], float]:
        return lambda: timed([sys.executable, "-c", text, kubeconfig, NAMESPACE], folder, data)

    def ours(*words: str) -> Callable[[], float]:
        return lambda: timed([sys.executable, "-m", "allaboard", *words], folder)

    where = ["--kubeconfig", kubeconfig, "--namespace", NAMESPACE]
    cpu_of: dict[str, list[float]] = {}

    def noting(name: str, do: Callable[[], float]) -> Callable[[], float]:
        def run() -> float:
            before = children_cpu()
            seconds = do()
            cpu_of.setdefault(name, []).append(children_cpu() - before)
            return seconds

        return run

    contenders = {
        "python (nothing)": lambda: timed([sys.executable, "-c", "pass"], folder),
        "allaboard --help": ours("--help"),
        "allaboard check job.yaml": ours("check", str(job)),
        "allaboard render job.yaml": ours("render", str(job)),
        OURS: ours("run", str(job), "--detach", *where),
        "kubernetes: one POST": script(KUBERNETES, json.dumps(rendered)),
        "kubeflow-training: create_job": script(KUBEFLOW_TRAINING),
        "kubeflow SDK: train": script(KUBEFLOW_SDK),
    }
    figures = alternate({name: noting(name, do) for name, do in contenders.items()}, rounds)
    table("B2 (a) submission by whole processes", figures, OURS)
    # Wall time tells what a person waits; on a busy machine CPU tells more about who makes them wait.
    used = {name: Figures(name, tuple(cpu_of[name][-rounds:])) for name in figures}
    table("B2 (a) CPU of the same processes", used, OURS)
    for peer, floor, moonshot in (("kubeflow SDK: train", 2, 5), ("kubeflow-training: create_job", None, 2)):
        wall, cpu = figures[peer].median / figures[OURS].median, used[peer].median / used[OURS].median
        wanted = (f"floor {floor}x, " if floor else "") + f"moonshot {moonshot}x"
        print(f"  accepted {wall:.1f}x sooner, with {cpu:.1f}x less CPU, than {peer} ({wanted})")


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(words: list[str], folder: Path, data: str = "") -> float:
    environ = {**os.environ, "ALLABOARD_HOME": str(folder / "home"), "HOME": str(folder)}
    before = time.perf_counter()
    done = subprocess.run(
        words, input=data, capture_output=True, text=True, env=environ, cwd=ROOT, check=False
    )
    seconds = time.perf_counter() - before
    if done.returncode:
        raise RuntimeError(
            f"{words[1:4]} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}"
        )
    return seconds


# --- (b) one process ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """``seconds`` for all jobs; ``cpu``: of this process, for all; ``requests``: for one."""

    seconds: float
    cpu: float
    requests: float = 0.0


def plan_of(number: int) -> Any:
    """A job with a name of its own, read and checked as from a file."""
    from allaboard.backends.base import Plan
    from allaboard.checking.job import require_valid
    from allaboard.job.loader import parse
    from allaboard.job.training_job import TrainingJob

    fields = {**parse(JOB, "job.yaml"), "name": f"train-{number}"}
    return Plan(require_valid(TrainingJob(**fields)), f"bench/{secrets.token_hex(4)}")


def render(number: int) -> tuple[dict[str, Any], ...]:
    from allaboard.backends.kubernetes.lifecycle.prepare import prepare_attempt
    from allaboard.job.site import site_of
    from allaboard.render.cluster_facts import assumed_facts

    return prepare_attempt(
        plan_of(number), 1, 1, site_of({}, store="s3://bench/store"), assumed_facts({}, NAMESPACE), {}
    ).manifests


def inside(plane: ControlPlane, folder: Path, rounds: int) -> None:
    specs = 500
    found: dict[str, list[Rate]] = {"read, check, render": []}
    for n in range(rounds + 1):
        rate = measured(lambda: [render(number) for number in range(specs)])
        if n:
            found["read, check, render"].append(rate)
    with counting(plane.kubeconfig, folder / "counted") as proxy:
        for _ in range(rounds):
            for name, how in {"POST of the job alone": posting, "allaboard": launching}.items():
                print(".", end="", flush=True, file=sys.stderr)
                proxy.request("GET", "/-/reset")
                rate = measured(lambda how=how: how(folder / "counted"))
                asked = sum(proxy.request("GET", "/-/counts")["requests"].values()) / JOBS
                found.setdefault(name, []).append(Rate(rate.seconds, rate.cpu, asked))
    print(f"\n\nB2 (b) one process, {UNDER_WAY} under way (rounds: {rounds}; medians)")
    print(f"  {'':34} {'jobs/s':>8} {'CPU/job':>9} {'requests/job':>13}")
    middle = {}
    for name, rates in found.items():
        jobs = specs if name.startswith("read") else JOBS
        per_second = statistics.median(jobs / rate.seconds for rate in rates)
        cpu = statistics.median(rate.cpu / jobs for rate in rates)
        middle[name] = (per_second, cpu)
        asked = statistics.median(rate.requests for rate in rates)
        print(f"  {name:34} {per_second:8.0f} {cpu * 1000:7.2f}ms {asked:13.2f}")
    share = middle["allaboard"][0] / middle["POST of the job alone"][0]
    print(
        f"  launches beside bare POSTs: {share:.2f}x (moonshot 0.9x); CPU per job: floor 20 ms, moonshot 5 ms"
    )


def measured(do: Callable[[], object]) -> Rate:
    used = resource.getrusage(resource.RUSAGE_SELF)
    before, wall = used.ru_utime + used.ru_stime, time.perf_counter()
    do()
    wall = time.perf_counter() - wall
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Rate(wall, used.ru_utime + used.ru_stime - before)


def posting(kubeconfig: Path) -> None:
    """No more than one request for each job, by the fastest client there is here."""
    jobs = [render(n)[-1] for n in range(JOBS)]
    with Access(str(kubeconfig), namespace=NAMESPACE, environ={}).api() as api:
        side_by_side(lambda job: api.create(PYTORCHJOBS, job), jobs)


def launching(kubeconfig: Path) -> None:
    """Launches: exactly once, whoever dies."""
    from allaboard.job.site import site_of
    from allaboard.render.cluster_facts import assumed_facts

    plans = [plan_of(n) for n in range(JOBS)]
    with Access(str(kubeconfig), namespace=NAMESPACE, environ={}).api() as api:
        backend = KubernetesBackend(
            api, site=site_of({}, store="s3://bench/store"), facts=assumed_facts({}, NAMESPACE), environ={}
        )
        owner = Owner("bench", phase="detached", kind="detached")
        side_by_side(lambda plan: backend.launch(plan, owner), plans)


def side_by_side(do: Callable[[Any], object], what: list[Any]) -> None:
    with ThreadPoolExecutor(UNDER_WAY) as pool:
        for _ in pool.map(do, what):
            pass
