"""B1 in Airflow: 1,000 deferred tasks in a real `airflow triggerer`, each with the provider's trigger for a
run on a real API server.

The runs are launched by allaboard and have trained for an hour. A fifth of them ends within a minute. What is
told: requests to the API server, CPU and memory of the triggerer's two processes (the one with the event loop
runs the triggers, the other asks Airflow's database), how late Airflow's database says that the task may
resume, and how late the event loop wakes a trigger that sleeps.

The database is PostgreSQL where this machine can have one (`tests.provider.hosts`), else SQLite. Rows of
deferred tasks and of their triggers are written as a deferral writes them; no scheduler, worker or API server
runs. ``ALLABOARD_BENCH_JOBS`` sets the number of tasks (1,000).

    python -m tests.bench.triggerer defer FILE    # in that Airflow: rows for the triggers of this file
    python -m tests.bench.triggerer ends          # when each run's task may resume, as JSON
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allaboard.backends.base import Handle
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.client.resources import NAMESPACES
from allaboard.runs.observation import Owner
from allaboard.testing.objects import PYTORCHJOBS
from allaboard.text.units import rfc3339
from dags_examples.own_airflow import descendants, send, wait_gone
from tests.bench import following
from tests.bench.loop_lag import lags_since
from tests.bench.monitoring import counting, process_cpu, quiet, server_cpu, write
from tests.cluster.api import Api, until
from tests.cluster.build import Unavailable
from tests.cluster.plane import ControlPlane, PlaneError
from tests.provider.hosts.deployment import Deployment, why_no_deployment

ROOT = Path(__file__).resolve().parents[2]
JOBS = int(os.environ.get("ALLABOARD_BENCH_JOBS", "1000"))
PART = 5
"""One in so many jobs ends."""
ENDING = 60.0
"""Seconds in which jobs end."""
GRACE = 60.0
"""More seconds: together each run that goes on is looked at twice."""
QUIET = 20.0
"""Seconds between the first look of the last trigger and the measurement."""
AGE = 3600.0
"""Seconds for which the runs have trained: a trigger looks once a minute by then."""
NAMESPACE = "triggerer"
OWNER = Owner("bench", "deferred", "orchestrated")
DAG = """
from airflow.sdk import DAG, task

with DAG("bench", schedule=None):

    @task
    def train(number: int) -> None:
        pass

    train.expand(number=list(range({count})))
