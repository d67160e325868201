"""What the components do, once they run. Each function is one step, and is called with what kfp gives.

No kfp is imported here: an artifact is whatever has a uri, a path and metadata, so that a step can be
called, and tested, as a plain function. A step that fails says why in its log and exits with the codes of
contract 4: 1 failed or lost, 2 bad input, 3 stopped, 4 out of time, 5 nobody answered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from allaboard.backends.base import Backend
from allaboard.checkpoints import Checkpoint, checkpoint_at, collect, locate
from allaboard.errors import AllaboardError, BadInput, Corrupt
from allaboard.follow.loop import Outcome
from allaboard.promotion.champion import history as champions
from allaboard.promotion.champion import promote
from allaboard.promotion.gate import Gate
from allaboard.report.page import run_page
from allaboard.report.page_data import read_page_data
from allaboard.report.words import metrics as in_words
from allaboard.running import evaluation_job
from allaboard.shards import prepare, resolve
from allaboard.spec.job import TrainingJob
from allaboard.spec.loader import job_folder
from allaboard.storage import open_store
from allaboard.units import counted, rfc3339, show_bytes
from allaboard_kfp.artifacts import Artifact, log_numbers, point, write_page
from allaboard_kfp.given import as_written, job_of
from allaboard_kfp.report import promotion_page
from allaboard_kfp.step import Place, finish, numbers_of, run_to_the_end, say, step_errors
from allaboard_kfp.value import Wanted

_TELL_EVERY = 5.0
NONFINITE = "nonfinite"
"""In the results of an evaluation: the names of metrics that were no finite numbers. Parameters of Kubeflow
hold no null.
"""


class Trained(NamedTuple):
    run: str
    checkpoints: str
    checkpoint: str
    value: float


class Evaluated(NamedTuple):
    run: str
    results: dict[str, Any]
    value: float


class Promoted(NamedTuple):
    promoted: bool
    number: int
    champion: str


def run_prepare_shards(
    source: str,
    into: str,
    samples_per_shard: int,
    bytes_per_shard: str,
    folder: str,
    store: str,
    *,
    dataset: Artifact,
) -> str:
    """Make a data set, and return its uri."""
    with step_errors():
        place = Place.of(dataset.uri, store, folder)
        uri = place.uri(as_written(into))
        index = prepare(
            _source(as_written(source), place.folder),
            uri,
            samples_per_shard=samples_per_shard or None,
            bytes_per_shard=as_written(bytes_per_shard) or None,
            progress=Meter("samples").moved,
            notice=say,
        )
        samples, shards = counted(index.samples, "sample"), counted(len(index.shards), "shard")
        say(f"{samples} in {shards}, {show_bytes(index.size)}: {uri}")
        facts = {"samples": index.samples, "shards": len(index.shards), "bytes": index.size}
        point(dataset, uri, {**facts, "created": index.created, "fingerprint": index.fingerprint})
        return uri


def run_train(
    job: Mapping[str, Any], job_text: str, shards: str, folder: str, store: str, runs: str, namespace: str,
    metric: str, mode: str, *, model: Artifact, metrics: Artifact, report: Artifact,
) -> Trained:  # fmt: skip
    """Train, and return the run, where its checkpoints are, the best one (else the newest) and its value."""
    with step_errors():
        place = Place.of(report.uri, store, folder, runs, namespace)
        data = place.uri(as_written(shards)) if shards else ""
        read = job_of(as_written(job), as_written(job_text), as_written(folder), shards=data)
        wanted = Wanted.of(metric, mode, (read.get("checkpoints") or {}).get("best"))
        place.check_store(read.as_mapping())
        backend = place.backend()
        outcome, handle = run_to_the_end(backend, read, place.key)
        _publish(backend, outcome, read, place, report, metrics, "training")
        progress = outcome.seen.progress
        best = progress.best_checkpoint or progress.checkpoint or ""
        facts = _facts(best) if best else {}
        if best:
            point(model, best, {"framework": read.get("framework", "pytorch"), "run": outcome.run, **facts})
        value = _value(wanted, numbers_of(outcome), facts.get("metrics", {}))
        backend.hand_over(handle)
        return Trained(outcome.run, locate(best)[0] if best else "", best, value)


def run_collect_checkpoint(
    source: str, into: str, which: str, metric: str, mode: str, store: str, *, model: Artifact
) -> str:
    """Copy a checkpoint, verified, to where it stays, and return its uri there."""
    with step_errors():
        if not source:
            raise BadInput(
                "source is empty: the training saved no checkpoint; let its script save with "
                "allaboard.inside.Checkpointer, and say checkpoints.uri in its job"
            )
        place = Place.of(model.uri, store)
        found = collect(
            place.uri(as_written(source)), place.uri(as_written(into)), which,
            metric=metric or None, mode=mode, progress=Meter("bytes").done,
        )  # fmt: skip
        for note in found.notes:
            say(note)
        was = "copied" if found.copied else "was there already"
        say(f"step {found.step}, {show_bytes(found.bytes)} {was}: {found.uri}")
        numbers = in_words(found.checkpoint.metrics)
        if numbers:
            say(numbers)
        point(model, found.uri, {"source": found.source, **_described(found.checkpoint)})
        return found.uri


def run_evaluate(
    job: Mapping[str, Any], job_text: str, checkpoint: str, folder: str, store: str, runs: str,
    namespace: str, metric: str, mode: str, *, metrics: Artifact, report: Artifact,
) -> Evaluated:  # fmt: skip
    """Run the user's evaluation of one checkpoint as a job of its own, and return its metrics."""
    with step_errors():
        place = Place.of(report.uri, store, folder, runs, namespace)
        wanted = Wanted.of(metric, mode)
        _, found = checkpoint_at(place.uri(as_written(checkpoint)))
        read = job_of(as_written(job), as_written(job_text), as_written(folder))
        place.check_store(read.as_mapping())
        backend = place.backend()
        outcome, handle = run_to_the_end(backend, evaluation_job(read, found.uri, lenient=True), place.key)
        _publish(backend, outcome, read, place, report, metrics, "evaluation")
        results = _for_kubeflow(numbers_of(outcome))
        if not results:
            raise BadInput(
                f"the evaluation {outcome.run} ended well and told no metrics; let its script say "
                "allaboard.inside.result(accuracy=...)"
            )
        value = _value(wanted, numbers_of(outcome))
        backend.hand_over(handle)
        return Evaluated(outcome.run, results, value)


