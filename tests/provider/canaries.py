"""Secrets that are known by sight, put wherever an Airflow and a job keep theirs, and a search for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.provider.live import Live


def _canary(what: str) -> str:
    # As no redaction knows it by its form.
    return f"the{what}canary"


PASSWORD, EXTRA, VARIABLE, FOLDER = map(_canary, ("password", "extra", "variable", "folder"))
IN_URL, SIGNATURE, PLACE, OF_THE_WORKER = map(_canary, ("url", "signature", "place", "worker"))
ALL = (PASSWORD, EXTRA, VARIABLE, FOLDER, IN_URL, SIGNATURE, PLACE, OF_THE_WORKER)

IN_ENVIRONMENT = {"AWS_SECRET_ACCESS_KEY": OF_THE_WORKER}
"""Of every process of Airflow."""

CONNECTIONS = [
    {"conn_id": "vault", "conn_type": "http", "password": PASSWORD, "extra": json.dumps({"secret": EXTRA})},
    {"conn_id": "leaky", "conn_type": "allaboard", "password": PLACE},
]
# By names that say nothing, so Airflow's own masking leaves them alone.
VARIABLES = {
    "hub": VARIABLE,
    "index": f"https://me:{IN_URL}@index.example/simple",
    "data": f"https://bucket.example/data?X-Amz-Date=1&X-Amz-Signature={SIGNATURE}",
}
STORE = """
import json, sys
from airflow.models import Connection, Variable
from airflow.utils.session import create_session
settings = json.loads(sys.stdin.read())
with create_session() as session:
    for one in settings["connections"]:
        session.query(Connection).filter_by(conn_id=one["conn_id"]).delete()
        session.add(Connection(**one))
    for name, value in settings["variables"].items():
        session.query(Variable).filter_by(key=name).delete()
        session.add(Variable(key=name, val=value))
"""
"""In place of what has the same names: a test that is tried again finds its own."""


def put(live: Live) -> None:
    """Into Airflow's database, as its own form and command line write there, and into a folder of secrets."""
    settings = json.dumps({"connections": CONNECTIONS, "variables": VARIABLES})
    subprocess.run(
        [sys.executable, "-c", STORE], input=settings, text=True, check=True, env=live.airflow.environ
    )
    folder = Path(live.environ["ALLABOARD_HOME"]) / "secrets" / "team"
    for one in (folder.parent, folder):
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "WANDB").touch(0o600)
    (folder / "WANDB").write_text(FOLDER)


def told_in(texts: Iterable[tuple[str, bytes]]) -> list[str]:
    """Which canary stands where, in words."""
    return [f"{canary} in {where}" for where, text in texts for canary in ALL if canary.encode() in text]


def files_below(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield str(path.relative_to(folder)), path.read_bytes()


def open_to_others(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The files below a folder which nothing but the folders above it keeps from other users."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and not _is_closed(path, folder):
            yield str(path.relative_to(folder)), path.read_bytes()


def _is_closed(path: Path, folder: Path) -> bool:
    within = [path, *(one for one in path.parents if one == folder or folder in one.parents)]
    return any(not one.stat().st_mode & 0o077 for one in within)
