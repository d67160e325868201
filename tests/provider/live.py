"""One real `airflow standalone` for all lifecycle tests, and words to speak with it: start a run, wait, mark,
clear, look.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from allaboard.backends.base import Handle
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.state.paths import RunFolder
from allaboard.backends.local.state.records import read_record
from allaboard.follow.run_record import RunRecord
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of
from allaboard_provider.identity import is_of_task
from dags_examples.own_airflow import (
    ApiError,
    OwnAirflow,
    command_line,
    descendants,
    is_alive,
    send,
    wait_gone,
)

HERE = Path(__file__).resolve().parent
PATIENCE = 240.0
ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")

Found = TypeVar("Found")


def until(what: str, look: Callable[[], Found | None], seconds: float = PATIENCE) -> Found:
    """What ``look`` finds, as soon as it finds something true. Fails, saying ``what`` never came.

    The longer it has waited, the rarer it looks: each look is work for Airflow's API server.
    """
    began = time.monotonic()
    while True:
        found = look()
        if found:
            return found
        waited = time.monotonic() - began
        assert waited < seconds, f"within {seconds:.0f} s: {what}"
        time.sleep(min(max(0.2, waited / 20), 1.0))


class Live:
    """The standalone Airflow, its gates and its runs."""

    def __init__(self, folder: Path, dags: Path = HERE / "lifecycle", **environ: str) -> None:
        """``environ``: more of its environment."""
        self.gates = folder / "gates"
        self.environ = {
            "ALLABOARD_HOME": str(folder / "home"),
            "ALLABOARD_POOL": str(folder / "pool"),
            "GATES": str(self.gates),
            "ALONE": str(folder / "alone"),
            "PYTHONPATH": os.pathsep.join([str(dags), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            **environ,
        }
        self.airflow = OwnAirflow(
            folder / "airflow",
            dags,
            {
                **self.environ,
                "AIRFLOW__CORE__PARALLELISM": "6",
                "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "3",
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
                "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
                "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
                "AIRFLOW__ALLABOARD__DEFER_AFTER": "0",  # tests of triggers do not wait for one
                # A machine may be busy with other things.
                "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            },
        )
        self.more_triggerers: list[int] = []

    @property
    def backend(self) -> Any:
        """That of the runs."""
        return LocalBackend({**os.environ, **self.environ})

    def records(self) -> list[RunRecord]:
        """Of all runs."""
        found = (read_record(RunFolder(path)) for path in self.backend.runs.glob("*"))
        return [record for record in found if record is not None]

    def stop(self) -> None:
        for pid in self.more_triggerers:
            self._end(pid)
        self.airflow.stop()
        self._end_runs()

    def _end_runs(self) -> None:
        """Whatever a failed test left running."""
        backend = self.backend
        live = [seen for seen in backend.list() if not state_of(seen).is_final]
        for seen in live:
            if seen.owner is not None and seen.uid is not None:
                handle = Handle(seen.run, seen.attempt, seen.generation, seen.uid)
                backend.stop(handle, seen.owner, "tests", "the tests are over", kill=True)
        for seen in live:
            with suppress(AssertionError):
                until("the run ended", lambda run=seen.run: state_of(backend.observe(run)).is_final, 30)  # type: ignore[misc]

    def start(self, dag: str, **params: Any) -> Run:
        """Trigger a DAG."""
        until(f"DAG {dag} is known", lambda: self.known(dag))
        name = f"{dag}-{secrets.token_hex(4)}"
        self.airflow.api(
            "POST", f"/dags/{dag}/dagRuns", {"dag_run_id": name, "logical_date": None, "conf": params}
        )
        return self.run(dag, name)

    def run(self, dag: str, name: str) -> Run:
        return Run(self, dag, name)

    def known(self, dag: str) -> bool:
        try:
            self.airflow.api("GET", f"/dags/{dag}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    # Triggerers.

    def triggerer(self) -> list[int]:
        """The processes of the triggerer that is in charge, the outermost first."""
        for pid in self.more_triggerers:
            if is_alive(pid):
                return [pid, *descendants(pid)]
        return self.airflow.pids("triggerer")

    def another_triggerer(self) -> int:
        """Start one more; it is in charge once the others are gone."""
        before = self.triggerers_seen()
        pid = self.airflow.spawn("triggerer").pid
        self.more_triggerers.append(pid)
        until("another triggerer has a heartbeat", lambda: self.triggerers_seen() > before)
        return pid

    def triggerers_seen(self) -> int:
        jobs = self.airflow.api("GET", "/jobs?job_type=TriggererJob&is_alive=true&limit=100")
        return int(jobs["total_entries"])

    def replace_triggerer(self, how: signal.Signals) -> None:
        """End every triggerer there is, and start a new one."""
        old = [*self.airflow.pids("triggerer")]
        for pid in self.more_triggerers:
            old += [pid, *descendants(pid)]
        self.more_triggerers = []
        for pid in old if how is signal.SIGKILL else [p for p in old if "triggerer" in command_line(p)]:
            send(pid, how)
        assert wait_gone(old, 60)
        self.more_triggerers.append(self.airflow.spawn("triggerer").pid)

    def _end(self, pid: int) -> None:
        family = [pid, *descendants(pid)]
        for one in family:
            send(one, signal.SIGCONT)
        send(pid, signal.SIGTERM)
        wait_gone(family, 15)
        for one in family:
            send(one, signal.SIGKILL)

    @contextmanager
    def frozen_triggerer(self, which: list[int] | None = None) -> Iterator[None]:
        """Meanwhile no trigger starts, moves or ends. ``which``: its processes; None: those in charge."""
        pids = which or self.triggerer()

        def is_frozen() -> bool:
            for pid in pids:
                send(pid, signal.SIGSTOP)
            if self._may_write():
                return True
            # In the middle of a write: with it Airflow's database would be locked for everybody.
            for pid in pids:
                send(pid, signal.SIGCONT)
            time.sleep(0.2)
            return False

        try:
            until("the triggerer is frozen, and locks no database", is_frozen)
            yield
        finally:
            for pid in pids:
                send(pid, signal.SIGCONT)

    def _may_write(self) -> bool:
        with closing(sqlite3.connect(self.airflow.home / "airflow.db", timeout=3)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            database.rollback()
        return True


@dataclass(frozen=True)
class Start:
    """A member's note of its start."""

    pid: int
    attempt: int
    generation: int
    rank: int
    step: int


