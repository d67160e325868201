"""What the methods of the backend do besides launching: refusals that leave nothing, stopping, suspending,
deleting, finding, telling; blocking and async.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import allaboard
from allaboard.backends.actor import user_at_host
from allaboard.backends.base import LogLine, NotYours, Plan, Selection, Stopped
from allaboard.backends.kubernetes.client.errors import Cause, Forbidden, Invalid, Missing
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, EVENTS, LEASES, PODS, Resource
from allaboard.backends.kubernetes.lifecycle.stop import event
from allaboard.errors import (
    BackendUnreachable,
    BadInput,
    OwnershipConflict,
    SiteError,
    SpecChanged,
    UnknownRun,
)
from allaboard.follow.loop import Outcome
from allaboard.job.site import Site
from allaboard.render import labels
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.report.phrases import seconds_left
from allaboard.report.reading import read_run
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of, summary
from allaboard.testing import a_job
from allaboard.testing.cluster import FakeCluster
from allaboard.testing.objects import PYTORCHJOBS
from allaboard.text.reportline import encode
from tests.core.backends.kubernetes.test_backend import (
    DEFERRED,
    ME,
    YOU,
    a_plan,
    a_plan_with_code,
    jobs,
    record,
    running,
    state,
)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def nothing_left(cluster: FakeCluster) -> bool:
    """Neither a record, nor code, nor a job, nor what a job brings."""
    return [key for key in cluster.objects if key[1] not in ("namespaces", "events", "leases")] == []


# Refused.


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (Forbidden("exceeded quota: gpus", status=403), SiteError, "was not started.*exceeded quota: gpus"),
        (
            Invalid("no", status=422, causes=[Cause("spec.runPolicy.ttl", "must be positive")]),
            BadInput,
            "spec.runPolicy.ttl: must be positive",
        ),
    ],
)
def test_what_the_cluster_refuses_leaves_nothing(
    cluster: FakeCluster, tmp_path: Path, error: Exception, kind: type[Exception], words: str
) -> None:
    cluster.refuse(PYTORCHJOBS, error)  # type: ignore[arg-type]
    with pytest.raises(kind, match=words):
        cluster.backend().launch(a_plan_with_code(tmp_path), ME)
    assert nothing_left(cluster)
    cluster.refusals.clear()
    assert cluster.backend().launch(a_plan_with_code(tmp_path), ME).attempt == 1


NOT_YET = 'TrainingRuntime "{name}" not found: specified trainingRuntime must be created before'


def asked_of_a_webhook(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, behind: int, lacks: str
) -> list[str]:
    """Refuse a TrainJob so many times, as Trainer's webhook does whose cache lacks this runtime."""
    create, asked = cluster.create, list[str]()

    def through_the_webhook(
        resource: Resource, body: dict[str, Any], namespace: str, dry_run: bool = False
    ) -> dict[str, Any]:
        if body["kind"] == "TrainJob":
            asked.append(body["metadata"]["name"])
            if len(asked) <= behind:
                raise Forbidden(NOT_YET.format(name=lacks), status=403, reason="Forbidden")
        return create(resource, body, namespace, dry_run)

    monkeypatch.setattr(cluster, "create", through_the_webhook)
    return asked


def test_a_webhook_that_does_not_know_the_runtime_yet_is_asked_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = a_plan(engine="trainjob")
    asked = asked_of_a_webhook(cluster, monkeypatch, behind=3, lacks=plan.run)
    assert cluster.backend().launch(plan, ME).attempt == 1
    assert len(asked) == 4


def test_a_webhook_that_never_knows_the_runtime_ends_the_launch_and_leaves_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = a_plan(engine="trainjob")
    asked = asked_of_a_webhook(cluster, monkeypatch, behind=1_000, lacks=plan.run)
    with pytest.raises(SiteError, match=r"was not started.*must be created before"):
        cluster.backend().launch(plan, ME)
    assert 10 < len(asked) < 100 and nothing_left(cluster)


def test_a_webhook_that_lacks_something_else_is_asked_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_of_a_webhook(cluster, monkeypatch, behind=1_000, lacks="of-another")
    with pytest.raises(SiteError, match="of-another"):
        cluster.backend().launch(a_plan(engine="trainjob"), ME)
    assert len(asked) == 1 and nothing_left(cluster)


