# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Verbs, used correctly and incorrectly, behave as the standard says, in loopback on one RNIC, also in
# processes with children.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=300
. "$LAB_LIB"

on -t 290 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX"

# Fork safety, as programs ask libibverbs for it. With huge pages it looks for their size.
for safe in RDMAV_FORK_SAFE=1 "RDMAV_FORK_SAFE=1 RDMAV_HUGEPAGES_SAFE=1"; do
	on -t 100 a sh -c "echo 8 >/proc/sys/vm/nr_hugepages
		$safe vrnic-verbs-check --device $DEV --gid $GID_INDEX fork-"
done
