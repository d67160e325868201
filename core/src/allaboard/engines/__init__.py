"""Engines: the controllers that run a job, one file each. Values in, values out; no client is ever imported
here.

An engine is the ``ENGINE`` of a module of this package; it is found by being there, so adding one touches no
other file.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from allaboard.engines.base import AddedContainer, Counts, JobSeen, Operator, Place, Rules, Verdict
from allaboard.errors import BadInput
from allaboard.text.names import nearest, one_of

if TYPE_CHECKING:  # `allaboard check` asks the engines too, and needs no layout for it
    from allaboard.engines.reading.values import Conversion
    from allaboard.errors import Problem
    from allaboard.gangs.base import GangPlan
    from allaboard.job.training_job import TrainingJob
    from allaboard.runs.layout import Layout, Member
    from allaboard.runs.observation import Condition


class Engine(Protocol):
    """Interface of every engine.

    - ``NAME``: the word for it in ``engine`` of a job.
    - ``KIND``, ``API_VERSION``, ``PLURAL``: of its job objects, as its CRD has them.
    - ``FIELDS``: what may stand in their ``spec``.
    - ``FRAMEWORKS``: what it runs.
    - ``PREFERENCE``: its place among the engines of a framework when a job leaves its engine to ``auto``, the
      lowest first.
    - ``SPARED``: roles whose members may fail without the job.
    - ``CONTAINER``: the name that its operator expects of the container that trains.
    - ``ALIASES``: other names by which a job may mean that container.
    - ``JOB_LABEL``: the pod label that holds the job's name.
    - ``RANDOM_NAMES``: whether the names of its pods end in characters that its controller draws by lot.
    - ``OPERATOR``: who reconciles it.
    - ``PROBE``: the spec of a job that the operator's webhook refuses and nobody else does, None where there
      is no webhook.
    - ``ENDS``: the reasons of the events that tell how a job ended -> ``succeeded`` or ``failed``.
    - ``ADDED``: the init containers that the operator may add to members.
    - ``EXTRA_KINDS``: ``group/version/Kind`` of what `extras` brings.
    - ``TAKES_IN``: fields of ``engine_spec`` that `render` itself puts into the job object.
    - ``PLAYED``: fields of ``engine_spec`` that mean the same on one machine.
    - ``MAY_LACK``: kind -> a spec with the fields that not every release's definition of the kind has, which
      `fitted` knows.
    - ``PROPAGATION``: how its dependents are deleted with it, ``Foreground`` or ``Background``.
    - ``NATIVELY``: gang schedulers whose objects its operator makes when it was started with them.
    - ``REFUSES``: gang schedulers that it cannot go with -> why.
    """

    NAME: str
    KIND: str
    API_VERSION: str
    PLURAL: str
    FIELDS: frozenset[str]
    FRAMEWORKS: tuple[str, ...]
    PREFERENCE: int
    SPARED: frozenset[str]
    CONTAINER: str
    ALIASES: frozenset[str]
    JOB_LABEL: str
    RANDOM_NAMES: bool
    OPERATOR: Operator
    PROBE: Mapping[str, Any] | None
    ENDS: Mapping[str, str]
    ADDED: tuple[AddedContainer, ...]
    EXTRA_KINDS: tuple[str, ...]
    TAKES_IN: frozenset[str]
    PLAYED: frozenset[str]
    MAY_LACK: Mapping[str, Mapping[str, Any]]
    PROPAGATION: str
    NATIVELY: frozenset[str]
    REFUSES: Mapping[str, str]

    def fitted(self, lacking: Collection[str]) -> Engine:
        """The engine for a cluster whose definitions of its objects lack these fields."""

    def roles(self, framework: str) -> Mapping[str, int | None]:
        """Role -> how many at most (None: any), in rank order, of its jobs of one of its frameworks."""

    def helpers(self, framework: str) -> frozenset[str]:
        """The roles that do not train, as servers and evaluators; the last ones."""

    def idle(self, framework: str) -> frozenset[str]:
        """The roles that run no command but one of their own: their operator has them wait."""

    def is_elastic(self, framework: str) -> bool:
        """True if members may come and go."""

    def default_restart(self, framework: str) -> str:
        """``policy.restart`` of a job that does not say it."""

    def name_max(self, groups: Mapping[str, int], engine_spec: Mapping[str, Any]) -> int:
        """The longest name of a job object whose pods and Services, role -> how many, have lawful names."""

    def groups_of(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """The groups of a sound job, role -> how many members or the fields of the group: as it is written,
        or by the number of its workers.
        """

    def brings_scheduler(self, layout: Layout) -> bool:
        """True if the scheduler of the pods is chosen outside the job, and the job cannot choose it."""

    def starts_in_order(self, layout: Layout) -> str | None:
        """The field of the job by which members wait for others before they are made; None: all are made at
        once.
        """

    def brings_image(self, layout: Layout) -> bool:
        """True if members have an image although the job names none."""

    def objections(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        """Problems of a valid job's fields that this engine cannot do as they are written."""

    def render(
        self,
        layout: Layout,
        metadata: Mapping[str, Any],
        templates: Mapping[str, Mapping[str, Any]],
        gang: GangPlan,
    ) -> dict[str, Any]:
        """The job object; ``templates``: the pod template of each role."""

    def extras(
        self,
        layout: Layout,
        metadata: Mapping[str, Any],
        templates: Mapping[str, Mapping[str, Any]],
        gang: GangPlan,
    ) -> Sequence[Mapping[str, Any]]:
        """The objects that its job object needs beside it, which are created first and removed with it."""

    def secrets_of(self, layout: Layout) -> Collection[str]:
        """The Secrets of members that need not be there before: the job or its operator makes them."""

    def templates(
        self, job: Mapping[str, Any], extras: Sequence[Mapping[str, Any]]
    ) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
        """The role, the number and the pod template, as its controller makes pods of it, of each group of a
        job object.
        """

    def index_label(self, role: str) -> str | None:
        """The pod label that holds the index of a member of a role; None: it is 0, and no label says it."""

    def read(self, job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> JobSeen:
        """Read a job object and its pods. ``job`` None: it is gone, and its pods may not be."""

    def needed(self, job: Mapping[str, Any]) -> int:
        """Number of members of a job object that start together."""

    def to_job(self, obj: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Conversion:
        """The job that a job object of this kind says; ``others``: the objects that stand beside it. Raises
        BadInput with every problem and its path in the object.
        """

    def suspension(self, wanted: bool) -> dict[str, Any]:
        """The merge patch of a job object that suspends it, or resumes it."""

    def managed_by(self, job: Mapping[str, Any]) -> str | None:
        """The controller that a job object names in managedBy; None: none."""

    def added(self, job: Mapping[str, Any], role: str) -> tuple[AddedContainer, ...]:
        """The init containers that the operator adds to the members of a role of a job object."""

    def pod_name(self, job: str, member: str) -> str:
        """Name that the operator gives to the pod of a member; x for a random suffix."""

    def member_of(self, pod: Mapping[str, Any]) -> str | None:
        """The member whose pod this is, like ``worker-0``; None: no member's."""

    def listeners(self, layout: Layout) -> Sequence[Sequence[str]]:
        """The members to which others connect, the rendezvous first. Those of one group share a port number,
        each on a host of its own.
        """

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
        """Variables that the engine's operator injects into a member."""

    def files(self, layout: Layout, hosts: Mapping[str, str]) -> Mapping[str, str]:
        """The files that the engine's operator puts into members: path -> text. ``hosts``: where members are
        reached, by their names.
        """

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """Verdict on a job by its replica counts: it runs, or has succeeded."""

    def rules(self, layout: Layout) -> Rules:
        """Rules of the operator for members when one fails, and at the end."""

    def with_condition(self, conditions: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
        """The conditions of a job object after the operator has set this one."""

    def reason(self, condition: str, layout: Layout) -> str | None:
        """The operator's own reason of a condition; of Failed, too, for ``BackoffLimit`` and ``Deadline``,
        and for ``Resumed``. None: its job objects have no such condition.
        """

    def message(self, condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
        """The operator's own words for a condition."""


def _engines() -> Iterator[Engine]:
    for info in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{info.name}")
        if hasattr(module, "ENGINE"):
            yield cast(Engine, module.ENGINE)


ENGINES: Mapping[str, Engine] = {engine.NAME: engine for engine in _engines()}
BY_FRAMEWORK: Mapping[str, tuple[Engine, ...]] = {
    framework: tuple(
        sorted((e for e in ENGINES.values() if framework in e.FRAMEWORKS), key=lambda e: e.PREFERENCE)
    )
    for framework in dict.fromkeys(f for engine in ENGINES.values() for f in engine.FRAMEWORKS)
}
"""Framework -> the engines that run it, the preferred one first."""


def other_version(source: str | None, runs: Engine) -> str | None:
    """That a job runs as another version of its kind than its manifest is of, in one sentence. ``source``:
    the name of the engine that reads the manifest; None: the job was no manifest.
    """
    written = ENGINES.get(source or "")
    if written is None or written.KIND != runs.KIND or written.API_VERSION == runs.API_VERSION:
        return None
    return (
        f"the manifest is a {written.API_VERSION} {written.KIND}, and the job runs as {runs.API_VERSION}; "
        f"engine: {written.NAME} in the job keeps the manifest's version"
    )


def engine_of(job: TrainingJob) -> Engine:
    """The engine of a checked job, where no cluster is asked: of ``auto`` the one that its framework
    prefers.
    """
    name = job.get("engine", "auto")
    return BY_FRAMEWORK[job.get("framework", "pytorch")][0] if name == "auto" else ENGINES[name]


def engine_of_object(obj: Mapping[str, Any]) -> Engine | None:
    """The engine of a job object, by its kind and API version."""
    kind = (obj.get("apiVersion"), obj.get("kind"))
    return next((e for e in ENGINES.values() if kind == (e.API_VERSION, e.KIND)), None)


def engine_of_kind(kind: str) -> Engine:
    """The engine of a kind of job object, as people write it: ``pytorchjob``, ``pytorchjobs``,
    ``pytorchjobs.kubeflow.org``, ``PyTorchJob``, ``kubeflow.org/PyTorchJob``, ``kubeflow.org/v1/PyTorchJob``.
    Raises BadInput with the nearest one.
    """
    word = kind.strip().lower() if isinstance(kind, str) else ""
    engines = (
        [ENGINES[word]]
        if word in ENGINES
        else [e for e in ENGINES.values() if word in _accepted_spellings(e)]
    )
    if len(engines) == 1:
        return engines[0]
    if engines:
        exact = one_of(f"{engine.API_VERSION}/{engine.KIND}" for engine in engines)
        raise BadInput(f"kind {kind!r} may be several; write {exact}")
    near = nearest(
        word, [name for engine in ENGINES.values() for name in (*_accepted_spellings(engine), engine.KIND)]
    )
    hint = f"did you mean {near!r}?" if near else f"known: {one_of(e.KIND for e in ENGINES.values())}"
    raise BadInput(f"kind {kind!r} is not known; {hint}")


def _accepted_spellings(engine: Engine) -> list[str]:
    """The ways to write a kind but for its engine's name, in lower case."""
    group = engine.API_VERSION.partition("/")[0]
    names = [engine.PLURAL, f"{engine.PLURAL}.{group}", engine.KIND]
    names += [f"{group}/{engine.KIND}", f"{engine.API_VERSION}/{engine.KIND}"]
    return [name.lower() for name in names]
