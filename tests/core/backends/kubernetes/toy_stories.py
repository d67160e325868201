"""What a user does with the jobs of an engine that allaboard has never heard of, on a cluster in memory.
`test_new_engine.py` runs each story in a process of its own (``python -m ...toy_stories NAME``), where the
file of the engine seems to lie in the folder of allaboard's engines.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if __name__ == "__main__":
    _found = importlib.util.find_spec("allaboard.engines")
    assert _found is not None and _found.submodule_search_locations is not None and _found.loader is not None
    _found.submodule_search_locations.append(str(Path(__file__).parent / "toy"))
    _module = importlib.util.module_from_spec(_found)
    sys.modules["allaboard.engines"] = _module
    _found.loader.exec_module(_module)

import allaboard
from allaboard.backends.base import Handle, Plan, Selection, handle_of
from allaboard.backends.kubernetes.client.errors import Cause, Forbidden
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS, Resource
from allaboard.backends.kubernetes.discovery import rbac
from allaboard.backends.kubernetes.discovery.installed import survey_cluster
from allaboard.backends.kubernetes.lifecycle.field_errors import problem_of
from allaboard.backends.kubernetes.lifecycle.prepare import prepare_attempt
from allaboard.backends.kubernetes.preflight.gather import preflight
from allaboard.backends.kubernetes.watch.reflector import PodAlarm
from allaboard.checking.job import check, require_valid
from allaboard.cli.tools.cluster import _page
from allaboard.engines import ENGINES
from allaboard.errors import BadInput
from allaboard.job.site import Site
from allaboard.job.training_job import TrainingJob
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.report.terminal import Ink
from allaboard.runs.observation import Observation, Owner, State
from allaboard.runs.status import state_of
from allaboard.testing import a_job
from allaboard.testing.cluster import FakeCluster
from tests.core.backends.kubernetes.test_rescue import fails

TOYS = Resource("toy.example", "v1alpha1", "toyboxes", "ToyJob")
ME = Owner("me")


def a_toy(**fields: object) -> TrainingJob:
    return require_valid(a_job(framework="mxnet", image="lab/toy:1", **fields))


def a_cluster(**fields: object) -> FakeCluster:
    return FakeCluster(shows=[TOYS], **fields)  # type: ignore[arg-type]


def launched(cluster: FakeCluster, **fields: object) -> Handle:
    handle = cluster.backend().launch(Plan(a_toy(**fields), "k"), ME)
    cluster.tick(3)
    return handle


def looked(cluster: FakeCluster, run: str) -> Observation:
    return cluster.backend().observe(run, evidence=True)


def theirs(name: str = "nightly") -> dict[str, object]:
    template = {"spec": {"containers": [{"name": "toy", "image": "theirs/train:1"}]}}
    specs = {"Chief": {"replicas": 1, "template": template}, "Worker": {"replicas": 2, "template": template}}
    return {
        "apiVersion": "toy.example/v1alpha1",
        "kind": "ToyJob",
        "metadata": {"name": name},
        "spec": {"toySpecs": specs},
    }


def followed_to_success() -> None:
    cluster = a_cluster(trains_for=60.0)
    outcome = allaboard.run(a_toy(workers=3), backend=cluster.backend())
    assert outcome.ok, outcome
    assert [m.name for m in outcome.seen.members] == ["chief-0", "worker-0", "worker-1"]
    (made,) = cluster.all(TOYS)
    assert made["status"]["conditions"][-1]["message"].endswith(": succeeded")
    asked = {name for _, name, _ in cluster.requests}
    assert "toyboxes.toy.example" in asked and not any(name.startswith("toyjobs") for name in asked)


def followed_to_failure() -> None:
    cluster = a_cluster()
    backend = cluster.backend()
    run = allaboard.submit(a_toy(), backend=backend).run
    cluster.tick(5)
    assert state_of(backend.observe(run)) is State.RUNNING
    cluster.end_members(cluster.all(TOYS)[0]["metadata"]["name"], 3)
    outcome = allaboard.attach(run, backend=backend)
    assert outcome.state is State.FAILED
    assert {m.exit_code for m in outcome.seen.members} == {3}


def its_end_is_told_by_an_event_when_it_is_gone() -> None:
    for code, state in ((0, State.SUCCEEDED), (1, State.FAILED)):
        cluster = a_cluster()
        handle = launched(cluster)
        name = cluster.all(TOYS)[0]["metadata"]["name"]
        cluster.end_members(name, code)
        cluster.tick(3)
        cluster.delete(TOYS, name, "default")
        cluster.tick(3)
        assert cluster.all(TOYS) == []
        assert state_of(looked(cluster, handle.run)) is state


def logs_of_a_member() -> None:
    cluster = a_cluster()
    handle = launched(cluster)
    name = cluster.all(TOYS)[0]["metadata"]["name"]
    cluster.say(f"{name}-toy-worker-0", "epoch 1")
    cluster.say(f"{name}-toy-chief-0", "I lead")
    lines = cluster.backend().logs(handle.run, Selection(members=("worker-0",)))
    assert [line.text for line in lines if not isinstance(line, dict)] == ["epoch 1"]


def what_a_failing_pod_wrote_is_captured_before_it_goes() -> None:
    cluster = a_cluster()
    handle = cluster.backend().launch(Plan(a_toy(), "k"), ME)
    cluster.tick(2)
    name = f"{cluster.all(TOYS)[0]['metadata']['name']}-toy-worker-0"
    cluster.say(name, "ValueError: odd")
    backend = cluster.backend()
    with backend.changes(handle.run) as changes:
        version = fails(cluster, name, "")
        assert changes.on_alarm is not None
        changes.on_alarm(PodAlarm(name, version, failed=True))
        session = backend.workspace.sessions.get(handle.run)
        assert session is not None
        session.join_captures(30)
        for pod in cluster.all(PODS):
            cluster.delete(PODS, pod["metadata"]["name"], "default", grace=0)
        seen = backend.observe(handle.run, evidence=True)
    assert seen.tails["worker-0"] == "ValueError: odd"


def suspended_resumed_stopped_deleted() -> None:
    cluster = a_cluster()
    handle = launched(cluster)
    backend = cluster.backend()
    backend.suspend(handle.run)
    cluster.tick(3)
    assert state_of(backend.observe(handle.run)) is State.SUSPENDED
    assert cluster.all(TOYS)[0]["spec"]["runPolicy"]["suspend"] is True
    backend.resume(handle.run)
    cluster.tick(3)
    assert state_of(backend.observe(handle.run)) is State.RUNNING
    backend.stop(handle, ME, "ann", "enough")
    cluster.tick(60)
    assert state_of(backend.observe(handle.run)) is State.STOPPED
    backend.delete(handle.run)
    cluster.tick(60)
    assert cluster.all(TOYS) == []


def orphans_are_found_and_tidied_up() -> None:
    cluster = a_cluster()
    launched(cluster)
    for record in cluster.all(CONFIGMAPS):
        cluster.delete(CONFIGMAPS, record["metadata"]["name"], "default")
    cluster.tick(7200)
    (orphan,) = cluster.backend().orphans()
    assert orphan.kind == "job"
    cluster.backend().tidy_up()
    cluster.tick(60)
    assert cluster.all(TOYS) == []


def those_of_others_are_listed_looked_at_and_adopted() -> None:
    cluster = a_cluster()
    cluster.client().create(TOYS, theirs())
    cluster.tick(3)
    (seen,) = cluster.backend().list_others()
    assert seen.run == "nightly" and state_of(seen) is State.RUNNING and len(seen.members) == 3
    for name in ("nightly", "toyjob/nightly", "toyboxes.toy.example/nightly"):
        assert state_of(cluster.backend().others(name).observe("nightly")) is State.RUNNING
    cluster.say("nightly-toy-worker-1", "theirs")
    lines = cluster.backend().others("nightly").logs("nightly", Selection())
    assert [line.text for line in lines if not isinstance(line, dict)] == ["theirs"]
    job = cluster.backend().others("nightly", adopt=True)
    job.suspend("nightly")
    cluster.tick(3)
    assert state_of(job.observe("nightly")) is State.SUSPENDED
    job.resume("nightly")
    cluster.tick(3)
    job.stop(handle_of(job.observe("nightly")), ME, "ann", "enough")
    cluster.tick(60)
    assert cluster.all(TOYS) == []


def refused_fields_are_explained_by_the_fields_of_its_kind() -> None:
    cluster = a_cluster()
    try:
        cluster.backend().launch(Plan(a_toy(engine_spec={"toySpec": {}}), "k"), ME)
    except BadInput as error:
        assert [(p.path, p.suggestion) for p in error.problems] == [("engine_spec.toySpec", "toySpecs")], (
            error
        )
    else:
        raise AssertionError("an unknown field is refused")
    cause = Cause("spec.toySpecs.Worker.template.spec.nodeSelectr", "unknown field")
    told = problem_of(cause, ENGINES["toyjob"])
    assert (told.path, told.suggestion) == ("pod.spec.nodeSelectr", "nodeSelector")


def preflight_says_what_its_operator_needs() -> None:
    cluster = a_cluster()
    launched(cluster)
    api = cluster.client()
    found = survey_cluster(api, api.server, api.namespace)
    facts = found.facts(ClusterFacts(namespace="default"))
    plan = Plan(a_toy(name="w" * 40, workers=3), "another")
    made = prepare_attempt(plan, 1, 1, Site("/store"), facts, {})
    checks = {one.id: one for one in preflight(api, made, found)}
    assert checks["kinds"].ok and "toy.example/v1alpha1 ToyJob" in checks["kinds"].summary
    assert checks["operator"].ok and checks["operator"].summary.startswith("Toy Operator is alive")
    assert checks["rbac"].ok and checks["dry_run"].ok
    assert "-toy-" in checks["names"].summary, "pods are called what their operator calls them"
    assert "toyboxes" in str(rbac.needed([("toy.example", "toyboxes")])[6:]), "it asks for its own kind"
    namespace = next(o for k, o in cluster.objects.items() if k[1] == "namespaces" and k[3] == "default")
    namespace["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    [secure] = [c for c in preflight(api, made, found) if c.id == "pod_security"]
    assert secure.stops and "say security: restricted in the job" in str(secure.fix)
    assert "toy-wait" in str(secure.evidence), "what its operator adds is looked at, too"
    own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    whole = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"spec": {"securityContext": whole, "containers": [{"name": "toy", "securityContext": own}]}}
    made = prepare_attempt(Plan(a_toy(workers=3, pod=pod), "third"), 1, 1, Site("/store"), facts, {})
    [secure] = [c for c in preflight(api, made, found) if c.id == "pod_security"]
    assert (
        str(secure.fix)
        == "the operator adds the container toy-wait without a securityContext: wake the chief"
    )


def a_cluster_without_its_operator_says_how_to_install_it() -> None:
    cluster = FakeCluster()
    api = cluster.client()
    page = "\n".join(_page(survey_cluster(api, api.server, api.namespace), Ink(False)))
    assert "Toy Operator" in page and "toyctl install" in page
    alive = a_cluster()
    launched(alive)
    api = alive.client()
    page = "\n".join(_page(survey_cluster(api, api.server, api.namespace), Ink(False)))
    assert "toyctl install" not in page and "(toy.example v1alpha1)" in page
    assert "it wrote to digits" in page


def the_roles_allow_its_kind() -> None:
    for role, verbs in (("submitter", "create"), ("viewer", "watch")):
        text = rbac.manifest(role, "research")
        kinds = "jaxjobs, mpijobs, mxjobs, paddlejobs, pytorchjobs, tfjobs, xgboostjobs"
        assert f"  - apiGroups: [kubeflow.org]\n    resources: [{kinds}]\n" in text
        assert "  - apiGroups: [toy.example]\n    resources: [toyboxes]\n" in text
        assert f"{verbs} toyboxes.toy.example" in map(str, rbac.wanted_accesses(role))
    needed = [*map(str, rbac.needed([("toy.example", "toyboxes")]))]
    assert "create toyboxes.toy.example" in needed and "create pytorchjobs.kubeflow.org" not in needed


def a_submitter_who_may_not_create_it_is_told_so() -> None:
    cluster = a_cluster()
    cluster.refuse(TOYS, Forbidden("toyboxes.toy.example is forbidden", status=403))
    try:
        launched(cluster)
    except allaboard.errors.SiteError as error:
        assert "toyboxes.toy.example is forbidden" in str(error)
    else:
        raise AssertionError("it was refused")


def check_knows_its_roles() -> None:
    job = TrainingJob(name="digits", command=["train"], framework="mxnet", groups={"master": 1})
    (problem,) = check(job)
    assert problem.path == "groups.master" and "ToyJob has chief or worker" in problem.message


STORIES = (
    followed_to_success,
    followed_to_failure,
    its_end_is_told_by_an_event_when_it_is_gone,
    logs_of_a_member,
    what_a_failing_pod_wrote_is_captured_before_it_goes,
    suspended_resumed_stopped_deleted,
    orphans_are_found_and_tidied_up,
    those_of_others_are_listed_looked_at_and_adopted,
    refused_fields_are_explained_by_the_fields_of_its_kind,
    preflight_says_what_its_operator_needs,
    a_cluster_without_its_operator_says_how_to_install_it,
    the_roles_allow_its_kind,
    a_submitter_who_may_not_create_it_is_told_so,
    check_knows_its_roles,
)

if __name__ == "__main__":
    {story.__name__: story for story in STORIES}[sys.argv[1]]()
    print("well")
