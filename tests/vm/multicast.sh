# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# rdma_cm joins multicast groups. Datagrams to a group reach its members in the other VM and in the sender's own VM,
# over RoCE v2 and v1, IPv4 and IPv6. The host sees the members of a group. When the last member has left, nothing of
# the group remains.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: fresh
# lab: timeout=240
. "$LAB_LIB"

# members GROUP DEVICE COUNT: checks that this many queue pairs of the device are in the group.
members() {
	vrnicctl --json groups -d "$2" | python3 -c "
import json, sys
found = [group['qpns'] for group in json.load(sys.stdin) if group['gid'] == '$1']
sys.exit(len(found[0] if found else []) != $3)"
}

# multicast GROUP GID ADDRESS-OF-A ADDRESS-OF-B: starts a member in each VM. A program in each VM sends to them.
multicast() {
	local group=$1 gid=$2 sender receiver job
	declare -A address=([a]=$3 [b]=$4)
	for sender in a b; do
		local jobs=()
		for receiver in a b; do
			on -t 60 $receiver mckey -m "$group" -b "${address[$receiver]}" -C 10 -S 512 >/dev/null &
			jobs+=($!)
		done
		for receiver in a b; do
			within 40 members "$gid" $receiver 1 || fail "the member in $receiver does not join $group"
		done
		on -t 60 $sender mckey -m "$group" -b "${address[$sender]}" -C 10 -S 512 -s >/dev/null || fail "sending from $sender to $group"
		for job in "${jobs[@]}"; do
			wait "$job" || fail "a member of $group did not get everything that $sender sent"
		done
	done
	for receiver in a b; do
		within 40 members "$gid" $receiver 0 || fail "$receiver still has members of $group"
	done
}
multicast 239.77.1.1 ::ffff:239.77.1.1 "$IP_a" "$IP_b"

# Linux refuses to join IPv6 groups over RoCE v2 (ENOTSUPP), before it asks the driver. See the patch below.
! refusal=$(on -t 60 a mckey -m ff0e::77:1 -b "$IP6_a" -C 1 -s 2>&1) || fail "Linux joins IPv6 groups over RoCE v2 now"
found 524 <<<"$refusal" || fail "mckey fails for another reason: $refusal"

# mode MODE: sets the version of RoCE with which rdma_cm joins groups.
mode() {
	local vm
	for vm in a b; do
		on $vm sh -c "mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
			mkdir -p /sys/kernel/config/rdma_cm/$DEV
			echo '$1' >/sys/kernel/config/rdma_cm/$DEV/ports/1/default_roce_mode"
	done
}
mode "IB/RoCE v1"
multicast ff0e::77:1 ff0e::77:1 "$IP6_a" "$IP6_b"
mode "RoCE v2"

# The device has such groups: datagrams of a program that attaches its queue pair itself are UDP over IPv6.
capture=$(vrnicctl --json capture start "$LAB_DIR/group.pcapng" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])')
perf -6 a b ib_send_bw -c UD -g -n 100 -M 255:14:0:0:0:0:0:0:0:0:0:0:0:119:0:3
vrnicctl capture stop "$capture" >/dev/null
sent=$(tshark -n -r "$LAB_DIR/group.pcapng" -Y 'ipv6.dst == ff0e::77:3 && udp.dstport == 4791' 2>"$LAB_DIR/tshark" | wc -l) ||
	fail "tshark: $(cat "$LAB_DIR/tshark")"
[ "$sent" -ge 100 ] || fail "only $sent datagrams were sent to the group over RoCE v2 and IPv6"

# Groups without rdma_cm. Exactly as many groups and members are possible as the device reports.
for peer in b a; do
	perf a $peer ib_send_bw -c UD -g -n 100 -M 0:0:0:0:0:0:0:0:0:0:255:255:239:77:3:1
	perf -6 a $peer ib_send_bw -c UD -g -n 100
done
on -t 120 a vrnic-verbs-check --device "$DEV" --gid "$GID_INDEX" --slow multicast-

# With the patch of tools/series/linux, rdma_cm joins IPv6 groups over RoCE v2, and so does the network device (MLD).
for vm in a b; do
	on $vm sh -c "rmdir /sys/kernel/config/rdma_cm/* && modprobe -r rdma_ucm rdma_cm && insmod /vrnic/patched/rdma_cm.ko &&
		modprobe rdma_ucm" || fail "no patched rdma_cm in $vm"
done
multicast ff0e::77:4 ff0e::77:4 "$IP6_a" "$IP6_b"
on -t 60 a mckey -m ff0e::77:5 -b "$IP6_a" -C 1 >/dev/null &
job=$!
within 40 on a sh -c "ip -6 maddr show dev $NETDEV | grep -q 'ff0e::77:5'" || fail "the network device is not in the group"
on -t 60 b mckey -m ff0e::77:5 -b "$IP6_b" -C 1 -s >/dev/null || fail "sending to the last group"
wait $job || fail "the member of the last group"
left=$(on a ip -6 maddr show dev "$NETDEV") || fail "no list of groups"
! found 'ff0e::77:' <<<"$left" || fail "the network device is still in a group: $left"
