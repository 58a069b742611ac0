# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Verbs, used correctly and incorrectly, behave as the standard says, in loopback on one RNIC, also in processes with
# children.
# lab: fabric=local
# lab: fabric=roce
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=300
. "$LAB_LIB"

# With huge pages for the cases that fork.
on a sh -c 'echo 8 >/proc/sys/vm/nr_hugepages && grep -qx 8 /proc/sys/vm/nr_hugepages' || fail "VM a has no huge pages"
on -t 280 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX"
on a sh -c 'echo 0 >/proc/sys/vm/nr_hugepages'
