"""The image, built by the commands of core/docs/how-to/image.md and used as on a cluster: by any user, in
group 0. It takes some 10 minutes, 25 GB and the package index, so it runs only where it is named:

    .venv/airflow/bin/pytest -n0 -m endurance tests/docs/test_image.py

The builder is Docker, or Buildah of a root (whose containers are plain folders here, so that it needs no
namespaces). The base comes from a registry; for Buildah beside debootstrap it is made of Debian's Python.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.meta.source import ROOT

GUIDE = ROOT / "core/docs/how-to/image.md"
BUILDS = re.findall(r"^docker build (.*?) *(?:#.*)?$", GUIDE.read_text(), re.MULTILINE)
ANYBODY = "1000680000:0"
"""A user as OpenShift chooses one."""
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"

pytestmark = [pytest.mark.endurance, pytest.mark.timeout(3600)]


class Builder:
    """Builds images and runs commands in them, by Docker or by Buildah, which keeps all in the folder.
    ``more``: arguments for each build.
    """

    def __init__(self, folder: Path, docker: bool) -> None:
        self.docker, self.more = docker, [] if docker else ["--network", "host"]
        own = ["--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self._words = ["docker"] if docker else ["buildah", *own]

    def do(self, *words: str) -> str:
        environ = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        done = subprocess.run(
            [*self._words, *words], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout.strip()

    def build(self, words: list[str]) -> str:
        """An image by the arguments of ``docker build``; its name."""
        self.do("build", *self.more, *words)
        return words[words.index("-t") + 1]

    def run(self, image: str, *command: str) -> str:
        """What a command of anybody prints there."""
        if self.docker:
            return self.do("run", "--rm", "--user", ANYBODY, image, *command)
        container = self.do("from", image)
        try:
            return self.do("run", "--user", ANYBODY, "--network", "host", container, "--", *command)
        finally:
            self.do("rm", container)


def answers(*command: str) -> bool:
    return bool(shutil.which(command[0])) and not subprocess.run(command, capture_output=True).returncode


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    docker = answers("docker", "info")
    if not docker and not (os.geteuid() == 0 and answers("buildah", "version")):
        pytest.skip("no Docker answers, and there is no Buildah of a root")
    folder = tmp_path_factory.mktemp("images")
    made = Builder(folder, docker)
    if not docker and shutil.which("debootstrap"):
        made.more += ["--build-arg", f"PYTHON={base_of_debian(made, folder / 'debian')}"]
    yield made
    shutil.rmtree(folder, ignore_errors=True)


def base_of_debian(builder: Builder, folder: Path) -> str:
    """An image of Debian with its Python as ``python``, in which pip may install; its name."""
    packages = "ca-certificates,python3,python3-pip,python-is-python3"
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for path in (folder / "usr/lib").glob("python3.*/EXTERNALLY-MANAGED"):
        path.unlink()
    # Whoever reaches the package index by way of a proxy of their own believes its certificate.
    shutil.copy(Path("/") / CERTIFICATES, folder / CERTIFICATES)
    container = builder.do("from", "scratch")
    builder.do("add", container, str(folder), "/")
    builder.do("config", "--env", f"PATH={os.defpath}:/usr/local/bin:/usr/sbin:/sbin", container)
    builder.do("commit", "--rm", container, "localhost/python:debian")
    shutil.rmtree(folder)
    return "localhost/python:debian"


@pytest.fixture(scope="module")
def images(builder: Builder) -> dict[str, str]:
    """By purpose, what the commands of the guide build."""
    found = {}
    for line in BUILDS:
        words = shlex.split(line)
        purpose = re.search(r"FOR=(\w+)", line)
        found[purpose[1] if purpose else "members"] = builder.build(words)
    return found


def test_the_guide_builds_one_image_for_each_purpose(images: dict[str, str]) -> None:
    assert set(images) == {"members", "kfp", "airflow"} and len(set(images.values())) == 3


@pytest.mark.parametrize("purpose", ["members", "kfp", "airflow"])
def test_anybody_runs_it_and_may_write_to_its_home(
    builder: Builder, images: dict[str, str], purpose: str
) -> None:
    said = builder.run(images[purpose], "sh", "-c", "id -u; touch kept && pwd; allaboard --version")
    assert said.split("\n")[0] == ANYBODY.split(":")[0]
    assert "/home/allaboard" in said and "allaboard 0" in said
    assert "No broken requirements" in builder.run(images[purpose], "python", "-m", "pip", "check")


def test_members_train_in_it(builder: Builder, images: dict[str, str]) -> None:
    said = builder.run(images["members"], "allaboard", "demo")
    assert "promoted as number 1" in said


def test_steps_of_pipelines_find_the_components(builder: Builder, images: dict[str, str]) -> None:
    code = "import allaboard_kfp, boto3, kfp, kubernetes; print(allaboard_kfp.train.name)"
    assert "train" in builder.run(images["kfp"], "python", "-c", code)


def test_airflow_finds_the_provider_and_its_plugin(builder: Builder, images: dict[str, str]) -> None:
    assert "airflow-provider-allaboard" in builder.run(images["airflow"], "airflow", "providers", "list")
    assert "allaboard" in builder.run(images["airflow"], "airflow", "plugins", "--output", "plain")
