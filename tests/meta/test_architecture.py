"""core/docs/architecture.md is true: its files exist, its rooms are those of the import contracts, and a walk
enters the files of its list in their order.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.meta.source import ROOT

PAGE = (ROOT / "core/docs/architecture.md").read_text()
BASES = (
    "core/src/allaboard", "core/src/allaboard/backends/local",
    "core/src/allaboard/backends/kubernetes/watch", "core/src",
    "provider/src/allaboard_provider", "provider/src/allaboard_provider/ui",
    "kfp_components/src/allaboard_kfp",
    "tests/docs/pictures", "tests/docs/site", ".",
)  # fmt: skip
WALKS = {
    name: re.findall(r"`([\w/]+\.py)`", text)
    for name, text in re.findall(r"<!-- walk: (\S+) -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
}

WALKER = """
import os, sys, time
import allaboard
ROOT = os.path.dirname(allaboard.__file__) + os.sep
entered = {}
def note(frame, event, _):
    file = frame.f_code.co_filename
    if event == "call" and file.startswith(ROOT):
        entered.setdefault(file.removeprefix(ROOT), None)
def walk(function, *arguments, **named):
    sys.setprofile(note)
    try:
        return function(*arguments, **named)
    finally:
        sys.setprofile(None)
from allaboard import running
from allaboard.backends.base import Plan
from allaboard.testing import a_job
from allaboard.testing.cluster import FakeCluster
me = running.new_owner()
def begun(cluster, backend):
    handle = backend.launch(Plan(a_job(image="registry.lab/train:1"), "nightly"), me)
    cluster.tick(60)
    return handle
cluster = FakeCluster(trains_for=600)
backend = cluster.backend()
"""
PLAYS = {
    "launch": "walk(running.submit, a_job(image='registry.lab/train:1'), key='nightly', backend=backend)",
    "launch-local": """
from allaboard.backends.local.backend import LocalBackend
walk(running.submit, a_job(command=["true"]), key="nightly", backend=LocalBackend())
while LocalBackend().list()[0].alive: time.sleep(0.1)
""",
    "wait": """
handle = backend.launch(Plan(a_job(image="registry.lab/train:1"), "nightly"), me)
walk(backend.observe, handle.run)
""",
    "failure": """
handle = begun(cluster, backend)
cluster.end_members(handle.run + "-1", 1)
cluster.tick(1)
from allaboard.diagnosis import diagnose
walk(lambda: list(diagnose(backend.observe(handle.run, evidence=True))))
""",
    "stop": """
handle = begun(cluster, backend)
walk(backend.stop, handle, me, "me", "enough")
""",
    "save": """
from allaboard.inside import Checkpointer
walk(Checkpointer(sys.argv[1]).save, 1, b"state")
""",
}


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:[\w.]+/)*[\w.]+\.(?:py|toml|js|pth))`", PAGE))
    assert len(named) > 80
    missing = {name for name in named if not any((ROOT / base / name).exists() for base in BASES)}
    assert missing == set()


def test_the_rooms_are_those_of_the_import_contracts() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    maps = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for text, contract in zip(maps, ("storeys", "kubernetes"), strict=True):
        layers = next(c["layers"] for c in contracts if c["id"] == contract)
        rooms = {name for layer in layers for name in layer.split(" | ")} - {"__main__"}
        told = {name for line in text.splitlines() for name in line[:27].split()}
        assert told == rooms, contract


def test_the_top_of_the_core_has_at_most_twenty_rooms_and_five_files() -> None:
    top = [p for p in (ROOT / "core/src/allaboard").iterdir() if p.name != "__pycache__"]
    assert sum(p.is_dir() for p in top) <= 20
    assert sum(p.is_file() for p in top) <= 5


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_enters_its_files_in_their_order(name: str, tmp_path: Path) -> None:
    own = {"ALLABOARD_HOME": str(tmp_path / "home"), "ALLABOARD_POOL": str(tmp_path / "pool")}
    code = f"{WALKER}\n{PLAYS[name]}\nprint('entered', *entered)"
    place = str(tmp_path / "saves")
    done = subprocess.run(
        [sys.executable, "-c", code, place],
        cwd=tmp_path,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    entered = done.stdout.splitlines()[-1].split()[1:]
    wanted = WALKS[name]
    assert len(wanted) >= 3 and [file for file in entered if file in wanted] == wanted, entered
