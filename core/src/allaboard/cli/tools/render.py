"""``allaboard render``: print the objects that a launch would send to a cluster, byte for byte, and nothing
else on stdout. Nothing is sent. If a cluster is named, it is asked what it serves; a file of facts stands for
one (``allaboard cluster --facts``); otherwise defaults are assumed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from allaboard.cli.place import cluster_options, is_cluster, json_option, store_option
from allaboard.errors import BadInput, Problem
from allaboard.report.terminal import WARNING, say, show_json

if TYPE_CHECKING:
    from allaboard.engines import Engine
    from allaboard.gangs.base import GangPlan
    from allaboard.job.training_job import TrainingJob
    from allaboard.render.cluster_facts import ClusterFacts

EPILOG = """\b
Examples:
  allaboard render job.yaml
  allaboard render job.yaml --backend kubernetes --context gpu-lab
  allaboard render job.yaml --gang coscheduling -n research
  allaboard render job.yaml --engine pytorchjob --cluster-facts lab.json
  allaboard render job.yaml --key nightly | kubectl diff -f -

The objects are those of the first attempt of the run that this key names. Beside them a launch keeps a
record of the run, the ConfigMap allaboard-RUN, which says who owns it and changes as it goes on. It also
owns the claims that are kept for the run.
"""


@click.command(epilog=EPILOG)
@click.argument("job", metavar="JOB")
@click.option("--key", default="render", metavar="K", help="The identity of the run; default: render.")
@click.option("--engine", metavar="E", help="Override engine of the job.")
@click.option("--gang", metavar="G", help="Override gang.scheduler of the job.")
@click.option(
    "--cluster-facts",
    "facts_file",
    metavar="FILE",
    help="What is known of the cluster, as `allaboard cluster --facts` prints it; none is asked.",
)
@click.option("--backend", type=click.Choice(["kubernetes"]), help="Ask the cluster what it has.")
@cluster_options
@store_option
@json_option
def render(
    job: str,
    key: str,
    engine: str | None,
    gang: str | None,
    facts_file: str | None,
    backend: str | None,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Print the objects that a launch of this job (YAML or JSON; -: stdin) would send to a cluster."""
    from allaboard.backends.base import Plan
    from allaboard.backends.kubernetes.lifecycle.prepare import prepare_attempt
    from allaboard.checking.job import require_valid
    from allaboard.cli.place import site
    from allaboard.engines import ENGINES
    from allaboard.render.cluster_facts import assumed_facts

    named = is_cluster(backend) or kubeconfig or context
    if facts_file is not None and (backend or kubeconfig or context):
        raise click.UsageError("--cluster-facts stands for a cluster; name a file or a cluster, not both")
    if facts_file == job == "-":
        raise click.UsageError("stdin is the job or the facts, not both; name a file for one of them")
    read = _read_checked_job(job)
    changes: dict[str, Any] = {} if engine is None else {"engine": engine}
    if gang is not None:
        changes["gang"] = {**read.get("gang", {}), "scheduler": gang}
    if changes:
        read = require_valid(read.with_(**changes))
    if facts_file is not None:
        server, facts = facts_file, _read_facts(facts_file, namespace)
    elif named:
        server, facts = _ask_cluster(read, kubeconfig, context, namespace)
    else:
        server, facts = "", assumed_facts(os.environ, namespace)
    unserved = _not_served(read, facts)
    try:
        made = prepare_attempt(Plan(read, key), 1, 1, site(store), facts, os.environ)
    except BadInput as refused:
        raise BadInput(refused.headline, [*unserved, *refused.problems]) from None
    if unserved:
        raise BadInput(f"job {read.name!r} cannot run on this cluster:", unserved)
    if as_json:
        show_json({"apiVersion": "v1", "kind": "List", "items": [*made.claims, *made.manifests]}, exact=True)
    else:
        click.echo(to_yaml([*made.claims, *made.manifests]), nl=False)
    for note in made.notes:
        say(f"{WARNING}{note}" if note == made.gang.alone else note, to_stderr=True)
    say(_basis_line(server, facts.namespace, ENGINES[made.layout.engine], made.gang), to_stderr=True)
    return 0


