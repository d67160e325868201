"""Where this machine and the real operator tell different tales, on purpose: every difference, with its
reason.

What is not here must be equal; what is here must be as it stands. "Here" is this machine, "there" the
cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """In this case, this path of the tale: what each tells, and why that is right."""

    case: str
    path: str
    here: object
    there: object
    why: str


def rows(path: str, here: object, there: object, *cases: str, why: str) -> Iterator[Difference]:
    return (Difference(case, path, here, there, why) for case in cases)


def left(
    member: str, here: tuple[int, ...], there: tuple[int, ...], *cases: str, at: str = ""
) -> Iterator[Difference]:
    """Of which tries a log can be read."""
    path = f"{at}{member} log, as it is left"
    return rows(path, _tries(here), _tries(there), *cases, why=LOGS)


def _tries(numbers: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"try {number}" for number in numbers)


LOGS = (
    "A pod that is taken away while it is well takes its log with it: nobody read it. Here every log stays "
    "until the run is deleted."
)
STALE = (
    "The operator counts while the job runs: of a failed job the counts stay as they were, of a succeeded "
    "one what still ran counts as succeeded, of a suspended one what had succeeded stays. Here the counts "
    "are those of the members as they are."
)
AT_THE_END = (
    "The MPI Operator counts no workers any more once its launcher is done. Here the counts are those of the "
    "members as they are."
)
LIMIT = (
    "backoff_limit N: the operator fails the job when restart N begins, and with 0 when the first one "
    "does; here N restarts are survived, as it is documented."
)
CRASH_LOOP = (
    "A pod that waits for its restart is Running to the operator: clean_pods running takes it, and under "
    "none it goes on crashing after the end. Here a member that will not be restarted any more has "
    "failed."
)
BLIND = (
    "Under exit_code the operator makes failed pods anew without counting them: no limit holds. Here "
    "every restart counts."
)
JOB_LIMIT = (
    "A Job whose limit is reached takes its pod away, wherever its restarts were counted. Here the member "
    "that failed stays to be seen."
)
NOT_RUNNING = (
    "The MPI Operator says that a job is suspended, and then that it does not run, whether it ever did. Here "
    "it is said of those that ran, and first."
)
ANOTHER_POD = (
    "A launcher that is lost is a pod that failed to its Job, which counts it beside the new one. Here the "
    "counts are those of the members as they are."
)
LOST_FAILS = (
    "A pod that is lost fails a TFJob, unless another is being restarted, and an XGBoostJob under all but "
    "exit_code. Here a member that is lost is restarted as the policy says."
)
LOST = (
    "Members are lost in the way of their world: here a process is killed, and is a failure like others, "
    "restarted in place; there a pod is deleted, and made anew by the operator."
)
HOST = (
    "Worker 0 holds the rendezvous of an elastic gang. There the others fail by themselves when it goes, "
    "each with a restart of its own; here the gang is started again as one, and counted once."
)
STOPPED = "Stopping a run on a cluster deletes the job object, for that frees its GPUs under every operator."
TTL = (
    "After a permanent exit code the operator writes no completionTime, and its ttl never comes. Here it "
    "counts from the end, however that came."
)
REFUSED = "A program that is not on this machine is found missing before anything is started."

FOR_GOOD = tuple(f"exit_code: {code} is for good" for code in (1, 2, 127))
TRIED_AGAIN = tuple(
    f"exit_code: {what} is tried again"
    for what in ("128", "130", "255", "signal 9", "signal 11", "signal 15")
)
CLEAN = {
    clean: f"clean_pods {clean}: the master ends, a worker would run on"
    for clean in ("none", "running", "all")
}
FAILS = {clean: f"never, clean_pods {clean}: a worker fails" for clean in ("running", "all")}
NEVER = ("never: killed by signal 9", "never: killed by signal 11")
LIMITS = {n: f"backoff_limit {n}: a worker fails again and again" for n in (1, 3)}
LIMITS[0] = "backoff_limit 0: a worker fails"
ALWAYS = "always: who ends well is started again"
ANEW = "exit_code, backoff_limit 1: a worker is made anew twice"
LIVES_ON = "backoff_limit 1, clean_pods none: the others live on"
DEADLINE = "deadline, clean_pods running: nothing happens, and it has passed"
RESUMED = tuple(f"suspended {when}, then resumed" for when in ("while it runs", "with a worker that is done"))
V1 = ("TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob v1")


def of(name: str, *kinds: str) -> tuple[str, ...]:
    """A case that each of these kinds has."""
    return tuple(f"{kind}{name}" for kind in kinds)


KIND_RESUMED, NEVER_FAILS, KIND_LATE, KIND_GOOD, KIND_LOST = (
    ": suspended while it runs, then resumed",
    ", never: one fails",
    ": nothing happens, and its deadline has passed",
    ", exit_code: 1 is for good",
    ", on_failure: one is lost",
)
GANGS = ("JobSet", "TrainJob")
GANGS_RESUMED = of(KIND_RESUMED, *GANGS)
GANGS_RESUMED_DONE = of(": suspended with a worker that is done, then resumed", *GANGS)
ELASTIC_LIMIT = of(", elastic, backoff_limit 1: a worker fails again and again", *GANGS)
MPI_LIMIT = "MPIJob, backoff_limit 1: the launcher fails again and again"
STOPS = (
    "stopped while suspended",
    "stopped while it runs",
    *of(": stopped", *V1, "MPIJob"),
    *of(": stopped while it runs", *GANGS),
)
FIRST_ENDS = "TFJob: worker 0 ends, another would run on"
MASTER_ENDS = "XGBoostJob: the master ends, a worker would run on"
HOST_LOST = "elastic: worker 0 is lost"


def fails_there(kind: str, decider: str) -> Iterator[Difference]:
    """A worker is lost: the job goes on here, and there that is its end."""
    role, begun = decider.removesuffix("-0"), ("Created", "Running", "Running=False")
    told: tuple[tuple[str, object, object], ...] = (
        ("state", "succeeded", "failed"),
        ("reason", f"{kind}Succeeded", f"{kind}Failed"),
        ("march", (*begun, "Succeeded"), (*begun, "Failed")),
        ("condition Succeeded", "True", None),
        ("condition Failed", None, "True"),
        ("restarts", 1, 0),
        (f"{decider} phase", "succeeded", "deleted"),
        (f"{decider} exit code", 0, None),
        (f"{role}s active", 0, 1),
        (f"{role}s succeeded", 1, 0),
        ("worker-0 phase", "succeeded", "deleted"),
        ("worker-0 exit code", 0, None),
        ("worker-0 restarts", 1, 0),
        ("worker-0 processes started", 2, 1),
        ("worker-0 log, as it is left", ("try 2",), ()),
        ("workers succeeded", 1, 0),
        ("workers failed", 0, 1),
    )
    return (Difference(f"{kind}{KIND_LOST}", *each, LOST_FAILS) for each in told)


KIND_MEMBERS = (
    ("chief-0", ("TFJob",)),
    ("master-0", ("XGBoostJob",)),
    ("launcher-0", ("MPIJob", "MPIJob v1")),
    ("worker-0", ("TFJob", "XGBoostJob", "PaddleJob", "JAXJob")),
    ("worker-1", ("PaddleJob", "JAXJob")),
)
"""The members of kinds that are suspended."""

DIFFERENCES: tuple[Difference, ...] = (
    # Logs.
    *left("master-0", (1, 2), (2,), *RESUMED, *GANGS_RESUMED, *GANGS_RESUMED_DONE),
    *left("worker-0", (1,), (), CLEAN["running"], "never: a worker is lost", MASTER_ENDS,
          "MPIJob: the launcher decides", *of(": the master ends, a worker would run on", *GANGS)),
    *left("worker-0", (1, 2), (2,), *RESUMED, *GANGS_RESUMED),
    *left("worker-1", (1,), (), FIRST_ENDS),
    *left("worker-1", (1, 2), (1,), HOST_LOST),
    *left("worker-2", (1, 2), (1,), HOST_LOST),
    *rows("worker-0 log, as it is left", ("try 1", "try 2"), ("try 1", "try 2", "try 3"), ANEW, why=BLIND),
    *left("master-0", (1,), (), *RESUMED, *GANGS_RESUMED, *GANGS_RESUMED_DONE,
          at="suspended: "),
    *left("worker-0", (1,), (), *RESUMED, *GANGS_RESUMED, at="suspended: "),
    *(row for member, kinds in KIND_MEMBERS for row in (
        *left(member, (1, 2), (2,), *of(KIND_RESUMED, *kinds)),
        *left(member, (1,), (), *of(KIND_RESUMED, *kinds), at="suspended: "),
    )),
    *left("worker-0", (1, 2), (), *of(KIND_RESUMED, "MPIJob", "MPIJob v1")),
    *left("worker-0", (1,), (), *of(KIND_RESUMED, "MPIJob", "MPIJob v1"), at="suspended: "),
    *left("worker-0", (1,), (), "MPIJob v1: the launcher decides", "MPIJob: created suspended, then resumed"),
    *left("evaluator-0", (1,), (), "TFJob: an evaluator would run on"),
    # Counts.
    *rows("evaluators succeeded", 0, 1, "TFJob: an evaluator would run on", why=STALE),
    *rows("masters active", 0, 1, *FAILS.values(), *NEVER, *LIMITS.values(), ALWAYS, *FOR_GOOD,
          "never: a worker is lost", DEADLINE, *of(NEVER_FAILS, "XGBoostJob"), *of(KIND_LATE, "XGBoostJob"),
          *of(KIND_GOOD, "XGBoostJob"), why=STALE),
    *rows("chiefs active", 0, 1, "TFJob: a server fails", "TFJob: an evaluator fails",
          *of(NEVER_FAILS, "TFJob"), *of(KIND_LATE, "TFJob"), *of(KIND_GOOD, "TFJob"), why=STALE),
    *rows("launchers active", 0, 1, *of(NEVER_FAILS, "MPIJob v1"), *of(KIND_LATE, "MPIJob v1"), why=STALE),
    *rows("launchers failed", 0, 1, *of(KIND_LATE, "MPIJob"), why=STALE),
    *rows("workers active", 0, 2, *of(KIND_LATE, "PaddleJob", "JAXJob"), why=STALE),
    *rows("workers active", 0, 1, *of(NEVER_FAILS, "PaddleJob", "JAXJob"),
          *of(KIND_GOOD, "PaddleJob", "JAXJob"), *of(KIND_LATE, "TFJob", "XGBoostJob", "MPIJob v1"),
          "never: the master fails",
          "never, without a master: a worker fails", *LIMITS.values(), LIVES_ON, ALWAYS, DEADLINE, why=STALE),
    *rows("masters succeeded", 0, 1, CLEAN["all"], why=STALE),
    *rows("workers active", 1, 0, CLEAN["none"], why=STALE),
    *rows("workers succeeded", 0, 1, *CLEAN.values(), MASTER_ENDS, why=STALE),
    *rows("workers succeeded", 1, 2, FIRST_ENDS, why=STALE),
    *rows("workers succeeded", 1, 3, "elastic: one worker that ends well decides",
          "elastic: a worker is lost and replaced", HOST_LOST, why=STALE),
    *rows("workers failed", 0, 1, FAILS["all"], why=STALE),
    *rows("workers failed", 1, 0, "MPIJob: a worker fails, the launcher goes on", why=AT_THE_END),
    *rows("suspended: workers succeeded", 0, 1, RESUMED[1], why=STALE),
    # Limits.
    *rows("restarts", 0, 1, LIMITS[0], why=LIMIT),
    *rows("worker-0 restarts", 0, 1, LIMITS[0], why=LIMIT),
    *rows("worker-0 phase", "failed", "deleted", *LIMITS.values(), ALWAYS, why=CRASH_LOOP),
    *rows("worker-0 exit code", 1, None, *LIMITS.values(), why=CRASH_LOOP),
    *rows("worker-0 exit code", 0, None, ALWAYS, why=CRASH_LOOP),
    *rows("workers failed", 1, 0, *LIMITS.values(), ALWAYS, why=CRASH_LOOP),
    *rows("worker-0 phase", "failed", "running", LIVES_ON, why=CRASH_LOOP),
    *rows("worker-0 lives", False, True, LIVES_ON, why=CRASH_LOOP),
    *rows("workers failed", 1, 0, LIVES_ON, why=CRASH_LOOP),
    *rows("state", "failed", "succeeded", ANEW, why=BLIND),
    *rows("march", ("Created", "Running", "Running=False", "Failed"),
          ("Created", "Running", "Running=False", "Succeeded"), ANEW, why=BLIND),
    *rows("reason", "PyTorchJobFailed", "PyTorchJobSucceeded", ANEW, why=BLIND),
    *rows("condition Failed", "True", None, ANEW, why=BLIND),
    *rows("condition Succeeded", None, "True", ANEW, why=BLIND),
    *rows("restarts", 1, 2, ANEW, why=BLIND),
    *rows("worker-0 restarts", 1, 2, ANEW, why=BLIND),
    *rows("worker-0 processes started", 2, 3, ANEW, why=BLIND),
    *rows("master-0 phase", "deleted", "succeeded", ANEW, why=BLIND),
    *rows("master-0 exit code", None, 0, ANEW, why=BLIND),
    *rows("masters succeeded", 0, 1, ANEW, why=BLIND),
    *rows("worker-0 phase", "failed", "succeeded", ANEW, why=BLIND),
    *rows("worker-0 exit code", 137, 0, ANEW, why=BLIND),
    *rows("workers failed", 1, 0, ANEW, why=BLIND),
    *rows("workers succeeded", 0, 1, ANEW, why=BLIND),
    *rows("launcher-0 phase", "failed", "deleted", MPI_LIMIT, why=JOB_LIMIT),
    *rows("launcher-0 exit code", 1, None, MPI_LIMIT, why=JOB_LIMIT),
    *rows("worker-2 phase", "failed", "deleted", *ELASTIC_LIMIT, why=JOB_LIMIT),
    *rows("worker-2 exit code", 1, None, *ELASTIC_LIMIT, why=JOB_LIMIT),
    *rows("workers failed", 1, 0, *ELASTIC_LIMIT, why=JOB_LIMIT),
    # Suspension of an MPIJob.
    *rows("march", ("Created", "Running", "Running=False", "Suspended", "Suspended=False", "Succeeded"),
          ("Created", "Running", "Suspended", "Running=False", "Suspended=False", "Succeeded"),
          *of(KIND_RESUMED, "MPIJob"), why=NOT_RUNNING),
    *rows("suspended: march", ("Created", "Running", "Running=False", "Suspended"),
          ("Created", "Running", "Suspended", "Running=False"), *of(KIND_RESUMED, "MPIJob"), why=NOT_RUNNING),
    *rows("march", ("Created", "Suspended", "Suspended=False", "Running", "Running=False", "Succeeded"),
          ("Created", "Suspended", "Running=False", "Suspended=False", "Running", "Succeeded"),
          "MPIJob: created suspended, then resumed", why=NOT_RUNNING),
    *rows("suspended: march", ("Created", "Suspended"), ("Created", "Suspended", "Running=False"),
          "MPIJob: created suspended, then resumed", why=NOT_RUNNING),
    *rows("suspended: condition Running", None, "False", "MPIJob: created suspended, then resumed",
          why=NOT_RUNNING),
    # Members that are lost.
    *fails_there("TFJob", "chief-0"),
    *fails_there("XGBoostJob", "master-0"),
    *rows("launchers active", 0, 1, "MPIJob v1: a worker is lost", why=STALE),
    *rows("worker-0 phase", "failed", "deleted", "MPIJob v1: a worker is lost", why=LOST),
    *rows("worker-0 exit code", 137, None, "MPIJob v1: a worker is lost", why=LOST),
    *rows("launchers failed", 0, 1, "MPIJob, on_failure: the launcher is lost", why=ANOTHER_POD),
    *rows("worker-0 phase", "failed", "deleted", "never: a worker is lost", why=LOST),
    *rows("worker-0 exit code", 137, None, "never: a worker is lost", why=LOST),
    *rows("march", ("Created", "Running", "Running=False", "Succeeded"),
          ("Created", "Running", "Restarting", "Running=False", "Succeeded"),
          "on_failure: the master is lost", why=LOST),
    *rows("worker-1 processes started", 2, 1, HOST_LOST, why=HOST),
    *rows("worker-2 processes started", 2, 1, HOST_LOST, why=HOST),
    # The rest.
    *rows("job", "there", "gone", *STOPS, "always: a master that ends well decides nothing", why=STOPPED),
    *rows("job", "gone", "there", "ttl: removed after a permanent exit code", why=TTL),
    *rows("reason", None, "PyTorchJobFailed", "ttl: removed after a permanent exit code", why=TTL),
    *rows("state", "refused", "failed", "never: no such program", why=REFUSED),
)  # fmt: skip
