# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A kernel user registers memory by work requests. A peer writes and reads the memory as long as its key is valid, and
# forbidden accesses end with the right error. The local DMA key gives access to unregistered memory. Inline data is
# copied when it is posted. Another kernel user has regions for integrity, which add, check, change and remove the
# protection information of blocks.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=120
. "$LAB_LIB"

said() { on a sh -c "dmesg | grep -o '$1[:,] .*'"; }

# passes NAME COUNT: runs a kernel module, of which this many checks must be right.
passes() {
	on -t 80 a modprobe "vrnic-$1" || fail "$(said "$1")"
	said "$1"
	[ "$(said "$1" | tail -n 1)" = "$1: $2 right, 0 wrong: 0" ] || fail "$(said "$1")"
	on a modprobe -r "vrnic-$1"
}

passes fast 95
passes integrity 986
