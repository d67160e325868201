"""Hostile command lines: every verb, with arguments that nobody means well.

    python -m tests.torture.commands FIRST COUNT [SEED]

Each is a process of its own, in a home and a pool of its own, with little memory and CPU. It ends with an
exit code that is documented, and says nothing of a traceback or of a bug. What breaks this is printed, one line
each; the exit code is 1.
"""

# ruff: noqa: E501  (tables of hostile words)

from __future__ import annotations

import json
import os
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from allaboard.cli import VERBS, app
from tests.torture.hostile import RIGHT, a_text

CODES = frozenset({0, 1, 2, 3, 4, 5, 130})
HANGS = 120.0
"""Seconds after which a command line is killed and counts as one that hangs."""
CPU = 10
"""Seconds of CPU: of imports, above all, on a machine that is slow."""
SEED = 9

FILES = (
    "good.json", "hostile.yaml", "hostile.json", "deep.json", "laughs.yaml", "empty.yaml", "list.yaml", "binary.yaml", "folder",
    "pipe", "sparse.yaml", "missing.yaml", "-", "/dev/zero", "/dev/null", "/proc/self/mem", "/proc/self/environ", "~nouser/x",
    "x" * 300, "a/" * 3000, "\udcff.yaml", "\x1b]0;x\x07.yaml", "", " ", "--", "/", "..", "~",
)  # fmt: skip
WORDS = (
    "digits", "digits-00000000", "nobody", "", " ", "-", "--", "\x1b[31m", "a\nb", "\udcff", "x" * 5000, "*", "..", "../..", "/etc",
    "a/b", "store://x", "store://../../x", "s3://", "gs://b/x", "file:///etc", "http://[::1", "store://~nouser", "~nouser", "0", "-1",
    "1e400", "9" * 5000, "nan", "inf", "10m", "loss>=", "loss>=nan", "a>=1,b", "/data=./data", "=", "/x=~nouser/y", "{}", "[", "%s",
    "worker-0", "worker-99999999999999999999", "policy.backoff_limit", "policy.", ".", "....", "groups.x.y.z", "[0]", "café",
)  # fmt: skip


def a_command(rng: random.Random) -> list[str]:
    """A verb with options of its own and foreign words behind them."""
    name = rng.choice([verb for verb in VERBS if verb != "demo"])  # which would train
    words, command = [name], app.get_command(click.Context(app), name)
    while isinstance(command, click.Group):
        name = rng.choice(command.list_commands(click.Context(command)))
        words.append(name)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            if rng.random() < (0.9 if parameter.required else 0.2):
                words += [rng.choice(parameter.opts), *([] if parameter.is_flag else [_word(parameter, rng)])]
        elif rng.random() < 0.9:
            words.append(_word(parameter, rng))
    if rng.random() < 0.1:
        words.append(rng.choice(WORDS))
    return words


def _word(parameter: click.Parameter, rng: random.Random) -> str:
    files = parameter.name in ("job", "file", "facts_file", "metrics", "kubeconfig")
    if isinstance(parameter.type, click.Choice) and rng.random() < 0.7:
        return rng.choice([*map(str, parameter.type.choices)])
    if isinstance(parameter.type, (click.types.IntParamType, click.types.IntRange)) and rng.random() < 0.5:
        return rng.choice(("1", "2", "1000"))
    return rng.choice(FILES if files or rng.random() < 0.3 else WORDS)


def lay_out_files(folder: Path, rng: random.Random) -> None:
    """What the names of `FILES` stand for."""
    (folder / "good.json").write_text(json.dumps({"name": "digits", "command": ["true"]}))
    (folder / "hostile.yaml").write_text(a_text(rng), errors="surrogatepass")
    (folder / "hostile.json").write_text(json.dumps({**RIGHT[1], "name": "x" * 100_000}))
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "laughs.yaml").write_text(
        "a0: &a0 [x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    )
    (folder / "empty.yaml").write_text("")
    (folder / "list.yaml").write_text("- a\n")
    (folder / "binary.yaml").write_bytes(bytes(range(256)))
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    with (folder / "sparse.yaml").open("wb") as file:
        file.truncate(10 * 2**30)


def one(number: int, seed: int = SEED) -> str | None:
    """What is wrong with how command line ``number`` ended; None when all is well."""
    rng = random.Random(f"{seed}/{number}")
    words = a_command(rng)
    with tempfile.TemporaryDirectory(prefix="allaboard-torture-") as scratch:
        folder = Path(scratch)
        lay_out_files(folder, rng)
        done = _run(words, folder, stdin=rng.choice(("", "{}", "[" * 5000, a_text(rng))))
    shown = shlex.join(words).encode("unicode_escape").decode()[:200]
    if done is None:
        return f"{shown}: hangs"
    said = done.stdout + done.stderr
    if done.returncode not in CODES:
        return f"{shown}: exit code {done.returncode}: {said[-200:]!r}"
    for bad in (b"Traceback", b"this is a bug"):
        if bad in said:
            return f"{shown}: {said[said.index(bad) :][:300]!r}"
    return None


def _run(words: list[str], folder: Path, stdin: str) -> subprocess.CompletedProcess[bytes] | None:
    environ = {
        **{n: v for n, v in os.environ.items() if not n.startswith(("ALLABOARD_", "AWS_", "KUBE"))},
        "ALLABOARD_HOME": str(folder / "home"),
        "ALLABOARD_POOL": str(folder / "pool"),
        "HOME": str(folder),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "allaboard", *words],
        cwd=folder,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_limited,
    )
    try:
        out, err = process.communicate(stdin.encode(errors="surrogatepass"), timeout=HANGS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    finally:
        _take_down(environ, folder)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _take_down(environ: dict[str, str], folder: Path) -> None:
    """End what a command line left running, which it may: ``run --detach``."""
    if not any((folder / "home").glob("**/runs/*")):
        return
    for name in {path.name for path in (folder / "home").glob("**/runs/*")}:
        subprocess.run(
            [sys.executable, "-m", "allaboard", "delete", name],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=HANGS,
            check=False,
        )


def main(first: int, count: int, seed: int = SEED) -> int:
    bad = 0
    for number in range(first, first + count):
        if (trouble := one(number, seed)) is not None:
            bad += 1
            print(f"command {number}: {trouble}", flush=True)
    print(f"{count} command lines, {bad} taken badly", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
