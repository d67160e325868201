"""The cases that are played on every stage: what a PyTorchJob does under each policy, said once, and where
other kinds of jobs go ways of their own.

A play is a list of steps, one after the other. Members are puppets: none ends unless a step says so, and a
step that waits sees to it that whoever runs the job has noticed what happened before the next thing does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from allaboard.backends.base import Handle
from allaboard.errors import BadInput
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import state_of
from tests.cluster.api import until
from tests.cluster.parity.puppets import COMMAND
from tests.cluster.parity.stages import PATIENCE, WHO, Performance, Tale

Step = Callable[[Performance, Tale], None]


@dataclass(frozen=True)
class Case:
    """``job``: fields over one master and one worker of PyTorch under on_failure; ``ends``: the state in
    which it is left here; ``chance``: conditions that may be seen on the way or not, and members of which
    nothing can be told for sure; ``unsure``: member -> those of its tries that somebody may have read before
    they were taken away while they were well.
    """

    name: str
    play: tuple[Step, ...]
    ends: State = State.SUCCEEDED
    job: Mapping[str, Any] = field(default_factory=dict)
    chance: tuple[str, ...] = ()
    unsure: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        shape = {} if "workers" in self.job else {"groups": {"master": 1, "worker": 1}}
        return {**shape, **self.job}


# --- steps


def up(*members: str, number: int = 1) -> Step:
    """The n-th process of each of these has started."""

    def step(on: Performance, _: Tale) -> None:
        for member in members:
            on.puppeteer.up(on.run, member, number)

    return step


def read(*members: str, number: int = 1) -> Step:
    """Who follows the logs has read what the n-th process of each of these wrote."""
    words = f"try {number}"

    def step(on: Performance, _: Tale) -> None:
        until(
            f"{words} in the logs of {members}",
            lambda: all(words in on.told.get(member, ()) for member in members),
            PATIENCE,
            pause=0.1,
        )

    return step


def exits(member: str, code: int) -> Step:
    """Its newest process ends by itself."""
    return lambda on, _: on.puppeteer.tell(on.run, member, code)


def faults(member: str) -> Step:
    """Its newest process touches memory that is not its own: signal 11."""
    return lambda on, _: on.puppeteer.tell(on.run, member, "fault")


def killed(member: str, number: int) -> Step:
    """Its newest process gets a signal from outside: 9, as for want of memory, or 15."""
    return lambda on, _: on.stage.signal(on.run, member, number)


def lost(member: str) -> Step:
    """The member is taken away: here its processes are killed, on a cluster its pod is deleted."""

    def step(on: Performance, _: Tale) -> None:
        lingers(member)(on, _)
        on.stage.lose(on.run, member)

    return step


def lingers(member: str) -> Step:
    """Should it be taken away, it takes its time to go, as real ones do: an operator sees it ending, and not
    only gone, and of rank 0 its log can be read.
    """
    return lambda on, _: on.puppeteer.deafen(on.run, member)


def shows(*conditions: str) -> Step:
    """These conditions are True."""
    return sees(f"{conditions}", lambda seen: all(seen.holds(c) for c in conditions))


def phases(**members: str) -> Step:
    """``worker_0="running"``: members are in these phases."""
    wanted = {name.replace("_", "-"): phase for name, phase in members.items()}
    return sees(
        f"{wanted}", lambda seen: {m.name: m.phase for m in seen.members if m.name in wanted} == wanted
    )


def counted(**roles: tuple[int, int, int]) -> Step:
    """Whoever runs the job has counted so many members active, succeeded and failed."""

    def step(on: Performance, _: Tale) -> None:
        until(
            f"counts of {roles}",
            lambda: roles.items() <= on.stage.counts(on.run, on.seen).items(),
            PATIENCE,
            pause=0.1,
        )

    return step


def is_counted(member: str) -> Step:
    """Whoever decides on the whole job knows of this member's end."""

    def step(on: Performance, _: Tale) -> None:
        until(
            f"the end of {member} to be counted",
            lambda: on.stage.is_counted(on.run, member),
            PATIENCE,
            pause=0.1,
        )

    return step


