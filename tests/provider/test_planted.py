"""No secret leaves a worker or a triggerer of a real Airflow: every field of a connection that is one,
Variables, files of ``secrets``, URLs and variables of the environment are planted, said aloud by a member in
every spelling, and looked for in whatever Airflow keeps, writes, shows and sends.

Each place is searched only once it is known to hold what it is for: an empty one would prove nothing.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import subprocess
import sys
import urllib.request
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from cryptography.fernet import Fernet, InvalidToken

from tests.provider.listening import Collector, Statsd, collector, statsd
from tests.provider.live import Live, Run, until

pytestmark = [
    pytest.mark.airflow_live,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(1500),
]
DAGS = Path(__file__).resolve().parent / "planted"

PLANTED = {
    "password of a connection": "the pass/wörd?canary",
    "extra of a connection": "theextracanary",
    "nested extra of a connection": "thenestedcanary",
    "password of the place's own connection": "theplacecanary",
    "Variable by its name": "thenamedvariablecanary",
    "Variable of JSON": "thejsoncanary",
    "Variable in a field of a secret": "thevariablecanary",
    "password in a URL": "theurlcanary",
    "signature of a URL": "thesignaturecanary",
    "secret in the environment of members": "thefoldercanary",
    "mounted secret": "themountedcanary",
    "variable of the worker": "theworkercanary",
}
SETTINGS = {
    "connections": [
        {
            "conn_id": "vault", "conn_type": "http", "host": "hub.example", "login": "me",
            "password": PLANTED["password of a connection"],
            "extra": json.dumps({
                "secret": PLANTED["extra of a connection"],
                "nested": {"sas_token": PLANTED["nested extra of a connection"]},
            }),
        },
        {
            "conn_id": "leaky", "conn_type": "allaboard",
            "password": PLANTED["password of the place's own connection"],
        },
    ],
    "variables": {
        "hub_token": PLANTED["Variable by its name"],
        "hub_credentials": json.dumps({"signing_key": PLANTED["Variable of JSON"]}),
        "hub": PLANTED["Variable in a field of a secret"],
        "index": f"https://me:{PLANTED['password in a URL']}@index.example/simple",
        "data": f"https://bucket.example/x?X-Amz-Date=1&X-Amz-Signature={PLANTED['signature of a URL']}",
    },
}  # fmt: skip
KEY = Fernet.generate_key().decode()
"""With which Airflow encrypts the arguments of triggers."""
STORE = """
import json, sys
from airflow.models import Connection, Variable
from airflow.utils.session import create_session
settings = json.loads(sys.stdin.read())
with create_session() as session:
    for one in settings["connections"]:
        session.add(Connection(**one))
    for name, value in settings["variables"].items():
        session.add(Variable(key=name, val=value))
"""
HELD_BY_AIRFLOW = ("connection", "variable")
"""Tables that are Airflow's own place for secrets."""


