"""Communication: members that do not find each other, or lose each other.

Most of what is said here is said by victims. What waits for a peer that never ran, or died, is a symptom
and comes after the peer's own cause; it comes first only where nothing else is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from allaboard.diagnosis.case import Case, exit_code, has_run, is_running, pod_object, quote
from allaboard.diagnosis.finding import Evidence, Finding, Level, Need
from allaboard.diagnosis.logs import Hit, Log, line_pattern
from allaboard.diagnosis.reading import GOES_ON, SECONDARY, Reading, author, from_logs, log_evidence, readings
from allaboard.diagnosis.rule import rule
from allaboard.runs.observation import PodSeen

_NEEDS = (Need.PODS, Need.LOGS)

_SSH = line_pattern(
    r"ssh: connect to host|ssh: Could not resolve hostname|ORTE was unable to reliably start|"
    r"unable to run bstrap_proxy|ORTE does not know how to route|port 22: (Connection|No route)|"
    r"kex_exchange_identification|"
    r"ssh_exchange_identification"
)
_DNS = line_pattern(
    r"Name or service not known|Temporary failure in name resolution|gai ?error|getaddrinfo|nodename "
    r"nor servname|"
    r"can't resolve|waiting for master|could not resolve|No address associated with hostname|server "
    r"can't find|NXDOMAIN|DNS resolution failed|C-ares status"
)
_STORE_NAME = line_pattern(
    r"https?://|amazonaws|s3\.|storage\.googleapis|huggingface|blob\.core|endpoint|boto|Max retries|"
    r"pypi|wandb|mlflow|ssh:|urllib3|requests\.|httpx|httpcore|aiohttp|urlopen|URLError|ClientConnector"
)
_REFUSED = line_pattern(
    r"(client socket|TCPStore|c10d|socket\.cpp|rendezvous|master|connect to \[?[\w.-]+\]?[: ]\d|"
    r"connectFullMesh|gloo).{0,200}(timed out|Connection refused|reset by peer|No route to host|"
    r"errno: 1(10|11|13))|"
    r"client socket has (timed out|failed to connect)|Connection refused.{0,80}(master|MASTER|:23456|:29500)|"
    r"recvValue failed|failed to recv, got 0 bytes|ConnectionRefusedError|DistNetworkError|No route to host|"
    r"Connect(ion)? to .{1,80} (timed out|refused)|failed to connect to all addresses|connection "
    r"attempts? failed|Socket Connect Error|connect to \(failed\)|"
    r"Failed to connect to (the tracker|remote host|\S+:\d+)|Failed to bootstrap the communication|"
    r"TCP connect timeout|got_connected == true|upstream connect error or disconnect"
)
_RENDEZVOUS = line_pattern(
    r"RendezvousTimeoutError|Timed out after \d+ seconds waiting for clients|\d+/\d+ clients joined|"
    r"DEADLINE_EXCEEDED.{0,200}[Bb]arrier|Barrier timed out|client socket has timed out|"
    r"wait timeout after \d+ ?ms, keys:|timed out waiting for .{0,40}(nodes|workers|peers|participants)|"
    r"Wait(ing)? for .{0,40}(members|workers|nodes) timed out|RendezvousConnectionError|"
    r"rendezvous.{0,80}timed? ?out|Timed out initializing process group in store based barrier|"
    r"Failed to accept connection|Poll timeout:\d+ milliseconds"
)
_CLIENTS = re.compile(r"(\d{1,6})/(\d{1,6}) clients joined|reached the barrier: (\d{1,6})/(\d{1,6})")


_MESHES = line_pattern(r"connectFullMesh")
"""A line that all ranks write, the master too, when they meet and do not reach each other."""


def _is_master(case: Case, pod: PodSeen) -> bool:
    role = pod.labels.get("training.kubeflow.org/job-role", "") or pod.labels.get(
        "training.kubeflow.org/replica-type", ""
    )
    if role in ("master", "chief"):
        return True
    return case.ranks.get(pod.member or "") == 0


def master_of(case: Case) -> PodSeen | None:
    return next((pod for pod in case.pods if _is_master(case, pod)), None)


def never_ran(case: Case) -> list[PodSeen]:
    """Members that have not run at all, and are not over."""
    return [pod for pod in case.objects.pods if not has_run(pod) and pod.phase in ("Pending", "")]


def _has_mesh(case: Case) -> tuple[PodSeen, str] | None:
    """A pod with a mesh's sidecar, and the sidecar's name."""
    for pod in case.pods:
        for container in pod.containers:
            if container.name in (
                "istio-proxy",
                "linkerd-proxy",
                "consul-dataplane",
                "envoy",
                "envoy-sidecar",
                "kuma-sidecar",
            ):
                return pod, container.name
    return None


def _procs(case: Case) -> int | None:
    """Processes per member, where the job says it as a number."""
    counts = [v for k, v in case.spec(r"(nprocPerNode|numProcPerNode)$").items() if v.isdigit()]
    return int(counts[0][:6]) if counts else None


@rule(
    "master_unreachable_dns",
    "The master's name does not resolve",
    means="Workers find the master by the name of a Service. It does not resolve: the Service or the "
    "master is not there "
    "(yet), or name resolution is blocked.",
    looks="`Name or service not known`, `Temporary failure in name resolution`, `gai error`, "
    "init-pytorch `waiting for "
    "master`; newer torch hides it behind `client socket has timed out`.",
    fix="look at the master first, then at its headless Service and at network policies for DNS",
    needs=(*_NEEDS, Need.EVENTS),
    retryable=True,
)
def master_unreachable_dns(case: Case) -> Iterator[Finding]:
    for finding in from_logs(
        case,
        "master_unreachable_dns",
        _DNS,
        "the master's name does not resolve",
        but=_STORE_NAME,
        level=Level.SYMPTOM,
        running=True,
        secondary=True,
        confidence=0.85,
    ):
        if not asks_an_endpoint(case, finding.who):
            yield finding
    for pod in never_ran(case):
        for container in pod.containers:
            message = " ".join(t.message for t in (container.now, container.last) if t)
            if container.role == "init" and _DNS.pattern.search(message):
                yield Finding(
                    "master_unreachable_dns",
                    f"{pod.name} waits for the name of its master",
                    (Evidence(pod_object(pod), f"initContainerStatuses[{container.name}]", quote(message)),),
                    pod.name,
                    None,
                    Level.SYMPTOM,
                    0.7,
                )
                return


@rule(
    "master_unreachable_network",
    "The master is there and cannot be reached",
    means="Its name resolves and it runs and listens, yet connections are refused, reset or time out: "
    "a network policy, a "
    "service mesh that intercepts them, a firewall between nodes.",
    looks="`Connection refused|reset by peer`, `timed out ... trying to connect`, `recvValue failed`, "
    "`failed to recv, got 0 "
    "bytes`; a NetworkPolicy or an istio-proxy container.",
    fix="allow the rendezvous port (23456, 29500) and the collective's ports; disable sidecar "
    "injection for the pods",
    needs=(*_NEEDS, Need.EVENTS),
)
def master_unreachable_network(case: Case) -> Iterator[Finding]:
    master = master_of(case)
    alive = (
        master is None or is_running(master) or ((log := case.log(master)) is not None and log.has(_MESHES))
    )
    if (
        master is not None
        and not alive
        and (exit_code(master) is not None or master.phase in ("Failed", "Pending"))
    ):
        return
    mesh = _has_mesh(case)
    for finding in from_logs(
        case,
        "master_unreachable_network",
        _REFUSED,
        "it does not reach the master",
        level=Level.SYMPTOM,
        running=True,
        secondary=True,
        confidence=0.8,
        but=line_pattern(
            r"clients joined|Name or service|name resolution|gai ?error|DNS resolution|https?://|port 22\b"
        ),
    ):
        log = case.logs.get(finding.who or "")
        if log is None or (log.has(_DNS) and not log.has(line_pattern(r"recvValue|got 0 bytes"))):
            continue
        if master is not None and finding.who == master.name and not mesh and not log.has(_MESHES):
            continue
        if _joined_late(case, finding.who or "") or asks_an_endpoint(case, finding.who):
            continue
        if mesh is not None:
            pod, proxy = mesh
            evidence = (*finding.evidence, Evidence(pod_object(pod), "spec.containers", proxy))
            yield Finding(
                finding.code,
                f"{proxy} stands between the members: {finding.summary}",
                evidence,
                f"{proxy} in {pod.name}",
                finding.at,
                Level.CAUSE,
                0.9,
                from_object=False,
                who=finding.who,
            )
            return
        if alive:
            yield finding


def asks_an_endpoint(case: Case, name: str | None) -> bool:
    """True if a request over HTTP ended this member: the host that it could not reach is no member."""
    return any(
        reading.pod.name == name
        and reading.fatal is not None
        and _STORE_NAME.pattern.search(reading.fatal.text)
        for reading in readings(case)
    )


def _joined_late(case: Case, name: str) -> bool:
    """True if this member has trained: then its master was reached once."""
    log = case.logs.get(name)
    return log is not None and log.has(GOES_ON)


@rule(
    "rendezvous_timeout",
    "The members did not all meet in time",
    means="Those that were there waited for others until the rendezvous gave up. If any member never "
    "ran, its own trouble "
    "is the cause.",
    looks="RendezvousTimeoutError, `Timed out after N seconds waiting for clients. a/b clients joined`, "
    "`wait timeout after N ms, keys: ...`, JAX `DEADLINE_EXCEEDED: Barrier timed out`, and all pods run in "
    "the end.",
    fix="every member must call init_process_group; raise the timeout, pre-pull images, start them as a gang",
    needs=_NEEDS,
    retryable=True,
)
def rendezvous_timeout(case: Case) -> Iterator[Finding]:
    last = _last_to_start(case)
    for finding in from_logs(
        case,
        "rendezvous_timeout",
        _RENDEZVOUS,
        "the members did not all meet",
        level=Level.SYMPTOM,
        running=True,
        secondary=True,
        confidence=0.8,
    ):
        log = case.logs.get(finding.who or "")
        if log is not None and log.has(_DNS) and "clients joined" not in finding.summary:
            continue
        blame = last.name if last is not None and not case.is_local else finding.blame
        yield Finding(
            finding.code,
            finding.summary,
            finding.evidence,
            blame,
            finding.at,
            Level.SYMPTOM,
            0.8,
            from_object=False,
            who=finding.who,
        )


def _last_to_start(case: Case) -> PodSeen | None:
    """The member that started last, where it was clearly later than the first."""
    started = [
        (tried.started, pod)
        for pod in case.pods
        if pod.main is not None and (tried := pod.main.last or pod.main.now).started is not None
    ]
    if len(started) < 2:
        return None
    first, last = min(t for t, _ in started if t is not None), max(started, key=lambda item: item[0] or 0.0)
    return last[1] if (last[0] or 0.0) - first > 30 else None


_WORLD = line_pattern(
    r"rank .{0,30}>= ?(the )?world[_ ]size|invalid rank|mismatch in rank count|"
    r"Unexpected task request with task_name|"
    r"world[_ ]size.{0,60}(mismatch|does not match|"
    r"doesn't match|not equal|!=|expected)|"
    r"rank \d+ .{0,40}out of range|expected (world size|\d+ (nodes|workers|ranks|processes)).{0,60}(got|"
    r"but|found)|"
    r"number of (nodes|processes).{0,60}(mismatch|does not match)|rank should be less than world|"
    r"Unexpected number of (ranks|processes)|invalid value.{0,20}WORLD_SIZE|duplicate rank|already "
    r"(joined|registered).{0,30}rank"
)


@rule(
    "world_size_mismatch",
    "The script counts on another number of members",
    means="WORLD_SIZE, --nnodes or a number in the script does not agree with replicas times processes "
    "per member.",
    looks="`rank .. >= world_size`, `invalid rank`; `a/b clients joined` where b is not what the job "
    "has; hard-coded --nnodes.",
    fix="take RANK and WORLD_SIZE from the environment that the operator injects, or start with torchrun",
    needs=(*_NEEDS, Need.JOB),
)
def world_size_mismatch(case: Case) -> Iterator[Finding]:
    yield from from_logs(
        case, "world_size_mismatch", _WORLD, "the script's world size is not the gang's", running=True
    )
    if not case.seen.members:
        return
    members = [m for m in case.seen.members if m.group != "launcher"]
    size, per = len(members), _procs(case)
    for reading in readings(case):
        for hit in reading.log.hits(line_pattern(r"\d+/\d+ clients joined|reached the barrier: \d+/\d+")):
            match = _CLIENTS.search(hit.text)
            if match is None:
                continue
            joined, wanted = int(match[1] or match[3]), int(match[2] or match[4])
            fits = {size, size * (per or 1)} | (
                {size * n for n in (1, 2, 4, 8, 16)} if per is None else set()
            )
            # One process of each member has come, and that is all who ever do.
            alone = joined == size < wanted and per is None and not _launches(case)
            if (wanted not in fits or alone) and size > 0 and not never_ran(case) and joined <= wanted:
                yield _wrong_size(case, reading, hit.text, f"it waits for {wanted}, and the job has {size}")
                return
    yield from _said_size(case, size)


def _launches(case: Case) -> bool:
    """True if a launcher starts several processes in a member."""
    texts = [v for pod in case.objects.pods for k, v in pod.facts.items() if ".command" in k or ".args" in k]
    return any(re.search(r"torchrun|torch\.distributed|accelerate|deepspeed|mpirun", text) for text in texts)


def _said_size(case: Case, size: int) -> Iterator[Finding]:
    """A number of nodes in the command or the environment of the job that is not its own."""
    for pod in case.objects.pods:
        texts = {
            k: v for k, v in pod.facts.items() if re.search(r"^containers\[\d+\]\.(command|args)\[\d+\]$", k)
        }
        texts |= {
            k: v
            for k, v in (case.job.facts.items() if case.job is not None else ())
            if re.search(r"containers\[\d+\]\.(command|args)\[\d+\]$|trainer\.(command|args)\[\d+\]$", k)
        }
        for path, text in texts.items():
            match = _NODES.search(text)
            if match is not None and int(match[1]) != size and _in_trouble(case):
                yield _spec_size(case, path, match[0], size)
                return
        names = {
            k: v
            for k, v in pod.facts.items()
            if k.endswith(".name") and ".env[" in k and v in ("WORLD_SIZE", "PET_NNODES", "NNODES")
        }
        for path, name in names.items():
            value = pod.facts.get(path.removesuffix(".name") + ".value", "")
            per = _procs(case) or 1
            if (
                value.isdigit()
                and int(value[:9]) not in {size, size * per}
                and _in_trouble(case)
                and int(value[:9]) % max(size, 1) != 0
            ):
                yield _spec_size(case, path, f"{name}={value}", size)
                return


_NODES = re.compile(r"--(?:[\w.]+\.)?(?:nnodes|num[_-](?:nodes|machines))[= ](\d{1,5})(?!\d*:)")
_MEETS = line_pattern(
    r"Pending sync|Starting elastic_operator with launch configs|Initializing distributed: GLOBAL_RANK"
)


def _in_trouble(case: Case) -> bool:
    return any(
        reading.log.has(_RENDEZVOUS)
        or reading.log.has(_REFUSED)
        or reading.log.has(_WORLD)
        or (reading.log.has(_MEETS) and not reading.log.has(GOES_ON))
        for reading in readings(case)
    ) and not never_ran(case)


def _spec_size(case: Case, path: str, text: str, size: int) -> Finding:
    return Finding(
        "world_size_mismatch",
        f"the job has {size} members, and its command says {text}",
        (Evidence(case.job_name, path, quote(text)),),
        f"{case.job_name} spec: {text}",
        None,
        Level.CAUSE,
        0.85,
    )


def _wrong_size(case: Case, reading: Reading, text: str, difference: str) -> Finding:
    return Finding(
        "world_size_mismatch",
        f"the script counts on another number of members: {difference}",
        log_evidence(reading.pod, text),
        f"{case.job_name} spec: {reading.pod.name}",
        case.went_bad(reading.pod),
        Level.CAUSE,
        0.85,
        from_object=False,
        who=reading.pod.name,
    )


@rule(
    "port_in_use",
    "The rendezvous port is taken",
    means="Another process listens where the master wants to: with hostNetwork another job on the "
    "node, or a second launcher "
    "in the pod. After a restart it may be the leftover of the first try.",
    looks="`EADDRINUSE`, `Address already in use` when the process group is made.",
    fix="leave MASTER_PORT to allaboard, choose another port, or drop hostNetwork",
    needs=(*_NEEDS, Need.JOB),
)
def port_in_use(case: Case) -> Iterator[Finding]:
    for finding in from_logs(
        case,
        "port_in_use",
        line_pattern(
            r"Binding port \d+ failed|EADDRINUSE|Address already in use|errno: 98\b|failed to bind to"
        ),
        "the rendezvous port is taken",
        secondary=True,
        running=True,
    ):
        pod = next((p for p in case.pods if p.name == finding.who), None)
        host = pod is not None and pod.facts.get("hostNetwork") == "true"
        host = host or any(
            k.endswith("hostNetwork") and v == "true" for k, v in (case.job.facts.items() if case.job else ())
        )
        again = pod is not None and pod.main is not None and pod.main.restarts > 0
        yield Finding(
            finding.code,
            finding.summary,
            finding.evidence,
            finding.blame,
            finding.at,
            Level.SYMPTOM if again else Level.CAUSE,
            finding.confidence,
            # On one machine allaboard reserves another port for the next start.
            retryable=bool(host or case.is_local),
            fix="another node may do; else choose another port or drop hostNetwork" if host else None,
            from_object=False,
            who=finding.who,
        )


_NO_INTERFACE = line_pattern(
    r"no socket interface found|No interface found in the same subnet|Unable to find (network "
    r")?interface|Unable to find address for: |ifa != nullptr|unknown interface|"
    r"makeDeviceForInterface|ncclSocketInit: .{0,60}neither AF_INET|"
    r"connectFullMesh failed(?!.{0,300}(timed out|refused|No route|unreachable|closed by peer|reset|errno: "
    r"1))|"
    r"connectFullMesh failed.{0,300}remote=\[?(127\.|::1|169\.254|172\.17\.)"
)
_WRONG_INTERFACE = line_pattern(
    r"(Bootstrap|NET/Socket|NET/IB)\s*:\s*Using.{0,40}?(docker0|virbr\d|\blo:|169\.254\.)|connect to "
    r"(172\.17|169\.254|127\.0)\.\S+.{0,80}(refused|timed out|failed)|"
    r"(172\.17\.\d+\.\d+)<\d+>.{0,80}(refused|failed)"
)


@rule(
    "nccl_interface",
    "NCCL or gloo uses the wrong network interface",
    means="NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that the pod does not have, or "
    "the library chose "
    "docker0, lo or a link-local one, which no peer reaches.",
    looks="`Bootstrap : no socket interface found`; bootstrap on docker0, lo, virbr or 169.254; "
    "connections to 172.17.* refused.",
    fix="set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the pod's interface (mostly eth0), or unset them",
    needs=(*_NEEDS, Need.JOB),
)
def nccl_interface(case: Case) -> Iterator[Finding]:
    def blame(pod: PodSeen, text: str) -> str:
        name = next(
            (v for k, v in pod.facts.items() if k.endswith(".name") and "SOCKET_IFNAME" in v),
            "NCCL_SOCKET_IFNAME",
        )
        return f"{case.job_name} spec env {name} ({pod.name})"

    yield from from_logs(
        case,
        "nccl_interface",
        _NO_INTERFACE,
        "its network library finds no interface",
        running=True,
        blame=blame,
        secondary=True,
        anywhere=True,
    )
    findings = [
        *from_logs(
            case,
            "nccl_interface",
            _WRONG_INTERFACE,
            "its network library uses the wrong interface",
            running=True,
            blame=blame,
            secondary=True,
            confidence=0.85,
        )
    ]
    if findings and not all(_joined_late(case, f.who or "") for f in findings):
        yield from findings


_WATCHDOG = line_pattern(
    r"watchdog got stuck for|due to \S+ watchdog hang|Watchdog caught collective operation timeout|"
    r"collective operation timeout: WorkNCCL|Timed out "
    r"waiting \d+ms for (send|recv)|NCCL.{0,60}watchdog.{0,60}timeout"
)
_WORK = re.compile(r"SeqNum=(\d{1,12}),\s*OpType=(\w+)(?:,\s*NumelIn=(\d{1,15}))?")
_ENQUEUED = re.compile(r"last enqueued(?: NCCL)? work: (-?\d{1,12})")


def _watchdogs(case: Case) -> list[tuple[Reading, int | None, str, str, str, float | None]]:
    """(reading, sequence number, operation, elements, line, time) of each member's first watchdog."""
    if "watchdogs" not in case.memo:
        caught = []
        for reading in readings(case):
            seen: set[int | None] = set()
            goes = None if reading.ended else reading.log.last(GOES_ON)
            for hit in reading.log.hits(_WATCHDOG):
                if hit.rank in seen or (goes is not None and goes.position > hit.position):
                    continue
                seen.add(hit.rank)
                work = _WORK.search(hit.text)
                caught.append(
                    (
                        reading,
                        int(work[1]) if work else None,
                        work[2] if work else "",
                        (work[3] or "") if work else "",
                        hit.text,
                        hit.time,
                    )
                )
        case.memo["watchdogs"] = caught
    every: list[tuple[Reading, int | None, str, str, str, float | None]] = case.memo["watchdogs"]
    return every


