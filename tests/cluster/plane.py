"""A real control plane without containers, as plain processes on this machine.

    with ControlPlane(folder, parts=["training-operator"]) as plane:
        plane.api.create(job)                     # the harness's own client, as admin
        run(["allaboard", "--kubeconfig", plane.kubeconfig, ...])
        plane.restart("kube-apiserver")

Everything of a plane lies in its folder: certificates, data, one log per process, ``kubeconfig`` and
``plane.json``, which holds the ports. Started again in the same folder, it has the same address, the same
credentials and the same objects. The processes are children of a keeper (keeper.py), which ends with the
process that made the plane, unless it was detached; ``ControlPlane.attach`` finds one that runs.
"""

from __future__ import annotations

import base64
import csv
import http.client
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster import components, pki
from tests.cluster.api import Api, ApiError, Object, kubeconfig, until
from tests.cluster.build import Tell, Unavailable, why_not
from tests.cluster.cluster import Cluster, write
from tests.cluster.components import Component
from tests.cluster.keeper import Keeper
from tests.cluster.manifests import only

ROOT = Path(__file__).resolve().parents[2]
SERVICES = "10.96.0.0/16"
FIRST_SERVICE = "10.96.0.1"
"""The cluster address of the Service ``kubernetes``; in the certificate of the API server."""
PORTS = range(18_000, 30_000)
"""Below every system's range for outgoing connections: a port stays free while its component is down."""
READY = 120.0
"""Seconds that a component gets; each needs less than two on an idle machine."""
FREE = 15.0
"""Seconds for a port to become free."""
LOCAL = ("localhost", "127.0.0.1", "::1")


class PlaneError(Exception):
    """The plane did not come up, or is not there. Says what was waited for, and shows the end of a log."""


