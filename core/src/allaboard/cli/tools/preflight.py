"""``allaboard preflight``: check everything that could stop a job on its target before it is submitted.
Nothing is started or created.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from allaboard.cli.place import Place, json_option, local, place_options, site, site_options
from allaboard.errors import BadInput
from allaboard.report.terminal import Ink, say, show_json, supports_colour

if TYPE_CHECKING:
    from allaboard.backends.base import Plan
    from allaboard.backends.check import Check

EPILOG = """\b
Examples:
  allaboard preflight job.yaml
  allaboard preflight job.yaml --backend kubernetes -n research
  allaboard preflight job.yaml --context gpu-lab --json

On a cluster it reads what it may, reviews each permission that the launch needs, and sends every object as a
dry run. What you may not read is shown as unknown. Exit code 2 when a check fails that would stop the job.
"""


@click.command(epilog=EPILOG)
@click.argument("job", metavar="JOB")
@click.option("--key", default="preflight", metavar="K", help="The identity of the run to check.")
@place_options
@site_options
@json_option
def preflight(
    job: str,
    key: str,
    store: str | None,
    mounts: Sequence[str],
    fit: str | None,
    as_json: bool,
    at: Place,
) -> int:
    """Check whether a job can run on its target, and say what to do if it cannot."""
    from allaboard.backends.base import Plan
    from allaboard.running import read_job

    plan = Plan(read_job(job), key)
    if at.is_cluster:
        where, checks = _check_cluster(plan, at, store)
    else:
        where, checks = "this machine", _check_this_machine(plan, store, mounts, fit)
    if as_json:
        show_json({"checks": [check.to_dict() for check in checks]})
    else:
        for line in _page(plan.job.name, where, checks, Ink(supports_colour())):
            say(line)
    return 2 if any(check.stops for check in checks) else 0


def _check_cluster(plan: Plan, at: Place, store: str | None) -> tuple[str, list[Check]]:
    from allaboard.backends.kubernetes.client.loader import Access
    from allaboard.backends.kubernetes.client.protocol import Patience
    from allaboard.backends.kubernetes.discovery.installed import survey_cluster
    from allaboard.backends.kubernetes.lifecycle.prepare import prepare_attempt
    from allaboard.backends.kubernetes.preflight.gather import preflight
    from allaboard.render.cluster_facts import assumed_facts

    # A person waits for the answer, and an operator that does not respond is a valid answer.
    with Access(at.kubeconfig, at.context, at.namespace).api(Patience(budget=8.0)) as api:
        installed = survey_cluster(api, api.server, api.namespace)
        where = f"namespace {api.namespace} of {api.server} (Kubernetes {installed.version})"
        try:
            made = prepare_attempt(
                plan, 1, 1, site(store), installed.facts(assumed_facts(os.environ, api.namespace)), os.environ
            )
        except BadInput as error:
            return where, [*_job_checks(error)]
        return where, [*_note_checks(made.notes), *preflight(api, made, installed)]


def _check_this_machine(plan: Plan, store: str | None, mounts: Sequence[str], fit: str | None) -> list[Check]:
    from allaboard.backends.check import Check

    try:
        notes = local(site(store, mounts, fit)).examine(plan)
    except BadInput as error:
        return [*_job_checks(error)]
    return [Check("job", True, "it can run on this machine"), *_note_checks(notes)]


def _job_checks(error: BadInput) -> Iterator[Check]:
    """Problems of the job itself, one check each."""
    from allaboard.backends.check import Check
    from allaboard.diagnosis import Evidence

    if not error.problems:
        yield Check("job", False, str(error), fix="correct the job")
    for problem in error.problems:
        fix = (
            f"did you mean {problem.suggestion!r}?"
            if problem.suggestion
            else "correct it in the job, or here"
        )
        evidence = Evidence("job", problem.path, problem.message)
        yield Check("job", False, f"{problem.path}: {problem.message}", (evidence,), fix)


def _note_checks(notes: Sequence[str]) -> Iterator[Check]:
    from allaboard.backends.check import WARNING, Check

    for note in notes:
        yield Check("job", True, note, severity=WARNING)


def _page(job: str, where: str, checks: Sequence[Check], ink: Ink) -> Iterator[str]:
    yield f"{job} on {where}"
    yield ""
    width = max(len(check.id) for check in checks) + 2
    for check in checks:
        word, colour = _check_word(check)
        yield f"  {ink(f'{word:<9}', colour)}{check.id:<{width}}{check.summary}"
        indent = f"  {'':<{9 + width}}"
        if check.ok is not True:
            for piece in check.evidence[:6]:
                if piece.text not in check.summary:
                    yield f"{indent}{piece.object} {piece.field}: {piece.text}".rstrip()
            if len(check.evidence) > 6:
                yield f"{indent}and {len(check.evidence) - 6} more"
            if check.fix:
                yield f"{indent}to do: {check.fix}"
    yield ""
    yield _verdict(job, checks)


def _check_word(check: Check) -> tuple[str, str]:
    if check.ok is None:
        return "unknown", "yellow"
    if check.ok:
        return "ok", "green"
    return ("fails", "red") if check.stops else ("warning", "yellow")


def _verdict(job: str, checks: Sequence[Check]) -> str:
    stops = sum(check.stops for check in checks)
    warnings = sum(check.ok is False and not check.stops for check in checks)
    unknown = sum(check.ok is None for check in checks)
    parts = [f"{warnings} warning{'s' if warnings > 1 else ''}"] if warnings else []
    parts += [f"{unknown} thing{'s' if unknown > 1 else ''} unknown"] if unknown else []
    more = f" ({', '.join(parts)})" if parts else ""
    if stops:
        fail = f"{stops} checks fail" if stops > 1 else "a check fails"
        return f"{job} would not run: {fail}{more}"
    return f"nothing is in the way of {job}{more}"
