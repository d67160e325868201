"""``allaboard run``: start a job and follow it; attached by default."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from allaboard.backends.base import Backend, Plan
from allaboard.checking.job import check
from allaboard.cli import EXIT_CODES
from allaboard.cli.place import Place, json_option, place_options, site, site_options
from allaboard.errors import AllaboardError, BadInput, ExitCode
from allaboard.follow.loop import Outcome
from allaboard.job.identity import fresh_key
from allaboard.job.loader import display_name
from allaboard.job.script import job_of_script, starter_of, without_script
from allaboard.job.training_job import TrainingJob
from allaboard.report.attached_run import FollowerLeft, View, event_source, run_to_end
from allaboard.report.ending import command_again
from allaboard.report.exits import maybe_started_on_error, not_started_on_error
from allaboard.report.terminal import say, show_json
from allaboard.running import new_owner, read_job

EPILOG = """\b
Examples:
  allaboard run job.yaml                        a live view on a terminal, plain lines elsewhere
  allaboard run job.yaml --key nightly          the same key finds the same run again
  allaboard run job.yaml --detach               start it and leave
  allaboard run job.yaml --mount /data=./data --store s3://bucket/team
  allaboard run train.py -w 4 --gpu 1 -- --lr 3e-4    no job file: prints the one that it stands for

A JOB that ends in .py or .sh, begins with #! or is an executable is a script; everything else is a job file.

Ctrl-C or SIGTERM stops the run and waits until it has saved; a second one kills it. Closing the terminal
leaves it running. If the client is killed, the same command with the same --key follows the run again.
An attached run that no client follows for 10 minutes is stopped.

\b
"""


class _Run(click.Command):
    """The verb, which tells where the options of a script are typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = "a script's own options go after --, like `allaboard run train.py -- --lr 3e-4`"
            raise click.UsageError(f"{error.format_message()} ({hint})", ctx) from None


@click.command(cls=_Run, epilog=EPILOG + EXIT_CODES)
@click.argument("job", metavar="JOB")
@click.argument("arguments", metavar="[-- ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-w", "--workers", type=click.IntRange(min=1), metavar="N", help="Of a script: members.")
@click.option("--gpu", type=click.IntRange(min=0), metavar="N", help="Of a script: GPUs of each member.")
@click.option("--key", metavar="K", help="The identity of the run; without a key, every call trains again.")
@click.option("--detach", is_flag=True, help="Start the run and return; no client needs to follow it.")
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    metavar="N",
    help="Attempts of the whole job after failures that may pass.",
)
@site_options
@place_options
@json_option
def run(
    job: str,
    arguments: tuple[str, ...],
    workers: int | None,
    gpu: int | None,
    key: str | None,
    detach: bool,
    attempts: int | None,
    store: str | None,
    mounts: tuple[str, ...],
    fit: str | None,
    at: Place,
    as_json: bool,
) -> int:
    """Start the job of a file (YAML or JSON; -: stdin), or a script, and follow it to its end."""
    if key is not None and not key.strip():
        raise BadInput("--key is empty; give a name that says which run this is, like nightly-2026-11-21")
    if detach and attempts is not None:
        raise BadInput(
            "--attempts needs a client that follows the run and starts the next attempt; leave out --detach"
        )
    with not_started_on_error():
        backend = open_backend(at, store, mounts, fit)
    plan = Plan(_read(job, arguments, workers, gpu, as_json), key or fresh_key())
    for problem in check(plan.job):
        say(f"warning: {problem}", to_stderr=True)
    options = [*_script_options(workers, gpu), *site_arguments(store, mounts, fit), *at.options]

    def again_with(*more: str) -> str:
        return command_again("run", [job, *options, *more], plan.key, arguments)

    if detach:
        warnings = unenforced_fields(plan) if at.is_cluster else []
        return _run_detached(backend, plan, at, again_with("--detach"), as_json, warnings)
    again = again_with()
    return run_attached(backend, plan, at, again=again, as_json=as_json, attempts=attempts)


def _read(
    job: str, arguments: Sequence[str], workers: int | None, gpu: int | None, as_json: bool
) -> TrainingJob:
    """The checked job of a file, or the one that a script stands for, which is printed."""
    starter = starter_of(job)
    if starter is None:
        given = [word for word in _script_options(workers, gpu) if word.startswith("-")]
        given += ["arguments"] if arguments else []
        if given:
            raise without_script(job, given)
        return read_job(job)
    made = job_of_script(job, starter, arguments, workers=workers or 1, gpu=gpu or 0, folder=Path.cwd())
    checked = read_job(made)
    from allaboard.cli.tools.render import to_yaml

    say(f"# {made.name}.yaml: the job that {display_name(job)} stands for", to_stderr=as_json)
    for line in to_yaml([checked.as_mapping()]).splitlines():
        say(line, to_stderr=as_json)
    return checked


