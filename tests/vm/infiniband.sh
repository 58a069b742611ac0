# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Unmodified software works on an InfiniBand subnet: OpenSM in VM a manages it, infiniband-diags show it, programs
# connect by LIDs and by GIDs, and IPoIB carries IP in datagrams and connections. rdma_cm finds its paths by IPoIB. A
# capture has the packets of all of this as they are on a cable, and tshark dissects them.
# lab: needs CONFIG_INFINIBAND_IPOIB=m
# lab: fabric=infiniband
# lab: timeout=400
# Counters have to be those of an idle subnet.
# lab: fresh
. "$LAB_LIB"

# attribute VM NAME: prints an attribute of the port as ibstat shows it.
attribute() { on "$1" ibstat $DEV 1 | sed -n "s/^ *$2: //p"; }
[ "$(attribute b 'Link layer')" = InfiniBand ] || fail "the link layer is not InfiniBand"
[ "$(attribute b State)" = Active ] || fail "the port of VM b is not active"
on b cat /sys/class/infiniband/$DEV/node_type | found -x '1: CA' || fail "VM b has no channel adapter"
lid_a=$(attribute a 'Base lid') lid_b=$(attribute b 'Base lid')
[ "$lid_a" -gt 0 ] && [ "$lid_b" -gt 0 ] && [ "$lid_a" != "$lid_b" ] || fail "the LIDs are $lid_a and $lid_b"
[ "$(attribute b 'SM lid')" = "$lid_a" ] || fail "the subnet manager is not that of VM a"
# One switch connects the two HCAs.
on b ibnetdiscover >"$LAB_DIR/subnet"
grep -c '^Ca' "$LAB_DIR/subnet" | found -x 2 ||
	fail "ibnetdiscover does not find the expected HCAs: $(cat "$LAB_DIR/subnet")"
grep -c '^Switch' "$LAB_DIR/subnet" | found -x 1 || fail "ibnetdiscover does not find the expected number of switches"
on b sminfo | found 'SMINFO_MASTER' || fail "there is no master subnet manager"
on b saquery NR | found 'NodeRecord dump' || fail "the subnet administration has no nodes"
on b smpquery nodedesc "$lid_a" | found 'Node Description' || fail "VM a does not answer"
on b ibtracert "$lid_b" "$lid_a" | found 'To ca' || fail "there is no route"
on b ibqueryerrors >"$LAB_DIR/errors" || true
found ' 0 bad nodes found' <"$LAB_DIR/errors" || fail "ports have errors: $(cat "$LAB_DIR/errors")"

capture=$LAB_DIR/subnet.pcapng
vrnicctl capture start -d b "$capture"
# run PROGRAM...: runs the server in VM a and the client in VM b.
port=18600
run() {
	port=$((port + 1))
	pair a b $port "$* -d $DEV -p $port" "$* -d $DEV -p $port $IP_a"
}
# sent: prints the number of words that the port of VM b has sent.
sent() { on b sh -c "perfquery -x $lid_b 1 | sed -n 's/^PortXmitData:\.*//p'"; }
before=$(sent)
for program in "ibv_rc_pingpong -c" "ibv_uc_pingpong -c" "ibv_ud_pingpong -s 1024 -c" "ibv_srq_pingpong -c"; do
	run "$program -n 100"
	# With a global route header.
	run "$program -n 100 -g 0"
done
for program in ib_write_bw ib_read_bw ib_send_bw "ib_send_bw -c UD -s 1024" ib_atomic_bw; do
	run "$program -n 100"
done
[ "$(sent)" -gt "$before" ] || fail "the port has counted nothing"
on b smpquery nodedesc "$lid_a" >/dev/null
vrnicctl capture stop
# Wireshark has no dissector for the link type of InfiniBand. editcap gives the packets one for users, which it can map.
editcap -T user0 "$capture" "$capture.user" 2>/dev/null
# dissect ARGUMENTS...: runs tshark on the capture, without the protocols that it would take payload for.
dissect() {
	tshark -n -r "$capture.user" -o 'uat:user_dlts:"User 0 (DLT=147)","infiniband","0","","0",""' --disable-protocol ethertype \
		--disable-protocol infiniband.eoib --disable-protocol infiniband_sdp --disable-protocol iser --disable-protocol lnet \
		--disable-protocol nvme-rdma --disable-protocol rpcordma --disable-protocol smb_direct "$@" 2>"$LAB_DIR/tshark" ||
		fail "tshark: $(cat "$LAB_DIR/tshark")"
}
said=$(dissect -Y '_ws.malformed || _ws.expert.severity >= 0x400000 || !infiniband')
[ -z "$said" ] || fail "tshark complains: $(head -n 5 <<<"$said")"
# seen WHAT FILTER: checks that the capture has such packets from VM b to VM a.
seen() {
	dissect -Y "infiniband.lrh.slid == $lid_b && infiniband.lrh.dlid == $lid_a && $2" | found . || fail "no $1 in the capture"
}
seen "RC packet without a GRH" 'infiniband.bth.opcode == 0 && !infiniband.grh'
seen "RC packet with a GRH" 'infiniband.bth.opcode == 0 && infiniband.grh'
seen "UC packet" 'infiniband.bth.opcode == 0x20'
seen "datagram" 'infiniband.bth.opcode == 0x64 && infiniband.deth.srcqp > 1'
seen "RDMA write" 'infiniband.bth.opcode == 6 && infiniband.variant.crc && infiniband.invariant.crc'
seen "atomic operation" 'infiniband.bth.opcode == 0x14'
seen "subnet management datagram" 'infiniband.mad.mgmtclass == 1 && infiniband.lrh.vl == 15'