@rule(
    "nccl_timeout",
    "A collective timed out, and nothing tells why",
    means="All ranks waited in the same collective until the watchdog ended them, and no member, event "
    "or node shows an "
    "earlier cause. Look at the rank that printed nothing, or has the lowest sequence number.",
    looks="`Watchdog caught collective operation timeout: WorkNCCL(SeqNum=..)` with the same number "
    "and operation everywhere.",
    fix="run once more with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and NCCL_DEBUG=INFO; look for a "
    "straggler and at its storage",
    needs=_NEEDS,
    retryable=True,
)
def nccl_timeout(case: Case) -> Iterator[Finding]:
    dogs = _watchdogs(case)
    if not dogs:
        return
    reading, number, op, _, text, at = dogs[0]
    silent = [
        pod
        for pod in case.objects.pods
        if all(d[0].pod.name != pod.name for d in dogs) and case.log(pod) is not None
    ]
    low = min(dogs, key=lambda d: d[1] if d[1] is not None else 1 << 60)
    blame = silent[0].name if silent else low[0].pod.name
    operation = f"{op or 'a collective'}" + (f" number {number}" if number is not None else "")
    more = f"; {silent[0].name} printed nothing" if silent else ""
    yield Finding(
        "nccl_timeout",
        f"{operation} timed out on {len(dogs)} rank{'s' if len(dogs) > 1 else ''}{more}",
        log_evidence(reading.pod, text),
        blame,
        at,
        Level.SYMPTOM,
        0.75,
        from_object=False,
        who=None,
    )


