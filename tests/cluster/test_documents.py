"""What documents show of a cluster is typed by a reader against a real one, in order: as a submitter of the
namespace ``research``, and as an administrator where it makes Roles and namespaces; kubectl is the real one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import yaml

from tests.cluster.build import Unavailable, ensure
from tests.cluster.components import s3
from tests.cluster.components.kubernetes import KUBECTL
from tests.cluster.plane import ROOT, ControlPlane
from tests.docs.sessions import JOB, MANIFEST, Reader, documents, lines, of_cluster

NewPlane = Callable[..., AbstractContextManager[ControlPlane]]
TEAM, IMAGE = "research", "harness/python:3.12"
BOOST = ROOT / "core/docs/boost.md"
SHOWN = [document for document in documents() if any(map(of_cluster, lines(document)))]
OF_ADMINISTRATORS = re.compile(r"kubectl |--rbac ")
RUNS = MANIFEST.replace("print('trained')", "import time; time.sleep(600)")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def programs() -> Path:
    try:
        return ensure(KUBECTL)
    except Unavailable as reason:
        pytest.skip(str(reason))


def reader_of(plane: ControlPlane, folder: Path, programs: Path, kubeconfig: Path) -> Reader:
    """With kubectl, and the files that a page names; this checkout's environment lies where pages say."""
    place = {"ALLABOARD_STORE": "s3://bucket/team", "ALLABOARD_IMAGE": IMAGE, "ALLABOARD_SECRETS": "store"}
    path = {"KUBECONFIG": str(kubeconfig)}
    reader = Reader(folder, {**place, **path, **s3.variables(plane)}, programs=[programs])
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return reader


@pytest.fixture(scope="module")
def plane(new_plane_in: NewPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_plane_in(tmp_path_factory.mktemp("plane"), "training-operator", "s3", "nodes") as plane:
        plane.make_namespace(TEAM)
        s3.give(plane, TEAM, "bucket")
        yield plane


@pytest.mark.parametrize(
    "document",
    [document for document in SHOWN if document != BOOST],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_reader_types_what_a_document_shows(
    plane: ControlPlane, programs: Path, tmp_path: Path, document: Path
) -> None:
    account = plane.kubeconfig_for_role(TEAM, "submitter")
    reader = reader_of(plane, tmp_path, programs, account)
    # The job of the page itself, if it has one, on the nodes that are here.
    for found in JOB.finditer(document.read_text()):
        job = yaml.safe_load(found["job"])
        for name in ("image", "resources", "gang", "processes_per_member"):
            job.pop(name, None)
        reader.write("train.yaml", yaml.safe_dump({**job, "code": ["train.py"]}))
        reader.write("train.py", "print('trained')")
    # A job of others, which runs.
    reader.write("others.yaml", RUNS)
    admin = {"KUBECONFIG": str(plane.kubeconfig)}
    reader.types(f"kubectl apply -n {TEAM} -f others.yaml", environ=admin)
    try:
        for line in filter(of_cluster, lines(document)):
            said = reader.types(line, environ=admin if OF_ADMINISTRATORS.search(line) else {})
            print(f"$ {line}\n{said}")
    finally:
        reader.types(f"kubectl delete pytorchjob,configmap --all -n {TEAM}", environ=admin)


@pytest.fixture(scope="module")
def with_kueue(new_plane_in: NewPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    flags = {"kueue": ["--feature-gates=PriorityBoost=true"]}
    with new_plane_in(tmp_path_factory.mktemp("kueue"), "kueue", "s3", flags=flags) as plane:
        s3.client(plane).create_bucket(Bucket="checkpoints")
        yield plane


def test_an_administrator_types_what_the_page_of_boosts_shows(
    with_kueue: ControlPlane, programs: Path, tmp_path: Path
) -> None:
    admin = reader_of(with_kueue, tmp_path, programs, with_kueue.kubeconfig)
    shown = lines(BOOST)
    first = next(n for n, line in enumerate(shown) if "boost --all" in line)
    for line in shown[:first]:
        admin.types(line)
    as_that_account = {"KUBECONFIG": str(with_kueue.kubeconfig_for_account("platform", "allaboard-boost"))}
    for line in shown[first:]:
        # Until somebody ends it, but for the last one.
        until_then = "" if "--clear" in line else "timeout --preserve-status -s TERM 10 "
        print(f"$ {line}\n{admin.types(until_then + line, environ=as_that_account)}")
