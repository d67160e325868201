"""Jobs that others made on a cluster: named and watched like runs of ours, and never changed."""

from __future__ import annotations

import json

import pytest

from allaboard.backends.kubernetes.resources import PYTORCHJOBS
from tests.core.cli.test_on_a_cluster import Desk, desk
from tests.core.kubernetes.test_theirs import theirs

__all__ = ["desk"]


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


@pytest.mark.parametrize(
    ("verb", "done"),
    [("stop", "stopped"), ("delete", "deleted"), ("suspend", "suspended"), ("resume", "resumed")],
)
def test_they_are_never_changed(nightly: Desk, verb: str, done: str) -> None:
    before = nightly.cluster.all(PYTORCHJOBS)[0]["spec"]
    code, _, err = nightly(verb, "nightly")
    assert code == 2
    assert f"what others made is never {done}" in " ".join(err.split())
    (after,) = nightly.cluster.all(PYTORCHJOBS)
    assert after["spec"] == before and "deletionTimestamp" not in after["metadata"]


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