@rule(
    "nccl_init_mismatch",
    "Members run different images or drivers",
    means="The first collective hangs or fails because pods run different builds: a tag that moved, or "
    "pools with different "
    "drivers.",
    looks="A stall right after communicator init, and pods whose imageID digests, `NCCL version` lines "
    "or driver labels differ.",
    fix="pin the image by digest, and keep a job within one pool of drivers",
    needs=(*_NEEDS, Need.NODES),
)
def nccl_init_mismatch(case: Case) -> Iterator[Finding]:
    pods = [
        pod
        for pod in case.objects.pods
        if pod.main is not None and has_run(pod) and "launcher" not in (pod.member or "")
    ]
    if len(pods) < 2:
        return
    stuck = any(
        reading.log.has(_WATCHDOG)
        or reading.log.has(
            line_pattern(
                r"init(ialization)? COMPLETE|ncclCommInit|Init START|NCCL version|unhandled system "
                r"error|invalid usage|internal error|ncclInvalid|ncclSystem|Timeout"
            )
        )
        for reading in readings(case)
    )
    trained = any(
        reading.log.has(line_pattern(r"\bstep\b[ =:#]*[1-9]\d*|\bepoch\b[ =:#]*[1-9]\d*"))
        for reading in readings(case)
    )
    if trained or any(reading.speaks for reading in readings(case)):
        return
    # One tag, several digests: it moved between two pulls. No more has to be said where no step was made.
    digests = {pod.name: pod.main.image_id for pod in pods if pod.main is not None}
    tags = {pod.main.image for pod in pods if pod.main is not None}
    moved = len(tags) == 1 and not any(case.is_younger(pod.created, 300) for pod in pods)
    if not stuck and not moved:
        return
    for field, values in (
        ("image digest", digests if len(tags) == 1 else {}),
        ("NCCL version", {pod.name: _nccl_version(case, pod) for pod in pods} if stuck else {}),
        ("driver", {pod.name: _driver(case, pod) for pod in pods} if stuck else {}),
    ):
        known = {name: value for name, value in values.items() if value}
        if len(set(known.values())) > 1:
            counts = [*known.values()]
            odd = min(known, key=lambda name: counts.count(known[name]))
            usual = max(set(counts), key=counts.count)
            evidence = tuple(
                Evidence(f"pod/{name}", field, quote(value)) for name, value in list(known.items())[:4]
            )
            yield Finding(
                "nccl_init_mismatch",
                f"{odd} runs another {field} than the others ({quote(known[odd])[-60:]}, not "
                f"{quote(usual)[-60:]})",
                evidence,
                odd,
                None,
                Level.CAUSE if stuck else Level.SYMPTOM,
                0.85 if stuck else 0.7,
            )
            return


