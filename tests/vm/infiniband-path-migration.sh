# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A connection between two VMs migrates to its alternate path and back: when its owner says so, and when the path in use
# loses packets until the retries are used up. The other end follows. Each end is told what the other did, all data
# arrive, and an end that migrates to a path that the other does not have is noticed. The paths differ in their headers
# or, when OpenSM has given each port two LIDs, in their LIDs.
# lab: fabric=infiniband
# lab: timeout=400
# lab: fresh
# Without probes, a request is sent as often as its retries say.
# lab: vrnicd-device recovery = "go-back-n"
# lab: vrnicd faults = true
. "$LAB_LIB"

attribute() { on "$1" cat "/sys/class/infiniband/$DEV/ports/1/$2"; }
# migrations PORT: a connection migrates several times, once because packets are lost.
runs=0
migrations() {
	local server client
	on -t 200 a vrnic-migrate --device "$DEV" --port "$1" >"$LAB_DIR/server" 2>&1 &
	server=$!
	listening a "$1"
	on -t 200 b vrnic-migrate --device "$DEV" --port "$1" "$IP_a" >"$LAB_DIR/client" 2>&1 &
	client=$!
	# A request is lost as often as it is sent on this path.
	within 60 grep -qx armed "$LAB_DIR/client" ||
		fail "the connection is not armed: $(cat "$LAB_DIR/client" "$LAB_DIR/server")"
	vrnicctl fault add -d b drop type=rc dir=out opcode=write count=3 >/dev/null
	wait $client || fail "the client: $(cat "$LAB_DIR/client")"
	wait $server || fail "the server: $(cat "$LAB_DIR/server")"
	runs=$((runs + 1))
	[ "$(vrnicctl fault log -d b | grep -c ' drop ')" = $((3 * runs)) ] ||
		fail "other packets were lost: $(vrnicctl fault log -d b)"
}
lid_a=$(($(attribute a lid)))
migrations 18900
found -x "the paths lead to the LIDs $lid_a and $lid_a" <"$LAB_DIR/client" ||
	fail "other paths: $(cat "$LAB_DIR/client")"

on a sh -ec 'pid=$(pgrep -x opensm)
	for setting in $(tr "\0" "\n" <"/proc/$pid/environ" | grep ^OSM_); do export "$setting"; done
	set -- $(tr "\0" " " <"/proc/$pid/cmdline")
	kill "$pid"
	while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
	"$@" --lmc 1 >/dev/null 2>&1'
has_two() { [ "$(attribute "$1" lid_mask_count)" = 1 ]; }
for vm in a b; do within 60 has_two $vm || fail "OpenSM does not give VM $vm two LIDs"; done
within 60 on b sh -c "ibstat $DEV 1 | grep -q 'State: Active'" || fail "the port of VM b is not active"
lid_a=$(($(attribute a lid))) lid_b=$(($(attribute b lid)))
[ $((lid_a % 2 + lid_b % 2)) = 0 ] || fail "the LIDs are $lid_a and $lid_b"
# Both LIDs lead to the agents of VM a's HCA, and to its driver.
on -t 300 a ibping -S &
job=$!
for lid in $lid_a $((lid_a + 1)); do
	on b ibtracert "$lid_b" "$lid" | found '^To ca' || fail "there is no route to LID $lid"
	on b smpquery nodeinfo "$lid" | found "^Guid:\.*$(attribute a gids/0 | sed 's/.*:\(.*:.*:.*:.*\)$/0x\1/; s/://g')" ||
		fail "LID $lid is not that of VM a: $(on b smpquery nodeinfo "$lid")"
	on b saquery -p --src-to-dst "$lid_b:$lid" | found "dlid.*\.$lid\$" || fail "there is no path to LID $lid"
	within 60 on b sh -c "ibping -c 1 -t 1000 $lid | grep -q '^Pong'" || fail "VM a does not answer at LID $lid"
done
on a pkill -x ibping
wait $job || :
migrations 18901
found -x "the paths lead to the LIDs $lid_a and $((lid_a + 1))" <"$LAB_DIR/client" ||
	fail "other paths: $(cat "$LAB_DIR/client")"