def restarted(member: str, times: int) -> Step:
    """So many restarts of it were counted, and it runs again."""
    return sees(
        f"restart {times} of {member}",
        lambda seen: any(
            (m.name, m.restarts, m.phase, m.reason == "CrashLoopBackOff") == (member, times, "running", False)
            for m in seen.members
        ),
    )


def sees(what: str, wanted: Callable[[Observation], bool]) -> Step:
    return lambda on, _: on.until(what, wanted)


def ends(on: Performance, _: Tale) -> None:
    """It has its final word."""
    on.until("its end", lambda seen: state_of(seen).is_final)


def looked_at(name: str) -> Step:
    """What is to be told at this point, once it has come to rest, goes into the tale under this name."""
    return lambda on, tale: tale.update({f"{name}: {path}": value for path, value in on.settle().items()})


def suspend(on: Performance, _: Tale) -> None:
    on.backend.suspend(on.run)


def resume(on: Performance, _: Tale) -> None:
    on.backend.resume(on.run)


def refuses(step: Step) -> Step:
    """The backend refuses this in words."""

    def tried(on: Performance, tale: Tale) -> None:
        try:
            step(on, tale)
        except BadInput:
            return
        raise AssertionError("it was not refused")

    return tried


def stop(on: Performance, _: Tale) -> None:
    seen = on.backend.observe(on.run)
    handle = Handle(on.run, seen.attempt, seen.generation, seen.uid or "")
    on.backend.stop(handle, WHO, "a test", "it is enough")


def only(stage: str, *steps: Step) -> Step:
    """Steps of one stage alone: what a difference of the table asks for."""

    def play(on: Performance, tale: Tale) -> None:
        for step in steps if on.stage.name == stage else ():
            step(on, tale)

    return play


def removed(on: Performance, _: Tale) -> None:
    """The job is gone by its ttl; here it is the next process of allaboard that sees to it."""

    def gone() -> bool:
        on.stage.housekeep()
        return not on.stage.is_there(on.run)

    until("its removal", gone, PATIENCE)


# --- the table

M, W, W1, W2 = "master-0", "worker-0", "worker-1", "worker-2"
STARTED: tuple[Step, ...] = (
    up(M, W),
    shows("Created", "Running"),
    phases(master_0="running", worker_0="running"),
    counted(master=(1, 0, 0), worker=(1, 0, 0)),
    read(M, W),
)
AGAIN = (up(M, W, number=2), *STARTED[1:], read(M, W, number=2))
"""Both started a second time, after a suspension."""
DONE: tuple[Step, ...] = (exits(W, 0), phases(worker_0="succeeded"), is_counted(W), exits(M, 0), ends)
SUSPENDED: tuple[Step, ...] = (suspend, shows("Suspended"), phases(master_0="deleted", worker_0="deleted"))
PAIR: tuple[Step, ...] = (
    up(W, W1),
    shows("Running"),
    phases(worker_0="running", worker_1="running"),
    counted(worker=(2, 0, 0)),
    read(W, W1),
)
THREE: tuple[Step, ...] = (
    up(W, W1, W2),
    shows("Running"),
    phases(worker_0="running", worker_1="running", worker_2="running"),
    counted(worker=(3, 0, 0)),
    read(W, W1, W2),
)
ONE = {"groups": {"worker": 1}}
WORKERS = {"groups": {"worker": 2}}
ELASTIC = {"workers": 3, "elastic": {"min": 2, "max": 3}}

TOO_SHORT = ("Running",)
"""A job may be over before its operator has looked at it once."""
TOO_LATE = ("Running", "worker")
"""A worker on a cluster starts when it knows the master's name; a master that ends at once may have decided
by then.
"""
MADE_ANEW = ("Restarting",)
"""While the master runs, a pass of the operator over a failed worker ends in Restarting or in Running, by the
order of a Go map; the next pass returns to Running.
"""
STARTED_AFTER_ALL = ("master-0 processes", "worker-0 processes")
"""At a limit the operator deletes the pods as soon as a restart is counted, and before it has read its own
word that the job has failed: a pass in between may make them anew, to be deleted too. So may the Jobs of a
JobSet that is deleted at its deadline.
"""


