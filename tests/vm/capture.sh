# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# What two VMs send each other can be captured on either fabric, and tshark dissects every packet of it.
# lab: fabric=local
# lab: fabric=roce
# lab: timeout=200
# lab: vrnicd capture = { file = "{lab}/capture.pcapng" }
. "$LAB_LIB"

file=$(dirname "$(lab config)")/capture.pcapng
perf a b ib_write_bw -s 9000 -n 20
perf a b ib_send_bw -s 100 -n 20
perf a b ib_read_bw -s 9000 -n 20
perf a b ib_atomic_bw -n 20 -A FETCH_AND_ADD
perf a b ibv_ud_pingpong -n 20

# What tshark takes payload for, by its looks.
guesses=(ethertype fcoib infiniband.eoib infiniband_sdp iser lnet nvme-rdma rpcordma smb_direct smc)

# dissect ARGUMENTS...: tshark of the file.
dissect() { tshark -n -r "$file" "${guesses[@]/#/--disable-protocol=}" "$@" 2>/dev/null; }

# fields FIELD: this field of each packet.
fields() { dissect -T fields -E occurrence=f -e "$1"; }

# The file is written behind the traffic.
opcodes=
for _ in $(seq 60); do
	opcodes=$(fields infiniband.bth.opcode | sort -n | uniq -c | awk '{ print $2 }' | tr '\n' ' ') || true
	case " $opcodes" in *" 100 "*) break ;; esac
	sleep 0.5
done
echo "opcodes: $opcodes"
for opcode in 4 6 8 12 13 15 17 18 20 100; do
	case " $opcodes" in *" $opcode "*) ;; *) fail "no packet with opcode $opcode" ;; esac
done
# Notes, warnings and errors; what stands below are our own comments.
complaints=$(dissect -Y '_ws.malformed || _ws.expert.severity >= 0x400000')
[ -z "$complaints" ] || fail "tshark complains: $complaints"
[ "$(fields frame.interface_name | sort -u | tr '\n' ' ')" = "a b " ] || fail "not the interfaces a and b"
named=$(fields frame.comment | grep -c '^a QP 0x[0-9a-f]* -> .*: RDMA WRITE First$') || fail "no comment names VM and QP"
echo "$named comments"
