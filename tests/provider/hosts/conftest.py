"""An Airflow of several hosts for the tests of a file, and what they leave is taken away after each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.provider.hosts.deployment import Deployment, why_no_deployment


@pytest.fixture(scope="module")
def deployment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """``SETTINGS`` of the module are more settings of Airflow."""
    if why := why_no_deployment():
        pytest.skip(why)
    settings = getattr(request.module, "SETTINGS", {})
    with Deployment(Path(tmp_path_factory.mktemp("hosts")) / "lan", **settings) as deployment:
        deployment.start()
        yield deployment


@pytest.fixture
def airflow(deployment: Deployment) -> Iterator[Deployment]:
    """All hosts are up, with their workers; no triggerer is. Nothing trains, before and after."""
    try:
        yield deployment
    finally:
        deployment.tidy()