def _nccl_version(case: Case, pod: PodSeen) -> str:
    log = case.log(pod)
    hit = (
        next(iter(log.hits(line_pattern(r"NCCL version \d+\.\d+[\w.+]*"), 1)), None)
        if log is not None
        else None
    )
    return hit.match[0] if hit is not None else ""


def _driver(case: Case, pod: PodSeen) -> str:
    log = case.log(pod)
    hit = next(iter(log.hits(line_pattern(r"cudaDriverVersion \d+"), 1)), None) if log is not None else None
    if hit is not None:
        return hit.match[0]
    node = case.nodes.get(pod.node)
    keys = [
        k
        for k in (node.labels if node is not None else {})
        if "cuda.driver" in k or "driver-version" in k or "driver.version" in k
    ]
    return (
        " ".join(f"{k.rpartition('/')[2]}={node.labels[k]}" for k in sorted(keys)) if node is not None else ""
    )


_FABRIC = line_pattern(
    r"NET/IB.{0,200}(completion|Got async event|error)|vendor err(or)? \d+|ibv_\w+ (failed|call failed|"
    r"error)|ibv_poll_cq|NET/OFI.{0,120}(fail|error|warn)|"
    r"Call to (recv|send|connect).{0,80}(Connection timed out|No route)|IBV_WC_\w*(ERR|EXC)|transport "
    r"retry count(er)? exceeded|"
    r"local QP operation err|\bRoCE\b.{0,40}(error|timeout)|port (down|error).{0,40}mlx|"
    r"mlx5_\S+.{0,60}link (is )?down"
)


