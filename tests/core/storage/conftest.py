"""The stores that the promises are kept by: a folder, and two S3 servers that run for the whole session."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from allaboard.storage import Store, open_store, s3
from tests.core.s3server import S3Server, s3_server
from tests.core.storage.mounts import mounted

PLAIN = "-without-boto3"
OTHER_SERVER = [pytest.param(name, marks=pytest.mark.thorough) for name in ("rclone", f"rclone{PLAIN}")]
ALL = ("disk", "moto", f"moto{PLAIN}", *OTHER_SERVER)
EXCLUSIVE = ("disk", "moto", f"moto{PLAIN}")  # can create without replacing; rclone cannot


@pytest.fixture(scope="session")
def rclone() -> Iterator[S3Server]:
    with s3_server("rclone") as server:
        yield server


@pytest.fixture
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A fresh store of the kind that the test's parameter names."""
    if request.param == "disk":
        return open_store(tmp_path / "store")
    if request.param.endswith(PLAIN):
        request.getfixturevalue("without_boto3")
    server: S3Server = request.getfixturevalue(request.param.partition("-")[0])
    return open_store(f"s3://{server.make_bucket()}/a prefix/with-ümlaut+", environ=server.environ)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, kinds in (("store", ALL), ("exclusive_store", EXCLUSIVE)):
        if name in metafunc.fixturenames:
            metafunc.parametrize("open_one", kinds, indirect=True)


@pytest.fixture
def store(open_one: Store) -> Store:
    return open_one


@pytest.fixture
def exclusive_store(open_one: Store) -> Store:
    return open_one


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """What keeps the store of this test: "disk", "moto" or "rclone"."""
    return str(request.node.callspec.params["open_one"]).partition("-")[0]


@pytest.fixture
def without_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of the standard library alone, as where boto3 is not installed."""

    def plain(environ: Mapping[str, str] | None) -> Any:
        return s3._plain_client(os.environ if environ is None else environ)

    monkeypatch.setattr(s3, "_boto3_client", plain)
    monkeypatch.setattr(s3, "_clients", {})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    with mounted(folder, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        yield folder


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of this machine may decide a test, and nothing asks the cloud for credentials."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
