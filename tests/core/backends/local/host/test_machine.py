"""The machine's facts: what a run may use of it, and whether another process sees the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allaboard.backends.local.host import machine
from allaboard.backends.local.host.machine import Capacity
from allaboard.errors import SiteError

GiB = 1 << 30
USABLE = (
    float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
)


class Root:
    """A made-up root folder with the files that tests name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, name: str, text: str = "") -> Root:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def __str__(self) -> str:
        return str(self.path)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)("proc/meminfo", f"MemTotal:  {64 * GiB // 1024} kB\nMemFree: 1 kB\n")


@pytest.fixture
def v2(root: Root) -> Root:
    root(
        "proc/self/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    )
    return root("proc/self/cgroup", "0::/user.slice/session.scope\n")


@pytest.fixture
def v1(root: Root) -> Root:
    mounts = [
        "33 32 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct",
        "34 32 0:29 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory",
        "35 32 0:30 / /sys/fs/cgroup/unified rw shared:11 - cgroup2 cgroup2 rw",
    ]
    root("proc/self/mountinfo", "\n".join(mounts))
    return root("proc/self/cgroup", "9:memory:/jobs/a\n4:cpu,cpuacct:/jobs/a\n0::/init.scope\n")


def test_without_limits_all_usable_cores_and_the_machines_memory(root: Root) -> None:
    assert machine.cpus(str(root)) == USABLE
    assert machine.memory(str(root)) == 64 * GiB


def test_quota_of_the_innermost_group(v2: Root) -> None:
    v2("sys/fs/cgroup/user.slice/session.scope/cpu.max", "50000 100000\n")
    v2("sys/fs/cgroup/user.slice/session.scope/memory.max", f"{2 * GiB}\n")
    assert machine.cpus(str(v2)) == 0.5
    assert machine.memory(str(v2)) == 2 * GiB


def test_a_limit_further_out_counts_as_well(v2: Root) -> None:
    v2("sys/fs/cgroup/user.slice/session.scope/cpu.max", "max 100000\n")
    v2("sys/fs/cgroup/user.slice/session.scope/memory.max", "max\n")
    v2("sys/fs/cgroup/user.slice/cpu.max", "75000 100000\n")
    v2("sys/fs/cgroup/user.slice/memory.max", f"{8 * GiB}\n")
    assert machine.cpus(str(v2)) == 0.75
    assert machine.memory(str(v2)) == 8 * GiB


def test_a_container_sees_its_limit_at_the_mount(root: Root) -> None:
    root("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
    root("proc/self/cgroup", "0::/\n")
    root("sys/fs/cgroup/cpu.max", "25000 100000")
    root("sys/fs/cgroup/memory.max", str(GiB))
    assert (machine.cpus(str(root)), machine.memory(str(root))) == (0.25, GiB)


def test_old_groups(v1: Root) -> None:
    v1("sys/fs/cgroup/cpu,cpuacct/jobs/a/cpu.cfs_quota_us", "50000")
    v1("sys/fs/cgroup/cpu,cpuacct/jobs/a/cpu.cfs_period_us", "100000")
    v1("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", str(3 * GiB))
    v1("sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", str(9223372036854771712))
    assert machine.cpus(str(v1)) == 0.5
    assert machine.memory(str(v1)) == 3 * GiB


def test_old_groups_without_quota(v1: Root) -> None:
    v1("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
    v1("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert machine.cpus(str(v1)) == USABLE


def test_an_old_container_whose_path_is_the_hosts(root: Root) -> None:
    root("proc/self/mountinfo", "33 32 0:28 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n")
    root("proc/self/cgroup", "4:cpu:/docker/abc\n")
    root("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000")("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert machine.cpus(str(root)) == 0.5


@pytest.mark.parametrize("text", ["", "garbage", "0::", "0::/../../outside", ":::", "9:memory\n"])
def test_strange_group_files_limit_nothing(text: str, v2: Root) -> None:
    v2("proc/self/cgroup", text)
    assert machine.cpus(str(v2)) == USABLE
    assert machine.memory(str(v2)) == 64 * GiB


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or USABLE < 2, reason="needs two cores and affinity")
def test_affinity_counts() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert machine.cpus() <= 1.0
    finally:
        os.sched_setaffinity(0, before)


# --- who we are -------------------------------------------------------------------------------------------


def test_ids_of_machine_and_boot(root: Root) -> None:
    root("etc/machine-id", "abc123\n")("proc/sys/kernel/random/boot_id", "b-1\n")
    assert machine.machine_id(str(root)) == "abc123"
    assert machine.boot_id(str(root)) == "b-1"


def test_a_machine_without_an_id_goes_by_its_name(root: Root) -> None:
    assert machine.machine_id(str(root("etc/machine-id", "\n"))) == os.uname().nodename


def test_a_fingerprint_fits_this_folder_alone(tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir(), other.mkdir()
    assert machine.fingerprint(str(here)) == machine.fingerprint(str(here))
    assert set(machine.fingerprint(str(here))) == {"boot", "pid_namespace", "device", "inode"}
    assert machine.fingerprint(str(here)) != machine.fingerprint(str(other))
    with pytest.raises(OSError, match="gone"):
        machine.fingerprint(str(tmp_path / "gone"))


# --- GPUs -------------------------------------------------------------------------------------------------

A, B, C = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-89000000-0000-0000-0000-000000000001", "GPU-c0ffee"


def driver(root: Root, *uuids: str) -> Root:
    for minor, uuid in enumerate(uuids):
        text = f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 1\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        root(f"proc/driver/nvidia/gpus/0000:{minor:02x}:00.0/information", text)(f"dev/nvidia{minor}")
    return root("dev/nvidiactl")


def nvidia_smi(root: Root, text: str) -> dict[str, str]:
    """An environment in which nvidia-smi says this."""
    tool = root.path / "bin" / "nvidia-smi"
    root("bin/nvidia-smi", f"#!/bin/sh\n[ \"$1\" = -L ] && cat <<'E'\n{text}\nE\necho complaint >&2\n")
    tool.chmod(0o755)
    return {"PATH": f"{tool.parent}:{os.environ['PATH']}"}


LISTING = f"""GPU 0: NVIDIA A100 (UUID: {A})
  MIG 1g.10gb Device  0: (UUID: MIG-1111)
  MIG 1g.10gb Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA A100 (UUID: {B})"""


def test_a_machine_without_gpus(root: Root) -> None:
    assert machine.gpus({}, str(root)) == ()


def test_gpus_by_the_driver_in_pci_order(root: Root) -> None:
    assert machine.gpus({}, str(driver(root, A, B, C))) == (A, B, C)


def test_a_container_has_only_the_gpus_whose_devices_it_has(root: Root) -> None:
    driver(root, A, B, C)
    (root.path / "dev/nvidia1").unlink()
    assert machine.gpus({}, str(root)) == (A, C)


def test_where_the_driver_does_not_tell_nvidia_smi_is_asked(root: Root) -> None:
    driver(root, "GPU-????????-????-????-????-????????????")
    assert machine.gpus(nvidia_smi(root, LISTING), str(root)) == ("MIG-1111", "MIG-2222", B)


def test_mig_devices_count_in_place_of_the_gpu_that_is_split(root: Root) -> None:
    driver(root, A, B)
    root("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access")
    assert machine.gpus(nvidia_smi(root, LISTING), str(root)) == ("MIG-1111", "MIG-2222", B)


def test_a_driver_without_nvidia_smi_is_no_gpu(root: Root) -> None:
    root("dev/nvidiactl")
    assert machine.gpus({"PATH": str(root.path)}, str(root)) == ()


def test_a_driver_that_hangs_is_named(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(root, "GPU-????????-????-????-????-????????????")
    environ = nvidia_smi(root, LISTING)
    root("bin/nvidia-smi", "#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(machine, "_DRIVER_PATIENCE", 0.05)
    with pytest.raises(SiteError, match="the GPU driver hangs"):
        machine.gpus(environ, str(root))


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, (A, B, C)),
        ("", ()),
        (" ", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0", (A,)),
        ("2,0", (C, A)),
        (" 1 , 2 ", (B, C)),
        ("0,3,1", (A,)),  # a wrong one hides all after it
        ("0,-1,1", (A,)),
        ("0,0", ()),
        (B, (B,)),
        ("GPU-c0", (C,)),
        ("GPU-89", ()),  # fits two
        (f"{C},0", (C, A)),
    ],
)
def test_cuda_visible_devices(value: str | None, seen: tuple[str, ...], root: Root) -> None:
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert machine.gpus(environ, str(driver(root, A, B, C))) == seen


def test_gpus_can_be_told_for_a_rehearsal(root: Root) -> None:
    told = {"ALLABOARD_GPUS": " 0, 1,,1 ", "CUDA_VISIBLE_DEVICES": ""}
    assert machine.gpus(told, str(driver(root, A))) == ("0", "1")
    assert machine.gpus({"ALLABOARD_GPUS": ""}, str(root)) == ()


def test_nobody_looks_for_gpus_when_none_is_asked_for(root: Root) -> None:
    driver(root, A)
    assert machine.capacity({}, with_gpus=False, root=str(root)) == Capacity(USABLE, 64 * GiB, ())
    assert machine.capacity({}, root=str(root)).gpus == (A,)


def test_how_often_the_kernel_killed_for_memory(v2: Root) -> None:
    assert machine.oom_kills(str(v2)) == 0
    v2("sys/fs/cgroup/user.slice/session.scope/memory.events", "low 0\nmax 9\noom 4\noom_kill 3\n")
    v2("sys/fs/cgroup/user.slice/memory.events", "oom_kill 8\n")
    assert machine.oom_kills(str(v2)) == 3, "of the innermost group"


def test_how_often_the_kernel_killed_for_memory_by_v1(v1: Root) -> None:
    v1("sys/fs/cgroup/memory/jobs/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert machine.oom_kills(str(v1)) == 2