"""
BLOCKED = re.compile(r"async thread was blocked for ([\d.]+) seconds")


@dataclass(frozen=True)
class Measured:
    """``lags``: of the event loop, seconds; ``blocked``: seconds of each warning of Airflow's about it;
    ``late``: seconds from the end of each run until its task may resume. Memory is resident, in bytes.
    """

    started: float
    start_cpu: float
    start_requests: int
    requests: Mapping[str, int]
    connections: int
    loop_cpu: float
    database_cpu: float
    server_cpu: float
    loop_memory: int
    database_memory: int
    late: Sequence[float]
    missed: int
    lags: Sequence[float]
    blocked: Sequence[float]


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="allaboard-bench-") as name:
        folder = Path(name)
        try:
            with ControlPlane(folder / "plane", ["training-operator"]) as plane:
                quiet(plane)
                with following.kubelet(plane, folder), database(folder) as url:
                    found = measure(plane, folder, url)
        except (PlaneError, Unavailable) as reason:
            print(f"\nB1 triggerer: left out, for there is no control plane here: {reason}")
            return
    show(found)


@contextmanager
def database(folder: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if why_no_deployment() is not None:
        yield f"sqlite:///{folder}/airflow.db"
        return
    with Deployment(folder / "lan", workers=()) as deployment:
        deployment.start_postgres()
        yield f"postgresql+psycopg2://airflow@/airflow?host={deployment.data}"


def measure(plane: ControlPlane, folder: Path, url: str) -> Measured:
    handles = launch(plane)
    kubeconfig = folder / "counting.kubeconfig"
    environ = settings(folder, url, kubeconfig)
    (folder / "dags").mkdir()
    (folder / "dags/bench.py").write_text(DAG.format(count=len(handles) + 1))
    lag = folder / "lag"
    triggers = [*(training_trigger(handle) for handle in handles), loop_lag_trigger(lag)]
    (folder / "triggers.json").write_text(json.dumps(triggers))
    for command in (["db", "migrate"], ["dags", "reserialize"]):
        run([str(Path(sys.executable).with_name("airflow")), *command], environ)
    run([*OWN, "defer", str(folder / "triggers.json")], environ)
    log = folder / "triggerer.log"
    print(f"  a triggerer with {len(handles)} deferred tasks ...", file=sys.stderr, flush=True)
    with counting(plane.kubeconfig, kubeconfig) as proxy, triggerer(environ, log) as pid:
        return observe(plane, proxy, pid, environ, [handle.run for handle in handles], lag, log)


def launch(plane: ControlPlane) -> list[Handle]:
    """Runs that have trained for `AGE`."""
    with Access(str(plane.kubeconfig), environ={}).api(Patience(budget=120)) as api:
        api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    handles = following.launch(plane, NAMESPACE, JOBS, owner=OWNER)
    access = Access(str(plane.kubeconfig), namespace=NAMESPACE, environ={})
    with access.api(Patience(budget=120)) as api:
        for handle in handles:
            status = {"status": {"startTime": rfc3339(time.time() - AGE)}}
            api.patch(PYTORCHJOBS, handle.run, status, sub="status")
    write(plane, NAMESPACE, [(handle.run, "Running", 0.0) for handle in handles])
    return handles


def settings(folder: Path, url: str, kubeconfig: Path) -> dict[str, str]:
    """The environment of an Airflow of our own."""
    cluster = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}}
    ours = {"backend": "kubernetes", "kubernetes_conn_id": "cluster", "namespace": NAMESPACE}
    callers = {n: v for n, v in os.environ.items() if not n.startswith(("AIRFLOW", "_AIRFLOW", "ALLABOARD"))}
    return {
        **callers,
        "AIRFLOW_HOME": str(folder / "airflow"),
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
        "NO_PROXY": "*",
        "AIRFLOW_CONN_CLUSTER": json.dumps(cluster),
        "AIRFLOW_CONN_ALLABOARD_DEFAULT": json.dumps({"conn_type": "allaboard", "extra": ours}),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "logs"),
        "AIRFLOW__TRIGGERER__CAPACITY": str(2 * JOBS),
    }


def training_trigger(handle: Handle) -> tuple[str, dict[str, Any]]:
    """What `TrainingJobTrigger.serialize` gives for a run on a cluster."""
    return "allaboard_provider.triggers.train.TrainingJobTrigger", {
        "version": 1,
        "run": handle.run,
        "attempt": handle.attempt,
        "generation": handle.generation,
        "uid": handle.uid,
        "owner": OWNER.id,
        "backend": "kubernetes",
        "connection": "allaboard_default",
        "fingerprint": {},
        "host": "",
        "deadline": None,
        "get_logs": True,
    }


def loop_lag_trigger(path: Path) -> tuple[str, dict[str, Any]]:
    return "tests.bench.loop_lag.LoopLag", {"path": str(path)}


OWN = [sys.executable, "-m", "tests.bench.triggerer"]


def run(command: Sequence[str], environ: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=dict(environ), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    return done.stdout


@contextmanager
def triggerer(environ: Mapping[str, str], log: Path) -> Iterator[int]:
    """The outer process of a triggerer. It is killed: one that ends in good order asks for every trigger
    whether a person has ended its task.
    """
    command = [str(Path(sys.executable).with_name("airflow")), "triggerer", "--skip-serve-logs"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=dict(environ), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        yield process.pid
    finally:
        family = [process.pid, *descendants(process.pid)]
        for pid in family:
            send(pid, signal.SIGKILL)
        process.wait()
        wait_gone(family, 30)


def observe(
    plane: ControlPlane,
    proxy: Api,
    pid: int,
    environ: Mapping[str, str],
    runs: Sequence[str],
    lag: Path,
    log: Path,
) -> Measured:
    """One triggerer, from its start to the last end."""
    began = time.monotonic()
    logs = Path(environ["AIRFLOW__LOGGING__BASE_LOG_FOLDER"])
    until("each trigger tells that its run goes on", lambda: running_in(logs) >= len(runs), 900, pause=2)
    started = time.monotonic() - began
    inner = descendants(pid)[0]
    start_cpu = process_cpu(inner)
    time.sleep(QUIET)
    start_requests = sum(proxy.request("GET", "/-/counts")["requests"].values())
    proxy.request("GET", "/-/reset")
    chance = random.Random("triggerer")
    ending = [(run, "Succeeded", chance.random() * ENDING) for run in chance.sample(runs, len(runs) // PART)]
    since, written = time.monotonic(), log.stat().st_size
    wall = time.time() - since
    before = (process_cpu(inner), process_cpu(pid), server_cpu(plane))
    answered = write(plane, NAMESPACE, ending)
    time.sleep(max(0.0, since + ENDING + GRACE - time.monotonic()))
    after = (process_cpu(inner), process_cpu(pid), server_cpu(plane))
    counts = proxy.request("GET", "/-/counts")
    memory = resident(inner), resident(pid)
    lags = lags_since(lag, since)
    ends = json.loads(run([*OWN, "ends"], environ).splitlines()[-1])
    late = sorted(ends[name] - (answered[name] + wall) for name in answered if name in ends)
    if stray := ends.keys() - answered.keys():
        raise RuntimeError(f"tasks resume whose runs go on: {', '.join(sorted(stray)[:5])}")
    loop_cpu, database_cpu, server = (b - a for a, b in zip(before, after, strict=True))
    return Measured(
        started=started,
        start_cpu=start_cpu,
        start_requests=start_requests,
        requests=counts["requests"],
        connections=counts["connections"],
        loop_cpu=loop_cpu,
        database_cpu=database_cpu,
        server_cpu=server,
        loop_memory=memory[0],
        database_memory=memory[1],
        late=late,
        missed=len(answered) - len(late),
        lags=lags,
        blocked=[float(seconds) for seconds in BLOCKED.findall(log.read_text()[written:])],
    )


def running_in(logs: Path) -> int:
    """The number of task logs that tell of a run that goes on."""
    return sum(b"running" in path.read_bytes() for path in logs.rglob("*.trigger.*.log"))


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def show(found: Measured) -> None:
    print(
        f"\nB1 triggerer: {JOBS} deferred tasks, {JOBS // PART} of whose runs end within {ENDING:.0f} s; "
        f"looked at for {ENDING + GRACE:.0f} s"
    )
    requests = ", ".join(f"{words} {n}" for words, n in sorted(found.requests.items(), key=lambda i: -i[1]))
    rows = [
        ("start: until each trigger has told", f"{found.started:.0f} s, {found.start_requests} requests"),
        ("start: CPU of the event loop's process", f"{found.start_cpu:.1f} s"),
        ("requests", f"{sum(found.requests.values())} ({requests}); {found.connections} connections"),
        ("CPU of the event loop's process", f"{found.loop_cpu:.2f} s"),
        ("CPU of the process that asks the database", f"{found.database_cpu:.2f} s"),
        ("CPU of the API server", f"{found.server_cpu:.2f} s"),
        ("memory", f"{found.loop_memory / 1e6:.0f} MB and {found.database_memory / 1e6:.0f} MB"),
        ("an end is seen after", f"{quantiles(found.late)}; missed {found.missed}"),
        ("the event loop is late by", quantiles(found.lags)),
        ("blocked, as Airflow tells", f"{len(found.blocked)} times, {sum(found.blocked):.1f} s in all"),
    ]
    for title, text in rows:
        print(f"  {title:42} {text}")


def quantiles(seconds: Sequence[float]) -> str:
    """Of ascending values."""
    if not seconds:
        return "never"

    def at(part: float) -> float:
        return seconds[min(len(seconds) - 1, int(part * len(seconds)))]

    values = {"mean": statistics.mean(seconds), "p50": at(0.5), "p99": at(0.99), "worst": seconds[-1]}
    return ", ".join(f"{name} {value * 1e3:.0f} ms" for name, value in values.items())


# --- inside that Airflow ------------------------------------------------------------------------------------


def defer(file: Path) -> None:
    """A DAG run whose tasks are deferred, each to a trigger of the file: [[classpath, arguments], ...]."""
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import Trigger
    from airflow.sdk.serde import serialize
    from airflow.sdk.timezone import utcnow
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import select

    triggers = json.loads(file.read_text())
    with create_session() as session:
        model = SerializedDagModel.get("bench", session=session)
        assert model is not None
        now = utcnow()
        model.dag.create_dagrun(
            run_id="bench",
            logical_date=None,
            run_after=now,
            start_date=now,
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.RUNNING,
            session=session,
        )
        tasks = session.scalars(select(TaskInstance).order_by(TaskInstance.map_index)).all()
        for ti, (classpath, arguments) in zip(tasks, triggers, strict=True):
            trigger = Trigger(classpath=classpath, kwargs={})
            trigger.encrypted_kwargs = json.dumps(serialize(arguments))
            session.add(trigger)
            session.flush()
            ti.state, ti.try_number, ti.start_date = TaskInstanceState.DEFERRED, 1, now
            ti.trigger_id, ti.next_method, ti.next_kwargs = trigger.id, "execute_complete", serialize({})


def ends() -> None:
    """By run, when its task may resume: epoch seconds. A line of JSON."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import Trigger
    from airflow.sdk.serde import deserialize
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import func, select

    resumed = select(TaskInstance).where(TaskInstance.state != TaskInstanceState.DEFERRED)
    found: dict[str, float] = {}
    with create_session() as session:
        for ti in session.scalars(resumed):
            arguments: Any = deserialize(ti.next_kwargs)
            event = arguments["event"]
            if ti.scheduled_dttm is None or event["status"] != "ended":
                raise RuntimeError(f"task {ti.map_index} is {ti.state}: {event}")
            found[event["run"]] = ti.scheduled_dttm.timestamp()
        left = session.scalar(select(func.count(Trigger.id))) or 0
        tasks = session.scalar(select(func.count(TaskInstance.id))) or 0
    if left != tasks - len(found):
        raise RuntimeError(f"{left} triggers are left of {tasks}, and {len(found)} have fired")
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "defer":
        defer(Path(sys.argv[2]))
    else:
        ends()