def _not_served(job: TrainingJob, facts: ClusterFacts) -> list[Problem]:
    """The engine that the job says, or is given, where the cluster is known to serve no such kind."""
    from allaboard.engines import BY_FRAMEWORK
    from allaboard.render.compatibility import engine_for, object_kind
    from allaboard.text.names import one_of

    engine = engine_for(job, facts)
    if facts.serves(object_kind(engine)) is not False:
        return []
    served = [e.NAME for e in BY_FRAMEWORK[job.get("framework", "pytorch")] if facts.serves(object_kind(e))]
    do = f"say {one_of(['auto', *served])}" if served else f"install the {engine.OPERATOR.title}"
    return [Problem("engine", f"this cluster does not serve {object_kind(engine)}; {do}")]


def _read_facts(path: str, namespace: str | None) -> ClusterFacts:
    """The facts of a file, over those of this place; ``namespace`` wins over both."""
    from dataclasses import replace

    from allaboard.job.loader import display_name, read_text
    from allaboard.render.cluster_facts import assumed_facts, facts_from_dict
    from allaboard.text.untrusted import Unreadable, parse_json

    try:
        data = parse_json(read_text(path), spelling=False)
    except Unreadable as error:
        raise BadInput(f"{display_name(path)} {error}") from None
    facts = facts_from_dict(data, assumed_facts(os.environ))
    return facts if namespace is None else replace(facts, namespace=namespace)


def _ask_cluster(
    job: TrainingJob, kubeconfig: str | None, context: str | None, namespace: str | None
) -> tuple[str, ClusterFacts]:
    """The server of the cluster, and the facts that a launch would use."""
    from allaboard.backends.kubernetes.client.loader import Access
    from allaboard.backends.kubernetes.client.protocol import Patience
    from allaboard.backends.kubernetes.discovery.definitions import complete_lacking
    from allaboard.backends.kubernetes.discovery.installed import complete_facts, complete_priorities
    from allaboard.render.cluster_facts import assumed_facts
    from allaboard.render.compatibility import possible_engines, priority_of

    with Access(kubeconfig, context, namespace).api(Patience(budget=8.0)) as api:
        facts = complete_facts(api, assumed_facts(os.environ, api.namespace))
        facts = complete_lacking(api, facts, possible_engines(job, facts))
        return api.server, complete_priorities(api, facts, priority_of(job))


def _basis_line(server: str, namespace: str, engine: Engine, gang: GangPlan) -> str:
    """One line that says which facts the objects are based on."""
    how = "no gang scheduler" if gang.how == "none" else f"gangs by {gang.gang}"
    how += ", which the operator serves itself" if gang.how == "natively" else ""
    if server:
        return f"for namespace {namespace} of {server}: {how}"
    more = " (--gang names one)" if gang.how == "none" else ""
    return f"no cluster was asked; assumed: {engine.OPERATOR.title}, namespace {namespace}, {how}{more}"


def _read_checked_job(path: str) -> TrainingJob:
    """The checked job of a file. Imports less than `allaboard.running.read_job`."""
    from allaboard.checking.job import require_valid
    from allaboard.convert.manifests import fields_of, given_in
    from allaboard.job.loader import display_name, folder_of, read_text
    from allaboard.job.training_job import TrainingJob

    written, source = fields_of(*given_in(read_text(path), display_name(path)))
    return TrainingJob(folder=folder_of(path), source=source, **require_valid(written).as_mapping())


def to_yaml(manifests: Sequence[Mapping[str, Any]]) -> str:
    """The objects as readable YAML documents: fields keep their order, files are literal blocks."""
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        """Safe YAML without anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    documents = [
        yaml.dump(manifest, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)
        for manifest in manifests
    ]
    return "---\n".join(documents)
