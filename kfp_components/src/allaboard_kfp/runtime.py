"""Code of the components when they run. Each function is one step, called with the arguments that kfp gives.

No kfp is imported here: an artifact is any object with a uri, a path and metadata, so a step is a plain
function. A step that fails says why in its log and ends with the
exit code of a run (core/docs/contract.md, Exit codes).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from allaboard.backends.base import Backend
from allaboard.checkpoints import (
    Checkpoint,
    RunFlags,
    checkpoint_at,
    collect,
    find,
    handed_flags,
    locate,
    verify,
)
from allaboard.checkpoints.collecting import candidates
from allaboard.checkpoints.foreign.adopting import adopt_at
from allaboard.errors import AllaboardError, BadInput, Corrupt, StorageMissing
from allaboard.follow.loop import Outcome
from allaboard.job.loader import job_folder
from allaboard.job.training_job import TrainingJob
from allaboard.promotion.champion import history as champions
from allaboard.promotion.champion import promote
from allaboard.promotion.gate import Gate
from allaboard.report import commands
from allaboard.report.last_good import since_last_good
from allaboard.report.page import run_page
from allaboard.report.page_data import page_data
from allaboard.report.phrases import metrics as in_words
from allaboard.report.reading import read_run
from allaboard.running import evaluation_job, files_to_evaluate
from allaboard.shards import prepare, resolve
from allaboard.storage import open_store
from allaboard.storage.base import Store
from allaboard.text.redaction import redact_texts
from allaboard.text.units import counted, rfc3339, show_bytes
from allaboard_kfp.artifacts import Artifact, describe, log_numbers, refer, write_page
from allaboard_kfp.classification import Pictures, draw, without_pictures
from allaboard_kfp.inputs import job_of, uri_of
from allaboard_kfp.report import promotion_page
from allaboard_kfp.step import (
    Place,
    finish,
    numbers_of,
    place_of,
    run_to_the_end,
    say,
    step_errors,
    with_inputs,
)
from allaboard_kfp.summary import run_markdown
from allaboard_kfp.task_config import TaskConfig, beside_job
from allaboard_kfp.value import OutputMetric

_METER_INTERVAL = 5.0
_SENTENCES = "flag_sentences"
_MOST_SENTENCES, _LONGEST_SENTENCE = 20, 300
"""Sentences of flags in the metadata of an artifact, and their characters: Kubeflow keeps metadata in a
database.
"""
NONFINITE = "nonfinite"
"""The field of an evaluation's results that names the metrics without a finite number. Parameters of Kubeflow
hold no null.
"""


class Classification(Artifact, Pictures, Protocol):
    """kfp's artifact of a classifier."""


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


@with_inputs
def run_prepare_shards(
    *,
    source: str,
    into: str,
    samples_per_shard: int,
    bytes_per_shard: str,
    folder: str,
    store: str,
    dataset: Artifact,
) -> str:
    """Make a data set, and return the uri of its version."""
    with step_errors():
        place = Place.of(dataset.uri, store=store, folder=folder)
        where = place.uri(into)
        index = prepare(
            _source(source, place.folder),
            where,
            samples_per_shard=samples_per_shard or None,
            bytes_per_shard=bytes_per_shard or None,
            progress=Meter("samples").show_samples,
            notice=say,
        )
        uri = index.version_uri(where)
        samples, shards = counted(index.samples, "sample"), counted(len(index.shards), "shard")
        say(f"{samples} in {shards}, {show_bytes(index.size)}: {uri}")
        metadata = {
            "into": where,
            "samples": index.samples,
            "shards": len(index.shards),
            "bytes": index.size,
            "created": index.created,
            "fingerprint": index.fingerprint,
        }
        refer(dataset, "data set", uri, metadata)
        return uri


