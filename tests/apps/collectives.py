# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# An MPI program: allreduce, alltoall and alltoallv of several sizes, in which each rank checks each element.

from array import array
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size


def check(what, got, expected):
    if got == expected:
        return
    at = next(index for index, pair in enumerate(zip(got, expected)) if pair[0] != pair[1])
    print(f"rank {rank}: {what}: element {at} is {got[at]}, not {expected[at]}", flush=True)
    world.Abort(1)


def numbers(start, count, step=1):
    return array("q", range(start, start + count * step, step))


# From what is copied at once to what the ranks fetch from each other by RDMA.
for count in (1, 500, 6000, 100_000):
    got = numbers(0, count)
    world.Allreduce(numbers(rank * 13, count, 7), got, op=MPI.SUM)
    check(f"sum of {count}", got, numbers(13 * size * (size - 1) // 2, count, 7 * size))
    world.Allreduce(numbers(-rank, count), got, op=MPI.MAX)
    check(f"greatest of {count}", got, numbers(0, count))

    # Element i of what `source` sends to `target` begins with their numbers.
    def block(source, target, length):
        return numbers((source * size + target) * 10_000_000, length)

    send, expected = array("q"), array("q")
    for other in range(size):
        send += block(rank, other, count)
        expected += block(other, rank, count)
    got = numbers(0, count * size)
    world.Alltoall(send, got)
    check(f"alltoall of {count}", got, expected)

    # Rank r sends count * (r + 1) elements to each.
    send, expected = array("q"), array("q")
    for other in range(size):
        send += block(rank, other, count * (rank + 1))
        expected += block(other, rank, count * (other + 1))
    got = numbers(0, len(expected))
    world.Alltoallv([send, [count * (rank + 1)] * size], [got, [count * (other + 1) for other in range(size)]])
    check(f"alltoallv of {count}", got, expected)

world.Barrier()
if rank == 0:
    print(f"collectives: {size} ranks, each element right; {MPI.Get_library_version().split(',')[0]}")
