"""From manifests to jobs, and to manifests of another kind. Values in, values out; texts are read within the
bounds of `allaboard.text.untrusted`.

A text holds documents, and a document may be a List of objects. Objects that are no jobs (ConfigMaps, claims,
namespaces) are passed over: an engine may look at those that stand in the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from allaboard.checking.job import check
from allaboard.engines import ENGINES, Engine, engine_of, other_version
from allaboard.engines.mpi import is_key_pair
from allaboard.engines.reading.claims import with_claims
from allaboard.engines.reading.values import Change, Conversion, Loss, plain, without_ours
from allaboard.errors import BadInput, Problem
from allaboard.job.helper import without_helper
from allaboard.job.loader import parse, parse_all
from allaboard.job.training_job import TrainingJob
from allaboard.text.names import one_of, why_not_an_object_name
from allaboard.text.redaction import redact_job, redact_text, secret_values
from allaboard.text.untrusted import Unreadable, parse_json, show
from allaboard.text.untrusted_yaml import parse_yaml

_GROUPS = {
    "MPIJob": "kubeflow.org",
    "MXJob": "kubeflow.org",
    "TrainJob": "trainer.kubeflow.org",
    "JobSet": "jobset.x-k8s.io",
}
"""Kinds of jobs that are known, whether an engine of this version reads them or not -> their API group."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object. ``place``: the text and where in it, like ``jobs.yaml#2``; ``text``: which text."""

    place: str
    text: str
    value: Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of converting a document. ``documents``: jobs or manifests, empty where there are problems or
    where ``passed`` says why it is no job. ``template``: the problems are placeholders that nobody filled in.
    """

    source: Document
    documents: tuple[Mapping[str, Any], ...] = ()
    changed: tuple[Change, ...] = ()
    lost: tuple[Loss, ...] = ()
    problems: tuple[Problem, ...] = ()
    passed: str | None = None
    template: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def title(self) -> str:
        return f"{self.source.place}{_title(self.source.value)}"

    def shown(self, name: str, value: Any) -> Any:
        """A value of the source that stood under this name, without its secrets."""
        hidden = redact_job({name: plain(value)})[name]
        return _hide(hidden, self.secrets)

    def differences(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """``changed`` and ``lost`` as `--json` has them."""
        at = self.source.place
        changed = [
            {
                "path": f"{at}: {change.path}",
                "from": self.shown(_last(change.path), change.before),
                "to": self.shown(_last(change.path), change.after),
                "why": change.reason,
            }
            for change in self.changed
        ]
        lost = [
            {
                "path": f"{at}: {loss.path}",
                "value": self.shown(_last(loss.path), loss.value),
                "why": loss.reason,
            }
            for loss in self.lost
        ]
        return changed, lost


def _hide(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _hide(inner, secrets) for name, inner in value.items()}
    if isinstance(value, list):
        return [_hide(inner, secrets) for inner in value]
    return redact_text(value, known=secrets) if isinstance(value, str) else value


def _last(path: str) -> str:
    return path.rpartition(".")[2].partition("[")[0] or "value"


def _title(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    parts = [word for word in (value.get("kind"), name) if isinstance(word, str)]
    return f" ({show(' '.join(parts), quote=False)})" if parts else ""


# Documents.


def documents(text: str, name: str) -> list[Document]:
    """The objects of a text. Raises BadInput for what is neither YAML nor JSON."""
    try:
        values = _parse(text, name)
    except Unreadable as error:
        hint = ""
        if re.search(r"\{\{|\{%|<%", text):
            hint = "; it looks like a template: fill it in first (helm template, kustomize build)"
        raise BadInput(f"{name} {error}{hint}") from None
    listed = []
    for n, value in enumerate(values, 1):
        place = name if len(values) == 1 else f"{name}#{n}"
        listed += [Document(at, name, item) for at, item in _items(value, place)]
    return listed


def _parse(text: str, name: str) -> list[Any]:
    if name.endswith(".json") or text.lstrip().startswith("{"):
        try:
            return [parse_json(text)]
        except Unreadable as error:
            if name.endswith(".json") or not str(error).startswith("is not JSON"):
                raise
    return parse_yaml(text)


def _items(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The object itself, or the items of a List."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    items = value.get("items") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        for n, item in enumerate(items):
            yield f"{place}.items[{n}]", item
    else:
        yield place, value


# Conversion.


def convert(given: Sequence[Document], to: str | None = None) -> list[Outcome]:
    """Convert each document to a job or, with ``to`` (an engine's name), to the manifests of its kind."""
    texts: dict[str, list[Document]] = {}
    for document in given:
        texts.setdefault(document.text, []).append(document)
    # Of a live object nothing stands beside it.
    beside = {text: within for text, within in texts.items() if text}
    return [_convert(document, _others(document, beside.get(document.text, ())), to) for document in given]


def _others(document: Document, within: Sequence[Document]) -> list[Mapping[str, Any]]:
    """The other objects of the same text."""
    return [other.value for other in within if other is not document and isinstance(other.value, Mapping)]


def _convert(document: Document, others: Sequence[Mapping[str, Any]], to: str | None) -> Outcome:
    value = document.value
    if not isinstance(value, Mapping):
        return Outcome(document, passed="not a Kubernetes object")
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str):
        is_job = "name" in value and bool({"command", "args", "groups"} & {*value})
        known = "a job already; `allaboard render` makes manifests of it"
        return Outcome(document, passed=known if is_job else no_job(value))
    engine = engine_of_manifest(value)
    if engine is None and (wrong := _wrong_name(kind, version)) is not None:
        return Outcome(document, problems=(wrong,))
    if engine is None:
        return Outcome(document, passed=no_job(value))
    try:
        made = job_of(value, others, engine)
        secrets = secret_values(plain(value))
        if to is None:
            changed = (*made.changed, *_other_version(made.job, engine))
            return Outcome(document, (made.job,), changed, made.lost, secrets=secrets)
        return _to_kind(document, made, engine, ENGINES[to])
    except BadInput as error:
        problems = error.problems or (Problem("", error.headline),)
        hinted = tuple(map(_with_hint, problems))
        template = all(given is not other for given, other in zip(problems, hinted, strict=True))
        return Outcome(document, problems=hinted, template=template)


