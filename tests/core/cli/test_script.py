"""`allaboard run train.py`: a script without a job file, on this machine and on a cluster."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from allaboard.backends.kubernetes.client.resources import CONFIGMAPS
from allaboard.cli.place import Place
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.testing.objects import PYTORCHJOBS
from tests.core.cli.terminal import Terminal
from tests.core.cli.test_on_a_cluster import Desk, desk

__all__ = ["desk"]

SAYS = """
import json, os, sys
import helper
from allaboard.inside import result
if os.environ["RANK"] == "0":
    print("said", json.dumps([sys.argv[1:], os.environ["WORLD_SIZE"], os.getcwd(), helper.X]))
    result(ok=1)
"""


def printed_job(out: str) -> dict[str, object]:
    """The job file at the head of what was printed: up to the first line that is no line of it."""
    head, *lines = out.splitlines()
    assert head.startswith("# ") and "stands for" in head
    end = next(n for n, line in enumerate(lines) if " is on its way" in line)
    return dict(yaml.safe_load("\n".join(lines[:end])))


def test_a_script_runs_without_a_job_file(ab: Terminal) -> None:
    ab.write("helper.py", "X = 5\n")
    ab.write("train_it.py", SAYS)
    said = ab("run", "train_it.py", "-w", "2", "--", "--lr", "3e-4", "two words", "--", "-w")
    assert said.code == 0, said.text
    job = printed_job(said.out)
    arguments = ["--lr", "3e-4", "two words", "--", "-w"]
    assert job == {
        "name": "train-it",
        "command": ["python", "train_it.py", *arguments],
        "workers": 2,
        "code": ["train_it.py", "helper.py"],
    }
    logs = ab("logs", "train-it", "master-0", "--raw").out
    (line,) = [line for line in logs.splitlines() if "said [" in line]
    given = json.loads(line.partition("said ")[2])
    assert given == [arguments, "2", str(ab.folder.resolve()), 5]


def test_the_printed_file_is_the_same_job(ab: Terminal) -> None:
    ab.write("helper.py", "X = 5\n")
    ab.write("train.py", SAYS)
    said = ab("run", "train.py", "--key", "k", "--", "--lr", "3e-4", "1e3", "yes", "0x1f", "1_000", "")
    assert said.code == 0, said.text
    ab.write("job.yaml", yaml.safe_dump(printed_job(said.out)))
    again = ab("run", "job.yaml", "--key", "k")
    assert again.code == 0 and "differ" not in again.text and "changed" not in again.text, again.text
    assert len(ab.runs()) == 1


def test_json_is_one_object_beside_the_printed_file(ab: Terminal) -> None:
    ab.write("helper.py", "X = 5\n")
    ab.write("train.py", SAYS)
    said = ab("run", "train.py", "--json")
    assert said.code == 0 and said.json["metrics"] == {"ok": 1} and "stands for" in said.err


@pytest.mark.thorough
def test_a_shell_script_and_an_executable_run(ab: Terminal) -> None:
    ab.write("go.sh", 'test "$1" = left && test "$WORLD_SIZE" = 2\n')
    assert ab("run", "go.sh", "-w", "2", "--", "left").code == 0
    assert ab("run", "go.sh", "-w", "2", "--", "right").code == 1
    ab.write("start", "#!/usr/bin/env sh\nexit 0\n")
    assert ab("run", "start").code == 0, "its first line says who runs it; no mode is needed"
    shutil.copy(shutil.which("true") or "/bin/true", ab.folder / "trainer")
    assert ab("run", "trainer").code == 0


@pytest.mark.thorough
def test_the_command_to_continue_is_that_of_the_script(ab: Terminal) -> None:
    ab.write("train.py", "raise SystemExit(3)\n")
    said = ab("run", "train.py", "-w", "2", "--key", "night one", "--", "--tries", "1 or 2")
    assert said.code == 1
    assert "allaboard run train.py -w 2 --key 'night one' -- --tries '1 or 2'" in said.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["job.json", "-w", "2"], "-w: job.json is a job"),
        (["job.json", "--gpu", "1", "--", "--lr", "1"], "--gpu, arguments: job.json is a job"),
        (["train.py", "--lr", "3e-4"], "a script's own options go after --"),
        (["train.py", "-w", "0"], "0 is not in the range"),
        (["notes"], "a script ends in .py or .sh, or begins with #!"),
        (["gone.py"], "no such file"),
    ],
)
def test_what_is_no_script_is_told(ab: Terminal, words: list[str], told: str) -> None:
    ab.job()
    ab.write("train.py", "")
    ab.write("notes", "import torch")
    said = ab("run", *words)
    assert said.code == 2 and told in said.err and not ab.runs()


def test_on_a_cluster_the_script_is_shipped(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk.folder)
    backend = desk.cluster.backend(facts=ClusterFacts(image="registry.lab/train:v1"))
    monkeypatch.setattr(Place, "open", lambda *_: backend)
    Path("go.sh").write_text("#!/bin/bash\necho hello\n")
    code, out, err = desk("run", "go.sh", "-w", "3", "--gpu", "2", "--detach", "--", "--lr", "3e-4")
    assert code == 0, err
    assert "name: go" in out
    (job,) = desk.cluster.all(PYTORCHJOBS)
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    (container,) = template["containers"]
    assert container["command"][-4:] == ["/bin/bash", "go.sh", "--lr", "3e-4"], "behind the helper"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    (volume,) = [v["configMap"] for v in template["volumes"] if v["name"] == "code"]
    assert volume["defaultMode"] == 0o555
    (shipped,) = [c for c in desk.cluster.all(CONFIGMAPS) if c["metadata"]["name"] == volume["name"]]
    assert shipped["data"] == {"go.sh": "#!/bin/bash\necho hello\n"}