class ControlPlane(Cluster):
    """A cluster of our own, in a folder: a context manager that starts and stops it. See the module.

    ``parts`` are names of components beyond the base; ``flags`` are arguments added to the command of a
    component. Starting raises Unavailable when a part is not built, and PlaneError when one does not come up:
    nothing is left then.
    """

    def __init__(
        self,
        folder: Path,
        parts: Collection[str] = (),
        *,
        flags: Mapping[str, Sequence[str]] | None = None,
        detached: bool = False,
        tell: Tell = lambda line: None,
    ) -> None:
        super().__init__(folder.resolve() / "kubeconfig", folder.resolve())
        self.parts = components.chosen(parts)
        self.listen = "0.0.0.0" if _has_pod_networks() else "127.0.0.1"
        """Where the API server and the store listen. To pods with a network of their own, this machine is
        not 127.0.0.1; both ask everybody for credentials.
        """
        self._flags = {name: list(added) for name, added in (flags or {}).items()}
        self._detached = detached
        self._tell = tell
        self._ports: dict[str, int] = {}
        self._keeper: Keeper | None = None
        self._socket = ""
        self._remembered = self._folder / "plane.json"

    @classmethod
    def attach(cls, folder: Path, tell: Tell = lambda line: None) -> ControlPlane:
        """The plane that runs in this folder, or PlaneError. As a context it is left running."""
        try:
            told = json.loads((folder / "plane.json").read_text())
        except FileNotFoundError:
            raise PlaneError(f"no cluster in {folder}; make cluster-up makes one") from None
        plane = cls(folder, told["parts"], flags=told["flags"], detached=True, tell=tell)
        plane.listen, plane._ports = told["listen"], told["ports"]
        plane._socket = told["keeper"]
        plane._keeper = Keeper(plane._socket)
        if not plane._keeper.answers():
            raise PlaneError(
                f"the cluster in {folder} does not run; make cluster-up starts it again, with its objects"
            )
        return plane

    # --- what components and tests read

    @property
    def pki(self) -> Path:
        """Certificates and keys: ca, etcd-ca, kube-apiserver, etcd; kubelet, local (servers at 127.0.0.1)."""
        return self._folder / "pki"

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.port('kube-apiserver')}"

    @property
    def etcd(self) -> str:
        return f"https://127.0.0.1:{self.port('etcd')}"

    @property
    def token(self) -> str:
        """The administrator's bearer token."""
        with (self.pki / "tokens.csv").open() as file:
            return next(csv.reader(file))[0]

    @property
    def sockets(self) -> Path:
        """A folder with a short path, as the kernel limits those of sockets. It goes when the plane stops."""
        return Path(self._socket).parent

    def flags(self, component: str) -> Sequence[str]:
        """What is added to its command."""
        return self._flags.get(component, ())

    def port(self, component: str, suffix: str = "") -> int:
        return self._ports[f"{component}/{suffix}"]

    def folder(self, component: str) -> Path:
        """A folder of this component's own."""
        path = self._folder / component
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, component: str) -> Path:
        return self._folder / "logs" / f"{component}.log"

    def kubeconfig_of(self, name: str, groups: Sequence[str] = (), namespace: str = "default") -> Path:
        """For a user of this name and these groups, by a client certificate; what it may do, RBAC says."""
        pair = pki.sign(pki.Pair.read(self.pki, "ca"), name, organizations=groups)
        data = {
            "client-certificate-data": base64.b64encode(pair.certificate).decode(),
            "client-key-data": base64.b64encode(pair.key).decode(),
        }
        file = re.sub(r"[^a-zA-Z0-9.-]", "-", f"{namespace}-{name}")
        return write(self._folder / "kubeconfigs", file, self._kubeconfig_with(data, namespace))

    def kubeconfig_of_operator(self, namespace: str, account: str) -> Path:
        """For a component that acts as this ServiceAccount: it may do what its manifests grant."""
        return self.kubeconfig_for_account(namespace, account, seconds=365 * 24 * 3600)

    def lacks(self, facility: str) -> str | None:
        component = components.known()[facility]
        if component in self.parts:
            return None if self.runs(facility) else f"{facility} was stopped"
        return obstacle(component) or f"this plane was started without {facility}"

    # --- life

    def __enter__(self) -> ControlPlane:
        if self._keeper is None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._detached:
            self.close()
        else:
            self.stop()

    def start(self) -> None:
        """Everything, as far as possible at once; returns when all of it serves."""
        if reasons := [reason for component in self.parts if (reason := obstacle(component))]:
            raise Unavailable("; ".join(dict.fromkeys(reasons)))
        self._prepare()
        self._keeper = Keeper.launch(self._socket, self.log("keeper"))
        try:
            self._start_all()
            if self._detached:
                # Not before it is whole: one that is killed on the way leaves nothing.
                self._keeper.detach()
        except BaseException:
            self.stop()
            raise

    def add(self, parts: Collection[str]) -> None:
        """These components, and what they need, join the running plane; those that run are left alone."""
        wanted = components.chosen([*(part.name for part in self.parts), *parts])
        new = [component for component in wanted if not self.runs(component.name)]
        if reasons := [reason for component in new if (reason := obstacle(component))]:
            raise Unavailable("; ".join(dict.fromkeys(reasons)))
        self.parts = wanted
        self._find_ports()
        self._remember()
        for component in new:
            component.prepare(self)
            self._bring_up(component)

    def stop(self) -> None:
        """Ends every process of the plane; its folder stays, and it can be started again."""
        if self._keeper is not None:
            self._keeper.end()
            self._keeper = None
        self.close()

    def status(self) -> dict[str, dict[str, Any]]:
        """By component: pid, running, code, since."""
        return self._kept.status()

    def runs(self, component: str) -> bool:
        return bool(self.status().get(component, {}).get("running"))

    def pid(self, component: str) -> int:
        return int(self.status()[component]["pid"])

    def launch(self, component: str, flags: Sequence[str] | None = None) -> None:
        """Starts a component that does not run, waits until it serves; flags replace those added before."""
        if flags is not None:
            self._flags[component] = list(flags)
            self._remember()
        found = components.known()[component]
        self._until_free([self.port(component, suffix) for suffix in found.ports], component)
        self.log(component).parent.mkdir(parents=True, exist_ok=True)
        place = self.folder(component)
        temporary = place / "tmp"
        temporary.mkdir(exist_ok=True)
        # Nothing of the caller's: no proxy, no credentials, no settings of Go.
        environ = {"PATH": os.defpath, "HOME": str(place), "TMPDIR": str(temporary), **found.environ(self)}
        command = [*found.command(self), *self.flags(component)]
        self._kept.start(component, command, environ, self.log(component), place)
        self._until(found, "it to be ready", lambda: found.ready(self))

    def halt(self, component: str, number: int = signal.SIGTERM) -> None:
        """Stops a component; SIGKILL is a crash. Returns when its processes are gone."""
        self._kept.stop(component, number)

    def restart(
        self, component: str, *, number: int = signal.SIGTERM, flags: Sequence[str] | None = None
    ) -> None:
        """Stopped, started again at the same ports with the same data, and ready when this returns."""
        self.halt(component, number)
        self.launch(component, flags)

    def compact_etcd(self) -> int:
        """Makes etcd forget all revisions before the present one, which is returned.

        A watch that goes on from an older one is told 410 when the API server has to ask etcd for it: after
        its restart.
        """
        revision = int(self.ask_etcd("/v3/maintenance/status", {})["header"]["revision"])
        self.ask_etcd("/v3/kv/compaction", {"revision": revision, "physical": True})
        return revision

    def ask_etcd(self, path: str, body: Object) -> Any:
        """One request to etcd's JSON gateway."""
        tls = ssl.create_default_context(cafile=str(self.pki / "etcd-ca.crt"))
        tls.load_cert_chain(self.pki / "etcd.crt", self.pki / "etcd.key")
        api = Api(self.etcd, tls)
        try:
            return api.request("POST", path, body, timeout=10)
        finally:
            api.close()

    def healthy(self, component: str, path: str, suffix: str = "", *, tls: bool = True) -> bool:
        """Whether this component answers 200 at a path of its own. OSError while it does not listen."""
        return self.probe(component, path, suffix, tls=tls) == 200

    def probe(self, component: str, path: str, suffix: str = "", *, tls: bool = True) -> int:
        """The status with which a component answers at a path. OSError while it does not listen."""
        port = self.port(component, suffix)
        connection: http.client.HTTPConnection
        if tls:
            # It is on this machine, and nothing is told to it.
            unproven = ssl.create_default_context()
            unproven.check_hostname, unproven.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=unproven)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    # --- inside

    @property
    def _kept(self) -> Keeper:
        if self._keeper is None:
            raise PlaneError(f"the cluster in {self._folder} does not run")
        return self._keeper

    def _start_all(self) -> None:
        coming: dict[str, Future[None]] = {}

        def after_its_needs(component: Component) -> None:
            for need in component.needs:
                coming[need].result()
            self._bring_up(component)

        # One thread for each, as they wait for each other.
        with ThreadPoolExecutor(max_workers=len(self.parts)) as pool:
            for component in self.parts:
                coming[component.name] = pool.submit(after_its_needs, component)
        for future in coming.values():
            future.result()

    def _bring_up(self, component: Component) -> None:
        began = time.monotonic()
        try:
            objects = list(component.objects(self))
            self.api.apply(objects)
            # An operator that does not find its kinds gives up.
            self._until(component, "its kinds to be served", lambda: self._serves_all(objects))
            self.launch(component.name)
            component.settle(self)
        finally:
            # In a thread of its own, whose connection nobody else would close.
            self.api.close()
        self._tell(f"{component.title}: ready after {time.monotonic() - began:.1f} s")

    def _serves_all(self, objects: Iterable[Object]) -> bool:
        """Whether the kinds that these define can be used."""
        return all(
            self.api.serves(f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"])
            for crd in only(objects, "CustomResourceDefinition")
            for version in crd["spec"]["versions"]
            if version["served"]
        )

    def _until(self, component: Component, what: str, look: Callable[[], bool]) -> None:
        """Waits; PlaneError with the end of the log when the component ended, or the time is up."""
        last = "no answer"

        def seen() -> bool:
            nonlocal last
            try:
                if look():
                    return True
                last = "not yet"
            except (OSError, ApiError, http.client.HTTPException, LookupError) as error:
                last = str(error)
            told = self._kept.status().get(component.name)
            if what == "it to be ready" and told and not told["running"]:
                raise PlaneError(f"{component.name} ended with {told['code']}\n{self._tail(component.name)}")
            return False

        try:
            until(what, seen, READY, pause=0.1)
        except TimeoutError:
            raise PlaneError(
                f"{component.name}: waited {READY:g} s for {what}; last seen: {last}\n"
                f"{self._tail(component.name)}"
            ) from None

    def _until_free(self, ports: Collection[int], component: str) -> None:
        """A process that has just ended may leave its port a moment later."""
        for port in ports:
            try:
                until(f"port {port}", lambda port=port: _is_free(port), FREE)
            except TimeoutError:
                raise PlaneError(
                    f"{component} needs port {port} of this machine, which something else uses; end that, or "
                    "have the cluster take other ports: make cluster-down, then make cluster-up"
                ) from None

    def _tail(self, component: str) -> str:
        path = self.log(component)
        lines = path.read_text(errors="replace").splitlines()[-15:] if path.exists() else []
        return "\n".join([f"the end of {path}:", *(f"    {line[:300]}" for line in lines or ["(empty)"])])

    def _prepare(self) -> None:
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        # Short, as the kernel limits the paths of sockets to some hundred characters.
        self._socket = str(Path(tempfile.mkdtemp(prefix="allaboard-plane-")) / "keeper")
        self._find_ports()
        self._remember()
        if not all((self.pki / name).exists() for name in ("tokens.csv", "front-proxy.crt")):
            self._make_credentials()
        user = {"token": self.token}
        authority = (self.pki / "ca.crt").read_bytes()
        entry = {"server": self.server, "certificate-authority-data": base64.b64encode(authority).decode()}
        write(self._folder, "kubeconfig", kubeconfig(entry, user))
        for component in self.parts:
            component.prepare(self)

    def _find_ports(self) -> None:
        with suppress(FileNotFoundError):
            self._ports = json.loads(self._remembered.read_text())["ports"]
        for component in self.parts:
            for suffix in component.ports:
                name = f"{component.name}/{suffix}"
                if name not in self._ports:
                    self._ports[name] = component.fixed_port or _free_port(self._ports.values())

    def _remember(self) -> None:
        facts = {
            "parts": [component.name for component in self.parts],
            "flags": self._flags,
            "listen": self.listen,
            "ports": self._ports,
            "keeper": self._socket,
        }
        written = self._remembered.with_suffix(".new")
        written.write_text(json.dumps(facts, indent=2))
        written.replace(self._remembered)

    def _make_credentials(self) -> None:
        ca, etcd_ca = pki.authority("allaboard-tests"), pki.authority("allaboard-tests-etcd")
        front_proxy = pki.authority("allaboard-tests-front-proxy")
        names = ["kubernetes", *(f"kubernetes.default{end}" for end in ("", ".svc", ".svc.cluster.local"))]
        hosts = [*LOCAL, socket.gethostname(), *names, FIRST_SERVICE]
        made = {
            "ca": ca,
            "etcd-ca": etcd_ca,
            "etcd": pki.sign(etcd_ca, "etcd", hosts=LOCAL),
            # Also what it shows to a kubelet that it asks for logs.
            "kube-apiserver": pki.sign(ca, "kube-apiserver", organizations=["system:masters"], hosts=hosts),
            "kubelet": pki.sign(ca, "kubelet", hosts=LOCAL),
            "local": pki.sign(ca, "local", hosts=LOCAL),
            "front-proxy-ca": front_proxy,
            "front-proxy": pki.sign(front_proxy, "front-proxy"),
        }
        for name, pair in made.items():
            pair.write(self.pki, name)
        private, public = pki.key_pair()
        write(self.pki, "service-accounts.key", private.decode())
        write(self.pki, "service-accounts.pub", public.decode())
        write(self.pki, "tokens.csv", f'{secrets.token_urlsafe(32)},admin,admin,"system:masters"\n')


def obstacle(component: Component) -> str | None:
    """Why this component cannot be started here now; None when it can."""
    if sys.platform != "linux":
        return "a control plane of ours needs Linux, which lets no process outlive the tests"
    if reason := (component.build and why_not(component.build)) or component.obstacle():
        return reason
    if component.fixed_port and not _is_free(component.fixed_port):
        return (
            f"{component.name} needs port {component.fixed_port} of this machine, which something else uses"
        )
    return None


def _has_pod_networks() -> bool:
    """Whether pods of the process kubelet get networks of their own here."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


def _free_port(taken: Collection[int]) -> int:
    while True:
        port = random.choice(PORTS)
        if port not in taken and _is_free(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Go's servers do: connections that are still closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
