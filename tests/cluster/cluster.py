"""Any cluster, by its kubeconfig: what tests need of one, whoever runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from allaboard.backends.kubernetes.discovery import rbac
from tests.cluster import components
from tests.cluster.api import Api, Object, kubeconfig, until

EVERYWHERE = ("kube-apiserver", "kube-controller-manager")
"""Components without which there is no cluster."""


class Cluster:
    """A cluster as tests see it. ``folder`` is for files that it makes."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig = kubeconfig
        self._folder = folder
        self._api: Api | None = None

    @property
    def api(self) -> Api:
        if self._api is None:
            self._api = Api.from_kubeconfig(self.kubeconfig)
        return self._api

    def close(self) -> None:
        """Closes the connection of ``api``."""
        if self._api is not None:
            self._api.close()
            self._api = None

    def lacks(self, facility: str) -> str | None:
        """Why what this component does (a name of tests/cluster/components) is not here; None when it is."""
        if facility in EVERYWHERE:
            return None
        component = components.known()[facility]
        if component.serves is None:
            return f"{facility} is there on control planes of ours alone"
        version, kind = component.serves
        if self.api.serves(version, kind):
            return None
        return f"this cluster serves no {kind} of {version} ({facility})"

    def forbids(self) -> str | None:
        """Why tests cannot run here with these credentials; None when they can."""
        for asked, words in (
            ({"verb": "create", "resource": "namespaces"}, "make namespaces"),
            ({"verb": "*", "group": "*", "resource": "*", "namespace": "any"}, "do everything in them"),
        ):
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
            }
            path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            if not self.api.request("POST", path, review)["status"]["allowed"]:
                return (
                    f"the user of {self.kubeconfig} may not {words} on {self.api.server}; tests have "
                    "namespaces of their own, with accounts and grants in them: name an administrator's"
                )
        return None

    def make_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """A new namespace, usable: its default service account is there."""
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": dict(labels or {})},
            }
        )
        until(
            f"the default service account of {name}",
            lambda: self.api.get("v1", "ServiceAccount", "default", name),
        )
        return name

    def remove_namespace(self, name: str, *, wait: float | None = None) -> None:
        self.api.delete("v1", "Namespace", name)
        if wait is not None:
            until(f"namespace {name} to be gone", lambda: self.api.get("v1", "Namespace", name) is None, wait)

    def grant(
        self, namespace: str, subject: Object, rules: Sequence[Object], name: str = "allaboard-test"
    ) -> None:
        """A Role with these rules, for this subject (``user(...)``, ``service_account(...)``)."""
        meta = {"name": name, "namespace": namespace}
        rbac = "rbac.authorization.k8s.io"
        self.api.apply([
            {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": list(rules)},
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "RoleBinding",
                "metadata": meta,
                "subjects": [subject],
                "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
            },
        ])  # fmt: skip

    def kubeconfig_for_account(self, namespace: str, name: str, *, seconds: int = 3600) -> Path:
        """For this ServiceAccount, made if need be, with a token of this life (600 s at least)."""
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": namespace},
        }
        self.api.apply(account)
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = self.api.request("POST", f"{self.api.path(account)}/token", asked)
        text = self._kubeconfig_with({"token": answer["status"]["token"]}, namespace)
        return write(self._folder / "kubeconfigs", f"{namespace}-{name}.account", text)

    def kubeconfig_for_role(self, namespace: str, role: str, *, seconds: int = 3600) -> Path:
        """For the account that ``allaboard cluster --rbac ROLE`` makes in a namespace, its Role with it."""
        self.api.apply([*yaml.safe_load_all(rbac.manifest(role, namespace))])
        return self.kubeconfig_for_account(namespace, f"allaboard-{role}", seconds=seconds)

    def _kubeconfig_with(self, user: Object, namespace: str) -> str:
        """Ours, but for another user."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        current = next(each for each in config["contexts"] if each["name"] == config["current-context"])
        cluster = next(each for each in config["clusters"] if each["name"] == current["context"]["cluster"])
        return kubeconfig(cluster["cluster"], user, namespace=namespace)


def user(name: str) -> Object:
    """The subject of a RoleBinding that is the user of ``plane.kubeconfig_of(name)``."""
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}


def service_account(namespace: str, name: str) -> Object:
    """The subject of a RoleBinding that is this ServiceAccount."""
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def write(folder: Path, name: str, text: str) -> Path:
    """A file that nobody else may read, complete from the moment when it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    path, new = folder / name, folder / f"{name}.new"
    new.touch(mode=0o600)
    new.write_text(text)
    return new.replace(path)
