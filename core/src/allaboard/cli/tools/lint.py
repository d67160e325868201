"""``allaboard lint``: what experts say of job files and manifests. Nothing but the file is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from allaboard.cli.place import json_option
from allaboard.errors import BadInput, Problem
from allaboard.report.terminal import Ink, say, show_json, supports_colour

if TYPE_CHECKING:
    from allaboard.lint import Finding

EPILOG = """\b
Examples:
  allaboard lint job.yaml
  allaboard lint pytorchjob.yaml --json
  kubectl get pytorchjob digits -o yaml | allaboard lint -
  allaboard lint --rules

FILE holds one or many jobs or manifests, YAML or JSON; of several, each finding of --json says its object.
Exit code 0 whatever is found; 2 when FILE cannot be read, or a job in it has errors that `allaboard check`
tells.
"""
COLOURS = {"error": "red", "warning": "yellow", "advice": "bright_black"}


@click.command(epilog=EPILOG)
@click.argument("file", metavar="FILE", required=False)
@click.option("--rules", is_flag=True, help="Print the page of all rules, in Markdown, instead.")
@json_option
def lint(file: str | None, rules: bool, as_json: bool) -> int:
    """Report what experts would change in the jobs and manifests of FILE (-: stdin): the path, the reason,
    and what to do.
    """
    if rules:
        from allaboard.lint.page import page

        click.echo(page(), nl=False)
        return 0
    if file is None:
        raise click.UsageError("name a FILE, - for stdin, or --rules")
    from allaboard.job.loader import display_name, parse_all, read_text

    name = display_name(file)
    linted = _lint_all(parse_all(read_text(file), name), name)
    if as_json:
        show_json(
            {
                "findings": [
                    {**finding.to_dict(), **({"object": title} if len(linted) > 1 else {})}
                    for title, findings in linted
                    for finding in findings
                ]
            }
        )
        return 0
    ink = Ink(supports_colour())
    for title, findings in linted:
        for line in _page(title if len(linted) > 1 else name, findings, ink):
            say(line)
    return 0


def _lint_all(documents: list[Any], name: str) -> list[tuple[str, list[Finding]]]:
    """(what it is, its findings) of each job and each job object. Raises BadInput with all problems."""
    from allaboard.convert.manifests import no_manifest
    from allaboard.job.loader import kind_in_words
    from allaboard.text.untrusted import show

    linted: list[tuple[str, list[Finding]]] = []
    problems: list[Problem] = []
    others: list[Mapping[str, Any]] = []
    every = [inner for document in documents for inner in _expanded(document)]
    for n, document in enumerate(every):
        at = f"document {n + 1}" if len(every) > 1 else ""
        if not isinstance(document, Mapping):
            message = f"holds {kind_in_words(document)}; a job or a manifest is fields, like `name: digits`"
            problems.append(Problem(at, message))
        elif "apiVersion" in document or "kind" in document:
            from allaboard.lint import lint_object

            findings = lint_object(document)
            title = f"{document.get('kind')} {_object_name(document)}".strip()
            if findings is None:
                others.append(document)
            else:
                linted.append((show(title, 200, quote=False), findings))
        elif (stranger := no_manifest(document)) is not None:
            problems.append(Problem(at, stranger))
        else:
            try:
                linted.append(_lint_job(document))
            except BadInput as error:
                problems += [_within(at, problem) for problem in error.problems or [Problem("", str(error))]]
    if problems:
        raise BadInput(f"{name} cannot be read:", problems)
    if not linted:
        raise BadInput(_nothing(name, others))
    return linted


def _expanded(document: Any) -> Iterator[Any]:
    """The objects of a List, as kubectl prints it, or the document itself."""
    if isinstance(document, Mapping) and isinstance(document.get("items"), list) and "kind" in document:
        yield from document["items"]
    else:
        yield document


def _lint_job(fields: Mapping[str, Any]) -> tuple[str, list[Finding]]:
    from allaboard.checking.job import require_valid
    from allaboard.lint import lint_job

    job = require_valid(fields)
    return f"job {job.name}", lint_job(job)


def _object_name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def _within(at: str, problem: Problem) -> Problem:
    path = f"{at}: {problem.path}" if at and problem.path else at or problem.path
    return Problem(path, problem.message, problem.suggestion, problem.severity)


def _nothing(name: str, others: Sequence[Mapping[str, Any]]) -> str:
    from allaboard.convert.manifests import no_job
    from allaboard.engines import ENGINES
    from allaboard.text.names import one_of
    from allaboard.text.untrusted import show

    known = one_of(f"{engine.API_VERSION}/{engine.KIND}" for engine in ENGINES.values())
    if not others:
        return f"{name} is empty; a job, or a manifest of {known}, can be read"
    named = dict.fromkeys(show(f"{o.get('apiVersion')}/{o.get('kind')}", quote=False) for o in others[:5])
    advice = [hint for o in others[:5] if (hint := no_job(o).partition(": ")[2])]
    more = f": {'; '.join(dict.fromkeys(advice))}" if advice else ""
    return f"{name} holds no job and no manifest that is known ({', '.join(named)}){more}; known: {known}"


def _page(title: str, findings: list[Finding], ink: Ink) -> Iterator[str]:
    if not findings:
        yield f"{title}: nothing found"
        return
    counts = [(s, sum(f.severity == s for f in findings)) for s in COLOURS]
    yield f"{title}: {', '.join(_counted(number, word) for word, number in counts if number)}"
    for severity, colour in COLOURS.items():
        for finding in findings:
            if finding.severity != severity:
                continue
            yield ""
            yield f"{ink(severity, colour)} {finding.path}: {finding.summary} [{finding.code}]"
            yield f"  {finding.reason}"
            yield f"  Fix: {finding.fix}"


def _counted(number: int, word: str) -> str:
    plural = {"error": "errors", "warning": "warnings", "advice": "pieces of advice"}
    return f"{number} {word if number == 1 else plural[word]}"