@rule(
    "network_fabric_error",
    "The fabric between two nodes fails",
    means="InfiniBand, RoCE or EFA reports errors between two members that both live: a cable, a "
    "switch, an adapter.",
    looks="`NET/IB : Got completion .. with status=12 .. vendor err 129`, `ibv_* failed`, `NET/OFI`, "
    "`Call to recv .. "
    "Connection timed out`. That a remote process exited is no fault of the fabric.",
    fix="exclude that pair of nodes, start again from the checkpoint, have the link checked",
    needs=_NEEDS,
    retryable=True,
)
def network_fabric_error(case: Case) -> Iterator[Finding]:
    def blame(pod: PodSeen, text: str) -> str:
        device = re.search(r"\bmlx5_\w+|\brdmap\w+|\bibp\w+|\befa_\w+", text)
        return " ".join(
            filter(
                None, [pod.node or pod.name, device[0] if device else "", f"({pod.name})" if pod.node else ""]
            )
        )

    fine = line_pattern(
        r"No device found|Failed to open libibverbs|Using \[|NCCL INFO NET/IB\s*: Using|status=5\b|"
        r"vendor err 249|status=0\b|collective mismatch"
    )
    yield from from_logs(
        case,
        "network_fabric_error",
        _FABRIC,
        "the network between nodes fails",
        but=fine,
        secondary=True,
        anywhere=True,
        running=False,
        blame=blame,
        confidence=0.88,
    )


_MISMATCH = line_pattern(
    r"Detected mismatch between collectives|Mismatched collective|mismatch(ed)? (between )?collective|"
    r"collective.{0,60}(shapes?|types?) (are )?(different|mismatch)|Collectives? (differ|do not "
    r"match)|monitoredBarrier.{0,120}failed to pass|Ranks? .{0,60}failed to pass monitoredBarrier|"
    r"preamble\.length <= op\.nbytes|collective mismatch error|MPI_ERR_TRUNCATE"
)
_STALLED = line_pattern(r"waiting for remainder of ranks|submitted .{0,60}by subset of ranks|Stalled ops:")
"""A line of Horovod's stall inspector; the missing ranks follow it."""
_MISSING_OF_RANK = re.compile(r"(?:^|[>\s:])(\d{1,6}): \[(.{1,4000})")
_MISSING_OF_OP = re.compile(r"missing ranks: ?\[?((?:\d{1,6}(?:, ?)?)+)")