@with_inputs
def run_train(
    *,
    job: Mapping[str, Any],
    job_text: str,
    overrides: Mapping[str, Any] = MappingProxyType({}),
    environment: Mapping[str, Any] = MappingProxyType({}),
    args: Sequence[Any] = (),
    shards: str,
    shards_artifact: Artifact | None = None,
    folder: str,
    store: str,
    backend: str,
    namespace: str,
    metric: str,
    mode: str,
    may_fail: bool = False,
    task_config: TaskConfig | None = None,
    model: Artifact,
    metrics: Artifact,
    report: Artifact,
    summary: Artifact,
) -> Trained:
    """Train, and return the run, the folder of its checkpoints, the best of them (else the newest) and the
    value of the metric. A training that failed and ``may_fail`` has no checkpoint, and the worst value.
    """
    with step_errors() as errors:
        place = Place.of(report.uri, store=store, folder=folder, backend=backend, namespace=namespace)
        named = uri_of(shards, shards_artifact, "shards")
        data = place.uri(named) if named else ""
        training = job_of(
            job, job_text, folder, overrides=overrides, environment=environment, args=args, shards=data,
            task=task_config, tell=say,
        )  # fmt: skip
        output = OutputMetric.of(metric, mode, (training.get("checkpoints") or {}).get("best"))
        place.check_store(training.as_mapping())
        runs = place.open_backend()
        at = errors.at = place_of(runs)
        outcome, handle = run_to_the_end(runs, training, place.key, at, beside_job(task_config))
        _publish(
            runs, outcome, training,
            at=at, place=place, report=report, summary=summary, metrics=metrics, kind="training",
            may_fail=may_fail,
        )  # fmt: skip
        if not outcome.ok:
            say(
                f"the training may fail: the step goes on without a checkpoint, its value is {output.worst:g}"
            )
            refer(model, "no checkpoint: the training failed", "", {"run": outcome.run})
            return Trained(outcome.run, "", "", output.worst)
        progress = outcome.seen.progress
        best = progress.best_checkpoint or progress.checkpoint or ""
        metadata = _checkpoint_metadata(best) if best else {}
        framework = training.get("framework", "pytorch")
        refer(
            model, "checkpoint" if best else "no checkpoint was saved", best,
            {
                "framework": framework, "run": outcome.run, **metadata,
                **(_flags_metadata(outcome, runs.secrets_of(outcome.run)) if best else {}),
            },
        )  # fmt: skip
        value = _value(output, numbers_of(outcome), metadata.get("metrics", {}))
        runs.hand_over(handle)
        return Trained(outcome.run, locate(best)[0] if best else "", best, value)


@with_inputs
def run_collect_checkpoint(
    *,
    source: str,
    source_artifact: Artifact | None = None,
    into: str,
    which: str,
    metric: str,
    mode: str,
    store: str,
    model: Artifact,
) -> str:
    """Copy a checkpoint, verified, to where it stays, and return its uri there."""
    with step_errors():
        named = _checkpoint_uri(source, source_artifact, "source")
        place = Place.of(model.uri, store=store)
        copy = collect(
            place.uri(named), place.uri(into), which,
            metric=metric or None, mode=mode, progress=Meter("bytes").show_bytes,
            handed=_handed_flags(source_artifact),
        )  # fmt: skip
        for note in copy.notes:
            say(note)
        was = "copied" if copy.copied else "was there already"
        say(f"step {copy.step}, {show_bytes(copy.bytes)} {was}: {copy.uri}")
        numbers = in_words(copy.checkpoint.metrics)
        if numbers:
            say(numbers)
        refer(model, "checkpoint", copy.uri, {"source": copy.source, **_manifest_metadata(copy.checkpoint)})
        return copy.uri


@with_inputs
def run_import_checkpoint(
    *, source: str, which: str, metric: str, mode: str, store: str, model: Artifact
) -> str:
    """Vouch for a checkpoint that something else has written, where it is, and return its uri."""
    with step_errors():
        uri = Place.of(model.uri, store=store).uri(source)
        adopted = adopt_at(uri)
        for item, reason in adopted.left:
            say(f"{item.unit.name or uri} ({item.format}) is {item.verdict}, and left: {reason}")
        folder, step = find(uri)
        checkpoint = _chosen(open_store(folder), which if step is None else step, metric or None, mode)
        if checkpoint.step not in {new.step for new in adopted.added}:  # every byte of those was just read
            problems = verify(open_store(folder), checkpoint.step)
            if problems:
                raise Corrupt(f"{checkpoint.uri}: {'; '.join(problems)}; take another one, or write it anew")
        manifest = checkpoint.manifest
        say(f"step {checkpoint.step}, {manifest.format}, {show_bytes(checkpoint.bytes)}: {checkpoint.uri}")
        refer(
            model, "checkpoint", checkpoint.uri, {"format": manifest.format, **_manifest_metadata(checkpoint)}
        )
        return checkpoint.uri


