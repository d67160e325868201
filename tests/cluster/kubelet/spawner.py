"""The process that forks sandboxes and containers: small, single-threaded, of the standard library alone.

A kubelet is full of open sockets and half-done coroutines; a fork of it that then unshares namespaces would
be slow and wrong. So one spawner is started beside it and asked, by a packet on a socket, for

- a **router**: the network namespace that all pods hang on, with its devices; sends back listening sockets
and
  the TUN device as file descriptors;
- a **sandbox**: the network, IPC, UTS and mount namespace of one pod. Its memory-backed volumes are mounted
  here, so that they live as long as the pod and no longer;
- a **container**: a process that is number 1 of its own PID namespace, in its own root, in a sandbox;
- an **exec**: one more process in a running container;
- **ip**: a batch of `ip` commands in a network namespace.

A packet carries file descriptors only: the request as JSON in a memory file, a socket on which the one that
serves it reports JSON lines, and what the request needs beyond (stdin, stdout, stderr).

What it promises: nothing outlives the kubelet. The spawner ends when its socket does, every process it forked
dies with it (PDEATHSIG), and with the first process of a PID namespace go all others. Devices go with their
network namespace, mounts with their mount namespace; the kernel cleans up, not we.

Run as ``python -I -S spawner.py FD``.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any, NoReturn

libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000

# What a container runtime leaves to a container that asks for nothing: chown, dac_override, fowner, fsetid,
# kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot, mknod, audit_write, setfcap.
KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31})

LONGEST_CHAIN = 40
"""Links that may lead to one another, as in the kernel."""

Request = dict[str, Any]


class Trouble(Exception):
    """A step of the set-up failed: told to the kubelet as it is."""


def main(control: int) -> None:
    """Fork one child per packet until the kubelet is gone."""
    channel = socket.socket(fileno=control)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Children are reaped as they end: the kubelet hears of them on their own sockets.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    me = os.getpid()
    while True:
        packet, fds, _, _ = socket.recv_fds(channel, 16, 8)
        if not packet:
            return
        if os.fork() == 0:
            channel.close()
            try:
                os._exit(child(me, fds))
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)


def child(parent: int, fds: list[int]) -> int:
    """Serve one request; the exit code is of no meaning."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    os.setsid()
    restore_signals()
    with os.fdopen(fds[0], "rb") as file:
        request = json.load(file)
    report = Report(socket.socket(fileno=fds[1]))
    try:
        SERVERS[request["kind"]](request, report, fds[2:])
    except (OSError, Trouble) as error:
        report.tell(error=str(error))
        return 1
    return 0


