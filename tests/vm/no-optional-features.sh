# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A device without any optional feature. The driver binds, programs run, and missing features are reported as missing
# and refused.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=240
# lab: fresh
# lab: vrnicd-device without = ["memory-extensions", "memory-windows", "reregistration", "shared-receive-queues", "memory-placement", "completion-queue-changes", "multicast", "port-state", "on-demand-paging", "null-key", "counter-sets", "unreliable-connections", "xrc", "clock", "ignored-overrun", "context-names", "nested-paging", "path-migration", "rate-limits", "raw-packets", "checksums", "segmentation", "receive-scaling", "receive-options", "flow-counters", "completion-counters", "tunnel-flows", "integrity"]
. "$LAB_LIB"

on -t 60 a ibv_devinfo -v -d "$DEV" >"$LAB_DIR/devinfo"
for limit in max_srq max_mw max_mcast_grp max_mcast_qp_attach; do
	grep -qE "^[[:space:]]$limit:[[:space:]]+0$" "$LAB_DIR/devinfo" || fail "$limit is not 0"
done
! grep -qE 'MEM_WINDOW|MGT_EXTENSIONS|XRC|MANAGED_FLOW|IP_CSUM|SCATTER_FCS' "$LAB_DIR/devinfo" ||
	fail "the device reports a feature that it does not have"

perf a b ibv_rc_pingpong -n 100
perf a b ibv_ud_pingpong -n 100
perf a b ib_write_bw -s 65536 -n 100
perf a b ib_read_bw -s 65536 -n 100
perf a b ib_send_lat -n 100
perf a b ib_atomic_bw -n 100
on -t 60 b sh -c "rping -s -a $IP_b -p 18710 -C 5" &
server=$!
listening b 18710
on -t 60 a rping -c -a "$IP_b" -p 18710 -C 5 -V
wait $server || fail "the server of rping failed"

! on -t 60 a ibv_uc_pingpong -d "$DEV" -g "$GID_INDEX" >/dev/null 2>&1 || fail "UC queue pairs can be created"
! on -t 60 a ibv_srq_pingpong -d "$DEV" -g "$GID_INDEX" >/dev/null 2>&1 || fail "shared receive queues can be created"
! on -t 60 a ibv_xsrq_pingpong -d "$DEV" -g "$GID_INDEX" >/dev/null 2>&1 || fail "XRC domains can be created"

! on -t 60 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" completion-counters-requests >/dev/null 2>&1 ||
	fail "completion counters can be created"

# Only InfiniBand ports have the counters of performance management.
on a test ! -e "/sys/class/infiniband/$DEV/ports/1/counters" ||
	fail "sysfs shows counters that the device does not have"
on -t 60 a rmmod vrnic
on -t 60 a modprobe vrnic
active a
# A dma-buf stays in place while it is registered.
on -t 60 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" zero-length dma-buf-moves
