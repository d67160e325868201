"""A success is doubted where the end of the run contradicts it, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allaboard.diagnosis import diagnose
from allaboard.diagnosis.ends import doubts_of
from allaboard.follow.loop import Outcome
from allaboard.runs.observation import (
    Condition,
    MemberSeen,
    Observation,
    Progress,
)
from allaboard.runs.status import DOUBTFUL
from allaboard.text.reportline import encode

UNCAUGHT = """Traceback (most recent call last):
  File "/work/train.py", line 31, in <module>
    main()
  File "/work/train.py", line 12, in main
    batch = rows[n]
ValueError: row 7 has no label
"""
HANDLED = """Traceback (most recent call last):
  File "/work/train.py", line 12, in fetch
    return rows[n]
KeyError: 'label'
"""


def succeeded(text: str, step: int | None = None, total: int | None = None, **changes: object) -> Observation:
    seen = Observation(
        "digits-1",
        conditions=(Condition("Succeeded", "True", "Completed", "", 100.0),),
        members=(MemberSeen("master", 0, 0, "succeeded", exit_code=0, ended=100.0),),
        finished=100.0,
        progress=Progress(step=step, total=total),
        tails={"master-0": text},
    )
    return replace(seen, **changes)  # type: ignore[arg-type]


def reports(last: int, total: int | None, every: int = 1, first: int = 1) -> str:
    return "".join(f"{encode('progress', step=n, total=total)}\n" for n in range(first, last + 1, every))


def steps(last: int, total: int | None = None) -> str:
    of = f"/{total}" if total is not None else ""
    return "".join(f"step {n}{of} loss {2 - n / 100:.3f}\n" for n in range(1, last + 1))


DOUBTED = {
    "sigterm handled at step 40 of 100": steps(40, 100) + "Received SIGTERM: 15\n",
    "sigterm, saved, no total": steps(40) + "caught signal SIGTERM, saving\ncheckpoint written to /ckpt/40\n",
    "sigint": steps(3, 9) + "Got SIGINT, exiting\n",
    "notice of a preemption": steps(40) + "Preemption notice received, checkpoint saved, exiting\n",
    "sigterm, which it calls a finish": steps(40, 100) + "SIGTERM received\nTraining finished early\n",
    "sigterm and nothing else": "loading\nReceived SIGTERM: 15\n",
    "termination by a supervisor": steps(40, 100) + "Caught termination signal, shutting down workers\n",
    "a shell swallows it": UNCAUGHT + "done\n",
    "a wrapper calls it finished": steps(40, 100) + UNCAUGHT + "training complete\n",
    "a wrapper calls it finished, no steps": UNCAUGHT + "Training finished\n",
    "set +e, logs copied": UNCAUGHT + "copying logs\nuploaded 3 files\n",
    "a pipe into tee": steps(2) + UNCAUGHT,
    "try around main, which prints": "loading\n" + HANDLED,
    "print of an exception": "loading rows\nerror: row 7 has no label\n",
    "logger's error": steps(7) + "2026-11-27 12:00:00 ERROR trainer: out of rows\n",
    "an exception as one line": steps(7) + "ValueError: row 7 has no label\n",
    "training failed": steps(7) + "Training failed: row 7 has no label\n",
    "killed below a shell": "run.sh: line 1: 4711 Killed                  python train.py\ndone\n",
    "no such file": "python: can't open file '/work/trian.py': [Errno 2] No such file or directory\n",
    "no command": "run.sh: line 3: torchrun: command not found\nok\n",
    "epochs below the total": "Epoch 1/10\nEpoch 2/10\nEpoch 3/10\nbye\n",
    "a bar that stops": "".join(f" {n}%|###   | {n}/100 [00:0{n}<00:01]\n" for n in range(1, 9)),
    "a bar of returns": "\r".join(f" {n}%|###   | {n}/100 [00:00<00:01]" for n in range(1, 90)),
    "reports below the total": reports(40, 100),
    "early stopping was only configured": "EarlyStopping(patience=3)\n" + steps(40, 100) + "bye\n",
    "a traceback after all steps": steps(100, 100) + UNCAUGHT,
    "a chain": steps(2)
    + HANDLED
    + "\nDuring handling of the above exception, another exception occurred:\n\n"
    + UNCAUGHT,
    "torchrun": "\n".join(f"[rank0]: {line}" for line in UNCAUGHT.splitlines()) + "\nok\n",
}
TRUSTED = {
    "all steps": steps(100, 100),
    "all steps, said": steps(100, 100) + "training complete\n",
    "no steps": "loading\nsaving model to /out\n",
    "nothing": "\n",
    "the last report is not the last step": reports(100, 105, 10, 10),
    "steps from zero": reports(99, 100, 1, 0),
    "a handled traceback, and it goes on": steps(3) + HANDLED + steps(9),
    "a handled traceback, and it is done": HANDLED + "skipped 1 row\n" * 3 + "Training finished\n",
    "an upload that failed after all": steps(9, 9) + HANDLED + "could not upload; Training finished\n",
    "a thread": steps(9, 9) + "Exception in thread Thread-3 (upload):\n" + UNCAUGHT,
    "a thread, no total": steps(9) + "Exception in thread Thread-3 (upload):\n" + UNCAUGHT,
    "an interpreter's end": "ok\nException ignored in: <function Pool.__del__ at 0x7f>\n" + HANDLED,
    "early stopping": steps(40, 100) + "Early stopping at epoch 4\n",
    "no improvement": steps(40, 100)
    + "Monitored metric val_loss did not improve in the last 3 records. Signaling Trainer to stop.\n",
    "max_time": steps(40, 100) + "Time limit reached. Elapsed time is 0:01:00.\n",
    "max_time of a loop": steps(40, 100) + "max_time 60 s reached, saving\n",
    "target": steps(40, 100) + "target accuracy 0.98 reached\n",
    "converged": steps(40, 100) + "loss converged\n",
    "sigterm after the last step": steps(100, 100) + "Received SIGTERM: 15\n",
    "sigterm after the end, no total": steps(40) + "Training finished\nReceived SIGTERM: 15\n",
    "a handler was set": "installed a handler: on SIGTERM a checkpoint is saved\n" + steps(40),
    "it would be handled": "checkpoints are saved when SIGTERM is received\n" + steps(40),
    "sigterm, and it went on to the end": steps(40, 100) + "Received SIGTERM, saving\n" + steps(100, 100),
    "a metric called error": steps(100, 100) + "val_error: 0.31\n",
    "no errors": steps(9) + "evaluation: 0 errors\n",
    "a warning": steps(9) + "WARNING: could not remove /tmp/x: failed\n",
    "torch's warning": steps(9)
    + "[rank0]:[W1127 12:00:00.1 ProcessGroupNCCL.cpp:1] Warning: destroy_process_group() was not called "
    "before program exit, which can leak resources. For more info, please see https://pytorch.org\n",
    "epochs with batches": "Epoch 2/2: batch 390/391\nEpoch 2/2: batch 391/391\nval batch 3/10\n"[:52],
    "batches of the last epoch": "Epoch 2/2: 10%| | 1/10 [0<1]\nEpoch 2/2: 100%|#| 10/10 [0<1]\n",
}


@pytest.mark.parametrize("name", DOUBTED)
def test_an_end_that_contradicts_a_success_is_doubted(name: str) -> None:
    seen = succeeded(DOUBTED[name])
    [doubt] = doubts_of(seen)
    assert doubt.member == "master-0" and "exited with 0" in doubt.text
    [first, *_] = diagnose(seen)
    assert first.code == DOUBTFUL and doubt.text in first.summary
    assert Outcome(seen, diagnose(seen)).ok


@pytest.mark.parametrize("name", TRUSTED)
def test_an_end_that_contradicts_nothing_is_trusted(name: str) -> None:
    seen = succeeded(TRUSTED[name])
    assert doubts_of(seen) == ()
    assert [d for d in diagnose(seen) if d.code == DOUBTFUL] == []
    assert diagnose(seen, thorough=True)[0].code == "healthy"


PEER_GONE = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/work/train.py", line 40, in <module>
[rank1]:     dist.barrier()
[rank1]: RuntimeError: [pair.cc:561] Connection closed by peer [10.0.0.7]:24778. GLHF!
"""
ENDED_WITH_IT = """Traceback (most recent call last):
  File "/work/train.py", line 40, in stop
    raise SystemExit(f"stopped by SIGTERM")
SystemExit: stopped by SIGTERM
"""


@pytest.mark.parametrize("phase", ["deleted", "running"])
@pytest.mark.parametrize(
    ("text", "wrote", "is_doubted"),
    [
        (PEER_GONE, 100.2, True),
        (UNCAUGHT, 98.0, True),
        (UNCAUGHT, 20.0, False),  # handled long ago; ranks but the first print nothing
        (ENDED_WITH_IT, 100.5, False),
        ("ready\n", 99.0, False),
        ("", None, False),
    ],
)
def test_a_member_whose_pod_goes_before_its_end_was_seen(
    text: str, wrote: float | None, is_doubted: bool, phase: str
) -> None:
    """An operator takes pods away in the moment in which rank 0 is done."""
    worker = MemberSeen("worker", 0, 1, phase)
    seen = succeeded(reports(40, 40), 40, 40, wrote={} if wrote is None else {"worker-0": wrote})
    seen = replace(seen, members=(*seen.members, worker), tails={**seen.tails, "worker-0": text})
    found = doubts_of(seen)
    assert bool(found) is is_doubted
    if is_doubted:
        assert found[0].text == "worker-0 had failed when it was ended with the run"
