"""Launchers in a command: which one, how its options agree with the gang, and what the gang fills in."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.checking.job import check
from allaboard.engines import engine_of
from allaboard.job.training_job import TrainingJob
from allaboard.runs.launchers import ALONE, DISAGREES, IDLE, Gang, filled, launch_in, objections
from allaboard.runs.layout import lay_out


@pytest.mark.parametrize(
    ("line", "launcher", "options"),
    [
        (
            "torchrun --nnodes 2 --nproc-per-node=4 train.py --nnodes 9",
            "torchrun",
            {"nnodes": "2", "nproc_per_node": "4"},
        ),
        (
            "/opt/bin/torchrun --nproc 4 --stand train.py",
            "torchrun",
            {"nproc_per_node": "4", "standalone": ""},
        ),
        (
            "python -u -m torch.distributed.run --nnodes=1:4 -m pkg.train --lr 1",
            "torchrun",
            {"nnodes": "1:4", "m": ""},
        ),
        (
            "python3.12 -m torch.distributed.launch --use_env --nnodes 2 x",
            "torchrun",
            {"use_env": "", "nnodes": "2"},
        ),
        ("env A=b timeout 3h uv run torchrun --nnodes 2 x", "torchrun", {"nnodes": "2"}),
        (
            "accelerate launch --config_file a.yaml --num_processes 8 t.py",
            "accelerate launch",
            {"config_file": "a.yaml", "num_processes": "8"},
        ),
        ("accelerate-launch --multi_gpu t.py --cpu", "accelerate launch", {"multi_gpu": ""}),
        (
            "python -m accelerate.commands.launch --num_machines 2 t.py",
            "accelerate launch",
            {"num_machines": "2"},
        ),
        ("deepspeed --num_gpus 8 train.py --deepspeed ds.json", "deepspeed", {"num_gpus": "8"}),
        ("mpirun -np 4 python train.py", "mpirun", {"np": "4"}),
        ("torchrun --frobnicate train.py --nnodes 3", "torchrun", {"frobnicate": ""}),
    ],
)
def test_a_launcher_and_its_options(line: str, launcher: str, options: dict[str, str]) -> None:
    found = launch_in(line.split())
    assert found is not None and found.launcher == launcher
    assert {name: value for name, (value, _) in found.options.items()} == options


@pytest.mark.parametrize(
    "line",
    [
        [],
        ["python", "train.py", "torchrun", "--nnodes", "2"],
        ["python", "-c", "import torch"],
        ["./go", "torchrun"],
        ["accelerate", "config"],
        ["python", "-m", "pkg", "accelerate", "launch"],
        ["sh", "-c", "echo torchrun"],
        ["bash", "train.sh"],
        ["sh", "-c", "pip install accelerate && python train.py"],
        ["sh", "-c", "torchrun 'x"],
        ["uv", "run", "train.py", "torchrun", "--standalone"],
        ["python", "-m"],
        ["sh", "-c"],
        ["env"],
    ],
)
def test_other_programs(line: list[str]) -> None:
    assert launch_in(line) is None


@pytest.mark.parametrize(
    "script",
    [
        "cd /x && exec torchrun --nnodes=4 train.py",
        "set -e\nexport A=1\nNCCL_DEBUG=INFO OMP=2 torchrun \\\n  --nnodes 4 \\\n  train.py | tee log",
        "if true; then torchrun --nnodes 4 a.py; fi",
    ],
)
def test_a_launcher_in_the_script_of_a_shell(script: str) -> None:
    found = launch_in(["bash", "-euo", "pipefail", "-c", script])
    assert found is not None and found.in_shell and found.options["nnodes"] == ("4", 4)


TWO, FOUR_GPUS = Gang(2), Gang(2, gpus=4)


@pytest.mark.parametrize(
    ("line", "gang", "rule", "text"),
    [
        ("torchrun --nnodes 4 t.py", TWO, DISAGREES, "--nnodes 4 is another number than the job's 2 members"),
        ("torchrun --nnodes 1 t.py", TWO, DISAGREES, "2 members"),
        ("torchrun --nnodes 3:8 t.py", TWO, DISAGREES, "2 members"),
        ("torchrun --nnodes 1:8 t.py", Gang(2, (2, 4)), DISAGREES, "2 to 4 members"),
        ("torchrun --standalone t.py", TWO, ALONE, "each of the 2 members train alone"),
        ("torchrun --node_rank=0 t.py", TWO, DISAGREES, "the same rank"),
        ("torchrun --master_addr localhost t.py", TWO, ALONE, "another host in each member's pod"),
        ("torchrun --rdzv-endpoint 127.0.0.1:29400 t.py", TWO, ALONE, "another host"),
        ("torchrun --nproc_per_node 8 t.py", Gang(1, processes="4"), DISAGREES, "processes_per_member is 4"),
        (
            "torchrun --nproc_per_node 8 t.py",
            FOUR_GPUS,
            DISAGREES,
            "8 processes per member, which has 4 GPUs",
        ),
        (
            "torchrun --nproc_per_node 1 t.py",
            FOUR_GPUS,
            IDLE,
            "starts 1 process per member, which has 4 GPUs",
        ),
        ("accelerate launch --num_machines 4 t.py", TWO, DISAGREES, "2 members"),
        ("accelerate launch --num_processes 4 t.py", FOUR_GPUS, DISAGREES, "2 times 4 is 8"),
        ("accelerate launch --num_processes 3 t.py", TWO, DISAGREES, "cannot be divided among 2 members"),
        ("accelerate launch --machine_rank 0 t.py", TWO, DISAGREES, "the same rank"),
        ("accelerate launch --main_process_ip 127.0.0.1 t.py", TWO, ALONE, "another host"),
        ("accelerate launch --deepspeed_multinode_launcher pdsh t.py", TWO, ALONE, "over SSH"),
        ("accelerate launch t.py", Gang(2, is_filled=False), ALONE, "without --num_machines"),
        ("deepspeed t.py", TWO, ALONE, "in each of the 2 members"),
        ("deepspeed --num_gpus 8 t.py", Gang(1, gpus=4), DISAGREES, "4 GPUs"),
        ("mpirun -np 2 python t.py", TWO, ALONE, "ranks of its own in each of the 2 members"),
    ],
)
def test_what_contradicts_the_gang(line: str, gang: Gang, rule: str, text: str) -> None:
    launch = launch_in(line.split())
    assert launch is not None
    (objection,) = objections(launch, gang)
    assert objection.rule == rule and text in objection.trouble and objection.remedy


@pytest.mark.parametrize(
    ("line", "gang"),
    [
        ("torchrun t.py --standalone --nnodes 9", TWO),
        (
            "torchrun --nnodes 2 --nproc_per_node 4 --node_rank $(RANK) --master_addr $(MASTER_ADDR) t.py",
            FOUR_GPUS,
        ),
        (
            "torchrun --nnodes 1:2 --rdzv_backend c10d --rdzv_endpoint etcd:2379 --nproc_per_node gpu t.py",
            TWO,
        ),
        ("torchrun --nnodes 2:4 t.py", Gang(3, (2, 4))),
        ("torchrun --nnodes $NODES --nproc_per_node ${GPUS} t.py", FOUR_GPUS),
        ("torchrun --standalone --master_addr localhost --node_rank 0 t.py", Gang(1)),
        ("torchrun --nproc_per_node 4 t.py", Gang(2, processes="4", gpus=4)),
        ("accelerate launch t.py", TWO),
        ("accelerate launch --num_machines 2 --num_processes 8 --machine_rank $(RANK) t.py", FOUR_GPUS),
        ("accelerate launch --cpu --num_processes 4 t.py", Gang(1)),
        ("accelerate launch --cpu t.py", TWO),
        ("deepspeed --num_gpus 4 t.py", Gang(1, gpus=4)),
        ("deepspeed t.py", Gang(2, framework="mpi")),
        ("mpirun -np 2 python t.py", Gang(3, framework="mpi")),
        ("mpirun -np 2 python t.py", Gang(1)),
    ],
)
def test_what_agrees_is_left_alone(line: str, gang: Gang) -> None:
    launch = launch_in(line.split())
    assert launch is not None and [*objections(launch, gang)] == []


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"command": ["torchrun", "--nproc_per_node", "8", "t.py"], "processes_per_member": 4}, "command[1]"),
        ({"command": ["torchrun"], "args": ["--nnodes=3", "t.py"], "workers": 2}, "args[0]"),
        ({"command": ["sh", "-c", "torchrun --standalone t.py"], "workers": 2}, "command[2]"),
        ({"command": ["torchrun", "--nproc_per_node=1", "t.py"], "resources": {"gpu": 2}}, "command[1]"),
        (
            {
                "command": ["torchrun", "t.py"],
                "groups": {
                    "master": 1,
                    "worker": {"replicas": 2, "command": ["torchrun", "--nnodes", "2", "t.py"]},
                },
            },
            "groups.worker.command[1]",
        ),
    ],
)
def test_check_names_the_word(fields: dict[str, Any], path: str) -> None:
    (problem,) = [p for p in check({"name": "digits", **fields}) if "--" in p.message]
    assert (problem.path, problem.severity) == (path, "warning")


def commands(**fields: Any) -> dict[str, list[str]]:
    """The words that each role of a job is started with."""
    job = TrainingJob(name="digits", **fields)
    layout = lay_out(job, engine_of(job), "digits-1")
    return {group.role: [word for part in filled(layout, group) for word in part] for group in layout.groups}


def test_accelerate_is_told_of_the_gang() -> None:
    given = ["accelerate", "launch", "--mixed_precision", "bf16", "t.py", "--lr", "1"]
    started = commands(command=given, workers=3, resources={"gpu": 2})["worker"]
    added = started[2:-5]
    assert started == [*given[:2], *added, *given[2:]] and added == [
        "--multi_gpu",
        "--num_machines=3",
        "--num_processes=6",
        "--machine_rank=$(RANK)",
        "--main_process_ip=$(MASTER_ADDR)",
        "--main_process_port=$(MASTER_PORT)",
        "--deepspeed_multinode_launcher=standard",
    ]


def test_without_gpus_accelerate_trains_on_the_cpu() -> None:
    started = commands(command=["accelerate", "launch", "t.py"], workers=2)["master"]
    assert started[2] == "--cpu" and "--num_processes=2" in started
    started = commands(command=["accelerate", "launch", "--use_fsdp", "t.py"], workers=2)["master"]
    assert "--cpu" not in started and "--multi_gpu" not in started


def test_what_the_command_says_itself_stays() -> None:
    given = [
        "accelerate",
        "launch",
        "--num_machines",
        "2",
        "--config_file",
        "fsdp.yaml",
        "--machine_rank=$(RANK)",
    ]
    started = commands(command=[*given, "t.py"], workers=2)["master"]
    assert [word for word in started if word.startswith(("--num_machines", "--machine_rank"))] == [
        "--num_machines",
        "--machine_rank=$(RANK)",
    ]
    assert "--multi_gpu" not in started, "the config file says how it is distributed"


def test_a_rendezvous_without_a_place_is_at_the_master() -> None:
    started = commands(command=["torchrun"], args=["--rdzv_backend=c10d", "t.py"], workers=2)["worker"]
    assert started == [
        "torchrun",
        "--rdzv_endpoint=$(MASTER_ADDR):$(MASTER_PORT)",
        "--rdzv_backend=c10d",
        "t.py",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ["accelerate", "launch", "t.py"]},
        {"command": ["accelerate", "launch", "t.py"], "workers": 2, "elastic": {"min": 1}},
        {"command": ["sh", "-c", "accelerate launch --config_file a.yaml t.py"], "workers": 2},
        {"command": ["torchrun", "t.py"], "workers": 2},
        {"command": ["torchrun", "--rdzv_backend", "c10d", "t.py"], "workers": 2, "elastic": {"min": 1}},
        {"command": ["python", "t.py"], "workers": 2},
    ],
)
def test_nothing_is_filled_in_where_variables_say_it_or_nobody_can(fields: dict[str, Any]) -> None:
    for started in commands(**fields).values():
        assert started == fields["command"]