class Report:
    """The socket to the kubelet: what happened as JSON lines; signals to pass on come back on it."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel

    def tell(self, fds: tuple[int, ...] = (), **what: object) -> None:
        line = json.dumps(what).encode() + b"\n"
        try:
            socket.send_fds(self.channel, [line], fds)
        except OSError:
            os._exit(1)  # the kubelet is gone, so are we

    def until_closed(self) -> None:
        while self.channel.recv(4096):
            pass


# --- the network -------------------------------------------------------------------------------------------


def router(request: Request, report: Report, fds: list[int]) -> None:
    """A network namespace with forwarding on; sockets that listen in it and its TUN device are sent back."""
    unshare(CLONE_NEWNET)
    settings = {
        "ipv4/ip_forward": "1",
        # Packets come back from the TUN device whose sender lies behind another one.
        "ipv4/conf/all/rp_filter": "0",
        "ipv4/conf/default/rp_filter": "0",
        "ipv4/conf/all/send_redirects": "0",
        "ipv4/conf/default/send_redirects": "0",
    }
    for name, value in settings.items():
        sysctl(name, value)
    sysctl("ipv6/conf/all/disable_ipv6", "1", optional=True)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", request["tun"].encode(), IFF_TUN | IFF_NO_PI))
    ip(request["batch"])
    sent = [tun]
    for spec in request["listen"]:
        kind = socket.SOCK_DGRAM if spec["kind"] == "udp" else socket.SOCK_STREAM
        listening = socket.socket(socket.AF_INET, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((spec["address"], spec["port"]))
        if kind == socket.SOCK_STREAM:
            listening.listen(128)
        sent.append(listening.detach())
    report.tell(tuple(sent), ready=os.getpid())
    for fd in sent:
        os.close(fd)
    report.until_closed()


def sandbox(request: Request, report: Report, fds: list[int]) -> None:
    """The namespaces of one pod; they stay while the kubelet keeps the socket open."""
    outside = os.open(f"/proc/{request['router']}/ns/net", os.O_RDONLY)
    unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS)
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    socket.sethostname(request["hostname"])
    for volume in request["tmpfs"]:
        mount("tmpfs", volume["path"], "tmpfs", MS_NOSUID | MS_NODEV, volume["options"])
    sysctl("ipv6/conf/all/disable_ipv6", "1", optional=True)
    ip(request["inside"])
    # Only the other end is left to do; a fork, because the pod's namespace must stay ours.
    wiring = os.fork()
    if wiring == 0:
        try:
            setns(outside, CLONE_NEWNET)
            ip(request["outside"])
        except (OSError, Trouble) as error:
            report.tell(error=str(error))
            os._exit(1)
        os._exit(0)
    if os.waitpid(wiring, 0)[1] != 0:
        return
    report.tell(ready=os.getpid())
    report.until_closed()


def batch(request: Request, report: Report, fds: list[int]) -> None:
    """A batch of `ip` commands in the network namespace of a process."""
    if request["pid"]:
        enter(request["pid"], ("net",))
    ip(request["batch"], request.get("force", False))
    report.tell(done=True)


def ip(commands: list[str], force: bool = False) -> None:
    """Run them in one `ip`; the first that fails is the error, unless ``force``."""
    if not commands:
        return
    flags = ["-force"] if force else []
    done = subprocess.run(
        ["ip", *flags, "-batch", "-"], input="\n".join(commands) + "\n", capture_output=True, text=True
    )
    if done.returncode and not force:
        raise Trouble(f"ip: {done.stderr.strip()} in: {'; '.join(commands)}")


def sysctl(name: str, value: str, *, optional: bool = False) -> None:
    try:
        Path(f"/proc/sys/net/{name}").write_text(value)
    except OSError:
        if not optional:
            raise


# --- containers --------------------------------------------------------------------------------------------


def container(request: Request, report: Report, fds: list[int]) -> None:
    """Number 1 of a new PID namespace in the sandbox's others, with a root and mounts of its own."""
    procs = open_procs(request["cgroups"])
    enter(request["sandbox"], ("net", "ipc", "uts", "mnt"))
    unshare(CLONE_NEWNS | CLONE_NEWPID)

    def prepare() -> None:
        join(procs)
        build_root(request)

    attend(request, report, fds, prepare)


def executed(request: Request, report: Report, fds: list[int]) -> None:
    """One more process in a running container, whose first process is ``pid``."""
    procs = open_procs(request["cgroups"])
    enter(request["pid"], ("net", "ipc", "uts", "pid", "mnt"))
    attend(request, report, fds, lambda: join(procs))


def attend(request: Request, report: Report, fds: list[int], prepare: Any) -> None:
    """Fork, let the child become the program, report its start and its end; pass signals on meanwhile.

    The dead child is left unreaped until the kubelet has read of its end and closed the socket: its number
    cannot have become another process's while the kubelet may still name it.
    """
    told, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        become(request, fds, telling, prepare)
    os.close(telling)
    for fd in fds:
        os.close(fd)
    with os.fdopen(told, "rb") as file:
        trouble = file.read()
    if trouble:
        os.waitpid(pid, 0)
        report.tell(**json.loads(trouble))
        return
    report.tell(started=pid)
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(report.channel, select.POLLIN)
    over = False
    while True:
        for fd, _ in poll.poll():
            if fd == ended:
                over = True
                poll.unregister(ended)
                info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                assert info is not None
                killed = info.si_code != os.CLD_EXITED
                report.tell(signal=info.si_status) if killed else report.tell(exit=info.si_status)
                continue
            asked = report.channel.recv(4096)
            if not asked:
                if not over:
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            for number in asked.split():
                if not over:
                    os.kill(pid, int(number))


