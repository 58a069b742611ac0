# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# rdma-core's own tests in loopback: each has the outcome of the pinned list, so no test is skipped by accident.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=240
. "$LAB_LIB"

# Some tests want huge pages.
on a sysctl -qw vm.nr_hugepages=16
on -t 230 a python3 /vrnic/tests/pyverbs/inventory.py --device "$DEV" --pinned /vrnic/tests/pyverbs/rdma-core-56.tsv