def told_twice(member: str) -> tuple[str, ...]:
    """A Job takes a pod away at its limit while that begins again: what is told of its last try may be told
    once more, beside the word that something is lost.
    """
    return (f"{member} log, as it was followed",)


def back(member: str, number: int) -> tuple[Step, ...]:
    """Its n-th process runs, and its operator knows."""
    return (
        up(member, number=number),
        restarted(member, number - 1),
        shows("Running"),
        read(member, number=number),
    )


SEEN_GOING = {"spot": {"grace": 8}}
"""Time for the operator to notice that a pod is ending: one that it only sees gone is no failure to it."""


def policy(restart: str, **rest: Any) -> dict[str, Any]:
    return {"policy": {"restart": restart, **rest}}


def master_first(clean: str) -> Case:
    return Case(
        f"clean_pods {clean}: the master ends, a worker would run on",
        (*STARTED, exits(M, 0), ends),
        job=policy("on_failure", clean_pods=clean),
        unsure={W: (1,)} if clean == "all" else {},
    )


def worker_fails(clean: str) -> Case:
    return Case(
        f"never, clean_pods {clean}: a worker fails",
        (*STARTED, exits(W, 1), ends),
        State.FAILED,
        policy("never", clean_pods=clean),
    )


def for_good(code: int) -> Case:
    return Case(
        f"exit_code: {code} is for good",
        (*STARTED, exits(W, code), ends),
        State.FAILED,
        policy("exit_code"),
    )


def tried_again(what: str, end: Step) -> Case:
    return Case(
        f"exit_code: {what} is tried again",
        (*STARTED, end, *back(W, 2), *DONE),
        job=policy("exit_code"),
        chance=MADE_ANEW,
    )


def members_of(groups: Mapping[str, int]) -> list[str]:
    return [f"{role}-{n}" for role, count in groups.items() for n in range(count)]


def all_are(phase: str, groups: Mapping[str, int]) -> Step:
    return phases(**{member.replace("-", "_"): phase for member in members_of(groups)})


def started(number: int = 1, **groups: int) -> tuple[Step, ...]:
    """The n-th processes of all members of a job of these groups run, and its operator knows."""
    members = members_of(groups)
    return (
        up(*members, number=number),
        shows("Running"),
        all_are("running", groups),
        counted(**{role: (count, 0, 0) for role, count in groups.items()}),
        read(*members, number=number),
    )


def of_kind(framework: str, **groups: int) -> dict[str, Any]:
    return {"framework": framework, "groups": groups}


def an_mpijob(engine: str, restart: str, **rest: Any) -> dict[str, Any]:
    """Its worker is a puppet, too, which waits for nobody but the puppeteer."""
    groups = {"launcher": 1, "worker": {"replicas": 1, "command": COMMAND}}
    return {"framework": "mpi", "engine": engine, "groups": groups, **policy(restart, **rest)}


def usual(kind: str, job: Mapping[str, Any], *decide: str, **groups: int) -> Iterator[Case]:
    """What each kind of the Training Operator does alike. ``decide``: who ends well for the job to succeed,
    in this order; the last member of ``groups`` is the one that fails.
    """
    *_, one = members_of(groups)
    start = started(**groups)
    well = [(exits(member, 0), phases(**{member.replace("-", "_"): "succeeded"})) for member in decide[:-1]]
    done = (*(step for steps in well for step in steps), exits(decide[-1], 0), ends)

    def case(name: str, *play: Step, ends_in: State = State.SUCCEEDED, **rest: Any) -> Case:
        return Case(f"{kind}{name}", (*start, *play), ends_in, {**job, **rest.pop("job", {})}, **rest)

    yield case(": stopped", stop, ends, ends_in=State.STOPPED)
    yield case(
        ": suspended while it runs, then resumed",
        suspend,
        shows("Suspended"),
        all_are("deleted", groups),
        looked_at("suspended"),
        resume,
        *started(2, **groups),
        *done,
    )
    late = policy("on_failure", deadline=15)
    yield case(
        ": nothing happens, and its deadline has passed",
        ends,
        ends_in=State.TIMED_OUT,
        job=late,
        unsure={member: (1,) for member in members_of(groups)},
    )
    if kind != "MPIJob":  # there a worker that fails, fails nothing
        yield case(", never: one fails", exits(one, 3), ends, ends_in=State.FAILED, job=policy("never"))
    if job["framework"] == "mpi":
        return
    again = (*back(one, 2), *done)
    yield case(", on_failure: one fails once", exits(one, 1), *again, job=policy("on_failure"))
    yield case(
        ", exit_code: 137 is tried again",
        exits(one, 137),
        *again,
        job=policy("exit_code"),
        chance=MADE_ANEW,
    )
    yield case(
        ", exit_code: 1 is for good", exits(one, 1), ends, ends_in=State.FAILED, job=policy("exit_code")
    )
    if kind in ("TFJob", "XGBoostJob"):  # which fail for it
        again = (only("local", *again[:-1]), ends)
    yield case(
        ", on_failure: one is lost",
        lost(one),
        *again,
        job={**policy("on_failure"), **SEEN_GOING},
        chance=MADE_ANEW,
        unsure={one: (1,)},
    )


