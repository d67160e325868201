from __future__ import annotations

import os
from pathlib import Path

import pytest

from allaboard.storage import open_store
from allaboard.storage.base import Store
from tests.core.s3server import S3Server


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.thorough)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Where promotions are kept, on a disk and in a bucket."""
    if request.param == "disk":
        return open_store(tmp_path / "store")
    server: S3Server = request.getfixturevalue("moto")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{server.make_bucket()}/store")
