"""Releases of Kubeflow Trainer before 2.3: an API server with their definitions tells what they lack, and
takes every object that is rendered for such a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import ApiError, until
from tests.cluster.plane import ControlPlane
from tests.cluster.terminal import Terminal
from tests.core.engines.releases import LACKING, definitions_of

TRAINER = "trainer.kubeflow.org/v1alpha1"
RUNTIME = {"engine_spec": {"runtimeRef": {"name": "torch-distributed"}}}
JOBS: dict[str, dict[str, Any]] = {
    "equal": {"groups": {"master": 1, "worker": 2}},
    "unequal": {"groups": {"master": {"resources": {"cpu": 4}}, "worker": 2}},
    "jax": {"framework": "jax", "workers": 3},
    "xgboost": {"framework": "xgboost", "workers": 3},
    "gang": {"workers": 2, "gang": {"scheduler": "coscheduling"}},
    "deadline": {"workers": 2, "policy": {"deadline": "1h"}},
    "runtime": {"workers": 2, **RUNTIME, "storage": [{"mount": "/d", "pvc": "claim"}]},
    "runtime-secured": {"workers": 2, **RUNTIME, "pod": {"spec": {"securityContext": {"runAsUser": 7}}}},
    "runtime-grace": {"workers": 2, **RUNTIME, "spot": {"grace": "2m"}},
}
REFUSED = {
    "2.0.1": {
        "deadline": {"policy.deadline"},
        "runtime": {"engine_spec.runtimeRef"},
        "runtime-grace": {"engine_spec.runtimeRef", "spot.grace"},
        "runtime-secured": {"engine_spec.runtimeRef", "pod.spec.securityContext"},
    },
    "2.1.0": {
        "deadline": {"policy.deadline"},
        "runtime-grace": {"spot.grace"},
        "runtime-secured": {"pod.spec.securityContext"},
    },
    "2.2.0": {"runtime-grace": {"spot.grace"}},
}
Planes = Callable[..., AbstractContextManager[ControlPlane]]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, new_plane_in: Planes) -> Iterator[ControlPlane]:
    """A plane with no Trainer but the definitions that a test brings."""
    with new_plane_in(tmp_path_factory.mktemp("older"), "coscheduling") as plane:
        yield plane


def is_served(plane: ControlPlane, kind: str) -> bool:
    """Whether it is now; `Api.serves` remembers what was."""
    try:
        plane.api.request("GET", f"/apis/{TRAINER}/namespaces/default/{kind.lower()}s")
    except ApiError as error:
        if error.status not in (404, 429):  # 429: its storage is being made
            raise
        return False
    return True


@contextmanager
def serving(plane: ControlPlane, release: str) -> Iterator[None]:
    """The definitions of a release."""
    definitions = [*yaml.safe_load_all(definitions_of(release).read_text())]
    try:
        for definition in definitions:
            plane.api.create(definition)
        for definition in definitions:
            kind = definition["spec"]["names"]["kind"]
            until(f"{kind} to be served", lambda kind=kind: is_served(plane, kind))
        yield
    finally:
        for definition in definitions:
            plane.api.delete("apiextensions.k8s.io/v1", definition["kind"], definition["metadata"]["name"])
        for definition in definitions:  # one that is being deleted may not be created again
            which = ("apiextensions.k8s.io/v1", definition["kind"], definition["metadata"]["name"])
            until(f"{which[-1]} to be gone", lambda which=which: plane.api.get(*which) is None)


@pytest.mark.parametrize("release", sorted(LACKING))
def test_what_an_older_trainer_lacks_is_seen_and_never_sent(
    bare: ControlPlane, tmp_path: Path, release: str
) -> None:
    ab = Terminal.on(bare.kubeconfig, "default", tmp_path)
    taken = []
    with serving(bare, release):
        assert ab("cluster", "--facts").json["lacking"] == {"trainjob": [*LACKING[release]]}
        for name, fields in JOBS.items():
            job = {"name": name, "image": "lab/train:1", "engine": "trainjob", "command": ["x"], **fields}
            (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
            expected = REFUSED[release].get(name)
            said = ab("render", "job.yaml", "--backend", "kubernetes", "--json", code=2 if expected else 0)
            if expected:
                assert {problem["path"] for problem in said.json["error"]["problems"]} == expected
            else:
                taken += [bare.api.dry_run(manifest) for manifest in said.json["items"]]
        unknown = {**taken[-1], "spec": {**taken[-1]["spec"], "workers": 2}}
        with pytest.raises(ApiError, match="unknown field"):
            bare.api.dry_run(unknown)
    assert len(taken) >= 10
