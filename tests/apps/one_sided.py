# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# An MPI program: each rank writes to the memory of all others, reads it back from there, and counts in it, at the same
# time as the others. Each element is checked.

from array import array
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
COUNT = 20_000
TICKETS = 50


def ensure(good, what):
    if not good:
        print(f"rank {rank}: {what}", flush=True)
        world.Abort(1)


def block(source, target):
    start = (source * size + target) * 10_000_000
    return array("q", range(start, start + COUNT))


# In each rank's memory there is a block for each rank that writes, and at the end a counter.
memory = MPI.Alloc_mem((COUNT * size + 1) * 8)
window = MPI.Win.Create(memory, 8, comm=world)
view = memoryview(window.tomemory()).cast("B").cast("q")
for index in range(len(view)):
    view[index] = 0
world.Barrier()

window.Lock_all()
# What is sent stays until it has been sent.
blocks = [block(rank, target) for target in range(size)]
for target in range(size):
    window.Put(blocks[target], target, [rank * COUNT, COUNT, MPI.INT64_T])
window.Flush_all()
world.Barrier()
for target in range(size):
    for source in range(size):
        got = array("q", bytes(COUNT * 8))
        window.Get(got, target, [source * COUNT, COUNT, MPI.INT64_T])
        window.Flush(target)
        ensure(got == block(source, target), f"the data that {source} wrote to {target} is missing")

# Everybody draws tickets from rank 0: each number is drawn once.
drawn = array("q")
one, ticket = array("q", [1]), array("q", [0])
for _ in range(TICKETS):
    window.Fetch_and_op(one, ticket, 0, COUNT * size, MPI.SUM)
    window.Flush(0)
    drawn.append(ticket[0])
# And who finds the counter of rank 1 as it was wins a turn.
won = 0
while won < 5:
    now, found = array("q", [0]), array("q", [0])
    window.Fetch_and_op(one, now, 1, COUNT * size, MPI.NO_OP)
    window.Flush(1)
    window.Compare_and_swap(array("q", [now[0] + 1]), now, found, 1, COUNT * size)
    window.Flush(1)
    won += found[0] == now[0]
window.Unlock_all()
world.Barrier()

tickets = world.gather(list(drawn), root=0)
if rank == 0:
    everything = sorted(ticket for tickets in tickets for ticket in tickets)
    ensure(everything == list(range(size * TICKETS)), f"some tickets were drawn twice or not at all: {everything}")
window.Lock(1)
final = array("q", [0])
window.Get(final, 1, [COUNT * size, 1, MPI.INT64_T])
window.Unlock(1)
ensure(final[0] == 5 * size, f"the counter of rank 1 is {final[0]}")
world.Barrier()
window.Free()
MPI.Free_mem(memory)
if rank == 0:
    print(f"one-sided: {size} ranks, each element right")
