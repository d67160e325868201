"""``allaboard cluster``: what a cluster has installed for training, whether it answers, and how to install
what is missing. The verb also prints the Roles that users need.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from allaboard.cli.place import cluster_options, json_option
from allaboard.report.terminal import Ink, say, show_json, supports_colour

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.discovery.components import Component
    from allaboard.backends.kubernetes.discovery.installed import InstalledComponent, Survey

EPILOG = """\b
Examples:
  allaboard cluster
  allaboard cluster --context gpu-lab -n research --json
  allaboard cluster --rbac submitter -n research | kubectl apply -f -
  allaboard cluster --reaper -n research | kubectl apply -f -
  allaboard cluster --facts -n research > lab.json        then: render job.yaml --cluster-facts lab.json

What you may not read is shown as unknown. Nothing is created: one dry run for each operator tests
whether its webhook answers.
"""


@click.command(epilog=EPILOG)
@click.option("--backend", type=click.Choice(["kubernetes"]), expose_value=False, help="As with other verbs.")
@cluster_options
@click.option(
    "--rbac",
    type=click.Choice(["submitter", "viewer", "mpi", "claims", "stacks", "capacity", "boost"]),
    help="Print only the Role that submitters or viewers need, or what submitters need besides for jobs of "
    "MPI as JobSets, for jobs with claims of their own, to see where a run stands that does not move, or "
    "what nodes and queues have; or what `allaboard boost` needs; no cluster is contacted.",
)
@click.option(
    "--reaper",
    is_flag=True,
    help="Print only what ends runs in a namespace whose clients do not come back: an account, its Role and "
    "a Deployment of `allaboard stop --orphans --watch`; no cluster is contacted.",
)
@click.option(
    "--facts",
    is_flag=True,
    help="Print only what rendering needs to know of it, and of this place (ALLABOARD_IMAGE, ...), as JSON.",
)
@json_option
def cluster(
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    rbac: str | None,
    reaper: bool,
    facts: bool,
    as_json: bool,
) -> int:
    """Show what a cluster has installed for training, and how to install what is missing."""
    if (rbac is not None) + reaper + facts > 1:
        raise click.UsageError("--rbac, --reaper and --facts print one thing each; name one of them")
    role = "reaper" if reaper else rbac
    if role is not None:
        import yaml

        from allaboard.backends.kubernetes.discovery.rbac import manifest

        text = manifest(role, namespace or os.environ.get("ALLABOARD_NAMESPACE") or "default")
        if as_json:
            items = [document for document in yaml.safe_load_all(text) if document]
            show_json({"apiVersion": "v1", "kind": "List", "items": items})
        else:
            click.echo(text, nl=False)
        return 0
    from allaboard.backends.kubernetes.client.loader import Access
    from allaboard.backends.kubernetes.client.protocol import Patience
    from allaboard.backends.kubernetes.discovery.installed import survey_cluster
    from allaboard.backends.kubernetes.observe.lookup import check_namespace

    # A person waits for the answer, and an operator that does not respond is a valid answer.
    with Access(kubeconfig, context, namespace).api(Patience(budget=8.0)) as api:
        check_namespace(api, api.namespace)
        installed = survey_cluster(api, api.server, api.namespace)
    if facts:
        from allaboard.render.cluster_facts import assumed_facts, facts_to_dict

        show_json(facts_to_dict(installed.facts(assumed_facts(os.environ))))
        return 0
    if as_json:
        show_json(installed.to_dict())
        return 0
    for line in _page(installed, Ink(supports_colour())):
        say(line)
    return 0


def _page(installed: Survey, ink: Ink) -> Iterator[str]:
    from allaboard.backends.kubernetes.discovery.installed import summary_of_nodes

    platform = ", OpenShift" if installed.is_openshift else ""
    yield f"{installed.server}  Kubernetes {installed.version}{platform}, namespace {installed.namespace}"
    yield ""
    width = max(len(part.part.title) for part in installed.parts) + 2
    for part in installed.parts:
        word, colour = _component_state(part)
        versions = f" ({part.part.group} {', '.join(part.versions)})" if part.installed else ""
        yield f"  {part.part.title:<{width}}{ink(word, colour)}{versions}"
        for sign in part.signs:
            yield f"  {'':<{width}}{sign}"
    yield ""
    for part in installed.parts:
        if part.installed and part.part.makes_gangs:
            gang = installed.operator_gangs.get(part.part.id, "not known")
            yield f"  {f'gangs by the {part.part.title}':<{width}}  {'none' if gang == 'off' else gang}"
    for name, scheduler in installed.schedulers.items():
        yield f"  {f'{name} places as':<{width}}  {scheduler}"
    if installed.nodes is None:
        yield f"  {'nodes':<{width}}  may not be read"
    else:
        nodes = summary_of_nodes(installed.nodes)
        devices = "".join(
            f", {d['total']} {name} on {d['nodes']} of them" for name, d in nodes["devices"].items()
        )
        yield f"  {'nodes':<{width}}  {nodes['ready']} of {nodes['total']} ready{devices}"
    if away := [part for part in installed.parts if part.cure is not None]:
        yield ""
        yield "What does not answer:"
        for part in away:
            yield f"  {part.part.title}: {part.cure}"
    missing = [part.part for part in installed.parts if not part.installed]
    if missing:
        yield ""
        yield "To install what is not there:"
    for component in missing:
        yield ""
        yield from _how_to_install(component, installed.is_openshift)


def _how_to_install(component: Component, openshift: bool) -> Iterator[str]:
    """The commands of the ways that fit this cluster, the usual one first, and when they were looked up."""
    from allaboard.backends.kubernetes.discovery.guides import WAYS

    guide = component.guide
    if guide is None:
        yield f"  {component.title}: see its own guide"
        return
    ways = guide.fitting(openshift)
    release = "of the cluster's catalog" if "openshift" in ways else guide.version
    since = f"as of {guide.checked:%Y-%m}" if guide.checked is not None else None
    yield f"  {', '.join(filter(None, (component.title, release, since)))}"
    for number, (way, lines) in enumerate(ways.items()):
        yield f"    {'or ' if number else ''}with {WAYS[way]}:"
        for line in lines:
            # A here-document ends at a line that is EOF alone: it stays at the margin.
            yield from line.splitlines() if "\n" in line else (f"      {line}",)
    for need in guide.needs if "openshift" not in ways else ():
        yield f"    note: {need}"


def _component_state(part: InstalledComponent) -> tuple[str, str]:
    if not part.installed:
        return "not installed", "bright_black"
    if part.alive is None:
        return "installed; whether it is alive cannot be told", "yellow"
    return ("installed, alive", "green") if part.alive else ("installed, does not answer", "red")
