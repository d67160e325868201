"""A line through points that are spread over all ranks of an MPIJob."""

from mpi4py import MPI

from allaboard.inside import context, report, result

STEPS = 60
world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
assert (context().rank, context().world_size) == (rank, size), "mpirun tells it, and allaboard knows"

points = [-1.0 + 2.0 * n / 63 for n in range(64)][rank::size]  # each rank has its own
values = [3.0 * x + 0.5 for x in points]


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


slope = intercept = 0.0
for step in range(STEPS):
    errors = [slope * x + intercept - y for x, y in zip(points, values, strict=True)]
    own = [mean([2 * e * x for e, x in zip(errors, points, strict=True)]), mean([2 * e for e in errors])]
    gradient = [world.allreduce(one) / size for one in own]
    slope, intercept = slope - 0.5 * gradient[0], intercept - 0.5 * gradient[1]
    report(step + 1, total=STEPS, loss=world.allreduce(mean([e * e for e in errors])) / size)

lines = world.gather((slope, intercept))
if lines is not None:  # at rank 0
    assert len({*lines}) == 1, "all ranks have the same line"
    print(f"{size} ranks have the line {slope:.3f} {intercept:.3f}", flush=True)
result(slope=round(slope, 3), intercept=round(intercept, 3))
