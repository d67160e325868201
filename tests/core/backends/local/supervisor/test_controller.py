"""The operator for one machine, driven by hand: restart policies, limits, who decides, clean-up, suspend,
elastic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from allaboard.backends.local.supervisor import controller as op
from allaboard.runs.observation import Observation, Stall, Stop
from allaboard.runs.status import state_of
from allaboard.testing import a_layout


class Machine:
    """Plays the machine: members start at once and end when told; time moves when told."""

    def __init__(self, **fields: Any) -> None:
        self.now = 100.0
        self.operator = op.Operator(a_layout(**fields), self.now)
        self.asked = self.finished = self.removed = False
        self.released = 0
        self.spawned: list[tuple[str, int, float]] = []
        self.signals: list[tuple[str, str]] = []
        self.does(self.operator.begin(self.now))

    def does(self, actions: list[op.Action]) -> None:
        for action in actions:
            match action:
                case op.Acquire():
                    self.asked = True
                case op.Spawn(member, number):
                    self.spawned.append((member.name, number, self.now))
                    self.does(self.operator.on_running(member.name, self.now))
                case op.Terminate(member):
                    self.signals.append((member.name, "TERM"))
                case op.Kill(member):
                    self.signals.append((member.name, "KILL"))
                case op.Release():
                    self.released += 1
                case op.Finish():
                    self.finished = True
                case op.Remove():
                    self.removed = True

    def admit(self, *names: str) -> Machine:
        self.does(self.operator.on_admitted(names or list(self.operator.members), self.now))
        return self

    def exits(self, name: str, code: int) -> Machine:
        self.does(self.operator.on_exited(name, code, self.now))
        return self

    def passes(self, seconds: float) -> Machine:
        """Time goes by, with a tick whenever something is due."""
        end = self.now + seconds
        while (due := self.operator.due()) is not None and due <= end:
            self.now = max(self.now, due)
            self.does(self.operator.tick(self.now))
        self.now = end
        self.does(self.operator.tick(self.now))
        return self

    @property
    def state(self) -> str:
        o = self.operator
        return state_of(
            Observation(
                run="digits-1",
                alive=True,
                conditions=o.conditions,
                members=o.seen({}),
                stop=o.stop,
                stopped=o.stopped,
                suspended=o.suspended,
                waiting=o.waiting,
            )
        ).value

    @property
    def phases(self) -> dict[str, str]:
        return {name: one.phase for name, one in self.operator.members.items()}

    def true(self) -> list[str]:
        return [c.type for c in self.operator.conditions if c.status == "True"]


def test_conditions_march_created_running_succeeded() -> None:
    m = Machine(workers=3)
    assert m.true() == ["Created"] and m.asked and m.state == "queued"
    m.admit()
    assert m.true() == ["Created", "Running"] and m.state == "running"
    m.exits("worker-0", 0).exits("worker-1", 0)
    assert m.state == "running"
    m.exits("master-0", 0)
    assert m.true() == ["Created", "Succeeded"] and m.state == "succeeded" and m.finished and m.released == 1


def test_all_or_nothing_nothing_starts_before_the_slots_are_there() -> None:
    m = Machine(workers=3)
    m.passes(1000)
    assert m.spawned == [] and m.state == "queued" and m.operator.started is None


def test_the_master_decides_and_workers_get_a_moment_then_sigterm_then_sigkill() -> None:
    m = Machine(workers=3, spot={"grace": 5}).admit()
    m.exits("master-0", 0)
    assert m.state == "succeeded" and m.signals == [] and not m.finished
    m.exits("worker-0", 0).passes(op.SETTLE)
    assert m.signals == [("worker-1", "TERM")]
    m.passes(5)
    assert m.signals[-1] == ("worker-1", "KILL")
    m.exits("worker-1", -9)
    assert (
        m.phases == {"master-0": "succeeded", "worker-0": "succeeded", "worker-1": "deleted"} and m.finished
    )


@pytest.mark.parametrize("policy", ["on_failure", "always", "exit_code"])
def test_exactly_backoff_limit_restarts_then_failed(policy: str) -> None:
    m = Machine(workers=1, policy={"restart": policy, "backoff_limit": 3}).admit()
    for _ in range(10):
        if m.finished:
            break
        m.exits("master-0", 130).passes(20)
    assert m.operator.restarts == 3 and len(m.spawned) == 4 and m.state == "failed"
    assert "backoff limit" in next(c.message for c in m.operator.conditions if c.type == "Failed")


def test_the_delay_doubles_up_to_its_longest() -> None:
    m = Machine(workers=1, policy={"restart": "on_failure", "backoff_limit": 9}).admit()
    for _ in range(7):
        m.exits("master-0", 1).passes(30)
    starts = [at for _, _, at in m.spawned]
    ended = [starts[0] + 30 * n for n in range(7)]
    assert [s - e for s, e in zip(starts[1:], ended, strict=False)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def all_fail(m: Machine) -> Machine:
    for name in list(m.operator.members):
        m.exits(name, 1)
    return m


def test_one_failure_at_a_time_over_all_members() -> None:
    m = all_fail(Machine(workers=5, policy={"backoff_limit": 3}).admit())
    assert m.operator.restarts == 3 and m.state != "failed", "the restarts that were counted come first"
    m.passes(0.6)
    assert [number for _, number, _ in m.spawned] == [0, 0, 0, 0, 0, 1, 1, 1] and m.state != "failed"
    for name in ("master-0", "worker-0", "worker-1"):
        m.exits(name, 1)
    assert m.operator.restarts == 3 and m.state == "failed" and m.finished


def test_a_granted_restart_that_lives_on_does_not_keep_a_failed_job() -> None:
    m = all_fail(Machine(workers=5, policy={"backoff_limit": 3}).admit()).passes(0.6)
    assert m.state != "failed" and m.signals == []
    m.passes(1.0)
    assert m.state == "failed" and len(m.signals) == 3 and {what for _, what in m.signals} == {"TERM"}


def test_a_stop_while_granted_restarts_wait_is_a_stop() -> None:
    m = all_fail(Machine(workers=5, policy={"backoff_limit": 3}).admit())
    m.does(m.operator.ask_stop(a_stop(m), False, m.now))
    m.passes(60)
    assert m.state == "stopped" and m.finished and len(m.spawned) == 5


def test_backoff_limit_zero_fails_at_the_first_failure() -> None:
    m = Machine(workers=1, policy={"backoff_limit": 0}).admit().exits("master-0", 1)
    assert m.state == "failed" and m.operator.restarts == 0 and len(m.spawned) == 1


def test_never_fails_with_the_first_member_and_removes_the_others() -> None:
    m = Machine(workers=3, policy={"restart": "never"}).admit().exits("worker-1", 7)
    assert m.state == "failed" and m.signals == [("master-0", "TERM"), ("worker-0", "TERM")]
    assert "1 Worker replica(s) failed" in m.operator.conditions[-1].message
    m.exits("master-0", -15).exits("worker-0", -15)
    assert m.phases == {"master-0": "deleted", "worker-0": "deleted", "worker-1": "failed"} and m.finished


@pytest.mark.parametrize(
    ("code", "retried"), [(1, False), (127, False), (128, True), (137, True), (255, True)]
)
def test_exit_code_retries_128_and_above(code: int, retried: bool) -> None:
    m = Machine(workers=1, policy={"restart": "exit_code"}).admit().exits("master-0", code)
    assert (m.state == "restarting") is retried and (m.state == "failed") is not retried
    if retried:
        m.passes(1)
        assert m.true() == ["Created", "Running"] and m.operator.restarts == 1


def test_each_group_restarts_by_its_own_rule() -> None:
    groups = {"master": 1, "worker": {"restart": "never"}}
    m = Machine(workers=None, groups=groups).admit().exits("master-0", 1)
    assert m.operator.restarts == 1 and m.state != "failed"
    m.exits("worker-0", 1)
    assert m.state == "failed" and m.operator.restarts == 1


def test_restarts_without_a_limit_go_on() -> None:
    m = Machine(workers=1, policy={"backoff_limit": "unlimited"}).admit()
    for _ in range(20):
        m.exits("master-0", 1).passes(11)
    assert m.operator.restarts == 20 and m.state != "failed"


def test_a_signal_counts_as_128_and_its_number() -> None:
    m = Machine(workers=1, policy={"restart": "exit_code"}).admit().exits("master-0", -9)
    assert m.operator.members["master-0"].exit_code == 137 and m.operator.restarts == 1


def test_always_restarts_after_success_too() -> None:
    m = Machine(workers=1, policy={"restart": "always"}).admit().exits("master-0", 0).passes(1)
    assert len(m.spawned) == 2 and m.state == "running"


def test_restart_in_place_changes_no_condition_but_shows() -> None:
    m = Machine(workers=2).admit().exits("worker-0", 1)
    assert m.true() == ["Created", "Running"] and m.state == "restarting"
    m.passes(1)
    assert m.state == "running" and m.spawned[-1][:2] == ("worker-0", 1)


@pytest.mark.parametrize("by", [86_400.0, -86_400.0, 30.0, -30.0])
def test_nothing_is_early_or_late_when_the_clock_is_set(by: float) -> None:
    """A deadline, the delay of a restart, a grace, the clock of a phase and a ttl: as without that."""

    def story(by: float) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []
        for fields in (
            {"policy": {"deadline": 60, "ttl": 40}},
            {"policy": {"clocks": {"first_step": 25}, "ttl": 40}},
            {"policy": {"backoff_limit": 3}},
        ):
            m = Machine(workers=2, **fields).admit()
            m.passes(5)
            if "backoff_limit" in fields["policy"]:
                m.exits("worker-0", 1)
            m.spawned.clear()
            m.now += by
            if by:
                m.operator.clock_was_set(by)
            before = m.now
            for _ in range(200):
                m.passes(1)
                seen += [(name, at - before) for name, _, at in m.spawned]
                m.spawned.clear()
                seen += [(f"{name} {sig}", m.now - before) for name, sig in m.signals]
                m.signals.clear()
                for state in m.operator.members.values():
                    if m.operator.ended and state.alive and state.kill_at is None:
                        m.exits(state.member.name, 0)
                seen += [("removed", m.now - before)] if m.removed else []
                if m.removed:
                    break
            seen.append(("training", sum(s or 0 for s in m.operator.phases(m.now).values())))
        return seen

    moved, stayed = story(by), story(0.0)
    assert [name for name, _ in moved] == [name for name, _ in stayed] and len(moved) > 8
    assert [at for _, at in moved] == pytest.approx([at for _, at in stayed])


def test_the_deadline_is_a_timer_and_counts_from_the_start() -> None:
    m = Machine(workers=2, policy={"deadline": 60})
    m.passes(1000).admit().passes(59)
    assert m.state == "running"
    m.passes(1)
    assert m.state == "timed_out" and {s for _, s in m.signals} == {"TERM"}


def test_each_clock_waits_for_the_phase_before() -> None:
    m = Machine(workers=2, policy={"clocks": {"rendezvous": 10, "first_step": 20}})
    m.passes(500).admit().passes(9)
    m.operator.on_rendezvous(m.now)
    m.passes(19)
    assert m.state == "running"
    m.passes(1)
    assert m.state == "timed_out" and "phase first_step" in m.operator.conditions[-1].message


def test_phases_are_seconds_and_null_when_not_seen() -> None:
    m = Machine(workers=2)
    m.passes(3).admit().passes(2)
    m.operator.on_rendezvous(m.now)
    m.passes(4)
    m.operator.on_first_step(m.now)
    m.passes(5).exits("worker-0", 0).exits("master-0", 0).passes(50)
    assert m.operator.phases(m.now) == {
        "admitted": 3.0,
        "scheduled": 0.0,
        "image": None,
        "rendezvous": 2.0,
        "first_step": 4.0,
        "training": 5.0,
    }


@pytest.mark.parametrize(
    ("policy", "after"),
    [
        ("none", {"master-0": "succeeded", "worker-0": "running", "worker-1": "succeeded"}),
        ("running", {"master-0": "succeeded", "worker-0": "deleted", "worker-1": "succeeded"}),
        ("all", {"master-0": "deleted", "worker-0": "deleted", "worker-1": "deleted"}),
    ],
)
def test_clean_pods_as_the_operator_really_does_it(policy: str, after: dict[str, str]) -> None:
    m = Machine(workers=3, policy={"clean_pods": policy}).admit().exits("worker-1", 0).exits("master-0", 0)
    m.passes(op.SETTLE)
    if policy == "none":
        assert m.signals == [] and not m.finished and m.released == 0, "members that live on keep their slots"
        assert m.phases == after
        m.exits("worker-0", 0)
        assert m.finished and m.released == 1
    else:
        m.exits("worker-0", -15)
        assert m.finished and m.phases == after


def test_under_none_what_fails_later_is_restarted_no_more() -> None:
    m = (
        Machine(workers=2, policy={"clean_pods": "none"})
        .admit()
        .exits("master-0", 0)
        .exits("worker-0", 1)
        .passes(60)
    )
    assert len(m.spawned) == 2 and m.phases["worker-0"] == "failed" and m.finished


def test_ttl_counts_from_the_end() -> None:
    m = Machine(workers=2, policy={"clean_pods": "none", "ttl": 30}).admit().exits("master-0", 0).passes(29)
    assert not m.removed
    m.passes(1)
    assert m.removed and m.signals == [("worker-0", "TERM")]


def test_suspend_takes_every_member_and_gives_the_slots_back() -> None:
    m = Machine(workers=2).admit()
    m.does(m.operator.ask_suspend(m.now))
    assert m.state == "suspended" and len(m.signals) == 2 and m.released == 0
    m.exits("master-0", -15).exits("worker-0", -15)
    assert m.released == 1 and not m.finished and set(m.phases.values()) == {"deleted"}
    assert [(c.type, c.status) for c in m.operator.conditions] == [
        ("Created", "True"),
        ("Running", "False"),
        ("Suspended", "True"),
    ]
    m.asked = False
    m.passes(100)
    m.does(m.operator.ask_resume(m.now))
    assert m.asked
    m.admit()
    assert m.state == "running" and m.operator.started == m.now and m.operator.restarts == 0
    assert [(c.type, c.status) for c in m.operator.conditions][-2:] == [
        ("Suspended", "False"),
        ("Running", "True"),
    ]


def test_a_resume_that_comes_while_members_still_end_is_kept() -> None:
    m = Machine(workers=2).admit()
    m.does(m.operator.ask_suspend(m.now))
    m.exits("master-0", -15)
    m.asked = False
    m.does(m.operator.ask_resume(m.now))
    assert m.state == "suspended" and not m.asked, "two of one member never run at once"
    m.exits("worker-0", -15)
    assert m.released == 1 and m.asked
    m.admit()
    assert m.state == "running" and m.operator.restarts == 0


def test_a_suspend_takes_a_resume_back_that_has_not_come_about() -> None:
    m = Machine(workers=1).admit()
    m.does(m.operator.ask_suspend(m.now))
    m.does(m.operator.ask_resume(m.now))
    m.does(m.operator.ask_suspend(m.now))
    m.asked = False
    m.exits("master-0", -15)
    assert m.state == "suspended" and not m.asked


def test_a_suspended_elastic_gang_has_no_members_left_to_wait_for() -> None:
    m = elastic().admit("worker-0", "worker-1")
    m.does(m.operator.ask_suspend(m.now))
    m.exits("worker-0", -15).exits("worker-1", -15)
    assert m.released == 1 and set(m.phases.values()) == {"deleted"}


def test_created_suspended_starts_nothing_until_resumed() -> None:
    m = Machine(workers=2, policy={"suspend": True})
    assert m.state == "suspended" and not m.asked and m.true() == ["Created", "Suspended"]
    m.does(m.operator.ask_resume(m.now))
    assert m.asked


def test_suspending_what_has_ended_does_nothing() -> None:
    m = Machine(workers=1).admit().exits("master-0", 0)
    m.does(m.operator.ask_suspend(m.now))
    assert m.state == "succeeded"


def a_stop(m: Machine) -> Stop:
    return Stop("ann", "wrong data", m.now)


def test_stop_gives_the_grace_and_says_who() -> None:
    m = Machine(workers=2, spot={"grace": 10}).admit()
    m.does(m.operator.ask_stop(a_stop(m), False, m.now))
    assert m.state == "stopping" and len(m.signals) == 2
    m.exits("master-0", 143)
    assert m.state == "stopping"
    m.passes(10)
    assert m.signals[-1] == ("worker-0", "KILL")
    m.exits("worker-0", -9)
    assert m.state == "stopped" and m.finished and m.released == 1


def test_a_second_stop_kills() -> None:
    m = Machine(workers=1).admit()
    m.does(m.operator.ask_stop(a_stop(m), False, m.now))
    m.does(m.operator.ask_stop(a_stop(m), True, m.now))
    assert m.signals == [("master-0", "TERM"), ("master-0", "KILL")]


@pytest.mark.parametrize("when", ["queued", "backoff", "suspended"])
def test_stop_when_no_member_lives_is_done_at_once(when: str) -> None:
    m = Machine(workers=1)
    if when != "queued":
        m.admit()
    if when == "backoff":
        m.exits("master-0", 1)
    if when == "suspended":
        m.does(m.operator.ask_suspend(m.now))
        m.exits("master-0", -15)
    m.does(m.operator.ask_stop(a_stop(m), when == "queued", m.now))
    assert m.state == "stopped" and m.finished
    m.passes(60)
    assert len(m.spawned) == (0 if when == "queued" else 1)


def elastic(**fields: Any) -> Machine:
    return Machine(
        **{"workers": 4, "elastic": {"min": 2, "max": 4}, "command": ["torchrun", "t.py"], **fields}
    )


def test_a_lost_elastic_member_is_replaced_alone() -> None:
    m = elastic().admit().exits("worker-2", -9)
    m.passes(1)
    assert m.signals == [] and m.spawned[-1][:2] == ("worker-2", 1) and m.operator.restarts == 1


def test_loss_of_the_rendezvous_host_restarts_the_gang_and_counts_once() -> None:
    m = elastic().admit().exits("worker-0", -9)
    assert sorted(m.signals) == [("worker-1", "KILL"), ("worker-2", "KILL"), ("worker-3", "KILL")]
    m.passes(30)
    assert len(m.spawned) == 4, "nobody starts while one of the old gang lives"
    for name in ("worker-1", "worker-2", "worker-3"):
        m.exits(name, -9)
    m.passes(1)
    assert sorted(m.spawned[4:])[0][:2] == ("worker-0", 1) and len(m.spawned) == 8
    assert m.operator.restarts == 1 and m.state == "running"


def test_an_elastic_gang_is_admitted_at_min_and_grows() -> None:
    m = elastic().admit("worker-0", "worker-1")
    assert m.state == "running" and m.phases["worker-3"] == "pending" and m.operator.marks.scheduled == m.now
    m.admit("worker-2")
    assert m.phases["worker-2"] == "running"


def test_any_elastic_worker_that_succeeds_decides() -> None:
    m = elastic().admit().exits("worker-3", 0)
    assert m.state == "succeeded"


def test_a_program_that_cannot_start_is_a_start_error() -> None:
    m = Machine(workers=1, policy={"restart": "never"})
    m.does(m.operator.on_admitted([], m.now))
    m.operator.members["master-0"].alive = True
    m.does(m.operator.on_start_failed("master-0", "'trian' is not found", m.now))
    one = m.operator.members["master-0"]
    assert (one.exit_code, one.reason, m.state) == (128, "StartError", "failed")


@pytest.mark.parametrize(
    "act",
    [
        lambda m: m.exits("master-0", 0),
        lambda m: m.exits("master-0", 1),
        lambda m: m.does(m.operator.ask_stop(a_stop(m), False, m.now)),
        lambda m: m.does(m.operator.ask_suspend(m.now)),
    ],
)
def test_whatever_happens_last_the_slots_are_given_back_once(act: Callable[[Machine], Any]) -> None:
    m = Machine(workers=2, policy={"restart": "never"}).admit()
    act(m)
    m.passes(60)
    for name, one in m.operator.members.items():
        if one.alive:
            m.exits(name, -9)
    assert m.released == 1


# JobSet and TrainJob: the gang is restarted.

GANGS = pytest.mark.parametrize("engine", ["jobset", "trainjob"])


def gang(engine: str, **fields: Any) -> Machine:
    groups = {"master": 1, "worker": 2}
    return Machine(**{"engine": engine, "workers": None, "groups": groups, **fields}).admit()


def ends(m: Machine, code: int = 143) -> Machine:
    """All that were told to end do."""
    for name, state in m.operator.members.items():
        if state.alive and state.kill_at is not None:
            m.exits(name, code)
    return m


@GANGS
def test_a_failure_ends_all_and_then_starts_all_and_counts_once(engine: str) -> None:
    m = gang(engine).exits("worker-0", 1)
    assert m.signals == [("master-0", "TERM"), ("worker-1", "TERM")]
    assert m.operator.restarts == 1 and m.state == {"jobset": "restarting", "trainjob": "starting"}[engine]
    m.exits("master-0", 143).passes(20)
    assert len(m.spawned) == 3  # worker-1 lives on: nobody of the new gang may meet it
    m.exits("worker-1", 3).passes(op.FIRST_DELAY)
    assert [(name, number) for name, number, _ in m.spawned[3:]] == [
        ("master-0", 1),
        ("worker-0", 1),
        ("worker-1", 1),
    ]
    assert m.state == "running" and m.operator.restarts == 1
    assert {o.restarts for o in m.operator.members.values()} == {1}
    assert {o.exit_code for o in m.operator.members.values()} == {None}


@GANGS
def test_a_gang_is_restarted_exactly_as_often_as_its_limit(engine: str) -> None:
    m = gang(engine, policy={"restart": "on_failure", "backoff_limit": 2})
    for _ in range(2):
        ends(m.exits("worker-1", 1)).passes(op.LONGEST_DELAY)
        assert m.state == "running"
    m.exits("worker-1", 1)
    assert m.state == "failed" and m.operator.restarts == 2
    (failed,) = (c for c in m.operator.conditions if c.type == "Failed")
    assert failed.reason == "ReachedMaxRestarts"
    ends(m)
    assert m.phases == {"master-0": "deleted", "worker-0": "deleted", "worker-1": "failed"} and m.finished


@GANGS
def test_who_had_succeeded_starts_again_with_its_gang(engine: str) -> None:
    m = gang(engine).exits("worker-0", 0)
    ends(m.exits("worker-1", 1)).passes(op.FIRST_DELAY)
    assert m.phases == dict.fromkeys(m.phases, "running")


@GANGS
def test_a_member_that_does_not_end_for_its_gang_is_killed_after_its_grace(engine: str) -> None:
    m = gang(engine, spot={"grace": 4}).exits("worker-0", 1).exits("worker-1", 143).passes(4)
    assert m.signals[-1] == ("master-0", "KILL")
    m.exits("master-0", -9).passes(op.FIRST_DELAY)
    assert m.state == "running" and m.operator.restarts == 1


@GANGS
@pytest.mark.parametrize(
    ("restart", "code", "reason"),
    [("never", 1, "FailedJobs"), ("never", 137, "FailedJobs"),
     ("exit_code", 3, "FailJobSetFailurePolicyAction"), ("exit_code", 137, None)],
)  # fmt: skip
def test_only_what_the_policy_tries_again_restarts_the_gang(
    engine: str, restart: str, code: int, reason: str | None
) -> None:
    m = gang(engine, policy={"restart": restart}).exits("worker-0", code)
    assert next((c.reason for c in m.operator.conditions if c.type == "Failed"), None) == reason
    assert m.operator.restarts == (reason is None)


@GANGS
def test_who_has_succeeded_stays_so_through_a_suspension(engine: str) -> None:
    m = gang(engine).exits("worker-0", 0)
    m.does(m.operator.ask_suspend(m.now))
    ends(m)
    assert m.phases == {"master-0": "deleted", "worker-0": "succeeded", "worker-1": "deleted"}
    m.does(m.operator.ask_resume(m.now))
    m.admit()
    assert [name for name, number, _ in m.spawned if number == 1] == ["master-0", "worker-1"]
    assert m.operator.restarts == 0 and m.phases["worker-0"] == "succeeded"


@GANGS
def test_a_suspension_ends_a_gang_that_is_being_restarted(engine: str) -> None:
    m = gang(engine).exits("worker-0", 1)
    m.does(m.operator.ask_suspend(m.now))
    ends(m).passes(60)
    assert m.phases == dict.fromkeys(m.phases, "deleted") and len(m.spawned) == 3
    m.does(m.operator.ask_resume(m.now))
    m.admit()
    assert m.state == "running" and m.operator.restarts == 1


@GANGS
def test_their_end_removes_who_runs_whatever_the_job_says(engine: str) -> None:
    m = gang(engine, policy={"clean_pods": "none", "ttl": 5}).exits("master-0", 0).passes(op.SETTLE)
    ends(m)
    assert m.phases == {"master-0": "succeeded", "worker-0": "deleted", "worker-1": "deleted"}
    m.passes(10)
    assert m.removed == (engine == "jobset")  # a TrainJob has no ttl


@GANGS
def test_all_workers_of_tensorflow_decide_because_no_jobset_asks_for_the_first(engine: str) -> None:
    m = Machine(engine=engine, framework="tensorflow", workers=None, groups={"worker": 2}).admit()
    m.exits("worker-0", 0)
    assert m.state == "running"
    assert m.exits("worker-1", 0).state == "succeeded"


@GANGS
def test_a_stop_ends_a_gang_that_is_being_restarted(engine: str) -> None:
    m = gang(engine).exits("worker-0", 1)
    m.does(m.operator.ask_stop(Stop("me", "enough", m.now), False, m.now))
    ends(m).passes(60)
    assert m.state == "stopped" and m.finished and len(m.spawned) == 3


@GANGS
def test_an_elastic_gang_restarts_one_by_one_and_fails_with_a_job(engine: str) -> None:
    policy = {"restart": "on_failure", "backoff_limit": 1}
    m = Machine(engine=engine, workers=3, elastic={"min": 2}, policy=policy).admit()
    m.exits("worker-2", 1).passes(op.FIRST_DELAY)
    assert [name for name, number, _ in m.spawned if number == 1] == ["worker-2"] and m.signals == []
    m.exits("worker-2", 1)
    assert [c.reason for c in m.operator.conditions if c.type == "Failed"] == ["FailedJobs"]
    assert m.operator.restarts == 1


# No progress (policy.hang).


def stalled(m: Machine) -> Machine:
    stall = Stall("rank_stalled", "rank 1 does not come", 50.0, "rank 1", "worker-0")
    m.does(m.operator.on_stalled(stall, m.now))
    return m


def test_a_run_that_stands_is_told_of_and_runs_on() -> None:
    m = stalled(Machine(workers=3).admit())
    event = m.operator.events[-1]
    assert (event.type, event.reason, event.message) == ("Warning", "rank_stalled", "rank 1 does not come")
    assert m.state == "running" and not m.signals and m.operator.restarts == 0


def test_a_run_that_stands_is_ended_with_the_cause_as_its_reason() -> None:
    m = stalled(Machine(workers=3, policy={"hang": {"then": "fail"}}).admit())
    failed = next(c for c in m.operator.conditions if c.type == "Failed")
    assert m.state == "failed" and failed.reason == "rank_stalled"
    assert failed.message.endswith("has failed because rank 1 does not come")


@pytest.mark.parametrize("then", ["tell", "restart", "fail"])
def test_a_run_whose_ranks_wait_for_one_that_works_is_told_of_and_runs_on(then: str) -> None:
    m = Machine(workers=3, policy={"hang": {"then": then}}).admit()
    stall = Stall("ranks_wait", "ranks 0, 2 wait for rank 1", 50.0, "rank 1", "worker-0")
    m.does(m.operator.on_stalled(stall, m.now))
    event = m.operator.events[-1]
    assert (event.type, event.reason, event.message) == ("Normal", "ranks_wait", "ranks 0, 2 wait for rank 1")
    assert m.state == "running" and not m.signals and m.operator.restarts == 0


@pytest.mark.parametrize("engine", ["pytorchjob", "jobset"])
def test_a_run_that_stands_is_started_again_as_a_whole_and_counts_one_restart(engine: str) -> None:
    m = Machine(workers=3, engine=engine, policy={"hang": {"then": "restart"}, "backoff_limit": 1}).admit()
    first = len(m.spawned)
    name = list(m.operator.members)[1]
    stall = Stall("rank_stalled", "rank 1 does not come", 50.0, "rank 1", name)
    m.does(m.operator.on_stalled(stall, m.now))
    assert sorted(m.signals) == sorted((each, "TERM") for each in m.operator.members)
    assert m.operator.restarts == 1 and not m.operator.is_training
    m.passes(m.operator.layout.grace + 0.1)
    assert {how for _, how in m.signals} == {"TERM", "KILL"}, "who does not end in its grace is killed"
    for each in [*m.operator.members]:
        m.exits(each, -9)
    m.passes(1.0)
    assert len(m.spawned) == first + 3 and m.operator.is_training and m.state == "running"
    m.does(m.operator.on_stalled(stall, m.now))
    failed = next(c for c in m.operator.conditions if c.type == "Failed")
    assert failed.reason == "rank_stalled" and "after 1 restarts because" in failed.message


def test_what_starts_or_ends_is_not_training() -> None:
    m = Machine(workers=2)
    assert not m.operator.is_training
    m.admit()
    assert m.operator.is_training
    m.exits("worker-0", 1)
    assert not m.operator.is_training, "it waits for its restart"
    m.passes(1.0)
    assert m.operator.is_training
    m.exits("master-0", 0)
    assert not m.operator.is_training
