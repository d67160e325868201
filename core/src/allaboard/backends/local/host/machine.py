"""Facts about this machine, as far as a run on it must know them.

Values come from files below ``root`` (a test passes another one), from the environment that is given, and,
where GPUs are asked for and the kernel driver does not tell, from ``nvidia-smi -L``. torch is never imported.
CPU means the cores that this process may use: its affinity (cpusets included) and the quota of every control
group around it. Memory is the machine's, or the smallest limit of the surrounding control groups.
"""

# ruff: noqa: PTH110, PTH115, PTH116, PTH118, PTH208  (pathlib is slow to import)

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from allaboard.backends.local.host import processes
from allaboard.backends.local.host.control_group import cgroup_folders, read_text
from allaboard.errors import SiteError

_DRIVER_PATIENCE = 20.0
"""Seconds; without persistence mode a healthy driver needs several to wake eight GPUs."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The resources for runs: cores, bytes, and GPU ids for CUDA_VISIBLE_DEVICES."""

    cpu: float
    memory: int
    gpus: tuple[str, ...] = ()


def capacity(environ: Mapping[str, str] | None = None, with_gpus: bool = True, root: str = "/") -> Capacity:
    """The capacity of this machine. ``with_gpus=False`` skips the detection of GPUs."""
    return Capacity(cpus(root), memory(root), gpus(environ, root) if with_gpus else ())


# --- who we are ---------------------------------------------------------------------------------------------


def machine_id(root: str = "/") -> str:
    """Stable over reboots, different on every machine; the host's name where the system keeps no id."""
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):
        if text := read_text(root, name):
            return text
    return os.uname().nodename


def boot_id(root: str = "/") -> str:
    """Different after every boot: what ran before it is gone."""
    return read_text(root, "proc/sys/kernel/random/boot_id") or _sysctl("kern.bootsessionuuid")


def pid_namespace(root: str = "/") -> str:
    """Equal for processes that can see (and signal) each other's pids; "" where there are no namespaces."""
    try:
        return os.readlink(os.path.join(root, "proc/self/ns/pid"))
    except OSError:
        return ""


def fingerprint(folder: str) -> dict[str, str | int]:
    """The identity of ``folder`` and its machine. Equal only where the run's processes are visible.

    Keys: boot, pid_namespace, device, inode. Raises OSError when the folder is not here.
    """
    stat = os.stat(folder)
    return {
        "boot": boot_id(),
        "pid_namespace": pid_namespace(),
        "device": stat.st_dev,
        "inode": stat.st_ino,
    }


def _sysctl(name: str) -> str:
    """A string of the kernel of macOS; "" elsewhere."""
    return processes.output_of("sysctl", "-n", name).strip() if os.uname().sysname == "Darwin" else ""


# --- CPU and memory -----------------------------------------------------------------------------------------


def cpus(root: str = "/") -> float:
    """Cores that this process may use; may be a fraction (a quota of 1.5)."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(usable), *_quotas(root)])


def load_text() -> str:
    """Load of this machine over the last minute, as a sentence."""
    here = cpus()
    return f"{os.getloadavg()[0]:.0f} runnable processes on {here:g} CPU{'s' if here != 1 else ''}"


def memory(root: str = "/") -> int:
    """Bytes that this process may use, in all: the machine's memory or the tightest limit around us."""
    return min([_physical_memory(root), *_memory_limits(root)])