def _other_version(job: Mapping[str, Any], source: Engine) -> Iterator[Change]:
    target = engine_of(TrainingJob.of(job))
    if (reason := other_version(source.NAME, target)) is not None:
        yield Change("apiVersion", source.API_VERSION, target.API_VERSION, reason)


_MAKES = "it makes jobs; give the manifest of the job that stands in it, under"
_SERVES = "it never ends, and does not fail as a whole; give the job that trains"
_RUNTIME = "TrainJobs are made of it; give the TrainJob that names it, in the same file"
_NO_JOBS: Mapping[str, str] = {
    "Job.batch": "the pods of a batch/v1 Job are not a gang, and fail one by one; make it a JobSet, a "
    "PyTorchJob or a TrainJob, or write a job with its image, command and workers",
    "Job.batch.volcano.sh": "its gang is of Volcano; write a job with its image, command and workers, and "
    "gang: {scheduler: volcano}",
    "CronJob": f"{_MAKES} spec.jobTemplate, as a PyTorchJob, a TrainJob or a JobSet",
    "ScaledJob": f"{_MAKES} spec.jobTargetRef, as a PyTorchJob, a TrainJob or a JobSet",
    "Pod": "nothing restarts a single pod; write a job with its image and command, and workers: 1",
    "Experiment": f"a Katib Experiment is a search; {_MAKES} spec.trialTemplate.trialSpec",
    "Suggestion": "it is a part of a Katib Experiment, which is a search; give the manifest under "
    "spec.trialTemplate.trialSpec of the Experiment",
    "Trial": "a Katib Trial is one try of a search; give the manifest under spec.runSpec",
    "Workflow": f"{_MAKES} the template of its step (resource.manifest)",
    "WorkflowTemplate": f"{_MAKES} the template of its step (resource.manifest)",
    "CronWorkflow": f"{_MAKES} the template of its step (resource.manifest)",
    "ScheduledWorkflow": f"{_MAKES} the template of its step (resource.manifest)",
    "PipelineRun": f"{_MAKES} the step that creates it",
    "TaskRun": f"{_MAKES} the step that creates it",
    "AppWrapper": f"{_MAKES} spec.components",
    "RayJob": "Ray starts its own workers; run the command of its driver as a job of one member",
    "RayCluster": _SERVES,
    "RayService": _SERVES,
    "SparkApplication": "Spark starts its own executors; run the command of its driver as a job of one "
    "member",
    "Deployment": _SERVES,
    "StatefulSet": _SERVES,
    "DaemonSet": _SERVES,
    "ReplicaSet": _SERVES,
    "LeaderWorkerSet": _SERVES,
    "InferenceService": _SERVES,
    "Notebook": _SERVES,
    "ClusterTrainingRuntime": _RUNTIME,
    "TrainingRuntime": _RUNTIME,
    "Kustomization": "it names other files; give what it builds (kustomize build)",
    "List": "it holds several objects; give each as a document of its own",
}
"""Kinds that people take for jobs, with their API group where others have the name -> what to do."""
_NO_MANIFESTS: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"pipelineInfo", "root"}),
        "a compiled pipeline is not a job: submit it to Kubeflow Pipelines",
    ),
    (frozenset({"services"}), "a Compose file is not a job: write a job with a service's image and command"),
    (
        frozenset({"compute_environment", "distributed_type"}),
        "a configuration of Accelerate is not a job: write a job whose command names it, "
        "[accelerate, launch, --config_file, ...]",
    ),
    (frozenset({"replicaCount"}), "values of a Helm chart are not a job: give what it makes (helm template)"),
    (frozenset({"run"}), "a task of SkyPilot is not a job: write a job with what run says as its command"),
)
"""Fields that tell what a file is which people take for a job -> what it is, and what to do."""


