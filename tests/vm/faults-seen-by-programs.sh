# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Unmodified programs see faults as the table of faults says: completions with each status, retransmissions that go
# unnoticed, asynchronous events, verbs that fail. The tests of vrnicd check that faults must be enabled in the
# configuration.
# lab: fabric=roce
# lab: fabric=local
# lab: one-fabric
# lab: timeout=900
. "$LAB_LIB"

. tests/vm/faults.bash

ping_pongs() {
	local fault device expected
	while IFS='|' read -r fault device expected; do
		ping_pong "$fault" "$device" "$expected" < /dev/null
	done
}
ping_pongs <<'TABLE'
drop type=rc nth=20|a|ok
lost-ack type=rc nth=5|b|ok
delay type=rc nth=20|a|ok
duplicate type=rc count=all|a|ok
ghost type=rc delay=10ms count=50|a|ok
corrupt-icrc type=rc nth=20|a|ok
wrong-psn type=rc nth=20|a|ok
answers-for-another type=rc value=99999|b|ok
wrong-credits type=rc count=all|b|ok
ecn-mark type=rc|a|ok
cnp-storm type=rc|a|ok
partition type=rc after=1ms|a|12
no-answer type=rc|b|12
unknown-opcode type=rc nth=20|a|9
nak-sequence type=rc nth=20|b|ok
nak-remote-access type=rc nth=20|b|10
rnr-nak type=rc nth=10 count=3|b|ok
rnr-storm type=rc|b|hangs
cqe-loc-len-err type=rc nth=5 vendor=85|a|1
cqe-loc-prot-err type=rc nth=5|a|4
cqe-rem-access-err type=rc nth=5|a|10
cqe-general-err type=rc nth=5|a|21
cqe-late type=rc nth=5|a|ok
cqe-lost type=rc nth=5|a|hangs
cq-overrun type=rc nth=5|a|hangs
+stuck for=100ms|a|ok
+stuck|b|12/hangs
+slow for=300ms delay=100us|a|ok
+qp-fatal type=rc|b|5
+cq-fatal|b|12/hangs
+link-flap for=200ms|a|ok
+gid-vanishes|a|12/hangs
TABLE
! thorough || ping_pongs <<'TABLE'
lost-request type=rc nth=20|a|ok
burst-loss type=rc nth=20 chance=1 burst=4 count=4|a|ok
reorder type=rc nth=20|a|ok
truncated-frame type=rc nth=20|a|ok
corrupt-payload type=rc nth=20|a|ok
wrong-qp type=rc nth=20 value=99999|a|ok
wrong-source type=rc nth=20|a|ok
wrong-destination type=rc nth=20|a|ok
wrong-version type=rc nth=20|a|ok
wrong-pad type=rc nth=5 opcode=ack|b|ok
wrong-pkey type=rc nth=20|a|ok
wrong-msn type=rc count=all|b|ok
slow-link type=rc rate=20000000|a|ok
mute type=rc|a|12
deaf type=rc|a|12
mtu-black-hole type=rc size=1000..65536|a|12
nak-invalid-request type=rc nth=20|b|9
nak-remote-operation type=rc nth=20|b|11
timer-late type=rc delay=10ms|a|ok
cqe-loc-qp-op-err type=rc nth=5|a|2
cqe-wr-flush-err type=rc nth=5|a|5
cqe-mw-bind-err type=rc nth=5|a|6
cqe-bad-resp-err type=rc nth=5|a|7
cqe-loc-access-err type=rc nth=5|a|8
cqe-rem-inv-req-err type=rc nth=5|a|9
cqe-rem-op-err type=rc nth=5|a|11
cqe-retry-exc-err type=rc nth=5|a|12
cqe-rnr-retry-exc-err type=rc nth=5|a|13
cqe-rem-abort-err type=rc nth=5|a|16
cqe-fatal-err type=rc nth=5|a|19
cqe-resp-timeout-err type=rc nth=5|a|20
doorbell-late type=rc delay=50ms|a|ok
+qp-error type=rc|b|5
+link-down|a|12
TABLE

# A local segment is the whole message, which arrives truncated. On a wire, only the last packet may be short.
if [ "$FABRIC" = roce ]; then truncated=9; else truncated=ok; fi
ping_pong "truncate type=rc nth=20 size=1024..65536 bytes=100" a $truncated
active a

# Programs that sleep until a completion arrives.
flags=-e
ping_pong "cq-event-late nth=5 delay=300ms" a ok
ping_pong "cq-event-spurious type=rc nth=5" a ok
ping_pong "cq-event-lost nth=5" a hangs
flags=

# Asynchronous events, by the names that a program prints.
watch_events ibv_asyncwatch -d "$DEV_a" <<'TABLE'
10 event-port-err
9 event-port-active
11 event-lid-change
12 event-pkey-change
13 event-sm-change
17 event-client-reregister
10 link-flap for=200ms
TABLE
active a
# Events of the objects of a program.
watch_events python3 /vrnic/tests/pyverbs/events.py "$DEV_a" <<'TABLE'
0 event-cq-err
1 event-qp-fatal
2 event-qp-req-err
3 event-qp-access-err
4 event-comm-est
5 event-sq-drained
6 event-path-mig
7 event-path-mig-err
14 event-srq-err
15 event-srq-limit
16 event-last-wqe
TABLE

