"""``allaboard evaluate``: run the user's evaluation on one checkpoint, as a job of its own."""

from __future__ import annotations

import click

from allaboard.cli.place import Place, json_option, place_options, resolved, site_options

EPILOG = """\b
Examples:
  allaboard evaluate evaluate.yaml --checkpoint store://models/digits-1f0c9a77/step-000000000400
  allaboard evaluate evaluate.yaml --checkpoint ./models/digits --json > evaluation.json

The job finds the checkpoint's uri in ALLABOARD_CHECKPOINT (allaboard.inside.context().checkpoint) and says
its metrics with allaboard.inside.result(...). Exit codes are those of `allaboard run`. """


@click.command(epilog=EPILOG)
@click.argument("job", metavar="JOB")
@click.option(
    "--checkpoint", required=True, metavar="URI", help="One checkpoint, or a run's folder: its newest one."
)
@click.option(
    "--key", metavar="K", help="The identity of the evaluation; without a key, every call evaluates again."
)
@site_options
@place_options
@json_option
def evaluate(
    job: str,
    checkpoint: str,
    key: str | None,
    store: str | None,
    mounts: tuple[str, ...],
    fit: str | None,
    at: Place,
    as_json: bool,
) -> int:
    """Run an evaluation (a job file; -: stdin) on a checkpoint and print its metrics."""
    from allaboard.backends.base import Plan
    from allaboard.cli.run.run import open_backend, run_attached, site_arguments
    from allaboard.job.identity import fresh_key
    from allaboard.report.ending import command_again
    from allaboard.report.exits import not_started_on_error
    from allaboard.running import evaluation_job, files_to_evaluate

    with not_started_on_error():
        backend = open_backend(at, store, mounts, fit)
        files = files_to_evaluate(resolved(checkpoint, store), local=not at.is_cluster)
    plan = Plan(evaluation_job(job, files), key or fresh_key())
    again = command_again(
        "evaluate",
        [job, "--checkpoint", files, *site_arguments(store, mounts, fit), *at.options],
        plan.key,
    )
    return run_attached(backend, plan, at, again=again, as_json=as_json)
