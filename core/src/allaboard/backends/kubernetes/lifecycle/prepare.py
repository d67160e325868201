"""From a plan to the objects of one attempt on this cluster: places resolved, files read, everything
rendered.

What cannot run here is said now, all of it, before anything is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.lifecycle.helper import helper_files
from allaboard.backends.packing import is_to_be_packed, with_archive
from allaboard.backends.repository import is_to_be_pinned, with_commit
from allaboard.checking.files import shipped_code
from allaboard.engines import ENGINES, other_version
from allaboard.errors import BadInput, Problem
from allaboard.gangs import GANGS
from allaboard.job.site import Site, place_on_cluster
from allaboard.job.training_job import TrainingJob
from allaboard.render import labels
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.render.compatibility import engine_for
from allaboard.render.helper import copies_checkpoints, keeps_checkpoints
from allaboard.render.manifests import Rendered, render
from allaboard.runs.layout import Layout, lay_out
from allaboard.runs.setup import reads_bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedAttempt(Rendered):
    """An attempt that can be made."""

    layout: Layout

    @property
    def objects(self) -> tuple[Mapping[str, str], ...]:
        """The references that the record keeps: enough to find the objects, the job last."""
        return tuple(
            {"apiVersion": m["apiVersion"], "kind": m["kind"], "name": m["metadata"]["name"]}
            for m in self.manifests
        )

    @property
    def secrets(self) -> Collection[str]:
        """The Secrets of its members that need not be there before."""
        return ENGINES[self.layout.engine].secrets_of(self.layout)

    @property
    def gang_object(self) -> Mapping[str, str]:
        """The object that holds its members together, whoever makes it; empty when there is none. Its name is
        empty where its members will name it.
        """
        if not self.gang.kind or self.gang.how == "none":
            return {}
        api_version, _, kind = self.gang.kind.rpartition("/")
        name = self.gang.name if GANGS[self.gang.gang].NAMED_BY is None else ""
        return {"apiVersion": api_version, "kind": kind, "name": name}


def prepare_attempt(
    plan: Plan, generation: int, attempt: int, site: Site, facts: ClusterFacts, environ: Mapping[str, str]
) -> PreparedAttempt:
    """The objects of this attempt. Reads the files of ``code``, and the store for ``start_from: champion``.
    Raises BadInput with every problem.
    """
    errors: list[BadInput] = []
    with _gathered(errors):  # a launch has done so before; `allaboard render` has not
        if is_to_be_pinned(plan):
            plan = with_commit(plan, None, environ)
        if is_to_be_packed(plan):
            plan = with_archive(plan, site, environ, upload=False)
    job, notes = plan.job, tuple[str, ...]()
    code: dict[str, bytes] = {}
    with _gathered(errors):
        job, notes = _with_champion(place_on_cluster(plan.job, site), site, environ)
    with _gathered(errors):
        code = shipped_code(plan.job)
    made: Rendered | None = None
    with _gathered(errors):
        layout = lay_out(job, engine_for(job, facts), plan.run, attempt, generation)
        layout = layout.with_environment(plan.environment).with_data(plan.shards)
        made = render(
            job,
            layout,
            facts,
            launch=labels.launch_uid(plan.key, generation, attempt),
            spec_hash=plan.spec_hash,
            code=code,
            helper=helper_files(
                layout.policy.hang_ask,
                keeps_checkpoints(layout),
                copies_checkpoints(layout),
                reads_bucket(layout.setup),
            ),
        )
    if errors or made is None:
        raise _as_one(plan.job.name, errors)
    version = other_version(plan.job.source, ENGINES[layout.engine])
    return PreparedAttempt(
        layout=layout,
        manifests=made.manifests,
        gang=made.gang,
        notes=(*([version] if version else []), *notes, *made.notes),
        claims=made.claims,
        unhelped=made.unhelped,
    )


@contextmanager
def _gathered(errors: list[BadInput]) -> Iterator[None]:
    """A block whose BadInput is noted, so that the next block runs all the same."""
    try:
        yield
    except BadInput as error:
        errors.append(error)


def _as_one(job: str, errors: Sequence[BadInput]) -> BadInput:
    """One error with all problems, each place once."""
    if len(errors) == 1 or not all(error.problems for error in errors):
        return errors[0]
    problems = {problem.path: problem for error in reversed(errors) for problem in reversed(error.problems)}
    return BadInput(f"job {job!r} cannot run on a cluster:", [*reversed(problems.values())])


def _with_champion(
    job: TrainingJob, site: Site, environ: Mapping[str, str]
) -> tuple[TrainingJob, tuple[str, ...]]:
    if (job.get("checkpoints") or {}).get("start_from") != "champion":
        return job, ()
    from allaboard.promotion.champion import from_champion

    where = f"{site.store.rstrip('/')}/{job.name}"
    if "://" not in where:
        message = f"who launches looks it up, and {where} is a folder; say --store s3://bucket/prefix"
        raise BadInput(
            f"job {job.name!r} cannot run on a cluster:", [Problem("checkpoints.start_from", message)]
        )
    return from_champion(job, where, environ)
