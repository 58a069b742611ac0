#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# On both fabrics, vrnicctl captures the packets between two VMs while vrnicd runs: all packets, or those of one queue
# pair. tshark dissects every packet.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=400
. "$LAB_LIB"

# Protocols that tshark guesses from payload. They are disabled.
guesses=(ethertype fcoib infiniband.eoib infiniband_sdp iser lnet nvme-rdma rpcordma smb_direct smc)

# dissect FILE ARGUMENTS...: runs tshark on a file.
dissect() {
	tshark -n -r "$1" "${guesses[@]/#/--disable-protocol=}" "${@:2}" 2>"$LAB_DIR/tshark" ||
		fail "tshark: $(cat "$LAB_DIR/tshark")"
}

# fields FILE FIELD: prints this field of each packet.
fields() { dissect "$1" -T fields -E occurrence=f -e "$2"; }

# ended ID: waits for the end of a capture, and prints why it ended.
ended() {
	local why=
	for _ in $(seq 600); do
		why=$(vrnicctl --json capture list | python3 -c "
import json, sys
print(next(one['ended'] or '' for one in json.load(sys.stdin) if one['id'] == int(sys.argv[1])))" "$1")
		[ -z "$why" ] || break
		sleep 0.1
	done
	echo "$why"
}

# start ARGUMENTS...: starts a capture and prints its number.
start() { vrnicctl --json capture start "$@" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])'; }

all=$LAB_DIR/all.pcapng
id=$(start "$all")
perf a b ib_write_bw -s 9000 -n 20
perf a b ib_send_bw -s 100 -n 20
perf a b ib_read_bw -s 9000 -n 20
perf a b ib_atomic_bw -n 20 -A FETCH_AND_ADD
perf a b ibv_ud_pingpong -n 20
vrnicctl capture list
vrnicctl capture stop "$id" | found ' stopped ' || fail "the capture does not end"

opcodes=$(fields "$all" infiniband.bth.opcode | sort -n | uniq -c | awk '{ print $2 }' | tr '\n' ' ')
echo "opcodes: $opcodes"
for opcode in 4 6 8 12 13 15 17 18 20 100; do
	case " $opcodes" in *" $opcode "*) ;; *) fail "no packet with opcode $opcode" ;; esac
done
# Expert notes, warnings and errors. What is below is our own comments.
complaints=$(dissect "$all" -Y '_ws.malformed || _ws.expert.severity >= 0x400000')
[ -z "$complaints" ] || fail "tshark complains: $complaints"
[ "$(fields "$all" frame.interface_name | sort -u | tr '\n' ' ')" = "a b " ] ||
	fail "the capture does not have the interfaces a and b"
named=$(fields "$all" frame.comment | grep -c '^a QP 0x[0-9a-f]* -> .*: RDMA WRITE First$') ||
	fail "no packet comment names the VM and the QP"
echo "$named comments"

# Captures one queue pair while several are busy.
on -t 150 a vrnic-stress --device "$DEV" --gid "$GID_INDEX" --seconds $((60 * LAB_SLOWNESS)) --qps 3 >/dev/null 2>&1 &
busy=$!
qpn=
for _ in $(seq 600); do
	qpn=$(vrnicctl --json qps -d a | python3 -c "
import json, sys
busy = [qp['qpn'] for qp in json.load(sys.stdin) if qp['kind'] == 'RC' and qp['state'] == 'RTS']
print(busy[1] if len(busy) >= 3 else '')")
	[ -z "$qpn" ] || break
	sleep 0.1
done
[ -n "$qpn" ] || fail "no queue pairs"
one=$LAB_DIR/one.pcapng
id=$(start -d a -q "$qpn" -c 50 "$one")
[ "$(ended "$id")" = full ] || fail "the capture of a queue pair did not get its packets"
[ "$(fields "$one" frame.number | wc -l)" = 50 ] || fail "the capture does not have the requested number of packets"
comments=$(fields "$one" frame.comment)
others=$(grep -vc "^a QP $(printf '0x%x' "$qpn") \(->\|<-\) " <<<"$comments") || true
[ "$others" = 0 ] || fail "$others packets are of other queue pairs"

# A file that accepts no data stops its capture and nothing else.
id=$(start /dev/full)
ended "$id" | found 'No space left' || fail "a full disk does not end a capture"
id=$(start -b 100000 "$LAB_DIR/bounded.pcapng")
[ "$(ended "$id")" = full ] || fail "the capture with a size limit does not end"
[ "$(stat -c %s "$LAB_DIR/bounded.pcapng")" -le 100000 ] || fail "the capture file exceeds the size limit"
vrnicctl capture start - | head -c 4096 >"$LAB_DIR/piped.pcapng"
[ "$(stat -c %s "$LAB_DIR/piped.pcapng")" = 4096 ] || fail "no packets came through a pipe"
if vrnicctl capture start -d nobody "$LAB_DIR/none.pcapng" 2>/dev/null; then
	fail "a capture of a device that does not exist was accepted"
fi
on a pkill -x vrnic-stress || true
wait $busy || true

# If the switch carries the VMs' networks, it also captures their other frames.
if [ "$FABRIC" = roce ]; then
	id=$(start --switch "$LAB_DIR/switch.pcapng")
	perf a b ib_write_bw -s 9000 -n 5
	on a ping -c 2 -W 5 "$IP_b" >/dev/null || fail "no IPv4"
	vrnicctl capture stop "$id"
	[ -n "$(dissect "$LAB_DIR/switch.pcapng" -Y 'icmp && frame.interface_name == "switch port a"')" ] || fail "no ping at the switch"
	[ -n "$(dissect "$LAB_DIR/switch.pcapng" -Y 'infiniband && frame.interface_name == "a"')" ] || fail "no RoCE at the switch"
fi
vrnicctl capture list
