# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Each allocation fails once: in verbs of kernel users, when GIDs are added and removed, when the driver is bound, and
# when it is unbound. Each time, the call fails cleanly or works, the device has exactly the kernel's GIDs, and nothing
# leaks.
# lab: timeout=900
# lab: fresh
# Linux creates files for an interrupt (kernel/irq/proc.c, register_irq_proc) without checking for errors. When it
# removes them, it warns of missing ones.
# lab: allow-kernel-warning unregister_irq_proc
# lab: needs CONFIG_FAILSLAB=y
. "$LAB_LIB"

fails() { on -t 600 a python3 /vrnic/tests/pyverbs/failed_allocations_in_kernel.py "$@" --device "$DEV"; }
device_gids() {
	vrnicctl --json gids -d a | python3 -c '
import ipaddress, json, sys
for one in sorted((ipaddress.ip_address(one["gid"]).packed.hex(), one["kind"]) for one in json.load(sys.stdin)):
	print(*one)'
}
# same_gids WHEN: checks that the device has the kernel's GIDs.
same_gids() { diff <(fails gids) <(device_gids) || fail "device and kernel have different GIDs $1"; }

on a modprobe vrnic-verbs
fails verbs
on a modprobe -r vrnic-verbs

before=$(device_gids)
fails add
same_gids "when some could not be added"
fails repair
same_gids "when addresses came again"
fails delete
same_gids "when addresses went"
fails rest
[ "$(device_gids)" = "$before" ] || fail "the GIDs of the device have changed: $(device_gids)"

fails probe
active a
on -t 60 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds 3
