"""``allaboard check``: every problem of a job file at once. The check reads the job file and looks for the
files that the job ships. It contacts no store and looks for no program; ``run`` does that before it starts
anything.
"""

from __future__ import annotations

import click

from allaboard.cli.place import json_option
from allaboard.report.terminal import say, show_json

EPILOG = """\b
Examples:
  allaboard check job.yaml --json
  make-job | allaboard check -

Exit code 0 when the job can be run, warnings or not; 2 when it has errors.
"""


@click.command(epilog=EPILOG)
@click.argument("job", metavar="JOB")
@json_option
def check(job: str, as_json: bool) -> int:
    """Report every problem of a job file (YAML or JSON; -: stdin), or with a manifest in the place
    of one, each with its path and the nearest right word."""
    from allaboard.checking.files import check as problems_of
    from allaboard.convert.manifests import fields_of, given_in
    from allaboard.engines import engine_of, other_version
    from allaboard.errors import BadInput, Problem
    from allaboard.job.loader import display_name, folder_of, read_text
    from allaboard.job.training_job import TrainingJob

    given = given_in(read_text(job), display_name(job))
    try:
        fields, source = fields_of(*given)
        problems = problems_of(fields, folder=folder_of(job))
        if source is not None and (warning := other_version(source, engine_of(TrainingJob.of(fields)))):
            problems.append(Problem("apiVersion", warning, severity="warning"))
    except BadInput as error:
        problems = [*(error.problems or [Problem("", error.headline)])]
    errors = [p for p in problems if p.severity == "error"]
    if as_json:
        show_json({"problems": [p.to_dict() for p in problems]})
    else:
        for problem in problems:
            say(f"{'warning: ' if problem.severity != 'error' else ''}{problem}")
        say(_verdict(display_name(job), len(errors), len(problems) - len(errors)))
    return 2 if errors else 0


def _verdict(job: str, errors: int, warnings: int) -> str:
    if errors:
        return f"{job} has {errors} problem{'s' if errors > 1 else ''}"
    more = f", with {warnings} warning{'s' if warnings > 1 else ''}" if warnings else ""
    return f"{job} is good{more}"