@with_inputs
def run_evaluate(
    *,
    checkpoint: str,
    checkpoint_artifact: Artifact | None = None,
    job: Mapping[str, Any],
    job_text: str,
    overrides: Mapping[str, Any] = MappingProxyType({}),
    environment: Mapping[str, Any] = MappingProxyType({}),
    args: Sequence[Any] = (),
    folder: str,
    store: str,
    backend: str,
    namespace: str,
    metric: str,
    mode: str,
    task_config: TaskConfig | None = None,
    metrics: Artifact,
    report: Artifact,
    summary: Artifact,
    classification: Classification,
) -> Evaluated:
    """Run the user's evaluation of one checkpoint as a job of its own, and return its metrics."""
    with step_errors() as errors:
        place = Place.of(report.uri, store=store, folder=folder, backend=backend, namespace=namespace)
        output = OutputMetric.of(metric, mode)
        uri = place.uri(_checkpoint_uri(checkpoint, checkpoint_artifact))
        job_given = job_of(
            job, job_text, folder, overrides=overrides, environment=environment, args=args,
            task=task_config, tell=say,
        )  # fmt: skip
        place.check_store(job_given.as_mapping())
        runs = place.open_backend()
        files = files_to_evaluate(uri, local=runs.name == "local")
        evaluation = evaluation_job(job_given, files, lenient=True)
        at = errors.at = place_of(runs)
        outcome, handle = run_to_the_end(runs, evaluation, place.key, at, beside_job(task_config))
        _publish(
            runs, outcome, evaluation,
            at=at, place=place, report=report, summary=summary, metrics=metrics, kind="evaluation",
        )  # fmt: skip
        for trouble in draw(numbers_of(outcome), classification):
            say(trouble)
        describe(classification, "confusion matrix and ROC curve, in the metadata")
        measured = without_pictures(numbers_of(outcome))
        results = _for_kubeflow(measured)
        if not results:
            raise BadInput(
                f"the evaluation {outcome.run} succeeded and reported no metrics; call "
                "allaboard.inside.result(accuracy=...) in its script"
            )
        value = _value(output, measured)
        runs.hand_over(handle)
        return Evaluated(outcome.run, results, value)


@with_inputs
def run_promote(
    *,
    checkpoint: str,
    checkpoint_artifact: Artifact | None = None,
    into: str,
    results: Mapping[str, Any],
    metric: str,
    mode: str,
    better_by: float,
    thresholds: str,
    reason: str,
    single_writer: bool,
    despite_flags: bool,
    store: str,
    verdict: Artifact,
    report: Artifact,
) -> Promoted:
    """Make a checkpoint the champion if it passes the gate. One that does not pass is an answer, not a
    failure.
    """
    with step_errors():
        place = Place.of(report.uri, store=store)
        uri = place.uri(_checkpoint_uri(checkpoint, checkpoint_artifact))
        measured = _from_kubeflow(dict(results)) if results else None
        registry = open_store(place.uri(into))
        decision = promote(
            registry, uri, measured, Gate.parse(metric or None, mode, better_by, thresholds),
            now=time.time(), reason=reason, single_writer=single_writer,
            despite_flags=despite_flags, handed=_handed_flags(checkpoint_artifact),
        )  # fmt: skip
        for check in decision.verdict.checks:
            say(f"{'✓' if check.passed else '✗'} {check.reason}")
        for problem in (*decision.notes, *decision.problems):
            say(problem)
        champion = decision.champion
        if decision.promotion is not None:
            say(f"promoted as number {decision.promotion.number}: {decision.promotion.checkpoint}")
        else:
            stays = f"the champion stays number {champion.number}: {champion.checkpoint}" if champion else ""
            say(f"not promoted; {stays or 'there is no champion yet'}")
        shown = measured if measured is not None else checkpoint_at(uri)[1].metrics
        write_page(report, promotion_page(decision, uri, shown, champions(registry).promotions))
        log_numbers(
            verdict, {"promoted": int(decision.promoted), "champion": champion.number if champion else 0}
        )
        log_numbers(verdict, {name: value for name, value in shown.items() if name not in verdict.metadata})
        return Promoted(
            decision.promoted, champion.number if champion else 0, champion.checkpoint if champion else ""
        )


# --- what the steps share -----------------------------------------------------------------------------


class Meter:
    """Logs the progress of a long copy every few seconds, and nothing of a short one."""

    def __init__(self, unit: str) -> None:
        self.unit, self.last_line_at = unit, time.monotonic()

    def show_samples(self, samples: int, total: int | None, size: int) -> None:
        if self._due():
            of = f" of {total:,}" if total else ""
            say(f"{samples:,}{of} {self.unit}, {show_bytes(size)}")

    def show_bytes(self, count: int, total: int) -> None:
        if self._due():
            say(f"{show_bytes(count)} of {show_bytes(total)}")

    def _due(self) -> bool:
        now = time.monotonic()
        due = now - self.last_line_at >= _METER_INTERVAL
        self.last_line_at = now if due else self.last_line_at
        return due


def _checkpoint_uri(text: str, artifact: Artifact | None, name: str = "checkpoint") -> str:
    """The uri of the checkpoint that a step was given. Raises BadInput when there is none."""
    uri = uri_of(text, artifact, name)
    if not uri:
        raise BadInput(
            f"{name} is empty: the training saved no checkpoint; let its script save with "
            "allaboard.inside.Checkpointer, and set checkpoints.uri in its job"
        )
    return uri