# The static rate of a path limits how fast a connection sends. perftest prints Gbit/s in its fourth column.
limited="ib_write_bw -d $DEV -p 18650 -s 65536 -n 2000 --report_gbits"
limited="$limited --rate_limit=2.5 --rate_units=g --rate_limit_type=HW"
# perftest gives up if it cannot find out how fast a busy processor is. That says nothing about the device.
ended=false
for try in 1 2 3; do
	on -t 90 a $limited >"$LAB_DIR/server" 2>&1 &
	job=$!
	listening a 18650
	if on -t 60 b $limited "$IP_a" >"$LAB_DIR/limited" 2>&1 && wait $job; then
		ended=true
		break
	fi
	wait $job || :
	cat "$LAB_DIR/server" "$LAB_DIR/limited" | found "Can't produce a report" || break
done
$ended || fail "perftest with a static rate: $(cat "$LAB_DIR/server" "$LAB_DIR/limited")"
awk '$1 == 65536 { met = $4 > 0 && $4 < 2.55 } END { exit !met }' "$LAB_DIR/limited" ||
	fail "a static rate of 2.5 Gbit/s is exceeded: $(cat "$LAB_DIR/limited")"

# IP over InfiniBand.
for vm in a b; do
	address=IP_$vm
	on "$vm" sh -ec "modprobe ib_ipoib; ip link set ib0 up; ip addr add 10.99.0.${!address##*.}/24 dev ib0"
done
there=10.99.0.${IP_a##*.}
within 30 on b ping -c 1 -W 2 "$there" >/dev/null || fail "IPoIB carries no traffic"
on b ping -c 5 -i 0.2 -W 5 "$there" | found ' 0% packet loss' || fail "IPoIB loses packets"
pair a b 18700 "rping -s -a $there -C 10 -p 18700" "rping -c -a $there -C 10 -V -p 18700"
pair a b 18701 "ucmatose -b $there -p 18701" "ucmatose -s $there -p 18701"
# Datagrams of rsockets. The server has only a UDP port, and does not end by itself.
on -t 90 a udpong -b "$there" -p 18702 -S 1000 -C 100 >/dev/null &
job=$!
within 40 on a sh -c 'ss -Hlun sport = :18702 | grep -q .' || fail "the server of udpong has no port"
on -t 60 b udpong -s "$there" -p 18702 -S 1000 -C 100 || fail "the client of udpong"
on a pkill -x udpong
wait $job || :

# bring MODE MIB: transfers data from b to a by TCP over IPoIB in this mode.
bring() {
	local vm listener
	for vm in a b; do
		on $vm sh -ec "echo $1 >/sys/class/net/ib0/mode; [ \$(cat /sys/class/net/ib0/mode) = $1 ]" || fail "IPoIB has no mode $1"
	done
	within 30 on b ping -c 1 -W 2 "$there" >/dev/null || fail "IPoIB carries no traffic in mode $1"
	port=$((port + 1))
	on -t 120 a python3 -c "
import hashlib, socket
server = socket.create_server(('$there', $port))
peer = server.accept()[0]
total = hashlib.sha256()
while data := peer.recv(1 << 16): total.update(data)
print(total.hexdigest())" >"$LAB_DIR/received" &
	listener=$!
	listening a $port
	on -t 120 b python3 -c "
import hashlib, random, socket
data = random.Random(7).randbytes($2 << 20)
peer = socket.create_connection(('$there', $port))
peer.sendall(data)
print(hashlib.sha256(data).hexdigest())" >"$LAB_DIR/sent"
	wait $listener || fail "the receiver in mode $1 failed"
	cmp "$LAB_DIR/sent" "$LAB_DIR/received" || fail "the data was damaged in transit in mode $1"
}
# The HCA fills in and checks checksums in datagrams. Then the receiver's kernel checks those of the sender's HCA, and
# at last the receiver's HCA those of the sender's kernel.
for vm in a b; do
	on $vm ethtool -k ib0 >"$LAB_DIR/offloads"
	found -x 'rx-checksumming: on' <"$LAB_DIR/offloads" && found 'tx-checksum-ipv4: on' <"$LAB_DIR/offloads" ||
		fail "IPoIB does not leave checksums to the HCA of $vm: $(cat "$LAB_DIR/offloads")"
	found 'tx-tcp-segmentation: on' <"$LAB_DIR/offloads" ||
		fail "IPoIB does not leave segmentation to the HCA of $vm: $(cat "$LAB_DIR/offloads")"
done
# saved: prints how many more packets than requests b has sent: those that its HCA made.
saved() {
	vrnicctl --json counters -a -d b | python3 -c "
import json, sys
counters = {one['counter']: one['value'] for one in json.load(sys.stdin)}
print(counters['tx_pkts'] - counters['send_requests'])"
}
before=$(saved)
bring datagram 64
divided=$(($(saved) - before))
# They are many thousand packets, each of which is a request without segmentation.
[ $divided -gt 8000 ] || fail "the HCA made only $divided packets itself"
# The kernel divides them.
on b ethtool -K ib0 tso off
bring datagram 4
on b ethtool -K ib0 tso on
on a ethtool -K ib0 rx off
bring datagram 4
on a ethtool -K ib0 rx on
on b ethtool -K ib0 tx off
bring datagram 4
on b ethtool -K ib0 tx on
bring connected 64
# Connections carry packets that are too long for datagrams.
for vm in a b; do on $vm ip link set ib0 mtu 65520; done
on b ping -c 3 -W 5 -M do -s 60000 "$there" | found ' 0% packet loss' || fail "connected mode carries no large packets"

for vm in a b; do on "$vm" modprobe -r ib_ipoib; done
