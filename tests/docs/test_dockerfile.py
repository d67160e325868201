"""The image: its instructions are read and held to what we promise of it. Nothing is built here, but by
test_image.py.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.meta.source import DISTS, ROOT, tracked

FOLDER = ROOT / "core" / "docker"
TEXT = (FOLDER / "Dockerfile").read_text()
KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "CMD"}


@dataclass(frozen=True, slots=True)
class Instruction:
    word: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """The instructions in order, continued lines joined; comments are left out."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


STEPS = instructions(TEXT)


def rests(word: str, steps: list[Instruction] = STEPS) -> list[str]:
    return [step.rest for step in steps if step.word == word]


def last_stage() -> list[Instruction]:
    at = max(n for n, step in enumerate(STEPS) if step.word == "FROM")
    return STEPS[at:]


def test_it_uses_the_instructions_that_are_checked_here() -> None:
    assert {step.word for step in STEPS} <= KNOWN


def test_the_base_is_an_argument_with_a_release_that_we_support() -> None:
    bases = {base.split()[0] for base in rests("FROM")}
    assert bases == {"${PYTHON}"}
    default = next(rest for rest in rests("ARG") if rest.startswith("PYTHON="))
    version = re.fullmatch(r"PYTHON=python:3\.(\d+)-slim-\w+", default)
    assert version is not None and int(version[1]) >= 11
    assert STEPS[0].word == "ARG", "an argument before the first FROM is one of all stages"


def test_it_runs_as_a_user_that_is_not_root_and_has_a_number() -> None:
    (user,) = rests("USER", last_stage())
    number, group = user.split(":")
    assert int(number) >= 1000 and group == "0"
    assert "chmod -R g=u" in " ".join(rests("RUN", last_stage())), "OpenShift chooses the user, in group 0"
    after = [step.word for step in last_stage()]
    assert after.index("USER") > max(n for n, word in enumerate(after) if word == "RUN")


def test_what_it_copies_is_there_and_sent() -> None:
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    assert ignored[1] == "*" and all((ROOT / name).exists() for name in allowed)
    copied = {
        source for rest in rests("COPY") if not rest.startswith("--from=") for source in rest.split()[:-1]
    }
    locks = {"tests/requirements-airflow.lock", "tests/requirements-kfp.lock"}
    assert copied == {str(dist.folder.relative_to(ROOT)) for dist in DISTS} | locks
    assert locks <= {*allowed}
    for dist in DISTS:
        # What its build reads.
        for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
            assert f"{dist.folder.relative_to(ROOT)}/{name}" in allowed
        hooks = tomllib.loads((dist.folder / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
            "targets"
        ]
        forced = hooks["wheel"].get("force-include", {})
        assert [path for path in forced if not path.startswith("src/")] == []
    assert not any(fnmatch(".venv/x", name) for name in allowed)


def test_stages_that_are_named_exist() -> None:
    stages = {rest.split(" AS ")[1] for rest in rests("FROM") if " AS " in rest}
    assert {
        rest.split()[0].removeprefix("--from=") for rest in rests("COPY") if rest.startswith("--from=")
    } == stages


@pytest.mark.parametrize("script", rests("RUN"), ids=lambda script: script.split()[0])
def test_its_scripts_are_shell_and_leave_no_cache(script: str) -> None:
    done = subprocess.run(["/bin/sh", "-n", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for found in re.finditer(r"pip (?:install|wheel)([^&]*)", script):
        assert "--no-cache-dir" in found[1]
    assert "apt-get" not in script and "curl" not in script and "sudo" not in script


@pytest.mark.parametrize("purpose", ["members", "kfp", "airflow"])
def test_each_purpose_installs_extras_that_are_there(purpose: str) -> None:
    """The script runs, with a pip that says what it is asked for."""
    script = rests("RUN", last_stage())[0]
    stub = "python() { shift 2; printf '%s\\n' \"$@\"; }; mkdir() { :; }; chgrp() { :; }; chmod() { :; }; "
    done = subprocess.run(
        ["/bin/sh", "-euc", stub + script],
        env={"FOR": purpose, "HOME": "/nowhere", "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    asked = list(re.finditer(r"^([a-z-]+)\[([\w,]+)\]$", done.stdout, re.MULTILINE))
    assert len(asked) == (1 if purpose == "members" else 2)
    lock = "kfp" if purpose == "kfp" else "airflow"
    assert f"--constraint\n/wheels/requirements-{lock}.lock\n" in done.stdout
    for found in asked:
        dist = next(dist for dist in DISTS if dist.name == found[1])
        about = tomllib.loads((dist.folder / "pyproject.toml").read_text())["project"]
        assert set(found[2].split(",")) <= set(about["optional-dependencies"])


def test_another_purpose_is_refused_with_what_is_allowed() -> None:
    script = rests("RUN", last_stage())[0]
    done = subprocess.run(
        ["/bin/sh", "-euc", script], env={"FOR": "x", "PATH": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "members, kfp or airflow" in done.stderr


def test_hadolint_has_nothing_to_say() -> None:
    program = shutil.which("hadolint", path=Path(sys.executable).parent)
    if program is None:
        pytest.skip("there is no hadolint for this platform")
    done = subprocess.run(
        [program, "--no-color", FOLDER / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_its_command_is_a_list() -> None:
    (command,) = rests("CMD")
    assert command.startswith("[") and shlex.split(command.strip("[]").replace(",", " "))[0] == "allaboard"


def test_the_arguments_that_documents_name_are_its_own() -> None:
    declared = {rest.partition("=")[0] for rest in rests("ARG")}
    named = {
        found
        for path in tracked()
        if path.suffix == ".md"
        for found in re.findall(r"--build-arg ([A-Z_]+)=", path.read_text())
    }
    assert named and named <= declared
    assert (
        Path(FOLDER / "Dockerfile").relative_to(ROOT).as_posix()
        in (ROOT / "core/docs/how-to/image.md").read_text()
    )
