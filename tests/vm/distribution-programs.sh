# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Unmodified distribution programs run between two VMs and, if all tests are wanted, in loopback.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=400
. "$LAB_LIB"

for vm in a b; do
	on $vm ibv_devinfo -v -d "$DEV" | found PORT_ACTIVE || fail "the port of $vm is not active"
	guid=$(on $vm cat "/sys/class/infiniband/$DEV/node_guid" | tr -d :)
	on $vm ibv_devices | found -E "^ *$DEV\s+$guid\$" || fail "ibv_devices does not list the device of $vm with its GUID"
	on $vm rdma link show | found "^link $DEV/1 state ACTIVE physical_state LINK_UP netdev $NETDEV" ||
		fail "rdma does not show the link of $vm"
done
# Loopback differs only in the device, which verbs-check-loopback tests.
peers=b
! thorough || peers="b a"
for peer in $peers; do
	perf a $peer ibv_rc_pingpong -n 200
	perf a $peer ibv_rc_pingpong -n 200 -e
	perf a $peer ibv_uc_pingpong -n 200 -c
	perf a $peer ibv_srq_pingpong -n 200 -c
	perf a $peer ibv_ud_pingpong -n 200 -c
	perf a $peer ib_send_bw -n 200 -s 65536
	perf a $peer ib_send_bw -n 200 -s 65536 -b
	perf a $peer ib_send_bw -n 200 -q 4 --use-srq
	perf a $peer ib_send_lat -n 200 -c UD --use-srq
	perf a $peer ib_send_lat -n 200
	perf a $peer ib_send_lat -n 200 -c UD
	perf a $peer ib_send_lat -n 200 -c UC
	perf a $peer ib_write_bw -n 200 -s 65536 -q 8
	perf a $peer ib_write_bw -n 100 -a
	perf a $peer ib_write_lat -n 200
	perf a $peer ib_write_bw -n 200 -s 65536 -c UC
	perf a $peer ib_read_bw -n 200 -s 65536
	perf a $peer ib_read_lat -n 200
	perf a $peer ib_atomic_bw -n 200 -A FETCH_AND_ADD
	perf a $peer ib_atomic_bw -n 200 -A CMP_AND_SWAP
	perf a $peer ib_atomic_lat -n 200
done
