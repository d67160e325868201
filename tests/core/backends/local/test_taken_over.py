"""A run whose folder of checkpoints another attempt writes now, such as one of another host with its key."""

from __future__ import annotations

import time
from pathlib import Path

from allaboard.backends.local.backend import LocalBackend
from allaboard.checkpoints.writers import claim
from allaboard.diagnosis import diagnose
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from allaboard.storage import open_store
from tests.core.backends.local.helpers import a_plan, ended, wait_for

TRAINS = """
import time
from allaboard.inside import Checkpointer
checkpointer = Checkpointer()
found = checkpointer.resume()
for step in range(found.step + 1 if found else 1, 10**6):
    checkpointer.step(step, lambda: b"state")
    time.sleep(0.1)
"""


def test_it_ends_once_without_a_restart_and_says_who_goes_on(backend: LocalBackend, folder: Path) -> None:
    plan = a_plan(
        folder,
        TRAINS,
        workers=1,
        policy={"restart": "on_failure", "backoff_limit": 3},
        checkpoints={"uri": str(folder / "ckpt"), "every": 1},
    )
    handle = backend.launch(plan, Owner("me", "detached", "detached"))
    uri = backend.saving(handle.run)
    assert uri is not None
    store = open_store(uri)
    wait_for(lambda: "step-000000000003" in store.folders())
    claim(store, 3, "another attempt", time.time())
    seen = ended(backend, handle.run)
    assert state_of(seen) is State.FAILED and seen.restarts == 0
    [found] = diagnose(backend.observe(handle.run, evidence=True))[:1]
    assert (found.code, found.retryable) == ("checkpoint_taken_over", False)
    assert "has taken over this folder at" in found.summary
    assert "checkpoint_taken_over" in seen.flags
