# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The kernel's own queue pairs work: connections are made by ib_cm and rdma_cm, whose datagrams go over QP1.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=300
. "$LAB_LIB"

pair b a 18701 "rping -s -a $IP_b -p 18701 -C 20 -v" "rping -c -a $IP_b -p 18701 -C 20 -V"
pair b a 18702 "rping -s -a $IP6_b -p 18702 -C 5" "rping -c -a $IP6_b -p 18702 -C 5 -V"
pair b a 18703 "rdma_server -p 18703" "rdma_client -s $IP_b -p 18703"
pair b a 18704 "ucmatose -b $IP_b -p 18704 -c 20 -C 20 -S 1024" "ucmatose -s $IP_b -p 18704 -c 20 -C 20 -S 1024"
pair b a 7174 "udaddy -b $IP_b -c 4 -C 10" "udaddy -s $IP_b -c 4 -C 10"

# What else librdmacm brings: connections one after the other, and sockets on top of them.
pair b a 18710 "ucmatose -b $IP6_b -p 18710" "ucmatose -s $IP6_b -p 18710"
pair b a 18711 "cmtime -b $IP_b -p 18711 -c 20" "cmtime -s $IP_b -p 18711 -c 20"
pair b a 18712 "rstream -b $IP_b -p 18712 -S 4096 -C 50 -T v" "rstream -s $IP_b -p 18712 -S 4096 -C 50 -T v"
pair b a 18713 "riostream -b $IP_b -p 18713 -S 4096 -C 50 -T v" "riostream -s $IP_b -p 18713 -S 4096 -C 50 -T v"
pair b a 18715 "rdma_xserver -p 18715 -c r" "rdma_xclient -s $IP_b -p 18715 -c r"

# A file. The server does not end by itself.
on -t 90 b rcopy -p 18716 >/dev/null &
server=$!
listening b 18716
on a sh -c 'head -c 3000000 /dev/urandom >/tmp/sent'
on -t 60 a rcopy /tmp/sent "$IP_b:/tmp/received" -p 18716 || fail "rcopy"
sum() { on "$1" sha256sum "$2" | cut -d ' ' -f 1; }
[ "$(sum a /tmp/sent)" = "$(sum b /tmp/received)" ] || fail "rcopy made another file of it"
pkill -P $server
on a rm /tmp/sent
on b rm /tmp/received

# Loopback goes the same way.
pair a a 18707 "rping -s -a $IP_a -p 18707 -C 5" "rping -c -a $IP_a -p 18707 -C 5 -V"
# The kernel's own objects can be looked at.
on a rdma resource show qp -dd | found 'type GSI' || fail "there is no GSI queue pair"
