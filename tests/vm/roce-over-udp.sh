#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A VM with vrnic communicates over UDP, on its host's network, with a RoCE implementation that knows nothing about
# vrnic. Two network namespaces stand for two hosts. In the first, vrnicd has a port of kind `udp`. In the second is a
# VM with the kernel's Soft-RoCE. The kernel provides what is between them: a cable, and a vxlan device on it, through
# which a link connects the second VM to the first host.
# lab: crowd
# lab: timeout=600
. "$LAB_LIB"
. tests/vm/hosts.bash

end() {
	for vm in near far; do lab_of $vm down $vm >/dev/null 2>&1 || :; done
	kill "${pids[@]}" 2>/dev/null || :
}
trap end EXIT

first_host
first=$host
next_host "$first" second
second=$host

at $first ip link set lo up
at $first ip link add cable mtu 9100 type veth peer name cable mtu 9100 netns "$second"
at $first ip address add 198.51.100.1/24 dev cable
at $first ip link set cable up
at "$second" ip address add 198.51.100.2/24 dev cable
at "$second" ip link set cable up
at $first ip link add nic mtu 9000 type vxlan id 7 local 198.51.100.1 remote 198.51.100.2 srcport 4789 4790 dstport 4789
at $first ip address add 192.0.2.1/24 dev nic
at $first ip address add 2001:db8::1/64 dev nic nodad
at $first ip link set nic up
# Linux leaves UDP checksums to the NIC. No NIC computes them here, and the VM `far` drops packets with wrong ones, so
# Linux has to compute them.
at $first python3 - nic <<-'end'
	import array, fcntl, socket, struct, sys
	SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
	value = array.array("B", struct.pack("II", ETHTOOL_STXCSUM, 0))
	request = struct.pack("16sP", sys.argv[1].encode(), value.buffer_info()[0])
	fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), SIOCETHTOOL, request.ljust(40, b"\0"))
end

for vm in near far; do mkdir -m 700 "$LAB_DIR/run-$vm"; done
cat >"$LAB_DIR/near.toml" <<-end
	memory = 640

	[[network]]
	name = "wire"
	fabric = "roce"

	[[network.udp]]
	local = "192.0.2.1"
	device = "near"
	peers = ["192.0.2.0/24"]

	[[network.udp]]
	local = "2001:db8::1"
	device = "near"
	peers = ["2001:db8::/64"]

	[[vm]]
	name = "near"
end
cat >"$LAB_DIR/far.toml" <<-end
	memory = 640

	[[network]]
	name = "wire"
	fabric = "roce"

	[[network.link]]
	local = "198.51.100.2:4789"
	peer = "198.51.100.1:4789"
	vni = 7

	[[vm]]
	name = "far"

	[[vm.netdev]]
	soft_roce = true
end
XDG_RUNTIME_DIR=$LAB_DIR/run-near at $first "$LAB_BIN" up "$LAB_DIR/near.toml" >"$LAB_DIR/up-near" 2>&1 &
up=$!
XDG_RUNTIME_DIR=$LAB_DIR/run-far at "$second" "$LAB_BIN" up "$LAB_DIR/far.toml" >"$LAB_DIR/up-far" 2>&1 ||
	fail "far: $(cat "$LAB_DIR/up-far")"
wait $up || fail "near: $(cat "$LAB_DIR/up-near")"

# vm NAME COMMAND...: runs a command in this VM.
vm() { lab_of "$1" exec --lab "$1" --vm "$1" --timeout 90 -- "${@:2}"; }
declare -A host=([near]=1 [far]=7)
for name in near far; do
	vm $name ip address add "192.0.2.${host[$name]}/24" dev eth0
	vm $name ip address add "2001:db8::${host[$name]}/64" dev eth0 nodad
done

listens() { vm "$1" sh -c "rdma resource show cm_id | grep -q 'state LISTEN .*:$2 '"; }
# The VMs `near` and `far` share no network except for RoCE, so programs connect through the connection manager.
# pair SERVER CLIENT PORT COMMAND COMMAND
pair() {
	vm "$1" sh -c "$4" >"$LAB_DIR/server" 2>&1 &
	local job=$!
	within 40 listens "$1" "$3" || fail "no server listens on port $3 in $1: $(cat "$LAB_DIR/server")"
	vm "$2" sh -c "$5" >"$LAB_DIR/client" 2>&1 || fail "in $2: $5: $(cat "$LAB_DIR/client")"
	wait $job || fail "in $1: $4: $(cat "$LAB_DIR/server")"
}
port=18800
for server in near far; do
	[ $server = near ] && client=far || client=near
	for address in "192.0.2.${host[$server]}" "2001:db8::${host[$server]}"; do
		pair $server $client $((port + 1)) "rping -s -a $address -p $((port + 1)) -C 10 -S 20000" \
			"rping -c -a $address -p $((port + 1)) -C 10 -S 20000 -V"
		port=$((port + 1))
	done
	address=192.0.2.${host[$server]}
	pair $server $client $((port + 1)) "ucmatose -b $address -p $((port + 1)) -c 5 -C 5 -S 1024" \
		"ucmatose -s $address -p $((port + 1)) -c 5 -C 5 -S 1024"
	pair $server $client 7174 "udaddy -b $address -c 2 -C 5" "udaddy -s $address -c 2 -C 5"
	pair $server $client $((port + 2)) "rstream -b $address -p $((port + 2)) -S 4096 -C 20 -T v" \
		"rstream -s $address -p $((port + 2)) -S 4096 -C 20 -T v"
	port=$((port + 10))
done
