"""A cluster for the tests: the caller's own, the one of `make cluster-up`, or one made for this session.

``cluster`` is any of them, for tests that ask only what every cluster can do: with ``KUBECONFIG`` given it is
that one. ``plane`` is one of ours, whose components a test may stop and start; on a foreign cluster such
tests skip. A test says what else it needs: ``@pytest.mark.needs("training-operator", "coscheduling")``, names
of components. What is not there makes it skip, with the reason.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import components, leftovers
from tests.cluster.__main__ import STATE
from tests.cluster.api import ApiError
from tests.cluster.cluster import Cluster
from tests.cluster.kubelet.obstacles import obstacle as kubelet_obstacle
from tests.cluster.plane import ControlPlane, PlaneError, obstacle

# Read before anything clears the environment of the tests.
FOREIGN = os.environ.get("KUBECONFIG")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "needs(*components): skip unless these components (tests/cluster/components) are on the cluster",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for a cluster is a test of the kind e2e, without having to say so."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and {"cluster", "plane", "new_plane_in"} & set(
            getattr(item, "fixturenames", ())
        ):
            item.add_marker(pytest.mark.e2e)


def _running(folder: Path) -> Cluster | None:
    if FOREIGN:
        return _foreign(Path(FOREIGN.split(os.pathsep)[0]), folder)
    try:
        return ControlPlane.attach(STATE)
    except PlaneError:
        return None


def _foreign(kubeconfig: Path, folder: Path) -> Cluster:
    """The cluster of KUBECONFIG. Whoever named one wants the tests to run there, and nowhere else."""
    cluster = Cluster(kubeconfig, folder)
    trouble = f"the tests cannot use the cluster that KUBECONFIG={kubeconfig} names"
    try:
        server = cluster.api.server
    except Exception as error:  # whatever a file that is none, or a plugin, makes of it
        pytest.exit(f"{trouble}: its credentials cannot be read: {error!r}", returncode=2)
    try:
        reason = cluster.forbids()
    except (OSError, ApiError) as error:
        pytest.exit(f"{trouble}: {server}: {error}", returncode=2)
    if reason is not None:
        cluster.close()
        pytest.skip(reason)
    return cluster


@pytest.fixture(scope="session")
def _used() -> list[Cluster]:
    """The shared cluster, once a test has asked for it."""
    return []


@pytest.fixture(scope="module", autouse=True)
def _leaves_nothing_to_others(_used: list[Cluster], request: pytest.FixtureRequest) -> Iterator[None]:
    """Names what tests of a module left on the shared cluster. Set up first, it looks last."""
    yield
    for cluster in _used:
        left = leftovers.leftovers(cluster)
        leftovers.clear(cluster)
        if left:
            name = request.node.nodeid
            pytest.fail(f"the tests of {name} left on the shared cluster: {', '.join(left)}", pytrace=False)


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory, _used: list[Cluster]) -> Iterator[Cluster]:
    if running := _running(tmp_path_factory.mktemp("kubeconfigs")):
        _used.append(running)
        yield running
        running.close()
        return
    base = components.chosen([])
    if reasons := [reason for component in base if (reason := obstacle(component))]:
        pytest.skip(f"no cluster: {reasons[0]}")
    parts = [
        name
        for name, component in components.known().items()
        # Tests bring nodes of their own.
        if name != "nodes" and obstacle(component) is None
    ]
    with ControlPlane(tmp_path_factory.mktemp("cluster"), parts) as plane:
        plane.api.made.clear()
        _used.append(plane)
        yield plane


@pytest.fixture(scope="session")
def plane_of_nodes(_shared: Cluster) -> ControlPlane:
    """A control plane of ours that tests may give nodes on which pods really run (``kubelet``)."""
    if not isinstance(_shared, ControlPlane):
        pytest.skip("needs nodes of ours; this is a cluster that KUBECONFIG names")
    if reason := kubelet_obstacle():
        pytest.skip(reason)
    return _shared


@pytest.fixture
def cluster(_shared: Cluster, request: pytest.FixtureRequest) -> Cluster:
    """Any cluster. What a test makes belongs into a namespace of its own (``namespace``)."""
    for mark in request.node.iter_markers("needs"):
        for name in mark.args:
            if reason := _shared.lacks(name):
                pytest.skip(reason)
    return _shared


@pytest.fixture
def plane(cluster: Cluster) -> ControlPlane:
    """A control plane of ours.

    It is shared: a test that stops a component starts it again, or takes ``new_plane_in``.
    """
    if not isinstance(cluster, ControlPlane):
        pytest.skip("needs a control plane of ours; this is a cluster that KUBECONFIG names")
    return cluster


@pytest.fixture(scope="session")
def new_plane_in(_used: list[Cluster]) -> Callable[..., AbstractContextManager[ControlPlane]]:
    """Makes planes of a test's own: ``with new_plane_in(folder, "training-operator", flags=...) as
    plane``. What runs once on a machine runs there in the meantime, and not on the shared plane; an
    ``optional`` part is left out where it cannot run.
    """

    @contextmanager
    def make(
        folder: Path, *parts: str, optional: Sequence[str] = (), **options: Any
    ) -> Iterator[ControlPlane]:
        with ExitStack() as stack:
            reasons = {}
            for component in components.chosen([*parts, *optional]):
                for shared in _used if component.fixed_port else ():
                    stack.enter_context(_without(shared, component.name))
                if reason := obstacle(component):
                    reasons[component.name] = reason
                stack.enter_context(component.tidied())
            for name, reason in reasons.items():
                if name not in optional:
                    pytest.skip(reason)
            able = [name for name in optional if name not in reasons]
            yield stack.enter_context(ControlPlane(folder, [*parts, *able], **options))

    return make


@contextmanager
def _without(shared: Cluster, component: str) -> Iterator[None]:
    """The shared plane, while this component of it does not run."""
    if not isinstance(shared, ControlPlane) or not shared.runs(component):
        yield
        return
    shared.halt(component)
    try:
        yield
    finally:
        shared.launch(component)


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test's own, on its way out when the test ends."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    name = f"{words[:40].strip('-')}-{secrets.token_hex(3)}"
    cluster.make_namespace(name, {"allaboard.io/test": "true"})
    yield name
    cluster.remove_namespace(name)
