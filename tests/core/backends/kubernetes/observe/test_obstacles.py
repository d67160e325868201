"""What keeps members from starting: each in one sentence, with its code, and whether waiting helps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.discovery.capacity import Pods, room
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.backends.kubernetes.observe.deadlines import HOLDING, limit_of
from allaboard.backends.kubernetes.observe.objects import event_seen, pod_seen
from allaboard.backends.kubernetes.observe.observation import of_object
from allaboard.backends.kubernetes.observe.obstacles import obstacle_of
from allaboard.backends.kubernetes.observe.scene import PATIENCE, Scene
from allaboard.diagnosis import diagnose
from allaboard.runs.layout import Policy
from allaboard.runs.observation import Obstacle, Stop
from allaboard.runs.status import State, state_of
from allaboard.testing import a_member, seen
from allaboard.testing.objects import BEGUN, a_pod, a_pytorchjob, an_event

Json = dict[str, Any]
IMAGE = 'failed to pull image "lab/train:9": '
RUNC = "failed to create containerd task: runc create failed: unable to start container process: "
NO_PLACE = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


def node(name: str = "n1", gpus: int = 8, **fields: Any) -> Node:
    has = {"cpu": "8", "memory": "16Gi", "pods": "110", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return Node(name, has, **fields)


def scene(*pods: Json, total: int | None = None, **fields: Any) -> Scene:
    members = {
        p["metadata"]["name"].partition("-")[2].partition("-")[2] or str(n): p for n, p in enumerate(pods)
    }
    many = total if total is not None else len(pods)
    given = {"job": a_pytorchjob(), "container": "pytorch", "now": BEGUN + 30, "total": many, "needed": many}
    events = [event_seen(event) for event in fields.pop("events", ())]
    seen = {member: pod_seen(pod, "pytorch", member) for member, pod in members.items()}
    specs = {member: pod["spec"] for member, pod in members.items()}
    return Scene(pods=seen, events=events, specs=specs, **{**given, **fields})


def found(*pods: Json, **fields: Any) -> Obstacle:
    one = obstacle_of(scene(*pods, **fields))
    assert one is not None
    return one


def waits(reason: str, words: str = "") -> Json:
    pod = a_pod("master-0", "Pending", waiting=reason, message=words)
    pod["spec"]["containers"][0]["image"] = "lab/train:9"
    return pod


@pytest.mark.parametrize(
    ("reason", "words", "code", "never", "told"),
    [
        ("InvalidImageName", "couldn't parse", "image_not_found", True, "no legal name"),
        ("ErrImageNeverPull", "x", "image_not_found", True, "may not be pulled"),
        ("ErrImagePull", IMAGE + "lab/train:9: not found", "image_not_found", True, "no such image"),
        ("ImagePullBackOff", IMAGE + "manifest unknown", "image_not_found", True, "no such image"),
        ("ImagePullBackOff", IMAGE + "no match for platform in manifest", "image_not_found",
         True, "platform"),
        ("ImagePullBackOff", IMAGE + "401 Unauthorized", "image_pull_auth", True, "refuses it"),
        ("ErrImagePull", IMAGE + "pull access denied, repository does not exist", "image_pull_auth",
         True, ""),
        ("ErrImagePull", IMAGE + "429 Too Many Requests", "image_pull_rate_limited", False, "limits"),
        ("ErrImagePull", IMAGE + "dial tcp: lookup lab: no such host", "image_pull_network",
         False, "reached"),
        ("ErrImagePull", IMAGE + "dial tcp 1.2.3.4:443: i/o timeout", "image_pull_network", False, "reached"),
        ("CreateContainerConfigError", 'secret "keys" not found', "container_config_missing", True,
         "Secret keys does not exist"),
        ("CreateContainerConfigError", 'configmap "c" not found', "container_config_missing", True,
         "ConfigMap c does not exist"),
        ("CreateContainerConfigError", "couldn't find key k in Secret ns/keys", "container_config_missing",
         True,
         "Secret keys has no key k"),
        ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root",
         "run_as_nonroot_violation", True, "root"),
        ("RunContainerError", RUNC + 'exec: "pyhton": executable file not found in $PATH', "bad_entrypoint",
         True, "'pyhton' is not in its image; did you mean 'python'?"),
        ("RunContainerError", RUNC + 'exec: "./t.sh": permission denied', "bad_entrypoint",
         True, "not be exec"),
        ("RunContainerError", RUNC + 'exec: "/t": stat /t: no such file or directory', "bad_entrypoint",
         True, "/t"),
        ("RunContainerError", RUNC + 'chdir to cwd ("/nowhere") set in config.json failed', "bad_entrypoint",
         True, "the folder /nowhere"),
        ("RunContainerError", "exec /t.sh: exec format error", "exec_format_error", True, "processor"),
        ("RunContainerError", "nvidia-container-cli: initialization error: driver not loaded",
         "gpu_runtime_broken", False, "GPU runtime"),
    ],
)  # fmt: skip
def test_a_container_that_cannot_start(reason: str, words: str, code: str, never: bool, told: str) -> None:
    one = found(waits(reason, words))
    assert (one.code, one.never) == (code, never) and told in one.text
    assert (one.said and one.object == "pod/digits-1f0c9a77-master-0") or one.object.startswith("pod/")


def test_a_pull_that_is_put_off_is_told_by_what_its_event_said() -> None:
    pod = waits("ImagePullBackOff", 'Back-off pulling image "lab/train:9"')
    event = an_event("Failed", IMAGE + "lab/train:9: not found", about=pod["metadata"]["name"], kind="Pod")
    event["involvedObject"]["uid"] = pod["metadata"]["uid"]
    assert found(pod, events=[event]).code == "image_not_found"


def test_a_program_that_could_not_be_started_is_told_while_it_is_put_off() -> None:
    last = {"exitCode": 128, "reason": "StartError", "message": RUNC + 'exec: "trian": not found in $PATH'}
    one = found(a_pod("master-0", "Running", waiting="CrashLoopBackOff", restarts=2, last=last))
    assert one.code == "bad_entrypoint" and "'trian'" in one.text
    assert obstacle_of(scene(a_pod("master-0", "Running", restarts=3, last=last))) is None, "it runs now"


def with_init(
    name: str, code: int, restarts: int = 1, reason: str = "Error", state: Json | None = None
) -> Json:
    pod = a_pod("worker-0", "Pending", waiting="PodInitializing")
    ended = {"exitCode": code, "reason": reason, "message": "no data\n"}
    state = state or {"waiting": {"reason": "CrashLoopBackOff"}}
    status = {"name": name, "restartCount": restarts, "state": state, "lastState": {"terminated": ended}}
    pod["status"]["initContainerStatuses"] = [status]
    return pod


def test_an_init_container_that_fails() -> None:
    one = found(with_init("prep", 3))
    assert "init container prep exited with 3: no data" in one.text and not one.never
    assert found(with_init("prep", 3, restarts=9)).never, "the operator would let it go on without end"
    assert found(with_init("prep", 127)).code == "bad_entrypoint"


def test_how_often_it_was_started_again_and_why_is_told_while_it_runs_again_too() -> None:
    goes = {"running": {"startedAt": "2026-11-21T12:00:00Z"}}
    for state in (None, goes):
        one = found(with_init("prep", 137, 2, "OOMKilled", state))
        words = "its init container prep exited with 137 (OOMKilled): no data (2 restarts)"
        assert one.text == f"worker-0 does not start: {words}"
        assert one.code == "oom_killed"


def test_who_waits_for_the_master_is_not_what_is_told() -> None:
    master = waits("ImagePullBackOff", IMAGE + "not found")
    assert found(with_init("init-pytorch", 1), master).code == "image_not_found"
    assert found(with_init("init-pytorch", 1)).code == "master_unreachable_dns"


@pytest.mark.parametrize(
    ("said", "code", "never"),
    [
        ('MountVolume.SetUp failed for volume "s" : secret "keys" not found', "container_config_missing",
         True),
        ('MountVolume.SetUp failed for volume "s" : configmap "c" not found', "container_config_missing",
         True),
        ('MountVolume.SetUp failed for volume "s" : references non-existent secret key: k',
         "container_config_missing", True),
        ('MountVolume.SetUp failed for volume "d" : mount failed: exit status 32 Connection timed out',
         "volume_mount_failed", False),
        ('MountVolume.SetUp failed for volume "d" : mount.nfs: access denied by server',
         "volume_mount_failed", True),
        ('MountVolume.SetUp failed for volume "h" : hostPath type check failed: /x is not a directory',
         "volume_mount_failed", True),
        ('Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) x', "volume_multi_attach",
         False),
    ],
)  # fmt: skip
def test_a_volume_that_does_not_mount(said: str, code: str, never: bool) -> None:
    pod = a_pod("master-0", "Pending")
    event = an_event("FailedMount", said, about="p", kind="Pod", seconds=10)
    event["involvedObject"]["uid"] = pod["metadata"]["uid"]
    one = found(pod, events=[event])
    assert (one.code, one.never) == (code, never) and "volume" in one.text
    pulled = {**an_event("Pulling", "", seconds=12), "involvedObject": event["involvedObject"]}
    assert obstacle_of(scene(pod, events=[event, pulled])) is None, "it was mounted since"


@pytest.mark.parametrize(
    ("said", "code", "never"),
    [
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": ...', "pod_security_denied", True),
        ('pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4',
         "resource_quota_exceeded", False),
        ('pods "x" is forbidden: exceeded quota: q, requested: requests.cpu=64, used: requests.cpu=0, '
         'limited: requests.cpu=4', "resource_quota_exceeded", True),
        ('pods "x" is forbidden: failed quota: q: must specify cpu', "resource_quota_exceeded", True),
        ('pods "x" is forbidden: error looking up service account ns/t: serviceaccount "t" not found',
         "pod_reference_missing", True),
        ('pods "x" is forbidden: no PriorityClass with name high was found', "pod_reference_missing", True),
        ('pods "x" is forbidden: maximum cpu usage per Container is 1, but limit is 2',
         "limitrange_denied", True),
        ('admission webhook "p.kyverno" denied the request: no', "admission_webhook_denied", True),
        ('Internal error: failed calling webhook "w": connection refused', "webhook_unavailable", False),
        ('Pod "x" is invalid: spec.containers[0].image: Invalid value', "job_spec_invalid", True),
    ],
)  # fmt: skip
def test_pods_that_are_refused(said: str, code: str, never: bool) -> None:
    one = found(total=2, events=[an_event("FailedCreatePod", f"Error creating: {said}", seconds=3)])
    assert (one.code, one.never) == (code, never) and "2 of 2 members cannot be made" in one.text
    later = an_event("SuccessfulCreatePod", "", seconds=5)
    events = [an_event("FailedCreatePod", said, seconds=3), later]
    assert obstacle_of(scene(total=2, events=events)) is None


def unplaced(member: str = "master-0", asks: Json | None = None, said: str = NO_PLACE, **spec: Any) -> Json:
    pod = a_pod(member, "Pending", unschedulable=said)
    pod["spec"]["containers"][0]["resources"] = {"requests": asks or {"nvidia.com/gpu": "2"}}
    pod["spec"].update(spec)
    return pod


TAINTED = ({"key": "team", "value": "nlp", "effect": "NoSchedule"},)


@pytest.mark.parametrize(
    ("pod", "nodes", "code", "told"),
    [
        (unplaced(asks={"nvidia.com/gpu": "64"}), [node()], "insufficient_gpu", "the largest node has 8"),
        (unplaced(asks={"cpu": "100"}), [node()], "unschedulable_constraints", "asks for 100 cpu"),
        (
            unplaced(asks={"memory": "1Ti"}),
            [node()],
            "unschedulable_constraints",
            "the largest node has 16Gi",
        ),
        (unplaced(), [node(gpus=0)], "gpu_not_advertised", "no node offers nvidia.com/gpu"),
        (
            unplaced(asks={"nvidia.com/gpus": "1"}),
            [node()],
            "gpu_not_advertised",
            "did you mean nvidia.com/gpu?",
        ),
        (unplaced(), [node(taints=TAINTED)], "unschedulable_constraints", "team=nlp"),
        (unplaced(nodeSelector={"zone": "moon"}), [node()], "unschedulable_constraints", "zone=moon"),
    ],
)
def test_what_no_node_could_ever_hold(pod: Json, nodes: list[Node], code: str, told: str) -> None:
    one = found(pod, nodes=nodes)
    assert (one.code, one.never) == (code, True) and told in one.text
    growing = [replace(n, grows=True) for n in nodes]
    assert not found(pod, nodes=growing).never, "a node may be added"


def test_what_fits_a_node_that_is_full_or_away_only_waits() -> None:
    pod = unplaced()
    assert obstacle_of(scene(pod, nodes=[node()])) is None
    assert obstacle_of(scene(pod, nodes=[node(ready=False)])) is None
    assert obstacle_of(scene(pod, nodes=[node(cordoned=True)])) is None
    assert obstacle_of(scene(pod, nodes=None)) is None, "nodes may not be read"
    tolerates = unplaced(tolerations=[{"operator": "Exists"}])
    assert obstacle_of(scene(tolerates, nodes=[node(taints=TAINTED)])) is None


def test_a_gang_that_fits_the_cluster_at_no_time() -> None:
    pods = [unplaced("master-0"), *(unplaced(f"worker-{n}") for n in range(4))]
    one = found(*pods, nodes=[node("a", 4), node("b", 4), node("c", 0)])
    assert one.never and "4 of its 5 members have a place at once" in one.text
    assert obstacle_of(scene(*pods, nodes=[node("a", 8), node("b", 4)])) is None
    groups = [Pods(str(n), 1, pod["spec"], {}) for n, pod in enumerate(pods)]
    assert room(groups, [node("a", 4), node("c", 0)]) == 2


def test_claims() -> None:
    absent = 'persistentvolumeclaim "data" not found. not found'
    one = found(unplaced(said=absent), nodes=[node()])
    assert (one.code, one.never) == ("pvc_not_bound", True) and "claim data does not exist" in one.text
    unbound = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    one = found(unplaced(said=unbound, volumes=[{"persistentVolumeClaim": {"claimName": "data"}}]))
    assert (one.code, one.never) == ("pvc_not_bound", False) and "claim data has no volume" in one.text


def test_claims_of_ephemeral_volumes_and_of_one_pod() -> None:
    hot = {"name": "storage-0", "ephemeral": {"volumeClaimTemplate": {}}}
    unbound = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    pod = unplaced(said=unbound, volumes=[hot])
    assert f"claim {pod['metadata']['name']}-storage-0 has no volume yet" in found(pod, nodes=[node()]).text
    made = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "x"'
    assert obstacle_of(scene(unplaced(said=made, volumes=[hot]), nodes=[node()])) is None
    in_use = (
        "0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod "
        "access mode already in-use by another pod."
    )
    one = found(unplaced(said=in_use, volumes=[{"persistentVolumeClaim": {"claimName": "data"}}]))
    assert (one.code, one.never) == ("volume_multi_attach", False)
    assert "one pod at a time may mount claim data" in one.text


def test_members_with_the_same_trouble_are_told_in_one_sentence() -> None:
    pods = [
        waits("ImagePullBackOff", IMAGE + "not found"),
        a_pod("worker-0", "Pending", waiting="ErrImagePull"),
    ]
    pods[1]["status"]["containerStatuses"][0]["state"]["waiting"]["message"] = IMAGE + "not found"
    assert "(the same holds for 1 more member)" in found(*pods).text


def test_a_run_that_trains_has_no_obstacle() -> None:
    late = waits("ImagePullBackOff", IMAGE + "not found")
    running = [a_pod(f"worker-{n}") for n in range(2)]
    assert obstacle_of(scene(late, *running, needed=2, total=3)) is None


def test_a_job_that_no_operator_takes_up() -> None:
    one = obstacle_of(scene(total=2, now=BEGUN + 70, has_status=False))
    assert one is not None and one.code == "operator_not_running"
    assert obstacle_of(scene(total=2, now=BEGUN + 30, has_status=False)) is None


# What follows of it.


def test_it_is_told_while_it_starts_and_is_the_first_diagnosis() -> None:
    pod = waits("ImagePullBackOff", IMAGE + "not found")
    looked = of_object(a_pytorchjob("Created", worker=None), now=BEGUN + 30, pods=[pod])
    assert state_of(looked) is State.STARTING and looked.held_by is not None
    first = diagnose(looked)[0]
    assert (first.code, first.retryable, first.blame) == ("image_not_found", False, "master-0")
    assert first.evidence[0].text.startswith("ImagePullBackOff: ")


NEVER = Obstacle("image_not_found", "master-0 cannot start: no such image", True, "master-0")


@pytest.mark.parametrize(
    ("obstacle", "clocks", "left", "code"),
    [
        (NEVER, {}, PATIENCE - 20, "image_not_found"),
        (NEVER, {"image": 60.0}, 40, "image_not_found"),
        (replace(NEVER, never=False), {"image": 60.0}, 40, None),
        (replace(NEVER, never=False), {}, None, None),
        (None, {}, None, None),
    ],
)
def test_what_can_never_start_has_failed_after_the_clock_of_its_phase(
    obstacle: Obstacle | None, clocks: dict[str, float], left: float | None, code: str | None
) -> None:
    looked = seen("starting", obstacle=obstacle, phases={"admitted": 1.0, "scheduled": 1.0, "image": 20.0})
    limit = limit_of(looked, Policy("never", clocks=clocks), 100.0, None)
    assert (limit.left if limit else None, limit.code if limit else None) == (left, code)


@pytest.mark.parametrize(("phase", "left"), [("running", HOLDING - 20), ("pending", PATIENCE - 20)])
def test_members_of_a_gang_that_can_never_start_do_not_hold_their_places(phase: str, left: float) -> None:
    members = (a_member("master-0", phase), a_member("worker-0", "pending"))
    phases = {"admitted": 1.0, "scheduled": 20.0}
    looked = seen("starting", members=members, obstacle=NEVER, phases=phases)
    limit = limit_of(looked, Policy("never"), 100.0, None)
    assert limit is not None and (limit.left, limit.code) == (left, NEVER.code)


def seven(*, of: int = 7, **fields: Any) -> Scene:
    """A gang of members with a GPU each, six of which have their places."""
    placed = [a_pod(f"worker-{n}") for n in range(6)]
    for pod in placed:
        pod["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "1"}}
    waits = [unplaced(f"worker-{n}", asks={"nvidia.com/gpu": "1"}) for n in range(6, of)]
    given = {"nodes": [node(f"n{n}", 2, grows=False) for n in range(3)], **fields}
    return scene(*placed, *waits, **given)


JOINED = BEGUN + 30 - PATIENCE


@pytest.mark.parametrize(
    ("fields", "never", "certain"),
    [
        ({}, True, True),
        ({"nodes": [node(f"n{n}", 2, grows=False, cordoned=n == 0) for n in range(3)]}, True, True),
        ({"nodes": [node("n0", 6, grows=False, joined=JOINED)]}, True, True),
        # What may yet change keeps its patience.
        ({"nodes": [node(f"n{n}", 2) for n in range(3)]}, True, False),
        ({"nodes": [node("n0", 6, grows=False), node("n1", 0, grows=False, ready=False)]}, True, False),
        ({"nodes": [node("n0", 6, grows=False), node("n1", 0, grows=False, joined=JOINED + 1)]}, True, False),
        (
            {"nodes": [node("n0", 6, grows=False, capacity={"nvidia.com/gpu": "8"})]},
            True,
            False,
        ),
        # What fits, and only not now.
        ({"nodes": [node("n0", 7, grows=False)]}, False, False),
        ({"nodes": [node("n0", 6, grows=False), node("n1", 1, grows=False, cordoned=True)]}, False, False),
        ({"nodes": [node("n0", 6, grows=False), node("n1", 1, grows=False, ready=False)]}, False, False),
        ({"nodes": [node("n0", 6, grows=True)]}, False, False),
        ({"events": [an_event("TriggeredScaleUp", "pool 1->2")]}, False, False),
    ],
)
def test_seven_gpus_of_a_cluster_of_six(fields: Json, never: bool, certain: bool) -> None:
    one = obstacle_of(seven(**fields))
    assert ((one is not None and one.never), (one is not None and one.certain)) == (never, certain)


@pytest.mark.parametrize(("gpus", "certain"), [("16", True), ("8", False)])
def test_a_member_that_is_larger_than_every_node(gpus: str, certain: bool) -> None:
    pods = (a_pod("master-0"), unplaced("worker-0", asks={"nvidia.com/gpu": gpus}))
    one = obstacle_of(scene(*pods, nodes=[node("a", 8, grows=False), node("b", 4, grows=False)]))
    assert (one is not None and one.certain) == certain


@pytest.mark.parametrize("phase", ["running", "pending"])
@pytest.mark.parametrize("clocks", [{}, {"scheduled": 3600.0}])
def test_what_no_node_can_ever_hold_ends_at_the_first_look(phase: str, clocks: dict[str, float]) -> None:
    """A clock of the job holds where nobody else waits for its places."""
    members = (a_member("master-0", phase), a_member("worker-0", "pending"))
    looked = seen(
        "starting", members=members, obstacle=replace(NEVER, certain=True), phases={"scheduled": 0.0}
    )
    limit = limit_of(looked, Policy("never", clocks=clocks), 100.0, None)
    assert limit is not None and limit.code == NEVER.code
    assert limit.left == (3600.0 if clocks and phase == "pending" else 0.0)


def test_the_end_is_told_by_what_kept_it() -> None:
    stop = Stop("allaboard", NEVER.text, 9.0, code=NEVER.code)
    found = diagnose(seen("starting", recorded="failed", stop=stop, conditions=()))
    assert [(d.code, d.summary, d.retryable) for d in found] == [(NEVER.code, NEVER.text, False)]


@pytest.mark.parametrize(
    ("said", "code", "never", "told"),
    [
        ("0/3 nodes are available: request devices: device class gpu.nvidia.com does not exist.",
         "gpu_not_advertised", True, "master-0 cannot start: device class gpu.nvidia.com does not exist"),
        ("0/3 nodes are available: 3 cannot allocate all claims. still not schedulable, preemption: 0/3",
         "insufficient_gpu", False, "master-0 waits for devices"),
        ("waiting for resourceclaim digits-master-0-devices-x to be created", "insufficient_gpu", False,
         "waits for the claim"),
    ],
)  # fmt: skip
def test_devices_that_members_claim_and_do_not_get(said: str, code: str, never: bool, told: str) -> None:
    one = found(a_pod("master-0", "Pending", placed=None, unschedulable=said))
    assert (one.code, one.never) == (code, never) and told in one.text
