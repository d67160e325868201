"""The tests of the provider beside every version of Airflow that provider/pyproject.toml allows.

    make airflow-versions                       all of `ENVIRONMENTS`
    make airflow-versions ARGS="3.1 lowest"     some of them; what follows them goes to pytest

Each environment has Airflow, ours and pytest, and no torch. It needs a network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".venv" / "uv" / "bin"
BESIDE = ("pytest", "pytest-timeout", "pytest-rerunfailures", "jsonschema", "psutil")
FILES = (
    "test_compat.py", "test_imports.py", "test_get_provider_info.py", "test_identity.py", "test_measures.py",
    "test_masking.py", "test_templates.py", "test_decorators.py", "test_triggers.py", "test_train.py",
    "test_sensors.py", "test_retries.py", "test_reconciler.py", "test_database.py", "test_each_version.py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Environment:
    """``airflow``: the versions of it that are allowed, of which the newest is taken; ``options``: of uv;
    ``bounds``: of packages whose newest release this Airflow does not start with.
    """

    airflow: str
    python: str = "3.11"
    options: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()


ENVIRONMENTS = {
    "3.1": Environment(">=3.1,<3.2"),
    "3.2": Environment(">=3.2,<3.3", bounds=("fastapi<0.137", "cadwyn<8")),
    "3.3": Environment(">=3.3,<3.4"),
    "3.4": Environment(">=3.4.0a1,<3.5", options=("--prerelease", "allow")),
    "lowest": Environment("", options=("--resolution", "lowest-direct")),
    "newest": Environment("", python="3.13"),
}


def declared() -> str:
    """``>=3.1``: which Airflow our distribution allows."""
    project = tomllib.loads((ROOT / "provider" / "pyproject.toml").read_text())["project"]
    (found,) = (name for name in project["dependencies"] if re.match(r"apache-airflow[^-\w]", name))
    return str(found.removeprefix("apache-airflow"))


def interpreter(version: str) -> str | None:
    """A Python of this version; None where this machine has none."""
    command = [str(UV / "uv"), "python", "find", "--no-python-downloads", version]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def made(name: str) -> Path:
    """The interpreter of an environment that is made anew."""
    wanted = ENVIRONMENTS[name]
    python = ROOT / ".venv" / f"airflow-{name}" / "bin" / "python"
    uv = str(UV / "uv")
    _run(uv, "venv", "--quiet", "--clear", "--python", wanted.python, str(python.parents[1]))
    ours = [f"{ROOT}/core[s3,kubernetes]", f"{ROOT}/provider[s3,kubernetes]"]
    _run(
        uv, "pip", "install", "--quiet", *wanted.options, "--python", str(python),
        *(word for path in ours for word in ("-e", path)), f"apache-airflow{wanted.airflow}",
        *wanted.bounds,
    )  # fmt: skip
    # Tools, whose own floors say nothing about ours.
    _run(uv, "pip", "install", "--quiet", "--python", str(python), *BESIDE)
    return python


def main(arguments: list[str]) -> int:
    names = [name for name in arguments if name in ENVIRONMENTS] or list(ENVIRONMENTS)
    rest = [name for name in arguments if name not in ENVIRONMENTS]
    files = [str(Path("tests/provider") / name) for name in FILES]
    failed = []
    for name in names:
        wanted = ENVIRONMENTS[name]
        print(f"\n== Airflow {wanted.airflow or f'{declared()}, {name}'}, Python {wanted.python}", flush=True)
        if interpreter(wanted.python) is None:
            print(f"left out: there is no Python {wanted.python} on the path")
            continue
        python = made(name)
        _run(str(python), "-c", "import airflow, sys; print('airflow', airflow.__version__, sys.version)")
        environ = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        command = [str(python), "-m", "pytest", "-q", *files, *rest]
        if subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all good")
    return 1 if failed else 0


def _run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
