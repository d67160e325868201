"""Waist 1: who trains. Equal members per group, ranks, totals, needs, limits; every default filled in, every
unit parsed.

`lay_out` is the only way from a job to what is started. A layout is plain data: it goes into a file for the
local backend's supervisor and is what engines render. The layout's JSON carries a version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from allaboard.job.training_job import UNLIMITED, TrainingJob, member_count
from allaboard.runs.setup import setup_of
from allaboard.runs.trackers import for_others
from allaboard.text import units
from allaboard.text.names import OBJECT_NAME_MAX, attempt_name, checkpoint_folder

VERSION = 1
BACKOFF_LIMIT = 3
"""The default number of restarts. The operator's own default is no limit: a script with a typo would crash
for ever, and hold its GPUs. It is written out when a job is rendered, so that every backend keeps the same
one.
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """Resources that one member states: cores, bytes, GPUs. None and 0 take nothing. The rest has a meaning
    on a cluster alone: the type of GPU, the slice of one (MIG), sharing with other pods, the class of devices
    of which ``gpu`` are claimed (DRA) and their selector, and other devices by name.
    """

    cpu: float | None = None
    memory: int | None = None
    gpu: int = 0
    gpu_type: str | None = None
    mig: str | None = None
    shared: bool = False
    devices: Mapping[str, int] = field(default_factory=dict)
    device_class: str | None = None
    device_selector: str | None = None

    @property
    def gpus(self) -> int:
        """GPUs of one member on a cluster: whole ones, slices, or devices of its class."""
        return self.gpu or (1 if self.mig else 0)


@dataclass(frozen=True, slots=True)
class Group:
    """Equal members of one role. ``command`` is empty where the image's entrypoint runs, or the operator has
    them wait; ``restart``: None where it is the policy's (`Layout.restart_of`). ``of_rank_0``: variables of a
    tracker that the first member alone gets, where the place can tell members of a group apart.
    """

    role: str
    replicas: int
    command: tuple[str, ...]
    needs: Needs = Needs()
    environment: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    restart: str | None = None
    of_rank_0: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """One member; ``rank`` is its node rank."""

    group: str
    index: int
    rank: int

    @property
    def name(self) -> str:
        return f"{self.group}-{self.index}"


@dataclass(frozen=True, slots=True)
class Elastic:
    min: int
    max: int
    max_restarts: int | None = None
    rendezvous: str = "c10d"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """``restart`` never|on_failure|always|exit_code; ``backoff_limit``: restarts of members in all, or
    UNLIMITED; times in seconds. ``hang_after``: how long a run may make no progress, None: by its own
    history; ``hang_then`` tell|restart|fail, or off; ``hang_ask`` exec|file.
    """

    restart: str
    backoff_limit: int = BACKOFF_LIMIT
    deadline: float | None = None
    ttl: float | None = None
    clean_pods: str = "running"
    suspend: bool = False
    attempts: int | None = None
    clocks: Mapping[str, float] = field(default_factory=dict)
    hang_after: float | None = None
    hang_then: str = "tell"
    hang_ask: str = "exec"


@dataclass(frozen=True, slots=True)
class Saving:
    """Checkpoints. ``uri`` is the run's own folder, and so is ``hot``, that of the second copy; ``every`` as
    written: ``50`` steps or ``600s``. ``format``: ``auto`` where those of other libraries are known, too.
    ``folder``: the run's own folder in the one that its script saves into, where the uri takes copies alone.
    """

    uri: str
    every: str | None = None
    keep: int | None = None
    metric: str | None = None
    mode: str = "min"
    start_from: str | None = None
    hot: str | None = None
    hot_every: str | None = None
    format: str | None = None
    folder: str | None = None

    @property
    def saved_into(self) -> str:
        """The run's own folder in the place into which its script saves."""
        return self.folder or self.uri

    @property
    def is_of_others(self) -> bool:
        """True if another library writes the checkpoints."""
        return self.format is not None or self.folder is not None


