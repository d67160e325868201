"""An API server in memory that answers what a test wrote down: objects, permissions, discovery. It is at
the level of `Api`, for talks that read and try; what is kept and changed is `allaboard.testing.cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from allaboard.backends.kubernetes.client.errors import Forbidden, Missing
from allaboard.backends.kubernetes.client.resources import ACCESS_REVIEWS, Resource
from allaboard.text.units import rfc3339

NOW = 1_795_262_400.0
"""2026-11-21T12:00:00Z"""
Json = dict[str, Any]


def ago(seconds: float) -> str | None:
    return rfc3339(NOW - seconds)


class Answers:
    """``kinds``: ``group/version/Kind`` of what is served. ``objects``: plural (with its group) -> objects;
    a key ``namespace/plural`` for another namespace. ``denied``: (verb, plural) that this user may not do.
    ``refuses``: called with every object that is tried; may raise.
    """

    namespace = "research"
    server = "https://cluster.example"

    def __init__(
        self,
        kinds: Iterable[str] = (),
        objects: Mapping[str, list[Json]] | None = None,
        denied: Iterable[tuple[str, str]] = (),
        refuses: Callable[[Json], None] = lambda body: None,
        *,
        aggregated: bool = True,
    ) -> None:
        self.kinds, self.objects, self.denied = [*kinds], dict(objects or {}), {*denied}
        self.refuses, self.aggregated = refuses, aggregated
        self.asked: list[tuple[str, str]] = []
        self.tried: list[Json] = []

    def server_time(self) -> float:
        return NOW

    def raw(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        self.asked.append((method, path))
        if path == "/version":
            return {"gitVersion": "v1.36.3"}
        groups: dict[str, dict[str, list[str]]] = {}
        for kind in self.kinds:
            group, version, name = kind.split("/")
            groups.setdefault(group, {}).setdefault(version, []).append(name)
        if path == "/apis" and self.aggregated:
            return {
                "kind": "APIGroupDiscoveryList",
                "items": [
                    {
                        "metadata": {"name": group},
                        "versions": [
                            {"version": v, "resources": [{"responseKind": {"kind": k}} for k in names]}
                            for v, names in versions.items()
                        ],
                    }
                    for group, versions in groups.items()
                ],
            }
        if path == "/apis":
            return {
                "kind": "APIGroupList",
                "groups": [
                    {"name": g, "versions": [{"groupVersion": f"{g}/{v}"} for v in versions]}
                    for g, versions in groups.items()
                ],
            }
        _, _, group, version = path.split("/")
        names = groups[group][version]
        return {"resources": [{"name": f"{n.lower()}s", "kind": n} for n in names]}

    def _check(self, verb: str, resource: Resource) -> None:
        self.asked.append((verb, resource.name))
        if (verb, resource.plural) in self.denied:
            raise Forbidden(f"may not {verb} {resource.plural}", status=403)

    def _of(self, resource: Resource, namespace: str | None) -> list[Json]:
        if namespace not in (None, self.namespace) and resource.namespaced:
            return self.objects.get(f"{namespace}/{resource.name}", [])
        return self.objects.get(resource.name, [])

    def list(
        self, resource: Resource, namespace: str | None = None, **options: Any
    ) -> tuple[list[Json], str]:
        self._check("list", resource)
        return self._of(resource, namespace)[: options.get("at_most")], "1"

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        self._check("get", resource)
        for item in self._of(resource, namespace):
            if item["metadata"]["name"] == name:
                return item
        raise Missing(f'{resource.plural} "{name}" not found', status=404)

    def create(
        self, resource: Resource, body: Json, namespace: str | None = None, *, dry_run: bool = False
    ) -> Json:
        if resource == ACCESS_REVIEWS:
            asked = body["spec"]["resourceAttributes"]
            return {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.denied}}
        if resource.kind == "SelfSubjectReview":
            return {"status": {"userInfo": {"username": "ada"}}}
        assert dry_run, "nothing may be created"
        self._check("create", resource)
        self.tried.append(body)
        self.refuses(body)
        return body
