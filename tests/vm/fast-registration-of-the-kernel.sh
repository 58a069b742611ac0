# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A kernel user registers memory by work requests. A peer writes and reads the memory as long as its key is valid, and
# forbidden accesses end with the right error. The local DMA key gives access to unregistered memory. Inline data is
# copied when it is posted.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=120
. "$LAB_LIB"

said() { on a sh -c "dmesg | grep -o 'fast[:,] .*'"; }

on -t 80 a modprobe vrnic-fast || fail "$(said)"
said
[ "$(said | tail -n 1)" = "fast: 95 right, 0 wrong: 0" ] || fail "$(said)"
on a modprobe -r vrnic-fast
