"""The first five minutes: the built wheel in an empty environment, as `pipx run --spec` would make it, and
the demo in an empty folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.meta.source import CORE, ROOT

UV = ROOT / ".venv" / "uv" / "bin" / "uv"
LOCK = ROOT / "tests" / "requirements-airflow.lock"
EXTRAS = ("torch", "s3")


@pytest.mark.thorough
def test_the_extras_that_the_readme_names_are_there() -> None:
    about = tomllib.loads((CORE.folder / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) <= set(about["optional-dependencies"])
    assert (
        f"pipx run --spec 'allaboard[{','.join(EXTRAS)}]' allaboard demo" in (ROOT / "README.md").read_text()
    )


def installed(into: Path) -> Path:
    """An environment that holds the wheel with its extras and nothing else; the folder of its programs.
    The versions are those of the lock, which uv has from `make env`; where it has not, an index is asked.
    """
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into / "dist")]
    subprocess.run(build, cwd=CORE.folder, check=True, capture_output=True)
    wheel = next((into / "dist").glob("*.whl"))
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, into / "venv"], check=True)
    install = [UV, "pip", "install", "--quiet", "--python", into / "venv" / "bin" / "python"]
    what = ["--constraint", LOCK, f"{wheel}[{','.join(EXTRAS)}]"]
    offline = subprocess.run([*install, "--offline", *what], capture_output=True, text=True, check=False)
    if offline.returncode:
        online = subprocess.run([*install, *what], capture_output=True, text=True, check=False)
        if "error sending request" in online.stderr or "dns error" in online.stderr:
            pytest.skip("neither uv's cache nor an index has what the wheel needs")
        assert online.returncode == 0, f"{offline.stderr}\n{online.stderr}"
    return into / "venv" / "bin"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.skipif(not UV.exists(), reason="make env brings uv")
def test_from_the_wheel_to_a_promoted_model(tmp_path: Path) -> None:
    try:
        from_the_wheel_to_a_promoted_model(tmp_path)
    finally:
        shutil.rmtree(tmp_path / "venv", ignore_errors=True)  # some gigabytes, where uv cannot link


def from_the_wheel_to_a_promoted_model(tmp_path: Path) -> None:
    programs, empty = installed(tmp_path), tmp_path / "empty"
    empty.mkdir()
    environ = {
        "PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "HOME": str(tmp_path / "home"),
        "ALLABOARD_POOL": str(tmp_path / "pool"),
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=empty,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    where = run("python", "-c", "import allaboard, boto3; print(allaboard.__file__)").stdout
    assert where.startswith(str(tmp_path / "venv")), where
    demo = run("allaboard", "demo")
    assert demo.returncode == 0, demo.stdout
    assert "worker-0 was killed; the training went on from step" in demo.stdout, demo.stdout
    assert "promoted as number 1" in demo.stdout
    assert "<svg" in (empty / "allaboard-demo" / "page.html").read_text()
    history = run(
        "allaboard", "promote", "--into", "store://spirals", "--history",
        "--store", "allaboard-demo/store", "--json",
    )  # fmt: skip
    assert history.returncode == 0 and '"number": 1' in history.stdout, history.stdout
