"""What goes wrong while a run is under way: it is said, with the exit code, and nothing is torn
(core/docs/contract.md, Bad days)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.cli.terminal import Terminal

pytestmark = pytest.mark.thorough

RESUMES = """
import sys
from allaboard.inside import Checkpointer, report, result
saver = Checkpointer()
found = saver.resume()
first = found.step + 1 if found else 1
print("begins at", first, flush=True)
for step in range(first, 41):
    report(step=step, total=40, loss=1 / step)
    saver.step(step, lambda: b"state %d" % step)
    if step == 25 and not found:
        sys.exit(1)
result(first=first)
"""
SAVING = {"checkpoints": {"uri": "saved", "every": 10}, "policy": {"restart": "never"}}


def flags(ab: Terminal) -> list[str]:
    return list(ab("status", "digits", "--json").json["flags"])


def test_a_corrupted_newest_checkpoint_falls_back_to_the_one_before_and_says_so(ab: Terminal) -> None:
    job = ab.job(RESUMES, **SAVING)
    assert ab("run", job, "--key", "nightly").code == 1
    (run,) = ab.runs()
    newest = next((ab.folder / "saved" / run / "step-000000000020").glob("state*"))
    newest.write_bytes(b"garbage!")
    said = ab("run", job, "--key", "nightly")
    assert said.code == 0 and "first 11" in said.out, said.text
    assert "warning" in said.out and "step-000000000020" in said.out
    body = ab("status", "digits", "--json").json
    assert body["flags"] == ["checkpoint_corrupt"] and body["diagnoses"][0]["code"] == "checkpoint_corrupt"
    assert body["progress"]["lost_steps"] == 15, "25 were done, it went on from 10"


def test_a_run_under_its_key_resumes_where_it_stopped(ab: Terminal) -> None:
    job = ab.job(RESUMES, **SAVING)
    said = ab("run", job, "--key", "nightly")
    assert said.code == 1 and "resumes from its newest checkpoint" in said.err
    said = ab("run", job, "--key", "nightly", "--json")
    assert said.code == 0 and said.json["metrics"] == {"first": 21}
    assert said.json["attempt"] == 2 and said.json["progress"] == {"step": 40, "total": 40, "lost_steps": 5}


def test_a_loss_that_is_no_number_is_flagged_and_the_scripts_own_end_stands(ab: Terminal) -> None:
    script = (
        "from allaboard.inside import report, result\n"
        + "for step in range(1, 4): report(step, 3, loss=float('nan'))\n"
    )
    said = ab("run", ab.job(script + "result(loss=float('nan'))"), "--json")
    assert said.code == 0 and "NaN" not in said.out
    assert said.json["flags"] == ["nan_loss"] and said.json["metrics"] == {"loss": None}
    assert said.json["diagnoses"][0]["code"] == "nan_loss"
    text = ab("run", ab.job(script)).out
    assert "warning" in text and "loss is not a finite number" in text


def test_a_script_that_never_meets_its_peers_is_flagged(ab: Terminal) -> None:
    said = ab("run", ab.job("print('alone')", workers=3))
    assert (
        said.code == 0
        and "none ever listened at the rendezvous" in said.out
        and "init_process_group" in said.out
    )
    assert flags(ab) == ["rendezvous_never_happened"]


def test_one_member_needs_no_rendezvous(ab: Terminal) -> None:
    assert ab("run", ab.job("print('alone')")).code == 0
    assert flags(ab) == []


def test_a_disk_that_fills_while_saving(ab: Terminal, small_disk: Path) -> None:
    script = """
import os
from allaboard.inside import Checkpointer
saver = Checkpointer()
for step in range(1, 10):
    saver.save(step, os.urandom(300_000))
"""
    said = ab("run", ab.job(script, checkpoints={"uri": str(small_disk)}, policy={"restart": "never"}))
    assert said.code == 1 and "the disk is full" in said.err and str(small_disk) in said.err
    assert "free space or prune checkpoints" in said.err
    said = ab("checkpoints", "verify", "digits")
    assert said.code == 0 and "whole" in said.out, "what was saved before is untouched"


def test_a_store_that_dies_while_saving(ab: Terminal) -> None:
    from tests.core.s3server import s3_server

    script = """
import pathlib, time
from allaboard.inside import Checkpointer
saver = Checkpointer()
saver.save(1, b"first")
print("ready", flush=True)
while not pathlib.Path("dead").exists():
    time.sleep(0.02)
saver.save(2, b"second")
"""
    with s3_server() as server:
        ab.environ.update(server.environ, AWS_MAX_ATTEMPTS="2")
        uri = f"s3://{server.make_bucket()}/runs"
        process = ab.start("run", ab.job(script, checkpoints={"uri": uri}, policy={"restart": "never"}))
        ab.until_said("ready")
        server.kill()
        (ab.folder / "dead").touch()
        from tests.core.cli.terminal import finished

        said = finished(process)
    assert said.code == 1 and "the store does not answer" in said.err, said.text
    assert "secretsecret" not in said.text


def test_a_member_that_is_killed_from_outside_is_said_to_be(ab: Terminal) -> None:
    script = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    said = ab("run", ab.job(script, policy={"restart": "never"}), "--attempts", "1")
    assert said.code == 1 and "killed from outside (SIGKILL)" in said.err
    assert "master-0's exit code: 137" in said.err


def test_a_program_that_vanishes_after_the_check(ab: Terminal) -> None:
    program = ab.folder / "trainer"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    said = ab("run", ab.job(command=["./trainer"], policy={"restart": "never"}))
    assert (
        said.code == 1
        and "could not be started" in said.err
        and "bad_entrypoint" in ab("status", "digits", "--json").out
    )


def test_a_module_that_is_not_installed(ab: Terminal) -> None:
    said = ab("run", ab.job("import no_such_module", policy={"restart": "never"}))
    assert (
        said.code == 1
        and "No module named 'no_such_module'" in said.err
        and "install it where the members run" in said.err
    )
