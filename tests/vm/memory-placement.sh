# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# One VM does WRITE, FLUSH and ATOMIC_WRITE to memory of the other, through the extended interface of libibverbs.
# lab: fabric=local
# lab: fabric=roce
. "$LAB_LIB"

program=/vrnic/tests/pyverbs/remote_placement.py
flushes() { on a cat "/sys/class/infiniband/$DEV/ports/1/hw_counters/flush_requests"; }
before=$(flushes)
on -t 120 b python3 $program --device "$DEV" --gid "$GID_INDEX" --server &
server=$!
on -t 120 a python3 $program --device "$DEV" --gid "$GID_INDEX" --client "$IP_b"
wait $server
counted=$(($(flushes) - before))
[ $counted = 6 ] || fail "$counted flushes were counted"
