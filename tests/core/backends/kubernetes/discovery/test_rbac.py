"""The Roles that are shipped: least privilege, and nothing short of it. Whole lives of runs are led on a
cluster in memory that notes each request; what they need and what the Roles allow is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Handle, Plan, Selection, handle_of
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client import resources
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import PODS, resource_for, resource_of
from allaboard.backends.kubernetes.discovery import rbac
from allaboard.backends.kubernetes.discovery.components import (
    CLUSTERQUEUES,
    KUEUE_WORKLOADS,
    LOCALQUEUES,
)
from allaboard.backends.kubernetes.discovery.pod_security import violations
from allaboard.backends.kubernetes.discovery.rbac import Access
from allaboard.backends.kubernetes.stacks import by_file
from allaboard.backends.kubernetes.state.records import read_record
from allaboard.backends.kubernetes.watch import informer
from allaboard.engines import ENGINES, Engine
from allaboard.engines.pytorchjob import PyTorchJob
from allaboard.errors import BadInput, SiteError
from allaboard.gangs import GANGS as WHOLE_GANGS
from allaboard.render import devices
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.testing.cluster import Died, FakeCluster
from allaboard.testing.objects import PYTORCHJOBS
from tests.core.backends.kubernetes.operations.test_foreign import theirs
from tests.core.backends.kubernetes.test_backend import ME, a_plan_with_code, running

GOLDEN = Path(__file__).parents[1] / "golden"
BEYOND = {"namespaces"}
"""Looked at to tell a misspelt one; nothing fails without it."""
VERBS = {"replace": "update"}
OF_THE_CLUSTER = (
    Access("get", "kueue.x-k8s.io", "clusterqueues"),
    Access("get", "scheduling.volcano.sh", "queues"),
)
"""What no Role of a namespace can allow: without it a queue tells less."""
BY_PREFLIGHT = {*OF_THE_CLUSTER, Access("list", "", "resourcequotas")}
ORPHAN = {"after": "1m"}
GANGS = {
    "volcano": "scheduling.volcano.sh/v1beta1/PodGroup",
    "coscheduling": "scheduling.x-k8s.io/v1alpha1/PodGroup",
    "workload": "scheduling.k8s.io/v1alpha2/PodGroup",
    "kai": "scheduling.run.ai/v2alpha2/PodGroup",
}


def asked(cluster: FakeCluster) -> set[Access]:
    """The rights that the requests so far have needed; watches of followers are the hub's."""
    found = {
        Access("watch", w.resource.group, w.resource.plural)
        for engine in ENGINES.values()
        for w in informer._watches_of_run(resource_for(engine), "default")
    } | {rbac.OF_SENSORS}
    for verb, name, name_of in cluster.requests:
        plural, _, group = name.partition(".")
        if plural in BEYOND:
            continue
        if verb.startswith("raw"):
            if name_of.endswith("/pendingworkloads"):
                found.add(Access("get", "visibility.kueue.x-k8s.io", "localqueues", "pendingworkloads"))
        elif verb == "log":
            found.add(Access("get", "", "pods", "log"))
        else:
            found.add(Access(VERBS.get(verb, verb), group, plural))
    return found


def words(found: Iterable[Access]) -> list[str]:
    return sorted({str(access) for access in found})


def facts_with(engine: Engine, gang: str) -> ClusterFacts:
    kind = f"{engine.API_VERSION}/{engine.KIND}"
    return ClusterFacts(namespace="default", kinds=frozenset({kind, GANGS[gang], devices.KIND}))


def a_gang_of_gangs(cluster: FakeCluster, folder: Path) -> tuple[KubernetesBackend, Handle]:
    """An elastic job with a master, on a cluster that serves what holds its two gangs together."""
    native = WHOLE_GANGS["workload"]
    facts = ClusterFacts(
        namespace="default",
        kinds=frozenset({"kubeflow.org/v1/PyTorchJob", *native.KINDS, *native.COMPOSITE}),
    )
    groups, elastic = {"master": 1, "worker": 2}, {"min": 2, "max": 3}
    job = {"groups": groups, "workers": None, "elastic": elastic, "command": ["torchrun", "x.py"]}
    plan = a_plan_with_code(folder, gang={"scheduler": "workload"}, **job)
    for kind in (*native.KINDS, *native.COMPOSITE):
        version, _, name = kind.rpartition("/")
        cluster.served = (*cluster.served, resource_of({"apiVersion": version, "kind": name}))
    backend = cluster.backend(facts=facts)
    return backend, backend.launch(replace(plan, key="gangs"), ME)


