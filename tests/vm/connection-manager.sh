# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The kernel's own queue pairs work: connections are made by ib_cm and rdma_cm, whose datagrams go over QP1.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=300
. "$LAB_LIB"

# pair PORT SERVER CLIENT: runs SERVER in b and CLIENT in a, both must succeed.
pair() {
	local port=$1 server=$2 client=$3
	on -t 60 b sh -c "$server" &
	local job=$!
	sleep 1
	on -t 60 a sh -c "$client" || fail "client: $client"
	wait $job || fail "server: $server"
}

pair 1 "rping -s -a $IP_b -p 18701 -C 20 -v | tail -1" "rping -c -a $IP_b -p 18701 -C 20 -V"
pair 2 "rping -s -a $IP6_b -p 18702 -C 5" "rping -c -a $IP6_b -p 18702 -C 5 -V"
pair 3 "rdma_server -p 18703" "rdma_client -s $IP_b -p 18703"
pair 4 "ucmatose -b $IP_b -p 18704 -c 20 -C 20 -S 1024" "ucmatose -s $IP_b -p 18704 -c 20 -C 20 -S 1024"
pair 5 "udaddy -b $IP_b -c 4 -C 10" "udaddy -s $IP_b -c 4 -C 10"
pair 6 "ib_send_bw -R -d $DEV -p 18706 -F -n 200" "ib_send_bw -R -d $DEV -p 18706 -F -n 200 $IP_b"

# Loopback goes the same way.
on -t 60 a sh -c "rping -s -a $IP_a -p 18707 -C 5 & sleep 1; rping -c -a $IP_a -p 18707 -C 5 -V; wait"
# The kernel's own objects can be looked at.
on a rdma resource show qp -dd | grep -q 'type GSI' || fail "there is no GSI queue pair"
