"""Hostile jobs, made from right ones: values that no JSON holds, text that no editor writes. The same number
and seed give the same job.
"""

# ruff: noqa: E501  (tables of hostile texts)

from __future__ import annotations

import copy
import datetime
import json
import random
from collections.abc import Callable
from typing import Any

RIGHT: tuple[dict[str, Any], ...] = (
    {"name": "digits", "command": ["python", "train.py"], "workers": 2},
    {
        "name": "resnet",
        "image": "registry.lab/ml/train:v3",
        "command": ["python", "train.py", "--lr", 0.1],
        "groups": {"master": 1, "worker": {"replicas": 2, "resources": {"gpu": 2}}},
        "resources": {"cpu": "500m", "memory": "32Gi", "gpu": 1, "gpu_type": "h100", "mig": "1g.10gb"},
        "processes_per_member": "auto",
        "gang": {"scheduler": "coscheduling", "queue": "q", "priority": "high", "timeout": "10m"},
        "policy": {"restart": "never", "backoff_limit": 3, "deadline": "12h", "ttl": 60, "attempts": 2},
        "storage": [
            {"mount": "/data", "pvc": "sets", "read_only": True},
            {"mount": "/tmp/x", "empty_dir": "memory", "size": "1Gi"},
        ],
        "checkpoints": {"uri": "s3://b/r", "every": "10m", "keep": 3, "best": {"metric": "loss"}},
        "data": {"shards": "s3://b/s"},
        "spot": {"tolerate": True, "grace": "2m"},
        "environment": {"NCCL_DEBUG": "WARN", "N": 4},
        "secrets": [{"name": "aws", "env": True}, {"name": "tls", "mount": "/tls"}],
        "pod": {
            "metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}},
            "spec": {
                "nodeSelector": {"zone": "a"},
                "containers": [
                    {
                        "name": "pytorch",
                        "env": [{"name": "A", "value": "b"}],
                        "resources": {"limits": {"cpu": 1}},
                    }
                ],
                "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
                "tolerations": [{"key": "a", "operator": "Exists"}],
            },
        },
        "engine_spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}},
        "fit": "strict",
    },
    {
        "name": "elastic",
        "command": ["torchrun", "train.py"],
        "workers": 3,
        "image": "x",
        "elastic": {"min": 1, "max": 4, "max_restarts": 2, "rendezvous_conf": {"join_timeout": "60"}},
        "policy": {"clocks": {"first_step": "10m"}},
    },
    {
        "name": "wide",
        "image": "x",
        "framework": "tensorflow",
        "command": ["python", "train.py"],
        "groups": {"chief": 1, "worker": {"replicas": 2, "resources": {"gpu": 1}}, "ps": 1, "evaluator": 1},
        "engine_spec": {"successPolicy": "AllWorkers", "enableDynamicWorker": True},
        "policy": {"restart": "never", "deadline": "1h"},
    },
    {
        "name": "trees",
        "image": "x",
        "framework": "xgboost",
        "engine": "xgboostjob",
        "command": ["python", "train.py"],
        "groups": {"master": 1, "worker": {"replicas": 2, "environment": {"A": "b"}}},
        "policy": {"restart": "exit_code", "backoff_limit": 2},
    },
    {
        "name": "servers",
        "image": "x",
        "framework": "paddle",
        "command": ["python", "train.py"],
        "groups": {"master": 1, "worker": 2},
        "gang": {"scheduler": "workload"},
    },
    {
        "name": "ranks",
        "image": "x",
        "framework": "mpi",
        "command": ["mpirun", "-x", "A", "python", "train.py"],
        "groups": {
            "launcher": {"resources": {"cpu": 1}},
            "worker": {"replicas": 2, "command": ["sleep", "9"]},
        },
        "processes_per_member": 2,
        "policy": {"restart": "on_failure"},
        "engine_spec": {"mpiImplementation": "Intel", "runLauncherAsWorker": True, "sshAuthMountPath": "/x"},
    },
    {
        "name": "ranks-v1",
        "image": "x",
        "framework": "mpi",
        "engine": "mpijob-v1",
        "command": ["mpirun", "python", "train.py"],
        "workers": 2,
        "engine_spec": {"mainContainer": "mpi"},
    },
    {
        "name": "parameters",
        "image": "x",
        "framework": "mxnet",
        "command": ["python", "train.py"],
        "groups": {"worker": 2, "server": {"replicas": 2, "resources": {"gpu": 1}}, "scheduler": 1},
    },
    {"name": "mesh", "image": "x", "framework": "jax", "command": ["python", "train.py"], "workers": 4},
)