def spellings(secret: str) -> set[bytes]:
    """What would give a secret away. Of base64 the digits that no neighbour changes."""
    raw = secret.encode()
    found = {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe=""), quote_plus(secret)}
    for before in range(3):
        digits = base64.b64encode(bytes(before) + raw).decode()[2 * (before > 0) + (before > 1) :]
        inner = digits[: 4 * (len(digits) // 4) - 4]
        found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return {text.encode() for text in found}


class Places:
    """All texts that were found, by the place where they stood; and what must be found there."""

    def __init__(self) -> None:
        self.texts: dict[str, list[bytes]] = defaultdict(list)

    def add(self, place: str, text: bytes | str) -> None:
        self.texts[place].append(text.encode() if isinstance(text, str) else text)

    def holds(self, place: str, *markers: str) -> None:
        """The place was filled: each of these, which are no secrets, stands there."""
        found = b"\n".join(self.texts[place])
        missing = [marker for marker in markers if marker.encode() not in found]
        assert not missing, f"{place} does not hold {missing}: {found[:2000]!r}"

    def leaks(self) -> list[str]:
        return [
            f"{what} in {place}: {_around(text, spelling)}"
            for what, secret in PLANTED.items()
            for place, texts in self.texts.items()
            for text in texts
            for spelling in spellings(secret)
            if spelling in text
        ]


def _around(text: bytes, spelling: bytes) -> str:
    at = text.index(spelling)
    return repr(text[max(0, at - 80) : at + 80])


class World:
    def __init__(self, live: Live, folder: Path, metrics: Statsd, traces: Collector) -> None:
        self.live, self.folder, self.metrics, self.traces = live, folder, metrics, traces

    def ends(self, dag: str, state: str, *tasks: str) -> Run:
        run = self.live.start(dag)
        for task in tasks or ("train",):
            run.at(task).wait_task(state)
        return run

    def get(self, path: str) -> bytes:
        opened = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opened.open(f"{self.live.airflow.url}{path}", timeout=60) as answer:
            body: bytes = answer.read()
            return body

    # What Airflow keeps.

    def tables(self, places: Places, moment: str) -> None:
        """Every cell of every table of the metadata database."""
        with closing(sqlite3.connect(self.live.airflow.home / "airflow.db", timeout=60)) as database:
            names = [
                row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            for name in names:
                if name in HELD_BY_AIRFLOW:
                    continue
                for row in database.execute(f'SELECT * FROM "{name}"'):
                    for cell in row:
                        places.add(f"table {name} {moment}", _bytes_of(cell))
                        for inner in _unpacked(cell):
                            places.add(f"table {name} {moment}", inner)


def _bytes_of(cell: Any) -> bytes:
    return cell if isinstance(cell, bytes) else str(cell).encode()


def _unpacked(cell: Any) -> Iterator[bytes]:
    """The snapshots of a task in a value of XCom, which are compressed, and what Airflow encrypts."""
    with suppress(InvalidToken, TypeError, ValueError):
        yield Fernet(KEY).decrypt(cell)
    try:
        value = json.loads(cell)
        value = json.loads(value) if isinstance(value, str) else value
        if isinstance(value, dict) and isinstance(value.get("data"), str):
            yield zlib.decompress(base64.b64decode(value["data"]))
    except (TypeError, ValueError, zlib.error):
        return


def open_to_others(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The files below a folder which nothing but the folders above it keeps from other users."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and not _is_closed(path, folder):
            yield str(path.relative_to(folder)), path.read_bytes()


def _is_closed(path: Path, folder: Path) -> bool:
    within = [path, *(one for one in path.parents if one == folder or folder in one.parents)]
    return any(not one.stat().st_mode & 0o077 for one in within)


def a_secret(home: Path, name: str, key: str, value: str) -> None:
    folder = home / "secrets" / name
    for one in (folder.parent, folder):
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / key).touch(0o600)
    (folder / key).write_text(value)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("planted")
    with ExitStack() as open_:
        metrics, traces = open_.enter_context(statsd()), open_.enter_context(collector())
        transport = {"type": "file", "log_file_path": str(folder / "lineage.json"), "append": True}
        live = Live(
            folder,
            DAGS,
            NOTES=str(folder),
            AIRFLOW__CORE__FERNET_KEY=KEY,
            AWS_SECRET_ACCESS_KEY=PLANTED["variable of the worker"],
            AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT="60",
            AIRFLOW__METRICS__STATSD_ON="True",
            AIRFLOW__METRICS__STATSD_PORT=str(metrics.port),
            AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED="True",
            AIRFLOW__OPENLINEAGE__TRANSPORT=json.dumps(transport),
            AIRFLOW__TRACES__OTEL_ON="True",
            OTEL_TRACES_EXPORTER="otlp_proto_http",
            OTEL_EXPORTER_OTLP_ENDPOINT=traces.url,
        )
        open_.callback(live.stop)
        live.airflow.start()
        live.airflow.wait_until_ready(400)
        home = Path(live.environ["ALLABOARD_HOME"])
        a_secret(home, "team", "FOLDER_KEY", PLANTED["secret in the environment of members"])
        a_secret(home, "mounted", "pem", PLANTED["mounted secret"])
        subprocess.run(
            [sys.executable, "-c", STORE], input=json.dumps(SETTINGS), text=True, check=True,
            env=live.airflow.environ,
        )  # fmt: skip
        yield World(live, folder, metrics, traces)


def test_no_secret_leaves_a_worker_or_a_triggerer(world: World) -> None:
    live, places = world.live, Places()
    deferred, here = live.start("planted"), live.start("planted_here")
    for run in (deferred, here):
        until(f"the second attempt of {run.dag} has spoken", lambda run=run: "opened" in run.log(2), 600)
    deferred.wait_watched()
    until("the trigger has left a snapshot", lambda: has_snapshot(deferred))
    world.tables(places, "while deferred")
    places.holds("table trigger while deferred", "TrainingJobTrigger", deferred.record().run)
    pages_of(world, places, deferred, "while deferred")
    for run in (deferred, here):
        run.finish()
        run.wait_task("success")
    failed = [world.ends(f"planted_{how}", "failed") for how in ("fails", "typo", "template")]
    runs = [deferred, here, *failed]

    world.tables(places, "at the end")
    name = deferred.record().run
    for table, *markers in (
        ("xcom", name, "headline", "opened the door with *** today", "return_value"),
        ("rendered_task_instance_fields", "INDEX_URL", "***"),
        ("asset_event", name),
        ("task_instance", "planted_here"),
        ("dag_run", deferred.name),
        ("log", "planted"),
        ("serialized_dag", "conn.vault.password"),
        ("task_state_store", "allaboard"),
    ):
        places.holds(f"table {table} at the end", *markers)

    for run in runs:
        pages_of(world, places, run, "at the end")
    places.holds("tab at the end", name, "opened the door with *** today", "INDEX_URL")
    places.holds("page in a frame at the end", name, "opened the door with *** today")
    places.holds("task log at the end", "opened the door with *** today", "was refused")
    places.holds("rendered fields at the end", "INDEX_URL")
    places.holds("XCom by the API at the end", name)
    for path in ("/allaboard/api/now", *(f"/allaboard/api/dag/{run.dag}/models" for run in runs)):
        places.add("card and Models", world.get(path))
    places.holds("card and Models", name, "queues")
    places.add("API", json.dumps(live.airflow.api("GET", "/eventLogs?limit=1000")))
    places.add("API", json.dumps(live.airflow.api("GET", "/assets/events?limit=100")))
    places.holds("API", "planted", name)

    home = live.airflow.home
    for file in home.rglob("*"):
        if (
            file.is_file()
            and not file.is_symlink()
            and file.suffix in (".log", ".txt", ".out", ".err", ".json")
        ):
            part = file.relative_to(home).parts
            kind = (
                "log of tasks" if part[1:] and part[1].startswith("dag_id=") else f"log {'/'.join(part[:2])}"
            )
            places.add(kind, file.read_bytes())
    places.holds("log of tasks", "opened the door with *** today", "was refused")
    places.holds("log airflow.log", "scheduler", "triggerer", "dag-processor", "api-server")

    until("OpenLineage has heard", lambda: b"planted_here" in (world.folder / "lineage.json").read_bytes())
    places.add("lineage", (world.folder / "lineage.json").read_bytes())
    places.holds("lineage", name, "COMPLETE", "FAIL", "allaboard")
    places.add("callbacks", (world.folder / "pages").read_bytes())
    places.holds("callbacks", "SpecRejected", "TrainingBug", "job.args[1]", "was refused")
    until("spans of saves have come", lambda: [s for s in world.traces.spans if s.name == "checkpoint.save"])
    for span in world.traces.spans:
        places.add("spans", json.dumps([span.name, span.attributes], default=str))
    places.holds("spans", "checkpoint.save", name)
    places.add("metrics", "\n".join(world.metrics.lines))
    places.holds("metrics", "allaboard.runs", "planted")

    shared = Path(live.environ["ALLABOARD_HOME"])
    for file, text in open_to_others(shared):
        places.add(f"what other users of the machine may read: {file}", text)
    for verb in ("status", "events", "checkpoints list"):
        command = [sys.executable, "-m", "allaboard", *verb.split(), name]
        said = subprocess.run(command, capture_output=True, env={**os.environ, **live.environ}, check=False)
        places.add(f"allaboard {verb}", said.stdout + said.stderr)
        places.holds(f"allaboard {verb}", name)

    told = [json.loads(line) for line in (world.folder / "pages").read_text().splitlines()]
    assert {one["class"] for one in told} == {"SpecRejected", "TrainingBug"}
    assert all(one["run"] and one["summary"] and one["fix"] for one in told)
    searched = len(PLANTED) * len(places.texts)
    size = sum(len(text) for texts in places.texts.values() for text in texts)
    print(f"{searched} pairs of {len(PLANTED)} secrets and {len(places.texts)} places, {size:,} bytes")
    assert searched >= len(PLANTED) * 40
    assert places.leaks() == []
    # The members were given all of them.
    output = b"".join(path.read_bytes() for path in Path(live.environ["ALLABOARD_HOME"]).rglob("*.log"))
    assert [what for what, secret in PLANTED.items() if secret.encode() not in output] == [
        "password of the place's own connection"
    ]


def has_snapshot(run: Run) -> bool:
    entries = run.live.airflow.api("GET", f"{run.path()}/xcomEntries")["xcom_entries"]
    return "allaboard_page" in {entry["key"] for entry in entries}


def pages_of(world: World, places: Places, run: Run, moment: str) -> None:
    """What the web pages and the API show of a task."""
    where = f"{run.dag}/{run.name}/{run.task_id}/-1"
    places.add(f"tab {moment}", world.get(f"/allaboard/api/page/{where}"))
    places.add(f"page in a frame {moment}", world.get(f"/allaboard/page/{where}"))
    places.add(f"task log {moment}", run.log())
    places.add(f"rendered fields {moment}", json.dumps(run.task()["rendered_fields"], ensure_ascii=False))
    for entry in world.live.airflow.api("GET", f"{run.path()}/xcomEntries")["xcom_entries"]:
        by_key = f"{run.path()}/xcomEntries/{entry['key']}?deserialize=true&map_index=-1"
        places.add(f"XCom by the API {moment}", json.dumps(world.live.airflow.api("GET", by_key)["value"]))


def test_a_job_that_a_task_returns_is_trained_by_another(world: World) -> None:
    """By its output, by a template, mapped, and pulled by hand, with Airflow's own settings."""
    run = world.live.start("returns_a_job")
    for task in ("plan", "train", "pulls", "by_hand"):
        run.at(task).wait_task("success")
    run.at("each").wait_task("success", map_index=0)
    assert run.at("by_hand").xcom() == {"name": "planned"}
    states = [run.at(task).xcom()["state"] for task in ("train", "pulls")]
    assert states == ["succeeded", "succeeded"]
    assert run.at("train").task()["rendered_fields"]["job"]["name"] == "planned"
