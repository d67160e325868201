"""Every pair of an engine and a gang scheduler: what is sent, or why it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from allaboard.engines import ENGINES
from allaboard.errors import BadInput
from allaboard.gangs import GANGS
from allaboard.gangs.kai import QUEUE
from allaboard.render.cluster_facts import ASSUMED
from allaboard.render.compatibility import matrix, pair_engine_and_gang
from allaboard.testing import a_job
from tests.core.backends.kubernetes.golden import GANG_FILES, KINDS, allowed_pairs, made, of_gang, pair

REFUSED = {("paddlejob", "kai"), ("mxjob", "kai")}
TEMPLATES = {"podtemplate", "template"}


@pytest.mark.parametrize("gang", GANG_FILES)
def test_what_is_sent_of_every_pair(gang: str) -> None:
    """A difference is a change of what is sent: look at it, then run
    `python -m tests.core.backends.kubernetes.golden`.
    """
    assert of_gang(gang) == GANG_FILES[gang].read_text()


def test_every_pair_is_allowed_or_refused_with_its_reason() -> None:
    found = matrix()
    assert {*found} == {(engine, gang) for engine in ENGINES for gang in GANGS}
    assert {pair for pair, decided in found.items() if decided.how == "refused"} == REFUSED
    for (engine, gang), decided in found.items():
        assert bool(decided.reason) == ((engine, gang) in REFUSED)


@pytest.mark.parametrize(("engine", "gang"), sorted(REFUSED))
def test_a_refused_pair_is_refused_at_its_path(engine: str, gang: str) -> None:
    with pytest.raises(BadInput) as refused:
        pair(engine, gang)
    [problem] = refused.value.problems
    assert problem.path == "gang.scheduler" and "pod-grouper knows no" in problem.message


def test_a_field_that_a_kind_lacks_is_a_reason_to_refuse() -> None:
    """The MPI Operator's typed pod templates drop what their release does not know."""
    facts = replace(ASSUMED, lacking={"mpijob": ("schedulingGroup",)})
    decided = pair_engine_and_gang(ENGINES["mpijob"], GANGS["workload"], facts)
    assert decided.how == "refused" and "has no pod field schedulingGroup" in decided.reason


def pod_templates(thing: Any) -> list[dict[str, Any]]:
    """Those of members, wherever they are."""
    if isinstance(thing, list):
        return [found for item in thing for found in pod_templates(item)]
    if not isinstance(thing, dict):
        return []
    own = [thing] if "containers" in (thing.get("spec") or {}) else []
    return own + [found for value in thing.values() for found in pod_templates(value)]


@pytest.mark.parametrize("gang", [gang for gang in GANG_FILES if GANGS[gang].SCHEDULER])
def test_every_member_names_the_scheduler_of_its_gang(gang: str) -> None:
    """Trainer and JobSet set none, and one that is forgotten is placed alone."""
    for engine, how in allowed_pairs(gang):
        templates = pod_templates([*pair(engine, gang, how).manifests])
        named = {template["spec"].get("schedulerName") for template in templates}
        assert named == ({GANGS[gang].SCHEDULER} if how == "marks" else {None}), (engine, how)


# KAI.


@pytest.mark.parametrize("engine", ["jobset", "trainjob"])
def test_kai_takes_all_members_of_a_jobset_for_one_gang(engine: str) -> None:
    apart: dict[str, Any] = {"groups": {"master": 1, "worker": {"replicas": 2, "image": "other"}}}
    jobsets = [
        spec
        for manifest in pair(engine, "kai", workers=None, **apart).manifests
        for spec in (manifest["spec"], manifest["spec"].get("template", {}).get("spec", {}))
        if "replicatedJobs" in spec
    ]
    assert [spec["startupPolicy"] for spec in jobsets] == [{"startupPolicyOrder": "AnyOrder"}]
    own = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    if engine == "jobset":
        assert pair(engine, "kai", engine_spec=own).job["spec"]["startupPolicy"] == own["startupPolicy"]


def test_members_name_their_queue_to_kai_and_nothing_where_the_job_names_none() -> None:
    [job] = pair("pytorchjob", "kai").manifests
    labels = [t["metadata"]["labels"].get(QUEUE) for t in pod_templates(job)]
    assert labels == ["research", "research"]
    plain = made(a_job(groups={"worker": 2}, workers=None, image="x", gang={"scheduler": "kai"}))
    assert QUEUE not in yaml.safe_dump(plain.job)


def test_an_elastic_job_of_another_kind_than_pytorchjob_is_told_that_kai_waits_for_all() -> None:
    fields: dict[str, Any] = {"workers": 4, "elastic": {"min": 2, "max": 4}, "gang": {"scheduler": "kai"}}
    fields |= {"command": ["torchrun", "x.py"], "image": "x"}
    assert not [note for note in made(a_job(**fields)).notes if "KAI" in note]
    [note] = [note for note in made(a_job(engine="jobset", **fields)).notes if "KAI" in note]
    assert note == "KAI Scheduler places all 4 members of a JobSet together, not 2 of them"


def test_every_engine_has_a_job_here() -> None:
    assert {*KINDS} == {*ENGINES}
