# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnic in VM a and the kernel's Soft-RoCE (rxe) in VM b are on one switch. The distribution's programs run both ways,
# with every operation that both support, verified, at every path MTU, over IPv4 and IPv6. Each frame from either end is
# well-formed and has the right ICRC.
# lab: fabric=roce
# lab: rxe=b
# lab: timeout=400
# While it holds a lock that its interrupts take, Soft-RoCE frees packets for a queue pair in the error state, which
# enables interrupts (Linux 7.3.4). The debug kernel reports this and may deadlock.
# lab: allow-kernel-report rxe_receiver
# lab: vrnicd capture = { file = "{lab}/capture.pcapng", device = "a" }
. "$LAB_LIB"

# patient CLIENT SERVER PROGRAM ARGUMENTS...: runs a perftest pair that waits for Soft-RoCE.
patient() { perf "$@" -u "$(ack_timeout)"; }
# All pairs of programs that libibverbs and perftest have for RC, UC and UD.
programs() {
	# These have no option to wait longer for Soft-RoCE, which is faster with less data.
	perf "$@" ibv_rc_pingpong -n 20 -s 512
	perf "$@" ibv_ud_pingpong -n 20
	perf "$@" ibv_srq_pingpong -n 20 -s 512 -q 2
	patient "$@" ib_send_bw -n 20 -s 65536
	perf "$@" ib_send_bw -n 20 -c UD
	patient "$@" ib_send_lat -n 20
	perf "$@" ib_send_lat -n 20 -c UD
	patient "$@" ib_write_bw -n 20 -s 65536
	patient "$@" ib_write_lat -n 20
	patient "$@" ib_read_bw -n 20 -s 65536
	patient "$@" ib_read_lat -n 20
	patient "$@" ib_atomic_bw -n 20 -A FETCH_AND_ADD
	patient "$@" ib_atomic_bw -n 20 -A CMP_AND_SWAP
	patient "$@" ib_atomic_lat -n 20
	# Without acknowledgements, nothing slows a sender down, so the ends take turns.
	perf "$@" ibv_uc_pingpong -n 20
	perf "$@" ib_send_lat -n 20 -c UC
	perf "$@" ib_write_lat -n 20 -c UC
	# Or they transfer so little that no queue can fill up.
	perf "$@" ib_send_bw -n 20 -s 1024 -c UC
	perf "$@" ib_write_bw -n 20 -s 1024 -c UC
}
programs a b
programs -6 b a
# Both ends send.
patient a b ib_send_bw -n 20 -s 65536 -b
patient -6 b a ib_write_bw -n 20 -s 65536 -b

declare -A gid
for vm in a b; do
	gid[$vm-4]=$(lab ready $vm)
	gid[$vm-6]=$(lab ready -6 $vm)
done

# stress VERSION ARGUMENTS...: runs in both VMs, with the server in b.
stress() {
	local version=$1
	local arguments=("${@:2}" --ack-timeout $(($(ack_timeout) + 1)))
	on -t 120 b vrnic-stress --device "$DEV_b" --gid "${gid[b-$version]}" --server "${arguments[@]}" &
	local server=$!
	on -t 120 a vrnic-stress --device "$DEV_a" --gid "${gid[a-$version]}" --client "$IP_b" "${arguments[@]}" ||
		fail "stress $* in a"
	wait $server || fail "stress $* in b"
}
# Either end is requester and responder at the same time. The seeds cover every opcode.
for mtu in 1 2 3 4 5; do
	stress $((mtu % 2 * 2 + 4)) --batches 6 --qps 2 --max-size 32768 --mtu $mtu --seed $mtu --port $((18500 + mtu))
done
stress 4 --batches 4 --qps 2 --max-size 65536 --rnr --events --seed 7 --port 18507
stress 6 --seconds 1 --qps 1 --max-size 4096 --ud --seed 8 --port 18508

# Errors and timeouts: the statuses that the standard requires, at both ends.
cases=(write-read matrix- remote- qp-without rnr- receive-too flush-both peer-qp-destroyed peer-qp-in-reset datagram-wrong)
check() {
	local server=$1 client=$2 address=IP_$1
	local -n server_device=DEV_$1 client_device=DEV_$2
	on -t 120 "$server" vrnic-verbs-check --device "$server_device" --gid "${gid[$server-4]}" --port "$3" --server &
	local job=$!
	on -t 120 "$client" vrnic-verbs-check --device "$client_device" --gid "${gid[$client-4]}" --port "$3" --client "${!address}" \
		"${@:4}" || fail "checks from $client to $server"
	wait $job || fail "checks from $client to $server"
}
check a b 18521 "${cases[@]}" peer-qp-in-error
# The debug kernel would deadlock; see above.
on b test -e /sys/kernel/debug/kmemleak || cases+=(peer-qp-in-error)
check b a 18522 "${cases[@]}"

# A memory window of either end, whose key the other invalidates, and atomic writes to words of either end.
remote() {
	local program=/vrnic/tests/pyverbs/remote_$1.py server=$2 client=$3 address=IP_$2
	local -n server_device=DEV_$2 client_device=DEV_$3
	on -t 120 "$server" python3 "$program" --device "$server_device" --gid "${gid[$server-4]}" --port "$4" --server &
	local job=$!
	on -t 120 "$client" python3 "$program" --device "$client_device" --gid "${gid[$client-4]}" --port "$4" --client "${!address}" ||
		fail "a $1 of $server, used by $client"
	wait $job || fail "a $1 of $server"
}
remote window a b 18511
remote window b a 18512
remote placement a b 18513
remote placement b a 18514

# Checks what went over the wire. The capture lags behind the traffic.
file=$(dirname "$(lab config)")/capture.pcapng
size=
settled() {
	local before=$size
	sleep 1
	size=$(stat -c %s "$file")
	[ "$size" = "$before" ]
}
within 60 settled || fail "the capture does not end"
python3 tests/vm/frames.py "$file" 52:54:00:76:72:0a 52:54:00:76:72:0b || fail "the captured frames are not as expected"
# RoCE allows a UDP checksum of 0 over IPv6 too (annex A17). tshark may misinterpret random payload and complain about
# it.
complaints=$(tshark -n -r "$file" -o udp.ignore_ipv6_zero_checksum:TRUE -Y '(_ws.malformed || _ws.expert.severity >= 0x400000) &&
	!(frame.protocols matches "infiniband:(?!_ws)")' 2>"$LAB_DIR/tshark") || fail "tshark: $(cat "$LAB_DIR/tshark")"
[ -z "$complaints" ] || fail "tshark complains: $complaints"
# Frames that vrnic would not accept are not in the capture.
vrnicctl counters -a -d a >"$LAB_DIR/counters"
for counter in rx_icrc_encapsulated rx_malformed; do
	grep -Eq "^a +$counter +0\$" "$LAB_DIR/counters" || fail "$(grep $counter "$LAB_DIR/counters")"
done
