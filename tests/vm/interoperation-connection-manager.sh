# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Connections between vrnic in VM a and the kernel's Soft-RoCE (rxe) in VM b that rdma_cm makes, whose datagrams go over QP1: either end asks for them, over IPv4 and IPv6; sockets on top of them (rsockets) carry data.
# lab: fabric=roce
# lab: rxe=b
# lab: timeout=400
. "$LAB_LIB"

# pair PORT SERVER CLIENT: runs SERVER in $server, and CLIENT in $client as soon as somebody listens on PORT there.
pair() {
	on -t 90 $server sh -c "$2" >/dev/null &
	local job=$!
	listening $server "$1"
	on -t 60 $client sh -c "$3" >/dev/null || fail "client in $client: $3"
	wait $job || fail "server in $server: $2"
}

port=18700
for server in a b; do
	[ $server = a ] && client=b || client=a
	ip=IP_$server ip6=IP6_$server ours=DEV_$server theirs=DEV_$client
	ip=${!ip} ip6=${!ip6} ours=${!ours} theirs=${!theirs}
	pair $((port + 1)) "rping -s -a $ip -p $((port + 1)) -C 10" "rping -c -a $ip -p $((port + 1)) -C 10 -V"
	pair $((port + 2)) "rping -s -a $ip6 -p $((port + 2)) -C 5" "rping -c -a $ip6 -p $((port + 2)) -C 5 -V"
	pair $((port + 3)) "rdma_server -p $((port + 3))" "rdma_client -s $ip -p $((port + 3))"
	pair $((port + 4)) "ucmatose -b $ip -p $((port + 4)) -c 5 -C 5 -S 1024" "ucmatose -s $ip -p $((port + 4)) -c 5 -C 5 -S 1024"
	pair 7174 "udaddy -b $ip -c 2 -C 5" "udaddy -s $ip -c 2 -C 5"
	pair $((port + 5)) "cmtime -b $ip -p $((port + 5)) -c 10" "cmtime -s $ip -p $((port + 5)) -c 10"
	pair $((port + 6)) "rstream -b $ip -p $((port + 6)) -S 4096 -C 20 -T v" "rstream -s $ip -p $((port + 6)) -S 4096 -C 20 -T v"
	pair $((port + 7)) "riostream -b $ip -p $((port + 7)) -S 4096 -C 20 -T v" "riostream -s $ip -p $((port + 7)) -S 4096 -C 20 -T v"
	pair $((port + 8)) "ib_send_bw -R -d $ours -p $((port + 8)) -F -n 20" "ib_send_bw -R -d $theirs -p $((port + 8)) -F -n 20 $ip"
	port=$((port + 20))
done
