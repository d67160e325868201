"""Rules about restarts, limits and what is left at the end."""

from __future__ import annotations

from collections.abc import Iterator

from allaboard.job.training_job import is_below
from allaboard.lint.rule import Hit, rule
from allaboard.lint.view import JOB, MANIFEST, View, items, mapping
from allaboard.text.names import nearest
from allaboard.text.untrusted import show

_POLICY = frozenset(
    {
        "activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy", "schedulingPolicy", "suspend",
        "ttlSecondsAfterFinished",
    }
)  # fmt: skip
_UNLIMITED = 2**31 - 1
"""Number that stands for no limit in a field that needs one."""
_FOLLOWED = 60
"""Seconds within which whoever follows a job has seen its end and read its logs."""


@rule(
    "restart_always",
    "error",
    "members are started again also after they have succeeded",
    "Under Always a member that exits 0 is started again, so that its replica never succeeds: the job trains "
    "for ever.",
    "say OnFailure",
    job_fix="say on_failure",
)
def restart_always(view: View) -> Iterator[Hit]:
    """Training Operator: RestartPolicyAlways becomes the pods' own (A4 of its API); the kubelet restarts."""
    for group in view.groups:
        if group.restart == "Always":
            yield Hit(view.restart(group))


@rule(
    "exit_code_unbounded",
    "warning",
    "under ExitCode nothing counts the restarts",
    "Codes from 128 on are tried again without end, among them 137 (out of memory) and 139 (segmentation "
    "fault): backoffLimit counts restarts of containers alone, and here pods are made anew.",
    "say OnFailure with a backoffLimit, or limit the time from outside",
    job_fix="say on_failure, or limit the time (policy.deadline, policy.clocks)",
)
def exit_code_unbounded(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4: pkg/util/train (128 and above retry), pkg/controller.v1/common/job.go
    (pastBackoffLimit sums restartCount under OnFailure and Always alone).
    """
    limited = view.origin == JOB and mapping(view.fields.get("policy")).keys() & {"deadline", "clocks"}
    for group in () if limited or not view.is_v1 else view.groups:
        if group.restart == "ExitCode":
            yield Hit(view.restart(group))


@rule(
    "backoff_unlimited",
    "warning",
    "nothing limits how often members are started again",
    "An absent backoffLimit means no limit: a script with a typing slip crashes for ever and holds its GPUs.",
    "give a number, like 3",
)
def backoff_unlimited(view: View) -> Iterator[Hit]:
    """Training Operator: runPolicy.backoffLimit nil is unlimited. Jobs are rendered with 3."""
    usual = view.engine.default_restart(view.engine.FRAMEWORKS[0])
    default = {"on_failure": "OnFailure", "always": "Always"}.get(usual)
    limit = view.policy.get("backoffLimit")
    if not view.is_v1 or (limit is not None and limit != _UNLIMITED):
        return
    if any((group.restart or default) in ("OnFailure", "Always") for group in view.groups):
        yield Hit(view.in_policy("backoffLimit"))


@rule(
    "backoff_without_checkpoints",
    "warning",
    "restarts are asked for, and nothing is saved",
    "Each restart begins from the first step. What failed after ten hours costs ten hours again.",
    "name a place under checkpoints.uri, or take the restarts out",
    reads=(JOB,),
)
def backoff_without_checkpoints(view: View) -> Iterator[Hit]:
    """Elastic and restarted gangs go on from their last checkpoint alone (torchrun: the whole group
    restarts). A script that saves without allaboard is not seen.
    """
    policy = mapping(view.fields.get("policy"))
    asked, elastic = policy.get("backoff_limit"), view.fields.get("elastic")
    if "checkpoints" in view.fields or policy.get("restart") == "never":
        return
    if isinstance(asked, int) and asked > 0:
        yield Hit("policy.backoff_limit")
    elif elastic is not None:
        yield Hit("elastic")


@rule(
    "checkpoints_go_with_the_run",
    "warning",
    "the checkpoints lie in a claim that goes with the run",
    "The claim is deleted with the run, and when its record is forgotten 30 days after its end: the training "
    "is lost with it.",
    "say keep: always in the claim, mount a pvc of yours, or save to a store like s3://",
    reads=(JOB,),
)
def checkpoints_go_with_the_run(view: View) -> Iterator[Hit]:
    """Promise of allaboard for claim.keep: run. A user who promotes or copies the good checkpoints elsewhere
    may ignore it.
    """
    uri = str(mapping(view.fields.get("checkpoints")).get("uri", ""))
    for n, volume in enumerate(items(view.fields.get("storage"))):
        claim = mapping(volume).get("claim")
        goes = claim is not None and mapping(claim).get("keep", "run") == "run"
        if goes and is_below(uri, str(mapping(volume).get("mount"))):
            yield Hit(f"storage[{n}].claim", show(uri))


@rule(
    "deadline_without_timer",
    "warning",
    "the deadline may pass unnoticed",
    "The operator has no timer. It looks at the deadline only when something else happens to the job, and a "
    "job that hangs quietly is the one to which nothing happens.",
    "have a client enforce it (allaboard follow, Airflow), or put `timeout` before the command",
    reads=(MANIFEST,),
)
def deadline_without_timer(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4, pkg/controller.v1/common/job.go; kubeflow/trainer issue 3358. Whoever follows
    a run of ours wakes the operator.
    """
    if view.is_v1 and view.policy.get("activeDeadlineSeconds") is not None:
        yield Hit(view.in_policy("activeDeadlineSeconds"))


@rule(
    "clean_up_leaves_members",
    "warning",
    "members that still run are left there when the job has ended",
    "A job has ended when its master has, or when one member has failed. The others run on and hold their "
    "GPUs until somebody deletes the job. None is what an absent policy means.",
    "say Running",
    job_fix="leave it out, or say running",
)
def clean_up_leaves_members(view: View) -> Iterator[Hit]:
    """Training Operator and MPI Operator: the default of cleanPodPolicy is None for every kind."""
    if not view.in_run_policy or view.total < 2:
        return
    if view.policy.get("cleanPodPolicy") in (None, "None"):
        yield Hit(view.in_policy("cleanPodPolicy"))


@rule(
    "clean_up_unknown",
    "error",
    "there is no such clean-up policy",
    "Nobody checks it: any value that is not None or Running, also one in lower case, acts as All, and the "
    "pods are gone with their logs.",
    "say None, Running or All",
    reads=(MANIFEST,),
)
def clean_up_unknown(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4, pkg/controller.v1/common/job.go, DeletePodsAndServices; its CRD has no
    enum.
    """
    policy = view.policy.get("cleanPodPolicy")
    if view.is_v1 and policy is not None and policy not in ("None", "Running", "All"):
        yield Hit(view.in_policy("cleanPodPolicy"), show(str(policy)))


@rule(
    "clean_up_takes_logs",
    "advice",
    "every pod is removed at the end, the failed ones too",
    "Their logs and exit codes go with them, before anybody has looked why the job failed.",
    "say Running, which removes only what still runs",
    job_fix="say running, which removes only what still runs",
)
def clean_up_takes_logs(view: View) -> Iterator[Hit]:
    """Training Operator: cleanPodPolicy All. A follower reads the ends of the logs before, others do not."""
    if view.policy.get("cleanPodPolicy") == "All":
        yield Hit(view.in_policy("cleanPodPolicy"))


@rule(
    "ttl_too_short",
    "warning",
    "the job is deleted before anybody can see its end",
    "With the job go its pods, their logs and the answer to how it ended. A client that looks once a minute "
    "finds nothing, and cannot tell success from deletion.",
    "give an hour or more, so that clients and people can look",
)
def ttl_too_short(view: View) -> Iterator[Hit]:
    """Training Operator: ttlSecondsAfterFinished 0 deletes at once. The SDK of Kubeflow polls every 15 s,
    ours reads progress every 60 s.
    """
    ttl = view.policy.get("ttlSecondsAfterFinished")
    if isinstance(ttl, (int, float)) and not isinstance(ttl, bool) and 0 <= ttl < _FOLLOWED:
        yield Hit(view.in_policy("ttlSecondsAfterFinished"), f"{ttl} s")


@rule(
    "queue_misplaced",
    "error",
    "the queue stands where nobody reads it",
    "The API server drops an unknown field without a word. Volcano reads "
    "spec.runPolicy.schedulingPolicy.queue; Kueue reads the label kueue.x-k8s.io/queue-name of the job.",
    "move it to spec.runPolicy.schedulingPolicy.queue, or to the label",
    reads=(MANIFEST,),
)
def queue_misplaced(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4, common_types.go: RunPolicy has no queue."""
    if view.is_v1 and "queue" in view.policy:
        yield Hit("spec.runPolicy.queue")


@rule(
    "run_policy_misspelt",
    "error",
    "the run policy has no such field",
    "The API server drops an unknown field without a word unless it is asked to be strict, so that the "
    "setting has no effect.",
    "take it out, or write the field's own name",
    reads=(MANIFEST,),
)
def run_policy_misspelt(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4, common_types.go, RunPolicy."""
    for name in view.policy if view.is_v1 else ():
        if name not in _POLICY and name != "queue":
            near = nearest(str(name), _POLICY)
            yield Hit(f"spec.runPolicy.{name}", f"did you mean {near}?" if near else "")


@rule(
    "template_restart_policy",
    "warning",
    "the restart policy of the template is overwritten",
    "The operator writes the restart policy of the group into its pods and ignores what the template says.",
    "set restartPolicy of the group, beside replicas",
    reads=(MANIFEST,),
)
def template_restart_policy(view: View) -> Iterator[Hit]:
    """Training Operator: event SetPodTemplateRestartPolicy. Its own default stands for an absent one."""
    for group in view.groups if view.is_v1 else ():
        own, groups = group.pod.get("restartPolicy"), group.fields.get("restartPolicy")
        if own is not None and own != groups:
            yield Hit(view.in_pod(group, "restartPolicy"))
