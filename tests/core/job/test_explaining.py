"""Every field is explained, from the vocabulary alone, and what is said is true."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from allaboard import BadInput, check
from allaboard.engines import engine_of
from allaboard.job.explaining import explain
from allaboard.runs.layout import lay_out
from allaboard.testing import a_job

TOGETHER = {
    "device_class": {"gpu": 1},
    "device_selector": {"gpu": 1, "device_class": "gpu.nvidia.com"},
}
"""What a field needs beside itself."""


def every_path(path: str = "") -> Iterator[str]:
    for name in explain(path).fields or ():
        within = f"{path}.{name}" if path else name
        yield within
        yield from every_path(f"{within}.worker" if within == "groups" else within)


def test_every_field_says_what_it_is() -> None:
    paths = list(every_path())
    assert len(paths) > 60 and {"policy.clocks.first_step", "groups.worker.resources.gpu"} <= set(paths)
    for path in paths:
        found = explain(path)
        assert found.doc and found.type, path
        assert found.fields or found.example is not None, path


@pytest.mark.parametrize("path", [p for p in every_path() if explain(p).example is not None])
def test_every_example_is_right(path: str) -> None:
    *steps, last = path.split(".")
    value = {**TOGETHER.get(last, {}), last: explain(path).example}
    for step in reversed(steps):
        value = {step: value}
    for name in ("storage", "secrets"):
        if isinstance(value.get(name), dict):
            value[name] = [value[name]]
    problems = check({"name": "digits", "command": ["torchrun", "train.py"], **value})
    about = [p for p in problems if p.path.replace("[0]", "") == path and p.severity == "error"]
    assert about == []


def test_defaults_are_those_of_a_layout() -> None:
    job = a_job()
    layout = lay_out(job, engine_of(job), "digits-0")
    assert explain("policy.backoff_limit").default == str(layout.policy.backoff_limit)
    assert explain("policy.restart").default == layout.policy.restart
    assert explain("policy.clean_pods").default == layout.policy.clean_pods
    assert explain("spot.grace").default == f"{layout.grace:g}s"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("polcy", "did you mean 'policy'"),
        ("policy.bakoff_limit", "did you mean 'policy.backoff_limit'"),
        ("workers.x", "workers has no fields"),
        ("\x1b[31m", "a job has no field '\\x1b"),
        ("x" * 10_000, "known: name"),
    ],
)
def test_a_slip_is_answered_with_the_nearest_name(path: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        explain(path)
    assert words in str(caught.value) and len(str(caught.value)) < 500
