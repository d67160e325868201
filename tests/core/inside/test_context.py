from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from allaboard.errors import BadInput
from allaboard.inside import context
from allaboard.inside.context import Context, ranks

MEMBER = {
    "ALLABOARD_ENV": "1",
    "ALLABOARD_RUN": "digits-0a1b2c",
    "ALLABOARD_ATTEMPT": "2",
    "ALLABOARD_GENERATION": "1",
    "ALLABOARD_MEMBER": "worker-0",
    "ALLABOARD_CHECKPOINTS": "s3://bucket/digits/digits-0a1b2c",
    "ALLABOARD_START_FROM": "s3://bucket/other/step-000000000010",
    "ALLABOARD_DATA": "/data/shards",
    "ALLABOARD_GRACE": "30",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "TORCHELASTIC_RESTART_COUNT": "0",
}


def test_a_member_knows_where_it_stands() -> None:
    assert context(MEMBER) == Context(
        run="digits-0a1b2c",
        attempt=2,
        generation=1,
        member="worker-0",
        rank=3,
        world_size=4,
        local_rank=1,
        restart=0,
        data="/data/shards",
        checkpoints="s3://bucket/digits/digits-0a1b2c",
        start_from="s3://bucket/other/step-000000000010",
        checkpoint=None,
        grace=30.0,
    )


def test_outside_of_allaboard_there_is_no_run_and_one_rank() -> None:
    here = context({})
    assert not here.inside and not here.resumes
    assert (here.rank, here.world_size, here.local_rank, here.restart) == (0, 1, 0, 0)
    absent = (
        here.run,
        here.attempt,
        here.generation,
        here.member,
        here.data,
        here.checkpoints,
        here.start_from,
    )
    assert {*absent, here.checkpoint, here.grace} == {None}


@pytest.mark.parametrize(
    ("changes", "resumes"),
    [
        ({"ALLABOARD_ATTEMPT": "1"}, False),
        ({"ALLABOARD_ATTEMPT": "2"}, True),
        ({"ALLABOARD_ATTEMPT": "1", "TORCHELASTIC_RESTART_COUNT": "1"}, True),
    ],
)
def test_a_later_attempt_or_restart_may_have_something_to_resume(
    changes: dict[str, str], resumes: bool
) -> None:
    assert context({**MEMBER, **changes}).resumes is resumes


def test_what_only_informs_is_none_when_it_cannot_be_read() -> None:
    here = context({**MEMBER, "ALLABOARD_ATTEMPT": "two", "ALLABOARD_GRACE": "soon", "ALLABOARD_DATA": ""})
    assert (here.attempt, here.grace, here.data) == (None, None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"RANK": "one"},
        {"RANK": "-1"},
        {"WORLD_SIZE": "2.0"},
        {"LOCAL_RANK": "x"},
        {"RANK": "4"},
        {"RANK": "²"},
    ],
)
def test_a_rank_that_cannot_be_right_is_refused_by_name(changes: dict[str, str]) -> None:
    with pytest.raises(BadInput, match=next(iter(changes))):
        context({**MEMBER, **changes})


def test_the_process_group_decides_once_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 5, get_world_size=lambda: 8
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)  # type: ignore[arg-type]
    assert ranks({"RANK": "1", "WORLD_SIZE": "2"}) == (5, 8)
    group.is_initialized = lambda: False
    assert ranks({"RANK": "1", "WORLD_SIZE": "2"}) == (1, 2)


def test_a_context_is_a_value() -> None:
    with pytest.raises(AttributeError):
        context({}).rank = 3  # type: ignore[misc]


def test_the_package_is_light_and_its_functions_stay_functions() -> None:
    script = """
import sys
import allaboard.inside
import allaboard.inside.report, allaboard.inside.context
from allaboard.inside import context, report, result
assert callable(report) and callable(context) and callable(result)
heavy = {"torch", "numpy", "boto3", "yaml", "click", "rich", "tarfile", "allaboard.inside.reader"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from allaboard.inside import ShardReader
assert isinstance(ShardReader, type)
assert not {"torch", "numpy", "boto3", "yaml"} & set(sys.modules)
try:
    allaboard.inside.nothing
except AttributeError as error:
    assert "nothing" in str(error)
assert set(allaboard.inside.__all__) <= set(dir(allaboard.inside))
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
