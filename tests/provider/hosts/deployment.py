"""A deployed Airflow: PostgreSQL, Redis, scheduler, DAG processor and API server on the host ``control``, and
Celery workers on hosts of their own; triggerers wherever a test starts them.

    with Deployment(folder) as airflow:
        airflow.start()
        triggerer = airflow.triggerer("control")
        run = airflow.run_dag("anywhere")
        with airflow.only("west"):          # the next task goes to a worker there
            run.clear()

Every component is a program that was started by its pid, on a host made of namespaces (`namespaces`); none of
them outlives the process that holds the deployment. What really trained is told by `HostRun.members`, from
files that members write (`journal`), and by `Deployment.training`, from the processes of a host.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import pwd
import secrets
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from dags_examples.own_airflow import Api, ApiError
from tests.provider.hosts import journal
from tests.provider.hosts.namespaces import ROOT, Component, Host, LocalNetwork, why_not
from tests.provider.live import Run, until

DAGS = Path(__file__).with_name("dags")
CONTROL = "control"
QUEUE = "default"
POSTGRES_FOLDERS = "/usr/lib/postgresql/*/bin"
CELERY_POLL = 2.5
"""Seconds after which a frozen worker takes nothing more out of the queue."""
READY = 300.0
PATIENCE = 300.0
"""Seconds for which a run goes on that nobody follows. On a busy machine Airflow needs minutes for little."""
FINAL = ("success", "failed", "skipped", "upstream_failed", "removed")
UNFINISHED = ("running", "deferred", "scheduled", "queued", "restarting", "up_for_retry", "up_for_reschedule")


def postgres_bin() -> Path | None:
    """The folder of PostgreSQL's programs."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    return max((path.parent for path in Path("/").glob(f"{POSTGRES_FOLDERS[1:]}/initdb")), default=None)


def redis_program() -> str | None:
    return shutil.which("valkey-server") or shutil.which("redis-server")


def why_no_deployment() -> str | None:
    """Why this machine can have no such Airflow, in a sentence; None where it can."""
    if postgres_bin() is None:
        return "PostgreSQL is not installed here (Debian: postgresql)"
    if redis_program() is None:
        return "neither Valkey nor Redis is installed here (Debian: valkey-server, redis-server)"
    return why_not()