def run_promote(
    checkpoint: str, into: str, results: Mapping[str, Any], metric: str, mode: str, better_by: float,
    thresholds: str, reason: str, single_writer: bool, store: str,
    *, verdict: Artifact, report: Artifact,
) -> Promoted:  # fmt: skip
    """Make a checkpoint the champion if the gate lets it. A gate that stays shut is an answer, not a
    failure.
    """
    with step_errors():
        place = Place.of(report.uri, store)
        uri = place.uri(as_written(checkpoint))
        measured = _from_kubeflow(as_written(dict(results))) if results else None
        where = open_store(place.uri(as_written(into)))
        decision = promote(
            where, uri, measured, Gate.parse(metric or None, mode, better_by, thresholds),
            now=time.time(), reason=as_written(reason), single_writer=single_writer,
        )  # fmt: skip
        for check in decision.verdict.checks:
            say(f"{'✓' if check.passed else '✗'} {check.reason}")
        for problem in decision.problems:
            say(problem)
        champion = decision.champion
        if decision.promotion is not None:
            say(f"promoted as number {decision.promotion.number}: {decision.promotion.checkpoint}")
        else:
            stays = f"stays number {champion.number}: {champion.checkpoint}" if champion else "is nobody"
            say(f"not promoted; the champion {stays}")
        shown = measured if measured is not None else checkpoint_at(uri)[1].metrics
        write_page(report, promotion_page(decision, uri, shown, champions(where).promotions))
        log_numbers(
            verdict, {"promoted": int(decision.promoted), "champion": champion.number if champion else 0}
        )
        log_numbers(verdict, {name: value for name, value in shown.items() if name not in verdict.metadata})
        return Promoted(
            decision.promoted, champion.number if champion else 0, champion.checkpoint if champion else ""
        )


# --- what the steps share -----------------------------------------------------------------------------


class Meter:
    """Says how far something is, every few seconds: nothing for what is done at once."""

    def __init__(self, what: str) -> None:
        self.what, self.said = what, time.monotonic()

    def moved(self, samples: int, total: int | None, size: int) -> None:
        if self._due():
            of = f" of {total:,}" if total else ""
            say(f"{samples:,}{of} {self.what}, {show_bytes(size)}")

    def done(self, count: int, total: int) -> None:
        if self._due():
            say(f"{show_bytes(count)} of {show_bytes(total)}")

    def _due(self) -> bool:
        now = time.monotonic()
        due = now - self.said >= _TELL_EVERY
        self.said = now if due else self.said
        return due


def _source(source: str, folder: str) -> Any:
    """A folder, or a function; both are looked for where the step's relative paths start."""
    path = job_folder(source)
    if ":" in source and not (Path(folder) / path).exists():
        return resolve(source, Path(folder))
    return str(path if path.is_absolute() else Path(folder) / path)


def _publish(
    backend: Backend,
    outcome: Outcome,
    job: TrainingJob,
    place: Place,
    report: Artifact,
    metrics: Artifact,
    kind: str,
) -> None:
    """The page and the numbers; then, if it did not end well, the end of the step.

    Of a step that fails, Kubeflow keeps the log alone. So that its page is not lost it is put into the
    store as well.
    """
    now = time.time()
    told = read_page_data(backend, outcome)
    page = run_page(outcome, told, now, job=job, kind=kind, window=(place.began, now))
    write_page(report, page)
    if not outcome.ok and place.lasting:
        key = f"{outcome.run}-{rfc3339(time.time())}.html".replace(":", "")
        reports = open_store(place.uri("store://reports"))
        with suppress(AllaboardError):  # the reason of the failure must come through whatever the store does
            reports.write(key, page.encode())
            say(f"  {'report':<11}{reports.uri}/{key}")
    finish(outcome)
    log_numbers(metrics, numbers_of(outcome))


def _value(wanted: Wanted, *sources: Mapping[str, Any]) -> float:
    value, trouble = wanted.value(*sources)
    if trouble:
        say(trouble)
    return value


def _facts(uri: str) -> dict[str, Any]:
    """What the checkpoint says of itself; nothing when it cannot be read: that is for whoever needs it to
    say.
    """
    with suppress(AllaboardError, Corrupt):
        return _described(checkpoint_at(uri)[1])
    return {}


def _described(found: Checkpoint) -> dict[str, Any]:
    manifest = found.manifest
    return {
        "run": manifest.run,
        "step": manifest.step,
        "world_size": manifest.world_size,
        "bytes": manifest.size,
        "metrics": dict(manifest.metrics),
    }


def _for_kubeflow(results: Mapping[str, Any]) -> dict[str, Any]:
    odd = [name for name, value in results.items() if value is None]
    return {**{k: v for k, v in results.items() if v is not None}, **({NONFINITE: odd} if odd else {})}


def _from_kubeflow(results: Mapping[str, Any]) -> dict[str, Any]:
    odd = results.get(NONFINITE)
    rest = {name: value for name, value in results.items() if name != NONFINITE}
    return {**rest, **dict.fromkeys(odd if isinstance(odd, list) else [])}