@dataclass(frozen=True, slots=True)
class Layout:
    """A job, laid out for one attempt of one run. ``engine_spec``: what the job says to its engine alone.
    ``trainers``: how many of the members, the first ones, train; None: all. ``name_max``: characters that
    the name of its objects may have. ``progress``: how its script prints progress, as the job says it.
    ``inject``: members have the helper. ``setup``: of `allaboard.runs.setup`. ``metrics``: the place of the
    files in which the script keeps its metrics.
    """

    job: str
    run: str
    attempt: int
    generation: int
    engine: str
    framework: str
    groups: tuple[Group, ...]
    policy: Policy
    processes_per_member: str | None = None
    elastic: Elastic | None = None
    saving: Saving | None = None
    data: str | None = None
    grace: float = 30.0
    engine_spec: Mapping[str, Any] = field(default_factory=dict)
    trainers: int | None = None
    name_max: int = OBJECT_NAME_MAX
    progress: str | None = None
    inject: bool = True
    setup: Mapping[str, Any] = field(default_factory=dict)
    metrics: str | None = None

    @property
    def name(self) -> str:
        """Name of this attempt's objects."""
        return attempt_name(self.run, self.attempt, self.generation, self.name_max)

    @property
    def members(self) -> tuple[Member, ...]:
        """All members in rank order: the groups in the engine's order, each by index."""
        ordered = [(g.role, i) for g in self.groups for i in range(g.replicas)]
        return tuple(Member(role, i, rank) for rank, (role, i) in enumerate(ordered))

    @property
    def total(self) -> int:
        return sum(g.replicas for g in self.groups)

    def group(self, role: str) -> Group | None:
        return next((g for g in self.groups if g.role == role), None)

    def restart_of(self, role: str) -> str:
        """Rule for starting a member of this role again."""
        group = self.group(role)
        return (group and group.restart) or self.policy.restart

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Layout:
        """The inverse of `to_dict`."""
        rest = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        rest["groups"] = tuple(
            Group(
                **{
                    **g,
                    "command": tuple(g["command"]),
                    "args": tuple(g.get("args", ())),
                    "of_rank_0": tuple(g.get("of_rank_0", ())),
                    "needs": Needs(**g["needs"]),
                }
            )
            for g in data["groups"]
        )
        rest["policy"] = Policy(**data["policy"])
        rest["elastic"] = Elastic(**data["elastic"]) if data.get("elastic") else None
        rest["saving"] = Saving(**data["saving"]) if data.get("saving") else None
        return cls(**rest)

    def with_needs(self, needs: Mapping[str, Needs]) -> Layout:
        """The same members with other needs, by role."""
        return replace(self, groups=tuple(replace(g, needs=needs.get(g.role, g.needs)) for g in self.groups))

    def with_environment(self, values: Mapping[str, str]) -> Layout:
        """The same members with these variables, too; their own go first."""
        return replace(self, groups=_with_environment(self.groups, values)) if values else self

    def with_data(self, uri: str | None) -> Layout:
        """The same members with this data; None: with what the job names."""
        return self if uri is None else replace(self, data=uri)


class Shape(Protocol):
    """Part of an engine that a layout needs (`allaboard.engines.Engine` has it)."""

    NAME: str

    def roles(self, framework: str) -> Mapping[str, int | None]: ...

    def helpers(self, framework: str) -> frozenset[str]: ...

    def idle(self, framework: str) -> frozenset[str]: ...

    def default_restart(self, framework: str) -> str: ...

    def name_max(self, groups: Mapping[str, int], engine_spec: Mapping[str, Any]) -> int: ...

    def groups_of(self, job: Mapping[str, Any]) -> Mapping[str, Any]: ...