def stalled_ranks(log: Log) -> tuple[Hit, frozenset[int], bool] | None:
    """The last report of Horovod's stall inspector, unless steps follow it: its line, the ranks that do not
    come, and whether those wait for others with tensors of their own: then nobody is late, they do not do the
    same."""
    hit, goes = log.last(_STALLED), log.last(GOES_ON)
    if hit is None or (goes is not None and goes.position > hit.position):
        return None
    # As they stand: ``3: [...]`` looks like the mark of a launcher.
    below = log.body[hit.position :].split("\n", 400)[:400]
    by_rank: dict[int, str] = {}
    for line in below:
        if (match := _MISSING_OF_RANK.search(line)) is not None:
            by_rank.setdefault(int(match[1]), match[2])
    named = [match[1] for line in below for match in _MISSING_OF_OP.finditer(line)]
    of_ops = [frozenset(map(int, re.findall(r"\d+", ranks))) for ranks in named]
    missing = frozenset(by_rank) | frozenset(rank for ranks in of_ops for rank in ranks)
    if not missing:
        return hit, missing, True
    tensors = [frozenset(re.split(r",\s*", text.rstrip("]. "))) for text in by_rank.values()]
    apart = any(not (a & b) for a in tensors for b in tensors) or len(set(of_ops)) > 1
    return hit, missing, apart


@rule(
    "collective_mismatch",
    "Ranks call different collectives",
    means="The ranks disagree about what they do together: uneven data, a collective within a "
    "condition, other keys per rank.",
    looks="`Detected mismatch between collectives on ranks`; watchdogs with different OpType, SeqNum "
    "or NumelIn; in torch's flight recorder another operation or other sizes at the same number.",
    fix="let every rank call the same collectives in the same order: drop_last, no collective within "
    "`if rank == 0`",
    needs=_NEEDS,
)
def collective_mismatch(case: Case) -> Iterator[Finding]:
    yield from from_logs(
        case,
        "collective_mismatch",
        _MISMATCH,
        "the ranks call different collectives",
        anywhere=True,
        secondary=True,
        running=True,
    )
    for reading in readings(case):
        stalled = stalled_ranks(reading.log)
        if stalled is not None and stalled[2]:
            yield Finding(
                "collective_mismatch",
                f"the ranks call different collectives ({author(case, reading.pod, stalled[0].rank)}): "
                f"{quote(stalled[0].text)}",
                log_evidence(reading.pod, stalled[0].text),
                reading.pod.name,
                stalled[0].time,
                confidence=0.8,
                from_object=False,
                who=reading.pod.name,
            )
    dogs = [d for d in _watchdogs(case) if d[1] is not None]
    kinds = {(d[2], d[3]) for d in dogs}
    if len(dogs) < 2 or len(kinds) < 2:
        return
    # A rank that is behind in the same sequence of operations is a straggler; another operation at the same
    # number, or other sizes, are other code.
    same = [
        d for d in dogs if any(d is not o and d[1] == o[1] and (d[2], d[3]) != (o[2], o[3]) for o in dogs)
    ]
    chosen = same or (dogs if len({d[2] for d in dogs}) > 1 else [])
    if chosen:
        counts = [(d[2], d[3]) for d in dogs]
        odd = min(chosen, key=lambda d: counts.count((d[2], d[3])))
        evidence = tuple(
            e
            for d in ([odd, *[d for d in dogs if d is not odd]])[:3]
            for e in log_evidence(d[0].pod, d[4])[:1]
        )
        yield Finding(
            "collective_mismatch",
            f"the ranks call different collectives: "
            f"{', '.join(sorted({f'{d[2]} number {d[1]}' for d in dogs})[:3])}",
            evidence,
            f"code ({odd[0].pod.name})",
            odd[5],
            Level.CAUSE,
            0.85,
            from_object=False,
            who=odd[0].pod.name,
        )


@rule(
    "duplicate_gpu_mapping",
    "Two ranks use one GPU",
    means="More processes than GPUs run in a pod, or the script never sets its device: two ranks share "
    "one, or one names a "
    "GPU that is not there.",
    looks="`Duplicate GPU detected : rank a and rank b both on CUDA device`, `invalid device ordinal`.",
    fix="torch.cuda.set_device(LOCAL_RANK), and as many processes per member as it has GPUs",
    needs=_NEEDS,
)
def duplicate_gpu_mapping(case: Case) -> Iterator[Finding]:
    yield from from_logs(
        case,
        "duplicate_gpu_mapping",
        line_pattern(
            r"Duplicate GPU detected|invalid device ordinal|running on same CUDA device|"
            r"[Dd]evice id must be less than GPU count|listed an invalid Device id|You requested gpu: |"
            r"device ordinal .{0,40}out of range|multiple "
            r"ranks? .{0,40}same (GPU|device)"
        ),
        "two ranks use one GPU, or one that is not there",
        anywhere=True,
        secondary=True,
    )


_SHM = line_pattern(
    r"insufficient shared memory|out of shared memory|/dev/shm/\S+.{0,200}No space left|No space "
    r"left.{0,200}/dev/shm|nccl-shm-\S*.{0,200}(No space|fail|error)|"
    r"(error|fail|No space).{0,200}nccl-shm-|Bus error|exitcode\s*: -7\b|\bSIGBUS\b|"
    r"/dev/shm/nccl-\S*.{0,200}(fail|error|No space|size)|(fail|error|while).{0,200}/dev/shm/nccl-|"
    r"unable to (open|mmap|write|resize).{0,40}shared memory|unable to open shared memory object"
)