def mpijobs(kind: str, engine: str) -> Iterator[Case]:
    """What both versions of MPIJob do alike: the launcher decides."""
    job = an_mpijob(engine, "never")
    yield Case(f"{kind}: the launcher decides", (*MPI_STARTED, exits(L, 0), ends), job=job)
    yield Case(f"{kind}: the launcher fails", (*MPI_STARTED, exits(L, 3), ends), State.FAILED, job)
    yield from usual(kind, job, L, launcher=1, worker=1)


L = "launcher-0"
MPI_STARTED = started(launcher=1, worker=1)
CHIEF = {"chief": 1, "worker": 1}
KINDS: tuple[Case, ...] = (
    Case(
        "TFJob: the chief decides",
        (*started(**CHIEF), exits(W, 0), phases(worker_0="succeeded"), looked_at("one is done"),
         exits("chief-0", 0), ends),
        job=of_kind("tensorflow", **CHIEF),
    ),
    Case(
        "TFJob: worker 0 decides",
        (*started(worker=2), exits(W1, 0), phases(worker_1="succeeded"), looked_at("one is done"),
         exits(W, 0), ends),
        job=of_kind("tensorflow", worker=2),
    ),
    Case(
        "TFJob: worker 0 ends, another would run on",
        (*started(worker=2), exits(W, 0), ends),
        job=of_kind("tensorflow", worker=2),
    ),
    Case(
        "TFJob, AllWorkers: worker 0 does not decide",
        (*started(worker=2), exits(W, 0), phases(worker_0="succeeded"), looked_at("one is done"),
         exits(W1, 0), ends),
        job={**of_kind("tensorflow", worker=2), "engine_spec": {"successPolicy": "AllWorkers"}},
    ),
    Case(
        "TFJob: a server fails",
        (*started(chief=1, ps=1), exits("ps-0", 1), ends),
        State.FAILED,
        of_kind("tensorflow", chief=1, ps=1),
    ),
    *usual("TFJob", of_kind("tensorflow", **CHIEF), W, "chief-0", **CHIEF),
    Case(
        "TFJob: an evaluator fails",
        (*started(chief=1, evaluator=1), exits("evaluator-0", 1), ends),
        State.FAILED,
        {**of_kind("tensorflow", chief=1, evaluator=1), **policy("never")},
    ),
    Case(
        "TFJob: an evaluator would run on",
        (*started(chief=1, evaluator=1), exits("chief-0", 0), ends),
        job={**of_kind("tensorflow", chief=1, evaluator=1)},
    ),
    *mpijobs("MPIJob", "mpijob"),
    Case(
        "MPIJob: a worker fails, the launcher goes on",
        (*MPI_STARTED, exits(W, 1), phases(worker_0="failed"), looked_at("one has failed"),
         exits(L, 0), ends),
        job=an_mpijob("mpijob", "never"),
    ),
    Case(
        "MPIJob: created suspended, then resumed",
        (shows("Suspended"), looked_at("suspended"), resume, *MPI_STARTED, exits(L, 0), ends),
        job=an_mpijob("mpijob", "never", suspend=True),
    ),
    Case(
        "MPIJob, on_failure: the launcher fails once",
        (*MPI_STARTED, exits(L, 1), *back(L, 2), exits(L, 0), ends),
        job=an_mpijob("mpijob", "on_failure"),
    ),
    Case(
        "MPIJob, backoff_limit 1: the launcher fails again and again",
        (*MPI_STARTED, exits(L, 1), up(L, number=2), only("local", exits(L, 1)), ends),
        State.FAILED,
        an_mpijob("mpijob", "on_failure", backoff_limit=1),
        told_twice(L),
        {L: (2,)},
    ),
    Case(
        "MPIJob, on_failure: a worker is lost",
        (*MPI_STARTED, lost(W), *back(W, 2), exits(L, 0), ends),
        job=an_mpijob("mpijob", "on_failure"),
        unsure={W: (2,)},
    ),
    Case(
        "MPIJob, on_failure: the launcher is lost",
        (*MPI_STARTED, lost(L), *back(L, 2), exits(L, 0), ends),
        job=an_mpijob("mpijob", "on_failure"),
    ),
    *mpijobs("MPIJob v1", "mpijob-v1"),
    Case("MPIJob v1: a worker is lost", (*MPI_STARTED, lost(W), ends), State.FAILED,
         {**an_mpijob("mpijob-v1", "never"), **SEEN_GOING}),
    Case("XGBoostJob: all end well", (*STARTED, *DONE), job={"framework": "xgboost"}),
    Case(
        "XGBoostJob: the master ends, a worker would run on",
        (*STARTED, exits(M, 0), ends),
        job={"framework": "xgboost"},
    ),
    *usual("XGBoostJob", {"framework": "xgboost"}, W, M, master=1, worker=1),
    Case(
        "PaddleJob: all workers decide",
        (*PAIR, exits(W, 0), phases(worker_0="succeeded"), looked_at("one is done"), exits(W1, 0), ends),
        job=of_kind("paddle", worker=2),
    ),
    Case(
        "PaddleJob: the servers decide",
        (*STARTED, *DONE),
        job=of_kind("paddle", master=1, worker=1),
    ),
    *usual("PaddleJob", of_kind("paddle", worker=2), W, W1, worker=2),
    Case(
        "JAXJob: all processes decide",
        (*PAIR, exits(W, 0), phases(worker_0="succeeded"), looked_at("one is done"), exits(W1, 0), ends),
        job=of_kind("jax", worker=2),
    ),
    *usual("JAXJob", of_kind("jax", worker=2), W, W1, worker=2),
)  # fmt: skip