def lay_out(job: TrainingJob, engine: Shape, run: str, attempt: int = 1, generation: int = 1) -> Layout:
    """The layout of a checked job. Pure: equal arguments give an equal layout.

    URIs are taken as they stand; the place where it runs resolves ``store://`` and mounts before this
    (`allaboard.job.site`).
    """
    framework, groups = job.get("framework", "pytorch"), _groups(job, engine)
    helpers = sum(group.replicas for group in groups if group.role in engine.helpers(framework))
    return Layout(
        job=job.name,
        run=run,
        attempt=attempt,
        generation=generation,
        engine=engine.NAME,
        framework=framework,
        groups=groups,
        policy=_policy(job.get("policy", {}), engine.default_restart(framework)),
        processes_per_member=_text(job.get("processes_per_member")),
        elastic=_elastic(job),
        saving=saving_of(job.get("checkpoints"), run, generation),
        data=(job.get("data") or {}).get("shards"),
        grace=units.seconds((job.get("spot") or {}).get("grace", 30)),
        engine_spec=job.get("engine_spec") or {},
        trainers=sum(group.replicas for group in groups) - helpers if helpers else None,
        setup=setup_of(job.as_mapping()),
        name_max=engine.name_max({g.role: g.replicas for g in groups}, job.get("engine_spec") or {}),
        progress=job.get("progress"),
        inject=job.get("inject") != "off",
        metrics=(job.get("metrics") or {}).get("from"),
    )


def _groups(job: TrainingJob, engine: Shape) -> tuple[Group, ...]:
    framework, written = job.get("framework", "pytorch"), engine.groups_of(job.as_mapping())
    idle = engine.idle(framework)
    specs: dict[str, Mapping[str, Any]] = {
        role: s if isinstance(s, Mapping) else {"replicas": s} for role, s in written.items()
    }
    roles = [role for role in engine.roles(framework) if role in specs]
    groups = tuple(
        Group(
            role=role,
            replicas=specs[role].get("replicas", 1),
            command=tuple(specs[role].get("command") or (() if role in idle else job.get("command") or ())),
            args=() if role in idle and _waits(specs[role]) else _args(job, specs[role]),
            restart=specs[role].get("restart"),
            needs=_needs({**job.get("resources", {}), **specs[role].get("resources", {})}),
            environment=specs[role].get("environment", {}),
        )
        for role in roles
    )
    return _with_environment(groups, job.get("environment", {}))


def _with_environment(groups: tuple[Group, ...], values: Mapping[str, str]) -> tuple[Group, ...]:
    """The groups with these variables, too; their own go first. Those with which a tracker begins a run are
    for the first member: its group has them, and no other.
    """
    if not values or not groups:
        return groups
    texts, first = [*_texts(groups, values)], next((g for g in groups if g.replicas), groups[0])
    made = []
    for group in groups:
        less, is_first = for_others(values, group.environment, texts), group is first
        whole = {**(values if is_first else less), **group.environment}
        differ = [n for n in values if less.get(n) != values[n] and n not in group.environment]
        alone = differ if is_first else []
        made.append(replace(group, environment=whole, of_rank_0=(*group.of_rank_0, *alone)))
    return tuple(made)


def _texts(groups: tuple[Group, ...], values: Mapping[str, str]) -> Iterator[str]:
    """Words in which a variable may be named."""
    for group in groups:
        yield from (*group.command, *group.args, *group.environment.values())
    yield from values.values()


def _waits(fields: Mapping[str, Any]) -> bool:
    """True if the members of an idle role run the command with which their operator lets them wait."""
    return "command" not in fields and "args" not in fields


def _args(job: TrainingJob, group: Mapping[str, Any]) -> tuple[str, ...]:
    """A command and its arguments go together: the job's arguments are for the job's command."""
    own = group.get("args")
    return tuple(() if own is None and group.get("command") else job.get("args", ()) if own is None else own)


def _needs(resources: Mapping[str, Any]) -> Needs:
    cpu, memory = resources.get("cpu"), resources.get("memory")
    return Needs(
        cpu=None if cpu is None else units.cores(cpu),
        memory=None if memory is None else units.size(memory),
        gpu=resources.get("gpu", 0),
        gpu_type=resources.get("gpu_type"),
        mig=resources.get("mig"),
        shared=resources.get("shared", False),
        devices=resources.get("devices") or {},
        device_class=resources.get("device_class"),
        device_selector=resources.get("device_selector"),
    )


