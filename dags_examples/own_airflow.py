"""An Airflow of one's own, for a while: a real `airflow standalone` (scheduler, DAG processor, API server,
triggerer) with a home, a database and ports for itself, on the loopback alone. `demo.py` runs a DAG in one;
the tests run many.

    with OwnAirflow(home, dags) as airflow:
        airflow.api("POST", "/dags/retrain_digits/dagRuns", {"logical_date": None})

Standard library only. Whatever it started is ended, also when the caller is interrupted, or killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

READY_SECONDS = 180.0
COMPONENTS = ("scheduler", "dag_processor", "triggerer")


class Api:
    """The REST API of an Airflow at ``url``, without a login. ``open``: how a request is sent."""

    def __init__(self, url: str, open: Callable[..., Any] | None = None) -> None:
        self.url = url
        self._token = ""
        # A proxy is for the world outside, and this is none.
        self._open = open or urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def api(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One request to the REST API (below ``/api/v2``). Raises ApiError with what the server said, or
        OSError.
        """
        if not self._token:
            self._token = self._ask("GET", f"{self.url}/auth/token", None, "")["access_token"]
        return self._ask(method, f"{self.url}/api/v2{path}", body, self._token)

    def _ask(self, method: str, url: str, body: Mapping[str, Any] | None, token: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(url, data, headers, method=method)
        # A question may be asked again; whoever gave an order hears of its fate at once.
        for asked in range(3 if method == "GET" else 1, 0, -1):
            try:
                with self._open(request, timeout=60) as answer:
                    text = answer.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                raise ApiError(error.code, error.read().decode("utf-8", "replace")[:2000]) from None
            except TimeoutError:
                if asked == 1:
                    raise
        return None


class OwnAirflow(Api):
    """Started by `start` or ``with``; ended by `stop`. ``settings``: more of ``AIRFLOW__SECTION__KEY``."""

    def __init__(self, home: Path, dags: Path, settings: Mapping[str, str] | None = None) -> None:
        self.home, self.dags = home.absolute(), dags.absolute()
        self.log = self.home / "airflow.log"
        self.port = free_port()
        super().__init__(f"http://127.0.0.1:{self.port}")
        self.environ = {**_callers(), **self._settings(), **(settings or {})}
        self.process: subprocess.Popen[bytes] | None = None
        self._heir: subprocess.Popen[bytes] | None = None

    def _settings(self) -> dict[str, str]:
        return {
            "AIRFLOW_HOME": str(self.home),
            "PATH": os.pathsep.join(
                [str(self.home / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
            ),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            # Who reaches the loopback is the user anyway.
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    # Beginning and end.

    def __enter__(self) -> OwnAirflow:
        try:
            self.start()
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it; `wait_until_ready` tells when it serves. The database is made when it is not there."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._put_airflow_on_path()
        self.process = self.spawn("standalone")
        # Ends it when this process is gone and could not: the pipe is closed then, whatever happened.
        self._heir = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).resolve()), str(self.process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def spawn(self, *command: str) -> subprocess.Popen[bytes]:
        """Start ``airflow COMMAND``, its words in the log file."""
        with self.log.open("ab") as log:
            # Its own session: a Ctrl-C at the terminal is ours to handle, and ends it in the right order.
            return subprocess.Popen(
                ["airflow", *command], env=self.environ, cwd=self.home, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
                start_new_session=True, executable=str(self.home / "bin" / "airflow"),
            )  # fmt: skip

    def _put_airflow_on_path(self) -> None:
        """Standalone starts its parts by the name `airflow`. Two of them would serve logs on every interface
        of the machine, and there is no setting for that, only an option of theirs.
        """
        real = Path(sys.executable).with_name("airflow")
        program = self.home / "bin" / "airflow"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f'#!/bin/sh\ncase "$1" in scheduler|triggerer) set -- "$@" --skip-serve-logs;; esac\n'
            f'exec "{real}" "$@"\n'
        )
        program.chmod(0o755)

    def wait_until_ready(
        self, seconds: float = READY_SECONDS, tell: Callable[[list[str]], None] | None = None
    ) -> None:
        """Until the API answers and every component has shown a heartbeat. ``tell`` hears which have."""
        for healthy in self._healthy(seconds):
            if tell is not None:
                tell(healthy)
            if len(healthy) == len(COMPONENTS):
                return
        raise RuntimeError(f"Airflow was not ready within {seconds:.0f} s; see {self.log}")

    def _healthy(self, seconds: float) -> Iterator[list[str]]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process is not None and self.process.poll() is not None:
                raise RuntimeError(f"Airflow ended at once; see {self.log}")
            with contextlib.suppress(OSError, ValueError):
                health = self.api("GET", "/monitor/health")
                yield [name for name in COMPONENTS if health.get(name, {}).get("status") == "healthy"]
            time.sleep(0.25)

    def stop(self) -> None:
        """End every process of it. Standalone itself would leave its parts running: they are told one by
        one.
        """
        process, self.process = self.process, None
        if process is None:
            return
        end_family(process.pid)
        process.wait()
        heir, self._heir = self._heir, None
        if heir is not None:
            heir.communicate(b"it has ended")

    def pids(self, component: str) -> list[int]:
        """The processes of one component (``triggerer``), the outermost first."""
        assert self.process is not None
        for pid in children(self.process.pid):
            if component in command_line(pid):
                return [pid, *descendants(pid)]
        return []


def _callers() -> dict[str, str]:
    """The caller's environment without another Airflow's: its database above all is not ours to touch. A
    connection of ours may be given in it.
    """
    others = ("AIRFLOW", "_AIRFLOW", "PYTHONDONTWRITEBYTECODE")
    return {
        n: v
        for n, v in os.environ.items()
        if n.startswith("AIRFLOW_CONN_ALLABOARD") or not n.startswith(others)
    }


class ApiError(Exception):
    """Airflow's API refused."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


# Processes, by pid alone. /proc where there is one, else `ps`.


def parents() -> dict[int, int]:
    """pid -> parent's pid of every process."""
    listing = subprocess.run(
        [shutil.which("ps") or "ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    return {int(pid): int(ppid) for pid, ppid in (line.split() for line in listing.stdout.splitlines())}


def children(pid: int) -> list[int]:
    return sorted(one for one, parent in parents().items() if parent == pid)


def descendants(pid: int) -> list[int]:
    family, known = [pid], parents()
    for one in family:
        family += [child for child, parent in known.items() if parent == one]
    return family[1:]


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    found = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def is_alive(pid: int) -> bool:
    """Whether it still runs; a zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.returncode == 0 and not found.stdout.strip().startswith("Z")


def end_family(pid: int) -> None:
    """Its children are asked to end; then it and all of them are gone."""
    everyone = [pid, *descendants(pid)]
    for child in children(pid):
        send(child, signal.SIGCONT)
        send(child, signal.SIGTERM)
    wait_gone(everyone[1:], 15)
    for one in {*everyone, *descendants(pid)}:
        send(one, signal.SIGKILL)


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def wait_gone(pids: list[int], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


if __name__ == "__main__":
    # The heir: not a word on stdin, and its end, mean that whoever started Airflow was killed.
    if not sys.stdin.buffer.read():
        end_family(int(sys.argv[1]))