TOGETHER = started(master=1, worker=1)


def again(number: int, restarts: int) -> tuple[Step, ...]:
    """The n-th process of both runs, and the gang was restarted so often."""
    return (
        up(M, W, number=number),
        sees(f"restart {restarts} of the gang", lambda seen: seen.restarts == restarts),
        phases(master_0="running", worker_0="running"),
        shows("Running"),
        read(M, W, number=number),
    )


def gangs(kind: str, engine: str) -> Iterator[Case]:
    """What JobSet does with the members of a job, and Trainer by it."""

    def case(name: str, *play: Step, ends_in: State = State.SUCCEEDED, **rest: Any) -> Case:
        job = {"engine": engine, **rest.pop("job", {})}
        return Case(f"{kind}: {name}", (*TOGETHER, *play), ends_in, job, **rest)

    failed, stopped, late = State.FAILED, State.STOPPED, State.TIMED_OUT
    yield case("all end well", *DONE)
    yield case("the master ends, a worker would run on", exits(M, 0), ends)
    yield case("a worker fails once", exits(W, 1), *again(2, 1), *DONE)
    yield case("the master fails once", exits(M, 127), *again(2, 1), *DONE)
    yield case(
        "who has ended well starts again with its gang",
        exits(W, 0),
        phases(worker_0="succeeded"),
        exits(M, 1),
        *again(2, 1),
        *DONE,
    )
    yield case(
        "backoff_limit 0: a worker fails",
        exits(W, 1),
        ends,
        ends_in=failed,
        job=policy("on_failure", backoff_limit=0),
    )
    yield case(
        "backoff_limit 1: members fail in turn",
        exits(W, 1),
        *again(2, 1),
        exits(M, 2),
        ends,
        ends_in=failed,
        job=policy("on_failure", backoff_limit=1),
    )
    yield case("never: a worker fails", exits(W, 3), ends, ends_in=failed, job=policy("never"))
    yield case("never: killed by signal 9", killed(W, 9), ends, ends_in=failed, job=policy("never"))
    yield case("exit_code: 1 is for good", exits(W, 1), ends, ends_in=failed, job=policy("exit_code"))
    yield case("exit_code: 137 is tried again", exits(W, 137), *again(2, 1), *DONE, job=policy("exit_code"))
    yield case(
        "exit_code: signal 15 is tried again", killed(W, 15), *again(2, 1), *DONE, job=policy("exit_code")
    )
    yield case("a worker is lost", lost(W), *again(2, 1), *DONE)
    yield case(
        "suspended while it runs, then resumed",
        *SUSPENDED,
        looked_at("suspended"),
        resume,
        *again(2, 0),
        *DONE,
    )
    yield case(
        "suspended with a worker that is done, then resumed",
        exits(W, 0),
        phases(worker_0="succeeded"),
        suspend,
        shows("Suspended"),
        phases(master_0="deleted"),
        looked_at("suspended"),
        resume,
        up(M, number=2),
        phases(master_0="running"),
        read(M, number=2),
        exits(M, 0),
        ends,
    )
    yield case(
        "suspended after a restart, then resumed",
        exits(W, 1),
        *again(2, 1),
        *SUSPENDED,
        resume,
        *again(3, 1),
        *DONE,
    )
    yield case("stopped while it runs", stop, ends, ends_in=stopped)
    yield case(
        "nothing happens, and its deadline has passed",
        ends,
        ends_in=late,
        job=policy("on_failure", deadline=15),
        chance=STARTED_AFTER_ALL,
        unsure={M: (1, 2), W: (1, 2)},
    )
    elastic = {"engine": engine, **ELASTIC}
    yield Case(
        f"{kind}, elastic: one worker that ends well decides",
        (*THREE, lingers(W), exits(W1, 0), ends),
        job=elastic,
        unsure={W2: (1,)},
    )
    yield Case(
        f"{kind}, elastic: a worker that fails is restarted alone",
        (*THREE, exits(W2, 1), *back(W2, 2), exits(W, 0), ends),
        job=elastic,
        unsure={W1: (1,), W2: (2,)},
    )
    yield Case(
        f"{kind}, elastic, never: a worker fails",
        (*THREE, exits(W2, 1), ends),
        failed,
        {**elastic, **policy("never")},
    )
    yield Case(
        f"{kind}, elastic, backoff_limit 1: a worker fails again and again",
        (*THREE, exits(W2, 1), up(W2, number=2), only("local", exits(W2, 1)), ends),
        failed,
        {**elastic, **policy("on_failure", backoff_limit=1)},
        chance=told_twice(W2),
        unsure={W2: (2,)},
    )
    yield Case(
        f"{kind}: created suspended, then resumed",
        (shows("Suspended"), looked_at("suspended"), resume, *TOGETHER, *DONE),
        job={"engine": engine, **policy("on_failure", suspend=True)},
    )
    yield Case(
        f"{kind}: without a master all workers decide",
        (*PAIR, exits(W, 0), phases(worker_0="succeeded"), looked_at("one is done"), exits(W1, 0), ends),
        job={"engine": engine, **WORKERS},
    )
    yield Case(
        f"{kind}: of tensorflow all workers decide",
        (*PAIR, exits(W, 0), phases(worker_0="succeeded"), looked_at("one is done"), exits(W1, 0), ends),
        job={"engine": engine, **of_kind("tensorflow", worker=2)},
    )
    yield Case(
        f"{kind}: a short job",
        (ends,),
        job={"engine": engine, "command": ["sh", "-c", "exit 0"]},
        chance=TOO_LATE,
    )