def _policy(policy: Mapping[str, Any], default_restart: str) -> Policy:
    def duration(name: str) -> float | None:
        return None if policy.get(name) is None else units.seconds(policy[name])

    limit = policy.get("backoff_limit", BACKOFF_LIMIT)
    hang = policy.get("hang", {})
    after = hang.get("after", "auto")
    return Policy(
        restart=policy.get("restart", default_restart),
        backoff_limit=UNLIMITED if limit == "unlimited" else limit,
        deadline=duration("deadline"),
        ttl=duration("ttl"),
        clean_pods=policy.get("clean_pods", "running"),
        suspend=policy.get("suspend", False),
        attempts=policy.get("attempts"),
        clocks={k: units.seconds(v) for k, v in policy.get("clocks", {}).items()},
        hang_after=None if after in ("auto", "off") else units.seconds(after),
        hang_then="off" if after == "off" else hang.get("then", "tell"),
        hang_ask=hang.get("ask", "exec"),
    )


def _elastic(job: TrainingJob) -> Elastic | None:
    spec = job.get("elastic")
    if spec is None:
        return None
    total = member_count(job.as_mapping())
    # The operator's rule: one of min and max stands for the other; the number of workers for both.
    least = spec.get("min", spec.get("max", total))
    return Elastic(
        min=least,
        max=spec.get("max", max(total, least)),
        max_restarts=spec.get("max_restarts"),
        rendezvous=spec.get("rendezvous", "c10d"),
        conf=spec.get("rendezvous_conf", {}),
    )


def saving_of(spec: Mapping[str, Any] | None, run: str, generation: int) -> Saving | None:
    """Place and way in which a run saves, by ``checkpoints`` of its job; None: it does not."""
    if spec is None:
        return None
    best, hot, start = spec.get("best") or {}, spec.get("hot") or {}, spec.get("start_from", "none")
    own = checkpoint_folder(run, generation)
    return Saving(
        uri=f"{spec['uri'].rstrip('/')}/{own}",
        every=_every(spec.get("every")),
        keep=spec.get("keep"),
        metric=best.get("metric"),
        mode=best.get("mode", "min"),
        start_from=None if start == "none" else start,
        hot=f"{hot['folder'].rstrip('/')}/{own}" if hot else None,
        hot_every=_every(hot.get("every")),
        format=spec.get("format"),
        folder=f"{spec['folder'].rstrip('/')}/{own}" if "folder" in spec else None,
    )


def _every(value: str | int | None) -> str | None:
    if value is None or isinstance(value, int):
        return _text(value)
    return f"{units.seconds(value):g}s"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def allaboard_environment(layout: Layout, member: Member) -> dict[str, str]:
    """Variables that allaboard adds to those of the operator; `allaboard.inside` reads them. They carry a
    version.
    """
    values: dict[str, str | None] = {
        "ALLABOARD_ENV": "1",
        "ALLABOARD_RUN": layout.run,
        "ALLABOARD_ATTEMPT": str(layout.attempt),
        "ALLABOARD_GENERATION": str(layout.generation),
        "ALLABOARD_MEMBER": member.name,
        "ALLABOARD_GRACE": f"{layout.grace:g}",
        "ALLABOARD_DATA": layout.data,
        **_rank_environment(layout),
        **(_saving_environment(layout.saving) if layout.saving is not None else {}),
    }
    return {name: value for name, value in values.items() if value}


def _rank_environment(layout: Layout) -> dict[str, str | None]:
    """From which a process knows its rank where its operator tells none. The members of an elastic gang come
    and go, and their launcher ranks them; so does mpirun, whose ranks are not the members.
    """
    if layout.elastic is not None or layout.framework == "mpi":
        return {}
    groups = ",".join(f"{group.role}:{group.replicas}" for group in layout.groups)
    return {"ALLABOARD_GROUPS": groups, "ALLABOARD_TRAINERS": _text(layout.trainers)}


def _saving_environment(saving: Saving) -> dict[str, str | None]:
    return {
        "ALLABOARD_CHECKPOINTS": saving.saved_into,
        "ALLABOARD_CHECKPOINT_EVERY": saving.every,
        "ALLABOARD_CHECKPOINT_KEEP": _text(saving.keep),
        "ALLABOARD_CHECKPOINT_BEST": f"{saving.metric}:{saving.mode}" if saving.metric else None,
        "ALLABOARD_CHECKPOINT_HOT": saving.hot,
        "ALLABOARD_CHECKPOINT_HOT_EVERY": saving.hot_every,
        "ALLABOARD_START_FROM": saving.start_from,
    }
