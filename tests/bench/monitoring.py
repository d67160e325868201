"""B1: following many jobs on a real API server, beside what a user would pick today.

All contenders are processes that follow the same PyTorchJobs through a counting proxy. While they do, another
process ends a fifth of the jobs at random moments and notes when the API server had answered each time. What
is told: requests and bytes (of HTTP, without TLS: that is kinder to whoever opens a connection for each
look), CPU of the contender and of the API server, memory for each job, how late an end was seen, and how many
were not seen.

Beside that what the whole follower of a run costs (`following`), and the same with progress read.

No operator runs: the jobs are of its kind, as large as real ones, and their status is written by the
benchmark. ``ALLABOARD_BENCH_JOBS=10000`` sets another number of jobs (1,000),
``ALLABOARD_BENCH_WAYS=allaboard,airflow`` which contenders take part.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from allaboard.backends.kubernetes.client.errors import Missing
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.client.resources import NAMESPACES
from allaboard.testing.objects import PYTORCHJOBS
from tests.bench import following, waiters
from tests.cluster.api import Api, until
from tests.cluster.build import Unavailable
from tests.cluster.plane import ControlPlane, PlaneError

ROOT = Path(__file__).resolve().parents[2]
JOBS = int(os.environ.get("ALLABOARD_BENCH_JOBS", "1000"))
ENDING = 60.0
"""Seconds in which jobs end; the slowest poller is then given its interval once more."""
GRACE = 17.0
PART = 5
"""One in so many jobs ends."""
WAYS = {
    "allaboard": "allaboard's hub",
    "airflow": "Airflow's hook, a 10 s poll for each job",
    "kubeflow": "TrainingClient.get_job, a 15 s poll",
    "watches": "kubernetes.watch.Watch for each job",
}
CUT = "allaboard, 20 cuts and a 410"
WHOLE = {
    "runs": "allaboard's whole follower of runs",
    "progress": "the same, reading progress every 60 s",
    "listening": "the same, listening to workers, too",
}
TITLES = {**WAYS, **WHOLE}


@dataclass
class Measured:
    """One contender's run."""

    requests: dict[str, int]
    bytes: dict[str, int]
    connections: int
    cpu: float
    server_cpu: float
    per_job: float
    late: list[float] = field(default_factory=list)
    missed: int = 0

    def watching(self, counted: Mapping[str, int]) -> int:
        """Without the one look at each job whose row said that it had ended."""
        return sum(n for words, n in counted.items() if not words.startswith("get "))


