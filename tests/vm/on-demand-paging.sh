# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# On-demand regions work: verified traffic between VMs while pages come and go, distribution programs, a process that is
# killed and a module that is removed while pages are missing.
# lab: fabric=roce
# lab: fabric=local
# lab: fabric=infiniband
# lab: one-fabric
# lab: timeout=300
. "$LAB_LIB"

counter() { on "$1" cat "/sys/class/infiniband/$DEV/ports/1/hw_counters/$2"; }

on -t 100 b vrnic-stress --on-demand --device "$DEV" --gid "$GID_INDEX" --port 18900 --server --ud --ud-loss &
server=$!
on -t 100 a vrnic-stress --on-demand --device "$DEV" --gid "$GID_INDEX" --port 18900 --client "$IP_b" --seconds 5 --ud \
	--ud-loss --max-size 200000
wait $server
for vm in a b; do
	[ "$(counter $vm page_faults)" -gt 0 ] || fail "VM $vm had no page fault"
	[ "$(counter $vm page_invalidations)" -gt 0 ] || fail "in VM $vm, the kernel took no page back"
done

for peer in b a; do
	perf a $peer ibv_rc_pingpong -n 200 -o -c
	perf a $peer ibv_srq_pingpong -n 50 -o -c
	perf a $peer ib_write_bw -n 200 -s 65536 --odp
	perf a $peer ib_read_bw -n 200 -s 65536 --odp
	perf a $peer ib_send_lat -n 200 --odp
done

on -t 60 a sh -c "
	vrnic-stress --on-demand --device $DEV --seconds 60 &
	pid=\$!
	sleep 3
	kill -9 \$pid
	wait \$pid
	true"
within 40 on a sh -c "rdma resource show mr | grep -c vrnic-stress | grep -qx 0" || fail "memory regions still exist"

on -t 90 a sh -c "vrnic-stress --on-demand --device $DEV --seconds 8; true" &
client=$!
sleep 3
on -t 60 a sh -c 'rmmod vrnic || true'
wait $client
on -t 60 a sh -c 'lsmod | grep "^vrnic " >/dev/null && rmmod vrnic; modprobe vrnic'
active a
on -t 60 a vrnic-stress --on-demand --device "$DEV" --seconds 2
