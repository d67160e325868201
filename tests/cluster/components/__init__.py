"""What a plane consists of: one file per project, found by being there.

A file has ``COMPONENTS``: the processes, each with how it is built, what it needs, which objects must exist
before it starts and how one sees that it is ready. Adding an operator or a scheduler is adding a file here
and a folder in ``go/``.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.api import Object
from tests.cluster.build import Build

if TYPE_CHECKING:
    from tests.cluster.plane import ControlPlane

BASE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""Without these there is no cluster."""


def _nothing(_plane: ControlPlane) -> list[Object]:
    return []


@dataclass(frozen=True, slots=True)
class Component:
    """One process of the plane. Its functions are asked when it is started, in the order of the fields."""

    name: str
    about: str
    build: Build | None
    """None for one that is a part of this repository."""
    command: Callable[[ControlPlane], list[str]]
    ready: Callable[[ControlPlane], bool]
    """Whether it serves; asked again and again. An OSError or ApiError means: not yet."""
    needs: tuple[str, ...] = ()
    ports: tuple[str, ...] = ("",)
    """Suffixes: the port ``health`` of a component is ``plane.port("<name>", "health")``."""
    obstacle: Callable[[], str | None] = field(default=lambda: None)
    """Why it cannot run on this machine."""
    fixed_port: int | None = None
    """A port that it takes whatever it is told: there is one of it on a machine."""
    prepare: Callable[[ControlPlane], None] = field(default=lambda plane: None)
    """Files that it reads. Asked when a plane is made, before anything runs; not at a restart."""
    objects: Callable[[ControlPlane], Iterable[Object]] = field(default=_nothing)
    """Applied before its start: CRDs, namespaces, RBAC, webhook configurations."""
    environ: Callable[[ControlPlane], dict[str, str]] = field(default=lambda plane: {})
    serves: tuple[str, str] | None = None
    """(apiVersion, kind) by which it is seen on a cluster that somebody else runs."""
    tidied: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered before a plane of a test starts: takes away at the end what it leaves outside of that plane."""
    settle: Callable[[ControlPlane], None] = field(default=lambda plane: None)
    """Objects that only a running component lets one make; asked once it is ready."""

    @property
    def title(self) -> str:
        """Its name, and its version if it has one."""
        return f"{self.name} {self.build.version}" if self.build else self.name


@cache
def known() -> dict[str, Component]:
    """Every component by name, in an order in which they can start."""
    modules = sorted(info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]))
    found: dict[str, Component] = {}
    for module in modules:
        for component in import_module(f"{__name__}.{module}").COMPONENTS:
            found[component.name] = component
    return {name: found[name] for name in _in_order([*BASE, *found], found)}


def chosen(names: Collection[str]) -> list[Component]:
    """These, what they need and the base, in an order in which they can start; or LookupError."""
    if strange := sorted(set(names) - set(known())):
        raise LookupError(f"no component {', '.join(strange)}; there are {', '.join(known())}")
    wanted = set(_in_order([*BASE, *names], known()))
    return [component for name, component in known().items() if name in wanted]


def builds(components: Iterable[Component]) -> list[Build]:
    """What must be built for them, each once, in their order."""
    found = [component.build for component in components if component.build is not None]
    return list({build.name: build for build in found}.values())


def _in_order(names: Iterable[str], among: dict[str, Component]) -> list[str]:
    done: list[str] = []

    def visit(name: str) -> None:
        if name not in done:
            for need in among[name].needs:
                visit(need)
            done.append(name)

    for name in names:
        visit(name)
    return done
