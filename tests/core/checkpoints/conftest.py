from __future__ import annotations

import os
from pathlib import Path

import pytest

from allaboard.storage import open_store
from allaboard.storage.base import Store
from tests.core.s3server import S3Server


@pytest.fixture
def s3(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A running S3 server that this process's environment leads to."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    return moto


@pytest.fixture
def bucket(s3: S3Server) -> Store:
    return open_store(f"s3://{s3.make_bucket()}/runs/run-1")


@pytest.fixture
def disk(tmp_path: Path) -> Store:
    return open_store(tmp_path / "runs" / "run-1")


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.thorough)])
def store(request: pytest.FixtureRequest) -> Store:
    """A run's folder, on a disk and in a bucket."""
    found: Store = request.getfixturevalue(request.param)
    return found
