"""The hub on a real API server: rows of real PyTorchJobs, through cuts, lies and restarts; no end is
missed.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.kubernetes.client.api import Api
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS
from allaboard.backends.kubernetes.watch.informer import AsyncHub, async_hub_of, hub_of
from allaboard.errors import AllaboardError
from allaboard.testing.objects import PYTORCHJOBS
from tests.cluster.cluster import Cluster
from tests.cluster.jobs import a_pytorchjob
from tests.cluster.plane import ControlPlane
from tests.cluster.proxy import Cut, FaultProxy, Hold, TooOld

pytestmark = pytest.mark.needs("training-operator")

FOR_EVER = 300.0
"""A wait that comes to its end has failed."""
LABELS = {"app.kubernetes.io/managed-by": "allaboard"}


def make(api: Api, name: str) -> None:
    """A job that the operator leaves alone, so that its status is ours to write."""
    job = a_pytorchjob(api.namespace, name, workers=1, runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})
    job["metadata"]["labels"] = LABELS
    api.create(PYTORCHJOBS, job)


def says(api: Api, name: str, state: str) -> None:
    condition = {"type": state, "status": "True", "lastTransitionTime": "2026-11-21T12:00:00Z"}
    condition |= {"lastUpdateTime": condition["lastTransitionTime"], "reason": state, "message": state}
    api.patch(PYTORCHJOBS, name, {"status": {"conditions": [condition]}}, sub="status")


def state_of(job: dict[str, Any]) -> str:
    conditions = (job.get("status") or {}).get("conditions") or [{"type": ""}]
    return str(conditions[-1]["type"])


@pytest.fixture
def api(cluster: Cluster, namespace: str) -> Any:
    with Access(str(cluster.kubeconfig), namespace=namespace, environ={}).api(Patience(budget=60)) as found:
        yield found


@pytest.fixture
def by_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is woken was woken by a row: nobody looks for himself."""
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.reflector.POLL", 1e6)
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.informer.READY_SECONDS", FOR_EVER)


@pytest.mark.usefixtures("by_rows_alone")
def test_a_row_wakes_when_it_changes(api: Api) -> None:
    make(api, "a-1")
    with hub_of(api).changes("a-1", PYTORCHJOBS) as changes:
        assert not changes.wait(0.5)
        for state in ("Created", "Running", "Succeeded"):
            says(api, "a-1", state)
            assert changes.wait(FOR_EVER), state
        assert not changes.wait(0.5)
        api.delete(PYTORCHJOBS, "a-1")
        assert changes.wait(FOR_EVER)
    assert hub_of(api).open == 0


@pytest.mark.usefixtures("by_rows_alone")
def test_a_job_of_others_by_its_name(api: Api) -> None:
    make(api, "others")
    with hub_of(api).changes_of(PYTORCHJOBS, "theirs") as changes:
        says(api, "others", "Failed")
        assert not changes.wait(0.5)
        make(api, "theirs")
        assert changes.wait(FOR_EVER), "also when it comes"
        says(api, "theirs", "Failed")
        assert changes.wait(FOR_EVER)


async def _follow(hub: AsyncHub, api: Api, run: str, ends: dict[str, str]) -> None:
    async with hub.changes(run, PYTORCHJOBS) as changes:
        while True:
            try:
                state = state_of(await asyncio.to_thread(api.get, PYTORCHJOBS, run))
            except AllaboardError:
                state = "unknown"
            if state in ("Succeeded", "Failed"):
                ends[run] = state
                return
            await changes.wait(120)


def test_no_end_is_missed_while_watches_are_cut_held_and_too_old(cluster: Cluster, api: Api) -> None:
    """60 runs end at random while their watch is cut 20 times, falls silent and is told 410."""
    chance = random.Random(7)
    runs = [f"run-{n:08x}" for n in range(60)]
    wanted = {run: chance.choice(["Succeeded", "Failed"]) for run in runs}
    for run in runs:
        make(api, run)
    with FaultProxy(cluster.kubeconfig) as proxy:

        def story() -> None:
            time.sleep(1.0)
            for n, run in enumerate(runs):
                says(api, run, "Running")
                if n % 3 == 0:
                    proxy.cut_all()
                if n == 20:
                    proxy.on(TooOld(), verb="watch", times=2)
                    proxy.cut_all()
                if n == 30:
                    proxy.on(Hold(), verb="watch", times=2)
                    proxy.cut_all()
                if n == 40:
                    proxy.on(Cut(seconds=0.05), verb="watch", times=8)
                    proxy.cut_all()
                time.sleep(chance.random() / 5)
                says(api, run, wanted[run])

        async def main() -> dict[str, str]:
            access = Access(str(proxy.kubeconfig), namespace=api.namespace, environ={})
            ends: dict[str, str] = {}
            with access.api(Patience(budget=60)) as through:
                hub = async_hub_of(through)
                tale = threading.Thread(target=story)
                tale.start()
                async with asyncio.timeout(100):
                    await asyncio.gather(*(_follow(hub, through, run, ends) for run in runs))
                tale.join()
                assert hub.open == 0
            return ends

        assert asyncio.run(main()) == wanted
        assert proxy.counts.faults["TooOld"] >= 1
        assert proxy.counts.faults["Hold"] >= 1


def test_an_api_server_that_is_restarted_and_a_compacted_etcd(
    new_plane_in: Callable[..., Any], tmp_path: Path
) -> None:
    plane: ControlPlane
    with new_plane_in(tmp_path / "plane", "training-operator") as plane:
        access = Access(str(plane.kubeconfig), namespace="default", environ={})
        with access.api(Patience(budget=90)) as api:
            for run in ("a-1", "b-1"):
                make(api, run)
            hub = hub_of(api)
            with hub.changes("a-1", PYTORCHJOBS) as one, hub.changes("b-1", PYTORCHJOBS) as two:
                plane.halt("kube-apiserver")
                plane.launch("kube-apiserver")
                says(api, "a-1", "Failed")
                # Whoever was not yet back in its watch is now too late for it.
                plane.compact_etcd()
                assert one.wait(60)
                while two.wait(10):
                    pass
                says(api, "b-1", "Succeeded")
                assert two.wait(FOR_EVER)


def test_who_may_only_list_and_who_may_only_get(cluster: Cluster, api: Api, monkeypatch: Any) -> None:
    from tests.cluster.cluster import service_account

    monkeypatch.setattr("allaboard.backends.kubernetes.watch.reflector.POLL", 0.8)
    cluster.grant(
        api.namespace,
        service_account(api.namespace, "default"),
        [{"apiGroups": ["*"], "resources": ["pytorchjobs", "pods"], "verbs": ["get", "list"]}],
    )
    make(api, "a-1")
    path = cluster.kubeconfig_for_account(api.namespace, "default")
    access = Access(str(path), namespace=api.namespace, environ={})
    with access.api() as poor, hub_of(poor).changes("a-1", PYTORCHJOBS) as changes:
        says(api, "a-1", "Failed")
        assert changes.wait(FOR_EVER)
        with hub_of(poor).changes_of(CONFIGMAPS, "nothing") as blind:
            assert blind.wait(30), "nothing tells: one looks now and then"
            assert blind.trouble is not None