def main(rounds: int) -> None:
    waiters.main()
    ways = [w for w in os.environ.get("ALLABOARD_BENCH_WAYS", ",".join(WAYS)).split(",") if w in WAYS]
    with tempfile.TemporaryDirectory(prefix="allaboard-bench-") as name:
        try:
            with ControlPlane(Path(name) / "plane", ["training-operator"]) as plane:
                found = measure(plane, Path(name), ways, max(1, rounds // 7))
                if "allaboard" in ways:
                    with following.kubelet(plane, Path(name)):
                        for way in WHOLE:
                            found[way] = [whole(plane, Path(name), way)]
        except (PlaneError, Unavailable) as reason:
            print(f"\nB1 monitoring: left out, for there is no control plane here: {reason}")
            return
    tell(found)


def measure(plane: ControlPlane, folder: Path, ways: Sequence[str], rounds: int) -> dict[str, list[Measured]]:
    namespace = "bench"
    quiet(plane)
    with Access(str(plane.kubeconfig), environ={}).api(Patience(budget=120)) as api:
        api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    names = [f"job-{secrets.token_hex(4)}" for _ in range(JOBS)]
    (folder / "names").write_text("\n".join(names))
    began = time.monotonic()
    write(plane, namespace, [(name, "create", 0.0) for name in names])
    print(f"\nB1 monitoring: {JOBS} jobs made in {time.monotonic() - began:.0f} s", file=sys.stderr)
    found: dict[str, list[Measured]] = {}
    for n in range(rounds):
        for way in [*ways, *(["cut"] if n == 0 and "allaboard" in ways else [])]:
            print(f"  {WAYS.get(way, CUT)} ...", file=sys.stderr, flush=True)
            found.setdefault(way, []).append(one(plane, folder, namespace, names, way))
            write(plane, namespace, [(name, "Running", 0.0) for name in names])
    return found


def whole(plane: ControlPlane, folder: Path, way: str) -> Measured:
    """As `one`, for runs that allaboard launched: their ends are written down, so each needs runs of its
    own.
    """
    with Access(str(plane.kubeconfig), environ={}).api(Patience(budget=120)) as api:
        api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": way}})
    members = ("master-0", "worker-0") if way == "listening" else ("master-0",)
    runs = [handle.run for handle in following.launch(plane, way, JOBS, members)]
    write(plane, way, [(name, "Running", 0.0) for name in runs])
    (folder / "names").write_text("\n".join(runs))
    print(f"  {WHOLE[way]} ...", file=sys.stderr, flush=True)
    return one(plane, folder, way, runs, way)


def quiet(plane: ControlPlane) -> None:
    """Nobody but the API server and its store works here."""
    for component in ("training-operator", "kube-scheduler", "kube-controller-manager"):
        plane.halt(component)
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        for hook in plane.api.list("admissionregistration.k8s.io/v1", kind):
            plane.api.delete("admissionregistration.k8s.io/v1", kind, hook["metadata"]["name"])


def one(plane: ControlPlane, folder: Path, namespace: str, names: Sequence[str], way: str) -> Measured:
    """One contender, from the first look to the last."""
    chance = random.Random(way)
    ending = [
        (name, "Succeeded", chance.random() * ENDING) for name in chance.sample(names, len(names) // PART)
    ]
    with counting(plane.kubeconfig, folder / f"{way}.kubeconfig") as proxy:
        command = [sys.executable, "-m", "tests.bench.monitors", "allaboard" if way == "cut" else way]
        errors = (folder / f"{way}.errors").open("w+")
        contender = subprocess.Popen(
            [*command, str(folder / f"{way}.kubeconfig"), namespace, str(folder / "names")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, "AIRFLOW_HOME": str(folder), "HOME": str(folder)},
        )
        try:
            assert contender.stdin is not None and contender.stdout is not None
            if contender.stdout.readline() != "ready\n":
                raise RuntimeError(f"{way} did not begin to follow: {tail(errors)}")
            proxy.request("GET", "/-/reset")
            server = server_cpu(plane)
            say(contender, "go")
            stop = threading.Event()
            if way == "cut":
                threading.Thread(target=cutting, args=(proxy, stop), daemon=True).start()
            answered = write(plane, namespace, ending)
            time.sleep(GRACE)
            stop.set()
            say(contender, "stop")
            line = contender.stdout.readline()
            if not line:
                raise RuntimeError(f"{way} came to an end of its own: {tail(errors)}")
            told = json.loads(line)
            server = server_cpu(plane) - server
            counts = proxy.request("GET", "/-/counts")
        finally:
            contender.kill()
            contender.wait()
    late = [told["ends"][name] - answered[name] for name in answered if name in told["ends"]]
    return Measured(
        counts["requests"],
        counts["bytes"],
        counts["connections"],
        told["cpu"],
        server,
        (told["following"] - told["before"]) / len(names),
        sorted(late),
        len(answered) - len(late),
    )


def tail(errors: TextIO) -> str:
    errors.seek(0)
    return errors.read()[-2000:]


def say(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def cutting(proxy: Api, stop: threading.Event) -> None:
    """Twenty times all connections are cut, one of them followed by a 410."""
    for n in range(20):
        if stop.wait(ENDING / 21):
            return
        other = Api.from_kubeconfig(proxy_file[proxy.server])
        other.request("GET", "/-/too-old" if n == 10 else "/-/cut")
        if n == 10:
            other.request("GET", "/-/cut")
        other.close()


proxy_file: dict[str, Path] = {}


@contextmanager
def counting(kubeconfig: Path, written: Path) -> Iterator[Api]:
    """A counting proxy, a process of its own; a client to ask it."""
    command = [sys.executable, "-m", "tests.cluster.proxy", str(kubeconfig), "--write", str(written)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        until("the proxy", written.exists, timeout=60)
        api = Api.from_kubeconfig(written)
        proxy_file[api.server] = written
        yield api
        api.close()
    finally:
        process.terminate()
        process.wait()
        written.unlink(missing_ok=True)


def write(plane: ControlPlane, namespace: str, what: Sequence[tuple[str, str, float]]) -> dict[str, float]:
    """(name, state, seconds from now): create the job, or write its state. When each was answered."""
    access = Access(str(plane.kubeconfig), namespace=namespace, environ={})
    answered: dict[str, float] = {}
    began = time.monotonic()
    with access.api(Patience(budget=120)) as api, ThreadPoolExecutor(16) as pool:

        def do(name: str, state: str) -> None:
            if state == "create":
                try:
                    api.get(PYTORCHJOBS, name)
                except Missing:
                    api.create(PYTORCHJOBS, a_job(name))
            api.patch(PYTORCHJOBS, name, status("Running" if state == "create" else state), sub="status")
            answered[name] = time.monotonic()

        done = []
        for name, state, after in sorted(what, key=lambda item: item[2]):
            time.sleep(max(0.0, began + after - time.monotonic()))
            done.append(pool.submit(do, name, state))
        for one in done:
            one.result()
    return answered


def a_job(name: str) -> dict[str, Any]:
    """Of 1 master and 3 workers with a usual pod template; with its managedFields some 6 KB, as real ones."""
    container = {
        "name": "pytorch",
        "image": "registry.example/team/train:2026-11-21",
        "command": ["torchrun", "train.py", "--epochs", "3", "--data", "/data/imagenet"],
        "env": [{"name": f"SETTING_{n}", "value": f"value-{n}"} for n in range(20)],
        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "8", "memory": "64Gi"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    template = {"spec": {"containers": [container], "volumes": volumes}}
    roles = {"Master": 1, "Worker": 3}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": "allaboard", "allaboard.io/run": name},
        },
        "spec": {
            "pytorchReplicaSpecs": {
                role: {"replicas": count, "restartPolicy": "OnFailure", "template": template}
                for role, count in roles.items()
            }
        },
    }


def status(state: str) -> dict[str, Any]:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    words = ["Created", "Running", *([state] if state != "Running" else [])]
    return {
        "status": {
            "conditions": [
                {
                    "type": word,
                    "status": "True",
                    "reason": f"PyTorchJob{word}",
                    "message": f"PyTorchJob is {word}.",
                    "lastUpdateTime": at,
                    "lastTransitionTime": at,
                }
                for word in words
            ],
            "replicaStatuses": {"Master": {"active": 1}, "Worker": {"active": 3}},
        }
    }


def server_cpu(plane: ControlPlane) -> float:
    """CPU seconds of the API server so far."""
    return process_cpu(plane.pid("kube-apiserver"))


def process_cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tell(found: dict[str, list[Measured]]) -> None:
    seconds = ENDING + GRACE
    print(
        f"\nB1 monitoring: {JOBS} jobs, {JOBS // PART} of which end within {ENDING:.0f} s; "
        f"looked at for {seconds:.0f} s (rounds: {max(map(len, found.values()))}; medians)"
    )
    print(
        f"  {'':42} {'requests':>8} {'conns':>6} {'KB':>8} {'CPU s':>7} {'server':>7} {'B/job':>7} "
        f"{'mean':>8} {'p50':>8} {'p99':>8} {'worst':>8} {'missed':>6}"
    )
    for way, runs in found.items():
        m = middle(runs)
        print(
            f"  {TITLES.get(way, CUT):42} {m['requests']:8.0f} {m['connections']:6.0f} "
            f"{m['bytes'] / 1e3:8.0f} {m['cpu']:7.2f} {m['server']:7.2f} {m['per_job']:7.0f} "
            f"{m['mean'] * 1e3:6.0f}ms {m['p50'] * 1e3:6.0f}ms {m['p99'] * 1e3:6.0f}ms "
            f"{m['worst'] * 1e3:6.0f}ms {m['missed']:6.0f}"
        )
    if not {"allaboard", "airflow"} <= set(found):
        return
    ours, theirs = middle(found["allaboard"]), middle(found["airflow"])
    share = theirs["requests"] / (JOBS * (ENDING + GRACE) / 10)
    print("  how many times better than the 10 s poll (floor, moonshot):")
    if share < 0.9:
        print(
            f"    (it came to {share:.0%} of its looks, for the machine was busy: it should have cost more)"
        )
    rows = [
        ("requests to watch", theirs["requests"] / max(1.0, ours["watch requests"]), 100, 1000),
        ("requests, with the GET at each end", theirs["requests"] / ours["requests"], None, None),
        ("bytes to watch", theirs["bytes"] / ours["watch bytes"], None, 500),
        ("bytes, with the GET at each end", theirs["bytes"] / ours["bytes"], None, None),
        ("CPU of the client", theirs["cpu"] / ours["cpu"], 20, 100),
        ("CPU of the API server", theirs["server"] / ours["server"], None, None),
        ("seen sooner, mean", theirs["mean"] / ours["mean"], 50, 500),
        ("seen sooner, worst", theirs["worst"] / ours["worst"], None, 1000),
    ]
    for what, ratio, floor, moonshot in rows:
        wanted = ", ".join(
            f"{name} {value}x {'reached' if ratio >= value else 'not reached'}"
            for name, value in (("floor", floor), ("moonshot", moonshot))
            if value
        )
        print(f"    {what:36} {ratio:9.1f}x  {wanted}")


def middle(runs: Sequence[Measured]) -> dict[str, float]:
    """Medians over rounds."""

    def of(value: Any) -> float:
        return float(statistics.median(value(run) for run in runs))

    def late(share: float) -> float:
        return of(
            lambda run: run.late[min(len(run.late) - 1, int(share * len(run.late)))] if run.late else 0.0
        )

    return {
        "requests": of(lambda run: sum(run.requests.values())),
        "watch requests": of(lambda run: run.watching(run.requests)),
        "connections": of(lambda run: run.connections),
        "bytes": of(lambda run: sum(run.bytes.values())),
        "watch bytes": of(lambda run: run.watching(run.bytes)),
        "cpu": of(lambda run: run.cpu),
        "server": of(lambda run: run.server_cpu),
        "per_job": of(lambda run: run.per_job),
        "mean": of(lambda run: statistics.mean(run.late) if run.late else 0.0),
        "p50": late(0.5),
        "p99": late(0.99),
        "worst": late(1.0),
        "missed": of(lambda run: run.missed),
    }
