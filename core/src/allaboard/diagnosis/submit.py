"""Submit and admission: the API server, an operator or a policy says no. Often no pod exists.

One text is of one cause, the first whose sign fits: the specific stand before the general.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import cast

from allaboard.diagnosis.case import Case, JobMessage, quote
from allaboard.diagnosis.finding import Evidence, Finding, Level, Need
from allaboard.diagnosis.placement import amount
from allaboard.diagnosis.rule import RULES, Place, rule, says
from allaboard.diagnosis.verdict import Verdict, refusal_verdict

_NEEDS = (Need.REFUSAL, Need.JOB, Need.EVENTS)
_OURS = (
    r"kubeflow|training-operator|trainer\.|trainjob|pytorchjob|tfjob|xgboostjob|paddlejob|jaxjob|"
    r"mpijob|mpi-operator|jobset"
)
_REFUSING = re.compile(
    r"Fail|Error|Denied|Forbidden|Invalid|Reject|ReplicaSetCreate|ResourcesCreation", re.IGNORECASE
)


def refusals(case: Case) -> list[tuple[Verdict, JobMessage]]:
    """The refusals, oldest first, each with its meaning; not those of objects that were made later."""
    if "refusals" not in case.memo:
        refused = [*_refusals(case)]
        case.memo["refusals"] = sorted(refused, key=lambda item: item[1].time or 0.0)
    return cast("list[tuple[Verdict, JobMessage]]", case.memo["refusals"])


def _refusals(case: Case) -> Iterator[tuple[Verdict, JobMessage]]:
    for message in case.job_messages:
        if message.field == "submit_error":
            refused = case.objects.refused
            word = refused.reason if refused is not None else ""
            if refused is not None and refused.code in _BY_STATUS:
                word = _BY_STATUS[refused.code]
            if (verdict := refusal_verdict(message.text, word, case.limits)) is not None:
                yield verdict, message
            continue
        verdict = refusal_verdict(message.text, "", case.limits)
        if verdict is None or _came_true(case, message):
            continue
        if verdict.code in ("job_spec_invalid", "name_taken") and not _REFUSING.search(
            message.field.partition(".")[2]
        ):
            continue
        yield verdict, message


_BY_STATUS = {422: "Invalid", 401: "Unauthorized"}


def _came_true(case: Case, message: JobMessage) -> bool:
    """True if the refused object has been made since."""
    if case.succeeded or not message.field.startswith("events."):
        return case.succeeded and message.field.startswith("events.")
    if case.missing or not case.objects.pods:
        return False
    made = [pod.created for pod in case.objects.pods if pod.created is not None]
    if case.seen.members and message.time is not None and made:
        return max(made) >= message.time - 1
    return bool(case.seen.members) and len(case.running) == len(case.pods)


def _told(
    case: Case,
    code: str,
    summary: str,
    blame: str | None = None,
    fix: str | None = None,
) -> Iterator[Finding]:
    """One finding of the texts that fall to a code: of the newest of them."""
    texts = [item for item in refusals(case) if item[0].code == code]
    if not texts:
        return
    verdict, message = texts[-1]
    level = Level.REFUSED if message.field == "submit_error" else Level.CAUSE
    yield Finding(
        code,
        summary,
        (message.evidence,),
        blame if blame is not None else message.object,
        message.time,
        level,
        0.95,
        verdict.passes,
        fix,
    )


def _text(case: Case, code: str) -> str:
    return next((message.text for verdict, message in reversed(refusals(case)) if verdict.code == code), "")


def _group(pattern: str, text: str, n: int = 1) -> str:
    match = re.search(pattern, text, re.IGNORECASE | re.DOTALL)
    return (match[n] or "").strip() if match else ""


@rule(
    "webhook_unavailable",
    "An admission webhook does not answer",
    means="The API server must ask a webhook before it accepts the object, and cannot reach it: its "
    "pod is down, has "
    "no endpoints, or its certificate is not accepted. That is an outage, no decision.",
    looks='`failed calling webhook "N"` with `connection refused`, `no endpoints available`, '
    "`context deadline exceeded` or `x509`.",
    fix="its operator or policy webhook is away: try again in a moment; with x509, or after ten minutes, "
    "tell who runs it",
    needs=_NEEDS,
    retryable=True,
    signs=(
        says(
            Place.REFUSAL,
            r"failed calling webhook|failed to call webhook|could not (get|reach) .{0,40}webhook",
        ),
    ),
)
def webhook_unavailable(case: Case) -> Iterator[Finding]:
    text = _text(case, "webhook_unavailable")
    name = _group(r'webhook "([^"]+)"', text)
    service = _group(r"https?://([\w.-]+\.svc)", text)
    blame = f"webhook {name}" + (f" ({service})" if service else "")
    yield from _told(
        case, "webhook_unavailable", f"the admission webhook {name or 'asked'} does not answer", blame
    )


@rule(
    "wrong_container_name",
    "The container that trains has another name than the operator expects",
    means="Each kind expects one container of a fixed name (pytorch, tensorflow, mpi, ...). Without it "
    "the webhook "
    "refuses the job, or an older operator injects nothing and the script misses its environment.",
    looks="`must have at least one container with name pytorch`; or WORLD_SIZE, MASTER_ADDR or "
    "TF_CONFIG missing in "
    "a pod whose containers have other names.",
    fix="rename the container in the job's pod templates: spec.*.template.spec.containers[].name",
    needs=(*_NEEDS, Need.PODS, Need.LOGS),
    signs=(
        says(
            Place.REFUSAL,
            r"must have at least one container (with name|named)|no container (with name|named)|"
            r"container (with name|named) ['\"]?\w+['\"]? (not found|is missing|is required)|"
            r"there is no container named",
        ),
    ),
)
def wrong_container_name(case: Case) -> Iterator[Finding]:
    text = _text(case, "wrong_container_name")
    name = _group(r"(?:with name|named) ['\"]?(\w[\w-]*)", text)
    blame = f"{case.job_name} spec: containers[].name"
    summary = f"the job has no container named {name or 'as its operator expects'}"
    yield from _told(case, "wrong_container_name", summary, blame)
    yield from _not_injected(case, blame)


_EXPECTED = {
    "PyTorchJob": "pytorch",
    "TFJob": "tensorflow",
    "XGBoostJob": "xgboost",
    "PaddleJob": "paddle",
    "JAXJob": "jax",
    "MPIJob": "mpi",
}
_INJECTED = re.compile(
    r"KeyError: '(WORLD_SIZE|RANK|MASTER_ADDR|MASTER_PORT|LOCAL_RANK|TF_CONFIG|COORDINATOR_ADDRESS|"
    r"PROCESS_ID)'|"
    r"environment variable (WORLD_SIZE|RANK|MASTER_ADDR|MASTER_PORT) expected|"
    r"(TF_CONFIG|WORLD_SIZE|MASTER_ADDR|RANK|COORDINATOR_ADDRESS)\S* .{0,30}(not set|is missing|not "
    r"found|not defined|unset|is None)|"
    r"coordinator_address should be defined|"
    r"Not using the DeepSpeed or dist launchers, attempting to detect MPI",
    re.IGNORECASE,
)


def _not_injected(case: Case, blame: str) -> Iterator[Finding]:
    """An operator without a webhook: nothing is injected, and the script dies of it."""
    wanted = _EXPECTED.get(case.job.kind) if case.job is not None else None
    if wanted is None:
        return
    for pod in case.pods:
        log = case.log(pod)
        names = [c.name for c in pod.containers if c.role in ("main", "sidecar")]
        if log is None or not names or wanted in names:
            continue
        lines = [e.text for e in log.fatal] + log.last_lines
        line = next((text for text in lines if _INJECTED.search(text)), None)
        if line is not None:
            yield Finding(
                "wrong_container_name",
                f"the operator injected nothing: no container is named {wanted}, but {', '.join(names)}",
                (
                    Evidence(f"pod/{pod.pod}", "spec.containers", ", ".join(names)),
                    Evidence(f"log/{pod.name}", "text", quote(line)),
                ),
                f"{blame} {', '.join(names)}",
                case.went_bad(pod),
                confidence=0.9,
            )
            return


@rule(
    "runtime_ref_not_found",
    "The training runtime that a TrainJob names is not there",
    means="A TrainJob refers to a TrainingRuntime or ClusterTrainingRuntime by name, kind and API "
    "group, and there is "
    "none. Right after one was made, its webhook may lag some seconds.",
    looks="`specified (Cluster)TrainingRuntime must be created before the TrainJob`, reason "
    "TrainingRuntimeNotSupported, event TrainJobResourcesCreationFailed.",
    fix="correct spec.runtimeRef (name, kind), or create the runtime",
    needs=_NEEDS,
    signs=(
        says(
            Place.REFUSAL,
            r"TrainingRuntime[\"']? must be created before|TrainingRuntimeNotSupported|"
            r"not found.{0,120}TrainingRuntime|TrainingRuntimes?(\.\S+)? .{0,160}not (found|supported)|"
            r"unsupported runtime|runtimeRef.{0,160}(not found|not supported|must be created)",
        ),
    ),
)
def runtime_ref_not_found(case: Case) -> Iterator[Finding]:
    name = next(iter(case.spec(r"^spec\.runtimeRef\.name$").values()), "")
    text = _text(case, "runtime_ref_not_found")
    name = name or _group(r'TrainingRuntime\S* "([^"]+)"', text)
    summary = f"the runtime {name or 'that it names'} does not exist or is not supported"
    blame = f"{case.job_name} spec.runtimeRef" + (f" {name}" if name else "")
    yield from _told(case, "runtime_ref_not_found", summary, blame)
    conditions = [
        c for c in case.conditions if c.reason == "TrainingRuntimeNotSupported" and c.status == "True"
    ]
    if conditions and not text:
        evidence = Evidence(
            case.job_name,
            f"conditions.{conditions[0].type}",
            quote(conditions[0].message or conditions[0].reason),
        )
        yield Finding("runtime_ref_not_found", summary, (evidence,), blame, conditions[0].since)


@rule(
    "admission_webhook_denied",
    "A policy of the cluster refuses it",
    means="An admission webhook or policy that is not the operator's own (Gatekeeper, Kyverno, ...) "
    "decided against "
    "the object.",
    looks='`admission webhook "N" denied the request: ...` with its reason.',
    fix="follow its message, or ask who owns that policy",
    needs=_NEEDS,
    signs=(
        says(
            Place.REFUSAL,
            r"ValidatingAdmissionPolicy .{0,200}denied|"
            rf"admission webhook \"(?!\S*({_OURS}))[^\"]+\" denied the request",
        ),
    ),
)
def admission_webhook_denied(case: Case) -> Iterator[Finding]:
    text = _text(case, "admission_webhook_denied")
    name = _group(r'admission webhook "([^"]+)"', text) or _group(
        r"ValidatingAdmissionPolicy '([^']+)'", text
    )
    reason = _group(r"denied (?:the )?request: (.*)$", text)
    summary = f"the policy {name} refuses it" + (f": {quote(reason)}" if reason else "")
    is_policy = "ValidatingAdmissionPolicy" in text and 'admission webhook "' not in text
    binding = _group(r"with binding '([^']+)'", text)
    blame = f"ValidatingAdmissionPolicy {name}" if is_policy else f"webhook {name}"
    yield from _told(
        case, "admission_webhook_denied", summary, f"{blame} (binding {binding})" if binding else blame
    )


_QUOTA = re.compile(
    r"exceeded quota: (\S+?),? requested: (.*?), used: (.*?), limited: (.*)", re.DOTALL | re.IGNORECASE
)


@rule(
    "openshift_scc_denied",
    "No security context constraint of OpenShift admits the pods",
    means="OpenShift tries each constraint that the service account may use; none admits the user, "
    "group or volumes "
    "that the pod asks for.",
    looks="`unable to validate against any security context constraint: [...]`; of its entries those "
    "of a constraint "
    "that may be used tell the field, `not usable by user or serviceaccount` is noise.",
    fix="drop runAsUser, fsGroup and hostPath from the pod template, or bind a constraint to the "
    "service account",
    needs=_NEEDS,
    signs=(says(Place.REFUSAL, "security context constraint"),),
)
def openshift_scc_denied(case: Case) -> Iterator[Finding]:
    text = _text(case, "openshift_scc_denied")
    fields = dict.fromkeys(
        m[1]
        for m in re.finditer(
            r"\b(runAs\w+|fsGroup\w*|supplementalGroups|hostPath|hostNetwork|hostIPC|hostPID|hostPorts?|"
            r"privileged|capabilities\S*|seLinux\w*|allowPrivilegeEscalation|volumes\[\d+\])",
            text,
        )
    )
    scc = dict.fromkeys(m[1] for m in re.finditer(r"provider \"?([\w-]+)\"?: \.", text))
    asked = "/".join(list(fields)[:4]) or "what the pod asks for"
    of = f" by {', '.join(list(scc)[:2])}" if scc else ""
    blame = " ".join([*list(scc)[:2], asked])
    yield from _told(
        case, "openshift_scc_denied", f"OpenShift does not admit its pods: {asked} is not allowed{of}", blame
    )


@rule(
    "pod_security_denied",
    "The namespace's Pod Security level refuses the pods",
    means="The namespace enforces a Pod Security Standard, and a container breaks it; often one that "
    "an operator or a "
    "service mesh adds, as init-pytorch.",
    looks='`violates PodSecurity "restricted:latest"` with the container and the field.',
    fix="set what it names in securityContext of that container, or in the operator's template of its "
    "init container",
    needs=_NEEDS,
    signs=(says(Place.REFUSAL, r"(?<!would )violates? PodSecurity"),),
)
def pod_security_denied(case: Case) -> Iterator[Finding]:
    text = _text(case, "pod_security_denied")
    level = _group(r'violates PodSecurity "([^"]+)"', text)
    container = _group(r'containers? "([^"]+)"', text)
    named = f", container {container}" if container else ""
    summary = f"the namespace refuses its pods (Pod Security {level or 'level'}{named})"
    blame = f"container {container}" if container else None
    yield from _told(case, "pod_security_denied", summary, blame)


@rule(
    "resource_quota_exceeded",
    "A ResourceQuota of the namespace leaves no room",
    means="Pods cannot be made because the namespace's quota is used up by others; some replicas may "
    "exist while the "
    "rest never appears. When the request alone is above the limit, waiting does not help.",
    looks="`exceeded quota: Q, requested: .., used: .., limited: ..`, or `failed quota: Q: must specify`.",
    fix="wait until others give back what the quota counts, ask for less, or for more quota",
    needs=_NEEDS,
    retryable=True,
    signs=(
        says(Place.REFUSAL, r"failed quota:.*must specify", passes=False),
        says(Place.REFUSAL, "insufficient quota to match these scopes", passes=False),
        says(Place.REFUSAL, r"exceeded quota|failed quota:", passes=lambda message: not _is_beyond(message)),
        says(Place.REFUSAL, "status unknown for quota"),
    ),
    fix_for_good="ask for less, or for more quota",
)
def resource_quota_exceeded(case: Case) -> Iterator[Finding]:
    text = _text(case, "resource_quota_exceeded")
    match = _QUOTA.search(text)
    name = match[1].strip(",") if match else _group(r"quota: ([\w.-]+)", text)
    fix = None
    summary = f"quota {name or 'of the namespace'} has no room for its pods"
    if match:
        summary += f": {quote(match[2])} asked, {quote(match[3])} used of {quote(match[4].split(chr(10))[0])}"
    if _is_beyond(text):
        summary = f"one pod alone asks for more than quota {name} allows at all"
    if "must specify" in text:
        summary = f"quota {name} wants every pod to say its resources, and these do not"
        fix = "add the resources that it names to the pod templates"
    if "match these scopes" in text:
        summary = "no quota of the namespace lets in pods of this priority"
        fix = "take another priority class (gang.priority), or ask for a quota of this one"
    yield from _told(case, "resource_quota_exceeded", summary, name or None, fix)


def _is_beyond(text: str) -> bool:
    """True if the request alone is more than the quota has at all."""
    match = _QUOTA.search(text)
    if match is None:
        return False
    limits = _amounts(match[4])
    return any(value > limits.get(name, value) for name, value in _amounts(match[2]).items())


def _amounts(text: str) -> dict[str, Decimal]:
    """``requests.cpu=4,pods=2``"""
    amounts = {}
    for part in re.split(r"[,\s]+", text):
        name, _, value = part.partition("=")
        if (number := amount(value)) is not None:
            amounts[name] = number
    return amounts


@rule(
    "limitrange_denied",
    "A LimitRange of the namespace refuses the pods' resources",
    means="What a container asks for is above the maximum, below the minimum, or its limit too far "
    "from its request.",
    looks="`maximum memory usage per Container is X, but limit is Y`, `max limit to request ratio`.",
    fix="change resources of the pod template to what the LimitRange allows",
    needs=_NEEDS,
    signs=(
        says(
            Place.REFUSAL,
            r"(maximum|minimum) \S+ usage per (Container|Pod|PersistentVolumeClaim)|limit to request ratio|"
            r"must be less than or equal to \S+ limit of",
        ),
    ),
)
def limitrange_denied(case: Case) -> Iterator[Finding]:
    text = _text(case, "limitrange_denied")
    bound = _group(r"((?:maximum|minimum) \S+ usage per \w+ is [^,]+, but \w+ is [^.,\]]+)", text)
    bound = bound or _group(
        r'(Invalid value: "[^"]+": must be less than or equal to \S+ limit of [^,\s]+)', text
    )
    named = _group(r"(?:maximum|minimum) (\S+) usage per", text) or _group(r"equal to (\S+) limit of", text)
    blame = f"{case.job_name} pod spec: resources {named}".rstrip()
    yield from _told(
        case, "limitrange_denied", f"a LimitRange refuses its pods: {bound or 'resources'}", blame
    )


@rule(
    "namespace_terminating",
    "The namespace is being deleted",
    means="Somebody deletes the namespace: nothing is made in it any more, and what is there goes.",
    looks="`unable to create new content in namespace N because it is being terminated`.",
    fix="wait until it is gone and create it anew, or name another with --namespace",
    needs=_NEEDS,
    signs=(says(Place.REFUSAL, r"because it is being terminated|namespace \S+ is (being )?terminat"),),
)
def namespace_terminating(case: Case) -> Iterator[Finding]:
    text = _text(case, "namespace_terminating")
    name = _group(r"namespace \"?([\w-]+)", text)
    summary = f"namespace {name} is being deleted, and nothing is made in it any more"
    yield from _told(case, "namespace_terminating", summary, f"namespace {name}")


@rule(
    "name_taken",
    "Something else has the name of one of its objects",
    means="An object of the same name is there that is not the job's: of another tool, or one that is still "
    "going.",
    looks='`pods "X" already exists`, `object is being deleted: pods "X" already exists`.',
    fix="delete the object that it names, or start the job under another name",
    needs=_NEEDS,
    signs=(
        says(Place.REFUSAL, r"object is being deleted.*already exists", passes=True),
        says(Place.REFUSAL, r"\S+ \"[^\"]+\" already exists"),
    ),
)
def name_taken(case: Case) -> Iterator[Finding]:
    text = _text(case, "name_taken")
    name = _group(r"(\S+ \"[^\"]+\") already exists", text)
    going = ", and is still going" if "being deleted" in text else ""
    yield from _told(case, "name_taken", f"its pods cannot be made: {name} is there already{going}", name)


@rule(
    "pod_reference_missing",
    "The pods name a service account or priority class that is not there",
    means="The API server refuses pods that refer to objects which do not exist.",
    looks="`error looking up service account ns/x`, `no PriorityClass with name x was found`.",
    fix="create it, or correct its name in the pod template",
    needs=_NEEDS,
    signs=(
        says(
            Place.REFUSAL,
            r"error looking up service account|service account \S+ was not found|"
            r"no PriorityClass with name|serviceaccounts? \"[^\"]+\" not found|"
            r"priorityclass(es)?(\.\S+)? \"[^\"]+\" not found|"
            r"(runtimeclass|resourceclaimtemplate)\S* \"[^\"]+\" not found",
        ),
    ),
)
def pod_reference_missing(case: Case) -> Iterator[Finding]:
    text = _text(case, "pod_reference_missing")
    account = _group(r"service ?accounts? \"?([\w./-]+)\"?", text)
    priority = _group(r"PriorityClass with name (\S+)", text)
    other = re.search(r"(\w+)(?:es|s)?(?:\.[\w.]+)? \"([^\"]+)\" not found", text)
    missing = f"{other[1]} {other[2]}" if other is not None else "an object"
    if priority or account:
        missing = f"PriorityClass {priority}" if priority else f"service account {account}"
    yield from _told(
        case,
        "pod_reference_missing",
        f"{missing} that its pods name does not exist",
        f"{case.job_name} pod spec: {missing}",
    )


@rule(
    "crd_missing",
    "The cluster does not know this kind of job",
    means="The API server serves no such kind in this version: the operator's definitions are not "
    "installed, or the "
    "manifest names another version than the one that is.",
    looks='`could not find the requested resource` (404) or `no matches for kind "X" in version "Y"`.',
    fix="install the operator, or correct apiVersion: `allaboard cluster` shows what is served",
    needs=_NEEDS,
    signs=(
        says(
            Place.REFUSAL,
            r"no matches for kind|could not find the requested resource|resource mapping not found|"
            r"ensure CRDs are installed first|the server doesn't have a resource type|404 page not found|"
            r"API could not find \S+ for requested resource|CRD is installed on",
        ),
    ),
)
def crd_missing(case: Case) -> Iterator[Finding]:
    text = _text(case, "crd_missing")
    kind = _group(r'no matches for kind "([^"]+)"', text) or case.job_name.partition("/")[0]
    version = _group(r'in version "([^"]+)"', text)
    where = f" in version {version}" if version else ""
    yield from _told(
        case, "crd_missing", f"the cluster does not serve {kind}{where}", f"API server: {kind}{where}"
    )


@rule(
    "rbac_forbidden",
    "Who submits may not do that",
    means="The account that sent the request has no Role for it in this namespace.",
    looks='403 `User "U" cannot create resource "R" in API group "G" in the namespace "N"`.',
    fix="grant that verb on that resource to the account in this namespace (Role and RoleBinding)",
    needs=_NEEDS,
    signs=(
        says(
            Place.REFUSAL,
            r"cannot \w+ resource|RBAC: |attempting to grant RBAC|cannot set blockOwnerDeletion",
        ),
        says(Place.REFUSAL, reasons=("Unauthorized",), last=True),
    ),
)
def rbac_forbidden(case: Case) -> Iterator[Finding]:
    text = _text(case, "rbac_forbidden")
    user = _group(r'User "([^"]+)"', text)
    verb, resource = _group(r"cannot (\w+) resource", text), _group(r'resource "([^"]+)"', text)
    space = _group(r'in the namespace "([^"]+)"', text)
    action = f"{verb} {resource}" + (f" in namespace {space}" if space else "")
    summary = f"{user or 'the account'} may not {action}" if verb else "the request was not authorized"
    if "blockOwnerDeletion" in text and case.job is not None:
        # OwnerReferencesPermissionEnforcement, which OpenShift has on: it is the operator that lacks a right.
        kind = case.job.kind.lower()
        user = f"{kind}-controller"
        summary = f"the operator may not update {kind}s/finalizers, which its pods' owner reference takes"
    yield from _told(case, "rbac_forbidden", summary, user or None)


@rule(
    "job_spec_invalid",
    "A field of the job is not legal",
    means="The API server, or the operator's own webhook, names a field whose value it does not take.",
    looks="422 or 400 with a field path; a denial by the operator's validator; a condition FailedValidation.",
    fix="correct what it names in the job: `allaboard check` and `allaboard lint` find more of them at once",
    needs=_NEEDS,
    signs=(
        says(
            Place.REFUSAL,
            r"denied the request| is invalid:|Invalid value|Required value|Unsupported value|Forbidden: "
            r".{0,80}immutable|"
            r"strict decoding error|unknown field|must be specified|"
            r"must not be provided in pod spec|is not valid|validation (failed|error)|"
            r"ValidationError|field is immutable|cannot be handled as a|DNS-?1(035|123)",
            last=True,
        ),
        says(Place.REFUSAL, reasons=("Invalid", "BadRequest"), last=True),
    ),
)
def job_spec_invalid(case: Case) -> Iterator[Finding]:
    text = _text(case, "job_spec_invalid")
    path = _group(r"\b((?:spec|metadata)\.[\w.\[\]\"/-]+)", text).rstrip(".:")
    path = path or _group(r"value of (priority) ", text)
    summary = f"the job is not valid: {quote(_core(text))}"
    blame = f"{case.job_name} spec" + (f": {path}" if path else "")
    yield from _told(case, "job_spec_invalid", summary, blame)
    for c in case.conditions:
        if c.reason.endswith("FailedValidation") and c.status == "True" and not text:
            evidence = Evidence(case.job_name, f"conditions.{c.type}", quote(c.message or c.reason))
            summary = f"the job is not valid: {quote(c.message or c.reason)}"
            yield Finding("job_spec_invalid", summary, (evidence,), f"{case.job_name} spec", c.since)


def _core(text: str) -> str:
    return _group(r"denied the request: (.*)$", text) or _group(r" is invalid: (.*)$", text) or text


@rule(
    "operator_not_running",
    "No operator takes up the job",
    means="The job object exists, and no controller has written to it: the operator is down, or does "
    "not watch this "
    "namespace.",
    looks="No conditions, no events, no pods a minute after the job was made.",
    fix="start the operator and look at its log and namespaces: `allaboard cluster` shows it",
    needs=(Need.JOB, Need.PODS, Need.EVENTS),
    after=60.0,
)
def operator_not_running(case: Case) -> Iterator[Finding]:
    job = case.job
    if job is None or not job.kind or job.conditions or case.objects.pods or case.is_suspended:
        return
    age = case.age(job.created)
    managed = [v for k, v in job.facts.items() if k.endswith("managedBy") and "multikueue" in v]
    has_status = any(k.startswith("status.") for k in job.facts)
    if managed or has_status or case.seen.waiting is not None or case.objects.refused is not None:
        return
    # A gang's object may have the name of the job, and a scheduler that is there.
    if any(e.name == job.name and e.kind in (job.kind, "", "JobSet", "Job") for e in case.events):
        return
    if refusals(case):
        return  # by a controller of what it became
    if case.is_younger(job.created, RULES["operator_not_running"].cause.after):
        return
    since = f" for {age:.0f} s" if age else ""
    yield Finding(
        "operator_not_running",
        f"no operator has taken up the {job.kind}{since}: is it running?",
        (Evidence(case.job_name, "status", "no conditions, no events, no pods"),),
        case.job_name,
        job.created,
        confidence=0.85,
    )