@rule(
    "shm_too_small",
    "Shared memory is full",
    means="/dev/shm of a container is 64 MiB unless a volume says otherwise; data loader workers and "
    "NCCL need more.",
    looks="`Bus error`, `insufficient shared memory (shm)`, `/dev/shm/nccl-*` with `No space left on "
    "device`, exit 135 or "
    "torchrun -7.",
    fix="mount an emptyDir of medium Memory at /dev/shm (storage: {mount: /dev/shm, empty_dir: "
    "memory}); it counts in the memory limit",
    needs=(*_NEEDS, Need.JOB),
)
def shm_too_small(case: Case) -> Iterator[Finding]:
    findings = [
        *from_logs(
            case,
            "shm_too_small",
            _SHM,
            "shared memory is full",
            anywhere=True,
            running=True,
            secondary=True,
            but=line_pattern(r"Too many open files|Errno 24\b|\(24\)"),
            confidence=0.9,
        )
    ]
    yield from findings
    disk = line_pattern(r"No space left on device")
    for reading in readings(case):
        if (
            not findings
            and reading.log.has(line_pattern(r"/dev/shm|nccl-shm|file </torch_"))
            and reading.log.has(disk)
        ):
            hit = reading.log.hits(disk, 1)[0]
            yield Finding(
                "shm_too_small",
                f"shared memory is full ({author(case, reading.pod, hit.rank)}): {quote(hit.text)}",
                log_evidence(reading.pod, hit.text),
                reading.pod.name,
                hit.time or case.went_bad(reading.pod),
                from_object=False,
                who=reading.pod.name,
            )
            return
    for pod in case.pods:
        if exit_code(pod) == 135 and not findings:
            yield Finding(
                "shm_too_small",
                f"{pod.name} ended with SIGBUS: most likely /dev/shm is too small",
                (Evidence(pod_object(pod), "exit_code", "135"),),
                pod.name,
                case.went_bad(pod),
                confidence=0.75,
            )
            return


