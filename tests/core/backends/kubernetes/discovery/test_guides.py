"""How components are installed: data with a date, the same releases as the cluster of the tests has."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
import yaml

from allaboard.backends.kubernetes.client.resources import PODGROUPS_VOLCANO, Resource, resource_for
from allaboard.backends.kubernetes.discovery.components import PARTS, guide_for
from allaboard.backends.kubernetes.discovery.guides import WAYS, Guide, guide_of, guides
from allaboard.cli.tools.cluster import _how_to_install
from allaboard.engines import ENGINES

GO = Path(__file__).parents[4] / "cluster" / "go"
BUILT = {
    "training-operator": ("training-operator", "github.com/kubeflow/training-operator"),
    "mpi-operator": ("mpi-operator", "github.com/kubeflow/mpi-operator"),
    "jobset": ("jobset", "sigs.k8s.io/jobset"),
    "trainer": ("trainer", "github.com/kubeflow/trainer/v2"),
    "coscheduling": ("scheduler-plugins", "sigs.k8s.io/scheduler-plugins"),
    "workload": ("kubernetes", "k8s.io/kubernetes"),
}
"""Guide -> the folder that builds it for the tests, and its module."""
BY_HAND = {"volcano", "kai", "kueue", "training-operator-1.8"}
"""The module proxy serves none of them: a tree of their source is built by hand, or none is."""


def test_every_component_has_a_guide_and_every_guide_a_component() -> None:
    old = {engine.OPERATOR.guide for engine in ENGINES.values()} - {""}
    assert {part.id for part in PARTS} | old == set(guides())


@pytest.mark.parametrize("name", guides())
def test_a_guide_is_complete(name: str) -> None:
    guide = guide_of(name)
    assert guide is not None and guide.ways and set(guide.ways) <= set(WAYS)
    assert guide.checked is not None and guide.checked.year >= 2026 and guide.version is not None
    assert guide.sources, "nothing here is from memory"
    for lines in guide.fitting(openshift=False).values():
        assert lines and any(guide.version.removeprefix("v") in line for line in lines), "a release is named"
    for line in (line for lines in guide.ways.values() for line in lines):
        assert "{version}" not in line and "{number}" not in line and line == line.strip()


def test_the_releases_are_those_of_the_cluster_of_the_tests() -> None:
    assert set(guides()) == {*BUILT, *BY_HAND}
    for name, (folder, module) in BUILT.items():
        guide = guide_of(name)
        wanted = (GO / folder / "go.mod").read_text()
        pinned = re.search(rf"^(?:require |\t){re.escape(module)} (v\S+)", wanted, re.MULTILINE)
        assert guide is not None and pinned is not None
        assert guide.version is not None
        assert pinned[1] == guide.version or pinned[1].startswith(f"{guide.version}."), name


def test_on_openshift_its_own_way_comes_alone() -> None:
    kueue, volcano = guide_of("kueue"), guide_of("volcano")
    assert kueue is not None and volcano is not None
    assert list(kueue.fitting(openshift=True)) == ["openshift"]
    assert list(kueue.fitting(openshift=False)) == ["kubectl", "helm"]
    assert volcano.fitting(openshift=True) == volcano.fitting(openshift=False)


@pytest.mark.parametrize("name", ["jobset", "kueue"])
def test_what_openshift_is_given_are_whole_objects(name: str) -> None:
    guide = guide_of(name)
    assert guide is not None
    objects = []
    for line in guide.ways["openshift"]:
        if line.startswith("oc apply -f - <<EOF\n"):
            assert line.endswith("\nEOF")
            objects += yaml.safe_load_all(line.partition("\n")[2].removesuffix("EOF"))
    kinds = [found["kind"] for found in objects]
    assert kinds[:3] == ["Namespace", "OperatorGroup", "Subscription"] and len(kinds) == 4
    subscription = objects[2]["spec"]
    assert subscription["source"] == "redhat-operators"
    assert "channel" not in subscription, "the catalog's default channel is that of the release"


def test_the_page_can_be_pasted() -> None:
    for part in PARTS:
        for openshift in (False, True):
            lines = list(_how_to_install(part, openshift))
            starts = [n for n, line in enumerate(lines) if line.endswith("<<EOF")]
            assert sum(line == "EOF" for line in lines) == len(starts), "a here-document ends at the margin"
            assert "as of 2026-" in lines[0]


def test_an_old_kind_is_installed_with_the_release_that_knew_it() -> None:
    guide = guide_for(resource_for(ENGINES["mxjob"]))
    assert guide is not None and "ref=v1.8.1" in guide.shortest(openshift=False)
    newer = guide_for(resource_for(ENGINES["pytorchjob"]))
    assert newer is not None and "ref=v1.9.4" in newer.shortest(openshift=False)
    assert guide_for(PODGROUPS_VOLCANO) == guide_of("volcano")
    assert guide_for(Resource("batch", "v1", "jobs", "Job")) is None


def test_a_guide_in_json() -> None:
    guide = Guide({"helm": ("helm install x",)}, "v1", date(2026, 11, 1))
    assert guide.to_dict() == {
        "version": "v1",
        "checked": "2026-11-01",
        "needs": [],
        "ways": {"helm": ["helm install x"]},
        "sources": [],
    }