def no_job(value: Mapping[str, Any]) -> str:
    """Sentence about an object that is no job: its kind, and what to do."""
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str):
        return no_manifest(value) or "not a Kubernetes object: it has no kind"
    group = version.rpartition("/")[0] if isinstance(version, str) else ""
    wrong = _wrong_name(kind, version)
    advice = _NO_JOBS.get(kind) or _NO_JOBS.get(f"{kind}.{group}") or (str(wrong) if wrong else "")
    return f"{show(kind, quote=False)} is not a job{f': {advice}' if advice else ''}"


def no_manifest(value: Mapping[str, Any]) -> str | None:
    """Sentence about a file without a kind whose fields show that it is neither a job nor a manifest."""
    if {"command", "args", "groups"} & {*value}:
        return None
    return next((sentence for fields, sentence in _NO_MANIFESTS if fields <= {*value}), None)


_PLACEHOLDER = re.compile(r"\$\{?[A-Za-z_][A-Za-z0-9_]*\b|<[A-Za-z][A-Za-z0-9 _-]*>|\{\{")


def _with_hint(problem: Problem) -> Problem:
    """A problem with a value that is a placeholder: of a shell, of a person, of Helm."""
    if not _PLACEHOLDER.search(problem.message):
        return problem
    message = f"{problem.message}; it is a placeholder: fill it in first (envsubst, helm template)"
    return replace(problem, message=message)


def _known_kinds() -> set[str]:
    return {*_GROUPS, *(engine.KIND for engine in ENGINES.values())}


def engine_of_manifest(value: Mapping[str, Any]) -> Engine | None:
    """The engine that reads an object: that of its kind and version, else of its kind alone if there is one
    in its API group.
    """
    kind, version = value.get("kind"), value.get("apiVersion")
    engines = [engine for engine in ENGINES.values() if kind == engine.KIND]
    exact = [engine for engine in engines if version == engine.API_VERSION]
    group = version.partition("/")[0] if isinstance(version, str) else None
    # Operators of one kind alone had groups like xgboostjob.kubeflow.org.
    near = [
        engine
        for engine in engines
        if group is not None and f".{group}".endswith(f".{engine.API_VERSION.partition('/')[0]}")
    ]
    if exact:
        return exact[0]
    # Older versions of MPIJob are those of the operators that became the Training Operator.
    near = near if len(near) == 1 else [engine for engine in near if engine.API_VERSION.endswith("/v1")]
    return near[0] if len(near) == 1 and version != "kubeflow.org/v1alpha1" else None


def _wrong_name(kind: str, version: Any) -> Problem | None:
    """Problem of the kind or the version of a job that no engine reads; None: it is no job."""
    meant = next((name for name in _known_kinds() if name.casefold() == kind.casefold()), None)
    if meant is None:
        return None
    if meant != kind:
        return Problem("kind", f"{show(kind)} is not known; kinds are written with their capitals", meant)
    engines = [engine for engine in ENGINES.values() if kind == engine.KIND]
    if not engines:
        known = one_of(engine.KIND for engine in ENGINES.values())
        return Problem("kind", f"{kind} is not read by this version; it reads {known}")
    known = one_of(engine.API_VERSION for engine in engines)
    if version is None:
        return Problem("apiVersion", f"is missing; a {kind} is of {known}")
    message = f"{_words(version)} of {kind} is not read; known: {known}"
    if version == "kubeflow.org/v1alpha1":
        message += ". Its members stood in other fields: give each group its template, as those have it"
    return Problem("apiVersion", message)


def _words(value: Any) -> str:
    return show(value) if isinstance(value, str) else "the version"


