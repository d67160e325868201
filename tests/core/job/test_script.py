"""A script in the place of a job file: which file is one, and the job that it stands for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allaboard.checking.job import require_valid
from allaboard.errors import BadInput
from allaboard.job.script import job_of_script, starter_of
from allaboard.text.names import as_job_name, why_not_a_job_name


@pytest.mark.parametrize(
    ("file", "content", "starter"),
    [
        ("train.py", b"name: digits\n", ["python"]),
        ("train.py", b"#!/opt/old/python2\n", ["python"]),
        ("job.yaml", b"#!/usr/bin/env allaboard\nname: digits\n", None),
        ("job.json", b"\x7fELF", None),
        ("job", b"name: digits\ncommand: [train]\n", None),
        ("job", b'{"name": "digits"}', None),
        ("train", b"#!/usr/bin/env python3\nprint()\n", ["python3"]),
        (
            "train",
            b"#!/usr/bin/env -S A=1 torchrun --nproc-per-node 2\n",
            ["torchrun", "--nproc-per-node", "2"],
        ),
        ("train", b"#! /bin/bash -e\n", ["/bin/bash", "-e"]),
        ("train.sh", b"echo hello\n", ["sh"]),
        ("train.sh", b"#!/bin/zsh\n", ["/bin/zsh"]),
        ("train.sh", b"", ["sh"]),
        ("train", b"#!\n", None),
        ("train", b"#!'\xff\n", None),
        ("train", b"\x7fELF\x02\x01\x01", []),
        ("train", b"\xcf\xfa\xed\xfe", []),
        ("notes.txt", b"import torch\n", None),
    ],
)
def test_what_a_file_is(tmp_path: Path, file: str, content: bytes, starter: list[str] | None) -> None:
    path = tmp_path / file
    path.write_bytes(content)
    assert starter_of(str(path)) == starter


def test_stdin_and_a_pipe_are_jobs(tmp_path: Path) -> None:
    assert starter_of("-") is None and starter_of("/dev/stdin") is None
    os.mkfifo(pipe := tmp_path / "train")
    assert starter_of(str(pipe)) is None, "nothing is read of what can be read once"


@pytest.mark.parametrize(
    "head", [b"#!/bin/bash\n#SBATCH -N 4\n", b"#PBS -l nodes=2\n", b"#!/bin/sh\n#$ -cwd\n", b"#BSUB -n 4\n"]
)
def test_a_script_of_a_batch_system_is_refused(tmp_path: Path, head: bytes) -> None:
    for file in ("train.sh", "train"):
        (tmp_path / file).write_bytes(head + b"srun python train.py\n")
        with pytest.raises(BadInput, match="asks a batch system"):
            starter_of(str(tmp_path / file))


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        starter_of(str(tmp_path / "train.py"))
    (tmp_path / "src.py").mkdir()
    with pytest.raises(BadInput, match="is a folder"):
        starter_of(str(tmp_path / "src.py"))


@pytest.mark.parametrize(
    "stem", ["Train", "3d", "__", "train_v2.final", "ünï", "x" * 90, "-", "a" * 39 + "-b"]
)
def test_every_script_has_a_legal_name(stem: str) -> None:
    assert why_not_a_job_name(as_job_name(stem)) is None


def test_the_job_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\n")
    job = job_of_script(
        str(tmp_path / "train.py"), ["python"], ["--lr", "3e-4"], workers=4, gpu=1, folder=tmp_path
    )
    assert require_valid(job).as_mapping() == {
        "name": "train",
        "command": ["python", "train.py", "--lr", "3e-4"],
        "workers": 4,
        "resources": {"gpu": 1},
        "code": ["train.py"],
    }


def test_several_gpus_are_used_by_as_many_processes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "go.sh").write_text("")
    job = job_of_script(str(tmp_path / "train.py"), ["python"], [], workers=2, gpu=8, folder=tmp_path)
    assert job.get("command") == ["torchrun", "train.py"]
    job = job_of_script(str(tmp_path / "go.sh"), ["sh"], [], workers=2, gpu=8, folder=tmp_path)
    assert job.get("command") == ["sh", "go.sh"]


def test_a_script_elsewhere_starts_in_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there/go").write_bytes(b"\x7fELF")
    job = job_of_script(str(tmp_path / "there/go"), [], [], workers=1, gpu=0, folder=tmp_path / "here")
    assert (job.folder, job.get("command")) == (str((tmp_path / "there").resolve()), ["./go"])
    job = job_of_script(str(tmp_path / "there/go"), [], [], workers=1, gpu=0, folder=tmp_path)
    assert (job.folder, job.get("command")) == (str(tmp_path.resolve()), ["there/go"])


def test_what_a_script_imports_from_beside_it_is_shipped(tmp_path: Path) -> None:
    files = {
        "src/train.py": "import torch, model.net as net\nfrom data import load\ndef f():\n    import late\n",
        "src/model/__init__.py": "",
        "src/model/net.py": "from . import layers\nfrom ..secret import x\nfrom .... import y\n",
        "src/model/layers.py": "import train\n",
        "src/data.py": "this is not Python\n",
        "src/late.py": "import data, json\n",
        "src/json.txt": "",
        "src/unused.py": "",
        "secret.py": "x = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    job = job_of_script(str(tmp_path / "src/train.py"), ["python"], [], workers=1, gpu=0, folder=tmp_path)
    shipped = [
        "src/data.py",
        "src/late.py",
        "src/model/__init__.py",
        "src/model/layers.py",
        "src/model/net.py",
    ]
    assert job.get("code")[0] == "src/train.py" and sorted(job.get("code")[1:]) == shipped
