"""A success that its end contradicts: the state stays the operator's, and everybody is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.core.cli.terminal import Terminal

SIGTERM_AT_3 = """
import os, signal, sys, time
from allaboard.inside import report
signal.signal(signal.SIGTERM, lambda *_: (print("caught SIGTERM, bye", flush=True), sys.exit(0)))
for step in range(1, 10):
    report(step=step, total=9)
    if step == 3:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
"""
SIGTERM_AT_9 = SIGTERM_AT_3.replace("step == 3", "step == 9")
FAILS = "print('rows', flush=True)\nraise KeyError('label')\n"
STOPS_EARLY = """
from allaboard.inside import report
for step in range(1, 5):
    report(step=step, total=9)
print("early stopping: val_loss did not improve")
"""
LEAVES = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank():
    dist.all_reduce(torch.ones(1))
os._exit(0)
"""
SAVES = """
import os, signal, sys, time
from allaboard.inside import Checkpointer, report
saver = Checkpointer()
last = int(sys.argv[1])
for step in range(1, last + 1):
    report(step=step, total=9, accuracy=step / 10)
    saver.step(step, lambda: b"state %d" % step, metrics={"accuracy": step / 10})
"""
WAITS_ON = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
others = dist.new_group([1, 2])
if dist.get_rank() == 1:
    dist.all_reduce(torch.ones(1), group=others)
time.sleep(3 if dist.get_rank() == 0 else 60)
os._exit(0)
"""


@pytest.mark.thorough(but=("script0", "print('x')"))
@pytest.mark.parametrize(
    ("script", "shell", "sentence"),
    [
        (SIGTERM_AT_3, None, "master-0 exited with 0 after a signal at step 3 of 9"),
        (FAILS, "python job.py; echo bye", "its last words are a traceback"),
        (FAILS, "python job.py || true", "its last words are a traceback"),
        (FAILS, "set +e; python job.py 2>&1 | tee all.log; true", "its last words are a traceback"),
        ("print('x')", "python jop.py; echo copied", "its last words are an error"),
    ],
)
def test_it_is_told_wherever_somebody_looks(
    ab: Terminal, script: str, shell: str | None, sentence: str
) -> None:
    file = ab.job(script, command=["bash", "-c", shell] if shell else ["python", "job.py"])
    ran = ab("run", file)
    assert ran.code == 0 and "which is doubtful" in ran.out and sentence in ran.out, ran.text
    status = ab("status", "digits", "--json").json
    assert status["state"] == "succeeded" and "success_doubtful" in status["flags"]
    assert sentence in next(d for d in status["diagnoses"] if d["code"] == "success_doubtful")["summary"]
    assert ab("doctor", "digits", "--json").json["diagnoses"][0]["code"] == "success_doubtful"
    ab("report", "digits", "-o", "page.html")
    page = (ab.folder / "page.html").read_text()
    assert sentence in page and "success_doubtful" in page


@pytest.mark.thorough(but=("script0",))
@pytest.mark.parametrize("script", [SIGTERM_AT_9, STOPS_EARLY])
def test_an_end_that_says_why_is_a_success(ab: Terminal, script: str) -> None:
    ran = ab("run", ab.job(script))
    assert ran.code == 0 and "doubtful" not in ran.text
    assert ab("status", "digits", "--json").json["flags"] == []
    assert ab("doctor", "digits", "--json").json["diagnoses"][0]["code"] == "healthy"


@pytest.mark.thorough
@pytest.mark.slow
def test_rank_0_is_gone_and_another_waits_for_it(ab: Terminal) -> None:
    """A collective of gloo ends with an error once its peer is gone; whoever waits or fails is named."""
    ran = ab("run", ab.job(LEAVES, workers=2))
    assert ran.code == 0 and "which is doubtful" in ran.out, ran.text
    [doubt] = [
        d for d in ab("doctor", "digits", "--json").json["diagnoses"] if d["code"] == "success_doubtful"
    ]
    assert doubt["blame"] == "worker-0", doubt


@pytest.mark.thorough
@pytest.mark.slow
def test_a_rank_that_waits_when_the_run_ends_is_named_with_its_line(ab: Terminal) -> None:
    ran = ab("run", ab.job(WAITS_ON, workers=3))
    assert ran.code == 0, ran.text
    doubt = ab("doctor", "digits", "--json").json["diagnoses"][0]
    assert "rank 1 still waits in all_reduce at" in doubt["summary"] and "job.py:7" in doubt["summary"], doubt
    assert "success_doubtful" in ab("status", "digits", "--json").json["flags"]


def candidate(ab: Terminal, last: int) -> str:
    """The uri of the collected checkpoint of a run that ends at this step of 9."""
    command = ["python", "job.py", str(last)]
    assert ab("run", ab.job(SAVES, command=command, checkpoints={"uri": "saved", "every": 1})).code == 0
    (folder,) = (ab.folder / "saved").iterdir()
    flags = json.loads((folder / "flags.json").read_text())
    assert flags["state"] == "succeeded" and [*flags["flags"]] == (["success_doubtful"] if last < 9 else [])
    body = ab("checkpoints", "collect", "digits", "models", "--json").json
    assert body["flags"] == [*flags["flags"]]
    return str(body["uri"])


GATE = ("--into", "champions", "--metric", "accuracy", "--json")


def test_a_gate_refuses_a_doubtful_success_unless_it_is_told_to(ab: Terminal) -> None:
    uri = candidate(ab, 4)
    refused = ab("promote", uri, *GATE).json
    assert not refused["promoted"] and "success_doubtful (master-0 exited" in refused["verdict"]["reason"]
    assert refused["verdict"]["checks"][-1]["kind"] == "flags" and refused["notes"] == []
    allowed = ab("promote", uri, *GATE, "--despite-flags").json
    assert allowed["promoted"] and "despite it" in allowed["verdict"]["reason"]


def test_a_gate_says_so_where_nothing_is_known_of_the_end(ab: Terminal) -> None:
    uri = candidate(ab, 9)
    (Path(uri).parent / "flags.json").unlink()
    body = ab("promote", uri, *GATE).json
    assert body["promoted"] and "nothing is known of how its run ended" in body["notes"][0]


def test_a_success_that_nothing_contradicts_is_promoted(ab: Terminal) -> None:
    body = ab("promote", candidate(ab, 9), *GATE).json
    assert body["promoted"] and body["notes"] == [] and len(body["verdict"]["checks"]) == 1
