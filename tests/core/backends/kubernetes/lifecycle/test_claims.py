"""Claims that are made for a job: one for all attempts of a run, dropped with it or kept, whoever dies."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PVCS
from allaboard.backends.kubernetes.discovery import rbac
from allaboard.errors import BadInput, SiteError
from allaboard.render import labels
from allaboard.runs.observation import Owner
from allaboard.testing.cluster import Died, FakeCluster
from tests.core.backends.kubernetes.discovery.test_rbac import asked, words
from tests.core.backends.kubernetes.test_backend import ME, a_plan, record, running
from tests.core.backends.kubernetes.test_deaths import an_act

CKPT = {"mount": "/ckpt", "claim": {"size": "10Gi"}}
CACHE = {"mount": "/cache", "claim": {"size": "1Ti", "keep": "always"}}


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def with_claims(*storage: Any, key: str = "k") -> Plan:
    return a_plan(key, storage=[*(storage or (CKPT,))])


def names(cluster: FakeCluster) -> list[str]:
    return sorted(claim["metadata"]["name"] for claim in cluster.all(PVCS))


def test_all_attempts_of_a_run_share_its_claim(cluster: FakeCluster) -> None:
    plan, backend = with_claims(), cluster.backend()
    first = backend.launch(plan, ME)
    (claim,) = cluster.all(PVCS)
    assert claim["metadata"]["name"] == f"{plan.run}-ckpt"
    assert [r["name"] for r in claim["metadata"]["ownerReferences"]] == [labels.record_name(plan.run)]
    running(cluster, backend, first.run)
    backend.stop(first, ME, "ann", "enough")
    cluster.tick(60)
    assert backend.launch(plan, ME).attempt == 2
    (again,) = cluster.all(PVCS)
    assert again["metadata"]["uid"] == claim["metadata"]["uid"]


def test_a_claim_of_the_run_goes_when_that_is_deleted_and_one_for_always_stays(cluster: FakeCluster) -> None:
    plan, backend = with_claims(CKPT, CACHE), cluster.backend()
    backend.launch(plan, ME)
    cluster.backend().launch(with_claims(CKPT, CACHE, key="other"), ME)
    assert names(cluster) == sorted([f"{plan.job.name}-cache", f"{plan.run}-ckpt", *others(cluster, plan)])
    backend.delete(plan.run)
    cluster.tick(3)
    assert record(cluster, plan.run).deleted
    assert names(cluster) == sorted([f"{plan.job.name}-cache", *others(cluster, plan)])


def others(cluster: FakeCluster, plan: Plan) -> list[str]:
    """The claims of the other run."""
    return [name for name in names(cluster) if name.endswith("-ckpt") and not name.startswith(plan.run)]


def test_a_claim_goes_with_the_record_that_is_pruned(cluster: FakeCluster) -> None:
    plan, backend = with_claims(CKPT, CACHE), cluster.backend()
    handle = backend.launch(plan, ME)
    running(cluster, backend, handle.run)
    backend.stop(handle, ME, "ann", "enough")
    cluster.tick(60)
    backend.observe(handle.run)
    cluster.tick(40 * 86400.0)
    backend.list()
    cluster.tick(3)
    assert cluster.one(CONFIGMAPS, labels.record_name(plan.run)) is None
    assert names(cluster) == [f"{plan.job.name}-cache"]


@pytest.mark.parametrize("fault", ["die", "die-after"])
@pytest.mark.parametrize("at", range(1, 9))
def test_killed_at_any_request_of_a_launch_there_is_one_claim(at: int, fault: str) -> None:
    cluster, plan = FakeCluster(), with_claims(CKPT, CACHE)
    with suppress(Died):
        cluster.backend({at: fault}).launch(plan, ME)
    cluster.tick(0.1)
    handle = cluster.backend().launch(plan, Owner("you"))
    cluster.tick(3)
    assert names(cluster) == sorted([f"{plan.job.name}-cache", f"{plan.run}-ckpt"])
    body = cluster.one(CONFIGMAPS, labels.record_name(plan.run))
    claim = cluster.one(PVCS, f"{plan.run}-ckpt")
    assert body is not None and claim is not None and handle.attempt == 1
    assert [r["uid"] for r in claim["metadata"]["ownerReferences"]] == [body["metadata"]["uid"]]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_clients_were_at_the_claim_is_that_of_the_record(seed: int) -> None:
    chance, cluster, plan = random.Random(seed), FakeCluster(), with_claims()
    story = [an_act(cluster, plan, chance) for _ in range(7)]
    last = cluster.backend()
    last.launch(plan, Owner("the last"))
    cluster.tick(3)
    (claim,) = cluster.all(PVCS)
    body = cluster.one(CONFIGMAPS, labels.record_name(plan.run))
    assert body is not None
    assert [r["uid"] for r in claim["metadata"]["ownerReferences"]] == [body["metadata"]["uid"]], story
    last.delete(plan.run)
    cluster.tick(3)
    assert cluster.all(PVCS) == [], story


def test_what_the_cluster_refuses_leaves_no_claim_of_the_run(cluster: FakeCluster) -> None:
    from allaboard.testing.objects import PYTORCHJOBS

    cluster.refuse(PYTORCHJOBS, Forbidden("exceeded quota", status=403))
    with pytest.raises(SiteError, match="was not started"):
        cluster.backend().launch(with_claims(), ME)
    cluster.tick(3)
    assert cluster.all(PVCS) == []


def test_a_claim_that_the_cluster_refuses_is_told_and_nothing_is_left(cluster: FakeCluster) -> None:
    cluster.refuse(PVCS, Forbidden("exceeded quota: storage", status=403))
    with pytest.raises(SiteError, match="exceeded quota: storage"):
        cluster.backend().launch(with_claims(), ME)
    cluster.tick(3)
    assert cluster.all(CONFIGMAPS) == []


def test_a_claim_of_somebody_else_is_not_taken(cluster: FakeCluster) -> None:
    plan = with_claims()
    theirs = {"name": f"{plan.run}-ckpt", "namespace": "default"}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": theirs, "spec": {}}
    cluster.client().create(PVCS, body)
    with pytest.raises(BadInput, match=r"a PersistentVolumeClaim named .*-ckpt is there already"):
        cluster.backend().launch(plan, ME)
    assert names(cluster) == [f"{plan.run}-ckpt"]


def test_a_claim_of_another_size_stays_and_that_is_told(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    backend.launch(with_claims(CACHE), ME)
    larger = {"mount": "/cache", "claim": {"size": "2Ti", "keep": "always"}}
    notes = cluster.backend().launch(with_claims(larger, key="another"), ME).notes
    assert any("its size is 1Ti, the job says 2Ti" in note for note in notes)
    smaller = {"mount": "/cache", "claim": {"size": "1Gi", "keep": "always"}}
    notes = cluster.backend().launch(with_claims(smaller, key="third"), ME).notes
    assert not any("was made before" in note for note in notes), "it holds that, too"


def test_a_claim_that_is_on_its_way_out_is_waited_for(cluster: FakeCluster) -> None:
    plan, backend = with_claims(), cluster.backend()
    backend.launch(plan, ME)
    claim = cluster.one(PVCS, f"{plan.run}-ckpt")
    assert claim is not None
    # As after `kubectl delete configmap`, before the garbage collector has seen it.
    record_ = labels.record_name(plan.run)
    for key in [key for key in cluster.objects if key[3] == record_]:
        del cluster.objects[key]
    backend = cluster.backend()
    backend.launch(plan, ME)
    anew = cluster.one(PVCS, f"{plan.run}-ckpt")
    assert anew is not None and anew["metadata"]["uid"] != claim["metadata"]["uid"]


def test_a_claim_that_nothing_owns_any_more_is_told_and_tidied_up(cluster: FakeCluster) -> None:
    plan, backend = with_claims(CKPT, CACHE), cluster.backend()
    handle = backend.launch(plan, ME)
    backend.stop(handle, ME, "ann", "enough")
    cluster.tick(60)
    # As after `kubectl delete configmap --cascade=orphan`.
    cluster.client().patch(PVCS, f"{plan.run}-ckpt", {"metadata": {"ownerReferences": None}})
    assert "claim" not in [orphan.kind for orphan in backend.orphans()], "its run has a record"
    cluster.client().delete(CONFIGMAPS, labels.record_name(plan.run))
    cluster.tick(3)
    (orphan,) = backend.orphans()
    assert (orphan.kind, orphan.name, orphan.run) == ("claim", f"{plan.run}-ckpt", plan.run)
    cluster.tick(700)
    (done,) = backend.tidy_up()
    assert done.done and done.action == "deleted"
    cluster.tick(3)
    assert names(cluster) == [f"{plan.job.name}-cache"]


def test_claims_are_for_jobs_that_have_some(cluster: FakeCluster) -> None:
    """Their Role has what is done and nothing else; other jobs ask for none of it."""
    plan, backend = with_claims(), cluster.backend()
    backend.launch(plan, ME)
    cluster.backend().launch(with_claims(CACHE, key="a"), ME)
    cluster.backend().launch(with_claims(CACHE, key="b"), ME)
    backend.delete(plan.run)
    done = {access for access in asked(cluster) if access.resource == "persistentvolumeclaims"}
    listed = {access for access in rbac.wanted_accesses("submitter") if access.resource == PVCS.plural}
    assert words(done) == words([*rbac.wanted_accesses("claims"), *listed])
    kinds = [("kubeflow.org", "pytorchjobs")]
    assert "persistentvolumeclaims" not in " ".join(words(rbac.needed(kinds)))
    assert "create persistentvolumeclaims" in words(rbac.needed([*kinds, ("", "persistentvolumeclaims")]))
    assert "get persistentvolumeclaims" in words(rbac.needed(kinds, rbac.PREFLIGHT))


def test_a_job_without_claims_of_its_own_sends_no_request_about_claims(cluster: FakeCluster) -> None:
    plan = a_plan("k", storage=[{"mount": "/data", "pvc": "sets"}])
    backend = cluster.backend()
    backend.launch(plan, ME)
    backend.delete(plan.run)
    assert not [name for _, name, _ in cluster.requests if name == "persistentvolumeclaims"]
