"""A member that the kernel killed for the memory of its control group is OOMKilled, as by a kubelet."""

from __future__ import annotations

import pytest

from allaboard.backends.local.supervisor import __main__ as program
from allaboard.diagnosis import diagnose
from allaboard.testing import a_member, seen


@pytest.mark.parametrize(
    ("kills", "codes", "reasons"),
    [
        (1, [-9], ["OOMKilled"]),
        (1, [137], ["OOMKilled"]),
        (1, [-9, -9], ["OOMKilled", None]),  # the other one was killed by somebody
        (2, [-9, -9], ["OOMKilled", "OOMKilled"]),
        (0, [-9], [None]),
        (3, [1, -15], [None, None]),
    ],
)
def test_one_exit_for_each_kill_that_the_kernel_counts(
    monkeypatch: pytest.MonkeyPatch, kills: int, codes: list[int], reasons: list[str | None]
) -> None:
    before = 7
    supervisor = program.Supervisor.__new__(program.Supervisor)
    supervisor.oom_kills = before
    monkeypatch.setattr(program, "oom_kills", lambda: before + kills)
    assert [supervisor._why_killed(code) for code in codes] == reasons


def test_the_doctor_names_it() -> None:
    member = a_member("worker-0", "failed", exit_code=137, reason="OOMKilled")
    assert diagnose(seen("failed", members=(member,)))[0].code == "oom_killed"
