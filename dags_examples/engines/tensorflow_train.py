"""A line through points that are spread over all workers of a TFJob."""

import numpy
import tensorflow as tf

from allaboard.inside import context, report, result

STEPS = 60
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # reads TF_CONFIG and meets the others
rank, size = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
assert (rank, size) == (context().rank, context().world_size)

points = tf.constant(numpy.linspace(-1.0, 1.0, 64)[rank::size], tf.float32)  # each worker has its own
values = 3.0 * points + 0.5
with strategy.scope():
    line = tf.Variable([0.0, 0.0], aggregation=tf.VariableAggregation.MEAN)


def own_step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((line[0] * points + line[1] - values) ** 2)
    line.assign_sub(0.5 * tape.gradient(loss, line))  # of all workers: their mean
    return loss


@tf.function
def step_of():
    return strategy.reduce("MEAN", strategy.run(own_step), axis=None)


for step in range(STEPS):
    report(step + 1, total=STEPS, loss=float(step_of()))

slope, intercept = (float(part) for part in line.numpy())
every = strategy.gather(strategy.run(lambda: tf.reshape(line, (1, 2))), axis=0).numpy()
assert (every == every[0]).all(), "all workers have the same line"
print(f"line {slope:.3f} {intercept:.3f}", flush=True)
result(slope=round(slope, 3), intercept=round(intercept, 3))
