#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# On both fabrics, the devices of two VMs are recorded while programs run between them: one from its reset on, one from
# a moment when it is busy. The recordings replay with the same outputs, follow the rules of the standard, and show what
# happened. A panic of an engine is in its recording and replays. A device that is not recorded leaves its last calls.
# lab: fabric=local
# lab: fabric=roce
# lab: one-fabric
# lab: timeout=400
# lab: vrnicd faults = true
# lab: allow-leaks
. "$LAB_LIB"

replay() { "$(dirname "$VRNICCTL")/vrnic-replay" "$@"; }

# rebind VM [COMMAND …]: makes the VM's driver reset the device, and runs the command while there is no driver.
rebind() {
	local vm=$1 virtio
	virtio=$(bound "$vm")
	driver "$vm" unbind "$virtio"
	shift
	"$@"
	driver "$vm" bind "$virtio"
	active "$vm"
}

# waits VM FILE: starts a recording that waits for the driver.
waits() {
	vrnicctl record start -d "$1" "$LAB_DIR/$2" | found ' waiting for the driver ' ||
		fail "the recording does not wait for the driver"
	if vrnicctl record start -d "$1" "$LAB_DIR/two.vrnic" 2>/dev/null; then
		fail "a second recording of the same device was accepted"
	fi
}

rebind b waits b b.vrnic
on -t 120 a sh -c "vrnic-stress --device $DEV --seconds 5" &
load=$!
sleep 2
vrnicctl record start -d a "$LAB_DIR/a.vrnic" | found ' recording ' || fail "the recording does not start"
wait $load || fail "the recorded program fails"
[ "$(vrnicctl record list | grep -c ' recording ')" = 2 ] || fail "two devices cannot be recorded at the same time"
perf a b ib_write_bw -s 9000 -n 200
perf a b ib_send_bw -s 100 -n 200
perf a b ib_read_bw -s 9000 -n 200
perf a b ib_atomic_bw -n 50 -A FETCH_AND_ADD
perf a b ibv_ud_pingpong -n 50
vrnicctl fault add -d b lost-ack type=rc nth=5
perf a b ibv_rc_pingpong -n 50
vrnicctl fault log -d b | found lost-ack || fail "the fault did not fire"
for vm in a b; do
	vrnicctl record stop -d $vm | found 'ended: stopped' || fail "the recording of $vm does not end"
	[ "$(stat -c %a "$LAB_DIR/$vm.vrnic")" = 600 ] || fail "other users may read the recording"
	ls -l "$LAB_DIR/$vm.vrnic"
	replay "$LAB_DIR/$vm.vrnic" --check | tee "$LAB_DIR/replay-$vm" || fail "the recording of $vm fails the checks"
	found 'the replay is equal to the recording' <"$LAB_DIR/replay-$vm" || fail "the replay of $vm differs"
	replay "$LAB_DIR/$vm.vrnic" --timeline >"$LAB_DIR/timeline-$vm"
done
grep -q 'RDMA WRITE 0x.*, 9000 B -->' "$LAB_DIR/timeline-a" || fail "no request in the timeline"
grep -q -- '--> RDMA WRITE' "$LAB_DIR/timeline-a" || fail "no packet in the timeline"
grep -q -- '<-- CQ .* RDMA WRITE .* IBV_WC_SUCCESS' "$LAB_DIR/timeline-a" || fail "no completion in the timeline"
grep -q -- '<-- RDMA WRITE' "$LAB_DIR/timeline-b" || fail "no received packet in the timeline"
grep -q 'fault armed: lost-ack' "$LAB_DIR/timeline-b" || fail "no fault in the timeline"

# A driver's reset ends a recording as well.
vrnicctl record start -d b "$LAB_DIR/reset.vrnic"
rebind b
vrnicctl record list | found 'ended: the driver reset the device' || fail "the reset does not end the recording"
replay "$LAB_DIR/reset.vrnic" | found 'equal to the recording' ||
	fail "the recording up to the reset cannot be replayed"

# A panic leaves a recording that panics.
rebind a waits a panic.vrnic
perf a b ib_write_bw -s 9000 -n 20
vrnicctl fault add -d a engine-panic
panicked() { vrnicctl record list | found ' ended: .*panic.vrnic'; }
within 20 panicked || fail "the panic does not end the recording"
replay "$LAB_DIR/panic.vrnic" | tee "$LAB_DIR/replay-panic" || fail "the panic cannot be replayed"
found 'the engine panics, as it did: an injected fault' <"$LAB_DIR/replay-panic" || fail "no panic"
replay "$LAB_DIR/panic.vrnic" --minimise "$LAB_DIR/small.vrnic" || fail "the recording of the panic cannot be minimised"
replay "$LAB_DIR/small.vrnic" | found 'the engine panics, as it did' || fail "the minimised recording does not panic"
[ "$(stat -c %s "$LAB_DIR/small.vrnic")" -lt 1000 ] || fail "the minimised recording is too large"
# By now or later, the driver resets the device; the calls that led to the panic are kept nevertheless.
vrnicctl record last -d a --failure | tail -3
vrnicctl record last -d a --failure | tail -3 | found 'faults changed' || fail "the last calls are not shown"
if vrnicctl record last -d b --failure 2>/dev/null; then
	fail "the last failure of a device that did not fail is shown"
fi

# A device that is not recorded leaves its last calls when it fails.
perf a b ib_send_bw -s 100 -n 200
vrnicctl fault add -d b engine-panic
left() { vrnicctl record list | found ' ended: .*b-crash.vrnic'; }
within 20 left || fail "no crash recording was saved"
replay "$(dirname "$(lab config)")/b-crash.vrnic" | tee "$LAB_DIR/replay-crash" ||
	fail "the recording of the last calls cannot be replayed"
found 'the engine panics, as it did: an injected fault' <"$LAB_DIR/replay-crash" ||
	fail "no panic in the recording of the last calls"
active b
active a
on -t 60 a vrnic-stress --device "$DEV" --seconds 2
