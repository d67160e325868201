"""Code, libraries and data: what the script itself ran into. Specific causes first; `python_exception` is
what is left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from allaboard.diagnosis.case import (
    OUTSIDE,
    Case,
    exit_code,
    exit_evidence,
    has_run,
    is_running,
    pod_object,
    quote,
)
from allaboard.diagnosis.finding import Evidence, Finding, Level, Need
from allaboard.diagnosis.logs import line_pattern
from allaboard.diagnosis.reading import (
    GOES_ON,
    MEETING,
    SECONDARY,
    author,
    ended_by_signal,
    from_logs,
    last_complaint,
    log_evidence,
    readings,
    went_on,
)
from allaboard.diagnosis.rule import rule
from allaboard.diagnosis.unreachable import FOLLOWED
from allaboard.runs.observation import PodSeen

_NEEDS = (Need.PODS, Need.LOGS)
_NOT_FETCHED = r"allaboard: the code cannot be fetched"
_NOT_INSTALLED = r"allaboard: the packages cannot be installed"


@rule(
    "code_not_fetched",
    "The repository of the job cannot be fetched",
    means="Members fetch `code.git` before their command. The repository refuses the password, or has the "
    "commit no more; or the image has no git.",
    looks="`allaboard: the code cannot be fetched`, with git's own last line.",
    fix="look at code.secret, and whether the repository still has the commit",
    needs=_NEEDS,
)
def code_not_fetched(case: Case) -> Iterator[Finding]:
    summary = "the repository of the job cannot be fetched"
    but = line_pattern(_NOT_FETCHED + FOLLOWED)
    yield from from_logs(
        case,
        "code_not_fetched",
        line_pattern(_NOT_FETCHED),
        summary,
        but=but,
        confidence=0.97,
        secondary=True,
    )


@rule(
    "code_host_unreachable",
    "The repository of the job does not answer",
    means="Members fetch `code.git` before their command. The name of its server does not resolve, the "
    "connection is refused, breaks or times out, or the server answers 429 or 5xx.",
    looks="`allaboard: the code cannot be fetched`, with git's own last line: `Could not resolve host`, "
    "`Connection timed out`, `early EOF`, `The requested URL returned error: 503`.",
    fix="start again; where it happens again, look whether the members reach the repository (network, proxy)",
    needs=_NEEDS,
    retryable=True,
)
def code_host_unreachable(case: Case) -> Iterator[Finding]:
    summary, pattern = "the repository of the job does not answer", line_pattern(_NOT_FETCHED + FOLLOWED)
    yield from from_logs(case, "code_host_unreachable", pattern, summary, confidence=0.97, secondary=True)


@rule(
    "packages_not_installed",
    "The packages of the job cannot be installed",
    means="Members install `packages` before their command. The index has no such version, or another file "
    "than the hash says, or refuses the credentials; or the image has neither pip nor uv.",
    looks="`allaboard: the packages cannot be installed`, with the installer's own last line.",
    fix="correct packages",
    needs=_NEEDS,
)
def packages_not_installed(case: Case) -> Iterator[Finding]:
    summary, pattern = "the packages of the job cannot be installed", line_pattern(_NOT_INSTALLED)
    but = line_pattern(_NOT_INSTALLED + FOLLOWED)
    yield from from_logs(
        case, "packages_not_installed", pattern, summary, but=but, confidence=0.97, secondary=True
    )


@rule(
    "package_index_unreachable",
    "The package index does not answer",
    means="Members install `packages` before their command. The name of the index does not resolve, the "
    "connection is refused, breaks or times out, or the index answers 429 or 5xx.",
    looks="`allaboard: the packages cannot be installed`, with `connection broken`, `Max retries exceeded`, "
    "`error sending request`, or 503 in the installer's own lines.",
    fix="start again; where it happens again, look whether the members reach the index (network, proxy)",
    needs=_NEEDS,
    retryable=True,
)
def package_index_unreachable(case: Case) -> Iterator[Finding]:
    summary, pattern = "the package index does not answer", line_pattern(_NOT_INSTALLED + FOLLOWED)
    yield from from_logs(case, "package_index_unreachable", pattern, summary, confidence=0.97, secondary=True)


@rule(
    "missing_dependency",
    "A module or library is not installed",
    means="The image lacks a Python module or a shared library, or has another version of it.",
    looks="ModuleNotFoundError, ImportError, `lib*.so: cannot open shared object file`, `undefined "
    "symbol`, `GLIBCXX_* not found`; pip's `No matching distribution found`, and what uv, conda and apt say.",
    fix="install it where the members run (the image), in the version that the script needs",
    needs=_NEEDS,
)
def missing_dependency(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"ModuleNotFoundError|ImportError|No module named|cannot open shared object|undefined symbol|"
        r"GLIBC(XX)?_\S+'? not found|(module|package) .{0,60} (is )?not installed|command 'gcc' "
        r"failed|Please install|No matching distribution found|Could not find a version that satisfies|"
        r"ResolutionImpossible|No solution found when resolving|PackagesNotFoundError|ResolvePackageNotFound|"
        r"PackageNotFoundError|Unable to locate package"
    )

    def blame(pod: PodSeen, text: str) -> str:
        match = _LACKS.search(text)
        return _named(pod, match)

    yield from from_logs(
        case,
        "missing_dependency",
        pattern,
        "a module is not installed",
        blame=blame,
        but=line_pattern(
            r"/torch_extensions/|libcuda\.so|libnvidia-ml|TF-TRT|Could not load dynamic library"
        ),
    )


_LACKS = re.compile(
    r"(?:No module named|distribution found for|satisfies the requirement|locate package) "
    r"['\"]?([\w.=<>~!-]+)|"
    r"(\S+): cannot open shared object"
)


@rule(
    "native_crash",
    "Native code crashed",
    means="A segmentation fault, an abort or an illegal instruction in a library or extension. SIGABRT "
    "beside watchdog text is "
    "NCCL giving up: a consequence.",
    looks="Exit 139, 134 or 132, torchrun -11, -6, -4, `Segmentation fault`, `Fatal Python error`.",
    fix="run it with PYTHONFAULTHANDLER=1 to see where; look at the library's version; a retry may pass once",
    needs=_NEEDS,
)
def native_crash(case: Case) -> Iterator[Finding]:
    # A crash of the interpreter ends it as certainly as an exception does.
    pattern = line_pattern(
        r"Segmentation fault|Fatal Python error|exitcode\s*: -(11|4|8)\b|Signal: (Segmentation|Illegal|"
        r"Aborted)|double free or corruption|malloc\(\): |free\(\): invalid|core dumped|SIGSEGV|"
        r"SIGILL|stack smashing|Illegal instruction|corrupted (size|double-linked)"
    )
    logged = [
        finding
        for finding in from_logs(
            case,
            "native_crash",
            pattern,
            "native code crashed",
            but=line_pattern(r"[Ww]atchdog|SIGTERM|bus error"),
        )
        if not _is_abort_by_watchdog(case, finding)
    ]
    yield from logged
    for pod in case.pods:
        code = exit_code(pod)
        signal = {132: "SIGILL", 134: "SIGABRT", 136: "SIGFPE", 139: "SIGSEGV"}.get(code or 0)
        log = case.log(pod)
        if signal is None or any(f.who == pod.name for f in logged):
            continue
        victim = log is not None and log.has(SECONDARY)
        level = Level.NOISE if victim and code == 134 else Level.CAUSE
        yield Finding(
            "native_crash",
            f"{pod.name} crashed ({signal})",
            exit_evidence(pod),
            pod.name,
            case.went_bad(pod),
            level,
            0.75,
            generic=True,
        )


def _is_abort_by_watchdog(case: Case, finding: Finding) -> bool:
    """True if a watchdog ended the process: an abort is how it does that."""
    log = case.logs.get(finding.who or "")
    return (
        log is not None
        and re.search(r"\babort|SIGABRT|core dumped", finding.summary, re.IGNORECASE) is not None
        and log.has(SECONDARY)
    )


@rule(
    "cuda_oom",
    "A GPU ran out of memory",
    means="The model, its batch and its buffers do not fit the GPU; or another process holds part of "
    "it. The watchdogs of "
    "other ranks come minutes later and are noise.",
    looks="`CUDA out of memory`, torch.OutOfMemoryError, `CUBLAS_STATUS_ALLOC_FAILED`, NCCL `Cuda "
    "failure 'out of memory'`.",
    fix="a smaller batch, activation checkpointing, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, "
    "or more members",
    needs=_NEEDS,
)
def cuda_oom(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"CUDA out of memory|torch\S*\.OutOfMemoryError|^OutOfMemoryError|cupy\S*OutOfMemoryError|"
        r"CUBLAS_STATUS_ALLOC_FAILED|Cuda failure '?(2 )?'?out of "
        r"memory|Failed to CUDA calloc|"
        r"CUDA error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|"
        r"RESOURCE_EXHAUSTED: (Out of memory|Failed to allocate)|"
        r"OOM when allocating tensor|CUDNN_STATUS_ALLOC_FAILED|HIP out of memory|NPU out of memory|"
        r"Out of memory error on GPU|memory::allocation::BadAlloc|"
        r"Failed to (allocate|CUDA malloc).{0,60}(GPU|device|CUDA)"
    )
    yield from from_logs(
        case,
        "cuda_oom",
        pattern,
        "a GPU ran out of memory",
        anywhere=True,
        secondary=True,
        but=line_pattern(r"CPU out of memory"),
        confidence=0.95,
    )


@rule(
    "cuda_driver_mismatch",
    "The node's driver is too old for the image",
    means="The image's CUDA needs a newer NVIDIA driver than the node has.",
    looks="`driver version is insufficient`, `The NVIDIA driver on your system is too old`, `forward "
    "compatibility was attempted`.",
    fix="an image with an older CUDA, newer drivers, or nodes that have them",
    needs=(*_NEEDS, Need.EVENTS),
)
def cuda_driver_mismatch(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"driver version is insufficient|driver on your system is too old|forward compatibility was "
        r"attempted|cudaErrorInsufficientDriver|CUDA driver version|unsatisfied condition: cuda|PTX "
        r"(was compiled with|JIT).{0,60}(unsupported|newer)|CUDA_ERROR_UNSUPPORTED_PTX|"
        r"unsupported display driver / cuda driver|cudaErrorSystemDriverMismatch"
    )

    def blame(pod: PodSeen, text: str) -> str:
        return f"node {pod.node} ({pod.name})" if pod.node else pod.name

    yield from from_logs(
        case,
        "cuda_driver_mismatch",
        pattern,
        "the driver of its node is too old for the image",
        anywhere=True,
        blame=blame,
        but=line_pattern(r"NCCL INFO"),
    )
    for pod in case.pods:
        for container in pod.containers:
            for tried in (container.now, container.last):
                if tried is not None and pattern.pattern.search(tried.message):
                    yield Finding(
                        "cuda_driver_mismatch",
                        f"the driver of {pod.name}'s node is too old for the image",
                        (Evidence(pod_object(pod), "containerStatuses", quote(tried.message)),),
                        blame(pod, ""),
                        tried.ended,
                        confidence=0.95,
                    )
                    return


@rule(
    "gpu_arch_mismatch",
    "The program is not built for this GPU",
    means="The image's CUDA code has no kernels for the GPU's architecture.",
    looks="`no kernel image is available for execution on the device`, `sm_XX is not compatible with "
    "the current PyTorch`.",
    fix="build for this GPU (TORCH_CUDA_ARCH_LIST), or take a newer torch or another GPU",
    needs=_NEEDS,
)
def gpu_arch_mismatch(case: Case) -> Iterator[Finding]:
    yield from from_logs(
        case,
        "gpu_arch_mismatch",
        line_pattern(
            r"no kernel image is available|invalid device function|Missing CO for these ISAs|"
            r"sm_\d+ is not compatible|cudaErrorNoKernelImageForDevice|not "
            r"compiled (for|with) .{0,40}sm_|unsupported gpu architecture|only supports? \w+ GPUs or newer|"
            r"sm_\w+' is not defined for option|ptxas.{0,80}(Unsupported|unknown).{0,20}sm_|"
            r"(only|does not) supports? .{0,40}compute capability"
        ),
        "its program is not built for this GPU",
        anywhere=True,
        secondary=True,
    )


@rule(
    "device_side_assert",
    "A CUDA kernel's check failed",
    means="An index, label or token is out of range; CUDA reports it at some later call.",
    looks="`device-side assert triggered` after lines `Assertion .. failed`.",
    fix="check labels and indices against the model's sizes; CUDA_LAUNCH_BLOCKING=1 shows the line",
    needs=_NEEDS,
)
def device_side_assert(case: Case) -> Iterator[Finding]:
    yield from from_logs(
        case,
        "device_side_assert",
        line_pattern(
            r"device-side assert(?!ions)|\.cu:\d+:? .{0,200}Assertion .{0,200} failed|cudaErrorAssert"
        ),
        "a CUDA kernel's check failed",
        anywhere=True,
        secondary=True,
        confidence=0.95,
    )


@rule(
    "nan_loss",
    "The loss is not a number",
    means="Training diverged. On one rank only: a bad shard, or a bad GPU.",
    looks="`loss is nan`, `Minimum loss scale reached`, FloatingPointError, rows of nan.",
    fix="lower the learning rate, use bf16, clip gradients, or skip the batch",
    needs=_NEEDS,
)
def nan_loss(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"loss (is|was|became|=|:) ?(nan|inf)\b|Minimum loss scale|FloatingPointError|(nan|NaN|inf) "
        r"(loss|detected|encountered|found|in (loss|grad))|non-?finite (loss|grad)|Loss is (nan|"
        r"infinite)|not finite|Gradient overflow.{0,80}loss scale.{0,40}(0\.0|1e-)|loss "
        r"scale.{0,40}(too small|already at minimum)|contains? (nan|inf)|input contains NaN|"
        r"(found|got|has|have) (nan|inf)s?\b|nan (and|or|and/or) inf values?|(nan|inf) values? in\b|"
        r"loss contains a nan|Invalid loss, terminating|TerminateOnNaN"
    )
    yield from from_logs(case, "nan_loss", pattern, "the loss is not a number", confidence=0.88)
    rows = line_pattern(r"loss['\"]?\s*[=: ]\s*['\"]?(nan|inf)\b")
    for reading in readings(case):
        hits = reading.log.hits(rows, 50)
        last = reading.log.last_lines[-6:]
        if len(hits) >= 3 and any(rows.pattern.search(line) for line in last) and not reading.fatal:
            yield Finding(
                "nan_loss",
                f"the loss is not a number ({author(case, reading.pod, hits[0].rank)}): "
                f"{quote(hits[0].text)}",
                log_evidence(reading.pod, hits[0].text),
                reading.pod.name,
                hits[0].time or case.went_bad(reading.pod),
                confidence=0.85,
                from_object=False,
                who=reading.pod.name,
            )


@rule(
    "checkpoint_corrupt",
    "A checkpoint cannot be read",
    means="The file that is resumed from is truncated or damaged, mostly because a save was cut short "
    "by a full disk or a "
    "preemption.",
    looks="On resume: `failed finding central directory`, `invalid header or archive is corrupted`, "
    "`Ran out of input`, `invalid "
    "load key`, `Error while deserializing header`, a missing shard or .metadata.",
    fix="resume from the one before: `allaboard checkpoints verify` names the torn one; save atomically",
    needs=_NEEDS,
)
def checkpoint_corrupt(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"failed finding central directory|invalid header or archive is corrupted|Ran out of input|"
        r"invalid load key|"
        r"does not match its manifest|Error while deserializing header|PytorchStreamReader failed|"
        r"unexpected EOF, expected|"
        r"(unpickling|pickle).{0,60}(truncated|stack underflow)|SafetensorError|"
        r"MetadataIncompleteBuffer|InvalidHeaderDeserialization|"
        r"\.metadata'?.{0,60}(No such file|not found|missing|does not exist)|No such "
        r"file.{0,200}(\.metadata|\.distcp)|corrupt(ed)? checkpoint|checkpoint.{0,80}(corrupt|"
        r"truncated|incomplete)|"
        r"Unable to (open|read) .{0,80}truncated file|BadZipFile|DataLoss|DATA_LOSS|truncated file|"
        r"Unpack failed: incomplete|EOFError"
    )
    yield from from_logs(
        case,
        "checkpoint_corrupt",
        pattern,
        "a checkpoint cannot be read",
        but=line_pattern(r"Missing key|Unexpected key|size mismatch|EOF when reading a line"),
    )


@rule(
    "checkpoint_taken_over",
    "Another process writes this run's checkpoints now",
    means="A run's folder of checkpoints has one writer. Another attempt of the run began to train after "
    "this one, mostly on another host, because this one was taken for lost. This process saves no more; "
    "the other goes on, and nothing of the two is mixed.",
    looks="allaboard.errors.TakenOver, `has taken over this folder at`, from rank 0 at its next save.",
    fix="let the other one train: the message names its process and host. To train here, stop it there "
    "first and start the run again",
    needs=_NEEDS,
)
def checkpoint_taken_over(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(r"allaboard\.errors\.TakenOver|has taken over this folder at")
    yield from from_logs(
        case,
        "checkpoint_taken_over",
        pattern,
        "another process writes this run's checkpoints now",
        confidence=0.95,
    )


@rule(
    "checkpoint_mismatch",
    "The checkpoint does not fit the model",
    means="It was written by another model, another world size, or in a form that the loader does not take.",
    looks="`Missing key(s)|Unexpected key(s) in state_dict`, `size mismatch for`, `Weights only load "
    "failed`.",
    fix="load it with the model that wrote it, reshard it (torch.distributed.checkpoint), or start "
    "from scratch",
    needs=_NEEDS,
)
def checkpoint_mismatch(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"(Missing|Unexpected) key(\(s\))? in (checkpoint )?state_dict|size mismatch for|"
        r"Weights only load failed|"
        r"Error\(s\) in loading state_dict|loaded state dict (contains|has)|doesn't match the size "
        r"of optimizer|(checkpoint|state).{0,80}(different|another|other) (world size|number of)|"
        r"shape .{0,60}checkpoint.{0,60}(match|differ)|partition count.{0,40}(mismatch|does not "
        r"match)|only support.{0,60}same (world size|dp)|"
        r"checkpoint.{0,60}world size of \d+ but|tree structures do not match|objects could not be loaded|"
        r"value from checkpoint \(|from checkpoint .{0,60}(is not equal to|differs from)"
    )
    yield from from_logs(case, "checkpoint_mismatch", pattern, "the checkpoint does not fit the model")


@rule(
    "checkpoint_write_nfs_lock",
    "The checkpoint's storage has no file locks, or hangs",
    means="Network storage that several members write: it knows no locks, its handles are stale, or "
    "writes stand still with "
    "every rank silent after it began to save.",
    looks="`No locks available` (Errno 37), `Stale file handle` (116), `Failed to acquire lock on "
    "file`; or silence after `Saving "
    "checkpoint` on an NFS volume.",
    fix="let rank 0 alone write, take storage with locks, mount with nolock, or save locally and copy",
    needs=(*_NEEDS, Need.CLAIMS),
)
def checkpoint_write_nfs_lock(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"No locks available|Stale (NFS )?file handle|Failed to acquire lock|unable to lock file|"
        r"flock.{0,80}(Function not implemented|not supported)|Function not implemented|Errno 37\b|"
        r"Errno 524\b|not appear to support flock|"
        r"Errno 116\b|Resource temporarily unavailable.{0,60}lock|can't lock file"
    )
    findings = [
        *from_logs(
            case,
            "checkpoint_write_nfs_lock",
            pattern,
            "the storage has no file locks, or lost the file",
            running=True,
        )
    ]
    yield from findings
    if not findings:
        yield from _silent_save(case)


_SAVING = re.compile(
    r"\b(sav(e|ing)|writ(e|ing)|dump(ing)?)\b.{0,60}\b(checkpoint|ckpt|state|model|snapshot)\b|"
    r"checkpoint.{0,40}\b(saving|sav(e|ing) (start|began|begun))",
    re.IGNORECASE,
)
_NFS_SERVER = re.compile(r"nfs: server \S+ not responding", re.IGNORECASE)
_SAVED = re.compile(r"\b(saved|done|finished|complete|wrote)\b", re.IGNORECASE)


def _silent_save(case: Case) -> Iterator[Finding]:
    """All members run, and the last that each says is that it saves."""
    shared = any(
        "nfs" in " ".join(c.facts.values()).lower() or "ReadWriteMany" in c.facts.values()
        for c in case.objects.claims or ()
    )
    nfs = shared or any(".nfs." in path for pod in case.objects.pods for path in pod.facts)
    server = next((e for e in case.events if _NFS_SERVER.search(e.message)), None)
    if server is None and (not nfs or case.is_over):
        return
    saving = []
    live = [reading for reading in readings(case) if is_running(reading.pod) or server is None]
    for reading in live:
        lines = [text for text in reading.log.last_lines if not SECONDARY.pattern.search(text)]
        if is_running(reading.pod) and lines and _SAVING.search(lines[-1]) and not _SAVED.search(lines[-1]):
            saving.append((reading, lines[-1]))
    if not saving or len(saving) < len(live):
        return
    if server is not None:
        reading, text = saving[0]
        yield Finding(
            "checkpoint_write_nfs_lock",
            f"{reading.pod.name} stands still since it began to save, and {quote(server.message)}",
            (
                *log_evidence(reading.pod, text),
                Evidence(f"{server.kind.lower()}/{server.name}", f"events.{server.reason}", server.message),
            ),
            reading.pod.name,
            reading.log.last_time,
            confidence=0.85,
            from_object=False,
            who=reading.pod.name,
        )
        return
    last = max((reading.log.last_time or 0.0 for reading, _ in saving), default=0.0)
    if last and case.is_younger(last, 300):
        return
    reading, text = saving[0]
    yield Finding(
        "checkpoint_write_nfs_lock",
        f"all members are silent since they began to save: {quote(text)}",
        log_evidence(reading.pod, text),
        reading.pod.name,
        last or None,
        confidence=0.75,
        from_object=False,
        who=reading.pod.name,
    )


@rule(
    "filesystem_permission_denied",
    "A folder may not be written",
    means="The user of the container has no right to write there, or the mount is read-only; with a "
    "random user (OpenShift) HOME "
    "is / and caches fail.",
    looks="`PermissionError: [Errno 13]`, `Read-only file system`, `/.cache`, `/.local`, `/.triton`.",
    fix="give this user the right (fsGroup), set HOME and HF_HOME to a folder of its own, or mount an "
    "emptyDir",
    needs=_NEEDS,
)
def filesystem_permission_denied(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"PermissionError: \[Errno|\[?Errno 1\]|\(os error (1|13|30)\)|Read-only file system|StorageDenied|"
        r"Errno 13\b|Errno 30\b|cannot create "
        r"directory.{0,200}Permission denied|Permission denied: '?/|(mkdir|touch|open|cp|mv|"
        r"tee).{0,200}: Permission denied|is not writable|EACCES|PermissionDeniedError|"
        r"No usable temporary directory|"
        r"cannot cache function .{0,80}no locator available"
    )
    for finding in from_logs(
        case,
        "filesystem_permission_denied",
        pattern,
        "a folder may not be written",
        but=line_pattern(r"publickey|s3://|gs://|Access ?Denied|ssh|Failed to spawn"),
        blame=lambda pod, text: _named(pod, _PATH.search(text)),
    ):
        text = finding.evidence[0].text
        pod = next((p for p in case.pods if p.name == finding.who), None)
        if _READ_ONLY.search(text) or (pod is not None and _mounts_read_only(pod, text)):
            finding = replace(finding, fix=_WRITE_ELSEWHERE)
        yield finding


_READ_ONLY = re.compile(r"Read-only file system|Errno 30\b|\(os error 30\)|EROFS", re.IGNORECASE)
_WRITE_ELSEWHERE = (
    "write to another folder, or mount this volume so that it may be written (readOnly, storage.read_only): "
    "rights of a user or a group change nothing here"
)


def _mounts_read_only(pod: PodSeen, text: str) -> bool:
    """True if the path that a line names lies in a volume that the pod mounts read-only."""
    match = _PATH.search(text)
    path = next((g for g in match.groups() if g), "") if match is not None else ""
    for key, mount in pod.facts.items():
        if ".volumeMounts[" in key and key.endswith(".mountPath"):
            within = path == mount or path.startswith(f"{mount.rstrip('/')}/")
            if within and pod.facts.get(f"{key.removesuffix('.mountPath')}.readOnly") == "true":
                return True
    return False


_STORE = (
    r"s3|gcs|gs://|bucket|huggingface|hf_hub|HfHub|azure|blob|botocore|boto3|storage\.|object|"
    r"GetObject|HeadObject|ListObjects"
)


@rule(
    "data_access_denied",
    "The store refuses the credentials",
    means="The bucket, hub or registry of data knows no such key, or does not let it read there; or a "
    "licence is not accepted.",
    looks="AccessDenied, `403 Forbidden`, InvalidAccessKeyId, SignatureDoesNotMatch, `Unable to locate "
    "credentials`, "
    "GatedRepoError, 401.",
    fix="give the job credentials that may read and write there (secrets), or accept the data set's licence",
    needs=_NEEDS,
)
def data_access_denied(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"Access[ _]?Denied|AccessControlException|InvalidAccessKeyId|SignatureDoesNotMatch|Unable to locate "
        r"credentials|NoCredentialsError|StorageDenied.{0,200}s3://|"
        r"GatedRepo|gated repo|401 Client Error|403 Client Error|\b403 Forbidden|\b401 Unauthorized|"
        r"ExpiredToken|InvalidToken|"
        r"An error occurred \((403|401)\)|PartialCredentials|does not have storage\.|"
        r"DefaultCredentialsError|Invalid (user )?token|"
        r"invalid username or password|AuthorizationFailure|AuthenticationFailed|HTTP(Error)? ?:?(401|"
        r"403)|Forbidden: 403|403 .{0,40}Forbidden|TokenRefreshRequired|"
        r"Invalid credentials|PermissionError: (?!\[Errno)(.{0,80}\b)?(Forbidden|Access ?Denied|Unauthorized|"
        r"credential|token|403|401)|AuthorizationPermissionMismatch|credentials? (were|was|are) (not found|"
        r"refused|expired)"
    )
    yield from from_logs(
        case,
        "data_access_denied",
        pattern,
        "the store refused the credentials",
        but=line_pattern(r"RequestTimeTooSkewed|difference between the request time|date header too old"),
    )


@rule(
    "data_not_found",
    "A file or object that the script reads is not there",
    means="The path, key or bucket is wrong, or was not written yet.",
    looks="NoSuchKey, NoSuchBucket, 404 RepositoryNotFound, FileNotFoundError on a data path.",
    fix="check the path; `allaboard shards verify` checks a data set",
    needs=_NEEDS,
)
def data_not_found(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"NoSuchKey|NoSuchBucket|StorageMissing|FileNotFoundError|RepositoryNotFound|RevisionNotFound|"
        r"EntryNotFound|404 Client Error|"
        r"\(404\) when calling|404 Not Found|DatasetNotFound|doesn't exist on the Hub|"
        r"NotADirectoryError|The specified (key|bucket|blob|container) does not exist|"
        r"(dataset|data|file|shard|path|directory).{0,120}(does not exist|not found|doesn't exist)|No "
        r"such file or directory|No (files|samples|shards|images).{0,40}found|BlobNotFound|"
        r"DataFilesNotFound|\[Errno 2\]|\(os error 2\)|No files matched pattern|No \(supported\) data files "
        r"found|Couldn't "
        r"find (a )?dataset|NotFound: 404|Path does not exist"
    )
    yield from from_logs(
        case,
        "data_not_found",
        pattern,
        "a file or object that the script reads is not there",
        but=line_pattern(
            r"torchrun|Failed to spawn|No usable temporary directory|\.metadata|\.distcp|can't open file|"
            r"\.so\b|"
            r"exec |sh: |command"
        ),
        confidence=0.88,
    )


@rule(
    "data_throttled",
    "The store slows the job down",
    means="Too many requests: the store answers with SlowDown, 429 or 503.",
    looks="`SlowDown`, `Please reduce your request rate`, 429 or 503 from a store or the Hugging Face hub.",
    fix="cache the data, use fewer loader workers, back off between tries",
    needs=_NEEDS,
    retryable=True,
)
def data_throttled(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"SlowDown|reduce your request rate|\b429\b.{0,40}(Client Error|Too Many|Error)|Too Many "
        r"Requests|RequestLimitExceeded|ThrottlingException|TooManyRequests|503.{0,40}(Slow Down|"
        r"Service Unavailable|SlowDown)|(Server Error|status).{0,20}\b503\b|rate limit(ed| "
        r"exceeded)?|ServerBusy|quota .{0,40}requests per|rateLimitExceeded|HTTP(Error)? ?:?429"
    )
    yield from from_logs(case, "data_throttled", pattern, "the store slows the job down", running=True)


_UNTRUSTED_WORDS = (
    r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|SSLCertVerificationError|self[- ]signed "
    r"certificate|"
    r"unable to get (local )?issuer certificate|certificate signed by unknown authority|"
    r"SSLHandshakeException|"
    r"PKIX path building failed|certificate has expired|doesn't match .{0,80}(certificate|either of)|"
    r"SSL certificate problem"
)
_UNTRUSTED = line_pattern(_UNTRUSTED_WORDS)
"""A certificate that no later try finds trusted; what times out, is reset or answers 5xx may pass."""
_CERTIFICATES = (
    "give the image the CA that signed it, and name it by SSL_CERT_FILE, REQUESTS_CA_BUNDLE or "
    "AWS_CA_BUNDLE, or "
    "correct the endpoint: another try does not help"
)
_HOST = re.compile(r"https?://(?:[^/@\s'\"]*@)?([\w.-]+)|host='([\w.-]+)'|connect to host ([\w.-]+)")
_PATH = re.compile(r"['\"](/[^'\"]{1,300})['\"]|(/[\w./@-]{2,300})")


def _named(pod: PodSeen, match: re.Match[str] | None) -> str:
    """A member with what a line of its log names; the member alone where the line names nothing."""
    name = next((g for g in match.groups() if g), "") if match is not None else ""
    return f"{name} ({pod.name})" if name else pod.name


@rule(
    "data_endpoint_unreachable",
    "The store does not answer",
    means="Name resolution, the network, a proxy or the store itself fails.",
    looks="`Could not connect to the endpoint URL`, ConnectTimeout, `Max retries exceeded`, the "
    "store's name does not resolve, 500, 502 or 504. A certificate that is not trusted "
    "(`CERTIFICATE_VERIFY_FAILED`) is told here, too, and no further try heals it.",
    fix="check the endpoint, the proxy and the network, then start again: the run resumes",
    needs=_NEEDS,
    retryable=True,
)
def data_endpoint_unreachable(case: Case) -> Iterator[Finding]:
    pattern = line_pattern(
        r"Could not connect to the endpoint|StorageUnreachable|Connect ?Timeout|EndpointConnectionError|"
        r"Max retries exceeded|ProxyError|"
        r"couldn't connect to 'https?://|LocalEntryNotFoundError|ReadTimeout|Failed to resolve '|"
        r"NameResolutionError|https?://.{0,200}(timed out|unreachable|refused)|"
        r"(s3|storage\.googleapis|huggingface|amazonaws|blob\.core)\S*.{0,200}(timed out|Name or "
        r"service not known|Temporary failure|unreachable|refused|getaddrinfo)|"
        r"(Name or service not known|Temporary failure).{0,200}(s3|storage\.googleapis|huggingface|"
        r"amazonaws)|Connection to .{1,200} timed out|OfflineModeIsEnabled|urlopen error|Could not "
        r"reach .{0,40}(endpoint|hub|store)|AWS Error NETWORK_CONNECTION|NoRouteToHostException|"
        r"hadoop\.net\.ConnectTimeout|curlCode: (6|7|28|35|56)\b|"
        r"(httpx|httpcore)\.(Connect|Read|Write|Pool|Network|Proxy|RemoteProtocol|Timeout)\w*|"
        r"requests\.exceptions\.(Connection|Connect|Read|Proxy|SSL|Timeout|ChunkedEncoding)\w*|"
        r"aiohttp\.client_exceptions\.\w*(Connector|Timeout|Disconnected|Connection)\w*|"
        r"urllib3\.exceptions\.(NewConnection|MaxRetry|ConnectTimeout|ReadTimeout|Protocol|SSL|NameRes)\w*|"
        r"botocore\.exceptions\.(SSL|Connection|ReadTimeout|ProxyConnection)\w*Error|"
        r"\b50[0245] Server Error|Bad Gateway|Gateway Time-?out|\b500 Internal Server Error|"
        r"HTTP Error 50[024]|ClientError.{0,60}\((500|502|504)\)|\(InternalError\) when calling|"
        + _UNTRUSTED_WORDS
    )
    for finding in from_logs(
        case,
        "data_endpoint_unreachable",
        pattern,
        "the store does not answer",
        but=line_pattern(
            r"c10d|TCPStore|tcp_utils|socket\.cpp|rendezvous|\b429\b|\b503\b|too many|TimeTooSkewed|"
            r"RemoteDisconnected|port 22|not yet valid|wandb"
        ),
        blame=lambda pod, text: _named(pod, _HOST.search(text)),
    ):
        untrusted = _UNTRUSTED.pattern.search(finding.summary) is not None
        yield replace(
            finding,
            summary=finding.summary.replace(
                "the store does not answer", "the certificate of the store is not trusted"
            )
            if untrusted
            else finding.summary,
            retryable=False if untrusted else None,
            fix=_CERTIFICATES if untrusted else None,
        )


@rule(
    "clock_skew",
    "The node's clock is wrong",
    means="Signed requests and certificates hold for a time; the node's clock is outside it.",
    looks="`RequestTimeTooSkewed`, `difference between the request time and the current time`, x509 "
    "`not yet valid`.",
    fix="have the node's NTP repaired, or run on another node",
    needs=_NEEDS,
    retryable=True,
)
def clock_skew(case: Case) -> Iterator[Finding]:
    def blame(pod: PodSeen, text: str) -> str:
        return f"node {pod.node} ({pod.name})" if pod.node else pod.name

    pattern = line_pattern(
        r"RequestTimeTooSkewed|difference between the request time|not yet valid|certificate is not "
        r"valid (yet|before)|Signature not yet current|clock skew|Token used too early|"
        r"Invalid JWT.{0,120}reasonable timeframe|Request date header too old|"
        r"InvalidSignature.{0,60}time"
    )
    yield from from_logs(
        case, "clock_skew", pattern, "the clock of its node is wrong", blame=blame, anywhere=True
    )
    for pod in case.pods:
        for container in pod.containers:
            message = container.now.message
            if "not yet valid" in message and " is before " in message:
                evidence = Evidence(
                    pod_object(pod), f"containerStatuses[{container.name}].waiting", quote(message)
                )
                yield Finding(
                    "clock_skew", f"the clock of {pod.name}'s node is wrong", (evidence,), blame(pod, "")
                )
                return


_ERROR = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)\b(?!\w)(: .*)?$")
_USAGE = line_pattern(
    r"error: (unrecognized arguments|the following arguments are required|argument |invalid choice|"
    r"ambiguous option)|Could not override '|Error executing job with overrides|' is not in struct"
)


@rule(
    "python_exception",
    "The training script raised an error",
    means="An exception ended the script; none of the causes that have a page of their own explains it.",
    looks="A traceback and exit 1, again and again with restarts; argparse's usage and exit 2.",
    fix="fix the script; its log shows the traceback",
    needs=_NEEDS,
)
def python_exception(case: Case) -> Iterator[Finding]:
    for reading in readings(case):
        pod = reading.pod
        if pod.phase == "Succeeded" or (
            not reading.ended and (reading.fatal is None or went_on(reading.log))
        ):
            continue
        if ended_by_signal(reading) is not None:
            continue
        fix = (
            f"fix the script; its log shows the traceback: `allaboard logs {case.seen.run} {pod.name}`"
            if case.seen.run
            else None
        )
        if reading.fatal is not None:
            raised = reading.fatal
            if MEETING.pattern.search(raised.text):
                continue
            if _NCCL_ERROR.search(raised.text) and reading.log.has(SECONDARY):
                continue  # what it says beside tells that a peer is gone
            if "XGBoostError" in raised.type and _met_nobody(reading.log.body, raised.text):
                continue
            where = f" at {raised.where}" if raised.where is not None else ""
            yield Finding(
                "python_exception",
                f"the training script raised an error ({author(case, pod, raised.rank, raised.local)}): "
                f"{_shorten(raised.text)}{where}",
                log_evidence(pod, raised.text, raised),
                pod.name,
                case.went_bad(pod),
                confidence=0.9 if reading.speaks else 0.75,
                fix=_remedy(raised.text) or fix,
                generic=True,
                from_object=False,
                who=pod.name,
            )
            continue
        usage = reading.log.last(_USAGE)
        lines = [
            text
            for text in reading.log.last_lines
            if _ERROR.match(text)
            and not SECONDARY.pattern.search(text)
            and not MEETING.pattern.search(text)
            and not (_NCCL_ERROR.search(text) and reading.log.has(SECONDARY))
            and not ("XGBoostError" in text and _met_nobody(reading.log.body, text))
            and not text.startswith(("torch.distributed.elastic", "ChildFailed"))
        ]
        text = usage.text if usage is not None else lines[-1] if lines else ""
        if text:
            yield Finding(
                "python_exception",
                f"the training script raised an error ({author(case, pod, None)}): {_shorten(text)}",
                log_evidence(pod, text),
                pod.name,
                case.went_bad(pod),
                confidence=0.8,
                fix=_remedy(text),
                generic=True,
                from_object=False,
                who=pod.name,
            )
        elif (
            exit_code(pod) not in (None, 0, *OUTSIDE)
            and not (reading.log.has(SECONDARY) or reading.log.has(MEETING))
            and (complaint := last_complaint(reading.log))
        ):
            yield Finding(
                "python_exception",
                f"{author(case, pod, None)} exited with {exit_code(pod)}, most likely because of its last "
                f"words: "
                f"{_shorten(complaint)}",
                log_evidence(pod, complaint),
                pod.name,
                case.went_bad(pod),
                Level.SYMPTOM,
                0.5,
                fix=_remedy(complaint)
                or (
                    f"look at the lines before: `allaboard logs {case.seen.run} {pod.name}`"
                    if case.seen.run
                    else None
                ),
                generic=True,
                from_object=False,
                who=pod.name,
            )
    yield from _only_exit_codes(case)


_REMEDIES = (
    (
        re.compile(r"EOF when reading a line"),
        "the script asks on stdin, and a job has none: give the answer by an option or a variable",
    ),
    (
        re.compile(r"Too many open files|Errno 24\b|\(24\)$"),
        "raise the limit of open files (ulimit -n), use fewer loader workers, or "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    (
        re.compile(r"Java heap space|GC overhead limit|java\.lang\.OutOfMemoryError|Metaspace"),
        "give the Java virtual machine more heap (spark.driver.memory, -Xmx): neither a GPU nor the pod's "
        "limit is full",
    ),
)
"""The remedy for an exception that no cause names, where its text tells one."""


def _remedy(text: str) -> str | None:
    return next((remedy for pattern, remedy in _REMEDIES if pattern.search(text)), None)


_NOBODY = re.compile(r"bootstrap the communication|connect to the tracker|Failed to recv|Connection refused")


def _met_nobody(log: str, text: str) -> bool:
    """True if the lines below an error of xgboost, which writes the outermost one first, are about peers."""
    return _NOBODY.search(log[log.rfind(text[:60]) :][:600]) is not None


_NCCL_ERROR = re.compile(r"NCCL error in: .*(unhandled system error|remote process exited)")


def _shorten(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


def _only_exit_codes(case: Case) -> Iterator[Finding]:
    """Members that ended with a plain code and said nothing that is known."""
    looked_at = {reading.pod.name for reading in readings(case)}
    if not case.restarts and any(case.has_written(pod) for pod in case.pods):
        return  # they ended once, and what they wrote says nothing of it
    for pod in case.pods:
        code = exit_code(pod)
        if code is None or code > 125 or code <= 0 or not has_run(pod):
            continue
        log = case.log(pod)
        if log is not None and pod.name not in looked_at:
            continue
        if log is not None and (log.has(SECONDARY) or log.has(MEETING)):
            continue
        if log is not None and is_running(pod) and log.has(GOES_ON):
            continue  # that was before
        yield Finding(
            "python_exception",
            f"{pod.name} exited with {code}",
            exit_evidence(pod),
            pod.name,
            case.went_bad(pod),
            Level.SYMPTOM,
            0.4,
            fix=f"its log says why: `allaboard logs {case.seen.run} {pod.name}`" if case.seen.run else None,
            generic=True,
        )