@rule(
    "partial_restart_hang",
    "One member was restarted, and the others are in the old run",
    means="A member was started again alone: it waits in the rendezvous for peers that are in a "
    "collective of the run before. "
    "Why it was restarted is the second cause.",
    looks="One pod with restarts, or made much later than the others, which still run; the new one "
    "stuck in init.",
    fix="restart all members together: delete the pods, or use an engine that restarts the gang "
    "(JobSet, elastic)",
    needs=_NEEDS,
    retryable=True,
)
def partial_restart_hang(case: Case) -> Iterator[Finding]:
    pods = [pod for pod in case.objects.pods if is_running(pod) and pod.main is not None]
    if case.is_local or len(pods) < 2 or len(pods) < len(case.objects.pods) or case.is_over:
        return
    begun = {
        pod.name: pod.main.now.started
        for pod in pods
        if pod.main is not None and pod.main.now.started is not None
    }
    if len(begun) < 2:
        return
    times = sorted(begun.values())
    middle = times[(len(times) - 1) // 2]
    late = [pod for pod in pods if begun.get(pod.name, 0) - middle > 60]
    if not late or len(late) >= len(pods):
        return
    pod = max(late, key=lambda p: begun[p.name])
    again = (pod.main is not None and pod.main.restarts > 0) or (
        pod.created is not None and pod.created - min((p.created or pod.created) for p in pods) > 60
    )
    log = case.log(pod)
    goes_on = log is not None and log.has(line_pattern(r"\b(step|epoch|iter(ation)?)\b[ =:#\[(]*[1-9]\d*"))
    others = [case.log(p) for p in pods if p is not pod]
    old_run = any(
        o is not None
        and o.has(
            line_pattern(r"\bstep\b[ =:#]*\d+|\bepoch\b[ =:#]*\d+|[Ww]atchdog|allreduce|ALLREDUCE|barrier")
        )
        for o in others
    )
    if not again or goes_on or (log is None and not old_run):
        return
    if log is not None and not old_run and (log.has(_DNS) or log.has(_REFUSED)):
        return  # it finds nobody, and the others have not begun either
    reason = (
        f", {pod.main.restarts} restart{'s' if pod.main.restarts != 1 else ''}"
        if pod.main is not None and pod.main.restarts
        else ", made anew"
    )
    evidence = [
        Evidence(pod_object(pod), "containerStatuses.restartCount", str(pod.main.restarts if pod.main else 0))
    ]
    if log is not None and log.last_lines:
        evidence.append(Evidence(f"log/{pod.name}", "text", quote(log.last_lines[-1])))
    if pod.main is not None and pod.main.last is not None:
        evidence.append(
            Evidence(
                pod_object(pod),
                "lastState.terminated",
                f"{pod.main.last.reason} (exit {pod.main.last.exit_code})",
            )
        )
    yield Finding(
        "partial_restart_hang",
        f"{pod.name} was started again alone{reason}, the others are still in the run before",
        tuple(evidence),
        pod.name,
        begun[pod.name],
        Level.CAUSE,
        0.85,
    )


@rule(
    "mpi_ssh_unreachable",
    "The launcher does not reach a worker by ssh",
    means="mpirun starts its daemons over ssh, and a worker's name does not resolve or its sshd does "
    "not answer yet. mpirun's "
    "own words after that are a wrapper.",
    looks="`ssh: Could not resolve hostname`, `connect to host .. port 22: Connection refused|timed "
    "out`, `ORTE was unable to "
    "reliably start`; the launcher is tried again.",
    fix="wait for the workers: launcherCreationPolicy: WaitForWorkersReady; look at the worker that is named",
    needs=(*_NEEDS, Need.EVENTS),
    retryable=True,
)
def mpi_ssh_unreachable(case: Case) -> Iterator[Finding]:
    def blame(pod: PodSeen, text: str) -> str:
        host = re.search(r"(?:hostname|host) ([\w-]+)", text)
        return host[1] if host else pod.name

    ssh = line_pattern(
        r"ssh: connect to host|ssh: Could not resolve hostname|port 22: (Connection|No route|Operation "
        r"timed)|(kex|ssh)_exchange_identification"
    )
    findings = [
        *from_logs(
            case,
            "mpi_ssh_unreachable",
            ssh,
            "the launcher does not reach a worker",
            level=Level.CAUSE,
            secondary=True,
            anywhere=True,
            blame=blame,
            running=True,
        )
    ]
    dead = [
        p for p in case.objects.pods if "worker" in p.name and not is_running(p) and p.phase != "Succeeded"
    ]
    for finding in findings:
        # A worker that does not run has a cause of its own.
        lower = any(p.name == finding.blame for p in dead)
        yield Finding(
            finding.code,
            finding.summary,
            finding.evidence,
            finding.blame,
            finding.at,
            Level.SYMPTOM if lower else Level.CAUSE,
            finding.confidence,
            from_object=False,
            who=finding.who,
        )
    if not findings and not any(r.log.has(_AUTH) for r in readings(case)):
        yield from from_logs(
            case,
            "mpi_ssh_unreachable",
            _SSH,
            "the launcher does not reach a worker",
            level=Level.SYMPTOM,
            secondary=True,
            blame=blame,
            confidence=0.7,
        )


_AUTH = line_pattern(
    r"Permission denied \((publickey|password|keyboard)|Invalid user \S+ from|UNPROTECTED PRIVATE KEY FILE|"
    r"bad permissions|bad ownership or modes|"
    r"Host key verification failed|Too many authentication failures|Load key .{0,80}(invalid format|"
    r"Permission denied)|no matching host key"
)


@rule(
    "mpi_ssh_auth",
    "ssh refuses the launcher",
    means="The worker's sshd does not take the key, or ssh does not take the file it lies in: its "
    "path, owner, mode or user.",
    looks="`Permission denied (publickey`, `UNPROTECTED PRIVATE KEY FILE`, `bad ownership or modes`, "
    "`Host key verification failed`.",
    fix="correct sshAuthMountPath, the user of the image, StrictModes and the key's mode",
    needs=_NEEDS,
)
def mpi_ssh_auth(case: Case) -> Iterator[Finding]:
    if any(
        reading.log.has(line_pattern(r"Bind to port \d+ .{0,80}Address already in use"))
        for reading in readings(case)
    ):
        return  # who answers is the sshd of the node
    yield from from_logs(
        case, "mpi_ssh_auth", _AUTH, "ssh refuses the launcher", secondary=True, anywhere=True, running=True
    )


@rule(
    "mpi_slots_mismatch",
    "mpirun is asked for more processes than there are slots",
    means="-np is larger than workers times slotsPerWorker.",
    looks="`There are not enough slots available in the system`.",
    fix="set -np to workers x slotsPerWorker, or leave it out",
    needs=_NEEDS,
)
def mpi_slots_mismatch(case: Case) -> Iterator[Finding]:
    slots = line_pattern(
        r"not enough slots available|no (free )?slots|than there are available slots|"
        r"No slot '\d+' specified on host|"
        r"more processes than (the ppr|.{0,40}slots)|All nodes "
        r"which "
        r"are allocated for this job are already filled"
    )

    def blame(pod: PodSeen, text: str) -> str:
        return f"{case.job_name} spec: slotsPerWorker and -np ({pod.name})"

    yield from from_logs(
        case,
        "mpi_slots_mismatch",
        slots,
        "more processes are asked for than there are slots",
        secondary=True,
        anywhere=True,
        blame=blame,
    )


_TF = line_pattern(
    r"not found in cluster_spec|exceeds the maximum id|cluster_spec.{0,80}(invalid|must|missing)|"
    r"TF_CONFIG.{0,120}(JSON|decod|Expecting|invalid|parse)|task_type .{0,80}(not|is not)|"
    r"not a valid task_type|No such job in cluster: |is set in TF_CONFIG, it must|"
    r"must be at most one 'chief' job|Cluster spec must be non-empty|Invalid "
    r"cluster spec|task type .{0,40}not in|Cluster spec should have"
)


@rule(
    "tf_config_error",
    "TF_CONFIG does not fit the cluster",
    means="TensorFlow reads the cluster from TF_CONFIG, which the operator writes; the job's own "
    "value, or replica types that "
    "do not fit the strategy, contradict it.",
    looks="`task_type .. not found in cluster_spec`, `task_id N exceeds the maximum id`, a JSON error "
    "about TF_CONFIG.",
    fix="drop the job's own TF_CONFIG; give the replica types that the strategy knows",
    needs=(*_NEEDS, Need.JOB),
)
def tf_config_error(case: Case) -> Iterator[Finding]:
    def blame(pod: PodSeen, text: str) -> str:
        return f"{case.job_name} spec: TF_CONFIG ({pod.name})"

    yield from from_logs(case, "tf_config_error", _TF, "TF_CONFIG does not fit the cluster", blame=blame)
    own = [
        path
        for pod in case.objects.pods
        for path, v in pod.facts.items()
        if v == "TF_CONFIG" and ".env[" in path
    ]
    if own:
        for reading in readings(case):
            if reading.fatal is not None and "JSONDecodeError" in reading.fatal.type:
                yield Finding(
                    "tf_config_error",
                    f"TF_CONFIG of the job cannot be read: {quote(reading.fatal.text)}",
                    log_evidence(reading.pod, reading.fatal.text, reading.fatal),
                    f"{case.job_name} spec: TF_CONFIG",
                    case.went_bad(reading.pod),
                    confidence=0.85,
                    from_object=False,
                    who=reading.pod.name,
                )


@rule(
    "secondary_peer_loss",
    "A peer went away",
    means="This member only tells that another one is gone. It is never the cause: look for the one "
    "that went first.",
    looks="`Connection closed by peer`, `ncclRemoteError`, `Broken pipe`, `RendezvousClosedError`, "
    "`HorovodInternalError`.",
    fix="look at the other members' ends: `allaboard logs`, and the logs of containers before "
    "(`kubectl logs --previous`)",
    needs=_NEEDS,
    retryable=True,
)
def secondary_peer_loss(case: Case) -> Iterator[Finding]:
    for reading in readings(case):
        if reading.pod.phase == "Succeeded":
            continue
        hit = next(iter(reading.log.hits(SECONDARY, 1)), None)
        if hit is not None:
            yield Finding(
                "secondary_peer_loss",
                f"{author(case, reading.pod, hit.rank)} lost a peer: {quote(hit.text)}",
                log_evidence(reading.pod, hit.text),
                reading.pod.name,
                hit.time or case.went_bad(reading.pod),
                Level.NOISE,
                0.4,
                from_object=False,
                who=reading.pod.name,
            )