class Run:
    """One DAG run, one task of it, and the training behind that."""

    def __init__(self, live: Live, dag: str, name: str, task_id: str = "train") -> None:
        self.live, self.dag, self.name, self.task_id = live, dag, name, task_id
        self.gate = live.gates / name

    def at(self, task_id: str) -> Run:
        """Another task of it."""
        return Run(self.live, self.dag, self.name, task_id)

    # The training.

    def starts(self, gate: str = "") -> list[Start]:
        try:
            lines = (self.gate / gate / "starts").read_text().splitlines()
        except OSError:
            return []
        return [Start(**json.loads(line)) for line in lines]

    def wait_started(self, members: int = 2, gate: str = "") -> list[Start]:
        return until(
            f"{members} members of {self.name} have started",
            lambda: (s := self.starts(gate))[members - 1 :] and s,
        )

    def finish(self, gate: str = "") -> None:
        (self.gate / gate).mkdir(parents=True, exist_ok=True)
        (self.gate / gate / "finish").touch()

    def fail(self, attempt: int) -> None:
        (self.gate / f"fail-{attempt}").touch()

    def pids(self) -> list[int]:
        return [start.pid for start in self.starts()]

    def record(self) -> RunRecord:
        return until("the run has a record", lambda: next(iter(self.records()), None))

    def records(self) -> list[RunRecord]:
        return [record for record in self.live.records() if is_of_task(record.key, self.dag, self.name)]

    def observe(self) -> Observation:
        seen: Observation = self.live.backend.observe(self.record().run)
        return seen

    def training_state(self) -> str:
        return state_of(self.observe()).value

    def wait_training(self, state: str) -> None:
        until(f"the training is {state}", lambda: self.training_state() == state)

    def saved(self) -> bool:
        return self.observe().progress.checkpoint is not None

    def wait_saved(self) -> None:
        until("a checkpoint is there", self.saved)

    def wait_gone(self) -> None:
        assert wait_gone(self.pids(), 60), "members live on"

    # The task.

    def path(self, map_index: int = -1) -> str:
        task = f"/dags/{self.dag}/dagRuns/{self.name}/taskInstances/{self.task_id}"
        return task if map_index < 0 else f"{task}/{map_index}"

    def task(self, map_index: int = -1) -> dict[str, Any]:
        found: dict[str, Any] = self.live.airflow.api("GET", self.path(map_index))
        return found

    def tasks(self) -> list[dict[str, Any]]:
        found = self.live.airflow.api("GET", f"/dags/{self.dag}/dagRuns/{self.name}/taskInstances")
        return list(found["task_instances"])

    def wait_task(self, *states: str, map_index: int = -1) -> dict[str, Any]:
        def log(found: dict[str, Any]) -> str:
            return "\n".join(self._log(n, map_index) for n in range(1, max(1, found["try_number"]) + 1))

        def look() -> dict[str, Any] | None:
            found = self.task(map_index)
            wrong = found["state"] in ENDED and found["state"] not in states
            assert not wrong, f"the task is {found['state']}, not {' or '.join(states)}:\n{log(found)}"
            return found if found["state"] in states else None

        return until(f"the task of {self.name} is {' or '.join(states)}", look)

    def wait_watched(self) -> None:
        """Deferred, and a triggerer has begun to watch."""
        self.wait_task("deferred")
        until("a triggerer watches", lambda: self.live.airflow.api("GET", self.path())["triggerer_job"])
        until("the trigger has told something", lambda: "running" in self.log())

    def mark(self, state: str) -> None:
        self.live.airflow.api("PATCH", self.path(), {"new_state": state})

    def clear(self) -> None:
        body = {
            "dry_run": False,
            "dag_run_id": self.name,
            "task_ids": [self.task_id],
            "only_failed": False,
            "only_running": False,
        }
        self.live.airflow.api("POST", f"/dags/{self.dag}/clearTaskInstances", body)

    def patch(self, state: str) -> None:
        self.live.airflow.api("PATCH", f"/dags/{self.dag}/dagRuns/{self.name}", {"state": state})

    def xcom(self, key: str = "return_value", map_index: int = -1) -> Any:
        path = f"{self.path()}/xcomEntries/{key}"
        found = self.live.airflow.api("GET", f"{path}?deserialize=true&map_index={map_index}")["value"]
        return json.loads(found) if isinstance(found, str) else found

    def log(self, attempt: int | None = None, map_index: int = -1) -> str:
        """What the task log of one try, or of all, says."""
        tries: Collection[int] = (
            [attempt] if attempt else range(1, max(1, self.task(map_index)["try_number"]) + 1)
        )
        return "\n".join(self._log(one, map_index) for one in tries)

    def _log(self, attempt: int, map_index: int) -> str:
        path = f"{self.path()}/logs/{attempt}?full_content=true"
        try:
            found = self.live.airflow.api("GET", f"{path}&map_index={map_index}")
        except ApiError as error:
            return str(error)
        lines = found["content"]
        return "\n".join(line if isinstance(line, str) else _words(line) for line in lines)


def _words(line: dict[str, Any]) -> str:
    """A line of a task log, with the exception that belongs to it."""
    errors = "".join(
        f"\n{error['exc_type']}: {error['exc_value']}" for error in line.get("error_detail") or ()
    )
    return f"{line.get('level', '')} {line['event']}{errors}"
