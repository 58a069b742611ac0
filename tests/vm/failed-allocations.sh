# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Each allocation of the kernel in each verb of programs fails once: the verb is refused or works, and nothing is lost.
# lab: debug-kernel
# lab: timeout=600
# lab: fresh
. "$LAB_LIB"

on -t 580 a python3 /vrnic/tests/pyverbs/failed_allocations.py --device "$DEV" --gid "$GID_INDEX"
on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 3
