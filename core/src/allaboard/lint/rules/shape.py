"""Rules about roles, names and what a kind of job needs to work at all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from allaboard.lint.rule import Hit, rule
from allaboard.lint.view import MANIFEST, View, mapping
from allaboard.text.names import nearest, one_of
from allaboard.text.untrusted import show

_LONGEST = 63
"""Characters of a Service's name."""


def _roles(view: View) -> set[str]:
    return {group.role for group in view.groups}


@rule(
    "no_master",
    "warning",
    "workers without a master are told nothing of each other",
    "A PyTorchJob without a master and without an elastic policy gets no MASTER_ADDR, no RANK and no "
    "WORLD_SIZE: init_process_group waits for ever, or fails.",
    "add a Master with replicas: 1, or an elasticPolicy",
    job_fix="add master: 1, or elastic",
)
def no_master(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4, pkg/controller.v1/pytorch/envvar.go: set where a Master exists."""
    if view.engine.KIND != "PyTorchJob" or view.total < 2 or "master" in _roles(view):
        return
    if not isinstance(view.spec.get("elasticPolicy"), Mapping):
        yield Hit(view.at_groups)


@rule(
    "elastic_without_torchrun",
    "warning",
    "an elastic job is led by torchrun, which no command starts",
    "The elastic policy only sets PET_* variables. Nobody but torchrun reads them: without it members "
    "neither meet nor come and go.",
    "start the script with torchrun",
)
def elastic_without_torchrun(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4, pkg/controller.v1/pytorch/elastic.go; torchrun reads PET_ variables. What a
    command of an image or a script of its own starts is not seen.
    """
    if not isinstance(view.spec.get("elasticPolicy"), Mapping) or view.engine.KIND != "PyTorchJob":
        return
    starters = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")
    for group, trainer in view.trainers:
        line = " ".join(trainer.line)
        if re.search(r"\bpython[0-9.]*\s", line) and not any(word in line for word in starters):
            yield Hit(view.container(group, trainer, "command"))


@rule(
    "rendezvous_conf_empty",
    "error",
    "an empty rdzvConf ends the operator's look at the job",
    "The operator takes the last item of the list without asking whether there is one; the job never gets a "
    "status.",
    "take the empty list out",
    reads=(MANIFEST,),
)
def rendezvous_conf_empty(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4, pkg/controller.v1/pytorch/elastic.go."""
    if view.is_v1 and mapping(view.spec.get("elasticPolicy")).get("rdzvConf") == []:
        yield Hit("spec.elasticPolicy.rdzvConf")


@rule(
    "role_unknown",
    "error",
    "its kind has no such role",
    "A webhook refuses it, or, of a TFJob, nobody does: pods are made of it that count for nothing.",
    "write one of the roles of its kind",
    reads=(MANIFEST,),
)
def role_unknown(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4, pkg/webhooks; TFJob's does not look at the roles."""
    if not view.is_v1:
        return
    roles = [*view.engine.roles(view.engine.FRAMEWORKS[0])]
    for group in view.groups:
        if group.role not in roles:
            near = nearest(group.role, roles)
            yield Hit(group.at, f"did you mean {near.capitalize()}?" if near else f"known: {one_of(roles)}")


@rule(
    "master_not_one",
    "error",
    "a master has exactly one replica, and says so",
    "The webhook reads the number as it is written and refuses an absent one, too.",
    "write replicas: 1",
    reads=(MANIFEST,),
)
def master_not_one(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4, pkg/webhooks/pytorch and xgboost: `must be 1`, before there are defaults."""
    for group in view.groups if view.is_v1 and view.engine.KIND in ("PyTorchJob", "XGBoostJob") else ():
        if group.role == "master" and group.replicas != 1:
            yield Hit(f"{group.at}.replicas")


@rule(
    "ends_at_once",
    "error",
    "the role that decides has no members",
    "A job has succeeded when all members of the deciding role have; of none, all have. It ends as Succeeded "
    "before anything was trained.",
    "give it a member, or take the role out",
    reads=(MANIFEST,),
)
def ends_at_once(view: View) -> Iterator[Hit]:
    """Training Operator: a job has succeeded when replicas less the succeeded ones of the deciding role are
    0 (pkg/controller.v1, each kind's UpdateJobStatus).
    """
    deciding = next((r for r in ("master", "chief", "launcher", "worker") if r in _roles(view)), None)
    for group in view.groups if view.is_v1 else ():
        if group.role == deciding and group.replicas == 0:
            yield Hit(f"{group.at}.replicas")


@rule(
    "container_misnamed",
    "error",
    "no container has the name that the operator expects",
    "The operator finds the container that trains by its name: its webhook refuses the job, or members get "
    "no variables and no port.",
    "give the container that trains the name of its kind",
    reads=(MANIFEST,),
)
def container_misnamed(view: View) -> Iterator[Hit]:
    """Training Operator 1.9.4, pkg/webhooks: `must have at least one container with name`. MPIJob has no
    such rule.
    """
    if not view.is_v1 or "mpi" in view.engine.FRAMEWORKS:
        return
    for group in view.groups:
        names = [container.name for container in group.containers if not container.begins]
        if view.engine.CONTAINER not in names:
            yield Hit(view.in_pod(group, "containers"), f"it is called {view.engine.CONTAINER}")


@rule(
    "name_too_long",
    "error",
    "the names of its members are too long",
    "The job is admitted and its pods are made, and then the Service of the same name is refused: the job "
    "never gets a status.",
    "shorten the name to 40 characters or fewer",
    reads=(MANIFEST,),
)
def name_too_long(view: View) -> Iterator[Hit]:
    """Training Operator: each pod has a Service of its name, a DNS label of 63 characters."""
    longest = max((len(f"-{g.role}-{max(0, g.count - 1)}") for g in view.groups), default=0)
    if len(view.name) + longest > _LONGEST:
        yield Hit("metadata.name", f"{len(view.name) + longest} characters, and {_LONGEST} fit")


@rule(
    "privileged",
    "advice",
    "a container has all rights on its node",
    "Training needs no privileges. Where RDMA is the reason, one capability is enough; Pod Security refuses "
    "privileged pods at its levels baseline and restricted.",
    "take it out, or add the capability IPC_LOCK alone",
)
def privileged(view: View) -> Iterator[Hit]:
    """Kubernetes, Pod Security Standards; NCCL over InfiniBand pins memory, for which IPC_LOCK is enough."""
    for group, container in view.containers:
        if mapping(container.fields.get("securityContext")).get("privileged") is True:
            yield Hit(view.container(group, container, "securityContext.privileged"))


@rule(
    "one_process_for_several_gpus",
    "advice",
    "several GPUs per member, and one process",
    "The command starts one process, which uses one GPU unless the script spreads its work itself; the "
    "others are held and idle.",
    "start one process per GPU, with torchrun",
)
def one_process_for_several_gpus(view: View) -> Iterator[Hit]:
    """PyTorch: DistributedDataParallel wants one process per GPU. nprocPerNode is read by torchrun alone."""
    starters = (
        "torchrun",
        "torch.distributed",
        "accelerate",
        "deepspeed",
        "mpirun",
        "colossalai",
        "composer",
    )
    if "pytorch" not in view.engine.FRAMEWORKS or not view.is_v1:
        return
    for group, trainer in view.trainers:
        is_plain = len(trainer.line) > 1 and trainer.line[0].rpartition("/")[2].startswith("python")
        if trainer.gpus > 1 and is_plain and not any(s in part for part in trainer.line for s in starters):
            yield Hit(view.container(group, trainer, "command"), show(" ".join(trainer.line)))
