"""The cluster by hand, behind make's targets: ``python -m tests.cluster build|up|down|status``."""

from __future__ import annotations

import argparse
import fcntl
import shutil
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress

from tests.cluster import components
from tests.cluster.build import Unavailable, ensure
from tests.cluster.plane import ROOT, ControlPlane, PlaneError, obstacle

STATE = ROOT / ".allaboard" / "cluster"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    verbs = parser.add_subparsers(required=True)
    build = verbs.add_parser(
        "build", help="build what is not built yet (the first time some 14 minutes on 2 cores)"
    )
    build.add_argument("components", nargs="*", help="default: all")
    build.set_defaults(run=run_build, changes=False)
    up = verbs.add_parser("up", help="start the cluster, or tell where it runs")
    up.add_argument("components", nargs="*", help="default: all that can be built here")
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
        return 130


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
    for build in components.builds(components.chosen(options.components or components.known())):
        try:
            ensure(build, tell)
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
            _possible(options.components or components.known(), options.components),
            detached=True,
            tell=tell,
        )
        plane.start()
        tell(f"the cluster is up after {time.monotonic() - began:.1f} s")
    else:
        there = {part.name for part in plane.parts}
        missing = [name for name in options.components or components.known() if name not in there]
        plane.add(_possible(missing, options.components))
        tell("the cluster runs")
    tell(
        f"""
    export KUBECONFIG={plane.kubeconfig}
    kubectl get --raw /version     # or any other client
    make cluster-status            # what runs; the logs are in {plane.log("kube-apiserver").parent}
    make cluster-test              # the tests, on this cluster
    make cluster-down"""
    )
    return 0


def _possible(names: Collection[str], asked: Collection[str]) -> list[str]:
    """Those of these components that this machine can have, built. Unavailable for one that was asked for."""
    possible = []
    for component in components.chosen(names):
        with suppress(Unavailable):
            if component.build:
                ensure(component.build, tell)
        if reason := obstacle(component):
            if component.name in (*components.BASE, *asked):
                raise Unavailable(reason)
            tell(f"left out: {reason}")
        else:
            possible.append(component.name)
    return possible


def run_down(options: argparse.Namespace) -> int:
    try:
        ControlPlane.attach(STATE).stop()
    except PlaneError:
        tell("the cluster does not run")
    if not options.keep:
        shutil.rmtree(STATE, ignore_errors=True)
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
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
