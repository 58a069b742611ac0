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
	listening b "$port"
	on -t 60 a sh -c "$client" || fail "client: $client"
	wait $job || fail "server: $server"
}

pair 18701 "rping -s -a $IP_b -p 18701 -C 20 -v | tail -1" "rping -c -a $IP_b -p 18701 -C 20 -V"
pair 18702 "rping -s -a $IP6_b -p 18702 -C 5" "rping -c -a $IP6_b -p 18702 -C 5 -V"
pair 18703 "rdma_server -p 18703" "rdma_client -s $IP_b -p 18703"
pair 18704 "ucmatose -b $IP_b -p 18704 -c 20 -C 20 -S 1024" "ucmatose -s $IP_b -p 18704 -c 20 -C 20 -S 1024"
pair 7174 "udaddy -b $IP_b -c 4 -C 10" "udaddy -s $IP_b -c 4 -C 10"
pair 18706 "ib_send_bw -R -d $DEV -p 18706 -F -n 200" "ib_send_bw -R -d $DEV -p 18706 -F -n 200 $IP_b"

# Loopback goes the same way.
on -t 60 a rping -s -a "$IP_a" -p 18707 -C 5 &
server=$!
listening a 18707
on -t 60 a rping -c -a "$IP_a" -p 18707 -C 5 -V
wait $server || fail "the server of a loopback failed"
# The kernel's own objects can be looked at.
on a rdma resource show qp -dd | found 'type GSI' || fail "there is no GSI queue pair"