def grouped(cluster: FakeCluster) -> None:
    """The members name the PodGroup that KAI's pod-grouper has made for them."""
    for (_, plural, _, _), pod in cluster.objects.items():
        if plural == "pods":
            pod["metadata"].setdefault("annotations", {})["pod-group-name"] = "pg-of-kai"


def a_life(cluster: FakeCluster, folder: Path, engine: Engine, gang: str, framework: str = "") -> None:
    """Started, looked at, suspended, stopped, deleted, forgotten; and a start that the cluster refuses."""
    backend = cluster.backend(facts=facts_with(engine, gang))
    job: dict[str, Any] = {
        "framework": framework or engine.FRAMEWORKS[0],
        "engine": engine.NAME,
        "gang": {"scheduler": gang},
    }
    job["policy"] = {"restart": "never"}
    if engine.FRAMEWORKS[0] == "pytorch":
        job["resources"] = {"gpu": 1, "device_class": "gpu.nvidia.com"}
    plan = a_plan_with_code(folder, **job)
    handle = backend.launch(replace(plan, key=f"{engine.NAME} {gang}"), ME)
    running(cluster, backend, handle.run)
    grouped(cluster)
    first = backend.observe(handle.run).members[0].name
    cluster.say(f"{handle.run}-{first}", "up")
    backend.observe(handle.run, evidence=True)
    list(backend.logs(handle.run, Selection()))
    backend.events(handle.run)
    backend.suspend(handle.run)
    cluster.tick(3)
    backend.resume(handle.run)
    cluster.tick(5)
    backend.stop(handle, ME, "ann", "enough", kill=True)
    cluster.tick(40)
    backend.observe(handle.run)
    backend.delete(handle.run)
    backend.list()
    backend.tidy_up()
    cluster.tick(40 * 86400.0)
    backend.list()
    backend.tidy_up()
    cluster.refuse(resource_for(engine), Forbidden("exceeded quota", status=403))
    with pytest.raises(SiteError, match="was not started"):
        backend.launch(replace(plan, key=f"{engine.NAME} {gang} again"), ME)
    cluster.refusals.clear()
    for keeper in [*cluster.keepers]:
        keeper.let_go()


@pytest.mark.parametrize("role", rbac.ROLES)
def test_the_roles_of_pytorchjob_read_as_they_always_did(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "ENGINES", {"pytorchjob": ENGINES["pytorchjob"]})
    assert rbac.text(role) == (GOLDEN / f"{role}.yaml").read_text(encoding="utf-8")


def test_what_queues_tell_of_the_whole_cluster_is_allowed_by_a_role_of_its_own() -> None:
    allowed = rbac.wanted_accesses("capacity")
    assert {*OF_THE_CLUSTER} <= {*allowed}
    assert {access.verb for access in allowed} == {"get", "list"}


def test_a_second_namespace_takes_nothing_from_the_first() -> None:
    """A binding of the cluster has one name for all namespaces, and whoever applies it again replaces it."""
    import yaml

    def bindings(namespace: str) -> set[str]:
        made = yaml.safe_load_all(rbac.manifest("capacity", namespace))
        return {one["metadata"]["name"] for one in made if one["kind"] == "ClusterRoleBinding"}

    assert bindings("research") == {"allaboard-capacity-research"} != bindings("sales")


def test_what_belongs_to_the_whole_cluster_is_given_no_namespace() -> None:
    import yaml

    made = [*yaml.safe_load_all(rbac.manifest("boost", "platform"))]
    placed = {one["kind"]: one["metadata"].get("namespace") for one in made}
    assert placed == {
        "ServiceAccount": "platform",
        "ClusterRole": None,
        "ClusterRoleBinding": None,
        "Role": "platform",
        "RoleBinding": "platform",
    }
    assert [one["subjects"][0]["namespace"] for one in made if "subjects" in one] == ["platform"] * 2


def test_only_the_platform_may_patch_workloads() -> None:
    patches = Access("patch", "kueue.x-k8s.io", "workloads")
    assert [role for role in rbac.ROLES if patches in rbac.wanted_accesses(role)] == ["boost"]


BROUGHT = {
    "podgroups", "workloads", "compositepodgroups", "resourceclaimtemplates", "trainingruntimes", "secrets",
}  # fmt: skip
"""What a job brings, and what goes with it: what a dead start left of it is for whoever may remove it."""


