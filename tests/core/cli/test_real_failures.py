"""Real gangs of torch.distributed over gloo, each broken in one way: which cause is told first, of which
rank, with which proof, and whether another try may succeed.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any

import pytest

from tests.core.cli.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

GANG = """
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
{before}
dist.init_process_group("gloo", timeout=timedelta(seconds=60){how})
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(1, 200):
    loss = model(torch.ones(8, 4)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 3 and RANK == 1:
        print("rank 1 is at step 3", flush=True)
{then}
    if step > 3:
        time.sleep(0.2)
"""
LATE = """
class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, n):
        os.kill(os.getpid(), 9)
"""

SOON = """
def timedelta(seconds):
    from datetime import timedelta

    return timedelta(seconds=8)

"""
ELSEWHERE = "os.environ['MASTER_PORT'] = str(int(os.environ['MASTER_PORT']) + (RANK == 2))"


@dataclass(frozen=True)
class Break:
    """How a gang of three is broken. ``then``: what rank 1 does at step 3; ``before``: what all do before
    they meet; ``how``: arguments of ``init_process_group``; ``words``: of the summary or of its proof.
    """

    code: str
    words: str
    retryable: bool
    then: str = "pass"
    before: str = ""
    how: str = ""
    blame: str | None = "worker-0"

    @property
    def script(self) -> str:
        return GANG.format(before=self.before, how=self.how, then=" " * 8 + self.then)


BREAKS = {
    "a module that one rank lacks": Break(
        "missing_dependency", "no_such_module", False, "import no_such_module"
    ),
    "an exception on one rank": Break(
        "python_exception",
        "ValueError: the labels are short",
        False,
        "raise ValueError('the labels are short')",
    ),
    "a rank that is killed": Break("killed_externally", "SIGKILL", True, "os.kill(os.getpid(), 9)"),
    "a crash in native code": Break("native_crash", "SIGSEGV", False, "import ctypes; ctypes.string_at(0)"),
    "a rank that exits without a word": Break("unknown", "exited with 3", False, "os._exit(3)"),
    "a data loader whose process is killed": Break(
        "oom_killed",
        "DataLoader worker",
        False,
        "next(iter(torch.utils.data.DataLoader(Points(), num_workers=1)))",
        before=LATE,
    ),
    "tensors of other sizes": Break(
        "python_exception", "shapes cannot be multiplied", False, "model(torch.ones(8, 5))"
    ),
    "a world that is too large": Break(
        "world_size_mismatch",
        "3/5 clients joined",
        False,
        before=SOON.replace("8", "8 if RANK == 0 else 40"),  # or the others give up, and it is stopped first
        how=", init_method='env://', rank=RANK, world_size=5",
        blame=None,
    ),
    "a rendezvous where nobody is": Break(
        "rendezvous_timeout", "trying to connect to", True, before=SOON + ELSEWHERE, blame=None
    ),
}


def first_cause(ab: Terminal, script: str) -> dict[str, Any]:
    """The first diagnosis of a gang of three that runs this script."""
    pytest.importorskip("torch")
    policy = {"restart": "never", "attempts": 1, "deadline": "3m"}
    said = ab("run", ab.job(script, workers=3, policy=policy))
    assert said.code == 1, said.text
    found: dict[str, Any] = ab("doctor", "digits", "--json").json["diagnoses"][0]
    assert found["summary"] in said.err, "the command line says the same"
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("case", BREAKS)
def test_the_first_cause_of_a_broken_gang_is_told(ab: Terminal, case: str) -> None:
    broken = BREAKS[case]
    found = first_cause(ab, broken.script)
    proof = json.dumps([found["summary"], *found["evidence"]])
    assert found["code"] == broken.code, found
    assert broken.words in proof, found
    assert found["retryable"] is broken.retryable, found
    if broken.blame is not None:
        assert broken.blame in (found["blame"] or ""), found


@pytest.mark.thorough
def test_a_port_that_is_taken_is_told(ab: Terminal) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        script = GANG.format(before=f"os.environ['MASTER_PORT'] = '{port}'", how="", then="        pass")
        found = first_cause(ab, script)
    assert found["code"] == "port_in_use" and str(port) in json.dumps(found), found
