"""Jobs that others made on a cluster: named and watched like runs of ours, changed with ``--adopt`` alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allaboard.backends.actor import user_at_host
from allaboard.backends.base import handle_of
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, EVENTS, PODS
from allaboard.backends.kubernetes.discovery.components import KUEUE_WORKLOADS
from allaboard.backends.kubernetes.observe import managers
from allaboard.backends.kubernetes.observe.queues import JOB_UID
from allaboard.cli import main
from allaboard.render import labels
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from allaboard.testing.objects import PYTORCHJOBS
from tests.core.backends.kubernetes.operations.test_foreign import theirs
from tests.core.cli.test_on_a_cluster import Desk, desk

__all__ = ["desk"]

AFTER_THE_LOOK = 3
"""The request about jobs by which a verb sees that it is still the one: whose it is and how it stands
come before.
"""


@pytest.fixture
def nightly(desk: Desk) -> Desk:
    """A cluster on which somebody trains."""
    desk.cluster.client().create(PYTORCHJOBS, theirs())
    desk.cluster.tick(3)
    desk.cluster.say("nightly-master-0", "step 1")
    return desk


def test_they_are_listed_when_they_are_asked_for(nightly: Desk) -> None:
    assert nightly("run", nightly.job(), "--detach", "--key", "k")[0] == 0
    names = [run["run"] for run in json.loads(nightly("list", "--json")[1])["runs"]]
    assert len(names) == 1 and names[0].startswith("digits-")
    every = [run["run"] for run in json.loads(nightly("list", "--all", "--json")[1])["runs"]]
    assert sorted(every) == sorted([*names, "nightly"])
    (line,) = [line for line in nightly("list", "--all")[1].splitlines() if line.startswith("nightly")]
    assert "1 master + 1 worker" in line and line.endswith("(a job of others)")


@pytest.mark.parametrize("name", ["nightly", "pytorchjob/nightly", "PyTorchJob/nightly"])
def test_their_status_is_told(nightly: Desk, name: str) -> None:
    body = json.loads(nightly("status", name, "--json")[1])
    assert body["run"] == "nightly" and [m["group"] for m in body["members"]] == ["master", "worker"]
    code, page, _ = nightly("status", name)
    assert code == 0 and "a PyTorchJob of others, which is only looked at" in page
    assert "allaboard logs nightly" in page and "allaboard stop" not in page and "  key " not in page


def test_their_logs_and_events_are_read(nightly: Desk) -> None:
    code, out, _ = nightly("logs", "nightly", "--rank", "0")
    assert code == 0 and "step 1" in out
    assert nightly("logs", "nightly", "worker-7")[0] == 2
    nightly.cluster.end_members("nightly")
    nightly.cluster.tick(2)
    code, out, _ = nightly("events", "nightly", "--json")
    assert code == 0 and "PyTorchJobSucceeded" in [event["reason"] for event in json.loads(out)["events"]]


def test_they_are_followed_to_their_end(nightly: Desk) -> None:
    code, out, _ = nightly("follow", "nightly")
    assert code == 0 and "nightly succeeded" in out
    code, out, _ = nightly("logs", "nightly", "-f")
    assert code == 0 and "step 1" in out


VERBS = ("stop", "suspend", "resume", "delete")


@pytest.mark.parametrize("verb", VERBS)
def test_they_are_not_changed_unless_that_is_said(nightly: Desk, verb: str) -> None:
    (before,) = nightly.cluster.all(PYTORCHJOBS)
    code, _, err = nightly(verb, "nightly")
    assert code == 2
    assert f"was not started by allaboard; add --adopt to {verb} it all the same" in " ".join(err.split())
    (after,) = nightly.cluster.all(PYTORCHJOBS)
    assert after["spec"] == before["spec"] and "deletionTimestamp" not in after["metadata"]
    assert "annotations" not in after["metadata"]


def test_one_is_stopped_and_an_event_outlives_it(nightly: Desk) -> None:
    code, out, _ = nightly("stop", "nightly", "--adopt", "--reason", "the GPUs are needed")
    assert code == 0 and out.splitlines()[-1].endswith(": the GPUs are needed")
    assert nightly.cluster.all(PYTORCHJOBS) == [] and nightly.cluster.all(PODS) == []
    (event,) = [e for e in nightly.cluster.all(EVENTS) if e["reason"] == "Stopped"]
    assert event["involvedObject"]["name"] == "nightly" and "the GPUs are needed" in event["message"]
    assert nightly.cluster.all(CONFIGMAPS) == []


def test_whoever_follows_one_is_told_who_stopped_it(nightly: Desk) -> None:
    watching = nightly.open().others("nightly")
    assert state_of(watching.observe("nightly")) is State.RUNNING
    assert nightly("stop", "nightly", "--adopt", "--reason", "enough")[0] == 0
    seen = watching.observe("nightly")
    assert state_of(seen) is State.STOPPED and seen.stop is not None
    assert (seen.stop.by, seen.stop.reason) == (user_at_host(), "enough")


def test_who_stopped_it_stands_on_it_while_it_ends(nightly: Desk) -> None:
    nightly.cluster.operator.stuck.add("nightly-worker-0")
    job = nightly.open().others("nightly", adopt=True)
    seen = job.observe("nightly")
    job.stop(handle_of(seen), Owner("nobody"), "ann", "enough")
    nightly.cluster.tick(2)
    _, page, _ = nightly("status", "nightly")
    assert "stopping" in page.splitlines()[0] and "by ann at" in page and ": enough" in page
    nightly.cluster.tick(120)
    code, _, err = nightly("stop", "nightly", "--adopt")
    assert code == 1 and "nightly-worker-0 on node node-1" in err and "stop nightly --now --adopt" in err
    nightly.cluster.operator.stuck.clear()
    assert nightly("stop", "nightly", "--adopt", "--now")[0] == 0
    assert nightly.cluster.all(PYTORCHJOBS) == []


def test_one_that_has_ended_is_left_as_it_is_and_its_pods_end(nightly: Desk) -> None:
    nightly.cluster.end_members("nightly", 0)
    nightly.cluster.tick(2)
    code, out, _ = nightly("stop", "nightly", "--adopt")
    assert code == 0 and "nightly had ended already: succeeded" in out
    assert len(nightly.cluster.all(PYTORCHJOBS)) == 1


@pytest.mark.parametrize("ended", [False, True])
def test_one_that_is_deleted_leaves_an_event(nightly: Desk, ended: bool) -> None:
    if ended:
        nightly.cluster.end_members("nightly", 0)
        nightly.cluster.tick(2)
    assert nightly("delete", "nightly", "--adopt")[0] == 0
    assert nightly.cluster.all(PYTORCHJOBS) == []
    left = [e for e in nightly.cluster.all(EVENTS) if e["reason"] in ("Deleted", "Stopped")]
    assert [e["reason"] for e in left] == ["Deleted" if ended else "Stopped"]
    assert user_at_host() in left[0]["message"]


def test_one_is_suspended_and_resumed(nightly: Desk) -> None:
    code, out, _ = nightly("suspend", "nightly", "--adopt")
    assert code == 0 and "resume nightly --adopt" in out
    (job,) = nightly.cluster.all(PYTORCHJOBS)
    assert job["spec"]["runPolicy"]["suspend"] and nightly.cluster.all(PODS) == []
    assert job["metadata"]["annotations"][labels.SUSPENDED_BY] == user_at_host()
    assert nightly("resume", "nightly")[0] == 2
    body = json.loads(nightly("resume", "nightly", "--adopt", "--json")[1])
    assert (body["run"], body["key"], body["diagnoses"]) == ("nightly", "", [])
    assert body["state"] != "suspended"
    (job,) = nightly.cluster.all(PYTORCHJOBS)
    assert not job["spec"]["runPolicy"]["suspend"]
    assert labels.SUSPENDED_BY not in job["metadata"]["annotations"]
    nightly.cluster.tick(3)
    assert json.loads(nightly("status", "nightly", "--json")[1])["state"] == "running"
    told = [e["reason"] for e in nightly.cluster.all(EVENTS) if e["source"] == {"component": "allaboard"}]
    assert sorted(told) == ["Resumed", "Suspended"]


@pytest.mark.parametrize("ended", [False, True], ids=["live", "ended"])
def test_one_is_deleted_with_its_pods(nightly: Desk, ended: bool) -> None:
    if ended:
        nightly.cluster.end_members("nightly", 0)
        nightly.cluster.tick(2)
    code, out, _ = nightly("delete", "nightly", "--adopt")
    assert code == 0 and "its pods and their logs went with it" in out
    assert nightly.cluster.all(PYTORCHJOBS) == [] and nightly.cluster.all(PODS) == []
    code, _, err = nightly("delete", "nightly", "--adopt")
    assert code == 2 and "nightly" in err


@pytest.mark.parametrize("verb", VERBS)
def test_another_one_that_has_its_name_meanwhile_is_not_touched(nightly: Desk, verb: str) -> None:
    def replaced(_: str, plural: str) -> None:
        """Between the look of the verb and what it does."""
        looks.append(plural)
        if plural == "pytorchjobs" and looks.count("pytorchjobs") == AFTER_THE_LOOK:
            cluster = nightly.cluster
            cluster.delete(PYTORCHJOBS, "nightly", "default")
            cluster.tick()
            cluster.client().create(PYTORCHJOBS, theirs())

    looks: list[str] = []
    nightly.on_request = replaced
    before = nightly.cluster.all(PYTORCHJOBS)[0]["metadata"]["uid"]
    code, _, err = nightly(verb, "nightly", "--adopt")
    (job,) = nightly.cluster.all(PYTORCHJOBS)
    assert job["metadata"]["uid"] != before, "the test has replaced it"
    assert code == 1 and "is not the object that was looked at" in " ".join(err.split())
    assert "deletionTimestamp" not in job["metadata"] and not job["spec"]["runPolicy"]["suspend"]


@pytest.mark.parametrize(
    ("method", "late"),
    [("delete", "stop"), ("delete", "delete"), ("patch", "suspend"), ("patch", "resume")],
)
def test_nor_if_it_gets_the_name_in_the_very_moment(nightly: Desk, method: str, late: str) -> None:
    done: list[str] = []

    def replaced(asked: str, plural: str) -> None:
        if (asked, plural) == (method, "pytorchjobs") and not done:
            done.append(asked)
            nightly.cluster.delete(PYTORCHJOBS, "nightly", "default")
            nightly.cluster.tick()
            nightly.cluster.client().create(PYTORCHJOBS, theirs())

    nightly.on_request = replaced
    nightly(late, "nightly", "--adopt")
    (job,) = nightly.cluster.all(PYTORCHJOBS)
    assert done and "deletionTimestamp" not in job["metadata"]
    assert not job["spec"]["runPolicy"]["suspend"] and "annotations" not in job["metadata"]


def test_who_else_looks_after_it_is_told(nightly: Desk) -> None:
    configmap = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dag"}}
    uid = nightly.cluster.client().create(CONFIGMAPS, configmap)["metadata"]["uid"]
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "dag", "uid": uid}
    mark_it(nightly, ownerReferences=[{**owner, "controller": True}], labels={labels.MANAGED_BY: "Helm"})
    who = "it belongs to Workflow 'dag', which may make it anew"
    assert who in nightly("status", "nightly")[1]
    assert who in " ".join(nightly("stop", "nightly")[2].split())
    code, out, err = nightly("stop", "nightly", "--adopt", "--json")
    assert code == 0 and json.loads(out)["state"] == "stopped"
    assert who in err and "'Helm' manages it" in err


def test_what_kueue_holds_back_is_not_resumed_and_what_it_lets_run_is_not_suspended(nightly: Desk) -> None:
    mark_it(nightly, labels={managers.QUEUE: "research"})
    code, _, err = nightly("suspend", "nightly", "--adopt")
    said = " ".join(err.split())
    assert code == 2 and "Kueue would start it again at once" in said and '{"spec":{"active":false}}' in said
    nightly.cluster.client().patch(PYTORCHJOBS, "nightly", {"spec": {"runPolicy": {"suspend": True}}})
    nightly.cluster.tick(2)
    code, _, err = nightly("resume", "nightly", "--adopt")
    assert code == 2 and "by its queue 'research': it starts when Kueue admits it" in " ".join(err.split())
    assert nightly.cluster.all(PYTORCHJOBS)[0]["spec"]["runPolicy"]["suspend"]
    assert nightly("stop", "nightly", "--adopt")[0] == 0


def test_kueue_is_known_by_its_workload_too(nightly: Desk) -> None:
    cluster = nightly.cluster
    cluster.served = (*cluster.served, KUEUE_WORKLOADS)
    own_labels = {JOB_UID: cluster.all(PYTORCHJOBS)[0]["metadata"]["uid"]}
    metadata = {"name": "pytorchjob-nightly-1f", "labels": own_labels}
    kind = {"apiVersion": KUEUE_WORKLOADS.api_version, "kind": "Workload"}
    cluster.client().create(KUEUE_WORKLOADS, {**kind, "metadata": metadata})
    code, _, err = nightly("resume", "nightly", "--adopt")
    assert code == 2 and "describe workloads pytorchjob-nightly-1f" in " ".join(err.split())


@pytest.mark.parametrize("name", ["digits", "{run}", "{run}*"])
def test_a_run_of_ours_is_stopped_as_always(nightly: Desk, name: str) -> None:
    nightly.cluster.operator.trains_for = None
    run = json.loads(nightly("run", nightly.job(), "--detach", "--key", "k", "--json")[1])["run"]
    nightly.cluster.tick(3)
    words = name.replace("{run}*", run[:-3]).replace("{run}", run)
    body = json.loads(nightly("stop", words, "--adopt", "--json")[1])
    assert body["run"] == run and body["state"] == "stopped" and body["key"] == "k"
    assert len(nightly.cluster.all(PYTORCHJOBS)) == 1, "the job of others trains on"


def test_its_object_is_no_job_of_others(nightly: Desk) -> None:
    run = json.loads(nightly("run", nightly.job(), "--detach", "--key", "k", "--json")[1])["run"]
    nightly.cluster.tick(3)
    code, _, err = nightly("delete", f"pytorchjob/{run}", "--adopt")
    assert code == 2 and f"an attempt of a run of ours; name the run: {run}" in " ".join(err.split())
    assert len(nightly.cluster.all(PYTORCHJOBS)) == 2


def test_a_copy_of_one_of_ours_is_a_job_of_others(nightly: Desk) -> None:
    run = json.loads(nightly("run", nightly.job(), "--detach", "--key", "k", "--json")[1])["run"]
    nightly.cluster.tick(3)
    own_labels = {labels.RUN: run, labels.ATTEMPT: "1", labels.GENERATION: "1"}
    body = theirs("copy")
    nightly.cluster.client().create(PYTORCHJOBS, {**body, "metadata": {"name": "copy", "labels": own_labels}})
    assert nightly("delete", "pytorchjob/copy", "--adopt")[0] == 0
    assert sorted(job["metadata"]["name"] for job in nightly.cluster.all(PYTORCHJOBS)) == sorted(
        ["nightly", run]
    )


def test_a_name_that_both_have_is_asked_back_about(nightly: Desk) -> None:
    assert nightly("run", nightly.job(name="nightly"), "--detach", "--key", "k")[0] == 0
    code, _, err = nightly("stop", "nightly", "--adopt")
    assert code == 2 and "or pytorchjob/nightly" in " ".join(err.split())
    assert len(nightly.cluster.all(PYTORCHJOBS)) == 2
    assert nightly("stop", "pytorchjob/nightly", "--adopt")[0] == 0
    (ours,) = nightly.cluster.all(PYTORCHJOBS)
    assert ours["metadata"]["name"].startswith("nightly-")


@pytest.mark.parametrize("verb", VERBS)
def test_on_this_machine_there_is_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    monkeypatch.delenv("ALLABOARD_BACKEND", raising=False)
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    assert main([verb, "digits", "--adopt"]) == 2
    assert "--adopt is for jobs that others started on a cluster, and this machine has none" in " ".join(
        capsys.readouterr().err.split()
    )


def test_whoever_may_not_is_told_what_is_missing(nightly: Desk) -> None:
    def refuse(asked: str, plural: str) -> None:
        if (asked, plural) == ("delete", "pytorchjobs"):
            raise Forbidden('User "ann" cannot delete resource "pytorchjobs"', status=403)

    nightly.on_request = refuse
    code, _, err = nightly("stop", "nightly", "--adopt")
    assert code == 1 and 'cannot delete resource "pytorchjobs"' in err
    assert len(nightly.cluster.all(PYTORCHJOBS)) == 1


def mark_it(desk: Desk, **metadata: object) -> None:
    desk.cluster.client().patch(PYTORCHJOBS, "nightly", {"metadata": metadata})
    desk.cluster.tick(1)


def test_where_both_have_the_name_it_is_ours_and_that_is_said(nightly: Desk) -> None:
    assert nightly("run", nightly.job(name="nightly"), "--detach", "--key", "k")[0] == 0
    code, out, err = nightly("status", "nightly", "--json")
    ours = json.loads(out)["run"]
    assert code == 0 and ours.startswith("nightly-")
    assert f"{ours} is meant; for the PyTorchJob nightly of others: pytorchjob/nightly" in err
    assert json.loads(nightly("status", "pytorchjob/nightly", "--json")[1])["run"] == "nightly"


def test_an_attempt_of_ours_is_no_job_of_others(nightly: Desk) -> None:
    assert nightly("run", nightly.job(), "--detach", "--key", "k")[0] == 0
    for name in ("elsewhere", "pytorchjob/elsewhere", "pod/nightly"):
        assert nightly("status", name)[0] == 2