def become(request: Request, fds: list[int], telling: int, prepare: Any) -> NoReturn:
    """Turn this fork into the program of the request; whatever prevents it goes into ``telling``."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prepare()
        os.setsid()
        for number, fd in enumerate(fds[:3]):
            os.dup2(fd, number, inheritable=True)
        if request.get("tty"):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.closerange(3, telling)
        os.closerange(telling + 1, 4096)
        os.set_inheritable(telling, False)
        os.umask(0o022)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        become_user(request)
        # Setting the user clears it.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        enter_folder(request["cwd"])
        environ = request["env"]
        program = find(request["argv"][0], environ.get("PATH", ""))
        os.execve(program, request["argv"], environ)
    except FileNotFoundError as error:
        tell(telling, error=f'exec: "{request["argv"][0]}": {missing(error, request)}', missing=True)
    except (OSError, Trouble) as error:
        reason = (
            os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)
        )
        tell(telling, error=f'exec: "{request["argv"][0]}": {reason}', detail=str(error))
    except BaseException as error:  # a mistake of ours; whatever it is, this fork must not go on
        tell(telling, error=repr(error))
    os._exit(128)


def tell(fd: int, **what: object) -> None:
    os.write(fd, json.dumps(what).encode())


def missing(error: OSError, request: Request) -> str:
    if "/" in request["argv"][0]:
        return f"stat {request['argv'][0]}: no such file or directory"
    return "executable file not found in $PATH" if error.errno is None else str(error)


def find(program: str, path: str) -> str:
    """The file that a container runtime would run for this name."""
    if "/" in program:
        Path(program).stat()
        return program
    for folder in path.split(":"):
        candidate = f"{folder or '.'}/{program}"
        try:
            mode = Path(candidate).stat().st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError


def enter_folder(path: str) -> None:
    """The working directory; runtimes make it where it is missing."""
    try:
        os.chdir(path)
    except FileNotFoundError:
        Path(path).mkdir(parents=True, exist_ok=True)
        os.chdir(path)


def become_user(request: Request) -> None:
    if not request.get("privileged"):
        for capability in range(64):
            if capability not in KEPT_CAPABILITIES and libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                break  # EINVAL: the last that this kernel knows was the one before
    os.setgroups(request.get("groups") or [])
    os.setgid(request.get("gid", 0))
    os.setuid(request.get("uid", 0))
    if request.get("no_new_privileges"):
        prctl(PR_SET_NO_NEW_PRIVS, 1)


def build_root(request: Request) -> None:
    """Mount everything below the prepared folder, then make that folder the root."""
    root = request["root"]
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount(root, root, "", MS_BIND | MS_REC)
    for spec in request["mounts"]:
        try:
            MOUNTERS[spec["type"]](root, spec)
        except OSError as error:
            raise Trouble(f"mount {spec.get('source', spec['type'])} at {spec['target']}: {error}") from error
    if request.get("readonly_root"):
        mount("none", root, "", MS_REMOUNT | MS_BIND | MS_RDONLY)
    os.chdir(root)
    old = f"{root}/.old"
    Path(old).mkdir(exist_ok=True)
    if libc.syscall(PIVOT_ROOT[os.uname().machine], root.encode(), old.encode()) != 0:
        raise failure("pivot_root")
    os.chdir("/")
    if libc.umount2(b"/.old", MNT_DETACH) != 0:
        raise failure("umount /.old")
    Path("/.old").rmdir()


def mount_bind(root: str, spec: Request) -> None:
    source = spec["source"]
    if spec.get("make") and not os.path.lexists(source):
        Path(source).mkdir(parents=True, exist_ok=True)
        Path(source).chmod(0o777)
    target = place(root, spec["target"], is_file=not Path(source).is_dir())
    mount(source, target, "", MS_BIND | MS_REC)
    if spec.get("readonly"):
        mount("none", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY)


def mount_overlay(root: str, spec: Request) -> None:
    for folder in (spec["upper"], spec["work"]):
        Path(folder).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={':'.join(spec['lower'])},upperdir={spec['upper']},workdir={spec['work']}"
    mount("overlay", place(root, spec["target"]), "overlay", 0, options)


def mount_tmpfs(root: str, spec: Request) -> None:
    mount("tmpfs", place(root, spec["target"]), "tmpfs", MS_NOSUID | MS_NODEV, spec.get("options", ""))


def mount_proc(root: str, spec: Request) -> None:
    mount("proc", place(root, spec["target"]), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def mount_sys(root: str, spec: Request) -> None:
    mount("sysfs", place(root, spec["target"]), "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)


def mount_dev(root: str, spec: Request) -> None:
    """A /dev of the few devices that every container has."""
    dev = place(root, spec["target"])
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755,size=65536k")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        os.close(os.open(f"{dev}/{name}", os.O_CREAT | os.O_WRONLY))
        mount(f"/dev/{name}", f"{dev}/{name}", "", MS_BIND)
    links = {
        "fd": "/proc/self/fd",
        "stdin": "/proc/self/fd/0",
        "stdout": "/proc/self/fd/1",
        "stderr": "/proc/self/fd/2",
        "ptmx": "pts/ptmx",
    }
    for name, target in links.items():
        Path(dev, name).symlink_to(target)
    Path(dev, "pts").mkdir()
    mount("devpts", f"{dev}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")


def place(root: str, target: str, *, is_file: bool = False) -> str:
    """Where a target of the container lies on the host, made where missing. Links are followed inside the
    root.

    ``/var/run`` is an absolute link to ``/run``: followed plainly it would lead out of the container.
    """
    top = Path(root)
    done, left, hops = top, [part for part in target.split("/") if part], 0
    while left:
        part = left.pop(0)
        if part == ".":
            continue
        if part == "..":
            done = done if done == top else done.parent
            continue
        path = done / part
        if path.is_symlink():
            hops += 1
            if hops > LONGEST_CHAIN:
                raise Trouble(f"too many links in {target}")
            to = str(path.readlink())
            left = [p for p in to.split("/") if p] + left
            done = top if to.startswith("/") else done
            continue
        if not path.exists():
            if left or not is_file:
                path.mkdir()
            else:
                path.touch()
        done = path
    return str(done)


# --- the kernel --------------------------------------------------------------------------------------------


def failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    if libc.unshare(flags) != 0:
        raise failure("unshare")


def setns(fd: int, kind: int = 0) -> None:
    if libc.setns(fd, kind) != 0:
        raise failure("setns")


def enter(pid: int, names: tuple[str, ...]) -> None:
    """Join these namespaces of a process; all are opened first, since /proc is out of sight after the
    last.
    """
    fds = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in names]
    for fd in fds:
        setns(fd)
        os.close(fd)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    done = libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None
    )
    if done != 0:
        raise failure(f"mount {target}")


def prctl(option: int, value: int) -> None:
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise failure("prctl")


def open_procs(cgroups: list[str]) -> list[int]:
    return [os.open(f"{path}/cgroup.procs", os.O_WRONLY) for path in cgroups]


def join(procs: list[int]) -> None:
    for fd in procs:
        os.write(fd, b"0")
        os.close(fd)


def restore_signals() -> None:
    """Python ignores some, the spawner others; a program expects none to be ignored."""
    for number in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
        signal.SIGCHLD,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGTERM,
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


MOUNTERS = {
    "bind": mount_bind,
    "overlay": mount_overlay,
    "tmpfs": mount_tmpfs,
    "proc": mount_proc,
    "sys": mount_sys,
    "dev": mount_dev,
}
SERVERS = {"router": router, "sandbox": sandbox, "container": container, "exec": executed, "ip": batch}

if __name__ == "__main__":
    main(int(sys.argv[1]))