def job_of(value: Mapping[str, Any], others: Sequence[Mapping[str, Any]], engine: Engine) -> Conversion:
    """The job that an object says, checked. Raises BadInput with every problem and its path in the object."""
    value, others = without_helper(value), [without_helper(other) for other in others]
    made = with_claims(engine.to_job(value, others), others, {engine.CONTAINER, *engine.ALIASES})
    wrong = [
        replace(problem, path=made.path_of(problem.path))
        for problem in check(made.job)
        if problem.severity == "error"
    ]
    if wrong:
        raise BadInput(f"this {engine.KIND} cannot be a job:", wrong)
    return made


class Given(NamedTuple):
    """The fields of a job, and the engine whose manifest was given in its place; None: none was."""

    fields: Mapping[str, Any]
    source: str | None = None


def given_in(text: str, name: str) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """Read the text of a job file: the job itself, or a manifest, and the objects beside it, such as the
    runtime of a TrainJob, as `allaboard convert` writes them. Raises BadInput, also for several jobs.
    """
    objects = parse_all(text, name)
    is_job = [isinstance(obj, Mapping) and engine_of_manifest(obj) is not None for obj in objects]
    if len(objects) < 2 or sum(is_job) != 1:
        return parse(text, name), []
    others = [obj for obj, job in zip(objects, is_job, strict=True) if not job and isinstance(obj, Mapping)]
    return objects[is_job.index(True)], others


def fields_of(given: Mapping[str, Any], others: Sequence[Mapping[str, Any]] = ()) -> Given:
    """The fields of a job: of the manifest that was given in its place, else what was given. ``others``: the
    objects beside that manifest. Raises BadInput with every problem of a manifest, of which what a job cannot
    say is one.
    """
    is_job = bool({"command", "args", "groups"} & {*given})
    if not ({"apiVersion", "kind"} <= {*given} or ({"apiVersion", "kind"} & {*given} and not is_job)):
        if (sentence := no_manifest(given)) is not None:
            raise BadInput(sentence)
        return Given(given)
    outcome = _convert(Document("this manifest", "", given), others, None)
    problems = [*outcome.problems]
    problems += [Problem(loss.path, f"a job cannot say it: {loss.reason}") for loss in outcome.lost]
    if outcome.passed:
        raise BadInput(outcome.passed)
    if problems:
        raise BadInput("this manifest cannot be a job:", problems)
    engine = engine_of_manifest(given)
    return Given(outcome.documents[0], None if engine is None else engine.NAME)


def _value_at(job: Mapping[str, Any], path: str) -> Any:
    """Value of a job at a path; None: there is none."""
    value: Any = job
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _to_kind(document: Document, made: Conversion, source: Engine, target: Engine) -> Outcome:
    """The manifests of another kind. What only the engine of the source understands is lost."""
    from allaboard.render.cluster_facts import ClusterFacts
    from allaboard.render.manifests import render
    from allaboard.runs.layout import lay_out

    job, lost = dict(made.job), list(made.lost)
    if target is not source:
        engine_spec = job.pop("engine_spec", {})
        if kept := {name: value for name, value in engine_spec.items() if name in target.TAKES_IN}:
            job["engine_spec"] = kept
        for path, value in _leaves({n: v for n, v in engine_spec.items() if n not in kept}, ""):
            reason = f"a {target.KIND} has no such field"
            lost.append(Loss(f"spec.{path}", value, reason))
    framework = job.get("framework", "pytorch")
    if framework not in target.FRAMEWORKS:
        runs = one_of(target.FRAMEWORKS)
        raise BadInput("", [Problem("kind", f"a {target.KIND} runs {runs}, and this job {framework}")])
    job["engine"] = target.NAME
    lost += _lose_restarts(job, made, target)
    wrong = [
        replace(problem, path=made.path_of(problem.path))
        for problem in check(job)
        if problem.severity == "error"
    ]
    if wrong:
        raise BadInput("", wrong)
    known = {(problem.path, problem.message) for problem in source.objections(job)}
    for problem in target.objections(job):
        if (problem.path, problem.message) not in known:
            lost.append(Loss(made.path_of(problem.path), _value_at(job, problem.path), problem.message))
    namespace = document.value["metadata"].get("namespace")
    if namespace is not None and (not isinstance(namespace, str) or why_not_an_object_name(namespace, 63)):
        raise BadInput("", [Problem("metadata.namespace", "is not a namespace name")])
    checked = TrainingJob.of(job)
    layout = lay_out(checked, target, checked.name)
    facts = ClusterFacts(namespace=namespace or "default")
    rendered = render(checked, layout, facts, launch="", spec_hash="")
    lost += [
        Loss("kind", source.KIND, _NO_KEYS.format(name=extra["metadata"]["name"]))
        for extra in rendered.extras
        if is_key_pair(extra)
    ]
    manifests = [_without_place(without_ours(manifest), namespace) for manifest in rendered.manifests]
    for variable, value, name in dict.fromkeys(_unexpanded(manifests, set())):
        reason = f"it refers to {name}, which nothing tells the variables of a {target.KIND}'s members"
        lost.append(Loss(made.path_of(f"environment.{variable}"), value, reason))
    changed = [change for change in made.changed if not (namespace and change.path == "metadata.namespace")]
    secrets = secret_values(plain(document.value))
    return Outcome(document, tuple(manifests), tuple(changed), tuple(lost), secrets=secrets)


