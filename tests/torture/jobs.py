"""Hostile jobs through every entrance of the core, in a process with little time and memory.

    python -m tests.torture.jobs FIRST COUNT [SEED]

Each job is read, checked, laid out and rendered. Only our own errors may come of it, the entrances must
agree, and no job may take more than two seconds of CPU or 200 MB beyond what the process has at its start.
What breaks this is printed, one line each; the exit code is 1.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from allaboard.backends.local.supervisor.environment import loopback_place
from allaboard.checking.job import check, require_valid
from allaboard.cli.tools.render import to_yaml
from allaboard.engines import ENGINES, engine_of
from allaboard.errors import AllaboardError
from allaboard.job.identity import canonical, spec_hash
from allaboard.job.loader import parse
from allaboard.job.site import place_on_cluster, site_of
from allaboard.job.training_job import TrainingJob
from allaboard.lint import lint_job
from allaboard.render.cluster_facts import ASSUMED
from allaboard.render.manifests import Rendered, render
from allaboard.runs.layout import Layout, lay_out
from tests.torture.hostile import a_text, a_value

SECONDS = 2.0
MEMORY = 200 * 2**20
SEED = 9


class TooSlow(BaseException):
    """More CPU than a job may take. No `Exception`: nothing in between may take it for one of its own."""


def _too_slow(*_: Any) -> None:
    raise TooSlow


@contextmanager
def bounded() -> Iterator[None]:
    """CPU, not the clock: a machine at full load changes nothing."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def limit_memory() -> None:
    import yaml  # what is loaded once belongs to the start

    yaml.safe_load("a: 1")
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: PTH123, SIM115
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def one(number: int, seed: int = SEED) -> str | None:
    """What is wrong with how job ``number`` is taken; None when all is well."""
    rng = random.Random(f"{seed}/{number}")
    try:
        with bounded():
            if number % 2:
                return _of_text(a_text(rng), rng)
            return _of_value(a_value(rng), rng)
    except TooSlow:
        return f"took more than {SECONDS:g} s"
    except MemoryError:
        return f"took more than {MEMORY // 2**20} MB"
    except AllaboardError as error:
        return f"{type(error).__name__} got out of the core's own entrances: {str(error)[:200]}"
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {at.filename}:{at.lineno}: {str(error)[:200]!r}"


def _of_text(text: str, rng: random.Random) -> str | None:
    name = rng.choice(("job.yaml", "job.json", "stdin"))
    try:
        fields = parse(text, name)
    except AllaboardError as error:
        return _said_badly(error)
    return _of_value(fields, rng)


def _of_value(fields: Any, rng: random.Random) -> str | None:
    lenient = rng.random() < 0.3
    problems = check(fields, lenient=lenient)
    errors = [p for p in problems if p.severity == "error"]
    json.dumps([p.to_dict() for p in problems], ensure_ascii=False).encode()
    try:
        job = require_valid(fields, lenient=lenient)
    except AllaboardError as error:
        if not errors:
            return "check says good, and checked refuses"
        return _said_badly(error) or _in_python(fields, lenient, errors)
    if errors:
        return "check refuses, and checked does not"
    return _in_python(fields, lenient, errors) or _of_job(job)


def _in_python(fields: Any, lenient: bool, errors: list[Any]) -> str | None:
    """The constructor may refuse what check refuses, and nothing else."""
    if not isinstance(fields, Mapping):
        return None
    try:
        found = [p for p in check(TrainingJob.of(fields), lenient=lenient) if p.severity == "error"]
    except AllaboardError as error:
        found = list(error.problems)
        if not found:
            return "TrainingJob refuses without saying where"
    if bool(found) != bool(errors):
        return f"a mapping has {len(errors)} errors, the same TrainingJob {len(found)}"
    return None


def _of_job(job: TrainingJob) -> str | None:
    spec = job.as_mapping()
    if spec_hash(json.loads(canonical(spec))) != spec_hash(spec):
        return "the spec is another one once it was written as JSON"
    if require_valid(job).as_mapping() != spec:
        return "a checked job changes when it is checked again"
    json.dumps([finding.to_dict() for finding in lint_job(job)], ensure_ascii=False).encode()
    layout = lay_out(job, engine_of(job), "torture-00000000")
    if Layout.from_dict(json.loads(json.dumps(layout.to_dict()))) != layout:
        return "the layout is another one once it was written as JSON"
    try:
        placed = place_on_cluster(job, site_of({"HOME": "/root"}, store="s3://bucket"))
        made = render(placed, layout, ASSUMED, launch="u", spec_hash=spec_hash(spec))
    except AllaboardError as error:
        return _said_badly(error)
    to_yaml(made.manifests).encode()
    return _of_engine(layout, made)


def _of_engine(layout: Layout, made: Rendered) -> str | None:
    """What was rendered means what was laid out, and every member has an environment on one machine."""
    engine = ENGINES[layout.engine]
    seen = engine.read(made.job, ())
    if [(m.name, m.rank) for m in seen.members] != [(m.name, m.rank) for m in layout.members]:
        return f"{engine.KIND} is read as other members than it was laid out for"
    place = loopback_place(layout, range(1, 1 + len(engine.listeners(layout))))
    for member in layout.members[:3]:
        if not all(
            isinstance(name, str) and isinstance(value, str)
            for name, value in engine.environment(layout, member, place).items()
        ):
            return f"{engine.KIND} gives its members an environment that is none"
    return None


def _said_badly(error: AllaboardError) -> str | None:
    text = str(error)
    if len(text) > 20_000:
        return f"an error of {len(text)} characters"
    if any(not c.isprintable() and c != "\n" for c in text):
        return f"an error with control characters: {text[:100]!r}"
    return None


def main(first: int, count: int, seed: int = SEED) -> int:
    signal.signal(signal.SIGVTALRM, _too_slow)
    limit_memory()
    bad = 0
    for number in range(first, first + count):
        # Where a crash of the interpreter happened is on the last line.
        print(f"\r{number}", end="", file=sys.stderr, flush=True)
        if (trouble := one(number, seed)) is not None:
            bad += 1
            print(f"job {number}: {trouble}", flush=True)
    print(f"{count} jobs, {bad} taken badly", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
