# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# `vrnicctl judge` with Soft-RoCE (rxe) in VM b as the peer: the fault of each experiment fires, and the report says
# what is known about Soft-RoCE. Faults of the switch port hit Soft-RoCE's own packets.
# lab: fabric=roce
# lab: rxe=b
# lab: timeout=600
# Soft-RoCE frees packets while it holds a lock that its interrupts take; see interoperation.sh.
# lab: allow-kernel-report rxe_receiver
# lab: vrnicd faults = true
. "$LAB_LIB"

# The slower its VM is, the later Soft-RoCE acknowledges.
lab ready a >/dev/null
lab ready b >/dev/null
timeout=$(ack_timeout)
export timeout
traffic() {
	# shellcheck source=/dev/null
	. "$LAB_LIB"
	local ends=(b a)
	[ "$VRNIC_JUDGE_REQUESTER" = peer ] || ends=(a b)
	case $VRNIC_JUDGE_OPERATION in
	atomic) perf "${ends[@]}" ib_atomic_lat -n 40 -A FETCH_AND_ADD -u "$timeout" ;;
	*) perf "${ends[@]}" "ib_${VRNIC_JUDGE_OPERATION}_bw" -n 200 -s 16384 -u "$timeout" ;;
	esac
}
export -f traffic
vrnicctl judge run -d a -p "$IP_b" -t "$timeout" -o "$LAB_DIR/judge" -- bash -c traffic >"$LAB_DIR/report" ||
	fail "no report: $(tail -n 5 "$LAB_DIR/report")"
cat "$LAB_DIR/report"
# The packets for some lines of the report.
for experiment in peer-loses-write peer-gets-rnr-naks device-loses-write; do
	vrnicctl judge captures -p "$IP_b" -t "$timeout" --packets 2 "$LAB_DIR/judge/$experiment.pcapng" >"$LAB_DIR/packets"
	cat "$LAB_DIR/packets"
	found -E '^ +[0-9]+ .* ms (from|to) the peer .* PSN ' <"$LAB_DIR/packets" || fail "$experiment: no packets are listed"
done

# says EXPERIMENT WORDS: checks that the report of the experiment contains these words.
says() {
	sed -n "/^$1:/,/^[^ ]/p" "$LAB_DIR/report" | grep '^ ' | found -F "$2" || fail "$1: no \"$2\" in the report"
}
says peer-loses-write 'after a NAK for a sequence error: go-back-N'
says peer-loses-burst 'after a NAK for a sequence error: go-back-N'
says peer-loses-atomic-answers 'its ACK timer expires after'
says peer-loses-read-response 'after a later response showed that one is missing'
says peer-gets-cnps 'CNPs, it sends at'
says peer-gets-rnr-naks 'after an RNR NAK that asks for 640.00µs it waits'
says device-loses-write 'it reports a gap with a NAK after'
says device-loses-burst 'it reports a gap with a NAK after'
says device-repeats-atomics 'it answers a repeated atomic with the result that it kept'
says device-writes-marked 'it sends no CNP for'
if found VIOLATION <"$LAB_DIR/report"; then
	fail "Soft-RoCE did not do that before; check whether the report is right"
fi

# struck COUNTER CLIENT SERVER FAULT...: a fault of the switch port hits what Soft-RoCE sends or receives. Soft-RoCE
# counts it and recovers.
counted() { on b sh -c "rdma statistic show link $DEV_b/1 -j | jq -r '.[0].$1'"; }
struck() {
	local counter=$1 client=$2 server=$3 before
	shift 3
	before=$(counted "$counter")
	vrnicctl fault add -d port:b "$@" >/dev/null
	perf "$client" "$server" ib_write_bw -n 40 -s 16384 -u "$timeout" >/dev/null || fail "$*: Soft-RoCE does not recover"
	vrnicctl fault log -d port:b | found "port:b .* $1 .* write, [0-9]* bytes" || fail "$*: the fault did not fire"
	[ "$(counted "$counter")" -gt "$before" ] || fail "$*: Soft-RoCE did not notice"
	vrnicctl fault clear >/dev/null
}
struck completer_retry_err b a drop opcode=write nth=5
struck completer_retry_err b a corrupt-icrc opcode=write nth=5
struck duplicate_request a b duplicate dir=in opcode=write nth=3
! vrnicctl fault add -d port:b cqe-lost >"$LAB_DIR/refused" 2>&1 || fail "a port accepted a fault of devices"
found 'a fault of a device' <"$LAB_DIR/refused" || fail "the error message does not say why"

# The report from a capture file says the same as that from the run.
vrnicctl judge captures -p "$IP_b" -t "$timeout" "$LAB_DIR/judge/peer-loses-write.pcapng" >"$LAB_DIR/again"
diff <(sed -n '/^peer-loses-write:/,/^[^ ]/p' "$LAB_DIR/report" | grep '^ ') <(grep '^ ' "$LAB_DIR/again") ||
	fail "the capture shows something else"
