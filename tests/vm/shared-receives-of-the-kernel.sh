# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Queue pairs of a kernel user share their receives. All messages arrive, the limit event arrives once, and draining
# ends.
# lab: fabric=local
# lab: fabric=roce
# lab: fabric=infiniband
# lab: timeout=120
. "$LAB_LIB"

said() { on a sh -c "dmesg | grep -o 'shared: .*' | tail -n 1"; }

on -t 80 a modprobe vrnic-shared || fail "$(said)"
[ "$(said)" = "shared: 40 arrived, 40 sent, 0 wrong, limit told 1 times: 0" ] || fail "$(said)"
on a rdma resource show srq -dd | found 'producer' || fail "the kernel's SRQ is not shown"
on -t 50 a modprobe -r vrnic-shared
[ "$(said)" = "shared: drained, 2 of 2 told of the last receive, 0 wrong" ] || fail "$(said)"
