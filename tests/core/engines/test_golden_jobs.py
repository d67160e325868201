"""What is sent for one job of each engine, which says every field that its kind can."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.engines import ENGINES
from tests.core.backends.kubernetes.golden import FILES, KINDS, WORKER, job_of, of_engine
from tests.torture.right import errors_of, every_field, fields_of

INSTEAD: dict[str, dict[str, Any]] = {
    "workers": {"workers": 4},
    "groups": {"groups": {"worker": WORKER}},
    "processes_per_member": {"processes_per_member": 4},
    "elastic": {"elastic": {"min": 1}},
    "security": {"security": "restricted"},
    "inject": {"inject": "off"},
    "checkpoints": {"checkpoints": {"uri": "s3://bucket/resnet50", "format": "auto"}},
    "metrics": {"metrics": {"from": "s3://bucket/resnet50/runs"}},
    "code": {"code": {"git": "https://git.lab/vision/resnet50", "ref": "main"}},
    "packages": {"packages": ["einops==0.8.0"]},
}
"""What a job may not say beside what it says: its members in two ways, for one."""
OF_ANOTHER_SHAPE = {("jobset", "elastic"), ("trainjob", "elastic")}
"""An elastic gang of these is another object: its members restart one by one, and none are equal nodes."""


SHOWN_ELSEWHERE = {"inject", "checkpoints", "metrics", "code", "packages"}
"""Fields that other tests show: they change commands, or nothing that is sent, or stand in the place of what
the jobs here say."""
NOT_BY_EXEC = {("mpijob-v1", field) for field in ("code", "packages")}
"""`kubectl exec` starts ranks without what was fetched and installed."""


@pytest.mark.parametrize("name", FILES)
def test_one_job_of_each_kind(name: str) -> None:
    """A difference is a change of what is sent: look at it, then run
    `python -m tests.core.backends.kubernetes.golden`.
    """
    assert of_engine(name) == FILES[name].read_text()


def test_every_engine_has_its_job() -> None:
    assert KINDS.keys() == ENGINES.keys()


@pytest.mark.parametrize("name", KINDS)
def test_what_the_job_does_not_say_its_kind_cannot_or_not_with_the_rest(name: str) -> None:
    job = job_of(name).as_mapping()
    assert errors_of(job) == []
    for field in {path.partition(".")[0] for path in {*every_field()} - fields_of(job)}:
        could = not errors_of({**job, **INSTEAD[field]})
        elsewhere = field in SHOWN_ELSEWHERE and (name, field) not in NOT_BY_EXEC
        assert could == (elsewhere or (name, field) in OF_ANOTHER_SHAPE), field
