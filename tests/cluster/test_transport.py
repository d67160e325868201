"""Both clients against a real API server: what it answers is what we take it for, and on a bad day everything
is done, once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.kubernetes.client.api import AsyncApi
from allaboard.backends.kubernetes.client.errors import (
    Conflict,
    Exists,
    Forbidden,
    Gone,
    Invalid,
    Missing,
    Unauthorized,
)
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS, Resource
from allaboard.errors import BackendUnreachable
from tests.cluster.cluster import Cluster, service_account
from tests.cluster.plane import ControlPlane
from tests.cluster.proxy import ANYTHING, Cut, FaultProxy, Plan, Say
from tests.core.backends.kubernetes.conftest import Awaited, Loop

LAUNCH = "allaboard.io/launch"


@pytest.fixture(params=["blocking", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """``connect(kubeconfig, patience=...)``, a client of either kind in the shape of the blocking one."""
    made: list[Any] = []
    loop = Loop()

    def open_one(path: Path, namespace: str | None = None, patience: Patience | None = None) -> Any:
        access = Access(str(path), namespace=namespace, environ={})
        if request.param == "blocking":
            api: Any = access.api(patience)
        else:

            async def build() -> Any:
                return AsyncApi(access.settings, patience=patience)

            api = Awaited(loop.do(build()), loop)
        made.append(api)
        return api

    yield open_one
    for api in made:
        api.close()
    loop.close()


@pytest.fixture
def api(connect: Callable[..., Any], cluster: Cluster, namespace: str) -> Any:
    return connect(cluster.kubeconfig, namespace)


def a_map(name: str, launch: str = "1", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"a": "b"}, "annotations": {LAUNCH: launch}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_an_object_from_its_making_to_its_end(api: Any) -> None:
    made = api.create(CONFIGMAPS, a_map("a", x="1"))
    assert api.get(CONFIGMAPS, "a")["metadata"]["uid"] == made["metadata"]["uid"]
    with pytest.raises(Exists) as caught:
        api.create(CONFIGMAPS, a_map("a"))
    assert not caught.value.retried
    newer = api.replace(CONFIGMAPS, {**made, "data": {"x": "2"}})
    with pytest.raises(Conflict):
        api.replace(CONFIGMAPS, {**made, "data": {"x": "3"}})
    patched = api.patch(CONFIGMAPS, "a", {"data": {"y": "1"}})
    assert patched["data"] == {"x": "2", "y": "1"}
    with pytest.raises(Conflict):
        api.patch(
            CONFIGMAPS,
            "a",
            {"metadata": {"resourceVersion": newer["metadata"]["resourceVersion"]}, "data": {}},
        )
    with pytest.raises(Conflict):
        api.patch(CONFIGMAPS, "a", {"metadata": {"uid": "0"}, "data": {"z": "1"}})
    with pytest.raises(Conflict):
        api.delete(CONFIGMAPS, "a", uid="0")
    with pytest.raises(Conflict):
        api.delete(CONFIGMAPS, "a", resource_version=made["metadata"]["resourceVersion"])
    api.delete(CONFIGMAPS, "a", uid=made["metadata"]["uid"])
    api.delete(CONFIGMAPS, "a", uid=made["metadata"]["uid"])
    with pytest.raises(Missing) as missing:
        api.get(CONFIGMAPS, "a")
    assert missing.value.absent == ("configmaps", "a")
    assert not missing.value.unserved


def test_nothing_is_made_by_a_dry_run(api: Any) -> None:
    assert api.create(CONFIGMAPS, a_map("a"), dry_run=True)["metadata"]["uid"]
    with pytest.raises(Missing):
        api.get(CONFIGMAPS, "a")


def test_misspelt_fields_are_refused_and_named(api: Any) -> None:
    with pytest.raises(Invalid) as caught:
        api.create(CONFIGMAPS, {**a_map("a"), "dataa": {}})
    assert [str(cause) for cause in caught.value.causes] == ["dataa: unknown field"]
    api.create(CONFIGMAPS, a_map("a", secret="hunter2"))
    with pytest.raises(Invalid) as caught:
        api.patch(CONFIGMAPS, "a", {"metadata": {"bogus": "1"}})
    assert [str(cause) for cause in caught.value.causes] == ["metadata.bogus: unknown field"]
    assert "hunter2" not in str(caught.value), "the server quotes the whole object"
    with pytest.raises(Invalid) as caught:
        api.create(CONFIGMAPS, a_map("A_b"))
    assert caught.value.causes[0].field == "metadata.name"


def test_what_is_not_served_and_where_nothing_is(api: Any) -> None:
    with pytest.raises(Missing) as caught:
        api.get(Resource("nobody.example", "v1", "things", "Thing"), "a")
    assert caught.value.unserved
    with pytest.raises(Missing) as caught:
        api.create(CONFIGMAPS, a_map("a"), "no-such-namespace")
    assert caught.value.absent == ("namespaces", "no-such-namespace")


def test_pages_tables_and_selectors(api: Any) -> None:
    for n in range(7):
        api.create(CONFIGMAPS, a_map(f"m-{n}", x="1"))
    items, version = api.list(CONFIGMAPS, labels="a=b", limit=3)
    assert [item["metadata"]["name"] for item in items] == [f"m-{n}" for n in range(7)]
    assert items[0]["kind"] == "ConfigMap"
    assert int(version)
    rows, _ = api.list(CONFIGMAPS, labels="a=b", limit=3, table=True)
    assert [(row["Name"], row["Data"]) for row in rows] == [(f"m-{n}", 1) for n in range(7)]
    items, _ = api.list(CONFIGMAPS, fields="metadata.name=m-3")
    assert [item["metadata"]["name"] for item in items] == ["m-3"]
    assert len(api.list(CONFIGMAPS, limit=3, at_most=2)[0]) == 2


def test_a_watch_of_objects_and_of_rows(api: Any, cluster: Cluster, namespace: str) -> None:
    for table in (False, True):
        _, version = api.list(CONFIGMAPS)

        def change(name: str = f"a-{table}".lower()) -> None:
            cluster.api.create({**a_map(name), "metadata": {"name": name, "namespace": namespace}})
            cluster.api.delete("v1", "ConfigMap", name, namespace)

        threading.Timer(0.3, change).start()
        seen = list(api.watch(CONFIGMAPS, resource_version=version, table=table, timeout=4))
        kinds = [kind for kind, _ in seen]
        assert [kind for kind in kinds if kind != "BOOKMARK"] == ["ADDED", "DELETED"]
        assert kinds[-1] == "BOOKMARK", "the last word before the end says where to go on"
        assert int(seen[-1][1]["metadata"]["resourceVersion"]) > int(version)
        if table:
            assert seen[0][1]["rows"][0]["Name"] == "a-true"


def test_time_and_discovery(api: Any) -> None:
    assert abs(api.server_time() - time.time()) < 120
    assert api.raw("GET", "/readyz") == "ok"
    assert api.raw("GET", "/version")["gitVersion"].startswith("v1.")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "create", "resource": "configmaps", "namespace": "default"}},
    }
    answer = api.raw("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    assert isinstance(answer["status"]["allowed"], bool)


def test_who_may_not_and_who_is_nobody(
    connect: Callable[..., Any], cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    nobody = connect(cluster.kubeconfig_for_account(namespace, "default"), namespace)
    with pytest.raises(Forbidden, match=r"cannot list resource .*configmaps"):
        nobody.list(CONFIGMAPS)
    with pytest.raises(Forbidden):
        list(nobody.watch(PODS, resource_version="1"))
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
    cluster.grant(namespace, service_account(namespace, "default"), rules)
    for _ in range(50):
        try:
            nobody.list(CONFIGMAPS)
            break
        except Forbidden:
            time.sleep(0.1)
    else:
        pytest.fail("still forbidden")
    text = cluster.kubeconfig.read_text()
    bad = tmp_path / "bad"
    token = Access(str(cluster.kubeconfig), environ={}).settings().credentials.current(0).authorization
    if token is None or token.removeprefix("Bearer ") not in text:
        pytest.skip("this cluster is not entered with a token")
    bad.write_text(text.replace(token.removeprefix("Bearer "), "a-wrong-one"))
    with pytest.raises(Unauthorized):
        connect(bad).list(CONFIGMAPS)


# --- bad days -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_on_a_bad_day_everything_is_done_once(
    connect: Callable[..., Any], cluster: Cluster, namespace: str, seed: int
) -> None:
    """A random story of creates, patches, swaps and deletes through a proxy that drops, loses, doubles and
    lies about four of ten requests; then the cluster is as the story says.
    """
    chance = random.Random(seed)
    with FaultProxy(cluster.kubeconfig, plan=Plan(seed, 0.4, ANYTHING)) as proxy:
        api = connect(proxy.kubeconfig, namespace, Patience(budget=60, first=0.02, longest=0.2))
        expected: dict[str, int] = {}
        for step in range(40):
            name = f"m-{chance.randrange(6)}"
            if name not in expected:
                expected[name] = 0
                with suppress(Exists):  # by a try whose answer was lost, or doubled on the way
                    api.create(CONFIGMAPS, a_map(name, launch=f"{seed}-{step}", n="0"))
                assert api.get(CONFIGMAPS, name)["metadata"]["annotations"][LAUNCH] == f"{seed}-{step}"
            elif chance.random() < 0.3:
                api.delete(CONFIGMAPS, name, uid=api.get(CONFIGMAPS, name)["metadata"]["uid"])
                del expected[name]
            elif chance.random() < 0.5:
                expected[name] += 1
                api.patch(CONFIGMAPS, name, {"data": {"n": str(expected[name])}})
            else:
                expected[name] += 1
                _swap(api, name, expected[name])
        items, _ = api.list(CONFIGMAPS, labels="a=b", limit=2)
        assert {item["metadata"]["name"]: int(item["data"]["n"]) for item in items} == expected
        assert sum(proxy.counts.faults.values()) > 20


def _swap(api: Any, name: str, number: int) -> None:
    while True:
        seen = api.get(CONFIGMAPS, name)
        if seen["data"]["n"] == str(number):
            return  # a lost answer: it was ours
        try:
            api.replace(CONFIGMAPS, {**seen, "data": {"n": str(number)}})
            return
        except Conflict:
            continue


def test_a_server_that_goes_away_for_good_is_unreachable(
    connect: Callable[..., Any], cluster: Cluster, namespace: str
) -> None:
    with FaultProxy(cluster.kubeconfig) as proxy:
        api = connect(proxy.kubeconfig, namespace, Patience(budget=1.0, first=0.05, longest=0.2))
        api.list(CONFIGMAPS)
        proxy.on(Say(503))
        with pytest.raises(BackendUnreachable, match=r"127.0.0.1:\d+ answers 503"):
            api.list(CONFIGMAPS)
        proxy.forget()
        api.list(CONFIGMAPS)
        proxy.on(Cut(seconds=0.3), verb="watch")
        with pytest.raises(BackendUnreachable, match="cut the connection"):
            list(api.watch(CONFIGMAPS, resource_version=api.list(CONFIGMAPS)[1]))
    with pytest.raises(BackendUnreachable, match="refuses connections"):
        api.list(CONFIGMAPS)


def test_an_api_server_that_is_restarted_and_a_compacted_etcd(
    connect: Callable[..., Any], new_plane_in: Callable[..., Any], tmp_path: Path
) -> None:
    plane: ControlPlane
    with new_plane_in(tmp_path / "plane") as plane:
        api = connect(plane.kubeconfig, "default", Patience(budget=60))
        old = api.create(CONFIGMAPS, a_map("a"))["metadata"]["resourceVersion"]
        halted = threading.Thread(target=plane.restart, args=("kube-apiserver",))
        halted.start()
        made = 0
        while halted.is_alive() or made < 5:
            api.create(CONFIGMAPS, a_map(f"b-{made}"))
            made += 1
        halted.join()
        assert len(api.list(CONFIGMAPS, labels="a=b")[0]) == made + 1
        plane.compact_etcd()
        plane.restart("kube-apiserver")
        with pytest.raises(Gone):
            list(api.watch(CONFIGMAPS, resource_version=old))
