"""What users install: wheels and source archives, built as a release would build them, without a network."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_string
from importlib import metadata
from pathlib import Path

import pytest

from tests.meta.source import CORE, DISTS, Dist, path_of, python, tree_of

GROUPS = {"console_scripts": "allaboard", "apache_airflow_provider": "airflow-provider-allaboard"}
"""Entry points that somebody looks for, and the distribution that has them."""

STARTUP = {"allaboard.pth", "_allaboard_startup.py"}
"""Beside the package, for every Python that starts in a pod of a run."""


@dataclass(frozen=True, slots=True)
class Built:
    dist: Dist
    wheel: Path
    sdist: Path

    def files(self) -> dict[str, bytes]:
        with zipfile.ZipFile(self.wheel) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def info(self, name: str) -> str:
        """A file of the wheel's dist-info."""
        return next(
            data for path, data in self.files().items() if path.endswith(f".dist-info/{name}")
        ).decode()


@pytest.fixture(scope="module", params=DISTS, ids=lambda dist: dist.name)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    dist: Dist = request.param
    into = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(into)]
    subprocess.run(command, cwd=dist.folder, check=True, capture_output=True)
    yield Built(dist, next(into.glob("*.whl")), next(into.glob("*.tar.gz")))


def test_a_wheel_holds_the_package_its_types_and_the_licence(built: Built) -> None:
    source = built.dist.source
    code = {
        f"{built.dist.package}/{p.relative_to(source)}"
        for p in source.rglob("*")
        if p.suffix in (".py", ".sh", ".typed", ".css", ".js", ".yaml", ".toml")
    }
    files = built.files()
    code |= {name for name in STARTUP if built.dist is CORE}
    assert code == {name for name in files if ".dist-info/" not in name}
    assert f"{built.dist.package}/py.typed" in files
    assert built.info("licenses/LICENSE") == (built.dist.folder / "LICENSE").read_text()


def test_a_wheel_says_what_it_is(built: Built) -> None:
    about = message_from_string(built.info("METADATA"))
    assert about["Name"] == built.dist.name
    assert (about["License-Expression"], about["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert about["Summary"] and about.get_payload()
    # Pins are for our own locks; a user's environment has other packages to live with.
    assert [need for need in about.get_all("Requires-Dist") or [] if "==" in need.partition(";")[0]] == []


def test_a_version_has_one_source(built: Built) -> None:
    modules = [m for m in (f"{built.dist.package}._version", built.dist.package) if path_of(m).exists()]
    said = next(
        ast.literal_eval(statement.value)
        for statement in tree_of(modules[0]).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__version__"
    )
    assert message_from_string(built.info("METADATA"))["Version"] == said
    if built.dist.here:
        assert metadata.version(built.dist.name) == said, (
            "the environment is older than the version: make env"
        )


def test_entry_points_lead_to_code_in_the_wheel(built: Built) -> None:
    points = configparser.ConfigParser()
    files = built.files()
    if any(name.endswith(".dist-info/entry_points.txt") for name in files):
        points.read_string(built.info("entry_points.txt"))
    for group in points.sections():
        for target in points[group].values():
            module, _, name = target.partition(":")
            path = module.replace(".", "/")
            code = files.get(f"{path}.py") or files.get(f"{path}/__init__.py") or b""
            defined = {s.name for s in ast.parse(code).body if isinstance(s, (ast.FunctionDef, ast.ClassDef))}
            assert name in defined, target
    assert {group for group, of in GROUPS.items() if of == built.dist.name} <= set(points.sections())


def test_a_source_archive_builds_the_same_wheel(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "again")]
    subprocess.run(command, cwd=unpacked, check=True, capture_output=True)
    again = Built(built.dist, next((tmp_path / "again").glob("*.whl")), built.sdist)
    assert again.files() == built.files()


def test_the_core_works_from_its_wheel_alone(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No dependency is installed beside it, and no source tree is near."""
    into = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    subprocess.run(command, cwd=CORE.folder, check=True, capture_output=True)
    with zipfile.ZipFile(next(into.glob("*.whl"))) as archive:
        archive.extractall(tmp_path)
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import allaboard.inside
from allaboard import TrainingJob
print(allaboard.__file__, TrainingJob(name="digits", command=["python", "train.py"], workers=2).name)
"""
    where, name = python(code, str(tmp_path), options=("-I", "-S")).split()
    assert (Path(where), name) == (tmp_path / "allaboard" / "__init__.py", "digits")
