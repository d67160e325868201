"""A launch says what will not work, by requests that run beside its own."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import SECRETS, Resource
from allaboard.checking.job import require_valid
from allaboard.runs.observation import Owner
from allaboard.testing import a_job
from allaboard.testing.cluster import FakeCluster

ME = Owner("me")


def launched(cluster: FakeCluster, **job: Any) -> tuple[str, ...]:
    given = {"image": "train:1", "gang": {"scheduler": "none"}, **job}
    return cluster.backend(ask_first=True).launch(Plan(require_valid(a_job(**given)), "k"), ME).notes


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def test_what_is_not_there_is_said_and_the_run_is_started_all_the_same(cluster: FakeCluster) -> None:
    (said,) = launched(cluster, secrets=[{"name": "keys", "env": True}])
    assert said.startswith("it will not start: secret keys is not there in default; create it")
    assert cluster.backend().list(), "it may be made yet"


def test_a_job_without_trouble_is_started_without_a_word(cluster: FakeCluster) -> None:
    assert launched(cluster) == ()


def test_what_may_not_be_looked_at_is_not_said(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    get = cluster.get

    def may_not(resource: Resource, name: str, namespace: str) -> Any:
        if resource == SECRETS:
            raise Forbidden("no", status=403, reason="Forbidden")
        return get(resource, name, namespace)

    monkeypatch.setattr(cluster, "get", may_not)
    assert launched(cluster, secrets=[{"name": "keys", "env": True}]) == ()


def test_few_requests_are_made_beside_the_launch(cluster: FakeCluster) -> None:
    plan = Plan(require_valid(a_job(image="train:1", secrets=[{"name": "keys", "env": True}])), "k")
    cluster.backend().launch(plan, ME)
    alone, other = len(cluster.requests), FakeCluster()
    other.backend(ask_first=True).launch(plan, ME)
    assert len(other.requests) - alone <= 4, "the secret, the namespace, its quotas and limits"
