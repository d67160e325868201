"""What each kind of volume is on one machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Plan
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.state.paths import RunFolder
from allaboard.errors import BadInput
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended
from tests.core.backends.local.test_backend import text

ME = Owner("me")
APPENDS = """
import os, pathlib, sys
path = pathlib.Path(sys.argv[1]) / "seen"
before = path.read_text() if path.exists() else ""
path.write_text(before + "x")
print(len(before), path.parent, sep=" in ")
sys.exit(int(os.environ.get("CODE", "0")))
"""


def appending(folder: Path, volume: dict[str, Any], key: str = "k", **fields: Any) -> Plan:
    """Each attempt says how many were before it, and where."""
    words = ["python", "main.py", "/vol"]
    storage = [{"mount": "/vol", **volume}]
    return a_plan(folder, APPENDS, key, workers=1, command=words, storage=storage, **fields)


def said(backend: LocalBackend, plan: Plan) -> tuple[str, Path]:
    """How many were before this attempt, and the folder."""
    handle = backend.launch(plan, ME)
    ended(backend, handle.run)
    count, _, place = text(backend, handle.run).partition(" in ")
    return count, Path(place)


FAILING = {"environment": {"CODE": "3"}, "policy": {"restart": "never"}}


@pytest.mark.thorough
def test_a_claim_is_shared_by_the_attempts_of_a_run_and_goes_with_it(
    backend: LocalBackend, folder: Path
) -> None:
    plan = appending(folder, {"claim": {"size": "1Gi"}}, **FAILING)
    first, place = said(backend, plan)
    assert first == "0" and said(backend, plan) == ("1", place)
    assert place == backend.runs / plan.run / "claims" / f"{plan.run}-vol"
    assert place.stat().st_mode & 0o777 == 0o700
    other = appending(folder, {"claim": {"size": "1Gi"}}, "other", **FAILING)
    assert said(backend, other)[0] == "0", "another run has its own"
    backend.delete(plan.run)
    assert not place.exists()
    assert said(backend, plan)[0] == "0"


def test_a_claim_that_is_kept_always_is_one_for_all_runs_of_the_job(
    backend: LocalBackend, folder: Path
) -> None:
    kept = {"claim": {"size": "1Gi", "keep": "always"}}
    plan = appending(folder, kept)
    first, place = said(backend, plan)
    assert first == "0" and said(backend, appending(folder, kept, "other")) == ("1", place)
    assert place == Path(backend.home) / "claims" / "job-vol"
    backend.delete(plan.run)
    assert (place / "seen").read_text() == "xx"


def test_an_ephemeral_volume_goes_when_the_attempt_has_ended(backend: LocalBackend, folder: Path) -> None:
    plan = appending(folder, {"ephemeral": {"size": "1Gi"}}, **FAILING)
    first, place = said(backend, plan)
    assert first == "0" and not place.exists()
    assert said(backend, plan)[0] == "0"


@pytest.mark.thorough
def test_what_a_killed_supervisor_left_goes_with_the_next_attempt(
    backend: LocalBackend, folder: Path
) -> None:
    plan = appending(folder, {"ephemeral": {"size": "1Gi"}}, **FAILING)
    said(backend, plan)
    left = RunFolder(backend.runs / plan.run).attempt(1, 1).path / "ephemeral-0"
    left.mkdir()
    (left / "large").write_text("x")
    said(backend, plan)
    assert not left.exists()


def test_a_folder_of_the_node_is_that_of_this_machine(
    backend: LocalBackend, folder: Path, tmp_path: Path
) -> None:
    there = tmp_path / "ssd"
    plan = appending(folder, {"host_path": str(there)})
    with pytest.raises(BadInput, match=r"storage\[0\].host_path: .*/ssd is no folder of this machine"):
        backend.launch(plan, ME)
    there.mkdir()
    assert said(backend, plan) == ("0", there)


@pytest.mark.parametrize(
    "volume",
    [{"volume": {"nfs": {"server": "nas", "path": "/a"}}}, {"host_path": "/nowhere"}, {"claim": {"size": 1}}],
    ids=["volume", "host_path", "claim"],
)
def test_what_the_place_maps_is_its_own_folder(
    backend: LocalBackend, folder: Path, tmp_path: Path, volume: dict[str, Any]
) -> None:
    plan = appending(folder, volume)
    if "volume" in volume:
        with pytest.raises(BadInput, match=r"storage\[0\].mount: /vol has no folder here"):
            backend.launch(plan, ME)
    (tmp_path / "own").mkdir()
    backend.site = replace(backend.site, mounts={"/vol": str(tmp_path / "own")})
    assert said(backend, plan) == ("0", tmp_path / "own")


def test_what_has_no_meaning_here_is_named(backend: LocalBackend, folder: Path) -> None:
    claim = {"claim": {"size": "1Gi", "storage_class": "cephfs", "access": "many"}}
    handle = backend.launch(appending(folder, claim, service_account="trainer"), ME)
    assert any(
        note.startswith("service_account, storage[0].claim.storage_class, storage[0].claim.access: ignored")
        for note in handle.notes
    )
    assert state_of(ended(backend, handle.run)) is State.SUCCEEDED


def test_looking_makes_no_claim(backend: LocalBackend, folder: Path) -> None:
    plan = appending(folder, {"claim": {"size": "1Gi"}}, checkpoints={"uri": "/vol/steps"})
    backend.examine(plan)
    assert not (backend.runs / plan.run).exists()


SAVES = """
from allaboard.inside import Checkpointer
import os
ckpt = Checkpointer()
found = ckpt.resume()
print("from", found.step if found else 0)
for step in range(found.step + 1 if found else 1, 8):
    ckpt.step(step, lambda: b"state %d" % step)
    if step == 5 and not found:
        os._exit(3)
print("done", step)
"""


def test_hot_checkpoints_are_taken_where_they_are_newer(backend: LocalBackend, folder: Path) -> None:
    """The member is killed at step 5: the store has step 4 at most, the hot copy 5."""
    plan = a_plan(
        folder,
        SAVES,
        workers=1,
        policy={"restart": "on_failure", "backoff_limit": 1},
        storage=[
            {"mount": "/ckpt", "claim": {"size": "1Gi"}},
            {"mount": "/hot", "ephemeral": {"size": "1Gi"}},
        ],
        checkpoints={"uri": "/ckpt", "every": 4, "hot": {"folder": "/hot", "every": 1}},
    )
    handle = backend.launch(plan, ME)
    assert state_of(ended(backend, handle.run)) is State.SUCCEEDED
    assert "from 5" in text(backend, handle.run)
    store = backend.runs / plan.run / "claims" / f"{plan.run}-ckpt" / plan.run
    assert sorted(path.name for path in store.iterdir() if path.name.startswith("step")) == [
        "step-000000000004",
        "step-000000000005",
    ]
