"""Stores of both kinds, and nothing of this machine's settings or temporary files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from allaboard.storage import Store, open_store
from tests.core.s3server import S3Server


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.thorough)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty place for a data set, on a disk and in a bucket."""
    if request.param == "disk":
        return open_store(tmp_path / "prepared")
    server: S3Server = request.getfixturevalue("moto")
    return open_store(f"s3://{server.make_bucket()}/a prefix/digits", environ=server.environ)


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "ALLABOARD_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