def _lose_restarts(job: dict[str, Any], made: Conversion, target: Engine) -> Iterator[Loss]:
    """Takes out of the job what its groups say of restarts where the kind has one rule for all of them."""
    refused = {problem.path: problem.message for problem in target.objections(job)}
    for role, group in (job.get("groups") or {}).items():
        if (path := f"groups.{role}.restart") in refused:
            kept = {name: value for name, value in group.items() if name != "restart"}
            job["groups"] = {**job["groups"], role: kept}
            yield Loss(made.path_of(path), group["restart"], refused[path])


_NO_KEYS = (
    "its operator makes an SSH key for its members, and nobody does here: ssh-keygen -t ecdsa -N '' -f id && "
    "kubectl create secret generic {name} --from-file=ssh-privatekey=id --from-file=ssh-publickey=id.pub, in "
    "the place of the Secret without a key; or let allaboard run the job, which makes one"
)
_TOLD = re.compile(r"(?<!\$)\$\((ALLABOARD_\w+|MASTER_ADDR|COORDINATOR_ADDRESS)\)")
"""A reference to what some engines tell their members, and others not or only later."""


def _unexpanded(value: Any, known: set[str]) -> Iterator[tuple[str, str, str]]:
    """Variables within manifests, with their values, that refer to what no variable before them holds, and
    the name of that. ``known``: variables that stand before; a runtime's are before those of its job.
    """
    variables = value.get("env") if isinstance(value, Mapping) else None
    for variable in variables if isinstance(variables, list) else ():
        if isinstance(variable, Mapping):  # not every field of this name is a container's
            own, text = str(variable.get("name")), str(variable.get("value"))
            yield from ((own, text, name) for name in _TOLD.findall(text) if name not in known)
            known.add(own)
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _unexpanded(inner, known)


def _without_place(manifest: dict[str, Any], namespace: Any) -> dict[str, Any]:
    """A manifest whose source named no namespace names none."""
    if namespace:
        return manifest
    kept = {name: value for name, value in manifest["metadata"].items() if name != "namespace"}
    return {**manifest, "metadata": kept}


def _leaves(fields: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Fields of mappings within mappings, each with its path."""
    for name, value in fields.items():
        at = f"{path}.{name}" if path else name
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, at)
        else:
            yield at, value


# Many documents.


@dataclass(frozen=True, slots=True)
class Score:
    """Numbers of jobs, of converted ones, and of those converted without a loss; ``templates``: documents
    that are jobs once their placeholders are filled in, not counted as jobs; ``passed``: other objects;
    ``losses``: what was lost, the most frequent first.
    """

    jobs: int
    converted: int
    whole: int
    templates: int
    passed: int
    losses: Mapping[str, int]


def score(outcomes: Sequence[Outcome]) -> Score:
    """Counts what became of the documents. Losses are counted by their path without places in lists and
    names of groups.
    """
    templates = sum(outcome.template for outcome in outcomes)
    jobs = [outcome for outcome in outcomes if outcome.passed is None and not outcome.template]
    converted = [job for job in jobs if not job.problems]
    counts: dict[str, int] = {}
    for outcome in converted:
        for path in dict.fromkeys(_pattern(loss.path) for loss in outcome.lost):
            counts[path] = counts.get(path, 0) + 1
    return Score(
        len(jobs),
        len(converted),
        sum(not outcome.lost for outcome in converted),
        templates,
        len(outcomes) - len(jobs) - templates,
        dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
    )


def _pattern(path: str) -> str:
    return re.sub(r"(ReplicaSpecs)\.[^.\[]+", r"\1.*", re.sub(r"\[\d+\]", "[]", path))
