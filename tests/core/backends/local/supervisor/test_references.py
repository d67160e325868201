"""Commands, arguments and variables refer to variables as in a pod."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.backends.local.supervisor.environment import (
    declared_names,
    expand,
    loopback_place,
    member_command,
    member_environment,
    unknown_references,
)
from allaboard.engines import engine_of
from allaboard.job.training_job import TrainingJob
from allaboard.runs.layout import Layout, lay_out


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("--data=$(DATA)", "--data=/data"),
        ("--data=$$(DATA)", "--data=$(DATA)"),
        ("$$$(DATA)", "$/data"),
        ("$(DATA)$(DATA)", "/data/data"),
        ("$(NOBODY)", "$(NOBODY)"),
        ("$DATA ${DATA}", "$DATA ${DATA}"),
        ("echo $$", "echo $"),
        ("$(unclosed", "$(unclosed"),
        ("$", "$"),
        ("$()", "$()"),
    ],
)
def test_a_word_is_expanded_as_the_kubelet_does_it(text: str, expanded: str) -> None:
    """k8s.io/kubernetes/third_party/forked/golang/expansion/expand_test.go."""
    assert expand(text, {"DATA": "/data"}) == expanded


def a_layout(**fields: Any) -> Layout:
    job = TrainingJob.of({"name": "net", "command": ["python", "train.py"], **fields})
    return lay_out(job, engine_of(job), "net")


def started(layout: Layout) -> tuple[list[str], dict[str, str]]:
    member, group = layout.members[0], layout.groups[0]
    environment = member_environment(
        layout,
        member,
        caller={"HOME": "/home/ada", "PATH": "/bin"},
        place=loopback_place(layout, [23456]),
        gpus=(),
        cpus=1.0,
        secrets={"TOKEN": "t"},
    )
    return member_command(layout, group, environment, declared_names(layout, member, ["TOKEN"])), environment


def test_a_command_sees_the_variables_of_its_pod_and_not_those_of_its_caller() -> None:
    words, _ = started(
        a_layout(
            command=["train", "--data=$(DATA)", "$$(DATA)", "$(HOME)", "$(MASTER_PORT)", "$(TOKEN)"],
            environment={"DATA": "/data"},
        )
    )
    assert words == ["train", "--data=/data", "$(DATA)", "$(HOME)", "23456", "t"]


def test_a_variable_sees_those_before_it() -> None:
    _, environment = started(a_layout(environment={"A": "$(B)", "B": "1", "C": "$(B)2", "D": "$$(B)"}))
    assert (environment["A"], environment["C"], environment["D"]) == ("$(B)", "12", "$(B)")


def test_what_names_no_variable_is_named() -> None:
    layout = a_layout(args=["$(DATA)", "$(HOEM)", "$$(NO)"], environment={"DATA": "/d", "X": "$(FOLDER)"})
    declared = declared_names(layout, layout.members[0], ())
    assert unknown_references(layout.groups[0], declared) == ["$(HOEM)", "$(FOLDER)"]