def _script_options(workers: int | None, gpu: int | None) -> list[str]:
    """The options that describe a script, as they are typed."""
    workers_words = [] if workers is None else ["-w", str(workers)]
    return [*workers_words, *([] if gpu is None else ["--gpu", str(gpu)])]


def open_backend(at: Place, store: str | None, mounts: Sequence[str], fit: str | None) -> Backend:
    """The backend of a place, with its site. Raises BadInput for options that the place does not support."""
    if at.is_cluster and (mounts or fit):
        option = "--mount" if mounts else "--fit"
        raise BadInput(
            f"{option} is about this machine; on a cluster members mount what the job's storage names (pvc), "
            "and a gang is never shrunk"
        )
    return at.open(site(store, mounts, fit))


def run_attached(
    backend: Backend, plan: Plan, at: Place, *, again: str, as_json: bool, attempts: int | None = None
) -> int:
    """Launch and follow a run with the view that fits the terminal; returns the exit code."""

    def finish(outcome: Outcome) -> None:
        if as_json:
            show_json(outcome.summary)
        else:
            say_last_good(backend, outcome)

    try:
        return run_to_end(
            backend,
            plan,
            lambda: view_of(backend, plan.run, at, again, as_json),
            at,
            again=again,
            attempts=attempts,
            finish=finish,
        )
    except FollowerLeft as left:
        if as_json:
            _show_left_run(backend, plan.run, left)
        return left.code


def say_last_good(backend: Backend, outcome: Outcome) -> None:
    """One line below the reason of a failure: what was changed since the last good run, if anything was."""
    if outcome.ok:
        return
    from allaboard.report.last_good import last_good_line

    if line := last_good_line(backend, outcome.seen):
        say(line, to_stderr=True)


def _show_left_run(backend: Backend, run: str, left: FollowerLeft) -> None:
    """Print the JSON object when the client leaves early: the status of the run, or why it is unknown."""
    from allaboard.diagnosis import diagnose
    from allaboard.runs.status import summary

    if left.code is not ExitCode.UNREACHABLE:
        with suppress(AllaboardError):
            seen = backend.observe(run)
            return show_json(summary(seen, diagnose(seen)))
    show_json({"error": {"code": "left", "message": str(left), "problems": []}})


def view_of(backend: Backend, run: str, at: Place, again: str | None, as_json: bool) -> View:
    """The live view on a terminal, plain lines elsewhere; beside a JSON object they go to stderr."""
    if not as_json and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
        from allaboard.cli.live import LiveView

        return LiveView(event_source(backend, run), at, again=again)
    from allaboard.report.plain import PlainView

    return PlainView(event_source(backend, run), at, aside=as_json, again=again)


def unenforced_fields(plan: Plan) -> list[str]:
    """The fields of a job that only a client enforces on a cluster: ``--detach`` ignores them."""
    policy = plan.job.get("policy") or {}
    fields = []
    if "deadline" in policy:
        fields.append(
            f"policy.deadline: {policy['deadline']} may pass unnoticed; the operator looks only when "
            "something else happens to the job"
        )
    if policy.get("attempts", 1) > 1:
        fields.append(f"policy.attempts: {policy['attempts']}: no client starts another attempt")
    fields += [f"policy.clocks.{name}: no client enforces it" for name in policy.get("clocks", ())]
    then = policy.get("hang", {}).get("then", "tell")
    if then != "tell":
        fields.append(f"policy.hang.then: {then}: no client enforces it")
    return fields


def _run_detached(
    backend: Backend, plan: Plan, at: Place, again: str, as_json: bool, warnings: Sequence[str]
) -> int:
    from allaboard.diagnosis import diagnose
    from allaboard.report.plain import warning_lines
    from allaboard.runs.status import summary

    with maybe_started_on_error(again):
        handle = backend.launch(plan, new_owner("detached"))
    for line in warning_lines(handle):
        say(line, to_stderr=True)
    if as_json:
        for warning in warnings:
            say(f"no client follows it: {warning}", to_stderr=True)
        seen = backend.observe(handle.run)
        show_json(summary(seen, diagnose(seen)))
        return 0
    for note in (*handle.notes, *(f"no client follows it: {warning}" for warning in warnings)):
        say(note)
    progress = "runs already" if handle.adopted else "is on its way"
    say(f"{handle.run} {'succeeded before; its result waits' if handle.hand_over else progress}")
    say(f"  follow     {at.command('follow', handle.run)}")
    say(f"  stop       {at.command('stop', handle.run)}")
    if not plan.key.startswith("once/"):
        say(f"  the key    {plan.key}")
    return 0


def site_arguments(store: str | None, mounts: tuple[str, ...], fit: str | None) -> list[str]:
    """The options of a site as arguments of a command line."""
    arguments = [*(["--store", store] if store else []), *(["--fit", fit] if fit else [])]
    return [*arguments, *(word for mount in mounts for word in ("--mount", mount))]