class Unspeakable:
    """A value whose own text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def deep(levels: int) -> Any:
    value: Any = 1
    for n in range(levels):
        value = [value] if n % 2 else {"a": value}
    return value


def knot() -> Any:
    within: dict[str, Any] = {}
    within["again"] = [within, within]
    return within


VALUES: tuple[Callable[[], Any], ...] = tuple(
    (lambda value=value: value)
    for value in (
        None, True, False, 0, -1, 1, 7, 10_000, 10_001, 10**9, 2**31, 2**63, 10**80, 10**5000, -(10**5000),
        0.0, -0.0, 0.5, 1e308, -1e308, 1e-320, float("nan"), float("inf"), 4.0,
        "", " ", "\t", "\n", "0", "-1", "4", "4.0", "9" * 5000, "9" * 100_000, "1" * 41, "999999999d", "1e400",
        "1.5.5s", "10m" * 5000, "9999Ei", "0.0000000001", "500m", "\u0661", "0x10", "012", "1_000", "1.10",
        "\0", "a\0b", "\ud800", "a\udfffb", "\x1b]0;x\x07", "a\nb", "a\r", "\u202e", "\U0001f600", "e\u0301",
        "~", "~nouser", "~nouser/x", "~root/x", "..", "../x", "/", "//", "/a/../b", "/a:b", "./x", "a//b",
        "x" * 64, "x" * 254, "x" * 300, "x" * 5000, "x" * 200_000, "x" * 600_000, "/x" * 3000,
        "a b:c", "A/b", "Foo", "a:", "a@sha256:0", "a@b@c", "a:b:c", "[::1]:5/a", "h:99999999/a", "a" * 300,
        "s3://", "s3:///x", "gs://b", "store://", "store://../x", "file:///etc/passwd", "http://[::1", "://",
        "$(X)", "${X}", "{{ x }}", "%s", "{0}", "yes", "on", "none", "auto", "champion", "=", "<<",
        b"bytes", {1, 2}, object(), datetime.date(2026, 11, 22), datetime.datetime(2026, 1, 1), 1 + 2j, Unspeakable(),
        {}, [], [[]], {"": 1}, {1: 2}, {None: 1}, {"\ud800": 1}, {"a": {1: {2: 3}}}, {True: False}, ["a", 1, None],
        ("python", "x"), range(3), {"x" * 100_000: 1}, ["x"] * 20_000, {str(n): n for n in range(5000)},
    )
)  # fmt: skip
MADE: tuple[Callable[[], Any], ...] = (knot, lambda: deep(70), lambda: deep(30_000), lambda: [knot()])

LAUGHS = "a0: &a0 [x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
TEXTS = (
    "&a ", "*a", "<<: *a\n", "<<: {b: 1}\n", "!!python/object/apply:os.system [id]", "!!binary x", "!!set {a}", "!x ",
    "!!int x", "!!float []", "!!str ", "!!map [a]", "!!timestamp x", "? ", "- ", ": ", "[", "]", "{", "}", "\t", "\0",
    "\ufeff", '"\\ud800"', '"\\x00"', "'", '"', "---\n", "...\n", "%YAML 9.9\n---\n", "%TAG ! x\n", "# x\n", "|", ">", "|9\n",
    "1.10", "012", "0b_", "0x_", "1:30:30", "12:30.5", ".inf", "-.INF", ".nan", "2026-11-22", "yes", "on", "~", "null",
    "1" * 5000, "[" * 5000, "{" * 5000, "- " * 3000, "? " * 3000, "a: " * 10, "{a: " * 3000, "x" * 100_000,
    LAUGHS, "a: &a [*a]\n", "a: &a {<<: *a}\n", "\n" * 5000, " " * 5000, "\x85", "\u2028", "\x1b[31m", "\\", "`", "@", "%",
    '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', "//", "/*", ",", ",,,,",
)  # fmt: skip


def a_value(rng: random.Random) -> Any:
    """A right job with one to four of its values replaced, removed, doubled or added."""
    job = copy.deepcopy(rng.choice(RIGHT))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, key = _somewhere(job, rng)
        new = rng.choice(MADE)() if rng.random() < 0.03 else rng.choice(VALUES)()
        move = rng.random()
        if move < 0.7:
            at[key] = new
        elif move < 0.8:
            del at[key]
        elif isinstance(at, dict):
            at[rng.choice(("extra", "nmae", "\ud800", "x" * 300, 1, None, (1, 2), "\x1b", key))] = new
        else:
            at.append(new)
    return job


def _somewhere(job: Any, rng: random.Random) -> tuple[Any, Any]:
    """A container within the job and one of its keys."""
    places: list[tuple[Any, Any]] = []
    left, seen = [job], set()
    while left and len(places) < 2000:
        at = left.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        keys = list(at) if isinstance(at, dict) else range(len(at))
        places += [(at, key) for key in keys]
        left += [at[key] for key in keys if isinstance(at[key], (dict, list))]
    return rng.choice(places) if places else (job, "name")


def a_text(rng: random.Random) -> str:
    """The text of a right job, YAML or JSON, with one to four pieces inserted, removed, doubled or replaced."""
    import yaml

    job = rng.choice(RIGHT)
    text: str = json.dumps(job, indent=1) if rng.random() < 0.3 else yaml.safe_dump(job, sort_keys=False)
    return broken_text(text, rng)


def broken_text(text: str, rng: random.Random) -> str:
    """A text with one to four pieces inserted, removed, doubled or replaced."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        if rng.random() < 0.5:  # where a value stands
            at = text.find(": ", at) + 2 if text.find(": ", at) >= 0 else at
        until = min(len(text), at + rng.choice((0, 0, 1, 5, 40)))
        move = rng.random()
        if move < 0.7:
            text = text[:at] + rng.choice(TEXTS) + text[until:]
        elif move < 0.8:
            text = text[:at] + text[until:]
        elif move < 0.9:
            text = text[:at] + text[at:until] * 3 + text[until:]
        else:
            text = text[:at] + chr(rng.choice((*range(32), 127, 133, 160, 0xFFFE, 0x10FFFF))) + text[until:]
    return text