# The clock and the timestamps jump ahead, and back when the fault ends.
: > "$LAB_DIR/client"
on -t 60 a timeout 50 python3 /vrnic/tests/pyverbs/clock.py "$DEV_a" > "$LAB_DIR/client" 2>&1 &
watcher=$!
shows() { tail -n 1 "$LAB_DIR/client" | found -x "$1"; }
within 60 shows '0 0' || fail "the clock cannot be read: $(cat "$LAB_DIR/client")"
vrnicctl fault add -d a clock-jump delay=7200s >/dev/null
within 10 shows '2 2' || true
judge "clock-jump delay=7200s" a '2 2' "$(tail -n 1 "$LAB_DIR/client") "
within 10 shows '0 0' || fail "the clock does not jump back: $(cat "$LAB_DIR/client")"
on a pkill -x python3
wait $watcher || true

# hit PLACE: runs two programs in VM a. A fault hits the one that PLACE selects, and the other is not affected.
on a sh -c 'cp "$(command -v ibv_rc_pingpong)" /tmp/victim'
hit() {
	local place=$1 program port=18515 clients=() servers=() status
	on a rm -f /tmp/go /tmp/pid
	for program in /tmp/victim ibv_rc_pingpong; do
		port=$((port + 1))
		on -t 60 b ibv_rc_pingpong -d "$DEV_b" -g "$GID_INDEX" -p $port > "$LAB_DIR/server" 2>&1 &
		servers+=($!)
		listening b $port
		on -t 60 a sh -c "echo \$\$ > /tmp/pid; until [ -e /tmp/go ]; do sleep 0.05; done
			exec $program -d $DEV_a -g $GID_INDEX -p $port $IP_b" > "$LAB_DIR/$(basename $program)" 2>&1 &
		clients+=($!)
		[ $program = ibv_rc_pingpong ] || within 20 on a test -s /tmp/pid
		[ "$place" != pid ] || place=pid=$(on a cat /tmp/pid)
	done
	vrnicctl fault add -d a cqe-general-err type=rc nth=5 $place >/dev/null
	on a touch /tmp/go
	wait "${clients[0]}" && fail "$place: the program continues"
	wait "${clients[1]}" || fail "$place: the fault hit the other program: $(cat "$LAB_DIR/ibv_rc_pingpong")"
	on b pkill -x ibv_rc_pingpong || true
	wait "${servers[@]}" || true
	status=$(sed -n 's/.*Failed status .*(\([0-9]*\)) for wr_id.*/\1/p' "$LAB_DIR/victim")
	cp "$LAB_DIR/victim" "$LAB_DIR/client"
	judge "cqe-general-err $place" a 21 "$status "
}
hit process=victim
hit pid

# Verbs that fail, with the errno that the program reports.
refuse() {
	local fault=$1 text=$2 outcome=unseen
	vrnicctl fault clear >/dev/null
	vrnicctl fault add -d a $fault >/dev/null
	on -t 30 a timeout 10 ibv_rc_pingpong -d "$DEV_a" -g "$GID_INDEX" > "$LAB_DIR/client" 2>&1 &&
		fail "$fault: the program continues"
	: > "$LAB_DIR/server"
	grep -q "$text" "$LAB_DIR/client" && outcome=refused
	judge "$fault" a refused "$outcome"
}
refuse no-memory "Couldn't register MR"
refuse "command-fails code=create-cq" "Couldn't create CQ"
refuse "command-fails code=create-pd status=not-permitted" "Couldn't allocate PD"
refuse "limit-lowered code=create-qp limit=1" "Couldn't create QP"
refuse "command-fails code=modify-qp status=bad-state" "Failed to modify QP to INIT"
refuse "command-fails code=create-context status=busy" "Couldn't get context"

# What the port reports.
says() {
	local fault=$1 text=$2 outcome=unseen
	shift 2
	vrnicctl fault add -d a $fault >/dev/null
	on a "$@" > "$LAB_DIR/client" 2>&1 || fail "$*: $(cat "$LAB_DIR/client")"
	: > "$LAB_DIR/server"
	grep -q "$text" "$LAB_DIR/client" && outcome=seen
	judge "$fault" a seen "$outcome"
}
says speed-change 'active_speed:.*2.5 Gbps' ibv_devinfo -v -d "$DEV_a"

# Slow commands are only slow. Afterwards, everything works.
ping_pong "command-slow code=create-qp delay=1s" a ok
ping_pong "mtu-change mtu=2048" a ok
vrnicctl fault log -d a | tail -n 3
vrnicctl explain -d a -n 400 | found 'fault [0-9]+ \([a-z-]+\) fired' -E || fail "explain does not show faults"
all_seen
