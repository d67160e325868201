"""MPIJob, kubeflow.org/v2beta1, of the MPI Operator: its object and status, the environment that its operator
injects, and its success rules.

Read from the MPI Operator, release 0.7.0: pkg/controller (mpi_job_controller.go, podgroup.go), pkg/apis
(kubeflow/v2beta1, kubeflow/validation). It has no webhook: an invalid object is taken, and an event says why
nothing comes of it.

- The launcher is a batch Job, whose pod runs the command of the job, mpirun above all. Workers are bare pods
  that wait; mpirun reaches them by SSH. The operator makes the key; the image brings sshd, which a worker
  without a command of its own runs, and ssh.
- The launcher alone decides: a worker that fails, fails nothing by itself, and is not made anew. Its output
  carries the lines of every rank, so that what a run reports comes from it.
- Restarts are those of a Job: of the launcher, under on_failure in place; at the limit the Job takes its pod
  away. When ttl is over the Job goes, and with it the log; the MPIJob stays.
- mpirun of Open MPI hands the launcher's environment to ranks on other hosts only as far as it is told with
  ``-x NAME``; that of MPICH and of Intel hands on all. Open MPI could be told by a variable, too
  (mca_base_env_list), but it refuses to start with both.
- mpirun names ranks and their number itself; `allaboard.inside.context` reads its variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allaboard.engines.base import Counts, Operator, Place, Verdict
from allaboard.engines.kubeflow import (
    INDEX_LABEL,
    ROLE_LABEL,
    KubeflowEngine,
    overridden,
    read_job,
    replica_specs,
    run_policy,
    without_gpus,
)
from allaboard.errors import Problem
from allaboard.job.training_job import member_count
from allaboard.text.names import nearest, one_of

if TYPE_CHECKING:
    from allaboard.engines.base import JobSeen
    from allaboard.engines.reading.values import Reading
    from allaboard.gangs.base import GangPlan
    from allaboard.runs.layout import Layout, Member
    from allaboard.runs.observation import Condition

JOB_ROLE_LABEL = "training.kubeflow.org/job-role"
CONFIG = "/etc/mpi"
"""Path at which launchers find the hostfile."""
HOSTFILE = f"{CONFIG}/hostfile"
NO_GPUS = {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
_STARTERS = ("mpirun", "mpiexec", "orterun", "prterun", "horovodrun", "srun", "deepspeed", "ompirun")
_ENDING = re.compile(r"-(\d+)\Z")


class MPIEngine(KubeflowEngine):
    """Code of both versions of MPIJob."""

    KIND = "MPIJob"
    FRAMEWORKS = ("mpi",)
    ROLES: Mapping[str, int | None] = {"launcher": 1, "worker": None}
    IDLE = frozenset({"worker"})
    CONTAINER = "mpi"
    SPECS = "mpiReplicaSpecs"
    DEFAULT_REPLICAS: Mapping[str, int] = {"worker": 0}

    def __init__(self) -> None:
        super().__init__()
        self.PROBE = None

    def groups_of(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """As written, else a launcher and so many workers. The GPUs that a job says for all are none of a
        launcher's, unless it is a worker itself.
        """
        written = dict(job.get("groups") or {"launcher": 1, "worker": member_count(job)})
        if "launcher" in written and not self.launcher_works(job.get("engine_spec") or {}):
            written["launcher"] = without_gpus(written["launcher"])
        return written

    def launcher_works(self, engine_spec: Mapping[str, Any]) -> bool:
        """True if ranks run on the launcher, too."""
        return False

    def objections(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        """Problems of a valid job's fields that this engine cannot do as they are written."""
        groups = job.get("groups")
        if groups and "launcher" not in groups:
            message = f"{self.KIND} needs a launcher, which runs mpirun; add launcher: 1"
            yield Problem("groups", message)
        policy = job.get("policy") or {}
        if policy.get("restart") in ("always", "exit_code"):
            message = "members of MPI know never and on_failure alone; give one of them"
            yield Problem("policy.restart", message)
        processes = str(job.get("processes_per_member", "auto"))
        if processes != "auto" and not processes.isdecimal():
            message = f"{processes} is not a number of slots; give a number, or auto: a worker's GPUs, else 1"
            yield Problem("processes_per_member", message)
        yield from self._command_problems(job)
        yield from overridden(job, self.INJECTED)

    def _command_problems(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        launcher = (job.get("groups") or {}).get("launcher")
        own = isinstance(launcher, Mapping) and "command" in launcher
        command = (launcher if isinstance(launcher, Mapping) and own else job).get("command") or []
        at = "groups.launcher.command" if own else "command"
        text = " ".join(command)
        if command and not any(word in text for word in (*_STARTERS, ".sh")):
            message = "the launcher runs this once, and it starts no ranks; write [mpirun, python, train.py]"
            yield Problem(at, message, severity="warning")
        if "mpirun" in text and "-x" not in text.split() and self.needs_handing_on(job):
            message = (
                "ranks on other hosts get only those of the launcher's variables that mpirun of Open MPI is "
                "told to pass on; give -x ALLABOARD_RUN -x ALLABOARD_CHECKPOINTS, and so on for each"
            )
            yield Problem(at, message, severity="warning")

    def needs_handing_on(self, job: Mapping[str, Any]) -> bool:
        """True if ranks read variables that mpirun does not pass on by itself."""
        return False

    def render(
        self,
        layout: Layout,
        metadata: Mapping[str, Any],
        templates: Mapping[str, Mapping[str, Any]],
        gang: GangPlan,
    ) -> dict[str, Any]:
        """The job object. ``templates``: the pod template of each role."""
        job = super().render(layout, metadata, templates, gang)
        return {**job, "spec": {"slotsPerWorker": slots_of(layout), **job["spec"]}}

    def index_label(self, role: str) -> str | None:
        """Of workers alone: there is one launcher."""
        return INDEX_LABEL if role == "worker" else None

    def member_of(self, pod: Mapping[str, Any]) -> str | None:
        """The member whose pod this is; a worker's index is that of its pod's name, which the operator gives:
        its label counts the launcher, where that is a worker.
        """
        who = role_of(pod)
        return None if who is None else f"{who[0]}-{who[1]}"

    def read(self, job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> JobSeen:
        """Read the job object and its pods."""
        return read_job(
            job,
            pods,
            specs=self.SPECS,
            roles=tuple(self.ROLES),
            container=self.CONTAINER,
            default_replicas=self.DEFAULT_REPLICAS,
            role_of=role_of,
        )

    def default_replicas(self, role: str) -> int:
        """A role that does not say how many has one, or, of workers, none."""
        return self.DEFAULT_REPLICAS.get(role, 1)

    def take_own_fields(
        self, reading: Reading, spec: dict[str, Any], job: dict[str, Any], groups: Mapping[str, int]
    ) -> None:
        """``slotsPerWorker``; 1 where it is not written, which for a job is the number of GPUs. GPUs of the
        launcher are said of it alone: what a job says for all is not meant for it.
        """
        slots = reading.whole(spec.pop("slotsPerWorker", None), "spec.slotsPerWorker", 1)
        job["processes_per_member"] = 1 if slots is None else slots
        program: dict[str, Any] = {name: job[name] for name in ("command", "args") if name in job}
        worker = (job.get("groups") or {}).get("worker")
        if program and worker is not None:  # what a job says for all is the launcher's alone
            job["groups"]["worker"] = {**_fields(worker), **program}
        launcher, resources = (job.get("groups") or {}).get("launcher"), job.get("resources") or {}
        names = ("gpu", "gpu_type", "mig", "shared", "devices", "device_class", "device_selector")
        gpus = {name: resources[name] for name in names if name in resources}
        if gpus and launcher is not None:
            own = _fields(launcher)
            job["groups"]["launcher"] = {**own, "resources": {**gpus, **own.get("resources", {})}}

    def listeners(self, layout: Layout) -> list[tuple[str, ...]]:
        """None that is known before: mpirun tells its ranks where they meet."""
        return []

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """The launcher decides."""
        launcher = counts["launcher"]
        return Verdict(running=launcher.active > 0, succeeded=launcher.succeeded >= launcher.replicas)


def _fields(group: int | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a group that may be its number alone."""
    return dict(group) if isinstance(group, Mapping) else {"replicas": group}


def slots_of(layout: Layout) -> int:
    """Ranks for each worker: the number that the job says, else a worker's GPUs, else 1."""
    processes, worker = layout.processes_per_member or "auto", layout.group("worker")
    if processes.isdecimal():
        return int(processes)
    return max(1, worker.needs.gpu) if worker is not None else 1


def role_of(pod: Mapping[str, Any]) -> tuple[str, int] | None:
    """(role, index) of a pod of either version; None for one that its operator did not make."""
    metadata = pod.get("metadata") or {}
    labels = metadata.get("labels") or {}
    role = str(labels.get(ROLE_LABEL) or labels.get(JOB_ROLE_LABEL) or "").lower()
    if role == "launcher":
        return role, 0
    ending = _ENDING.search(str(metadata.get("name") or ""))
    return (role, int(ending.group(1))) if role == "worker" and ending else None


def hostfile(slots: Mapping[str, int], line: str) -> str:
    """The file of ``line``s like ``{host} slots={slots}``."""
    return "".join(line.format(host=host, slots=number) + "\n" for host, number in slots.items())


def slots_of_hosts(layout: Layout, hosts: Mapping[str, str], *, launcher: bool) -> dict[str, int]:
    """Host -> slots, in rank order. Members on one host add theirs: mpirun wants it on one line.
    ``launcher``: whether it has slots, too.
    """
    slots: dict[str, int] = {}
    for member in layout.members:
        if launcher or member.group == "worker":
            host = hosts[member.name]
            slots[host] = slots.get(host, 0) + slots_of(layout)
    return slots


_IMPLEMENTATIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "OpenMPI": (
        "{host} slots={slots}",
        {
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": HOSTFILE,
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        },
    ),
    "Intel": (
        "{host}:{slots}",
        {
            "I_MPI_HYDRA_HOST_FILE": HOSTFILE,
            "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
        },
    ),
    "MPICH": (
        "{host}:{slots}",
        {"HYDRA_HOST_FILE": HOSTFILE, "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10"},
    ),
}
"""mpiImplementation -> the lines of the hostfile and the variables of the launcher."""
_SLOTS = {"OpenMPI": "OMPI_MCA_orte_set_default_slots", "Intel": "I_MPI_PERHOST"}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mpiImplementation": tuple(_IMPLEMENTATIONS),
    "launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
}


class MPIJob(MPIEngine):
    """`allaboard.engines.Engine` for MPIJobs of v2beta1."""

    API_VERSION = "kubeflow.org/v2beta1"
    RANDOM_NAMES = True
    SPARED = frozenset({"worker"})
    PLAYED = frozenset({"mpiImplementation", "runLauncherAsWorker"})
    DEFAULT_RESTART = "on_failure"
    DEFAULT_BACKOFF = 6  # a Job's own
    NAMES_NAMESPACE = True
    OWN_FIELDS = frozenset(
        {
            "slotsPerWorker",
            "runLauncherAsWorker",
            "sshAuthMountPath",
            "launcherCreationPolicy",
            "mpiImplementation",
        }
    )
    INJECTED = frozenset(
        {
            "K_MPI_JOB_ROLE",
            *NO_GPUS,
            *_SLOTS.values(),
            *(name for _, variables in _IMPLEMENTATIONS.values() for name in variables),
        }
    )
    OPERATOR = Operator(
        "mpi-operator",
        "MPI Operator",
        "mpi-operator",
        exact=True,
        gang_flag="--gang-scheduling",
    )

    def __init__(self) -> None:
        super().__init__()
        # The event MPIJobFailed tells of a pod that could not be made, too.
        self.ENDS = {
            "MPIJobSucceeded": "succeeded",
            "BackoffLimitExceeded": "failed",
            "BackoffLimitExceeded/": "failed",
            "DeadlineExceeded": "failed",
        }

    # Down.

    def default_restart_of(self, role: str) -> str:
        """Of the launcher on_failure, of workers never."""
        return "never" if role == "worker" else self.DEFAULT_RESTART

    def take_own_fields(
        self, reading: Reading, spec: dict[str, Any], job: dict[str, Any], groups: Mapping[str, int]
    ) -> None:
        """Those of both versions. Of a launcher that is never restarted a Job of ours makes no new pod."""
        super().take_own_fields(reading, spec, job, groups)
        policy = job.get("policy") or {}
        launcher = (job.get("groups") or {}).get("launcher")
        own = launcher.get("restart") if isinstance(launcher, Mapping) else None
        if (own or policy.get("restart")) == "never" and policy.get("backoff_limit") != 0:
            reason = (
                "a launcher that is never restarted has no new pod either; say OnFailure for several tries"
            )
            reading.change("spec.runPolicy.backoffLimit", policy.get("backoff_limit"), 0, reason)
            job["policy"] = {**policy, "backoff_limit": 0}

    def launcher_works(self, engine_spec: Mapping[str, Any]) -> bool:
        """``runLauncherAsWorker``."""
        return engine_spec.get("runLauncherAsWorker") is True

    def needs_handing_on(self, job: Mapping[str, Any]) -> bool:
        """A session of sshd has none of its container's variables."""
        if (job.get("engine_spec") or {}).get("mpiImplementation", "OpenMPI") != "OpenMPI":
            return False
        return any(job.get(name) for name in ("checkpoints", "data", "environment", "secrets"))

    def objections(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        """Problems of a valid job's fields that this engine cannot do as they are written."""
        yield from super().objections(job)
        worker = (job.get("groups") or {}).get("worker")
        if isinstance(worker, Mapping) and "command" in worker:
            message = "workers run this in the place of sshd, by which mpirun reaches them"
            yield Problem("groups.worker.command", message, severity="warning")
        if (job.get("policy") or {}).get("ttl") is not None:
            message = (
                "the operator takes away the launcher and its log then; the MPIJob stays until it is deleted"
            )
            yield Problem("policy.ttl", message, severity="warning")
        own = job.get("engine_spec") or {}
        for name, choices in _CHOICES.items():
            if name in own and own[name] not in choices:
                hint = nearest(str(own[name]), choices)
                yield Problem(
                    f"engine_spec.{name}", f"{own[name]!r} is not valid; give {one_of(choices)}", hint
                )
        for name, kind in (("runLauncherAsWorker", bool), ("sshAuthMountPath", str)):
            if name in own and not isinstance(own[name], kind):
                expected = "true or false" if kind is bool else "a path"
                yield Problem(f"engine_spec.{name}", f"{own[name]!r} is not valid; give {expected}")
        waits = own.get("launcherCreationPolicy") == "WaitForWorkersReady"
        if waits and (job.get("gang") or {}).get("scheduler") != "none":
            message = (
                "a gang starts with its launcher, and the launcher would wait for the gang; take it out, or "
                "say gang: {scheduler: none}"
            )
            yield Problem("engine_spec.launcherCreationPolicy", message)

    def render(
        self,
        layout: Layout,
        metadata: Mapping[str, Any],
        templates: Mapping[str, Mapping[str, Any]],
        gang: GangPlan,
    ) -> dict[str, Any]:
        """The job object. A Job makes a new pod for one that failed under Never: that is what its limit is
        for, and ``never`` means none.
        """
        policy = run_policy(layout, gang)
        if layout.policy.restart == "never":
            policy["backoffLimit"] = 0
        if self.launcher_works(layout.engine_spec) and "worker" in templates:
            templates = {**templates, "worker": _without_index(templates["worker"])}
        spec = {
            "slotsPerWorker": slots_of(layout),
            "runPolicy": policy,
            self.SPECS: replica_specs(layout, templates),
        }
        return {"apiVersion": self.API_VERSION, "kind": self.KIND, "metadata": dict(metadata), "spec": spec}

    # Up.

    def read(self, job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> JobSeen:
        """Read the job object and its pods. For an evicted worker the operator says Failed, without a time of
        the end, and goes on: the launcher ends the job. That Failed is ignored.
        """
        seen = super().read(job, pods)
        if ((job or {}).get("status") or {}).get("completionTime"):
            return seen
        conditions = tuple(_undecided(condition) for condition in seen.conditions)
        ended = any(c.type in ("Succeeded", "Failed") and c.status == "True" for c in conditions)
        if ended or conditions == seen.conditions:
            return seen
        return replace(
            seen,
            conditions=conditions,
            finished=None,
            members=tuple(replace(m, phase="pending") if m.phase == "deleted" else m for m in seen.members),
        )

    def pod_name(self, job: str, member: str) -> str:
        """Of a member; the Job of the launcher draws the ending of its pod's name, and cuts a long one."""
        return f"{job}-launcher-"[:58] + "xxxxx" if member == "launcher-0" else f"{job}-{member}"

    # The operator, for the local backend.

    def reason(self, condition: str, layout: Layout) -> str | None:
        """Of a failure that of the launcher's Job, after which the operator puts what the pod says, if that
        is still there.
        """
        failed = {
            "Failed": "BackoffLimitExceeded/",
            "BackoffLimit": "BackoffLimitExceeded",
            "Deadline": "DeadlineExceeded",
        }
        return failed.get(condition) or super().reason(condition, layout)

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
        """The variables that the operator appends to a member's own; they win over the user's."""
        if member.group == "worker":
            return {"K_MPI_JOB_ROLE": "worker"}
        name = implementation_of(layout)
        slots = {_SLOTS[name]: str(slots_of(layout))} if name in _SLOTS else {}
        if name == "Intel":  # it asks for each host, and on one machine, where none listens, that is one
            hosts = {peer.name: place[peer.name].host if place else "" for peer in layout.members}
            shared = slots_of_hosts(layout, hosts, launcher=self.launcher_works(layout.engine_spec))
            slots = {_SLOTS[name]: str(max(shared.values(), default=slots_of(layout)))}
        without = {} if self.launcher_works(layout.engine_spec) else NO_GPUS
        return {"K_MPI_JOB_ROLE": "launcher", **_IMPLEMENTATIONS[name][1], **slots, **without}

    def files(self, layout: Layout, hosts: Mapping[str, str]) -> dict[str, str]:
        """The hostfile of the launcher."""
        works = self.launcher_works(layout.engine_spec)
        slots = slots_of_hosts(layout, hosts, launcher=works)
        return {HOSTFILE: hostfile(slots, _IMPLEMENTATIONS[implementation_of(layout)][0])}

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """The launcher decides; it runs when all workers do."""
        verdict = super().judge(layout, counts)
        workers = counts.get("worker", Counts(0))
        return replace(verdict, running=verdict.running and workers.active >= workers.replicas)

    def message(self, condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
        """The operator's own words for a condition; of a failure they are those of the launcher's Job."""
        return {
            "Created": f"MPIJob default/{job} is created.",
            "Suspended": "MPIJob suspended",
            "Resumed": "MPIJob resumed",
            "Failed": "Job has reached the specified backoff limit",
            "BackoffLimit": "Job has reached the specified backoff limit",
            "Deadline": "Job was active longer than specified deadline",
        }.get(condition) or super().message(condition, job, master=master, role=role, count=count)


def implementation_of(layout: Layout) -> str:
    """``mpiImplementation`` of a checked job; Open MPI by default."""
    name = layout.engine_spec.get("mpiImplementation")
    return str(name) if name in _IMPLEMENTATIONS else "OpenMPI"


def _undecided(condition: Condition) -> Condition:
    is_it = condition.type == "Failed" and condition.status == "True" and condition.reason == "MPIJobEvicted"
    return replace(condition, status="Unknown") if is_it else condition


def _without_index(template: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's template without the variables of its index, from a label that counts the launcher here."""
    spec = template["spec"]
    own, *others = spec["containers"]
    env = [v for v in own["env"] if v["name"] not in ("ALLABOARD_INDEX", "ALLABOARD_MEMBER")]
    return {**template, "spec": {**spec, "containers": [{**own, "env": env}, *others]}}


ENGINE = MPIJob()
