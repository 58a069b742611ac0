# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The kernel's own queue pairs work. ib_cm and rdma_cm, whose datagrams use QP1, connect the programs of librdmacm,
# between the VMs and in loopback, over IPv4 and IPv6.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=500
. "$LAB_LIB"

port=18700
# run SERVER CLIENT: runs a pair of programs with a port of its own, the client in VM a.
run() {
	port=$((port + 1))
	pair $server a $port "$1 -p $port" "$2 -p $port"
}
for server in b a; do
	for address in IP_$server IP6_$server; do
		ip=${!address}
		run "rping -s -a $ip -C 20 -v" "rping -c -a $ip -C 20 -V"
		run "rdma_server -s $ip" "rdma_client -s $ip"
		run "ucmatose -b $ip -c 20 -C 20 -S 1024" "ucmatose -s $ip -c 20 -C 20 -S 1024"
		pair $server a 7174 "udaddy -b $ip -c 4 -C 10" "udaddy -s $ip -c 4 -C 10"
		# Sockets on top of connections.
		run "rstream -b $ip -S 4096 -C 50 -T v" "rstream -s $ip -S 4096 -C 50 -T v"
		run "riostream -b $ip -S 4096 -C 50 -T v" "riostream -s $ip -S 4096 -C 50 -T v"
	done
	# These support IPv4 only.
	address=IP_$server
	ip=${!address}
	# This one also connects without queue pairs, using QP numbers that the other end must not have on the same device.
	run "cmtime -b $ip -c 20 -q 5000" "cmtime -s $ip -c 20"
	run "rdma_xserver -c r" "rdma_xclient -s $ip -c r"
	copied $server a $((port += 1)) "$ip"
done

# The kernel's own objects are visible.
on a rdma resource show qp -dd | found 'type GSI' || fail "there is no GSI queue pair"