def _chosen(folder: Store, which: str | int, metric: str | None, mode: str) -> Checkpoint:
    """The first complete checkpoint of those that ``which`` means. Raises BadInput, StorageMissing."""
    notes: list[str] = []
    checkpoint = next(candidates(folder, which, metric, mode, notes), None)
    for note in notes:
        say(note)
    if checkpoint is None:
        raise StorageMissing(
            f"{folder.uri}: no whole checkpoint of a known format is there; give the folder that holds one"
        )
    return checkpoint


def _source(source: str, folder: str) -> Any:
    """A folder, or a function; both are relative to the step's folder."""
    path = job_folder(source)
    if ":" in source and not (Path(folder) / path).exists():
        return resolve(source, Path(folder))
    return str(path if path.is_absolute() else Path(folder) / path)


def _publish(
    backend: Backend,
    outcome: Outcome,
    job: TrainingJob,
    *,
    at: commands.Place,
    place: Place,
    report: Artifact,
    summary: Artifact,
    metrics: Artifact,
    kind: str,
    may_fail: bool = False,
) -> None:
    """Write the pages and the numbers of a run, and end the step if the run did not succeed, unless it
    ``may_fail``. ``job``: as it was launched.

    Kubeflow keeps no artifact of a step that fails, only its log, so the pages of a failure are put into the
    store as well.
    """
    now = time.time()
    read = read_run(backend, outcome)
    since = since_last_good(backend, outcome.seen)
    window = (place.started, now)
    data = page_data(outcome, read, now, at=at, job=job, kind=kind, since=since, window=window)
    page, lines = run_page(data), run_markdown(data)
    write_page(report, page)
    write_page(summary, lines)
    if not outcome.ok and place.durable:
        name = f"{outcome.run}-{rfc3339(time.time())}".replace(":", "")
        reports = open_store(place.uri("store://reports"))
        with suppress(AllaboardError):  # whatever the store does, the reason of the failure is shown
            reports.write(f"{name}.html", page.encode())
            say(f"  {'report':<11}{reports.uri}/{name}.html")
            reports.write(f"{name}.md", lines.encode())
    finish(outcome, at, since.headline if since is not None else "", may_fail=may_fail)
    log_numbers(metrics, numbers_of(outcome))


def _value(output: OutputMetric, *sources: Mapping[str, Any]) -> float:
    value, trouble = output.value(*sources)
    if trouble:
        say(trouble)
    return value


def _checkpoint_metadata(uri: str) -> dict[str, Any]:
    """The metadata of a checkpoint; empty when it cannot be read, which the step that reads it reports."""
    with suppress(AllaboardError, Corrupt):
        return _manifest_metadata(checkpoint_at(uri)[1])
    return {}


def _manifest_metadata(checkpoint: Checkpoint) -> dict[str, Any]:
    manifest = checkpoint.manifest
    return {
        "run": manifest.run,
        "step": manifest.step,
        "world_size": manifest.world_size,
        "bytes": manifest.size,
        "metrics": dict(manifest.metrics),
    }


def _flags_metadata(outcome: Outcome, secrets: Iterable[str]) -> dict[str, Any]:
    """The flags of a run in the metadata of its checkpoint: their codes in one word, as lists are no values
    there, and the first sentences. ``secrets``: values of the run's job that nobody may see.
    """
    known = handed_flags(redact_texts(outcome.summary, secrets))
    flags = known.flags if known is not None else {}
    sentences = {code: text[:_LONGEST_SENTENCE] for code, text in flags.items() if text}
    return {
        "flags": " ".join(flags) or "none",
        _SENTENCES: dict(islice(sentences.items(), _MOST_SENTENCES)),
    }


def _handed_flags(artifact: Artifact | None) -> RunFlags | None:
    """The flags that the training wrote into its artifact; None: it is another step's."""
    flags = artifact.metadata.get("flags") if artifact is not None else None
    if artifact is None or not isinstance(flags, str):
        return None
    codes = [code for code in flags.split() if code != "none"]
    sentences = [
        {"code": code, "summary": artifact.metadata.get(f"{_SENTENCES}.{code}", "")} for code in codes
    ]
    return handed_flags({"run": artifact.metadata.get("run"), "flags": codes, "diagnoses": sentences})


def _for_kubeflow(results: Mapping[str, Any]) -> dict[str, Any]:
    odd = [name for name, value in results.items() if value is None]
    return {**{k: v for k, v in results.items() if v is not None}, **({NONFINITE: odd} if odd else {})}


def _from_kubeflow(results: Mapping[str, Any]) -> dict[str, Any]:
    odd = results.get(NONFINITE)
    rest = {name: value for name, value in results.items() if name != NONFINITE}
    return {**rest, **dict.fromkeys(odd if isinstance(odd, list) else [])}
