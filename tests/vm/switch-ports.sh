#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# RNICs obey the MTU of their switch ports. Frames of RoCE v2 over IPv4 and IPv6, of RoCE v1, of a VLAN and with a
# traffic class are on the wire. vrnicctl shows ports, drops and addresses.
# lab: fabric=roce
# lab: timeout=400
# lab: vrnicd-port mtu = 1500
. "$LAB_LIB"

# gid VM ADDRESS VERSION: prints the index of the GID of an address, for this version of RoCE.
gid() {
	on "$1" sh -c "cd /sys/class/infiniband/$DEV/ports/1 && grep -H . gids/* gid_attrs/types/* 2>/dev/null; true" | python3 -c "
import ipaddress, sys
address, version = ipaddress.ip_address(sys.argv[1]), sys.argv[2]
gids, types = {}, {}
for line in sys.stdin:
    path, value = line.strip().split(':', 1)
    (gids if path.startswith('gids/') else types)[path.rsplit('/', 1)[1]] = value
for index, kind in types.items():
    if kind.endswith('v' + version) and ipaddress.ip_address(gids[index]) == address: print(index)" "$2" "$3"
}

# same ADDRESS-IN-A ADDRESS-IN-B [VERSION]: waits for the GIDs of both, and prints their common index.
same() {
	local a= b=
	for _ in $(seq 100); do
		a=$(gid a "$1" "${3:-2}") b=$(gid b "$2" "${3:-2}")
		[ -n "$a" ] && [ "$a" = "$b" ] && break
		sleep 0.2
	done
	[ -n "$a" ] && [ "$a" = "$b" ] || fail "GIDs of $1 and $2 have the indices ${a:-none} and ${b:-none}"
	echo "$a"
}

# drops PORT REASON: prints the number of drops as shown by vrnicctl.
drops() {
	vrnicctl --json switch | python3 -c "
import json, sys
port, reason = sys.argv[1:]
print(next(dict(found['counters'])[reason] for found in json.load(sys.stdin) if found['name'] == port))" "$1" "$2"
}

# The network device accepts 9000 bytes, the port 1500.
for vm in a b; do
	mtus=$(on $vm ibv_devinfo -v -d "$DEV" | sed -n 's/.*_mtu:[[:space:]]*\([0-9]*\) .*/\1/p' | tr '\n' ' ')
	[ "$mtus" = "1024 1024 " ] || fail "largest and active MTU of $vm, which should fit 1500 bytes: $mtus"
done
vrnicctl capture start "$LAB_DIR/wire.pcapng"
perf a b ib_write_bw -s 65536 -n 100 >/dev/null
perf b a ib_read_bw -s 65536 -n 100 >/dev/null
perf a b ibv_ud_pingpong -s 1024 -n 100 >/dev/null
[ "$(drops a rx_oversize)" = 0 ] || fail "a sent frames that its port does not accept"
on a ping -c 1 -W 5 "$IP_b" >/dev/null || fail "no IPv4"
! on a ping -c 1 -W 1 -M do -s 8000 "$IP_b" >/dev/null || fail "a long frame passed"
oversize() { [ "$(drops a rx_oversize)" -ge 1 ]; }
within 20 oversize || fail "a frame above the MTU was not counted"

perf a b ib_send_bw -x "$(same "$IP6_a" "$IP6_b")" -s 65536 -n 100 >/dev/null
perf a b ib_write_bw -x "$(same "$IP6_a" "$IP6_b" 1)" -s 65536 -n 100 >/dev/null
perf b a ib_read_bw -x "$(same "::ffff:$IP_a" "::ffff:$IP_b" 1)" -s 65536 -n 100 >/dev/null
perf a b ib_write_bw --tclass=104 -s 65536 -n 100 >/dev/null

# A VLAN on both network devices.
for vm in a b; do
	on $vm ip link add link "$NETDEV" name tagged type vlan id 7
	on $vm ip address add "10.78.0.$([ $vm = a ] && echo 1 || echo 2)/24" dev tagged
	on $vm ip link set tagged up
done
on a sh -c 'for i in $(seq 50); do ping -c 1 -W 1 10.78.0.2 && exit 0; sleep 0.1; done; exit 1' >/dev/null || fail "no VLAN"
index=$(same ::ffff:10.78.0.1 ::ffff:10.78.0.2)
vrnicctl gids -d a | found -E '::ffff:10.78.0.1 +RoCE v2 .* 7$' || fail "the GID of a has no VLAN"
perf a b ib_write_bw -x "$index" -s 65536 -n 100 >/dev/null
perf b a ib_atomic_bw -x "$index" -n 100 -A FETCH_AND_ADD >/dev/null
for vm in a b; do on $vm ip link del tagged; done

# on_wire FILTER: prints the packets in the capture that match the filter.
on_wire() {
	tshark -n -r "$LAB_DIR/wire.pcapng" -Y "$1" 2>"$LAB_DIR/tshark" | wc -l || fail "tshark: $(cat "$LAB_DIR/tshark")"
}
vrnicctl capture stop
for filter in 'infiniband && ip && !vlan' 'infiniband && ipv6' 'infiniband.grh' 'infiniband && vlan.id == 7' \
	'infiniband && ip.dsfield.dscp == 26' 'infiniband && ip.dsfield.ecn == 2'; do
	count=$(on_wire "$filter")
	[ "$count" -ge 100 ] || fail "the wire has no frames with $filter"
done
long=$(on_wire 'frame.len > 1518')
[ "$long" = 0 ] || fail "frames are longer than the MTU allows"

vrnicctl switch
vrnicctl addresses
[ "$(vrnicctl switch | grep -Ec "^[ab] +[ab] up +stream up +52:54:00:76:72:0[ab] +1500 +tagged all, untagged 1 ")" = 2 ] ||
	fail "the ports of the switch are not as expected"
vrnicctl addresses | found -E '^52:54:00:76:72:0a +all +a +own$' || fail "the address of a"
vrnicctl watch -n 2 -i 0.2 | found '^a up' || fail "no live view"
