# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Programs of rdma-core 65 work with the provider for private ABI 65, with each other and with the programs of Debian
# 13, which use the provider for ABI 34.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=400
. "$LAB_LIB"

[ "$DEV" = vrnic0 ] || skip "there is no provider of ours for $DEV"
on a test -x /vrnic/bin/ibv_devinfo-65 || fail "the setup found no rdma-core 65 (tools/setup/setup.sh userland)"
on a ibv_devinfo-65 -v -d "$DEV" 2>/dev/null | found PORT_ACTIVE || fail "no active port"

# Loopback exercises the same code of the provider.
peers=b
! thorough || peers="b a"
for peer in $peers; do
	perf a $peer ibv_rc_pingpong-65 -n 200 -c
	perf a $peer ibv_rc_pingpong-65 -n 200 -e
	perf a $peer ibv_rc_pingpong-65 -n 200 -N
	perf a $peer ibv_rc_pingpong-65 -n 200 -t
	perf a $peer ibv_ud_pingpong-65 -n 200
	perf a $peer ib_send_bw-65 -n 200 -s 65536
	perf a $peer ib_send_lat-65 -n 200 -c UD
	perf a $peer ib_write_bw-65 -n 200 -s 65536 -q 8
	perf a $peer ib_write_bw-65 -n 200 --use_old_post_send
	perf a $peer ib_read_lat-65 -n 200
	perf a $peer ib_atomic_bw-65 -n 200 -A CMP_AND_SWAP
done

# Connected by the librdmacm of that release, with itself and with the other release.
port=18960
for server in rping rping-65; do
	for client in rping rping-65; do
		[ $server$client = rpingrping ] || for vm in $peers; do
			ip=IP_$vm
			rping="-a ${!ip} -p $((port += 1)) -C 10"
			pair $vm a $port "$server -s $rping -v" "$client -c $rping -V"
		done
	done
done
for vm in $peers; do
	ip=IP6_$vm
	ucmatose="-p $((port += 1)) -c 5 -C 5 -S 1024"
	pair $vm a $port "ucmatose-65 -b ${!ip} $ucmatose" "ucmatose-65 -s ${!ip} $ucmatose"
done

# Completion counters are verbs of this release: here the provider reads them from memory.
check="/vrnic/userland/lib/ld-linux-x86-64.so.2 --library-path /vrnic/userland/lib \$(command -v vrnic-verbs-check)"
options="--device $DEV --gid $GID_INDEX"
on -t 100 b sh -c "exec $check $options --server" &
server=$!
on -t 100 a sh -c "exec $check $options --client $IP_b completion-counters"
wait $server || fail "the server of the completion counters failed"

# One end from each release: they exchange the same.
on -t 60 b ibv_rc_pingpong -d "$DEV" -g "$GID_INDEX" -c -n 200 -p 18950 &
server=$!
listening b 18950
on -t 60 a ibv_rc_pingpong-65 -d "$DEV" -g "$GID_INDEX" -c -n 200 -p 18950 "$IP_b"
wait $server || fail "the side with rdma-core 56 failed"