class Deployment(Api):
    """``workers``: the hosts with a worker. ``settings``: more of the environment of every component."""

    def __init__(self, folder: Path, workers: Sequence[str] = ("east", "west"), **settings: str) -> None:
        self.network = LocalNetwork(folder)
        self.folder = self.network.folder
        self.gates = self.network.shared / "gates"
        self.store = self.network.shared / "store"
        self.disk = self.folder / "disk"
        self.data = self.folder / "data"
        self.workers = tuple(workers)
        for made in (self.gates, self.store, self.data):
            made.mkdir()
        self.account = _unprivileged()
        os.chown(self.data, self.account.pw_uid, self.account.pw_gid)
        # The account cannot look into the caller's folders: its own is mounted elsewhere.
        self.control = self.network.add_host(CONTROL, {self.data: "/mnt"})
        for name in self.workers:
            self.network.add_host(name)
        super().__init__(f"http://{self.control.address}:8080", self._open_inside)
        self.environ = {**_callers(), **self._settings(), **settings}
        self.took: dict[str, float] = {}
        """Seconds until each part was ready."""

    def _settings(self) -> dict[str, str]:
        url, database = f"http://{CONTROL}:8080", f"airflow@{CONTROL}/airflow"
        return {
            "AIRFLOW_HOME": str(self.disk / "airflow"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join([str(DAGS), str(ROOT)]),
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
            "NO_PROXY": "*",
            "no_proxy": "*",
            "C_FORCE_ROOT": "1",
            "HOME": str(self.disk),
            "ALLABOARD_HOME": str(self.disk / "home"),
            "ALLABOARD_POOL": str(self.disk / "pool"),
            "GATES": str(self.gates),
            "ALLABOARD_ORCHESTRATED_PATIENCE": f"{PATIENCE:.0f}s",
            "AIRFLOW_CONN_ALLABOARD_DEFAULT": json.dumps(
                {"conn_type": "allaboard", "extra": {"store": str(self.store)}}
            ),
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__PARALLELISM": "32",
            "AIRFLOW__CORE__MAX_ACTIVE_RUNS_PER_DAG": "32",
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "32",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}",
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__API__HOST": self.control.address,
            "AIRFLOW__API__PORT": "8080",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__CELERY__BROKER_URL": f"redis://{CONTROL}:6379/0",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg2://{database}",
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "12",
            "AIRFLOW__CELERY__SYNC_PARALLELISM": "1",
            # A machine may be busy with other things.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.disk / "airflow" / "logs"),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
            "AIRFLOW__ALLABOARD__DEFER_AFTER": "0",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "3",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "40",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
        }

    # Beginning and end.

    def __enter__(self) -> Deployment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Everything but triggerers, until the API answers, and each worker takes tasks."""
        with self._timed("PostgreSQL"):
            self.start_postgres()
        with self._timed("Redis"):
            self.start_redis()
        with self._timed("the database"):
            self.control.run(["airflow", "db", "migrate"], self.environ, 900)
        with self._timed("Airflow"):
            for component in ("api-server", "scheduler", "dag-processor"):
                self.spawn(CONTROL, component)
            for name in self.workers:
                self.start_worker(name)
            self.wait_healthy("scheduler", "dag_processor")
            # The API of the workers is built when it is first asked.
            self._ask("GET", f"{self.url}/execution/health", None, "")
            for name in self.workers:
                self.wait_worker(name)

    def stop(self) -> None:
        self.network.stop()

    def tidy(self) -> None:
        """Undo what a test did: all hosts are up, on the network, with their workers; DAG runs that go on are
        failed, no training and no triggerer is left.
        """
        for host in self.network.hosts.values():
            if not host.lives:
                host.boot()
            host.join()
            host.thaw()
            for name, component in list(host.components.items()):
                component.thaw()
                if name.startswith("triggerer"):
                    component.stop(10)
                    del host.components[name]
        self.start_missing()
        for run in self.api("GET", "/dags/~/dagRuns?state=running&state=queued&limit=100")["dag_runs"]:
            path = f"/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}"
            self.api("PATCH", path, {"state": "failed"})
        for gate in self.gates.iterdir():
            (gate / "finish").touch()
        for name in self.workers:
            self.host(name).end_trainings()

    def start_missing(self) -> None:
        parts: dict[str, Callable[[], object]] = {"postgres": self.start_postgres, "redis": self.start_redis}
        for name in ("api-server", "scheduler", "dag-processor"):
            parts[name] = partial(self.spawn, CONTROL, name)
        for name, start in parts.items():
            if name not in self.control.components or not self.component(CONTROL, name).runs:
                start()
        missing = [
            name
            for name in self.workers
            if (worker := self.host(name).components.get("worker")) is None or not worker.runs
        ]
        for name in missing:
            self.start_worker(name)
        self.wait_healthy("scheduler", "dag_processor")
        for name in missing:
            self.wait_worker(name)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.took[what] = round(time.monotonic() - began, 1)

    # Its parts.

    def host(self, name: str) -> Host:
        return self.network.hosts[name]

    def component(self, host: str, name: str) -> Component:
        return self.host(host).components[name]

    def spawn(self, host: str, *command: str, name: str = "") -> Component:
        """Start ``airflow COMMAND`` on a host."""
        return self.host(host).start(name or command[0], ["airflow", *command], self.environ)

    def start_postgres(self) -> Component:
        folder = postgres_bin()
        assert folder is not None
        user, group = str(self.account.pw_uid), str(self.account.pw_gid)
        as_account = ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", "env", "-C", "/mnt"]
        environ = {**self.environ, "HOME": "/mnt", "LC_ALL": "C.UTF-8"}
        if new := not (self.data / "pg").exists():
            making = [*as_account, f"{folder}/initdb", "-D", "/mnt/pg", "-U", "airflow", "-A", "trust", "-N"]
            self.control.run(making, environ)
            with (self.data / "pg" / "pg_hba.conf").open("a") as access:
                access.write("host all all all trust\n")
        settings = {
            "listen_addresses": "*",
            "unix_socket_directories": "/mnt",
            "max_connections": "200",
            "shared_buffers": "64MB",
            # What a kill takes along is not in the disk's cache.
            "fsync": "off",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        started = self.control.start(
            "postgres", [*as_account, f"{folder}/postgres", "-D", "/mnt/pg", *options], environ
        )
        asking = [f"{folder}/pg_isready", "-q", "-h", CONTROL, "-U", "airflow"]
        until("PostgreSQL answers", lambda: _succeeds(self.control, asking, environ), 60)
        if new:
            self.control.run([f"{folder}/createdb", "-h", CONTROL, "-U", "airflow", "airflow"], environ)
        return started

    def start_redis(self) -> Component:
        program = redis_program()
        assert program is not None
        (self.data / "redis").mkdir(exist_ok=True)
        words = [program, "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", "/mnt/redis"]
        started = self.control.start("redis", [*words, "--appendonly", "yes"], self.environ)
        until("Redis answers", self._redis_answers, 30)
        return started

    def _redis_answers(self) -> bool:
        import redis

        def ask() -> bool:
            client = redis.Redis(self.control.address, socket_timeout=2, retry=None)
            with suppress(redis.RedisError):
                return bool(client.ping())
            return False

        return self.control.inside(ask)

    def start_worker(self, host: str, *queues: str) -> Component:
        """One that takes the tasks of ``queues``; by default those of `QUEUE` and of the one of its host."""
        named = ",".join(queues or (QUEUE, host))
        words = ("--queues", named, "--celery-hostname", f"{host}@%h", "--without-mingle", "--without-gossip")
        return self.spawn(host, "celery", "worker", *words, name="worker")

    def wait_worker(self, host: str) -> None:
        worker = self.component(host, "worker")

        def is_ready() -> bool:
            assert worker.runs, f"the worker on {host} ended:\n{worker.words()[-3000:]}"
            return " ready." in worker.words()

        until(f"the worker on {host} is ready", is_ready, READY)

    def triggerer(self, host: str, *options: str, name: str = "triggerer") -> Component:
        """Start one, and wait until it has a heartbeat."""
        before = self.triggerers_seen()
        started = self.spawn(host, "triggerer", *options, name=name)
        until(f"the triggerer on {host} has a heartbeat", lambda: self.triggerers_seen() > before, READY)
        return started

    def triggerers_seen(self) -> int:
        jobs = self.api("GET", "/jobs?job_type=TriggererJob&is_alive=true&limit=100")
        return int(jobs["total_entries"])

    def wait_healthy(self, *names: str, seconds: float = READY) -> None:
        def are_healthy() -> bool:
            for component in self.control.components.values():
                assert component.runs, f"{component.name} ended:\n{component.words()[-3000:]}"
            with suppress(OSError, ValueError, http.client.HTTPException, ApiError):
                health = self.api("GET", "/monitor/health")
                return all(health.get(name, {}).get("status") == "healthy" for name in names)
            return False

        until(f"healthy: {', '.join(names)}", are_healthy, seconds)

    @contextmanager
    def only(self, host: str) -> Iterator[None]:
        """Meanwhile no other host takes a task: the workers there are frozen, the trainings are not."""
        others = [self.component(name, "worker") for name in self.workers if name != host]
        others = [worker for worker in others if worker.runs]
        for worker in others:
            worker.freeze()
        # One that asked the queue just before might be given a task still.
        time.sleep(CELERY_POLL)
        try:
            yield
        finally:
            for worker in others:
                worker.thaw()

    # Asking.

    @property
    def airflow(self) -> Api:
        """What a `Run` asks."""
        return self

    def _open_inside(self, request: urllib.request.Request, timeout: float) -> Any:
        control = self.control

        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                control.inside(super().connect)

        class Handler(urllib.request.HTTPHandler):
            def http_open(self, asked: urllib.request.Request) -> Any:
                return self.do_open(Connection, asked)

        return urllib.request.build_opener(urllib.request.ProxyHandler({}), Handler).open(
            request, timeout=timeout
        )

    # Runs.

    def run_dag(self, dag: str, **params: Any) -> HostRun:
        """Start a DAG run."""
        until(f"DAG {dag} is known", lambda: self._knows(dag))
        name = f"{dag}-{secrets.token_hex(4)}"
        self.api("POST", f"/dags/{dag}/dagRuns", {"dag_run_id": name, "logical_date": None, "conf": params})
        return HostRun(self, dag, name)

    def raw(self, text: str, samples: int = 12) -> Path:
        """A folder of raw data that all hosts see: in each sample stands this text."""
        folder = self.network.shared / "raw" / f"{text}-{secrets.token_hex(4)}"
        folder.mkdir(parents=True)
        for number in range(samples):
            (folder / f"{number:03d}.txt").write_text(text)
        return folder

    def _knows(self, dag: str) -> bool:
        try:
            self.api("GET", f"/dags/{dag}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def page(self, path: str) -> Any:
        """What the plugin tells the browser (below ``/allaboard/api``)."""
        self.api("GET", "/monitor/health")
        return self._ask("GET", f"{self.url}/allaboard/api{path}", None, self._token)

    def training(self, *hosts: str) -> dict[str, list[int]]:
        """The members that live now, by host: pids as seen from outside."""
        found = {name: self.host(name).members() for name in hosts or self.workers}
        return {name: pids for name, pids in found.items() if pids}

    def left_behind(self) -> list[str]:
        """Each process of a training, and each task that has not ended, in words."""
        found = [f"{name}: {words}" for name in self.workers for words in self.host(name).trainings()]
        states = "&".join(f"state={state}" for state in UNFINISHED)
        tasks = self.api("GET", f"/dags/~/dagRuns/~/taskInstances?{states}&limit=100")["task_instances"]
        return found + [f"task of {one['dag_run_id']}: {one['state']}" for one in tasks]


class HostRun(Run):
    """One DAG run, its task ``train``, and what trained for it on any host. ``data``: the text in its data,
    for those who ask.
    """

    live: Any
    data: str = ""

    def __init__(self, airflow: Deployment, dag: str, name: str) -> None:
        super().__init__(airflow, dag, name)  # type: ignore[arg-type]  # which has what Run asks of it
        self.deployment = airflow

    def members(self) -> list[journal.Member]:
        return journal.members(self.gate)

    def trainings(self) -> list[tuple[str, str, int, int]]:
        return journal.trainings(self.members())

    def wait_training(self, count: int = 1, beyond: int = 0, seconds: float = 240) -> journal.Member:
        """Until the count-th training has done a step beyond that one; its newest member."""

        def look() -> journal.Member | None:
            seen = self.members()
            begun = journal.trainings(seen)
            if len(begun) < count:
                return None
            mine = [one for one in seen if one.training == begun[count - 1]]
            return mine[-1] if mine[-1].last_step > max(beyond, mine[-1].first_step) else None

        return until(f"training {count} of {self.name} is on", look, seconds)

    def is_quiet(self) -> bool:
        """No member has written for a while, and none lives."""
        if any(time.time() - one.last < 1.0 for one in self.members() if not one.ended):
            return False
        hosts = [self.deployment.host(name) for name in self.deployment.workers]
        return not any(host.members(self.name) for host in hosts)

    def wait_quiet(self, seconds: float = 60) -> None:
        until(f"nothing trains for {self.name} any more", self.is_quiet, seconds)

    def story(self) -> str:
        """All that is known, for a test that fails."""
        lines = [f"{self.dag} {self.name}"]
        lines += [f"  {one}" for one in self.members()]
        with suppress(Exception):
            task = self.task()
            lines.append(f"  task: {task['state']}, try {task['try_number']}, on {task['hostname']}")
            lines.append(self.log())
        return "\n".join(lines)

    def assert_never_two(self) -> None:
        together = journal.two_at_once(self.members())
        assert not together, "two trainings of one run at once:\n" + "\n".join(together) + "\n" + self.story()

    def assert_trained_once(self) -> None:
        """One training, which nobody stopped: it ended where it was told to end."""
        seen = self.members()
        assert len(journal.trainings(seen)) == 1 and all(one.ended for one in seen), self.story()

    def wait_over(self, *states: str, seconds: float = 240) -> str:
        """Until the task is in an end state (``states``: one of those)."""
        wanted = states or FINAL

        def look() -> str | None:
            state: str = self.task()["state"]
            return state if state in wanted else None

        return until(f"the task of {self.name} is over", look, seconds)


def _succeeds(host: Host, command: Sequence[str], environ: dict[str, str]) -> bool:
    try:
        host.run(command, environ, 20)
    except RuntimeError:
        return False
    return True


def _unprivileged() -> pwd.struct_passwd:
    """Whom PostgreSQL runs as, which refuses root."""
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _callers() -> dict[str, str]:
    left_out = ("AIRFLOW", "_AIRFLOW", "ALLABOARD_", "PYTHON", "PYTEST", "AWS_")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
