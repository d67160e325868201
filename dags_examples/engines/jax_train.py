"""A line through points that are spread over all processes of a JAXJob."""

import os

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from allaboard.inside import context, report, result

STEPS = 60
coordinator = f"{os.environ['COORDINATOR_ADDRESS']}:{os.environ['COORDINATOR_PORT']}"
rank, size = int(os.environ["PROCESS_ID"]), int(os.environ["NUM_PROCESSES"])
if not os.environ.get("CUDA_VISIBLE_DEVICES"):
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(coordinator, size, rank)
assert (jax.process_index(), jax.process_count()) == (context().rank, context().world_size) == (rank, size)

points = jnp.linspace(-1.0, 1.0, 64)[rank::size]  # each process has its own
values = 3.0 * points + 0.5


def loss_of(line):
    return jnp.mean((line[0] * points + line[1] - values) ** 2)


line = jnp.zeros(2)
step_of = jax.jit(jax.value_and_grad(loss_of))
for step in range(STEPS):
    loss, gradient = step_of(line)
    line = line - 0.5 * multihost_utils.process_allgather(gradient).mean(axis=0)
    report(step + 1, total=STEPS, loss=float(loss))

every = multihost_utils.process_allgather(line)
assert (every == every[0]).all(), "all processes have the same line"
print(f"line {line[0]:.3f} {line[1]:.3f}", flush=True)
result(slope=round(float(line[0]), 3), intercept=round(float(line[1]), 3))
