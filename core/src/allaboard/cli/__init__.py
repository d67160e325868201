"""The command line: a table of verbs, and one module for each, imported when it runs.

How a command ends: core/docs/contract.md, Exit codes. What it prints with ``--json``:
core/docs/contract.md, JSON.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from allaboard.cli.stdout import open_stdout

if TYPE_CHECKING:
    from allaboard.report.commands import Place


@dataclass(slots=True)
class Line:
    """One command line: where its runs are, once its options are read."""

    at: Place | None = None


class Verb(NamedTuple):
    """A verb: its module and function, its heading in the help, and its line there."""

    at: str
    heading: str
    line: str


VERBS = {
    "demo": Verb("start.demo:demo", "Start here", "train, lose a worker, resume, evaluate and promote, here"),
    "run": Verb("run.run:run", "Run", "start a job and follow it to its end"),
    "stop": Verb("run.stop:stop", "Run", "stop a run and wait until its processes are gone"),
    "suspend": Verb(
        "run.suspend:suspend", "Run", "end a run's members and free its slots until it is resumed"
    ),
    "resume": Verb("run.suspend:resume", "Run", "start the members of a suspended run again"),
    "delete": Verb("run.delete:delete", "Run", "remove a run and its logs"),
    "list": Verb("watch.listing:list_runs", "Watch", "list runs, and who holds slots"),
    "status": Verb("watch.status:status", "Watch", "show a run's status"),
    "doctor": Verb(
        "watch.doctor:doctor", "Watch", "explain why a run waits, fails or looks wrong, with evidence"
    ),
    "snapshot": Verb(
        "watch.snapshot:snapshot", "Watch", "write a run's objects and logs to one file, for the doctor"
    ),
    "follow": Verb("watch.follow:follow", "Watch", "watch a run to its end, without owning it"),
    "logs": Verb("watch.logs:logs", "Watch", "show the logs of all members, restarts included"),
    "report": Verb("watch.report:report", "Watch", "write a page about a run, for a browser or an archive"),
    "events": Verb("watch.events:events", "Watch", "show the events of a run, in order"),
    "queues": Verb("watch.queues:queues", "Watch", "show queues: used and free slots, and who waits"),
    "checkpoints": Verb(
        "data.checkpoints:checkpoints",
        "Checkpoints and data",
        "list, verify, adopt, collect and prune checkpoints",
    ),
    "shards": Verb("data.shards:shards", "Checkpoints and data", "prepare, list and verify data sets"),
    "evaluate": Verb("data.evaluate:evaluate", "Checkpoints and data", "run an evaluation on a checkpoint"),
    "promote": Verb(
        "data.promote:promote", "Checkpoints and data", "make a checkpoint the champion if it is better"
    ),
    "check": Verb("tools.check:check", "Tools", "report every problem of a job file; start nothing"),
    "progress": Verb("tools.progress:progress", "Tools", "show the progress that would be seen in a log"),
    "lint": Verb("tools.lint:lint", "Tools", "report what experts would change in a job or a manifest"),
    "render": Verb("tools.render:render", "Tools", "print the objects that a launch would send to a cluster"),
    "convert": Verb("tools.convert:convert", "Tools", "convert manifests to jobs, or to another kind"),
    "preflight": Verb("tools.preflight:preflight", "Tools", "check whether a job can run on its target"),
    "cluster": Verb(
        "tools.cluster:cluster", "Tools", "show what a cluster has for training, and whether it answers"
    ),
    "boost": Verb(
        "tools.boost:boost", "Tools", "make Kueue preempt runs that have just saved (for platforms)"
    ),
    "engines": Verb("tools.engines:engines", "Tools", "list the kinds of jobs that this version makes"),
    "explain": Verb("tools.explain:explain", "Tools", "explain what a field of a job means"),
    "schema": Verb("tools.schema:schema", "Tools", "print the JSON Schema of a job"),
}
EXIT_CODES = """\
Exit codes:
  code  run, follow, evaluate             every other verb
     0  succeeded, or left running        it could answer
     1  failed or lost                    it could not answer
     2  bad input; nothing was started    bad input; what was checked has problems
     3  stopped or deleted
     4  a deadline or a clock ran out
     5  the backend did not answer; the run is untouched
   130  a person stopped watching
"""
"""For ``--help``; the rows are those of core/docs/contract.md, Exit codes."""
HEADINGS = ("Start here", "Run", "Watch", "Checkpoints and data", "Tools")
EPILOG = """\b
Examples:
  allaboard run dags_examples/digits/job.yaml
  allaboard run job.yaml --key nightly --detach
  allaboard logs digits worker-0 -f

RUN is a run's id, the beginning of one, or a job's name (its newest run).
`allaboard VERB --help` shows the options of a verb.

\b
"""


@contextmanager
def _closed_pipe_is_no_error() -> Iterator[None]:
    """`allaboard logs RUN | head`: the reader closed the pipe. click itself would report a failure."""
    try:
        yield
    except BrokenPipeError:
        from allaboard.report.terminal import silence_stdout

        silence_stdout()
        raise click.exceptions.Exit(0) from None


class Verbs(click.Group):
    """The group of all verbs. Its help comes from the table `VERBS`; a verb's module is imported when the
    verb runs.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        from importlib import import_module

        module, _, attribute = VERBS[name].at.partition(":")
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from allaboard.text.names import nearest

            near = nearest(args[0], VERBS)
            hint = f"did you mean {near!r}?" if near else "`allaboard --help` lists them"
            raise click.UsageError(f"there is no verb {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **named: Any) -> click.Context:
        with _closed_pipe_is_no_error():
            return super().make_context(*args, **named)  # prints the help

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_pipe_is_no_error():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS)) + 2
        for heading in HEADINGS:
            rows = [
                (f"{name:<{width}}", verb.line) for name, verb in VERBS.items() if verb.heading == heading
            ]
            with formatter.section(heading):
                formatter.write_dl(rows, col_spacing=0)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from allaboard import __version__

        click.echo(f"allaboard {__version__}")
        ctx.exit()


@click.command(
    cls=Verbs,
    epilog=EPILOG + EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="VERB ...",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
def app() -> None:
    """All aboard! Schedule distributed training: all of a gang starts or nothing, followed, explained, and
    its checkpoints handed back."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Entry point of the console script ``allaboard`` and of
    ``python -m allaboard``.
    """
    given = sys.argv[1:] if arguments is None else [*arguments]
    _open_closed_streams()
    stdout = open_stdout()
    # Names and logs may hold characters that the terminal's encoding lacks. They are shown as escapes.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        code = _run_line(given)
        sys.stdout.flush()
        if stdout is None or stdout.trouble is None:
            return code
        from allaboard.cli.failure import report_unwritten

        return report_unwritten(stdout.trouble, code)
    finally:
        if stdout is not None:
            sys.stdout = sys.__stdout__


def _open_closed_streams() -> None:
    """Give each standard stream that is closed a file that takes everything: its number would be that of the
    next file that is opened, a record of a run as well.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _run_line(arguments: list[str]) -> int:
    line = Line()
    try:
        code: Any = app.main(arguments, prog_name="allaboard", standalone_mode=False, obj=line)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except Exception as error:
        from allaboard.cli.failure import exit_code

        return exit_code(error, arguments, line.at)