def test_a_reaper_may_do_what_it_does_and_nothing_else(tmp_path: Path) -> None:
    """A run of each kind, whose client is killed: while it trains, at each request of its start, while it
    stops it; and one whose job somebody has deleted.
    """
    cluster = FakeCluster()
    for engine, gang in zip(ENGINES.values(), cycle(GANGS)):
        job: dict[str, Any] = {"framework": engine.FRAMEWORKS[0], "engine": engine.NAME}
        plan = a_plan_with_code(tmp_path, gang={"scheduler": gang}, policy={"orphan": ORPHAN}, **job)
        deaths = range(1, 8) if engine.NAME == "pytorchjob" else ()
        for faults in ({}, *({n: "die-after"} for n in deaths)):
            client = cluster.backend(faults, facts=facts_with(engine, gang))
            with suppress(Died):
                client.launch(replace(plan, key=f"{engine.NAME} {faults}"), ME)
            client.keeper.died()  # type: ignore[attr-defined]
    client = cluster.backend()
    gone = client.launch(a_plan_with_code(tmp_path, policy={"orphan": ORPHAN}), ME)
    stops = client.launch(replace(a_plan_with_code(tmp_path), key="stops"), ME)
    cluster.tick(3)
    client.observe(gone.run)
    cluster.delete(PYTORCHJOBS, gone.run, "default")
    with suppress(Died):
        cluster.backend({5: "die"}).stop(stops, ME, "ann", "enough")
    client.keeper.died()  # type: ignore[attr-defined]
    cluster.requests.clear()
    for _ in range(20):
        cluster.now += 19
        cluster.tick(1)
        client.reap()
    allowed = {*rbac.wanted_accesses("reaper")}
    done = {a for a in asked(cluster) if a.verb != "watch" and a.resource not in BROUGHT}
    assert words(done) == words(allowed)
    assert [body for body in cluster.all(PODS) if "deletionTimestamp" not in body["metadata"]] == []


