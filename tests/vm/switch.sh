#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The VMs' network goes through vrnicd's switch: large frames, many frames, a VM that goes and comes back, a vrnicd that
# does.
# lab: timeout=300
# lab: switch
. "$LAB_LIB"

[ "$(on a cat "/sys/class/net/$NETDEV/mtu")" = 9000 ] || fail "the MTU is not that of the switch"
on a ping -c 3 -W 5 "$IP_b" >/dev/null || fail "no IPv4"
on b ping -c 3 -W 5 "$IP6_a" >/dev/null || fail "no IPv6"
on a ping -c 3 -W 5 -M do -s 8972 "$IP_b" >/dev/null || fail "no frames of 9000 bytes"
on -t 60 a ping -q -A -c 5000 -s 1000 "$IP_b" | found ' 0% packet loss' || fail "packets are lost"

# Data over TCP arrive complete.
on -t 60 b python3 -c "
import hashlib, socket
server = socket.create_server(('$IP_b', 7000))
peer = server.accept()[0]
total = hashlib.sha256()
while data := peer.recv(1 << 16): total.update(data)
print(total.hexdigest())" >"$LAB_DIR/received" &
server=$!
listening b 7000
on -t 60 a python3 -c "
import hashlib, random, socket
data = random.Random(7).randbytes(20 << 20)
peer = socket.create_connection(('$IP_b', 7000))
peer.sendall(data)
print(hashlib.sha256(data).hexdigest())" >"$LAB_DIR/sent"
wait $server || fail "the receiver failed"
cmp "$LAB_DIR/sent" "$LAB_DIR/received" || fail "the data was damaged in transit"

lab boot b
on a ping -c 3 -W 5 "$IP_b" >/dev/null || fail "VM b is not back"
