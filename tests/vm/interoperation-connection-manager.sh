# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# rdma_cm, whose datagrams use QP1, connects vrnic in VM a and the kernel's Soft-RoCE (rxe) in VM b. Either end starts
# the connection, over IPv4 and IPv6. Sockets on top of connections (rsockets) carry data, and datagrams to a multicast
# group from either end reach the member at the other.
# lab: fabric=roce
# lab: rxe=b
# lab: timeout=400
# Soft-RoCE frees packets while it holds a lock that its interrupts take; see interoperation.sh.
# lab: allow-kernel-report rxe_receiver
. "$LAB_LIB"

port=18700
for server in a b; do
	[ $server = a ] && client=b || client=a
	ip=IP_$server ip6=IP6_$server
	ip=${!ip} ip6=${!ip6}
	pair $server $client $((port + 1)) "rping -s -a $ip -p $((port + 1)) -C 10" "rping -c -a $ip -p $((port + 1)) -C 10 -V"
	pair $server $client $((port + 2)) "rping -s -a $ip6 -p $((port + 2)) -C 5" "rping -c -a $ip6 -p $((port + 2)) -C 5 -V"
	pair $server $client $((port + 3)) "rdma_server -p $((port + 3))" "rdma_client -s $ip -p $((port + 3))"
	pair $server $client $((port + 4)) "ucmatose -b $ip -p $((port + 4)) -c 5 -C 5 -S 1024" "ucmatose -s $ip -p $((port + 4)) -c 5 -C 5 -S 1024"
	pair $server $client 7174 "udaddy -b $ip -c 2 -C 5" "udaddy -s $ip -c 2 -C 5"
	pair $server $client $((port + 5)) "cmtime -b $ip -p $((port + 5)) -c 10" "cmtime -s $ip -p $((port + 5)) -c 10"
	pair $server $client $((port + 6)) "rstream -b $ip -p $((port + 6)) -S 4096 -C 20 -T v" "rstream -s $ip -p $((port + 6)) -S 4096 -C 20 -T v"
	pair $server $client $((port + 7)) "riostream -b $ip -p $((port + 7)) -S 4096 -C 20 -T v" "riostream -s $ip -p $((port + 7)) -S 4096 -C 20 -T v"
	pair $server $client $((port + 8)) "rdma_xserver -p $((port + 8)) -c r" "rdma_xclient -s $ip -p $((port + 8)) -c r"
	copied $server $client $((port + 9)) "$ip"
	managed $server $client "$ip" ib_send_bw -n 20 -u "$(ack_timeout)"
	port=$((port + 20))
done

# Soft-RoCE receives frames to a group that its network device has joined for IP, which rdma_cm does. The device then
# has two addresses for the group: that for IP, and that of Soft-RoCE, which treats every group as an IPv6 group.
is_member() { on b ip maddr show dev "$NETDEV" | found "$1:4d:02:01"; }
on -t 90 b mckey -m 239.77.2.1 -b "$IP_b" -C 10 -S 512 >/dev/null &
job=$!
within 40 is_member 01:00:5e || fail "mckey in b does not join"
within 40 is_member 33:33:ef || fail "mckey in b does not attach its queue pair"
on -t 60 a mckey -m 239.77.2.1 -b "$IP_a" -C 10 -S 512 -s >/dev/null || fail "mckey in a does not send"
wait $job || fail "the member in b did not get everything that a sent"
# Its own mckey exits before its posted requests are sent. This one waits.
perf b a ib_send_bw -n 20 -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:77:2:2
