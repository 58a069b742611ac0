# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A thousand QPs between two VMs carry verified traffic at the same time.
# lab: fabric=local
# lab: fabric=roce
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=200
. "$LAB_LIB"

set -- --qps 1000 --max-size 4096 --batch-ops 6 --sq-depth 8 --sges 3 --cqs 8 --batches 3
on -t 180 b vrnic-stress --device "$DEV" --gid "$GID_INDEX" --server "$@" &
server=$!
on -t 180 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --client "$IP_b" "$@"
wait $server
