"""The cluster by hand, behind make's targets: ``python -m tests.cluster build|up|down|status``."""

from __future__ import annotations

import argparse
import fcntl
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from tests.cluster import components
from tests.cluster.build import Build, Unavailable, Work, ensure
from tests.cluster.kubelet.images import PYTHON_IMAGES, SYSTEM_IMAGES
from tests.cluster.plane import ROOT, ControlPlane, PlaneError, obstacle

STATE = ROOT / ".allaboard" / "cluster"
IMAGES = f"""\
images of its nodes, and no others; nothing is pulled:
    {", ".join(PYTHON_IMAGES)}
        Python with torch, torchrun, numpy and allaboard: the environment of this checkout
    {", ".join(SYSTEM_IMAGES)}
        the plain system of this machine"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    verbs = parser.add_subparsers(required=True)
    build = verbs.add_parser(
        "build", help="build what is not built yet (the first time some 14 minutes on 2 cores)"
    )
    build.add_argument("components", nargs="*", help="default: all")
    background = "build behind whatever else runs on the machine (nice), for when nobody waits"
    build.add_argument("--background", action="store_true", help=background)
    build.set_defaults(run=run_build, changes=False)
    up = verbs.add_parser("up", help="start the cluster, or tell where it runs")
    up.add_argument("components", nargs="*", help="default: all that can be built here")
    up.add_argument("--background", action="store_true", help=background)
    up.set_defaults(run=run_up, changes=True)
    down = verbs.add_parser("down", help="stop the cluster and remove all that is in it")
    down.add_argument(
        "--keep", action="store_true", help="keep its objects and its address for the next `up`"
    )
    down.set_defaults(run=run_down, changes=True)
    status = verbs.add_parser("status", help="what runs, and where")
    status.set_defaults(run=run_status, changes=False)
    options = parser.parse_args(arguments)
    try:
        with alone() if options.changes else nullcontext():
            return int(options.run(options))
    except (PlaneError, Unavailable, LookupError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"cluster: interrupted; {_after_all()}", file=sys.stderr)
        return 130


def _after_all() -> str:
    """What is there, whatever was interrupted."""
    try:
        ControlPlane.attach(STATE).close()
    except PlaneError:
        return "nothing of it runs; make cluster-up starts it"
    return "what runs goes on; make cluster-up adds the rest, make cluster-down ends it"


@contextmanager
def alone() -> Iterator[None]:
    """Two that start or stop the cluster at once take turns."""
    STATE.parent.mkdir(exist_ok=True)
    with STATE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tell(line: str) -> None:
    print(line, flush=True)


def run_build(options: argparse.Namespace) -> int:
    failed = 0
    builds = components.builds(components.chosen(options.components or components.known()))
    work = _work(builds, options.background)
    for build in builds:
        try:
            ensure(build, tell, work)
        except Unavailable as reason:
            tell(f"{reason}")
            failed += 1
    return 1 if failed else 0


def run_up(options: argparse.Namespace) -> int:
    began = time.monotonic()
    try:
        plane = ControlPlane.attach(STATE, tell)
    except PlaneError:
        plane = ControlPlane(
            STATE,
            _possible(options.components or components.known(), options),
            detached=True,
            tell=tell,
        )
        plane.start()
        tell(f"the cluster is up after {time.monotonic() - began:.1f} s")
    else:
        there = {part.name for part in plane.parts}
        missing = [name for name in options.components or components.known() if name not in there]
        plane.add(_possible(missing, options))
        tell("the cluster runs")
    tell(
        f"""
    export KUBECONFIG={plane.kubeconfig}
    {_allaboard() + " cluster":40} # what is on it; run, list, status, logs, ... with --backend kubernetes
    kubectl get nodes                        # or any other client
    make demo-cluster                        # a DAG that trains, evaluates and promotes on it
    make cluster-test                        # the tests, on this cluster
    make cluster-status                      # what runs; its logs are in {plane.log("etcd").parent}
    make cluster-down"""
    )
    if any(part.name == "nodes" for part in plane.parts):
        tell(f"\n{IMAGES}")
    return 0


def _allaboard() -> str:
    """Our command line, as it is typed from the root of the repository."""
    beside = Path(sys.executable).parent / "allaboard"
    return str(beside.relative_to(ROOT)) if beside.is_relative_to(ROOT) else "allaboard"


def _work(builds: Sequence[Build], background: bool) -> Work:
    """What of these is to be built, said."""
    work = Work(builds, background=background)
    if work.plan is not None:
        tell(work.plan)
    return work


def _possible(names: Collection[str], options: argparse.Namespace) -> list[str]:
    """Those of these components that this machine can have, built. Unavailable for one that was asked for."""
    possible = []
    told = set()
    chosen = components.chosen(names)
    work = _work(components.builds(chosen), options.background)
    for component in chosen:
        with suppress(Unavailable):
            if component.build:
                ensure(component.build, tell, work)
        if reason := obstacle(component):
            if component.name in (*components.BASE, *options.components):
                raise Unavailable(reason)
            if reason not in told:
                tell(f"left out: {reason}")
            told.add(reason)
        else:
            possible.append(component.name)
    return possible


def run_down(options: argparse.Namespace) -> int:
    try:
        ControlPlane.attach(STATE).stop()
        said = "the cluster is stopped"
    except PlaneError:
        said = "the cluster did not run"
    if STATE.exists() and options.keep:
        said += "; make cluster-up starts it again, with its objects"
    elif STATE.exists():
        shutil.rmtree(STATE, ignore_errors=True)
        said += ", and what was in it is removed"
    tell(said)
    return 0


def run_status(options: argparse.Namespace) -> int:
    plane = ControlPlane.attach(STATE)
    status = plane.status()
    for name, component in components.known().items():
        told = status.get(name)
        if told is None:
            state = obstacle(component) or "not part of this cluster"
        elif told["running"]:
            state = (
                f"runs, pid {told['pid']}, since {time.strftime('%H:%M:%S', time.localtime(told['since']))}"
            )
        else:
            state = f"ended with {told['code']}; see {plane.log(name)}"
        version = component.build.version if component.build else ""
        tell(f"{name:24} {version:8} {state}")
    tell(f"kubeconfig: {plane.kubeconfig}")
    if "nodes" in status:
        tell(IMAGES)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
