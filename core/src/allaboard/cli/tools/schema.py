"""``allaboard schema``: what a job may hold, for editors and other tools."""

from __future__ import annotations

import click

from allaboard.cli.place import json_option
from allaboard.report.terminal import show_json

EPILOG = """\b
Example:
  allaboard schema > job.schema.json
  # yaml-language-server: $schema=job.schema.json     (first line of a job file, for editors)
"""


@click.command(epilog=EPILOG)
@json_option
def schema(as_json: bool) -> None:
    """Print the JSON Schema of a job."""
    from allaboard.job.schema import job_schema

    show_json(job_schema())
