"""``allaboard convert``: manifests become jobs, or manifests of another kind. stdout holds YAML documents and
nothing else; what is said in another way and what is lost goes to stderr.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from allaboard.cli.place import Place, cluster_options, json_option
from allaboard.errors import BadInput, ExitCode, Problem
from allaboard.report.terminal import json_value, say

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.convert.manifests import Document, Outcome

EPILOG = """\b
Examples:
  allaboard convert pytorchjob.yaml > job.yaml
  allaboard convert manifests/ --json
  kubectl get tfjob mnist -o yaml | allaboard convert -
  allaboard convert pytorchjob.yaml --to xgboostjob
  allaboard convert --from-cluster -n research > jobs.yaml

A job means on a cluster what the manifest means; every difference is printed with its path. Other objects
in a file are skipped. Exit code 2 when a manifest cannot be converted; the others are printed all the same.
"""
MOST_FILES = 10_000
SUFFIXES = (".yaml", ".yml", ".json")


@click.command(epilog=EPILOG)
@click.argument("source", metavar="[FILE|FOLDER|-]", required=False)
@click.option("--to", metavar="ENGINE", help="Convert to manifests of this engine, not to a job.")
@click.option("--from-cluster", is_flag=True, help="Convert the jobs that others created on a cluster.")
@cluster_options
@json_option
def convert(
    source: str | None,
    to: str | None,
    from_cluster: bool,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    as_json: bool,
) -> int:
    """Turn manifests (YAML or JSON; -: stdin; a folder: all in it) into jobs, or with --to into manifests of
    another kind."""
    from allaboard.convert.manifests import convert as converted
    from allaboard.engines import engine_of_kind

    if from_cluster == (source is not None):
        raise click.UsageError("give a file, a folder, - or --from-cluster")
    if not from_cluster and (kubeconfig or context or namespace):
        raise click.UsageError("--kubeconfig, --context and --namespace need --from-cluster")
    engine = None if to is None else engine_of_kind(to).NAME
    unread: list[str] = []
    if from_cluster:
        sources = _live_objects(Place("kubernetes", kubeconfig, context, namespace))
    else:
        assert source is not None
        sources = list(_documents(source, unread))
    outcomes = converted(sources, engine)
    if not any(outcome.documents for outcome in outcomes):
        _raise_nothing_found(source, outcomes, unread)
    _print(outcomes, as_json)
    if not as_json or any(outcome.problems for outcome in outcomes):
        _report(outcomes, unread, many=from_cluster or (source is not None and Path(source).is_dir()))
    return ExitCode.BAD_INPUT if any(outcome.problems for outcome in outcomes) else ExitCode.OK


# What is read.


def _documents(source: str, unread: list[str]) -> Iterator[Document]:
    """The documents of a file, or of all files in a folder; ``unread``: why files of a folder hold none."""
    from allaboard.convert.manifests import documents
    from allaboard.job.loader import display_name, job_folder, read_text

    folder = job_folder(source)
    if source == "-" or not folder.is_dir():
        yield from documents(read_text(source), display_name(source))
        return
    for file in _files(folder, unread):
        try:
            yield from documents(read_text(file), display_name(file.relative_to(folder)))
        except BadInput as error:
            unread.append(str(error))


def _files(folder: Path, unread: list[str]) -> list[Path]:
    """The files below a folder that may be manifests, in the order of their names; ``unread``: why folders
    cannot be read. Raises BadInput for more than are taken at once.
    """
    files: list[Path] = []

    def refused(error: OSError) -> None:
        unread.append(f"{error.filename} cannot be read ({error.strerror})")

    for where, folders, names in os.walk(folder, onerror=refused):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(where, name) for name in sorted(names) if name.endswith(SUFFIXES)]
        if len(files) > MOST_FILES:
            raise BadInput(f"{folder} holds more than {MOST_FILES:,} files; name a folder within it")
    return files


def _live_objects(at: Place) -> list[Document]:
    """The job objects of a namespace that allaboard did not make."""
    from allaboard.convert.manifests import Document

    backend = cast("KubernetesBackend", at.open())
    objects = backend.objects_of_others()
    return [Document(f"{body['kind']}/{body['metadata']['name']}", "", body) for body in objects]


def _raise_nothing_found(source: str | None, outcomes: Sequence[Outcome], unread: Sequence[str]) -> None:
    where = "this namespace" if source is None else "stdin" if source == "-" else source
    wrong = [problem for outcome in outcomes for problem in _placed_problems(outcome)]
    if wrong:
        raise BadInput(f"nothing in {where} could be converted:", wrong)
    passed = [Problem(outcome.source.place, outcome.passed or "") for outcome in outcomes[:20]]
    passed += [Problem("", trouble) for trouble in unread[:20]]
    raise BadInput(f"{where} holds no job", passed)


def _placed_problems(outcome: Outcome) -> list[Problem]:
    """Its problems, with the place of the document in their paths."""
    return [replace(problem, path=f"{outcome.source.place}: {problem.path}") for problem in outcome.problems]


# What is told.


def _print(outcomes: Sequence[Outcome], as_json: bool) -> None:
    documents = [document for outcome in outcomes for document in outcome.documents]
    if not as_json:
        from allaboard.cli.tools.render import to_yaml

        click.echo(to_yaml(documents), nl=False)
        return
    import json

    from allaboard.text.printable import visible_json

    differences = [outcome.differences() for outcome in outcomes if not outcome.problems]
    answer = {
        "documents": documents,
        "changed": [item for changed, _ in differences for item in changed],
        "lost": [item for _, lost in differences for item in lost],
    }
    problems = [problem.to_dict() for outcome in outcomes for problem in _placed_problems(outcome)]
    if problems:
        answer["problems"] = problems
    # The documents are what is sent: they keep what the author wrote.
    click.echo(visible_json(json.dumps(json_value(answer), ensure_ascii=False, indent=2, allow_nan=False)))


def _report(outcomes: Sequence[Outcome], unread: Sequence[str], *, many: bool) -> None:
    """Print the result of each document on stderr."""
    for outcome in outcomes:
        for line in _lines(outcome):
            say(f"{outcome.title}: {line}", to_stderr=True)
    for trouble in unread:
        say(f"not a manifest: {trouble}", to_stderr=True)
    if many:
        for line in _summary(outcomes, unread):
            say(line, to_stderr=True)


def _lines(outcome: Outcome) -> Iterator[str]:
    if outcome.passed:
        yield f"passed over, {outcome.passed}"
    for problem in outcome.problems:
        yield f"cannot be converted: {problem}"
    changed, lost = outcome.differences() if not outcome.problems else ([], [])
    for item in changed:
        values = f"{_shown(item['from'])} -> {_shown(item['to'])}"
        yield f"changed: {_path(outcome, item)}: {values} ({item['why']})"
    for item in lost:
        yield f"lost: {_path(outcome, item)}: {_shown(item['value'])} ({item['why']})"


def _path(outcome: Outcome, item: dict[str, Any]) -> str:
    return str(item["path"]).removeprefix(f"{outcome.source.place}: ")


def _shown(value: Any) -> str:
    """A value in one line, shortened."""
    import json

    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _summary(outcomes: Sequence[Outcome], unread: Sequence[str]) -> Iterator[str]:
    from allaboard.convert.manifests import score
    from allaboard.text.units import counted

    total = score(outcomes)
    yield (
        f"{counted(total.jobs, 'manifest')}: {total.converted} converted, {total.whole} without loss"
        f"; {counted(total.templates, 'template')}, {counted(total.passed, 'other object')} and "
        f"{counted(len(unread), 'file')} that hold no manifest"
    )
    if total.losses:
        most = ", ".join(f"{path} ({count})" for path, count in [*total.losses.items()][:10])
        yield f"lost most: {most}"