def test_a_reaper_runs_where_pods_are_restricted(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    monkeypatch.setenv("ALLABOARD_IMAGE", "registry.lab/team/allaboard:7")
    made = [*yaml.safe_load_all(rbac.manifest("reaper", "research"))]
    assert [one["kind"] for one in made] == ["ServiceAccount", "Role", "RoleBinding", "Deployment"]
    assert {one["metadata"]["namespace"] for one in made} == {"research"}
    pod = made[-1]["spec"]["template"]["spec"]
    assert violations(pod, "restricted") == []
    [container] = pod["containers"]
    assert container["image"] == "registry.lab/team/allaboard:7"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {*container["resources"]["limits"]} == {*container["resources"]["requests"]} == {"cpu", "memory"}
    assert container["command"][1:] == [
        "stop", "--orphans", "--watch", "--backend", "kubernetes", "--namespace", "research",
    ]  # fmt: skip
    monkeypatch.setenv("ALLABOARD_IMAGE", "an image\nkind: Secret")
    with pytest.raises(BadInput, match="ALLABOARD_IMAGE"):
        rbac.manifest("reaper", "research")


def test_the_roles_name_the_kinds_of_every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = PyTorchJob()
    trainer.API_VERSION = "trainer.kubeflow.org/v1alpha1"
    trainer.NAME, trainer.KIND, trainer.PLURAL = "trainjob", "TrainJob", "trainjobs"
    every = {name: ENGINES[name] for name in ("pytorchjob", "tfjob")} | {"trainjob": trainer}
    monkeypatch.setattr(resources, "ENGINES", every)
    text = rbac.text("submitter")
    verbs = "    verbs: [get, list, watch, create, patch, delete]\n"
    assert f"  - apiGroups: [kubeflow.org]\n    resources: [pytorchjobs, tfjobs]\n{verbs}" in text
    assert f"  - apiGroups: [trainer.kubeflow.org]\n    resources: [trainjobs]\n{verbs}" in text
    assert "here: xgboostjobs, paddlejobs, jaxjobs, mpijobs." in text, "ours are no other kinds"
    mine = {*map(str, rbac.needed([("trainer.kubeflow.org", "trainjobs")]))}
    assert "create trainjobs.trainer.kubeflow.org" in mine and "create tfjobs.kubeflow.org" not in mine


def a_local_queue(cluster: FakeCluster) -> None:
    """Kueue's, and what shows that Kueue is there."""
    cluster.shows = cluster.served = (*cluster.served, LOCALQUEUES, CLUSTERQUEUES, KUEUE_WORKLOADS)
    body = {"apiVersion": LOCALQUEUES.api_version, "kind": "LocalQueue", "metadata": {"name": "team"}}
    cluster.client().create(LOCALQUEUES, {**body, "spec": {"clusterQueue": "cores"}})
    cluster.requests.clear()


def in_a_queue(folder: Path) -> Plan:
    """A job that names a queue of Kueue."""
    queue = {"labels": {"kueue.x-k8s.io/queue-name": "team"}}
    return replace(a_plan_with_code(folder, metadata=queue), key="queued")


def test_a_submitter_may_do_what_is_done_and_nothing_else(tmp_path: Path) -> None:
    cluster = FakeCluster()
    for engine, gang in zip(ENGINES.values(), cycle(GANGS)):
        a_life(cluster, tmp_path, engine, gang)
    backend, handle = a_gang_of_gangs(cluster, tmp_path)
    cluster.tick(3)
    backend.observe(handle.run, evidence=True)
    backend.stop(handle, ME, "ann", "enough", kill=True)
    cluster.tick(40)
    backend.delete(handle.run)
    cluster.refuse(PYTORCHJOBS, Forbidden("exceeded quota", status=403))
    with pytest.raises(SiteError, match="was not started"):
        a_gang_of_gangs(cluster, tmp_path)
    cluster.refusals.clear()
    backend = cluster.backend()
    queued = backend.launch(in_a_queue(tmp_path), ME).run
    backend.observe(queued, evidence=True)
    stored = read_record(cluster.client(), queued)
    assert stored is not None
    by_file.ask(cluster.client(), stored, 0.0)
    done = asked(cluster)
    a_local_queue(cluster)
    backend.queues()
    done |= asked(cluster) - BY_PREFLIGHT
    assert words(done - {*OF_THE_CLUSTER}) == words(rbac.wanted_accesses("submitter"))


@pytest.mark.parametrize(("engine", "roles"), [("jobset", ["submitter", "mpi"]), ("trainjob", ["submitter"])])
def test_secrets_are_for_jobs_of_mpi_as_jobsets_and_never_listed(
    tmp_path: Path, engine: str, roles: list[str]
) -> None:
    """Preflight asks for them of such a job alone; Trainer makes the key of a TrainJob itself."""
    cluster = FakeCluster()
    a_life(cluster, tmp_path, ENGINES[engine], "coscheduling", "mpi")
    allowed = {access for role in roles for access in rbac.wanted_accesses(role)}
    assert asked(cluster) <= allowed
    assert {*rbac.wanted_accesses("mpi")} <= asked(cluster) or engine == "trainjob"
    assert "secrets" not in " ".join(
        words(rbac.wanted_accesses("submitter") + rbac.wanted_accesses("viewer"))
    )
    kinds = [("jobset.x-k8s.io", "jobsets"), ("", "configmaps")]
    assert "create secrets" not in words(rbac.needed(kinds))
    assert "watch configmaps" not in words(rbac.needed(kinds)), "a Role of an older release lets jobs run"
    assert "create secrets" in words(rbac.needed([*kinds, ("", "secrets")]))


def test_a_submitter_may_adopt_what_others_started() -> None:
    cluster = FakeCluster()
    for done in ("stop", "suspend", "resume", "delete"):
        cluster.client().create(PYTORCHJOBS, theirs(done))
        cluster.tick(3)
        cluster.requests.clear()
        job = cluster.backend().others(done, adopt=True)
        seen = job.observe(done)
        job.stop(handle_of(seen), ME, "ann", "enough") if done == "stop" else getattr(job, done)(done)
        assert {*words(asked(cluster))} <= {*words(rbac.wanted_accesses("submitter"))}


def test_a_viewer_may_do_what_looking_takes_and_nothing_else(tmp_path: Path) -> None:
    cluster = FakeCluster()
    for engine, gang in zip(ENGINES.values(), cycle(GANGS)):
        plan = a_plan_with_code(tmp_path, framework=engine.FRAMEWORKS[0], gang={"scheduler": gang})
        backend = cluster.backend(facts=facts_with(engine, gang))
        handle = backend.launch(replace(plan, key=engine.NAME), ME)
        cluster.tick(3)
        cluster.say(f"{handle.run}-{backend.observe(handle.run).members[0].name}", "up")
    grouped(cluster)
    a_gang_of_gangs(cluster, tmp_path)
    cluster.backend().launch(in_a_queue(tmp_path), ME)
    cluster.requests.clear()
    backend = cluster.backend()
    for seen in backend.list():
        backend.observe(seen.run, evidence=True)
        list(backend.logs(seen.run, Selection()))
        backend.events(seen.run)
    backend.orphans()
    done = asked(cluster)
    a_local_queue(cluster)
    backend.queues()
    done = (done | asked(cluster)) - {*OF_THE_CLUSTER}
    assert words(done) == words(rbac.wanted_accesses("viewer"))
