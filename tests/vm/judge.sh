# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# `vrnicctl judge` with Soft-RoCE (rxe) in VM b as the peer: the fault of each experiment strikes, and the report says
# what is known of Soft-RoCE.
# lab: fabric=roce
# lab: rxe=b
# lab: timeout=600
# lab: vrnicd faults = true
. "$LAB_LIB"

# Soft-RoCE acknowledges as late as its VM is slow.
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
	*) perf "${ends[@]}" "ib_${VRNIC_JUDGE_OPERATION}_bw" -n 40 -s 16384 -u "$timeout" ;;
	esac
}
export -f traffic
vrnicctl judge run -d a -p "$IP_b" -t "$timeout" -o "$LAB_DIR/judge" -- bash -c traffic >"$LAB_DIR/report" ||
	fail "no report: $(tail -n 5 "$LAB_DIR/report")"
cat "$LAB_DIR/report"

# says EXPERIMENT WORDS: the report of the experiment has these words.
says() {
	sed -n "/^$1:/,/^[^ ]/p" "$LAB_DIR/report" | grep '^ ' | found -F "$2" || fail "$1: no \"$2\" in the report"
}
says peer-loses-write 'after a NAK for a sequence error: go-back-N'
says peer-loses-burst 'after a NAK for a sequence error: go-back-N'
says peer-loses-atomic-answers 'its ACK timer expires after'
says peer-loses-read-response 'after a later response showed that one is missing'
says peer-gets-rnr-naks 'after an RNR NAK that asks for 640.00µs it waits'
says device-loses-write 'it tells of a gap with a NAK after'
says device-loses-burst 'it tells of a gap with a NAK after'
says device-repeats-atomics 'it answers a repeated atomic with the result that it kept'
says device-writes-marked 'it sends no CNP for'
if found VIOLATION <"$LAB_DIR/report"; then fail "Soft-RoCE did not do that before: is it true?"; fi

# What a file has of a capture is what the run said.
vrnicctl judge captures -p "$IP_b" -t "$timeout" "$LAB_DIR/judge/peer-loses-write.pcapng" >"$LAB_DIR/again"
diff <(sed -n '/^peer-loses-write:/,/^[^ ]/p' "$LAB_DIR/report" | grep '^ ') <(grep '^ ' "$LAB_DIR/again") ||
	fail "the capture says something else"