ONE_BY_ONE = "members start one by one: this cluster has no gang scheduler"


def test_a_job_whose_members_nobody_starts_together_is_a_warning_of_its_launch(cluster: FakeCluster) -> None:
    """Unless it asked for that, or has one member."""
    facts = ClusterFacts(kinds=frozenset({"kubeflow.org/v1/PyTorchJob"}))
    handle = cluster.backend(facts=facts).launch(a_plan(workers=3), ME)
    [warning] = handle.warnings
    assert warning.startswith(ONE_BY_ONE) and warning not in handle.notes
    for key, fields in {
        "asked": {"workers": 3, "gang": {"scheduler": "none"}},
        "alone": {"workers": 1},
    }.items():
        plan = replace(a_plan(**fields), key=key)
        assert cluster.backend(facts=facts).launch(plan, ME).warnings == ()


def test_a_kind_that_is_not_served_is_told_with_what_to_install(tmp_path: Path) -> None:
    cluster = FakeCluster(served=[CONFIGMAPS, PODS, EVENTS, LEASES])
    with pytest.raises(SiteError, match=r"does not serve PyTorchJob.*allaboard cluster") as caught:
        cluster.backend().launch(a_plan_with_code(tmp_path), ME)
    assert caught.value.code == "crd_missing" and cluster.all(CONFIGMAPS) == []


def test_a_refused_attempt_leaves_the_record_as_it_was(cluster: FakeCluster, tmp_path: Path) -> None:
    plan = a_plan_with_code(tmp_path, policy={"restart": "never"})
    backend = cluster.backend()
    backend.launch(plan, ME)
    running(cluster, backend, plan.run)
    cluster.end_members(plan.run, 1)
    cluster.tick(3)
    cluster.refuse(PYTORCHJOBS, Forbidden("exceeded quota", status=403))
    with pytest.raises(SiteError):
        backend.launch(plan, YOU)
    kept = record(cluster, plan.run)
    assert (kept.attempt, kept.owner) == (1, ME) and kept.outcome.state == "failed"
    assert state(backend, plan.run) is State.FAILED


def test_a_name_that_somebody_else_has_is_refused_with_whose_it_is(cluster: FakeCluster) -> None:
    plan = a_plan()
    theirs = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": plan.run, "managedFields": [{"manager": "kubectl-create"}]},
        "spec": {"pytorchReplicaSpecs": {}, "runPolicy": {"backoffLimit": 7}},
    }
    cluster.create(PYTORCHJOBS, theirs, "default")
    with pytest.raises(BadInput) as caught:
        cluster.backend().launch(plan, ME)
    said = str(caught.value)
    assert "made by kubectl-create" in said and "for no run that allaboard knows" in said
    assert "spec.runPolicy.backoffLimit: 7 -> 3" in said and caught.value.code == "name_taken"
    assert cluster.all(CONFIGMAPS) == [] and jobs(cluster) == [plan.run]


def test_a_start_that_somebody_is_in_the_middle_of_is_not_taken_over_with_another_spec(
    cluster: FakeCluster,
) -> None:
    with pytest.raises(BackendUnreachable):
        cluster.backend({3: "unreachable", 4: "unreachable"}).launch(
            a_plan(), Owner("me", "detached", "detached")
        )
    assert jobs(cluster) == []
    seen = cluster.backend().observe(a_plan().run)
    assert state_of(seen) is State.QUEUED and "not created yet" in (seen.waiting or "")
    with pytest.raises(SpecChanged, match="workers: 2 -> 3"):
        cluster.backend().launch(a_plan(workers=3), YOU)
    cluster.tick(120)
    handle = cluster.backend().launch(a_plan(workers=3), YOU)
    assert handle.attempt == 1 and len(cluster.all(PYTORCHJOBS)) == 1