def _physical_memory(root: str) -> int:
    for line in read_text(root, "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _quotas(root: str) -> Iterator[float]:
    for folder in cgroup_folders(root, "cpu"):
        limits = read_text(folder, "cpu.max").split()  # v2: "150000 100000" or "max 100000"
        if not limits:
            limits = [
                read_text(folder, "cpu.cfs_quota_us"),
                read_text(folder, "cpu.cfs_period_us"),
            ]  # v1: quota -1 is none
        if len(limits) == 2 and limits[0].isdigit() and limits[1].isdigit() and int(limits[1]):
            yield int(limits[0]) / int(limits[1])


def _memory_limits(root: str) -> Iterator[int]:
    for folder in cgroup_folders(root, "memory"):
        # v1 says "no limit" by a number near 2**63, which the machine's own memory undercuts.
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (text := read_text(folder, name)).isdigit():
                yield int(text)


def oom_kills(root: str = "/") -> int:
    """Number of processes that the kernel has killed for the memory of our control group; 0 if the group
    does not count them.
    """
    for folder in cgroup_folders(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            for line in read_text(folder, name).splitlines():
                fields = line.split()
                if fields[:1] == ["oom_kill"] and fields[-1].isdigit():
                    return int(fields[-1])
    return 0


# --- GPUs ---------------------------------------------------------------------------------------------------


def gpus(environ: Mapping[str, str] | None = None, root: str = "/") -> tuple[str, ...]:
    """GPUs (or MIG devices) that a process with this environment sees, in the order in which it sees them.

    UUIDs, so that they mean the same to everybody. CUDA_VISIBLE_DEVICES in ``environ`` restricts them; its
    numbers count in PCI order. ``ALLABOARD_GPUS`` (ids, separated by commas; empty for none) replaces all of
    this: for rehearsals and tests.
    """
    environ = os.environ if environ is None else environ
    stated = environ.get("ALLABOARD_GPUS")
    if stated is not None:
        return tuple(dict.fromkeys(word.strip() for word in stated.split(",") if word.strip()))
    seen = environ.get("CUDA_VISIBLE_DEVICES")
    if seen is not None and not seen.strip():
        return ()
    return visible_devices(_devices(root, environ), seen)


def visible_devices(devices: Sequence[str], value: str | None) -> tuple[str, ...]:
    """The devices that CUDA selects for CUDA_VISIBLE_DEVICES (ids or numbers). The first invalid entry hides
    the rest.
    """
    if value is None:
        return tuple(devices)
    chosen: list[str] = []
    for word in (part.strip() for part in value.split(",")):
        if word.isdigit():
            fits = [devices[int(word)]] if int(word) < len(devices) else []
        else:  # a UUID may be abbreviated as long as it is unique
            fits = [device for device in devices if word and device.startswith(word)]
        if len(fits) != 1:
            break
        if fits[0] in chosen:  # CUDA refuses a list that names a device twice
            return ()
        chosen += fits
    return tuple(chosen)


def _devices(root: str, environ: Mapping[str, str]) -> list[str]:
    devices = _devices_by_driver(root)
    return devices if devices is not None else _devices_by_nvidia_smi(root, environ)


def _devices_by_driver(root: str) -> list[str] | None:
    """UUIDs by PCI address from the kernel driver, which takes a millisecond. None if the driver's data is
    incomplete.
    """
    base = os.path.join(root, "proc/driver/nvidia/gpus")
    try:
        addresses = sorted(os.listdir(base))
    except OSError:
        return [] if not os.path.exists(os.path.join(root, "dev/nvidiactl")) else None
    devices = []
    for address in addresses:
        facts = dict(_parse_fields(read_text(base, address, "information")))
        uuid, minor = facts.get("GPU UUID", ""), facts.get("Device Minor", "")
        if not uuid.startswith("GPU-") or "?" in uuid or _is_split(root, minor):
            return None  # asleep since boot, or split into MIG devices, whose ids only nvidia-smi knows
        if os.path.exists(os.path.join(root, f"dev/nvidia{minor}")):  # a container shows only its own
            devices.append(uuid)
    return devices


def _parse_fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()


def _is_split(root: str, minor: str) -> bool:
    try:
        names = os.listdir(os.path.join(root, f"proc/driver/nvidia/capabilities/gpu{minor}/mig"))
    except OSError:
        return False
    return any(name.startswith("gi") for name in names)


def _devices_by_nvidia_smi(root: str, environ: Mapping[str, str]) -> list[str]:
    try:
        listing = processes.output_of("nvidia-smi", "-L", path=environ.get("PATH"), within=_DRIVER_PATIENCE)
    except TimeoutError as error:
        raise SiteError(
            f"nvidia-smi has not answered within {_DRIVER_PATIENCE:g} s: the GPU driver hangs; repair it, "
            "or run without GPUs (CUDA_VISIBLE_DEVICES= or ALLABOARD_GPUS= in the environment)",
            code="gpu_driver_hangs",
        ) from error
    except FileNotFoundError:  # not installed: no GPU that CUDA could use
        return []
    except OSError as error:
        raise SiteError(
            f"the GPUs are unknown, because nvidia-smi cannot be started: {processes.why_no_process(error)}",
            code="no_process",
        ) from error
    return parse_device_list(listing.splitlines())


def parse_device_list(lines: Iterable[str]) -> list[str]:
    """Ids in the output of ``nvidia-smi -L``. A split GPU counts as its MIG devices, not as itself."""
    devices: list[str] = []
    whole = None
    for line in lines:
        uuid = line.rpartition("(UUID: ")[2].rstrip().rstrip(")")
        if line.startswith("GPU ") and uuid.startswith("GPU-"):
            whole = uuid
            devices.append(uuid)
        elif line.lstrip().startswith("MIG ") and uuid.startswith("MIG-"):
            if whole in devices:
                devices.remove(whole)
            devices.append(uuid)
    return devices
