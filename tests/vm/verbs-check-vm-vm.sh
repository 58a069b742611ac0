# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Verbs, used correctly and incorrectly, behave as the standard says, between two VMs.
# lab: fabric=roce
# lab: fabric=local
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=300
. "$LAB_LIB"

on -t 290 b vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" --server &
server=$!
on -t 290 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" --client "$IP_b"
wait $server
