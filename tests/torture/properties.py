"""What holds of every right job and of every wrong one, by lot.

    python -m tests.torture.properties FIRST COUNT [SEED]

A right job is laid out, rendered as every engine has it, read back, and is the same when it is done again; a
wrong one is refused with everything that is wrong with it, and nothing else than our own error is raised.
What breaks this is printed, one line each; the exit code is 1.
"""

from __future__ import annotations

import json
import random
import sys
import traceback
from typing import Any

from allaboard.checking.job import check, require_valid
from allaboard.cli.tools.render import to_yaml
from allaboard.engines import ENGINES
from allaboard.errors import BadInput
from allaboard.job.identity import canonical, spec_hash
from allaboard.job.loader import parse
from allaboard.job.site import place_on_cluster, site_of
from allaboard.job.training_job import TrainingJob
from allaboard.lint import lint_job, lint_object
from allaboard.render.cluster_facts import ASSUMED
from allaboard.render.compatibility import engine_for
from allaboard.render.manifests import Rendered, render
from allaboard.runs.layout import Layout, lay_out
from tests.torture.right import a_right_job, a_wrong_job

SEED = 11
SITE = site_of({"HOME": "/root"}, store="s3://bucket/team")
_THOROUGH = 25
"""Of so many jobs one is also written as YAML and read again, which takes most of the time."""


def one(number: int, seed: int = SEED) -> str | None:
    """What is wrong with how job ``number`` is taken; None when all is well. Of three jobs one is wrong."""
    rng = random.Random(f"{seed}/{number}")
    try:
        if number % 3 == 2:
            return of_wrong(*a_wrong_job(rng))
        return of_right(a_right_job(rng), thorough=number % _THOROUGH == 0, rng=rng)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {at.filename}:{at.lineno}: {str(error)[:300]!r}"


def of_right(fields: dict[str, Any], *, thorough: bool, rng: random.Random) -> str | None:
    """A right job renders, is valid, reads back and is stable; one for this machine alone is refused."""
    if errors := [str(p) for p in check(fields) if p.severity == "error"]:
        return f"a right job is refused: {errors}; {fields}"
    job = require_valid(fields)
    if require_valid(job).as_mapping() != job.as_mapping():
        return "a checked job changes when it is checked again"
    engine = engine_for(job, ASSUMED)
    layout = lay_out(job, engine, f"{job.name}-00000000")
    if Layout.from_dict(json.loads(json.dumps(layout.to_dict()))) != layout:
        return "the layout is another one once it was written as JSON"
    if "folder" in fields.get("checkpoints", {}):
        try:
            rendered(job, layout)
        except BadInput as error:
            return None if "checkpoints.folder" in str(error) else str(error)
        return "checkpoints.folder is sent to a cluster"
    made = rendered(job, layout)
    if trouble := of_hash(job, rng) or of_rendered(layout, made):
        return trouble
    if json.dumps(rendered(job, layout).manifests) != json.dumps(made.manifests):
        return "rendered twice it is not the same"
    lint_job(job)
    lint_object(made.job)
    return of_texts(job, made) if thorough else None


def rendered(job: TrainingJob, layout: Layout) -> Rendered:
    code = {name: b"\xff" if name.endswith(".bin") else b"print()\n" for name in job.get("code", ())}
    placed = place_on_cluster(job, SITE)
    return render(placed, layout, ASSUMED, launch="u", spec_hash=spec_hash(job.as_mapping()), code=code)


def of_hash(job: TrainingJob, rng: random.Random) -> str | None:
    """The hash is that of what the author set, in whatever order and form."""
    spec = job.as_mapping()
    own = spec_hash(spec)
    if spec_hash(json.loads(canonical(spec))) != own:
        return "the spec is another one once it was written as JSON"
    names = rng.sample([*spec], len(spec))
    if spec_hash(TrainingJob(**{name: spec[name] for name in names}).as_mapping()) != own:
        return "the spec is another one in another order"
    if spec_hash({**spec, "name": "another"}) == own:
        return "another name is the same spec"
    return None