def test_code_that_changed_before_it_was_shipped_is_shipped_as_it_is_now(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    plan = a_plan_with_code(tmp_path, "print('old')\n")
    with pytest.raises(BackendUnreachable):
        cluster.backend({4: "unreachable"}).launch(plan, ME)
    assert cluster.one(CONFIGMAPS, f"{plan.run}-code") is None and cluster.one(PYTORCHJOBS, plan.run)
    again = a_plan_with_code(tmp_path, "print('new')\n")
    cluster.backend().launch(again, ME)
    code = cluster.one(CONFIGMAPS, f"{plan.run}-code")
    assert "new" in str(code) and code is not None and code["metadata"]["ownerReferences"]


def test_a_store_that_members_cannot_see_is_a_problem_that_says_what_to_do(cluster: FakeCluster) -> None:
    plan = a_plan(
        checkpoints={"uri": "store://digits"}, command=["python", "train.py", "--data=store://shards"]
    )
    with pytest.raises(BadInput) as caught:
        cluster.backend(site=Site("/home/me/store")).launch(plan, ME)
    assert [p.path for p in caught.value.problems] == ["command[2]", "checkpoints.uri"]
    assert "--store s3://bucket/prefix" in str(caught.value) and nothing_left(cluster)
    backend = cluster.backend(site=Site("s3://bucket/team"))
    handle = backend.launch(plan, ME)
    job = str(cluster.one(PYTORCHJOBS, handle.run))
    assert "--data=s3://bucket/team/shards" in job
    assert backend.saving(handle.run) == f"s3://bucket/team/digits/{handle.run}"


def test_a_store_on_a_volume_of_the_job_is_seen_by_its_members(cluster: FakeCluster) -> None:
    plan = a_plan(checkpoints={"uri": "store://digits"}, storage=[{"mount": "/data", "pvc": "datasets"}])
    backend = cluster.backend(site=Site("/data/store"))
    handle = backend.launch(plan, ME)
    assert backend.saving(handle.run) == f"/data/store/digits/{handle.run}"


# Owning and ending.


def test_whoever_does_not_own_a_run_does_not_stop_it(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    assert backend.stop(handle, YOU, "you", "because") == NotYours("me")
    assert backend.stop(replace(handle, uid="another"), ME, "me", "because") == NotYours("me")
    backend.adopt(handle, ME, YOU)
    assert backend.stop(handle, ME, "me", "because") == NotYours("you")
    with pytest.raises(OwnershipConflict, match="is on attempt 1 now"):
        backend.adopt(replace(handle, uid="another"), YOU, ME)
    assert state(backend, handle.run) is State.RUNNING


def test_a_stop_says_who_and_why_on_the_record_the_job_and_in_an_event(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    cluster.operator.stuck = {f"{handle.run}-worker-0"}
    assert backend.stop(handle, ME, "ann@lab", "the GPUs are needed") == Stopped()
    cluster.tick(3)
    job = cluster.one(PYTORCHJOBS, handle.run)
    assert job is not None and labels.annotation_of(job, labels.STOPPED_BY) == "ann@lab"
    assert labels.annotation_of(job, labels.STOP_REASON) == "the GPUs are needed"
    assert [e["message"] for e in cluster.all(EVENTS)] == ["stopped by ann@lab: the GPUs are needed"]
    assert state(backend, handle.run) is State.STOPPING, "a member holds its GPU still"
    cluster.operator.stuck.clear()
    cluster.tick(3)
    assert state(backend, handle.run) is State.STOPPED
    assert backend.stop(handle, ME, "ann@lab", "again") == Stopped(already=True)


def test_a_job_that_ends_by_itself_in_the_same_moment_was_not_stopped(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)

    class Late(type(backend.api)):  # type: ignore[misc]
        """The members end between the look and the deletion."""

        def delete(self, *args: object, **options: object) -> None:
            cluster.end_members(handle.run)
            cluster.tick(2)
            super().delete(*args, **options)

    backend.api.__class__ = Late
    backend.stop(handle, ME, "me", "because")
    assert state(cluster.backend(), handle.run) is State.SUCCEEDED
    assert record(cluster, handle.run).outcome.state == "succeeded"


def test_members_that_clean_pods_none_keeps_alive_end_with_a_stop(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(policy={"clean_pods": "none"}), ME)
    running(cluster, backend, handle.run)
    master = cluster.one(PODS, f"{handle.run}-master-0")
    assert master is not None
    cluster.operator._set(master, phase="Succeeded", exit_code=0)
    cluster.tick(3)
    seen = backend.observe(handle.run)
    assert state_of(seen) is State.SUCCEEDED
    assert [m.phase for m in seen.members] == ["succeeded", "running"]
    assert backend.stop(handle, ME, "me", "because") == Stopped(already=True)
    cluster.tick(3)
    assert [p["metadata"]["name"] for p in cluster.all(PODS)] == [f"{handle.run}-master-0"]


def test_suspend_and_resume(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    backend.suspend(handle.run)
    cluster.tick(3)
    assert state(backend, handle.run) is State.SUSPENDED and cluster.all(PODS) == []
    (job,) = cluster.all(PYTORCHJOBS)
    assert labels.annotation_of(job, labels.SUSPENDED_BY) == user_at_host()
    backend.resume(handle.run)
    cluster.tick(4)
    assert state(backend, handle.run) is State.RUNNING
    (job,) = cluster.all(PYTORCHJOBS)
    assert labels.annotation_of(job, labels.SUSPENDED_BY) is None
    backend.suspend(handle.run)
    told = [e["message"] for e in sorted(cluster.all(EVENTS), key=lambda e: e["firstTimestamp"])]
    assert told == [f"{word} by {user_at_host()}" for word in ("suspended", "resumed", "suspended")]
    backend.stop(handle, ME, "me", "because")
    cluster.tick(3)
    with pytest.raises(BadInput, match="only a live run can be suspended"):
        backend.suspend(handle.run)


def test_what_happened_is_told_when_job_and_members_are_gone(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    (pod, *_) = cluster.all(PODS)
    told = event(
        {**pod, "apiVersion": "v1", "kind": "Pod"}, "Evicted", "the node was low on memory", cluster.now
    )
    cluster.client().create(EVENTS, told)
    backend.stop(handle, ME, "ann@lab", "the GPUs are needed")
    cluster.tick(40)
    assert state(backend, handle.run) is State.STOPPED and cluster.all(PODS) == []
    said = {(e.object, e.message) for e in cluster.backend().events(handle.run)}
    assert (handle.run, "stopped by ann@lab: the GPUs are needed") in said
    assert ("master-0", "the node was low on memory") in said


def test_how_long_a_stopped_run_took_is_known_when_its_job_is_gone(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    began = running(cluster, backend, handle.run).started
    cluster.tick(100)
    backend.observe(handle.run)
    backend.stop(handle, ME, "ann@lab", "enough")
    cluster.tick(40)
    seen = backend.observe(handle.run)
    assert state_of(seen) is State.STOPPED and began is not None
    for looked in (seen, cluster.backend().observe(handle.run), *cluster.backend().list()):
        assert looked.started == began and looked.finished is not None and looked.finished - began >= 100


def test_orphans_of_a_namespace_that_is_not_there(cluster: FakeCluster) -> None:
    for ask in (cluster.backend(namespace="reserch").orphans, cluster.backend(namespace="reserch").tidy_up):
        with pytest.raises(BadInput, match="namespace 'reserch' does not exist"):
            ask()


def test_delete_takes_every_attempt_and_leaves_the_record(cluster: FakeCluster, tmp_path: Path) -> None:
    plan = a_plan_with_code(tmp_path, policy={"restart": "never"})
    backend = cluster.backend()
    backend.launch(plan, ME)
    running(cluster, backend, plan.run)
    cluster.end_members(plan.run, 1)
    cluster.tick(3)
    backend.launch(plan, ME)
    cluster.tick(3)
    assert len(jobs(cluster)) == 2
    backend.delete(plan.run)
    cluster.tick(3)
    assert jobs(cluster) == [] and cluster.all(PODS) == []
    assert [c["metadata"]["name"] for c in cluster.all(CONFIGMAPS)] == [labels.record_name(plan.run)]
    seen = backend.observe(plan.run)
    assert seen.deleted and state_of(seen) is State.STOPPED and seen.attempt == 2


def test_a_job_deleted_by_hand_is_told_as_such_and_its_name_is_nobodys(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    cluster.delete(PYTORCHJOBS, handle.run, "default")
    cluster.tick(3)
    seen = backend.observe(handle.run)
    assert state_of(seen) is State.STOPPED and "somebody deleted the job object" in seen.notes
    assert backend.launch(a_plan(), ME).attempt == 2


@pytest.mark.parametrize(("code", "how"), [(0, State.SUCCEEDED), (1, State.FAILED)])
def test_an_end_that_its_ttl_hid_from_everybody_is_told_by_an_event(
    cluster: FakeCluster, code: int, how: State
) -> None:
    plan = a_plan(policy={"ttl": 0, "restart": "never"})
    backend = cluster.backend()
    handle = backend.launch(plan, ME)
    running(cluster, backend, handle.run)
    cluster.end_members(handle.run, code)
    cluster.tick(4)
    assert jobs(cluster) == []
    seen = cluster.backend().observe(handle.run)
    assert state_of(seen) is how
    assert record(cluster, handle.run).outcome.state == how


# Looking.


def test_a_run_is_found_by_its_name_a_prefix_of_it_and_its_job(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    first = backend.launch(a_plan("a"), ME)
    cluster.tick(2)
    second = backend.launch(a_plan("b"), ME)
    assert backend.observe(first.run).run == first.run
    assert backend.observe(first.run[:-2]).run == first.run
    assert backend.observe("digits").run == second.run, "the newest"
    with pytest.raises(UnknownRun, match="matches 2 runs"):
        backend.observe("digits-")
    with pytest.raises(UnknownRun, match="did you mean 'digits'"):
        backend.observe("digitz")
    assert [s.run for s in backend.list()] == [second.run, first.run]


def test_a_namespace_that_does_not_exist_is_told_with_the_nearest(cluster: FakeCluster) -> None:
    cluster.add_namespace("research")
    backend = cluster.backend(namespace="reserch")
    for act in (
        lambda: backend.launch(a_plan(), ME),
        backend.list,
        lambda: backend.observe("digits"),
    ):
        with pytest.raises(BadInput, match="namespace 'reserch' does not exist; did you mean 'research'"):
            act()


def test_reports_of_rank_0_are_seen_and_outlive_its_pod(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    cluster.say(f"{handle.run}-master-0", encode("progress", step=40, total=100, loss=0.5))
    fresh = cluster.backend()
    seen = fresh.observe(handle.run, evidence=True)
    assert (seen.progress.step, seen.progress.total) == (40, 100)
    assert "step" in seen.tails["master-0"]
    cluster.say(f"{handle.run}-master-0", encode("progress", step=41, total=100, loss=0.4))
    cluster.end_members(handle.run)
    cluster.tick(2)
    for backend in (fresh, fresh, cluster.backend()):
        seen = backend.observe(handle.run, evidence=True)
        assert (seen.progress.step, seen.progress.lost_steps) == (41, 0), "no line counts twice"
    cluster.delete(PYTORCHJOBS, handle.run, "default")
    cluster.tick(3)
    assert cluster.backend().observe(handle.run).progress.step == 41


def test_metrics_of_files_are_read_from_a_uri_and_a_folder_of_members_is_a_note(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    table = tmp_path / "version_0" / "metrics.csv"
    for place, note in ((tmp_path.as_uri(), False), ("runs/", True)):
        backend, plan = cluster.backend(), a_plan()
        job = plan.job.with_(metrics={"from": place})
        handle = backend.launch(replace(plan, job=job, key=place), ME)
        table.parent.mkdir(exist_ok=True)
        table.write_text("epoch,step,loss,val_loss\n0,9,0.5,\n0,9,,0.75\n")
        os.utime(table, (cluster.now, cluster.now))
        running(cluster, backend, handle.run)
        assert backend.observe(handle.run).measured is None, "files are read only where evidence is asked for"
        seen = backend.observe(handle.run, evidence=True)
        assert any("which nobody else sees" in text for text in seen.notes) == note
        told = summary(seen)
        assert told["metrics"] == ({} if note else {"loss": 0.5, "val_loss": 0.75})
        assert told["progress"]["step"] == (None if note else 9)


TRAINER = (
    "  0%|          | 0/100 [00:00<?, ?it/s]\r 10%|#         | 10/100 [00:05<00:45,  2.00it/s]",
    "{'loss': '2.5', 'grad_norm': '1.0', 'learning_rate': '5e-05', 'epoch': '0.1'}",
    " 20%|##        | 20/100 [00:10<00:40,  2.00it/s]",
    "{'loss': '2.25', 'grad_norm': '1.0', 'learning_rate': '4e-05', 'epoch': '0.2'}",
)


def test_what_a_trainer_prints_is_seen_whoever_looks(cluster: FakeCluster) -> None:
    handle = cluster.backend().launch(a_plan(), ME)
    running(cluster, cluster.backend(), handle.run)
    for line in TRAINER:
        cluster.say(f"{handle.run}-master-0", line)
    backend = cluster.backend()
    for looks in (backend, backend, cluster.backend()):
        seen = looks.observe(handle.run, evidence=True)
        told = summary(seen)
        assert told["progress"] == {"step": 20, "total": 100, "lost_steps": 0}
        assert told["progress_format"] == "Hugging Face's Trainer"
        assert seen.progress.metrics["loss"] == 2.25 and seconds_left(seen) == 40.0
        cluster.tick(61)
    found = read_run(backend, Outcome(seen, [])).history
    assert found.curves["loss"] == [(10, 2.5), (20, 2.25)]


def test_a_job_says_how_its_progress_is_read(cluster: FakeCluster) -> None:
    job = a_job(image="lab/train:1", progress=r"<(?P<step>\d+)> energy (?P<energy>\S+)")
    handle = cluster.backend().launch(Plan(job, "k"), ME)
    running(cluster, cluster.backend(), handle.run)
    for line in ("<3> energy -1.5", "iter 9: loss 1.0, time 1.00ms"):
        cluster.say(f"{handle.run}-master-0", line)
    backend = cluster.backend()
    seen = backend.observe(handle.run, evidence=True)
    assert (seen.progress.step, seen.progress.metrics["energy"]) == (3, -1.5)
    assert read_run(backend, Outcome(seen, [])).history.curves == {"energy": [(3, -1.5)]}


def test_logs_by_member_and_what_no_run_has(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    cluster.say(f"{handle.run}-worker-0", "from the worker")
    cluster.say(f"{handle.run}-master-0", "from the master")
    *lines, cursor = backend.logs(handle.run, Selection(members=("worker-0",)))
    assert [line.text for line in lines if isinstance(line, LogLine)] == ["from the worker"]
    assert isinstance(cursor, dict)
    with pytest.raises(BadInput, match="did you mean 'worker-0'"):
        backend.logs(handle.run, Selection(members=("workers-0",)))
    with pytest.raises(BadInput, match="has no attempt 2"):
        backend.logs(handle.run, Selection(attempt=2))


def test_whoever_may_only_look_sees_it_all_the_same(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    cluster.end_members(handle.run)
    cluster.tick(3)
    viewer = cluster.backend()

    class Viewer(type(viewer.api)):  # type: ignore[misc]
        def _ask(self, verb: str, resource: object, name: str, namespace: object, act: object) -> object:
            if verb not in ("get", "list", "log") or resource == EVENTS:
                raise Forbidden(f"cannot {verb} {resource}", status=403)
            return super()._ask(verb, resource, name, namespace, act)

    viewer.api.__class__ = Viewer
    seen = viewer.observe(handle.run, evidence=True)
    assert state_of(seen) is State.SUCCEEDED and record(cluster, handle.run).outcome is None
    assert any("events may not be read here" in note for note in seen.notes)
    assert [s.run for s in viewer.list()] == [handle.run]


def test_why_a_gang_waits_is_looked_for_in_the_events_of_its_pods(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    cluster.tick(1)
    turned_away = "0/1 nodes are available: 1 optimistic rejection in PostFilter."
    for pod in cluster.all(PODS):
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": turned_away,
        }
        pod["status"] = {"phase": "Pending", "conditions": [condition]}
        cluster._put(PODS, pod, "MODIFIED")
    whole = {**pod, "apiVersion": "v1", "kind": "Pod"}
    told = "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available."
    cluster.client().create(EVENTS, event(whole, "FailedScheduling", told, cluster.now))
    seen = backend.observe(handle.run)
    assert seen.waiting is not None and "0/3 nodes are available: 3 Insufficient cpu" in seen.waiting


# For an event loop.


def test_what_a_trigger_awaits_is_what_others_are_told(cluster: FakeCluster, tmp_path: Path) -> None:
    plan, other = a_plan_with_code(tmp_path), cluster.backend()
    handle = other.launch(plan, ME)

    async def act() -> None:
        backend = cluster.async_backend()
        cluster.tick(3)
        assert state_of(await backend.observe(handle.run)) is State.RUNNING
        await backend.watch_over(handle.run)
        async with backend.changes(handle.run) as changes:
            assert await changes.wait(1)
        assert await backend.secrets_of(handle.run) == other.secrets_of(handle.run)
        assert not await backend.stop_from(handle, DEFERRED, YOU, "me", "because")
        assert await backend.stop_from(handle, ME, DEFERRED, "me", "because")
        cluster.tick(3)
        seen = await backend.observe(handle.run, evidence=True)
        assert state_of(seen) is State.STOPPED
        assert [s.run for s in await backend.list()] == [handle.run]
        lines = [item async for item in backend.logs(handle.run, Selection())]
        *told, _ = lines
        assert [line.gap is not None for line in told] == [True, True], (
            "nobody read them while they were there"
        )

    asyncio.run(act())


def test_allaboard_run_and_attach_on_a_cluster() -> None:
    cluster = FakeCluster(trains_for=60)
    job = a_job(image="lab/train:1")
    outcome = allaboard.run(job, key="nightly", backend=cluster.backend())
    assert outcome.ok and outcome.exit_code == 0
    handed = allaboard.run(job, key="nightly", backend=cluster.backend())
    assert handed.ok and handed.seen.generation == 2, "the first result was taken"
    handle = allaboard.submit(job, key="other", backend=cluster.backend())
    assert allaboard.attach(handle.run, backend=cluster.backend()).ok


def test_a_follower_nudges_and_ends_what_is_out_of_time() -> None:
    cluster = FakeCluster()
    outcome = allaboard.run(
        a_job(image="lab/train:1", policy={"deadline": 60}), key="k", backend=cluster.backend()
    )
    assert outcome.state is State.TIMED_OUT and outcome.exit_code == 4
    assert "longer than specified deadline" in outcome.message
    paused = FakeCluster()
    backend = paused.backend()
    launched = backend.launch

    def and_pause(*args: object, **options: object) -> object:
        handle = launched(*args, **options)  # type: ignore[arg-type]
        paused.tick(3)
        paused.operator.paused = True
        return handle

    backend.launch = and_pause  # type: ignore[method-assign, assignment]
    outcome = allaboard.run(a_job(image="lab/train:1", policy={"deadline": 60}), key="k", backend=backend)
    assert outcome.state is State.TIMED_OUT and "deadline of 1m 00s" in outcome.message


def test_missing_is_no_reason_to_fail_for_optional_things(cluster: FakeCluster) -> None:
    cluster.refuse(EVENTS, Missing("no events here", status=404))
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    backend.stop(handle, ME, "me", "because")
    cluster.tick(3)
    assert state(backend, handle.run) is State.STOPPED


def test_members_that_do_not_end_are_told_once_their_grace_is_over(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(spot={"grace": "4m"}, workers=1), ME)
    running(cluster, backend, handle.run)
    (pod,) = cluster.all(PODS)
    cluster.operator.stuck.add(pod["metadata"]["name"])
    assert backend.stop(handle, ME, "ann", "enough") == Stopped()
    cluster.tick(200)
    assert backend.observe(handle.run).flags == ()
    cluster.tick(100)
    late = backend.observe(handle.run)
    assert late.flags == ("node_lost",) and state_of(late) is State.STOPPING
    assert f"{pod['metadata']['name']} on node node-1" in late.notes[0]
    cluster.operator.stuck.clear()
    cluster.tick(5)
    assert (backend.observe(handle.run).flags, state(backend, handle.run)) == ((), State.STOPPED)
