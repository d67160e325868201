"""Paths hang off the place: store://, mounts, the job file's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allaboard import BadInput
from allaboard.errors import SiteError
from allaboard.job.site import Site, home, in_pod, place_job, resolve_uri, site_of
from allaboard.job.training_job import is_shared
from allaboard.testing import a_job

SITE = Site(store="s3://bucket/ml", mounts={"/data": "/mnt/d", "/data/big": "/mnt/big"})


@pytest.mark.parametrize(
    ("uri", "where"),
    [
        ("store://digits/checkpoints", "s3://bucket/ml/digits/checkpoints"),
        ("store://", "s3://bucket/ml"),
        ("s3://other/x", "s3://other/x"),
        ("/data/x", "/mnt/d/x"),
        ("/data", "/mnt/d"),
        ("/data/big/x", "/mnt/big/x"),
        ("/database", "/database"),
        ("out", "/job/out"),
        ("../out", "/out"),
    ],
)
def test_a_uri_is_resolved(uri: str, where: str) -> None:
    assert resolve_uri(uri, SITE, "/job") == where


def test_a_job_is_placed_whole() -> None:
    job = a_job(
        command=["python", "train.py", "--data=/data/x", "--out=store://out", "/data", "--lr=0.1"],
        args=["--data=/data/x", "store://out"],
        environment={"DATA": "/data/y", "PLAIN": "x"},
        checkpoints={"uri": "store://ck", "start_from": "store://old"},
        data={"shards": "store://shards"},
        storage=[{"mount": "/data", "pvc": "d"}],
    )
    placed = place_job(job, SITE)
    assert placed.get("command")[2:] == ["--data=/mnt/d/x", "--out=s3://bucket/ml/out", "/mnt/d", "--lr=0.1"]
    assert placed.get("args") == ["--data=/mnt/d/x", "s3://bucket/ml/out"]
    assert placed.get("environment") == {"DATA": "/mnt/d/y", "PLAIN": "x"}
    assert placed.get("checkpoints") == {"uri": "s3://bucket/ml/ck", "start_from": "s3://bucket/ml/old"}
    assert placed.get("data") == {"shards": "s3://bucket/ml/shards"}
    assert job.get("data") == {"shards": "store://shards"}, "the job itself names no place"


def test_a_volume_that_nothing_is_mapped_to_is_a_problem() -> None:
    with pytest.raises(BadInput, match=r"storage\[0\].mount: /models has no folder here"):
        place_job(a_job(storage=[{"mount": "/models", "pvc": "m"}]), SITE)


def test_the_folder_of_the_hot_copy_is_mapped_too() -> None:
    hot = {"folder": "/data/hot", "every": 5}
    placed = place_job(a_job(checkpoints={"uri": "store://c", "hot": hot}), SITE)
    assert placed.get("checkpoints")["hot"] == {"folder": "/mnt/d/hot", "every": 5}


@pytest.mark.parametrize(
    ("volume", "shared"),
    [
        ({"pvc": "a"}, True), ({"claim": {"size": 1}}, True), ({"volume": {"nfs": {}}}, True),
        ({"empty_dir": "disk"}, False), ({"ephemeral": {"size": 1}}, False), ({"host_path": "/a"}, False),
    ],
    ids=str,
)  # fmt: skip
def test_what_all_members_see_and_what_outlives_them(volume: dict[str, Any], shared: bool) -> None:
    job = a_job(storage=[{"mount": "/v/", **volume}])
    assert is_shared(job, "/v/x") is shared and is_shared(job, "/v") is shared
    assert not is_shared(job, "/vault")


def test_a_site_from_the_environment_and_its_mistakes() -> None:
    site = site_of(
        {"ALLABOARD_STORE": "s3://b/", "ALLABOARD_MOUNTS": "/data=./d,/m=/x", "ALLABOARD_FIT": "strict"}
    )
    assert site == Site("s3://b", {"/data": "./d", "/m": "/x"}, "strict")
    assert site_of({"ALLABOARD_HOME": "/h"}).store == "/h/store"
    assert site_of({}).store == str(Path("~/.allaboard/store").expanduser())
    with pytest.raises(BadInput, match=r"write /data=\./data"):
        site_of({"ALLABOARD_MOUNTS": "data"})
    with pytest.raises(BadInput, match="known: shrink, strict"):
        site_of({}, fit="loose")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user without an entry
    with pytest.raises(SiteError, match="set ALLABOARD_HOME"):
        home({})
    assert home({"ALLABOARD_HOME": "/somewhere"}) == "/somewhere"


@pytest.mark.parametrize("name", ["KUBERNETES_SERVICE_HOST", "KFP_POD_NAME"])
def test_a_pod_is_told_by_its_environment(name: str) -> None:
    assert in_pod({name: "x"})
    assert not in_pod({name: ""})


def test_a_pod_is_told_by_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allaboard.job.site.SERVICE_ACCOUNT", str(tmp_path))
    assert not in_pod({})
    (tmp_path / "namespace").write_text("team")
    assert in_pod({})


def test_a_pod_is_strict_unless_somebody_says_otherwise() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOME": "/h"}
    assert site_of({"HOME": "/h"}).fit == "shrink"
    assert site_of(pod).fit == "strict"
    assert site_of({**pod, "ALLABOARD_FIT": "shrink"}).fit == "shrink"
    assert site_of(pod, fit="shrink").fit == "shrink"