def of_rendered(layout: Layout, made: Rendered) -> str | None:
    """The objects are those of the engine's kind, and mean what was laid out."""
    engine = ENGINES[layout.engine]
    if (made.job["apiVersion"], made.job["kind"]) != (engine.API_VERSION, engine.KIND):
        return f"{engine.NAME} renders a {made.job['kind']}"
    if strange := made.job["spec"].keys() - engine.FIELDS:
        return f"{engine.KIND} has no {sorted(strange)}"
    seen = engine.read(made.job, ())
    if [(m.name, m.rank) for m in seen.members] != [(m.name, m.rank) for m in layout.members]:
        return f"{engine.KIND} is read as other members than it was laid out for"
    if (seen.total, seen.suspended) != (layout.total, layout.policy.suspend) or seen.conditions:
        return f"{engine.KIND} is read as another job"
    if not 0 < engine.needed(made.job) <= layout.total:
        return f"{engine.KIND} needs {engine.needed(made.job)} of {layout.total}"
    if {m["metadata"]["namespace"] for m in made.manifests} != {ASSUMED.namespace}:
        return "its objects stand in several namespaces"
    names = [(m["kind"], m["metadata"]["name"]) for m in made.manifests]
    if len({*names}) != len(names) or any(len(name) > 63 for _, name in names):
        return f"its objects are called {names}"
    return of_templates(layout, made)


def of_templates(layout: Layout, made: Rendered) -> str | None:
    """Each group has its pods, and each pod the container that trains, with its image."""
    engine = ENGINES[layout.engine]
    found = {role: (n, template) for role, n, template in engine.templates(made.job, made.extras)}
    if {role: n for role, (n, _) in found.items()} != {g.role: g.replicas for g in layout.groups}:
        return f"{engine.KIND} makes pods of {sorted(found)}"
    for group in layout.groups:
        containers = found[group.role][1]["spec"]["containers"]
        mine = [one for one in containers if one["name"] == engine.CONTAINER]
        if len(mine) != 1 or not mine[0]["image"]:
            return f"{group.role} has no container that trains"
        variables = {v["name"] for v in mine[0]["env"]}
        if not {"ALLABOARD_RUN", *group.environment} <= variables:
            return f"{group.role} lacks {sorted({*group.environment} - variables)}"
    return None


def of_texts(job: TrainingJob, made: Rendered) -> str | None:
    """What is written as YAML is what was meant, for a job and for its objects."""
    import yaml

    text = to_yaml(made.manifests)
    if tuple(yaml.load_all(text, Loader=yaml.CSafeLoader)) != made.manifests:
        return "its objects are others once they were written as YAML"
    spec = job.as_mapping()
    for name, written in (("a.json", json.dumps(spec)), ("a.yaml", to_yaml([spec]))):
        if require_valid(parse(written, name)).as_mapping() != spec:
            return f"the job is another one once it was written into {name}"
    return None


def of_wrong(fields: dict[str, Any], wrong: list[str]) -> str | None:
    """A wrong job is refused, and everything that is wrong is told by its path."""
    problems = check(fields)
    errors = [p for p in problems if p.severity == "error"]
    paths = [p.path for p in errors]
    if missed := [at for at in wrong if not any(_is_at(path, at) for path in paths)]:
        return f"nothing is said about {missed}: {paths}; {fields}"
    if any(not p.message or "\n" in p.message for p in problems):
        return "a problem without a sentence"
    try:
        require_valid(fields)
    except BadInput as error:
        if [p.path for p in error.problems] != paths:
            return "check and checked say different things"
    else:
        return "check refuses, and checked does not"
    return None


def _is_at(path: str, wrong: str) -> bool:
    return path == wrong or path.startswith((f"{wrong}.", f"{wrong}["))


def main(first: int, count: int, seed: int = SEED) -> int:
    bad = 0
    for number in range(first, first + count):
        if (trouble := one(number, seed)) is not None:
            bad += 1
            print(f"job {number}: {trouble}", flush=True)
    print(f"{count} jobs, {bad} taken badly", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
