# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Unmodified programs see the faults that faults-seen-by-programs.sh does not cover: faults of answers, remote memory,
# datagrams, events and on-demand pages, and of commands for which the driver waits in vain.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=600
. "$LAB_LIB"
. tests/vm/faults.bash

# Another fault makes the responder send the answer that is lost.
also="b nak-sequence type=rc nth=20"
ping_pong "lost-nak type=rc" b ok
also="b rnr-nak type=rc nth=10"
ping_pong "lost-rnr-nak type=rc" b ok
also=

# Remote memory. The program gets the error; the program that owns the memory does not.
while IFS='|' read -r fault device expected command; do
	transfer "$fault" "$device" "$expected" $command < /dev/null
done <<'TABLE'
wrong-rkey type=rc nth=5|a|10|ib_write_bw -n 100 -s 20000
wrong-address type=rc nth=5|a|10|ib_write_bw -n 100 -s 20000
wrong-length type=rc nth=5|a|9|ib_write_bw -n 100 -s 20000
key-revoked type=rc nth=5|b|10|ib_write_bw -n 100 -s 20000
wrong-rkey type=rc nth=5|a|10|ib_read_bw -n 100 -s 20000
wrong-length type=rc nth=5|a|7|ib_read_bw -n 100 -s 20000
wrong-field type=rc field=rkey|a|10|ib_atomic_bw -n 100
wrong-field type=rc field=address value=4|a|10|ib_write_bw -n 100 -s 20000
wrong-field type=rc field=ack-request value=0|a|ok|ib_write_lat -n 100
lost-atomic-ack type=rc nth=5|b|ok|ib_atomic_bw -n 100
duplicate-atomic type=rc nth=5|a|ok|ib_atomic_bw -n 100
TABLE

# The reader asks again for what a lost packet of the response had, and its port counts that.
repeated() { on a sh -c "rdma statistic show link $DEV_a/1 -j | jq -r '.[0].retransmitted_pkts'"; }
before=$(repeated)
transfer "lost-read-response type=rc nth=5" b ok ib_read_bw -n 100 -s 20000
[ "$(repeated)" -gt "$before" ] || fail "the reader's port counts no retransmission after $before"

# Whether a fault with a chance fires depends only on its seed and on the number of the match. So runs with the same
# seed agree on each number that both reach, whatever their traffic is.
chance() { echo "duplicate type=rc dir=out chance=20% seed=$1 count=all"; }
positions() {
	vrnicctl -j fault log -d a | python3 -c 'import json, sys
log = json.load(sys.stdin)
print(*[one["position"] for one in log if one["id"] == log[-1]["id"]])'
}
ping_pong "$(chance 7)" a ok
first=$(positions)
ping_pong "$(chance 7)" a ok
second=$(positions)
transfer "$(chance 7)" a ok ib_write_bw -n 100 -s 20000
third=$(positions)
ping_pong "$(chance 8)" a ok
python3 - "$first" "$second" "$third" "$(positions)" <<'EOF' || fail "the seed and the number of the match do not decide"
import sys
runs = [[int(number) for number in run.split()] for run in sys.argv[1:]]
print(*runs, sep="\n")
common = min(run[-1] for run in runs)
first, *same, other = [[number for number in run if number <= common] for run in runs]
sys.exit(len(first) < 5 or any(run != first for run in same) or other == first)
EOF

# A datagram with a wrong key does not arrive, and the port counts it.
program=ibv_ud_pingpong arguments="-n 40 -s 1000"
violations() { on b ibv_devinfo -v -d "$DEV_b" | sed -n 's/.*qkey_viol_cntr:[^0-9]*\(0x[0-9a-f]*\|[0-9]*\).*/\1/p'; }
before=$(violations)
ping_pong "wrong-qkey type=ud nth=5" a hangs
[ "$(violations)" != "$before" ] || fail "no port counts the Q_Key violation: $before"
program=ibv_rc_pingpong arguments="-n 40 -s 6000 -m 1024"

# rdma-core's own test checks the immediate data that it receives.
immediate() {
	on -t 200 a python3 /vrnic/tests/pyverbs/inventory.py --device "$DEV_a" \
		--test tests.test_qpex.QpExTestCase.test_qp_ex_rc_send_imm > "$LAB_DIR/client" 2>&1 || fail "$(cat "$LAB_DIR/client")"
	cut -f 2 "$LAB_DIR/client"
}
: > "$LAB_DIR/server"
[ "$(immediate)" = ok ] || fail "the test fails even without a fault: $(cat "$LAB_DIR/client")"
arm a "wrong-immediate type=rc" >/dev/null
judge "wrong-immediate type=rc" a FAIL "$(immediate) "

# Programs whose doorbells are lost, or whose memory has no pages until it is touched.
ping_pong "doorbell-lost type=rc count=all" a hangs
flags=-o
ping_pong "page-fault-slow delay=200ms" a ok
ping_pong "page-fault-lost count=all" a hangs/12
flags=

# An event that is lost or late, and one that Linux does not pass on because it raises it itself. The next event that
# the device raises arrives.
watching ibv_asyncwatch -d "$DEV_a"
while IFS='|' read -r fault raised expected; do
	told_before=$(wc -l < "$LAB_DIR/events")
	vrnicctl fault clear >/dev/null
	arm a "$fault" >/dev/null
	[ -z "$raised" ] || arm a "$raised" >/dev/null
	arm a "event-sm-change after=100ms" >/dev/null
	within 10 told "${expected##* }" || true
	judge "$fault" a "${expected// /-}" "$(events | tr '\n' ' ' | sed 's/ $//; s/ /-/g') "
done <<'TABLE'
event-lost event=lid-change|event-lid-change|13
event-late event=lid-change delay=1s|event-lid-change|13 11
event-gid-change||13
TABLE
unwatch
watch_events python3 /vrnic/tests/pyverbs/events.py "$DEV_a" <<'TABLE'
14 srq-fatal
TABLE

# Commands. Some faults make the device fail: its programs are told, and it starts again.
costs() {
	watching ibv_asyncwatch -d "$DEV_a"
	ping_pong "$1" a "$2"
	within 20 told 8 || fail "$1: no program gets an error: $(cat "$LAB_DIR/events")"
	unwatch
	active a
}
# If a buffer is returned twice, Linux considers the queue broken. That verb has succeeded by then; the next one fails.
words="Failed to modify QP to INIT"
costs "command-answered-twice code=create-qp" told
# The memory of a queue pair that cannot be destroyed may remain in use forever.
costs destroy-fails ok
# The driver waits for half a minute, in both VMs at the same time.
unanswered() {
	on -t 120 "$1" timeout 100 ibv_rc_pingpong -d "$DEV" -g "$GID_INDEX" > "$LAB_DIR/$2" 2>&1 &&
		fail "VM $1: the program continues"
	grep -q "Couldn't create CQ" "$LAB_DIR/$2" || fail "VM $1: $(cat "$LAB_DIR/$2")"
}
watching ibv_asyncwatch -d "$DEV_a"
arm a "command-never code=create-cq" >/dev/null
arm b "command-too-late code=create-cq" >/dev/null
at_once 'unanswered a client' 'unanswered b server'
within 20 told 8 || fail "a command has no reply, and no program gets an error: $(cat "$LAB_DIR/events")"
unwatch
judge "command-never code=create-cq" a refused "refused "
judge "command-too-late code=create-cq" b refused "refused "
active a
active b
all_seen