CASES: tuple[Case, ...] = (
    *KINDS,
    *gangs("JobSet", "jobset"),
    *gangs("TrainJob", "trainjob"),
    Case("JobSet: removed after its end", (*TOGETHER, *DONE, removed),
         job={"engine": "jobset", **policy("on_failure", ttl=2)}),
    # The end of a job.
    Case("all end well", (*STARTED, *DONE)),
    *(master_first(clean) for clean in ("none", "running", "all")),
    Case(
        "without a master all workers decide",
        (*PAIR, exits(W1, 0), phases(worker_1="succeeded"), looked_at("one is done"), exits(W, 0), ends),
        job=WORKERS,
    ),
    Case(
        "a short job without a master",
        (ends,),
        job={**WORKERS, "command": ["sh", "-c", "exit 0"]},
        chance=TOO_SHORT,
    ),
    Case("a short job with a master", (ends,), job={"command": ["sh", "-c", "exit 0"]}, chance=TOO_LATE),
    # never
    *(worker_fails(clean) for clean in ("none", "running", "all")),
    Case("never: the master fails", (*STARTED, exits(M, 2), ends), State.FAILED, policy("never")),
    Case("never: killed by signal 9", (*STARTED, killed(W, 9), ends), State.FAILED, policy("never")),
    Case("never: killed by signal 11", (*STARTED, faults(W), ends), State.FAILED, policy("never")),
    Case(
        "never, without a master: a worker fails",
        (*PAIR, exits(W, 3), ends),
        State.FAILED,
        {**WORKERS, **policy("never")},
    ),
    *(
        Case(
            f"never: {what}",
            (ends,),
            State.FAILED,
            {**ONE, **policy("never"), "command": command},
            chance=TOO_SHORT,
        )
        for what, command in (
            ("a short job that fails", ["sh", "-c", "exit 1"]),
            ("the shell finds no such command", ["sh", "-c", "no-such-command"]),
            ("no such program", ["no-such-program"]),
        )
    ),
    # on_failure
    Case("on_failure: a worker fails once", (*STARTED, exits(W, 1), *back(W, 2), *DONE)),
    Case("on_failure: the master fails once", (*STARTED, exits(M, 127), *back(M, 2), *DONE)),
    Case("on_failure: killed by signal 11", (*STARTED, faults(W), *back(W, 2), *DONE)),
    Case(
        "backoff_limit 0: a worker fails",
        (*STARTED, exits(W, 1), ends),
        State.FAILED,
        policy("on_failure", backoff_limit=0),
        STARTED_AFTER_ALL,
        {W: (2, 3)},
    ),
    Case(
        "backoff_limit 1: a worker fails again and again",
        (*STARTED, exits(W, 1), only("local", up(W, number=2), exits(W, 1)), ends),
        State.FAILED,
        policy("on_failure", backoff_limit=1),
        STARTED_AFTER_ALL,
        {W: (2, 3)},
    ),
    Case(
        "backoff_limit 3: a worker fails again and again",
        (
            *STARTED,
            exits(W, 1), *back(W, 2),
            exits(W, 1), *back(W, 3),
            exits(W, 1), only("local", up(W, number=4), exits(W, 1)), ends,
        ),
        State.FAILED,
        policy("on_failure", backoff_limit=3),
        STARTED_AFTER_ALL,
        {W: (4, 5)},
    ),
    Case(
        "backoff_limit 3: members fail in turn",
        (*STARTED, exits(W, 1), *back(W, 2), exits(M, 1), *back(M, 2), *DONE),
        job=policy("on_failure", backoff_limit=3),
    ),
    Case(
        "backoff_limit 1, clean_pods none: the others live on",
        (*STARTED, exits(W, 1), up(W, number=2), only("local", exits(W, 1)), ends),
        State.FAILED,
        policy("on_failure", backoff_limit=1, clean_pods="none"),
    ),
    # always
    Case(
        "always: who ends well is started again",
        (*STARTED, exits(W, 0), only("local", up(W, number=2), exits(W, 0)), ends),
        State.FAILED,
        policy("always", backoff_limit=1),
        STARTED_AFTER_ALL,
        {W: (1, 2, 3)},
    ),
    Case(
        "always: a master that ends well decides nothing",
        (*STARTED, exits(M, 0), *back(M, 2), looked_at("again"), stop, ends),
        State.STOPPED,
        policy("always", backoff_limit=3),
    ),
    # exit_code
    *(for_good(code) for code in (1, 2, 127)),
    *(tried_again(str(code), exits(W, code)) for code in (128, 130, 255)),
    tried_again("signal 9", killed(W, 9)),
    tried_again("signal 11", faults(W)),
    tried_again("signal 15", killed(W, 15)),
    Case(
        "exit_code: the master is tried again",
        (*STARTED, exits(M, 137), shows("Restarting"), *back(M, 2), *DONE),
        job=policy("exit_code"),
    ),
    Case(
        "exit_code, backoff_limit 1: a worker is made anew twice",
        (
            *STARTED, killed(W, 9), *back(W, 2), killed(W, 9),
            only("cluster", *back(W, 3), *DONE), ends,
        ),
        State.FAILED,
        policy("exit_code", backoff_limit=1),
        chance=MADE_ANEW,
    ),
    # Members that are taken away.
    Case(
        "never: a worker is lost",
        (*STARTED, lost(W), ends),
        State.FAILED,
        {**policy("never"), **SEEN_GOING},
    ),
    *(
        Case(
            f"{restart}: a worker is lost",
            (*STARTED, lost(W), *back(W, 2), *DONE),
            job=policy(restart),
            chance=MADE_ANEW,
        )
        for restart in ("on_failure", "exit_code")
    ),
    Case("on_failure: the master is lost", (*STARTED, lost(M), *back(M, 2), *DONE), job=SEEN_GOING),
    # Elastic.
    Case(
        "elastic: one worker that ends well decides",
        (*THREE, lingers(W), exits(W1, 0), ends),
        job=ELASTIC,
        unsure={W2: (1,)},
    ),
    Case(
        "elastic: a worker is lost and replaced",
        (*THREE, lost(W2), *back(W2, 2), exits(W, 0), ends),
        job=ELASTIC,
        chance=MADE_ANEW,
        unsure={W2: (2,)},
    ),
    Case(
        "elastic: worker 0 is lost",
        (*THREE, lost(W), *back(W, 2), only("local", up(W1, W2, number=2)), lingers(W), exits(W1, 0), ends),
        job=ELASTIC,
        chance=MADE_ANEW,
    ),
    # Suspension.
    Case(
        "created suspended, then resumed",
        (shows("Suspended"), looked_at("suspended"), resume, *STARTED, *DONE),
        job=policy("on_failure", suspend=True),
    ),
    Case(
        "suspended while it runs, then resumed",
        (*STARTED, *SUSPENDED, looked_at("suspended"), resume, *AGAIN, *DONE),
    ),
    Case(
        "suspended with a worker that is done, then resumed",
        (
            *STARTED, exits(W, 0), phases(worker_0="succeeded"), counted(worker=(0, 1, 0)),
            *SUSPENDED, looked_at("suspended"), resume, *AGAIN, *DONE,
        ),
    ),
    Case(
        "suspended after a restart, then resumed",
        (
            *STARTED, exits(W, 1), *back(W, 2), *SUSPENDED,
            resume, up(M, number=2), up(W, number=3), *STARTED[1:],
            read(M, number=2), read(W, number=3), *DONE,
        ),
        unsure={W: (2,)},
    ),
    Case("stopped while suspended", (*STARTED, *SUSPENDED, stop, ends), State.STOPPED),
    Case(
        "a job that has ended cannot be suspended",
        (*STARTED, *DONE, refuses(suspend), refuses(resume)),
    ),
    # Stop, ttl, deadline.
    Case("stopped while it runs", (*STARTED, stop, ends), State.STOPPED),
    Case("ttl: removed after its end", (*STARTED, *DONE, removed), job=policy("on_failure", ttl=2)),
    Case(
        "ttl: removed after a permanent exit code",
        (*STARTED, exits(W, 1), ends, only("local", removed)),
        State.FAILED,
        policy("exit_code", ttl=1),
    ),
    *(
        Case(
            f"deadline, clean_pods {clean}: nothing happens, and it has passed",
            (*STARTED, ends),
            State.TIMED_OUT,
            policy("on_failure", deadline=12, clean_pods=clean),
        )
        for clean in ("none", "running")
    ),
)  # fmt: skip
