# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Random traffic with all operations runs between two VMs in both directions. Every byte, completion and event is
# checked.
# lab: fabric=roce
# lab: fabric=local
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=240
. "$LAB_LIB"

both() {
	on -t 90 b vrnic-stress --device "$DEV" --gid "$GID_INDEX" --server "$@" &
	local server=$!
	on -t 90 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --client "$IP_b" "$@"
	wait $server
}
both --seconds 8 --qps 8
both --seconds 6 --events --qps 4 --ud
both --seconds 6 --rnr --max-size 65536
both --seconds 6 --threads 2 --max-size 8388608 --qps 1
both --seconds 5 --srq --events --qps 6 --max-size 65536
