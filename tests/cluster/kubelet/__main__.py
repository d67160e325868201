"""Run a kubelet until SIGTERM or SIGINT; ``ready`` on stdout once every node is."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from tests.cluster.kubelet.control import Control
from tests.cluster.kubelet.images import PYTHON_IMAGES, SYSTEM_IMAGES, Image, python_image
from tests.cluster.kubelet.kubelet import Kubelet
from tests.cluster.kubelet.node import parse_node
from tests.cluster.kubelet.obstacles import FOLDER_PREFIX, obstacle, own_folder, sweep
from tests.cluster.kubelet.settings import REAL, Settings


def main() -> int:
    options = _parser().parse_args()
    if (trouble := obstacle()) is not None:
        print(trouble, file=sys.stderr)
        return 3
    sweep()
    folder = options.folder or Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    folder.chmod(0o755)
    own_folder(folder)
    return asyncio.run(_run(options, folder))


async def _run(options: argparse.Namespace, folder: Path) -> int:
    code = {name: Path(path).resolve() for name, _, path in (text.partition("=") for text in options.code)}
    patterns = [*PYTHON_IMAGES, *options.image]
    images = [Image(pattern) for pattern in SYSTEM_IMAGES]
    made = await asyncio.to_thread(
        python_image, "", options.python.absolute(), folder / "images" / "python", code
    )
    images += [
        Image(pattern, made.layers, made.env, made.entrypoint, made.command, made.working_dir)
        for pattern in patterns
    ]
    settings = REAL if options.real_times else Settings()
    kubelet = Kubelet(
        options.kubeconfig, options.node, images, folder, settings, options.claims, options.buckets
    )
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    try:
        await kubelet.start()
        control = Control(kubelet)
        await control.listen(options.control or folder / "control")
        print("ready", flush=True)
        await over.wait()
    finally:
        await kubelet.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.kubelet", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument(
        "--node", type=parse_node, action="append", required=True,
        metavar="NAME:cpu=4,memory=8Gi,nvidia.com/gpu=2,label:zone=a,taint:spot=yes:NoSchedule",
    )  # fmt: skip
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="the environment that python images hold"
    )
    parser.add_argument(
        "--code", action="append", default=[], metavar="NAME=FOLDER",
        help="a folder of packages for python images: /opt/code/NAME, on their import path",
    )  # fmt: skip
    parser.add_argument(
        "--image", action="append", default=[], metavar="PATTERN",
        help=f"further names of python images, beside {', '.join(PYTHON_IMAGES)}",
    )  # fmt: skip
    parser.add_argument(
        "--folder", type=Path, help="where everything lies; empty, on a disk; made when not given"
    )
    parser.add_argument(
        "--claims", type=Path, help="where persistent volumes lie, if they shall outlive the kubelet"
    )
    parser.add_argument("--buckets", type=Path, help="where the buckets of a store lie, for the CSI driver")
    parser.add_argument("--control", type=Path, help="the control socket (FOLDER/control)")
    parser.add_argument(
        "--real-times", action="store_true", help="back-offs and heartbeats of a real kubelet"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
