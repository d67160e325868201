"""The local backend is compared with the real operator: every case is played on both, and told alike."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.local.backend import LocalBackend
from allaboard.engines import engine_of
from allaboard.errors import BadInput
from allaboard.job.training_job import TrainingJob
from tests.cluster.components.training_operator import KUBECTL
from tests.cluster.kubelet.handle import NodeSpec, nodes_on
from tests.cluster.kubelet.obstacles import obstacle
from tests.cluster.parity.cases import CASES, Case
from tests.cluster.parity.differences import DIFFERENCES
from tests.cluster.parity.puppets import Puppeteer
from tests.cluster.parity.stages import ClusterStage, LocalStage, Stage, Tale, launch
from tests.cluster.plane import ControlPlane

OWN = "allaboard.test/parity"
AT_ONCE = {"cluster": 6, "local": 3}
"""Plays at one time: most of each is waiting."""

PARTS = ("training-operator", "kube-scheduler", "kube-controller-manager")
pytestmark = [
    pytest.mark.needs(*PARTS),
    pytest.mark.timeout(600),
]


class Theatre:
    """All plays of a session: they begin together, and each test waits for its two."""

    def __init__(self, plane: ControlPlane, folder: Path, cases: list[Case]) -> None:
        self._mark = f"parity-{secrets.token_hex(3)}"
        self._plane, self._folder, self._cases = plane, folder, cases
        self._tales: dict[tuple[str, str], Future[Tale]] = {}

    def lacks(self, case: Case) -> str | None:
        """Why a case cannot be played there."""
        engine = engine_of(TrainingJob(**case.fields))
        return self._plane.lacks(engine.OPERATOR.id)

    def tale(self, stage: str, case: Case) -> Tale:
        return self._tales[stage, case.name].result()

    @contextmanager
    def open(self) -> Iterator[Theatre]:
        node = NodeSpec(self._mark, {"cpu": "8"}, {OWN: self._mark}, (f"{OWN}={self._mark}:NoSchedule",))
        with (
            Puppeteer() as puppeteer,
            nodes_on(self._plane, [node]) as kubelet,
            ThreadPoolExecutor(AT_ONCE["local"]) as here,
            ThreadPoolExecutor(AT_ONCE["cluster"]) as there,
        ):
            self._plane.make_namespace(self._mark, {"allaboard.io/test": "true"})
            local = LocalStage(puppeteer, self._local())
            toleration = {"key": OWN, "operator": "Equal", "value": self._mark, "effect": "NoSchedule"}
            where = {"nodeSelector": {OWN: self._mark}, "tolerations": [toleration]}
            cluster = ClusterStage(puppeteer, self._plane, kubelet, self._mark, where)
            for case in self._cases:
                self._tales["local", case.name] = here.submit(play, local, case)
                self._tales["cluster", case.name] = there.submit(play, cluster, case)
            try:
                yield self
            finally:
                for pool in (here, there):
                    pool.shutdown(cancel_futures=True)
                local.close()
                self._plane.remove_namespace(self._mark, wait=60)

    def _local(self) -> LocalBackend:
        homes = {"ALLABOARD_HOME": str(self._folder / "home"), "ALLABOARD_POOL": str(self._folder / "pool")}
        return LocalBackend({**os.environ, **homes})


def play(stage: Stage, case: Case) -> Tale:
    """What is to be told of a case there."""
    tale: Tale = {}
    try:
        performance = launch(stage, case.name, case.fields)
    except BadInput:
        return {"state": "refused"}
    try:
        with performance.followed():
            for step in case.play:
                step(performance, tale)
            tale |= performance.settle()
        stage.backend.delete(performance.run)
    finally:
        stage.leave()
    return tale


@pytest.fixture(scope="module")
def _open() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def theatre(
    plane: ControlPlane,
    new_plane_in: Callable[..., Any],
    request: pytest.FixtureRequest,
    _open: ExitStack,
    _theatres: dict[bool, Theatre],
) -> Theatre:
    """The theatre of this session, open for the cases that are asked for."""
    if (reason := obstacle()) is not None:
        pytest.skip(reason)
    own = is_mpi_v1(request.node.callspec.params["case"])
    if own not in _theatres:
        asked = [getattr(item, "callspec", None) for item in request.session.items]
        cases = [spec.params["case"] for spec in asked if spec is not None and "case" in spec.params]
        folder = Path(tempfile.mkdtemp(prefix="allaboard-parity-"))
        _open.callback(shutil.rmtree, folder, ignore_errors=True)
        where = (
            _open.enter_context(new_plane_in(folder, *PARTS, flags={"training-operator": KUBECTL}))
            if own
            else plane
        )
        its = [case for case in cases if is_mpi_v1(case) == own]
        _theatres[own] = _open.enter_context(Theatre(where, folder, its).open())
    return _theatres[own]


def is_mpi_v1(case: Case) -> bool:
    """Whether it needs a plane of its own: a cluster serves one version of MPIJob, the shared one v2beta1."""
    return case.fields.get("engine") == "mpijob-v1"


@pytest.fixture(scope="module")
def _theatres() -> dict[bool, Theatre]:
    return {}


def test_every_row_of_the_differences_is_of_a_case_and_alone() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {d.case for d in DIFFERENCES} <= set(names)
    found = Counter((d.case, d.path) for d in DIFFERENCES)
    assert [row for row, times in found.items() if times > 1] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_tell_the_same(theatre: Theatre, case: Case) -> None:
    if reason := theatre.lacks(case):
        pytest.skip(reason)
    local, cluster = theatre.tale("local", case), theatre.tale("cluster", case)
    found = differences(local, cluster, case)
    expected = {d.path: (d.here, d.there) for d in DIFFERENCES if d.case == case.name}
    words = [f"{path}: {a!r} here, {b!r} there" for path, (a, b) in found.items() - expected.items()]
    words += [f"{path}: no difference any more" for path in expected.keys() - found.keys()]
    assert not words, "\n".join(sorted(words))
    assert local["state"] in (case.ends.value, "refused")


def differences(local: Tale, cluster: Tale, case: Case) -> dict[str, tuple[object, object]]:
    """Path -> what each tells, where they differ. Of what was refused, or is gone, nothing more is told."""
    chance = case.chance
    unsure = {f"{m} log, as it is left": {f"try {n}" for n in tries} for m, tries in case.unsure.items()}
    paths = [path for path in {**local, **cluster} if not path.removeprefix("condition ").startswith(chance)]
    if any(tale["state"] == "refused" or tale["job"] == "gone" for tale in (local, cluster)):
        paths = [path for path in paths if path in local and path in cluster]

    def told(tale: Tale, path: str) -> object:
        if path.endswith("march") and path in tale:
            return tuple(word for word in tale[path] if word.partition("=")[0] not in chance)
        if path in unsure and path in tale:
            return tuple(line for line in tale[path] if line not in unsure[path])
        return tale.get(path)

    both = ((path, told(local, path), told(cluster, path)) for path in paths)
    return {path: (here, there) for path, here, there in both if here != there}
